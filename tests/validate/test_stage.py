"""Pieces for a bare host: what is packed comes out again, and what was damaged on the way is named."""

import json
import zipfile
from pathlib import Path

import pytest

from rooflinekit.validate import stage


def wheel(folder, name="vllm-0.24.0-py3-none-any.whl"):
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm/_C_stable_libtorch.abi3.so", bytes(range(256)) * 500)
        archive.writestr("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", b"left out")
        for python in (311, 312, 314):
            archive.writestr(f"vllm/third_party/deep_gemm/_C.cpython-{python}-x86_64-linux-gnu.so", b"block FP8")
        archive.writestr("vllm/__init__.py", "import torch\n")
        archive.writestr("vllm/tests/test_x.py", "")
        archive.writestr("vllm-0.24.0.dist-info/METADATA", "Name: vllm\nVersion: 0.24.0\nRequires-Dist: torch==2.11.0\n"
                         "Requires-Dist: msgspec>=0.18\nRequires-Dist: ray>=2; extra == 'ray'\n")  # fmt: skip
    return path


def test_what_is_packed_in_pieces_comes_out_again(tmp_path):
    files = [("vllm/a.so", bytes(range(256)) * 4000), ("vllm/b.py", b"x = 1\n")]
    *pieces, manifest = stage.write("ops", files, tmp_path / "parts", piece=300)
    assert len(pieces) > 1
    assert all(path.stat().st_size <= 300 for path in pieces)
    assert json.loads(manifest.read_text())["vllm"] == stage.VERSION
    assert stage.join(tmp_path / "parts", tmp_path / "site") == ["ops"]
    assert [(tmp_path / "site" / name).read_bytes() for name, _ in files] == [content for _, content in files]


@pytest.mark.parametrize(("harm", "said"), [
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), "differs from its manifest"),
    (lambda path: path.unlink(), "is missing"),
])  # fmt: skip
def test_a_piece_that_was_lost_or_cut_is_named(tmp_path, harm, said, capsys):
    first, *_ = stage.write("ops", [("a", b"12345" * 100)], tmp_path, piece=60)
    harm(first)
    assert stage.main(["join", str(tmp_path), "--into", str(tmp_path / "site")]) == 2
    assert f"{first}: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    (["ops", "--piece", "0"], "--piece must be at least 1 MiB, not 0"),
    (["ops", "--python", "abc"], "--python must be like 3.12, not abc"),
])  # fmt: skip
def test_senseless_words_are_refused_before_any_download(words, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        stage.main(words)
    assert said in capsys.readouterr().err


def test_a_folder_without_pieces_is_named(tmp_path, capsys):
    assert stage.main(["join", str(tmp_path), "--into", str(tmp_path / "site")]) == 2
    assert f"{tmp_path}: no manifest of pieces is here" in capsys.readouterr().err


def test_operators_come_without_the_rest_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "wheels", lambda packages, folder, python: [wheel(tmp_path)])
    stage.stage("ops", tmp_path / "parts", "3.12")
    stage.join(tmp_path / "parts", tmp_path / "site")
    found = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert found == {"vllm/_C_stable_libtorch.abi3.so", "vllm-0.24.0.dist-info/METADATA"}


def test_operators_and_the_rest_of_an_engine_are_one_wheel(tmp_path, monkeypatch):
    """Both are unpacked into one folder, in whichever order; neither holds what the other does."""
    monkeypatch.setattr(stage, "wheels", lambda packages, folder, python: [wheel(tmp_path)])
    monkeypatch.setattr(stage, "resolved", lambda package, python, host: [])
    for what in ("engine", "ops"):
        stage.stage(what, tmp_path / "parts", "3.12")
    assert stage.join(tmp_path / "parts", tmp_path / "site") == ["engine", "ops"]
    site = tmp_path / "site" / "vllm"
    assert (site / "__init__.py").read_text() == "import torch\n"
    assert not (site / "vllm_flash_attn" / "_vllm_fa2_C.abi3.so").exists()
    assert (site / "_C_stable_libtorch.abi3.so").is_file()
    assert [path.name for path in (site / "third_party" / "deep_gemm").iterdir()] == [
        "_C.cpython-312-x86_64-linux-gnu.so"
    ]  # of the host's Python alone


def test_an_engine_gets_versions_that_go_together_and_not_what_the_host_has(monkeypatch):
    """Pip resolves for the host without downloading; the newest of each package alone need not fit the others."""
    commands = []

    def pip(command, check):
        commands.append(command)
        names = {"vllm": "0.24.0", "torch": "2.11.0", "nvidia-nccl-cu13": "2", "xgrammar": "0.2.3",
                 "Llguidance": "1.7.6", "flashinfer_cubin": "0.6.12", "huggingface_hub": "2.4.0",
                 "PyYAML": "6.0.4"}  # fmt: skip
        said = {"install": [{"metadata": {"name": name, "version": version}} for name, version in names.items()]}
        Path(command[command.index("--report") + 1]).write_text(json.dumps(said))

    monkeypatch.setattr(stage.subprocess, "run", pip)
    host = stage.named(["pyyaml==6.0.2"])
    assert stage.resolved("vllm==0.24.0", "3.12", host) == ["llguidance==1.7.6", "xgrammar==0.2.3"]
    (command,) = commands
    assert {"--dry-run", "manylinux_2_31_x86_64", "3.12"} <= set(command)

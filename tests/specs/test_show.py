"""`rooflinekit show`: any file by what it holds, within 80 columns."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rooflinekit.cli.app import app
from rooflinekit.specs import accelerator_template, names

NAMES = [*names("accelerator"), *names("model"), "h100", "mistral"]


def show(*arguments):
    return CliRunner().invoke(app, ["show", *map(str, arguments)])


@pytest.mark.parametrize("part", range(8))  # for several processes
def test_no_line_is_longer_than_80_columns(part):
    """Whatever is shown, but for the path of the file, which is not broken."""
    for name in NAMES[part::8]:
        result = show(name)
        assert result.exit_code == 0, result.stderr
        lines = [line for line in result.stdout.splitlines() if not line.startswith("file ")]
        assert max(map(len, lines)) <= 80, f"{name}: {max(lines, key=len)}"


def test_what_is_wrapped_is_all_there_and_hangs():
    lines = show("h100").stdout.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("aliases  "))
    assert lines[start + 1].startswith(" " * 10 + "H100 80GB HBM3")
    assert "'h100' is ambiguous; took h100-sxm (others: h100-nvl, h100-pcie)" in " ".join(" ".join(lines).split())


def test_a_template_that_was_saved_is_shown(tmp_path, monkeypatch):
    (tmp_path / "my-chip.yaml").write_text(show("--template", "gpu").stdout)
    monkeypatch.chdir(tmp_path)
    for path in ("./my-chip.yaml", "my-chip.yaml", tmp_path / "my-chip.yaml"):
        result = show(path)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith("my-chip: Example Corp X1 96GB")


@pytest.mark.parametrize(("text", "said"), [
    ("a: 1\n", "file.yaml: is neither a model (it has no `config`) nor an accelerator (it has no"),
    ("config: 1\nname: x\nsource: y\n", "config: value 1 is not a section; put keys with values under it"),
    (accelerator_template().replace("title: Example Corp X1 96GB", ""), "title: is missing"),
    ("a: [\n", "not valid YAML"),
])  # fmt: skip
def test_a_wrong_file_gets_one_clear_line(tmp_path, text, said):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    result = show(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_unknown_name_gets_what_begins_with_it():
    assert "nearest: h100-sxm, h100-nvl, h100-pcie" in show("h10").stderr
    assert "nearest: llama-3-8b, llama-3-70b" in show("llama3").stderr
    assert show("groq").stderr.rstrip().endswith("nearest: grok-1, grok-2")
    assert "'claude'; `rooflinekit models` and `rooflinekit gpus` list what is known" in show("claude").stderr


@pytest.mark.parametrize("words", [("llama-3-8b",), ("--format", "json")])
def test_a_template_takes_no_name_and_no_format(words):
    result = show("--template", "gpu", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "leave NAME and --format out" in result.stderr

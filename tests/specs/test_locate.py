"""Names, aliases, paths and the reading of files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rooflinekit.model.types.errors import SpecError, UnknownNameError
from rooflinekit.specs import locate, places
from rooflinekit.specs.files import read_json, read_text, read_yaml
from rooflinekit.specs.locate import (
    aliases,
    kind_of_file,
    names,
    resolve,
    spec_dir,
    tokens,
)

KINDS = ("accelerator", "model")


@pytest.fixture(autouse=True)
def user_folder(tmp_path, monkeypatch):
    """The user's own folder, empty, so that nothing on this machine is seen."""
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("ROOFLINEKIT_SPECS", str(tmp_path / "user"))
    return tmp_path / "user"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A small library of models in place of the shipped one."""
    folder = tmp_path / "model_specs"
    folder.mkdir()
    texts = {
        "llama-3-8b": 'aliases: [meta-llama/Meta-Llama-3-8B, "llama 3 eight"]\n',
        "qwen2-57b": "aliases: [Qwen/Qwen2-57B-A14B]\nambiguous_aliases: [qwen]\n",
        "qwen2.5-7b": "aliases: [Qwen/Qwen2.5-7B]\n",
        "command-r": "title: Command R\n",
        "command-r+": "title: Command R+\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    monkeypatch.setattr(locate, "spec_dir", lambda kind: folder)
    return folder


def write(folder: Path, name: str, text: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_specs_claim_one_name(kind):
    claimed: dict[tuple[str, ...], str] = {}
    for name, others in aliases(kind).items():
        for key in {tokens(text) for text in (name, *others)}:
            assert key, f"{name}: an alias without letters or digits"
            assert key not in claimed, f"{name} and {claimed[key]} both claim {'-'.join(key)}"
            claimed[key] = name
    ambiguous = [tokens(text) for entry in locate._scan(kind) for text in entry.ambiguous]
    assert len(ambiguous) == len(set(ambiguous))
    assert not set(ambiguous) & set(claimed)


@pytest.mark.parametrize("kind", KINDS)
def test_alias_lines_are_found_by_the_text_scan(kind):
    """What the scan of the first characters finds is what the YAML says."""
    for entry in locate._scan(kind):
        data = read_yaml(entry.path)
        assert list(entry.exact) == list(data.get("aliases") or []), entry.path
        assert list(entry.ambiguous) == list(data.get("ambiguous_aliases") or []), entry.path


@pytest.mark.parametrize("name", ["h100-sxm", "H100-SXM", "h100 sxm5", "H100_SXM_80GB", "NVIDIA H100 80GB HBM3"])
def test_names_and_aliases_ignore_case_and_separators(name):
    found = resolve("accelerator", name)
    assert (found.value.stem, found.warnings) == ("h100-sxm", ())


@pytest.mark.parametrize(
    ("name", "taken", "others"),
    [
        ("h100", "h100-sxm", "h100-nvl, h100-pcie"),
        ("H100-80GB", "h100-sxm", "h100-pcie"),
        ("a100", "a100-sxm-80gb", "a100-pcie-40gb, a100-pcie-80gb, a100-sxm-40gb"),
        ("a100-80gb", "a100-sxm-80gb", "a100-pcie-80gb"),
        ("h200", "h200-sxm", "h200-nvl"),
        ("gh200", "gh200-96gb", "gh200-144gb"),
        ("v100", "v100-sxm2-32gb", "v100-pcie-16gb"),
        ("tpu-v5", "tpu-v5e", "tpu-v5p"),
        ("trainium", "trainium2", "trainium1, trainium3"),
    ],
)
def test_an_ambiguous_alias_takes_the_commonest_and_says_so(name, taken, others):
    found = resolve("accelerator", name)
    assert found.value.stem == taken
    assert found.warnings == (f"{name!r} is ambiguous; took {taken} (others: {others})",)


@pytest.mark.parametrize("name", ["b200", "h800", "b300", "l4", "t4", "4090"])
def test_a_name_of_one_product_is_not_ambiguous(name):
    assert resolve("accelerator", name).warnings == ()


def test_an_unknown_name_gets_the_nearest_ones():
    with pytest.raises(UnknownNameError, match=r"^unknown accelerator 'h10-sxm'; nearest: h100-sxm, ") as error:
        resolve("accelerator", "h10-sxm")
    assert error.value.exit_code == 2
    with pytest.raises(UnknownNameError, match="nearest: mi250x"):
        resolve("accelerator", "mi250")


LISTED = {
    "model": "; `rooflinekit models` lists what is known",
    "accelerator": "; `rooflinekit gpus` lists what is known",
}


@pytest.mark.parametrize(("kind", "name", "suggested"), [
    ("model", "llama3", "llama-3-8b, llama-3-70b, llama-3.1-8b, llama-3.1-70b, llama-3.1-405b, llama-3.2-1b"),
    ("model", "gpt-oss", "gpt-oss-20b, gpt-oss-120b"),
    ("model", "qwen3-1", "qwen3-1.7b, qwen3-14b"),
    ("model", "phi3", "phi-3-medium, phi-3-mini, phi-3.5-mini, phi-3.5-moe"),
    ("model", "lama-3-8b", "llama-3-8b"),
    ("model", "org/Meta-Llama-3-8B-instrct", "llama-3-8b"),
    ("accelerator", "h10", "h100-sxm, h100-nvl, h100-pcie"),
    ("accelerator", "mi3", "mi300x, mi325x, mi350x, mi355x"),
    ("accelerator", "tpu", "tpu-v4, tpu-v5e, tpu-v5p"),
    ("accelerator", "4090rtx", ""),
    ("accelerator", "6080", "rtx-2080-ti, rtx-3080-10gb, rtx-4080, rtx-4080-super, rtx-5080, rtx-6000-ada"),
    ("accelerator", "q", ""),
    ("model", "claude-3", ""),
    ("model", "gpt-4", "gpt2, gpt2-large, gpt2-medium, gpt2-xl, gpt-3-175b, gpt-j-6b"),
])  # fmt: skip
def test_suggestions_begin_with_what_was_typed_and_are_never_far_off(kind, name, suggested):
    with pytest.raises(UnknownNameError) as error:
        resolve(kind, name)
    assert ", ".join(error.value.suggestions).startswith(suggested)
    assert bool(error.value.suggestions) is bool(suggested)
    hint = f"; nearest: {', '.join(error.value.suggestions)}" if suggested else LISTED[kind]
    assert str(error.value) == f"unknown {kind} {name!r}{hint}"


@pytest.mark.parametrize(("name", "taken", "others"), [
    ("mistral", "mistral-7b", " (others: mistral-7b-v0.2, mistral-7b-v0.3)"),
    ("mixtral", "mixtral-8x7b", " (others: mixtral-8x22b)"),
    ("nemotron-h", "nemotron-h-56b", ""),
])  # fmt: skip
def test_a_family_name_takes_the_commonest_model_and_says_so(name, taken, others):
    found = resolve("model", name)
    assert (found.value.stem, found.warnings) == (taken, (f"{name!r} is ambiguous; took {taken}{others}",))


def test_the_beginning_of_one_name_is_that_name_and_says_so():
    for kind, name, taken in (("model", "devstral-2", "devstral-2-123b"), ("accelerator", "RTX 3060", "rtx-3060-12gb"),
                              ("model", "qwen3-235b", "qwen3-235b-a22b")):  # fmt: skip
        found = resolve(kind, name)
        assert found.value.stem == taken
        assert f"took {taken}, which begins so" in found.warnings[0]
    for name in ("llama-3", "qwen3", "deepseek-v4"):  # several, none of which the others begin with
        with pytest.raises(UnknownNameError):
            resolve("model", name)


def test_a_users_folder_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("ROOFLINEKIT_SPECS", str(tmp_path / "nowhere"))
    with pytest.raises(SpecError, match=r"^ROOFLINEKIT_SPECS = .*nowhere: no such folder; create it"):
        resolve("model", "llama-3-8b")
    chip = write(tmp_path, "chip.yaml", "title: x\n")
    assert resolve("accelerator", chip).value == chip, "a path does not need it"
    monkeypatch.setenv("ROOFLINEKIT_SPECS", "")
    assert resolve("model", "llama-3-8b").warnings == ()


@pytest.mark.parametrize(("file", "text", "kind"), [
    ("a.yaml", "compute: {}\nmemory: {}\n", "accelerator"),
    ("a.yml", "memory: {}\n", "accelerator"),
    ("a.yaml", "config: {}\n", "model"),
    ("a.json", "{}", "model"),
    ("config", '{"hidden_size": 4}', "model"),
    ("chip", "compute: {}\n", "accelerator"),
])  # fmt: skip
def test_a_file_is_what_it_holds(tmp_path, file, text, kind):
    assert kind_of_file(str(write(tmp_path, file, text))) == kind
    assert kind_of_file(str(tmp_path)) == "model"
    assert kind_of_file("llama-3-8b") is None
    assert kind_of_file(str(tmp_path / "models" / "llama-3-8b")) is None  # a path to nothing, whose last part is a name


def test_a_file_that_is_neither_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"is neither a model .* nor an accelerator"):
        kind_of_file(str(write(tmp_path, "a.yaml", "a: 1\n")))


@pytest.mark.parametrize("name", ["", "   ", "-", "///", "\0", "x" * 5000, "x/" * 5000])
def test_a_name_that_cannot_be_one_is_refused(name):
    with pytest.raises((UnknownNameError, SpecError)):
        resolve("accelerator", name)


def test_every_shipped_name_resolves_to_itself():
    for kind in KINDS:
        for name in names(kind):
            assert resolve(kind, name).value == spec_dir(kind) / f"{name}.yaml"


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("llama3-8b", "llama-3-8b"),
        ("meta-llama/meta-llama-3-8b", "llama-3-8b"),
        ("Meta-Llama-3-8B", "llama-3-8b"),
        ("llama-3-eight", "llama-3-8b"),
        ("qwen2-57b", "qwen2-57b"),
        ("qwen-2.5-7b", "qwen2.5-7b"),
        ("command r", "command-r"),
        ("command-r+", "command-r+"),
    ],
)
def test_models_resolve_by_tokens(library, name, stem):
    assert resolve("model", name) == locate.Loaded(library / f"{stem}.yaml")


def test_another_organisation_is_taken_by_the_last_part_and_said(library):
    found = resolve("model", "someone/Meta-Llama-3-8B")
    assert found.value.stem == "llama-3-8b"
    assert found.warnings == ("'someone/Meta-Llama-3-8B' is not a known id; took llama-3-8b by its last part",)


@pytest.mark.parametrize("name", ["llama-38b", "qwen25-7b", "someone/llama", "qwen2-5-7b"])
def test_numbers_are_never_run_together(library, name):
    with pytest.raises(UnknownNameError):
        resolve("model", name)


def test_stems_are_matched_without_opening_a_file(library, monkeypatch):
    monkeypatch.setattr(locate, "_aliases_of", lambda path: pytest.fail(f"{path} was opened"))
    resolve("model", "llama3-8b")
    names("model")


def test_the_users_spec_wins_and_says_so(library, user_folder):
    mine = write(user_folder / "model_specs", "Llama3_8B.yaml", "title: mine\n")
    found = resolve("model", "llama-3-8b")
    assert found.value == mine
    assert found.warnings == (f"{mine} is used instead of the library's own 'llama-3-8b'",)
    assert "Llama3_8B" in names("model")


def test_a_users_own_name_needs_no_warning(user_folder):
    mine = write(user_folder / "hardware_specs", "my-chip.yaml", "aliases: [x1]\n")
    assert resolve("accelerator", "MyChip") == locate.Loaded(mine)
    assert resolve("accelerator", "x1") == locate.Loaded(mine)


@pytest.mark.parametrize(
    ("platform", "variable", "parts"),
    [
        ("linux", "XDG_CONFIG_HOME", ("rooflinekit", "model_specs")),
        ("win32", "APPDATA", ("rooflinekit", "model_specs")),
    ],
)
def test_the_users_folder_follows_the_platform(tmp_path, monkeypatch, platform, variable, parts):
    monkeypatch.delenv("ROOFLINEKIT_SPECS")
    monkeypatch.setattr(places.sys, "platform", platform)
    monkeypatch.setenv(variable, str(tmp_path))
    assert places.user_dir("model") == tmp_path.joinpath(*parts)


def test_a_path_is_taken_as_it_is(tmp_path, monkeypatch):
    path = write(tmp_path, "chip.yaml", "title: x\n")
    folder = tmp_path / "org" / "checkpoint"
    write(folder, "config.json", "{}")
    monkeypatch.chdir(tmp_path)
    assert resolve("accelerator", path).value == path
    assert resolve("accelerator", "./chip.yaml").value == Path("chip.yaml")
    assert resolve("accelerator", "chip.yaml").value == Path("chip.yaml")
    assert resolve("model", str(folder)).value == folder
    assert resolve("model", "org/checkpoint").value == Path("org/checkpoint")
    assert resolve("model", folder / "config.json").value == folder / "config.json"


def test_a_file_that_happens_to_bear_a_known_name_does_not_hide_it(tmp_path, monkeypatch):
    write(tmp_path, "l4", "title: x\n")
    monkeypatch.chdir(tmp_path)
    assert resolve("accelerator", "l4").value == spec_dir("accelerator") / "l4.yaml"


@pytest.mark.parametrize("name", ["./none.yaml", "/nowhere/config.json", "chips/none.yml", "none.json"])
def test_a_path_that_does_not_exist_is_called_that(name):
    with pytest.raises(SpecError, match=r"no such file$"):
        resolve("model", name)


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"is a folder without a config\.json$"):
        resolve("model", tmp_path)
    with pytest.raises(SpecError, match="is a folder, not a file"):
        resolve("accelerator", tmp_path)


BAD_FILES = [
    (read_text, b"", "the file is empty"),
    (read_text, b" \n\t\n", "the file is empty"),
    (read_text, b"name: caf\xe9\n", "not UTF-8 text at byte 9; save it as UTF-8"),
    (read_yaml, b"a: 1\nb: [1,\n", r"line 3: not valid YAML \(truncated\?\): .*"),
    (read_yaml, b"a: 1\nb: 2\na: 3\n", "line 3: key 'a' appears twice; remove one"),
    (read_yaml, b"a:\n  x: 1\n  x: 2\n", "line 3: key 'x' appears twice; remove one"),
    (read_yaml, b"a: \x01\n", "not valid YAML: .*"),
    (read_yaml, b"a: !!python/object/apply:os.system [ls]\n", r"line 1: not valid YAML \(truncated\?\): .*"),
    (read_yaml, b"[1, 2]\n", "holds a list, not keys with values"),
    (read_yaml, b"just words\n", "holds a str, not keys with values"),
    (read_yaml, b"? [a]\n: 1\n", r"line 1: not valid YAML \(truncated\?\): .*"),
    (read_json, b'{"a": 1', r"line 1 column 8: not valid JSON \(truncated\?\): .*"),
    (read_json, b'{"a": 1, "a": 2}', "key 'a' appears twice; remove one"),
    (read_json, b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON: an integer has thousands of digits"),
    (read_yaml, b"a: " + b"9" * 5000, "not valid YAML: an integer has thousands of digits"),
    (read_yaml, b"a: 0x" + b"f" * 5000, "not valid YAML: an integer has thousands of digits"),
    (read_json, b"[1]", "holds a list, not keys with values"),
    (read_json, b'{"a":' + b"[" * 100_000, "not valid JSON: .*"),
]


@pytest.mark.parametrize(("reader", "data", "message"), BAD_FILES)
def test_a_bad_file_is_refused_in_one_line(tmp_path, reader, data, message):
    path = write(tmp_path, "spec", data)
    with pytest.raises(SpecError) as error:
        reader(path)
    assert re.fullmatch(re.escape(str(path)) + ": " + message, str(error.value)), str(error.value)


def test_missing_folder_and_forbidden_files_are_refused(tmp_path, monkeypatch):
    with pytest.raises(SpecError, match="no such file"):
        read_text(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="is a folder, not a file"):
        read_text(tmp_path)

    def forbidden(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    with pytest.raises(SpecError, match="cannot be read: Permission denied"):
        read_text(tmp_path / "secret.yaml")


def test_json_may_hold_infinity_and_a_byte_order_mark(tmp_path):
    path = write(tmp_path, "config.json", b'\xef\xbb\xbf{"high": Infinity, "low": NaN}')
    assert read_json(path)["high"] == float("inf")

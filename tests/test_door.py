"""The door for files: every reader asks it, and a question of the service opens no file of the caller's choice."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from test_compare import VLLM

from rooflinekit.model.types.errors import InputError, RooflinekitError, SpecError
from rooflinekit.ops.tools import TOOLS
from rooflinekit.simulation.traces import load_trace
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.calibration import load_calibration
from rooflinekit.specs.delimited import read_table, text_rows
from rooflinekit.specs.files import read_text
from rooflinekit.specs.places import catalogue_alone

SECRET = "hunter2"
NAMES = ("secret", "secret.csv", "secret.yaml", "folder", "./secret", "../{here}/secret", "{whole}/secret", "pipe")
WORDS = (
    "{}", " {}", "empirical:{}", "fixed:empirical:{}", "fixed : empirical : {}", "\u00a0fixed:\u00a0empirical:{}",
    "EMPIRICAL:{}", "hf:{}", "trace:{}", "llama-3-8b,{}", "{}=1", "@{}", "file://{}", "{}:rate=1",
)  # fmt: skip
ASKED = {
    "estimate": {"model": "llama3-8b"}, "explain": {"model": "llama3-8b", "metric": "kv_per_token"},
    "levers": {"model": "llama3-8b", "gpus": "l40s=1.2"}, "compare": {"run": VLLM, "gpu": "h100", "tp": 1},
    "simulate": {"model": "llama3-8b", "rate": 5, "requests": 2}, "models": {}, "gpus": {},
    "plan": {"model": "llama3-8b", "rate": 1, "tp": [1], "aggregated_only": True},
}  # fmt: skip

watched: list[Path] = []
opened: list[str] = []


def look(event: str, given: tuple[object, ...]) -> None:
    """Note what is opened or listed in a watched folder."""
    if watched and event in ("open", "os.listdir", "os.scandir") and isinstance(given[0], (str, bytes, os.PathLike)):
        path = os.path.realpath(os.fsdecode(given[0]))
        if Path(path).is_relative_to(watched[0]):
            opened.append(path)


sys.addaudithook(look)  # nothing takes it away again


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder of a server, with files that are nobody's business."""
    home = tmp_path / "server"
    (home / "folder").mkdir(parents=True)
    for name in ("secret", "secret.csv", "secret.yaml", "folder/config.json"):
        (home / name).write_text(f"{SECRET}\n")
    os.mkfifo(home / "pipe")
    monkeypatch.chdir(home)
    watched.append(home.resolve())
    yield home
    watched.clear()
    opened.clear()


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_no_question_opens_a_file(tool, folder):
    """A name, a text, a list or a mapping, in every option of every tool: every name plain, one in every text."""
    names = [name.format(here=folder.name, whole=folder) for name in NAMES]
    texts = [*names, *(word.format("secret.csv") for word in WORDS)]
    for option in {**tool.model.model_fields, "model": None}:
        for text in texts if option not in ("depth", "kernels") else ():
            for value in (text, [text], {text: 1}):
                try:
                    asked = tool.checked(ASKED[tool.name] | {option: value})
                except RooflinekitError as error:
                    assert SECRET not in str(error)
                    continue
                try:
                    found = tool.answer(asked)
                except RooflinekitError as error:
                    assert SECRET not in str(error), (option, value)
                else:
                    assert SECRET not in str(found)
                assert not opened, (option, value)


@pytest.mark.parametrize(
    "read",
    [
        read_text, text_rows, read_table, load_trace, lambda path: load_model(str(path)), load_model,
        lambda path: load_accelerator(str(path)), lambda path: load_calibration(str(path)),
        lambda _path: load_model("hf:org/name"),
    ],
)  # fmt: skip
def test_every_reader_asks_at_the_door(read, folder):
    for name in ("secret", "secret.csv", "secret.yaml", "pipe", "folder", "none"):
        with catalogue_alone(), pytest.raises(InputError) as raised:
            read(folder / name)
        assert not opened and SECRET not in str(raised.value)
    with catalogue_alone(), pytest.raises(InputError) as none:
        read(folder / "none")
    assert "no such" not in str(none.value)  # nor does it say what is there


def test_the_door_is_open_again_afterwards(folder):
    with pytest.raises(SpecError, match="only names of the catalogue are read here"), catalogue_alone():
        read_text(folder / "secret")
    assert read_text(folder / "secret") == f"{SECRET}\n"

"""Which checkpoint a server loads: the id or path of a model, or a placeholder that says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.model import Model
from rooflinekit.specs.locate import spec_dir, user_dir

__all__ = ["Checkpoint", "find_checkpoint", "quantised"]

_ID = re.compile(r"[\w.-]+/[\w.-]+")
_PRINTABLE, _DELETE = 32, 127  # ASCII
_HUB = "https://huggingface.co/"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The argument that names the model, its revision, and what the user has to hear about it."""

    argument: str
    revision: str | None = None
    note: str | None = None
    placeholder: bool = False


def find_checkpoint(given: str | PathLike[str], model: Model) -> Checkpoint:
    """The checkpoint of a model that was asked for as `given`.

    Raises InputError for a path with control characters, which no shell script can hold safely.
    """
    text = fspath(given)
    origin = Path(model.origin)
    for name in (text, str(origin.resolve())):
        if any(ord(letter) < _PRINTABLE or ord(letter) == _DELETE for letter in name):
            raise InputError(f"model {name!r} has control characters; rename the folder")
    if model.origin and not _is_library(origin):
        return _own(text, origin)
    ids = [alias for alias in model.aliases if _ID.fullmatch(alias)]
    asked = next((alias for alias in ids if alias.casefold() == text.casefold()), None)
    if asked:
        return Checkpoint(asked)
    named = model.source.removeprefix(_HUB) if model.source.startswith(_HUB) else ""
    chosen = named if _ID.fullmatch(named) else next(iter(ids), None)
    if chosen is None:
        return Checkpoint(f"/path/to/{model.name}", None, f"no checkpoint of {model.name} is known: replace "
                          f"/path/to/{model.name} by its folder", placeholder=True)  # fmt: skip
    others = [alias for alias in ids if alias != chosen]
    note = f"{model.name} is also the shape of {', '.join(others[:3])}: name one to serve it" if others else None
    return Checkpoint(chosen, None, note)


def _is_library(origin: Path) -> bool:
    return origin.suffix in (".yaml", ".yml") and origin.parent in (spec_dir("model"), user_dir("model"))


def _own(text: str, origin: Path) -> Checkpoint:
    """A path of the user's, or an id of the local Hugging Face cache."""
    if _ID.fullmatch(text.partition("@")[0]) and not Path(text).exists():
        name, _, revision = text.partition("@")
        return Checkpoint(name, revision or None)
    if origin.suffix in (".yaml", ".yml"):
        place = f"/path/to/{origin.stem}"
        return Checkpoint(place, None, f"{origin.name} describes a model and holds no weights: replace {place} by "
                          "its checkpoint's folder", placeholder=True)  # fmt: skip
    folder = origin if origin.is_dir() else origin.parent
    if origin.name == "config.json" or origin.is_dir():
        return Checkpoint(str(folder.resolve()), None, _weightless(folder.resolve()))
    return Checkpoint(str(folder.resolve()), None, f"an engine reads config.json, and this is {origin.name}")


def _weightless(folder: Path) -> str | None:
    if any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")):
        return None
    return f"{folder} holds no weights here: start the server where it does"


def quantised(model: Model, dtype: str) -> Checkpoint:
    """The place of a checkpoint in formats that the known one is not in, and that an engine does not make itself."""
    place = f"/path/to/{model.name}-{dtype}"
    note = f"{dtype} weights need a checkpoint that is quantised so: replace {place} by its folder or id"
    return Checkpoint(place, None, note, placeholder=True)

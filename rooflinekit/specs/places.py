"""Places of spec files, and the door for every other file: it is closed where strangers ask."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Literal

from rooflinekit.model.types.errors import SpecError

Kind = Literal["model", "accelerator", "system"]

_FOLDER: dict[Kind, str] = {
    "model": "model_specs",
    "accelerator": "hardware_specs",
    "system": "hardware_specs/systems",
}
_CONFIG = {"win32": ("APPDATA", "AppData", "Roaming"), "darwin": ("", "Library", "Application Support")}
_PACKAGE = Path(__file__).resolve().parents[1]
_CLOSED: ContextVar[bool] = ContextVar("closed", default=False)


@cache
def shipped_path(name: str) -> Path:
    """A folder or file that is shipped: inside the package (a wheel), else beside it (a checkout)."""
    return _PACKAGE / name if (_PACKAGE / name).exists() else _PACKAGE.parent / name


def spec_dir(kind: Kind) -> Path:
    """The library's folder of specs."""
    return shipped_path(_FOLDER[kind])


def user_dir(kind: Kind) -> Path:
    """The user's own folder of specs: in $ROOFLINEKIT_SPECS, else in the platform's configuration folder."""
    if chosen := os.environ.get("ROOFLINEKIT_SPECS"):
        return Path(chosen, _FOLDER[kind])
    variable, *below = _CONFIG.get(sys.platform, ("XDG_CONFIG_HOME", ".config"))
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is no home
    return Path(os.environ.get(variable) or Path(home, *below), "rooflinekit", _FOLDER[kind])


@contextmanager
def catalogue_alone() -> Iterator[None]:
    """Close the door: within, every file but those of the package and of the spec folders is refused."""
    before = _CLOSED.set(True)
    try:
        yield
    finally:
        _CLOSED.reset(before)


def admitted(path: Path) -> bool:
    """True if the door is open for a file or folder; it is not touched."""
    if not _CLOSED.get():
        return True
    roots = (_PACKAGE, *(folder(kind) for kind in ("model", "accelerator") for folder in (spec_dir, user_dir)))
    asked = Path(os.path.abspath(path))  # noqa: PTH100 - `resolve` would touch the file
    return any(asked.is_relative_to(os.path.abspath(root)) for root in roots)  # noqa: PTH100


def admit(path: Path | int) -> None:
    """Let a file be read; every reader of files asks. An open file may be given by its number."""
    if isinstance(path, Path) and not admitted(path):
        raise SpecError(f"{str(path)[:60]!r} is a file; only names of the catalogue are read here")
    try:
        state = os.stat(path)  # noqa: PTH116 - of a number, too
    except (OSError, ValueError):
        return
    name = "the standard input" if path == 0 else path
    if stat.S_ISBLK(state.st_mode) or (
        stat.S_ISCHR(state.st_mode)
        and state.st_rdev != Path(os.devnull).stat().st_rdev
        and not (isinstance(path, int) and os.isatty(path))
    ):
        raise SpecError(f"{name}: is a device, not a file")
    if stat.S_ISFIFO(state.st_mode) and isinstance(path, Path) and _named(path):
        raise SpecError(f"{path}: is a pipe, not a file; write to a file what comes out of it")


def check_file(path: Path) -> None:
    """Let an ordinary file be read."""
    admit(path)
    if not path.is_file():
        raise SpecError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}")


def _named(pipe: Path) -> bool:
    """True if a pipe lies in a folder, where nobody may ever write to it."""
    place = os.path.realpath(pipe)
    return not place.startswith("/dev/fd/") and os.path.exists(place)  # noqa: PTH110 - of a text

"""Files that are written: complete or not there, never through a link, never over another file unless told to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rooflinekit.model.types.errors import InputError

__all__ = ["check_target", "partial_path", "whole", "write_whole"]


def check_target(path: Path, force: bool, how: str = "add --force") -> None:
    """Refuse a file that is there (a link that leads nowhere is), a folder, a device, and a folder that is not there.

    Raises InputError.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file")
    if path.exists() and not path.is_file():  # /dev/null, a pipe
        raise InputError(f"{path} is no ordinary file; name one, or leave it out for the terminal")
    if os.path.lexists(path) and not force:
        raise InputError(f"{path} exists; {how} to overwrite it")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; make it first")


def partial_path(path: Path) -> Path:
    """Where a file is made before it is moved to its place, with nothing there that a writer could follow."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    return partial


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path beside the place to write to, moved there at the end, so that nobody sees half a file. A link is replaced.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, whole(Path(folder) / "a.txt") as partial:
    ...     characters = partial.write_text("complete")
    """
    partial = partial_path(path)
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file at once; returns its path."""
    with whole(path) as partial, partial.open("xb") as file:  # x: what somebody put there meanwhile is not followed
        file.write(data)
    return path

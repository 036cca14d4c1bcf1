"""Files of reports: complete or not there, never through a link, never over another file unless told to."""

from __future__ import annotations

import os
from pathlib import Path

from rooflinekit.types.errors import InputError

__all__ = ["check_target", "write_whole"]


def check_target(path: Path, force: bool, how: str = "add --force") -> None:
    """Refuse a file that is there (a link that leads nowhere is), a folder, and a folder that is not there.

    Raises InputError.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file")
    if os.path.lexists(path) and not force:
        raise InputError(f"{path} exists; {how} to overwrite it")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; make it first")


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file beside the place and move it there, so that nobody sees half of it. A link is replaced."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with partial.open("xb") as file:  # x: whatever somebody put there meanwhile is not followed
            file.write(data)
        return partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise

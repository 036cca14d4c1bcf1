"""Files that are written: complete or not there, never through a link, never over another file unless told to."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from rooflinekit.model.types.errors import InputError

_MADE = count()  # files of this process


def check_target(path: Path, force: bool, how: str = "add --force") -> None:
    """Refuse a file that is there (a link that leads nowhere is), a folder, a device, and a folder that is missing."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file")
    if path.exists() and not path.is_file():  # /dev/null, a pipe
        raise InputError(f"{path} is no ordinary file; name one, or leave it out for the terminal")
    if os.path.lexists(path) and not force:
        raise InputError(f"{path} exists; {how} to overwrite it")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; make it first")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path.parent} cannot be written to; name a file in another folder")


def partial_path(path: Path) -> Path:
    """Path at which this process makes a file before it is moved to its place; no link is there to follow."""
    partial = path.with_name(f".{path.name}.{os.getpid()}-{next(_MADE)}.partial")
    partial.unlink(missing_ok=True)
    return partial


def put(partial: Path, path: Path, force: bool) -> None:
    """Move a file that is complete to its place. A link there is replaced."""
    if force:
        partial.replace(path)
        return
    try:
        os.link(partial, path)  # which fails where something is, unlike a move
    except FileExistsError:
        names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in count(2))
        other = next(name for name in names if not os.path.lexists(name))
        partial.replace(other)
        raise InputError(f"{path} was written by another process meanwhile; this answer is kept in {other}") from None
    except OSError:  # a file system without links
        partial.replace(path)
    else:
        partial.unlink()


@contextmanager
def whole(path: Path, force: bool = True) -> Iterator[Path]:
    """A path beside the place to write to, moved there at the end, so that nobody sees half a file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, whole(Path(folder) / "a.txt") as partial:
    ...     characters = partial.write_text("complete")
    """
    partial = partial_path(path)
    try:
        yield partial
        put(partial, path, force)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes, force: bool = True) -> Path:
    """Write a file at once; returns its path. Raises as `whole` does."""
    with whole(path, force) as partial, partial.open("xb") as file:  # x: what somebody put there is not followed
        file.write(data)
    return path


@contextmanager
def open_workbook(path: Path, **options: object) -> Iterator[Any]:
    """A workbook of XlsxWriter, written at the end or when interrupted. Raises OSError, as for any other file."""
    from xlsxwriter import Workbook  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415
    from xlsxwriter.exceptions import (  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415
        FileCreateError,
    )

    kept = io.BytesIO()  # a file that a full disk cut short would complain once more when it is collected
    file = Workbook(kept, options)
    try:
        yield file
    except KeyboardInterrupt:
        file.close()
        path.write_bytes(kept.getvalue())
        raise
    except BaseException:
        file.fileclosed = True  # else it would be written when it is collected
        raise
    try:
        file.close()
    except FileCreateError as error:  # of its own temporary files
        cause = error.args[0]
        raise cause if isinstance(cause, OSError) else OSError(str(cause)) from None
    path.write_bytes(kept.getvalue())

"""Finished pieces of a sweep on disk, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from rooflinekit.model.types.errors import InputError, MissingExtraError
from rooflinekit.version import __version__

__all__ = ["Kept", "need_parquet"]


@dataclass(frozen=True)
class Kept:
    """A folder beside the output; each piece is a Parquet file that is complete or not there."""

    folder: Path

    @classmethod
    def beside(cls, out: Path, question: Any) -> Kept:
        """The pieces of this question, in OUT.pieces.

        Raises InputError if the folder holds those of another question, MissingExtraError without pyarrow.
        """
        need_parquet("--resume")
        kept = cls(out.with_name(f"{out.name}.pieces"))
        mark, asked = kept.folder / "question.txt", _digest(question)
        if mark.exists() and mark.read_text() != asked:
            raise InputError(f"{kept.folder} holds pieces of another sweep; remove it, or choose another --out")
        kept.folder.mkdir(exist_ok=True)
        mark.write_text(asked)
        return kept

    def __contains__(self, number: int) -> bool:
        """Whether a piece is finished."""
        return self._path(number).exists()

    @property
    def count(self) -> int:
        """Pieces that are finished."""
        return sum(1 for _ in self.folder.glob("[0-9]*.parquet"))

    def completed(self, fresh: Iterator[pd.DataFrame], pieces: int) -> Iterator[pd.DataFrame]:
        """All pieces in order: those on disk, and the others as they are answered, kept from then on."""
        for number in range(pieces):
            path = self._path(number)
            if not path.exists():
                partial = path.with_suffix(".partial")
                next(fresh).to_parquet(partial)
                partial.replace(path)
            yield pd.read_parquet(path)

    def drop(self) -> None:
        """Remove the pieces, once the output is written."""
        shutil.rmtree(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.parquet"


def _digest(question: Any) -> str:
    """What was asked, by which version."""
    text = json.dumps([__version__, question], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def need_parquet(what: str) -> None:
    """Refuse what needs Parquet where pyarrow is not installed.

    Raises MissingExtraError.
    """
    try:
        import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: F401, PLC0415 - optional
    except ImportError:
        raise MissingExtraError(f"{what} (Parquet)", "accuracy") from None

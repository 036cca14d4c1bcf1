"""Answers into files, row after row: CSV, Parquet, or a workbook; finished pieces are kept until all are there."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from rooflinekit.model.types.errors import InputError, InterruptedRunError, needing
from rooflinekit.specs.escaping import csv_table
from rooflinekit.specs.writing import open_workbook, whole, write_whole
from rooflinekit.version import __version__

SHEET_ROWS = 1_048_576
"""Rows of a sheet, its header included (ECMA-376; Microsoft, Excel specifications and limits)."""

SUFFIXES = (".csv", ".parquet", ".xlsx")


@dataclass(frozen=True)
class KeptPieces:
    """A folder beside the output; each piece is a Parquet file that is complete or not there."""

    folder: Path

    @classmethod
    def beside(cls, out: Path, question: Any) -> KeptPieces:
        """The pieces of this question, in OUT.pieces."""
        need_parquet("--resume")
        kept = cls(out.with_name(f"{out.name}.pieces"))
        text = json.dumps([__version__, question], default=str, sort_keys=True)
        mark, asked = kept.folder / "question.txt", hashlib.sha256(text.encode()).hexdigest()[:16]
        if mark.exists() and mark.read_text() != asked:
            raise InputError(f"{kept.folder} holds pieces of another sweep; remove it, or choose another --out")
        kept.folder.mkdir(exist_ok=True)
        write_whole(mark, asked.encode())
        return kept

    def __contains__(self, number: int) -> bool:
        """True if a piece is finished; one that was cut short is removed, to be answered again."""
        import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415 - optional
        import pyarrow.parquet as pq  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415

        try:
            pq.read_metadata(self._path(number))
        except (OSError, pa.ArrowInvalid):
            self._path(number).unlink(missing_ok=True)
            return False
        return True

    @property
    def count(self) -> int:
        """Pieces that are finished."""
        return sum(1 for _ in self.folder.glob("[0-9]*.parquet"))

    def completed(self, fresh: Iterator[pd.DataFrame], pieces: int) -> Iterator[pd.DataFrame]:
        """All pieces in order: those on disk, and the others as they are answered, kept from then on."""
        for number in range(pieces):
            path = self._path(number)
            if number not in self:
                with whole(path) as partial:
                    next(fresh).to_parquet(partial)
            yield pd.read_parquet(path)

    def drop(self) -> None:
        """Remove the pieces, once the output is written."""
        shutil.rmtree(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.parquet"


def need_parquet(what: str) -> None:
    """Refuse what needs Parquet where pyarrow is not installed."""
    with needing(f"{what} (Parquet)", "accuracy"):
        import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: F401, PLC0415 - optional


Writer: TypeAlias = Callable[[Iterable[pd.DataFrame], Path], None]


def check_suffix(out: Path, rows: int) -> None:
    """Refuse a file that cannot be written, before the work is done."""
    if out.suffix.lower() not in SUFFIXES:
        raise InputError(f"{out}: what is written is chosen by the suffix: {', '.join(SUFFIXES)}")
    if out.suffix.lower() == ".parquet":
        need_parquet(str(out))
    if out.suffix.lower() == ".xlsx" and rows >= SHEET_ROWS:
        raise InputError(f"{rows:,} rows are more than the {SHEET_ROWS:,} of a sheet; write .csv or .parquet")


def write_table(
    answers: Iterable[pd.DataFrame], out: Path, kept: KeptPieces | None = None, write: Writer | None = None,
    force: bool = True,
) -> None:  # fmt: skip
    """Write answers as they come; the file is complete, or not there."""
    with whole(out, force) as partial:
        try:
            (write or _WRITERS[out.suffix.lower()])(answers, partial)
        except KeyboardInterrupt:
            raise InterruptedRunError(_kept(partial, out, kept)) from None
    if kept is not None:
        kept.drop()


def _kept(partial: Path, out: Path, kept: KeptPieces | None) -> str:
    if kept is not None:
        partial.unlink(missing_ok=True)
        return f"interrupted; {kept.count} pieces are kept in {kept.folder}, and the same command goes on from there"
    if not partial.exists():
        return "interrupted before anything was answered"
    rest = out.with_name(f"{out.stem}.interrupted{out.suffix}")
    partial.replace(rest)
    return f"interrupted; the rows answered so far are kept in {rest} (--resume would let the same command go on)"


def _write_csv(answers: Iterable[pd.DataFrame], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        for number, part in enumerate(answers):
            file.write(csv_table(part, header=number == 0))


def _write_parquet(answers: Iterable[pd.DataFrame], path: Path) -> None:
    import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415 - optional
    import pyarrow.parquet as pq  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415

    writer = None
    try:
        for part in answers:
            if writer is None:
                schema = pa.Schema.from_pandas(part, preserve_index=False)
                writer = pq.ParquetWriter(path, schema)
            writer.write_table(pa.Table.from_pandas(part, schema=writer.schema, preserve_index=False))
    finally:
        if writer is not None:
            writer.close()


def _write_workbook(answers: Iterable[pd.DataFrame], path: Path) -> None:
    with open_workbook(path, constant_memory=True) as book:
        sheet, row = book.add_worksheet("results"), 0
        bold = book.add_format({"bold": True})
        for part in answers:
            if row == 0:
                sheet.freeze_panes(1, 0)
                for column, name in enumerate(part.columns):
                    sheet.write_string(0, column, str(name), bold)
            for cells in part.astype(object).itertuples(index=False, name=None):
                row += 1
                for column, cell in enumerate(cells):
                    _write_cell(sheet, row, column, cell)


def _write_cell(sheet: Any, row: int, column: int, cell: Any) -> None:
    if pd.isna(cell) or cell == "":
        return
    if isinstance(cell, bool):
        sheet.write_boolean(row, column, cell)
    elif isinstance(cell, (int, float)) and math.isfinite(cell):
        sheet.write_number(row, column, cell)
    else:
        sheet.write_string(row, column, str(cell))


_WRITERS: dict[str, Writer] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".xlsx": _write_workbook,
}

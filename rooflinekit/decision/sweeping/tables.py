"""Tables in files: scenarios read piece by piece (cells of a CSV file stay the text that they are), answers written."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from rooflinekit.estimation.frames import INPUT_COLUMNS, input_names
from rooflinekit.model.types.errors import InputError, InterruptedRunError, needing
from rooflinekit.specs.delimited import cells_checked, read_delimited, read_table
from rooflinekit.specs.escaping import csv_table
from rooflinekit.specs.writing import open_workbook, whole, write_whole
from rooflinekit.version import __version__

FAULT = "\0fault"
"""A column that a reader adds: why a row cannot be read, empty where it can."""

Rows: TypeAlias = Callable[[], pd.DataFrame]
"""Rows that travel to where they are answered, and are made there."""

_STEP = 262_144  # rows read at once


@dataclass(frozen=True)
class Headers:
    """A planner's headers, and the inputs that they mean."""

    given: tuple[str, ...]
    inputs: dict[str, str]  #: by header

    @classmethod
    def of(cls, given: list[object]) -> Headers:
        """Read headers: case, spaces and the usual other names do not matter."""
        names = tuple(str(header) for header in given)
        inputs = {str(header): name for header, name in input_names(names).items()}
        if "model" not in inputs.values():
            raise InputError(f"the table has no column 'model'; it has: {', '.join(names[:12]) or 'none'}")
        return cls(names, inputs)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns as the sweep knows them."""
        return tuple(self.inputs.get(header, header) for header in self.given)

    def restored(self, answers: pd.DataFrame) -> pd.DataFrame:
        """The planner's own headers again."""
        return answers.rename(columns={name: header for header, name in self.inputs.items()})


def as_inputs(table: pd.DataFrame, headers: Headers) -> pd.DataFrame:
    """The table with the names of inputs; text around which somebody left spaces, or that is nothing else."""
    table = table.set_axis(list(headers.columns), axis=1)
    for name in table.columns.intersection(list(INPUT_COLUMNS)):
        if pd.api.types.is_string_dtype(table[name]):
            text = table[name].str.strip()
            table[name] = text.where(text != "")
    return table


@dataclass(frozen=True)
class _Table:
    """A file of scenarios that is read in parts."""

    path: str

    @cached_property
    def headers(self) -> Headers:
        """Headers of the table."""
        raise NotImplementedError

    def parts(self) -> Iterator[pd.DataFrame]:
        """All rows, some at a time."""
        raise NotImplementedError

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns by the sweep's names."""
        return self.headers.columns

    def pieces(self, size: int, start: int, stop: int) -> Iterator[Rows]:
        """Rows start to stop, at most `size` at a time, whatever is read at once."""
        at, left = 0, pd.DataFrame()
        piece: Callable[[pd.DataFrame], Rows] = partial(partial, as_inputs, headers=self.headers)
        for part in self.parts():
            wanted = part.iloc[max(start - at, 0) : max(stop - at, 0)]
            at += len(part)
            left = pd.concat([left, wanted]) if len(left) else wanted
            while len(left) >= size:
                yield piece(left.iloc[:size])
                left = left.iloc[size:]
            if at >= stop:
                break
        if len(left):
            yield piece(left)


class TextTable(_Table):
    """A CSV file, or "-" for standard input."""

    @cached_property
    def headers(self) -> Headers:
        """Headers in its first line."""
        return Headers.of(list(self._whole.columns if self.path == "-" else self._read(nrows=0).columns))

    @cached_property
    def rows(self) -> int:
        """Rows in all: the file is read once to count them."""
        return sum(len(part) for part in (self.parts() if self.path == "-" else self._lines(usecols=[0])))

    def parts(self) -> Iterator[pd.DataFrame]:
        """All rows, some at a time."""
        return iter([self._whole]) if self.path == "-" else self._lines()

    @cached_property
    def _whole(self) -> pd.DataFrame:
        table: pd.DataFrame = self._read()
        return table

    def _lines(self, **how: object) -> Iterator[pd.DataFrame]:
        with self._read(chunksize=_STEP, skip_blank_lines=False, **how) as reader:
            while (part := self._checked(lambda: next(reader, None))) is not None:
                yield part

    def _read(self, **how: Any) -> Any:
        how |= {"dtype": "str", "keep_default_na": False, "na_values": [""]}
        return self._checked(lambda: read_delimited(self.path, **how))

    def _checked(self, read: Callable[[], Any]) -> Any:
        try:
            with cells_checked(self.path):
                return read()
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path}: no CSV table: {str(error).strip().splitlines()[0]}") from None


class ParquetTable(_Table):
    """A Parquet file."""

    @cached_property
    def headers(self) -> Headers:
        """Names of its columns."""
        return Headers.of(list(self._file.schema_arrow.names))

    @property
    def rows(self) -> int:
        """Rows in all."""
        return int(self._file.metadata.num_rows)

    def parts(self) -> Iterator[pd.DataFrame]:
        """All rows; whole numbers stay whole where cells are empty, so that all pieces have the same types."""
        pa, _ = need_parquet(self.path)
        kinds = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype(), pa.bool_(): pd.BooleanDtype()}
        return (batch.to_pandas(types_mapper=kinds.get) for batch in self._file.iter_batches(_STEP))

    @cached_property
    def _file(self) -> Any:
        pa, pq = need_parquet(self.path)
        try:
            return pq.ParquetFile(self.path)
        except pa.ArrowInvalid:
            raise InputError(f"{self.path}: no Parquet file") from None


def read_answers(name: str) -> pd.DataFrame:
    """A table that a sweep wrote, CSV or Parquet, with its numbers as numbers."""
    if Path(name).is_file() and Path(name).suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{name} is neither .csv nor .parquet")
    table: pd.DataFrame = read_table(Path(name))
    return table


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
        pa, pq = need_parquet("--resume")
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


def need_parquet(what: str) -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module; refuse what needs them where they are not installed."""
    with needing(f"{what} (Parquet)", "accuracy"):
        return import_module("pyarrow"), import_module("pyarrow.parquet")


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
    answers: Iterable[pd.DataFrame],
    out: Path,
    kept: KeptPieces | None = None,
    write: Writer | None = None,
    force: bool = True,
) -> None:
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
    pa, pq = need_parquet(str(path))
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

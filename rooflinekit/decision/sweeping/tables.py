"""Scenario tables in CSV and Parquet files, read piece by piece; every cell of a CSV file stays the text that it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd

from rooflinekit.decision.sweeping.answer import Rows
from rooflinekit.decision.sweeping.output import need_parquet
from rooflinekit.estimation.frames import INPUT_COLUMNS, input_names
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.delimited import cells_checked, read_delimited, read_table

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

    def _lines(self, **how: Any) -> Iterator[pd.DataFrame]:
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
        import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415 - optional

        kinds = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype(), pa.bool_(): pd.BooleanDtype()}
        return (batch.to_pandas(types_mapper=kinds.get) for batch in self._file.iter_batches(_STEP))

    @cached_property
    def _file(self) -> Any:
        need_parquet(self.path)
        import pyarrow as pa  # noqa: PLC0415 - optional
        import pyarrow.parquet as pq  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415

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

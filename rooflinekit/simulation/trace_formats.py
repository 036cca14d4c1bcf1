"""The columns of each kind of trace, and how one row of it becomes a request."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import IO, Any, NamedTuple

from rooflinekit.estimation.lengths import MOST_TOKENS
from rooflinekit.model.types.errors import MissingExtraError, SpecError

__all__ = ["FORMATS", "FlawError", "Row", "TraceFormat", "open_trace", "read_row"]

_LONGEST_S = 10 * 365 * 86400.0  # ten years: beyond that a relative time is a clock, or in another unit
_MOST_ID = 2**63 - 1
_SHORT = 7  # fewer digits are below any limit
_SURPLUS = "\0"  # key of cells beyond the header: no column is called so


class FlawError(Exception):
    """A row that cannot be trusted: of which kind, and what it says."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Row(NamedTuple):
    """One request as the trace has it; time in seconds on the trace's own clock."""

    time: float
    isl: int
    osl: int
    priority: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class TraceFormat:
    """Names of the columns in lower case; `clock` turns a cell into seconds.

    exact_clock: times are fine enough that equal rows are one request written twice, not two requests.
    """

    name: str
    time: str
    isl: str
    osl: str
    clock: Callable[[Any], float]
    mark: str = ""  #: a further column by which it is known
    block_tokens: int | None = None
    exact_clock: bool = True
    has_priority: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a file of this format must have."""
        return tuple(name for name in (self.time, self.isl, self.osl, self.mark) if name)


def _seconds(cell: Any) -> float:
    return _number(cell, "time")


def _milliseconds(cell: Any) -> float:
    return _number(cell, "time") / 1e3


def _date(cell: Any) -> float:
    """Seconds of a date; one without a zone is UTC."""
    try:
        moment = cell if isinstance(cell, datetime) else datetime.fromisoformat(str(cell).strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise FlawError(
            "missing" if cell in ("", None) else "unreadable", f"time {_short(cell)} is not a date"
        ) from None


FORMATS = (
    TraceFormat("azure", "timestamp", "contexttokens", "generatedtokens", _date),
    TraceFormat("azure", "arrived_at", "num_prefill_tokens", "num_decode_tokens", _seconds),
    TraceFormat("burstgpt", "timestamp", "request tokens", "response tokens", _seconds, exact_clock=False),
    TraceFormat("bailian", "timestamp", "input_length", "output_length", _seconds, "chat_id", 16),
    TraceFormat("mooncake", "timestamp", "input_length", "output_length", _milliseconds, "hash_ids", 512),
    TraceFormat("plain", "time_s", "isl", "osl", _seconds, "priority", has_priority=True),
    TraceFormat("plain", "time_s", "isl", "osl", _seconds),
)
"""In the order in which they are tried.

Azure 2023 and 2024: AzurePublicDataset, and the same as processed by Vidur. BurstGPT: arXiv:2401.17644; whole seconds.
Mooncake: arXiv:2407.00079; milliseconds, blocks of 512 tokens. Bailian: arXiv:2506.02634; blocks of 16 tokens.
"""


def open_trace(path: Path) -> tuple[TraceFormat, Iterator[tuple[int, Mapping[str, Any]]]]:
    """Sniff a file (CSV, JSON lines or Parquet; also gzipped): its format, and its rows with their lines.

    Raises SpecError for a file that cannot be opened, is empty, or has the columns of no trace.
    """
    rows = _guarded(path, _rows(path))
    first = next(rows, None)
    if first is None:
        raise SpecError(f"{path}: is empty; a trace has a line for each request")
    names = {name.strip().lower() for name in first[1] if isinstance(name, str)}
    for layout in FORMATS:
        if names.issuperset(layout.columns):
            return layout, _chain(first, rows)
    known = "; ".join(f"{layout.name}: {', '.join(layout.columns)}" for layout in FORMATS)
    raise SpecError(f"{path}: has the columns {_short(sorted(names))}, those of no known trace ({known})")


def read_row(layout: TraceFormat, cells: Mapping[str, Any]) -> Row:
    """Turn cells into a request.

    Raises FlawError for what is missing, unreadable, negative, zero or huge.
    """
    if _SURPLUS in cells:
        raise FlawError("unreadable", f"has more cells than the header, {_short(cells[_SURPLUS])} the last")
    time = layout.clock(_cell(cells, layout.time))
    if time < 0:
        raise FlawError("negative", f"{layout.time} is {time:g}")
    if time > _LONGEST_S and layout.clock is not _date:
        raise FlawError("huge", f"{layout.time} is {time:g} s, more than ten years")
    return Row(
        time,
        _tokens(_cell(cells, layout.isl), layout.isl),
        _tokens(_cell(cells, layout.osl), layout.osl),
        _whole(_cell(cells, "priority"), "priority") if layout.has_priority else 0,
        _ids(cells.get("hash_ids")) if layout.block_tokens is not None else (),
    )


def _cell(cells: Mapping[str, Any], name: str) -> Any:
    value = cells.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise FlawError("missing", f"{name} is missing")
    return value


def _number(cell: Any, name: str) -> float:
    if isinstance(cell, bool) or not isinstance(cell, (str, Real)):
        raise FlawError("unreadable", f"{name} {_short(cell)} is not a number")
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        raise FlawError("unreadable", f"{name} {_short(cell)} is not a number") from None
    if math.isnan(value):
        raise FlawError("missing", f"{name} is not a number")
    if math.isinf(value):
        raise FlawError("huge", f"{name} {_short(cell)} is not finite")
    return value


def _whole(cell: Any, name: str) -> int:
    value = _number(cell, name)
    if value < 0:
        raise FlawError("negative", f"{name} is {value:g}")
    if value > MOST_TOKENS:
        raise FlawError("huge", f"{name} is {value:g}; at most {MOST_TOKENS:,} make sense")
    if value != int(value):
        raise FlawError("unreadable", f"{name} {_short(cell)} is not a whole number")
    return int(value)


def _tokens(cell: Any, name: str) -> int:
    if isinstance(cell, str) and len(cell) < _SHORT and cell.isdecimal() and cell.isascii():
        value = int(cell)  # what nearly every cell is; a million rows pass here
    else:
        value = _whole(cell, name)
    if value == 0:
        raise FlawError("zero", f"{name} is 0; a request has at least one token in and one out")
    return value


def _ids(cell: Any) -> tuple[int, ...]:
    """Block ids; a list, or its text in a CSV cell."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            raise FlawError("unreadable", f"hash_ids {_short(cell)} is not a list") from None
    if cell is None:
        raise FlawError("missing", "hash_ids is missing")
    if isinstance(cell, str) or not isinstance(cell, Sequence):
        raise FlawError("unreadable", f"hash_ids {_short(cell)} is not a list")
    for one in cell:
        if isinstance(one, bool) or not isinstance(one, int) or not -_MOST_ID <= one <= _MOST_ID:
            raise FlawError("unreadable", f"hash_ids holds {_short(one)}, which is no block id")
    return tuple(cell)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer too long to print
        return "(a very long number)"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _chain(first: tuple[int, Mapping[str, Any]], rest: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[Any]:
    yield first
    yield from rest


def _guarded(path: Path, rows: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows, with everything that can be wrong with a file said in one line."""
    try:
        yield from rows
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: is not UTF-8 text") from None
    except (OSError, EOFError, csv.Error, zlib.error) as error:
        raise SpecError(f"{path}: cannot be read ({str(error) or type(error).__name__})") from None


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"PAR1":
        yield from _parquet_rows(path)
        return
    packed = magic[:2] == b"\x1f\x8b"
    with gzip.open(path, "rb") if packed else path.open("rb") as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")  # type: ignore[arg-type,type-var,unused-ignore]
        head = text.readline()
        text.seek(0)
        yield from _json_rows(path, text) if head.lstrip().startswith("{") else _csv_rows(text)


def _csv_rows(text: IO[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.reader(text)
    header = [name.strip().lower() for name in next(reader, [])]
    for cells in reader:
        if cells:
            row = dict(zip(header, cells, strict=False))
            yield reader.line_num, row if len(cells) <= len(header) else row | {_SURPLUS: cells[-1]}


def _json_rows(path: Path, text: IO[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError):
            raise SpecError(f"{path}, line {number}: is not valid JSON") from None
        if not isinstance(cells, dict):
            raise SpecError(f"{path}, line {number}: is not a JSON object")
        yield number, {name.strip().lower(): value for name, value in cells.items()}


def _parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415 - optional
        import pyarrow.parquet as pq  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError(f"{path.name} is Parquet, and reading it", "accuracy") from None
    try:
        number = 0
        for batch in pq.ParquetFile(path).iter_batches():
            for cells in batch.to_pylist():
                number += 1
                yield number, {name.strip().lower(): value for name, value in cells.items()}
    except (pa.ArrowException, ValueError) as error:
        raise SpecError(f"{path}: is not a Parquet file that can be read ({type(error).__name__})") from None

"""Request traces of others: Azure, Mooncake, BurstGPT, Bailian, splitwise-sim, plain tables, known by their columns.

Lengths alone (a table, conversations of ShareGPT) and rates alone (a client of ServeGen) are traces too, whose times or
lengths somebody else says. A file is read row by row into compact columns; a row that cannot be trusted is refused with
its line, or dropped and counted.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from itertools import chain, takewhile
from numbers import Real
from pathlib import Path
from typing import IO, Any

from rooflinekit.load.arrivals import Arrival, Gamma, Requests, generate
from rooflinekit.load.lengths import MOST_TOKENS, Empirical, Fixed
from rooflinekit.model.types.batch import positive
from rooflinekit.model.types.errors import InputError, SpecError, needing
from rooflinekit.specs.delimited import check_columns, delimiter_of
from rooflinekit.specs.files import json_lines, table_of
from rooflinekit.specs.places import admit

_LONGEST_S = 10 * 365 * 86400.0  # ten years: beyond that a relative time is a clock, or in another unit
_EPOCH = (1e9, 4e9)  # but seconds since 1970, from 2001 to 2096, are a clock
_MOST_ID = 2**63 - 1
_SHORT = 7  # fewer digits are below any limit
_SURPLUS = "\0"  # key of cells beyond the header: no column is called so
_SHOWN = 8  # columns of a file that is no trace

_LETTERS = 4.0
"""Letters of a token of English text: OpenAI's rule of thumb (platform.openai.com/tokenizer); no tokenizer is asked."""
_ASKED = (4, 1024, 2048)
"""Least tokens of a prompt and of an answer, most of a prompt, and of both: what vLLM's benchmark takes of ShareGPT
(is_valid_sequence in vllm/benchmarks/datasets)."""
_IMAGES = "numimages"  # of Azure's multimodal trace of 2025, whose ContextTokens include those of images
_SERVEGEN = {"weibull", "gamma", "exponential", "expon"}
_LEAST_CV, _MOST_CV = 0.01, 100.0
_MOST_DRAWN = 10_000_000

_UNSORTED, _DUPLICATE = "out of order", "duplicate"


class FlawError(Exception):
    """A row that cannot be trusted: of which kind, and what it says."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class TraceFormat:
    """Names of the columns in lower case, and how they are read; traces.yaml explains the fields."""

    name: str
    isl: str
    osl: str
    time: str = ""
    clock: Callable[[Any], float] = float
    mark: str = ""
    block_tokens: int | None = None
    exact_clock: bool = True

    @cached_property
    def has_priority(self) -> bool:
        """True if requests have priority classes."""
        return self.mark == "priority"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a file of this format must have."""
        return tuple(name for name in (self.time, self.isl, self.osl, self.mark) if name)


def _number(cell: object, name: str = "time") -> float:
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


def _date(cell: object) -> float:
    """Seconds of a date; one without a zone is UTC."""
    try:
        moment = cell if isinstance(cell, datetime) else datetime.fromisoformat(str(cell).strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        kind = "missing" if cell in ("", None) else "unreadable"
        raise FlawError(kind, f"time {_short(cell)} is not a date") from None


_CLOCKS: Mapping[str, Callable[[Any], float]] = {
    "date": _date,
    "seconds": _number,
    "milliseconds": lambda cell: _number(cell) / 1e3,
}


@cache
def _formats() -> tuple[TraceFormat, ...]:
    rows = table_of(__file__)["formats"]
    return tuple(TraceFormat(**row | {"clock": _CLOCKS[row.get("clock", "seconds")]}) for row in rows)


def open_trace(path: Path) -> tuple[TraceFormat, Iterator[tuple[int, Mapping[str, object]]]]:
    """Sniff a file (CSV, JSON lines or Parquet; also gzipped): its format, and its rows with their lines."""
    rows = _guarded(path, _rows(path))
    first = next(rows, None)
    if first is None:
        raise SpecError(f"{path}: is empty; a trace has a line for each request")
    names = {name.strip().lower() for name in first[1] if isinstance(name, str) and name != _SURPLUS}
    for layout in _formats():
        if names.issuperset(layout.columns):
            return layout, chain([first], rows)
    known = "; ".join(f"{layout.name}: {', '.join(layout.columns)}" for layout in _formats() if layout.time)
    raise SpecError(f"{path}: has the columns {', '.join(sorted(names)[:_SHOWN])}, those of no known trace ({known})")


def read_row(layout: TraceFormat, cells: Mapping[str, object]) -> Arrival:
    """Turn cells into a request; its time is on the trace's own clock."""
    if _SURPLUS in cells:
        raise FlawError("unreadable", f"has more cells than the header, {_short(cells[_SURPLUS])} the last")
    time = layout.clock(_cell(cells, layout.time)) if layout.time else 0.0
    if time < 0:
        raise FlawError("negative", f"{layout.time} is {time:g}")
    if time > _LONGEST_S and layout.clock is not _date and not _EPOCH[0] <= time <= _EPOCH[1]:
        raise FlawError("huge", f"{layout.time} is {time:g} s, more than ten years")
    isl, osl = _tokens(_cell(cells, layout.isl), layout.isl), _tokens(_cell(cells, layout.osl), layout.osl)
    priority = _whole(_cell(cells, "priority"), "priority") if layout.has_priority else 0
    return Arrival(time, isl, osl, _ids(cells.get("hash_ids")) if layout.block_tokens is not None else (), priority)


def _cell(cells: Mapping[str, object], name: str) -> Any:
    value = cells.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise FlawError("missing", f"{name} is missing")
    return value


def _whole(cell: object, name: str) -> int:
    value = _number(cell, name)
    if value < 0:
        raise FlawError("negative", f"{name} is {value:g}")
    if value > MOST_TOKENS:
        raise FlawError("huge", f"{name} is {value:g}; at most {MOST_TOKENS:,} make sense")
    if value != int(value):
        raise FlawError("unreadable", f"{name} {_short(cell)} is not a whole number")
    return int(value)


def _tokens(cell: object, name: str) -> int:
    if isinstance(cell, str) and len(cell) < _SHORT and cell.isdecimal() and cell.isascii():
        value = int(cell)  # what nearly every cell is; a million rows pass here
    else:
        value = _whole(cell, name)
    if value == 0:
        raise FlawError("zero", f"{name} is 0; a request has at least one token in and one out")
    return value


def _ids(cell: object) -> tuple[int, ...]:
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


def _guarded(
    path: Path, rows: Iterator[tuple[int, Mapping[str, object]]]
) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The rows, with everything that can be wrong with a file said in one line."""
    try:
        yield from rows
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise SpecError(f"{path}: is a folder, not a file") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: is not UTF-8 text") from None
    except (OSError, EOFError, csv.Error, zlib.error) as error:
        raise SpecError(f"{path}: cannot be read ({str(error) or type(error).__name__})") from None


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    admit(path)
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
        if head.lstrip().startswith("["):
            yield from _listed(path, text)
        elif head.lstrip().startswith("{"):
            for number, cells in json_lines(path, text):
                yield number, {name.strip().lower(): value for name, value in cells.items()}
        else:
            yield from _csv_rows(path, text)


def _listed(path: Path, text: IO[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a list in JSON; of a conversation its first prompt and answer, counted by their letters."""
    try:
        entries = json.load(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: is not valid JSON ({type(error).__name__})") from None
    none = bool(entries)
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, Mapping):
            raise SpecError(f"{path}: entry {number} of its list is no object")
        turns = entry.get("conversations", entry.get("messages"))
        if not isinstance(turns, list):
            none = False
            yield number, {str(name).strip().lower(): value for name, value in entry.items()}
            continue
        said = [turn.get("value", turn.get("content")) for turn in turns[:2] if isinstance(turn, Mapping)]
        counts = [round(len(one) / _LETTERS) for one in said if isinstance(one, str)]
        if len(counts) == 2 and min(counts) >= _ASKED[0] and counts[0] <= _ASKED[1] and sum(counts) <= _ASKED[2]:
            none = False
            yield number, {"prompt_tokens_of_text": counts[0], "answer_tokens_of_text": counts[1]}
    if none:
        least, prompt, both = _ASKED
        wanted = f"{least} to {prompt:,} tokens in and {least} or more out, {both:,} at most together"
        raise SpecError(f"{path}: no conversation has {wanted}")


def _csv_rows(path: Path, text: IO[str]) -> Iterator[tuple[int, Mapping[str, object]]]:
    first = text.readline()
    check_columns(path.name, first.lower())
    text.seek(0)
    reader = csv.reader(text, delimiter=delimiter_of(first))
    header = [name.strip().lower() for name in next(reader, [])]
    for cells in reader:
        if cells:
            row, surplus = dict(zip(header, cells, strict=False)), "".join(cells[len(header) :])
            yield reader.line_num, row | {_SURPLUS: surplus} if surplus else row


def _parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    with needing(f"{path.name} is Parquet, and reading it", "accuracy"):
        import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415 - optional
        import pyarrow.parquet as pq  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415
    try:
        number = 0
        for batch in pq.ParquetFile(path).iter_batches():
            for cells in batch.to_pylist():
                number += 1
                yield number, {name.strip().lower(): value for name, value in cells.items()}
    except (pa.ArrowException, ValueError) as error:
        raise SpecError(f"{path}: is not a Parquet file that can be read ({type(error).__name__})") from None


@dataclass(frozen=True)
class Trace:
    """Requests in order of time, as columns; one element a request.

    time: since the first request [s]; isl, osl [tokens]; priority: empty if the file has none; blocks: ids of all
    prompt blocks one after another, `ends` where each request's end (both empty if the file has none), `block_tokens`
    tokens a block; cleaned: rows mended or dropped, by reason; equal: requests that are as another of the same moment;
    former: requests at the start that only fill caches. timed, sized: whether the file says when requests come, and how
    long they are. remarks: what the reader should know of the file.
    """

    name: str
    format: str
    time: Sequence[float] = field(repr=False)
    isl: Sequence[int] = field(repr=False)
    osl: Sequence[int] = field(repr=False)
    priority: Sequence[int] = field(default=(), repr=False)
    blocks: Sequence[int] = field(default=(), repr=False)
    ends: Sequence[int] = field(default=(), repr=False)
    block_tokens: int | None = None
    cleaned: Mapping[str, int] = field(default_factory=dict)
    equal: int = 0
    former: int = 0
    timed: bool = True
    sized: bool = True
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, name: str, kind: str, requests: Iterable[Arrival], block_tokens: int | None, ranked: bool = False
    ) -> Trace:
        """Requests as columns: their blocks where a block has so many tokens, and their priorities if `ranked`."""
        time, isl, osl = array("d"), array("q"), array("q")
        priority, blocks, ends = array("q"), array("q"), array("q")
        for each in requests:
            time.append(each.time)
            isl.append(each.isl)
            osl.append(each.osl)
            if ranked:
                priority.append(each.priority)
            if block_tokens is not None:
                blocks.extend(each.hashes)
                ends.append(len(blocks))
        return cls(name, kind, time, isl, osl, priority, blocks, ends, block_tokens)

    def __len__(self) -> int:
        return len(self.time)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on cleaned rows, and how many requests equal others."""
        said = [f"{self.name}: {count:,} rows cleaned: {reason}" for reason, count in self.cleaned.items()]
        said += self.remarks
        if self.equal:
            said.append(f"{self.name}: rows that repeat one of their moment: {self.equal:,}; each counts as a request")
        return tuple(said)

    def coming(self, rate: float | None, cv: float = 1.0, seed: int = 0) -> Trace:
        """The trace with times: those of the file, or of a rate [1/s] where it has lengths alone."""
        if not self.sized:
            raise InputError(f"{self.name} has rates and no lengths; `simulate` takes it with --isl and --osl")
        if self.timed:
            if rate is not None:
                raise InputError(f"{self.name} says when requests come; leave --rate out (--speed replays it faster)")
            return self
        if rate is None:
            raise InputError(f"{self.name} has lengths and no times; add --rate, or --concurrency where users wait")
        one = Requests(Fixed(1), Fixed(1))
        time = array("d", (each.time for each in generate(Gamma(rate, cv), one, len(self), seed)))
        return replace(self, time=time, timed=True)

    def arrivals(self, speed: float = 1.0, count: int | None = None) -> Iterator[Arrival]:
        """Replay the first `count` requests, `speed` times as fast as they came.

        >>> trace = Trace("t", "plain", [0.0, 3.0], [8, 9], [1, 2])
        >>> [(arrival.time, arrival.isl) for arrival in trace.arrivals(speed=2.0)]
        [(0.0, 8), (1.5, 9)]
        """
        positive(speed, "speed")
        return (self.request(at, speed) for at in range(len(self) if count is None else min(count, len(self))))

    def request(self, at: int, speed: float = 1.0) -> Arrival:
        """One of the requests."""
        priority = self.priority[at] if self.priority else 0
        return Arrival(self.time[at] / speed, self.isl[at], self.osl[at], self.prefix(at), priority)

    def prefix(self, at: int) -> tuple[int, ...]:
        """Ids of the prompt blocks of a request; empty where the trace has none."""
        return tuple(self.blocks[self.ends[at - 1] if at else 0 : self.ends[at]]) if self.ends else ()

    def lengths(self) -> tuple[Empirical, Empirical]:
        """Prompt and output lengths as distributions."""
        return Empirical.of(self.isl), Empirical.of(self.osl)


def load_trace(path: Path, clean: bool = False) -> Trace:
    """Read a trace; its format is known by its columns.

    A row that repeats another of its moment is a request too, and counted. With `clean`, rows out of order are sorted,
    and rows with missing, zero, negative or huge values are dropped, repeated ones too where times are exact; `cleaned`
    counts them.
    """
    if windows := _windows(path):
        return _of_windows(path, windows)
    layout, rows = open_trace(path)
    checked = _Checked(path, layout, clean)
    made = partial(Trace.of, path.name, layout.name, block_tokens=layout.block_tokens, ranked=layout.has_priority)
    trace, cleaned = made(checked.requests(rows)), checked.cleaned
    if not len(trace):
        dropped = ", ".join(f"{count} {kind}" for kind, count in cleaned.items())
        raise SpecError(f"{path}: no request {f'is left ({dropped})' if dropped else 'in it'}")
    if cleaned[_UNSORTED]:
        trace = made(map(trace.request, sorted(range(len(trace)), key=trace.time.__getitem__)))
    start = trace.time[0]
    time = array("d", (moment - start for moment in trace.time)) if start else trace.time
    timed, remarks = bool(layout.time), checked.remarks
    equal = checked.equal if timed else 0
    return replace(trace, time=time, cleaned=dict(cleaned), equal=equal, timed=timed, remarks=remarks)


def _windows(path: Path) -> list[tuple[float, float, float]]:
    """Start [s], rate [1/s] and variation of the gaps of each window of a client of ServeGen; empty for any other file.

    ServeGen (arXiv:2505.09999) writes them without a header: time, rate, variation, law and its two parameters.
    """
    admit(path)
    found: list[tuple[float, float, float]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as text:
            for cells in csv.reader(text):
                law = cells[3].strip().lower() if len(cells) == 6 else "?"
                if law not in ("", *_SERVEGEN) or not (found or cells[0].replace(".", "", 1).isdigit()):
                    return []
                found.append((float(cells[0]), float(cells[1]), float(cells[2])))
    except (OSError, ValueError, csv.Error):
        return []
    return found if all(0.0 <= number < math.inf for each in found for number in each) else []


def _of_windows(path: Path, windows: Sequence[tuple[float, float, float]]) -> Trace:
    """Times at the rates of windows, with gamma gaps of their variation; each lasts until the next."""
    starts = [start for start, _, _ in windows]
    if starts != sorted(set(starts)):
        raise SpecError(f"{path}: windows of a client of ServeGen are out of order")
    last = starts[-1] - starts[-2] if len(starts) > 1 else 600.0
    ends = [*starts[1:], starts[-1] + last]
    asked = math.fsum(rate * (end - start) for (start, rate, _), end in zip(windows, ends, strict=True))
    if not asked <= _MOST_DRAWN:
        raise SpecError(f"{path}: its windows ask for {asked:.3g} requests; at most {_MOST_DRAWN:,} are drawn")
    time, one = array("d"), Requests(Fixed(1), Fixed(1))
    for number, ((start, rate, cv), end) in enumerate(zip(windows, ends, strict=True)):
        if rate > 0.0:
            process = Gamma(rate, min(max(cv, _LEAST_CV), _MOST_CV))
            comes = generate(process, one, 1 << 40, number)
            time.extend(start + each.time for each in takewhile(partial(_before, end - start), comes))
    if not time:
        raise SpecError(f"{path}: no request comes in any window")
    ones = array("q", [1]) * len(time)
    note = f"{path.name}: {len(windows)} windows of a client of ServeGen; gaps are gamma with their rate and variation"
    return Trace(path.name, "servegen", time, ones, ones, sized=False, remarks=(note,))


def _before(end: float, each: Arrival) -> bool:
    return each.time < end


class _Checked:
    """The rows of a trace that can be trusted, while it is read."""

    def __init__(self, path: Path, layout: TraceFormat, clean: bool) -> None:
        self.path, self.layout, self.clean = path, layout, clean
        self.cleaned: Counter[str] = Counter()
        self.equal = self.images = 0
        self._latest = float("-inf")
        self._seen: set[int] = set()  # rows of this moment, or, where rows may be out of order, of all moments

    def requests(self, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[Arrival]:
        """Take each row, or refuse it."""
        for line, cells in rows:
            try:
                row = read_row(self.layout, cells)
                self.images += str(cells.get(_IMAGES, "0")).strip() not in ("0", "")
                if self.layout.time:
                    self._order(row)
            except FlawError as flaw:
                if not self.clean:
                    mend = "sorts" if flaw.kind == _UNSORTED else "drops"
                    raise SpecError(f"{self.path}, line {line}: {flaw}; --clean {mend} such rows") from None
                self.cleaned[flaw.kind] += 1
                if flaw.kind != _UNSORTED:
                    continue
            yield row

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for the reader of such a file."""
        if self.layout.name == "sharegpt":
            return (
                f"{self.path.name}: first prompt and answer of each conversation, at {_LETTERS:g} letters a token "
                "(an assumption), in the range that vLLM's benchmark takes",
            )
        if self.images:
            return (
                f"{self.path.name}: {self.images:,} requests show images; their tokens are in ContextTokens, and "
                "the time of the image encoder is not played",
            )
        return ()

    def _order(self, row: Arrival) -> None:
        """Count what was there before, and refuse what comes too late."""
        if row.time > self._latest and not self.clean:
            self._seen.clear()
        mark = hash(row)
        if mark in self._seen:
            if self.clean and self.layout.exact_clock:
                raise FlawError(_DUPLICATE, "repeats an earlier row")
            self.equal += 1
        self._seen.add(mark)
        if row.time > self._latest + _LONGEST_S > 0.0 and self.layout.clock is not _date:
            raise FlawError("huge", f"the request came more than ten years after the one above ({row.time:g} s)")
        if row.time < self._latest:
            raise FlawError(_UNSORTED, f"the request came before the one above ({self._latest - row.time:g} s)")
        self._latest = row.time

"""Request traces of others: Azure, Mooncake, BurstGPT, Bailian and plain tables, known by their columns.

A file is read row by row into compact columns; a row that cannot be trusted is refused with its line, or dropped and
counted.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rooflinekit.estimation.lengths import Empirical
from rooflinekit.estimation.spelling import at_least
from rooflinekit.model.types.errors import SpecError
from rooflinekit.simulation.request import Arrival
from rooflinekit.simulation.trace_formats import FlawError, Row, TraceFormat, open_trace, read_row

__all__ = ["Trace", "load_trace"]

_UNSORTED, _DUPLICATE = "out of order", "duplicate"


@dataclass(frozen=True)
class Trace:
    """Requests in order of time, as columns; one element a request.

    time: since the first request [s]; isl, osl [tokens]; priority: empty if the file has none; blocks: ids of all
    prompt blocks one after another, `ends` where each request's end (both empty if the file has none), `block_tokens`
    tokens a block; cleaned: rows mended or dropped, by reason.
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

    def __len__(self) -> int:
        return len(self.time)

    def arrivals(self, speed: float = 1.0, count: int | None = None) -> Iterator[Arrival]:
        """Replay the first `count` requests, `speed` times as fast as they came.

        >>> trace = Trace("t", "plain", [0.0, 3.0], [8, 9], [1, 2])
        >>> [(arrival.time, arrival.isl) for arrival in trace.arrivals(speed=2.0)]
        [(0.0, 8), (1.5, 9)]

        Raises WorkloadError for a speed that is not above 0.
        """
        at_least(speed, 0, "speed")
        for index in range(len(self) if count is None else min(count, len(self))):
            yield Arrival(
                self.time[index] / speed,
                self.isl[index],
                self.osl[index],
                self.prefix(index),
                self.priority[index] if self.priority else 0,
            )

    def prefix(self, index: int) -> tuple[int, ...]:
        """Ids of the prompt blocks of a request; empty where the trace has none."""
        if not self.ends:
            return ()
        return tuple(self.blocks[self.ends[index - 1] if index else 0 : self.ends[index]])

    def lengths(self) -> tuple[Empirical, Empirical]:
        """Prompt and output lengths as distributions."""
        return Empirical.of(self.isl), Empirical.of(self.osl)


def load_trace(path: Path, clean: bool = False) -> Trace:
    """Read a trace; its format is known by its columns.

    With `clean`, rows out of order are sorted, and repeated rows and rows with missing, zero, negative or huge values
    are dropped; `cleaned` counts them.

    Raises SpecError for a file that is no trace, for a row that cannot be trusted (unless `clean`) with its line, and
    for a trace of which nothing is left.
    """
    layout, rows = open_trace(path)
    columns = _Columns(path, layout, clean)
    for line, cells in rows:
        columns.add(line, cells)
    return columns.trace()


class _Columns:
    """A trace while it is read."""

    def __init__(self, path: Path, layout: TraceFormat, clean: bool) -> None:
        self.path, self.layout, self.clean = path, layout, clean
        self.time, self.isl, self.osl, self.priority = array("d"), array("q"), array("q"), array("q")
        self.blocks, self.ends = array("q"), array("q")
        self.cleaned: Counter[str] = Counter()
        self._latest = float("-inf")
        self._seen: set[int] = set()  # rows of this moment, or, where rows may be out of order, of all moments

    def add(self, line: int, cells: Mapping[str, Any]) -> None:
        """Take a row, or refuse it."""
        try:
            row = read_row(self.layout, cells)
            self._order(row)
        except FlawError as flaw:
            if not self.clean:
                mend = "sorts" if flaw.kind == _UNSORTED else "drops"
                raise SpecError(f"{self.path}, line {line}: {flaw}; --clean {mend} such rows") from None
            self.cleaned[flaw.kind] += 1
            if flaw.kind != _UNSORTED:
                return
        self._append(row)

    def _order(self, row: Row) -> None:
        """Refuse what was there before, and what comes too late."""
        if row.time > self._latest and not self.clean:
            self._seen.clear()
        if self.layout.exact_clock:
            mark = hash(row)
            if mark in self._seen:
                raise FlawError(_DUPLICATE, "repeats an earlier row")
            self._seen.add(mark)
        if row.time < self._latest:
            raise FlawError(_UNSORTED, f"the request came before the one above ({self._latest - row.time:g} s)")
        self._latest = row.time

    def _append(self, row: Row) -> None:
        self.time.append(row.time)
        self.isl.append(row.isl)
        self.osl.append(row.osl)
        if self.layout.has_priority:
            self.priority.append(row.priority)
        if self.layout.block_tokens is not None:
            self.blocks.extend(row.blocks)
            self.ends.append(len(self.blocks))

    def trace(self) -> Trace:
        """Put it in order."""
        if not self.time:
            dropped = ", ".join(f"{count} {kind}" for kind, count in self.cleaned.items())
            raise SpecError(f"{self.path}: no request {f'is left ({dropped})' if dropped else 'in it'}")
        if self.cleaned[_UNSORTED]:
            self._sort()
        start = self.time[0]
        time = array("d", (moment - start for moment in self.time)) if start else self.time
        return Trace(
            self.path.name, self.layout.name, time, self.isl, self.osl, self.priority, self.blocks, self.ends,
            self.layout.block_tokens, dict(self.cleaned),
        )  # fmt: skip

    def _sort(self) -> None:
        order = sorted(range(len(self.time)), key=self.time.__getitem__)
        prefix = Trace("", "", self.time, self.isl, self.osl, (), self.blocks, self.ends).prefix
        blocks, ends = array("q"), array("q")
        if self.ends:
            for index in order:
                blocks.extend(prefix(index))
                ends.append(len(blocks))
        self.blocks, self.ends = blocks, ends
        self.time = array("d", (self.time[index] for index in order))
        self.isl = array("q", (self.isl[index] for index in order))
        self.osl = array("q", (self.osl[index] for index in order))
        if self.priority:
            self.priority = array("q", (self.priority[index] for index in order))

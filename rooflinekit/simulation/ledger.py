"""Ledger of a running simulation: counts, sums and sketches, never a list of finished requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooflinekit.model.types.answer import Json
from rooflinekit.model.types.late import np
from rooflinekit.simulation.requests import Job

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESOLUTION = 0.005
"""Ratio of the ends of a bin, less 1. A quantile is within 0.5 % of the sample's own: half a bin, and as much again
where steps of a run that differ by less than that are taken together."""

_SCALE = 1.0 / math.log1p(RESOLUTION)
_LEAST = 1e-9  # durations below a nanosecond are one bin, and read as 0
_PENDING = 4096  # durations that are sorted into bins at once
_FEW = 40  # durations that Python sorts sooner than NumPy


class Sketch:
    """Counts in bins of equal ratio (as DDSketch, Masson et al. 2019, arXiv:1908.10693); the mean is exact.

    >>> times = Sketch()
    >>> times.add(1.0), times.add(2.0, 3)
    (None, None)
    >>> times.mean, round(times.quantile(0.5), 2)
    (1.75, 2.0)
    """

    __slots__ = ("_bins", "_count", "_counts", "_largest", "_total", "_values")

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}
        self._values: list[float] = []
        self._counts: list[int] = []
        self._count, self._total, self._largest = 0, 0.0, 0.0

    @classmethod
    def made(cls, values: NDArray[Any]) -> Sketch:
        """Sketch of durations that are all known."""
        sketch = cls()
        sketch.add_many(values, values > -1.0)
        return sketch

    def add(self, value: float, count: int = 1) -> None:
        """Add a duration `count` times."""
        self._values.append(value)
        self._counts.append(count)
        if len(self._values) >= _PENDING:
            self._sort()

    def add_many(self, values: NDArray[Any], counts: NDArray[Any]) -> None:
        """Add durations, each as often as `counts` says."""
        self._sort()
        self._values, self._counts = values.tolist(), counts.tolist()
        self._sort()

    def add_run(self, first: float, slope: float, steps: int, count: int) -> None:
        """Add first, first + slope, …, each `count` times: what a run of decode steps gives every sequence."""
        change = abs(slope) * (steps - 1)
        pieces = 1 + int(change / (RESOLUTION * max(min(first, first + slope * (steps - 1)), _LEAST)))
        pieces = min(pieces, steps)
        for piece in range(pieces):
            start, end = steps * piece // pieces, steps * (piece + 1) // pieces
            self.add(first + slope * (start + end - 1) / 2, (end - start) * count)

    @classmethod
    def joined(cls, parts: Iterable[Sketch]) -> Sketch:
        """All durations of several.

        >>> one, other = Sketch(), Sketch()
        >>> one.add(1.0), other.add(3.0)
        (None, None)
        >>> Sketch.joined([one, other]).mean
        2.0
        """
        whole = cls()
        for part in parts:
            part._sort()  # a part that was kept in a file is sorted: both give the same sum to the last bit
            whole._count, whole._total = whole._count + part._count, whole._total + part._total
            whole._largest = max(whole._largest, part._largest)
            for key, number in part._bins.items():
                whole._bins[key] = whole._bins.get(key, 0) + number
        return whole

    def plain(self) -> list[Any]:
        """Return plain values for JSON; `of` reads them back."""
        return [self.total, self.largest, list(self._bins.items())]

    @classmethod
    def of(cls, plain: Sequence[Any]) -> Sketch:
        """Read the values of `plain`."""
        made = cls()
        made._total, made._largest, bins = plain
        made._bins = {int(key): int(number) for key, number in bins}
        made._count = sum(made._bins.values())
        return made

    @property
    def count(self) -> int:
        """Durations so far."""
        self._sort()
        return self._count

    @property
    def total(self) -> float:
        """Sum of the durations."""
        self._sort()
        return self._total

    @property
    def largest(self) -> float:
        """The longest; 0 if there is none."""
        self._sort()
        return self._largest

    @property
    def mean(self) -> float:
        """Mean; not a number if there is nothing."""
        return self.total / self._count if self.count else math.nan

    def upto(self, value: float) -> int:
        """Number of durations that are at most as long, to the resolution of the bins."""
        self._sort()
        return sum(number for key, number in self._bins.items() if math.exp((key + 0.5) / _SCALE) <= value)

    def quantile(self, share: float) -> float:
        """Duration that this share of the sample does not exceed; not a number if there is nothing."""
        left = share * self.count
        for key in sorted(self._bins):
            left -= self._bins[key]
            if left <= 0:
                value = math.exp((key + 0.5) / _SCALE)
                return min(value, self._largest) if value > 2 * _LEAST else 0.0
        return math.nan

    def _sort(self) -> None:
        """Empty what is pending into the bins."""
        if not self._values:
            return
        if len(self._values) < _FEW:
            self._count, self._largest = self._count + sum(self._counts), max(self._largest, *self._values)
            for value, count in zip(self._values, self._counts, strict=True):
                key = math.floor(math.log(max(value, _LEAST)) * _SCALE)
                self._bins[key] = self._bins.get(key, 0) + count
                self._total += value * count
        else:
            self._sort_many()
        self._values, self._counts = [], []

    def _sort_many(self) -> None:
        values, counts = np.array(self._values), np.array(self._counts)
        keys = np.floor(np.log(np.maximum(values, _LEAST)) * _SCALE).astype(int)
        first = int(keys.min())
        numbers = np.bincount(keys - first, counts)
        filled = np.flatnonzero(numbers)
        for key, number in zip((filled + first).tolist(), numbers[filled].tolist(), strict=True):
            self._bins[key] = self._bins.get(key, 0) + int(number)
        self._count += int(counts.sum())
        self._total += float(values @ counts)
        self._largest = max(self._largest, float(values.max()))


@dataclass(frozen=True, slots=True)
class RequestObjective:
    """Service-level objective of one request; None asks for nothing [s]."""

    ttft: float | None = None
    tpot: float | None = None

    def met(self, ttft: float, tpot: float) -> bool:
        """True if a request got what was promised."""
        return (self.ttft is None or ttft <= self.ttft) and (self.tpot is None or tpot <= self.tpot)


class Ledger:
    """Counts every request once on its way in and once on its way out."""

    def __init__(self, objective: RequestObjective, keep: Callable[[Job, float, str], None] | None = None) -> None:
        self.objective, self.keep = objective, keep
        self.ttft, self.tpot, self.itl, self.e2el, self.queued = Sketch(), Sketch(), Sketch(), Sketch(), Sketch()
        self.arrived = self.finished = self.rejected = self.cut = self.good = 0
        self.refusals: Counter[str] = Counter()  #: rejected requests by reason
        self.preempted = self.measured = 0
        self.measured_tokens = 0  #: of the outputs of those that count
        self.present, self.area = 0, 0.0  #: requests in the system, and the integral over time
        self.waiting, self.waited = 0, 0.0  #: those without a first token yet, and the integral over time
        self.clock = self.last_end = 0.0
        self.measured_from = float("inf")

    def plain(self) -> Json:
        """Return plain values for JSON; `of` reads them back."""
        sketches = {name: getattr(self, name).plain() for name in _SKETCHES}
        return sketches | {name: getattr(self, name) for name in (*_SUMS, *_TIMES)} | {"refusals": dict(self.refusals)}

    @classmethod
    def of(cls, plain: dict[str, Any], objective: RequestObjective) -> Ledger:
        """Read the values of `plain`."""
        made = cls(objective)
        for name, value in plain.items():
            setattr(made, name, Sketch.of(value) if name in _SKETCHES else value)
        made.refusals = Counter(plain["refusals"])
        return made

    @classmethod
    def joined(cls, parts: Sequence[Ledger]) -> Ledger:
        """The books of several fleets side by side: counts and sums add up, times are the first's and the last's."""
        whole = cls(parts[0].objective)
        for name in _SKETCHES:
            setattr(whole, name, Sketch.joined(getattr(part, name) for part in parts))
        for name in _SUMS:
            setattr(whole, name, sum(getattr(part, name) for part in parts))
        whole.refusals = sum((part.refusals for part in parts), Counter())
        whole.last_end = max(part.last_end for part in parts)
        whole.measured_from = min(part.measured_from for part in parts)
        return whole

    def enter(self, job: Job, now: float) -> None:
        """A request arrives."""
        self._pass(now)
        self.arrived += 1
        self.present += 1
        self.waiting += 1
        if job.measured and now < self.measured_from:
            self.measured_from = now

    def first_token(self, job: Job, now: float) -> None:
        """The first token of a request comes out."""
        self.waited += now - self.clock  # of this one; of the others when the clock moves on
        self.waiting -= 1
        job.first = now
        if job.measured:
            self.ttft.add(now - job.arrived)

    def leave(self, job: Job, now: float, how: str) -> None:
        """A request ends: finished, rejected, or cut by the end of the run."""
        self._pass(now)
        self.present -= 1
        self.waiting -= job.first < 0.0
        if self.keep:
            self.keep(job, now, how)
        if how == "finished":
            self._finish(job, now)
        elif how == "rejected":
            self.rejected += 1
        else:
            self.cut += 1

    def _finish(self, job: Job, now: float) -> None:
        self.finished += 1
        self.last_end = now
        if not job.measured:
            return
        tpot = (now - job.first) / (job.osl - 1) if job.osl > 1 else 0.0
        self.measured += 1
        self.measured_tokens += job.samples * job.osl
        self.e2el.add(now - job.arrived)
        if job.osl > 1:
            self.tpot.add(tpot)
        if self.objective.met(job.first - job.arrived, tpot):
            self.good += 1

    def _pass(self, now: float) -> None:
        self.area += self.present * (now - self.clock)
        self.waited += self.waiting * (now - self.clock)
        self.clock = now


_SKETCHES = ("ttft", "tpot", "itl", "e2el", "queued")
_SUMS = ("arrived", "finished", "rejected", "cut", "good", "preempted", "measured", "measured_tokens")
_TIMES = ("last_end", "measured_from")

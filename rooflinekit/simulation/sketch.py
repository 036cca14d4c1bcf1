"""Quantiles of any number of durations in a fixed amount of memory."""

from __future__ import annotations

import math

__all__ = ["RESOLUTION", "Sketch"]

RESOLUTION = 0.005
"""Ratio of the ends of a bin, less 1. A quantile is within 0.5 % of the sample's own: half a bin, and as much again
where steps of a run that differ by less than that are taken together."""

_SCALE = 1.0 / math.log1p(RESOLUTION)
_LEAST = 1e-9  # durations below a nanosecond are one bin, and read as 0
_PENDING = 4096  # durations that are sorted into bins at once


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

    def add(self, value: float, count: int = 1) -> None:
        """Add a duration `count` times."""
        self._values.append(value)
        self._counts.append(count)
        if len(self._values) >= _PENDING:
            self._sort()

    def add_run(self, first: float, slope: float, steps: int, count: int) -> None:
        """Add first, first + slope, …, each `count` times: what a run of decode steps gives every sequence."""
        change = abs(slope) * (steps - 1)
        pieces = 1 + int(change / (RESOLUTION * max(min(first, first + slope * (steps - 1)), _LEAST)))
        pieces = min(pieces, steps)
        for piece in range(pieces):
            start, end = steps * piece // pieces, steps * (piece + 1) // pieces
            self.add(first + slope * (start + end - 1) / 2, (end - start) * count)

    @property
    def count(self) -> int:
        """Durations so far."""
        self._sort()
        return self._count

    @property
    def total(self) -> float:
        """Their sum."""
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
        import numpy as np  # noqa: PLC0415 - only where there is much to sort

        values, counts = np.array(self._values), np.array(self._counts)
        keys, places = np.unique(np.floor(np.log(np.maximum(values, _LEAST)) * _SCALE), return_inverse=True)
        for key, number in zip(keys.tolist(), np.bincount(places, counts).tolist(), strict=True):
            self._bins[int(key)] = self._bins.get(int(key), 0) + int(number)
        self._count += sum(self._counts)
        self._total += float(values @ counts)
        self._largest = max(self._largest, float(values.max()))
        self._values, self._counts = [], []

"""The shared times of one traffic on one deployment, worked out once for every number of sequences in flight."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Traffic
from rooflinekit.model.traffic.encoding import served
from rooflinekit.model.traffic.mixing import Shared, shared_times
from rooflinekit.model.types.numeric import Array, Numeric
from rooflinekit.model.types.time import ENDS, Time

_DENSE = 1024  # sequences up to here stand one by one
_BEYOND = 1e-6  # kernels jump where one more token begins another tile: just beyond a whole number
_RATIO = 1.01  # of neighbouring numbers beyond
_KINDS = ("step", "share", "alone", "own", "again")


@dataclass(frozen=True, eq=False)
class SharedCurve:
    """Shared times at whole numbers of sequences and just beyond each, straight lines between.

    grid: sequences in flight, ascending from 1; table: the twenty times at each (step, share, alone, own,
    again; expected, bound, low, high) [s].
    """

    grid: list[float]
    table: Array
    request: float
    mixes: bool
    classes: tuple[SharedCurve, ...] = ()  #: that it is the mean of
    _read: dict[int, list[float]] = field(default_factory=dict, repr=False)  # rows, as numbers of Python

    def __call__(self, running: Numeric) -> Shared:
        """The times of `running` sequences in flight (at least 1; beyond the table those of its end)."""
        count = min(max(float(running), self.grid[0]), self.grid[-1])
        at = min(bisect_right(self.grid, count), len(self.grid) - 1)
        below = max(at - 1, 0)
        span = self.grid[at] - self.grid[below]
        share = (count - self.grid[below]) / span if span else 0.0
        near, far = self._read.get(below) or self._row(below), self._read.get(at) or self._row(at)
        times = [a + share * (b - a) for a, b in zip(near, far, strict=True)]
        step, prompt, alone, own, again = (Time(*times[start : start + 4]) for start in range(0, len(times), 4))
        return Shared(step, prompt, alone, own, again, self.request, self.mixes)

    def _row(self, place: int) -> list[float]:
        row: list[float] = self.table[place].tolist()
        return self._read.setdefault(place, row)


def tabulate(predictor: Predictor, traffic: Traffic, most: float) -> SharedCurve:
    """Work out the shared times of 1 to `most` such requests in flight.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> from rooflinekit.model.traffic.mixing import InFlight
    >>> bound = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> curve = tabulate(bound, Traffic(1024.0, 256.0), 64.0)
    >>> worked_out = shared_times(bound, InFlight(32.0, 1024.0, 256.0))
    >>> abs(curve(32.0).step.expected / worked_out.step.expected - 1.0) < 1e-12
    True
    """
    import numpy as np  # noqa: PLC0415 - a report of one deployment needs none

    grid = [at for count in range(1, int(min(most, _DENSE))) for at in (float(count), count + _BEYOND)]
    grid.append(float(int(min(most, _DENSE))))
    while grid[-1] < most:
        grid.append(float(min(max(grid[-1] + 1.0, round(grid[-1] * _RATIO)), most)))
    times = shared_times(served(predictor), traffic.of(np.array(grid)))
    columns: list[Any] = [getattr(getattr(times, kind), part) for kind in _KINDS for part in ENDS]
    table: Array = np.stack([np.broadcast_to(np.asarray(column, float), len(grid)) for column in columns], -1)
    return SharedCurve(grid, table, float(times.request), times.mixes)


def blended(parts: Sequence[SharedCurve], prompts: Sequence[float], decodes: Sequence[float]) -> SharedCurve:
    """The curve of several classes of requests together, from those of each by itself, on one grid.

    prompts: share of each in the prompts; decodes: in the sequences that decode. A step takes the mean over what
    decodes, since its time grows in proportion to the tokens held; all else the mean over prompts.
    """
    import numpy as np  # noqa: PLC0415 - a report of one deployment needs none

    first = parts[0]
    table = np.stack([part.table for part in parts])
    ends = len(ENDS)
    steps = np.tensordot(np.array(decodes), table[:, :, :ends], 1)
    others = np.tensordot(np.array(prompts), table[:, :, ends:], 1)
    request = sum(share * part.request for share, part in zip(prompts, parts, strict=True))
    return SharedCurve(first.grid, np.hstack([steps, others]), request, first.mixes, tuple(parts))

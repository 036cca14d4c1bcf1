"""A sequence that must go: its cache copied to the host and back, or computed again.

    swap      = 2·bytes(L)/β        out and in over the host link of each accelerator, at its datasheet rate
    recompute = prefill(L)          the real step function

Swapping is a straight line; recomputing starts at a pass over the weights, grows by FLOP, and then with the square of
the length. So they may cross never, once or twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.numeric import Numeric, maximum

__all__ = ["Eviction", "eviction", "recompute_time", "swap_time"]

_POINTS = 200
_ALIKE = 1.05  # blocks and tiles make stairs of both curves; closer than this they count as equally fast


@dataclass(frozen=True)
class Eviction:
    """Times of one eviction at `length` tokens [s], and where swap and recomputing cross.

    crossings: lengths [tokens] at which the faster one changes, by more than 5 % in the end, up to `longest`; link: the
    host link at which both would take as long at this length [B/s].
    """

    length: float
    swap: float
    recompute: float
    longest: float
    crossings: tuple[float, ...]
    short_choice: str  #: what is faster for the shortest sequences: "swap" or "recompute"
    bytes: float
    link: float

    @property
    def choice(self) -> str:
        """The faster one at this length."""
        return "swap" if self.swap <= self.recompute else "recompute"


def swap_time(predictor: Predictor, length: Numeric) -> Numeric:
    """Out and in over the host link: 2·bytes/β, every accelerator over its own at once [s].

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> round(swap_time(plain, 1024.0) * 1e3, 2)  # 2 · 134.2 MB over 63 GB/s
    4.26
    """
    return 2.0 * _bytes(predictor, length) / predictor.plan.system.accelerator.pcie_bandwidth


def recompute_time(predictor: Predictor, length: Numeric) -> Numeric:
    """A prefill of the whole sequence by itself [s]."""
    return predictor.plan.time(Batch.prefill(1.0, length)).expected


def eviction(predictor: Predictor, length: int, longest: int) -> Eviction | None:
    """Compare the two at `length`, and look for crossings from 1 to `longest` tokens; None without a host link.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> old = resolve("llama-2-7b", "v100-pcie-16gb", read_deployment({}), "none").predictor
    >>> e = eviction(old, 1024, 4096)  # 1 MB a token both ways over 16 GB/s is 66 µs; 13 GFLOP at 112 TFLOP/s, 118 µs
    >>> e.choice, e.crossings
    ('swap', ())
    """
    if not float(predictor.plan.system.accelerator.pcie_bandwidth):
        return None

    def ratio(tokens: Numeric) -> Numeric:
        return swap_time(predictor, tokens) / recompute_time(predictor, tokens)

    swap, recompute = float(swap_time(predictor, float(length))), float(recompute_time(predictor, float(length)))
    moved = 2.0 * float(_bytes(predictor, float(length)))
    first = "swap" if float(ratio(1.0)) <= 1.0 else "recompute"
    crossings = _crossings(ratio, float(longest))
    return Eviction(float(length), swap, recompute, float(longest), crossings, first, moved / 2.0, moved / recompute)


def _bytes(predictor: Predictor, length: Numeric) -> Numeric:
    """Cache of one sequence on the fullest accelerator [B]."""
    ranks = float(predictor.memory.ranks)
    return reduce(maximum, (stage.layout.law.bytes(length / ranks) for stage in predictor.memory.stages))


def _crossings(ratio: Callable[[Numeric], Numeric], longest: float) -> tuple[float, ...]:
    """Lengths at which swap/recompute passes 1 and then differs from it by more than the steps of a staircase."""
    import numpy as np  # noqa: PLC0415

    grid = np.unique(np.round(np.geomspace(1.0, max(longest, 2.0), _POINTS)))
    ratios = np.asarray(ratio(grid))
    decisive = np.flatnonzero(np.abs(np.log(ratios)) > np.log(_ALIKE))
    found = []
    for before, after in pairwise(decisive):
        if (ratios[before] > 1.0) != (ratios[after] > 1.0):
            found.append(_bisect(ratio, float(grid[before]), float(grid[after])))
    return tuple(found)


def _bisect(ratio: Callable[[Numeric], Numeric], low: float, high: float) -> float:
    """A whole number of tokens at which the faster one is no longer that at `low`."""
    first = float(ratio(low)) > 1.0
    while high - low > 1.0:
        middle = (low + high) // 2.0
        low, high = (middle, high) if (float(ratio(middle)) > 1.0) == first else (low, middle)
    return high

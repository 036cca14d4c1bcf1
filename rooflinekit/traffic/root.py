"""The root of a function of one number that is dear to evaluate."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["root"]

_ROUNDS = 200


class _Point(NamedTuple):
    at: float
    value: float


def root(excess: Callable[[float], float], low: float, high: float, settled: float) -> float:
    """Where `excess`, of opposite signs at the ends, crosses 0: by inverse quadratic interpolation or halving.

    T. R. Chandrupatla, Advances in Engineering Software 28 (1997) 145: interpolation where the last three points allow
    it, else halving, so that a jump takes no longer than bisection. Ends where neighbours around the root differ by
    less than the share `settled`; of an interval without a change of sign the end nearer to 0 is the answer.

    >>> round(root(lambda x: 2.0 - x * x, 0.0, 2.0, 1e-9), 6)
    1.414214
    """
    new, old = _Point(low, excess(low)), _Point(high, excess(high))
    share, rounds = 0.5, 0 if new.value * old.value >= 0.0 else _ROUNDS
    for _ in range(rounds):
        at = new.at + share * (old.at - new.at)
        found = _Point(at, excess(at))
        if (found.value > 0.0) == (new.value > 0.0):
            last = new
        else:
            last, old = old, new
        new = found
        least = 0.5 * settled * abs(new.at) / abs(old.at - new.at)
        if new.value == 0.0 or least > 0.5:
            break
        share = min(max(_interpolated(new, old, last), least), 1.0 - least)
    return min(new, old, key=lambda point: abs(point.value)).at


def _interpolated(a: _Point, b: _Point, c: _Point) -> float:
    """Share of the way from `a` to `b`; half where the inverse parabola through the three is not monotone."""
    across, up = (a.at - b.at) / (c.at - b.at), (a.value - b.value) / (c.value - b.value)
    if up * up >= across or (1.0 - up) ** 2 >= 1.0 - across:
        return 0.5
    near = a.value / (b.value - a.value) * c.value / (b.value - c.value)
    return near + (c.at - a.at) / (b.at - a.at) * a.value / (c.value - a.value) * b.value / (c.value - b.value)

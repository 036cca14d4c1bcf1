"""The root of a function of one number that is dear to evaluate, for one scenario or for arrays of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import Numeric, absolute, maximum, minimum, repeat, where

_ROUNDS = 200
_LEAST = {True: 0.01, False: 1e-4}  # of the interval from an end to the first step: both ends are known


@dataclass(frozen=True, slots=True)
class _Point:
    at: Numeric
    value: Numeric

    def or_else(self, other: _Point, chosen: object) -> _Point:
        """Where `chosen`, this one; elsewhere the other."""
        return _Point(where(chosen, self.at, other.at), where(chosen, self.value, other.value))


def root(
    excess: Callable[[Numeric], Numeric], low: Numeric, high: Numeric, settled: float, sides: bool = False
) -> Numeric:
    """Where `excess`, above 0 at the low end and below at the high one, crosses 0: by interpolation or halving.

    T. R. Chandrupatla, Advances in Engineering Software 28 (1997) 145: interpolation where the last three points allow
    it, else halving, so that a jump takes no longer than bisection. Ends where neighbours around the root differ by
    less than the share `settled`; or where interpolation would move by less than half of it, unless both `sides` are
    asked for. Where `excess` is below 0 at both ends the low one is the answer, else the high one. Every element of an
    array goes its own way, as if alone.

    >>> round(root(lambda x: 2.0 - x * x, 0.0, 2.0, 1e-9), 6)
    1.414214
    """
    start = (low, excess(low)), (high, excess(high))
    outside = start[0][1] * start[1][1] >= 0.0
    end = where(start[0][1] <= 0.0, low, high)
    done = outside
    straight, most = start[0][1] / _not_0(start[0][1] - start[1][1]), 1.0 - _LEAST[sides]  # where a line crosses 0
    state = (*start[0], *start[1], minimum(maximum(straight, 1.0 - most), most), where(done, 1.0, 0.0))

    def halved(*state: Numeric) -> Sequence[Numeric]:
        at, value, last, there, share, done = state
        new, old = _Point(at, value), _Point(last, there)
        place = where(done > 0.0, new.at, new.at + share * (old.at - new.at))
        found = _Point(place, excess(place))
        same = (found.value > 0.0) == (new.value > 0.0)
        beyond = new.or_else(old, same)
        old, new = old.or_else(new, same), found
        least = 0.5 * settled * absolute(new.at) / _not_0(absolute(old.at - new.at))
        step = _interpolated(new, old, beyond)
        ended = (new.value == 0.0) | (least > 0.5)
        ended = where(ended if sides else ended | (step < least), 1.0, done)
        return new.at, new.value, old.at, old.value, minimum(maximum(step, least), 1.0 - least), ended

    at, value, last, there, *_ = repeat(_ROUNDS, state, halved, lambda *held: held[-1] > 0.0)
    return where(outside, end, where(absolute(value) < absolute(there), at, last))


def _interpolated(a: _Point, b: _Point, c: _Point) -> Numeric:
    """Share of the way from `a` to `b`; half where the inverse parabola through the three is not monotone."""
    across, up = (a.at - b.at) / _not_0(c.at - b.at), (a.value - b.value) / _not_0(c.value - b.value)
    bent = (up * up >= across) | ((1.0 - up) * (1.0 - up) >= 1.0 - across)
    near = a.value / _not_0(b.value - a.value) * c.value / _not_0(b.value - c.value)
    far = a.value / _not_0(c.value - a.value) * b.value / _not_0(c.value - b.value)
    return where(bent, 0.5, near + (c.at - a.at) / _not_0(b.at - a.at) * far)


def _not_0(value: Numeric) -> Numeric:
    """A divisor; where it is 0 the quotient is not used."""
    return where(value == 0.0, 1.0, value)


_NEAR = 1e-6  # relative: distance at which a slope is taken


class Roots:
    """The roots that one calculation finds, for the same in symbols, which move with what they are made of."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float, float, float]] = []

    def record(self, excess: Callable[[Numeric], Numeric], low: Numeric, high: Numeric, settled: float) -> Numeric:
        """Search, and keep the root with its interval and the slope there."""
        at = float(root(excess, low, high, settled))
        run = _NEAR * at
        slope = 0.0 if at in (low, high) else (float(excess(at + run)) - float(excess(at - run))) / (2.0 * run)
        self._found.append((at, slope, float(low), float(high)))
        return at

    def again(self, excess: Callable[[Numeric], Numeric], low: Numeric, high: Numeric, settled: float) -> Numeric:
        """The next of them: n − f(n)/f', a step of Newton's method from where f is 0; an end of the interval stays."""
        at, slope, first, _ = self._found.pop(0)
        if slope == 0.0:
            return low if at == first else high
        return at - excess(at) / slope

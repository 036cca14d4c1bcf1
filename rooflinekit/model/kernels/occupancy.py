"""The fullest of several ranks: expected maximum of random loads with a fixed sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["Load", "counted_maximum", "expected_maximum"]

Load = tuple[float, float]
"""Mean of a rank's load, and 1 - variance/mean: 0 for Poisson, above it for draws without replacement."""

_LATTICE, _POINTS, _SPREAD = 40.0, 48, 8.0
_LEAN = 1.0 / (2.0 * _SPREAD)  # above it the correction for skewness turns round within the spread
_ROOT_HALF = math.sqrt(0.5)


def counted_maximum(loads: Iterable[Load], pairs: int) -> float:
    """Expected fullest rank when `pairs` items fall on ranks whose loads are binomial but for their fixed sum.

    The chance that no rank gets more than j is the coefficient of z^pairs in Π_r Σ_{i<=j} P_r(i) z^i over that without
    a limit. For equal ranks of N experts and one token this is the multivariate hypergeometric, and so exact.

    >>> round(counted_maximum([(1.0, 8 / 256)] * 8, 8), 3)  # one token that picks 8 of 256 experts on 8 ranks
    2.564
    """
    ranks = [(_binomial(mean, clumping, pairs), count) for (mean, clumping), count in Counter(loads).items()]

    def within(most: int) -> float:
        product = [1.0] + [0.0] * pairs
        for chances, count in ranks:
            product = _product(product, _power(chances[: most + 1], count, pairs), pairs)
        return product[pairs]

    whole = within(pairs)
    return sum(1.0 - within(most) / whole for most in range(pairs))


def _binomial(mean: float, clumping: float, most: int) -> list[float]:
    """Chances of 0 to `most` for a binomial of success `clumping` and any real number of trials; Poisson at 0."""
    chance = (1.0 - clumping) ** (mean / clumping) if clumping > 1e-9 else math.exp(-mean)
    chances = [chance]
    for j in range(most):
        chance *= max(mean - j * clumping, 0.0) / ((j + 1.0) * (1.0 - clumping))
        chances.append(chance)
    return chances


def _power(base: Sequence[float], exponent: int, degree: int) -> list[float]:
    """Coefficients of a polynomial's power up to `degree`."""
    result, square = [1.0] + [0.0] * degree, [*base, *[0.0] * (degree + 1 - len(base))]
    while exponent:
        if exponent % 2:
            result = _product(result, square, degree)
        exponent //= 2
        if exponent:
            square = _product(square, square, degree)
    return result


def _product(first: Sequence[float], second: Sequence[float], degree: int) -> list[float]:
    out = [0.0] * (degree + 1)
    for i, a in enumerate(first):
        if a:
            for j in range(degree + 1 - i):
                out[i + j] += a * second[j]
    return out


def expected_maximum(loads: Iterable[Load]) -> float:
    """Expected fullest of ranks with these loads, which have a fixed sum.

    Loads that share a fixed sum have, around their means, the same expected maximum as independent ones of n/(n - 1)
    times the variance (exact for normal loads; the clumping of the arguments leaves that factor in). So this is
    Σ_j 1 - Π_r F_r(j), F_r binomial, and beyond 40 its normal limit with the first correction for skewness
    (Cornish and Fisher 1938).

    >>> round(expected_maximum([(100.0, 0.0)] * 8), 1), round(expected_maximum([(100.0, 0.0), (150.0, 0.0)]), 1)
    (114.5, 150.0)
    """
    counts = Counter(loads)
    top, clumping = max(counts)
    reach = _SPREAD * math.sqrt(top * (1.0 - clumping)) + _SPREAD
    near = {load: count for load, count in counts.items() if load[0] + reach > top - reach}
    return _on_lattice(near, int(top + reach)) if top < _LATTICE else _continuous(near, top - reach, top + reach)


def _on_lattice(counts: dict[Load, int], most: int) -> float:
    within = [1.0] * (most + 1)
    for (mean, clumping), count in counts.items():
        total = 0.0
        for j, chance in enumerate(_binomial(mean, clumping, most)):
            total += chance
            within[j] *= min(total, 1.0) ** count
    return sum(1.0 - chance for chance in within)


def _continuous(counts: dict[Load, int], low: float, high: float) -> float:
    step, expected = (high - low) / _POINTS, low
    ranks = []
    for (mean, clumping), count in counts.items():
        sigma = math.sqrt(mean * (1.0 - clumping))
        lean = (1.0 - 2.0 * clumping) / (6.0 * sigma)
        ranks.append((mean, sigma, min(max(lean, -_LEAN), _LEAN), count))
    for index in range(_POINTS):
        load, within = low + (index + 0.5) * step, 1.0
        for mean, sigma, lean, count in ranks:
            z = min(max((load - mean) / sigma, -_SPREAD), _SPREAD)
            within *= (0.5 * math.erfc((lean * (z * z - 1.0) - z) * _ROOT_HALF)) ** count
        expected += (1.0 - within) * step
    return expected

"""Routing of tokens to experts: how popular each is, where its copies are, and how full the fullest rank gets.

A router is a draw of k of E experts without replacement in which the n-th most popular expert has weight n^-skew; 0 is
uniform. Each of n ranks holds the same number of experts, wherever they are popular or not; copies of the hottest are
placed with regard to it. Everything is worked out once for a layer's numbers, and interpolated in the number of tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise

from rooflinekit.model.graph.symbol import fact, named
from rooflinekit.model.graph.table import NodeTable
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import Numeric, lattice, log, maximum, minimum

Load = tuple[float, float]
"""Mean of a rank's load, and 1 - variance/mean: 0 for Poisson, above it for draws without replacement."""

_LATTICE, _POINTS, _SPREAD = 40.0, 48, 8.0
_LEAN = 1.0 / (2.0 * _SPREAD)  # above it the correction for skewness turns round within the spread
_ROOT_HALF = math.sqrt(0.5)


def touched(count: Numeric, missed: Numeric, draws: Numeric) -> Numeric:
    """n·(1 − q^T): of n alike things, how many T independent draws touch, each of which misses one with chance q.

    >>> round(touched(16, 15 / 16, 16.0), 2)
    10.3
    """
    return count * (1.0 - missed**draws)


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


_PLACEMENTS, _PROFILES = 320, 6
"""Placements of experts on ranks that a mean is taken over, and the groups of like ones that stand for them."""

_COUNTED = {True: 24, False: 8}
"""(token, expert) pairs up to which the fullest of equal, and of unequal, ranks is counted with their sum fixed."""

_EARLY, _LATE = 20, 10  # of the race, in halves of a power of e around the usual time of its end
_TOKENS = tuple(dict.fromkeys(math.ceil(1.5**power) for power in range(40)))
"""Numbers of tokens at which the fullest rank is worked out, 1 to 7 million."""


@cache
def popularity(experts: int, top_k: int, skew: float) -> tuple[float, ...]:
    """Share of the tokens that visit each expert, the most popular first; the shares add up to k.

    Drawing without replacement is a race: expert n rings after an exponential time of rate n^-skew and a token visits
    the first k. So share = ∫ rate·exp(-rate·t) · P(fewer than k others have rung by t) dt, here by the trapezoidal rule
    in log t, which converges exponentially for such an integrand.

    >>> popularity(8, 2, 0.0)[0]
    0.25
    >>> [round(share, 3) for share in popularity(4, 1, 1.0)]  # 12/25, 6/25, 4/25, 3/25
    [0.48, 0.24, 0.16, 0.12]
    """
    if skew == 0.0 or top_k == experts:
        return (top_k / experts,) * experts
    rates = [rank**-skew for rank in range(1, experts + 1)]
    usual = _usual_time(rates, top_k)
    shares = [-math.expm1(-rate * usual * math.exp(-_EARLY / 2.0)) for rate in rates]  # so early, nobody is late
    for step in range(-_EARLY, _LATE):
        time = usual * math.exp((step + 0.5) / 2.0)
        rung = [-math.expm1(-rate * time) for rate in rates]
        for expert, fewer in enumerate(_fewer_others(rung, top_k)):
            shares[expert] += rates[expert] * math.exp(-rates[expert] * time) * fewer * time / 2.0
    scale = top_k / sum(shares)
    return tuple(min(share * scale, 1.0) for share in shares)


def _usual_time(rates: Sequence[float], top_k: int) -> float:
    """Time at which k have rung on average (Rosén, J. Stat. Plan. Inference 62, 1997)."""
    low, high = 0.0, 1.0
    while sum(-math.expm1(-rate * high) for rate in rates) < top_k - 0.5:
        low, high = high, 2.0 * high
    for _ in range(12):
        time = (low + high) / 2.0
        low, high = (time, high) if sum(-math.expm1(-rate * time) for rate in rates) < top_k - 0.5 else (low, time)
    return high


def _fewer_others(rung: Sequence[float], top_k: int) -> Iterator[float]:
    """For each expert, the chance that fewer than k of the others have rung (sums of Bernoulli variables)."""
    after = [[1.0] + [0.0] * (top_k - 1)]
    for chance in reversed(rung[1:]):
        after.append(_joined(after[-1], chance))
    before = [1.0] + [0.0] * (top_k - 1)
    for chance, rest in zip(rung, reversed(after), strict=True):
        upto, fewer = 0.0, 0.0
        for index in range(top_k):
            upto += rest[index]
            fewer += before[top_k - 1 - index] * upto
        yield fewer
        before = _joined(before, chance)


def _joined(counts: Sequence[float], chance: float) -> list[float]:
    stay = 1.0 - chance
    return [counts[0] * stay, *(same * stay + less * chance for less, same in pairwise(counts))]


def _replicated(shares: Sequence[float], copies: int) -> list[float]:
    """Share of every copy after `copies` more were given, one at a time, to the expert with the most load a copy."""
    counts = [1] * len(shares)
    for _ in range(copies):
        counts[max(range(len(shares)), key=lambda expert: shares[expert] / counts[expert])] += 1
    return [share / count for share, count in zip(shares, counts, strict=True) for _ in range(count)]


def _packed(shares: Sequence[float], ranks: int) -> list[list[float]]:
    """From the heaviest, each to the emptiest rank that has room."""
    held: list[list[float]] = [[] for _ in range(ranks)]
    for share in sorted(shares, reverse=True):
        min((rank for rank in held if len(rank) < -(-len(shares) // ranks)), key=sum).append(share)
    return held


@dataclass(frozen=True, slots=True)
class Routing:
    """Spread of tokens over `experts`, of which each visits `top_k`, on `ranks` that hold `copies` more in all.

    Copies are EPLB's (https://github.com/deepseek-ai/EPLB, `replicate_experts` and `balanced_packing`): whatever
    expert has the most load a copy gets the next one, and all are packed by load.
    """

    experts: int
    top_k: int
    ranks: int = 1
    skew: float = 0.0
    copies: int = 0

    @property
    def local(self) -> int:
        """Experts that one rank holds, copies included."""
        return (self.experts + self.copies) // self.ranks

    def distinct(self, tokens: Numeric) -> Numeric:
        """Expected number of distinct experts that `tokens` tokens touch: Σ_e 1 - (1 - share_e)^T.

        >>> round(Routing(256, 8).distinct(32.0)), round(Routing(256, 8, skew=1.2).distinct(32.0))
        (163, 88)
        """
        if self.skew == 0.0:
            experts = fact(self.experts, *_EXPERTS)
            missed = fact(1.0 - self.top_k / self.experts, "missed", "share of the experts that a token does not visit")
            return named(touched(experts, missed, tokens), "act", "distinct experts that are touched")
        found = sum((touched(count, 1.0 - share, tokens) for share, count in _few_shares(self)), 0.0)
        return named(found, "act", "distinct experts that are touched", source=f"{_HERE}.distinct")

    def imbalance(self, tokens: Numeric) -> Numeric:
        """Expected (token, expert) pairs on the fullest rank over the mean rank's; at least 1.

        >>> round(Routing(256, 8, ranks=8).imbalance(256.0), 2), round(Routing(256, 8, 8, skew=1.2).imbalance(256.0), 2)
        (1.09, 1.9)
        >>> round(Routing(256, 8, 8, skew=1.2, copies=32).imbalance(256.0), 2)
        1.09
        """
        if self.ranks == 1 or (self.top_k == self.experts and not self.copies):
            return 1.0 + 0.0 * tokens
        factor = lattice(_table(self), [log(maximum(tokens, 1.0))])
        return named(factor, "full", "pairs of the fullest rank over the mean rank's", source=f"{_HERE}.imbalance")

    def fullest(self, tokens: Numeric) -> tuple[Numeric, Numeric]:
        """Pairs on the fullest rank, and distinct experts that they touch there.

        Distinct experts of the mean rank, times the share more that the fullest of uniform ranks has: popular experts
        fill a rank with tokens, and not with experts.
        """
        pairs = tokens * fact(self.top_k, *_VISITED)
        if self.ranks == 1:
            return named(pairs, *_PAIRS), self.distinct(tokens)
        pairs = pairs / fact(self.ranks, *_RANKS)
        uniform = Routing(self.experts, self.top_k, self.ranks)
        evenly = named(pairs * uniform.imbalance(tokens), *_PAIRS, source=f"{_HERE}.fullest")
        touched = uniform._touched(tokens, evenly)
        if self == uniform:
            return evenly, named(minimum(touched, evenly), *_TOUCHED)
        full = named(pairs * self.imbalance(tokens), *_PAIRS, source=f"{_HERE}.fullest")
        touched = minimum(touched * (self.distinct(tokens) / uniform.distinct(tokens)), float(self.local))
        return full, named(minimum(touched, full), *_TOUCHED)

    def _touched(self, tokens: Numeric, pairs: Numeric) -> Numeric:
        """Distinct experts of a rank's that `pairs` pairs touch, where no token comes twice to the same."""
        comers = minimum(pairs, tokens)
        missed = maximum(1.0 - pairs / comers / self.local, 0.0)
        held = fact(self.local, "E_here", "experts held here, copies included")
        return named(held * (1.0 - missed**comers), "act_1", "distinct experts that these pairs touch")


_HERE = "rooflinekit.model.kernels.routing.Routing"
_EXPERTS = "E", "experts of a layer"
_VISITED = "topk", "experts that a token visits"
_RANKS = "ranks", "ranks over which whole experts are spread"
_PAIRS = "A", "(token, expert) pairs that come here"
_TOUCHED = "act", "distinct experts that are touched here"


@cache
def _few_shares(routing: Routing) -> tuple[tuple[float, int], ...]:
    """Popularity in groups of like experts, so that arrays of tokens stay cheap: 16 single ones, then by eighths."""
    shares = popularity(routing.experts, routing.top_k, routing.skew)
    groups, start = [], 0
    while start < len(shares):
        size = max(1, start // 16)
        group = shares[start : start + size]
        groups.append((sum(group) / len(group), len(group)))
        start += size
    return tuple(groups)


@cache
def _profiles(routing: Routing) -> tuple[tuple[Load, ...], ...]:
    """Loads of the ranks for one token, the fullest first, for a few groups of equally likely placements."""
    shares = popularity(routing.experts, routing.top_k, routing.skew)
    if routing.copies:
        placements = [_packed(_replicated(shares, routing.copies), routing.ranks)]
    elif routing.skew == 0.0:
        placements = [_packed(shares, routing.ranks)]
    else:
        placements = list(_random_placements(shares, routing.ranks))
    free = routing.experts / (routing.experts - 1.0)  # each token visits exactly k: that leaves less freedom
    loads = sorted(sorted(((sum(r), _clumping(r, free)) for r in placed), reverse=True) for placed in placements)
    size = -(-len(loads) // _PROFILES)
    groups = [loads[start : start + size] for start in range(0, len(loads), size)]
    return tuple(tuple(_mean(ranked) for ranked in zip(*group, strict=True)) for group in groups)


def _random_placements(shares: Sequence[float], ranks: int) -> Iterator[list[list[float]]]:
    from random import Random  # noqa: PLC0415 - most models have no experts to place

    draw, order, held = Random(0), list(shares), len(shares) // ranks
    for _ in range(_PLACEMENTS):
        draw.shuffle(order)
        yield [order[start : start + held] for start in range(0, len(order), held)]


def _clumping(shares: Sequence[float], free: float) -> float:
    """1 - variance/mean of a rank's load, before the sum over ranks is fixed."""
    alone = 1.0 - sum(share * share for share in shares) / sum(shares)
    return min(max(1.0 - alone * free, 0.0), 1.0 - 1e-6)


def _conditioned(clumping: float, pairs: int) -> float:
    """Expected maximum of binomial loads that have this variance once their sum is fixed at `pairs`."""
    return pairs * clumping / (pairs - 1.0 + clumping) if clumping else 0.0


def _mean(loads: Sequence[Load]) -> Load:
    return sum(mean for mean, _ in loads) / len(loads), sum(clump for _, clump in loads) / len(loads)


@cache
def _table(routing: Routing) -> NodeTable:
    """The imbalance over the logarithm of the tokens."""
    return NodeTable((tuple(math.log(tokens) for tokens in _TOKENS),), tuple(_imbalance(routing, at) for at in _TOKENS))


def _imbalance(routing: Routing, tokens: int) -> float:
    pairs = tokens * routing.top_k
    unplaced = tokens == 1 and not routing.copies  # whatever k experts it picks, they lie on random ranks
    profiles = _profiles(Routing(routing.experts, routing.top_k, routing.ranks) if unplaced else routing)
    if pairs <= _COUNTED[len(set(profiles[0])) == 1]:
        loads = [[(tokens * mean, _conditioned(clump, pairs)) for mean, clump in ranks] for ranks in profiles]
        full = sum(counted_maximum(ranks, pairs) for ranks in loads) / len(loads)
    else:
        loads = [[(tokens * mean, clump) for mean, clump in ranks] for ranks in profiles]
        full = sum(expected_maximum(ranks) for ranks in loads) / len(loads)
    most = tokens * min(routing.top_k, routing.local)
    return min(max(full, math.ceil(pairs / routing.ranks - 1e-9)), most) / (pairs / routing.ranks)

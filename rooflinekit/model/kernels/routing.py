"""Which experts tokens are routed to: how popular each is, where its copies are, and how full the fullest rank gets.

A router is a draw of k of E experts without replacement in which the n-th most popular expert has weight n^-skew; 0 is
uniform. Each of n ranks holds the same number of experts, wherever they are popular or not; copies of the hottest are
placed with regard to it. Everything is worked out once for a layer's numbers, and interpolated in the number of tokens.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from rooflinekit.model.graph.table import Table
from rooflinekit.model.kernels.occupancy import Load, counted_maximum, expected_maximum
from rooflinekit.model.types.numeric import Numeric, lattice, log, maximum, minimum

__all__ = ["Routing", "popularity"]

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
    """When k have rung on average (Rosén, J. Stat. Plan. Inference 62, 1997)."""
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
        min((rank for rank in held if len(rank) < len(shares) // ranks), key=sum).append(share)
    return held


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens spread over `experts`, of which each visits `top_k`, on `ranks` that hold `copies` more in all.

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
            return self.experts * (1.0 - (1.0 - self.top_k / self.experts) ** tokens)
        return sum((count * (1.0 - (1.0 - share) ** tokens) for share, count in _few_shares(self)), 0.0)

    def imbalance(self, tokens: Numeric) -> Numeric:
        """Expected (token, expert) pairs on the fullest rank over the mean rank's; at least 1.

        >>> round(Routing(256, 8, ranks=8).imbalance(256.0), 2), round(Routing(256, 8, 8, skew=1.2).imbalance(256.0), 2)
        (1.09, 1.9)
        >>> round(Routing(256, 8, 8, skew=1.2, copies=32).imbalance(256.0), 2)
        1.09
        """
        if self.ranks == 1 or (self.top_k == self.experts and not self.copies):
            return 1.0 + 0.0 * tokens
        return lattice(_table(self), [log(maximum(tokens, 1.0))])

    def fullest(self, tokens: Numeric) -> tuple[Numeric, Numeric]:
        """Pairs on the fullest rank, and distinct experts that they touch there.

        Distinct experts of the mean rank, times the share more that the fullest of uniform ranks has: popular experts
        fill a rank with tokens, and not with experts.
        """
        pairs = tokens * self.top_k / self.ranks
        if self.ranks == 1:
            return pairs, self.distinct(tokens)
        uniform = Routing(self.experts, self.top_k, self.ranks)
        evenly = pairs * uniform.imbalance(tokens)
        touched = uniform._touched(tokens, evenly)
        if self == uniform:
            return evenly, minimum(touched, evenly)
        full = pairs * self.imbalance(tokens)
        touched = minimum(touched * (self.distinct(tokens) / uniform.distinct(tokens)), float(self.local))
        return full, minimum(touched, full)

    def _touched(self, tokens: Numeric, pairs: Numeric) -> Numeric:
        """Distinct experts of a rank's that `pairs` pairs touch, where no token comes twice to the same."""
        comers = minimum(pairs, tokens)
        missed = maximum(1.0 - pairs / comers / self.local, 0.0)
        return self.local * (1.0 - missed**comers)


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
    draw, order, held = random.Random(0), list(shares), len(shares) // ranks
    for _ in range(_PLACEMENTS):
        draw.shuffle(order)
        yield [order[start : start + held] for start in range(0, len(order), held)]


def _clumping(shares: Sequence[float], free: float) -> float:
    """1 - variance/mean of a rank's load, before the sum over ranks is fixed."""
    alone = 1.0 - sum(share * share for share in shares) / sum(shares)
    return min(max(1.0 - alone * free, 0.0), 1.0 - 1e-6)


def _conditioned(clumping: float, pairs: int) -> float:
    """The same for binomial loads that have this variance once their sum is fixed at `pairs`."""
    return pairs * clumping / (pairs - 1.0 + clumping) if clumping else 0.0


def _mean(loads: Sequence[Load]) -> Load:
    return sum(mean for mean, _ in loads) / len(loads), sum(clump for _, clump in loads) / len(loads)


@cache
def _table(routing: Routing) -> Table:
    """The imbalance over the logarithm of the tokens."""
    return Table((tuple(math.log(tokens) for tokens in _TOKENS),), tuple(_imbalance(routing, at) for at in _TOKENS))


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

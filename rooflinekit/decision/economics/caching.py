"""Savings and waste of a KV cache, and the fate of a sequence that must leave it.

**Memory that holds nothing.** Over its life a sequence of S tokens in and N out holds S + N/2 on average. Long answers
are there longer, so the mean over time, with S and N independent, is

    held  = E[S] + E[N²]/(2·E[N])              tokens with content
    final = E[S] + E[N²]/E[N]                  tokens if the end were known and reserved
    paged = held + (b − 1)/2                   blocks of b tokens: half of the last one is empty

and a reservation takes the longest admitted length. Used shares are bytes(held)/bytes(what is taken), by the cache law
of the model, so that windows and states count as they are. The kinds of waste are those of Kwon et al. 2023 (vLLM,
arXiv:2309.06180, section 3.1).

**A sequence that must go** has its cache copied to the host and back, or computed again.

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

from rooflinekit.load.lengths import Length
from rooflinekit.model.cache import cache_law
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.numeric import Array, Numeric, maximum

_LENGTHS = 1024  # lengths that a sum over tokens is taken at; all of them up to here

_POINTS = 200
_ALIKE = 1.05  # blocks and tiles make stairs of both curves; closer than this they count as equally fast


@dataclass(frozen=True, slots=True)
class RecomputeCost:
    """One sequence decoded with a cache, and by running everything again for each token; FLOP on one accelerator."""

    cached_flops: float
    naive_flops: float
    flops_ratio: float
    cached_ms: float
    naive_ms: float
    time_ratio: float


def naive_decoding(predictor: Predictor, isl: int, osl: int) -> RecomputeCost:
    """One sequence, decoded with a cache and without.

        cached = prefill(S) + Σ_{i=1}^{N−1} decode(S + i)
        naive  = Σ_{i=0}^{N−1} prefill(S + i)

    In FLOP that is about (S + N) against N·S + N(N − 1)/2 tokens, in time less: a prefill computes at the peak, a
    decode step waits for the memory.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> both = naive_decoding(plain, 1000, 101)
    >>> round(both.flops_ratio)  # (101 · 1000 + 101 · 50)/(1000 + 100) = 96
    96
    >>> both.time_ratio < both.flops_ratio
    True
    """
    plan = predictor.plan
    first = _work(plan, Batch.prefill(1.0, float(isl)), 1)
    naive = _work(plan, Batch.prefill(1.0, _lengths(isl, osl)), osl)
    steps = _work(plan, Batch.decode(1.0, _lengths(isl + 1, osl - 1)), osl - 1) if osl > 1 else (0.0, 0.0)
    flops, seconds = first[0] + steps[0], first[1] + steps[1]
    return RecomputeCost(flops, naive[0], naive[0] / flops, seconds * 1e3, naive[1] * 1e3, naive[1] / seconds)


def _lengths(first: int, count: int) -> Array:
    """Lengths first … first + count − 1, or evenly spaced ones among them."""
    import numpy as np  # noqa: PLC0415

    points = min(count, _LENGTHS)
    return np.round(first + (np.arange(points) + 0.5) * (count / points) - 0.5)


def _work(plan: Plan, batch: Batch, count: int) -> tuple[float, float]:
    """FLOP and time [s] of `count` steps, of which the batch is a sample."""
    import numpy as np  # noqa: PLC0415

    step = plan.time(batch)
    flops = sum((timed.kernel.count * timed.kernel.flops for timed in step.kernels), 0.0)
    return float(np.mean(flops)) * count, float(np.mean(step.expected)) * count


@dataclass(frozen=True)
class Waste:
    """Mean tokens of a sequence, shares of the taken memory that hold content, and sequences that fit."""

    reserved_tokens: float
    final_tokens: float
    held_tokens: float
    block: int
    reserved_used: float
    final_used: float
    paged_used: float
    reserved_sequences: int
    final_sequences: int
    paged_sequences: int


def memory_waste(predictor: Predictor, isl: Length, osl: Length, longest: int) -> Waste:
    """Compare reservations of `longest` tokens, exact reservations, and blocks.

    Sequences that fit are those of the mean length, without the engine's limit on their number.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> from rooflinekit.load.lengths import Fixed, Uniform
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> w = memory_waste(plain, Fixed(1000), Fixed(200), 4400)
    >>> w.held_tokens, round(w.reserved_used, 3), w.block, round(w.paged_used, 4)  # 1100/4400, 1100/1107.5
    (1100.0, 0.25, 16, 0.9932)
    >>> memory_waste(plain, Fixed(1), Uniform(1, 6), 100).held_tokens  # 1 + (91/6)/7
    3.1667
    """
    plan = predictor.plan
    growth = osl.second_moment / osl.mean
    held, final = isl.mean + growth / 2.0, isl.mean + growth
    block = predictor.memory.stages[0].layout.block
    law = cache_law(plan.model.layers, plan.precision.kv, policy=plan.deployment.kv_policy)
    content = float(law.bytes(held))
    reserved, exact, paged = (
        content / float(law.bytes(taken)) for taken in (float(longest), final, held + (block - 1.0) / 2.0)
    )
    fit = [
        int(float(predictor.memory.max_batch(tokens, min(isl.mean, tokens))))
        for tokens in (float(longest), final, held)
    ]
    return Waste(float(longest), final, held, block, reserved, exact, paged, *fit)


@dataclass(frozen=True, slots=True)
class EvictionCost:
    """Evicting one sequence of `length` tokens: copied to the host and back, or computed again.

    choice: the faster one at this length; short_choice: for the shortest sequences. crossings: lengths [tokens] at
    which the faster one changes, by more than 5 % in the end, up to `longest`; break_even_link_gb_s: the host link at
    which both would take as long at this length.
    """

    length: int
    kv_bytes: float
    swap_ms: float
    recompute_ms: float
    choice: str
    short_choice: str
    crossings: tuple[float, ...]
    longest: int
    break_even_link_gb_s: float


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


def eviction(predictor: Predictor, length: int, longest: int) -> EvictionCost | None:
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
    held = float(_bytes(predictor, float(length)))
    return EvictionCost(
        length=length,
        kv_bytes=held,
        swap_ms=swap * 1e3,
        recompute_ms=recompute * 1e3,
        choice="swap" if swap <= recompute else "recompute",
        short_choice="swap" if float(ratio(1.0)) <= 1.0 else "recompute",
        crossings=_crossings(ratio, float(longest)),
        longest=longest,
        break_even_link_gb_s=2.0 * held / recompute / 1e9,
    )


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
        low, high, first = float(grid[before]), float(grid[after]), ratios[before] > 1.0
        if first == (ratios[after] > 1.0):
            continue
        while high - low > 1.0:  # a whole number of tokens at which the faster one is no longer that at the low end
            middle = (low + high) // 2.0
            low, high = (middle, high) if (float(ratio(middle)) > 1.0) == first else (low, middle)
        found.append(high)
    return tuple(found)

"""What a KV cache saves: decoding with it, and without, where every token runs the whole sequence again."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.numeric import Array, Numeric

__all__ = ["Recompute", "naive_decoding"]

_POINTS = 1024  # lengths that a sum over tokens is taken at; all of them up to here


@dataclass(frozen=True)
class Recompute:
    """FLOP on one accelerator and time of one sequence's output, with a cache and without."""

    cached_flops: float
    naive_flops: float
    cached_s: float
    naive_s: float

    @property
    def flops_ratio(self) -> float:
        """Naive over cached."""
        return self.naive_flops / self.cached_flops

    @property
    def time_ratio(self) -> float:
        """Naive over cached."""
        return self.naive_s / self.cached_s


def naive_decoding(predictor: Predictor, isl: int, osl: int) -> Recompute:
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
    passes = [_work(plan, Batch.prefill(1.0, lengths)) for lengths in (float(isl), _lengths(isl, osl))]
    first, naive = (passes[0][0], passes[0][1]), (_sum(passes[1][0], osl), _sum(passes[1][1], osl))
    if osl == 1:
        return Recompute(float(first[0]), naive[0], float(first[1]), naive[1])
    steps = _work(plan, Batch.decode(1.0, _lengths(isl + 1, osl - 1)))
    flops, time = (_sum(part, osl - 1) for part in steps)
    return Recompute(float(first[0]) + flops, naive[0], float(first[1]) + time, naive[1])


def _lengths(first: int, count: int) -> Array:
    """Lengths first … first + count − 1, or evenly spaced ones among them."""
    import numpy as np  # noqa: PLC0415

    points = min(count, _POINTS)
    return np.round(first + (np.arange(points) + 0.5) * (count / points) - 0.5)


def _work(plan: Plan, batch: Batch) -> tuple[Numeric, Numeric]:
    """FLOP and time of a step."""
    step = plan.time(batch)
    flops = sum((timed.kernel.count * timed.kernel.flops for timed in step.kernels), 0.0)
    return flops, step.expected


def _sum(part: Numeric, count: int) -> float:
    import numpy as np  # noqa: PLC0415

    return float(np.mean(part)) * count

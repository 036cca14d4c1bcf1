"""Percentiles of what users feel, from the means and the causes of their spread.

A time is a sum of parts that vary on their own. The deviation of its quantile from its mean is taken as the root of
the summed squares of the parts' deviations: exact for normal parts, an approximation for the others (docs/serving.md
compares it with simulations).

    step under way   even from 0 to one step
    prompts ahead    nothing with probability 1 − ρ, else exponential with the mean of M/G/1
    first burst      even over the prompts of all users, for the first of the requests that each sends
    prompt, answer   lognormal with the given variation
    prompts beside   each answer meets a Poisson number of prompts
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from rooflinekit.traffic.closed_form import Loaded, Traffic

__all__ = ["QUANTILES", "Spread", "goodput", "spread"]

QUANTILES = (0.5, 0.9, 0.99)
_NORMAL = NormalDist()
_GRID = tuple((i + 0.5) / 400 for i in range(400))


@dataclass(frozen=True)
class Spread:
    """Quantile functions of the three latencies [s]."""

    ttft: Callable[[float], float]
    tpot: Callable[[float], float]
    e2e: Callable[[float], float]


def spread(loaded: Loaded, traffic: Traffic, closed: bool) -> Spread:
    """The quantiles of an operating point; `closed`: all users start at once and send `traffic.requests` each."""
    ttft_mean, tpot_mean = float(loaded.ttft.time), float(loaded.tpot.time)
    ahead, osl = float(loaded.running) - 1.0, float(traffic.osl)
    share, busy = float(loaded.shared.share.time), float(loaded.busy)
    prompts = share * math.sqrt(1.0 + traffic.isl_cv**2) / osl
    beside = ahead if closed else busy * osl * tpot_mean / share if share else 0.0
    slow = math.sqrt(max(beside, 0.0)) * prompts

    def ttft(q: float) -> float:
        parts = [
            (q - 0.5) * tpot_mean,
            _exponential(q, busy, share, traffic),
            _lognormal(q, traffic.isl_cv) * float(loaded.shared.first.time),
        ]
        if closed:
            parts.append(_burst(q, ahead * share, float(loaded.together)))
        return max(_combined(ttft_mean, parts), 0.0)

    def tpot(q: float) -> float:
        least = float(loaded.shared.step.time)
        return max(tpot_mean + _NORMAL.inv_cdf(q) * slow, least)

    def e2e(q: float) -> float:
        answer = (osl - 1.0) * tpot_mean
        return _combined(
            float(loaded.e2e),
            [ttft(q) - ttft_mean, _lognormal(q, traffic.osl_cv) * answer, _NORMAL.inv_cdf(q) * slow * (osl - 1.0)],
        )

    return Spread(ttft, tpot, e2e)


def goodput(times: Spread, rate: float, ttft: float | None, tpot: float | None) -> float:
    """Requests a second that meet every objective [1/s]; the two are taken as independent."""
    share = 1.0
    for quantile, limit in ((times.ttft, ttft), (times.tpot, tpot)):
        if limit is not None:
            share *= sum(quantile(q) <= limit for q in _GRID) / len(_GRID)
    return share * rate


def _combined(mean: float, parts: list[float]) -> float:
    """Root of summed squares, each with its sign."""
    total = sum(math.copysign(part * part, part) for part in parts)
    return mean + math.copysign(math.sqrt(abs(total)), total)


def _exponential(q: float, busy: float, share: float, traffic: Traffic) -> float:
    """Wait behind prompts, from its mean."""
    if busy <= 0.0:
        return 0.0
    variation = (traffic.arrival_cv**2 + traffic.isl_cv**2) / 2.0
    mean = busy / (1.0 - busy) * variation * share
    return (mean / busy * math.log(busy / (1.0 - q)) if 1.0 - q < busy else 0.0) - mean


def _burst(q: float, last: float, first: float) -> float:
    """Wait in a burst, which a share `first` of the requests sees, from its mean."""
    if first == 0.0:
        return 0.0
    return (last * (1.0 - (1.0 - q) / first) if 1.0 - q < first else 0.0) - last * first / 2.0


def _lognormal(q: float, cv: float) -> float:
    """Quantile of a lognormal variable of mean 1, from its mean."""
    if cv == 0.0:
        return 0.0
    sigma = math.sqrt(math.log1p(cv * cv))
    return math.exp(_NORMAL.inv_cdf(q) * sigma - sigma * sigma / 2.0) - 1.0

"""Percentiles of what users feel, from the means and the causes of their spread.

A time is a sum of parts that vary on their own. The deviation of its quantile from its mean is taken as the root of
the summed squares of the parts' deviations: exact for normal parts, an approximation for the others (docs/under-load.md
compares it with simulations). First tokens of a first burst, even over the prompts of all users, are a share of all: of
the mixture the quantile is read between knots.

    step under way   even from 0 to one step
    encoders         of images, on accelerators of their own: nothing with the chance of no wait, else exponential
    prompts ahead    nothing with probability 1 − ρ, else exponential with the mean of M/G/1
    prompt, answer   of their law of lengths; lognormal with the given variation where it is not known
    prompts beside   each answer meets a Poisson number of prompts
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rooflinekit.model.graph.symbol import named
from rooflinekit.model.traffic.closed_form import Loaded, Traffic
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import Numeric, absolute, exp, log, maximum, minimum, sqrt, where

QUANTILES = (0.5, 0.9, 0.99)
_TINY = 1e-12
_KNOTS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
_GRID = tuple((i + 0.5) / 400 for i in range(400))


@dataclass(frozen=True)
class Spread:
    """Quantile functions of the three latencies [s]."""

    ttft: Callable[[float], Numeric]
    tpot: Callable[[float], Numeric]
    e2e: Callable[[float], Numeric]


def spread(loaded: Loaded, traffic: Traffic, closed: bool, beside: Traffic | None = None) -> Spread:
    """The quantiles of an operating point; `closed`: all users start at once and send `traffic.requests` each.

    beside: all that is served, where `traffic` is one class of it.
    """
    ttft_mean, tpot_mean, osl = loaded.ttft.expected, loaded.tpot.expected, traffic.osl
    share, varying = loaded.shared.share.expected, traffic.isl_cv
    ahead = (1.0 - loaded.grouped) * (loaded.sharing - 1.0)
    if beside is not None:
        ahead, varying = ahead * osl / beside.osl, beside.isl_cv
    prompts = share * sqrt(1.0 + varying**2) / osl
    slow = named(sqrt(maximum(ahead, 0.0)) * prompts, "slow", "deviation by prompts that are computed beside", "s")

    first = loaded.together if closed else 0.0
    mixed = not (isinstance(first, float) and first == 0.0)
    later = ttft_mean
    if mixed:
        later = maximum((ttft_mean - first * loaded.begin) / maximum(1.0 - first, _TINY), loaded.first.expected)
        later = named(later, "later", "mean time to first token after the first burst", "s")

    def after_burst(q: float) -> Numeric:
        """Of a first token that comes after the burst, from their mean; none comes before it was asked for."""
        parts = {
            "step under way": (2.0 * q - 1.0) * minimum(loaded.late, (loaded.shared.step.expected + share) / 2.0),
            "prompts ahead": _exponential(q, loaded.busy, _waited(loaded, closed)),
            "own prompt": _length(q, traffic.isl_cv, traffic.isl_law) * loaded.first.expected,
        }
        if encoded := loaded.shared.encoded:
            behind = encoded.wait / maximum(encoded.waits, _TINY)
            if closed:  # a queue that is always there varies by the root of its length
                behind = minimum(behind, sqrt(loaded.rate * encoded.wait + 1.0) * encoded.apart)
            parts["wait at encoders"] = _exponential(q, encoded.waits, behind)
        return maximum(_combined(parts), -later)

    both = _mixture(lambda q: later + after_burst(q), first, loaded.begin, loaded.burst) if mixed else None

    def late(q: float) -> Numeric:
        return both(q) - ttft_mean if both else after_burst(q)

    def ttft(q: float) -> Numeric:
        return ttft_mean + late(q)

    def tpot(q: float) -> Numeric:
        return maximum(tpot_mean + _deviations(q) * slow, loaded.shared.step.expected)

    def e2e(q: float) -> Numeric:
        answer = (osl - 1.0) * tpot_mean
        beside = _deviations(q) * slow * (osl - 1.0)
        answers = _length(q, traffic.osl_cv, traffic.osl_law) * answer
        return loaded.e2e + _combined(
            {"first token": late(q), "length of the answer": answers, "prompts beside": beside}
        )

    return Spread(ttft, tpot, e2e)


def goodput(times: Spread, rate: Numeric, ttft: Numeric | None, tpot: Numeric | None) -> Numeric:
    """Requests a second that meet every objective [1/s]; the two are taken as independent."""
    share: Numeric = 1.0
    for quantile, limit in ((times.ttft, ttft), (times.tpot, tpot)):
        if limit is not None:
            met: Numeric = 0.0
            for q in _GRID:
                met = met + where(quantile(q) <= limit, 1.0, 0.0)
            share = share * (met / len(_GRID))
    return share * rate


def _combined(parts: dict[str, Numeric]) -> Numeric:
    """Root of summed squares, each with its sign."""
    square: Numeric = 0.0
    for cause, deviation in parts.items():
        part = named(deviation, cause.split()[-1], f"deviation of the {cause}", "s")
        square = square + part * absolute(part)
    root = sqrt(absolute(square))
    return where(square < 0.0, -root, root)


def _waited(loaded: Loaded, closed: bool) -> Numeric:
    """Mean wait behind prompts of those that wait; of a queue that a closed loop always has, what it varies by."""
    behind = loaded.ahead / maximum(loaded.busy, _TINY)
    return minimum(behind, sqrt(loaded.running) * loaded.shared.share.expected) if closed else behind


def _exponential(q: float, busy: Numeric, behind: Numeric) -> Numeric:
    """Wait behind prompts, from its mean."""
    late = behind * log(maximum(busy, 1.0 - q) / (1.0 - q))
    return where(busy > 1.0 - q, late, 0.0) - busy * behind


def _mixture(
    rest: Callable[[float], Numeric], share: Numeric, mean: Numeric, width: Numeric
) -> Callable[[float], Numeric]:
    """The quantile of a mixture: `share` comes evenly over `width` about `mean`, the others have the quantile `rest`.

    F(t) = (1 − w)·p + w·(t − start)/width where t is the quantile p of the others, and straight between the knots.
    """
    start, end = maximum(mean - width / 2.0, 0.0), mean + width / 2.0
    middle = [rest(p) for p in _KNOTS]
    times = [minimum(start, middle[0]), *middle, maximum(end, middle[-1])]
    wide = maximum(end - start, _TINY)
    below = [
        (1.0 - share) * p + share * minimum(maximum((time - start) / wide, 0.0), 1.0)
        for p, time in zip((0.0, *_KNOTS, 1.0), times, strict=True)
    ]

    def quantile(q: float) -> Numeric:
        found = times[0]
        for at in range(len(times) - 1):
            part = (q - below[at]) / maximum(below[at + 1] - below[at], _TINY)
            found = found + minimum(maximum(part, 0.0), 1.0) * (times[at + 1] - times[at])
        return found

    return quantile


def _length(q: float, cv: Numeric, law: Callable[[float], float] | None) -> Numeric:
    """Quantile of a length over the mean, from it."""
    return law(q) - 1.0 if law else _lognormal(q, cv)


def _lognormal(q: float, cv: Numeric) -> Numeric:
    """Quantile of a lognormal variable of mean 1, from its mean."""
    sigma = sqrt(log(1.0 + cv * cv))
    return exp(_deviations(q) * sigma - sigma * sigma / 2.0) - 1.0


@cache
def _deviations(q: float) -> float:
    """Standard deviations from the mean of a normal distribution to its quantile q."""
    from statistics import NormalDist  # noqa: PLC0415 - it takes a while to import, and only a load pays for it

    return NormalDist().inv_cdf(q)

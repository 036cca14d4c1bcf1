"""Service-level objectives as users write them: `p95 ttft<1s, p95 tpot<40ms`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.model.traffic.percentiles import Spread
from rooflinekit.model.types.errors import WorkloadError, nearest

__all__ = ["METRICS", "Felt", "Objective", "parse_objectives", "refuse_undecoded", "slowest"]

METRICS = ("ttft", "tpot", "e2el")
_ALIASES = {"e2e": "e2el", "latency": "e2el"}
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_FORM = re.compile(
    r"(?:(?P<before>p\d+(?:\.\d+)?|mean)\s+)?(?P<metric>[a-z0-9]+)\s*(?:<=|<|≤)\s*"
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[a-zµ]*)",
    re.IGNORECASE,
)
_EXAMPLE = "write it like 'p95 ttft<1s, p95 tpot<40ms'"
_LEAST, _MOST = 0.5, 0.999  # percentiles: below the median nobody promises, above P99.9 the closed form says nothing


@dataclass(frozen=True)
class Objective:
    """A limit on the mean (`share` None) or a percentile of a latency [s]."""

    metric: str
    share: float | None
    limit: float

    @property
    def statistic(self) -> str:
        """`mean` or `p95`."""
        return "mean" if self.share is None else f"p{100 * self.share:g}"

    def __str__(self) -> str:
        value = f"{self.limit:g} s" if self.limit >= 1.0 else f"{self.limit * 1e3:g} ms"
        return f"{self.statistic} {self.metric.upper()} <= {value}"

    def value(self, felt: Felt) -> float:
        """What is felt of it [s]."""
        return felt.value(self.metric, self.share)

    def met(self, felt: Felt) -> bool:
        """Whether it holds."""
        return self.value(felt) <= self.limit


@dataclass(frozen=True)
class Felt:
    """Latencies of a load on a deployment: means and quantile functions [s]; infinite without a steady state."""

    means: dict[str, float]
    times: Spread
    stable: bool = True

    def value(self, metric: str, share: float | None) -> float:
        """A mean (`share` None) or a quantile [s]."""
        if not self.stable:
            return math.inf
        if share is None:
            return self.means[metric]
        quantile = {"ttft": self.times.ttft, "tpot": self.times.tpot, "e2el": self.times.e2e}[metric]
        return float(quantile(share))

    def table(self, shares: Sequence[float]) -> dict[str, dict[str, float | None]]:
        """Means and percentiles of every metric [ms]; None without a steady state."""
        return {
            f"{metric}_ms": {
                "mean" if share is None else f"p{100 * share:g}": value * 1e3
                if math.isfinite(value := self.value(metric, share))
                else None
                for share in (None, *shares)
            }
            for metric in METRICS
        }


def slowest(felts: Sequence[Felt]) -> Felt:
    """Of several loads the slower in every statistic."""
    if len(felts) == 1:
        return felts[0]
    means = {metric: max(felt.means[metric] for felt in felts) for metric in METRICS}
    times = Spread(
        lambda share: max(felt.times.ttft(share) for felt in felts),
        lambda share: max(felt.times.tpot(share) for felt in felts),
        lambda share: max(felt.times.e2e(share) for felt in felts),
    )
    return Felt(means, times, all(felt.stable for felt in felts))


def refuse_undecoded(slo: Sequence[Objective], osl: float) -> None:
    """Raise WorkloadError for a TPOT objective where answers have one token (`osl` is their mean)."""
    for each in slo:
        if each.metric == "tpot" and osl <= 1.0:
            raise WorkloadError(f"answers of one token have no TPOT; leave {each} out, as in --slo 'p95 ttft<1s'")


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Read objectives, comma between them: percentile (p50 to p99.9) or mean, metric, limit with its unit.

    Without a percentile the mean is meant. Metrics are TTFT, TPOT and E2EL.

    >>> [str(objective) for objective in parse_objectives("p95 ttft<1s, tpot <= 40 ms")]
    ['p95 TTFT <= 1 s', 'mean TPOT <= 40 ms']

    Raises WorkloadError for anything else, and for two limits of one thing.
    """
    found = [_objective(part.strip()) for part in text.split(",") if part.strip()]
    if not found:
        raise WorkloadError(f"no objective in {text!r}; {_EXAMPLE}")
    named = [(each.metric, each.share) for each in found]
    for each in found:
        if named.count((each.metric, each.share)) > 1:
            raise WorkloadError(f"{text!r} limits {each.statistic} {each.metric.upper()} twice; keep one")
    return tuple(found)


def _objective(part: str) -> Objective:
    match = _FORM.fullmatch(part)
    if match is None:
        raise WorkloadError(f"{part!r} is not an objective; {_EXAMPLE}")
    name = match["metric"].lower()
    metric = _ALIASES.get(name, name)
    if metric not in METRICS:
        near = ", ".join(nearest(metric, METRICS) or METRICS)
        raise WorkloadError(f"{part!r}: unknown latency {match['metric']!r}; nearest: {near}")
    unit = match["unit"].lower().replace("µ", "u")
    if unit not in _UNITS:
        what = f"unknown unit {match['unit']!r}" if unit else "no unit"
        raise WorkloadError(f"{part!r} has {what}; write it like '{name}<40ms' (us, ms, s or min)")
    limit = float(match["number"]) * _UNITS[unit]
    if not 0.0 < limit < math.inf:
        raise WorkloadError(f"{part!r}: the limit must be above 0")
    return Objective(metric, _share(part, match["before"]), limit)


def _share(part: str, statistic: str | None) -> float | None:
    if statistic is None or statistic.lower() == "mean":
        return None
    share = round(float(statistic[1:]) / 100.0, 6)
    if not _LEAST <= share <= _MOST:
        raise WorkloadError(f"{part!r}: percentiles go from p50 to p99.9, not {statistic}")
    return share

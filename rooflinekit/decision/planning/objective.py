"""Service-level objectives as users write them: `p95 ttft<1s, p95 tpot<40ms`."""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import NamedTuple

from rooflinekit.model.types.engine import DEVIATIONS, NORMAL
from rooflinekit.model.types.errors import WorkloadError, nearest_of
from rooflinekit.model.types.time import SIGMAS

METRICS = ("ttft", "tpot", "e2el")
_ALIASES = {"e2e": "e2el", "latency": "e2el"}
_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "milliseconds": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "min": 60.0,
    "minutes": 60.0,
}
_WORDS = (
    (r"time to first token", "ttft"),
    (r"time per output token", "tpot"),
    (r"end[- ]to[- ]end( latency)?", "e2el"),
    (r"(\d[\d.]*) ?(?:(?:st|nd|rd|th) percentile|%)( of)?", r"p\1"),
    (r"\b(is|stays|of|the)\b", " "),
    (r"\b(under|below|at most|less than|within)\b|≤|<=", "<"),
)
_FORM = re.compile(
    r"(?:(?P<before>p\d+(?:\.\d+)?|mean)\s+)?(?P<metric>[a-z0-9]+)(?:\s+(?P<after>p\d+(?:\.\d+)?|mean))?\s*<\s*"
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[a-zµ]*)"
)
_EXAMPLE = "write it like 'p95 ttft<1s, p95 tpot<40ms'"
_LEAST, _MOST = 0.5, 0.999  # below the median nobody promises; two thousand requests say no more


@dataclass(frozen=True)
class Objective:
    """A limit on the mean (`share` None) or a percentile of a latency [s], `of` one class of the requests or of all."""

    metric: str
    share: float | None
    limit: float
    of: str = ""

    @property
    def statistic(self) -> str:
        """`mean` or `p95`."""
        return "mean" if self.share is None else f"p{100 * self.share:g}"

    def __str__(self) -> str:
        value = f"{self.limit:g} s" if self.limit >= 1.0 else f"{self.limit * 1e3:g} ms"
        return f"{self.what} <= {value}"

    @property
    def what(self) -> str:
        """`p95 TTFT`, or `chat p95 TTFT`."""
        return " ".join(filter(None, (self.of, self.statistic, self.metric.upper())))

    def value(self, felt: Felt) -> float:
        """Value of the metric [s]."""
        return (felt.classes[self.of] if self.of else felt).value(self.metric, self.share)

    def attained(self, felt: Felt) -> float:
        """Share of requests within the limit, up to 0.9999; of a mean 0 or 1.

        The quantile function is turned round by bisection.
        """
        felt = felt.classes[self.of] if self.of else felt
        if self.share is None or not felt.stable:
            return float(felt.stable and felt.value(self.metric, None) <= self.limit)
        low, high = 0.0, 1.0 - 1e-4
        if felt.value(self.metric, high) <= self.limit:
            return 1.0
        for _ in range(12):
            middle = (low + high) / 2.0
            low, high = (middle, high) if felt.value(self.metric, middle) <= self.limit else (low, middle)
        return low

    def met(self, felt: Felt) -> bool:
        """True if it holds."""
        return self.value(felt) <= self.limit


class Ends(NamedTuple):
    """Ends of a calibrated 90 % interval over what is expected: of the steps that a metric is made of, low and high.

    further: how much further the metric itself reaches (`LoadEnds`); inner: the inner quantiles, normal unless told.
    """

    steps: Sequence[float] = (1.0, 1.0)
    further: Sequence[float] = (1.0, 1.0)
    inner: Sequence[float] = NORMAL

    @classmethod
    def widest(cls, several: Sequence[Ends]) -> Ends:
        """Those that hold all of several."""
        steps, further = (
            (min(low for low, _ in each), max(high for _, high in each))
            for each in ([ends.steps for ends in several], [ends.further for ends in several])
        )
        return cls(steps, further, tuple(map(max, *(ends.inner for ends in several))))

    def with_tokens(self, tokens: Ends, share: float) -> Ends:
        """Those of a whole request, of which the first token, with these ends, takes a share."""
        mixed = (
            tuple(share * a + (1.0 - share) * b for a, b in zip(*each, strict=True))
            for each in zip(self, tokens, strict=True)
        )
        return Ends(*mixed)


def limits_in_words(binds: Iterable[str]) -> str:
    """What ends a capacity, each once: objectives, an engine that is full at its knee, or no more users than asked.

    >>> limits_in_words(["p95 TPOT <= 50 ms", "knee", "knee"])
    'p95 TPOT <= 50 ms and a full engine'
    """
    words = {"knee": "a full engine", "users": "the users that were tried"}
    return " and ".join(words.get(what, what) for what in dict.fromkeys(binds))


@dataclass(frozen=True)
class Felt:
    """Latencies of a played load on a deployment [s]; infinite where it is more than can be sustained.

    read: the mean (share None) or a quantile of a metric. ends: by metric, empty without a calibration. classes: the
    same of each class of requests, where there are several.
    """

    read: Callable[[str, float | None], float]
    stable: bool = True
    ends: Mapping[str, Ends] = field(default_factory=dict)
    classes: Mapping[str, Felt] = field(default_factory=dict)

    def value(self, metric: str, share: float | None) -> float:
        """A mean (`share` None) or a quantile [s]."""
        return self.read(metric, share) if self.stable else math.inf

    def stretched(self, factor: float) -> Felt:
        """The latencies where everything takes `factor` times as long."""
        if factor == 1.0:
            return self
        read, classes = self.read, {name: own.stretched(factor) for name, own in self.classes.items()}
        return replace(self, read=lambda metric, share: factor * read(metric, share), classes=classes)

    def factors(self, metric: str, deviations: float) -> tuple[float, float]:
        """Times of the steps over the expected ones, and of the metric beyond them, at a place of the interval.

        deviations: standard deviations of a normal distribution up the calibrated interval.
        """
        ends = self.ends.get(metric, Ends())
        place = place_of(deviations, ends.inner)
        at = int(place > 0.0)
        return float(ends.steps[at] ** abs(place)), float(ends.further[at] ** abs(place))

    def at(self, slo: Sequence[Objective]) -> dict[str, float]:
        """Means, and the percentiles that objectives are about [ms]."""
        limited = {f"{each.statistic}_{each.metric}_ms": each.value(self) for each in slo if each.share is not None}
        means = {f"{metric}_ms": self.value(metric, None) for metric in METRICS}
        return {key: seconds * 1e3 for key, seconds in (means | limited).items()}

    def table(self, shares: Sequence[float]) -> dict[str, dict[str, float | None]]:
        """Means and percentiles of every metric [ms]; None where the load is more than can be sustained."""
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
    """The slowest statistics of several loads."""
    if len(felts) == 1:
        return felts[0]
    known = [metric for metric in METRICS if all(metric in felt.ends for felt in felts)]
    return Felt(
        lambda metric, share: max(felt.value(metric, share) for felt in felts),
        all(felt.stable for felt in felts),
        {metric: Ends.widest([felt.ends[metric] for felt in felts]) for metric in known},
        {name: slowest([felt.classes[name] for felt in felts]) for name in felts[0].classes},
    )


Feels = Callable[[float], Felt]
"""Latencies of a load where every step takes a factor times as long as expected."""


def spare(feels: Feels, slo: Sequence[Objective], deviations: float = 0.0) -> dict[Objective, float]:
    """Each limit over what is felt of it, where steps stand so many standard deviations up the calibrated interval."""
    plain, found = feels(1.0), {}
    for each in slo:
        factor, further = plain.factors(each.metric, deviations)
        value = each.value(feels(factor)) * further
        found[each] = each.limit / value if value else math.inf
    return found


def missed(feels: Feels, slo: Sequence[Objective], deviations: float = 0.0) -> tuple[Objective, ...]:
    """Objectives that fail; arguments as those of `spare`."""
    return tuple(each for each, left in spare(feels, slo, deviations).items() if not left >= 1.0)


def attained(feels: Feels, objective: Objective, deviations: float = 0.0) -> float:
    """Share of requests within a limit where steps stand so many standard deviations up the calibrated interval."""
    steps, further = feels(1.0).factors(objective.metric, deviations)
    return objective.attained(feels(steps).stretched(further))


def probability_text(share: float) -> str:
    """A probability in words, rounded down, never to certainty.

    >>> probability_text(0.9197), probability_text(0.9999)
    ('91.9 %', 'over 99.9 %')
    """
    down = math.floor(share * 1000.0) / 10.0
    return "over 99.9 %" if share > 0.999 else "under 0.1 %" if share < 0.001 else f"{down:g} %"


def place_of(deviations: float, inner: Sequence[float]) -> float:
    """Place of so many standard deviations of a normal distribution on the scale of an interval.

    -1 is its low end, 0 what is expected, 1 its high end; straight lines between quantiles, and on beyond the ends.

    >>> place_of(0.0, (-0.6, -0.2, 0.1, 0.4, 0.7)), place_of(-SIGMAS, NORMAL), round(place_of(1.0, NORMAL), 3)
    (0.1, -1.0, 0.608)
    """
    if abs(deviations) >= SIGMAS:
        return deviations / SIGMAS
    places, values = (-SIGMAS, *DEVIATIONS, SIGMAS), (-1.0, *inner, 1.0)
    n = bisect(places, deviations)
    (low, high), (one, other) = places[n - 1 : n + 1], values[n - 1 : n + 1]
    return one + (deviations - low) / (high - low) * (other - one)


def chance(feels: Feels, objective: Objective, asked: float = 0.0) -> float | None:
    """Probability that an objective is met, from the calibrated interval of its metric; None without one.

    The error of the times of one deployment is taken as one place of the interval at which all its steps stand, so that
    it is the probability of every place below the highest one at which the objective holds. asked: standard deviations
    up the interval that are looked at first, those of the confidence asked for.

    >>> plain = Felt(lambda metric, share: 0.04, ends={"tpot": Ends((0.8, 1.25))})
    >>> objective = Objective("tpot", None, 0.05)
    >>> round(chance(plain.stretched, objective), 3)  # the limit stands at the upper end of the interval
    0.95
    """
    if objective.metric not in feels(1.0).ends:
        return None

    def met(deviations: float) -> bool:
        return spare(feels, [objective], deviations)[objective] >= 1.0

    low, high = -_REACH, _REACH
    if met(high) or not met(low):
        return 1.0 if met(high) else 0.0
    middle = asked
    while high - low > _FINE:
        low, high = (middle, high) if met(middle) else (low, middle)
        middle = (low + high) / 2.0
    return NormalDist().cdf(low)


_REACH, _FINE = 4.0, 1e-3  # standard deviations
_SLOWEST = 16.0  # times as long as expected


def slowest_factor(feels: Feels, slo: Sequence[Objective]) -> float | None:
    """Largest factor on expected steps before an objective fails; None where nothing within 16 does.

    >>> plain = Felt(lambda metric, share: 0.04)
    >>> round(slowest_factor(plain.stretched, [Objective("tpot", None, 0.05)]), 2)
    1.25
    """

    def holds(factor: float) -> bool:
        return all(each.met(feels(factor)) for each in slo)

    low, high = 1.0 / _SLOWEST, _SLOWEST
    if not holds(low):
        return None
    while high > low * (1.0 + _FINE):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def refuse_undecoded(slo: Sequence[Objective], osl: float) -> None:
    """Raise WorkloadError for a TPOT objective where answers have one token (`osl` is their mean)."""
    for each in slo:
        if each.metric == "tpot" and osl <= 1.0:
            raise WorkloadError(f"answers of one token have no TPOT; leave {each} out, as in --slo 'p95 ttft<1s'")


def parse_objectives(text: str | Sequence[str]) -> tuple[Objective, ...]:
    """Read objectives, comma or "and" between them: percentile (p50 to p99.9) or mean, metric, limit with its unit.

    Without a percentile the mean is meant. Metrics are TTFT, TPOT and E2EL. Several texts add up.

    >>> [str(objective) for objective in parse_objectives("p95 ttft < 1s and tpot <= 40 ms")]
    ['p95 TTFT <= 1 s', 'mean TPOT <= 40 ms']
    >>> [str(objective) for objective in parse_objectives("95 % of TTFT under 2 seconds, TPOT p95 at most 40 ms")]
    ['p95 TTFT <= 2 s', 'p95 TPOT <= 40 ms']

    Raises WorkloadError for anything else, and for two limits of one thing.
    """
    whole = text if isinstance(text, str) else ", ".join(text)
    found = list(dict.fromkeys(_objective(part.strip()) for part in re.split(r",|\band\b", whole) if part.strip()))
    if not found:
        raise WorkloadError(f"no objective in {whole!r}; {_EXAMPLE}")
    named = [(each.metric, each.share) for each in found]
    for each in found:
        if named.count((each.metric, each.share)) > 1:
            raise WorkloadError(f"{whole!r} limits {each.statistic} {each.metric.upper()} twice; keep one")
    return tuple(found)


def _objective(part: str) -> Objective:
    words = part.lower()
    for said, meant in _WORDS:
        words = re.sub(said, meant, words)
    match = _FORM.fullmatch(" ".join(words.split()))
    if match is None or (match["before"] and match["after"]):
        raise WorkloadError(f"{part!r} is not an objective; {_EXAMPLE}")
    name = match["metric"]
    metric = _ALIASES.get(name, name)
    if metric not in METRICS:
        raise WorkloadError(f"{part!r}: unknown latency {match['metric']!r}; nearest: {nearest_of(metric, METRICS)}")
    unit = match["unit"].replace("µ", "u")
    if unit not in _UNITS:
        what = f"unknown unit {match['unit']!r}" if unit else "no unit"
        raise WorkloadError(f"{part!r} has {what}; write it like '{name}<40ms' (us, ms, s or min)")
    limit = float(match["number"]) * _UNITS[unit]
    if not 0.0 < limit < math.inf:
        raise WorkloadError(f"{part!r}: the limit must be above 0")
    return Objective(metric, _share(part, match["before"] or match["after"]), limit)


def _share(part: str, statistic: str | None) -> float | None:
    if statistic is None or statistic == "mean":
        return None
    share = round(float(statistic[1:]) / 100.0, 6)
    if not _LEAST <= share <= _MOST:
        raise WorkloadError(f"{part!r}: percentiles go from p50 to p99.9, not {statistic}")
    return share

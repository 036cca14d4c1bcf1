"""Service-level objectives as users write them: `p95 ttft<1s, p95 tpot<40ms`."""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from rooflinekit.model.traffic.percentiles import Spread
from rooflinekit.model.traffic.root import root
from rooflinekit.model.types.engine import DEVIATIONS, NORMAL
from rooflinekit.model.types.errors import WorkloadError, nearest_of
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.time import SIGMAS

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
        """What is felt of it [s]."""
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
        """Whether it holds."""
        return self.value(felt) <= self.limit


@dataclass(frozen=True)
class Felt:
    """Latencies of a load on a deployment: means and quantile functions [s]; infinite without a steady state.

    spans: ends of the 90 % interval of each metric's mean over what is expected; without a calibration there is none.
    classes: the same of each class of requests, where there are several. bounds: of means, at the datasheet's rates.
    beyond: by metric, exponents p for shorter and for longer steps: where all steps take F times as long, the metric
    takes F^(1+p) times as long. Waits err more than steps. inner: by metric, the inner quantiles of its interval
    (`LoadEnds`); without them it is normal.
    """

    means: Mapping[str, float]
    times: Spread
    stable: bool = True
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    classes: Mapping[str, Felt] = field(default_factory=dict)
    bounds: Callable[[], Mapping[str, float]] = dict
    beyond: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    inner: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def value(self, metric: str, share: float | None) -> float:
        """A mean (`share` None) or a quantile [s]."""
        if not self.stable:
            return math.inf
        if share is None:
            return self.means[metric]
        quantile = {"ttft": self.times.ttft, "tpot": self.times.tpot, "e2el": self.times.e2e}[metric]
        return float(quantile(share))

    def erring_as(self, other: Felt) -> Felt:
        """The same, whose waits err beyond its steps as those of another load."""
        if other is self:
            return self
        classes = {name: own.erring_as(other.classes[name]) for name, own in self.classes.items()}
        return replace(self, beyond=other.beyond, inner=other.inner, classes=classes)

    def stretched(self, factor: float) -> Felt:
        """The same where every step takes `factor` times as long, and so what errs with it."""
        each = {key: factor ** (1.0 + self.beyond.get(key, (0.0, 0.0))[factor > 1.0]) for key in METRICS}
        spread = zip(METRICS, (self.times.ttft, self.times.tpot, self.times.e2e), strict=True)
        times = Spread(*(lambda share, time=time, more=each[key]: more * time(share) for key, time in spread))
        means = {key: each[key] * mean for key, mean in self.means.items()}
        classes = {name: own.stretched(factor) for name, own in self.classes.items()}
        return replace(self, means=means, times=times, classes=classes)

    def factor(self, metric: str, deviations: float) -> float:
        """Times of a metric over the expected ones, so many standard deviations up the calibrated interval."""
        low, high = self.spans.get(metric, (1.0, 1.0))
        place = place_of(deviations, self.inner.get(metric, NORMAL))
        return float((high if place > 0.0 else 1.0 / low) ** place)

    def at(self, slo: Sequence[Objective]) -> dict[str, float]:
        """Means, and the percentiles that objectives are about [ms]."""
        limited = {f"{each.statistic}_{each.metric}_ms": each.value(self) for each in slo if each.share is not None}
        means = {f"{metric}_ms": mean for metric, mean in self.means.items()}
        return {key: seconds * 1e3 for key, seconds in (means | limited).items()}

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
    ends = {key: [felt.spans[key] for felt in felts] for key in METRICS if all(key in felt.spans for felt in felts)}
    spans = {key: (min(low for low, _ in each), max(high for _, high in each)) for key, each in ends.items()}
    classes = {name: slowest([felt.classes[name] for felt in felts]) for name in felts[0].classes}

    def bounds() -> dict[str, float]:
        found = [felt.bounds() for felt in felts]
        return {key: min(each.get(key, 0.0) for each in found) for key in METRICS}

    stable = all(felt.stable for felt in felts)
    powers = {key: [felt.beyond.get(key, (0.0, 0.0)) for felt in felts] for key in METRICS}
    beyond = {key: (max(low for low, _ in each), max(high for _, high in each)) for key, each in powers.items()}
    places = {key: [felt.inner.get(key, NORMAL) for felt in felts] for key in METRICS}
    inner = {key: tuple(map(max, *each)) for key, each in places.items()}
    return Felt(means, times, stable, spans, classes, bounds, beyond, inner)


Feels = Callable[[float], Felt]
"""Latencies of a load where every step takes a factor times as long as expected."""


def spare(
    feels: Feels, slo: Sequence[Objective], deviations: float = 0.0, bias: Mapping[Objective, float] | None = None
) -> dict[Objective, float]:
    """Each limit over what is felt of it, where steps stand so many standard deviations up the calibrated interval.

    bias: what a simulation gave over what the closed form gives, by objective.
    """
    plain = feels(1.0)
    felts, found = {1.0: plain}, {}
    for each in slo:
        factor = plain.factor(each.metric, deviations)
        if factor not in felts:
            felts[factor] = feels(factor)
        value = each.value(felts[factor]) * (bias or {}).get(each, 1.0)
        found[each] = each.limit / value if value else math.inf
    return found


def missed(
    feels: Feels, slo: Sequence[Objective], deviations: float = 0.0, bias: Mapping[Objective, float] | None = None
) -> tuple[Objective, ...]:
    """Objectives that fail; arguments as those of `spare`."""
    return tuple(each for each, left in spare(feels, slo, deviations, bias).items() if not left >= 1.0)


def last_met(left: Callable[[float], float], low: float, high: float, close: float) -> float | None:
    """The last place with at least 1 `left`, which falls from the low to the high end; to a share `close`.

    None where there is less already at the low end.

    >>> round(last_met(lambda rate: 3.0 / rate, 1.0, 64.0, 1e-6), 4)
    3.0
    """
    met: float | None = None

    def excess(at: Numeric) -> float:
        nonlocal met
        here = left(float(at))
        met = max(met or float(at), float(at)) if here >= 1.0 else met
        return math.log(min(max(here, 1.0 / _FAR), _FAR))

    root(excess, low, high, close, sides=True)
    return met


def probability_text(share: float) -> str:
    """A probability in words, rounded down, never to certainty.

    >>> probability_text(0.9197), probability_text(0.9999)
    ('91.9 %', 'over 99.9 %')
    """
    down = math.floor(share * 1000.0) / 10.0
    return "over 99.9 %" if share > 0.999 else "under 0.1 %" if share < 0.001 else f"{down:g} %"


def place_of(deviations: float, inner: Sequence[float]) -> float:
    """Where so many standard deviations of a normal distribution stand on the scale of an interval.

    -1 is its low end, 0 what is expected, 1 its high end; straight lines between quantiles, and on beyond the ends.

    >>> place_of(0.0, (-0.6, -0.2, 0.1, 0.4, 0.7)), place_of(-SIGMAS, NORMAL), round(place_of(1.0, NORMAL), 3)
    (0.1, -1.0, 0.608)
    """
    if abs(deviations) >= SIGMAS:
        return deviations / SIGMAS
    return _along(deviations, (-SIGMAS, *DEVIATIONS, SIGMAS), (-1.0, *inner, 1.0))


def deviations_of(place: float, inner: Sequence[float]) -> float:
    """The other way round.

    >>> deviations_of(0.1, (-0.6, -0.2, 0.1, 0.4, 0.7)), deviations_of(-2.0, NORMAL)
    (0.0, -3.29)
    """
    if abs(place) >= 1.0:
        return place * SIGMAS
    return _along(place, (-1.0, *inner, 1.0), (-SIGMAS, *DEVIATIONS, SIGMAS))


def _along(at: float, places: Sequence[float], values: Sequence[float]) -> float:
    """Linear between places that rise, from the first of which to below the last it stands."""
    n = bisect(places, at)
    (low, high), (one, other) = places[n - 1 : n + 1], values[n - 1 : n + 1]
    return one + (at - low) / (high - low) * (other - one)


_FAR = 1e9  # objectives that are missed or met by more than this are as good as any


def chance(feels: Feels, objective: Objective, bias: float = 1.0) -> float | None:
    """Probability that an objective is met, from the calibrated interval of its metric; None without one.

    The error of the times of one deployment is taken as one factor F on all steps, whose 90 % interval is the
    calibrated one. Within it its logarithm has the quantiles of what was seen (`Felt.inner`), or is normal. Steps that
    take F times as long at a rate λ are those of the expected length at a rate F·λ, and all times are F times as long;
    so the largest F that meets the limit is found on the closed form, and the probability is that of a smaller one.

    >>> plain = Felt({"tpot": 0.04}, Spread(float, float, float), spans={"tpot": (0.8, 1.25)})
    >>> objective = Objective("tpot", None, 0.05)
    >>> round(chance(plain.stretched, objective), 3)  # the limit stands at the upper end of the interval
    0.95
    """
    plain = feels(1.0)
    ends = plain.spans.get(objective.metric)
    if ends is None:
        return None
    factor = slowest_factor(feels, [objective], bias)
    if factor is None or 1.0 in ends:
        return 0.0 if factor is None or factor < 1.0 else 1.0
    place = math.log(factor) / math.log(ends[1] if factor > 1.0 else 1.0 / ends[0])
    return NormalDist().cdf(deviations_of(place, plain.inner.get(objective.metric, NORMAL)))


def slowest_factor(feels: Feels, slo: Sequence[Objective], bias: float = 1.0) -> float | None:
    """How many times as long as expected steps may take before an objective fails; None where nothing within 16 does.

    bias: what a simulation gave over what the closed form gives.

    >>> plain = Felt({"tpot": 0.04}, Spread(float, float, float))
    >>> round(slowest_factor(plain.stretched, [Objective("tpot", None, 0.05)]), 3)
    1.25
    """

    def left(factor: float) -> float:
        felt = feels(factor)
        return min(each.limit / max(each.value(felt) * bias, _NOTHING) for each in slo)

    return last_met(left, 1.0 / _REACH, _REACH, _FINE)


_REACH, _FINE, _NOTHING = 16.0, 1e-3, 1e-12


def refuse_undecoded(slo: Sequence[Objective], osl: float) -> None:
    """Raise WorkloadError for a TPOT objective where answers have one token (`osl` is their mean)."""
    for each in slo:
        if each.metric == "tpot" and osl <= 1.0:
            raise WorkloadError(f"answers of one token have no TPOT; leave {each} out, as in --slo 'p95 ttft<1s'")


def parse_objectives(text: str | Sequence[str]) -> tuple[Objective, ...]:
    """Read objectives, comma between them: percentile (p50 to p99.9) or mean, metric, limit with its unit.

    Without a percentile the mean is meant. Metrics are TTFT, TPOT and E2EL. Several texts add up.

    >>> [str(objective) for objective in parse_objectives(["p95 ttft<1s", "tpot <= 40 ms"])]
    ['p95 TTFT <= 1 s', 'mean TPOT <= 40 ms']

    Raises WorkloadError for anything else, and for two limits of one thing.
    """
    whole = text if isinstance(text, str) else ", ".join(text)
    found = list(dict.fromkeys(_objective(part.strip()) for part in whole.split(",") if part.strip()))
    if not found:
        raise WorkloadError(f"no objective in {whole!r}; {_EXAMPLE}")
    named = [(each.metric, each.share) for each in found]
    for each in found:
        if named.count((each.metric, each.share)) > 1:
            raise WorkloadError(f"{whole!r} limits {each.statistic} {each.metric.upper()} twice; keep one")
    return tuple(found)


def _objective(part: str) -> Objective:
    match = _FORM.fullmatch(part)
    if match is None:
        raise WorkloadError(f"{part!r} is not an objective; {_EXAMPLE}")
    name = match["metric"].lower()
    metric = _ALIASES.get(name, name)
    if metric not in METRICS:
        raise WorkloadError(f"{part!r}: unknown latency {match['metric']!r}; nearest: {nearest_of(metric, METRICS)}")
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

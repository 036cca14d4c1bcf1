"""A plan over time: replicas by the hour and by the month, what they cost, how they are paid, and when to buy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from rooflinekit.decision.economics.commitments import Paid, Spot, Table, Tco, pay, rent_or_buy
from rooflinekit.decision.economics.price import MONTH_HOURS
from rooflinekit.decision.planning.cost import Tariff, cold_start_s, fleet_watts
from rooflinekit.decision.planning.demand import Course, Demand, Profile
from rooflinekit.decision.planning.fleet import Option, Replica
from rooflinekit.decision.planning.objective import attained
from rooflinekit.decision.planning.rank import Ranked
from rooflinekit.decision.planning.replay import run_varying
from rooflinekit.decision.planning.search import PlanQuestion
from rooflinekit.estimation.options import part_of
from rooflinekit.model.power import plug_power
from rooflinekit.model.types.answer import Plain, Tabled
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import InputError, WorkloadError
from rooflinekit.model.types.units import GB, percent
from rooflinekit.simulation.simulate import pcie_bandwidth

_IDLE = 1e-6  # requests/s of an interval in which nothing comes


@dataclass(frozen=True)
class Capacity:
    """A deployment, and how many replicas of it carry a rate."""

    question: PlanQuestion
    option: Option
    _fleets: dict[float, Option] = field(default_factory=dict, repr=False)

    def demand(self, rate: float) -> Demand:
        """The demand at another rate, none busier than it."""
        return replace(self.question.demand, rate=max(rate, _IDLE), peak=1.0, trace=None)

    def fleet(self, rate: float) -> Option:
        """The replicas that carry a rate [1/s]; at the peak of the question those of the plan."""
        if rate not in self._fleets:
            question, demand = self.question, self.demand(rate)
            peak = math.isclose(rate, question.demand.peak_load, rel_tol=1e-9)
            self._fleets[rate] = self.option if peak else self.option.sized(demand, question.slo, question.reserve)
        return self._fleets[rate]

    @property
    def price(self) -> float | None:
        """An hour of an accelerator [USD]; None where nobody knows."""
        return self.question.tariff.price(self.option.names[0])

    @property
    def limit(self) -> float:
        """Accelerators that there are."""
        return self.question.reserve.limit(self.option.names[0])


PERIOD_S, TOLERANCE = 15.0, 0.1
"""Defaults of the Horizontal Pod Autoscaler of Kubernetes: between looks, and the share by which what is wanted has to
differ from what there is.
"""
PROVISION_S = 120.0
PROVISION_NOTE = "a machine comes within 2 minutes (assumption)"
ENGINE_S = 64.0
ENGINE_NOTE = (
    "the engine starts in 64 s once its weights are there (vLLM with Llama 3.1 8B and warm caches, "
    "tensorfuse.io/docs/blogs/reducing_gpu_cold_start, 2025-09)"
)
PATHS = {"object-store": 1.25, "nvme": 5.0, "host-cache": 0.0}
"""GB/s at which weights come to a machine (assumptions: a link of 10 Gbit/s, one NVMe drive); 0: by each PCIe link."""
POLICIES = ("utilisation", "queue", "forecast")
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_WINDOW = 4  # looks over which requests are counted
_LOADS = 33  # between idle and the knee at which shares are tabulated
_MEAN_SHARE = 0.95  # of requests that come while an objective on a mean holds
_LONGEST_H = 168.0  # of a profile that is played
_PARTS = 8  # of the requests, in each of which some are simulated
_DRAWN = 300  # requests that count in each
_TRIES = 6  # settings of one cold start that are simulated at most


@dataclass(frozen=True)
class ColdStart(Plain):
    """Seconds until a new replica serves: its machine, its weights over a path, its engine."""

    provision_s: float
    load_s: float
    engine_s: float
    path: str

    derived = ("seconds",)

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.provision_s + self.load_s + self.engine_s


@dataclass(frozen=True)
class Scaled(Plain):
    """A policy played with a cold start.

    target: share of what a replica bears that it aims at; attained: share of requests within each objective; meets:
    whether that is what each asks for; usd_per_month: None without a price; most: replicas at a time; changes_per_hour:
    of the replicas wanted, reversals_per_hour: changes in the other direction than the one before (flapping);
    simulated: share of requests within each objective where single requests are drawn, empty where none are; requests:
    how many; busiest: the least share within an objective around the busiest look; steps: when the replicas that serve
    change [s], and to how many.
    """

    cold_start_s: float
    policy: str
    target: float
    attained: dict[str, float]
    meets: bool
    gpu_hours_per_month: float
    usd_per_month: float | None
    most: int
    changes_per_hour: float
    reversals_per_hour: float
    simulated: dict[str, float] = field(default_factory=dict)
    requests: int = 0
    busiest: float | None = None
    steps: tuple[tuple[float, int], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Autoscaling(Plain):
    """The cheapest setting of each policy that meets the objectives, for each cold start; `best`: of the own one."""

    cold_start: ColdStart
    played_h: float
    policies: tuple[Scaled, ...]
    best: Scaled | None
    interrupted: bool = False  #: while single requests were simulated


def read_cold_start(replica: Replica, tariff: Tariff, given: Mapping[str, Any]) -> ColdStart:
    """Provision, weights over a path, and start of the engine, as given or assumed.

    Raises WorkloadError for a host cache behind an unknown link.
    """
    path = given.get("weights_from", "nvme")
    if path != "nvme" and given.get("load_gbps") is not None:
        raise InputError("load_gbps and weights_from say the same thing; give one")
    rate = PATHS[path] * GB if path == "object-store" else tariff.load_bytes_s
    if path == "host-cache":
        rate = pcie_bandwidth(replica.predictor, "weights_from host-cache")
    seconds = cold_start_s(replica, tariff) * tariff.load_bytes_s / rate
    return ColdStart(given.get("provision", PROVISION_S), seconds, given.get("engine_start", ENGINE_S), path)


@dataclass(frozen=True)
class _Shares:
    """Shares of requests within each objective at loads of a replica that bears a load [1/s], and requests in it."""

    loads: Table
    within: Table  #: (objectives, loads)
    inside: Table
    bears: float
    knee: float

    @classmethod
    def of(cls, capacity: Capacity) -> _Shares:
        """Shares of the only part of an aggregated fleet, at the confidence of the question."""
        question, part = capacity.question, capacity.option.parts[0]
        seen = part.seen(capacity.demand(question.demand.peak_load))
        curve, knee = part.bearer.curve(seen), part.bearer.sustained(seen)
        loads = np.linspace(curve.loads[0], min(knee, curve.loads[-1]), _LOADS)
        within, inside = [], []
        for load in loads.tolist():
            feels = part.bearer.feels(seen, load)
            within.append([attained(feels, each, part.deviations) for each in question.slo])
            inside.append(load * feels(1.0).value("e2el", None))
        bears = part.ability.load * (1.0 - question.reserve.headroom)
        return cls(loads, np.array(within).T, np.array(inside), bears, knee)


@dataclass(frozen=True)
class Bounds:
    """Replicas that an autoscaler keeps at least and at most, and how long it looks back before one goes [s].

    The default of that is the stabilisation window of Kubernetes' Horizontal Pod Autoscaler.
    """

    min_replicas: int = 1
    max_replicas: float = math.inf
    cooldown: float = 300.0

    def __post_init__(self) -> None:
        if self.max_replicas < self.min_replicas:
            raise WorkloadError(
                f"max_replicas must be at least min_replicas ({self.min_replicas}), not {self.max_replicas}"
            )


def autoscaled(
    capacity: Capacity, profile: Profile, cold: ColdStart, others_s: Sequence[float], bounds: Bounds
) -> Autoscaling:
    """Play every policy at every target with each cold start, and keep the cheapest of each that meets the objectives.

    Every 15 s a policy asks for replicas, which serve after a cold start and are paid from its beginning. Between two
    looks the share within each limit is that of a replica's load curve at the mean rate; what comes beyond the knee
    waits, and meanwhile no request meets a limit on TTFT or on the whole request:

        B(t + dt) = max(B(t) + (λ(t) − n(t)·knee)·dt, 0)         λ linear between the middles of the intervals

    What the policy sees is counted over a minute: Gamma of mean λ·t and variance c²·λ·t, c the variation of the gaps.
    The noise is drawn from the seed of the question; all settings see the same requests. The cheapest with each cold
    start is one with which a simulation of single requests agrees; an interrupt leaves those that were simulated.
    """
    starts = sorted({cold.seconds, *others_s})
    settings = [(start, policy, target) for start in starts for policy in POLICIES for target in TARGETS]
    played, hours = _played(capacity, profile, settings, bounds)
    interrupted = False
    try:
        drawable = capacity.option.parts[0].replica.kept is None  # a cache finds what came before
        rates = looked_at(profile, hours)
        for start in sorted(starts, key=lambda each: each != cold.seconds) if drawable else []:
            order = sorted(
                (place for place, each in enumerate(played) if each.meets and each.cold_start_s == start),
                key=lambda place: played[place].gpu_hours_per_month,
            )
            for tried, place in enumerate(order[:_TRIES]):  # the cheapest first, until one agrees
                capacity.question.progress(f"simulate {played[place].policy}", tried, tried + 1)
                played[place] = _drawn(capacity, rates, played[place])
                if played[place].meets:
                    break
    except KeyboardInterrupt:
        interrupted = True
    kept = []
    for start in starts:
        for policy in POLICIES:
            own = [each for each in played if (each.cold_start_s, each.policy) == (start, policy)]
            good = [each for each in own if each.meets]
            kept.append(
                min(good, key=lambda each: each.gpu_hours_per_month)
                if good
                else max(own, key=lambda each: min(each.attained.values()))
            )
    best = min(
        (each for each in kept if each.meets and each.cold_start_s == cold.seconds),
        key=lambda each: each.gpu_hours_per_month,
        default=None,
    )
    return Autoscaling(cold, hours, tuple(kept), best, interrupted)


def _drawn(capacity: Capacity, rates: Table, scaled: Scaled) -> Scaled:
    """Replace the shares by those of a simulated replica around the busiest look of each part of the requests.

    The looks, in order of what a replica has to do, are cut at 50, 75, 87.5 % and so on of the requests; each part is
    simulated from the last look at which nothing waited.
    """
    question, part = capacity.question, capacity.option.parts[0]
    demand, looks = part.seen(capacity.demand(question.demand.peak_load)), np.arange(len(rates))
    times = np.array([time for time, _ in scaled.steps]) / PERIOD_S
    served = np.array([count for _, count in scaled.steps])[np.searchsorted(times, looks, "right") - 1]
    each, knee = rates / served, part.bearer.sustained(demand)
    plain = part.bearer.feel(demand, min(float(each.max()), knee, part.bearer.curve(demand).loads[-1]))
    factors = {objective: plain.factors(objective.metric, part.deviations) for objective in question.slo}
    ends = np.append(1.0 - 0.5 ** np.arange(1, _PARTS), 1.0)
    weights = np.diff(ends, prepend=0.0)
    attained: dict[str, float] = {}
    requests, busiest = 0, 1.0
    for factor, further in sorted(set(factors.values())):
        more = ((rates - served * (knee / factor)) * PERIOD_S).tolist()
        waiting = np.array([*accumulate(more, lambda waits, add: max(waits + add, 0.0), initial=0.0)][1:])
        order = np.argsort(each + waiting / served / PERIOD_S, kind="stable")
        upto = np.cumsum(rates[order]) / rates.sum()
        felts = []
        for look in order[np.minimum(np.searchsorted(upto, ends), len(order) - 1)].tolist():
            calm = int(np.flatnonzero(waiting[: look + 1] == 0.0)[-1]) if not waiting[: look + 1].all() else 0
            run = run_varying(part, demand, each, look, calm, PERIOD_S, _DRAWN, factor, question.seed)
            felts.append(run.felt.stretched(factor * further))
            requests += run.requests
        for objective in question.slo:
            if factors[objective] == (factor, further):
                parts = [objective.attained(felt) for felt in felts]
                within, busiest = float(weights @ parts), min(busiest, parts[-1])
                mean = float(weights @ [objective.value(felt) for felt in felts])
                attained[str(objective)] = within if objective.share is not None else float(mean <= objective.limit)
    meets = all(attained[str(each)] >= (each.share or _MEAN_SHARE) for each in question.slo)
    return replace(scaled, simulated=attained, requests=requests, busiest=busiest, meets=meets)


def _played(  # noqa: PLR0915 - one loop over time
    capacity: Capacity, profile: Profile, settings: Sequence[tuple[float, str, float]], bounds: Bounds
) -> tuple[list[Scaled], float]:
    """Every setting side by side, look by look."""
    question, shares = capacity.question, _Shares.of(capacity)
    hours = min(profile.span, _LONGEST_H)
    rates = looked_at(profile, hours)
    count, looks = len(rates), max(round(bounds.cooldown / PERIOD_S), 1)  # those within the cooldown
    seen = _counted(rates, question.demand.arrival_cv, question.seed)
    cold = np.array([max(math.ceil(start / PERIOD_S), 1) for start, *_ in settings])
    target = np.array([target for *_, target in settings]) * shares.bears
    kinds = np.array([POLICIES.index(policy) for _, policy, _ in settings])
    ahead = np.stack([_largest_ahead(rates, int(wait) + looks) for wait in np.unique(cold)])
    which = np.searchsorted(np.unique(cold), cold)
    spare, least = capacity.option.parts[0].spare, float(bounds.min_replicas)
    ready = np.clip(np.ceil(rates[0] / target), least, bounds.max_replicas)
    backlog = np.zeros(len(settings))
    ring = np.zeros((int(cold.max()) + 1, len(settings)))  # replicas that come at each of the next looks
    asked = np.tile(ready, (looks, 1))  # what was wanted in the cooldown
    paid, changes, reversals, direction = (np.zeros(len(settings)) for _ in range(4))
    most, met = ready.copy(), np.zeros((len(question.slo), len(settings)))
    served = np.empty((count, len(settings)), int)
    loose = np.array([each.metric == "tpot" for each in question.slo])[:, None]
    every = np.arange(len(settings))
    for look in range(count):
        slot = look % len(ring)
        ready += ring[slot]
        ring[slot] = 0.0
        rate = float(rates[look])
        load = np.minimum(rate / ready, shares.knee)
        backlog = np.maximum(backlog + (rate - ready * shares.knee) * PERIOD_S, 0.0)
        waiting = backlog > 0.0
        within = np.stack([np.interp(load, shares.loads, row) for row in shares.within])
        met += rate * np.where(waiting & ~loose, 0.0, within)
        paid += ready + ring.sum(axis=0)
        served[look] = ready
        inside = np.interp(load, shares.loads, shares.inside) + backlog / ready
        aims = np.interp(target, shares.loads, shares.inside)
        by_rate = np.maximum(seen[look] / target, np.where(kinds == 2, ahead[which, look] / target, 0.0))
        raw = np.where(kinds == 1, ready * inside * (seen[look] / max(rate, 1e-12)) / aims, by_rate)
        owned = ready + ring.sum(axis=0)
        now = np.where(np.abs(raw / owned - 1.0) <= TOLERANCE, owned, np.clip(np.ceil(raw), least, bounds.max_replicas))
        asked[look % len(asked)] = now
        more = np.maximum(now - owned, 0.0)
        ring[(look + cold) % len(ring), every] += more
        fewer = np.maximum(np.minimum(owned - np.maximum(asked.max(axis=0), now), ready - least), 0.0)
        ready -= fewer
        turn = np.sign(more - fewer)
        changes += turn != 0.0
        reversals += (turn != 0.0) & (direction != 0.0) & (turn != direction)
        direction = np.where(turn != 0.0, turn, direction)
        most = np.maximum(most, owned + more)
    gpus, price = capacity.option.parts[0].replica.gpus, capacity.price

    def told(place: int) -> Scaled:
        start, policy, aim = settings[place]
        share = np.minimum(met[:, place] / rates.sum(), 1.0).tolist()
        attained = dict(zip(map(str, question.slo), share, strict=True))
        meets = all(attained[str(each)] >= (each.share or _MEAN_SHARE) for each in question.slo)
        turns = [0, *(np.flatnonzero(np.diff(served[:, place])) + 1).tolist()]
        monthly = (float(paid[place]) / count + spare) * gpus * MONTH_HOURS
        return Scaled(
            start,
            policy,
            aim,
            attained,
            meets,
            monthly,
            price and monthly * price,
            int(most[place]) + spare,
            float(changes[place]) / hours,
            float(reversals[place]) / hours,
            steps=tuple((look * PERIOD_S, int(served[look, place])) for look in turns),
        )

    return [told(place) for place in range(len(settings))], hours


def looked_at(profile: Profile, hours: float) -> Table:
    """The rate at each look [1/s], on straight lines between the middles of intervals; a part lies around the peak."""
    middles = np.array(profile.starts) + np.array(profile.hours) / 2.0
    first = max(profile.starts[int(np.argmax(profile.rates))] - hours / 2.0, 0.0) if hours < profile.span else 0.0
    clock = first + np.arange(round(hours * 3600.0 / PERIOD_S)) * PERIOD_S / 3600.0
    return np.asarray(np.interp(clock, middles, profile.rates, period=profile.span), float)


def _counted(rates: Table, cv: float, seed: int) -> Table:
    """The rate that was counted over the last looks."""
    mean = rates * PERIOD_S
    came = mean if cv == 0.0 else np.random.default_rng(seed).gamma(np.maximum(mean, 1e-12) / cv**2, cv**2)
    sums = np.concatenate([[0.0], np.cumsum(came)])
    ends = np.arange(1, len(rates) + 1)
    firsts = np.maximum(ends - _WINDOW, 0)
    return np.asarray((sums[ends] - sums[firsts]) / ((ends - firsts) * PERIOD_S), float)


def _largest_ahead(rates: Table, looks: int) -> Table:
    """The largest rate from each look to so many later; what is played repeats."""
    after = rates[:looks]
    longest = np.lib.stride_tricks.sliding_window_view(np.concatenate([rates, after]), len(after) + 1).max(axis=1)
    return np.asarray(longest, float)


_COMPARED = 4  # candidates of the plan that are looked at over time
_NOTICED = 0.005  # share that is not rounded to nothing
_PURCHASES = 5  # that the sentence names
_ASSUMED = {"provision": PROVISION_NOTE, "engine_start": ENGINE_NOTE}
_COLD_STARTS = (2, 5, 8)  # minutes
_RECOVERY_H = 5.0 / 60.0
RECOVERY_NOTE = "a spot machine that is taken away is replaced within 5 minutes (assumption)"


@dataclass(frozen=True)
class Interval:
    """One interval of a month: when it begins [h], requests a second, and the fleet that carries them."""

    month: int
    hour: float
    rate: float
    replicas: int
    gpus: int
    usd_per_hour: float | None


@dataclass(frozen=True)
class Month:
    """One month: its busiest interval, hours of accelerators by the hour and of a fleet for the peak, and dollars."""

    month: int
    peak_rate: float
    replicas: int
    gpus: int
    gpu_hours: float
    peak_gpu_hours: float
    usd: float | None
    peak_usd: float | None


@dataclass(frozen=True)
class OverTime(Tabled):
    """The deployment that costs least by the hour.

    profile: its name; span_h: hours until it repeats; growth: a month; rank: of its candidate, from 1; gpu_hours, usd:
    by the hour on demand, in all months; peak_: of a fleet for the peak of each month; paid: the cheapest split by
    term; buy: month, accelerators more, and in all;
    autoscaling: policies that were played, None where that was not asked for; interrupted: while it was simulated.
    """

    profile: str
    span_h: float
    growth: float
    deployment: str
    rank: int
    answer: str
    intervals: tuple[Interval, ...]
    months: tuple[Month, ...]
    gpu_hours: float
    peak_gpu_hours: float
    usd: float | None
    peak_usd: float | None
    paid: tuple[Paid, ...]
    paid_usd: float | None
    buy: tuple[tuple[int, int, int], ...]
    autoscaling: Autoscaling | None
    tco: Tco | None
    interrupted: bool
    warnings: tuple[str, ...]

    @property
    def saved_usd(self) -> float:
        """Savings of terms against the price on demand; 0 for cents."""
        saved = (self.usd or 0.0) - (self.paid_usd or 0.0)
        return saved if self.paid and saved > 0.005 else 0.0

    def to_rows(self) -> list[dict[str, Any]]:
        """One flat row for each interval of each month."""
        return [asdict(each) for each in self.intervals]


def over_time(question: PlanQuestion, course: Course, order: Sequence[Ranked], names: Sequence[str]) -> OverTime:
    """The cheapest by the hour of the plan's first candidates that are known as well as the best.

    names: of the deployments of the candidates, in their order.
    """
    best = order[0]
    rivals = [
        (place, entry)
        for place, entry in enumerate(order, 1)
        if entry.known == best.known
        and len(entry.option.names) == 1
        and (entry.replayed is None) == (best.replayed is None)
    ]
    capacities = [(Capacity(question, entry.option), place) for place, entry in rivals[:_COMPARED]]
    capacity, place = min(capacities, key=lambda each: (_hourly(each[0], course), each[1]))
    return _told(capacity, course, place, names[place - 1])


def _hourly(capacity: Capacity, course: Course) -> tuple[float, float]:
    """Dollars (without a price infinitely many) and hours of accelerators of all months, by the hour."""
    whole = float((gpu_table(capacity, course) * course.month_hours).sum())
    return (math.inf if capacity.price is None else round(whole * capacity.price, 6)), whole


def gpu_table(capacity: Capacity, course: Course) -> Table:
    """Accelerators in each interval of each month, (months, intervals)."""
    rates = course.profile.rates
    return np.array([[capacity.fleet(rate * factor).gpus for rate in rates] for factor in course.factors], float)


def _told(capacity: Capacity, course: Course, rank: int, name: str) -> OverTime:
    profile, gpus, price = course.profile, gpu_table(capacity, course), capacity.price
    intervals: list[Interval] = []
    months: list[Month] = []
    for month, factor in enumerate(course.factors, 1):
        rows = [
            Interval(month, hour, rate * factor, fleet.replicas, fleet.gpus, price and fleet.gpus * price)
            for hour, rate in zip(profile.starts, profile.rates, strict=True)
            for fleet in (capacity.fleet(rate * factor),)
        ]
        intervals += rows
        most, whole = max(rows, key=lambda row: row.gpus), round(float(gpus[month - 1] @ course.month_hours), 6)
        peak = most.gpus * MONTH_HOURS
        months.append(Month(month, profile.peak * factor, most.replicas, most.gpus, whole, peak,
                            price and whole * price, price and peak * price))  # fmt: skip
    paid, scaling = _paid(capacity, course, gpus), _autoscaling(capacity, course)
    owned = [0, *accumulate((row.gpus for row in months), max)]
    hours, peak_hours = (sum(getattr(row, key) for row in months) for key in ("gpu_hours", "peak_gpu_hours"))
    made = OverTime(
        profile=profile.name,
        span_h=profile.span,
        growth=course.growth,
        deployment=name,
        rank=rank,
        answer="",
        intervals=tuple(intervals),
        months=tuple(months),
        gpu_hours=hours,
        peak_gpu_hours=peak_hours,
        usd=price and hours * price,
        peak_usd=price and peak_hours * price,
        paid=paid,
        paid_usd=sum(each.usd for each in paid) if paid else None,
        buy=tuple((month, now - then, now) for month, (then, now) in enumerate(pairwise(owned), 1) if now > then),
        autoscaling=scaling,
        tco=_tco(capacity, course, months, paid),
        interrupted=scaling is not None and scaling.interrupted,
        warnings=tuple(_warnings(capacity, course, months, paid)),
    )
    return replace(made, answer=_words(made))


def _autoscaling(capacity: Capacity, course: Course) -> Autoscaling | None:
    if course.scaling is None:
        return None
    cold = read_cold_start(capacity.option.parts[0].replica, capacity.question.tariff, course.scaling)
    minutes = course.scaling.get("cold_start") or _COLD_STARTS
    several = [minutes] if isinstance(minutes, int) else minutes
    capacity.question.progress("policies", 0, 1)
    bounds = Bounds(**part_of(course.scaling, ("min_replicas", "max_replicas", "cooldown")))
    starts = [60.0 * whole_number(each, "cold_start") for each in several]
    return autoscaled(capacity, course.profile, cold, starts, bounds)


def _tco(capacity: Capacity, course: Course, months: Sequence[Month], paid: Sequence[Paid]) -> Tco | None:
    """Renting as it is paid against a fleet that is bought for the peak of each month."""
    if course.owning is None:
        return None
    replica = capacity.option.parts[0].replica
    law, mean = replica.resolved.plan.system.accelerator.power, course.profile.mean
    demand = replace(capacity.demand(course.profile.peak), rate=mean, peak=course.profile.peak / mean)
    fleet = capacity.fleet(course.profile.peak)
    watts = fleet_watts(fleet.parts, demand, 1.0)
    if not paid or law is None or watts is None:
        raise InputError(f"tco needs a price to rent {replica.gpu} at, and its power; give --price {replica.gpu}=USD")
    whole = sum(row.usd or 0.0 for row in months)
    share = sum(each.usd for each in paid) / whole
    rents = [(row.usd or 0.0) * share for row in months]
    return rent_or_buy(
        course.owning, [row.gpus for row in months], rents, watts / fleet.gpus, float(plug_power(law.limit, law.host))
    )


def _paid(capacity: Capacity, course: Course, gpus: Table) -> tuple[Paid, ...]:
    """The cheapest split by term; nothing without a price."""
    question, gpu, size = capacity.question, capacity.option.names[0], capacity.option.parts[0].replica.gpus
    on_demand, terms = question.tariff.prices.get(gpu), question.tariff.terms.get(gpu, ())
    if on_demand is None:
        return ()
    spots = [
        Spot(float(each.usd_per_gpu_hour), each.interruptions, _RECOVERY_H, size, question.confidence)
        for each in terms
        if each.interruptions is not None
    ]
    committed = [each for each in terms if each.months]
    cheapest = min(spots, key=lambda spot: spot.price / spot.up, default=None)
    return pay(gpus, course.month_hours, on_demand, committed, cheapest)


def _warnings(capacity: Capacity, course: Course, months: Sequence[Month], paid: Sequence[Paid]) -> Iterator[str]:
    if over := next((row for row in months if row.gpus > capacity.limit), None):
        yield f"month {over.month} takes {over.gpus:,} GPUs, more than the {capacity.limit:,.0f} that there are"
    if uneven := course.profile.uneven:
        yield uneven
    yield "the load of an interval is its mean: what is busier within it needs --headroom, or shorter intervals"
    if any(each.term == "spot" for each in paid):
        yield RECOVERY_NOTE
    if course.scaling is not None:
        yield from (note for key, note in _ASSUMED.items() if key not in course.scaling)


def _words(made: OverTime) -> str:
    """The answer in three sentences: the hours, the months, and how they are paid."""
    first = [row for row in made.intervals if row.month == 1]
    least, most = (end(row.gpus for row in first) for end in (min, max))
    dollars = "" if made.usd is None else f" and ${made.usd:,.0f}"
    instead = "" if made.peak_usd is None else f" and ${made.peak_usd:,.0f}"
    count = len(made.months)
    saved = round(1.0 - made.gpu_hours / made.peak_gpu_hours, 6)
    span = f"{least:,} to {most:,} GPUs" if least < most else f"{most:,} GPU{'s' if most > 1 else ''}"
    against = (
        f", {percent(saved)} below the {made.peak_gpu_hours:,.0f}{instead} of a fleet for the peak" if saved else ""
    )
    parts = [
        f"By the hour {made.deployment} takes {span}{' at first' if count > 1 else ''}: {made.gpu_hours:,.0f} GPU-hours"
        f"{dollars} {'in ' + str(count) + ' months' if count > 1 else 'a month'}{against}."
    ]
    if len(made.buy) > 1:
        told = ", ".join(f"{count:,} by month {month}" for month, count, _ in made.buy[1:_PURCHASES])
        more = f" and {len(made.buy) - _PURCHASES} times more" if len(made.buy) > _PURCHASES else ""
        parts.append(
            f"The fleet of {made.buy[0][2]:,} must grow: buy {told}{more} ({made.buy[-1][2]:,} GPUs in the end)."
        )
    if made.paid_usd is not None and made.usd and made.saved_usd > 0.0:
        whole = sum(each.gpu_hours for each in made.paid)  # with spares of spot
        split = ", ".join(
            f"{percent(each.gpu_hours / whole)} {each.term}" for each in made.paid if each.gpu_hours >= _NOTICED * whole
        )
        parts.append(f"Paid as {split} it is ${made.paid_usd:,.0f}, {percent(1.0 - made.paid_usd / made.usd)} less.")
    if made.tco is not None:
        when = made.tco.break_even_month
        better = f"Buying is cheaper from month {when} on" if when else "Renting stays cheaper than buying"
        if not when and made.tco.own_usd < made.tco.rent_usd:
            better = "Buying is cheaper once it is sold in the end"
        parts.append(
            f"{better}: ${made.tco.own_usd:,.0f} to own against ${made.tco.rent_usd:,.0f} to rent over "
            f"{made.tco.inputs.years:g} years at their present value."
        )
    if made.autoscaling is not None:
        parts.append(_scaled_words(made, made.autoscaling))
    return " ".join(parts)


def _scaled_words(made: OverTime, scaling: Autoscaling) -> str:
    """The policy that is recommended, and what it costs with each cold start."""
    cold, best = scaling.cold_start, scaling.best
    parts = (
        f"{cold.provision_s:.0f} s machine, {cold.load_s:.0f} s weights from {cold.path}, {cold.engine_s:.0f} s engine"
    )
    start = f"a cold start of {cold.seconds:.0f} s ({parts})"
    if best is None:
        return f"No policy meets the objectives with {start}; more --headroom leaves room for it."
    costs = []
    for seconds in sorted({each.cold_start_s for each in scaling.policies} - {cold.seconds}):
        good = [each for each in scaling.policies if each.meets and each.cold_start_s == seconds]
        least = min(good, key=lambda each: each.gpu_hours_per_month, default=None)
        costs.append(
            f"{least.policy} at {percent(least.target)} {_price(least)} with {seconds:.0f} s"
            if least
            else f"nothing does with {seconds:.0f} s"
        )
    below = 1.0 - best.gpu_hours_per_month / made.months[0].peak_gpu_hours
    against = f"{percent(abs(below))} {'below' if below > 0.0 else 'above'}" if abs(below) >= _NOTICED else "as much as"
    return (
        f"Autoscaled by {best.policy} at {percent(best.target)} of a replica's capacity it costs {_price(best)} a "
        f"month with {start}. That is {against} the fleet for the peak. "
        f"Its objectives hold over the {scaling.played_h:.3g} h played, at each look by the load of a replica"
        f"{_drawn_words(best)} "
        f"Other cold starts: {', '.join(costs)}."
    )


def _drawn_words(best: Scaled) -> str:
    """Sentence on the play of single requests."""
    if not best.simulated:
        return "; no single requests are drawn."
    busiest = "" if best.busiest is None else f", and {percent(best.busiest, 1)} around the busiest look"
    return (
        f". {best.requests:,} single requests, drawn from calm to busy looks, say that "
        f"{percent(min(best.simulated.values()), 1)} of all are within them{busiest}."
    )


def _price(scaled: Scaled) -> str:
    usd = scaled.usd_per_month
    return f"{scaled.gpu_hours_per_month:,.0f} GPU-hours" if usd is None else f"${usd:,.0f}"

"""Autoscaling played through a profile: what a policy costs, and what its users feel, with cold starts.

Every 15 s a policy asks for replicas; new ones serve after a cold start, and are paid from its beginning. Between two
looks the fleet serves at the mean rate: the share within each limit is that of a replica's load curve. What
comes beyond the knee waits, and is carried over:

    B(t + dt) = max(B(t) + (λ(t) − n(t)·knee)·dt, 0)         λ linear between the middles of the intervals

While something waits no request meets a limit on TTFT or on the whole request. What the policy sees is counted over a
minute, with the noise of the arrivals: Gamma of mean λ·t and variance c²·λ·t, c the variation of their gaps.

The cheapest that meets the objectives so is played request by request too. The looks, in order of what a replica has to
do, are cut at 50, 75, 87.5 % and so on of the requests. Around the busiest look of each part one replica is simulated
with its share of the requests, λ(t)/n(t), from the last look at which nothing waited. So the mean of the shares within
a limit, by the requests of each part, is about that of the whole time, and rather less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from rooflinekit.decision.economics.commitments import Table
from rooflinekit.decision.economics.price import MONTH_HOURS
from rooflinekit.decision.planning.capacity import Capacity
from rooflinekit.decision.planning.cost import Tariff, cold_start_s
from rooflinekit.decision.planning.fleet import Replica, loaded_feels
from rooflinekit.decision.planning.objective import attained
from rooflinekit.decision.planning.profile import Profile
from rooflinekit.decision.planning.replay import run_varying
from rooflinekit.model.types.answer import Plain
from rooflinekit.model.types.errors import InputError, WorkloadError
from rooflinekit.model.types.units import GB
from rooflinekit.simulation.simulate import pcie_bandwidth

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
    """Shares of requests within each objective at loads of a replica [1/s], and requests in it.

    bears: its load.
    """

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
            feels = loaded_feels(part.bearer, seen, load)
            within.append([attained(feels, each, part.deviations) for each in question.slo])
            inside.append(load * feels(1.0).value("e2el", None))
        bears = part.ability.load * (1.0 - question.reserve.headroom)
        return cls(loads, np.array(within).T, np.array(inside), bears, knee)


@dataclass(frozen=True)
class Bounds:
    """Replicas that an autoscaler keeps at least and at most, and how long it looks back before one goes [s].

    The default of that is the stabilisation window of Kubernetes' Horizontal Pod Autoscaler.
    """

    least: int = 1
    most: float = math.inf
    cooldown_s: float = 300.0

    def __post_init__(self) -> None:
        if self.most < self.least:
            raise WorkloadError(f"max_replicas must be at least min_replicas ({self.least}), not {self.most}")

    @property
    def looks(self) -> int:
        """Looks within the cooldown."""
        return max(round(self.cooldown_s / PERIOD_S), 1)


def autoscaled(
    capacity: Capacity, profile: Profile, cold: ColdStart, others_s: Sequence[float], bounds: Bounds
) -> Autoscaling:
    """Play every policy at every target with each cold start, and keep the cheapest of each that meets the objectives.

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
            order = sorted((place for place, each in enumerate(played) if each.meets and each.cold_start_s == start),
                           key=lambda place: played[place].gpu_hours_per_month)  # fmt: skip
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
            kept.append(min(good, key=lambda each: each.gpu_hours_per_month) if good
                        else max(own, key=lambda each: min(each.attained.values())))  # fmt: skip
    best = min((each for each in kept if each.meets and each.cold_start_s == cold.seconds),
               key=lambda each: each.gpu_hours_per_month, default=None)  # fmt: skip
    return Autoscaling(cold, hours, tuple(kept), best, interrupted)


def _drawn(capacity: Capacity, rates: Table, scaled: Scaled) -> Scaled:
    """Replace the shares by those of a simulated replica around the busiest look of each part of the requests."""
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
    count = len(rates)
    seen = _counted(rates, question.demand.arrival_cv, question.seed)
    cold = np.array([max(math.ceil(start / PERIOD_S), 1) for start, *_ in settings])
    target = np.array([target for *_, target in settings]) * shares.bears
    kinds = np.array([POLICIES.index(policy) for _, policy, _ in settings])
    ahead = np.stack([_largest_ahead(rates, int(wait) + bounds.looks) for wait in np.unique(cold)])
    which = np.searchsorted(np.unique(cold), cold)
    spare, least = capacity.option.parts[0].spare, float(bounds.least)
    ready = np.clip(np.ceil(rates[0] / target), least, bounds.most)
    backlog = np.zeros(len(settings))
    ring = np.zeros((int(cold.max()) + 1, len(settings)))  # replicas that come at each of the next looks
    asked = np.tile(ready, (bounds.looks, 1))  # what was wanted in the cooldown
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
        now = np.where(np.abs(raw / owned - 1.0) <= TOLERANCE, owned, np.clip(np.ceil(raw), least, bounds.most))
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
    gpus, price = capacity.option.parts[0].replica.gpus, question.tariff.price(capacity.option.names[0])

    def told(place: int) -> Scaled:
        start, policy, aim = settings[place]
        share = np.minimum(met[:, place] / rates.sum(), 1.0).tolist()
        attained = dict(zip(map(str, question.slo), share, strict=True))
        meets = all(attained[str(each)] >= (each.share or _MEAN_SHARE) for each in question.slo)
        turns = [0, *(np.flatnonzero(np.diff(served[:, place])) + 1).tolist()]
        monthly = (float(paid[place]) / count + spare) * gpus * MONTH_HOURS
        return Scaled(
            start, policy, aim, attained, meets, monthly, price and monthly * price, int(most[place]) + spare,
            float(changes[place]) / hours, float(reversals[place]) / hours,
            steps=tuple((look * PERIOD_S, int(served[look, place])) for look in turns),
        )  # fmt: skip

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

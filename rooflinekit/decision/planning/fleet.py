"""Replicas, pools and fleets: how much of the traffic each bears within the objectives, and what users feel.

    prefill   TTFT = request + wait + s₁         s₁: one prompt by itself; wait: Kingman's formula with ρ = λ·s₁
    link      t_x = S·κ/(w·g)                    κ: cache bytes of a token; w: NIC of each of the g accelerators
    decode    TPOT = t_d(C) + (t_x + t_d/2 + wait for a slot)/(N − 1),  C = 1 + λ·(N − 1)·t_d(C)

In pools the first token comes from the prefill replica, so the transfer delays the second one and counts in the TPOT,
as in the simulator. No prompt disturbs a decode step.

Steps that take F times as long at a rate λ are steps of the expected length at a rate F·λ, on a clock that runs F times
as fast: so the load that a replica bears where its times stand at any place of their interval needs no other table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from rooflinekit.decision.planning.curve import tabulate
from rooflinekit.decision.planning.demand import Demand, Kept
from rooflinekit.decision.planning.objective import Feels, Felt, Objective, last_met, missed, slowest, spare
from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.options import part_of
from rooflinekit.estimation.scenario import SPECULATION_KEYS
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Loaded, OpenLoop, Times, Traffic
from rooflinekit.model.traffic.mixing import InFlight, Places, Shared, front_end, lone_prompt, places, slots
from rooflinekit.model.traffic.percentiles import Spread, spread
from rooflinekit.model.traffic.question import LoadAnswer, answer_load
from rooflinekit.model.types.engine import LoadEnds
from rooflinekit.model.types.errors import DoesNotFitError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.time import NOTHING, Time
from rooflinekit.simulation.tiers import CacheTier

_GRID = 16  # loads between which the first violation is looked for
_CLOSE = 1e-4  # relative: a search for a rate ends
_REACH = 1.05  # of the room: lower limits of sequences leave a little more of it
_LIGHT = 1e-3  # of the knee: a load at which nobody waits
_ROUNDING = 1e-9
_SURE = 1e-3  # steps whose ends are as near as this say nothing of what errs beyond them


@dataclass(frozen=True)
class _Computed(Traffic):
    """Prompts that vary as what a cache leaves of them to compute; the cache itself holds all of each (`held_cv`)."""

    held_cv: Numeric = 0.0

    def places(self, predictor: Predictor) -> Places:
        """Room for sequences of whole prompts."""
        return places(predictor, self.isl, self.osl, self.most, self.osl_cv, self.held_cv)


@dataclass(frozen=True)
class Replica:
    """A deployment, as keywords and resolved, with its shared times tabulated.

    room: sequences that run at once; reach: of the table, a little more; kept: what its prefix cache finds, None
    without one.
    """

    scenario: dict[str, Any]
    resolved: Resolved
    times: Times
    room: float
    reach: float
    kept: Kept | None = None

    @property
    def predictor(self) -> Predictor:
        """The plan with its memory."""
        return self.resolved.predictor

    @property
    def gpus(self) -> int:
        """Accelerators."""
        return self.resolved.plan.deployment.gpus

    @property
    def gpu(self) -> str:
        """Name of the accelerator."""
        return self.resolved.plan.system.accelerator.name

    @property
    def on_a_host(self) -> int:
        """How many a host has room for, 0 where one takes several hosts."""
        return self.resolved.plan.system.domain_size // self.gpus

    @cached_property
    def _open(self) -> Callable[[Traffic], OpenLoop]:
        return cache(lambda traffic: OpenLoop.of(self.predictor, traffic, self.times))

    def traffic(self, demand: Demand) -> Traffic:
        """What comes, with what the prefix cache finds of a mean prompt."""
        if self.kept is None:
            return demand.traffic
        known, kept = vars(demand.traffic), self.kept
        return _Computed(**known | {"cached": kept.cached, "isl_cv": kept.computed_cv}, held_cv=known["isl_cv"])

    def lengths(self, demand: Demand) -> Traffic:
        """The same as it is paid for."""
        return demand.lengths if self.kept is None else self.traffic(demand)

    def answer(self, demand: Demand, load: float) -> LoadAnswer:
        """The closed form at this load, from the table."""
        loop = None if demand.closed else self._open(self.traffic(demand))
        question = replace(demand.question(load), traffic=self.traffic(demand))
        return answer_load(self.predictor, question, self.times, loop)

    def knee(self, demand: Demand) -> float:
        """Requests a second of a full batch."""
        return float(self._open(self.traffic(demand)).knee)

    def feel(self, demand: Demand, load: float) -> Felt:
        """The latencies at this load; what comes from tiers delays the first token."""
        answer = self.answer(demand, load)

        def bounds() -> dict[str, float]:
            times = (answer.loaded.ttft.bound, answer.loaded.tpot.bound)
            if not demand.closed:
                times = self._open(self.traffic(demand)).bounds(load)
            return dict(zip(("ttft", "tpot"), map(float, times), strict=True))

        felt = demand.told_apart(feel(answer, self.predictor.plan.load_ends, bounds), answer, self.times)
        if self.kept is None or not self.kept.late or not felt.stable:
            return felt
        late, times = self.kept.late, felt.times
        means = {key: mean + (late if key != "tpot" else 0.0) for key, mean in felt.means.items()}
        later = Spread(lambda share: times.ttft(share) + late, times.tpot, lambda share: times.e2e(share) + late)
        return replace(felt, means=means, times=later)


def lay_out(model: str, gpu: str, scenario: dict[str, Any], demand: Demand, calibration: str | None) -> Replica:
    """Resolve a deployment and tabulate its times.

    Where the engine's memory fraction leaves no room, and none is asked for, the one that leaves most is taken.

    Raises InputError (and its kinds) for a deployment that does not exist, DoesNotFitError for one without room.
    """
    draft = part_of(scenario, SPECULATION_KEYS)
    deployment = read_deployment({key: value for key, value in scenario.items() if key not in draft})
    resolved = resolve(model, gpu, deployment, calibration, Speculation.read(draft))
    known = resolved.plan.system.accelerator.name
    named = {"model": model, "gpu": gpu if Path(gpu).suffix else known, **scenario}
    try:
        return _tabulated(named, resolved, demand)
    except DoesNotFitError:
        memory = resolved.predictor.memory
        longest = min(demand.longest, float(resolved.plan.model.max_context or math.inf))
        shares = () if "memory_fraction" in scenario else memory.fractions(1.0, longest, longest)
        best = max(shares, key=lambda share: replace(memory, fraction=share).max_batch(longest, longest), default=None)
        if best is None:
            raise
        return lay_out(model, gpu, scenario | {"memory_fraction": best}, demand, calibration)


def retuned(replica: Replica, setting: dict[str, Any], demand: Demand) -> Replica:
    """The same split with another token budget or limit of sequences; its operations stay as they are.

    Raises DoesNotFitError where the cache then has no room.
    """
    plan = replica.resolved.plan
    chosen = replace(plan.deployment.settings, **setting)
    plan = replace(plan, deployment=replace(plan.deployment, settings=chosen))
    resolved = replace(replica.resolved, predictor=Predictor.of(plan))
    room = _room(resolved.predictor, demand)
    if plan.token_budget == replica.resolved.plan.token_budget and room <= replica.reach:
        return replace(replica, scenario=replica.scenario | setting, resolved=resolved, room=room)
    return _tabulated(replica.scenario | setting, resolved, demand)


def remembering(base: Replica, demand: Demand, tiers: tuple[CacheTier, ...], replicas: float) -> Replica:
    """The same with a prefix cache and some tiers, as one of so many replicas."""
    assert demand.prefixes is not None  # asked only where something is known of prefixes
    kept = demand.prefixes.kept(base.predictor, tiers, replicas)
    curve = tabulate(base.predictor, replace(demand.traffic, isl=demand.isl.mean, cached=kept.cached), base.reach)
    return replace(base, scenario=base.scenario | {"cached": int(kept.cached)}, times=curve, kept=kept)


def _tabulated(scenario: dict[str, Any], resolved: Resolved, demand: Demand) -> Replica:
    room = _room(resolved.predictor, demand)
    reach = math.ceil(_REACH * room)
    return Replica(scenario, resolved, demand.tabulated(resolved.predictor, reach), room, reach)


def _room(predictor: Predictor, demand: Demand) -> float:
    traffic, memory = demand.traffic, predictor.memory
    room = float(slots(predictor, traffic.isl, traffic.osl, osl_cv=traffic.osl_cv))
    longest = min(demand.longest, float(predictor.plan.model.max_context or math.inf))
    if room < 1.0 or float(memory.max_batch(longest, longest)) < 1.0:
        held = memory.evaluate(1.0, longest, longest)
        raise DoesNotFitError(
            f"weights take {float(held.weight_bytes) / 1e9:.1f} of {float(held.capacity_bytes) / 1e9:.1f} GB a GPU, "
            f"and no request of {longest:,.0f} tokens fits beside them"
        )
    return room


def feel(answer: LoadAnswer, ends: LoadEnds, bounds: Callable[[], Mapping[str, float]] = dict) -> Felt:
    """The latencies of an answer, as objectives read them, with their calibrated intervals (`ends`: of the plan)."""
    loaded: Loaded = answer.loaded
    means = {"ttft": float(loaded.ttft.expected), "tpot": float(loaded.tpot.expected), "e2el": float(loaded.e2e)}
    tpot, stable = _span(loaded.tpot), bool(loaded.stable)
    share = means["ttft"] / means["e2el"] if stable else 0.0
    ttft = _span(loaded.ttft) if stable else tpot
    if ttft == tpot == _NONE:
        return Felt(means, answer.times, stable)
    first = _span(loaded.first) if stable and loaded.first.expected else ttft
    whole, spans = _spans(ttft, tpot, share), _spans(first, tpot, share)
    beyond = {key: _beyond(whole[key], spans[key]) for key in spans}
    early, late = ends.inner(float(loaded.slot) / means["e2el"] if stable else 1.0)
    inner = {"ttft": early, "tpot": late, "e2el": _blended(early, late, share)}
    return Felt(means, answer.times, stable, spans, bounds=bounds, beyond=beyond, inner=inner)


def _beyond(whole: Span, steps: Span) -> tuple[float, float]:
    """Powers of the steps' ends by which those of a whole lie beyond them."""

    def power(end: float, own: float) -> float:
        return math.log(end) / math.log(own) - 1.0 if min(end, own) > 0.0 and abs(own - 1.0) > _SURE else 0.0

    return power(whole[0], steps[0]), power(whole[1], steps[1])


Span = tuple[float, float]
"""Ends of a 90 % interval over what is expected."""

_NONE: Span = (1.0, 1.0)


def _span(time: Time) -> Span:
    expected = float(time.expected)
    return (float(time.low) / expected, float(time.high) / expected) if expected else _NONE


def _spans(ttft: Span, tpot: Span, first: float) -> dict[str, Span]:
    """By metric; `first`: the share of a request's time up to its first token."""
    low, high = _blended(ttft, tpot, first)
    return {"ttft": ttft, "tpot": tpot, "e2el": (low, high)}


def _blended(ttft: Sequence[float], tpot: Sequence[float], first: float) -> tuple[float, ...]:
    return tuple(first * a + (1.0 - first) * b for a, b in zip(ttft, tpot, strict=True))


def loaded_feels(bearer: Replica | PrefillPool | DecodePool, demand: Demand, load: float) -> Feels:
    """What is felt at this load where steps take a factor times as long."""
    return slowed(lambda at: bearer.feel(demand, at), load, demand.closed)


def slowed(felt_at: Callable[[float], Felt], load: float, closed: bool = False) -> Feels:
    """The same of anything that says what is felt at a load; a closed loop has the same load at every factor.

    How far waits err beyond steps is what is known of this load, at every factor.
    """
    plain = cache(felt_at)
    return cache(lambda factor: plain(load if closed else load * factor).erring_as(plain(load)).stretched(factor))


@dataclass(frozen=True)
class Ability:
    """What a replica bears within the objectives.

    load: requests/s or users; 0 if the objectives fail even without waiting. binds: objectives that fail just above, or
    the knee. regained: a heavier load would meet them again, which nobody should plan for.
    """

    load: float
    binds: tuple[str, ...]
    regained: bool = False


def ability(
    bearer: Replica | PrefillPool | DecodePool,
    demand: Demand,
    slo: Sequence[Objective],
    deviations: float = 0.0,
    further: bool = False,
) -> Ability:
    """The largest load below the first violation of an objective, found on a grid and then between two of its loads.

    Latencies grow with the load, so there is one such load; where jumps of the step times break that within a cell of
    the grid, the answer is still a load that meets the objectives. deviations: at which place of the calibrated
    interval the steps stand, as in `spare`; further: also whether a heavier load meets them again. A pool answers for
    the objectives that it has a part in.
    """
    if not isinstance(bearer, Replica):
        own = "ttft" if isinstance(bearer, PrefillPool) else "tpot"
        slo = tuple(each for each in slo if each.metric in (own, "e2el"))
    if demand.closed:
        most = int(demand.peak_load)
        grid = [float(n) for n in sorted({min(round(1.25**k), most) for k in range(90) if 1.25 ** (k - 1) <= most})]
    else:
        knee = bearer.knee(demand)
        demand = demand.thinned(demand.peak_load // knee)  # no fewer replicas than that
        grid = [knee * (1.0 - _CLOSE) * max(step / _GRID, _LIGHT) for step in range(_GRID + 1)]

    def left(load: float) -> dict[str, float]:
        """Limits over what is felt; no room at all at the knee."""
        feels = loaded_feels(bearer, demand, load)
        metric = "ttft" if isinstance(bearer, PrefillPool) else "tpot"
        if not feels(feels(1.0).factor(metric, deviations)).stable:
            return {"knee": 0.0}
        return {str(each): value for each, value in spare(feels, slo, deviations).items()}

    def fails(load: float) -> tuple[str, ...]:
        return tuple(name for name, value in left(load).items() if not value >= 1.0)

    at = next((place for place, load in enumerate(grid) if fails(load)), None)
    if at is None:
        return Ability(grid[-1], ("users",) if demand.closed else ("knee",))
    if at == 0:
        return Ability(0.0, fails(grid[0]))
    low, high = grid[at - 1], grid[at]
    if demand.closed:
        while high - low > 1.0:
            middle = (low + high) // 2.0
            low, high = (low, middle) if fails(middle) else (middle, high)
    else:
        low = last_met(lambda load: min(left(load).values(), default=math.inf), low, high, _CLOSE) or low
        high = min(low * (1.0 + 2.0 * _CLOSE), high)
    return Ability(low, fails(high) or fails(grid[at]), further and not all(map(fails, grid[at + 1 :])))


def holds(replica: Replica, load: float, demand: Demand, slo: Sequence[Objective], deviations: float) -> bool:
    """Whether a replica meets every objective at this load: if not, its ability is below."""
    seen = demand.thinned(demand.peak_load // max(load, 1e-9))
    return not missed(loaded_feels(replica, seen, load), slo, deviations)


@dataclass(frozen=True)
class PrefillPool:
    """Replicas that compute prompts and give out the first token.

    prompt: time of one by itself; together: of one on each of the `lanes` attention replicas, which start together [s].
    """

    replica: Replica
    prompt: Time
    together: float
    lanes: int = 1

    @classmethod
    def of(cls, replica: Replica, demand: Demand) -> PrefillPool:
        """Time the mean prompt."""
        plan, load = replica.predictor.plan, InFlight(1.0, demand.isl.mean, demand.osl.mean)
        lanes = plan.deployment.dp
        alone, full = (plan.time(lone_prompt(load, filled)).total for filled in (1.0 / lanes, 1.0))
        return cls(replica, alone, float(full.expected), lanes)

    def knee(self, demand: Demand) -> float:
        """Prompts a second at most: one after the other on each attention replica."""
        return self.lanes / self.together

    def feel(self, demand: Demand, rate: float) -> Felt:
        """Latencies up to the first token, at this rate on each replica; TPOT is 0."""
        alone, traffic = self.prompt, demand.traffic
        spans = dict.fromkeys(("ttft", "e2el"), _span(alone)) if _span(alone) != _NONE else {}
        request = float(front_end(self.replica.predictor.plan.costs, traffic.isl))
        busy = rate / self.knee(demand)
        if busy >= 1.0:
            return _endless(spans)
        variation = float(traffic.arrival_cv**2 + traffic.isl_cv**2) / 2.0
        wait = busy / (1.0 - busy) * variation / self.knee(demand)
        wait += (1.0 - 1.0 / self.lanes) * min(rate * self.together, 1.0) * self.together / 2.0  # the pass under way
        own = float(alone.expected) + busy * (self.together - float(alone.expected))
        ttft = own + request + wait
        loaded = Loaded(
            ttft=replace(alone, expected=ttft), tpot=NOTHING, e2e=ttft, running=rate * (ttft - request), sharing=1.0,
            rate=rate, knee=self.knee(demand), queue=wait, ahead=wait, late=0.0, first=alone, busy=busy, stable=1.0,
            together=0.0, shared=Shared(NOTHING, alone, alone, alone, NOTHING, request, mixes=False),
        )  # fmt: skip
        means = {"ttft": ttft, "tpot": 0.0, "e2el": ttft}
        return Felt(means, spread(loaded, traffic, closed=False), spans=spans)


def _endless(spans: dict[str, Span]) -> Felt:
    return Felt({}, Spread(*[lambda share: math.inf] * 3), stable=False, spans=spans)


@dataclass(frozen=True)
class DecodePool:
    """Replicas that go on from the first token; `transfer` is what its keys and values take to come [s]."""

    replica: Replica
    transfer: float

    @cached_property
    def _open(self) -> Callable[[Traffic], OpenLoop]:
        def times(running: Numeric) -> Shared:
            shared = self.replica.times(running)
            return Shared(shared.step, NOTHING, NOTHING, NOTHING, NOTHING, 0.0, shared.mixes)

        return cache(lambda traffic: OpenLoop.of(self.replica.predictor, traffic, times))

    def answer(self, demand: Demand, rate: float) -> LoadAnswer:
        """The closed form without prompts."""
        return answer_load(self.replica.predictor, demand.question(rate), loop=self._open(demand.traffic))

    def knee(self, demand: Demand) -> float:
        """Requests a second of a full batch."""
        return float(self._open(demand.traffic).knee)

    def feel(self, demand: Demand, rate: float) -> Felt:
        """Latencies after the first token, at this rate on each replica; TTFT is 0."""
        felt = feel(self.answer(demand, rate), self.replica.predictor.plan.load_ends)
        if not felt.stable:
            return felt
        steps, inner, late = max(demand.osl.mean - 1.0, 1.0), felt.times, felt.means["ttft"] + self.transfer

        def later(share: float) -> Numeric:
            return inner.tpot(share) + (inner.ttft(share) + self.transfer) / steps

        means = {"ttft": 0.0, "tpot": felt.means["tpot"] + late / steps, "e2el": felt.means["e2el"] + self.transfer}
        times = Spread(lambda share: 0.0, later, lambda share: inner.e2e(share) + self.transfer)
        return Felt(means, times, spans=felt.spans, beyond={"tpot": felt.beyond["tpot"]} if felt.beyond else {})


def link_seconds(prefill: Replica, demand: Demand) -> float:
    """Time that the cache of a mean prompt takes from a prefill to a decode replica [s]; infinite without a link.

    A NIC for each accelerator of the prefill replica, or its PCIe link where no NIC is known.
    """
    accelerator = prefill.resolved.plan.system.accelerator
    bandwidth = float(accelerator.nic_bandwidth or accelerator.pcie_bandwidth) * prefill.gpus
    each = prefill.predictor.memory.kv_bytes_per_token
    return demand.isl.mean * each / bandwidth if bandwidth else math.inf


def joined(first: Felt, after: Felt) -> Felt:
    """Both parts of a request together; deviations of the end-to-end time add as squares."""
    stable = first.stable and after.stable
    mean = first.means["ttft"] + after.means["e2el"] if stable else math.inf
    share = first.means["ttft"] / mean if stable else 0.0
    spans = _spans(first.spans["ttft"], after.spans["tpot"], share) if first.spans and after.spans else {}
    if not stable:
        return _endless(spans)

    def whole(share: float) -> float:
        parts = (first.times.ttft(share) - first.means["ttft"], after.times.e2e(share) - after.means["e2el"])
        square = sum(math.copysign(part * part, part) for part in parts)
        return mean + math.copysign(math.sqrt(abs(square)), square)

    means = {"ttft": first.means["ttft"], "tpot": after.means["tpot"], "e2el": mean}
    return Felt(means, Spread(first.times.ttft, after.times.tpot, whole), spans=spans)


@dataclass(frozen=True)
class Reserve:
    """What is kept free.

    headroom: of what a replica bears (0 to below 1); redundancy, hosts: replicas and whole hosts that may fail; limits:
    how many of an accelerator there are to be had, by name; watts: what all may draw at the meter; rack: what a
    rack may draw at the plug, None where nobody says [W].
    """

    headroom: float = 0.0
    redundancy: int = 0
    hosts: int = 0
    limits: tuple[tuple[str, int], ...] = ()
    watts: float = math.inf
    rack: float | None = None

    def limit(self, gpu: str) -> float:
        """Accelerators of this name that there are."""
        return dict(self.limits).get(gpu, math.inf)

    def spares(self, replica: Replica, working: int) -> int:
        """Replicas beside those that work: a host takes all down that stand on it, and a large replica falls with one.

        Replicas fill hosts one after the other, so that k hosts hold at most k·min(⌊size/gpus⌋, working) of them.
        """
        return self.redundancy + self.hosts * max(min(replica.on_a_host, working), 1)


@dataclass(frozen=True)
class Part:
    """`working` replicas of one kind that carry `share` of the traffic at its peak, and `spare` ones beside them."""

    role: str  #: serve, prefill or decode
    replica: Replica
    ability: Ability
    working: int
    reserve: Reserve = Reserve()
    share: float = 1.0

    @classmethod
    def of(cls, role: str, replica: Replica, able: Ability, demand: Demand, reserve: Reserve) -> Part:
        """As many as carry the whole peak, none where one bears nothing."""
        working = working_replicas(able, demand, reserve) if able.load > 0.0 else 0
        return cls(role, replica, able, working, reserve)

    @property
    def spare(self) -> int:
        """Replicas that may fail at the peak."""
        return self.reserve.spares(self.replica, self.working)

    @property
    def most_on_a_host(self) -> int:
        """Replicas that one host holds: where it may fail, as many as there are spares for it."""
        room = self.replica.on_a_host
        return min(room, self.working) if self.reserve.hosts else room

    @property
    def replicas(self) -> int:
        """All of them."""
        return self.working + self.spare

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return self.replicas * self.replica.gpus

    def seen(self, demand: Demand) -> Demand:
        """The traffic as one working replica sees it."""
        return demand.thinned(self.working / self.share)

    def load(self, demand: Demand) -> float:
        """On each working replica at the peak, those in reserve being down; whole users."""
        each = demand.peak_load * self.share / self.working
        return float(math.ceil(each - _ROUNDING)) if demand.closed else each

    def mean_load(self, demand: Demand) -> float:
        """On each replica in the mean, all of them up; at least one user."""
        each = demand.mean_load * self.share / self.replicas
        return max(each, 1.0) if demand.closed else each


def pool_of(part: Part, demand: Demand, first: Replica | None = None) -> Replica | PrefillPool | DecodePool:
    """What bears the load of a part; `first` is the replica of the prefill pool."""
    match part.role:
        case "prefill":
            return PrefillPool.of(part.replica, demand)
        case "decode":
            return DecodePool(part.replica, link_seconds(first or part.replica, demand))
        case _:
            return part.replica


@dataclass(frozen=True)
class Option:
    """One plan, not yet priced: its parts, and what users feel at the peak."""

    kind: str  #: aggregated, disaggregated or mixed
    parts: tuple[Part, ...]

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return sum(part.gpus for part in self.parts)

    @property
    def replicas(self) -> int:
        """Replicas in all."""
        return sum(part.replicas for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """Its accelerators."""
        return tuple(dict.fromkeys(part.replica.gpu for part in self.parts))

    def bearers(self, demand: Demand) -> list[Replica | PrefillPool | DecodePool]:
        """What bears the load of each part."""
        return [pool_of(part, demand, self.parts[0].replica) for part in self.parts]

    def feels(self, demand: Demand) -> Feels:
        """Latencies at the peak, by how many times as long as expected the steps take; of two kinds the slower."""
        seen = [
            loaded_feels(bearer, part.seen(demand), part.load(demand))
            for part, bearer in zip(self.parts, self.bearers(demand), strict=True)
        ]

        def feels(factor: float) -> Felt:
            felts = [each(factor) for each in seen]
            return joined(*felts) if self.kind == "disaggregated" else slowest(felts)

        return feels

    def grown(self, more: int = 1, short: Part | None = None) -> Option:
        """With more working replicas of a part; without one of that which the objectives load most."""
        fullest = max(self.parts, key=lambda part: part.share / (part.working * max(part.ability.load, 1e-30)))
        grown = [replace(part, working=part.working + more) if part is (short or fullest) else part
                 for part in self.parts]  # fmt: skip
        return replace(self, parts=shared_out(grown) if self.kind == "mixed" else tuple(grown))

    def sized(self, demand: Demand, slo: Sequence[Objective], reserve: Reserve, deviations: float) -> Option:
        """The same deployments, as many as carry the traffic at another place of the interval; one kind of each."""
        return replace(self, parts=tuple(
            Part.of(part.role, part.replica, ability(bearer, demand, slo, deviations), demand, reserve)
            for part, bearer in zip(self.parts, self.bearers(demand), strict=True)
        ))  # fmt: skip


def shared_out(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Traffic in proportion to what the working replicas of each part bear."""
    whole = sum(part.working * part.ability.load for part in parts)
    return tuple(replace(part, share=part.working * part.ability.load / whole) for part in parts)


def working_replicas(ability: Ability, demand: Demand, reserve: Reserve) -> int:
    """Replicas that carry the peak: ⌈peak/(load·(1 − headroom))⌉; for users whole ones each.

    >>> from rooflinekit.decision.planning.demand import read_demand
    >>> working_replicas(Ability(5.3, ()), read_demand({"rate": 50}), Reserve())
    10
    >>> working_replicas(Ability(5.3, ()), read_demand({"rate": 50}), Reserve(headroom=0.2))
    12
    """
    each = ability.load * (1.0 - reserve.headroom)
    if demand.closed:
        each = max(float(math.floor(each + _ROUNDING)), 1.0)
    return max(math.ceil(demand.peak_load / each - _ROUNDING), 1)

"""Replicas, pools and fleets: how much of the traffic each bears within the objectives, and what users feel.

What a replica bears is read off its load curve (`rooflinekit.load.curve`), which is played:

    v(λ·F)·F·M ≤ L          F: steps over the expected ones, M: the metric beyond them, at a place of the interval
    prefill   TTFT is that of prompts alone; the first token comes from there
    link      t_x = S·κ/(w·g)                    κ: cache bytes of a token; w: NIC of each of the g accelerators
    decode    TPOT = (t_x + wait and steps of the other N − 1 tokens)/(N − 1), prompts being computed

In pools the transfer delays the second token and counts in the TPOT, as in the simulator. No prompt disturbs a decode
step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.decision.planning.demand import Demand, Kept, Mix, beside
from rooflinekit.decision.planning.objective import METRICS, Ends, Feels, Felt, Objective, missed, slowest
from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.options import part_of
from rooflinekit.estimation.scenario import SPECULATION_KEYS
from rooflinekit.load.answer import Load, LoadPlay
from rooflinekit.load.arrivals import Drawn, Process
from rooflinekit.load.curve import LoadCurve
from rooflinekit.load.law import full_rate
from rooflinekit.load.lengths import Fixed, cv
from rooflinekit.load.played import Sample
from rooflinekit.load.scene import CacheTier, Scene, Scheduler
from rooflinekit.model.kernels.collective import Exchange
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.flight import InFlight, slots
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.errors import DoesNotFitError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.late import np
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.time import SIGMAS
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs.engines import server_setting
from rooflinekit.specs.files import once

if TYPE_CHECKING:
    from rooflinekit.model.roofline import StepTime
    from rooflinekit.model.step import Plan

_CLOSE = 1e-4  # relative: objectives that end a capacity this near to each other bind together
_ROUNDING = 1e-9
WIDE = 3.0
"""High over low end of the 80 % interval of what ends a capacity, from which on no hardware is bought for it."""

_SETTLED = 2  # requests of each user before those that count
_GROWN = 4  # times the replicas that a curve says, up to which fleets are played


Samples = Mapping[str, Sample]
"""TTFT, TPOT and times of whole requests (e2el) of one play [s]."""


@dataclass(frozen=True)
class Replica:
    """A deployment, as keywords and resolved; room: sequences that run at once.

    kept: what its prefix cache finds, None without one.
    """

    scenario: dict[str, Any]
    resolved: Resolved
    room: float
    kept: Kept | None = None
    _curves: dict[Any, tuple[Any, LoadCurve]] = field(default_factory=dict, repr=False, compare=False)
    _scenes: dict[Hashable, Scene] = field(default_factory=dict, repr=False, compare=False)
    _samples: dict[object, Samples] = field(default_factory=dict, repr=False, compare=False)
    _ends: dict[int, dict[str, Ends]] = field(default_factory=dict, repr=False, compare=False)

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

    @property
    def curves(self) -> list[LoadCurve]:
        """Those that have been played where it serves alone."""
        return [curve for key, (_, curve) in self._curves.items() if key[0] == "serve"]

    def width(self, demand: Demand, metric: str) -> float:
        """High over low end of a metric's 80 % interval before any queue; 1 without a calibration.

        Of the mean prompt alone for TTFT, of a decode step of half of the room for TPOT, with what loads err beyond it;
        of a whole request as its prompt and its tokens have it, by their times.
        """
        plan = self.resolved.plan
        if plan.calibration is None:
            return 1.0
        each = max(self.room / 2.0 / plan.deployment.dp, 1.0)
        prompt, step = _lone_steps(plan, demand.isl.mean, each, demand.isl.mean + demand.osl.mean / 2.0)
        if metric == "e2el":
            first, rest = prompt.expected, step.expected * (demand.osl.mean - 1.0)
            both = first * self.width(demand, "ttft") + rest * self.width(demand, "tpot")
            return float(both / (first + rest))
        step = prompt if metric == "ttft" else step
        steps, users = math.log(step.high / step.low), max(self.room / 2.0, 1.0)
        reach = plan.load_errors.reach(metric, steps, users, plan.stands_in(metric), 0.0, demand.isl.mean)
        low, high = reach.factors(0.8)
        return high / low

    def curve(self, demand: Demand, seed: int, role: str) -> LoadCurve:
        """Its loads of such requests; kept."""
        most = math.ceil(demand.peak_load * demand.reach - _ROUNDING) if demand.closed else 1
        law = (demand.isl, demand.osl, demand.prefixes)  # held as long as the curve, so that no other has their ids
        key = role, seed, demand.arrival_cv, demand.router, demand.together, most, *map(id, law)
        if key not in self._curves:
            asked = demand.asked(seed)
            if self.kept is not None and demand.prefixes is not None:
                source = partial(demand.prefixes.drawn, self.kept)
                asked = replace(asked, cached=self.kept.cached, source=source)
            longest, several = asked.longest, demand.together
            asked = _of_role(asked, role)
            if several > 1:  # as many for each replica as for one alone
                asked = asked.times(several)
            chosen = Scheduler(
                seed=seed,
                by_class=isinstance(demand, Mix) and len({each.priority for each in demand.classes}) > 1,
                imports=role == "decode",
                replicas=several,
                router=demand.router if several > 1 else "round-robin",
            )
            settled = _SETTLED if demand.closed else 0
            self._curves[key] = law, LoadCurve(self.predictor, asked, chosen, most, settled, longest, self._scenes)
        return self._curves[key][1]

    def retuned(self, setting: dict[str, Any], demand: Demand) -> Replica:
        """The same split with another token budget or limit of sequences; its operations stay as they are.

        Raises DoesNotFitError where the cache then has no room.
        """
        plan = self.resolved.plan
        chosen = replace(plan.deployment.settings, **setting)
        plan = replace(plan, deployment=replace(plan.deployment, settings=chosen))
        resolved = replace(self.resolved, predictor=self.predictor.on(plan))
        return Replica(self.scenario | setting, resolved, _room(resolved.predictor, demand))

    def remembering(self, demand: Demand, tiers: tuple[CacheTier, ...], replicas: float) -> Replica:
        """The same with a prefix cache and some tiers, as one of so many replicas."""
        assert demand.prefixes is not None  # asked only where something is known of prefixes
        kept = demand.prefixes.kept(self.predictor, tiers, replicas)
        return Replica(self.scenario | {"cached": int(kept.cached)}, self.resolved, self.room, kept)

    def with_free_exchanges(self) -> Replica:
        """The same whose exchanges of tokens between experts take no time, for one with DeepEP's.

        No other exchange makes a step shorter: DeepEP brings none but the tokens of its own experts to a rank.
        """
        plan = self.resolved.plan
        kept = {op: count for op, count in plan.operations.items() if not isinstance(op, Exchange)}
        resolved = replace(self.resolved, predictor=self.predictor.on(replace(plan, operations=kept)))
        return Replica(self.scenario, resolved, self.room)

    def outlook(self, demand: Demand, slo: Sequence[Objective]) -> float:
        """Requests a second at which the mean time of a token is about its limit; nothing is played [1/s].

            TPOT = t(D) + t_p·max(min(q, 1), q/dp)    λ = D/(n·TPOT)    q = D/n

        D: sequences; n: decode steps of an answer; q: prompts that begin in a step, which is t_p longer by one of them
        on any attention replica. Neither waits nor doubt of the times count.
        """
        predictor, dp, tokens = self.predictor, self.resolved.plan.deployment.dp, max(demand.osl.mean - 1.0, 1.0)
        isl, context = max(demand.isl.mean - demand.cached, 1.0), demand.isl.mean + demand.osl.mean / 2.0
        limits = [each.limit / (tokens if each.metric == "e2el" else 1.0) for each in slo if each.metric != "ttft"]
        counts = np.array([1.0, *(dp * each for each in (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0))])
        given = predictor.draft.choice.tokens_per_pass if isinstance(predictor, SpeculativePredictor) else 1.0
        work = Workload(np.maximum(counts, dp), isl, 2.0, context=context)
        step = np.asarray(predictor.decode_step(work).expected, float)
        prompt = max(float(self.resolved.plan.time(Batch.prefill(1.0, isl, demand.cached)).expected - step[0]), 0.0)
        begun = counts * given / tokens
        token = (step + prompt * np.maximum(np.minimum(begun, 1.0), begun / dp)) / given
        return float(np.interp(min(limits, default=math.inf), token, counts / (tokens * token), left=0.0))

    def link_seconds(self, demand: Demand) -> float:
        """Time that the cache of a mean prompt takes to a decode replica [s]; infinite without a link.

        A NIC for each accelerator of this replica, or its PCIe link where no NIC is known.
        """
        accelerator = self.resolved.plan.system.accelerator
        bandwidth = float(accelerator.nic_bandwidth or accelerator.pcie_bandwidth) * self.gpus
        each = self.predictor.memory.kv_bytes_per_token
        return demand.isl.mean * each / bandwidth if bandwidth else math.inf


@once
def _lone_steps(plan: Plan, isl: float, sequences: float, context: float) -> tuple[StepTime, StepTime]:
    """Steps of a prompt, and of so many sequences that decode."""
    return plan.time(Batch.prefill(1.0, isl)), plan.time(Batch.decode(sequences, context))


def _of_role(asked: Load, role: str) -> Load:
    """Prompts up to their first token; or answers from the second on, of which each has one: prompts come computed."""
    if role == "serve":
        return asked

    def drawn(process: Process, count: int, seed: int) -> Drawn:
        whole = asked.draw(process, count, seed)
        if role == "prefill":
            return Drawn(whole.time, whole.isl, [1] * count, whole.priority, whole.cached, whole.kind)
        return Drawn(whole.time, whole.isl, [max(each, 2) for each in whole.osl], whole.priority, None, whole.kind)

    alike: dict[str, Any] = {"osl": Fixed(1)} if role == "prefill" else {"cached": 0.0}
    return replace(asked, source=drawn, **alike)


@dataclass(frozen=True)
class Bearer:
    """What bears a load: a replica that serves, or one of a pool of prefill or decode replicas.

    transfer: what keys and values of a mean prompt take to come to a decode replica [s]; near: rungs at which
    objectives ended the capacity of another replica, and its accelerators, where the search for this one's begins.
    """

    replica: Replica
    role: str = "serve"
    transfer: float = 0.0
    seed: int = 0
    near: dict[Any, int] = field(default_factory=dict, repr=False, compare=False)

    def curve(self, demand: Demand) -> LoadCurve:
        """What is played of it."""
        return self.replica.curve(demand, self.seed, self.role)

    def knee(self, demand: Demand) -> float:
        """Requests a second of a full engine."""
        return self.curve(demand).full

    def sustained(self, demand: Demand) -> float:
        """Requests a second below which no play piles up: those of a full engine, or the last rung that is stable."""
        curve = self.curve(demand)
        stable = curve.last(lambda load: 2.0 * float(curve.play(load).stable))
        return curve.full if stable.fails is None else stable.load

    def play(self, demand: Demand, load: float) -> LoadPlay:
        """The load itself, as it is played."""
        return self.curve(demand).play(load)

    def feel(self, demand: Demand, load: float, exact: bool = False, known: bool = False, surely: bool = True) -> Felt:
        """The latencies at this load; between two rungs of the curve unless `exact`, which plays the load itself.

        known: between what has been played, however far that is; surely: whether their intervals are worked out.
        """
        curve = self.curve(demand)
        if exact:
            curve.play(load)
        elif load > curve.loads[-1] * (1.0 + _ROUNDING):
            beyond = Felt(lambda metric, share: math.inf, stable=False)
            named = demand.classes if isinstance(demand, Mix) else ()
            return replace(beyond, classes={each.name: beyond for each in named})
        low, high, share = curve.between(load, known)
        ends = self._ends(low) if surely and low.predictor.plan.calibration is not None else {}
        stable = low.stable and (share == 0.0 or high.stable)
        felt = Felt(_between(self._samples(low), self._samples(high), share), stable, ends)
        if not isinstance(demand, Mix):
            return felt
        classes = enumerate(demand.classes)
        return replace(
            felt,
            classes={
                each.name: replace(felt, read=_between(self._of_class(low, kind), self._of_class(high, kind), share))
                for kind, each in classes
            },
        )

    def read(self, demand: Demand, load: float, value: Callable[[LoadPlay], float]) -> float:
        """What plays say at this load, on a straight line between two rungs."""
        curve = self.curve(demand)
        low, high, share = curve.between(min(load, curve.loads[-1]))
        one = value(low)
        return one + share * (value(high) - one) if share else one

    def in_flight(self, demand: Demand, load: float) -> InFlight:
        """Sequences that decode together at this load, with their mean lengths; of prompts alone one."""
        users = 1.0 if self.role == "prefill" else self.read(demand, load, lambda played: played.sequences)
        cached = self.replica.kept.cached if self.replica.kept else demand.cached
        return InFlight(users, demand.isl.mean, demand.osl.mean, cached)

    def _ends(self, played: LoadPlay) -> dict[str, Ends]:
        """How far the times of a play may err."""
        known = self.replica._ends
        if id(played) not in known:
            known[id(played)] = _ends(played)
        return known[id(played)]

    def _samples(self, played: LoadPlay) -> Samples:
        """The latencies of a play, as the role has them."""
        key, known = (self.role, self.transfer, id(played)), self.replica._samples
        if key not in known:
            known[key] = self._read(played)
        return known[key]

    def _read(self, played: LoadPlay) -> Samples:
        done, late = played.played, self.replica.kept.late if self.replica.kept else 0.0
        if self.role == "decode":
            after = self.transfer + (done.end - done.queued)[done.counted]
            return {"ttft": _NOTHING, "tpot": Sample(after / (done.osl[done.counted] - 1)), "e2el": Sample(after)}
        first, whole = Sample(done.ttft + late), Sample(done.e2e + late)
        if self.role == "prefill":
            return {"ttft": first, "tpot": _NOTHING, "e2el": whole}
        token = played.samples["tpot"]
        return {"ttft": first, "tpot": token if token.count else Sample([played.lone_step]), "e2el": whole}

    def _of_class(self, played: LoadPlay, kind: int) -> Samples:
        """Of one class; of one that is too rare to come in the play, those of all."""
        own = played.by_kind.get(kind)
        if own is None or not own["ttft"].count:
            return self._samples(played)
        token = own["tpot"] if own["tpot"].count else Sample([played.lone_step])
        return {"ttft": own["ttft"], "tpot": token, "e2el": own["e2e"]}

    def feels(self, demand: Demand, load: float, exact: bool = False) -> Feels:
        """What is felt at this load where steps take a factor times as long; of a closed loop the same load at each.

        exact: whether the expected times are those of a play of this load; others are then between what was played.
        """

        @cache
        def feels(factor: float) -> Felt:
            at = load if demand.closed else load * factor
            return self.feel(demand, at, exact and factor == 1.0, known=exact).stretched(factor)

        return feels

    def staffed(self, demand: Demand) -> Replica:
        """The same with as many API servers as a full engine keeps busy, where there are several and nobody says."""
        replica = self.replica
        deployment = replica.resolved.plan.deployment
        told = deployment.settings.api_servers or deployment.settings.front_end == "token-ids"
        if told or server_setting(deployment.engine, deployment.engine_version, "api_servers") is None:
            return replica
        asked, scene = self.curve(demand).asked, self.curve(demand).scene
        rate = full_rate(scene.tables, scene.rules, asked.isl.mean, asked.osl.mean, asked.cached)
        sent = {"prefill": 1.0, "decode": asked.osl.mean - 1.0}.get(self.role, asked.osl.mean)
        needed = math.ceil(rate * (scene.front.time(round(asked.isl.mean)) + sent * scene.front.stream))
        return replica if needed <= scene.front.servers else replica.retuned({"api_servers": needed}, demand)

    def room_left(self, best: Part, demand: Demand, slo: Sequence[Objective]) -> float:
        """How much of a limit is left where the capacity of another ends: the limit over what one play says.

        Where that is the knee, the one knee over the other; where no objective holds, that at the first rung.
        """
        seen, binds = demand.seen(best.working), best.ability.binds
        curve = self.curve(seen)
        if "users" in binds:
            return 0.0
        if "knee" in binds:
            return curve.loads[-1] / best.bearer.curve(seen).loads[-1]
        load = best.ability.load or curve.loads[0]
        plain, left = best.bearer.feel(seen, load, known=True), math.inf
        for each in (each for each in slo if str(each) in binds):
            steps, further = plain.factors(each.metric, best.deviations)
            at = load if demand.closed else load * steps
            value = each.value(self.feel(seen, at, exact=True)) if at <= curve.loads[-1] else math.inf
            left = min(left, each.limit / (steps * further * value))
        return left


_NOTHING = Sample([0.0])


def _between(low: Samples, high: Samples, share: float) -> Callable[[str, float | None], float]:
    """Means and quantiles on a straight line between two plays [s]."""

    def read(metric: str, quantile: float | None) -> float:
        one, other = (
            each[metric].mean if quantile is None else each[metric].quantile(quantile) for each in (low, high)
        )
        return one + share * (other - one)

    return read


def _ends(played: LoadPlay) -> dict[str, Ends]:
    """How far the times of a play may err, by metric."""
    ends = {}
    for metric, span in _spans(played).items():
        reach = played.reach(metric, span)
        less, more = reach.factors()
        ends[metric] = Ends(span, (less / span[0], more / span[1]), reach.inner)
    first = played.samples["ttft"].mean / played.samples["e2e"].mean
    return ends | {"e2el": ends["ttft"].with_tokens(ends["tpot"], first)}


def _spans(played: LoadPlay) -> dict[str, tuple[float, float]]:
    """Ends of the steps that TTFT and TPOT are made of, over what is expected; the front end takes what it takes."""
    decode, prompt = played.step_ends
    parts, tokens = played.played.first_parts, played.tokens
    weights = {
        "ttft": (parts.front_end, parts.under_way + parts.place, parts.behind + parts.prompt),
        "tpot": (0.0, tokens.step, tokens.prompts),
    }

    def end(metric: str, at: int) -> float:
        front, steps, prompts = weights[metric]
        whole = front + steps + prompts
        return (front + steps * decode[at] + prompts * prompt[at]) / whole if whole else 1.0

    return {metric: (end(metric, 0), end(metric, 1)) for metric in weights}


def lay_out(model: str, gpu: str, scenario: dict[str, Any], demand: Demand, calibration: str | None) -> Replica:
    """Resolve a deployment.

    Where the engine's memory fraction leaves no room, and none is asked for, the one that leaves most is taken.

    Raises InputError (and its kinds) for a deployment that does not exist, DoesNotFitError for one without room.
    """
    draft = part_of(scenario, SPECULATION_KEYS)
    deployment = read_deployment({key: value for key, value in scenario.items() if key not in draft})
    resolved = resolve(model, gpu, deployment, calibration, Speculation.read(draft))
    known = resolved.plan.system.accelerator.name
    named = {"model": model, "gpu": gpu if Path(gpu).suffix else known, **scenario}
    try:
        return Replica(named, resolved, _room(resolved.predictor, demand))
    except DoesNotFitError:
        memory = resolved.predictor.memory
        longest = min(demand.longest, float(resolved.plan.model.max_context or math.inf))
        shares = () if "memory_fraction" in scenario else memory.fractions(1.0, longest, longest)
        best = max(shares, key=lambda share: replace(memory, fraction=share).max_batch(longest, longest), default=None)
        if best is None:
            raise
        return lay_out(model, gpu, scenario | {"memory_fraction": best}, demand, calibration)


def _room(predictor: Predictor, demand: Demand) -> float:
    memory = predictor.memory
    room = float(slots(predictor, demand.isl.mean, demand.osl.mean, osl_cv=cv(demand.osl)))
    longest = min(demand.longest, float(predictor.plan.model.max_context or math.inf))
    if room < 1.0 or float(memory.max_batch(longest, longest)) < 1.0:
        held = memory.evaluate(1.0, longest, longest)
        raise DoesNotFitError(
            f"weights take {float(held.weight_bytes) / 1e9:.1f} of {float(held.capacity_bytes) / 1e9:.1f} GB "
            f"a {predictor.plan.system.accelerator.noun}, "
            f"and no request of {longest:,.0f} tokens fits beside them"
        )
    return room


@dataclass(frozen=True)
class Ability:
    """What a replica bears within the objectives.

    load: requests/s or users; 0 if the objectives fail even without waiting. binds: objectives that fail just above, or
    the knee, or `users`: all of them.
    """

    load: float
    binds: tuple[str, ...]


def answered(role: str, slo: Sequence[Objective]) -> tuple[Objective, ...]:
    """The objectives that replicas of a role have a part in."""
    metrics = {"prefill": ("ttft", "e2el"), "decode": ("tpot", "e2el")}.get(role, METRICS)
    return tuple(each for each in slo if each.metric in metrics)


def ability(bearer: Bearer, demand: Demand, slo: Sequence[Objective], deviations: float = 0.0) -> Ability:
    """The largest load at which every objective holds; where latencies rise with the load, stricter ones give no more.

    deviations: at which place of the calibrated interval the steps stand, as in `spare`. A pool answers for the
    objectives that it has a part in.
    """
    slo = answered(bearer.role, slo)
    curve, plain = bearer.curve(demand), cache(partial(bearer.feel, demand))
    least = math.inf
    binds: tuple[str, ...] = ("users" if demand.closed else "knee",)
    for each in sorted(slo, key=lambda each: each.metric != "tpot") or (None,):

        def left(load: float, each: Objective | None = each) -> float:
            """The limit over what is felt, where steps take so long that this load comes as it does."""
            felt = plain(load)
            if not felt.stable or each is None:
                return float(felt.stable) * 2.0
            steps, further = felt.factors(each.metric, deviations)
            return each.limit / (steps * further * each.value(felt))

        def steps(load: float, metric: str = each.metric if each else "tpot") -> float:
            return 1.0 if demand.closed else plain(load).factors(metric, deviations)[0]

        name, most = str(each) if each else "knee", math.inf
        if least < math.inf:  # a load at which this one need not be looked at any further
            most = least if demand.closed else least * steps(curve.played_near(least))
        places = (bearer.role, name, deviations), (bearer.role, name)
        near = next((bearer.near[place] for place in places if place in bearer.near), None)
        found = curve.last(left, most, len(curve.loads) if near is None and least < math.inf else near)
        if found.fails is not None:  # else another objective has ended the search
            bearer.near.update(dict.fromkeys(places, found.rung))
        if not found.load:
            return Ability(0.0, (name,))
        load = found.load / steps(found.load)
        stops = found.fails is not None and each is not None and plain(found.fails).stable
        if stops and abs(load / least - 1.0) <= _CLOSE:
            binds = (*binds, name)
        elif load < least:
            least, binds = load, (name,) if stops else binds if found.fails is None else ("knee",)
    return Ability(float(math.floor(least + _ROUNDING)) if demand.closed else least, binds)


def joined(first: Felt, after: Felt) -> Felt:
    """Both parts of a request together; deviations of the end-to-end time add as squares.

    A pool with more than it can serve takes no time of the other pool with it: tokens do not wait for first tokens.
    """
    stable = first.stable and after.stable
    begun, rest = first.value("ttft", None), after.value("e2el", None)

    def read(metric: str, share: float | None) -> float:
        if metric != "e2el":
            return (first if metric == "ttft" else after).value(metric, share)
        if share is None or not stable:
            return begun + rest
        parts = first.value("ttft", share) - begun, after.value("e2el", share) - rest
        square = sum(math.copysign(part * part, part) for part in parts)
        return begun + rest + math.copysign(math.sqrt(abs(square)), square)

    if not (first.ends and after.ends and stable):
        return Felt(read)
    ttft, tpot = first.ends["ttft"], after.ends["tpot"]
    return Felt(read, ends={"ttft": ttft, "tpot": tpot, "e2el": ttft.with_tokens(tpot, begun / (begun + rest))})


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

    bearer: Bearer
    ability: Ability
    working: int
    reserve: Reserve = Reserve()
    share: float = 1.0
    deviations: float = 0.0  #: place of the interval that it is sized for

    @classmethod
    def of(
        cls, bearer: Bearer, demand: Demand, slo: Sequence[Objective], reserve: Reserve, deviations: float = 0.0
    ) -> Part:
        """As few as carry the whole peak, none where one bears nothing.

        n replicas carry what n times one bears behind the router of n of them: the least n for which that is enough,
        so that a larger peak never takes fewer.
        """
        least, guess = 1, 1
        if not demand.closed and demand.arrival_cv > 0.0:
            least = beside(demand.peak_load / (bearer.knee(demand) * (1.0 - reserve.headroom)))
            guess = beside(bearer.near.get((bearer.role, "gpus", deviations), 0) / bearer.replica.gpus)
        if guess > least:  # as even as behind so many replicas; where no fewer carry it, no step below has to be played
            able = ability(bearer, demand.seen(guess), slo, deviations)
            least = max(least, min(beside(working_replicas(able, demand, reserve)), guess)) if able.load else guess
        while True:
            seen = demand.seen(least)
            able = ability(bearer, seen, slo, deviations)
            evener = demand.seen(math.inf)
            if not able.load and evener.arrival_cv < seen.arrival_cv and ability(bearer, evener, slo, deviations).load:
                least *= 2  # more replicas get more even arrivals
                continue
            working = max(working_replicas(able, demand, reserve), least) if able.load else 0
            if not able.load or demand.closed or beside(working) <= least:
                bearer.near[bearer.role, "gpus", deviations] = working * bearer.replica.gpus
                return cls(bearer, able, working, reserve, deviations=deviations)
            least *= 2

    def holds(self, demand: Demand, slo: Sequence[Objective]) -> bool:
        """Whether all objectives hold as the peak is played, at the place of the interval that it is sized for."""
        own, seen, load = answered(self.role, slo), self.seen(demand), self.load(demand, self.reserve.headroom)
        plain = self.bearer.feel(seen, load, exact=True, surely=False)
        errors = self.replica.resolved.plan.load_errors
        if errors.slower(self.deviations) and not all(each.met(plain) for each in own):
            return False  # nor would it hold with slower steps
        feels = self.bearer.feels(seen, load, exact=True)
        most = math.inf if demand.closed else self.bearer.curve(seen).loads[-1] * (1.0 + _ROUNDING)
        for each in sorted(own, key=lambda each: str(each) not in self.ability.binds):
            steps, further = feels(1.0).factors(each.metric, self.deviations)
            if load * steps > most or (min(steps, further) >= 1.0 and not each.met(feels(1.0))):
                return False
            if not demand.closed:  # what steps so slow make of the load is played too
                self.bearer.play(seen, load * steps)
            if missed(feels, [each], self.deviations):
                return False
        return True

    def confirmed(self, demand: Demand, slo: Sequence[Objective]) -> Part:
        """The fleet next to this one that holds as it is played, while one replica less does not.

        Where a looser question begins with no more replicas, it ends with no more. Curves do not know the requests of
        traces and of prefix caches: such fleets are replayed.
        """
        if not self.working or self.replica.kept is not None or demand.trace is not None:
            return self
        holds = cache(lambda working: replace(self, working=working).holds(demand, slo))
        working = _edge(holds, self.working, _GROWN * self.working)
        if working in {0, self.working}:
            return replace(self, working=working)
        found = replace(self, working=working)
        return replace(found, ability=replace(self.ability, load=found.load(demand, self.reserve.headroom)))

    @property
    def role(self) -> str:
        """serve, prefill or decode."""
        return self.bearer.role

    @property
    def replica(self) -> Replica:
        """The deployment."""
        return self.bearer.replica

    @property
    def spare(self) -> int:
        """Replicas that may fail at the peak."""
        return self.reserve.spares(self.replica, self.working)

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
        return demand.seen(self.working)

    def load(self, demand: Demand, headroom: float = 0.0) -> float:
        """On each working replica at the peak, those in reserve being down, and the headroom beyond it; whole users."""
        each = demand.peak_load * self.share / self.working / (1.0 - headroom)
        return float(math.ceil(each - _ROUNDING)) if demand.closed else each

    def mean_load(self, demand: Demand) -> float:
        """On each replica in the mean, all of them up; at least one user."""
        each = demand.mean_load * self.share / self.replicas
        return max(float(round(each)), 1.0) if demand.closed else each

    def feels(self, demand: Demand) -> Feels:
        """Latencies of a replica at the peak, by how many times as long as expected the steps take."""
        return self.bearer.feels(self.seen(demand), self.load(demand), exact=True)

    def play_ends(self, demand: Demand) -> None:
        """Play what steps at both ends of their 90 % interval make of the load at the peak."""
        seen, load = self.seen(demand), self.load(demand)
        felt, most = self.bearer.feel(seen, load, exact=True), self.bearer.curve(seen).loads[-1]
        for metric in {"prefill": ("ttft",), "decode": ("tpot",)}.get(self.role, ("ttft", "tpot")):
            for end in (-SIGMAS, SIGMAS):
                if not demand.closed and (slower := load * felt.factors(metric, end)[0]) <= most:
                    self.bearer.play(seen, slower)

    def played(self, demand: Demand) -> LoadPlay:
        """A replica at the peak."""
        return self.bearer.play(self.seen(demand), self.load(demand))


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

    def feels(self, demand: Demand) -> Feels:
        """Latencies at the peak, by how many times as long as expected the steps take; of two kinds the slower."""
        seen = [part.feels(demand) for part in self.parts]

        def feels(factor: float) -> Felt:
            felts = [each(factor) for each in seen]
            return joined(*felts) if self.kind == "disaggregated" else slowest(felts)

        return feels

    def grown(self, more: int = 1) -> Option:
        """With more working replicas of the part that the objectives load most."""
        fullest = max(self.parts, key=lambda part: part.share / (part.working * max(part.ability.load, 1e-30)))
        grown = [replace(part, working=part.working + more) if part is fullest else part for part in self.parts]
        return replace(self, parts=shared_out(grown) if self.kind == "mixed" else tuple(grown))

    @property
    def deviations(self) -> float:
        """Place of the interval that all of it is sized for."""
        return min(part.deviations for part in self.parts)

    def sized(
        self, demand: Demand, slo: Sequence[Objective], reserve: Reserve, deviations: float | None = None
    ) -> Option:
        """The same deployments, as many as carry a traffic, one kind of each; deviations: None as they are sized."""
        return self.by_curves(demand, slo, reserve, deviations).confirmed(demand, slo)

    def confirmed(self, demand: Demand, slo: Sequence[Objective]) -> Option:
        """As many replicas of each part as hold as they are played."""
        return replace(self, parts=tuple(part.confirmed(demand, slo) for part in self.parts))

    def by_curves(
        self, demand: Demand, slo: Sequence[Objective], reserve: Reserve, deviations: float | None = None
    ) -> Option:
        """As `sized`, by load curves alone."""
        places = (part.deviations if deviations is None else deviations for part in self.parts)
        parts = (
            Part.of(part.bearer, demand, slo, reserve, place) for part, place in zip(self.parts, places, strict=True)
        )
        return replace(self, parts=tuple(parts))


def _edge(holds: Callable[[int], bool], start: int, most: int) -> int:
    """The number near `start` that holds while one less does not, by doubling steps and halves; 0 if none up to `most`.

    >>> [_edge(lambda number: number >= edge, 20, 40) for edge in (1, 7, 19, 20, 21, 33, 99)]
    [1, 7, 19, 20, 21, 33, 0]
    """
    low, high, step = start - 1, start, 1
    while not holds(high):
        low, high, step = high, high + step, 2 * step
        if high > most:
            return 0
    while low > 0 and low < start and holds(low):
        low, high, step = low - step, low, 2 * step
    low = max(low, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


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

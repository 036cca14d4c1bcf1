"""Candidates in order of cost, the cheapest played request by request: whether the simulation agrees with the formula.

A simulation has the expected times. What it gives over what the closed form gives is kept as a factor, by objective, so
that the probability of each objective (`objective.chance`) starts at what was simulated. A run diverges where fewer
requests leave than come and the number of those in the system has a trend: then no percentile means anything, and the
simulation never agrees. Near the knee a queue takes long to show what it does, so runs are longer there.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from random import Random

import numpy as np
from numpy.typing import NDArray

from rooflinekit.decision.planning.cost import fleet_watts
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.fleet import Option, Part
from rooflinekit.decision.planning.mix import HASH_TOKENS, Mix
from rooflinekit.decision.planning.objective import METRICS, Felt, Objective, chance, missed, slowest
from rooflinekit.decision.planning.search import Found, PlanQuestion, Refusal, refused_fleet
from rooflinekit.load.arrivals import Arrival, Gamma, Requests, generate
from rooflinekit.load.lengths import LogNormal, cv
from rooflinekit.load.played import standard_error
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.traffic.percentiles import Spread
from rooflinekit.model.types.speculation import break_even_acceptance
from rooflinekit.model.types.units import format_time
from rooflinekit.model.types.workload import Workload
from rooflinekit.simulation.ledger import Sketch
from rooflinekit.simulation.requests import Job
from rooflinekit.simulation.sessions import SessionSource
from rooflinekit.simulation.simulate import Load, Setup, watched
from rooflinekit.simulation.watch import Batches
from rooflinekit.specs.calibration.evidence import EVIDENCE, evidence

_REQUESTS = (400, 2000)  # least and most that count, far below the knee
_LONG, _NEAR = 4.0, 0.8  # times as many nearer to the knee than this
_STEPS = 150_000  # of one replica, to which the requests are cut
_BESIDE = 8  # replicas with prefix caches that are played at most: a router knows what they hold and how busy they are
_SESSIONS = 3.0  # times as many where they are turns, since the turns of a session are alike
_WARM = 2.5  # requests' own times before anything counts
_PAIRED = 2500  # requests that count on two pools, which are many replicas
_SLICE = 48  # replicas of two pools that are played at most
_WINDOW, _WHOLE = 4000, 60_000  # requests of a window of a trace that are played, and of a trace that is played whole
_ROUTER = "random"  # as the formula has it: what a replica sees are arrivals of its own
_BUSY = 0.95  # of the knee, at which the time of a request is taken to be at most
_DRIFT = 0.1  # variation of equal answers of users, who would otherwise march in step as no real clients do

_RUNS = 12  # simulations beyond those of the candidates that are asked for
_TRIES = 6  # simulations of the options of one accelerator beyond that
_FINE = 0.2  # of a fleet: a step between what is refuted and what agrees, which is halved
_WAY = 0.75  # of the replicas that the formula asks for beside those with which the simulation does not agree
_POOLS = {"ttft": "prefill", "tpot": "decode"}  # which of two pools a latency is that of
_PIECES = 10  # of a run, by which classes have standard errors
_NOTHING = Spread(lambda share: 0.0, lambda share: 0.0, lambda share: 0.0)
_OF_EACH, _RARE = 200, 2.0  # requests of each class that are wanted, and how much longer a run is for them at most
_APART = 0.2  # of formula and simulation, beyond which it is said


@dataclass(frozen=True)
class Played:
    """What a simulation of the peak gave.

    felt: latencies; requests: that count; played: which they are; failed: objectives that do not hold with the
    confidence asked for; chances: probability of each (None without a calibration); diverges: fewer leave than come;
    strained: what is most at risk fails in a run whose steps are as long as the confidence asks for; errors: standard
    errors of what the objectives are about, by batches of time [s].
    """

    felt: Felt
    requests: int
    failed: tuple[Objective, ...]
    played: str = ""
    chances: Mapping[Objective, float | None] | None = None
    diverges: bool = False
    strained: bool = False
    errors: Mapping[Objective, float] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether every objective holds in a steady state."""
        return not (self.failed or self.diverges or self.strained)


@dataclass(frozen=True)
class Run:
    """Latencies of one simulation, how many requests count, whether it has no steady state, and the same by batches."""

    felt: Felt
    requests: int
    diverges: bool = False
    batches: tuple[Felt, ...] = ()

    @classmethod
    def of(cls, batches: Batches, classes: Classes | None = None) -> Run:
        """What a simulation saw, of all requests and of each class."""
        whole = [Sketch.joined(each) for each in zip(*batches.parts, strict=True)]
        felt, full = _felt(whole), tuple(map(_felt, batches.full))
        if classes is not None:
            felt = replace(felt, classes=classes.felt())
            full = tuple(replace(felt, classes=each) for each in classes.batches())
        return cls(felt, whole[0].count, not batches.settles(), full)

    def error(self, objective: Objective) -> float | None:
        """Standard error of what an objective is about, from the means of batches [s]; None without batches."""
        return standard_error([objective.value(batch) for batch in self.batches])


class Classes:
    """What requests of each class felt that ended after the warm-up [s]: when they ended, TTFT, TPOT, all of it."""

    def __init__(self, names: Sequence[str], start: float) -> None:
        self._names, self._start = names, start
        self._seen: list[list[tuple[float, float, float, float]]] = [[] for _ in names]

    def __call__(self, job: Job, now: float, how: str) -> None:
        """See a request end."""
        if how == "finished" and now >= self._start:
            tpot = (now - job.first) / (job.osl - 1) if job.osl > 1 else 0.0
            self._seen[job.kind].append((now, job.first - job.arrived, tpot, now - job.arrived))

    def felt(self, after: float = 0.0, before: float = math.inf) -> dict[str, Felt]:
        """Latencies of those that ended between two times; of a class of which none did they are 0."""
        found = {}
        for name, seen in zip(self._names, self._seen, strict=True):
            sketches = [Sketch(), Sketch(), Sketch()]
            for now, *times in seen:
                if after <= now < before:
                    for sketch, time in zip(sketches, times, strict=True):
                        sketch.add(time)
            found[name] = _felt(sketches) if sketches[0].count else Felt(dict.fromkeys(METRICS, 0.0), _NOTHING)
        return found

    def batches(self) -> list[dict[str, Felt]]:
        """The same in pieces of equal time."""
        last = max((seen[-1][0] for seen in self._seen if seen), default=self._start)
        ends = [self._start + (last - self._start) * place / _PIECES for place in range(_PIECES + 1)]
        return [self.felt(*each) for each in pairwise(ends)]


def play(option: Option, question: PlanQuestion, whole: bool = False) -> Played:
    """Simulate the peak of an option with its spare replicas down.

    Equal replicas that get random shares of the requests are alike, so one of them is played; pools of two kinds are
    played on up to 48 replicas, a slice of a larger fleet. Of a trace its busiest windows are played, on a slice of the
    fleet where they are long; and, if `whole`, all of it too, unless it has more than 60,000 requests. Objectives have
    to hold in each.
    """
    demand, slo = question.demand, question.slo
    runs, played = simulated(option, demand, question.seed, whole)
    felt = slowest([run.felt for run in runs])
    diverges = any(run.diverges for run in runs)
    feels = option.feels(demand)
    said = feels(1.0)
    bias = {each: _ratio(each.value(felt), each.value(said)) for each in slo}
    chances = {each: chance(feels, each, bias[each]) for each in slo}
    failed = missed(feels, slo, question.deviations, bias)
    errors = {each: [error for run in runs if (error := run.error(each)) is not None] for each in slo}
    requests = runs[-1].requests if whole else sum(run.requests for run in runs)
    known = {each: max(values) for each, values in errors.items() if values}
    return Played(felt, requests, failed, played, chances, diverges, errors=known)


def _ratio(seen: float, said: float) -> float:
    return seen / said if 0.0 < said < math.inf and math.isfinite(seen) else math.inf


def stressed(option: Option, question: PlanQuestion, played: Played) -> bool:
    """Whether the objective most at risk fails in a simulation with steps as long as the confidence asks for."""
    known = {each: value for each, value in (played.chances or {}).items() if value is not None}
    if not known or question.deviations <= 0.0 or question.demand.closed:  # a closed loop only takes longer
        return False
    risk = min(known, key=lambda each: known[each])
    said = option.feels(question.demand)(1.0)
    factor = said.factor(risk.metric, question.deviations)
    runs, _ = simulated(option, question.demand.stretched(factor), question.seed, whole=False)
    worst = replace(slowest([run.felt for run in runs]), beyond=said.beyond).stretched(factor)
    return not risk.met(worst) or any(run.diverges for run in runs)


def simulated(option: Option, demand: Demand, seed: int, whole: bool, longer: float = 1.0) -> tuple[list[Run], str]:
    """Every simulation of the option at its peak, and which requests they play; `longer`: so many times as many."""
    if demand.trace is not None:
        return _replays(option, demand, seed, whole)
    if option.kind == "disaggregated":
        runs = [_pools(option, demand, seed, longer)]
    else:
        runs = [_alike(part, demand, seed, longer) for part in option.parts]
    return runs, f"{sum(run.requests for run in runs):,} requests at the peak"


def _felt(sketches: Sequence[Sketch]) -> Felt:
    """Latencies of TTFT, TPOT and the whole request."""
    means = dict(zip(METRICS, (each.mean for each in sketches), strict=True))
    return Felt(means, Spread(*(each.quantile for each in sketches)))


def _alike(part: Part, demand: Demand, seed: int, longer: float) -> Run:
    """One replica with its share of the requests; of sessions that a router places by their prefix, several."""
    seen, load = part.seen(demand), part.load(demand)
    loaded = part.replica.answer(seen, load).loaded
    turn, step = float(loaded.e2e), float(loaded.tpot.expected)
    turn = turn if math.isfinite(turn) else 2.0 * demand.osl.mean * step
    rate = load / turn if demand.closed else load
    near = not demand.closed and load > _NEAR * float(loaded.knee)
    counted = min(max(_STEPS * step * rate, _REQUESTS[0]), _REQUESTS[1]) * (_LONG if near else 1.0) * longer
    warm = _WARM * turn
    if isinstance(demand, Mix):
        warm = max(warm, _WARM * max(each.osl.mean for each in demand.classes) * step)
        counted *= min(max(_OF_EACH / (min(demand.shares) * counted), 1.0), _RARE)
    setup, users = Setup(seed=seed), None
    comes: Iterator[Arrival] | SessionSource
    if demand.closed:
        osl = demand.osl if cv(demand.osl) > 0.0 or demand.osl.mean < 2.0 else LogNormal(demand.osl.mean, _DRIFT)
        comes, users = generate(Gamma(1.0), Requests(demand.isl, osl), 1 << 40, seed), int(load)
    elif demand.prefixes is not None and (law := demand.prefixes.law) is not None:
        counted *= _SESSIONS
        router = demand.prefixes.router
        count = min(part.working, _BESIDE) if part.replica.kept is not None and router != _ROUTER else 1
        requests, rate = math.ceil(counted + warm * rate * count), rate * count
        comes = SessionSource(law, demand.osl, law.most or 0, rate=rate, requests=requests, seed=seed)
        setup = Setup(replicas=count, router=router, seed=seed) if count > 1 else setup
    else:
        comes = seen.arrivals(load, seed)
    return _run(part, demand, comes, setup, counted / rate + warm, warm, users)


def run_varying(  # noqa: PLR0913, PLR0917 - a load that varies, and where it is looked at
    part: Part, demand: Demand, rates: NDArray[np.float64], place: int, calm: int, period: float, count: int,
    factor: float, seed: int,
) -> Run:  # fmt: skip
    """One replica whose requests come at a rate of its own in each period, `count` of them around one of these.

    rates: requests/s of the replica in periods of so many seconds, which repeat; calm: the last one up to `place` at
    which nothing waits, from which on it is played (some thousand requests at most); factor: how many times as long as
    expected each step takes. As in `Demand.stretched`, requests come so much faster, and latencies are to be stretched.
    Raises KeyboardInterrupt.
    """
    load = min(float(rates[place]) * factor, _BUSY * part.replica.knee(demand))
    warm = _WARM * float(part.replica.answer(demand, load).loaded.e2e) * factor
    seconds = count / max(float(rates[place]), 1.0 / (len(rates) * period))
    longest = place - int(_WINDOW / max(float(rates[calm : place + 1].mean()), 1e-12) / period)
    warm += period * (place - max(calm, longest))
    first, last = place - math.ceil((seconds / 2.0 + warm) / period), place + math.ceil(seconds / 2.0 / period)
    passed = np.concatenate([[0.0], np.cumsum(np.take(rates, np.arange(first, last), mode="wrap") * period)])
    clock = np.arange(len(passed)) * period / factor

    def comes() -> Iterator[Arrival]:
        for each in demand.arrivals(1.0, seed + place):
            if each.time >= passed[-1]:
                return
            yield each._replace(time=float(np.interp(each.time, passed, clock)))

    return _run(part, demand, comes(), Setup(seed=seed), float(clock[-1]), warm / factor)


def _pools(option: Option, demand: Demand, seed: int, longer: float) -> Run:
    """Both pools, or a slice of them."""
    first, after = option.parts
    whole = first.working + after.working
    counts = [max(part.working * min(_SLICE, whole) // whole, 1) for part in option.parts]
    setup = Setup(replicas=counts[1], prefill_replicas=counts[0], router=_ROUTER, seed=seed)
    rate = demand.peak_load * min(counts[0] / first.working, counts[1] / after.working)
    turn = option.feels(demand)(1.0).means.get("e2el", 2.0 * demand.osl.mean * 0.1)
    warm = _WARM * turn
    return _run(after, demand, demand.arrivals(rate, seed), setup, longer * _PAIRED / rate + warm, warm, prefill=first)


def _replays(option: Option, demand: Demand, seed: int, whole: bool) -> tuple[list[Run], str]:
    """The busiest windows of the trace, with as much before each as it is long; and all of it."""
    trace = demand.trace
    assert trace is not None  # asked only where there is one
    short = demand.span_s >= trace.time[-1]
    windows = [] if short else demand.windows()
    runs = [run for window in windows for run in _replay(option, demand, seed, window.start, window.end)]
    places = [demand.requests(window) for window in windows]
    named = ", ".join(f"{first + 1:,} to {last:,}" for first, last in places)
    text = f"the busiest {demand.span_s:,.0f} s by requests and by tokens (requests {named})"
    if short or (whole and len(trace) <= _WHOLE):
        all_of_it = _replay(option, demand, seed, 0.0, math.inf)
        counted = [replace(run, requests=len(trace)) for run in all_of_it]
        runs += counted
        text = f"the whole trace of {len(trace):,} requests" + ("" if short else f", and {text}")
    return runs, text


def _replay(option: Option, demand: Demand, seed: int, start: float, end: float) -> Iterator[Run]:
    """One run of each kind of replica, or of both pools, on the requests from `start` to `end` of the trace's clock."""
    trace = demand.trace
    assert trace is not None
    lead = max(2.0 * start - end, 0.0) if end < math.inf else 0.0
    places = range(bisect_left(trace.time, lead), bisect_left(trace.time, end))
    pooled = option.kind == "disaggregated"
    for part in option.parts[-1:] if pooled else option.parts:
        pools = option.parts if pooled else (part,)
        working = sum(pool.working for pool in pools)
        most = math.ceil(working * _WINDOW / (len(places) * part.share)) if end < math.inf else working
        counts = [max(pool.working * min(most, working) // working, 1) for pool in pools]
        kept = part.share * min(n / pool.working for n, pool in zip(counts, pools, strict=True))
        prefixes = demand.prefixes if part.replica.kept is not None else None
        drawn = _drawn(prefixes.conversations if prefixes else range(len(trace)), kept, seed)
        arrivals = (
            Arrival((trace.time[at] - lead) / demand.speed, trace.isl[at], trace.osl[at],
                    trace.prefix(at) if prefixes else ())
            for at in places
            if drawn(at)
        )  # fmt: skip
        router = prefixes.router if prefixes else _ROUTER
        setup = Setup(replicas=counts[-1], prefill_replicas=counts[0] if pooled else 0, router=router, seed=seed)
        first = option.parts[0] if pooled else None
        before = range(places.start) if prefixes else ()
        former = [(prefixes.conversations[at], trace.prefix(at)) for at in before if prefixes and drawn(at)]
        yield _run(part, demand, arrivals, setup, math.inf, (start - lead) / demand.speed, prefill=first, before=former)


def _drawn(conversations: Sequence[int], share: float, seed: int) -> Callable[[int], bool]:
    """Whether a request is of the share of the conversations that is played."""
    draw, drawn = Random(seed), dict[int, bool]()
    return lambda at: share >= 1.0 or drawn.setdefault(conversations[at], draw.random() < share)


def _run(  # noqa: PLR0913, PLR0917 - a load and who bears it
    part: Part,
    demand: Demand,
    comes: Iterator[Arrival] | SessionSource,
    setup: Setup,
    seconds: float = math.inf,
    warm: float = 0.0,
    users: int | None = None,
    prefill: Part | None = None,
    before: Sequence[tuple[int, Sequence[int]]] = (),
) -> Run:
    typical, longest = float(demand.isl.mean) + float(demand.osl.mean), int(min(demand.longest, 1 << 20))
    sessions = comes if isinstance(comes, SessionSource) else None
    arrivals = iter(()) if isinstance(comes, SessionSource) else comes
    classes = Classes([each.name for each in demand.classes], warm) if isinstance(demand, Mix) else None
    load = Load(arrivals, typical, longest, users, duration=seconds, sessions=sessions, before=before, keep=classes)
    if isinstance(demand, Mix):
        cached = any(each.cached for each in demand.classes)
        setup = replace(setup, by_class=demand.by_priority, prefix_cache=cached, hash_tokens=HASH_TOKENS)
    if (kept := part.replica.kept) is not None and demand.prefixes is not None:
        hashed = demand.prefixes.trace.block_tokens
        setup = replace(setup, prefix_cache=True, hash_tokens=hashed, tiers=kept.tiers)
    predictor = part.replica.predictor
    if isinstance(predictor, SpeculativePredictor):
        loaded = part.replica.answer(part.seen(demand), part.load(demand)).loaded
        work = Workload(max(float(loaded.running), 1.0), demand.isl.mean, demand.osl.mean)
        choice, (_, drafting) = predictor.draft.choice, predictor.round(work, work.decode_context)
        rate = break_even_acceptance(choice.tokens_per_pass, choice.draft_tokens)
        setup = replace(setup, draft_tokens=choice.draft_tokens, acceptance=rate or 0.0,
                        draft_ms=float(drafting.expected) * 1e3 / choice.draft_tokens)  # fmt: skip
    own, batches = part.replica.resolved, Batches(warm)
    first = own if prefill is None else prefill.replica.resolved
    if not watched(own, load, setup, first, batches):  # half says nothing
        raise KeyboardInterrupt
    return Run.of(batches, classes)


@dataclass(frozen=True)
class Ranked:
    """An option, its evidence, its simulation, and how many accelerators the formula alone asked for."""

    option: Option
    evidence: str
    played: Played | None
    formula_gpus: int

    @property
    def surety(self) -> float:
        """The least probability of its objectives; 0 where none is known."""
        chances = self.played.chances if self.played and self.played.chances else {}
        return min((value for value in chances.values() if value is not None), default=0.0)


@dataclass(frozen=True)
class _Tried:
    """An option to be simulated, between one of fewer replicas that was refuted and a `larger` one that agrees.

    agreed: its own simulation, where nothing smaller is left to try.
    """

    option: Option
    formula: int
    refuted: Option | None = None
    larger: _Tried | None = None
    agreed: Played | None = None

    def halved(self, played: Played) -> _Tried:
        """What comes after its simulation, where that agrees or a larger fleet does: half the way to the refuted one.

        A step of less than a fifth of the fleet is not looked into, nor are two pools, whose parts both grow.
        """
        best = replace(self, agreed=played) if played.agrees or self.larger is None else self.larger
        below = self.refuted if played.agrees else self.option
        if below is None or len(self.option.parts) > 1:
            return best
        apart = best.option.replicas - below.replicas
        if apart < max(2.0, _FINE * best.option.replicas):
            return best
        return _Tried(below.grown(apart // 2), self.formula, below, replace(best, refuted=below, larger=None))


def ranked(question: PlanQuestion, found: Found) -> list[Ranked]:
    """Options by cost: those with measured kernels first, and of each level those with which the simulation agrees.

    At equal cost the surer one stands first.
    The cheapest is simulated until as many as asked agree, and at least one of each accelerator; an option with which
    the simulation does not agree goes on with more replicas, and where that was a large step, with fewer again. So no
    option that is left could be cheaper than those of its level.
    """
    tie, rank, confirm = count(), question.tariff.rank, question.confirm
    heap: list[tuple[int, tuple[float, float], int, _Tried]] = []
    kept, left = list[Ranked](), list[Ranked]()
    tries, agreed = Counter[tuple[str, ...]](), set[tuple[str, ...]]()

    def push(level: int, tried: _Tried) -> None:
        heapq.heappush(heap, (level, rank(tried.option), next(tie), tried))

    def keep(level: int, tried: _Tried) -> None:
        kept.append(Ranked(tried.option, EVIDENCE[level], tried.agreed, tried.formula))
        agreed.add(tried.option.names)

    def leave(level: int, tried: _Tried) -> None:
        """Without a simulation of its own; what agrees with more replicas stands."""
        if tried.larger is not None:
            push(level, tried.larger)
        else:
            left.append(Ranked(tried.option, EVIDENCE[level], None, tried.formula))

    for option in sorted(found.options, key=lambda each: each.parts[0].replica.kept is None):  # a cache is free
        push(EVIDENCE.index(worst_evidence(option)), _Tried(option, option.gpus))
    while heap:
        level, _, _, tried = heapq.heappop(heap)
        option, formula = tried.option, tried.formula
        if tried.agreed is not None:
            keep(level, tried)
            continue
        alone = len(option.names) > 1 and all((name,) in agreed for name in option.names)
        done = alone or option.names in agreed or tries[option.names] >= _TRIES
        if found.interrupted or not confirm or (done and (len(kept) >= confirm or tries.total() >= confirm + _RUNS)):
            leave(level, tried)
            continue
        tries[option.names] += 1
        question.progress(f"simulate {option.gpus} {'+'.join(option.names)}", tries.total(), tries.total() + confirm)
        try:
            played = play(option, question)
            tied = not kept or (EVIDENCE[level], rank(option)) == (kept[0].evidence, rank(kept[0].option))
            if played.agrees and tied:  # the plan: with all of a trace, and at the end of its interval
                played = play(option, question, whole=True) if question.demand.trace is not None else played
                played = replace(played, strained=stressed(option, question, played))
        except KeyboardInterrupt:  # what is known by now is an answer
            found.interrupted = True
            leave(level, tried)
            continue
        if played.agrees or tried.larger is not None:
            nearer = tried.halved(played)
            keep(level, nearer) if nearer.option is option else push(level, nearer)
            continue
        more = enough(option, question, played)
        if too_many := refused_fleet(question, more.parts):
            name = ", ".join(f"{part.replicas} x {part.replica.gpu}" for part in option.parts)
            found.refused.append(Refusal(name, f"the simulation does not agree, and one more {too_many}"))
        else:
            push(level, _Tried(more, formula, refuted=option))
    return sorted([*kept, *left], key=lambda each: (
        EVIDENCE.index(each.evidence), each.played is None, rank(each.option), -each.surety))  # fmt: skip


def worst_evidence(option: Option) -> str:
    """Of its accelerators, that of the one that is known least."""
    return max((evidence(part.replica.resolved.plan) for part in option.parts), key=EVIDENCE.index)


def enough(option: Option, question: PlanQuestion, played: Played) -> Option:
    """With more replicas, after a simulation that does not agree.

    As many as the formula asks for once it is as far off as that simulation found, three quarters of the way, since it
    is less far off at a lower load. One more where requests pile up, for then no latency says how many.
    """
    if played.diverges or not played.failed:
        return option.grown()
    said = option.feels(question.demand)(1.0)
    bias = {each: _ratio(each.value(played.felt), each.value(said)) for each in question.slo}
    most, more_than = max(part.working for part in option.parts), option.replicas
    pools = _POOLS if option.kind == "disaggregated" else {}
    for role in dict.fromkeys(pools.get(each.metric, "") for each in played.failed):
        failed = [each for each in played.failed if pools.get(each.metric, "") == role]

        def grown(more: int, option: Option = option, role: str = role) -> Option:
            return option.grown(more, next((part for part in option.parts if part.role == role), None))

        def holds(more: int, failed: Sequence[Objective] = failed, grown: Callable[[int], Option] = grown) -> bool:
            return not missed(grown(more).feels(question.demand), failed, question.deviations, bias)

        option = grown(math.ceil(bisect_left(range(most), True, key=holds) * _WAY))
    return option if option.replicas > more_than else option.grown()


RANDOM_REPLICAS = "requests reach replicas at random; a balancer that evens them out does better"
OWN_FORMATS = "weights and cache are in the checkpoint's formats; others, such as fp8, are tried if asked for"


def warnings(question: PlanQuestion, found: Found, order: list[Ranked]) -> list[str]:
    """What a planner should hear beside the numbers."""
    notes = [*found.notes, *question.demand.notes]
    if found.interrupted:
        count = sum(each.played is not None for each in order)
        notes.append(f"interrupted: {count} candidate{' was' if count == 1 else 's were'} simulated by then")
    unknown = [gpu for gpu, price in question.tariff.prices.items() if price is None]
    if unknown:
        notes.append(f"no price is known for {', '.join(unknown)}; give --price {unknown[0]}=USD to compare by cost")
    notes += question.tariff.assumptions
    best, played = order[0].option, order[0].played
    if (carbon := question.tariff.carbon) is not None:
        watts = fleet_watts(best.parts, question.demand, question.tariff.pue)
        kg = "not known, as the power is not" if watts is None else f"{watts * carbon[0] / 1e6:.3g} kg an hour"
        notes.append(f"CO2: {kg}, at {carbon[0]:g} g/kWh ({carbon[1]})")
    kept = best.parts[0].replica.kept
    if not question.demand.closed and kept is None:
        notes.append(RANDOM_REPLICAS)
    if kept is not None and kept.tiers and not kept.usd_hour:
        notes.append("cache tiers have no price; say one as host=1TB,50GB/s,0.002$/GBh")
    elif kept is not None and kept.usd_hour and question.course is not None:
        notes.append("costs over time leave out the rent of cache tiers")
    if played is None and question.confirm:
        notes.append("the simulation agrees with no candidate: each missed an objective, with replicas added too")
    if played is not None and played.felt.stable:
        felt = best.feels(question.demand)(1.0)
        for each in question.slo:
            said, seen = each.value(felt), each.value(played.felt)
            if abs(seen / said - 1.0) > _APART:
                notes.append(f"{each.what}: the formula says {format_time(said)}, the simulation {format_time(seen)}")
    scenarios = [part.replica.scenario for part in best.parts]
    told = {(key, each[key]): None for each in scenarios for key in ("weights", "kv", "activations") if key in each}
    notes += [f"{key} {value} as asked; its effect on the quality of answers is not counted" for key, value in told]
    if question.space.weights == question.space.kv == (None,):
        notes.append(OWN_FORMATS)
    notes += [note for part in best.parts for note in part.replica.resolved.warnings]
    return notes

"""Candidates in order of cost, the cheapest played request by request: the formula against a simulation."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.fleet import Option, Part
from rooflinekit.decision.planning.objective import Felt, Objective, slowest
from rooflinekit.decision.planning.search import Found, PlanQuestion, Refusal
from rooflinekit.estimation.lengths import LogNormal, cv
from rooflinekit.model.traffic.percentiles import Spread
from rooflinekit.simulation.arrivals import Arrival, Constant, Gamma, Poisson, Requests, generate
from rooflinekit.simulation.ledger import Ledger, Sketch
from rooflinekit.simulation.replica import Replica as Served
from rooflinekit.simulation.simulate import Load, Setup, serve

__all__ = ["Played", "ranked", "warnings"]

_REQUESTS = (400, 2000)  # least and most that count
_STEPS = 150_000  # of one replica, to which the requests are cut
_WARM = 2.5  # requests' own times before anything counts
_TRACED = 5000  # requests of a trace
_PAIRED = 4000  # requests that count on two pools, which are many replicas
_SLICE = 48  # replicas of two pools that are played at most
_ROUTER = "random"  # as the formula has it: what a replica sees are arrivals of its own
_DRIFT = 0.1  # variation of equal answers of users, who would otherwise march in step as no real clients do

_RUNS = 12  # simulations beyond those of the candidates that are asked for
_APART = 0.2  # of formula and simulation, beyond which it is said


@dataclass(frozen=True)
class Played:
    """What a simulation of the peak gave: latencies, requests that count, and which objectives failed."""

    felt: Felt
    requests: int
    failed: tuple[Objective, ...]

    @property
    def confirmed(self) -> bool:
        """Whether every objective was met."""
        return not self.failed


def play(option: Option, demand: Demand, slo: tuple[Objective, ...], seed: int = 0) -> Played:
    """Simulate the peak hour of an option with its spare replicas down.

    Equal replicas that get random shares of the requests are alike, so one of them is played; a trace, and pools of two
    kinds, are played on all replicas (up to 48 of two pools; a slice of a larger fleet).
    """
    if option.kind == "disaggregated":
        windows = [_pools(option, demand, seed)]
    else:
        windows = [_alike(part, demand, seed) for part in option.parts]
    felt = slowest([window.felt() for window in windows])
    failed = tuple(objective for objective in slo if not objective.met(felt))
    return Played(felt, sum(window.ttft.count for window in windows), failed)


class _Window:
    """Watches a run, and forgets the latencies of what came before `start` [s]."""

    def __init__(self, start: float) -> None:
        self.start, self._ledger = start, Ledger.__new__(Ledger)
        self._seen = False

    def __call__(self, index: int, replica: Served, now: float) -> None:
        """After a step."""
        if not self._seen:
            self._ledger = replica.ledger
        if not self._seen and now >= self.start:
            self._ledger.ttft, self._ledger.tpot, self._ledger.e2el = Sketch(), Sketch(), Sketch()
            self._seen = True

    @property
    def ttft(self) -> Sketch:
        """Of the requests that count."""
        return self._ledger.ttft

    def felt(self) -> Felt:
        """The latencies."""
        ledger = self._ledger
        means = {"ttft": ledger.ttft.mean, "tpot": ledger.tpot.mean, "e2el": ledger.e2el.mean}
        return Felt(means, Spread(ledger.ttft.quantile, ledger.tpot.quantile, ledger.e2el.quantile))


def _alike(part: Part, demand: Demand, seed: int) -> _Window:
    """One replica with its share, or all of them behind a router where a trace is replayed."""
    seen, load = part.seen(demand), part.load(demand)
    if demand.trace is not None:
        setup = Setup(replicas=part.working, router=_ROUTER, seed=seed)
        return _run(part, demand, demand.trace.arrivals(_speed(demand) * part.share, _TRACED), setup)
    felt = part.replica.answer(seen, load).loaded
    turn, step = float(felt.e2e), float(felt.tpot.expected)
    rate = load / turn if demand.closed else load
    counted = min(max(_STEPS * step * rate, _REQUESTS[0]), _REQUESTS[1])  # as many as fit into a number of steps
    warm = _WARM * turn
    if not demand.closed:
        return _run(part, demand, _open(seen, load, seed), Setup(seed=seed), counted / rate + warm, warm)
    osl = demand.osl if cv(demand.osl) > 0.0 or demand.osl.mean < 2.0 else LogNormal(demand.osl.mean, _DRIFT)
    arrivals = generate(Poisson(1.0), Requests(demand.isl, osl), 1 << 40, seed)
    return _run(part, demand, arrivals, Setup(seed=seed), counted / rate + warm, warm, users=int(load))


def _pools(option: Option, demand: Demand, seed: int) -> _Window:
    """Both pools, or a slice of them."""
    first, after = option.parts
    whole = first.working + after.working
    counts = [max(part.working * min(_SLICE, whole) // whole, 1) for part in option.parts]
    setup = Setup(replicas=counts[1], prefill_replicas=counts[0], router=_ROUTER, seed=seed)
    if demand.trace is not None:
        return _run(after, demand, demand.trace.arrivals(_speed(demand), _TRACED), setup, prefill=first)
    rate = demand.peak_load * min(counts[0] / first.working, counts[1] / after.working)
    warm = _WARM * option.feel(demand).means["e2el"]
    return _run(after, demand, _open(demand, rate, seed), setup, _PAIRED / rate + warm, warm, prefill=first)


def _run(  # noqa: PLR0913, PLR0917 - a load and who bears it
    part: Part,
    demand: Demand,
    arrivals: Iterator[Arrival],
    setup: Setup,
    seconds: float = math.inf,
    warm: float = 0.0,
    users: int | None = None,
    prefill: Part | None = None,
) -> _Window:
    window, longest = _Window(warm), int(min(demand.longest, 1 << 20))
    load = Load(arrivals, float(demand.isl.mean) + float(demand.osl.mean), longest, users, duration=seconds)
    first = None if prefill is None else prefill.replica.resolved
    if serve(part.replica.resolved, load, setup, window, first).interrupted:  # half a run confirms nothing
        raise KeyboardInterrupt
    return window


def _open(demand: Demand, rate: float, seed: int) -> Iterator[Arrival]:
    variation = demand.arrival_cv
    process = Constant(rate) if variation == 0 else Poisson(rate) if variation == 1 else Gamma(rate, variation)
    return generate(process, Requests(demand.isl, demand.osl), 1 << 40, seed)


def _speed(demand: Demand) -> float:
    """How much faster than it came a trace is replayed."""
    trace = demand.trace
    assert trace is not None  # asked only where there is one
    return demand.peak_load / ((len(trace) - 1) / trace.time[-1])


@dataclass(frozen=True)
class Ranked:
    """An option, its simulation, and how many accelerators the formula alone asked for."""

    option: Option
    played: Played | None
    formula_gpus: int


def ranked(question: PlanQuestion, found: Found) -> list[Ranked]:
    """Options by cost, those confirmed first; a refuted one goes on with one more replica until it is confirmed.

    The cheapest is simulated until as many as asked are confirmed, so none that is left could be cheaper than they.
    """
    tie, rank, confirm = count(), question.tariff.rank, question.confirm
    heap = [(rank(option), next(tie), option, option.gpus) for option in found.options]
    heapq.heapify(heap)
    kept: list[Ranked] = []
    runs = confirm + _RUNS if confirm else 0
    while heap and len(kept) < confirm and runs:
        _, _, option, formula = heapq.heappop(heap)
        runs -= 1
        played = play(option, question.demand, question.slo, question.seed)
        if played.confirmed:
            kept.append(Ranked(option, played, formula))
            continue
        more = option.grown(max(1, option.parts[0].working // 20))
        if all(part.gpus <= question.reserve.limit(part.replica.gpu) for part in more.parts):
            heapq.heappush(heap, (rank(more), next(tie), more, formula))
        else:
            name = ", ".join(f"{part.replicas} x {part.replica.gpu}" for part in option.parts)
            found.refused.append(Refusal(name, "the simulation refutes it, and more are not to be had"))
    rest = [Ranked(option, None, formula) for _, _, option, formula in sorted(heap)]
    return [*kept, *rest]


def warnings(question: PlanQuestion, found: Found, order: list[Ranked]) -> list[str]:
    """What a planner should hear beside the numbers."""
    notes = list(found.notes)
    unknown = [gpu for gpu, price in question.tariff.prices.items() if price is None]
    if unknown:
        notes.append(f"no price is known for {', '.join(unknown)}; give --price {unknown[0]}=USD to compare by cost")
    notes += question.tariff.assumptions
    if not question.demand.closed:
        notes.append("requests reach replicas at random; a balancer that evens them out does better")
    best, played = order[0].option, order[0].played
    if played is None and question.confirm:
        notes.append("no candidate was confirmed: each that was simulated missed an objective, with replicas added too")
    if played is not None and played.felt.stable:
        felt = best.feel(question.demand)
        for each in question.slo:
            said, seen = each.value(felt), each.value(played.felt)
            if abs(seen / said - 1.0) > _APART:
                words = f"{each.statistic} {each.metric.upper()}"
                notes.append(f"{words}: the formula says {said * 1e3:.3g} ms, the simulation {seen * 1e3:.3g} ms")
    scenarios = [part.replica.scenario for part in best.parts]
    told = {(key, each[key]): None for each in scenarios for key in ("weights", "kv", "activations") if key in each}
    notes += [f"{key} {value} as asked: what that does to the quality of answers is not weighed" for key, value in told]
    if question.space.weights == question.space.kv == (None,):
        notes.append("weights and cache are in the checkpoint's formats; others, such as fp8, are tried if asked for")
    notes += [note for part in best.parts for note in part.replica.resolved.warnings]
    return notes

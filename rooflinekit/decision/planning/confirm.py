"""The top options played request by request: what the formula says against what a simulation gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.objective import Felt, Objective, slowest
from rooflinekit.decision.planning.option import Option, Part
from rooflinekit.estimation.lengths import Length, LogNormal, cv
from rooflinekit.model.traffic.percentiles import Spread
from rooflinekit.simulation.arrivals import Constant, Gamma, Poisson, Requests, generate
from rooflinekit.simulation.event_loop import Watch
from rooflinekit.simulation.ledger import Ledger
from rooflinekit.simulation.replica import Replica as Served
from rooflinekit.simulation.request import Arrival
from rooflinekit.simulation.simulate import Load, Setup, serve
from rooflinekit.simulation.sketch import Sketch

__all__ = ["Played", "play"]

_REQUESTS = (400, 2000)  # least and most that count
_STEPS = 150_000  # of one replica, to which the requests are cut
_WARM = 2.5  # requests' own times before anything counts
_TRACED = 5000  # requests of a trace
_PAIRED = 4000  # requests that count on two pools, which are many replicas
_SLICE = 48  # replicas of two pools that are played at most
_ROUTER = "random"  # as the formula has it: what a replica sees are arrivals of its own
_DRIFT = 0.1  # variation of equal answers of users, who would otherwise march in step as no real clients do


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
    seen = part.seen(demand)
    felt = part.replica.answer(seen, part.load(demand)).loaded
    turn, step = float(felt.e2e), float(felt.tpot.expected)
    if demand.trace is not None:
        setup = Setup(replicas=part.working, router=_ROUTER, seed=seed)
        arrivals = demand.trace.arrivals(_speed(demand) * part.share, _TRACED)
        return _run(part, _load(arrivals, demand, math.inf), setup, 0.0)
    load = part.load(demand)
    if demand.closed:
        rate = load / turn
        seconds = _counted(rate, step) / rate + _WARM * turn
        arrivals = generate(Poisson(1.0), Requests(demand.isl, _drifting(demand.osl)), 1 << 40, seed)
        return _run(part, _load(arrivals, demand, seconds, int(load)), Setup(seed=seed), _WARM * turn)
    seconds = _counted(load, step) / load + _WARM * turn
    return _run(part, _load(_open(seen, load, seed), demand, seconds), Setup(seed=seed), _WARM * turn)


def _pools(option: Option, demand: Demand, seed: int) -> _Window:
    """Both pools, or a slice of them."""
    first, after = option.parts
    whole = first.working + after.working
    counts = [max(part.working * min(_SLICE, whole) // whole, 1) for part in option.parts]
    rate = demand.peak_load * min(counts[0] / first.working, counts[1] / after.working)
    felt = option.feel(demand)
    turn = felt.means["e2el"]
    setup = Setup(replicas=counts[1], prefill_replicas=counts[0], router=_ROUTER, seed=seed)
    if demand.trace is not None:
        arrivals, seconds, warm = demand.trace.arrivals(_speed(demand), _TRACED), math.inf, 0.0
    else:
        warm = _WARM * turn
        arrivals, seconds = _open(demand, rate, seed), _PAIRED / rate + warm
    return _run(after, _load(arrivals, demand, seconds), setup, warm, first)


def _run(part: Part, load: Load, setup: Setup, warm: float, prefill: Part | None = None) -> _Window:
    window = _Window(warm)
    watch: Watch = window
    first = None if prefill is None else prefill.replica.resolved
    if serve(part.replica.resolved, load, setup, watch, first).interrupted:  # half a run confirms nothing
        raise KeyboardInterrupt
    return window


def _load(arrivals: Iterator[Arrival], demand: Demand, seconds: float, users: int | None = None) -> Load:
    traffic = demand.traffic
    longest = int(min(demand.longest, 1 << 20))
    return Load(arrivals, float(traffic.isl) + float(traffic.osl), longest, users, duration=seconds)


def _open(demand: Demand, rate: float, seed: int) -> Iterator[Arrival]:
    variation = demand.arrival_cv
    process = Constant(rate) if variation == 0 else Poisson(rate) if variation == 1 else Gamma(rate, variation)
    return generate(process, Requests(demand.isl, demand.osl), 1 << 40, seed)


def _counted(rate: float, step: float) -> float:
    """Requests that count: as many as fit into a number of steps."""
    return min(max(_STEPS * step * rate, _REQUESTS[0]), _REQUESTS[1])


def _speed(demand: Demand) -> float:
    """How much faster than it came a trace is replayed."""
    trace = demand.trace
    assert trace is not None  # asked only where there is one
    return demand.peak_load / ((len(trace) - 1) / trace.time[-1])


def _drifting(osl: Length) -> Length:
    return osl if cv(osl) > 0.0 or osl.mean < 2.0 else LogNormal(osl.mean, _DRIFT)

"""Requests that a curve of one replica does not know, played one by one on a fleet: traces, sessions, changing rates.

The busiest windows of a trace are replayed, and what conversations leave in the caches of replicas is followed
(`rooflinekit.simulation`). A run diverges where fewer requests leave than come and the number of those in the system
has a trend: then no percentile means anything.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.fleet import Option, Part
from rooflinekit.decision.planning.objective import METRICS, Felt, Objective, slowest
from rooflinekit.decision.planning.search import PlanQuestion
from rooflinekit.load.arrivals import Arrival
from rooflinekit.load.scene import Scheduler
from rooflinekit.simulation.ledger import Sketch
from rooflinekit.simulation.sessions import SessionSource
from rooflinekit.simulation.simulate import SentLoad, watched
from rooflinekit.simulation.watch import Batches

_REQUESTS = 6000  # of sessions that count
_BESIDE = 8  # replicas with prefix caches that are played at most: a router knows what they hold and how busy they are
_WARM = 2.5  # requests' own times before anything counts
_WINDOW, _WHOLE = 4000, 60_000  # requests of a window of a trace that are played, and of a trace that is played whole
_BUSY = 0.95  # of the knee, at which the time of a request is taken to be at most


@dataclass(frozen=True)
class Replay:
    """Latencies of one simulation, how many requests count, and whether it has no steady state."""

    felt: Felt
    requests: int
    diverges: bool = False

    @classmethod
    def of(cls, batches: Batches) -> Replay:
        """Read a simulation's result."""
        whole = dict(zip(METRICS, (Sketch.joined(each) for each in zip(*batches.parts, strict=True)), strict=True))

        def read(metric: str, share: float | None) -> float:
            return whole[metric].mean if share is None else whole[metric].quantile(share)

        return cls(Felt(read), whole["ttft"].count, batches.growth[0])


@dataclass(frozen=True)
class Replayed:
    """A fleet at its peak.

    felt: latencies; requests: that count; played: which they are; failed: objectives that do not hold with the
    confidence asked for; diverges: fewer requests leave than come.
    """

    felt: Felt
    requests: int
    played: str
    failed: tuple[Objective, ...]
    diverges: bool

    @property
    def agrees(self) -> bool:
        """True if every objective holds in a steady state."""
        return not (self.failed or self.diverges)


def needs_replay(option: Option, demand: Demand) -> bool:
    """True if its requests come as a trace has them, or find what others have left in a cache."""
    return demand.trace is not None or any(part.replica.kept for part in option.parts)


def replay(option: Option, question: PlanQuestion, whole: bool = False) -> Replayed:
    """Play the peak of an option with its spare replicas down, at expected times and as far up as is to be sure of.

    whole: also all of a trace, unless it has more than 60,000 requests.
    """
    demand, plain = question.demand, option.feels(question.demand)(1.0)
    runs, played = _runs(option, demand, question.seed, 1.0, whole)
    failed, diverges = list[Objective](), any(run.diverges for run in runs)
    for each in question.slo:
        steps, further = plain.factors(each.metric, option.deviations)
        slower = runs if steps == 1.0 else _runs(option, demand, question.seed, steps, whole=False)[0]
        diverges |= any(run.diverges for run in slower)
        if not each.value(slowest([run.felt for run in slower])) * steps * further <= each.limit:
            failed.append(each)
    requests = runs[-1].requests if whole else sum(run.requests for run in runs)
    return Replayed(slowest([run.felt for run in runs]), requests, played, tuple(failed), diverges)


def _runs(option: Option, demand: Demand, seed: int, speed: float, whole: bool) -> tuple[list[Replay], str]:
    """Every simulation of the option at its peak, `speed` times as fast, and which requests they play."""
    if demand.trace is not None:
        return _replays(option, replace(demand, speed=demand.speed * speed), seed, whole)
    runs = [_of_sessions(part, demand, seed, speed) for part in option.parts]
    return runs, f"{sum(run.requests for run in runs):,} requests of sessions at the peak"


def _of_sessions(part: Part, demand: Demand, seed: int, speed: float) -> Replay:
    """Replicas among which a router places sessions by their prefix; or one of those that get them at random."""
    assert demand.prefixes is not None and demand.prefixes.law is not None  # what is no trace has sessions
    law, router = demand.prefixes.law, demand.prefixes.router
    count = min(part.working, _BESIDE) if part.replica.kept is not None and router != "random" else 1
    load = part.load(demand)
    warm, rate = _WARM * part.bearer.feel(part.seen(demand), load).value("e2el", None), load * count * speed
    requests = math.ceil(_REQUESTS + warm * rate)
    comes = SessionSource(law, demand.osl, law.most or 0, rate=rate, requests=requests, seed=seed)
    setup = Scheduler(replicas=count, router=router if count > 1 else "round-robin", seed=seed)
    return _run(part, demand, comes, setup, _REQUESTS / rate + warm, warm)


def run_varying(  # noqa: PLR0913, PLR0917 - a load that varies, and where it is looked at
    part: Part,
    demand: Demand,
    rates: NDArray[np.float64],
    place: int,
    calm: int,
    period: float,
    count: int,
    factor: float,
    seed: int,
) -> Replay:
    """One replica whose requests come at a rate of its own in each period, `count` of them around one of these.

    rates: requests/s of the replica in periods of so many seconds, which repeat; calm: the last one up to `place` at
    which nothing waits, from which on it is played (some thousand requests at most); factor: how many times as long as
    expected each step takes. Requests come so much faster, and latencies are to be stretched.
    Raises KeyboardInterrupt.
    """
    load = min(float(rates[place]) * factor, _BUSY * part.bearer.sustained(demand))
    warm = _WARM * part.bearer.feel(demand, load).value("e2el", None) * factor
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

    return _run(part, demand, comes(), Scheduler(seed=seed), float(clock[-1]), warm / factor)


def _replays(option: Option, demand: Demand, seed: int, whole: bool) -> tuple[list[Replay], str]:
    """The busiest windows of the trace, with as much before each as it is long; and all of it."""
    trace = demand.trace
    assert trace is not None  # asked only where there is one
    short = demand.span_s >= trace.time[-1]
    windows = [] if short else demand.windows()
    runs = [run for window in windows for run in _replay(option, demand, seed, window.start, window.end)]
    named = ", ".join(
        f"{bisect_left(trace.time, window.start) + 1:,} to {bisect_left(trace.time, window.end):,}"
        for window in windows
    )
    text = f"the busiest {demand.span_s:,.0f} s by requests and by tokens (requests {named})"
    if short or (whole and len(trace) <= _WHOLE):
        all_of_it = _replay(option, demand, seed, 0.0, math.inf)
        # A day has a trend, which its windows are judged without.
        counted = [replace(run, requests=len(trace), diverges=run.diverges and short) for run in all_of_it]
        runs += counted
        text = f"the whole trace of {len(trace):,} requests" + ("" if short else f", and {text}")
    return runs, text


def _replay(option: Option, demand: Demand, seed: int, start: float, end: float) -> Iterator[Replay]:
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
            Arrival(
                (trace.time[at] - lead) / demand.speed,
                trace.isl[at],
                trace.osl[at],
                trace.prefix(at) if prefixes else (),
            )
            for at in places
            if drawn(at)
        )
        router = prefixes.router if prefixes else demand.router
        setup = Scheduler(replicas=counts[-1], prefill_replicas=counts[0] if pooled else 0, router=router, seed=seed)
        first = option.parts[0] if pooled else None
        before = range(places.start) if prefixes else ()
        former = [(prefixes.conversations[at], trace.prefix(at)) for at in before if prefixes and drawn(at)]
        yield _run(part, demand, arrivals, setup, math.inf, (start - lead) / demand.speed, prefill=first, before=former)


def _drawn(conversations: Sequence[int], share: float, seed: int) -> Callable[[int], bool]:
    """True if a request is of the share of the conversations that is played."""
    draw, drawn = Random(seed), dict[int, bool]()
    return lambda at: share >= 1.0 or drawn.setdefault(conversations[at], draw.random() < share)


def _run(  # noqa: PLR0913, PLR0917 - a load and who bears it
    part: Part,
    demand: Demand,
    comes: Iterator[Arrival] | SessionSource,
    setup: Scheduler,
    seconds: float = math.inf,
    warm: float = 0.0,
    prefill: Part | None = None,
    before: Sequence[tuple[int, Sequence[int]]] = (),
) -> Replay:
    sent: Any = {"sessions" if isinstance(comes, SessionSource) else "sent": comes}
    most = int(min(demand.longest, 1 << 20))
    load = SentLoad(demand.isl, demand.osl, most=most, duration=seconds, before=before, **sent)
    if (kept := part.replica.kept) is not None and demand.prefixes is not None:
        hashed = demand.prefixes.trace.block_tokens
        setup = replace(setup, prefix_cache=True, hash_tokens=hashed, tiers=kept.tiers)
    own, batches = part.replica.resolved, Batches(warm)
    first = own if prefill is None else prefill.replica.resolved
    if not watched(own, load, setup, first, batches):  # half says nothing
        raise KeyboardInterrupt
    return Replay.of(batches)

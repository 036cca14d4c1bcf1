"""Demand on a fleet: requests a second or users, their lengths, the busiest hour.

A trace brings its own peak: the largest mean rate over a window as long as its users would notice, ten requests' times
within the objectives (`span_s`), and at least what 100 requests take. Its gaps there say how bursty it is.

Prefix caches find something of a traffic with block ids or sessions. A cache that keeps conversations on their replica
finds with n replicas what one of n times the size finds alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from itertools import accumulate, islice, pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from rooflinekit.decision.economics.price import MONTH_HOURS, Purchase, read_owning
from rooflinekit.decision.planning.objective import METRICS, Objective, parse_objectives, refuse_undecoded
from rooflinekit.estimation.options import OptionRow, options_of, part_of, quantity, read
from rooflinekit.estimation.scenario import RequestClass
from rooflinekit.load.answer import CROWD, STEADY, Load
from rooflinekit.load.arrivals import Arrival, Drawn, Gamma, Process, Requests, generate
from rooflinekit.load.lengths import Empirical, Fixed, Length, Longer, Uniform, cv, lengths_of, longer
from rooflinekit.load.scene import CacheTier, kv_capacity_tokens
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.batch import positive, whole_number
from rooflinekit.model.types.errors import InputError, SpecError, WorkloadError, nearest_of
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.late import np
from rooflinekit.simulation.reuse import Reuse, conversations, reuse_of
from rooflinekit.simulation.sessions import SessionLaw, SessionSource, parse_sessions, session_trace
from rooflinekit.simulation.simulate import pcie_bandwidth
from rooflinekit.simulation.tiers import fill, read_tiers
from rooflinekit.simulation.traces import Trace, load_trace
from rooflinekit.specs.delimited import text_rows
from rooflinekit.specs.files import read_yaml

if TYPE_CHECKING:
    from numpy.random import Generator

    from rooflinekit.simulation.traces import Trace


@dataclass(frozen=True)
class Kept:
    """Hits of a replica's cache for a mean prompt: tokens, seconds in which tiers load them, their rent [USD/h].

    found: tokens of each prompt of the sample, one after the other. A first turn has all of its prompt to compute.
    """

    cached: float
    late: float
    usd_hour: float
    found: tuple[int, ...]
    tiers: tuple[CacheTier, ...] = ()


@dataclass(frozen=True)
class Prefixes:
    """Prompts by their blocks, who gets them (as in `simulation.reuse`), and the tiers that there may be."""

    trace: Trace
    router: str
    tiers: tuple[CacheTier, ...] = ()
    law: SessionLaw | None = None  #: of the sessions that the trace is a sample of

    @cached_property
    def conversations(self) -> Sequence[int]:
        """Conversation of each request."""
        return conversations(self.trace)

    @cached_property
    def _reuse(self) -> Callable[[int], Reuse]:
        return cache(lambda count: reuse_of(self.trace, count, "random") if count else reuse_of(self.trace))

    def reuse(self, replicas: float) -> Reuse:
        """Reuse in caches that stand apart; with affinity that is as of one cache for all."""
        count = 1 << round(math.log2(max(replicas, 1.0)))  # one pass for each doubling
        return self._reuse(count if self.router == "random" else 0)

    def share(self, replicas: float, tokens: float) -> float:
        """Share of the prompt tokens that replicas with caches of so many tokens find."""
        return self.reuse(replicas).share(tokens if self.router == "random" else tokens * replicas)

    def kept(self, predictor: Predictor, tiers: tuple[CacheTier, ...], replicas: float) -> Kept:
        """Hits of one of so many replicas, with its whole pool as a cache."""
        counted = len(self.trace) - self.trace.former
        isl = sum(self.trace.isl[self.trace.former :]) / counted
        typical = isl + sum(self.trace.osl[self.trace.former :]) / counted
        each, share = float(predictor.memory.kv_bytes_per_token), cache(partial(self.share, replicas))
        pool = kv_capacity_tokens(predictor, typical, int(predictor.memory.rows))
        filled = list(
            fill(
                tiers,
                pool,
                share,
                replicas=replicas,
                prompt_bytes=isl * each,
                token_bytes=each,
                own_link=partial(pcie_bandwidth, predictor),
            )
        )
        found = filled[-1].share if filled else share(pool)
        late, usd_hour = sum(row.load_s for row in filled), sum(row.usd_hour for row in filled)
        known = self.reuse(replicas).found_of(found)
        return Kept(min(found * isl, isl - 1.0), late, usd_hour, known, tiers)

    def drawn(self, kept: Kept, process: Process, count: int, seed: int) -> Drawn:
        """The requests of the sample in their order, again and again, with what a cache finds of each."""
        trace, first = self.trace, self.trace.former
        places = [number % len(kept.found) for number in range(count)]
        isl, osl = ([law[first + at] for at in places] for law in (trace.isl, trace.osl))
        times = [each.time for each in generate(process, Requests(Fixed(1), Fixed(1)), count, seed)]
        cached = [min(kept.found[at], isl[number] - 1) for number, at in enumerate(places)]
        return Drawn(times, isl, osl, [0] * count, cached)


_TURNS, _FEW = 10.0, 100.0  # requests' times in a window of a trace, and requests of the mean rate at least
_SAMPLE, _MOST_CONTEXT = 6000, 131_072  # requests of sessions that are looked at; tokens of a context, if not told
ROUTER = "round-robin"
"""Default router: each in turn, as `simulate` has it."""

_AFFINITY = "prefix-affinity"
_TOGETHER = 8  # replicas that are played at most behind a router that looks at them
_EVEN = 16  # replicas beyond which arrivals in turn are taken as even as with these
_DRIFT = 0.1  # variation of equal answers of users
_UNHURRIED = 60.0  # seconds of a window where no objective limits a whole request


@dataclass(frozen=True)
class Window:
    """Part of a trace, on its own clock [s]."""

    start: float
    end: float
    requests: int
    gap_cv: float  #: of the gaps between its arrivals

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / (self.end - self.start)


def busiest(trace: Trace, span: float, weights: Sequence[float] | None = None) -> Window:
    """The window of `span` seconds with most requests, or with the largest sum of `weights` (one for each request).

    >>> burst = busiest(Trace("t", "plain", [0.0, 8.0, 9.0, 10.0, 20.0], [1] * 5, [1] * 5), 4.0)
    >>> burst.start, burst.requests, burst.rate
    (8.0, 3, 0.75)
    """
    time = np.asarray(trace.time, float)
    ends = np.searchsorted(time, time + span, "right")
    sums = np.concatenate([[0.0], np.cumsum(np.ones(len(time)) if weights is None else np.asarray(weights, float))])
    first = int(np.argmax(sums[ends] - sums[: len(time)]))
    last = int(ends[first])
    gaps = np.diff(time[first:last])
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return Window(
        float(time[first]), float(time[first]) + span, last - first, float(gaps.std()) / mean if mean else 0.0
    )


@dataclass(frozen=True)
class Demand:
    """Traffic of the whole service.

    Of `rate` (mean requests a second, an open loop) and `users` (who each wait for their answer, a closed loop) one is
    given. peak: the busiest hour over the mean; the fleet is made for it, and paid all day. arrival_cv: standard
    deviation over mean of the gaps between arrivals; router: who chooses the replica of a request. Of a trace, span_s
    is the window whose busiest place is the peak, and `speed` how many times as fast as it came it is replayed.
    """

    rate: float | None
    users: float | None
    peak: float
    isl: Length
    osl: Length
    arrival_cv: float = 1.0
    trace: Trace | None = None
    span_s: float = math.inf
    speed: float = 1.0
    router: str = ROUTER
    reach: float = 1.0  #: users beyond the peak that a replica is asked about, for headroom
    together: int = 1  #: replicas that are played behind a router that looks at them
    prefixes: Prefixes | None = field(default=None, repr=False, compare=False)  #: what caches find, where that is known
    cached: float = 0.0  #: tokens of a mean prompt that any replica has in its cache already, where they are stated

    @property
    def closed(self) -> bool:
        """True if users wait for their answers."""
        return self.users is not None

    @property
    def mean_load(self) -> float:
        """Requests a second, or users, in the mean."""
        return float(self.users if self.users is not None else self.rate or 0.0)

    @property
    def peak_load(self) -> float:
        """Load in the busiest hour; whole users."""
        load = self.mean_load * self.peak
        return float(math.ceil(load - 1e-9)) if self.closed else load

    @property
    def longest(self) -> float:
        """Tokens of the longest request."""
        return self.isl.quantile(1.0) + self.osl.quantile(1.0)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on a trace, or on sessions that are longer than the context."""
        if self.prefixes is not None and (law := self.prefixes.law) is not None:
            return law.cut(law.most or 0, self.osl.mean)
        return () if self.trace is None else self.trace.notes

    @property
    def unit(self) -> str:
        """Unit of a load."""
        return "users" if self.closed else "requests/s"

    def asked(self, seed: int) -> Load:
        """One of the loads that a replica may have, as it is played; a curve puts its rate or users in its place."""
        if not self.closed:
            return Load(self.isl, self.osl, rate=1.0, burstiness=self.arrival_cv, seed=seed, cached=self.cached)
        return Load(self.isl, self._drifting, users=1, seed=seed, cached=self.cached)

    @property
    def _drifting(self) -> Length:
        """Answers of users: equal ones vary evenly by a tenth, or users would march in step as no clients do."""
        spread = round(_DRIFT * math.sqrt(3.0) * self.osl.mean)
        if not self.closed or cv(self.osl) > 0.0 or not spread:
            return self.osl
        return Uniform(round(self.osl.mean) - spread, round(self.osl.mean) + spread)

    @property
    def longest_played(self) -> float:
        """Tokens of the longest request that is played."""
        return self.isl.quantile(1.0) + self._drifting.quantile(1.0)

    def arrivals(self, rate: float, seed: int) -> Iterator[Arrival]:
        """Requests as long as these at another rate [1/s], without end."""
        return generate(Gamma(rate, self.arrival_cv), Requests(self.isl, self.osl), 1 << 40, seed)

    def seen(self, replicas: float) -> Demand:
        """Demand on one of so many replicas behind the router: gaps with c² = 1 + (c₀² − 1)/n at random, c₀²/n in turn.

        In turn a replica waits for n gaps; beyond 16 replicas they come as evenly as with 16.

        >>> from rooflinekit.load.lengths import Fixed
        >>> Demand(8.0, None, 1.0, Fixed(100), Fixed(10), arrival_cv=3.0, router="random").seen(4.0).arrival_cv ** 2
        3.0
        >>> Demand(8.0, None, 1.0, Fixed(100), Fixed(10), arrival_cv=3.0).seen(9.0).arrival_cv ** 2
        1.125
        """
        if self.closed or replicas <= 1.0:
            return self
        if self.router == "round-robin":
            return replace(self, arrival_cv=self.arrival_cv / math.sqrt(beside(replicas)))
        if self.router == "least-loaded":
            return replace(self, together=min(beside(replicas), _TOGETHER))
        return replace(self, arrival_cv=math.sqrt(1.0 + (self.arrival_cv**2 - 1.0) / beside(replicas)))

    def windows(self) -> list[Window]:
        """The busiest windows of the trace, by requests and by tokens in and out, in order of time, without overlap."""
        trace = self.trace
        assert trace is not None  # asked only where there is one
        found: list[Window] = []
        for weights in (None, trace.isl, trace.osl):
            window = busiest(trace, self.span_s, weights)
            if all(abs(window.start - other.start) >= self.span_s for other in found):
                found.append(window)
        return sorted(found, key=lambda window: window.start)

    def to_dict(self) -> dict[str, Any]:
        """Return the demand as JSON; prompts by their text."""
        text = self.isl.text if isinstance(self.isl, Longer) else self.isl
        return {
            "rate": self.rate,
            "users": self.users,
            "peak": self.peak,
            "peak_load": self.peak_load,
            "isl_mean": text.mean,
            "isl_cv": cv(text),
            "osl_mean": self.osl.mean,
            "osl_cv": cv(self.osl),
            "cached": self.cached,
            "arrival_cv": self.arrival_cv,
            "trace": None if self.trace is None else self.trace.name,
            "span_s": self.span_s if math.isfinite(self.span_s) else None,
        }

    def __str__(self) -> str:
        load = f"{self.mean_load:,g} {self.unit}"
        if self.prefixes is not None and self.prefixes.law is not None:
            load += " of sessions"
        if self.trace is not None:
            load = f"{self.mean_load:.4g} requests/s, {self.peak_load:.4g} in the busiest {self.span_s:,.0f} s"
        elif self.peak > 1.0:
            load += f", {self.peak_load:,g} in the busiest hour"
        lengths = [_length(self.isl), _length(self.osl)]
        process = "" if self.closed or self.arrival_cv == 1.0 else f", gaps with cv {self.arrival_cv:.3g}"
        cached = f" ({self.cached:,.0f} cached)" if self.cached else ""
        return f"{load}{process}, {lengths[0]} tokens in{cached}, {lengths[1]} out"


def _length(length: Length) -> str:
    if isinstance(length, Longer):
        return f"{_length(length.text)} and {length.more:,} of images"
    return f"{length.mean:,.0f}{f' (cv {cv(length):.2g})' if cv(length) else ''}"


def beside(replicas: float) -> int:
    """The power of two, up to 16, of replicas that a fleet is taken as at least.

    >>> [beside(count) for count in (1, 3, 8, 100)]
    [1, 2, 8, 16]
    """
    return 1 << (int(min(max(replicas, 1.0), _EVEN)).bit_length() - 1)


def decoding(rate: float, osl: float, tpot: float) -> float:
    """Sequences that a rate of requests [1/s] keeps decoding at a TPOT [s]: λ·(N − 1)·t, Little's law.

    Little (1961), Operations Research 9(3): what is in a system is the rate of arrivals times the time that each stays.

    >>> decoding(10.0, 101.0, 0.02)
    20.0
    """
    return rate * (osl - 1.0) * tpot


def read_demand(given: dict[str, Any], slo: Sequence[Objective] = ()) -> Demand:
    """Read rate, users, trace, sessions (of at most `max_context` tokens), peak, lengths, cv and clean.

    A trace brings its rate, its peak at the time scale of the objectives, its lengths and how its arrivals vary; a rate
    beside it replays it at that mean rate, and a peak makes all of it that much faster.

    Raises InputError for none of the loads or two of them, WorkloadError for numbers that make no sense.

    >>> demand = read_demand({"rate": 50, "peak": 1.5, "isl": 2000, "osl": 300})
    >>> demand.peak_load, demand.isl.mean
    (75.0, 2000.0)
    """
    rate, users = given.get("rate"), given.get("users")
    trace = None if given.get("trace") is None else load_trace(Path(given["trace"]), bool(given.get("clean")))
    if trace is not None and not (trace.timed and trace.sized):
        trace = trace.coming(rate, given.get("cv") or 1.0)
        given = {key: value for key, value in given.items() if key != "cv"}
    if rate is not None and users is not None:
        raise InputError("rate and users exclude each other: arrivals a second, or users who wait for their answers")
    if rate is None and users is None and trace is None:
        raise InputError("how much traffic? give rate (requests/s), users, or trace, such as --rate 10")
    tiers, router = read_tiers(given.get("cache_tier")), given.get("router")
    peak, cached = given.get("peak", 1.0), float(given.get("cached", 0))
    if cached and (trace is not None or given.get("sessions") is not None):
        raise InputError("cached is about prompts of stated lengths; leave it out with sessions and traces")
    if given.get("sessions") is not None:
        return _of_sessions(given, peak, Prefixes(Trace("", "", (), (), ()), _of_prefixes(router), tiers))
    if trace is not None:
        demand = _traced(trace, given, peak, slo)
        ids = bool(trace.block_tokens and len(trace.blocks))
        if ids:
            router = _of_prefixes(router)
            return replace(demand, router=router, prefixes=Prefixes(trace, router, tiers))
    for what, told in (("router prefix-affinity", router == _AFFINITY), ("cache_tier", bool(tiers))):
        if told:
            raise InputError(f"{what} is about prefixes that come again; give sessions, or a trace with block ids")
    if trace is not None:
        return replace(demand, router=router or ROUTER)
    text, osl = lengths_of(given)
    isl = longer(text, given.get("image_tokens", 0))
    if cached >= isl.mean:
        raise WorkloadError(f"cached={cached:g} leaves nothing of isl={isl.mean:g} to compute; use less")
    return Demand(
        rate,
        None if users is None else float(whole_number(users, "users")),
        peak,
        isl,
        osl,
        given.get("cv", 1.0),
        router=router or ROUTER,
        cached=cached,
    )


def _of_prefixes(router: str | None) -> str:
    """Router to replicas whose caches may have the prompts."""
    if router not in (None, _AFFINITY, "random"):
        raise InputError(f"router {router} does not know prefixes that come again; take {_AFFINITY} or random")
    return router or _AFFINITY


def _of_sessions(given: dict[str, Any], peak: float, prefixes: Prefixes) -> Demand:
    """Turns of conversations: prompts are as long as those of a sample at the peak, whose blocks the caches see."""
    for key in ("users", "trace", "isl", "isl_cv", "cv", "images"):
        if given.get(key):
            raise InputError(f"{key} and sessions exclude each other: sessions come at a rate and have their prompts")
    if given.get("rate") is None:
        raise InputError("sessions come at a rate of requests, of all of them together; give rate")
    rate, law = given["rate"], parse_sessions(given["sessions"])
    _, osl = lengths_of(given, osl=law.answer)
    law = replace(law, most=min(law.most or _MOST_CONTEXT, given.get("max_context") or _MOST_CONTEXT))
    trace = session_trace(SessionSource(law, osl, law.most or 0, rate=rate * peak, requests=_SAMPLE))
    seen = replace(prefixes, trace=trace, law=law)
    isl = Empirical.of(trace.isl[trace.former :])
    return Demand(rate, None, peak, isl, osl, router=prefixes.router, prefixes=seen)


def _traced(trace: Trace, given: dict[str, Any], peak: float, slo: Sequence[Objective]) -> Demand:
    for key in ("users", "isl", "osl", "isl_cv", "osl_cv", "cv"):
        if given.get(key) is not None:
            raise InputError(f"{key} and trace exclude each other: the trace has its own")
    duration = trace.time[-1]
    if not duration:
        raise WorkloadError(f"{trace.name}: all requests come at one moment, which is no rate")
    text, osl = trace.lengths()
    isl = longer(text, given.get("image_tokens", 0))
    own = (len(trace) - 1) / duration
    rate = given.get("rate", own)
    limits = {metric: max((o.limit for o in slo if o.metric == metric), default=0.0) for metric in METRICS}
    turn = limits["e2el"] or limits["ttft"] + limits["tpot"] * osl.mean or _UNHURRIED / _TURNS
    speed = peak * rate / own
    span = min(max(_TURNS * turn * speed, _FEW / own), duration)  # on the clock of the trace
    window = busiest(trace, span)
    top = max(window.rate / own, 1.0) if span < duration else 1.0
    return Demand(rate, None, peak * top, isl, osl, window.gap_cv, trace, span, speed)


HASH_TOKENS = 16
"""Tokens of a block of a class's shared beginning, by which simulated caches know it."""
_OF_EACH = 200  # requests of each class that are played, as far as no answer has too many
_DRAWN = 1024  # lengths of a class that are drawn at a time
_HOUR = 3600.0
_STREAMS = 16  # of random numbers before those of the classes' lengths


@dataclass(frozen=True)
class TrafficClass:
    """Requests of one sort.

    rate: requests/s in the mean; cached: share of each prompt that a prefix cache finds; slo: objectives, each
    `of` this class; priority: the lowest number is served first; model: "" for that of the question; requests: of a
    batch job, which has to end within `deadline_h` hours, as many as the rate says.
    """

    name: str
    rate: float
    isl: Length
    osl: Length
    cached: float = 0.0
    slo: tuple[Objective, ...] = ()
    priority: int = 0
    model: str = ""
    requests: float | None = None
    deadline_h: float | None = None


@dataclass(frozen=True)
class Mixed(Length):
    """Lengths of several sorts, each with its share of the requests.

    >>> Mixed(((0.5, Fixed(100)), (0.5, Fixed(300)))).mean
    200.0
    """

    parts: tuple[tuple[float, Length], ...]

    @override
    def moment(self, order: int) -> float:
        return sum(share * length.moment(order) for share, length in self.parts)

    @override
    def quantile(self, share: float) -> float:
        """Quantile of the longest sort, an upper limit; exact at 1."""
        return max(length.quantile(share) for _, length in self.parts)

    @override
    def sample(self, rng: Generator, count: int) -> list[int]:
        drawn = [length.sample(rng, count) for _, length in self.parts]
        kinds = rng.choice(len(self.parts), count, p=[share for share, _ in self.parts]).tolist()
        return [drawn[kind][place] for place, kind in enumerate(kinds)]


@dataclass(frozen=True)
class Mix(Demand):
    """Traffic of several classes on replicas that serve all of them, in an open loop."""

    classes: tuple[TrafficClass, ...] = ()

    @classmethod
    def of(cls, classes: Sequence[TrafficClass], peak: float = 1.0, arrival_cv: float = 1.0) -> Mix:
        """All requests of some classes; peak: the busiest hour over the mean, of each."""
        rate = sum(each.rate for each in classes)
        isl = Mixed(tuple((each.rate / rate, each.isl) for each in classes))
        osl = Mixed(tuple((each.rate / rate, each.osl) for each in classes))
        cached = sum(each.rate / rate * each.cached * each.isl.mean for each in classes)
        return cls(rate, None, peak, isl, osl, arrival_cv, cached=cached, classes=tuple(classes))

    def at(self, rates: Mapping[str, float]) -> Mix:
        """The classes that have a rate here, at these rates [1/s]."""
        named = [replace(each, rate=rates[each.name]) for each in self.classes if rates.get(each.name, 0.0) > 0.0]
        return Mix.of(named, arrival_cv=self.arrival_cv)

    @property
    def slo(self) -> tuple[Objective, ...]:
        """Objectives of all classes."""
        return tuple(objective for each in self.classes for objective in each.slo)

    @cached_property
    def shares(self) -> list[float]:
        """Share of each class in the requests."""
        whole = sum(each.rate for each in self.classes)
        return [each.rate / whole for each in self.classes]

    @property
    @override
    def longest(self) -> float:
        return max(each.isl.quantile(1.0) + each.osl.quantile(1.0) for each in self.classes)

    @override
    def asked(self, seed: int) -> Load:
        """The load with as many requests as the rarest class needs to be known."""
        count = min(max(float(STEADY), _OF_EACH / min(self.shares)), float(CROWD))
        return Load(
            self.isl,
            self.osl,
            rate=1.0,
            burstiness=self.arrival_cv,
            seed=seed,
            cached=self.cached,
            source=self.drawn,
            least=math.ceil(count),
        )

    def drawn(self, process: Process, count: int, seed: int) -> Drawn:
        """Draw so many requests of all classes in their shares, with the class of each and what the cache has of it."""
        rows = list(islice(self._drawn(process, seed), count))
        cached = [min(round(self.classes[row.kind].cached * row.isl), row.isl - 1) for row in rows]
        return Drawn(
            [row.time for row in rows],
            [row.isl for row in rows],
            [row.osl for row in rows],
            [row.priority for row in rows],
            cached,
            [row.kind for row in rows],
        )

    @override
    def arrivals(self, rate: float, seed: int) -> Iterator[Arrival]:
        """Requests of all classes in their shares, each `kind` that of its class."""
        return self._drawn(Gamma(rate, self.arrival_cv), seed)

    def _drawn(self, process: Process, seed: int) -> Iterator[Arrival]:
        sorts = Requests(Fixed(1), Fixed(1), tuple(self.shares))
        drawn = [_lengths(each, (seed, _STREAMS + place)) for place, each in enumerate(self.classes)]
        blocks = [
            tuple(range(place << 24, (place << 24) + int(each.cached * each.isl.quantile(1.0)) // HASH_TOKENS))
            for place, each in enumerate(self.classes)
        ]
        for arrival in generate(process, sorts, 1 << 40, seed):
            kind = arrival.priority
            each, (isl, osl) = self.classes[kind], next(drawn[kind])
            known = blocks[kind][: int(each.cached * isl) // HASH_TOKENS]
            yield Arrival(arrival.time, isl, osl, known, each.priority, kind=kind)


def _lengths(each: TrafficClass, seed: tuple[int, int]) -> Iterator[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    while True:
        yield from zip(each.isl.sample(rng, _DRAWN), each.osl.sample(rng, _DRAWN), strict=True)


def read_classes(path: str | PathLike[str], usual: str | Sequence[str]) -> tuple[TrafficClass, ...]:
    """Read a YAML of classes by name, or a CSV with a column `name`; `usual`: objectives of a class that says none.

    Raises SpecError naming file and class for what makes no sense.
    """
    file = Path(path)
    rows = _csv_rows(file) if file.suffix.lower() in (".csv", ".tsv") else _yaml_rows(file)
    if not rows:
        raise SpecError(f"{path}: names no class")
    found = []
    for name, row in rows.items():
        try:
            found.append(_class(name, row, usual))
        except InputError as error:
            raise SpecError(f"{path}: class {name}: {error}") from None
    last = max((each.priority for each in found if each.deadline_h is None), default=-1) + 1
    said = {name for name, row in rows.items() if row.get("priority") not in (None, "")}
    return tuple(
        each if each.deadline_h is None or each.name in said else replace(each, priority=last) for each in found
    )


def _yaml_rows(path: Path) -> dict[str, dict[str, object]]:
    rows = read_yaml(path)
    for name, row in rows.items():
        if not isinstance(row, dict):
            raise SpecError(f"{path}: class {name}: is {row!r}, not keys such as rate, isl and slo")
    return {str(name): {str(key): value for key, value in row.items()} for name, row in rows.items()}


def _csv_rows(path: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, Any]] = {}
    names, rows = text_rows(path)
    if rows and "name" not in names:
        raise SpecError(f"{path}: needs a column name; it has {', '.join(names)}")
    for line, cells in rows:
        name = cells.pop("name", "")
        if not name or name in found:
            raise SpecError(f"{path}, line {line}: needs a name of its own in the column name")
        found[name] = {key: value for key, value in cells.items() if value}
    return found


def _class(name: str, row: Mapping[str, object], usual: str | Sequence[str]) -> TrafficClass:
    known = options_of(RequestClass)
    said = read(RequestClass, {key: known[key].of_cell(value) if key in known else value for key, value in row.items()})
    isl, osl = lengths_of(said)
    job = said.get("requests"), said.get("deadline")
    if (job[0] is None) != (job[1] is None):
        raise InputError("a batch job has requests and a deadline; one of them is missing")
    if (said.get("rate") is None) == (job[0] is None):
        raise InputError("give rate (requests/s), or requests and deadline of a batch job")
    deadline = None if job[1] is None else job[1] / _HOUR
    slo = parse_objectives(said["slo"]) if "slo" in said else () if job[0] is not None else parse_objectives(usual)
    refuse_undecoded(slo, osl.mean)
    if deadline is not None and "slo" in said:
        raise WorkloadError("a batch job has a deadline in place of objectives; leave slo out")
    return TrafficClass(
        name,
        said["rate"] if job[0] is None or job[1] is None else job[0] / job[1],
        isl,
        osl,
        said.get("cached", 0.0),
        tuple(replace(each, of=name) for each in slo),
        said.get("priority", 0),
        said.get("model", ""),
        None if job[0] is None else float(job[0]),
        deadline,
    )


_DAY = 24  # intervals of a trace that is shorter than a day, and hours of one
_CLOSE = 1e-6  # relative, of hours that are the same
_MOST_INTERVALS = 8784  # hours of a leap year
_TIMES = ("hour", "time")
_GROWTH = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*(%?)\s*(?:(?:/|a |per )\s*(month|year))?", re.IGNORECASE)


@dataclass(frozen=True)
class Profile:
    """Requests a second in intervals that follow each other, and hours of each; the whole repeats.

    >>> day = Profile("day", (2.0, 6.0), (16.0, 8.0))
    >>> round(day.mean, 3), day.peak
    (3.333, 6.0)
    """

    name: str
    rates: tuple[float, ...]
    hours: tuple[float, ...]

    @property
    def span(self) -> float:
        """Hours until it repeats."""
        return sum(self.hours)

    @property
    def peak(self) -> float:
        """The largest rate [1/s]."""
        return max(self.rates)

    @property
    def mean(self) -> float:
        """The mean rate [1/s]."""
        return sum(rate * hours for rate, hours in zip(self.rates, self.hours, strict=True)) / self.span

    @property
    def uneven(self) -> str:
        """Note on intervals that are not alike, or do not make whole days; else empty."""
        ends = min(self.hours), max(self.hours)
        if ends[1] > ends[0] * (1.0 + _CLOSE):
            return (
                f"intervals of {self.name} last {ends[0]:g} to {ends[1]:g} h: each goes on until the next row, "
                "the last as long as the one before it"
            )
        days = self.span / _DAY
        if len(self.rates) > 1 and abs(days - round(days)) > _CLOSE * days:
            return f"{self.name} lasts {self.span:.3g} h and repeats, which is no whole number of days"
        return ""

    @property
    def starts(self) -> list[float]:
        """Beginning of each interval [h]."""
        return [0.0, *accumulate(self.hours[:-1])]

    def scaled(self, factor: float) -> Profile:
        """The profile with every rate multiplied."""
        return replace(self, rates=tuple(rate * factor for rate in self.rates))


def flat(rate: float) -> Profile:
    """One rate at all times."""
    return Profile("flat", (rate,), (1.0,))


def hourly(rates: Sequence[float]) -> Profile:
    """Requests a second in the hours of a day, or of as many days as there are.

    Raises WorkloadError for what is no rate, and where no request comes.
    """
    _refuse_long("profile", len(rates))
    read = [OptionRow("", kind="number").check("rate of a profile", rate) for rate in rates]
    if not any(read):
        raise WorkloadError("profile: no request comes at any time")
    return Profile(f"{len(read)} hours", tuple(read), (1.0,) * len(read))


def _refuse_long(name: str, intervals: int) -> None:
    """Refuse a profile that is longer than a year by the hour. Raises WorkloadError."""
    if intervals > _MOST_INTERVALS:
        raise WorkloadError(
            f"{name}: has {intervals:,} intervals; a profile has at most {_MOST_INTERVALS:,}, hours of a year"
        )


def read_profile(path: str | PathLike[str]) -> Profile:
    """Read a CSV with a column `hour` (hours from the start) or `time` (seconds, or dates), and one `rate`.

    An interval lasts until the next row, the last one as long as the one before it. Dates without a zone are UTC.

    Raises SpecError with file and line for what is no profile.
    """
    names, cells = text_rows(Path(path))
    _refuse_long(str(path), len(cells))
    column = next((name for name in _TIMES if name in names), None)
    for wanted, found in (("hour", column), ("rate", "rate" if "rate" in names else None)):
        if found is None:
            near = nearest_of(wanted, names)
            raise SpecError(f"{path}: needs the columns hour (or time) and rate; {wanted} is missing, nearest: {near}")
    times = [_time(path, line, row[column or ""], column == "hour") for line, row in cells]
    rates = [_rate(path, line, row["rate"]) for line, row in cells]
    if len(rates) < 2:
        raise SpecError(f"{path}: a profile needs at least two rows; for one rate give --rate")
    for (line, row), (before, after) in zip(cells[1:], pairwise(times), strict=True):
        if not before < after:
            raise SpecError(f"{path}, line {line}: {column} {row[column or '']} does not follow the one before")
    if not any(rates):
        raise SpecError(f"{path}: no request comes at any time")
    hours = [after - before for before, after in pairwise(times)]
    return Profile(Path(path).name, tuple(rates), (*hours, hours[-1]))


def _time(path: str | PathLike[str], line: int, cell: str, hours: bool) -> float:
    """Hours since whenever."""
    try:
        value = float(cell) if hours else float(cell) / _HOUR
    except ValueError:
        try:
            date = datetime.fromisoformat(cell.strip())
            value = math.nan if hours else (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() / _HOUR
        except ValueError:
            value = math.nan
    if not math.isfinite(value):
        like = "a number of hours such as 13" if hours else "seconds, or a date such as 2026-05-01T13:00"
        raise SpecError(f"{path}, line {line}: {cell!r} is not {like}")
    return value


def _rate(path: str | PathLike[str], line: int, cell: str) -> float:
    try:
        value = quantity(cell, "1/s")
    except ValueError as error:
        raise SpecError(f"{path}, line {line}: rate {error}") from None
    if not 0.0 <= value <= 1e7:
        raise SpecError(f"{path}, line {line}: rate must be from 0 to 10,000,000 requests/s, not {cell.strip()}")
    return value


def profile_of(trace: Trace, span: float, speed: float = 1.0) -> Profile:
    """The hours of a trace (a twenty-fourth each of one below a day): the busiest `span` seconds within each [1/s].

    `speed`: how many times as fast it is replayed; its hours stay as long.

    Raises WorkloadError for a trace that is no longer than the window that its users would notice.
    """
    time = np.asarray(trace.time, float)
    if not span < time[-1]:
        raise WorkloadError(f"{trace.name} lasts {time[-1]:,.0f} s, one window of its objectives: it has no profile")
    length = max(_HOUR if time[-1] >= _DAY * _HOUR else float(time[-1]) / _DAY, span)
    count = max(round(float(time[-1]) / length), 1)
    inside = np.searchsorted(time, time + span, "right") - np.arange(len(time))
    rates = np.zeros(count)
    np.maximum.at(rates, np.minimum((time / length).astype(int), count - 1), inside / span)
    return Profile(trace.name, tuple((rates * speed).tolist()), (length / _HOUR,) * count)


def read_growth(text: str | float) -> float:
    """Growth a month from what a user says: a share, `8%/month`, or `100%/year`, compounded.

    >>> read_growth("8%/month"), read_growth(0.08), round(read_growth("100%/year"), 4)
    (0.08, 0.08, 0.0595)

    Raises WorkloadError for anything else.
    """
    said = f"{text:f}" if isinstance(text, float) else str(text).strip()
    hit = _GROWTH.fullmatch(said)
    if hit is not None and not hit[2] and float(hit[1]) >= 1.0:
        value = float(hit[1])
        raise WorkloadError(f"growth {value:g} may be {value:g}% or {100.0 * value:g}%; write the one that is meant")
    share = math.nan if hit is None else float(hit[1]) / (100.0 if hit[2] else 1.0)
    if hit is None or not -1.0 < share <= 10.0:
        raise WorkloadError(f"growth must be above -100% and at most 1000%, like 8%/month or 100%/year, not {text!r}")
    return (1.0 + share) ** (1.0 / 12.0) - 1.0 if (hit[3] or "").lower() == "year" else share


@dataclass(frozen=True)
class Course:
    """A profile, and how it grows from month to month."""

    profile: Profile
    growth: float = 0.0
    months: int = 1
    scaling: Mapping[str, Any] | None = None  #: what was said of autoscaling, None where it was not asked for
    owning: Purchase | None = None  #: what a purchase would cost

    @property
    def factors(self) -> list[float]:
        """Factor on the load of each month over that of the first.

        >>> Course(flat(1.0), 0.5, 3).factors
        [1.0, 1.5, 2.25]
        """
        return [(1.0 + self.growth) ** month for month in range(self.months)]

    @property
    def month_hours(self) -> list[float]:
        """Hours of a month that each interval takes."""
        return [hours * MONTH_HOURS / self.profile.span for hours in self.profile.hours]


OVER_TIME = {"profile", "growth", "months", "tco"}
_SCALING = (
    "cold_start",
    "provision",
    "weights_from",
    "engine_start",
    "min_replicas",
    "max_replicas",
    "cooldown",
)


def asked_profile(given: dict[str, Any]) -> Profile | None:
    """The profile of a file or of hourly rates, of whose peak the demand becomes; None for that of a trace."""
    said = given.get("profile")
    if said is None or str(said) == "trace":
        return None
    for key in ("peak", "users", "trace"):
        if given.get(key) is not None:
            other = "; for the hours of a trace give --profile trace" if key == "trace" else ""
            raise InputError(f"{key} and profile exclude each other: the profile has its own load{other}")
    profile = hourly(said) if isinstance(said, (list, tuple)) else read_profile(said)
    if given.get("rate") is not None:
        profile = profile.scaled(positive(given["rate"], "rate") / profile.mean)
    given |= {"rate": profile.mean, "peak": profile.peak / profile.mean}
    return profile


def read_course(given: dict[str, Any], profile: Profile | None, demand: Demand) -> Course | None:
    """Course of the load over time, if there is one."""
    scaling = part_of(given, _SCALING)
    if scaling and not given.get("autoscale"):
        raise InputError(f"{min(scaling)} belongs to autoscaling; add autoscale")
    if given.get("autoscale") and "profile" not in given:
        raise InputError("autoscaling follows a load that changes: give profile")
    if not given.keys() & OVER_TIME:
        return None
    if demand.closed:
        raise InputError("a plan over time takes requests a second: give rate, trace or profile in place of users")
    if profile is None and "profile" in given:
        if demand.trace is None:
            raise InputError("profile trace is that of a trace: give trace, or name a file of hours and rates")
        profile = profile_of(demand.trace, demand.span_s, demand.speed)
    growth = read_growth(given["growth"]) if "growth" in given else 0.0
    months = given.get("months", 12 if growth else 1)
    scaling |= part_of(given, ("load_gbps",))
    owning = read_owning(given["tco"]) if "tco" in given else None
    scaled = scaling if given.get("autoscale") else None
    return Course(profile or flat(demand.peak_load), growth, months, scaled, owning)

"""Demand on a fleet: requests a second or users, their lengths, the busiest hour.

A trace brings its own peak: the largest mean rate over a window as long as its users would notice, ten requests' times
within the objectives (`span_s`), and at least what 100 requests take. Its gaps there say how bursty it is.

Prefix caches find something of a traffic with block ids or sessions. A cache that keeps conversations on their replica
finds with n replicas what one of n times the size finds alone.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from rooflinekit.decision.planning.objective import METRICS, Objective
from rooflinekit.load.answer import AskedLoad
from rooflinekit.load.arrivals import Arrival, Drawn, Gamma, Process, Requests, generate
from rooflinekit.load.lengths import Empirical, Fixed, Length, Longer, Uniform, cv, longer, parse_length
from rooflinekit.load.scene import kv_capacity_tokens
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import InputError, WorkloadError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.simulation.reuse import Reuse, conversations, reuse_of
from rooflinekit.simulation.sessions import SessionLaw, SessionSource, parse_sessions, session_trace
from rooflinekit.simulation.simulate import pcie_bandwidth
from rooflinekit.simulation.tiers import CacheTier, fill, read_tiers
from rooflinekit.simulation.traces import Trace, load_trace


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
            fill(tiers, pool, share, replicas=replicas, prompt_bytes=isl * each, token_bytes=each,
                 own_link=partial(pcie_bandwidth, predictor))
        )  # fmt: skip
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
    import numpy as np  # noqa: PLC0415 - only a trace pays for it

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
    prompt_cached: float = 0.0  #: tokens of a mean prompt that any replica has in its cache, where they are stated

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
    def cached(self) -> float:
        """Tokens of a mean prompt that are in the cache of any replica already."""
        return self.prompt_cached

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

    def asked(self, seed: int) -> AskedLoad:
        """One of the loads that a replica may have, as it is played; a curve puts its rate or users in its place."""
        if not self.closed:
            return AskedLoad(self.isl, self.osl, rate=1.0, burstiness=self.arrival_cv, seed=seed, cached=self.cached)
        return AskedLoad(self.isl, self._drifting, users=1, seed=seed, cached=self.cached)

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
        return replace(self, arrival_cv=thinned_cv(self.arrival_cv, beside(replicas)))

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

    def requests(self, window: Window) -> tuple[int, int]:
        """Places of its first request and of the one after its last."""
        assert self.trace is not None
        return bisect_left(self.trace.time, window.start), bisect_left(self.trace.time, window.end)

    def to_dict(self) -> dict[str, Any]:
        """Return the demand as JSON; prompts by their text."""
        text = self.isl.text if isinstance(self.isl, Longer) else self.isl
        return {
            "rate": self.rate, "users": self.users, "peak": self.peak, "peak_load": self.peak_load,
            "isl_mean": text.mean, "isl_cv": cv(text), "osl_mean": self.osl.mean, "osl_cv": cv(self.osl),
            "cached": self.prompt_cached, "arrival_cv": self.arrival_cv,
            "trace": None if self.trace is None else self.trace.name,
            "span_s": self.span_s if math.isfinite(self.span_s) else None,
        }  # fmt: skip

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
        cached = f" ({self.prompt_cached:,.0f} cached)" if self.prompt_cached else ""
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


def thinned_cv(arrival_cv: float, replicas: float) -> float:
    """Coefficient of variation of the gaps that one of `replicas` sees: c² = 1 + (c₀² − 1)/n.

    >>> thinned_cv(3.0, 4.0) ** 2, thinned_cv(1.0, 7.0)
    (3.0, 1.0)
    """
    return math.sqrt(1.0 + (arrival_cv**2 - 1.0) / replicas)


def decoding(rate: float, osl: float, tpot: float) -> float:
    """Sequences that a rate of requests [1/s] keeps decoding at a TPOT [s]: λ·(N − 1)·t, Little's law.

    Little (1961), Operations Research 9(3): what is in a system is the rate of arrivals times the time that each stays.

    >>> decoding(10.0, 101.0, 0.02)
    20.0
    """
    return rate * (osl - 1.0) * tpot


def read_demand(given: dict[str, Any], slo: Sequence[Objective] = ()) -> Demand:
    """Read rate, users, trace, sessions (of at most `max_context` tokens), peak, isl, osl, cv and clean.

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
    isl = longer(_parsed(given.get("isl", 1024)), given.get("image_tokens", 0))
    if cached >= isl.mean:
        raise WorkloadError(f"cached={cached:g} leaves nothing of isl={isl.mean:g} to compute; use less")
    return Demand(
        rate,
        None if users is None else float(whole_number(users, "users")),
        peak,
        isl,
        _parsed(given.get("osl", 256)),
        given.get("cv", 1.0),
        router=router or ROUTER,
        prompt_cached=cached,
    )


def _of_prefixes(router: str | None) -> str:
    """Router to replicas whose caches may have the prompts."""
    if router not in (None, _AFFINITY, "random"):
        raise InputError(f"router {router} does not know prefixes that come again; take {_AFFINITY} or random")
    return router or _AFFINITY


def _of_sessions(given: dict[str, Any], peak: float, prefixes: Prefixes) -> Demand:
    """Turns of conversations: prompts are as long as those of a sample at the peak, whose blocks the caches see."""
    for key in ("users", "trace", "isl", "cv", "images"):
        if given.get(key):
            raise InputError(f"{key} and sessions exclude each other: sessions come at a rate and have their prompts")
    if given.get("rate") is None:
        raise InputError("sessions come at a rate of requests, of all of them together; give rate")
    rate, law = given["rate"], parse_sessions(given["sessions"])
    osl = _parsed(given.get("osl", law.answer))
    law = replace(law, most=min(law.most or _MOST_CONTEXT, given.get("max_context") or _MOST_CONTEXT))
    trace = session_trace(SessionSource(law, osl, law.most or 0, rate=rate * peak, requests=_SAMPLE))
    seen = replace(prefixes, trace=trace, law=law)
    isl = Empirical.of(trace.isl[trace.former :])
    return Demand(rate, None, peak, isl, osl, router=prefixes.router, prefixes=seen)


def _traced(trace: Trace, given: dict[str, Any], peak: float, slo: Sequence[Objective]) -> Demand:
    for key in ("users", "isl", "osl", "cv"):
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


def _parsed(value: Any) -> Length:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise WorkloadError(f"a length must be tokens or a distribution, not {value!r}")
    return parse_length(str(value))

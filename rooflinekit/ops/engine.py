"""An engine that only plays: requests go into the object simulator as they come, and tokens come out at its times.

The simulator is stepped on by a clock. It is the one that `rooflinekit simulate` has, so that queues, limits of the
cache, hits of prefixes and refusals are the same; what is here says which request got how many tokens, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import Any

from typing_extensions import override

from rooflinekit.decision.launching.launch import parts_of_plan
from rooflinekit.estimation.estimator import Resolved
from rooflinekit.estimation.options import Value, part_of, read
from rooflinekit.estimation.scenario import SimulationOptions
from rooflinekit.load.arrivals import Arrival
from rooflinekit.load.lengths import Length, lengths_of
from rooflinekit.load.scene import Scheduler
from rooflinekit.model.types.errors import InputError
from rooflinekit.ops.metrics import Metrics
from rooflinekit.simulation.decoding import Speculative
from rooflinekit.simulation.event_loop import Simulation
from rooflinekit.simulation.ledger import Ledger, RequestObjective
from rooflinekit.simulation.replica import ObjectReplica
from rooflinekit.simulation.requests import Job, Source
from rooflinekit.simulation.simulate import SentLoad, deployed, fleet_of
from rooflinekit.specs.files import read_json

_SENDING = ("rate", "concurrency", "arrivals", "trace", "sessions", "speed", "clean", "requests", "warmup", "duration",
            "samples", "shared_prefix", "prefix_groups", "classes", "burstiness", "ttft", "tpot", "cells", "workers",
            "scheduler", "images", "image_size")  # fmt: skip
"""Options of `simulate` that clients decide by what they send, or that have no part in a server."""
_STATIC = ("batch", "cached", "context")
"""Options of scenarios in plans that have no effect."""


class RealClock:
    """Played seconds since it was made: `scale` of them in a second.

    At 0.1 the time of a client, and of this server, counts a tenth beside played times.
    """

    moves = True

    def __init__(self, scale: float = 1.0) -> None:
        self.scale, self._begun = scale, monotonic()

    def now(self) -> float:
        """The time [s]."""
        return self.at(monotonic())

    def at(self, seconds: float) -> float:
        """The time when the clock of the machine showed so many seconds [s]."""
        return (seconds - self._begun) * self.scale

    def seconds_until(self, time: float) -> float:
        """Time until a played time, or 0 where that has passed [s]."""
        return max(time - self.now(), 0.0) / self.scale


class SetClock:
    """Seconds that somebody sets: played time, which need not pass."""

    moves = False

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        """The time [s]."""
        return self.time


@dataclass(frozen=True)
class Deployed:
    """Deployment that a server pretends to be, with its scheduler, replicas and usual lengths.

    name: what the model is called; prefill: the deployment of prefill replicas, where it is another one.
    """

    name: str
    resolved: Resolved
    setup: Scheduler
    isl: Length
    osl: Length
    prefill: Resolved | None = None

    @classmethod
    def read(cls, model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: Value) -> Deployed:
        """Read options of `simulate`; those that say who sends what are the clients', and refused.

        Raises InputError (and its kinds) for these, and for anything that makes no sense.
        """
        for name in part_of(scenario, _SENDING):
            raise InputError(f"{name} has no part in a server: clients decide it by what they send; leave it out")
        given = read(SimulationOptions, scenario)
        resolved, setup = deployed(model, gpu, given)
        return cls(str(model), resolved, setup, *lengths_of(given))

    @classmethod
    def planned(cls, plan: str | PathLike[str] | Mapping[str, object], candidate: int | None = None) -> Deployed:
        """The best candidate of what `rooflinekit plan --format json` wrote, or one by its number from 1.

        Raises InputError (and its kinds) for another file, and for a fleet of several kinds of server.
        """
        data: Any = plan if isinstance(plan, Mapping) else read_json(Path(plan))
        parts = parts_of_plan(data, candidate)
        own = [
            cls.read(**{key: value for key, value in part.scenario.items() if key not in (*_SENDING, *_STATIC)})
            for part in parts
        ]
        counts, router = [part.replicas for part in parts], data.get("router") or "round-robin"
        if [part.role for part in parts] == ["prefill", "decode"]:
            setup = replace(own[1].setup, replicas=counts[1], prefill_replicas=counts[0], router=router)
            return replace(own[1], setup=setup, prefill=own[0].resolved)
        if len(own) > 1:
            raise InputError(f"a server is of one kind, and this fleet has {len(own)}; choose another candidate")
        return replace(own[0], setup=replace(own[0].setup, replicas=counts[0], router=router))


class Stream:
    """A request as its client sees it.

    made: tokens that have come out of each answer, the latest at `last` [s]; ended: finished, rejected or cut; ""
    while it goes on. told: called whenever one of these changes; metrics: of the replica that gave the latest token;
    limited: whether its length is the most that was asked for.
    """

    __slots__ = ("ended", "job", "last", "limited", "made", "metrics", "told", "why")

    def __init__(self, job: Job, told: Callable[[Stream], None], metrics: Metrics, limited: bool) -> None:
        self.job, self.told, self.metrics, self.limited = job, told, metrics, limited
        self.made, self.last, self.ended, self.why = 0, 0.0, "", ""

    @property
    def times_ms(self) -> dict[str, float | None]:
        """Times of sending, TTFT, TPOT and end [ms]; None of what has not been."""
        job = self.job
        first = (job.first - job.arrived) * 1e3 if job.first >= 0.0 else None
        done = first is not None and self.ended == "finished"
        later = (self.last - job.first) * 1e3 / (job.osl - 1) if done and job.osl > 1 else None
        whole = (self.last - job.arrived) * 1e3 if done else None
        return {"sent_ms": job.arrived * 1e3, "ttft_ms": first, "tpot_ms": later, "e2e_ms": whole}


class _Books(Ledger):
    """Books of one replica: first tokens as they come, and waits as the server's metrics have them."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(RequestObjective())
        self.metrics = metrics
        self.firsts: list[Job] = []
        self.queued = metrics.histograms["request_queue_time_seconds"]  # type: ignore[assignment]

    @override
    def first_token(self, job: Job, now: float) -> None:
        job.first = now
        self.firsts.append(job)


class PlayedEngine:
    """Replicas of a deployment that serve requests as they come; `advance` says how late it is.

    >>> engine = PlayedEngine(Deployed.read("llama-3-8b", calibration="none"))
    >>> stream = engine.send(Arrival(0.0, isl=1024, osl=3), lambda stream: None)
    >>> engine.advance(10.0)
    >>> stream.made, stream.ended, engine.running
    (3, 'finished', 0)
    """

    def __init__(self, what: Deployed) -> None:
        self.what = what
        plan = what.resolved.plan
        most = plan.deployment.settings.max_model_len or plan.model.max_context
        self.longest = int(most) if most else 1 << 20  #: tokens of the longest request
        load = SentLoad(what.isl, what.osl, most=self.longest)
        first = what.prefill or what.resolved
        fleet = fleet_of(what.resolved.predictor, first.predictor, load, what.setup, Ledger(RequestObjective()))
        self.metrics = [Metrics(self.longest) for _ in fleet.all]
        for replica, metrics in zip(fleet.all, self.metrics, strict=True):
            replica.ledger = _Books(metrics)
        self.longest = min(self.longest, *(each.pool.total * each.pool.size for each in fleet.all))
        self.replicas: list[ObjectReplica] = fleet.all
        self.run = Simulation(fleet, Source(iter(())), Ledger(RequestObjective(), self._left))
        self.streams: dict[Job, Stream] = {}
        self.refused = 0
        self._ended: list[tuple[Job, float, str]] = []

    @property
    def block(self) -> int:
        """Tokens of one block of the prefix cache; 0 where there is none."""
        pool = self.replicas[0].pool
        return pool.size * pool.per if self.what.setup.prefix_cache else 0

    @property
    def running(self) -> int:
        """Requests that are here."""
        return len(self.streams)

    @property
    def notes(self) -> Iterator[str]:
        """Notes for the server's owner."""
        yield from self.what.resolved.warnings
        if self.what.resolved.plan.lanes > 1:
            yield "stages are played one after the other; `estimate` has what microbatches bring"

    def send(self, arrival: Arrival, told: Callable[[Stream], None], limited: bool = True) -> Stream:
        """A request comes, at a time that has not been played yet, or else with what was played last."""
        job = self.run.expect(arrival._replace(time=max(arrival.time, self.run.now)))
        self.streams[job] = stream = Stream(job, told, self.metrics[0], limited)
        return stream

    def abort(self, stream: Stream) -> None:
        """The client has left."""
        if stream.job in self.streams:
            self.run.abort(stream.job)
            self._settle(self.run.now)

    def coming(self) -> float:
        """Time of the next token or other event [s]; inf while nothing is under way."""
        return self.run.coming()

    def advance(self, now: float) -> None:
        """Play what happens up to a time [s]; streams are told of each token, in order of time.

        A request may still come at any time after the last thing that happened.
        """
        while (time := self.run.coming()) <= now:
            self.step(time)

    def step(self, time: float) -> None:
        """Play what happens at the time that `coming` gave."""
        self.run.advance(time)
        for replica, metrics in zip(self.replicas, self.metrics, strict=True):
            books = replica.ledger
            assert isinstance(books, _Books)
            if books.firsts:
                for job in books.firsts:
                    stream = self.streams[job]
                    metrics.first(job, job.first - job.arrived)
                    self._tell(stream, 1, job.first, metrics)
                books.firsts = []
            if replica.decodes or replica.decoding.width:
                self._tokens(replica, metrics, time)
        self._settle(time)

    def _tokens(self, replica: ObjectReplica, metrics: Metrics, time: float) -> None:
        """Tell of tokens of decode steps that are over by now, booked or not."""
        decoding, drawn = replica.decoding, isinstance(replica.decoding, Speculative)
        over = decoding.steps + replica.steps_over(time)
        for job in replica.admitted:
            made = job.made if drawn or job.due < 0 else job.made + over - job.joined
            if job.due >= 0 and made > (stream := self.streams[job]).made:
                self._tell(stream, made, time, metrics)

    def _tell(self, stream: Stream, made: int, time: float, metrics: Metrics) -> None:
        metrics.tokens(stream.job, made - stream.made, time - stream.last if stream.made else None)
        stream.made, stream.last, stream.metrics = made, time, metrics
        stream.told(stream)

    def _left(self, job: Job, now: float, how: str) -> None:
        self._ended.append((job, now, how))

    def _settle(self, time: float) -> None:
        for job, now, how in self._ended:
            stream = self.streams.pop(job)
            stream.ended, metrics = how, stream.metrics
            if how == "finished":
                if job.made > stream.made:
                    metrics.tokens(job, job.made - stream.made, now - stream.last if stream.made else None)
                stream.made, stream.last = job.made, now
                metrics.finish(job, now)
                metrics.success("length" if stream.limited else "stop")
            elif how == "rejected":
                self.refused += 1
                stream.why = self._why(job)
            else:
                metrics.success("abort")
            stream.told(stream)
        self._ended = []

    def _why(self, job: Job) -> str:
        return next((why for each in self.replicas if (why := each.refusal(job))), "the queue was full")

    def exposition(self) -> str:
        """All replicas' metrics, with vLLM's names."""
        now = self.run.now
        for number, (replica, metrics) in enumerate(zip(self.replicas, self.metrics, strict=True)):
            pool = replica.pool
            over = replica.steps_over(now)
            growing = replica.decoding.need(over) if over else 0
            metrics.gauges = {
                "num_requests_running": len(replica.admitted),
                "num_requests_waiting": len(replica.queue) + (self.run.held if number == 0 else 0),
                "kv_cache_usage_perc": min((pool.used + growing) / pool.total, 1.0),
            }
            metrics.counters |= {
                "num_preemptions": replica.ledger.preempted,
                "prefix_cache_queries": pool.asked,
                "prefix_cache_hits": pool.found,
            }
            metrics.info = {"block_size": str(pool.size), "num_gpu_blocks": str(pool.total)}
        return Metrics.exposition(self.what.name, self.metrics)

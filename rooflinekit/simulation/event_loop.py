"""The event loop: arrivals, ends of steps and transfers in one heap, in order of time.

Everything that happens at one instant happens before any replica forms its next step, so that requests which come
together are served together, and a user's next request can join the step after the one that gave the last answer.
"""

from __future__ import annotations

import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, cycle
from random import Random
from typing import Any

from rooflinekit.load.arrivals import Arrival
from rooflinekit.load.loop import LEAST_LEFT
from rooflinekit.load.scene import FrontEnd
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.simulation.ledger import Ledger
from rooflinekit.simulation.replica import FULL, ObjectReplica
from rooflinekit.simulation.requests import Job, Source
from rooflinekit.simulation.sessions import SessionSource

IMBALANCE = 16
"""Requests by which a replica may exceed the least loaded one and still be chosen for its prefix (assumption)."""


@contextmanager
def asking_to_stop(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first Ctrl-C; a second one raises KeyboardInterrupt wherever the program is.

    Only where Ctrl-C would have raised: not in another thread, and not where a program has its own handler.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def asked(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    signal.signal(signal.SIGINT, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


Route = Callable[[Job], "ObjectReplica | None"]
"""Chooses a replica; None leaves the request in a queue in front of all."""


def router_of(name: str, replicas: Sequence[ObjectReplica]) -> Route:
    """A router by its name.

    round-robin: in turn. random: drawn from a fixed seed, as by a balancer without memory. least-loaded: the fewest
    requests. prefix-affinity: the longest cached prefix among replicas that are not much busier than the least loaded.
    shared: one queue in front of all, from which a replica takes a request when it has a place.
    """

    def least_loaded(job: Job) -> ObjectReplica:
        return min(replicas, key=lambda replica: replica.load)

    def with_a_place(job: Job) -> ObjectReplica | None:
        free = [replica for replica in replicas if replica.load < replica.limits.max_num_seqs]
        return min(free, key=lambda replica: replica.load, default=None)

    def prefix_affinity(job: Job) -> ObjectReplica:
        most = least_loaded(job).load + IMBALANCE
        near = [replica for replica in replicas if replica.load <= most]
        return max(near, key=lambda replica: (replica.pool.match(job), -replica.load))

    turn, draw = cycle(replicas), Random(0)
    routes: dict[str, Route] = {
        "round-robin": lambda job: next(turn),
        "random": lambda job: draw.choice(replicas),
        "least-loaded": least_loaded,
        "prefix-affinity": prefix_affinity,
        "shared": with_a_place,
    }
    return routes[name]


Watch = Callable[[int, ObjectReplica, float], None]
"""Sees every step, or run of decode steps, as it ends: number of the replica, the replica before it books, the time."""


@dataclass(frozen=True, slots=True)
class Link:
    """Link from a prefill replica to the decode replicas: it copies one prompt after the other."""

    latency: float = 0.0  #: [s]
    token_s: float = 0.0  #: time a token's keys and values take [s]
    staging: int = 64  #: prompts that may be computed or wait on one prefill replica


class ReplicaFleet:
    """Replicas behind a router; with `prefills`, those compute prompts and hand them to `replicas` over a link."""

    def __init__(
        self,
        replicas: list[ObjectReplica],
        router: str = "round-robin",
        prefills: list[ObjectReplica] | None = None,
        link: Link | None = None,
        front_end: FrontEnd | None = None,
    ) -> None:
        if not replicas:
            raise WorkloadError("a simulation needs at least one replica")
        self.replicas, self.prefills, self.link = replicas, prefills or [], link or Link()
        self.front_end = front_end or FrontEnd()
        self.all = [*self.prefills, *replicas]
        self.route: Route = router_of(router, self.prefills or replicas)
        self.hand_over: Route = router_of("least-loaded", replicas)
        for replica in self.prefills:
            replica.staging = self.link.staging

    def refusal(self, job: Job, replica: ObjectReplica | None) -> str:
        """The reason why a request cannot be served: not there, or with prefill replicas not anywhere after it.

        Without a replica it waits in front of all, and the queues of the replicas do not matter.
        """
        if (why := (replica or self.all[0]).refusal(job, replica is not None)) or not self.prefills:
            return why
        after = [other.refusal(job) for other in self.replicas]
        return after[0] if all(after) else ""

    def full(self, waiting: int) -> bool:
        """True if the queue in front of all replicas takes no more: it is as long as that of one replica may be."""
        limit = self.all[0].limits.queue_limit
        return limit is not None and waiting >= limit


class Simulation:
    """One run of requests from a source through a fleet; `run` may be called once."""

    def __init__(
        self,
        fleet: ReplicaFleet,
        source: Source | SessionSource,
        ledger: Ledger,
        horizon: float = math.inf,
        watch: Watch | None = None,
    ) -> None:
        self.fleet, self.source, self.ledger, self.horizon, self.watch = fleet, source, ledger, horizon, watch
        self.now = 0.0
        self.interrupted = False
        self._heap: list[tuple[float, int, Callable[[object], None], object]] = []
        self._order, self._numbers = count(), count(1)
        self._idle: dict[ObjectReplica, None] = {}  # who must look for work at this instant
        self._held: deque[Job] = deque()  # the queue in front of all replicas
        self._coming: dict[Job, None] = {}  # still in the front end
        self._gone: set[Job] = set()  # whose clients left before they came to a queue
        self._leaving: dict[ObjectReplica, list[Job]] = {}  # whose clients left while a step is under way
        self._readers = list(fleet.prefills or fleet.replicas) * fleet.front_end.servers  # of each front end
        self._unread: list[deque[Job]] = [deque() for _ in self._readers]  # who is read, and who comes next
        self._reads = [(0.0, 0.0, 0)] * len(self._readers)  # when that began, what was unsent, tokens made before
        self._free_at = dict.fromkeys(fleet.prefills, 0.0)  # when each link has copied what it has
        self._index = {replica: index for index, replica in enumerate(fleet.all)}
        for replica in fleet.prefills:
            replica.exports = self._export
        for replica in fleet.replicas:
            replica.fetches = self._fetch
        for replica in fleet.all:
            replica.loads = self._load

    def run(self) -> None:
        """Run until nothing is left, the horizon, or an interrupt; what is left then is cut, and counted as such."""
        try:
            with asking_to_stop(self.stop):
                for arrival, measured in self.source.start():
                    self.expect(arrival, measured)
                self.advance(self.horizon)
                self._halt()
        except KeyboardInterrupt:
            self.interrupted = True
        self._cut_rest()

    def stop(self) -> None:
        """End the run before its next event."""
        self.interrupted = True

    def advance(self, horizon: float) -> None:
        """Play all that happens up to a time; requests that are expected later may be told before the next call."""
        heap, idle = self._heap, self._idle
        alone: ObjectReplica | None = None  # whose step ends before anything else happens
        while (heap or alone) and not self.interrupted:
            now = alone.until if alone else heap[0][0]
            if now > horizon:
                if alone:
                    self._push(alone.until, self._step_ends, alone)
                self.now = horizon
                return
            self.now = now
            if alone:
                self._step_ends(alone)
            while heap and heap[0][0] == now and not self.interrupted:
                _, _, act, what = heappop(heap)
                act(what)
            alone = None
            for replica in idle:
                if replica.until < 0.0 and replica.begin(now):
                    if len(idle) == 1 and (not heap or replica.until < heap[0][0]):
                        alone = replica
                    else:
                        self._push(replica.until, self._step_ends, replica)
            idle.clear()

    def _halt(self) -> None:
        """Book the decode steps that are over by now, of runs that are under way."""
        for replica in self.fleet.all:
            if replica.halt(self.now):
                if self.watch:
                    self.watch(self._index[replica], replica, replica.until)
                replica.end(replica.until)

    def _push(self, time: float, act: Callable[[Any], None], what: object) -> None:
        heappush(self._heap, (time, next(self._order), act, what))

    def expect(self, arrival: Arrival, measured: bool = True) -> Job:
        """Foresee a request, which comes no earlier than what has been played."""
        job = Job(next(self._numbers), arrival, measured)
        self._push(arrival.time, self._arrive, job)
        return job

    def coming(self) -> float:
        """Time of the next event, or of the end of a decode step within a run [s]; inf if there is none."""
        ends = [replica.step_end(self.now) for replica in self.fleet.all if replica.steps > 1]
        return min((*ends, self._heap[0][0] if self._heap else math.inf))

    @property
    def held(self) -> int:
        """Requests in the queue in front of all replicas."""
        return len(self._held)

    def abort(self, job: Job) -> None:
        """Let a request go before its end, as its client did: at once where it waits, else between two steps.

        One whose blocks are on their way between replicas, or from a tier, goes on.
        """
        if job in self._held:
            self._held.remove(job)
            self.ledger.leave(job, self.now, "cut")
        elif (replica := next((each for each in self.fleet.all if each.has(job)), None)) is None:
            self._gone.add(job)  # it has not come yet
        elif replica.until < 0.0 or job not in replica.admitted:
            self._drop(replica, job)
        else:
            self._leaving.setdefault(replica, []).append(job)
            if replica.until != (until := replica.cut(self.now, always=True)):
                self._push(until, self._step_ends, replica)

    def _drop(self, replica: ObjectReplica, job: Job) -> None:
        if replica.drop(job):
            self.ledger.leave(job, self.now, "cut")

    def _arrive(self, job: Job) -> None:
        self.ledger.enter(job, self.now)
        if following := self.source.after_arrival(job):
            self.expect(*following)
        if self.fleet.front_end.time(job.isl) > 0.0:
            self._coming[job] = None
            lane = (job.number - 1) % len(self._unread)
            self._unread[lane].append(job)
            if len(self._unread[lane]) == 1:
                self._read(job)
        else:
            self._encode(job)

    def _read(self, job: Job) -> None:
        """A front end begins to read a request."""
        lane, front_end = (job.number - 1) % len(self._readers), self.fleet.front_end
        replica, behind = self._readers[lane], 0.0
        if front_end.stream > 0.0:
            behind = replica.unsent(self.now, front_end.stream / front_end.servers)
        self._reads[lane] = self.now, behind, replica.tokens_made(self.now)
        work = front_end.time(job.isl)
        self._push(self.now + work + max(0.0, behind - job.isl * front_end.tokeniser), self._have_read, job)

    def _have_read(self, job: Job) -> None:
        """Read the next request, after sending the tokens made until now (`rooflinekit.load.loop.have_read`)."""
        lane, front_end = (job.number - 1) % len(self._unread), self.fleet.front_end
        if front_end.stream > 0.0:
            (since, behind, before), work = self._reads[lane], front_end.time(job.isl)
            sent, elapsed = self._readers[lane].tokens_made(self.now) - before, self.now - since
            beside = job.isl * front_end.tokeniser
            left = work + max(0.0, behind + sent * (front_end.stream / front_end.servers) - beside) - elapsed
            left = min(left, beside + (work - beside) / LEAST_LEFT - elapsed)
            if left > front_end.stream:
                self._push(self.now + left, self._have_read, job)
                return
        unread = self._unread[lane]
        unread.popleft()
        if unread:
            self._read(unread[0])
        if front_end.hop > 0.0:
            self._push(self.now + front_end.hop, self._encode, job)
        else:
            self._encode(job)

    def _encode(self, job: Job) -> None:
        """Accelerators that encode images do so before the request is handed over."""
        if encoders := self.fleet.front_end.encoders:
            self._coming[job] = None
            self._push(encoders.done(self.now), self._admit, job)
        else:
            self._admit(job)

    def _admit(self, job: Job) -> None:
        self._coming.pop(job, None)
        job.queued, fleet = self.now, self.fleet
        if job in self._gone:
            self._gone.remove(job)
            self.ledger.leave(job, self.now, "cut")
            return
        replica = None if self._held else fleet.route(job)
        full = replica is None and fleet.full(len(self._held))
        if why := FULL if full else fleet.refusal(job, replica):
            self.ledger.refusals[why] += 1
            self._leave(job, "rejected")
        elif replica is None:
            self._held.append(job)
        else:
            self._submit(job, replica)

    def _submit(self, job: Job, replica: ObjectReplica) -> None:
        replica.queue.push(job)
        self._wake(replica)

    def _wake(self, replica: ObjectReplica) -> None:
        """Something has come in: an idle replica looks at it now, a busy one when its step ends."""
        if replica.until < 0.0:
            self._idle[replica] = None
        elif (before := replica.until) != (until := replica.cut(self.now)) and before != until:
            self._push(until, self._step_ends, replica)

    def _step_ends(self, replica: ObjectReplica) -> None:
        if replica.until != self.now:  # the run was cut, and this was its former end
            return
        if self.watch:
            self.watch(self._index[replica], replica, self.now)
        for job in replica.end(self.now):
            self._leave(job, "finished")
        replica.until = -1.0
        for job in self._leaving.pop(replica, ()):
            self._drop(replica, job)
        self._idle[replica] = None
        while self._held and (next_replica := self.fleet.route(self._held[0])):
            self._submit(self._held.popleft(), next_replica)

    def _leave(self, job: Job, how: str) -> None:
        self.ledger.leave(job, self.now, how)
        for arrival, measured in self.source.after_end(self.now, job):
            self.expect(arrival, measured)

    def _export(self, job: Job, now: float) -> None:
        """A prompt is computed: a decode replica queues it, and copies its blocks when it has room for them."""
        if replica := self.fleet.hand_over(job):
            self._submit(job, replica)

    def _fetch(self, job: Job, to: ObjectReplica, now: float) -> None:
        link, home = self.fleet.link, job.home
        assert isinstance(home, ObjectReplica)
        done = max(now, self._free_at[home]) + link.latency + link.token_s * job.keys
        self._free_at[home] = done
        self._push(done, self._copied, (job, home, to))

    def _load(self, job: Job, to: ObjectReplica, ready: float) -> None:
        self._push(ready, self._has_loaded, (job, to))

    def _has_loaded(self, what: tuple[Job, ObjectReplica]) -> None:
        job, replica = what
        replica.loaded(job)
        self._wake(replica)

    def _copied(self, what: tuple[Job, ObjectReplica, ObjectReplica]) -> None:
        job, home, to = what
        home.release_staged(job)
        to.deliver(job)
        self._wake(home)
        self._wake(to)

    def _cut_rest(self) -> None:
        """Count what has come and has not ended."""
        rest = dict.fromkeys(self._held) | self._coming
        for replica in self.fleet.all:
            rest |= dict.fromkeys(replica.evict_all())
        for job in rest:
            self.ledger.leave(job, self.now, "cut")

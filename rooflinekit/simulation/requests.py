"""Requests as the object simulator has them: how far each is, and who hands them out while it runs."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.load.arrivals import Arrival, checked
from rooflinekit.model.types.errors import WorkloadError


class Job:
    """A request in the system: how far it is, and what it holds. The one thing here that changes."""

    __slots__ = (
        "arrived", "blocks", "cached", "computed", "draw", "due", "first", "hashes", "held", "home", "isl", "joined",
        "kind", "last", "made", "measured", "number", "offset", "osl", "priority", "queued", "samples", "session",
        "swapped", "target",
    )  # fmt: skip

    def __init__(self, number: int, arrival: Arrival, measured: bool = True) -> None:
        self.number = number  #: order of arrival
        self.arrived, self.isl, self.osl, self.hashes, self.priority, self.samples, *rest = arrival
        self.session, self.kind = rest
        self.queued = self.arrived  #: when the front end handed it on [s]
        self.measured = measured  #: whether it counts in the statistics (not one of the warm-up)
        self.target = self.isl  #: tokens that a prefill must have in the cache before the next token comes out
        self.computed = 0  #: of them, how many are
        self.cached = 0  #: of them, how many were found in a cache
        self.made = 0  #: output tokens of each sample so far
        self.first = -1.0  #: when the first token came out [s]
        self.last = -1.0  #: when the latest did, where that is not the replica's latest decode step [s]
        self.blocks = 0  #: blocks of its own
        self.held: tuple[int, ...] = ()  #: blocks that it shares through the prefix cache
        self.joined = 0  #: decode steps that the replica had made when this one joined
        self.due = -1  #: decode step with which it ends; -1 while it does not decode
        self.offset = 0  #: class of the decode steps in which it needs a new block
        self.draw = 0  #: the latest number that its drafts were drawn with; 0 before the first
        self.swapped = 0  #: blocks in host memory
        self.home: object = None  #: the prefill replica that still holds its blocks

    def __lt__(self, other: Job) -> bool:
        """In order of arrival, where a heap asks."""
        return self.number < other.number

    @property
    def keys(self) -> int:
        """Tokens of each sample that the cache holds once the prefill is done: the latest token is not yet computed."""
        return self.isl + self.made - 1 if self.made else self.isl


class Source:
    """Hands out arrivals while a simulation runs; the flag says whether the request counts in the statistics.

    Without `users` requests come at times of their own, and the first `warmup` are not counted. With them, each of the
    users sends the next request when the answer has come, and its own time does not count; as benchmark clients do,
    the first `warmup` requests run and end by themselves, then the counted ones begin, `users` at once.
    """

    def __init__(self, arrivals: Iterator[Arrival], users: int | None = None, warmup: int = 0) -> None:
        if users is not None and users < 1:
            raise WorkloadError(f"a closed loop needs at least 1 user, not {users}")
        self._arrivals, self._users = checked(arrivals), users
        self._warmup, self._counting, self._flying = warmup, warmup == 0, 0

    def start(self) -> Iterator[tuple[Arrival, bool]]:
        """Arrivals that come whatever happens: the first, or one of each user."""
        if self._users is not None:
            yield from self._send(0.0, self._users)
        elif first := self.after_arrival():
            yield first

    def after_arrival(self, job: Job | None = None) -> tuple[Arrival, bool] | None:
        """The next, when one has arrived; none where users wait."""
        if self._users is not None or (arrival := next(self._arrivals, None)) is None:
            return None
        self._warmup -= 1
        return arrival, self._warmup < 0

    def after_end(self, now: float, job: Job) -> Iterator[tuple[Arrival, bool]]:
        """Arrivals after the end of a request: the user's next one; after the last of the warm-up, one of each."""
        if self._users is None:
            return iter(())
        self._flying -= 1
        if self._counting or self._warmup > 0:
            return self._send(now, 1)
        self._counting = self._flying == 0
        return self._send(now, self._users if self._counting else 0)

    def _send(self, now: float, count: int) -> Iterator[tuple[Arrival, bool]]:
        for _ in range(count if self._counting else min(count, self._warmup)):
            arrival = next(self._arrivals, None)
            if arrival is None:
                return
            self._flying += 1
            self._warmup -= not self._counting
            yield arrival._replace(time=now), self._counting

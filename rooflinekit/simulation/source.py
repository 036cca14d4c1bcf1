"""Where requests come from while a simulation runs: a clock of their own, or users who wait for their answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.simulation.request import Arrival

__all__ = ["ClosedSource", "OpenSource", "Source", "checked"]


def checked(arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
    """Pass arrivals on, in order and sensible.

    Raises WorkloadError with the number of the first that is not.
    """
    before = 0.0
    for number, arrival in enumerate(arrivals, 1):
        if not before <= arrival.time < math.inf:
            raise WorkloadError(f"request {number} arrives at {arrival.time} s, after one at {before} s")
        if min(arrival.isl, arrival.osl, arrival.samples) < 1:
            raise WorkloadError(
                f"request {number} has isl={arrival.isl}, osl={arrival.osl}, samples={arrival.samples}; each must be "
                "at least 1"
            )
        before = arrival.time
        yield arrival


class Source(Protocol):
    """Hands out arrivals; the flag says whether the request counts in the statistics."""

    def start(self) -> Iterator[tuple[Arrival, bool]]:
        """Those that come whatever happens first."""
        ...

    def after_arrival(self) -> tuple[Arrival, bool] | None:
        """The next, when one has arrived."""
        ...

    def after_end(self, now: float) -> Iterator[tuple[Arrival, bool]]:
        """What follows the end of a request."""
        ...


class OpenSource:
    """Arrivals at times of their own; the first `warmup` are not counted."""

    def __init__(self, arrivals: Iterator[Arrival], warmup: int = 0) -> None:
        self._arrivals, self._left = checked(arrivals), warmup

    def start(self) -> Iterator[tuple[Arrival, bool]]:
        """The first."""
        if first := self.after_arrival():
            yield first

    def after_arrival(self) -> tuple[Arrival, bool] | None:
        """The next."""
        arrival = next(self._arrivals, None)
        if arrival is None:
            return None
        self._left -= 1
        return arrival, self._left < 0

    def after_end(self, now: float) -> Iterator[tuple[Arrival, bool]]:
        """Nothing."""
        return iter(())


class ClosedSource:
    """`users` who each send the next request when the answer has come; their own times do not count.

    As benchmark clients do: the first `warmup` requests run and end by themselves, then the counted ones begin, `users`
    at once.
    """

    def __init__(self, arrivals: Iterator[Arrival], users: int, warmup: int = 0) -> None:
        if users < 1:
            raise WorkloadError(f"a closed loop needs at least 1 user, not {users}")
        self._arrivals, self._users = checked(arrivals), users
        self._warmup, self._counting, self._flying = warmup, warmup == 0, 0

    def start(self) -> Iterator[tuple[Arrival, bool]]:
        """One of each user."""
        return self._send(0.0, self._users)

    def after_arrival(self) -> tuple[Arrival, bool] | None:
        """Nothing: users wait."""
        return None

    def after_end(self, now: float) -> Iterator[tuple[Arrival, bool]]:
        """The user's next one; after the last of the warm-up, one of each."""
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

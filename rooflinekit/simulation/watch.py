"""Watchers of a run: a timeline that thins itself out, batches of time, and a trace for Chrome and Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooflinekit.load.played import grows
from rooflinekit.model.types.answer import Json
from rooflinekit.model.types.late import np
from rooflinekit.simulation.event_loop import Watch
from rooflinekit.simulation.ledger import Ledger, Sketch
from rooflinekit.simulation.replica import ObjectReplica

TIMELINE = ("time_s", "replica", "queue", "batch", "prompts", "kv_use")
"""Columns of a timeline: end of a step, which replica, who waits, who decodes, prompts in the step, blocks in use."""

_ROWS = 4096  # of the timeline at most: then every other one goes, and the interval doubles
_INTERVAL = 1e-3  # s between two rows of a replica, at first
MOST_EVENTS = 200_000
"""Steps that a Chrome trace holds: viewers get slow beyond."""


Latencies = tuple[Sketch, Sketch, Sketch]
"""Latencies of requests: TTFT, TPOT, and from end to end."""


def both(*watches: Watch | None) -> Watch | None:
    """Join watchers; None if there are none."""
    present = [watch for watch in watches if watch]
    if len(present) < 2:
        return present[0] if present else None

    def watch(index: int, replica: ObjectReplica, now: float) -> None:
        for each in present:
            each(index, replica, now)

    return watch


class Timeline:
    """Queue, batch and cache of each replica at the ends of steps, a few thousand rows however long the run."""

    def __init__(self) -> None:
        self._interval, self._rows = _INTERVAL, list[dict[str, float]]()
        self._next: dict[int, float] = {}

    def __call__(self, index: int, replica: ObjectReplica, now: float) -> None:
        """See a step end."""
        if not self.due(now, index):
            return
        used = replica.pool.used / replica.pool.total
        self.see(now, index, len(replica.queue), replica.decodes, len(replica.shares), used)

    def due(self, now: float, index: int) -> bool:
        """True if the replica's last row was long enough ago."""
        return now >= self._next.get(index, 0.0)

    def see(self, now: float, index: int, *seen: float) -> None:
        """Take a row of `TIMELINE`."""
        self._next[index] = now + self._interval
        self._rows.append(dict(zip(TIMELINE, (now, index, *seen), strict=True)))
        if len(self._rows) >= _ROWS:
            self._thin()

    def rows(self) -> tuple[dict[str, float], ...]:
        """Rows of the timeline, in order of time."""
        return tuple(self._rows)

    def _thin(self) -> None:
        self._interval *= 2
        kept: list[dict[str, float]] = []
        latest: dict[float, float] = {}
        for row in self._rows:
            if row["time_s"] >= latest.get(row["replica"], 0.0):
                kept.append(row)
                latest[row["replica"]] = row["time_s"] + self._interval
        self._rows = kept


class Batches:
    """A run in some tens of pieces of about equal time, as long as requests come: latencies, and whether they pile up.

    start: what ends before it counts nowhere [s]. Latencies are triples of TTFT, TPOT and the whole request.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._start, self._length, self._next = start, _SHORTEST, 0.0
        self._marks: list[tuple[float, float, float, int]] = []  # time, ∫N dt of all, of who waits, arrivals
        self._parts: list[list[Latencies]] = []
        self._ledger: Ledger | None = None

    def __call__(self, index: int, replica: ObjectReplica, now: float) -> None:
        """See a step end."""
        if now < self._next:
            return
        self._ledger = replica.ledger
        if not self._marks and now < self._start:
            self._next = self._start
            return
        if self._marks and replica.ledger.arrived == self._marks[-1][3]:  # none has come, or all have
            self._next = now + self._length
            return
        latencies = self._taken(replica.ledger)
        if self._marks or not self._start:
            self._parts.append([latencies])
            if not self._marks:
                self._marks.append((0.0, 0.0, 0.0, 0))
        ledger = replica.ledger
        self._marks.append((ledger.clock, ledger.area, ledger.waited, ledger.arrived))
        if len(self._parts) >= 2 * _PIECES:
            self._parts = [a + b for a, b in zip(self._parts[::2], self._parts[1::2], strict=True)]
            self._marks, self._length = self._marks[::2], 2.0 * self._length
        self._next = self._marks[-1][0] + self._length

    def end(self) -> None:
        """Give the ledger all latencies that count."""
        ledger = self._ledger
        if ledger is not None:
            self._parts.append([self._taken(ledger)])
            self._parts = [[each] for each in self.parts]
            ledger.ttft, ledger.tpot, ledger.e2el = (Sketch.joined(each) for each in zip(*self.parts, strict=True))

    @property
    def parts(self) -> list[Latencies]:
        """Latencies of each piece."""
        return [_joined(each) for each in self._parts]

    @property
    def full(self) -> list[Latencies]:
        """Latencies of two pieces each, where they hold enough to be compared."""
        pieces = self.parts
        parts = [_joined(pieces[at : at + 2]) for at in range(0, len(pieces), 2)]
        few = sum(ttft.count for ttft, _, _ in parts) / (2 * max(len(parts), 1))
        return [each for each in parts if each[0].count > few and each[2].count]

    @property
    def growth(self) -> tuple[bool, bool]:
        """Growth of the requests in the system, and of those without a first token."""
        marks = self._marks if self._start else self._marks[len(self._marks) // 4 :]  # the engine fills
        if len(marks) < _FEWEST:
            return False, False
        time, *areas, arrived = np.array(marks, float).T
        return grows(time, areas, arrived[-1] - arrived[0])

    @staticmethod
    def _taken(ledger: Ledger) -> Latencies:
        taken = ledger.ttft, ledger.tpot, ledger.e2el
        ledger.ttft, ledger.tpot, ledger.e2el = Sketch(), Sketch(), Sketch()
        return taken


_PIECES = 20  # of a run at least, once it is longer than as many of the shortest
_SHORTEST = 0.05  # s
_FEWEST = 8  # marks from which a trend is told


def _joined(parts: Sequence[Latencies]) -> Latencies:
    ttft, tpot, e2el = (Sketch.joined(each) for each in zip(*parts, strict=True))
    return ttft, tpot, e2el


class ChromeTrace:
    """Every step as an event of the Trace Event Format (complete events and counters, microseconds)."""

    def __init__(self) -> None:
        self._events, self.dropped = list[dict[str, Any]](), 0

    def __call__(self, index: int, replica: ObjectReplica, now: float) -> None:
        """See a step end."""
        if len(self._events) >= MOST_EVENTS:
            self.dropped += 1
            return
        prompts = sum(take for _, take in replica.shares)
        kind = "mixed" if prompts and replica.decodes else "prefill" if prompts else "decode"
        name, spent = kind if replica.steps == 1 else f"{kind} x {replica.steps}", (now - replica.began) * 1e6
        done = {"sequences": replica.decodes, "prompt_tokens": prompts, "steps": replica.steps}
        levels = {"queue": len(replica.queue), "running": len(replica.admitted), "kv_blocks": replica.pool.used}
        step, level = {"name": name, "cat": kind, "ph": "X"}, {"name": f"replica {index}", "ph": "C"}
        at = {"pid": 0, "tid": index}
        self._events.append(step | at | {"ts": replica.began * 1e6, "dur": spent, "args": done})
        self._events.append(level | at | {"ts": now * 1e6, "args": levels})

    def to_dict(self) -> Json:
        """The file's content; `otherData` says how many steps were left out."""
        left = {"steps_left_out": self.dropped}
        return {"traceEvents": self._events, "displayTimeUnit": "ms", "otherData": left}

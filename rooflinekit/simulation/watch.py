"""Watchers of a run: a timeline that thins itself out, and a trace for chrome://tracing and Perfetto."""

from __future__ import annotations

from typing import Any

from rooflinekit.simulation.event_loop import Watch
from rooflinekit.simulation.replica import Replica

TIMELINE = ("time_s", "replica", "queue", "batch", "prompts", "kv_use")
"""Columns of a timeline: end of a step, which replica, who waits, who decodes, prompts in the step, blocks in use."""

_ROWS = 4096  # of the timeline at most: then every other one goes, and the interval doubles
MOST_EVENTS = 200_000
"""Steps that a Chrome trace holds: viewers get slow beyond."""


def both(*watches: Watch | None) -> Watch | None:
    """Join watchers; None if there are none."""
    present = [watch for watch in watches if watch]
    if len(present) < 2:
        return present[0] if present else None

    def watch(index: int, replica: Replica, now: float) -> None:
        for each in present:
            each(index, replica, now)

    return watch


class Timeline:
    """Queue, batch and cache of each replica at the ends of steps, a few thousand rows however long the run."""

    def __init__(self, least: float = 1e-3) -> None:
        self._interval, self._rows = least, list[dict[str, float]]()
        self._next: dict[int, float] = {}

    def __call__(self, index: int, replica: Replica, now: float) -> None:
        """See a step end."""
        if now < self._next.get(index, 0.0):
            return
        self._next[index] = now + self._interval
        used = replica.pool.used / replica.pool.total
        seen = (now, index, len(replica.queue), replica.decodes, len(replica.shares), used)
        self._rows.append(dict(zip(TIMELINE, seen, strict=True)))
        if len(self._rows) >= _ROWS:
            self._thin()

    def rows(self) -> tuple[dict[str, float], ...]:
        """What was seen, in order of time."""
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


class ChromeTrace:
    """Every step as an event of the Trace Event Format (complete events and counters, microseconds)."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._most, self._events, self.dropped = most, list[dict[str, Any]](), 0

    def __call__(self, index: int, replica: Replica, now: float) -> None:
        """See a step end."""
        if len(self._events) >= self._most:
            self.dropped += 1
            return
        prompts = sum(take for _, take in replica.shares)
        kind = "mixed" if prompts and replica.decodes else "prefill" if prompts else "decode"
        self._events.append(
            {
                "name": kind if replica.steps == 1 else f"{kind} x {replica.steps}",
                "cat": kind,
                "ph": "X",
                "pid": 0,
                "tid": index,
                "ts": replica.began * 1e6,
                "dur": (now - replica.began) * 1e6,
                "args": {"sequences": replica.decodes, "prompt_tokens": prompts, "steps": replica.steps},
            }
        )
        levels = {"queue": len(replica.queue), "running": len(replica.admitted), "kv_blocks": replica.pool.used}
        self._events.append(
            {"name": f"replica {index}", "ph": "C", "pid": 0, "tid": index, "ts": now * 1e6, "args": levels}
        )

    def to_dict(self) -> dict[str, Any]:
        """The file's content; `otherData` says how many steps were left out."""
        return {
            "traceEvents": self._events,
            "displayTimeUnit": "ms",
            "otherData": {"steps_left_out": self.dropped},
        }

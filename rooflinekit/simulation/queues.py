"""Queues of the object simulator: first come first served, or by priority class."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from rooflinekit.simulation.requests import Job


class FirstCome(deque[Job]):
    """First come, first served; who was preempted comes before all."""

    push, put_back, pop = deque.append, deque.appendleft, deque.popleft

    def first(self) -> Job:
        """Next job."""
        return self[0]


class ByClass:
    """By priority class, the lowest number first; by arrival within a class."""

    def __init__(self) -> None:
        self._jobs: list[tuple[int, int, Job]] = []

    def push(self, job: Job) -> None:
        """A new one."""
        heappush(self._jobs, (job.priority, job.number, job))

    put_back = push

    def first(self) -> Job:
        """Next job."""
        return self._jobs[0][2]

    def pop(self) -> Job:
        """Next job, removed from the queue."""
        return heappop(self._jobs)[2]

    def remove(self, job: Job) -> None:
        """One that is here leaves before its turn."""
        self._jobs.remove((job.priority, job.number, job))
        heapify(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return (job.priority, job.number, job) in self._jobs

    def __len__(self) -> int:
        return len(self._jobs)


Queue: TypeAlias = FirstCome | ByClass
"""Requests that wait for their place, in the order in which they get it; `put_back` takes one that had its place."""

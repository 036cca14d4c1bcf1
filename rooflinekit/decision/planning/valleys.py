"""Batch jobs beside requests that come by the hour: how fast a fleet does them with what the hours leave free.

b(x) = the largest rate of a job beside x requests/s on a replica with which the objectives of these hold
job k in interval h on n replicas:  n·b_k(λ_h/n) requests/s, the job with the earliest deadline first
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rooflinekit.decision.planning.fleet import Part, Replica, lay_out, slowed
from rooflinekit.decision.planning.mix import Mix, TrafficClass
from rooflinekit.decision.planning.objective import last_met, spare
from rooflinekit.decision.planning.profile import Profile
from rooflinekit.decision.planning.search import PlanQuestion
from rooflinekit.model.types.errors import DoesNotFitError

_GRID = (0.0, 0.4, 0.7, 0.9, 1.0)  # of what a replica bears, where b is worked out
_FULL = 0.95  # of the knee that a job takes at most, so that queues stay short
_CLOSE = 0.02  # relative, of b
_LEAST = 1e-3  # of a rate: below it a job gets nothing
_MOST = 1 << 14  # replicas


@dataclass(frozen=True)
class Hour:
    """An interval: when it begins [h], its hours, requests/s that come and of the jobs, and replicas."""

    hour: float
    hours: float
    rate: float
    jobs: dict[str, float]
    replicas: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"hour": self.hour, "rate": self.rate, "jobs": self.jobs, "replicas": self.replicas}


@dataclass(frozen=True)
class Valleys:
    """A deployment that serves steady classes by a profile, and jobs in what is left.

    mix: all of them; used: share of b with which the simulation agrees.
    """

    question: PlanQuestion
    part: Part
    mix: Mix
    profile: Profile
    used: float = 1.0
    _free: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def jobs(self) -> list[TrafficClass]:
        """By deadline."""
        jobs = [each for each in self.mix.classes if each.deadline_h is not None]
        return sorted(jobs, key=lambda each: each.deadline_h or 0.0)

    def at(self, rate: float, job: str, beside: float) -> Mix:
        """Requests of one replica: `rate` of the steady classes, `beside` of a job [1/s]."""
        steady = [each for each in self.mix.classes if each.deadline_h is None]
        whole = sum(each.rate for each in steady)
        return self.mix.at({each.name: each.rate / whole * rate for each in steady} | {job: beside})

    def replica(self, mix: Mix) -> Replica:
        """The deployment with the times of a mix."""
        replica = self._free.get("replica")
        if replica is None:
            base = self.part.replica
            told = {key: value for key, value in base.scenario.items() if key not in ("model", "gpu")}
            laid_out = []
            for each in self.mix.classes:  # tables reach as far as the class of which most run at once
                alone = self.mix.at({each.name: each.rate})
                try:
                    laid_out.append(lay_out(self.question.model, base.gpu, told, alone, self.question.calibration))
                except DoesNotFitError:
                    continue
            reach = max((each.reach for each in laid_out), default=base.reach)
            replica = self._free["replica"] = replace(base, reach=max(reach, base.reach))
        return replace(replica, times=mix.tabulated(replica.predictor, replica.reach))

    def free(self, job: str, rate: float) -> float:
        """The largest rate of a job beside one of the steady classes [1/s], on straight lines between five of these."""
        top = self.part.ability.load * (1.0 - self.question.reserve.headroom)
        if job not in self._free:
            self._free[job] = [self._beside(job, share * top) for share in _GRID]
        return self.used * float(np.interp(rate / top, _GRID, self._free[job]))

    def _beside(self, job: str, rate: float) -> float:
        alone = self.at(0.0, job, 1.0)
        most = _FULL * self.replica(alone).knee(alone)
        if not rate:
            return most

        def left(beside: float) -> float:
            mix = self.at(rate, job, beside)
            replica = self.replica(mix)
            if mix.mean_load >= _FULL * replica.knee(mix):
                return 0.0
            feels = slowed(lambda at: replica.feel(mix, at), mix.mean_load)
            return min(spare(feels, mix.slo, self.question.deviations).values(), default=math.inf)

        return last_met(left, _LEAST * most, most, _CLOSE) or 0.0

    def hours(self, replicas: int) -> tuple[list[Hour], dict[str, float]]:
        """The intervals up to the last deadline, and the hour at which each job is done (infinite: not in time)."""
        left = {job.name: job.requests or 0.0 for job in self.jobs}
        done: dict[str, float] = dict.fromkeys(left, math.inf)
        last = max(job.deadline_h or 0.0 for job in self.jobs)
        found: list[Hour] = []
        clock, place = 0.0, 0
        while clock < last - 1e-9:
            rate = self.profile.rates[place % len(self.profile.rates)]
            length = min(self.profile.hours[place % len(self.profile.hours)], last - clock)
            taken, used = 0.0, dict[str, float]()
            for job in self.jobs:
                speed = replicas * self.free(job.name, rate / replicas) * 3600.0  # an hour
                if not left[job.name] or not speed:
                    continue
                hours = min(left[job.name] / speed, length - taken)
                left[job.name] -= hours * speed
                taken += hours
                used[job.name] = hours * speed / length / 3600.0
                if left[job.name] < 1e-6:
                    left[job.name], done[job.name] = 0.0, clock + taken
            found.append(Hour(clock, length, rate, used, replicas))
            clock, place = clock + length, place + 1
        return found, done

    def in_time(self, replicas: int) -> bool:
        """Whether so many replicas do every job by its deadline."""
        _, done = self.hours(replicas)
        return all(done[job.name] <= (job.deadline_h or 0.0) + 1e-9 for job in self.jobs)

    def replicas(self) -> int | None:
        """The fewest, at least those of the peak; None where none is enough."""
        low, high = self.part.working, self.part.working
        while not self.in_time(high):
            low, high = high + 1, 2 * high
            if high > _MOST:
                return None
        return low + bisect_left(range(low, high), True, key=self.in_time)

    def fullest(self, replicas: int) -> tuple[float, str, float] | None:
        """Requests/s of the steady classes on a replica, the job and its rate, where it does most of it."""
        rows = [(each.jobs[name] / replicas, each.rate / replicas, name)
                for each in self.hours(replicas)[0] for name in each.jobs if each.rate]  # fmt: skip
        if not rows:
            return None
        beside, rate, name = max(rows)
        return rate, name, min(max(beside, 0.0), self.free(name, rate)) or beside


def steady_and_jobs(classes: Sequence[TrafficClass]) -> tuple[list[TrafficClass], list[TrafficClass]]:
    """Classes that come by the hour, and batch jobs."""
    jobs = [each for each in classes if each.deadline_h is not None]
    return [each for each in classes if each.deadline_h is None], jobs

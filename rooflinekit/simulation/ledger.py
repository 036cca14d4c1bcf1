"""What is written down while a simulation runs: counts, sums and sketches, never a list of finished requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rooflinekit.simulation.request import Job
from rooflinekit.simulation.sketch import Sketch

__all__ = ["Ledger", "Objective"]


@dataclass(frozen=True, slots=True)
class Objective:
    """Service-level objective of one request; None asks for nothing [s]."""

    ttft: float | None = None
    tpot: float | None = None

    def met(self, ttft: float, tpot: float) -> bool:
        """Whether a request got what was promised."""
        return (self.ttft is None or ttft <= self.ttft) and (self.tpot is None or tpot <= self.tpot)


class Ledger:
    """Counts every request once on its way in and once on its way out."""

    def __init__(self, objective: Objective, keep: Callable[[Job, float, str], None] | None = None) -> None:
        self.objective, self.keep = objective, keep
        self.ttft, self.tpot, self.itl, self.e2el, self.queued = Sketch(), Sketch(), Sketch(), Sketch(), Sketch()
        self.arrived = self.finished = self.rejected = self.cut = self.good = 0
        self.refusals: Counter[str] = Counter()  #: rejected requests by reason
        self.preempted = self.measured = 0
        self.prompt_tokens = self.output_tokens = self.measured_tokens = 0  #: of requests that have ended
        self.present, self.area, self.sojourn = 0, 0.0, 0.0  #: for Little's law: ∫N dt against the sum of stays
        self.clock = self.last_end = 0.0
        self.measured_from = float("inf")

    def enter(self, job: Job, now: float) -> None:
        """A request arrives."""
        self._pass(now)
        self.arrived += 1
        self.present += 1
        if job.measured and now < self.measured_from:
            self.measured_from = now

    def first_token(self, job: Job, now: float) -> None:
        """The first token of a request comes out."""
        job.first = now
        if job.measured:
            self.ttft.add(now - job.arrived)

    def leave(self, job: Job, now: float, how: str) -> None:
        """A request ends: finished, rejected, or cut by the end of the run."""
        self._pass(now)
        self.present -= 1
        self.sojourn += now - job.arrived
        if self.keep:
            self.keep(job, now, how)
        self.output_tokens += job.samples * job.made
        if how == "finished":
            self._finish(job, now)
        elif how == "rejected":
            self.rejected += 1
        else:
            self.cut += 1

    def _finish(self, job: Job, now: float) -> None:
        self.finished += 1
        self.last_end = now
        self.prompt_tokens += job.isl
        if not job.measured:
            return
        tpot = (now - job.first) / (job.osl - 1) if job.osl > 1 else 0.0
        self.measured += 1
        self.measured_tokens += job.samples * job.osl
        self.e2el.add(now - job.arrived)
        if job.osl > 1:
            self.tpot.add(tpot)
        if self.objective.met(job.first - job.arrived, tpot):
            self.good += 1

    def _pass(self, now: float) -> None:
        self.area += self.present * (now - self.clock)
        self.clock = now

"""What is asked of a deployment, and what it answers: a static batch, or users in a closed loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooflinekit.estimation.notes import memory_notes
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Traffic, closed_loop
from rooflinekit.model.traffic.mixing import slots
from rooflinekit.model.types.workload import Workload

__all__ = ["METRICS", "Answer", "Question"]

METRICS = ("ttft", "tpot", "throughput", "cost")


@dataclass(frozen=True)
class Answer:
    """Times [s], output tokens a second of one accelerator, and its seconds that an output token takes.

    batch: sequences that decode together; gpu_seconds times the price of an accelerator second is the cost of a token,
    its share of the prompts included.
    """

    ttft: float
    tpot: float
    tok_s_per_gpu: float
    batch: float

    @property
    def gpu_seconds(self) -> float:
        """Accelerator seconds of one output token."""
        return 1.0 / self.tok_s_per_gpu

    def metrics(self) -> dict[str, float]:
        """The four that elasticities are about."""
        values = (self.ttft, self.tpot, self.tok_s_per_gpu, self.gpu_seconds)
        return dict(zip(METRICS, values, strict=True))


@dataclass(frozen=True)
class Question:
    """A workload; with `users` its batch is the users of a closed loop, of whom those that fit run together."""

    work: Workload
    users: bool = False

    @property
    def parallel(self) -> float:
        """Sequences of the batch, or users."""
        return float(self.work.batch)

    def ask(self, predictor: Predictor) -> Answer:
        """Evaluate the static batch or the closed loop."""
        gpus = predictor.plan.deployment.gpus
        if not self.users:
            point = predictor.evaluate(self.work)
            rate = float(point.output_rate(self.work.batch, self.work.osl))
            return Answer(float(point.ttft.expected), float(point.tpot.expected), rate / gpus, self.parallel)
        traffic = Traffic(self.work.isl, self.work.osl, cached=self.work.cached)
        loaded = closed_loop(predictor, self.work.batch, traffic)
        rate = float(loaded.rate * self.work.osl)
        return Answer(float(loaded.ttft.expected), float(loaded.tpot.expected), rate / gpus, float(loaded.running))

    def misfit(self, predictor: Predictor) -> str:
        """Why it cannot run; empty where it can."""
        batch = 1.0 if self.users else self.work.batch
        new = self.work.isl - self.work.cached
        memory = predictor.memory.evaluate(batch, self.work.longest_context, new)
        if self.users and float(slots(predictor, self.work.isl, self.work.osl)) >= 1.0:
            return ""
        return next(iter(memory_notes(memory)), "")

    def scaled(self, **changes: float) -> Question:
        """The same with other numbers in its workload."""
        return replace(self, work=replace(self.work, **changes))

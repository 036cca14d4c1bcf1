"""TTFT, TPOT and memory of a plan at one operating point, or at a million of them in one pass."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.memory import Memory, MemoryModel, make_memory_model
from rooflinekit.roofline import StepTime
from rooflinekit.step import Plan
from rooflinekit.types.batch import Batch
from rooflinekit.types.numeric import Numeric, ceil_div, floor_div, maximum
from rooflinekit.types.workload import Workload

__all__ = ["Interval", "OperatingPoint", "Predictor"]


@dataclass(frozen=True)
class Interval:
    """A time with its datasheet bound and 90 % interval [s]."""

    time: Numeric
    bound: Numeric
    low: Numeric
    high: Numeric

    @classmethod
    def of(cls, step: StepTime) -> Interval:
        """The sums of a step."""
        return cls(step.time, step.bound, step.low, step.high)

    def plus(self, other: Interval, weight: Numeric) -> Interval:
        """Add a share of another time; interval ends add up as if errors went together."""
        return Interval(
            self.time + weight * other.time,
            self.bound + weight * other.bound,
            self.low + weight * other.low,
            self.high + weight * other.high,
        )


@dataclass(frozen=True)
class OperatingPoint:
    """What a workload costs on a plan; fields are scalars or arrays, as the workload is."""

    ttft: Interval
    tpot: Interval
    memory: Memory

    def e2e(self, osl: Numeric) -> Numeric:
        """First token plus osl − 1 more [s]."""
        return self.ttft.time + (osl - 1.0) * self.tpot.time

    def output_rate(self, batch: Numeric, osl: Numeric) -> Numeric:
        """Output tokens a second of the whole static batch, its prefill included [token/s]."""
        return batch * osl / self.e2e(osl)


@dataclass(frozen=True)
class Predictor:
    """A plan with its memory model; evaluates workloads."""

    plan: Plan
    memory: MemoryModel

    @classmethod
    def of(cls, plan: Plan) -> Predictor:
        """Lay out the memory of a plan."""
        return cls(plan, make_memory_model(plan))

    def prefill_batch(self, work: Workload) -> Batch:
        """The prompts of one attention replica, in one step."""
        return Batch.prefill(self._local(work), work.isl, work.cached)

    def decode_batch(self, work: Workload, context: Numeric) -> Batch:
        """The decoding sequences of one attention replica, each at `context` keys."""
        return Batch.decode(self._local(work), context)

    def evaluate(self, work: Workload) -> OperatingPoint:
        """TTFT = prefill and first sample; TPOT = mean step over the growing context; memory at the longest context."""
        return OperatingPoint(
            ttft=Interval.of(self.plan.time(self.prefill_batch(work))),
            tpot=self._tpot(work),
            memory=self.memory.evaluate(work.batch, work.longest_context, work.isl - work.cached),
        )

    def _tpot(self, work: Workload) -> Interval:
        """Mean step over the output: what depends on the context in three parts, everything else once.

        Each part has the exact mean work of its steps, whatever windows and chunks do in between; what is left is the
        curvature of the time within a third of the output (latencies that grow with a logarithm, corrections).
        """
        if work.context is not None:
            return Interval.of(self.plan.time(self.decode_batch(work, work.context)))
        steps, batch = work.decode_steps, self._local(work)
        mean = Interval.of(self.plan.time(self.decode_batch(work, work.decode_context), grows=False))
        outer = floor_div(steps + 1.0, 3.0)  # whole steps: 1 is 0 + 1 + 0, 2 is 1 + 0 + 1, 8 is 3 + 2 + 3
        before: Numeric = 0.0
        for length in (outer, steps - 2.0 * outer, outer):
            part = Batch.mean_decode(batch, work.isl + 1.0 + before, maximum(length, 1.0))
            mean = mean.plus(Interval.of(self.plan.time(part, grows=True)), length / steps)
            before = before + length
        return mean

    def _local(self, work: Workload) -> Numeric:
        return work.batch if self.plan.deployment.dp == 1 else ceil_div(work.batch, float(self.plan.deployment.dp))

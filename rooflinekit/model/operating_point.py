"""TTFT, TPOT and memory of a plan at one operating point, or at a million of them in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rooflinekit.model.graph import fact, named
from rooflinekit.model.memory.capacity import Memory, MemoryModel, make_memory_model
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.numeric import Numeric, ceil_div, distinct, floor_div, maximum, minimum
from rooflinekit.model.types.workload import Workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["STEADY", "Interval", "OperatingPoint", "Predictor", "Third", "thirds"]


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

    @classmethod
    def sums(cls, step: StepTime) -> Interval:
        """The same of a part of a step, whose interval is widened with the whole."""
        return cls.of(replace(step, factor=1.0))

    def named(self, symbol: str, meaning: str, source: str = "") -> Interval:
        """The same; while it is traced, its time is a line of explanations."""
        time = named(self.time, symbol, meaning, "s", source)
        return self if time is self.time else replace(self, time=time)

    def widened(self, factor: float) -> Interval:
        """The same, its ends at least this factor from the time, but never below the bound."""
        if factor == 1.0:
            return self
        low = maximum(minimum(self.low, self.time / factor), self.bound)
        return Interval(self.time, self.bound, low, maximum(self.high, self.time * factor))

    def scaled(self, factor: Numeric) -> Interval:
        """The same, longer; the bound stays."""
        return Interval(self.time * factor, self.bound, self.low * factor, self.high * factor)

    def taken(self, places: NDArray[np.intp]) -> Interval:
        """Those of an array of times at some places; what does not vary stays."""
        ends = (self.time, self.bound, self.low, self.high)
        return Interval(*(end if isinstance(end, (int, float)) else end[places] for end in ends))

    def plus(self, other: Interval, weight: Numeric) -> Interval:
        """Add a share of another time; interval ends add up as if errors went together."""
        return Interval(
            self.time + weight * other.time,
            self.bound + weight * other.bound,
            self.low + weight * other.low,
            self.high + weight * other.high,
        )

    def times(self, factor: Numeric, of_bound: Numeric) -> Interval:
        """Another multiple of the time than of its bound, below which the low end does not fall."""
        bound = self.bound * of_bound
        return Interval(self.time * factor, bound, maximum(self.low * factor, bound), self.high * factor)


@dataclass(frozen=True)
class OperatingPoint:
    """What a workload costs on a plan; fields are scalars or arrays, as the workload is."""

    ttft: Interval
    tpot: Interval
    memory: Memory

    def e2e(self, osl: Numeric) -> Numeric:
        """First token plus osl − 1 more [s]."""
        return named(self.ttft.time + (osl - 1.0) * self.tpot.time, "E2E", "a request from end to end", "s")

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

    def on(self, plan: Plan) -> Predictor:
        """The same on another plan."""
        return Predictor.of(plan)

    def prefill_batch(self, work: Workload) -> Batch:
        """The prompts of one attention replica (of a microbatch of it), in one step."""
        return Batch.prefill(self._microbatch(work, self.plan.deployment.microbatches), work.isl, work.cached)

    def decode_batch(self, work: Workload, context: Numeric) -> Batch:
        """The decoding sequences of one attention replica, each at `context` keys."""
        return Batch.decode(self._local(work), context)

    def decode_step(self, work: Workload) -> StepTime:
        """One step at the reported context."""
        return self.plan.time(self.decode_batch(work, work.decode_context))

    def evaluate(self, work: Workload) -> OperatingPoint:
        """TTFT = prefill and first sample; TPOT = mean step over the growing context; memory at the longest context."""
        return OperatingPoint(
            ttft=self.ttft(work),
            tpot=self.tpot(work),
            memory=self.memory.evaluate(work.batch, work.longest_context, work.isl - work.cached),
        )

    def ttft(self, work: Workload) -> Interval:
        """Prefill of all prompts and the first sample.

        Microbatches follow each other through the stages: the last one leaves a busiest-stage time a microbatch after
        the first, so m of them on p equal stages take (m + p − 1)/m of what they cost (GPipe, arXiv:1811.06965, 2.3).
        """
        first = Interval.of(self.plan.time(self.prefill_batch(work)))
        if self.plan.deployment.microbatches == 1:
            return first.named(*_TTFT)
        first = first.named("prefill", "the prompts of a microbatch in one step, and the first sample")
        time, bound = self.plan.busiest_share(self.prefill_batch(work))
        count = ceil_div(self._own(work), self._microbatch(work, self.plan.deployment.microbatches))
        behind = named(count, "parts", "microbatches that follow each other through the stages") - 1.0
        return first.times(1.0 + behind * time, 1.0 + behind * bound).named(*_TTFT, "GPipe, arXiv:1811.06965, 2.3")

    def tpot(self, work: Workload) -> Interval:
        """A token passes all stages, and with many microbatches waits until the busiest stage has served the others."""
        through = self._mean_step(work)
        if self.plan.deployment.microbatches == 1:
            return through.named(*_TPOT)
        through = through.named("through", "mean step of a microbatch through all stages")
        time, bound = self.plan.busiest_share(self.decode_batch(work, work.decode_context))
        parts = named(ceil_div(self._own(work), self._local(work)), "parts", "microbatches in flight")
        return through.times(maximum(parts * time, 1.0), maximum(parts * bound, 1.0)).named(*_TPOT)

    def _mean_step(self, work: Workload) -> Interval:
        """Mean step over the output: what depends on the context in three parts, everything else once.

        Each part has the exact mean work of its steps, whatever windows and chunks do in between; what is left is the
        curvature of the time within a third of the output (latencies that grow with a logarithm, corrections).
        """
        if work.context is not None:
            return self._step(self._local(work), work.context)
        batch = self._local(work)
        mean = self._steady(batch, work.decode_context).named(*STEADY)
        for part in thirds(work):
            batches = Batch.mean_decode(batch, part.first, maximum(part.steps, 1.0))
            grown = Interval.sums(self.plan.time(batches, grows=True)).named(*part.attention)
            mean = mean.plus(grown, part.share)
        return mean.widened(self.plan.costs.interval)

    def _step(self, batch: Numeric, context: Numeric) -> Interval:
        """One decode step: what grows with the context, and what scenarios of one batch share."""
        grown = Interval.sums(self.plan.time(Batch.decode(batch, context), grows=True))
        grown = grown.named("attention", "what depends on the context")
        return self._steady(batch, context).named(*STEADY).plus(grown, 1.0).widened(self.plan.costs.interval)

    def _steady(self, batch: Numeric, context: Numeric) -> Interval:
        """What a decode step takes besides what grows with the context: scenarios of one batch share it.

        Where kernels are launched one by one, the gaps between them depend on the context through those that grow.
        """
        if self.plan.iteration(Batch.decode(1.0, 1.0)).eager:
            return Interval.sums(self.plan.time(Batch.decode(batch, context), grows=False))
        sizes, places = distinct(batch)
        steady = Interval.sums(self.plan.time(Batch.decode(sizes, 1.0), grows=False))
        return steady if places is None else steady.taken(places)

    def _local(self, work: Workload) -> Numeric:
        """Decoding sequences of one replica that pass a stage together.

        No more microbatches are in flight than there are stages (vLLM: max_concurrent_batches is the pp size), since
        each reads the weights again.
        """
        return self._microbatch(work, min(self.plan.deployment.microbatches, self.plan.deployment.pp))

    def _microbatch(self, work: Workload, parts: int) -> Numeric:
        own = self._own(work)
        if parts == 1:
            return own
        count = ceil_div(own, fact(parts, "microbatches", "parts of the batch", source="the question"))
        return named(count, "B", "sequences of a microbatch")

    def _own(self, work: Workload) -> Numeric:
        """Sequences of one attention replica."""
        if self.plan.deployment.dp == 1:
            return work.batch
        count = ceil_div(work.batch, fact(self.plan.deployment.dp, "dp", "attention replicas", source="the question"))
        return named(count, "B", "sequences of one attention replica")


_TTFT = "TTFT", "time to the first token: prefill and first sample"
_TPOT = "TPOT", "mean time of an output token after the first"
STEADY = "fixed", "kernels whose work does not depend on the context, and the engine"


@dataclass(frozen=True)
class Third:
    """A part of the output: the context of its first step, how many steps it has, and their share of all."""

    place: int
    first: Numeric
    steps: Numeric
    share: Numeric

    @property
    def attention(self) -> tuple[str, str]:
        """What explanations call the part of its steps that depends on the context."""
        which = ("first", "middle", "last")[self.place - 1]
        return f"attention{self.place}", f"what grows with the context, mean of the {which} third of the output"


def thirds(work: Workload) -> Iterator[Third]:
    """The output in three parts of whole steps: 1 is 0 + 1 + 0, 2 is 1 + 0 + 1, 8 is 3 + 2 + 3."""
    steps = named(work.decode_steps, "steps", "tokens after the first")
    outer = floor_div(steps + 1.0, 3.0)
    first = work.isl + 1.0
    for place, count in enumerate((outer, steps - 2.0 * outer, outer), 1):
        length = named(count, "part", "steps of this part", source="the output in thirds")
        share = named(length / steps, f"w{place}", "share of the output")
        yield Third(place, named(first, "first", "keys of the first of these steps"), length, share)
        first = first + length

"""TTFT, TPOT and memory of a plan at one operating point, or at a million of them in one pass."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.model.capacity import Memory, MemoryModel, make_memory_model
from rooflinekit.model.graph.symbol import fact, named
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.numeric import Numeric, ceil_div, maximum
from rooflinekit.model.types.time import Time
from rooflinekit.model.types.workload import Workload

THIRDS = 3
"""Parts of the output whose mean decode step is worked out; the time is nearly straight within a third."""


def thirds(steps: Numeric) -> tuple[Numeric, Numeric, Numeric]:
    """Whole steps of the parts of an output: ⌊(n + 1)/3⌋ at both ends, the rest in the middle.

    >>> thirds(8.0), thirds(2.0), thirds(1.0)
    ((3.0, 2.0, 3.0), (1.0, 0.0, 1.0), (0.0, 1.0, 0.0))
    """
    outer = (steps + 1.0) // float(THIRDS)
    return outer, steps - 2.0 * outer, outer


@dataclass(frozen=True)
class DecodePart:
    """A part of the output: keys of its first step, how many steps it has, and their share of all."""

    first: Numeric
    steps: Numeric
    share: Numeric
    attention: tuple[str, str]  #: name and words of its attention in explanations


def parts_of(work: Workload) -> Iterator[DecodePart]:
    """The thirds of an output."""
    steps = named(work.decode_steps, "steps", "tokens after the first")
    first = work.isl + 1.0
    for place, (which, count) in enumerate(zip(("first", "middle", "last"), thirds(steps), strict=True), 1):
        length = named(count, "part", "steps of this part", source="the output in thirds")
        share = named(length / steps, f"w{place}", "share of the output")
        title = f"attention over the context, mean of the {which} third of the output"
        yield DecodePart(named(first, "first", "keys of its first step"), length, share, (f"attention{place}", title))
        first = first + length


_TTFT = "TTFT", "time to the first token: prefill and first sample"
_TPOT = "TPOT", "mean time of an output token after the first"
STEADY = "fixed", "kernels whose work does not depend on the context, and the engine"


@dataclass(frozen=True)
class OperatingPoint:
    """Cost of a workload on a plan; fields are scalars or arrays, as the workload is.

    prefill: the step that holds the prompts; decode: one decode step at the reported context.
    """

    ttft: Time
    tpot: Time
    memory: Memory
    prefill: StepTime
    decode: StepTime

    def e2e(self, osl: Numeric) -> Numeric:
        """First token plus osl − 1 more [s]."""
        time = self.ttft.expected + (osl - 1.0) * self.tpot.expected
        return named(time, "E2E", "a request from end to end", "s")

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
        """The predictor on another plan."""
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
        prefill = self.plan.time(self.prefill_batch(work))
        tpot, decode = self.decoding(work)
        memory = self.memory.evaluate(work.batch, work.longest_context, work.isl - work.cached)
        return OperatingPoint(self._first(work, prefill), tpot, memory, prefill, decode)

    def ttft(self, work: Workload) -> Time:
        """Prefill of all prompts and the first sample."""
        return self._first(work, self.plan.time(self.prefill_batch(work)))

    def tpot(self, work: Workload) -> Time:
        """A token passes all stages, and with many microbatches waits until the busiest stage has served the others."""
        return self.decoding(work)[0]

    def _first(self, work: Workload, prefill: StepTime) -> Time:
        """The first token, from the step that holds the prompts.

        Microbatches follow each other through the stages: the last one leaves a busiest-stage time a microbatch after
        the first, so m of them on p equal stages take (m + p − 1)/m of what they cost (GPipe, arXiv:1811.06965, 2.3).
        """
        if self.plan.deployment.microbatches == 1:
            return prefill.total.named(*_TTFT)
        first = prefill.total.named("prefill", "the prompts of a microbatch in one step, and the first sample")
        time, bound = self.plan.busiest_share(self.prefill_batch(work))
        count = ceil_div(self._own(work), self._microbatch(work, self.plan.deployment.microbatches))
        behind = named(count, "parts", "microbatches that follow each other through the stages") - 1.0
        whole = self._overlapped(first.times(1.0 + behind * time, 1.0 + behind * bound), first, behind + 1.0)
        return whole.named(*_TTFT, "GPipe, arXiv:1811.06965, 2.3")

    def decoding(self, work: Workload) -> tuple[Time, StepTime]:
        """TPOT, and the decode step at the reported context."""
        through, decode = self._mean_step(work)
        if self.plan.deployment.microbatches == 1:
            return through.named(*_TPOT), decode
        through = through.named("through", "mean step of a microbatch through all stages")
        time, bound = self.plan.busiest_share(self.decode_batch(work, work.decode_context))
        parts = named(ceil_div(self._own(work), self._local(work)), "parts", "microbatches in flight")
        whole = through.times(maximum(parts * time, 1.0), maximum(parts * bound, 1.0))
        return self._overlapped(whole, through, parts).named(*_TPOT), decode

    def _overlapped(self, whole: Time, one: Time, parts: Numeric) -> Time:
        """Microbatches that attention and feed-forward blocks take in turns: at the high end nothing overlaps.

        That a group never waits while there is a microbatch for it is an assumption (MegaScale-Infer,
        arXiv:2504.02263, 4.1: no more than the busiest of attention, experts and link); nobody measured it here.
        """
        if not self.plan.deployment.ffn_gpus:
            return whole
        return replace(whole, high=maximum(whole.high, parts * one.high))

    def _mean_step(self, work: Workload) -> tuple[Time, StepTime]:
        """Mean step over the output: what depends on the context in three parts, everything else once.

        Each part has the exact mean work of its steps, whatever windows and chunks do in between; what is left is the
        curvature of the time within a third of the output (latencies that grow with a logarithm, corrections).
        """
        step = self.plan.time(self.decode_batch(work, work.decode_context))
        if work.context is not None:
            return step.total, step
        mean, local = (
            Time.sum(timed for timed in step.kernels if not timed.kernel.grows).named(*STEADY),
            self._local(work),
        )
        for part in parts_of(work):
            batches = Batch.mean_decode(local, part.first, maximum(part.steps, 1.0))
            mean = mean.plus(self.plan.time(batches, grows=True).sums.named(*part.attention), part.share)
        return mean.widened(self.plan.costs.interval), step

    def _local(self, work: Workload) -> Numeric:
        """Decoding sequences of one replica that pass a stage together."""
        return self._microbatch(work, self.plan.deployment.in_flight)

    def _microbatch(self, work: Workload, parts: int) -> Numeric:
        own = self._own(work)
        if parts == 1:
            return own
        count = ceil_div(own, fact(parts, "microbatches", "parts of the batch", source="your input"))
        return named(count, "B", "sequences of a microbatch")

    def _own(self, work: Workload) -> Numeric:
        """Sequences of one attention replica."""
        if self.plan.deployment.dp == 1:
            return work.batch
        count = ceil_div(work.batch, fact(self.plan.deployment.dp, "dp", "attention replicas", source="your input"))
        return named(count, "B", "sequences of one attention replica")

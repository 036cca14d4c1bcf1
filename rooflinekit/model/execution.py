"""What an engine makes of a list of kernels: launches, gaps and host work around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rooflinekit.model.roofline import StepTime
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.kernel import AttentionShape, Kernel, KernelTime
from rooflinekit.model.types.numeric import Numeric, maximum, where

__all__ = ["Iteration", "host_times", "run_by"]

_SIGMAS = 1.645  # of a normal distribution: 90 % lie within


@dataclass(frozen=True)
class Iteration:
    """The size of what an engine runs: how often its loop turns, and over what.

    passes: engine steps (prompts beyond the token budget take several); sequences: that take part in all of them;
    layers: that each pass runs; gpus: accelerators that take part; eager: no CUDA graph is replayed.
    """

    passes: Numeric
    sequences: Numeric
    layers: int
    gpus: int
    eager: bool


def run_by(costs: StepCosts, kernels: StepTime, iteration: Iteration, whole: StepTime | None = None) -> StepTime:
    """The step as an engine runs it: t = max(Σ kernels + gaps, launches·t_launch) + host.

    Kernel times change by what the engine hides or repeats; what it adds are entries of family "host". `kernels` may
    be a part of the step, without host work; `whole` is all of it, and host work is added. No time falls below its
    bound.
    """
    changed = tuple(_changed(timed, costs) for timed in kernels.kernels)
    if whole is None:
        return StepTime(changed, costs.interval)
    if not changed:
        return StepTime((), costs.interval)
    entries = _host_entries(costs, iteration, changed[0].kernel.dtype)
    if iteration.eager and costs.launch:
        everything = changed if whole is kernels else tuple(_changed(timed, costs) for timed in whole.kernels)
        launches = sum(timed.kernel.count for timed in everything)
        busy = sum((timed.time for timed in everything), 0.0)
        gaps = maximum(iteration.passes * (launches * costs.launch) - busy, 0.0)
        if not isinstance(gaps, float) or gaps > 0.0:
            doubt = where(gaps > 0.0, costs.spread.get("launch", 0.0) * launches, 0.0)
            entries.append(_entry("launch_gaps", changed[0].kernel.dtype, launches, gaps, doubt))
    return StepTime((*changed, *entries), costs.interval)


def _changed(timed: KernelTime, costs: StepCosts) -> KernelTime:
    """One kernel among its neighbours: its launch partly hidden, a collective later, grouped heads read again."""
    if costs.memory != 1.0 or costs.compute != 1.0:
        timed = _slower(timed, costs)
    kernel, bound = timed.kernel, timed.bound
    shift = (kernel.count * costs.collective if kernel.gpus > 1 else 0.0) - costs.hidden * timed.overhead
    if costs.grouped and kernel.family == "attention_decode":
        shape = kernel.shaped(AttentionShape)
        timed = _repeated(timed, 1.0 + costs.grouped * (1.0 - shape.kv_heads / shape.heads))
    if isinstance(shift, float) and shift == 0.0:
        return timed
    time, low, high = (maximum(end + shift, bound) for end in (timed.time, timed.low, timed.high))
    return replace(timed, overhead=timed.overhead + shift, time=time, low=low, high=high)


def _slower(timed: KernelTime, costs: StepCosts) -> KernelTime:
    """What a kernel takes beyond its launch, times memory^s · compute^(1 − s), s memory's part of the two times.

    Collectives stay: `collective` is theirs.
    """
    if timed.kernel.gpus > 1:
        return timed
    share = timed.memory / maximum(timed.memory + timed.compute, 1e-30)
    factor = costs.memory**share * costs.compute ** (1.0 - share)
    ratio = 1.0 + (factor - 1.0) * maximum(timed.time - timed.overhead, 0.0) / maximum(timed.time, 1e-30)
    time, low, high = (maximum(ratio * end, timed.bound) for end in (timed.time, timed.low, timed.high))
    memory, compute = timed.memory * costs.memory, timed.compute * costs.compute
    return replace(timed, memory=memory, compute=compute, time=time, low=low, high=high)


def _repeated(timed: KernelTime, times: Numeric) -> KernelTime:
    ends = {part: times * getattr(timed, part) for part in ("memory", "time", "low", "high")}
    return replace(timed, **ends)


def host_times(costs: StepCosts, iteration: Iteration) -> tuple[Numeric, Numeric]:
    """Host work of an iteration, and the gaps between the kernels of its layers [s]."""
    once, each = costs.step, costs.sequence
    if iteration.gpus > 1:
        once, each = once + costs.ranks, each + costs.sequence_ranks
    gaps = iteration.passes * (iteration.layers * costs.layer)
    return iteration.passes * once + iteration.sequences * each, gaps


def _host_entries(costs: StepCosts, iteration: Iteration, dtype: Dtype) -> list[KernelTime]:
    host, gaps = host_times(costs, iteration)
    spread: dict[str, Any] = {name: costs.spread.get(name, 0.0) for name in _HOST}
    doubts = host_times(StepCosts(**spread), iteration)
    entries = []
    if costs.step or costs.ranks or costs.sequence or costs.sequence_ranks:
        entries.append(_entry("host", dtype, 1, host, doubts[0]))
    if costs.layer:
        entries.append(_entry("layer_gaps", dtype, iteration.layers, gaps, doubts[1]))
    return entries


_HOST = ("step", "ranks", "sequence", "sequence_ranks", "layer")


def _entry(name: str, dtype: Dtype, count: int, time: Numeric, doubt: Numeric) -> KernelTime:
    """Time in which no kernel runs; nothing of it is in the bound."""
    low = maximum(time - _SIGMAS * doubt, 0.0)
    return KernelTime(
        Kernel(name, "host", count, dtype), 0.0 * time, 0.0, 0.0, 0.0, time, time, low, time + _SIGMAS * doubt
    )

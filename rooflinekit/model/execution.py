"""What an engine makes of a list of kernels: launches, gaps and host work around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rooflinekit.model.graph.symbol import formula
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.kernel import AttentionShape, Kernel
from rooflinekit.model.types.numeric import Numeric, maximum, where
from rooflinekit.model.types.time import SIGMAS, KernelTime

__all__ = ["Iteration", "changed", "host_entries", "host_times"]


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


@formula("host", "host work of a step that the accelerator waits for", "s")
def host_work(passes: Numeric, step: Numeric, sequences: Numeric, each: Numeric) -> Numeric:
    """passes·step + sequences·each: schedule, inputs, sampling, detokenising [s].

    >>> host_work(1.0, 0.5e-3, 32.0, 5e-6) * 1e3
    0.66
    """
    return passes * step + sequences * each


@formula("layer_gaps", "gaps between the kernels of all layers", "s")
def gap_time(passes: Numeric, layers: int, gap: Numeric) -> Numeric:
    """passes·L·gap [s].

    >>> gap_time(1.0, 32, 3e-6) * 1e6
    96.0
    """
    return passes * (layers * gap)


@formula("launch_gaps", "launches that the kernels do not hide", "s")
def launch_gap(passes: Numeric, launches: int, launch: Numeric, busy: Numeric) -> Numeric:
    """max(passes·launches·t_launch − Σ kernels, 0): without a CUDA graph the host launches kernel by kernel [s].

    >>> launch_gap(1.0, 420, 5e-6, 1.6e-3) * 1e3
    0.5
    """
    return maximum(passes * (launches * launch) - busy, 0.0)


@formula("slow", "how much slower this kernel runs")
def beside_factor(memory: Numeric, compute: Numeric, share: Numeric) -> Numeric:
    """s_m^share · s_c^(1 − share), share memory's part of the two times.

    >>> beside_factor(1.21, 1.0, 0.5)
    1.1
    """
    return memory**share * compute ** (1.0 - share)


@formula("again", "times that decode attention reads the keys of a group")
def group_repeats(grouped: Numeric, heads: Numeric, kv_heads: Numeric) -> Numeric:
    """1 + again·(1 − K/H): keys are read again for the query heads of a group.

    >>> group_repeats(0.4, 32, 8)
    1.3
    """
    return 1.0 + grouped * (1.0 - kv_heads / heads)


def host_entries(costs: StepCosts, iteration: Iteration, kernels: Sequence[KernelTime]) -> list[KernelTime]:
    """What an engine adds to the kernels of a step, as entries of family "host".

    t = max(Σ kernels + gaps, launches·t_launch) + host: the gaps between kernels that are launched one by one are what
    the launches take beyond the kernels.
    """
    dtype = kernels[0].kernel.dtype
    entries = _loop_entries(costs, iteration, dtype)
    if iteration.eager and costs.launch:
        launches = sum(timed.kernel.count for timed in kernels)
        gaps = launch_gap(iteration.passes, launches, costs.launch, sum((timed.expected for timed in kernels), 0.0))
        if not isinstance(gaps, float) or gaps > 0.0:
            doubt = where(gaps > 0.0, costs.spread.get("launch", 0.0) * launches, 0.0)
            entries.append(_entry("launch_gaps", dtype, launches, gaps, doubt))
    return entries


def changed(timed: KernelTime, costs: StepCosts) -> KernelTime:
    """One kernel among its neighbours: its launch partly hidden, a collective later, grouped heads read again.

    No time falls below its bound.
    """
    kernel = timed.kernel
    if (costs.memory != 1.0 or costs.compute != 1.0) and kernel.gpus == 1:
        timed = _slower(timed, costs)
    shift = (kernel.count * costs.collective if kernel.gpus > 1 else 0.0) - costs.hidden * timed.overhead
    if costs.grouped and kernel.family == "attention_decode":
        shape = kernel.shaped(AttentionShape)
        repeats = group_repeats(costs.grouped, shape.heads, shape.kv_heads)
        timed = timed.changed(lambda end: repeats * end, memory=repeats * timed.memory)
    if isinstance(shift, float) and shift == 0.0:
        return timed
    return timed.changed(lambda end: end + shift, overhead=timed.overhead + shift)


def _slower(timed: KernelTime, costs: StepCosts) -> KernelTime:
    """What a kernel takes beyond its launch, slower beside others; collectives stay: `collective` is theirs."""
    share = timed.memory / maximum(timed.memory + timed.compute, 1e-30)
    factor = beside_factor(costs.memory, costs.compute, share)
    beyond = maximum(timed.expected - timed.overhead, 0.0) / maximum(timed.expected, 1e-30)
    ratio = 1.0 + (factor - 1.0) * beyond
    return timed.changed(
        lambda end: ratio * end, memory=timed.memory * costs.memory, compute=timed.compute * costs.compute
    )


def host_times(costs: StepCosts, iteration: Iteration) -> tuple[Numeric, Numeric]:
    """Host work of an iteration, and the gaps between the kernels of its layers [s]."""
    once, each = costs.step, costs.sequence
    if iteration.gpus > 1:
        once, each = once + costs.ranks, each + costs.sequence_ranks
    gaps = gap_time(iteration.passes, iteration.layers, costs.layer)
    return host_work(iteration.passes, once, iteration.sequences, each), gaps


def _loop_entries(costs: StepCosts, iteration: Iteration, dtype: Dtype) -> list[KernelTime]:
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
    kernel, doubt = Kernel(name, "host", count, dtype), SIGMAS * doubt
    return KernelTime(time, 0.0 * time, maximum(time - doubt, 0.0), time + doubt, kernel, 0.0, 0.0, 0.0, time)

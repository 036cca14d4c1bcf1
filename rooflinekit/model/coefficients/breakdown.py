"""One step of exported coefficients kernel by kernel, its time by cause, and the same on a faster or slower memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rooflinekit.model.coefficients.kernel import KernelCoefficients, KernelSpan
from rooflinekit.model.coefficients.plan import PlanCoefficients
from rooflinekit.model.coefficients.state import State

__all__ = ["CAUSES", "Part", "causes", "decode_step", "prefill_step", "with_bandwidth"]

CAUSES = ("compute", "memory", "network", "overhead")


@dataclass(frozen=True)
class Part:
    """All launches of one kernel in a step, or what the engine adds: work [FLOP, B] and times [s].

    needs: what each of `CAUSES` would take alone.
    """

    name: str
    family: str
    count: int
    flops: float
    weights: float
    cache: float
    activations: float
    span: KernelSpan
    needs: tuple[float, float, float, float]


def prefill_step(exported: PlanCoefficients, batch: float, isl: float) -> list[Part]:
    """The prefill of `batch` prompts, as `Estimate.prefill` has it."""
    parts = [_part(kernel, State.prefill(batch, isl)) for kernel in exported.prefill]
    busy = float(sum(part.count for part in parts)), sum(part.span.time for part in parts)
    return parts + _host(exported, exported.host.passes(batch * isl), batch, busy)


def decode_step(exported: PlanCoefficients, batch: float, context: float) -> list[Part]:
    """One decode step at `context` keys, as `Estimate.decode` has it."""
    parts = [_part(kernel, State.decode(batch, context)) for kernel in (*exported.decode, *exported.growing)]
    busy = float(sum(part.count for part in parts)), sum(part.span.time for part in parts)
    return parts + _host(exported, 1.0, batch, busy if exported.host.eager_decode else None)


def causes(parts: Iterable[Part]) -> dict[str, float]:
    """Seconds by cause: each part's time between its launch and the resource it waits for, by what they need alone."""
    seconds = dict.fromkeys(CAUSES, 0.0)
    for part in parts:
        compute, memory, network, launch = part.needs
        busy = {"memory": memory, "compute": compute, "network": network}  # of equals the first
        cause = max(busy, key=busy.__getitem__)
        whole = launch + busy[cause]
        share = launch / whole if whole else 0.0
        seconds["overhead"] += share * part.span.time
        seconds[cause] += (1.0 - share) * part.span.time
    return seconds


def with_bandwidth(exported: PlanCoefficients, factor: float) -> PlanCoefficients:
    """The plan on a memory `factor` times as fast; capacity and all else stay.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> from rooflinekit.model.coefficients import plan_coefficients
    >>> plain = plan_coefficients(resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor)
    >>> round(plain.tpot(1.0, 128.0, 2.0).time / with_bandwidth(plain, 2.0).tpot(1.0, 128.0, 2.0).time, 6)
    2.0
    """
    groups = (exported.prefill, exported.decode, exported.growing)
    prefill, decode, growing = (tuple(_faster(kernel, factor) for kernel in group) for group in groups)
    return replace(exported, prefill=prefill, decode=decode, growing=growing)


def _faster(kernel: KernelCoefficients, factor: float) -> KernelCoefficients:
    timing = kernel.timing
    if timing is not None:
        beside = timing.beside if timing.of_links else timing.beside / factor
        timing = replace(timing, memory=timing.memory / factor, beside=beside)
    return replace(kernel, bandwidth=kernel.bandwidth * factor, timing=timing)


def _part(kernel: KernelCoefficients, state: State) -> Part:
    basis, n = kernel.shape.at(state).basis, kernel.count
    streamed, weights = kernel.streamed.at(*basis), kernel.weights.at(*basis)
    return Part(
        kernel.name, kernel.family, n, n * kernel.flops.at(*basis), n * weights, n * (streamed - weights),
        n * kernel.activations.at(*basis), kernel.at(state), _needs(kernel, state),
    )  # fmt: skip


def _needs(kernel: KernelCoefficients, state: State) -> tuple[float, float, float, float]:
    features, timing, n = kernel.shape.at(state), kernel.timing, kernel.count
    if timing is None:
        compute, memory, network = kernel.needed(*features.basis)
        return n * compute, n * memory, n * network, 0.0
    besides, latency = timing.besides(features), timing.launched(features)
    memory = timing.memory.at(*features.basis) + (besides if timing.of_memory else 0.0)
    shift = timing.late - timing.hidden * latency
    return (
        n * timing.computed(features, kernel.shape.tile),
        n * memory * timing.repeats,
        n * besides if timing.of_links else 0.0,
        n * (latency + shift),
    )


def _host(exported: PlanCoefficients, passes: float, batch: float, busy: tuple[float, float] | None) -> list[Part]:
    """What the engine adds, under the names of `rooflinekit.model.execution`."""
    return [
        Part(name, "host", 1, 0.0, 0.0, 0.0, 0.0, span, (0.0, 0.0, 0.0, span.time))
        for name, span in zip(
            ("host", "layer_gaps", "launch_gaps"), exported.host.pieces(passes, batch, busy), strict=False
        )
        if span.time
    ]

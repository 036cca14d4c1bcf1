"""A deployment as coefficients: TTFT, TPOT and memory of a static batch, as `operating_point` reckons them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rooflinekit.model.coefficients.export import Known, operation_coefficients
from rooflinekit.model.coefficients.kernel import KernelCoefficients, KernelSpan
from rooflinekit.model.coefficients.memory import MemoryCoefficients, memory_coefficients
from rooflinekit.model.coefficients.state import State
from rooflinekit.model.execution import Iteration, host_times
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.errors import InputError

__all__ = ["HostCoefficients", "PlanCoefficients", "decode_parts", "plan_coefficients"]

_SIGMAS = 1.645  # of a normal distribution: 90 % lie within (rooflinekit.model.execution)


@dataclass(frozen=True)
class HostCoefficients:
    """What an engine adds to the kernels of a step [s].

    step·passes + sequence·b + layers·passes, each with one standard error; steps that no CUDA graph replays take at
    least `launch` for each kernel. `factor`: the interval of a step reaches at least so far either way.
    """

    token_budget: float = 1.0  #: tokens of one pass
    step: float = 0.0
    sequence: float = 0.0
    layers: float = 0.0
    launch: float = 0.0
    step_error: float = 0.0
    sequence_error: float = 0.0
    layers_error: float = 0.0
    launch_error: float = 0.0
    factor: float = 1.0
    request: float = 0.0  #: front end of a request
    eager_decode: bool = False

    def passes(self, tokens: float) -> float:
        """Engine steps that so many prompt tokens take."""
        return max(float(math.ceil(tokens / self.token_budget)), 1.0)

    def added(self, passes: float, sequences: float, busy: tuple[float, float] | None) -> KernelSpan:
        """Host work and gaps; `busy` is the number of launches and the time of their kernels, if they run eagerly."""
        return _sum(self.pieces(passes, sequences, busy))

    def pieces(self, passes: float, sequences: float, busy: tuple[float, float] | None) -> list[KernelSpan]:
        """Host work, the gaps between kernels of layers, and what launches take beyond their kernels."""
        host = passes * self.step + sequences * self.sequence
        doubt = passes * self.step_error + sequences * self.sequence_error
        pieces = [(host, doubt), (passes * self.layers, passes * self.layers_error)]
        if busy is not None:
            gaps = max(passes * (busy[0] * self.launch) - busy[1], 0.0)
            pieces.append((gaps, self.launch_error * busy[0] if gaps > 0.0 else 0.0))
        return [KernelSpan(0.0, t, max(t - _SIGMAS * d, 0.0), t + _SIGMAS * d) for t, d in pieces]


@dataclass(frozen=True)
class PlanCoefficients:
    """One model on one deployment: kernels of prefill, of decode, of decode with the context; host work; memory."""

    prefill: tuple[KernelCoefficients, ...]
    decode: tuple[KernelCoefficients, ...]
    growing: tuple[KernelCoefficients, ...]  #: decode kernels whose work depends on the context
    host: HostCoefficients
    memory: MemoryCoefficients
    gpus: int

    def ttft(self, batch: float, isl: float) -> KernelSpan:
        """Prefill of all prompts and the first sample [s]."""
        kernels = _sum([kernel.at(State.prefill(batch, isl)) for kernel in self.prefill])
        launches = sum(kernel.count for kernel in self.prefill)
        host = self.host.added(self.host.passes(batch * isl), batch, (launches, kernels.time))
        return self._widened(_sum([kernels, host]))

    def tpot(self, batch: float, isl: float, osl: float) -> KernelSpan:
        """Mean decode step over the output [s]."""
        mean = State.decode(batch, isl + (max(osl - 1.0, 1.0) + 1.0) / 2.0)
        fixed = [kernel.at(mean) for kernel in self.decode]
        busy = None
        if self.host.eager_decode:
            count = sum(kernel.count for kernel in (*self.decode, *self.growing))
            busy = count, _sum([*fixed, *(kernel.at(mean) for kernel in self.growing)]).time
        spans = [*fixed, self.host.added(1.0, batch, busy)]
        for first, steps, weight in decode_parts(isl, osl):
            parts = [kernel.at(State.decode(batch, first, steps)) for kernel in self.growing]
            spans.append(_scaled(_sum(parts), weight))
        return self._widened(_sum(spans))

    def _widened(self, span: KernelSpan) -> KernelSpan:
        factor = self.host.factor
        low = max(min(span.low, span.time / factor), span.bound)
        return KernelSpan(span.bound, span.time, low, max(span.high, span.time * factor))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self) | {"memory": self.memory.to_dict()}


def decode_parts(isl: float, osl: float) -> list[tuple[float, float, float]]:
    """Thirds of an output: first context, decode steps, share of all steps.

    >>> decode_parts(100.0, 9.0)
    [(101.0, 3.0, 0.375), (104.0, 2.0, 0.25), (106.0, 3.0, 0.375)]
    """
    steps = max(osl - 1.0, 1.0)
    outer = float(math.floor((steps + 1.0) / 3.0))
    parts, before = [], 0.0
    for length in (outer, steps - 2.0 * outer, outer):
        parts.append((isl + 1.0 + before, max(length, 1.0), length / steps))
        before += length
    return parts


def plan_coefficients(predictor: Predictor, known: Known | None = None) -> PlanCoefficients:
    """Export a plan with tensor parallelism alone.

    `known` remembers kernels for further plans on the same system with the same calibration and engine.

    Raises InputError for other splits, and for kernels, times or memory that cannot be written as coefficients.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> exported = plan_coefficients(resolve("llama-3-8b", "h100-sxm", read_deployment({}), None).predictor)
    >>> [kernel.name for kernel in exported.growing]
    ['attention']
    """
    plan = predictor.plan
    deployment = plan.deployment
    if deployment.gpus != deployment.tp or deployment.ep != 1 or deployment.kv_policy.kind != "full":
        raise InputError("coefficients are exported for tensor parallelism alone and a cache that keeps every key")
    if (plan.costs.memory, plan.costs.compute) != (1.0, 1.0):
        raise InputError("kernels slowed by a fit to benchmark files are not exported; use another calibration")
    kernels: dict[tuple[bool, bool], list[KernelCoefficients]] = {}
    for prefill in (True, False):
        for operation in plan.operations:
            grows = operation.grows and not prefill
            kernels.setdefault((prefill, grows), []).extend(operation_coefficients(plan, operation, prefill, known))
    return PlanCoefficients(
        tuple(kernels.get((True, False), ())), tuple(kernels.get((False, False), ())),
        tuple(kernels.get((False, True), ())), _host(plan), memory_coefficients(predictor.memory), deployment.gpus,
    )  # fmt: skip


def _host(plan: Plan) -> HostCoefficients:
    costs, budget = plan.costs, plan.token_budget
    if plan.calibration is None:
        return HostCoefficients(budget)
    iteration = plan.iteration(Batch.decode(1.0, 1.0))
    spread: dict[str, Any] = {name: costs.spread.get(name, 0.0) for name in _HOST}
    step, sequence, layers = _split(costs, iteration)
    errors = _split(StepCosts(**spread), iteration)
    return HostCoefficients(
        budget, step, sequence, layers, costs.launch, *errors, costs.spread.get("launch", 0.0), costs.interval,
        costs.request, iteration.eager,
    )  # fmt: skip


_HOST = ("step", "ranks", "sequence", "sequence_ranks", "layer")


def _split(costs: StepCosts, iteration: Iteration) -> tuple[float, float, float]:
    """Host work of a pass and of a sequence, and the gaps of a pass."""
    none = Iteration(1.0, 0.0, iteration.layers, iteration.gpus, iteration.eager)
    one = Iteration(0.0, 1.0, iteration.layers, iteration.gpus, iteration.eager)
    host, gaps = host_times(costs, none)
    return float(host), float(host_times(costs, one)[0]), float(gaps)


def _sum(spans: Sequence[KernelSpan]) -> KernelSpan:
    return KernelSpan(*(sum(getattr(span, field.name) for span in spans) for field in fields(KernelSpan)))


def _scaled(span: KernelSpan, weight: float) -> KernelSpan:
    return KernelSpan(span.bound * weight, span.time * weight, span.low * weight, span.high * weight)

"""An operation of a plan on a few small steps, and its work as coefficients.

Work is a sum over sequences, tokens, query-key pairs and experts. Four small steps give the terms, a fifth must agree:
a kernel whose work is no such sum is refused by name, whatever it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rooflinekit.model.coefficients.forms import Work, time_coefficients
from rooflinekit.model.coefficients.kernel import KernelCoefficients, TimeCoefficients
from rooflinekit.model.coefficients.linear import Linear
from rooflinekit.model.coefficients.state import Shape, State
from rooflinekit.model.coefficients.surface import SurfaceSlice, Widths, axis_size, slice_surface
from rooflinekit.model.kernels import AttentionCore, Experts, LatentCore, Operation
from rooflinekit.model.step import Plan
from rooflinekit.model.timing import AXES
from rooflinekit.model.timing.calibrated import UNMEASURED, WIDEST, FamilyFit
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.kernel import Kernel

__all__ = ["Known", "operation_coefficients"]

_Asked: TypeAlias = tuple[Operation, int, bool]


@dataclass(frozen=True)
class Known:
    """What was exported of plans on one system with one calibration and engine: by operation, the same launches once.

    asked: by formats and replicas too, which is all that launches depend on.
    """

    alike: dict[_Asked, list[tuple[list[list[Kernel]], list[KernelCoefficients]]]] = field(default_factory=dict)
    asked: dict[tuple[object, ...], list[KernelCoefficients]] = field(default_factory=dict)


_PREFILL = tuple(State.prefill(*step) for step in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (1.0, 4.0), (3.0, 5.0)))
_DECODE = tuple(State.decode(*step) for step in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (1.0, 4.0), (3.0, 5.0)))
_SLIP = 1e-12  # of a quantity: lost to rounding in its differences
_QUANTITIES = ("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "activation_bytes", "network_bytes",
               "nic_bytes")  # fmt: skip


def operation_coefficients(
    plan: Plan, operation: Operation, prefill: bool, known: Known | None = None
) -> list[KernelCoefficients]:
    """The kernels of one operation of a plan in prefill or decode steps.

    Raises InputError for a kernel whose work or time cannot be written so.
    """
    known, count = Known() if known is None else known, plan.operations[operation]
    what, deployment = (operation, count, prefill), plan.deployment
    asked = (*what, plan.precision.stream, plan.precision.kv, deployment.dp, deployment.cp)
    if asked not in known.asked:
        known.asked[asked] = _exported(plan, what, known)
    return known.asked[asked]


def _exported(plan: Plan, what: _Asked, known: Known) -> list[KernelCoefficients]:
    """Those of the same launches in other formats, or new ones."""
    operation, count, prefill = what
    states = _PREFILL if prefill else _DECODE
    launches = [operation.kernels(plan.seen(state.batch), count) for state in states]
    same = known.alike.setdefault(what, [])
    for others, found in same:
        if others == launches:
            return found
    found = [_kernel(plan, operation, states, kernels) for kernels in zip(*launches, strict=True)]
    same.append((launches, found))
    return found


def _kernel(
    plan: Plan, operation: Operation, states: tuple[State, ...], kernels: tuple[Kernel, ...]
) -> KernelCoefficients:
    shape, system = _shape(plan, operation, states, kernels), plan.system
    first = kernels[0]
    terms = {name: _terms(name, states, kernels, shape) for name in _QUANTITIES}
    links, nics = terms["network_bytes"] + terms["nic_bytes"] * -1.0, terms["nic_bytes"]
    joined = first.gpus > 1
    streamed = terms["weight_bytes"] + terms["kv_read_bytes"] + terms["kv_write_bytes"]
    accelerator = system.accelerator
    work = Work(
        first, system, terms["flops"], terms["weight_bytes"], terms["kv_read_bytes"], terms["activation_bytes"],
        streamed + terms["activation_bytes"], terms["network_bytes"].each,
        float(system.transfer_time(first)) / float(states[0].sequences) if joined else 0.0,
    )  # fmt: skip
    return KernelCoefficients(
        first.name, first.family, first.count, shape, work.flops, streamed, work.activations,
        links / float(system.link_bandwidth) if joined and system.domain_size > 1 else Linear(),
        nics / float(system.nic_bandwidth) if joined and nics.each else Linear(),
        work.peak, work.bandwidth, float(accelerator.l2_bytes), terms["weight_bytes"], _timing(plan, work, shape),
    )  # fmt: skip


def _shape(plan: Plan, operation: Operation, states: tuple[State, ...], kernels: tuple[Kernel, ...]) -> Shape:
    first, last = kernels[0], kernels[-1]
    tile = float(plan.system.accelerator.tile_rows) if first.family == "gemm" else 1.0
    by_tokens = round(_rows(last) / _rows(first)) != states[-1].sequences or bool(states[0].first)
    match operation:
        case AttentionCore():
            window = 0 if operation.chunk else operation.window or 0
            return Shape(float(window), float(operation.chunk or 0), by_tokens, tile)
        case LatentCore():
            return Shape(float(operation.top_k or 0), 0.0, by_tokens, tile)
        case Experts() if operation.routing.ranks == 1 and operation.routing.skew == 0.0:
            routing = operation.routing
            return Shape(0.0, 0.0, True, tile, float(routing.experts), 1.0 - routing.top_k / routing.experts)
        case _:
            return Shape(0.0, 0.0, by_tokens, tile)


def _rows(kernel: Kernel) -> float:
    """What a kernel's own size grows with: its rows, or the bytes of its payload; 1 if it has neither."""
    return float(getattr(kernel.shape, "m", getattr(kernel.shape, "payload", 1.0)))


def _terms(name: str, states: tuple[State, ...], kernels: tuple[Kernel, ...], shape: Shape) -> Linear:
    """One quantity of the work: three differences, and a check."""
    values = [float(getattr(kernel, name)) for kernel in kernels]
    if not any(values):
        return Linear()
    if shape.experts and name == "weight_bytes":
        found = Linear(experts=values[0] / shape.at(states[0]).touched)
    elif states[0].first:
        found = _decode_terms(values)
    else:
        found = _prefill_terms(values)
    scale = max(abs(value) for value in values)
    found = Linear(*(term if abs(term) > _SLIP * scale else 0.0 for term in found.values))
    if abs(found.at(*shape.at(states[-1]).basis) - values[-1]) > 1e-9 * scale:
        raise InputError(f"{name} of {kernels[0].name} is no sum over sequences, tokens and pairs: it is not exported")
    return found


def _prefill_terms(values: list[float]) -> Linear:
    """From steps of 1x1, 2x1, 1x2 and 1x4 tokens, whose prompts score 1, 1, 3 and 10 pairs."""
    one, two, longer, longest = values[:4]
    each = two - one
    constant = one - each
    second, fourth = longer - constant - each, longest - constant - each  # b + 2d, 3b + 9d
    pairs = (fourth - 3.0 * second) / 3.0
    tokens = second - 2.0 * pairs
    return Linear(constant, each - tokens - pairs, tokens, pairs)


def _decode_terms(values: list[float]) -> Linear:
    """From 1 and 2 sequences of 1 key, and one of 2 keys."""
    one, two, longer = values[:3]
    pairs = longer - one
    each = two - one
    return Linear(one - each, 0.0, each - pairs, pairs)


def _timing(plan: Plan, work: Work, shape: Shape) -> TimeCoefficients | None:
    calibration, kernel, costs = plan.calibration, work.kernel, plan.costs
    if calibration is None:
        return None
    chosen = calibration.fit(kernel)
    fit = _at_shape(chosen, kernel)
    base = time_coefficients(fit.form, work)
    grouped = costs.grouped and kernel.family == "attention_decode"
    repeats = 1.0 + costs.grouped * (1.0 - work.dim("kv_heads") / work.dim("heads")) if grouped else 1.0
    power = calibration.widening.get(kernel.family, 1.0) * (1.0 if calibration.measured(kernel) else UNMEASURED)
    return replace(
        base,
        ratio=_ratio(fit, work),
        widths=_widths(chosen, work, power),
        repeats=repeats,
        late=costs.collective if kernel.gpus > 1 else 0.0,
        hidden=costs.hidden,
    )


def _at_shape(fit: FamilyFit, kernel: Kernel) -> FamilyFit:
    """The fit, or the one that takes over at this kernel's shape."""
    if fit.beyond is None:
        return fit
    if axis_size(fit.beyond.axis, kernel, 0.0) is not None:
        raise InputError(f"{kernel.family} changes its kernel with {fit.beyond.axis}, which cannot be exported")
    return fit.beyond.fit if float(AXES[fit.beyond.axis](kernel)) >= fit.beyond.start else fit


def _ratio(fit: FamilyFit, work: Work) -> SurfaceSlice | float:
    if fit.surface is None:
        return 1.0
    payload = work.activations.each / 2.0  # a collective reads and writes its payload once
    sizes = {}
    for axis in fit.surface.axes:
        position = axis_size(axis.name, work.kernel, payload)
        sizes[axis.name] = float(AXES[axis.name](work.kernel)) if position is None else position
    return slice_surface(fit.surface, sizes)


def _widths(fit: FamilyFit, work: Work, power: float) -> Widths:
    regimes = fit.regimes
    position = axis_size(regimes.axis, work.kernel, work.activations.each / 2.0) if regimes.axis else None
    if position is None:
        return Widths(factors=(min(float(regimes.factor(work.kernel)) ** power, WIDEST),))
    return Widths(position, regimes.edges, tuple(min(width**power, WIDEST) for width in regimes.width))

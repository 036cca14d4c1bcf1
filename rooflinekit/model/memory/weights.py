"""Weights as an engine keeps them: merged matrices, padded vocabularies and experts, tables, allocator blocks."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.model.kernels import Embedding, Experts, LatentUpProjection, Linear, Operation
from rooflinekit.model.layers import stage_operations
from rooflinekit.model.step import Plan
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import MemoryRule
from rooflinekit.model.types.model import Attention, LatentAttention, Layer, Mixer, Model
from rooflinekit.model.types.units import MIB

__all__ = ["allocated_bytes", "resident_bytes"]

_SEGMENT, _LARGE, _REMAINDER = 2 * MIB, 10 * MIB, MIB
_BY_CHANNEL = (Dtype.FP8, Dtype.INT8)  # one fp32 scale an output channel


def allocated_bytes(size: float) -> float:
    """What PyTorch's caching allocator counts for one tensor [B] (c10/cuda/CUDACachingAllocator.cpp).

    A tensor of 10 MiB or more has a segment of whole 2 MiB; what is left of it becomes a block of its own only if it
    is more than 1 MiB, and counts as part of the tensor otherwise. Smaller tensors share segments, in steps of 512 B.

    >>> [allocated_bytes(size * MIB) / MIB for size in (31.5, 24.5, 259.0, 4.0)]
    [32.0, 24.5, 260.0, 4.0]
    """
    if size < _LARGE:
        return -(-size // 512) * 512
    segment = -(-size // _SEGMENT) * _SEGMENT
    return segment if segment - size <= _REMAINDER else size


def resident_bytes(plan: Plan, stage: int) -> float:
    """Weights of one pipeline stage on one of its accelerators [B]."""
    rule, model = plan.engine.memory, plan.model
    held = stage_operations(model, plan.deployment, plan.precision, stage)
    tensors = [(size, count) for op, count in held.items() for size in _tensors(op, plan)]
    if model.tower and stage == 0:
        tensors.append((model.tower * plan.precision.stream.bytes / plan.deployment.tp, 1))
    if rule.rotary_table:
        tables = model.rotary_tables if rule.scaled_tables else 1
        tensors += [(tables * size, 1) for size in _rotary_tables(model, plan.precision.stream)]
    if rule.latent_absorbed:
        tensors += [(size, 1) for layer in _layers(plan, stage) for size in _absorbed(layer.mixer, plan)]
    size_of = allocated_bytes if rule.torch_allocator else float
    return rule.loading + sum(size_of(size) * count for size, count in tensors)


def _layers(plan: Plan, stage: int) -> tuple[Layer, ...]:
    depth, pp = plan.model.depth, plan.deployment.pp
    return plan.model.layers[stage * depth // pp : (stage + 1) * depth // pp]


def _absorbed(mixer: Mixer | None, plan: Plan) -> Iterator[float]:
    """Query with key and value with output up-projections multiplied out (vLLM 0.7, W_Q_UK, W_QR and W_UV_O)."""
    if isinstance(mixer, LatentAttention):
        heads, hidden = mixer.heads / plan.deployment.tp, plan.model.hidden
        inputs = mixer.q_rank or hidden
        for inner, outer in ((inputs, mixer.kv_rank), (inputs, mixer.rope_dim), (mixer.kv_rank, hidden)):
            yield heads * inner * outer * plan.precision.stream.bytes


def _tensors(op: Operation, plan: Plan) -> Iterator[float]:
    """Sizes of the tensors of one operation [B]."""
    rule = plan.engine.memory
    match op:
        case Embedding(module="embedding"):
            yield _padded_vocabulary(plan, op.rows) * op.width * op.dtype.bytes
        case Linear(name="lm_head", resident=True):
            yield _padded_vocabulary(plan, op.n) * op.k * op.weight.bytes
        case Experts():
            yield from _expert_tensors(op, rule)
        case _:
            yield from (weights.bytes for weights in op.weights)
    if isinstance(op, Linear) and op.weight in _BY_CHANNEL and rule.torch_allocator:
        yield 4.0 * op.n
    if isinstance(op, LatentUpProjection) and rule.latent_copies:
        yield from (w.count * plan.precision.stream.bytes for w in op.weights if not w.dtype.is_wide)


def _padded_vocabulary(plan: Plan, rows: int) -> float:
    multiple, tp = plan.engine.memory.vocabulary_multiple, plan.deployment.tp
    return max(float(rows), -(-plan.model.vocab // multiple) * multiple / tp)


def _expert_tensors(op: Experts, rule: MemoryRule) -> Iterator[float]:
    """Gate and up of all local experts as one tensor, down as another; MXFP4 ones padded as their kernels need it."""
    fused = (op.matrices - 1) * op.width
    inputs, outputs = rule.mxfp4_multiple if op.weight is Dtype.MXFP4 else (1.0, 1.0)
    yield op.local * _up(op.hidden, inputs) * _up(fused, outputs) * op.weight.bytes
    yield op.local * _up(op.width, inputs) * op.hidden * op.weight.bytes
    if op.bias:
        yield op.local * op.bias * Dtype.BF16.bytes


def _up(size: int, multiple: float) -> float:
    return -(-size // multiple) * multiple


def _rotary_tables(model: Model, stream: Dtype) -> Iterator[float]:
    """Cosine and sine of every position, in the stream's format, once for each rotary width (vLLM's get_rope)."""
    if model.max_context is None:
        return
    mixers = {layer.mixer for layer in model.layer_counts}
    widths = {m.head_dim for m in mixers if isinstance(m, Attention) and m.rotary}
    widths |= {m.rope_dim for m in mixers if isinstance(m, LatentAttention)}
    for width in widths:
        yield model.max_context * width * stream.bytes

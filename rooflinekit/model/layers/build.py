"""A model and a deployment as a list of operations with counts; the only place that knows what a transformer is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rooflinekit.model.kernels.collective import Collective, CollectiveKind, Tiers
from rooflinekit.model.kernels.elementwise import Elementwise, Embedding, Sampling
from rooflinekit.model.kernels.gemm import Linear
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.layers.feedforward import dense_operations, expert_operations
from rooflinekit.model.layers.mixers import (
    attention_operations,
    delta_net_operations,
    gated_convolution_operations,
    latent_operations,
    lightning_operations,
    mamba2_operations,
    mamba_operations,
)
from rooflinekit.model.layers.precision import Precision
from rooflinekit.model.layers.shard import EVERYWHERE, Shard
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.model import (
    Attention,
    DenseFFN,
    GatedConvolution,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    LightningAttention,
    Mamba,
    Mamba2,
    MixtureOfExperts,
    Model,
    Norm,
)

_BUILDERS: dict[type, Callable[[Any, Shard], list[Operation]]] = {
    Attention: attention_operations,
    LatentAttention: latent_operations,
    GatedDeltaNet: delta_net_operations,
    LightningAttention: lightning_operations,
    Mamba: mamba_operations,
    Mamba2: mamba2_operations,
    GatedConvolution: gated_convolution_operations,
    DenseFFN: dense_operations,
    MixtureOfExperts: expert_operations,
}
_NORM_VECTORS: dict[Norm, int] = {"rmsnorm": 1, "layernorm": 2, "layernorm_nobias": 1, "none": 0}


def layer_operations(layer: Layer, shard: Shard) -> list[Operation]:
    """One layer: norms (fused with the residual addition), mixer, feed-forward block, and their all-reduces."""
    norm = _norm("residual_norm", layer.norm, shard)
    ops: list[Operation] = [norm] * layer.norms
    blocks = [block for block in (layer.mixer, layer.ffn) if block is not None]
    for block in blocks:
        ops += _BUILDERS[type(block)](block, shard)
    if shard.tp > 1:
        ops += _joins(shard) * (1 if layer.parallel else len(blocks))
    return ops


def _joins(shard: Shard) -> list[Operation]:
    """Sum what the ranks computed; under sequence parallelism in two halves, around the norm on a share of the tokens.

    Korthikanti et al. 2022, arXiv:2205.05198: the bytes of both together are those of the all-reduce.
    """
    if not shard.deployment.sequence_parallel:
        return [shard.joined("all_reduce", "all_reduce", shard.hidden)]
    gather = shard.joined("sequence_gather", "all_gather", shard.hidden)
    return [gather, shard.joined("sequence_scatter", "reduce_scatter", shard.hidden)]


def model_operations(
    model: Model, deployment: Deployment, precision: Precision, domain: int = EVERYWHERE
) -> Counter[Operation]:
    """Every operation a token passes through, over all pipeline stages, with its count.

    `domain` is how many accelerators the scale-up links join.
    """
    total: Counter[Operation] = Counter()
    for stage in range(deployment.pp):
        total.update(stage_operations(model, deployment, precision, stage, domain))
    return total


def _send(shard: Shard, boundary: int) -> Collective:
    """Hand the residual stream to the next stage; a stage's ranks are neighbours, and few boundaries cross domains."""
    stage, domain = shard.deployment.stage, shard.domain
    first = (boundary - 1) * stage
    crosses = any(rank // domain != (rank + stage) // domain for rank in range(first, first + stage))
    name = "pipeline_send_nic" if crosses else "pipeline_send"
    return Collective(name, "send", 2, shard.hidden / shard.tp, Tiers(0.0, 1.0) if crosses else Tiers(1.0))


def stage_operations(
    model: Model, deployment: Deployment, precision: Precision, stage: int, domain: int = EVERYWHERE
) -> Counter[Operation]:
    """The operations of one pipeline stage on one of its accelerators."""
    shard = Shard(model.hidden, precision, deployment, domain)
    layers = Counter(model.stage_layers(stage, deployment.pp))
    runs = [(layer_operations(layer, shard), count) for layer, count in layers.items()]
    if stage == 0:
        runs.insert(0, (entry_operations(model, shard), 1))
    runs.append((exit_operations(model, shard) if stage == deployment.pp - 1 else [_send(shard, stage + 1)], 1))
    order: list[Operation] = []
    counts: Counter[Operation] = Counter()
    for ops, count in runs:
        _weave(order, ops)
        for op in ops:
            counts[op] += count
    return Counter({op: counts[op] for op in order})


def _weave(order: list[Operation], sequence: list[Operation]) -> None:
    """Put the new operations of a sequence behind those they follow, so that kinds of layers keep a common order."""
    place = len(order)
    for op in sequence:
        if op in order:
            place = order.index(op)
        else:
            order.insert(place, op)
        place += 1


def entry_operations(model: Model, shard: Shard) -> list[Operation]:
    """Embedding, learned positions, and whatever stands before the first layer."""
    formats, width = shard.precision.formats, model.embedding_dim or model.hidden
    ops: list[Operation] = [Embedding(-(-model.vocab // shard.tp), width, formats.embedding)]
    if model.position_rows:
        ops.append(Embedding(model.position_rows, model.hidden, formats.embedding, "other"))
    if width != model.hidden:
        parts, stored = (("hidden", model.hidden),), formats.embedding
        ops.append(Linear("embedding_proj", width, parts, stored, shard.precision.stream, "embedding"))
    if model.embedding_norm:
        ops.append(_norm("embedding_norm", model.final_norm, shard))
    if shard.tp > 1:
        kind: CollectiveKind = "reduce_scatter" if shard.deployment.sequence_parallel else "all_reduce"
        ops.append(shard.joined("embedding_reduce", kind, width))
    return ops


def exit_operations(model: Model, shard: Shard) -> list[Operation]:
    """Final norm, LM head on the sampled rows, sampling; of a model that scores or embeds, its head or nothing."""
    formats, width, columns = shard.precision.formats, model.embedding_dim or model.hidden, -(-model.vocab // shard.tp)
    ops: list[Operation] = [_norm("final_norm", model.final_norm, shard)]
    if shard.deployment.sequence_parallel:
        ops.append(shard.joined("sequence_gather", "all_gather", shard.hidden))
    compute = shard.precision.compute(formats.lm_head)
    if model.outputs is not None:
        parts, stored = (("scores", model.outputs),), formats.lm_head
        head = Linear("score", model.hidden, parts, stored, compute, "lm_head", rows="sampled")
        return [*ops, head] if model.outputs else ops
    if width != model.hidden:
        parts, stream = (("hidden", width),), shard.precision.stream
        ops.append(Linear("head_proj", model.hidden, parts, formats.lm_head, stream, "lm_head", rows="sampled"))
    resident = not model.tied or shard.deployment.pp > 1
    bias = columns if model.lm_head_bias else 0
    ops.append(
        Linear("lm_head", width, (("logits", columns),), formats.lm_head, compute, "lm_head", bias, "sampled", resident)
    )
    if shard.tp > 1:
        ops.append(shard.joined("logits_gather", "all_gather", model.vocab, sampled=True))
    ops.append(Sampling(model.vocab))
    return ops


def _norm(name: str, kind: Norm, shard: Shard) -> Elementwise:
    """Read the block's output and the residual, write their sum and its normalised copy."""
    vectors = _NORM_VECTORS[kind]
    share = -(-shard.hidden // shard.tp) if shard.deployment.sequence_parallel else shard.hidden  # of a mean token
    return Elementwise(name, 2 * share, 2 * share, 5.0 * share, vectors * shard.hidden, shard.other)

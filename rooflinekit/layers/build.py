"""A model and a deployment as a list of operations with counts; the only place that knows what a transformer is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rooflinekit.kernels import Collective, Elementwise, Embedding, Linear, Operation, Sampling
from rooflinekit.layers.attention import attention_operations, latent_operations
from rooflinekit.layers.feedforward import dense_operations, expert_operations
from rooflinekit.layers.precision import Precision
from rooflinekit.layers.recurrent import (
    delta_net_operations,
    lightning_operations,
    mamba2_operations,
    mamba_operations,
)
from rooflinekit.layers.shard import Shard
from rooflinekit.types.deployment import Deployment
from rooflinekit.types.model import (
    Attention,
    DenseFFN,
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

__all__ = ["layer_operations", "model_operations", "stage_operations"]

_BUILDERS: dict[type, Callable[[Any, Shard], list[Operation]]] = {
    Attention: attention_operations,
    LatentAttention: latent_operations,
    GatedDeltaNet: delta_net_operations,
    LightningAttention: lightning_operations,
    Mamba: mamba_operations,
    Mamba2: mamba2_operations,
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
        reduce = Collective("all_reduce", "all_reduce", shard.tp, shard.hidden, shard.tp)
        ops += [reduce] * (1 if layer.parallel else len(blocks))
    return ops


def model_operations(model: Model, deployment: Deployment, precision: Precision, domain: int = 1) -> Counter[Operation]:
    """Every operation a token passes through, over all pipeline stages, with its count.

    `domain` is how many accelerators the scale-up links join; a stage boundary at a multiple of it crosses nodes.
    """
    total: Counter[Operation] = Counter()
    for stage in range(deployment.pp):
        total.update(stage_operations(model, deployment, precision, stage))
    for boundary in range(1, deployment.pp):
        total[_send(model, deployment, boundary, domain)] += 1
    return total


def _send(model: Model, deployment: Deployment, boundary: int, domain: int) -> Collective:
    """Hand the residual stream to the next stage; ranks of a stage are neighbours, so few boundaries cross nodes."""
    crosses = boundary * deployment.tp % domain == 0
    name = "pipeline_send_nic" if crosses else "pipeline_send"
    return Collective(name, "send", 2, model.hidden / deployment.tp, 2 * domain if crosses else 2)


def stage_operations(model: Model, deployment: Deployment, precision: Precision, stage: int) -> Counter[Operation]:
    """The operations of one pipeline stage on one of its accelerators; layers are split as evenly as they go."""
    shard = Shard(model.hidden, precision, deployment)
    first, last = (stage * model.depth // deployment.pp, (stage + 1) * model.depth // deployment.pp)
    runs = [(layer_operations(layer, shard), count) for layer, count in Counter(model.layers[first:last]).items()]
    if stage == 0:
        runs.insert(0, (_entry(model, shard), 1))
    if stage == deployment.pp - 1:
        runs.append((_exit(model, shard), 1))
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


def _entry(model: Model, shard: Shard) -> list[Operation]:
    """Embedding, learned positions, and whatever stands before the first layer."""
    formats, width = shard.precision.formats, model.embedding_dim or model.hidden
    ops: list[Operation] = [Embedding(-(-model.vocab // shard.tp), width, formats.embedding)]
    if model.position_rows:
        ops.append(Embedding(model.position_rows, model.hidden, formats.embedding, "other"))
    if width != model.hidden:
        ops.append(
            Linear(
                "embedding_proj",
                width,
                (("hidden", model.hidden),),
                formats.embedding,
                shard.precision.stream,
                "embedding",
            )
        )
    if model.embedding_norm:
        ops.append(_norm("embedding_norm", model.final_norm, shard))
    if shard.tp > 1:
        ops.append(Collective("embedding_reduce", "all_reduce", shard.tp, width, shard.tp))
    return ops


def _exit(model: Model, shard: Shard) -> list[Operation]:
    """Final norm, LM head on the sampled rows, sampling."""
    formats, width, columns = shard.precision.formats, model.embedding_dim or model.hidden, -(-model.vocab // shard.tp)
    ops: list[Operation] = [_norm("final_norm", model.final_norm, shard)]
    if width != model.hidden:
        ops.append(
            Linear(
                "head_proj",
                model.hidden,
                (("hidden", width),),
                formats.lm_head,
                shard.precision.stream,
                "lm_head",
                rows="sampled",
            )
        )
    compute = shard.precision.compute(formats.lm_head)
    resident = not model.tied or shard.deployment.pp > 1
    bias = columns if model.lm_head_bias else 0
    ops.append(
        Linear("lm_head", width, (("logits", columns),), formats.lm_head, compute, "lm_head", bias, "sampled", resident)
    )
    if shard.tp > 1:
        ops.append(Collective("logits_gather", "all_gather", shard.tp, model.vocab, shard.tp, sampled=True))
    ops.append(Sampling(model.vocab))
    return ops


def _norm(name: str, kind: Norm, shard: Shard) -> Elementwise:
    """Read the block's output and the residual, write their sum and its normalised copy."""
    vectors = _NORM_VECTORS[kind]
    return Elementwise(
        name, 2 * shard.hidden, 2 * shard.hidden, 5.0 * shard.hidden, vectors * shard.hidden, shard.other
    )

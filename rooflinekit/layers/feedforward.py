"""Feed-forward blocks as operations: dense, and mixture of experts with its router and communication."""

from __future__ import annotations

from rooflinekit.kernels import Collective, Elementwise, Experts, Linear, Operation, Parameters
from rooflinekit.layers.shard import Shard
from rooflinekit.types.dtype import Dtype
from rooflinekit.types.model import DenseFFN, MixtureOfExperts

__all__ = ["dense_operations", "expert_operations"]


def dense_operations(block: DenseFFN, shard: Shard) -> list[Operation]:
    """Up (and gate) projection, activation, down projection."""
    return _ffn(block.width // shard.tp, block.gated, block.bias, shard, "ffn", "")


def _ffn(width: int, gated: bool, bias: bool, shard: Shard, module: str, prefix: str) -> list[Operation]:
    weight: Dtype = getattr(shard.precision.formats, module)
    compute = shard.precision.compute(weight)
    parts = (("gate", width), ("up", width)) if gated else (("up", width),)
    inner = sum(size for _, size in parts)
    up_name = prefix + ("gate_up_proj" if gated else "up_proj")
    return [
        Linear(up_name, shard.hidden, parts, weight, compute, module, inner if bias else 0),
        Elementwise(prefix + "activation", inner, width, 5.0 * width),
        Linear(
            prefix + "down_proj", width, (("down", shard.hidden),), weight, compute, module, shard.hidden if bias else 0
        ),
    ]


def expert_operations(block: MixtureOfExperts, shard: Shard) -> list[Operation]:
    """Router, dispatch, routed experts, combine, shared experts. Router and its selection are on every rank."""
    deployment = shard.deployment
    stream, formats = shard.precision.stream, shard.precision.formats
    width = block.width // deployment.expert_tp
    hidden = block.latent or shard.hidden
    matrices = 3 if block.gated else 2
    bias = (block.bias and (matrices - 1) * width + hidden) or 0
    ops: list[Operation] = [
        Linear("router", shard.hidden, (("scores", block.experts),), shard.other, stream, "other", block.experts if block.router_bias else 0),
        Elementwise("expert_select", block.experts, 2 * block.top_k, 5.0 * block.experts),
    ]  # fmt: skip
    if block.latent:
        ops.append(_latent("expert_down_latent", shard.hidden, block.latent, shard))
    ops += _dispatch(block, hidden, shard)
    compute = shard.precision.compute(formats.experts)
    ops.append(
        Experts(
            block.experts,
            block.experts // deployment.ep,
            block.top_k,
            hidden,
            width,
            matrices,
            bias,
            formats.experts,
            compute,
        )
    )
    ops += _combine(block, hidden, shard)
    if block.latent:
        ops.append(_latent("expert_up_latent", block.latent, shard.hidden, shard))
    if block.shared_width:
        ops += _ffn(block.shared_width // shard.tp, block.gated, False, shard, "shared_experts", "shared_")
        if block.shared_gate:
            ops.append(Parameters("shared_experts", shard.hidden, shard.other))
    return ops


def _latent(name: str, k: int, n: int, shard: Shard) -> Linear:
    weight = shard.precision.formats.ffn
    return Linear(name, k, (("latent", n),), weight, shard.precision.compute(weight), "ffn")


def _dispatch(block: MixtureOfExperts, hidden: int, shard: Shard) -> list[Operation]:
    """Bring the tokens of all attention replicas to the experts."""
    dp, tp, ep = shard.deployment.dp, shard.tp, shard.deployment.ep
    if dp == 1:
        return []
    if ep == 1:
        return [Collective("expert_gather", "all_gather", dp, hidden, replicas=True)]
    return [Collective("expert_dispatch", "all_to_all", ep, hidden * block.top_k / tp)]


def _combine(block: MixtureOfExperts, hidden: int, shard: Shard) -> list[Operation]:
    """Bring the results back; within one replica the layer's all-reduce does it."""
    dp, tp, ep = shard.deployment.dp, shard.tp, shard.deployment.ep
    if dp == 1:
        return []
    if ep == 1:
        return [Collective("expert_scatter", "reduce_scatter", dp, hidden, replicas=True)]
    return [Collective("expert_combine", "all_to_all", ep, hidden * block.top_k / tp)]

"""Feed-forward blocks as operations: dense, and mixture of experts with its router and communication."""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.kernels import Collective, Elementwise, Experts, Operation, Parameters
from rooflinekit.layers.shard import Shard
from rooflinekit.types.model import DenseFFN, MixtureOfExperts

__all__ = ["dense_operations", "expert_operations"]


def dense_operations(block: DenseFFN, shard: Shard) -> list[Operation]:
    """Up (and gate) projection, activation, down projection."""
    return _ffn(replace(block, width=block.width // shard.tp), shard, "ffn")


def _ffn(block: DenseFFN, shard: Shard, module: str, prefix: str = "") -> list[Operation]:
    """A feed-forward block whose width is this accelerator's share."""
    width, bias = block.width, block.bias
    parts = (("gate", width), ("up", width)) if block.gated else (("up", width),)
    inner = sum(size for _, size in parts)
    return [
        shard.linear(prefix + ("gate_up_proj" if block.gated else "up_proj"), shard.hidden, parts, module, bias=bias),
        Elementwise(prefix + "activation", inner, width, 5.0 * width),
        shard.linear(prefix + "down_proj", width, (("down", shard.hidden),), module, bias=bias),
    ]


def expert_operations(block: MixtureOfExperts, shard: Shard) -> list[Operation]:
    """Router, dispatch, routed experts, combine, shared experts. Router and its selection are on every rank."""
    hidden = block.latent or shard.hidden
    router = shard.linear("router", shard.hidden, (("scores", block.experts),), "other", bias=block.router_bias)
    ops: list[Operation] = [router, Elementwise("expert_select", block.experts, 2 * block.top_k, 5.0 * block.experts)]
    if block.latent:
        ops.append(shard.linear("expert_down_latent", shard.hidden, (("latent", block.latent),), "ffn"))
    ops += [*_dispatch(block, hidden, shard), _experts(block, hidden, shard), *_combine(block, hidden, shard)]
    if block.latent:
        ops.append(shard.linear("expert_up_latent", block.latent, (("latent", shard.hidden),), "ffn"))
    if block.shared_width:
        shared = DenseFFN(block.shared_width // shard.tp, block.gated)
        ops += _ffn(shared, shard, "shared_experts", "shared_")
        if block.shared_gate:
            ops.append(Parameters("shared_experts", shard.hidden, shard.other))
    return ops


def _experts(block: MixtureOfExperts, hidden: int, shard: Shard) -> Experts:
    """This rank's experts, each cut over the ranks that share it."""
    weight = shard.precision.formats.experts
    width = block.width // shard.deployment.expert_tp
    matrices = 3 if block.gated else 2
    return Experts(
        experts=block.experts,
        local=block.experts // shard.deployment.ep,
        top_k=block.top_k,
        hidden=hidden,
        width=width,
        matrices=matrices,
        bias=(matrices - 1) * width + hidden if block.bias else 0,
        weight=weight,
        compute=shard.precision.compute(weight),
    )


def _dispatch(block: MixtureOfExperts, hidden: int, shard: Shard) -> list[Operation]:
    """Bring the tokens of all attention replicas to the experts."""
    dp, tp, ep, span = shard.deployment.dp, shard.tp, shard.deployment.ep, shard.deployment.gpus
    if dp == 1:
        return []
    if ep == 1:
        return [Collective("expert_gather", "all_gather", dp, hidden, span, replicas=True)]
    return [Collective("expert_dispatch", "all_to_all", ep, hidden * block.top_k / tp, span)]


def _combine(block: MixtureOfExperts, hidden: int, shard: Shard) -> list[Operation]:
    """Bring the results back; within one replica the layer's all-reduce does it."""
    dp, tp, ep, span = shard.deployment.dp, shard.tp, shard.deployment.ep, shard.deployment.gpus
    if dp == 1:
        return []
    if ep == 1:
        return [Collective("expert_scatter", "reduce_scatter", dp, hidden, span, replicas=True)]
    return [Collective("expert_combine", "all_to_all", ep, hidden * block.top_k / tp, span)]

"""Feed-forward blocks as operations: dense, and mixture of experts with its router and communication."""

from __future__ import annotations

import math
from dataclasses import replace

from rooflinekit.kernels import Collective, Elementwise, Experts, Operation, Parameters
from rooflinekit.layers.shard import Shard
from rooflinekit.types.model import DenseFFN, MixtureOfExperts

__all__ = ["dense_operations", "expert_operations", "group_share"]


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
    """Router, dispatch, routed experts, combine, shared experts. Router and its selection are on every rank.

    Routing is uniform, so with expert parallelism the rank shown is the mean rank: a real router loads some ranks
    more, and the step waits for the fullest. That imbalance is not modelled.
    """
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
    """The mean rank's experts, each cut over the ranks that share it."""
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


def group_share(block: MixtureOfExperts, ep: int) -> float:
    """Share of the tokens that need at least one of the E/ep experts of a group: 1 - C(E - E/ep, k) / C(E, k).

    Top-k without replacement, uniform routing.

    >>> 7 * group_share(MixtureOfExperts(experts=256, top_k=8, width=2048), 8)  # other ranks that a token goes to
    4.63
    """
    experts, top_k = block.experts, block.top_k
    return 1.0 - math.comb(experts - experts // ep, top_k) / math.comb(experts, top_k)


def _exchange(name: str, block: MixtureOfExperts, hidden: int, shard: Shard) -> Collective:
    """Tokens to the ranks of their experts, or the results back.

    A token goes once to each rank that holds any of its experts, however many of them (DeepEP's normal kernels, and
    node-limited dispatch in DeepSeek-V3, arXiv:2412.19437, 3.2.2), and to all ranks that share these experts. Ranks of
    its own replica have it already where they share its own group's experts. Each of the tp ranks that hold a token
    sends its share; results are summed on the rank before they return, so the way back carries as much.
    """
    ep, split, tp = shard.deployment.ep, shard.deployment.expert_tp, shard.tp
    ranks = ep * split
    copies = group_share(block, ep) * ((ep - 1) * split + max(split - tp, 0))
    width = hidden * copies / tp * ranks / (ranks - 1)  # an all-to-all leaves 1/ranks of its payload where it is
    return Collective(name, "all_to_all", ranks, width, shard.deployment.gpus)


def _dispatch(block: MixtureOfExperts, hidden: int, shard: Shard) -> list[Operation]:
    """Bring the tokens of all attention replicas to the experts."""
    dp, ep, span = shard.deployment.dp, shard.deployment.ep, shard.deployment.gpus
    if dp == 1:
        return []
    if ep == 1:
        return [Collective("expert_gather", "all_gather", dp, hidden, span, replicas=True)]
    return [_exchange("expert_dispatch", block, hidden, shard)]


def _combine(block: MixtureOfExperts, hidden: int, shard: Shard) -> list[Operation]:
    """Bring the results back; within one replica the layer's all-reduce does it."""
    dp, ep, span = shard.deployment.dp, shard.deployment.ep, shard.deployment.gpus
    if dp == 1:
        return []
    if ep == 1:
        return [Collective("expert_scatter", "reduce_scatter", dp, hidden, span, replicas=True)]
    return [_exchange("expert_combine", block, hidden, shard)]

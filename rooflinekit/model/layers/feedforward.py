"""Feed-forward blocks as operations: dense, and mixture of experts with its router and communication."""

from __future__ import annotations

import math
from dataclasses import replace

from rooflinekit.model.kernels.collective import Collective, CollectiveKind, Tiers, tiers
from rooflinekit.model.kernels.elementwise import Elementwise, Parameters
from rooflinekit.model.kernels.moe import Experts
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.kernels.routing import Routing
from rooflinekit.model.layers.shard import Shard
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.model import DenseFFN, MixtureOfExperts


def dense_operations(block: DenseFFN, shard: Shard) -> list[Operation]:
    """Up (and gate) projection, activation, down projection."""
    learned = [Parameters("ffn", block.activation, shard.other)] if block.activation else []
    return [*_ffn(replace(block, width=block.width // shard.tp), shard, "ffn"), *learned]


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

    With expert parallelism the rank shown is the fullest one, for which the step waits; what it exchanges is the mean.
    """
    hidden = block.latent or shard.hidden
    router = shard.linear("router", shard.hidden, (("scores", block.experts),), "other", bias=block.router_bias)
    ops: list[Operation] = [router, Elementwise("expert_select", block.experts, 2 * block.top_k, 5.0 * block.experts)]
    if block.latent:
        ops.append(shard.linear("expert_down_latent", shard.hidden, (("latent", block.latent),), "ffn"))
    there, back = _exchanges(block, hidden, shard)
    ops += [*there, _experts(block, hidden, shard), *back]
    if block.latent:
        ops.append(shard.linear("expert_up_latent", block.latent, (("latent", shard.hidden),), "ffn"))
    if block.shared_width:
        shared = DenseFFN(block.shared_width // shard.tp, block.gated)
        ops += _ffn(shared, shard, "shared_experts", "shared_")
        if block.shared_gate:
            ops.append(Parameters("shared_experts", shard.hidden, shard.other))
    return ops


def _experts(block: MixtureOfExperts, hidden: int, shard: Shard) -> Experts:
    """The fullest rank's experts, each cut over the ranks that share it."""
    weight, deployment = shard.precision.formats.experts, shard.deployment
    width = block.width // deployment.expert_tp
    matrices = 3 if block.gated else 2
    return Experts(
        routing=Routing(block.experts, block.top_k, deployment.ep, deployment.skew, deployment.redundant_experts),
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


def _sent(block: MixtureOfExperts, shard: Shard) -> Tiers:
    """Copies of a token that each of the tp ranks which hold it sends to the ranks of its experts.

    A token goes once to each rank that holds any of its experts, however many of them (DeepEP's normal kernels), and
    to all ranks that share these experts. Ranks of its own replica have it already where they share its own group's
    experts. Over several domains it goes once to each domain that needs it, and from there to the ranks (node-limited
    dispatch, DeepSeek-V3, arXiv:2412.19437, 3.2.2). Results are summed on the rank before they return, so the way back
    carries as many.
    """
    deployment, domain, tp = shard.deployment, shard.domain, shard.tp
    ep, split, ranks = deployment.ep, deployment.expert_tp, deployment.stage
    copies = group_share(block, ep) * ((ep - 1) * split + max(split - tp, 0)) / tp
    nodes = -(-ranks // domain)
    if nodes == 1:
        return Tiers(copies)
    visited = group_share(block, min(ep, nodes)) * (nodes - 1) / tp
    return Tiers(copies * nodes * (ranks / nodes - 1.0) / (ranks - 1.0), visited)


_DISPATCHED = {Dtype.FP8: 1.0 + 4.0 / 128.0, Dtype.FP8_BLOCK: 1.0 + 4.0 / 128.0}
"""Bytes of an element on its way to the experts: FP8 with an fp32 scale for each 128 channels (DeepEP)."""


def _exchanges(block: MixtureOfExperts, hidden: int, shard: Shard) -> tuple[list[Operation], list[Operation]]:
    """What brings the tokens of all replicas and context ranks to the experts, and the results back.

    Within one replica the layer's all-reduce does it.
    """
    if shard.replicas == 1:
        return [], []
    if shard.deployment.ep == 1:
        gather = _between_replicas("expert_gather", "all_gather", hidden, shard)
        return [gather], [_between_replicas("expert_scatter", "reduce_scatter", hidden, shard)]
    stream, asked = shard.precision.stream, shard.deployment.dispatch
    size = stream.bytes if asked is None else _DISPATCHED.get(asked, asked.bytes)
    sent, ranks = _sent(block, shard), shard.deployment.stage
    payload = (sent.links + sent.nic) * ranks / (ranks - 1.0)  # with the mean share that stays, as measured ones do
    shares = Tiers(sent.links / payload, sent.nic / payload)
    dispatch = Collective("expert_dispatch", "all_to_all", ranks, hidden * size / stream.bytes * payload, shares)
    return [dispatch], [replace(dispatch, name="expert_combine", width=hidden * payload)]


def _between_replicas(name: str, kind: CollectiveKind, hidden: int, shard: Shard) -> Collective:
    sent = tiers(kind, shard.replicas, shard.deployment.stage, shard.domain)
    return Collective(name, kind, shard.replicas, hidden, sent, replicas=True)

"""Linear-attention and state-space blocks as operations, each the layout of its reference implementation."""

from __future__ import annotations

from rooflinekit.model.kernels import Elementwise, Operation
from rooflinekit.model.kernels.recurrent import ShortConvolution, StateUpdate
from rooflinekit.model.layers.shard import Shard
from rooflinekit.model.types.model import GatedDeltaNet, LightningAttention, Mamba, Mamba2

__all__ = ["delta_net_operations", "lightning_operations", "mamba2_operations", "mamba_operations"]


def delta_net_operations(block: GatedDeltaNet, shard: Shard) -> list[Operation]:
    """Gated delta net (Qwen3-Next): S <- a·S + b·(v - S k) k^T, so two passes over the state and a read-out."""
    keys, values = block.key_heads // shard.tp, block.value_heads // shard.tp
    key_width, value_width = keys * block.key_dim, values * block.value_dim
    mixed = 2 * key_width + value_width
    parts = (("q", key_width), ("k", key_width), ("v", value_width), ("z", value_width))
    return [
        shard.linear("linear_qkvz_proj", shard.hidden, parts),
        shard.linear("linear_ba_proj", shard.hidden, (("b", values), ("a", values))),
        ShortConvolution(mixed, block.conv_width, False, shard.other),
        StateUpdate(
            "delta_rule", values * block.key_dim * block.value_dim, mixed + value_width, 7.0, 2 * values, shard.other
        ),
        Elementwise("gated_norm", 2 * value_width, value_width, 8.0 * value_width, block.value_dim, shard.other),
        shard.linear("o_proj", value_width, (("o", shard.hidden),)),
    ]


def lightning_operations(block: LightningAttention, shard: Shard) -> list[Operation]:
    """Lightning attention (MiniMax-M1): a decayed outer product, a norm, and a sigmoid output gate."""
    heads = block.heads // shard.tp
    width = heads * block.head_dim
    return [
        shard.linear("qkv_proj", shard.hidden, (("q", width), ("k", width), ("v", width))),
        StateUpdate("lightning", heads * block.head_dim**2, 4 * width, 5.0, 0, shard.other),
        shard.linear("gate_proj", shard.hidden, (("gate", width),)),
        Elementwise("gated_norm", 2 * width, width, 8.0 * width, width, shard.other),
        shard.linear("o_proj", width, (("o", shard.hidden),)),
    ]


def mamba_operations(block: Mamba, shard: Shard) -> list[Operation]:
    """Mamba (Jamba's, with norms on dt, B and C): h <- exp(dt A)·h + dt B x, y = C h + D x.

    The channels are cut, so dt, B and C, which need all of them, are summed over the ranks (vLLM's MambaMixer: x_proj
    is row-parallel).
    """
    inner = block.inner // shard.tp
    projected = block.dt_rank + 2 * block.state
    reduce = [shard.joined("ssm_reduce", "all_reduce", projected)] if shard.tp > 1 else []
    return [
        shard.linear("in_proj", shard.hidden, (("x", inner), ("z", inner)), bias=block.proj_bias),
        ShortConvolution(inner, block.conv_width, block.conv_bias, shard.other),
        shard.linear("x_proj", inner, (("dt", block.dt_rank), ("bc", 2 * block.state))),
        *reduce,
        Elementwise("ssm_norm", projected, projected, 4.0 * projected, projected, shard.other),
        shard.linear("dt_proj", block.dt_rank, (("dt", inner),), bias=True),
        StateUpdate(
            "selective_scan",
            inner * block.state,
            4 * inner + 2 * block.state,
            7.0,
            inner * (block.state + 1),
            shard.other,
        ),
        shard.linear("out_proj", inner, (("o", shard.hidden),), bias=block.proj_bias),
    ]


def mamba2_operations(block: Mamba2, shard: Shard) -> list[Operation]:
    """Mamba-2 (Nemotron-H): one decay a head, so the update is a scaled outer product; then a gated norm."""
    heads = block.heads // shard.tp
    inner = heads * block.head_dim
    groups = max(1, block.groups // shard.tp) * block.state
    mixed = inner + 2 * groups
    parts = (("z", inner), ("x", inner), ("bc", 2 * groups), ("dt", heads))
    return [
        shard.linear("in_proj", shard.hidden, parts, bias=block.proj_bias),
        ShortConvolution(mixed, block.conv_width, block.conv_bias, shard.other),
        StateUpdate("ssd", inner * block.state, mixed + inner, 5.0, 3 * heads, shard.other),
        Elementwise("gated_norm", 2 * inner, inner, 8.0 * inner, inner, shard.other),
        shard.linear("out_proj", inner, (("o", shard.hidden),), bias=block.proj_bias),
    ]

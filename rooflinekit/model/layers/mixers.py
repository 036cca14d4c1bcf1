"""Mixers as operations: grouped-query heads, MLA with or without an indexer, linear attention, state spaces."""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.model.kernels.attention import (
    AttentionCore,
    ContextExchange,
    ContextShare,
    IndexScores,
    KVAppend,
    LatentCore,
    LatentUpProjection,
    index_key_bytes,
)
from rooflinekit.model.kernels.elementwise import Elementwise, Parameters
from rooflinekit.model.kernels.gemm import BatchedLinear, Linear
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.kernels.recurrent import ShortConvolution, StateUpdate
from rooflinekit.model.layers.shard import Shard
from rooflinekit.model.types.model import (
    Attention,
    GatedConvolution,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    LightningAttention,
    Mamba,
    Mamba2,
)


def attention_operations(block: Attention, shard: Shard) -> list[Operation]:
    """MHA, GQA or MQA: QKV, positions, cache, attention, output projection."""
    heads, kv_heads = block.heads // shard.tp, shard.kv_heads(block.kv_heads)
    parts = [("q", heads * block.head_dim * (2 if block.gated else 1)), ("k", kv_heads * block.head_dim)]
    if not block.keys_are_values:
        parts.append(("v", kv_heads * block.v_head_dim))
    ops: list[Operation] = [shard.linear("qkv_proj", shard.hidden, tuple(parts), bias=block.qkv_bias)]
    rotated = heads * block.head_dim + kv_heads * block.head_dim
    if block.q_norm or block.k_norm:
        dim, tp = block.head_dim, shard.tp
        scales = _local_norm(block.q_norm, block.heads, dim, tp) + _local_norm(block.k_norm, block.kv_heads, dim, tp)
        ops.append(Elementwise("qk_norm", rotated, rotated, 4.0 * rotated, scales, shard.other))
    if block.rotary:
        ops.append(Elementwise("rope", rotated, rotated, 3.0 * rotated))
    ops.append(KVAppend(kv_heads * (block.head_dim + block.v_head_dim)))
    name = "chunk_attention" if block.chunk else "window_attention" if block.window else "attention"
    core = AttentionCore(
        name, heads, kv_heads, block.head_dim, block.v_head_dim, block.window, block.chunk,
        sinks=heads if block.sinks else 0, policy=shard.deployment.kv_policy,
    )  # fmt: skip
    ops += _over_context(core, shard)
    out = heads * block.v_head_dim
    if block.gated:
        ops.append(Elementwise("output_gate", 2 * out, out, 5.0 * out))
    return [*ops, _output(out, shard, block.o_bias)]


def _output(width: int, shard: Shard, bias: bool = False) -> Linear:
    """The output projection, which some checkpoints store in a format of its own."""
    linear = shard.linear("o_proj", width, (("o", shard.hidden),), bias=bias)
    own = shard.precision.formats.attention_output
    return linear if own is None else replace(linear, weight=own, compute=shard.precision.compute(own))


def _over_context(core: AttentionCore | LatentCore, shard: Shard) -> list[Operation]:
    """The attention itself, or this rank's share of it and what the ranks that share a context exchange."""
    ranks = shard.deployment.cp
    if ranks == 1:
        return [core]
    sent = shard.context_tiers("all_gather"), shard.context_tiers("all_to_all")
    if isinstance(core, AttentionCore):
        cached = core.kv_heads * (core.qk_dim + core.v_dim)
        queries, results = core.heads * core.qk_dim, core.heads * core.v_dim
        exchange = ContextExchange(ranks, cached, queries, results, core.heads, *sent, core.window, core.chunk)
    else:
        latent = core.kv_rank + core.rope_dim
        exchange = ContextExchange(ranks, latent, core.heads * latent, core.heads * core.kv_rank, core.heads, *sent)
    return [exchange, ContextShare(core, ranks)]


def _local_norm(weights: int, heads: int, head_dim: int, tp: int) -> int:
    """A norm over all heads is cut with them; one that the heads share, or that cannot be cut, is whole."""
    over_all_heads = weights % (heads * head_dim) == 0
    return weights // tp if over_all_heads and heads % tp == 0 else weights


def latent_operations(block: LatentAttention, shard: Shard) -> list[Operation]:
    """MLA: latents down, cache, and either the up-projected or the absorbed attention, by phase."""
    heads, stream = block.heads // shard.tp, shard.precision.stream
    weight = shard.precision.formats.attention
    rotated = (heads + 1) * block.rope_dim
    ops = [*_latent_queries(block, heads, shard), Elementwise("rope", rotated, rotated, 3.0 * rotated)]
    ops.append(KVAppend(block.latent_dim))
    if block.indexer is not None and not block.indexer.shared:
        ops += _indexer_operations(block.indexer, block.q_rank or shard.hidden, shard)
    top_k = block.indexer.top_k if block.indexer else None
    compute, policy = shard.precision.compute(weight), shard.deployment.kv_policy
    core = LatentCore(heads, block.kv_rank, block.nope_dim, block.rope_dim, block.v_dim, top_k, policy)
    return [
        *ops,
        LatentUpProjection(heads, block.kv_rank, block.nope_dim, block.v_dim, weight, compute, policy),
        BatchedLinear("q_absorb", heads, block.kv_rank, block.nope_dim, weight, stream),
        *_over_context(core, shard),
        BatchedLinear("v_absorb", heads, block.v_dim, block.kv_rank, weight, stream),
        _output(heads * block.v_dim, shard),
    ]


def _latent_queries(block: LatentAttention, heads: int, shard: Shard) -> list[Operation]:
    """The down-projections, on every rank, and the queries of this one; queries may skip the latent."""
    queries, latent = (("q", heads * block.qk_dim),), ("kv_a", block.latent_dim)
    normed = block.kv_rank + (block.q_rank or 0)
    norm = Elementwise("latent_norm", normed, normed, 4.0 * normed, normed, shard.other)
    if block.q_rank is None:
        return [shard.linear("q_proj", shard.hidden, queries), shard.linear("kv_a_proj", shard.hidden, (latent,)), norm]
    down = shard.linear("qkv_a_proj", shard.hidden, (("q_a", block.q_rank), latent))
    return [down, norm, shard.linear("q_b_proj", block.q_rank, queries)]


def _indexer_operations(indexer: Indexer, query_dim: int, shard: Shard) -> list[Operation]:
    """The indexer is small and replicated on every rank."""
    keys = (("index_k", indexer.head_dim), ("index_gate", indexer.heads))
    return [
        shard.linear("index_q_proj", query_dim, (("index_q", indexer.heads * indexer.head_dim),)),
        shard.linear("index_k_proj", shard.hidden, keys),
        Parameters("other", 2 * indexer.head_dim, shard.other),  # LayerNorm on the index keys
        KVAppend(indexer.head_dim, "index_append", index_key_bytes(indexer.head_dim, shard.precision.index)),
        IndexScores(indexer.heads, indexer.head_dim, shard.precision.index),
    ]


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
    """Mamba (Jamba's has norms on dt, B and C): h <- exp(dt A)·h + dt B x, y = C h + D x.

    The channels are cut, so dt, B and C, which need all of them, are summed over the ranks (vLLM's MambaMixer: x_proj
    is row-parallel).
    """
    inner = block.inner // shard.tp
    projected = block.dt_rank + 2 * block.state
    joined: list[Operation] = [shard.joined("ssm_reduce", "all_reduce", projected)] if shard.tp > 1 else []
    if block.norm:
        joined.append(Elementwise("ssm_norm", projected, projected, 4.0 * projected, projected, shard.other))
    return [
        shard.linear("in_proj", shard.hidden, (("x", inner), ("z", inner)), bias=block.proj_bias),
        ShortConvolution(inner, block.conv_width, block.conv_bias, shard.other),
        shard.linear("x_proj", inner, (("dt", block.dt_rank), ("bc", 2 * block.state))),
        *joined,
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
        Elementwise("gated_norm", 2 * inner, inner, 8.0 * inner, inner if block.norm else 0, shard.other),
        shard.linear("out_proj", inner, (("o", shard.hidden),), bias=block.proj_bias),
    ]


def gated_convolution_operations(block: GatedConvolution, shard: Shard) -> list[Operation]:
    """LFM2: y = C · conv(B · x), with B, C and x projected at once."""
    width, bias = block.channels // shard.tp, block.bias
    return [
        shard.linear("in_proj", shard.hidden, (("b", width), ("c", width), ("x", width)), bias=bias),
        Elementwise("conv_gate", 2 * width, width, 1.0 * width),
        ShortConvolution(width, block.conv_width, bias, shard.other),
        Elementwise("conv_output_gate", 2 * width, width, 1.0 * width),
        shard.linear("out_proj", width, (("o", shard.hidden),), bias=bias),
    ]

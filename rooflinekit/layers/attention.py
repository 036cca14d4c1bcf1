"""Softmax attention blocks as operations: grouped-query heads, and MLA with or without an indexer."""

from __future__ import annotations

from rooflinekit.kernels import (
    AttentionCore,
    Elementwise,
    IndexScores,
    KVAppend,
    LatentCore,
    LatentUpProjection,
    Linear,
    Operation,
    Parameters,
)
from rooflinekit.kernels.gemm import BatchedLinear
from rooflinekit.layers.shard import Shard
from rooflinekit.types.model import Attention, Indexer, LatentAttention

__all__ = ["attention_operations", "latent_operations"]


def attention_operations(block: Attention, shard: Shard) -> list[Operation]:
    """MHA, GQA or MQA: QKV, positions, cache, attention, output projection."""
    heads, kv_heads = block.heads // shard.tp, shard.kv_heads(block.kv_heads)
    weight = shard.precision.formats.attention
    compute = shard.precision.compute(weight)
    parts = [("q", heads * block.head_dim * (2 if block.gated else 1)), ("k", kv_heads * block.head_dim)]
    if not block.keys_are_values:
        parts.append(("v", kv_heads * block.v_head_dim))
    bias = sum(width for _, width in parts) if block.qkv_bias else 0
    ops: list[Operation] = [Linear("qkv_proj", shard.hidden, tuple(parts), weight, compute, "attention", bias)]
    rotated = heads * block.head_dim + kv_heads * block.head_dim
    if block.q_norm or block.k_norm:
        scales = _local_norm(block.q_norm, block.heads, shard.tp) + _local_norm(block.k_norm, block.kv_heads, shard.tp)
        ops.append(Elementwise("qk_norm", rotated, rotated, 4.0 * rotated, scales, shard.other))
    if block.rotary:
        ops.append(Elementwise("rope", rotated, rotated, 3.0 * rotated))
    ops.append(KVAppend(kv_heads * (block.head_dim + block.v_head_dim)))
    ops.append(_core(block, heads, kv_heads))
    out = heads * block.v_head_dim
    if block.gated:
        ops.append(Elementwise("output_gate", 2 * out, out, 5.0 * out))
    o_bias = shard.hidden if block.o_bias else 0
    ops.append(_output(out, shard, o_bias))
    return ops


def _output(width: int, shard: Shard, bias: int = 0) -> Linear:
    """The output projection, which some checkpoints store in a format of its own."""
    formats = shard.precision.formats
    weight = formats.attention_output or formats.attention
    return Linear("o_proj", width, (("o", shard.hidden),), weight, shard.precision.compute(weight), "attention", bias)


def _core(block: Attention, heads: int, kv_heads: int) -> AttentionCore:
    name = "chunk_attention" if block.chunk else "window_attention" if block.window else "attention"
    sinks = heads if block.sinks else 0
    return AttentionCore(name, heads, kv_heads, block.head_dim, block.v_head_dim, block.window, block.chunk, sinks)


def _local_norm(weights: int, heads: int, tp: int) -> int:
    """A norm over all heads is cut with them; one shared by the heads is replicated."""
    return (
        weights // tp
        if heads > 1 and weights % heads == 0 and weights // heads >= heads and heads % tp == 0
        else weights
    )


def latent_operations(block: LatentAttention, shard: Shard) -> list[Operation]:
    """MLA: latents down, cache, and either the up-projected or the absorbed attention, by phase."""
    heads = block.heads // shard.tp
    weight = shard.precision.formats.attention
    compute = shard.precision.compute(weight)
    stream = shard.precision.stream
    kv_down = ("kv_a", block.latent_dim)
    queries = heads * block.qk_dim
    if block.q_rank is None:
        ops: list[Operation] = [
            Linear(
                "q_proj",
                shard.hidden,
                (("q", queries),),
                weight,
                compute,
                "attention",
                queries if block.qkv_bias else 0,
            ),
            Linear("kv_a_proj", shard.hidden, (kv_down,), weight, compute, "attention"),
            Elementwise("latent_norm", block.kv_rank, block.kv_rank, 4.0 * block.kv_rank, block.kv_rank, shard.other),
        ]
    else:
        normed = block.q_rank + block.kv_rank
        down = (("q_a", block.q_rank), kv_down)
        ops = [
            Linear("qkv_a_proj", shard.hidden, down, weight, compute, "attention", block.q_rank + block.latent_dim if block.qkv_bias else 0),
            Elementwise("latent_norm", normed, normed, 4.0 * normed, normed, shard.other),
            Linear("q_b_proj", block.q_rank, (("q", queries),), weight, compute, "attention"),
        ]  # fmt: skip
    rotated = (heads + 1) * block.rope_dim
    ops.append(Elementwise("rope", rotated, rotated, 3.0 * rotated))
    ops.append(KVAppend(block.latent_dim))
    if block.indexer is not None and not block.indexer.shared:
        ops += _indexer_operations(block.indexer, block.q_rank or shard.hidden, shard)
    ops += [
        LatentUpProjection(heads, block.kv_rank, block.nope_dim, block.v_dim, weight, compute),
        BatchedLinear("q_absorb", heads, block.kv_rank, block.nope_dim, weight, stream),
        LatentCore(heads, block.kv_rank, block.nope_dim, block.rope_dim, block.v_dim, block.indexer.top_k if block.indexer else None),
        BatchedLinear("v_absorb", heads, block.v_dim, block.kv_rank, weight, stream),
        _output(heads * block.v_dim, shard),
    ]  # fmt: skip
    return ops


def _indexer_operations(indexer: Indexer, query_dim: int, shard: Shard) -> list[Operation]:
    """The indexer is small and replicated on every rank."""
    weight = shard.precision.formats.attention
    compute = shard.precision.compute(weight)
    width = indexer.heads * indexer.head_dim
    keys = (("index_k", indexer.head_dim), ("index_gate", indexer.heads))
    return [
        Linear("index_q_proj", query_dim, (("index_q", width),), weight, compute, "attention"),
        Linear("index_k_proj", shard.hidden, keys, weight, compute, "attention"),
        Parameters("other", 2 * indexer.head_dim, shard.other),  # LayerNorm on the index keys
        KVAppend(indexer.head_dim, "index_append"),
        IndexScores(indexer.heads, indexer.head_dim),
    ]

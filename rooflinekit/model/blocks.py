"""A model and a deployment as a list of operations with counts; the only place that knows what a transformer is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from rooflinekit.model.apart import encoded_away, feed_forward_shard, sent_away
from rooflinekit.model.kernels.attention import (
    AttentionCore,
    ChosenCore,
    ContextExchange,
    ContextShare,
    CrossCore,
    IndexScores,
    KVAppend,
    LatentCore,
    LatentUpProjection,
    index_key_bytes,
)
from rooflinekit.model.kernels.collective import (
    SCALED,
    Collective,
    CollectiveKind,
    Exchange,
    Tiers,
    exchange_tiers,
    group_share,
    tiers,
)
from rooflinekit.model.kernels.elementwise import Elementwise, Embedding, Parameters, Sampling
from rooflinekit.model.kernels.gemm import BatchedLinear, Linear, with_adapters
from rooflinekit.model.kernels.moe import Experts
from rooflinekit.model.kernels.operation import (
    Idle,
    OfAnswers,
    OfPrompts,
    OnHost,
    Operation,
    Output,
    Part,
    Repeated,
    elements,
    outputs,
)
from rooflinekit.model.kernels.recurrent import ShortConvolution, StateUpdate
from rooflinekit.model.kernels.routing import Routing
from rooflinekit.model.precision import Precision
from rooflinekit.model.shard import EVERYWHERE, Shard
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.model import (
    Attention,
    CompressedAttention,
    CrossAttention,
    DenseFFN,
    Encoder,
    FeedForward,
    GatedConvolution,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Layer,
    LightningAttention,
    Mamba,
    Mamba2,
    Mixer,
    MixtureOfExperts,
    Model,
    Norm,
    Rwkv7,
)
from rooflinekit.model.types.vision import Images, Vision
from rooflinekit.model.vision import BidirectionalAttention, OfImages, vision_operations

Runs: TypeAlias = list[tuple[list[Operation], int]]
"""Operations that follow each other, and how many times they do."""


_pass = partial(Elementwise, assumed=True)
"""Elements read and written that are taken for one pass, which nobody measured."""


def dense_operations(block: DenseFFN, shard: Shard) -> list[Operation]:
    """Up (and gate) projection, activation, down projection."""
    learned = [Parameters("ffn", block.activation, shard.other)] if block.activation else []
    here = replace(block, width=block.width // shard.tp)
    beside = _adapters("gate_up", shard.hidden, block.adapters, (1 + block.gated) * here.width, shard)
    return [*beside, *_ffn(here, shard, "ffn"), *learned]


def _adapters(name: str, inputs: int, rank: int, width: int, shard: Shard) -> list[Operation]:
    """Two matrices of low rank beside one that layers share, each layer's own."""
    return (
        [
            replace(shard.linear(f"{name}_adapter_down", inputs, (("low", rank),)), own=True),
            replace(shard.linear(f"{name}_adapter_up", rank, ((name, width),)), own=True),
        ]
        if rank
        else []
    )


def _ffn(block: DenseFFN, shard: Shard, module: str, prefix: str = "") -> list[Operation]:
    """A feed-forward block whose width is this accelerator's share."""
    width, bias = block.width, block.bias
    parts = (("gate", width), ("up", width)) if block.gated else (("up", width),)
    inner = sum(size for _, size in parts)
    return [
        shard.linear(prefix + ("gate_up_proj" if block.gated else "up_proj"), shard.hidden, parts, module, bias=bias),
        Elementwise(prefix + "activation", inner, width, 5.0 * width),
        shard.linear(prefix + "down_proj", width, (("down", shard.hidden),), module, bias=bias, of=prefix + "down"),
    ]


def expert_operations(block: MixtureOfExperts, shard: Shard) -> list[Operation]:
    """Router, dispatch, routed experts, combine, shared experts. Router and its selection are on every rank.

    With expert parallelism the rank shown is the fullest one, for which the step waits; what it exchanges is the mean.
    """
    hidden = block.latent or shard.hidden
    router = shard.linear("router", shard.hidden, (("scores", block.experts),), "other", bias=block.router_bias)
    chosen = Output("shares", (block.top_k,)), Output("chosen", (block.top_k,), dtype="int32")
    select = Elementwise("expert_select", block.experts, 2 * block.top_k, 5.0 * block.experts, made=chosen)
    ops: list[Operation] = [router, select]
    if block.latent:
        ops.append(shard.linear("expert_down_latent", shard.hidden, (("latent", block.latent),), "ffn"))
    there, back = _exchanges(block, hidden, shard)
    ops += [*there, _experts(block, hidden, shard), *back]
    if block.latent and block.latent_norm:
        ops.append(_pass("expert_norm", hidden, hidden, 4.0 * hidden, hidden, shard.other))
    if block.latent:
        ops.append(shard.linear("expert_up_latent", block.latent, (("latent", shard.hidden),), "ffn"))
    if block.shared_width:
        shared = DenseFFN(block.shared_width // shard.tp, block.gated)
        ops += _ffn(shared, shard, "shared_experts", "shared_")
        if block.shared_gate:
            ops.append(shard.linear("shared_gate", shard.hidden, (("gate", 1),), "other"))
            ops.append(_pass("shared_gated", shard.hidden + 1, shard.hidden, shard.hidden + 4.0))
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
        down=None if shard.precision.formats.down is weight else shard.precision.formats.down,
        chosen=deployment.all_to_all == "deepep",
    )


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
    copies = group_share(block.experts, block.top_k, ep) * ((ep - 1) * split + max(split - tp, 0)) / tp
    nodes = -(-ranks // domain)
    if nodes == 1:
        return Tiers(copies)
    visited = group_share(block.experts, block.top_k, min(ep, nodes)) * (nodes - 1) / tp
    return Tiers(copies * nodes * (ranks / nodes - 1.0) / (ranks - 1.0), visited)


_DISPATCHED = {Dtype.FP8: SCALED, Dtype.FP8_BLOCK: SCALED}
"""Bytes of an element on its way to the experts."""


def _dispatched_bytes(shard: Shard) -> float:
    asked = shard.deployment.dispatch
    return shard.precision.stream.bytes if asked is None else _DISPATCHED.get(asked, asked.bytes)


def _exchanges(block: MixtureOfExperts, hidden: int, shard: Shard) -> tuple[list[Operation], list[Operation]]:
    """Operations that bring the tokens of all replicas and context ranks to the experts, and the results back.

    Within one replica the layer's all-reduce does it.
    """
    if shard.replicas == 1:
        return [], []
    if shard.deployment.ep == 1:
        gather = _between_replicas("expert_gather", "all_gather", hidden, shard)
        return [gather], [_between_replicas("expert_scatter", "reduce_scatter", hidden, shard)]
    stream, asked, size = shard.precision.stream, shard.deployment.dispatch, _dispatched_bytes(shard)
    sent, ranks = _sent(block, shard), shard.deployment.stage
    if shard.deployment.all_to_all == "deepep":
        split = block.experts, block.top_k, ranks, -(-ranks // shard.domain)
        each, once = (exchange_tiers(*split, each=low) for low in (True, False))
        to = Exchange(
            "expert_dispatch", ranks, hidden, block.experts, SCALED if asked is None else size, each, once, shard.tp
        )
        return [to], [replace(to, name="expert_combine", element=stream.bytes)]
    payload = (sent.links + sent.nic) * ranks / (ranks - 1.0)  # with the mean share that stays, as measured ones do
    shares = Tiers(sent.links / payload, sent.nic / payload)
    dispatch = Collective("expert_dispatch", "all_to_all", ranks, hidden * size / stream.bytes * payload, shares)
    return [dispatch], [replace(dispatch, name="expert_combine", width=hidden * payload)]


def _between_replicas(name: str, kind: CollectiveKind, hidden: int, shard: Shard) -> Collective:
    sent = tiers(kind, shard.replicas, shard.deployment.stage, shard.domain)
    return Collective(name, kind, shard.replicas, hidden, sent, replicas=True)


def attention_operations(block: Attention, shard: Shard) -> list[Operation]:
    """MHA, GQA or MQA: QKV, positions, cache, attention, output projection."""
    heads, kv_heads = block.heads // shard.tp, shard.kv_heads(block.kv_heads)
    inputs = shard.hidden * (2 if block.wide else 1)
    dim, cached = block.head_dim, not block.shared
    queries: Part = ("Q, gate", heads, 2 * dim) if block.gated else ("Q", heads, dim)
    parts: list[Part] = [("c_q", block.q_rank) if block.q_rank else queries]
    if cached:
        parts.append(("K", kv_heads, dim))
    if cached and not block.keys_are_values:
        parts.append(("V", kv_heads, block.v_head_dim))
    ops: list[Operation] = []
    apart = shard.precision.formats.value not in (None, shard.precision.formats.attention)
    if apart and cached and not block.keys_are_values:
        ops.append(shard.linear("v_proj", inputs, (parts.pop(),), bias=block.qkv_bias, of="value"))
    ops.insert(0, _without_keys(shard.linear("qkv_proj", inputs, tuple(parts), bias=block.qkv_bias), block))
    ops += [op for part in parts for op in _adapters(part[0].lower(), inputs, block.adapters, elements((part,)), shard)]
    if rank := block.q_rank:
        ops += [_normed("q_norm", rank, shard), shard.linear("q_b_proj", rank, (queries,))]
    turned: tuple[Part, ...] = (("Q", heads, dim), ("K", kv_heads, dim))[: 1 + cached]
    rotated, made = elements(turned), outputs(turned)
    if block.q_norm or block.k_norm:
        tp = shard.tp
        scales = _local_norm(block.q_norm, block.heads, dim, tp) + _local_norm(block.k_norm, block.kv_heads, dim, tp)
        if tp > 1 and block.norm_over_heads:
            ops.append(shard.joined("qk_norm_reduce", "all_reduce", _SQUARES))
        ops.append(Elementwise("qk_norm", rotated, rotated, 4.0 * rotated, scales, shard.other, made=made))
    if block.rotary:
        ops.append(Elementwise("rope", rotated, rotated, 3.0 * rotated, made=made))
    if block.bidirectional:
        inner = BidirectionalAttention("encoder_attention", heads, block.head_dim)
        return [*ops, inner, _output(heads * block.v_head_dim, shard, block.o_bias)]
    if cached:
        ops.append(KVAppend((("K cache", kv_heads, dim), ("V cache", kv_heads, block.v_head_dim))))
    name = "chunk_attention" if block.chunk else "window_attention" if block.window else "attention"
    core = AttentionCore(
        name,
        heads,
        kv_heads,
        block.head_dim,
        block.v_head_dim,
        block.window,
        block.chunk,
        sinks=heads if block.sinks else 0,
        policy=shard.deployment.kv_policy,
    )
    ops += (
        _over_context(core, shard) if block.indexer is None else _chosen(block, block.indexer, heads, kv_heads, shard)
    )
    out = heads * block.v_head_dim
    ops += _output_gate(out, heads * block.head_gated, shard)
    if block.gated:
        ops.append(Elementwise("output_gate", 2 * out, out, 5.0 * out))
    return [*ops, _output(out, shard, block.o_bias)]


_SQUARES = 4
"""Width of two sums of squares in fp32, of queries and of keys, that ranks add up for a norm over all heads.

One all-reduce under vLLM and under SGLang from 0.5.8 on (minimax_m2.py in both), two before that.
"""


def _without_keys(op: Linear, block: Attention | CrossAttention) -> Linear:
    """The weights without the bias of the keys, where they have none."""
    keys = elements(tuple(part for part in op.parts if part[0] == "K"))
    return replace(op, bias=op.bias - keys) if block.unbiased_keys and op.bias else op


def cross_operations(block: CrossAttention, shard: Shard) -> list[Operation]:
    """Attention to an encoder: keys and values are projected and cached when a prompt ends, queries for every token.

    Where the encoder reads the prompt, a token is either the encoder's or the decoder's: self-attention's launch over
    the whole context is that over both caches, and none follows here.
    """
    heads, kv_heads, dim = block.heads // shard.tp, shard.kv_heads(block.kv_heads), block.head_dim
    keys = shard.linear(
        "cross_kv_proj", shard.hidden, (("K", kv_heads, dim), ("V", kv_heads, dim)), bias=block.qkv_bias
    )
    width, wide, length = heads * dim, kv_heads * dim, block.length
    once = [
        _without_keys(keys, block),
        *([Elementwise("cross_k_norm", wide, wide, 4.0 * wide, dim, shard.other)] if block.normed else []),
        KVAppend((("K cache", kv_heads, dim), ("V cache", kv_heads, dim)), "cross_append"),
    ]
    core = [CrossCore(heads, kv_heads, dim, length)] if length else []
    return [
        shard.linear("q_proj", shard.hidden, (("Q", heads, dim),), bias=block.qkv_bias),
        *([Elementwise("q_norm", width, width, 4.0 * width, dim + 2, shard.other)] if block.normed else []),
        *(_of_encoder(op, length) for op in once),
        *core,
        _output(width, shard, block.o_bias),
    ]


def _of_encoder(op: Operation, length: int) -> Operation:
    """An operation over the encoder's positions: those that come with a prompt, or the prompt's tokens."""
    return OfImages(op, 1.0, length, counted=True) if length else OfPrompts(op)


def _chosen(block: Attention, indexer: Indexer, heads: int, kv_heads: int, shard: Shard) -> list[Operation]:
    """MiniMax-M3: an index query a KV head, one index key, and attention to the blocks of keys that they pick."""
    layer, dim = f"msa_{shard.precision.formats.attention.value}", indexer.head_dim
    own = max(indexer.heads * heads // block.heads, 1)
    index = shard.precision.stream if indexer.wide else shard.precision.index
    return [
        shard.linear("index_qk_proj", shard.hidden, (("index_q", own * dim), ("index_k", dim))),
        Parameters("other", 2 * dim, shard.other),
        KVAppend((("index cache", dim),), "index_append", index_key_bytes(dim, index), index),
        IndexScores(own, dim, index, layer),
        ChosenCore(
            heads, kv_heads, block.head_dim, kv_heads * (block.head_dim + block.v_head_dim), layer, top_k=indexer.top_k
        ),
    ]


def compressed_operations(block: CompressedAttention, shard: Shard) -> list[Operation]:
    """DeepSeek-V4: queries and one key from latents, compressed keys, the indexer, and results out by groups."""
    heads, dim, ratio, indexer = block.heads // shard.tp, block.head_dim, block.ratio, block.indexer
    layer = f"{block.kind}_{shard.precision.formats.attention.value}"
    latents: tuple[Part, ...] = ("c_q", block.q_rank), ("k", dim)
    normed = block.q_rank + dim
    ops = [
        shard.linear("qkv_a_proj", shard.hidden, latents),
        _normed("latent_norm", normed, shard, outputs(latents)),
        shard.linear("q_b_proj", block.q_rank, (("Q", heads, dim),)),
        _turned(heads, block.rope_dim),
        KVAppend((("key cache", dim),)),
    ]
    if ratio:
        ops += _compressor("compress", dim, block, shard)
    if indexer is not None:
        ops += [
            shard.linear("index_q_proj", block.q_rank, (("index_q", indexer.heads * indexer.head_dim),)),
            shard.linear("index_gate", shard.hidden, (("index_gate", indexer.heads),), "other"),
            *_compressor("index", indexer.head_dim, block, shard),
            IndexScores(indexer.heads, indexer.head_dim, shard.precision.index, layer, ratio),
        ]
    groups = max(block.out_groups // shard.tp, 1)
    return [
        *ops,
        ChosenCore(heads, 1, dim, dim, layer, ratio, indexer.top_k if indexer else None, block.window, heads),
        shard.linear("o_a_proj", heads * dim // groups, (("o_a", groups * block.out_rank),)),
        _output(groups * block.out_rank, shard),
    ]


def _compressor(name: str, width: int, block: CompressedAttention, shard: Shard) -> list[Operation]:
    """Keys and gates of a group of tokens, summed by the gates' softmax with learned positions, then normed."""
    wide = block.overlap * width
    return [
        shard.linear(f"{name}_proj", shard.hidden, ((name, wide), (f"{name}_gate", wide)), "other"),
        Parameters("other", block.ratio * wide + width, shard.other),
        Elementwise(f"{name}_pool", 2 * wide, width // block.ratio or 1, 8.0 * wide),
    ]


def _turned(heads: int, width: int) -> Elementwise:
    """Rotary positions of the queries of all heads, and of one key."""
    rotated = (heads + 1) * width
    made = outputs((("Q rope", heads, width), ("k rope", width)))
    return Elementwise("rope", rotated, rotated, 3.0 * rotated, made=made)


def _normed(name: str, width: int, shard: Shard, made: tuple[Output, ...] = ()) -> Elementwise:
    """A norm with a scale for each element."""
    return Elementwise(name, width, width, 4.0 * width, width, shard.other, made=made)


def _output(width: int, shard: Shard, bias: bool = False) -> Linear:
    """The output projection, which some checkpoints store in a format of its own."""
    return shard.linear("o_proj", width, (("o", shard.hidden),), bias=bias, of="attention_output")


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
    ops = _latent_queries(block, heads, shard)
    if block.rotary:
        ops.append(_turned(heads, block.rope_dim))
    ops.append(KVAppend((("latent cache", block.latent_dim),)))
    indexer, layer = block.indexer, f"dsa_{weight.value}" if block.indexer else ""
    if indexer is not None and not indexer.shared:
        ops += _indexer_operations(indexer, block.q_rank or shard.hidden, shard, layer)
    top_k, sparse = indexer.top_k if indexer else None, indexer is not None
    compute, policy = shard.precision.compute(weight), shard.deployment.kv_policy
    core = LatentCore(heads, block.kv_rank, block.nope_dim, block.rope_dim, block.v_dim, top_k, policy, layer)
    return [
        *ops,
        LatentUpProjection(heads, block.kv_rank, block.nope_dim, block.v_dim, weight, compute, policy, sparse),
        BatchedLinear("q_absorb", heads, block.kv_rank, block.nope_dim, weight, stream, sparse),
        *_over_context(core, shard),
        BatchedLinear("v_absorb", heads, block.v_dim, block.kv_rank, weight, stream, sparse),
        *_output_gate(heads * block.v_dim, heads * block.v_dim if block.gated else heads * block.head_gated, shard),
        _output(heads * block.v_dim, shard),
    ]


def _output_gate(width: int, gates: int, shard: Shard) -> list[Operation]:
    if not gates:
        return []
    gate = shard.linear("gate_proj", shard.hidden, (("gate", gates),))
    return [gate, Elementwise("output_gate", width + gates, width, 1.0 * width + 4.0 * gates)]


def _latent_queries(block: LatentAttention, heads: int, shard: Shard) -> list[Operation]:
    """The down-projections, on every rank, and the queries of this one; queries may skip the latent."""
    queries: tuple[Part, ...] = ("Q nope", heads, block.nope_dim), ("Q rope", heads, block.rope_dim)
    latents: tuple[Part, ...] = ("c_kv", block.kv_rank), ("k rope", block.rope_dim)
    ranks: tuple[Part, ...] = latents[:1]
    if block.q_rank is not None:
        latents, ranks = (("c_q", block.q_rank), *latents), (("c_q", block.q_rank), *ranks)
    norm = _normed("latent_norm", elements(ranks), shard, outputs(ranks))
    if block.q_rank is None:
        return [shard.linear("q_proj", shard.hidden, queries), shard.linear("kv_a_proj", shard.hidden, latents), norm]
    down = shard.linear("qkv_a_proj", shard.hidden, latents)
    return [down, norm, shard.linear("q_b_proj", block.q_rank, queries)]


def _indexer_operations(indexer: Indexer, query_dim: int, shard: Shard, layer: str) -> list[Operation]:
    """The indexer is small and replicated on every rank."""
    keys = (("index k", indexer.head_dim), ("weights", indexer.heads))
    return [
        shard.linear("index_q_proj", query_dim, (("index_q", indexer.heads * indexer.head_dim),)),
        shard.linear("index_k_proj", shard.hidden, keys),
        Parameters("other", 2 * indexer.head_dim, shard.other),  # LayerNorm on the index keys
        *_pooled(indexer, shard),
        KVAppend(
            (("index cache", indexer.head_dim),),
            "index_append",
            index_key_bytes(indexer.head_dim, shard.precision.index),
            shard.precision.index,
        ),
        IndexScores(indexer.heads, indexer.head_dim, shard.precision.index, layer, indexer.pool),
    ]


def _pooled(indexer: Indexer, shard: Shard) -> list[Operation]:
    """Gates by which an index key stands for a pool of tokens, with their learned positions (GLM-5.3)."""
    if indexer.pool == 1:
        return []
    gate = shard.linear("index_pool_gate", shard.hidden, (("index_pool", indexer.head_dim),), "other")
    return [gate, Parameters("other", indexer.pool * indexer.head_dim, shard.other)]


def delta_net_operations(block: GatedDeltaNet, shard: Shard) -> list[Operation]:
    """Gated delta net (Qwen3-Next): S <- a·S + b·(v - S k) k^T, so two passes over the state and a read-out.

    Kimi delta attention: a is a number a key channel, through a small rank, as the output gate may be.
    """
    keys, values = block.key_heads // shard.tp, block.value_heads // shard.tp
    key_width, value_width = keys * block.key_dim, values * block.value_dim
    mixed = 2 * key_width + value_width
    whole: list[Part] = [
        ("Q", keys, block.key_dim),
        ("K", keys, block.key_dim),
        ("V", values, block.value_dim),
        ("gate", values, block.value_dim),
    ]
    decay_rank = 0 if block.whole_decay else block.decay_rank
    ranks = (("decay", decay_rank, key_width), ("gate", block.gate_rank, value_width))
    low = [(name, rank, width) for name, rank, width in ranks if rank]
    small = [("β", values), *((name, rank) for name, rank, _ in low)]
    decays = key_width if block.decay_rank else values
    return [
        shard.linear("linear_qkvz_proj", shard.hidden, tuple(whole[:3] if block.gate_rank else whole)),
        shard.linear("linear_ba_proj", shard.hidden, tuple(small if block.decay_rank else [*small, ("a", values)])),
        *(shard.linear(f"linear_{name}_proj", rank, ((name, width),)) for name, rank, width in low),
        *([shard.linear("linear_decay_proj", shard.hidden, (("decay", key_width),))] if block.whole_decay else []),
        ShortConvolution(mixed, block.conv_width, False, shard.other),
        StateUpdate(
            "delta_rule",
            (values, block.value_dim, block.key_dim),
            mixed + value_width + (key_width if block.decay_rank else 0),
            7.0,
            values + decays,
            shard.other,
            prompt_launches=25 if block.decay_rank or block.whole_decay else 19,
        ),
        Elementwise("gated_norm", 2 * value_width, value_width, 8.0 * value_width, block.value_dim, shard.other),
        shard.linear("o_proj", value_width, (("o", shard.hidden),)),
    ]


def rwkv7_operations(block: Rwkv7, shard: Shard) -> list[Operation]:
    """RWKV-7: S <- S·diag(w) + (S a) bᵀ + v kᵀ, o = S r, so two outer products, a decay and two passes.

    Each of six mixtures of a token with the one before it goes into a matrix of its own; low ranks are on every rank.
    """
    hidden, heads, dim = shard.hidden, block.heads // shard.tp, block.head_dim
    width = heads * dim
    ranks = {"decay": block.decay_rank, "rate": block.rate_rank, "value": block.value_rank, "gate": block.gate_rank}
    low = [
        op
        for name, rank in ranks.items()
        if rank
        for op in (
            shard.linear(f"{name}_low_proj", hidden, ((name, rank),)),
            shard.linear(f"{name}_high_proj", rank, ((name, width),), bias=name != "gate"),
        )
    ]
    return [
        _pass("token_shift", 2 * hidden, 6 * hidden, 18.0 * hidden, 6 * hidden, shard.other),
        *(shard.linear(f"{part}_proj", hidden, ((part, width),)) for part in "rkv"),
        *low,
        _pass("delta_inputs", 5 * width, 6 * width, 12.0 * width, 2 * width, shard.other),
        StateUpdate("wkv7", (heads, dim, dim), 7 * width, 9.0, 0, shard.other),
        Elementwise("gated_norm", 5 * width, width, 12.0 * width, 3 * width, shard.other),
        shard.linear("o_proj", width, (("o", hidden),)),
        _pass("ffn_token_shift", 2 * hidden, hidden, 3.0 * hidden, hidden, shard.other),
    ]


def lightning_operations(block: LightningAttention, shard: Shard) -> list[Operation]:
    """Lightning attention (MiniMax-M1): a decayed outer product, a norm, and a sigmoid output gate."""
    heads = block.heads // shard.tp
    dim, width = block.head_dim, heads * block.head_dim
    return [
        shard.linear("qkv_proj", shard.hidden, (("Q", heads, dim), ("K", heads, dim), ("V", heads, dim))),
        StateUpdate("lightning", (heads, dim, dim), 4 * width, 5.0, 0, shard.other, prompt_launches=4),
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
        joined.append(_normed("ssm_norm", projected, shard))
    return [
        shard.linear("in_proj", shard.hidden, (("x", inner), ("gate", inner)), bias=block.proj_bias),
        ShortConvolution(inner, block.conv_width, block.conv_bias, shard.other),
        shard.linear("x_proj", inner, (("dt", block.dt_rank), ("B", block.state), ("C", block.state))),
        *joined,
        shard.linear("dt_proj", block.dt_rank, (("dt", inner),), bias=True),
        StateUpdate(
            "selective_scan",
            (inner, block.state),
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
    parts = (("gate", inner), ("x", inner), ("B", groups), ("C", groups), ("dt", heads))
    return [
        shard.linear("in_proj", shard.hidden, parts, bias=block.proj_bias),
        ShortConvolution(mixed, block.conv_width, block.conv_bias, shard.other),
        StateUpdate("ssd", (heads, block.head_dim, block.state), mixed + inner, 5.0, 3 * heads, shard.other, 6),
        Elementwise("gated_norm", 2 * inner, inner, 8.0 * inner, inner if block.norm else 0, shard.other),
        shard.linear("out_proj", inner, (("o", shard.hidden),), bias=block.proj_bias),
    ]


def gated_convolution_operations(block: GatedConvolution, shard: Shard) -> list[Operation]:
    """LFM2: y = C · conv(B · x), with B, C and x projected at once."""
    width, bias = block.channels // shard.tp, block.bias
    return [
        shard.linear("in_proj", shard.hidden, (("B", width), ("C", width), ("x", width)), bias=bias),
        Elementwise("conv_gate", 2 * width, width, 1.0 * width),
        ShortConvolution(width, block.conv_width, bias, shard.other),
        Elementwise("conv_output_gate", 2 * width, width, 1.0 * width),
        shard.linear("out_proj", width, (("o", shard.hidden),), bias=bias),
    ]


BUILDERS: dict[type, Callable[[Any, Shard], list[Operation]]] = {
    Attention: attention_operations,
    CrossAttention: cross_operations,
    LatentAttention: latent_operations,
    CompressedAttention: compressed_operations,
    GatedDeltaNet: delta_net_operations,
    Rwkv7: rwkv7_operations,
    LightningAttention: lightning_operations,
    Mamba: mamba_operations,
    Mamba2: mamba2_operations,
    GatedConvolution: gated_convolution_operations,
    DenseFFN: dense_operations,
    MixtureOfExperts: expert_operations,
}
_NORM_VECTORS: dict[Norm, int] = {"rmsnorm": 1, "layernorm": 2, "layernorm_nobias": 1, "none": 0}


def mixer_operations(mixer: Mixer, shard: Shard) -> list[Operation]:
    """Operations that mix the tokens of a layer, without the norms around it."""
    return BUILDERS[type(mixer)](mixer, shard)


def layer_operations(layer: Layer, shard: Shard) -> list[Operation]:
    """One layer: norms (fused with the residual addition), mixer, feed-forward block, and their all-reduces."""
    norm = _norm("residual_norm", layer.norm, shard)
    ops: list[Operation] = [norm] * layer.norms
    blocks = [block for block in (layer.mixer, layer.ffn) if block is not None]
    apart = bool(shard.deployment.ffn_gpus)
    for block in blocks:
        before, after = _residuals(layer, block, shard)
        if apart and block is layer.ffn:
            inner = BUILDERS[type(block)](block, feed_forward_shard(shard))
            inner = sent_away(block, inner, shard, _dispatched_bytes(shard))
        else:
            inner = BUILDERS[type(block)](block, shard)
        ops += [*before, *inner, *after]
    if layer.repeated:
        ops = [Repeated(op) if op.weights and not (isinstance(op, Linear) and op.own) else op for op in ops]
    if layer.vectors:
        ops.append(Parameters("other", layer.vectors, shard.other))
    if layer.common and layer.ffn is not None:
        ops.append(shard.linear("common_out_proj", shard.hidden, (("hidden", shard.hidden),)))
    if shard.tp > 1:
        away = apart and layer.ffn is not None and not (layer.parallel and layer.mixer is not None)
        ops += _joins(shard) * ((1 if layer.parallel else len(blocks)) - away)
    return ops


def _residuals(layer: Layer, block: Mixer | FeedForward, shard: Shard) -> tuple[list[Operation], list[Operation]]:
    """Operations before and after a block where more than one residual vector, or a token's own one, reaches it.

    Hyper-connections (arXiv:2512.24880; transformers, modeling_deepseek_v4.py): n streams yield n + n + n·n weights
    through an fp32 matrix, by which they are summed for the block and mixed again with its result; the iterations that
    balance the n·n weights are left out. Attention residuals (Kimi-K3, arXiv:2607.24653): a softmax over normed sums
    of earlier layers. Alternating updates (arXiv:2301.13310; transformers, modeling_gemma3n.py): n·n weights predict
    the streams before a layer, n weights correct them by what it made of the first. Each is costed as one pass over
    what it reads and writes: nobody measured them.
    """
    n, share, hidden = layer.streams, _share(shard), shard.hidden
    wide = n * share
    if layer.sources:
        return [_attended(layer, shard)], []
    if block is layer.ffn and (layer.alternating or layer.token_width):
        correct = _pass("altup_correct", wide + share, wide, 4.0 * wide, hidden + n * n, shard.other)
        return [], [*([correct] if layer.alternating else []), *_token_input(layer, shard)]
    if layer.alternating:  # the norm and the matrices of the router are read with the prediction
        weights = (n + 1) * hidden + n**3
        predict = _pass("altup_predict", wide, wide, 2.0 * wide * (n + 1), weights, shard.other)
        return [predict], _bypass(layer.bypass, shard)
    if n == 1:
        return [], []
    weights, scales = (2 * n, 2) if layer.unmixed else ((2 + n) * n, 3)
    matrix, flops = weights * n * hidden, 2.0 * wide * (weights + 1)
    collapse = _pass("hyper_collapse", wide, share + weights, flops, matrix + weights + scales, Dtype.FP32)
    return [collapse], [_pass("hyper_mix", wide + share, wide, 2.0 * wide * (1 if layer.unmixed else n + 1))]


def _bypass(rank: int, shard: Shard) -> list[Operation]:
    """Two matrices of low rank beside attention and the norm behind them, whole on every rank."""
    hidden = shard.hidden
    return (
        [
            shard.linear("bypass_down", hidden, (("low", rank),), "other"),
            shard.linear("bypass_up", rank, (("hidden", hidden),), "other"),
            _pass("bypass_norm", 3 * hidden, hidden, 6.0 * hidden, hidden, shard.other),
        ]
        if rank
        else []
    )


def _token_input(layer: Layer, shard: Shard) -> list[Operation]:
    """A token's embedding for this layer, gated by the stream, projected, normed, added to all streams but one."""
    hidden, width, taken = shard.hidden, layer.token_width, max(layer.streams - 1, 1)
    return (
        [
            shard.linear("token_gate_proj", hidden, (("gate", width),), "other"),
            Elementwise("token_gate", 2 * width, width, 6.0 * width),
            shard.linear("token_up_proj", width, (("hidden", hidden),), "other"),
            _pass("token_norm", (1 + taken) * hidden, taken * hidden, (4.0 + taken) * hidden, hidden, shard.other),
        ]
        if width
        else []
    )


def _attended(layer: Layer, shard: Shard) -> Elementwise:
    """The softmax over the sums that reach a block: each is normed, scored by one vector, and weighed."""
    seen = (layer.carried - layer.opens) * _share(shard)
    return _pass("residual_attention", seen, _share(shard), 8.0 * seen, 2 * shard.hidden, shard.other)


def _share(shard: Shard) -> int:
    """Elements of a token's residual vector here: sequence parallelism cuts the tokens, here a mean token."""
    return -(-shard.hidden // shard.tp) if shard.deployment.sequence_parallel else shard.hidden


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


def _send(shard: Shard, boundary: int, carried: int) -> Collective:
    """Hand the residual stream to the next stage; a stage's ranks are neighbours, and few boundaries cross domains."""
    stage, domain = shard.deployment.stage, shard.domain
    first = (boundary - 1) * stage
    crosses = any(rank // domain != (rank + stage) // domain for rank in range(first, first + stage))
    name = "pipeline_send_nic" if crosses else "pipeline_send"
    return Collective(name, "send", 2, carried * shard.hidden / shard.tp, tiers("send", 2, 2, 1 if crosses else 2))


def stage_operations(
    model: Model, deployment: Deployment, precision: Precision, stage: int, domain: int = EVERYWHERE
) -> Counter[Operation]:
    """The operations of one pipeline stage on one of its accelerators."""
    shard = Shard(model.hidden, precision, deployment, domain)
    first = model.stage_edge(stage, deployment.pp)
    layers = Counter(
        (layer, precision.at(place), place < deployment.offload_layers, place < deployment.n_cpu_moe)
        for place, layer in enumerate(model.stage_layers(stage, deployment.pp), first)
    )
    runs: Runs = [
        (_run(layer, model, replace(shard, precision=own), on_host, experts), count)
        for (layer, own, on_host, experts), count in layers.items()
    ]
    if stage == 0:
        runs.insert(0, (entry_operations(model, shard), 1))
        if deployment.images:
            runs[:0] = _encoder_operations(model.seeing(deployment.images), deployment.images, shard)
    if stage == deployment.pp - 1:
        runs.append((exit_operations(model, shard), 1))
    else:
        carried = model.layers[model.stage_edge(stage + 1, deployment.pp) - 1].carried
        runs.append(([_send(shard, stage + 1, carried)], 1))
    if model.encoder is not None:
        runs = _beside_encoder(model, model.encoder, runs, shard) if stage == 0 else _answering(model.encoder, runs)
    order: list[Operation] = []
    counts: Counter[Operation] = Counter()
    for ops, count in runs:
        if deployment.lora_rank:
            ops = with_adapters(ops, deployment, precision.stream)  # noqa: PLW2901
        _weave(order, ops)
        for op in ops:
            counts[op] += count
    return Counter({op: counts[op] for op in order})


def _encoder_operations(vision: Vision, images: Images, shard: Shard) -> Runs:
    """The vision tower, on the accelerators of the model or on its own, one whole tower each."""
    if not shard.deployment.encoder_gpus:
        return vision_operations(vision, images, shard)
    whole = replace(shard, deployment=replace(shard.deployment, tp=1))
    tower = vision_operations(vision, images, whole)
    return encoded_away(tower, shard, images.count, vision.tokens(images) + vision.positions(images))


def _answering(encoder: Encoder, runs: Runs) -> Runs:
    """The decoder's operations; where the encoder reads the prompts, they run over the tokens that are given out."""
    if encoder.positions:
        return runs
    return [([op if isinstance(op, OfPrompts) else OfAnswers(op) for op in ops], count) for ops, count in runs]


def _beside_encoder(model: Model, encoder: Encoder, runs: Runs, shard: Shard) -> Runs:
    """The encoder, with what it shares with the decoder, before the decoder's operations on the first stage.

    The table of embeddings, which both look up, is first; heads learn a number for each distance, in each of the two.
    """
    hidden, rows = shard.hidden, encoder.positions
    stem = [
        OfImages(shard.linear(f"conv_{place}", width, (("hidden", hidden),), "other", bias=True), 1.0, length, True)
        for place, (width, length) in enumerate(encoder.stem, 1)
    ]
    table = rows * hidden + sum(
        2 * encoder.buckets * layer.mixer.heads for layer in encoder.layers[:1] if isinstance(layer.mixer, Attention)
    )
    layers = [
        ([_of_encoder(op, rows) for op in layer_operations(layer, shard)], count)
        for layer, count in Counter(encoder.layers).items()
    ]
    norm = _of_encoder(_norm("encoder_norm", encoder.layers[-1].norm, shard), rows)
    (entry, once), *others = runs
    return [
        (entry, once),
        ([*stem, Parameters("other", table, shard.other)], 1),
        *layers,
        ([norm], 1),
        *_answering(encoder, others),
    ]


def _run(layer: Layer, model: Model, shard: Shard, on_host: bool, experts: bool) -> list[Operation]:
    """A layer's operations, those that the host keeps marked as such; weights alone where prompts pass it by."""
    ops, experts = layer_operations(layer, shard), experts or shard.deployment.offload_experts
    if model.passes_by(layer):
        ops = [Idle(op) for op in ops if op.weights]
    return [OnHost(op) if on_host or (experts and isinstance(op, Experts)) else op for op in ops]


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
    rows = model.vocab + model.extra_rows
    ops: list[Operation] = [Embedding(-(-rows // shard.tp), width, formats.embedding)]
    if model.position_rows:
        ops.append(Embedding(model.position_rows, model.hidden, formats.embedding, "other"))
    if width != model.hidden:
        parts, stored = (("hidden", model.hidden),), formats.embedding
        ops.append(Linear("embedding_proj", width, parts, stored, shard.precision.stream, "embedding"))
    if model.embedding_norm:
        ops.append(_norm("embedding_norm", model.final_norm, shard))
    first = model.layers[0]
    if model.token_rows:  # Gemma-3n, Gemma-4: one row for all layers, and as much projected from the embedding
        wide = model.depth * first.token_width
        ops += [
            Embedding(-(-model.token_rows // shard.tp), wide, formats.embedding),
            shard.linear("token_proj", model.hidden, (("tokens", wide),), "other"),
            Elementwise("token_input_norm", 2 * wide, wide, 6.0 * wide, first.token_width, shard.other),
        ]
    if first.alternating:
        ops += _stream_projections("altup_proj", first, shard)
    if shard.tp > 1:
        kind: CollectiveKind = "reduce_scatter" if shard.deployment.sequence_parallel else "all_reduce"
        ops.append(shard.joined("embedding_reduce", kind, width))
    return ops


def exit_operations(model: Model, shard: Shard) -> list[Operation]:
    """Final norm, LM head on the sampled rows, sampling; of a model that scores or embeds, its head or nothing."""
    formats, width, columns = shard.precision.formats, model.embedding_dim or model.hidden, -(-model.vocab // shard.tp)
    last, ops = model.layers[-1], list[Operation]()
    if last.alternating:
        ops += _stream_projections("altup_unproj", last, shard)
    elif last.streams > 1 and model.mean_streams:
        ops.append(_pass("streams_mean", last.streams * shard.hidden, shard.hidden, 1.0 * last.streams * shard.hidden))
    elif last.streams > 1:
        wide, n = last.streams * shard.hidden, last.streams
        ops.append(_pass("hyper_head", wide, shard.hidden, 2.0 * wide * (n + 1), n * wide + n + 1, Dtype.FP32))
    elif last.sources:
        ops.append(_attended(replace(last, opens=False), shard))
    ops.append(_norm("final_norm", model.final_norm, shard))
    if model.vectors:
        ops.append(Parameters("other", model.vectors, shard.other))
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


def _stream_projections(name: str, layer: Layer, shard: Shard) -> list[Operation]:
    """Streams from the embedding, or into the last norm: a matrix each but for the first, scaled to its length."""
    n, hidden = layer.streams, shard.hidden
    scale = _pass(f"{name}_scale", n * hidden, n * hidden, 4.0 * n * hidden)
    return [*[shard.linear(name, hidden, (("hidden", hidden),), "other")] * (n - 1), scale]


def _norm(name: str, kind: Norm, shard: Shard) -> Elementwise:
    """Read the block's output and the residual, write their sum and its normalised copy."""
    vectors = _NORM_VECTORS[kind]
    share = _share(shard)
    return Elementwise(name, 2 * share, 2 * share, 5.0 * share, vectors * shard.hidden, shard.other)

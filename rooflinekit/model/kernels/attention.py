"""Softmax attention over a cache: grouped-query heads, latent attention in two forms, contexts that ranks share."""

from __future__ import annotations

from typing import cast

from rooflinekit.model.graph.symbol import about, formula, named, quantity
from rooflinekit.model.kernels.collective import Tiers, collective_kernel
from rooflinekit.model.kernels.elementwise import elementwise_flops
from rooflinekit.model.kernels.gemm import gemm_activation_bytes, gemm_kernel, gemm_weight_bytes
from rooflinekit.model.kernels.operation import Operation, Output, Part, Step, Weights, elements, outputs, pass_kernel
from rooflinekit.model.types.batch import Sequences
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass, field, fields, replace
from rooflinekit.model.types.kernel import AttentionShape, Family, GemmShape, Kernel, RowsShape, SparseShape
from rooflinekit.model.types.kv_policy import FULL, KVPolicy
from rooflinekit.model.types.numeric import Numeric, is_zero, maximum, minimum


def kv_cache_bytes_per_token(kv_heads: int, qk_dim: int, v_dim: int, dtype: Dtype) -> float:
    """Keys and values that one token adds to one layer's cache [B] (Pope et al. 2022, arXiv:2211.05102).

    KV heads, never query heads.

    >>> 32 * kv_cache_bytes_per_token(8, 128, 128, Dtype.BF16)  # the 32 layers of Llama-3-8B
    131072.0
    """
    return kv_heads * (qk_dim + v_dim) * dtype.bytes


@formula("F", "QK^T and PV over the scored pairs", "FLOP")
def attention_flops(pairs: Numeric, heads: Numeric, qk_dim: Numeric, v_dim: Numeric) -> Numeric:
    """QK^T and PV over the scored query-key pairs: 2·H·(d_qk + d_v)·pairs [FLOP].

    With d_qk = d_v = d this is the usual 4·H·d·pairs. The softmax (about 5·H·pairs) runs on other units and is left
    out, as FlashAttention counts it (arXiv:2307.08691, section 4.1). Absorbed decode of latent attention scores
    against the latent and its rotary part, d_qk = R + r, and sums latents, d_v = R (arXiv:2405.04434, 2.1.2).

    >>> attention_flops(2048 * 2049 / 2, 32, 128, 128) / 1e9  # one layer of Llama-3-8B, causal prefill of 2,048
    34.4
    """
    return 2.0 * heads * (qk_dim + v_dim) * pairs


@formula("kr", "cache read, each key once", "B")
def cache_read_bytes(keys: Numeric, token_bytes: Numeric) -> Numeric:
    """Bytes of the seen keys in one layer's cache: keys·c [B]; c is K·(d_qk + d_v)·b, or (R + r)·b for MLA.

    >>> cache_read_bytes(32 * 1152.0, kv_cache_bytes_per_token(8, 128, 128, Dtype.BF16)) / 1e6  # Llama-3-8B, batch 32
    151.0
    """
    return keys * token_bytes


@formula("kw", "cache written", "B")
def append_bytes(tokens: Numeric, token_bytes: Numeric) -> Numeric:
    """Keys and values, or the latent, of the new tokens of one layer: m·c [B].

    >>> append_bytes(32.0, kv_cache_bytes_per_token(8, 128, 128, Dtype.BF16))
    131072.0
    """
    return tokens * token_bytes


@formula("a", "queries read and results written", "B")
def attention_activation_bytes(
    tokens: Numeric, heads: Numeric, qk_dim: Numeric, v_dim: Numeric, element: float
) -> Numeric:
    """Queries read and results written by one fused kernel: new·H·(d_qk + d_v)·b [B].

    >>> attention_activation_bytes(32.0, 32, 128, 128, 2.0)
    524288.0
    """
    return tokens * heads * (qk_dim + v_dim) * element


@formula("up", "up-projected keys and values read", "B")
def up_projected_bytes(keys: Numeric, heads: Numeric, nope_dim: Numeric, v_dim: Numeric, element: float) -> Numeric:
    """Keys and values of every head that a prefill of latent attention reads: keys·H·(d_nope + d_v)·b [B].

    >>> up_projected_bytes(1024.0, 16, 128, 128, 2.0) / 1e6  # DeepSeek-V3 on 8 accelerators
    8.39
    """
    return keys * heads * (nope_dim + v_dim) * element


@formula("F", "index scores of every past key", "FLOP")
def index_flops(pairs: Numeric, heads: Numeric, head_dim: Numeric) -> Numeric:
    """One product a pair and head: 2·h·d·pairs [FLOP] (DeepSeek-V3.2, section 2.1).

    >>> index_flops(32768.0, 64, 128) / 1e6
    536.9
    """
    return 2.0 * heads * head_dim * pairs


@formula("a", "queries read, scores written in fp32", "B")
def index_activation_bytes(
    tokens: Numeric, pairs: Numeric, heads: Numeric, head_dim: Numeric, element: float
) -> Numeric:
    """Queries in the indexer's format and scores in fp32: new·h·d·b + 4·pairs [B].

    >>> index_activation_bytes(1.0, 32768.0, 64, 128, 1.0)
    139264.0
    """
    return tokens * heads * head_dim * element + 4.0 * pairs


def index_key_bytes(head_dim: int, dtype: Dtype) -> float:
    """One cached index key [B]: in FP8 with a 4-byte scale for every 128 elements, whatever the cache's own format.

    DeepSeek-V3.2 runs its indexer in FP8 (report, section 2.1); vLLM's DeepseekV32IndexerCache holds
    head_dim + head_dim/128 * 4 bytes a token and layer.

    >>> index_key_bytes(128, Dtype.FP8), index_key_bytes(128, Dtype.BF16)
    (132.0, 256.0)
    """
    scales = 4.0 * -(-head_dim // 128) if dtype is Dtype.FP8 else 0.0
    return head_dim * dtype.bytes + scales


def _shape(phase: Sequences, seen: tuple[Numeric, Numeric], heads: int, kv_heads: int, head_dim: int) -> AttentionShape:
    """The mean sequence of a phase; `seen` are the query-key pairs and the keys read of all."""
    count, (pairs, keys) = phase.sequences, seen
    new = named(phase.tokens / count if phase.ragged else phase.new, "S", "new tokens of each sequence")
    keys = named(keys / count, "T", "keys of each sequence that are read")
    pairs = named(pairs / count, "q", "query-key pairs of each sequence")
    return AttentionShape(count, new, phase.longest, keys, pairs, heads, kv_heads, head_dim)


def encoder_kernel(
    name: str,
    count: int,
    dtype: Dtype,
    batch: Numeric,
    length: Numeric,
    heads: Numeric,
    depth: Numeric,
    element: float,
    past: Numeric = 0.0,
) -> Kernel:
    """Attention in which every token of a sequence, like a patch of an image, sees every other: 4·b·s²·h·d FLOP.

    A piece of a prompt adds the pairs with all `past` tokens, both ways.

    >>> encoder_kernel("attention", 1, Dtype.BF16, 2.0, 64.0, 16, 80, 2.0).flops == 4 * 2 * 64**2 * 16 * 80
    True
    """
    seen = length * length if is_zero(past) else length * (length + 2.0 * past)
    pairs = named(seen, "q", "pairs of patches of each sequence")
    return Kernel(
        name,
        "attention_prefill",
        count,
        dtype,
        attention_flops(batch * pairs, heads, depth, depth),
        activation_bytes=2.0 * attention_activation_bytes(batch * length, heads, depth, depth, element),
        shape=AttentionShape(batch, length, length, length, pairs, heads, heads, depth),
        variant="encoder",
    )


def sparse_label(layer: str, step: Step, phase: Sequences) -> str:
    """Label of such a kernel in a calibration: kind of layer and weights, phase, cache.

    >>> from rooflinekit.model.types.batch import Batch
    >>> decoding = Batch.decode(1.0, 8.0)
    >>> sparse_label("dsa_fp8_block", Step(decoding, Dtype.BF16, Dtype.FP8), decoding.decoding)
    'dsa_fp8_block_decode_fp8'
    """
    return f"{layer}_{'prefill' if phase is step.batch.prefilling else 'decode'}_{step.kv.value}"


@dataclass(frozen=True, slots=True)
class KVAppend(Operation):
    """Write the new tokens' keys and values (or latents) into the cache."""

    parts: tuple[Part, ...]
    name: str = "kv_append"
    token_bytes: float | None = None  #: what they take where their format is not the cache's [B]
    dtype: Dtype | None = None  #: that format

    @property
    def elements(self) -> int:
        """Elements cached of a token."""
        return named(elements(self.parts), "e", "elements cached of a token here")

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The caches."""
        return outputs(self.parts, "cache", self.dtype)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Read the activations once, write the cache once."""
        size = self.elements * step.kv.bytes if self.token_bytes is None else self.token_bytes
        written = append_bytes(step.tokens, size)
        work = {"kv_write_bytes": written, "shape": RowsShape(step.tokens), "variant": step.kv.value}
        return [pass_kernel(step, self.name, "kv_append", count, step.tokens, self.elements, **work)]


class Core(Operation):
    """Queries against cached keys: one launch for the prefilling sequences, one for the decoding ones."""

    __slots__ = ()

    grows = True

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One launch a phase."""
        return [self.launch(step, phase, count) for phase in step.batch.phases]

    def launch(self, step: Step, phase: Sequences, count: int) -> Kernel:
        """The kernel of one phase."""
        raise NotImplementedError


def _fused(
    step: Step,
    phase: Sequences,
    kind: str,
    count: int,
    seen: tuple[Numeric, Numeric],
    heads: tuple[int, int],
    widths: tuple[int, int],
    cached: int,
    name: str = "attention",
) -> Kernel:
    """One fused kernel (FlashAttention; paged decode) of query and KV heads of these widths of keys and values.

    cached: elements of a key in the cache that are read.
    """
    pairs, keys = seen
    family = cast("Family", f"{kind}_{'prefill' if phase is step.batch.prefilling else 'decode'}")
    return Kernel(
        name,
        family,
        count,
        step.stream,
        attention_flops(pairs, heads[0], *widths),
        kv_read_bytes=cache_read_bytes(keys, cached * step.kv.bytes),
        activation_bytes=attention_activation_bytes(phase.tokens, heads[0], *widths, step.stream.bytes),
        shape=_shape(phase, seen, *heads, widths[0]),
        variant=step.kv.value,
    )


def _sparse(kernel: Kernel, step: Step, phase: Sequences, layer: str, held: Numeric, **work: Numeric) -> Kernel:
    """A kernel of attention to chosen keys in a kind of layer; `held` and `work` are fields of SparseShape."""
    base = kernel.shaped(AttentionShape)
    sizes = {entry.name: getattr(base, entry.name) for entry in fields(base)}
    sizes["keys"] = named(phase.keys_read() / phase.sequences, "T", "keys of each sequence")
    parts = dict.fromkeys(("core_flops", "chosen", "index_flops", "scores", "tiles"), 0.0) | work
    label, shape = sparse_label(layer, step, phase), SparseShape(**sizes, held=held, **parts)
    return replace(kernel, family="sparse_attention", variant=label, shape=shape)


@dataclass(frozen=True, slots=True)
class AttentionCore(Core):
    """softmax(Q K^T) V for this accelerator's heads, in one fused kernel (FlashAttention; paged decode)."""

    name: str
    heads: int = field(metadata=about("H", "query heads here"))
    kv_heads: int = field(metadata=about("K", "KV heads here"))
    qk_dim: int = field(metadata=about("d_qk", "width of a query and key"))
    v_dim: int = field(metadata=about("d_v", "width of a value"))
    window: int | None = quantity("w", "window: keys that a token sees at most", default=None)
    chunk: int | None = quantity("u", "chunk: tokens that see each other", default=None)
    sinks: int = 0  #: learned logits (gpt-oss)
    policy: KVPolicy = FULL

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The sinks."""
        return (Weights("attention", (self.sinks,), Dtype.BF16, "sinks"),) if self.sinks else ()

    def launch(self, step: Step, phase: Sequences, count: int) -> Kernel:
        """Over the keys that the layer's window or chunk, and the policy of the cache, leave."""
        if phase is step.batch.decoding and self.chunk is None:
            seen = self.policy.seen(phase, self.window)
        else:
            window = self.window if self.chunk else self.policy.in_prefill(self.window)
            seen = phase.pairs(window, self.chunk), phase.keys_read(window, self.chunk)
        heads, widths = (self.heads, self.kv_heads), (self.qk_dim, self.v_dim)
        return _fused(step, phase, "attention", count, seen, heads, widths, self.kv_heads * sum(widths), self.name)


@dataclass(frozen=True, slots=True)
class CrossCore(Core):
    """softmax(Q K^T) V over the keys of an encoder, as many for every sequence, whatever its context.

    It is timed with what grows, as its family is, though it does not grow itself.
    """

    heads: int = field(metadata=about("H", "query heads here"))
    kv_heads: int = field(metadata=about("K", "KV heads here"))
    head_dim: int = field(metadata=about("d", "width of a head"))
    length: int = field(metadata=about("Te", "positions of the encoder"))

    def launch(self, step: Step, phase: Sequences, count: int) -> Kernel:
        """Every token sees every position."""
        heads, widths = (self.heads, self.kv_heads), (self.head_dim, self.head_dim)
        seen, cached = (phase.tokens * self.length, phase.sequences * self.length), self.kv_heads * sum(widths)
        kernel = _fused(step, phase, "attention", count, seen, heads, widths, cached, "cross_attention")
        return replace(kernel, shape=replace(kernel.shaped(AttentionShape), context=float(self.length)))


@dataclass(frozen=True, slots=True)
class LatentUpProjection(Operation):
    """MLA's kv_b: latent -> per-head keys and values. Prefill runs it; decode folds it into q and o (absorbed).

    Prefill up-projects every key it attends to, the cached prefix included (DeepSeek-V2, arXiv:2405.04434, 2.1.2).
    """

    heads: int = field(metadata=about("H", "heads here"))
    kv_rank: int = field(metadata=about("R", "width of the latent"))
    nope_dim: int = field(metadata=about("d_nope", "width of a key without positions"))
    v_dim: int = field(metadata=about("d_v", "width of a value"))
    weight: Dtype
    compute: Dtype
    policy: KVPolicy = FULL
    absorbed: bool = False  #: prompts are absorbed too, as attention to chosen keys is

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The up-projection of keys and values."""
        return (Weights("attention", (self.heads * (self.nope_dim + self.v_dim), self.kv_rank), self.weight),)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Keys and values of every head."""
        return (Output("kv", (self.heads * (self.nope_dim + self.v_dim),), "keys"),)

    @property
    def views(self) -> tuple[Output, ...]:
        """Keys and values by head, each key without its rotary part, which all share."""
        parts = ("K nope", self.heads, self.nope_dim), ("V", self.heads, self.v_dim)
        return outputs(parts, "keys")

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One GEMM over the keys of the prefilling sequences."""
        if step.batch.prefilling is None or self.absorbed:
            return []
        keys = step.batch.prefilling.keys_read(self.policy.in_prefill(None))
        n, k = self.heads * (self.nope_dim + self.v_dim), self.kv_rank
        weights = gemm_weight_bytes(n, k, self.weight.bytes)
        written = gemm_activation_bytes(keys, n, k, 0.0, step.stream.bytes)
        kernel = gemm_kernel("kv_b_proj", count, self.compute, GemmShape(keys, n, k), weights, written)
        return [replace(kernel, kv_read_bytes=cache_read_bytes(keys, self.kv_rank * step.kv.bytes))]


@dataclass(frozen=True, slots=True)
class LatentCore(Core):
    """MLA attention: 192/128-wide heads in prefill; one shared 576-wide latent "head" in absorbed decode.

    With `top_k`, each query attends to that many keys at most, absorbed in prefill too: keys that differ from query to
    query are read from the latents (DeepSeek-V3.2; FlashMLA's sparse kernels).
    """

    heads: int = field(metadata=about("H", "heads here"))
    kv_rank: int = field(metadata=about("R", "width of the latent"))
    nope_dim: int = field(metadata=about("d_nope", "width of a key without positions"))
    rope_dim: int = field(metadata=about("d_rope", "rotary width"))
    v_dim: int = field(metadata=about("d_v", "width of a value"))
    top_k: int | None = None
    policy: KVPolicy = FULL
    layer: str = ""  #: what a calibration calls a layer of its kind

    @property
    def qk_dim(self) -> int:
        """Width of a query head in prefill."""
        return self.nope_dim + self.rope_dim

    def launch(self, step: Step, phase: Sequences, count: int) -> Kernel:
        """Prompts read up-projected keys and values of every head, all else the latents, absorbed.

        Queries that choose their keys read no more of them together than there are.
        """
        prompts, limit = phase is step.batch.prefilling, self.policy.in_prefill(self.top_k)
        if prompts and not self.layer:
            seen = phase.pairs(limit), phase.keys_read(limit)
            widths, read = (self.qk_dim, self.v_dim), (self.nope_dim, self.v_dim, step.stream.bytes)
            core = _fused(step, phase, "mla", count, seen, (self.heads, 1), widths, self.rope_dim)
            moved = core.activation_bytes + up_projected_bytes(seen[1], self.heads, *read)
            return replace(core, activation_bytes=moved)
        latent = self.kv_rank + self.rope_dim
        pairs, keys = (phase.pairs(limit), 0.0) if prompts else self.policy.seen(phase, self.top_k, vectors=1)
        keys = minimum(phase.keys_read(), pairs) if self.layer else keys
        core = _fused(step, phase, "mla", count, (pairs, keys), (self.heads, 1), (latent, self.kv_rank), latent)
        if not self.layer:
            return core
        held, chosen = (cache_read_bytes(each, latent * step.kv.bytes) for each in (phase.keys_read(), pairs))
        tiles = phase.tokens * -(-self.heads // 64)
        return _sparse(core, step, phase, self.layer, held, core_flops=core.flops, chosen=chosen, tiles=tiles)


@dataclass(frozen=True, slots=True)
class ChosenCore(Core):
    """Attention over a window of tokens and over chosen keys, each of which stands for `ratio` tokens.

    MiniMax-M3: blocks of keys and values of grouped-query heads; DeepSeek-V4: a window, and compressed keys that are
    their own values. Without `top_k` all keys are seen, without `ratio` the window alone.
    """

    heads: int = field(metadata=about("H", "query heads here"))
    kv_heads: int = field(metadata=about("K", "KV heads here"))
    head_dim: int = field(metadata=about("d", "width of a head"))
    cached: int = field(metadata=about("e", "elements cached of a key here"))
    layer: str  #: what a calibration calls a layer of its kind
    ratio: int = quantity("c", "tokens that a key stands for; 0: none", default=1)
    top_k: int | None = None
    window: int | None = None
    sinks: int = 0  #: learned logits

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The sinks."""
        return (Weights("attention", (self.sinks,), Dtype.FP32, "sinks"),) if self.sinks else ()

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The results by head; scores are not parted, as they never leave the launch."""
        return (Output("heads", (self.heads, self.head_dim)),)

    def launch(self, step: Step, phase: Sequences, count: int) -> Kernel:
        """Over the window, and over the keys that each query chose; together no more are read than there are."""
        pairs: Numeric = 0.0 if self.window is None else phase.pairs(self.window)
        held: Numeric = 0.0 if self.window is None else phase.keys_read(self.window)
        if self.ratio:
            reach = None if self.top_k is None else self.top_k * self.ratio
            pairs = pairs + phase.pairs(reach) / self.ratio
            held = held + phase.keys_read() / self.ratio
        heads, widths = (self.heads, self.kv_heads), (self.head_dim, self.head_dim)
        core = _fused(step, phase, "attention", count, (pairs, minimum(held, pairs)), heads, widths, self.cached)
        held, chosen = (cache_read_bytes(each, self.cached * step.kv.bytes) for each in (held, pairs))
        tiles = phase.tokens * self.kv_heads * -(-(self.heads // self.kv_heads) // 64)
        return _sparse(core, step, phase, self.layer, held, core_flops=core.flops, chosen=chosen, tiles=tiles)


@dataclass(frozen=True, slots=True)
class IndexScores(Core):
    """The lightning indexer's scores: every past key against a few small heads (DeepSeek-V3.2, section 2.1).

    Queries, cached keys and arithmetic are in `dtype`, FP8 as published (DeepGEMM, fp8_mqa_logits); scores in fp32.
    """

    heads: int = field(metadata=about("H", "heads of the indexer"))
    head_dim: int = field(metadata=about("d", "width of an index key"))
    dtype: Dtype
    layer: str = ""  #: what a calibration calls a layer of its kind
    ratio: int = quantity("c", "tokens that an index key stands for", default=1)

    def launch(self, step: Step, phase: Sequences, count: int) -> Kernel:
        """One pass over the index keys of all sequences, and the selection of the best."""
        pairs, keys = phase.pairs() / self.ratio, phase.keys_read() / self.ratio
        flops = index_flops(pairs, self.heads, self.head_dim)
        read = cache_read_bytes(keys, index_key_bytes(self.head_dim, self.dtype))
        moved = index_activation_bytes(phase.tokens, pairs, self.heads, self.head_dim, self.dtype.bytes)
        kernel = Kernel(
            "index_scores",
            "sparse_attention",
            count,
            self.dtype,
            flops,
            kv_read_bytes=read,
            activation_bytes=moved,
            shape=_shape(phase, (pairs, keys), self.heads, 1, self.head_dim),
        )
        each = keys / phase.sequences
        beside = minimum(keys, each * maximum(step.token_budget * phase.sequences / phase.tokens, 1.0))  # in one step
        scores, foreign = (4.0 * phase.tokens * places for places in (each, beside - each))
        work = {"index_flops": flops, "scores": scores, "floors": 0.0, "scanned": each, "foreign": foreign}
        return _sparse(kernel, step, phase, self.layer, read, **work)


@formula("payload", "partial results, each with its softmax weight in fp32", "B")
def result_bytes(tokens: Numeric, results: Numeric, heads: Numeric, element: float) -> Numeric:
    """Bytes that a rank sends of its part of an attention: new·(results·b + 4·H) [B].

    >>> result_bytes(32.0, 32 * 128, 32, 2.0)
    266240.0
    """
    return tokens * (results * element + heads * 4.0)


@dataclass(frozen=True, slots=True)
class ContextShare(Core):
    """One rank's part of an attention over a context that `ranks` of them share.

    Prefill: each computes its share of every prompt, two pieces that lie opposite, so that all score as many pairs.
    Decode: each keeps its share of every context and sees the queries of all sequences; the partial results are merged
    by their softmax weights (Yang et al. 2024, arXiv:2411.01783).
    """

    core: AttentionCore | LatentCore
    ranks: int = field(metadata=about("cp", "ranks that share a context"))

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Weights of the attention, on every rank."""
        return self.core.weights

    def launch(self, step: Step, phase: Sequences, count: int) -> Kernel:
        """Prefill: a share of the queries against all keys. Decode: all queries against a share of the keys."""
        core, ranks = self.core, self.ranks
        kernel = core.launch(step, phase, count)
        shape = kernel.shaped(AttentionShape)
        pairs, flops = shape.pairs / ranks, kernel.flops / ranks
        if phase is step.batch.prefilling:
            shape = replace(shape, new=shape.new / ranks, pairs=pairs)
            others = phase.tokens * (1.0 - 1.0 / ranks) * (core.heads * (core.qk_dim + core.v_dim)) * step.stream.bytes
            return replace(kernel, flops=flops, activation_bytes=kernel.activation_bytes - others, shape=shape)
        shape = replace(shape, context=shape.context / ranks, keys=shape.keys / ranks, pairs=pairs)
        return replace(kernel, flops=flops, kv_read_bytes=kernel.kv_read_bytes / ranks, shape=shape)


@dataclass(frozen=True, slots=True)
class ContextExchange(Operation):
    """Exchange of `ranks` that share a context for one attention; widths are elements of a token."""

    ranks: int = field(metadata=about("cp", "ranks that share a context"))
    cached: int = field(metadata=about("e_kv", "elements cached of a token here"))
    queries: int = field(metadata=about("e_q", "elements of a query row"))
    results: int = field(metadata=about("e_o", "elements of a result row"))
    heads: int = field(metadata=about("H", "heads here"))  #: each partial result comes with its softmax weight, in fp32
    gather: Tiers
    exchange: Tiers
    window: int | None = None
    chunk: int | None = None

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Prefill: all-gather of keys and values. Decode: all-gather of queries, exchange of results, their sum."""
        launches, wide = [], step.stream.bytes
        if (prompts := step.batch.prefilling) is not None:
            seen = prompts.keys_read(self.window, self.chunk) * self.cached * step.kv.bytes
            launches.append(self._collective("context_gather", "all_gather", seen, step, count))
        if (decoding := step.batch.decoding) is not None:
            queries = decoding.tokens * self.queries * wide
            results = result_bytes(decoding.tokens, self.results, self.heads, wide)
            mine = step.own(decoding) * self.results
            flops, each = elementwise_flops(mine, 2.0 * self.ranks), self.ranks + 1.0
            launches += [
                self._collective("context_queries", "all_gather", queries, step, count),
                self._collective("context_results", "all_to_all", results, step, count),
                pass_kernel(step, "context_merge", "elementwise", count, mine, each, flops=flops, variant="merge"),
            ]
        return launches

    def _collective(self, name: str, kind: str, payload: Numeric, step: Step, count: int) -> Kernel:
        sent = self.gather if kind == "all_gather" else self.exchange
        return collective_kernel(name, kind, self.ranks, sent, payload, step.stream, count)

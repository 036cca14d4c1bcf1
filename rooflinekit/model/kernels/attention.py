"""Softmax attention over a cache: grouped-query heads, latent attention in two forms, contexts that ranks share."""

from __future__ import annotations

from dataclasses import field, replace

from rooflinekit.model.graph.symbol import about, formula, named, quantity
from rooflinekit.model.kernels.collective import Tiers, collective_kernel
from rooflinekit.model.kernels.elementwise import elementwise_flops
from rooflinekit.model.kernels.gemm import gemm_activation_bytes, gemm_kernel, gemm_weight_bytes
from rooflinekit.model.kernels.operation import Operation, Step, Weights, passed_bytes
from rooflinekit.model.types.batch import Sequences
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.kernel import AttentionShape, Family, GemmShape, Kernel, RowsShape
from rooflinekit.model.types.kv_policy import FULL, KVPolicy
from rooflinekit.model.types.numeric import Numeric, minimum


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
    """What the keys that are seen take in one layer's cache: keys·c [B]; c is K·(d_qk + d_v)·b, or (R + r)·b for MLA.

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


def _launch(
    step: Step, phase: Sequences, name: str, family: Family, count: int, seen: tuple[Numeric, Numeric],
    heads: tuple[int, int], widths: tuple[int, int], token_bytes: float,
) -> Kernel:  # fmt: skip
    """One fused kernel (FlashAttention; paged decode) of query and KV heads of these widths of keys and values."""
    pairs, keys = seen
    return Kernel(
        name,
        family,
        count,
        step.stream,
        flops=attention_flops(pairs, heads[0], *widths),
        kv_read_bytes=cache_read_bytes(keys, token_bytes),
        activation_bytes=attention_activation_bytes(phase.tokens, heads[0], *widths, step.stream.bytes),
        shape=_shape(phase, seen, *heads, widths[0]),
        variant=step.kv.value,
    )


@dataclass(frozen=True, slots=True)
class KVAppend(Operation):
    """Write the new tokens' keys and values (or latents) into the cache."""

    elements: int = field(metadata=about("e", "elements cached of a token here"))
    name: str = "kv_append"
    token_bytes: float | None = None  #: what they take where their format is not the cache's [B]

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Read the activations once, write the cache once."""
        size = self.elements * step.kv.bytes if self.token_bytes is None else self.token_bytes
        return [
            Kernel(
                self.name,
                "kv_append",
                count,
                step.stream,
                kv_write_bytes=append_bytes(step.tokens, size),
                activation_bytes=passed_bytes(step.tokens, self.elements, step.stream.bytes),
                shape=RowsShape(step.tokens),
                variant=step.kv.value,
            )
        ]


@dataclass(frozen=True, slots=True)
class AttentionCore(Operation):
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

    grows = True

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The sinks."""
        return (Weights("attention", (self.sinks,), Dtype.BF16),) if self.sinks else ()

    @property
    def query_width(self) -> int:
        """Elements of a prompt token's queries and results."""
        return self.heads * (self.qk_dim + self.v_dim)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One launch for the prefilling sequences, one for the decoding ones."""
        heads, widths = (self.heads, self.kv_heads), (self.qk_dim, self.v_dim)
        cached, launches = kv_cache_bytes_per_token(self.kv_heads, *widths, step.kv), []
        for phase in step.batch.phases:
            prefill = phase is step.batch.prefilling
            family: Family = "attention_prefill" if prefill else "attention_decode"
            seen = self._seen(phase, prefill)
            launches.append(_launch(step, phase, self.name, family, count, seen, heads, widths, cached))
        return launches

    def _seen(self, phase: Sequences, prefill: bool) -> tuple[Numeric, Numeric]:
        """Query-key pairs, and keys read."""
        if not prefill and self.chunk is None:
            return self.policy.seen(phase, self.window)
        window = self.window if self.chunk else self.policy.in_prefill(self.window)
        return phase.pairs(window, self.chunk), phase.keys_read(window, self.chunk)


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

    @property
    def weights(self) -> tuple[Weights, ...]:
        """The up-projection of keys and values."""
        return (Weights("attention", (self.heads * (self.nope_dim + self.v_dim), self.kv_rank), self.weight),)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One GEMM over the keys of the prefilling sequences."""
        if step.batch.prefilling is None:
            return []
        keys = step.batch.prefilling.keys_read(self.policy.in_prefill(None))
        m, n, k = keys, self.heads * (self.nope_dim + self.v_dim), self.kv_rank
        weights, written = (
            gemm_weight_bytes(n, k, self.weight.bytes),
            gemm_activation_bytes(m, n, k, 0.0, step.stream.bytes),
        )
        kernel = gemm_kernel("kv_b_proj", count, self.compute, GemmShape(m, n, k), weights, written)
        return [replace(kernel, kv_read_bytes=cache_read_bytes(keys, self.kv_rank * step.kv.bytes))]


@dataclass(frozen=True, slots=True)
class LatentCore(Operation):
    """MLA attention: 192/128-wide heads in prefill; one shared 576-wide latent "head" in absorbed decode.

    With `top_k`, each query attends to that many keys at most (DeepSeek-V3.2 sparse attention).
    """

    heads: int = field(metadata=about("H", "heads here"))
    kv_rank: int = field(metadata=about("R", "width of the latent"))
    nope_dim: int = field(metadata=about("d_nope", "width of a key without positions"))
    rope_dim: int = field(metadata=about("d_rope", "rotary width"))
    v_dim: int = field(metadata=about("d_v", "width of a value"))
    top_k: int | None = None
    policy: KVPolicy = FULL

    grows = True

    @property
    def qk_dim(self) -> int:
        """Width of a query head in prefill."""
        return self.nope_dim + self.rope_dim

    @property
    def query_width(self) -> int:
        """Elements of a prompt token's queries and results."""
        return self.heads * (self.qk_dim + self.v_dim)

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One launch for the prefilling sequences, one for the decoding ones."""
        phases = (self._prefill, step.batch.prefilling), (self._decode, step.batch.decoding)
        return [launch(step, phase, count) for launch, phase in phases if phase is not None]

    def _prefill(self, step: Step, phase: Sequences, count: int) -> Kernel:
        """Up-projected keys and values of every head are read, and of the cache the rotary part."""
        pairs, keys = phase.pairs(self.policy.in_prefill(self.top_k)), phase.keys_read(self.policy.in_prefill(None))
        heads, widths, rotary = (self.heads, 1), (self.qk_dim, self.v_dim), self.rope_dim * step.kv.bytes
        core = _launch(step, phase, "attention", "mla_prefill", count, (pairs, keys), heads, widths, rotary)
        read = up_projected_bytes(keys, self.heads, self.nope_dim, self.v_dim, step.stream.bytes)
        return replace(core, activation_bytes=core.activation_bytes + read)

    def _decode(self, step: Step, phase: Sequences, count: int) -> Kernel:
        latent = self.kv_rank + self.rope_dim
        pairs, keys = self.policy.seen(phase, self.top_k, vectors=1)
        if self.top_k is not None:
            keys = minimum(phase.keys_read(), pairs)  # no more than all queries choose together
        heads, widths, cached = (self.heads, 1), (latent, self.kv_rank), latent * step.kv.bytes
        return _launch(step, phase, "attention", "mla_decode", count, (pairs, keys), heads, widths, cached)


@dataclass(frozen=True, slots=True)
class IndexScores(Operation):
    """The lightning indexer's scores: every past key against a few small heads (DeepSeek-V3.2, section 2.1).

    Queries, cached keys and arithmetic are in `dtype`, FP8 as published (DeepGEMM, fp8_mqa_logits); scores in fp32.
    """

    heads: int = field(metadata=about("H", "heads of the indexer"))
    head_dim: int = field(metadata=about("d", "width of an index key"))
    dtype: Dtype

    grows = True

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """One pass over the index keys of all sequences, and the selection of the best."""
        launches = []
        for phase in step.batch.phases:
            pairs, keys = phase.pairs(), phase.keys_read()
            launches.append(
                Kernel(
                    "index_scores",
                    "attention_prefill" if phase is step.batch.prefilling else "attention_decode",
                    count,
                    self.dtype,
                    flops=index_flops(pairs, self.heads, self.head_dim),
                    kv_read_bytes=cache_read_bytes(keys, index_key_bytes(self.head_dim, self.dtype)),
                    activation_bytes=index_activation_bytes(
                        phase.tokens, pairs, self.heads, self.head_dim, self.dtype.bytes
                    ),
                    shape=_shape(phase, (pairs, keys), self.heads, 1, self.head_dim),
                    variant=self.dtype.value,
                )
            )
        return launches


@formula("payload", "partial results, each with its softmax weight in fp32", "B")
def result_bytes(tokens: Numeric, results: Numeric, heads: Numeric, element: float) -> Numeric:
    """What a rank sends of its part of an attention: new·(results·b + 4·H) [B].

    >>> result_bytes(32.0, 32 * 128, 32, 2.0)
    266240.0
    """
    return tokens * (results * element + heads * 4.0)


@dataclass(frozen=True, slots=True)
class ContextShare(Operation):
    """One rank's part of an attention over a context that `ranks` of them share.

    Prefill: each computes its share of every prompt, two pieces that lie opposite, so that all score as many pairs.
    Decode: each keeps its share of every context and sees the queries of all sequences; the partial results are merged
    by their softmax weights (Yang et al. 2024, arXiv:2411.01783).
    """

    core: AttentionCore | LatentCore
    ranks: int = field(metadata=about("cp", "ranks that share a context"))

    grows = True

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Those of the attention, on every rank."""
        return self.core.weights

    def kernels(self, step: Step, count: int) -> list[Kernel]:
        """Prefill: a share of the queries against all keys. Decode: all queries against a share of the keys."""
        return [self._share(kernel, step) for kernel in self.core.kernels(step, count)]

    def _share(self, kernel: Kernel, step: Step) -> Kernel:
        shape, ranks, prompts = kernel.shaped(AttentionShape), self.ranks, step.batch.prefilling
        pairs, flops = shape.pairs / ranks, kernel.flops / ranks
        if prompts is not None and kernel.family.endswith("prefill"):
            shape = replace(shape, new=shape.new / ranks, pairs=pairs)
            others = prompts.tokens * (1.0 - 1.0 / ranks) * self.core.query_width * step.stream.bytes
            return replace(kernel, flops=flops, activation_bytes=kernel.activation_bytes - others, shape=shape)
        shape = replace(shape, context=shape.context / ranks, keys=shape.keys / ranks, pairs=pairs)
        return replace(kernel, flops=flops, kv_read_bytes=kernel.kv_read_bytes / ranks, shape=shape)


@dataclass(frozen=True, slots=True)
class ContextExchange(Operation):
    """What `ranks` that share a context send each other for one attention; widths are elements of a token."""

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
            flops, moved = elementwise_flops(mine, 2.0 * self.ranks), passed_bytes(mine, self.ranks + 1.0, wide)
            launches += [
                self._collective("context_queries", "all_gather", queries, step, count),
                self._collective("context_results", "all_to_all", results, step, count),
                Kernel(
                    "context_merge", "elementwise", count, step.stream, flops, activation_bytes=moved, variant="merge"
                ),
            ]
        return launches

    def _collective(self, name: str, kind: str, payload: Numeric, step: Step, count: int) -> Kernel:
        sent = self.gather if kind == "all_gather" else self.exchange
        return collective_kernel(name, kind, self.ranks, sent, payload, step.stream, count)

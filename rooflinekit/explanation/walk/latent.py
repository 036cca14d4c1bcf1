"""Stops of multi-head latent attention: keys and values up-projected for a prompt, absorbed for one token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooflinekit.explanation.walk.attention import mask, softmax
from rooflinekit.explanation.walk.parts import Matrix, Pass, matrix, pass_over, reshape
from rooflinekit.explanation.walk.result import Stop, Symbol, Tensor
from rooflinekit.explanation.walk.scene import Scene, View
from rooflinekit.model.kernels import Elementwise, IndexScores, KVAppend, LatentCore, LatentUpProjection, Linear
from rooflinekit.model.kernels.attention import index_key_bytes
from rooflinekit.model.kernels.gemm import BatchedLinear
from rooflinekit.model.types.model import LatentAttention

__all__ = ["LATENT", "latent_letters"]


def latent_letters(block: LatentAttention, on: Scene) -> list[Symbol]:
    """Heads, ranks and widths; with an indexer also what it looks at, which is every key."""
    symbols = [
        Symbol("H", block.heads, "query heads"),
        Symbol("R", block.kv_rank, "rank of the latent that stands for keys and values"),
        Symbol("r", block.rope_dim, "rotary width of a head, one key part for all heads"),
        Symbol("n", block.nope_dim, "width of a head without positions"),
        Symbol("e", block.v_dim, "width of a head's values"),
    ]
    if block.q_rank is not None:
        symbols.append(Symbol("Rq", block.q_rank, "rank of the queries' latent"))
    if block.indexer is not None:
        phase = on.sequences
        symbols += [
            Symbol("Hi", block.indexer.heads, "heads of the indexer"),
            Symbol("di", block.indexer.head_dim, "width of an index head"),
            Symbol("best", block.indexer.top_k, "keys that the indexer picks for a query"),
            Symbol("allpairs", float(phase.pairs()), "query-key pairs that the indexer scores"),
            Symbol("allkeys", float(phase.keys_read()), "index keys read"),
        ]
    return symbols


def _queries(block: LatentAttention, on: Scene, op: Linear) -> list[Stop]:
    """From the residual stream, or from the queries' latent."""
    h = on.cut("H")
    heads = on.tensor("Q nope", (*on.tokens, h, "n")), on.tensor("Q rope", (*on.tokens, h, "r"))
    source = "D" if block.q_rank is None else "Rq"
    return [
        matrix(on, op, Matrix("query projection", source, f"{h}·(n+r)", "q")),
        reshape("split heads", "cut into heads, each in two parts", heads),
    ]


def _down(block: LatentAttention, on: Scene, op: Linear) -> list[Stop]:
    parts = [] if block.q_rank is None else [on.tensor("c_q", (*on.tokens, "Rq"))]
    parts += [on.tensor("c_kv", (*on.tokens, "R")), on.tensor("k rope", (*on.tokens, "r"))]
    width = "R+r" if block.q_rank is None else "Rq+R+r"
    note = "every rank computes all of it" if on.plan.deployment.tp > 1 else ""
    return [
        matrix(on, op, Matrix("latent projection", "D", width, "latents", note)),
        reshape("split latents", "cut the last axis", parts),
    ]


def _norm(block: LatentAttention, on: Scene, op: Elementwise) -> list[Stop]:
    width = "R" if block.q_rank is None else "(R+Rq)"
    outputs = [on.tensor("c_kv", (*on.tokens, "R"))]
    outputs += [] if block.q_rank is None else [on.tensor("c_q", (*on.tokens, "Rq"))]
    view = View("norm of latents", op.name, "normalised", tuple(outputs))
    return [pass_over(on, op, view, Pass(f"4·{width}", f"2·{width}", width.strip("()")))]


def _rotated(block: LatentAttention, on: Scene, op: Elementwise) -> list[Stop]:
    h = on.cut("H")
    outputs = on.tensor("Q rope", (*on.tokens, h, "r")), on.tensor("k rope", (*on.tokens, "r"))
    view = View("rotary positions", op.name, "each pair of elements turned", outputs)
    return [pass_over(on, op, view, Pass(f"3·({h}+1)·r", f"2·({h}+1)·r"))]


def _append(block: LatentAttention, on: Scene, op: KVAppend) -> list[Stop]:
    cache = on.tensor("cache", (*on.cached, "R+r"), on.plan.precision.kv)
    note = "one latent for all heads, on every rank: tp does not divide it" if on.plan.deployment.tp > 1 else ""
    view = View("append to the cache", op.name, "latent and rotary key behind the others", (cache,), note)
    return [on.stop(view, kv_write=f"N·(R+r)·{on.cache_size}", activation="N·(R+r)·b")]


def _up(block: LatentAttention, on: Scene, op: LatentUpProjection) -> list[Stop]:
    """Prefill: keys and values of every head, spelt out from the cached latents."""
    h, held = on.cut("H"), on.size(op.weight)
    out = on.tensor("kv", (*on.cached, f"{h}·(n+e)"))
    view = View("K, V up-projection", "kv_b_proj", "latent·Wᵀ", (out,), "of every key, cached ones too")
    heads = [on.tensor("K", (*on.cached, h, "n+r")), on.tensor("V", (*on.cached, h, "e"))]
    return [
        on.stop(view, [on.tensor("W", (f"{h}·(n+e)", "R"), op.weight)], flops=f"2·keys·{h}·(n+e)·R",
                weight=f"{h}·(n+e)·R·{held}", kv_read=f"keys·R·{on.cache_size}", activation=f"keys·{h}·(n+e)·b"),
        reshape("split heads", "the rotary key joins every head", heads),
    ]  # fmt: skip


def _absorb_keys(block: LatentAttention, on: Scene, op: BatchedLinear) -> list[Stop]:
    """Decode: the keys' up-projection moves to the query, so that cached latents stay as they are."""
    h = on.cut("H")
    latent = on.tensor("Q latent", (*on.tokens, h, "R"))
    view = View("absorb into Q", op.name, "Q nope·W_UK, a matrix a head", (latent,),
                "the keys' half of the up-projection, applied to the query instead of to every key")  # fmt: skip
    joined = on.tensor("Q", (*on.tokens, h, "R+r"))
    return [_batched(on, op, view, ("n", "R")), reshape("join Q", "latent and rotary part side by side", [joined])]


def _absorb_values(block: LatentAttention, on: Scene, op: BatchedLinear) -> list[Stop]:
    h = on.cut("H")
    view = View("absorb from V", op.name, "heads·W_UV, a matrix a head", (on.tensor("heads", (*on.tokens, h, "e")),),
                "the values' half of the up-projection")  # fmt: skip
    return [
        _batched(on, op, view, ("R", "e")),
        reshape("concatenate heads", "heads side by side", [on.tensor("x", (*on.tokens, f"{h}·e"))]),
    ]


def _batched(on: Scene, op: BatchedLinear, view: View, sides: tuple[str, str]) -> Stop:
    """One small matrix a head, from k to n wide."""
    h, (k, n) = on.cut("H"), sides
    axes = (h, "n", "R") if k == "n" else (h, "e", "R")  # as halves of the up-projection are stored
    weight = on.tensor("W", axes, op.weight)
    return on.stop(view, [weight], flops=f"2·N·{h}·{k}·{n}", weight=f"{h}·{k}·{n}·{on.size(op.weight)}",
                   activation=f"N·{h}·({k}+{n})·b")  # fmt: skip


def _core(block: LatentAttention, on: Scene, op: LatentCore) -> list[Stop]:
    return _absorbed(on) if on.phase == "decode" else _unabsorbed(on)


def _unabsorbed(on: Scene) -> list[Stop]:
    """Heads of n + r elements against keys that were spelt out; their rotary part comes from the cache."""
    h = on.cut("H")
    scored = View("scores", "attention", "Q·Kᵀ/√(n+r)", (on.tensor("scores", on.scores(h), "fp32"),))
    summed = View("weighted sum", "attention", "weights·V", (on.tensor("heads", (*on.tokens, h, "e")),))
    return [
        on.stop(scored, flops=f"2·{h}·(n+r)·pairs", kv_read=f"keys·r·{on.cache_size}",
                activation=f"(N·{h}·(n+r)+keys·{h}·n)·b"),
        *mask(on, "attention", h),
        softmax(on, "attention", h),
        on.stop(summed, flops=f"2·{h}·e·pairs", activation=f"(N·{h}·e+keys·{h}·e)·b"),
        reshape("concatenate heads", "heads side by side", [on.tensor("x", (*on.tokens, f"{h}·e"))]),
    ]  # fmt: skip


def _absorbed(on: Scene) -> list[Stop]:
    """All heads against one shared latent of R + r elements; its first R are the values."""
    h = on.cut("H")
    scored = View("scores", "attention", "Q·cacheᵀ/√(n+r)", (on.tensor("scores", on.scores(h), "fp32"),),
                  "all heads read one latent, once: its first R elements are the values too")  # fmt: skip
    summed = View("weighted sum", "attention", "weights·latent", (on.tensor("heads", (*on.tokens, h, "R")),))
    return [
        on.stop(scored, flops=f"2·{h}·(R+r)·pairs", kv_read=f"keys·(R+r)·{on.cache_size}",
                activation=f"N·{h}·(R+r)·b"),
        softmax(on, "attention", h),
        on.stop(summed, flops=f"2·{h}·R·pairs", activation=f"N·{h}·R·b"),
    ]  # fmt: skip


def _output(block: LatentAttention, on: Scene, op: Linear) -> list[Stop]:
    return [matrix(on, op, Matrix("output projection", f"{on.cut('H')}·e", "D", "x"))]


def _index_queries(block: LatentAttention, on: Scene, op: Linear) -> list[Stop]:
    return [matrix(on, op, Matrix("index queries", "Rq" if block.q_rank else "D", "Hi·di", "index q"))]


def _index_keys(block: LatentAttention, on: Scene, op: Linear) -> list[Stop]:
    return [matrix(on, op, Matrix("index key and weights", "D", "di+Hi", "index k, weights"))]


def _index_append(block: LatentAttention, on: Scene, op: KVAppend) -> list[Stop]:
    cache = on.tensor("index cache", (*on.cached, "di"), on.plan.precision.index)
    view = View("append index key", op.name, "behind the others", (cache,), "with its scales where it is in fp8")
    return [on.stop(view, kv_write=f"N·{op.token_bytes:g}", activation="N·di·b")]


def _index_scores(block: LatentAttention, on: Scene, op: IndexScores) -> list[Stop]:
    """Every key against a few small heads, then the best of them."""
    axes = (*on.tokens, "T")
    if on.prompts.packed:
        axes = ("cells",) if on.phase == "prefill" else ("allpairs",)
    each = index_key_bytes(op.head_dim, op.dtype)
    view = View("index scores", "index_scores", "weighted sum over index heads", (on.tensor("index", axes, "fp32"),))
    return [
        on.stop(view, flops="2·Hi·di·allpairs", kv_read=f"allkeys·{each:g}",
                  activation=f"(N·Hi·di·{on.size(op.dtype)}+4·allpairs)"),
        reshape("pick keys", "the best of each row", _chosen(on)),
    ]  # fmt: skip


def _chosen(on: Scene) -> list[Tensor]:
    keys = "best" if on.prompts.packed else "min(best,T)"
    return [on.tensor("picked", (*on.tokens, keys), "int32")]


LATENT: Mapping[str, Callable[[Any, Scene, Any], list[Stop]]] = {
    "q_proj": _queries,
    "q_b_proj": _queries,
    "kv_a_proj": _down,
    "qkv_a_proj": _down,
    "latent_norm": _norm,
    "rope": _rotated,
    "kv_append": _append,
    "index_q_proj": _index_queries,
    "index_k_proj": _index_keys,
    "index_append": _index_append,
    "IndexScores": _index_scores,
    "LatentUpProjection": _up,
    "q_absorb": _absorb_keys,
    "LatentCore": _core,
    "v_absorb": _absorb_values,
    "o_proj": _output,
}
"""Operations of the block, by name or kind."""

"""FLOP and bytes of one launch of attention: grouped-query, latent, and what belongs to their caches."""

from __future__ import annotations

from rooflinekit.explanation.derivation.node import Node, given
from rooflinekit.explanation.derivation.scene import Scene, element
from rooflinekit.model.kernels import AttentionCore, IndexScores, KVAppend, LatentCore, LatentUpProjection
from rooflinekit.model.types.kernel import GemmShape, Kernel
from rooflinekit.model.types.kv_policy import FULL

__all__ = ["append_work", "attention_work", "index_work", "latent_work", "up_projection_work"]

Formulas = dict[str, tuple[str, list[Node]]]


def attention_work(scene: Scene, op: AttentionCore, kernel: Kernel) -> Formulas:
    """QK^T and PV over the scored pairs; KV heads, never query heads, are read."""
    limited = op.window is not None or op.chunk is not None or op.policy != FULL
    pairs, keys = scene.pairs(kernel, limited), scene.keys(kernel, limited)
    heads, kv_heads = scene.model("H", "query heads here", op.heads), scene.model("K", "KV heads here", op.kv_heads)
    widths = [
        scene.model("d_qk", "width of a query and key", op.qk_dim),
        scene.model("d_v", "width of a value", op.v_dim),
    ]
    cache, stream = element("b_kv", scene.step.kv, "the cache"), element("b", scene.step.stream, "activations")
    return {
        "F": ("2*H*(d_qk + d_v)*pairs", [heads, *widths, pairs]),
        "kr": ("keys*K*(d_qk + d_v)*b_kv", [keys, kv_heads, *widths, cache]),
        "a": ("new*H*(d_qk + d_v)*b", [_new(scene, kernel), heads, *widths, stream]),
    }


def latent_work(scene: Scene, op: LatentCore, kernel: Kernel) -> Formulas:
    """MLA: per-head keys and values in prefill, one shared latent in decode."""
    prefill = kernel.family == "mla_prefill"
    limited = op.top_k is not None or op.policy != FULL
    pairs, keys = scene.pairs(kernel, limited), scene.keys(kernel, limited)
    heads, rope = scene.model("H", "heads here", op.heads), scene.model("d_rope", "rotary width", op.rope_dim)
    cache, stream = element("b_kv", scene.step.kv, "the cache"), element("b", scene.step.stream, "activations")
    new = _new(scene, kernel)
    if not prefill:
        latent = scene.model("R", "width of the latent", op.kv_rank)
        return {
            "F": ("2*H*(2*R + d_rope)*pairs", [heads, latent, rope, pairs]),
            "kr": ("keys*(R + d_rope)*b_kv", [keys, latent, rope, cache]),
            "a": ("new*H*(2*R + d_rope)*b", [new, heads, latent, rope, stream]),
        }
    widths = [
        scene.model("d_nope", "width without positions", op.nope_dim),
        rope,
        scene.model("d_v", "width of a value", op.v_dim),
    ]
    moved = "(new*H*(d_nope + d_rope + d_v) + keys*H*(d_nope + d_v))*b"
    return {
        "F": ("2*H*(d_nope + d_rope + d_v)*pairs", [heads, *widths, pairs]),
        "kr": ("keys*d_rope*b_kv", [keys, rope, cache]),
        "a": (moved, [new, keys, heads, *widths, stream]),
    }


def up_projection_work(scene: Scene, op: LatentUpProjection, kernel: Kernel) -> Formulas:
    """Latents of all keys to per-head keys and values."""
    m = given(
        "m",
        "keys of the prefilling sequences, cached ones included",
        float(kernel.shaped(GemmShape).m),
        "",
        "the question",
    )
    n = scene.model("n", "H·(d_nope + d_v) here", float(kernel.shaped(GemmShape).n))
    k = scene.model("k", "width of the latent", op.kv_rank)
    return {
        "F": ("2*m*n*k", [m, n, k]),
        "w": ("n*k*b_w", [n, k, element("b_w", op.weight, "the weights")]),
        "kr": ("m*k*b_kv", [m, k, element("b_kv", scene.step.kv, "the cache")]),
        "a": ("m*n*b", [m, n, element("b", scene.step.stream, "activations")]),
    }


def append_work(scene: Scene, op: KVAppend, kernel: Kernel) -> Formulas:
    """Read the new keys and values, write them into the cache."""
    m, elements = scene.tokens(), scene.model("e", "elements cached a token and layer here", op.elements)
    written = ("m*e*b_kv", [m, elements, element("b_kv", scene.step.kv, "the cache")])
    if op.token_bytes is not None:
        written = (
            "m*c",
            [m, given("c", "bytes of an index key with its scales", op.token_bytes, "B", "docs/method.md, section 1")],
        )
    return {"kw": written, "a": ("m*e*b", [m, elements, element("b", scene.step.stream, "activations")])}


def index_work(scene: Scene, op: IndexScores, kernel: Kernel) -> Formulas:
    """Every past key against a few small heads."""
    pairs, heads = scene.pairs(kernel, False), scene.model("h", "heads of the indexer", op.heads)
    width, format = scene.model("d", "their width", op.head_dim), element("b_i", op.dtype, "the indexer")
    return {
        "F": ("2*h*d*pairs", [heads, width, pairs]),
        "a": ("new*h*d*b_i + 4*pairs", [_new(scene, kernel), heads, width, format, pairs]),
    }


def _new(scene: Scene, kernel: Kernel) -> Node:
    return scene.asked("new", "new tokens of these sequences", float(scene.phase(kernel).tokens))

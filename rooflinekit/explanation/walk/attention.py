"""Stops of softmax attention with query heads that share keys and values: MHA, GQA, MQA, windows and chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooflinekit.explanation.walk.parts import Matrix, Pass, matrix, pass_over, reshape
from rooflinekit.explanation.walk.result import Stop, Symbol
from rooflinekit.explanation.walk.scene import Scene, View
from rooflinekit.model.kernels import AttentionCore, Elementwise, KVAppend, Linear
from rooflinekit.model.types.model import Attention

__all__ = ["ATTENTION", "attention_letters", "mask", "softmax"]


def attention_letters(block: Attention) -> list[Symbol]:
    """Heads and widths."""
    kind = {"mha": "one for each query head", "mqa": "one for all query heads"}.get(block.kind, "shared by groups")
    symbols = [
        Symbol("H", block.heads, "query heads"),
        Symbol("K", block.kv_heads, f"KV heads, {kind}"),
        Symbol("d", block.head_dim, "width of a head"),
    ]
    if block.v_head_dim != block.head_dim:
        symbols.append(Symbol("e", block.v_head_dim, "width of a head's values"))
    if block.window:
        symbols.append(Symbol("w", block.window, "window: keys that a token sees at most, itself included"))
    if block.chunk:
        symbols.append(Symbol("w", block.chunk, "chunk: a token sees its own chunk up to itself"))
    return symbols


def _e(block: Attention) -> str:
    return "d" if block.v_head_dim == block.head_dim else "e"


def _cached(block: Attention, on: Scene) -> str:
    """Elements that a token leaves in the cache."""
    kv = on.cut("K")
    return f"2·{kv}·d" if _e(block) == "d" else f"{kv}·(d+e)"


def _project(block: Attention, on: Scene, op: Linear) -> list[Stop]:
    h, kv, e = on.cut("H"), on.cut("K"), _e(block)
    if e == "d" and not block.gated and not block.keys_are_values:
        width = f"({h}+2·{kv})·d"
    else:
        parts = [f"2·{h}·d" if block.gated else f"{h}·d", f"{kv}·d", *([] if block.keys_are_values else [f"{kv}·{e}"])]
        width = "+".join(parts)
    heads = [on.tensor("Q", (*on.tokens, h, "d")), on.tensor("K", (*on.tokens, kv, "d"))]
    heads += [on.tensor("V", (*on.tokens, kv, e))]
    heads += [on.tensor("gate", (*on.tokens, f"{h}·d"))] if block.gated else []
    note = "one projection is both keys and values" if block.keys_are_values else "a view: nothing moves"
    return [
        matrix(on, op, Matrix("QKV projection", "D", width, "qkv")),
        reshape("split heads", "cut the last axis into heads", heads, note),
    ]


def _normed(block: Attention, on: Scene, op: Elementwise) -> list[Stop]:
    return [_over_heads(block, on, op, View("norm of Q and K", op.name, "normalised", ()), "4")]


def _rotated(block: Attention, on: Scene, op: Elementwise) -> list[Stop]:
    return [_over_heads(block, on, op, View("rotary positions", op.name, "each pair of elements turned", ()), "3")]


def _over_heads(block: Attention, on: Scene, op: Elementwise, view: View, each: str) -> Stop:
    """A pass over queries and keys."""
    h, kv = on.cut("H"), on.cut("K")
    outputs = on.tensor("Q", (*on.tokens, h, "d")), on.tensor("K", (*on.tokens, kv, "d"))
    width = f"({h}+{kv})·d"
    view = View(view.name, view.kernel, view.does, outputs)
    return pass_over(on, op, view, Pass(f"{each}·{width}", f"2·{width}", str(op.parameters)))


def _append(block: Attention, on: Scene, op: KVAppend) -> list[Stop]:
    kv, size = on.cut("K"), on.cache_size
    cache = [on.tensor(f"{name} cache", (*on.cached, kv, width), on.plan.precision.kv)
             for name, width in (("K", "d"), ("V", _e(block)))]  # fmt: skip
    width = _cached(block, on)
    note = "an engine may drop keys that have left the window" if block.window or block.chunk else ""
    view = View("append to the cache", op.name, "keys and values behind the others", tuple(cache), note)
    return [on.stop(view, kv_write=f"N·{width}·{size}", activation=f"N·{width}·b")]


def _core(block: Attention, on: Scene, op: AttentionCore) -> list[Stop]:
    """One fused kernel, which never writes scores to memory; here in the order of the formula."""
    h, kv, e, size = on.cut("H"), on.cut("K"), _e(block), on.cache_size
    scored = View("scores", op.name, "Q·Kᵀ/√d", (on.tensor("scores", on.scores(h), "fp32"),), _groups(block, on, h))
    summed = View("weighted sum", op.name, "weights·V", (on.tensor("heads", (*on.tokens, h, e)),))
    sinks = [on.tensor("sinks", (h,), "bf16")] if op.sinks else []
    return [
        on.stop(scored, flops=f"2·{h}·d·pairs", kv_read=f"keys·{kv}·d·{size}", activation=f"N·{h}·d·b"),
        *mask(on, op.name, h),
        softmax(on, op.name, h, sinks=bool(sinks)),
        on.stop(summed, sinks, flops=f"2·{h}·{e}·pairs", kv_read=f"keys·{kv}·{e}·{size}", activation=f"N·{h}·{e}·b"),
        reshape("concatenate heads", "heads side by side", [on.tensor("x", (*on.tokens, f"{h}·{e}"))]),
    ]


def _groups(block: Attention, on: Scene, h: str) -> str:
    shared = block.heads // block.kv_heads
    if shared == 1:
        return "each query head has keys and values of its own"
    return f"{shared} query heads read each KV head" if block.kv_heads > 1 else "all query heads read one KV head"


def mask(on: Scene, kernel: str, heads: str) -> list[Stop]:
    """Which cells of the score table count; a decoding token sees all that is there."""
    if on.phase == "decode":
        return []
    pairs, cells = round(on.values["pairs"]), round(on.values["cells"])
    note = f"{pairs:,} of {cells:,} cells a head are seen, and only those are computed and counted"
    table = on.tensor("scores", on.scores(heads), "fp32")
    limits = " and within reach" if "w" in on.values else ""
    does = f"only keys up to the token{limits}" + (", of its own sequence" if on.prompts.packed else "")
    return [on.stop(View("causal mask", kernel, does, (table,), note))]


def softmax(on: Scene, kernel: str, heads: str, *, sinks: bool = False) -> Stop:
    """Rows that add up to 1; not counted, as FlashAttention counts."""
    note = "about 5 operations a pair, on other units; not counted (FlashAttention-2, section 4.1)"
    note += "; the sinks take their share" if sinks else ""
    table = on.tensor("weights", on.scores(heads), "fp32")
    return on.stop(View("softmax", kernel, "each row adds up to 1", (table,), note))


def _gate(block: Attention, on: Scene, op: Elementwise) -> list[Stop]:
    width = f"{on.cut('H')}·{_e(block)}"
    view = View("output gate", op.name, "x·sigmoid(gate)", (on.tensor("x", (*on.tokens, width)),))
    return [pass_over(on, op, view, Pass(f"5·{width}", f"3·{width}"))]


def _output(block: Attention, on: Scene, op: Linear) -> list[Stop]:
    return [matrix(on, op, Matrix("output projection", f"{on.cut('H')}·{_e(block)}", "D", "x"))]


ATTENTION: Mapping[str, Callable[[Any, Scene, Any], list[Stop]]] = {
    "qkv_proj": _project,
    "qk_norm": _normed,
    "rope": _rotated,
    "kv_append": _append,
    "attention": _core,
    "window_attention": _core,
    "chunk_attention": _core,
    "output_gate": _gate,
    "o_proj": _output,
}
"""Operations of the block, by name."""

"""Softmax attention of every layer: heads, biases, windows and chunks; latent attention with its indexer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.model import Attention, Indexer, LatentAttention, Mixer
from rooflinekit.specs.config.family import Reading, Span, Spans

__all__ = [
    "alternating",
    "base_attention",
    "chunked",
    "everywhere",
    "latent_layers",
    "layer_spans",
    "on_request",
    "softmax_layers",
    "stated",
]


def base_attention(r: Reading) -> Attention:
    """The attention that a config describes, before windows.

    Raises SpecError when heads do not divide.
    """
    keys, family = r.keys, r.family
    heads = keys.size("heads")
    kv_heads = family.kv_heads(r, heads) if family.kv_heads else keys.size("kv_heads", heads)
    head_dim = keys.maybe("head_dim") or _even_share(r, heads)
    if heads % kv_heads:
        raise SpecError(f"{keys.origin}: {heads} attention heads are no multiple of {kv_heads} key-value heads")
    norm = family.qk_norm if isinstance(family.qk_norm, str) else family.qk_norm(r)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=keys.size("v_head_dim", head_dim),
        qkv_bias=r.is_set(family.qkv_bias),
        o_bias=r.is_set(family.o_bias),
        q_norm={"head": head_dim, "full": heads * head_dim}.get(norm, 0),
        k_norm={"head": head_dim, "full": kv_heads * head_dim}.get(norm, 0),
        sinks=family.sinks,
        gated=r.is_set(family.attention_gate),
        rotary=r.is_set(family.rotary),
    )


def _even_share(r: Reading, heads: int) -> int:
    if r.hidden % heads:
        raise SpecError(
            f"{r.keys.origin}: no head_dim, and {heads} attention heads do not divide the hidden size {r.hidden}"
        )
    return r.hidden // heads


def softmax_layers(r: Reading) -> tuple[Mixer, ...]:
    """One attention a layer, windowed as the family says."""
    return layer_spans(r, base_attention(r))


def layer_spans(r: Reading, base: Attention) -> tuple[Attention, ...]:
    """`base` once a layer, with each layer's window; equal layers are one object."""
    if r.family.spans is None:
        return (base,) * r.depth
    spans = r.family.spans(r)
    kinds = {
        span: replace(base, window=span.window, chunk=span.chunk, rotary=base.rotary and span.rotary)
        for span in dict.fromkeys(spans)
    }
    return tuple(kinds[span] for span in spans)


def _window(r: Reading) -> int | None:
    """The sliding window, or None when it reaches as far as the context (then it is off)."""
    window = r.keys.maybe("window", least=0)
    context = r.keys.maybe("context")
    return None if not window or (context is not None and window >= context) else window


def stated(r: Reading, kinds: Sequence[str]) -> list[Any] | None:
    """`layer_types`, if the config lists them; each entry one of `kinds`."""
    return r.keys.choices("layer_types", r.depth, tuple(kinds))


def _from_types(r: Reading, types: Sequence[str], window: int | None) -> tuple[Span, ...]:
    if window is None and "sliding_attention" in types and not r.keys.maybe("window"):
        raise SpecError(f"{r.keys.origin}: layer_types has sliding_attention but sliding_window is missing")
    by_type = {"full_attention": Span(), "sliding_attention": Span(window=window)}
    return tuple(by_type[kind] for kind in types)


def everywhere(default: int | None = None) -> Spans:
    """Every layer slides when `sliding_window` is set; `default` is the class's window when the key is absent."""

    def spans(r: Reading) -> tuple[Span, ...]:
        absent = default is not None and not any(name in r.keys.config for name in r.keys.names["window"])
        window = _window(r)
        if absent:
            window = default
            r.warnings.append(f"sliding_window is absent: the class default of {default} tokens is taken")
        types = stated(r, ("full_attention", "sliding_attention"))
        return _from_types(r, types, window) if types else (Span(window=window),) * r.depth

    return spans


def on_request(r: Reading) -> tuple[Span, ...]:
    """Qwen: a window is there only if `use_sliding_window` says so, from layer `max_window_layers` on."""
    wanted, window = r.keys.flag("use_sliding_window", False), _window(r)
    first = r.keys.maybe("max_window_layers", least=0)
    types = stated(r, ("full_attention", "sliding_attention"))
    if types:
        return _from_types(r, types, window)
    if not wanted or window is None:
        return (Span(),) * r.depth
    if first is None:
        raise SpecError(f"{r.keys.at('max_window_layers')} is missing, and use_sliding_window is true")
    return tuple(Span(window=window if layer >= first else None) for layer in range(r.depth))


def alternating(period: int, *, rotary_global: bool = True) -> Spans:
    """Every `period`-th layer attends to everything, the others through the window (Gemma-2: 2, Gemma-3: 6)."""

    def spans(r: Reading) -> tuple[Span, ...]:
        types = stated(r, ("full_attention", "sliding_attention"))
        every = period if types and r.keys.find("pattern") else r.keys.size("pattern", period)
        if not any(name in r.keys.config for name in r.keys.names["window"]):
            r.keys.size("window")  # absent, not null: refuse
        window = _window(r)
        types = types or ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(r.depth)]
        return tuple(
            Span(window=window) if kind == "sliding_attention" else Span(rotary=rotary_global) for kind in types
        )

    return spans


def chunked(r: Reading) -> tuple[Span, ...]:
    """Llama-4: rotary layers attend inside their chunk, every fourth layer has no positions and sees everything."""
    chunk = r.keys.maybe("attention_chunk_size")
    every = r.keys.size("no_rope_layer_interval", 4)
    rotary = r.keys.choices("no_rope_layers", r.depth, (0, 1)) or [int((i + 1) % every != 0) for i in range(r.depth)]
    types = stated(r, ("full_attention", "chunked_attention"))
    local = [kind == "chunked_attention" for kind in types] if types else [bool(flag) for flag in rotary]
    return tuple(
        Span(chunk=chunk if inside else None, rotary=bool(flag)) for inside, flag in zip(local, rotary, strict=True)
    )


def latent_layers(r: Reading) -> tuple[Mixer, ...]:
    """Multi-head latent attention in every layer (DeepSeek); with an indexer when the config has `index_*` keys."""
    keys = r.keys
    heads = keys.size("heads")
    keys.maybe("kv_heads")  # stated, but the cache holds one latent whatever it says
    keys.maybe("head_dim")  # some say 64, some 192: the parts below are what counts
    keys.maybe("qk_head_dim")
    mixer = LatentAttention(
        heads=heads,
        q_rank=keys.maybe("q_lora_rank"),
        kv_rank=keys.size("kv_lora_rank"),
        nope_dim=keys.size("qk_nope_head_dim"),
        rope_dim=keys.size("qk_rope_head_dim"),
        v_dim=keys.size("v_head_dim"),
    )
    top_k = keys.maybe("index_topk")
    if top_k is None:
        return (mixer,) * r.depth
    if mixer.q_rank is None:
        raise SpecError(f"{keys.at('q_lora_rank')} is missing, and the indexer needs the latent query")
    indexer = Indexer(heads=keys.size("index_n_heads"), head_dim=keys.size("index_head_dim"), top_k=top_k)
    own, shared = replace(mixer, indexer=indexer), replace(mixer, indexer=replace(indexer, shared=True))
    return tuple(shared if kind == "shared" else own for kind in _indexers(r))


def _indexers(r: Reading) -> list[str]:
    """Which layers choose their own keys, and which share the choice of the layer before (GLM-5.2).

    Raises SpecError when the config says that some share but not which.
    """
    types = r.keys.choices("indexer_types", r.depth, ("full", "shared"))
    if types is None and r.keys.maybe("index_topk_freq") not in (None, 1):
        raise SpecError(f"{r.keys.at('indexer_types')} is missing, and index_topk_freq says that layers share indexers")
    if types and types[0] == "shared":
        raise SpecError(f"{r.keys.at('indexer_types')}[0] = 'shared', but no layer comes before the first")
    return types or ["full"] * r.depth

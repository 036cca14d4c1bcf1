"""What mixes the tokens of every layer: softmax and latent attention, recurrent layers, and the hybrids of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rooflinekit.model.types.errors import ArchitectureError, SpecError
from rooflinekit.model.types.model import (
    Attention,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    LightningAttention,
    Mamba,
    Mamba2,
    Mixer,
)
from rooflinekit.specs.config.family import Reading
from rooflinekit.specs.config.keys import Keys, is_off

__all__ = ["mixers", "nas_blocks"]

_SLIDING = ("full_attention", "sliding_attention")


def mixers(r: Reading) -> tuple[Mixer | None, ...]:
    """What mixes the tokens of each layer, None where nothing does; equal layers are one object."""
    return _BUILDERS[r.family.mixers](r)


def _base_attention(r: Reading) -> Attention:
    """The attention that a config describes, before windows; raises SpecError when heads do not divide."""
    keys, family = r.keys, r.family
    heads = keys.size("heads")
    keys.maybe("kv_heads")  # saved as a default by some versions, whatever decides
    kv_heads, head_dim = r.number(family.kv_heads), keys.maybe("head_dim")
    if head_dim is None:
        if r.hidden % heads:
            raise SpecError(
                f"{keys.origin}: no head_dim, and {heads} attention heads do not divide the hidden size {r.hidden}"
            )
        head_dim = r.hidden // heads
    r.check_multiple(heads, "attention heads", kv_heads, "key-value heads")
    norm = r.value(family.qk_norm)
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


def _softmax(r: Reading) -> tuple[Mixer, ...]:
    """One attention a layer, windowed as the class says."""
    base, rule = _base_attention(r), r.family.window
    if not rule:
        return (base,) * r.depth
    layers = _chunked(r, base) if rule["layers"] == "chunked" else _windowed(r, base, rule)
    kinds = {layer: layer for layer in layers}
    return tuple(kinds[layer] for layer in layers)


def _windowed(r: Reading, base: Attention, rule: Mapping[str, Any]) -> list[Attention]:
    """The layers that slide: as `layer_types` says, else all, those from `max_window_layers` on, or all but each n-th.

    A window that reaches as far as the context is off.
    """
    keys, which, context = r.keys, rule["layers"], r.keys.maybe("context")
    types = keys.choices("layer_types", r.depth, _SLIDING)
    stated = any(name in keys.config for name in keys.names["window"])
    if isinstance(which, int):
        which = which if types and keys.find("pattern") else keys.size("pattern", which)
        if not stated:
            keys.size("window")  # absent, not null: refuse
    window = keys.maybe("window", least=0)
    if "default" in rule and not stated:
        window = rule["default"]
        r.warnings.append(f"sliding_window is absent: the class default of {window} tokens is taken")
    elif types and not window and "sliding_attention" in types and not isinstance(which, int):
        raise SpecError(f"{keys.origin}: layer_types has sliding_attention but sliding_window is missing")
    elif context is not None and window and window >= context:
        window = None
    slides = [kind == "sliding_attention" for kind in types or ()]
    if which == "requested":  # Qwen
        wanted, first = keys.flag("use_sliding_window", False), keys.maybe("max_window_layers", least=0)
        if not types and wanted and window and first is None:
            raise SpecError(f"{keys.at('max_window_layers')} is missing, and use_sliding_window is true")
        slides = slides or [wanted and first is not None and layer >= first for layer in range(r.depth)]
    elif not types:
        slides = [which == "all" or (layer + 1) % which != 0 for layer in range(r.depth)]
    local = replace(base, window=window or None)
    other = replace(base, rotary=base.rotary and rule.get("rotary", True))
    return [local if slide else other for slide in slides]


def _chunked(r: Reading, base: Attention) -> list[Attention]:
    """Llama-4: rotary layers attend inside their chunk, every fourth layer has no positions and sees everything."""
    chunk = r.keys.maybe("attention_chunk_size")
    every = r.keys.size("no_rope_layer_interval", 4)
    rotary = r.keys.choices("no_rope_layers", r.depth, (0, 1)) or [int((i + 1) % every != 0) for i in range(r.depth)]
    types = r.keys.choices("layer_types", r.depth, ("full_attention", "chunked_attention"))
    local = [kind == "chunked_attention" for kind in types] if types else [bool(flag) for flag in rotary]
    return [
        replace(base, chunk=chunk if inside else None, rotary=base.rotary and bool(flag))
        for inside, flag in zip(local, rotary, strict=True)
    ]


def _latent(r: Reading) -> tuple[Mixer, ...]:
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
    # which layers choose their own keys, and which share the choice of the layer before (GLM-5.2)
    types = keys.choices("indexer_types", r.depth, ("full", "shared"))
    if types is None and keys.maybe("index_topk_freq") not in (None, 1):
        raise SpecError(f"{keys.at('indexer_types')} is missing, and index_topk_freq says that layers share indexers")
    if types and types[0] == "shared":
        raise SpecError(f"{keys.at('indexer_types')}[0] = 'shared', but no layer comes before the first")
    return tuple(shared if kind == "shared" else own for kind in types or ["full"] * r.depth)


def _delta(r: Reading) -> tuple[Mixer, ...]:
    """Qwen3-Next and 3.5: gated delta net, with gated softmax attention in every `full_attention_interval`-th layer."""
    keys = r.keys
    linear = GatedDeltaNet(
        key_heads=keys.size("linear_num_key_heads"),
        value_heads=keys.size("linear_num_value_heads"),
        key_dim=keys.size("linear_key_head_dim"),
        value_dim=keys.size("linear_value_head_dim"),
        conv_width=keys.size("linear_conv_kernel_dim"),
    )
    r.check_multiple(linear.value_heads, "linear value heads", linear.key_heads, "key heads")
    attention = _base_attention(r)
    types = keys.choices("layer_types", r.depth, ("linear_attention", "full_attention"))
    every = keys.size("full_attention_interval", 4 if not types else 1)
    softmax = [kind == "full_attention" for kind in types] if types else [(i + 1) % every == 0 for i in range(r.depth)]
    return tuple(attention if full else linear for full in softmax)


def _lightning(r: Reading) -> tuple[Mixer, ...]:
    """MiniMax-01 and M1: `attn_type_list` has 1 for softmax attention, 0 for lightning attention."""
    attention = _base_attention(r)
    kinds = r.keys.listed("attn_type_list", r.depth, (0, 1))
    lightning = LightningAttention(attention.heads, attention.head_dim)
    return tuple(attention if kind else lightning for kind in kinds)


def _jamba(r: Reading) -> tuple[Mixer, ...]:
    """Jamba: attention in layers `attn_layer_offset` modulo `attn_layer_period`, Mamba elsewhere."""
    keys = r.keys
    if not keys.flag("mamba_inner_layernorms", True):
        raise SpecError(f"{keys.at('mamba_inner_layernorms')} = false is not understood")
    rank = keys.config.get("mamba_dt_rank")
    if rank == "auto":
        keys.note("mamba_dt_rank", "a sixteenth of the hidden size, rounded up")
    mamba = Mamba(
        inner=keys.size("mamba_expand", 2) * r.hidden,
        state=keys.size("mamba_d_state", 16),
        conv_width=keys.size("mamba_d_conv", 4),
        dt_rank=keys.size("mamba_dt_rank") if rank not in (None, "auto") else -(-r.hidden // 16),
        conv_bias=keys.flag("mamba_conv_bias", True),
        proj_bias=keys.flag("mamba_proj_bias", False),
    )
    period, offset = keys.size("attn_layer_period", 8), keys.size("attn_layer_offset", 4, least=0)
    attention = _base_attention(r)
    return tuple(attention if layer % period == offset else mamba for layer in range(r.depth))


def _nemotron(r: Reading) -> tuple[Mixer | None, ...]:
    """Mamba-2, attention or nothing, block by block."""
    keys = r.keys
    mamba = Mamba2(
        heads=keys.size("mamba_num_heads"),
        head_dim=keys.size("mamba_head_dim"),
        groups=keys.size("mamba_groups"),
        state=keys.size("ssm_state_size"),
        conv_width=keys.size("mamba_conv"),
        conv_bias=keys.flag("use_conv_bias", True),
        proj_bias=keys.flag("mamba_proj_bias", False),
    )
    r.check_multiple(mamba.heads, "Mamba heads", mamba.groups, "groups")
    mixers: dict[str, Mixer] = {"mamba": mamba, "attention": _base_attention(r)}
    return tuple(mixers.get(block) for block in r.blocks)


def _gemma4(r: Reading) -> tuple[Mixer, ...]:
    """Gemma-4: local layers slide; global ones have fewer, wider heads, and may project keys and values at once."""
    keys = r.keys
    types = keys.listed("layer_types", r.depth, _SLIDING)
    local = replace(_base_attention(r), window=keys.size("window"))
    merged = keys.flag("attention_k_eq_v", False)
    kv_heads = keys.maybe("num_global_key_value_heads")
    kv_heads = kv_heads if merged and kv_heads else local.kv_heads
    dim = keys.size("global_head_dim", local.head_dim)
    r.check_multiple(local.heads, "attention heads", kv_heads, "global ones")
    wide = replace(
        local, window=None, kv_heads=kv_heads, head_dim=dim, v_head_dim=dim, q_norm=dim, k_norm=dim,
        keys_are_values=merged,
    )  # fmt: skip
    return tuple(local if kind == "sliding_attention" else wide for kind in types)


def _mimo(r: Reading) -> tuple[Mixer, ...]:
    """MiMo-V2: `hybrid_layer_pattern` has 1 for sliding layers, whose sizes and sinks are stated apart (`swa_*`)."""
    keys = r.keys
    pattern = keys.listed("hybrid_layer_pattern", r.depth, (0, 1))
    full = replace(_base_attention(r), sinks=keys.flag("add_full_attention_sink_bias", False))
    heads = keys.size("swa_num_attention_heads", full.heads)
    kv_heads = keys.size("swa_num_key_value_heads", full.kv_heads)
    r.check_multiple(heads, "sliding attention heads", kv_heads)
    sliding = replace(
        full,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=keys.size("swa_head_dim", full.head_dim),
        v_head_dim=keys.size("swa_v_head_dim", full.v_head_dim),
        window=keys.size("window"),
        sinks=keys.flag("add_swa_attention_sink_bias", False),
    )
    return tuple(sliding if kind else full for kind in pattern)


def _nas(r: Reading) -> tuple[Mixer | None, ...]:
    """Nemotron-NAS: each block's `attention` says how many heads share a key, or that there is none."""
    attention = _base_attention(r)
    mixers: list[Mixer | None] = []
    kinds: dict[int, Mixer] = {}
    for block, value in nas_blocks(r, "attention", "n_heads_in_group"):
        if value is None:
            mixers.append(None)
            continue
        size = block.whole("n_heads_in_group", value)
        if attention.heads % size:
            raise SpecError(f"{block.at('n_heads_in_group')} = {size} does not divide {attention.heads} heads")
        mixers.append(kinds.setdefault(size, replace(attention, kv_heads=attention.heads // size)))
    return tuple(mixers)


def nas_blocks(r: Reading, part: str, key: str) -> list[tuple[Keys, Any]]:
    """One part of each block with the value that shapes it, None for a no-op; anything else that is on is refused."""
    return [
        _nas_block(r, index, block, part, key) for index, block in enumerate(r.keys.listed("block_configs", r.depth))
    ]


def _nas_block(r: Reading, index: int, block: Any, part: str, key: str) -> tuple[Keys, Any]:
    inner = block.get(part) if isinstance(block, Mapping) else None
    if not isinstance(inner, Mapping):
        raise SpecError(f"{r.keys.at(f'block_configs[{index}]')} has no {part}")
    keys = Keys(inner, r.keys.origin, {}, f"block_configs[{index}].{part}.")
    for name, value in inner.items():
        if name not in ("no_op", "n_heads_in_group", "ffn_mult") and not is_off(value):
            keys.refuse(name, "is not understood", kind=ArchitectureError)
    if keys.flag("no_op", False):
        return keys, None
    if not keys.has(key):
        raise SpecError(f"{keys.at(key)} is missing")
    return keys, inner[key]


_BUILDERS: Mapping[str, Callable[[Reading], tuple[Mixer | None, ...]]] = {
    "softmax": _softmax,
    "latent": _latent,
    "delta": _delta,
    "lightning": _lightning,
    "jamba": _jamba,
    "nemotron": _nemotron,
    "gemma4": _gemma4,
    "mimo": _mimo,
    "nas": _nas,
}

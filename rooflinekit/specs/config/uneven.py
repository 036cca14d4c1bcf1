"""Models whose layers differ in heads or widths: Gemma-4, MiMo-V2, the pruned Nemotron-NAS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rooflinekit.model.types.errors import ArchitectureError, SpecError
from rooflinekit.model.types.model import DenseFFN, FeedForward, Mixer
from rooflinekit.specs.config.attention import base_attention, stated
from rooflinekit.specs.config.family import Reading
from rooflinekit.specs.config.feedforward import experts
from rooflinekit.specs.config.keys import Keys, is_off, shown

__all__ = ["gemma4_ffns", "gemma4_mixers", "gemma4_norms", "mimo_mixers", "nas_ffns", "nas_mixers"]


def gemma4_mixers(r: Reading) -> tuple[Mixer, ...]:
    """Gemma-4: local layers slide; global ones have fewer, wider heads, and may project keys and values at once.

    Raises SpecError when `layer_types` is missing or the heads do not divide.
    """
    keys = r.keys
    types = stated(r, ("full_attention", "sliding_attention"))
    if types is None:
        raise SpecError(f"{keys.at('layer_types')} is missing")
    local = replace(base_attention(r), window=keys.size("window"))
    merged = keys.flag("attention_k_eq_v", False)
    kv_heads = keys.maybe("num_global_key_value_heads")
    kv_heads = kv_heads if merged and kv_heads else local.kv_heads
    dim = keys.size("global_head_dim", local.head_dim)
    if local.heads % kv_heads:
        raise SpecError(f"{keys.origin}: {local.heads} attention heads are no multiple of {kv_heads} global ones")
    wide = replace(
        local, window=None, kv_heads=kv_heads, head_dim=dim, v_head_dim=dim, q_norm=dim, k_norm=dim,
        keys_are_values=merged,
    )  # fmt: skip
    return tuple(local if kind == "sliding_attention" else wide for kind in types)


def gemma4_ffns(r: Reading) -> tuple[FeedForward, ...]:
    """Gemma-4: a dense block, which acts as a shared expert where `enable_moe_block` puts routed ones beside it."""
    width = r.keys.size("width")
    if not r.keys.flag("enable_moe_block", False):
        return (DenseFFN(width),) * r.depth
    return (experts(r, r.keys.size("expert_width"), width, router_bias=True),) * r.depth  # a scale per expert


def gemma4_norms(r: Reading) -> int:
    """Around attention and block two each; experts add three, and the router a scale over the residual width."""
    return 8 if r.keys.flag("enable_moe_block", False) else 4


def mimo_mixers(r: Reading) -> tuple[Mixer, ...]:
    """MiMo-V2: `hybrid_layer_pattern` has 1 for sliding layers, whose heads, dims and sinks are stated apart (`swa_*`).

    Raises SpecError when the pattern is missing or the heads do not divide.
    """
    keys = r.keys
    pattern = keys.choices("hybrid_layer_pattern", r.depth, (0, 1))
    if pattern is None:
        raise SpecError(f"{keys.at('hybrid_layer_pattern')} is missing")
    full = replace(base_attention(r), sinks=keys.flag("add_full_attention_sink_bias", False))
    heads = keys.size("swa_num_attention_heads", full.heads)
    kv_heads = keys.size("swa_num_key_value_heads", full.kv_heads)
    if heads % kv_heads:
        raise SpecError(f"{keys.origin}: {heads} sliding attention heads are no multiple of {kv_heads}")
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


def nas_mixers(r: Reading) -> tuple[Mixer | None, ...]:
    """Nemotron-NAS: each block's `attention` says how many heads share a key, or that there is none.

    Raises SpecError when the heads do not divide.
    """
    attention = base_attention(r)
    blocks = _blocks(r, "attention")
    groups = [_value(block, "n_heads_in_group") for block in blocks]
    sizes = [
        None if group is None else block.whole("n_heads_in_group", group)
        for block, group in zip(blocks, groups, strict=True)
    ]
    for size, block in zip(sizes, blocks, strict=True):
        if size is not None and attention.heads % size:
            raise SpecError(f"{block.at('n_heads_in_group')} = {size} does not divide {attention.heads} heads")
    kinds = {size: replace(attention, kv_heads=attention.heads // size) for size in set(sizes) if size is not None}
    return tuple(None if size is None else kinds[size] for size in sizes)


def nas_ffns(r: Reading) -> tuple[FeedForward | None, ...]:
    """Nemotron-NAS: each block's `ffn_mult` times two thirds of the hidden size, rounded up to 256.

    Raises SpecError for a factor that is no positive number.
    """
    return tuple(_nas_ffn(r, block) for block in _blocks(r, "ffn"))


def _nas_ffn(r: Reading, block: Keys) -> FeedForward | None:
    factor = _value(block, "ffn_mult")
    if factor is None:
        return None
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1000:
        raise SpecError(f"{block.at('ffn_mult')} = {shown(factor)} is not a positive number")
    width = 256 * math.ceil(int(2 * factor * r.hidden / 3) / 256)
    return DenseFFN(block.whole("ffn_mult", width), r.family.gated, r.is_set(r.family.mlp_bias))


def _blocks(r: Reading, part: str) -> list[Keys]:
    """One part of each block; anything in it that is switched on and not known is refused."""
    blocks = r.keys.series("block_configs", r.depth)
    if blocks is None:
        raise SpecError(f"{r.keys.at('block_configs')} is missing")
    return [_part(r, index, block, part) for index, block in enumerate(blocks)]


def _part(r: Reading, index: int, block: Any, part: str) -> Keys:
    inner = block.get(part) if isinstance(block, Mapping) else None
    keys = Keys(inner if isinstance(inner, Mapping) else {}, r.keys.origin, {}, f"block_configs[{index}].{part}.")
    if not isinstance(inner, Mapping):
        raise SpecError(f"{r.keys.at(f'block_configs[{index}]')} has no {part}")
    for key, value in inner.items():
        if key not in ("no_op", "n_heads_in_group", "ffn_mult") and not is_off(value):
            raise ArchitectureError(f"{keys.at(str(key))} = {shown(value)} is not understood")
    return keys


def _value(block: Keys, key: str) -> Any:
    """The value that shapes a block, or None where the block is a no-op.

    Raises SpecError when there is neither.
    """
    if block.flag("no_op", False):
        return None
    if not block.has(key):
        raise SpecError(f"{block.at(key)} is missing")
    return block.config[key]

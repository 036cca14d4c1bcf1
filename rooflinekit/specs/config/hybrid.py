"""Layers without a growing cache, and the hybrids that mix them with attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.model import (
    DenseFFN,
    FeedForward,
    GatedDeltaNet,
    LightningAttention,
    Mamba,
    Mamba2,
    Mixer,
)
from rooflinekit.specs.config.attention import base_attention
from rooflinekit.specs.config.family import Reading
from rooflinekit.specs.config.feedforward import experts
from rooflinekit.specs.config.keys import Keys

__all__ = [
    "delta_hybrid",
    "jamba_mixers",
    "lightning_hybrid",
    "nemotron_depth",
    "nemotron_ffns",
    "nemotron_mixers",
]

_BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def delta_hybrid(r: Reading) -> tuple[Mixer, ...]:
    """Qwen3-Next and 3.5: gated delta net, with gated softmax attention in every `full_attention_interval`-th layer.

    Raises SpecError when value heads are no multiple of key heads.
    """
    keys = r.keys
    linear = GatedDeltaNet(
        key_heads=keys.size("linear_num_key_heads"),
        value_heads=keys.size("linear_num_value_heads"),
        key_dim=keys.size("linear_key_head_dim"),
        value_dim=keys.size("linear_value_head_dim"),
        conv_width=keys.size("linear_conv_kernel_dim"),
    )
    if linear.value_heads % linear.key_heads:
        raise SpecError(
            f"{keys.origin}: {linear.value_heads} linear value heads are no multiple of {linear.key_heads} key heads"
        )
    attention = base_attention(r)
    types = keys.choices("layer_types", r.depth, ("linear_attention", "full_attention"))
    every = keys.size("full_attention_interval", 4 if not types else 1)
    softmax = [kind == "full_attention" for kind in types] if types else [(i + 1) % every == 0 for i in range(r.depth)]
    return tuple(attention if full else linear for full in softmax)


def lightning_hybrid(r: Reading) -> tuple[Mixer, ...]:
    """MiniMax-01 and M1: `attn_type_list` has 1 for softmax attention, 0 for lightning attention.

    Raises SpecError when the list is missing.
    """
    attention = base_attention(r)
    kinds = r.keys.choices("attn_type_list", r.depth, (0, 1))
    if kinds is None:
        raise SpecError(f"{r.keys.at('attn_type_list')} is missing")
    lightning = LightningAttention(attention.heads, attention.head_dim)
    return tuple(attention if kind else lightning for kind in kinds)


def jamba_mixers(r: Reading) -> tuple[Mixer, ...]:
    """Jamba: attention in layers `attn_layer_offset` modulo `attn_layer_period`, Mamba elsewhere.

    Raises SpecError when the inner norms that the class always has are switched off.
    """
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
    attention = base_attention(r)
    return tuple(attention if layer % period == offset else mamba for layer in range(r.depth))


def _blocks(keys: Keys) -> Sequence[Any]:
    """Nemotron-H's list of blocks, from its pattern string or from its list of words."""
    words = keys.choices("layers_block_type", None, tuple(_BLOCKS.values()))
    pattern = keys.word("hybrid_override_pattern")
    if not words and not pattern:
        raise SpecError(f"{keys.at('hybrid_override_pattern')} (or layers_block_type) is missing")
    unknown = sorted(set(pattern) - set(_BLOCKS))
    if unknown:
        raise SpecError(f"{keys.at('hybrid_override_pattern')} holds {unknown[0]!r}; known: {' '.join(_BLOCKS)}")
    return words or [_BLOCKS[letter] for letter in pattern]


def nemotron_depth(keys: Keys) -> int:
    """The number of blocks, which `num_hidden_layers` must match where it is stated.

    Raises SpecError when it does not.
    """
    blocks, depth = _blocks(keys), keys.maybe("depth")
    if depth not in (None, len(blocks)):
        raise SpecError(f"{keys.at('num_hidden_layers')} = {depth} but the pattern has {len(blocks)} blocks")
    return keys.whole("hybrid_override_pattern", len(blocks), 1, 10_000)


def nemotron_mixers(r: Reading) -> tuple[Mixer | None, ...]:
    """Mamba-2, attention or nothing, block by block.

    Raises SpecError when the Mamba heads are no multiple of their groups.
    """
    keys, blocks = r.keys, _blocks(r.keys)
    mixers: dict[str, Mixer | None] = {"mlp": None, "moe": None}
    mamba = Mamba2(
        heads=keys.size("mamba_num_heads"),
        head_dim=keys.size("mamba_head_dim"),
        groups=keys.size("mamba_groups"),
        state=keys.size("ssm_state_size"),
        conv_width=keys.size("mamba_conv"),
        conv_bias=keys.flag("use_conv_bias", True),
        proj_bias=keys.flag("mamba_proj_bias", False),
    )
    if mamba.heads % mamba.groups:
        raise SpecError(f"{keys.origin}: {mamba.heads} Mamba heads are no multiple of {mamba.groups} groups")
    mixers |= {"mamba": mamba, "attention": base_attention(r)}
    return tuple(mixers[block] for block in blocks)


def nemotron_ffns(r: Reading) -> tuple[FeedForward | None, ...]:
    """A dense or routed block, or nothing, block by block."""
    keys, blocks = r.keys, _blocks(r.keys)
    ffns: dict[str, FeedForward | None] = {"mamba": None, "attention": None}
    ffns["mlp"] = DenseFFN(keys.size("width"), r.family.gated, r.is_set(r.family.mlp_bias))
    if "moe" in blocks:
        shared = keys.size("shared_width", 0, least=0)
        moe = experts(r, keys.size("expert_width"), keys.size("shared_experts", 0, least=0) * shared, router_bias=True)
        ffns["moe"] = replace(moe, latent=keys.maybe("moe_latent_size"))
    return tuple(ffns[block] for block in blocks)

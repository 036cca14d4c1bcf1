"""The feed-forward block of every layer: dense, or routed experts with their shared and dense exceptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.model import DenseFFN, FeedForward, MixtureOfExperts
from rooflinekit.specs.config.family import FeedForwards, Flag, Reading
from rooflinekit.specs.config.mixers import nas_blocks, nemotron_blocks

__all__ = [
    "dbrx_ffns", "dense_layers", "first_dense", "gemma4_ffns", "generic_ffns", "interleaved", "moe_everywhere",
    "mpt_ffns", "nas_ffns", "nemotron_ffns", "periodic", "sparse_step",
]  # fmt: skip


def _dense(r: Reading, width: int) -> DenseFFN:
    return DenseFFN(width, r.family.gated, r.is_set(r.family.mlp_bias))


def dense_layers(width: int | None = None) -> FeedForwards:
    """The same dense block in every layer; `width` times the hidden size when the config does not say."""
    return lambda r: (_dense(r, r.keys.size("width", width * r.hidden if width else None)),) * r.depth


def mpt_ffns(r: Reading) -> tuple[FeedForward, ...]:
    """MPT states the width as a multiple of the hidden size."""
    return (_dense(r, r.keys.size("expansion_ratio", 4) * r.hidden),) * r.depth


def generic_ffns(r: Reading) -> tuple[FeedForward, ...]:
    """A dense block whose config says whether it is gated."""
    return (replace(_dense(r, r.keys.size("width")), gated=r.keys.flag("mlp_gated", True)),) * r.depth


def _experts(
    r: Reading, width: int, shared: int = 0, *, gate: bool = False, router_bias: bool = False
) -> MixtureOfExperts:
    """Routed experts of inner width `width`; raises SpecError when a token visits more than there are."""
    count, top_k = r.keys.size("experts"), r.keys.size("top_k")
    if top_k > count:
        raise SpecError(f"{r.keys.origin}: a token visits {top_k} experts but there are only {count}")
    return MixtureOfExperts(
        experts=count,
        top_k=top_k,
        width=width,
        gated=r.family.gated,
        bias=r.is_set(r.family.mlp_bias),
        shared_width=shared,
        shared_gate=gate,
        router_bias=router_bias,
    )


def _placed(r: Reading, moe: MixtureOfExperts, sparse: Sequence[bool]) -> tuple[FeedForward, ...]:
    """Experts where `sparse` says so, dense blocks of the config's width elsewhere."""
    if not any(sparse):
        raise SpecError(f"{r.keys.origin}: no layer has experts, although the config describes {moe.experts}")
    if all(sparse):
        r.keys.find("width")  # stated by many, used by none of the layers
        return (moe,) * r.depth
    dense = _dense(r, r.keys.size("width"))
    return tuple(moe if routed else dense for routed in sparse)


def moe_everywhere(*, router_bias: Flag = False) -> FeedForwards:
    """Experts of the config's width in every layer (Mixtral, gpt-oss, MiniMax)."""

    def ffns(r: Reading) -> tuple[FeedForward, ...]:
        shared = r.keys.size("shared_intermediate_size", 0, least=0)
        return (_experts(r, r.keys.size("width"), shared, router_bias=r.is_set(router_bias)),) * r.depth

    return ffns


def dbrx_ffns(r: Reading) -> tuple[FeedForward, ...]:
    """DBRX keeps its experts in `ffn_config`."""
    inner = replace(r, keys=r.keys.child("ffn_config"))
    inner.keys.child("ffn_act_fn")
    return (_experts(inner, inner.keys.size("width")),) * r.depth


def sparse_step(*, shared: bool) -> FeedForwards:
    """Qwen: experts in every `decoder_sparse_step`-th layer but those in `mlp_only_layers`."""

    def ffns(r: Reading) -> tuple[FeedForward, ...]:
        keys = r.keys
        moe = _experts(r, keys.size("expert_width"), keys.size("shared_width") if shared else 0, gate=shared)
        step, only = keys.size("decoder_sparse_step", 1), keys.series("mlp_only_layers") or []
        dense_at = {keys.whole(f"mlp_only_layers[{n}]", layer, 0, r.depth - 1) for n, layer in enumerate(only)}
        return _placed(r, moe, [layer not in dense_at and (layer + 1) % step == 0 for layer in range(r.depth)])

    return ffns


def first_dense(*, router_bias: bool | None = None) -> FeedForwards:
    """DeepSeek, GLM: `first_k_dense_replace` dense layers, then experts in every `moe_layer_freq`-th layer.

    With `router_bias` None the config's `topk_method` decides (noaux_tc learns a balance correction per expert).
    """

    def ffns(r: Reading) -> tuple[FeedForward, ...]:
        keys = r.keys
        method = keys.word("topk_method")
        width = keys.size("expert_width")
        corrected = method == "noaux_tc" if router_bias is None else router_bias
        shared = width * keys.size("shared_experts", 0, least=0)
        return _placed(r, _experts(r, width, shared, router_bias=corrected), _after_dense(r))

    return ffns


def _after_dense(r: Reading) -> list[bool]:
    first = r.keys.size("first_k_dense_replace", 0, least=0)
    types = r.keys.choices("mlp_layer_types", r.depth, ("dense", "sparse"))
    if isinstance(r.keys.config.get("moe_layer_freq"), list):
        return [bool(flag) for flag in r.keys.choices("moe_layer_freq", r.depth, (0, 1)) or []]
    every = r.keys.size("moe_layer_freq", 1)
    if types:
        return [kind == "sparse" for kind in types]
    return [layer >= first and layer % every == 0 for layer in range(r.depth)]


def periodic(*, period: str, offset: str) -> FeedForwards:
    """Jamba: experts in layers `offset` modulo `period`, all of the same width as the dense blocks."""

    def ffns(r: Reading) -> tuple[FeedForward, ...]:
        every, start = r.keys.size(period), r.keys.size(offset, least=0)
        return _placed(r, _experts(r, r.keys.size("width")), [layer % every == start for layer in range(r.depth)])

    return ffns


def interleaved(r: Reading) -> tuple[FeedForward, ...]:
    """Llama-4: experts and one shared expert of the same width in every `interleave_moe_layer_step`-th layer."""
    width, step = r.keys.size("expert_width"), r.keys.size("interleave_moe_layer_step", 1)
    listed = r.keys.series("moe_layers") or range(step - 1, r.depth, step)
    moe = _experts(r, width, width)
    at = {r.keys.whole(f"moe_layers[{n}]", layer, 0, r.depth - 1) for n, layer in enumerate(listed)}
    return _placed(r, moe, [layer in at for layer in range(r.depth)])


def gemma4_ffns(r: Reading) -> tuple[FeedForward, ...]:
    """Gemma-4: a dense block, which acts as a shared expert where `enable_moe_block` puts routed ones beside it."""
    width = r.keys.size("width")
    if not r.keys.flag("enable_moe_block", False):
        return (DenseFFN(width),) * r.depth
    return (_experts(r, r.keys.size("expert_width"), width, router_bias=True),) * r.depth  # a scale per expert


def nemotron_ffns(r: Reading) -> tuple[FeedForward | None, ...]:
    """Nemotron-H: a dense or routed block, or nothing, block by block."""
    keys, blocks = r.keys, nemotron_blocks(r.keys)
    ffns: dict[str, FeedForward] = {"mlp": _dense(r, keys.size("width"))}
    if "moe" in blocks:
        shared = keys.size("shared_width", 0, least=0)
        moe = _experts(r, keys.size("expert_width"), keys.size("shared_experts", 0, least=0) * shared, router_bias=True)
        ffns["moe"] = replace(moe, latent=keys.maybe("moe_latent_size"))
    return tuple(ffns.get(block) for block in blocks)


def nas_ffns(r: Reading) -> tuple[FeedForward | None, ...]:
    """Nemotron-NAS: each block's `ffn_mult` times two thirds of the hidden size, rounded up to 256."""
    ffns: list[FeedForward | None] = []
    for block, factor in nas_blocks(r, "ffn", "ffn_mult"):
        if factor is None:
            ffns.append(None)
            continue
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1000:
            block.refuse("ffn_mult", "is not a positive number")
        width = 256 * math.ceil(int(2 * factor * r.hidden / 3) / 256)
        ffns.append(_dense(r, block.whole("ffn_mult", width)))
    return tuple(ffns)

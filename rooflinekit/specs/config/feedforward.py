"""The feed-forward block of every layer: dense, or routed experts with their shared and dense exceptions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.model import DenseFFN, FeedForward, MixtureOfExperts
from rooflinekit.specs.config.family import Reading
from rooflinekit.specs.config.mixers import nas_blocks
from rooflinekit.specs.files import Parsed


def feed_forwards(r: Reading) -> tuple[FeedForward | None, ...]:
    """The block of each layer, None where there is none.

    Raises SpecError when a token visits more experts than there are, and when no layer has the experts described.
    """
    return r.by_layer(_of_layers)


def _of_layers(r: Reading) -> tuple[FeedForward | None, ...]:
    if r.family.ffns:
        return _BUILDERS[r.family.ffns](r)
    columns = r.value(r.family.experts)
    if columns and columns.get("optional") and not r.keys.maybe("experts", least=0):
        for concept in ("top_k", "width"):  # stated all the same, used by none of the layers
            r.keys.find(concept)
        return (_dense(r, math.prod(r.number(factor) for factor in columns["shared"])),) * r.depth
    if columns is None:
        times = r.number(r.family.expansion) * r.hidden if r.family.expansion else None
        return (_dense(r, r.keys.size("width", times)),) * r.depth
    moe, sparse = _experts(r, columns), _SPARSE[columns["layers"]](r)
    if not any(sparse):
        raise SpecError(f"{r.keys.origin}: no layer has experts, although the config describes {moe.experts}")
    if all(sparse):
        r.keys.find("width")  # stated by many, used by none of the layers
        return (moe,) * r.depth
    dense = _dense(r, r.keys.size("width"))
    return tuple(moe if routed else dense for routed in sparse)


def _dense(r: Reading, width: int) -> DenseFFN:
    return DenseFFN(width, r.is_set(r.family.gated), r.is_set(r.family.mlp_bias), r.family.activation)


def _experts(r: Reading, columns: Parsed) -> MixtureOfExperts:
    count, top_k = r.keys.size("experts"), r.keys.size("top_k")
    if top_k > count:
        raise SpecError(f"{r.keys.origin}: a token visits {top_k} experts but there are only {count}")
    shared = [r.number(factor, least=0) for factor in columns.get("shared", (0,))]
    return MixtureOfExperts(
        experts=count,
        top_k=top_k,
        width=r.keys.size(columns.get("width", "expert_width")),
        gated=r.is_set(r.family.gated),
        bias=r.is_set(r.family.mlp_bias),
        shared_width=math.prod(shared),
        shared_gate=columns.get("gate", False),
        router_bias=r.is_set(columns.get("router", False)),
        latent=(latent := r.keys.maybe("latent")),
        latent_norm=latent is not None and r.is_set(columns.get("latent_norm", False)),
    )


def _step(r: Reading) -> list[bool]:
    """Qwen: every `decoder_sparse_step`-th layer but those in `mlp_only_layers`."""
    step, dense = r.keys.size("decoder_sparse_step", 1), r.places("mlp_only_layers")
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(r.depth)]


def _interleaved(r: Reading) -> list[bool]:
    """Llama-4: those in `moe_layers`, else every `interleave_moe_layer_step`-th."""
    step, listed = r.keys.size("interleave_moe_layer_step", 1), r.places("moe_layers")
    return [layer in listed if listed else (layer + 1) % step == 0 for layer in range(r.depth)]


def _after_dense(r: Reading) -> list[bool]:
    """DeepSeek, GLM: `first_k_dense_replace` dense layers, then experts in every `moe_layer_freq`-th layer."""
    first = r.keys.size("first_k_dense_replace", 0, least=0)
    types = r.keys.entries("mlp_layer_types", r.depth, ("dense", "sparse"))
    if isinstance(r.keys.config.get("moe_layer_freq"), list):
        return [bool(flag) for flag in r.keys.entries("moe_layer_freq", r.depth, (0, 1))]
    every = r.keys.size("moe_layer_freq", 1)
    return [kind == "sparse" for kind in types] or [n >= first and n % every == 0 for n in range(r.depth)]


def _period(r: Reading) -> list[bool]:
    """Jamba: layers `expert_layer_offset` modulo `expert_layer_period`."""
    period, offset = r.keys.size("expert_layer_period"), r.keys.size("expert_layer_offset", least=0)
    return [layer % period == offset for layer in range(r.depth)]


def _interval(r: Reading) -> list[bool]:
    """Ernie: every `moe_layer_interval`-th layer from a first to a last one."""
    first, every = r.keys.size("moe_layer_start_index", 0, least=0), r.keys.size("moe_layer_interval", 1)
    if types := r.keys.entries("mlp_layer_types", r.depth, ("dense", "sparse")):
        return [kind == "sparse" for kind in types]
    last = r.keys.maybe("moe_layer_end_index", least=-1)
    last = r.depth - 1 if last in (None, -1) else last
    return [(layer + 1) % every == 0 and first <= layer <= last for layer in range(r.depth)]


def _enumerated(r: Reading) -> list[bool]:
    """Step-3.5, Step-3.7: the layers that `moe_layers_enum` lists, in a string, else all but the first three."""
    keys, key = r.keys, "moe_layers_enum"
    if types := keys.entries("mlp_layer_types", r.depth, ("dense", "sparse")):
        return [kind == "sparse" for kind in types]
    first = keys.size("first_k_dense_replace", 3, least=0)
    if not keys.has(key):
        return [layer >= first for layer in range(r.depth)]
    stated = keys.config[key]
    listed = keys.word(key).split(",") if isinstance(stated, str) else keys.entries(key)
    if not all(str(each).strip().isdigit() for each in listed):
        keys.refuse(key, "is no list of layers")
    return [layer in {int(each) for each in listed} for layer in range(r.depth)]


_SPARSE: Mapping[str, Callable[[Reading], list[bool]]] = {
    "all": lambda r: [True] * r.depth,
    "step": _step,
    "interleaved": _interleaved,
    "after_dense": _after_dense,
    "period": _period,
    "interval": _interval,
    "enumerated": _enumerated,
}


def _nemotron(r: Reading) -> tuple[FeedForward | None, ...]:
    """Nemotron-H: a dense or routed block, or nothing, block by block."""
    ffns: dict[str, FeedForward] = {"mlp": _dense(r, r.keys.size("width"))}
    if "moe" in r.blocks:
        ffns["moe"] = _experts(r, {"shared": ["shared_experts=0", "shared_width=0"], "router": True})
    return tuple(ffns.get(block) for block in r.blocks)


def _hashed(r: Reading) -> tuple[FeedForward, ...]:
    """DeepSeek-V4: the first layers take their experts from a table of tokens, and so need no balance correction."""
    moe = _experts(r, r.family.experts)
    types = r.keys.entries("mlp_layer_types", r.depth, ("hash_moe", "moe"))
    first = r.keys.size("num_hash_layers", 3, least=0)
    hashed = [kind == "hash_moe" for kind in types] or [layer < first for layer in range(r.depth)]
    return tuple(replace(moe, router_bias=not each) for each in hashed)


def _nas(r: Reading) -> tuple[FeedForward | None, ...]:
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


def _lfm2(r: Reading) -> tuple[FeedForward, ...]:
    """LFM2 states a width of which two thirds, rounded up to a multiple, are there."""
    width = r.keys.size("width")
    if r.keys.flag("block_auto_adjust_ff_dim", True):
        factor, multiple = r.keys.config.get("block_ffn_dim_multiplier", 1.0), r.keys.size("block_multiple_of", 256)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1000:
            r.keys.refuse("block_ffn_dim_multiplier", "is not a positive number")
        r.keys.note("block_ffn_dim_multiplier", f"factor {factor} of the width")
        width = multiple * math.ceil(int(factor * int(2 * width / 3)) / multiple)
    return (_dense(r, width),) * r.depth


def _common(r: Reading) -> tuple[FeedForward | None, ...]:
    """Zamba2: beside the attention that layers share, with small matrices of each layer."""
    block = replace(_dense(r, r.keys.size("width", 4 * r.hidden)), adapters=r.keys.size("adapter_rank", 128))
    return tuple(block if kind == "attention" else None for kind in r.blocks)


def _shortcut(r: Reading) -> tuple[FeedForward, ...]:
    """LongCat: two dense blocks, then the experts beside them; a share of the picks is of experts that do nothing."""
    moe, idle = _experts(r, r.family.experts), r.keys.size("zero_expert_num", least=0)
    busy = max(round(moe.top_k * moe.experts / (moe.experts + idle)), 1)
    r.warnings.append(
        f"{moe.top_k} of {moe.experts + idle} experts are picked, of which {idle} do nothing: costed as {busy} that do"
    )
    dense = _dense(r, r.keys.size("width"))
    return (dense, dense, replace(moe, top_k=busy)) * (r.depth // 3)


def _gemma4(r: Reading) -> tuple[FeedForward, ...]:
    """Gemma-4: experts beside a dense block, or a dense one; twice as wide in layers that share keys, if so stated."""
    columns = {"layers": "all", "shared": ["width"], "router": True}
    block: FeedForward = _experts(r, columns) if r.is_set("enable_moe_block") else _dense(r, r.keys.size("width"))
    sharing = r.number(r.family.sharing, 0)
    wide = isinstance(block, DenseFFN) and r.is_set("use_double_wide_mlp")
    double = replace(block, width=2 * block.width) if isinstance(block, DenseFFN) and wide else block
    return (block,) * (r.depth - sharing) + (double,) * sharing


_BUILDERS: Mapping[str, Callable[[Reading], tuple[FeedForward | None, ...]]] = {
    "gemma4": _gemma4,
    "shortcut": _shortcut,
    "halved": lambda r: (_dense(r, r.keys.size("width") // 2),) * r.depth,  # Qwen-1 states gate and up together
    "nemotron": _nemotron,
    "nas": _nas,
    "lfm2": _lfm2,
    "hashed": _hashed,
    "common": _common,
    "paired": lambda r: (None, _dense(r, r.keys.size("width"))) * (r.depth // 2),
    "none": lambda r: (None,) * r.depth,
}

"""Mixers of the tokens of every layer: softmax and latent attention, recurrent layers, and the hybrids of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rooflinekit.model.types import model as nets
from rooflinekit.model.types.errors import ArchitectureError, SpecError
from rooflinekit.specs.config.family import Reading
from rooflinekit.specs.config.keys import Keys, is_off
from rooflinekit.specs.files import Parsed

_NORMED = {"head": 1, "full": 1, "head_biased": 2, "full_biased": 2}
_SLIDING = ("full_attention", "sliding_attention")


def mixers(r: Reading) -> tuple[nets.Mixer | None, ...]:
    """Mixer of each layer, None where nothing does; equal layers are one object."""
    if r.family.attends == "shortcut":
        return tuple(mixer if block == "attention" else None for mixer, block in zip(_latent(r), r.blocks, strict=True))
    built = r.by_layer(lambda layer: _BUILDERS[layer.value(layer.family.mixers)](layer))
    if not (sharing := r.number(r.family.sharing, 0)):
        return built
    own = r.depth - sharing
    shared: dict[nets.Mixer | None, nets.Mixer] = {
        mixer: replace(mixer, shared=True, k_norm=0) for mixer in built if isinstance(mixer, nets.Attention)
    }
    if own < 1 or not set(built[own:]) <= set(built[:own]):
        raise SpecError(
            f"{r.keys.origin}: the last {sharing} of {r.depth} layers share keys that no layer before them has"
        )
    return (*built[:own], *(shared.get(mixer, mixer) for mixer in built[own:]))


def _base_attention(r: Reading) -> nets.Attention:
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
    norm = r.value(family.qk_norm) or ""
    return nets.Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=keys.maybe("v_head_dim", least=0) or head_dim,
        qkv_bias=r.is_set(family.qkv_bias),
        o_bias=r.is_set(family.o_bias),
        q_norm=_NORMED.get(norm, 0) * head_dim * (heads if "full" in norm else 1),
        k_norm=_NORMED.get(norm, 0) * head_dim * (kv_heads if "full" in norm else 1),
        sinks=family.sinks,
        gated=r.is_set(family.attention_gate),
        head_gated=r.is_set(family.head_gate),
        rotary=r.is_set(family.rotary),
        unbiased_keys=family.unbiased_keys,
    )


def _softmax(r: Reading) -> tuple[nets.Mixer, ...]:
    """One attention a layer, windowed as the class says."""
    base, rule = _base_attention(r), r.family.window
    if not rule:
        return (base,) * r.depth
    layers = _chunked(r, base) if rule["layers"] == "chunked" else _windowed(r, base, rule)
    kinds = {layer: layer for layer in layers}
    return tuple(kinds[layer] for layer in layers)


def _windowed(r: Reading, base: nets.Attention, rule: Parsed) -> list[nets.Attention]:
    """The layers that slide: as `layer_types` says, else all, those from `max_window_layers` on, or all but each n-th.

    A window that reaches as far as the context is off.
    """
    keys, which, context = r.keys, rule["layers"], r.keys.maybe("context")
    types, pattern = keys.entries("layer_types", r.depth, _SLIDING), keys.find("pattern")
    types = types or [
        _SLIDING[kind == "local"] for kind in keys.entries("attention_layers", r.depth, ("global", "local"))
    ]
    stated = any(name in keys.config for name in keys.names["window"])
    if pattern and isinstance(pattern[1], str) and set(pattern[1]) <= {"L", "G"}:  # EXAONE-4: local, global
        types = types or [_SLIDING[pattern[1][n % len(pattern[1])] == "L"] for n in range(r.depth)]
    if isinstance(which, int):
        which = which if types and pattern else keys.size("pattern", which)
        if not stated and not rule.get("optional"):
            keys.size("window")  # absent, not null: refuse
    window = keys.maybe("window", least=0)
    if "default" in rule and not stated:
        window = rule["default"]
        r.warnings.append(f"sliding_window is absent: the class default of {window} tokens is taken")
    elif types and not window and "sliding_attention" in types and not isinstance(which, int):
        raise SpecError(f"{keys.origin}: layer_types has sliding_attention but sliding_window is missing")
    elif context is not None and window and window >= context:
        window = None
    slides = [kind == "sliding_attention" for kind in types]
    if which == "requested":  # Qwen
        wanted, first = keys.flag("use_sliding_window", False), keys.maybe("max_window_layers", least=0)
        if not types and wanted and window and first is None:
            raise SpecError(f"{keys.at('max_window_layers')} is missing, and use_sliding_window is true")
        slides = slides or [wanted and first is not None and layer >= first for layer in range(r.depth)]
    elif not types:
        slides = [which in ("all", "listed") or (layer + 1) % which != 0 for layer in range(r.depth)]
    elif which == "listed" and window and not types:
        raise SpecError(f"{keys.at('layer_types')} is missing, and sliding_window is {window}")
    local = replace(base, window=window or None)
    other = replace(base, rotary=base.rotary and (not window or rule.get("rotary", True)))
    return [local if slide else other for slide in slides]


def _chunked(r: Reading, base: nets.Attention) -> list[nets.Attention]:
    """Llama-4: rotary layers attend inside their chunk, every fourth layer has no positions and sees everything."""
    chunk = r.keys.maybe("attention_chunk_size")
    every = r.keys.size("no_rope_layer_interval", 4)
    rotary = r.keys.entries("no_rope_layers", r.depth, (0, 1)) or [int((i + 1) % every != 0) for i in range(r.depth)]
    types = r.keys.entries("layer_types", r.depth, ("full_attention", "chunked_attention"))
    local = [kind == "chunked_attention" for kind in types] if types else [bool(flag) for flag in rotary]
    return [
        replace(base, chunk=chunk if inside else None, rotary=base.rotary and bool(flag))
        for inside, flag in zip(local, rotary, strict=True)
    ]


def _latent(r: Reading) -> tuple[nets.Mixer, ...]:
    """Multi-head latent attention in every layer (DeepSeek); with an indexer when the config has `index_*` keys."""
    keys = r.keys
    heads = keys.size("heads")
    keys.maybe("kv_heads")  # stated, but the cache holds one latent whatever it says
    keys.maybe("head_dim", least=0)  # some say 64, some 192: the parts below are what counts
    keys.maybe("qk_head_dim")
    mixer = nets.LatentAttention(
        heads=heads,
        q_rank=keys.maybe("q_lora_rank"),
        kv_rank=keys.size("kv_lora_rank"),
        nope_dim=keys.size("qk_nope_head_dim"),
        rope_dim=keys.size("qk_rope_head_dim", least=0),
        v_dim=keys.size("v_head_dim"),
        gated=r.is_set(r.family.attention_gate),
        head_gated=r.is_set(r.family.head_gate),
        rotary=r.is_set(r.family.rotary) and keys.config.get("qk_rope_head_dim") != 0,
    )
    top_k = keys.maybe("index_topk")
    if top_k is None:
        return (mixer,) * r.depth
    if mixer.q_rank is None:
        raise SpecError(f"{keys.at('q_lora_rank')} is missing, and the indexer needs the latent query")
    indexer = _indexer(keys, top_k)
    own, shared = replace(mixer, indexer=indexer), replace(mixer, indexer=replace(indexer, shared=True))
    # which layers choose their own keys, and which share the choice of the layer before (GLM-5.2)
    types = keys.entries("indexer_types", r.depth, ("full", "shared"))
    if not types and keys.maybe("index_topk_freq") not in (None, 1):
        raise SpecError(f"{keys.at('indexer_types')} is missing, and index_topk_freq says that layers share indexers")
    if types and types[0] == "shared":
        raise SpecError(f"{keys.at('indexer_types')}[0] = 'shared', but no layer comes before the first")
    return tuple(shared if kind == "shared" else own for kind in types or ["full"] * r.depth)


def _indexer(keys: Keys, top_k: int) -> nets.Indexer:
    heads, dim, pool = keys.size("index_n_heads"), keys.size("index_head_dim"), keys.size("index_kpool", 1)
    return nets.Indexer(heads=heads, head_dim=dim, top_k=top_k, pool=pool)


def _compressed(r: Reading) -> tuple[nets.Mixer, ...]:
    """DeepSeek-V4: `compress_ratios` (4: picked by an indexer, 128, 0: a window alone), or `layer_types`, say which."""
    keys = r.keys
    keys.maybe("kv_heads")  # one key for all heads, whatever it says
    mixer = nets.CompressedAttention(
        heads=keys.size("heads"),
        head_dim=(head_dim := keys.size("head_dim")),
        q_rank=keys.size("q_lora_rank"),
        rope_dim=keys.size("qk_rope_head_dim", head_dim // 8 or 1),
        out_groups=keys.size("o_groups"),
        out_rank=keys.size("o_lora_rank"),
        window=keys.size("window"),
        ratio=0,
    )
    r.check_multiple(mixer.heads, "attention heads", mixer.out_groups, "groups of results")
    indexer = _indexer(keys, keys.size("index_topk"))
    rates = keys.child("compress_rates")
    known = {name: rates.size(name, ratio) if ratio else 0 for name, ratio in _RATIOS.items()}
    ratios = keys.entries("compress_ratios", None, tuple(known.values()))  # those of draft layers come last
    types = [] if ratios else keys.entries("layer_types", r.depth, tuple(known), required=True)
    ratios = ratios or [known[kind] for kind in types]
    if len(ratios) < r.depth:
        raise SpecError(f"{keys.at('compress_ratios')} has {len(ratios)} entries for {r.depth} layers")
    picked = known["compressed_sparse_attention"]
    kinds = {n: replace(mixer, ratio=n, indexer=indexer if n == picked else None) for n in known.values()}
    return tuple(kinds[ratio] for ratio in ratios[: r.depth])


_RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def _picked(r: Reading) -> tuple[nets.Mixer, ...]:
    """MiniMax-M3: in some layers an indexer picks blocks of keys for each query; its index heads give no values."""
    keys, base, section = r.keys, _base_attention(r), r.keys.child("sparse_attention_config")
    types = keys.entries("layer_types", r.depth, ("full_attention", "minimax_m3_sparse"))
    sparse = [kind != "full_attention" for kind in types]
    sparse = sparse or [bool(flag) for flag in section.entries("sparse_attention_freq", r.depth, (0, 1), required=True)]
    for key in ("sparse_init_block", "sparse_local_block"):  # among the picked ones whatever their scores
        section.maybe(key, least=0)
    section.word("sparse_score_type", "max", ("max",))
    if not section.flag("use_sparse_attention", True):
        sparse = [False] * r.depth
    section.entries("sparse_disable_index_value", r.depth, (0, 1))
    without = section.config.get("sparse_disable_index_value") or sparse
    if any(picks and not bare for picks, bare in zip(sparse, without, strict=True)):
        section.refuse("sparse_disable_index_value", "has index heads with values, which are not known")
    picked = keys.size("index_topk_blocks") * keys.size("index_block_size")
    indexer = replace(_indexer(keys, picked), wide=True, normed=True)
    return tuple(replace(base, indexer=indexer) if picks else base for picks in sparse)


def _hybrid(r: Reading) -> tuple[nets.Mixer | None, ...]:
    """Softmax attention in some layers, a recurrence in the others; by blocks where the config lists those."""
    recurrence = _RECURRENCES[r.family.recurrence](r)
    if isinstance(recurrence, nets.Rwkv7):  # others take a share of the first layer's values
        return (replace(recurrence, value_rank=0), *(recurrence,) * (r.depth - 1))
    if r.family.attends == "never":
        return (recurrence,) * r.depth
    if r.family.attends == "common":
        attention: nets.Mixer = _of_stream_and_embedding(r)
    else:
        attention = _latent(r)[0] if r.keys.has("kv_lora_rank") else _base_attention(r)
    if r.blocks:
        blocks: dict[str, nets.Mixer] = {"mamba": recurrence, "attention": attention}
        return tuple(blocks.get(block) for block in r.blocks)
    latent = isinstance(attention, nets.LatentAttention)
    kinds = _latent(r) if latent else _sliding_too(r, attention)
    return tuple(
        kind if attends else recurrence for kind, attends in zip(kinds, _ATTENDS[r.family.attends](r), strict=True)
    )


def _sliding_too(r: Reading, attention: nets.Mixer) -> tuple[nets.Mixer, ...]:
    """The attention of each layer, with a window where `layer_types` says so."""
    types = r.keys.config.get("layer_types")
    if not isinstance(types, list) or "sliding_attention" not in types or not isinstance(attention, nets.Attention):
        return (attention,) * r.depth
    local = replace(attention, window=r.keys.size("window"))
    return tuple(local if kind == "sliding_attention" else attention for kind in types)


def _of_stream_and_embedding(r: Reading) -> nets.Attention:
    """Zamba2: attention that layers share, over both side by side, with small matrices of each layer."""
    keys, base = r.keys, _base_attention(r)
    dim = keys.size("head_dim", 2 * r.hidden // base.heads)
    rank = keys.size("adapter_rank", 128) if r.is_set("use_shared_attention_adapter") else 0
    return replace(base, head_dim=dim, v_head_dim=dim, wide=True, adapters=rank)


def _by_type(r: Reading) -> list[bool]:
    """Read `layer_types`, else (Qwen3-Next) every `full_attention_interval`-th layer."""
    attends = ("full_attention", "attention", "sliding_attention", "indexed_attention", "deepseek_sparse_attention")
    known = (*attends, "linear_attention", "mamba", "conv")
    types = r.keys.entries("layer_types", r.depth, known)
    every = r.keys.size("full_attention_interval", 4 if not types else 1)
    return [kind in attends for kind in types] or [(layer + 1) % every == 0 for layer in range(r.depth)]


def _by_period(r: Reading) -> list[bool]:
    """Jamba: layers `attn_layer_offset` modulo `attn_layer_period`."""
    period, offset = r.keys.size("attn_layer_period", 8), r.keys.size("attn_layer_offset", 4, least=0)
    return [layer % period == offset for layer in range(r.depth)]


def _by_place(r: Reading) -> list[bool]:
    """Bamba, LFM2: the layers that are listed; or `layer_types`, beside which a list has to say the same."""
    listed = r.places("attn_layer_indices") | r.places("full_attn_idxs")
    found = [layer in listed for layer in range(r.depth)]
    types = _by_type(r) if r.keys.has("layer_types") else found
    if listed and types != found:
        raise SpecError(f"{r.keys.at('layer_types')} and the list of attention layers name other layers")
    return types


def _by_number(r: Reading) -> list[bool]:
    """Kimi-Linear: the layers that `linear_attn_config` numbers from one, else as `layer_types` says."""
    section = r.keys.child("linear_attn_config")
    if not section.config:
        return _by_type(r)
    numbers: dict[int, str] = {}
    for key in ("full_attn_layers", "kda_layers"):
        listed = section.entries(key, required=True)
        numbers |= {section.whole(f"{key}[{n}]", layer, 1, r.depth): key for n, layer in enumerate(listed)}
    if len(numbers) < r.depth:
        raise SpecError(f"{section.at('kda_layers')} and full_attn_layers name {len(numbers)} of {r.depth} layers")
    return [numbers[layer] == "full_attn_layers" for layer in range(1, r.depth + 1)]


_ATTENDS: Mapping[str, Callable[[Reading], list[Any]]] = {
    "types": _by_type,
    "period": _by_period,
    "places": _by_place,
    "numbers": _by_number,
    "listed": lambda r: (  # MiniMax: 1 for softmax
        _by_type(r) if r.keys.has("layer_types") else r.keys.entries("attn_type_list", r.depth, (0, 1), required=True)
    ),
}


def _delta(r: Reading) -> nets.GatedDeltaNet:
    keys = r.keys
    linear = nets.GatedDeltaNet(
        key_heads=keys.size("linear_num_key_heads"),
        value_heads=keys.size("linear_num_value_heads"),
        key_dim=keys.size("linear_key_head_dim"),
        value_dim=keys.size("linear_value_head_dim"),
        conv_width=keys.size("linear_conv_kernel_dim"),
    )
    r.check_multiple(linear.value_heads, "linear value heads", linear.key_heads, "key heads")
    return linear


def _kimi(r: Reading) -> nets.GatedDeltaNet:
    linear, decay = _delta(r), r.is_set(r.family.whole_decay)
    whole = r.keys.flag("linear_attn_config.use_full_rank_gate", False) or decay
    return replace(linear, decay_rank=linear.key_dim, gate_rank=0 if whole else linear.value_dim, whole_decay=decay)


def _rwkv7(r: Reading) -> nets.Rwkv7:
    keys, heads = r.keys, r.keys.maybe("heads")
    dim = keys.size("head_dim", r.hidden // heads if heads else 64)
    r.check_multiple(r.hidden, "hidden elements", dim, "elements of a head")
    if heads not in (None, r.hidden // dim):
        raise SpecError(f"{keys.origin}: {heads} heads of {dim} are no {r.hidden} hidden elements")
    keys.entries("value_dim", r.depth, (r.hidden,))
    ranks = (keys.size(f"{name}_low_rank_dim", default) for name, default in _RANKS.items())
    return nets.Rwkv7(r.hidden // dim, dim, *ranks)


_RANKS = {"decay": 64, "a": 64, "gate": 128, "v": 16}


def _lightning(r: Reading) -> nets.LightningAttention:
    attention = _base_attention(r)
    return nets.LightningAttention(attention.heads, attention.head_dim)


def _mamba(r: Reading) -> nets.Mamba:
    keys = r.keys
    rank = keys.find("dt_rank")
    if rank and rank[1] == "auto":
        keys.note(rank[0], "a sixteenth of the hidden size, rounded up")
    sixteenth = -(-r.hidden // 16)
    return nets.Mamba(
        inner=keys.maybe("ssm_inner") or keys.size("ssm_expand", 2) * r.hidden,
        state=keys.size("ssm_state", 16),
        conv_width=keys.size("ssm_conv", 4),
        dt_rank=sixteenth if rank and rank[1] == "auto" else keys.size("dt_rank", sixteenth),
        conv_bias=r.is_set(r.family.conv_bias),
        proj_bias=r.is_set(r.family.proj_bias),
        norm=r.is_set(r.family.state_norm),
    )


def _mamba2(r: Reading) -> nets.Mamba2:
    keys = r.keys
    heads, width, stated = keys.size("ssm_heads"), keys.find("ssm_head_dim"), keys.find("ssm_expand")
    inner = keys.maybe("mamba_d_ssm") or (keys.size("ssm_expand") if stated else 2) * r.hidden
    if automatic := width is not None and width[1] == "auto":
        r.check_multiple(inner, "channels", heads, "Mamba heads")
    mamba = nets.Mamba2(
        heads=heads,
        head_dim=inner // heads if automatic else keys.size("ssm_head_dim"),
        groups=keys.size("ssm_groups"),
        state=keys.size("ssm_state"),
        conv_width=keys.size("ssm_conv"),
        conv_bias=r.is_set(r.family.conv_bias),
        proj_bias=r.is_set(r.family.proj_bias),
        norm=r.is_set(r.family.state_norm),
    )
    r.check_multiple(mamba.heads, "Mamba heads", mamba.groups, "groups")
    return mamba


_RECURRENCES: Mapping[str, Callable[[Reading], nets.Mixer]] = {
    "delta": _delta,
    "kimi": _kimi,
    "rwkv7": _rwkv7,
    "lightning": _lightning,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "convolution": lambda r: nets.GatedConvolution(
        r.hidden, r.keys.size("conv_L_cache", 3), r.keys.flag("conv_bias", False)
    ),
}


def _gemma4(r: Reading) -> tuple[nets.Mixer, ...]:
    """Gemma-4: local layers slide; global ones have fewer, wider heads, and may project keys and values at once."""
    keys = r.keys
    types = keys.entries("layer_types", r.depth, _SLIDING)
    if not types:  # the class makes them so
        types = [_SLIDING[(layer + 1) % 6 != 0 and layer + 1 < r.depth] for layer in range(r.depth)]
        r.warnings.append(
            "layer_types is absent: every sixth layer and the last one see everything, as the class has it"
        )
    local = replace(_base_attention(r), window=keys.size("window"))
    merged = keys.flag("attention_k_eq_v", False)
    kv_heads = keys.maybe("num_global_key_value_heads")
    kv_heads = kv_heads if merged and kv_heads else local.kv_heads
    stated = {"global_head_dim", "per_layer_config"} & keys.config.keys()
    dim = keys.size("global_head_dim", local.head_dim if stated else 512)  # of the class
    r.check_multiple(local.heads, "attention heads", kv_heads, "global ones")
    wide = replace(
        local,
        window=None,
        kv_heads=kv_heads,
        head_dim=dim,
        v_head_dim=dim,
        q_norm=dim,
        k_norm=dim,
        keys_are_values=merged,
    )
    return tuple(local if kind == "sliding_attention" else wide for kind in types)


def _mimo(r: Reading) -> tuple[nets.Mixer, ...]:
    """MiMo-V2: `hybrid_layer_pattern` has 1 for sliding layers, whose sizes and sinks are stated apart (`swa_*`)."""
    keys = r.keys
    types = keys.entries("layer_types", r.depth, _SLIDING)  # as transformers writes it, which states no swa_*
    pattern = [int(kind == _SLIDING[1]) for kind in types]
    pattern = pattern or keys.entries("hybrid_layer_pattern", r.depth, (0, 1), required=True)
    full = replace(_base_attention(r), sinks=keys.flag("add_full_attention_sink_bias", False))
    heads = keys.size("swa_num_attention_heads", full.heads)
    kv_heads = keys.size("swa_num_key_value_heads", full.kv_heads * (2 if types else 1))
    r.check_multiple(heads, "sliding attention heads", kv_heads)
    sliding = replace(
        full,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=keys.size("swa_head_dim", full.head_dim),
        v_head_dim=keys.size("swa_v_head_dim", full.v_head_dim),
        window=keys.size("window"),
        sinks=keys.flag("add_swa_attention_sink_bias", bool(types)),
    )
    return tuple(sliding if kind else full for kind in pattern)


def _mllama(r: Reading) -> tuple[nets.Mixer, ...]:
    """Llama-3.2-Vision: some layers attend to images alone; a prompt without one passes them by."""
    own, across = _base_attention(r), r.places("cross_attention_layers")
    crossing = nets.CrossAttention(own.heads, own.kv_heads, own.head_dim, 0, normed=True)
    r.warnings.append(f"{len(across)} layers attend to images: prompts without one pass them by")
    return tuple(crossing if layer in across else own for layer in range(r.depth))


def _nas(r: Reading) -> tuple[nets.Mixer | None, ...]:
    """Nemotron-NAS: each block's `attention` says how many heads share a key, or that there is none."""
    attention = _base_attention(r)
    mixers: list[nets.Mixer | None] = []
    kinds: dict[int, nets.Mixer] = {}
    for block, value in nas_blocks(r, "attention", "n_heads_in_group"):
        if value is None:
            mixers.append(None)
            continue
        size = block.whole("n_heads_in_group", value)
        if attention.heads % size:
            raise SpecError(f"{block.at('n_heads_in_group')} = {size} does not divide {attention.heads} heads")
        mixers.append(kinds.setdefault(size, replace(attention, kv_heads=attention.heads // size)))
    return tuple(mixers)


def nas_blocks(r: Reading, part: str, key: str) -> Iterator[tuple[Keys, object]]:
    """One part of each block with the value that shapes it, None for a no-op; anything else that is on is refused."""
    for index, block in enumerate(r.keys.entries("block_configs", r.depth, required=True)):
        inner = block.get(part) if isinstance(block, Mapping) else None
        if not isinstance(inner, Mapping):
            raise SpecError(f"{r.keys.at(f'block_configs[{index}]')} has no {part}")
        keys = Keys(inner, r.keys.origin, {}, f"block_configs[{index}].{part}.")
        for name, value in inner.items():
            if name not in ("no_op", "n_heads_in_group", "ffn_mult") and not is_off(value):
                keys.refuse(name, "is not understood", kind=ArchitectureError)
        skipped = keys.flag("no_op", False)
        if not skipped and not keys.has(key):
            raise SpecError(f"{keys.at(key)} is missing")
        yield keys, None if skipped else inner[key]


def _by_heads(r: Reading) -> tuple[nets.Mixer, ...]:
    """Laguna: `num_attention_heads_per_layer` where layers have more heads or fewer, all of one width."""
    heads = r.keys.entries("num_attention_heads_per_layer", r.depth)
    built: list[nets.Mixer] = []
    for place, layer in enumerate(_softmax(r)):
        assert isinstance(layer, nets.Attention)
        own = r.keys.whole(f"num_attention_heads_per_layer[{place}]", heads[place]) if heads else layer.heads
        r.check_multiple(own, "attention heads", layer.kv_heads, "key-value heads")
        built.append(replace(layer, heads=own))
    return tuple(built)


def _crossing(r: Reading) -> tuple[nets.Mixer, ...]:
    """The decoder of an encoder-decoder: attention to itself, then to the encoder's positions, or to the prompt (0)."""
    own = _base_attention(r)
    across = nets.CrossAttention(
        own.heads, own.kv_heads, own.head_dim, r.keys.maybe("frames") or 0, own.qkv_bias, own.o_bias, own.unbiased_keys
    )
    return (own, across) * (r.depth // 2)


def read_encoder(r: Reading, layers: tuple[nets.Layer, ...]) -> nets.Encoder | None:
    """The encoder beside a decoder of such layers: as wide, with as many heads, unless its config says otherwise."""
    if r.family.attends != "encoder":
        return None
    keys, (own, crossing) = r.keys, layers[:2]
    assert isinstance(own.mixer, nets.Attention) and isinstance(crossing.ffn, nets.DenseFFN)
    heads, frames = keys.size("encoder_heads", own.mixer.heads), keys.maybe("frames") or 0
    dim = own.mixer.head_dim
    if heads != own.mixer.heads:
        r.check_multiple(r.hidden, "hidden elements", heads, "encoder heads")
        dim = r.hidden // heads
    attention = replace(own.mixer, heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, bidirectional=True)
    ffn = replace(crossing.ffn, width=keys.size("encoder_width", crossing.ffn.width))
    layer = replace(own, mixer=attention, ffn=ffn, norms=2)
    stem = ((3 * keys.size("bands"), 2 * frames), (3 * r.hidden, frames)) if frames else ()  # convolutions of width 3
    reads = f"{frames:,} positions of sound (30 s) that come with every prompt" if frames else "the prompt"
    begins = "prompt tokens are the decoder's" if frames else "the decoder begins from one token"
    r.warnings.append(f"the encoder reads {reads}; {begins}")
    return nets.Encoder((layer,) * keys.size("encoder_depth"), frames, stem, keys.maybe("buckets") or 0)


def _step(r: Reading) -> tuple[nets.Mixer, ...]:
    """Step-3's queries of low rank; Step-3.5, Step-3.7: sliding layers may have more heads, draft layers come last."""
    keys, full = r.keys, replace(_base_attention(r), q_rank=r.keys.maybe("q_rank") or 0)
    types = keys.entries("layer_types", None, _SLIDING) or ["full_attention"] * r.depth
    if len(types) < r.depth:
        raise SpecError(f"{keys.at('layer_types')} has {len(types)} entries for {r.depth} layers")
    other = keys.child("attention_other_setting")
    other.word("attention_type", "sliding_attention", ("sliding_attention",))
    for key, same in (("head_dim", full.head_dim), ("num_attention_groups", full.kv_heads)):
        if other.size(key, same) != same:
            other.refuse(key, "differs from that of the other layers", ArchitectureError)
    heads = keys.maybe("num_sliding_attention_heads") or other.size("num_attention_heads", full.heads)
    r.check_multiple(heads, "sliding attention heads", full.kv_heads)
    window = keys.size("window") if "sliding_attention" in types else None
    sliding = replace(full, heads=heads, window=window)
    return tuple(sliding if kind == "sliding_attention" else full for kind in types[: r.depth])


_BUILDERS: Mapping[str, Callable[[Reading], tuple[nets.Mixer | None, ...]]] = {
    "softmax": _softmax,
    "latent": _latent,
    "compressed": _compressed,
    "picked": _picked,
    "hybrid": _hybrid,
    "gemma4": _gemma4,
    "mimo": _mimo,
    "mllama": _mllama,
    "by_heads": _by_heads,
    "step": _step,
    "crossing": _crossing,
    "nas": _nas,
}

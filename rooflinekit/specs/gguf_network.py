"""The network that the tensors of a GGUF file are: sizes from their shapes, whatever its architecture is called.

What no shape says (heads, which layers slide, experts that a token visits) stands in the header's facts or, where
llama.cpp itself knows it by the architecture's name, in gguf_network.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Protocol

from rooflinekit.model.types import model as nets
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import ArchitectureError, SpecError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.specs.files import Parsed, table_of

_BLOCK = r"blk\.(\d+)\.(.+?)(?:\.(weight|bias))?$"
_LARGEST = 10**7  # no size of a network comes near
_table = partial(table_of, __file__)
"""Architectures of llama.cpp by name, and the parts of a layer."""


class Stored(Protocol):
    """A tensor of a file: its name, its sizes with the fastest first, and its format."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def dtype(self) -> Dtype: ...  # noqa: D102
    @property
    def bytes(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class _Facts:
    """The facts of a header under the name of its architecture; numbers may be one for each layer."""

    path: Path
    kind: str
    facts: Parsed

    def number(self, key: str, default: int | None = None, layer: int = 0) -> int:
        """A whole number, of one layer where it is a list."""
        value = self.facts.get(f"{self.kind}.{key}", default)
        if isinstance(value, list):
            value = value[layer] if layer < len(value) else None
        if value is None:
            raise SpecError(f"{self.path}: {self.kind}.{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**10:
            raise SpecError(f"{self.path}: {self.kind}.{key} {value!r} is no size")
        return value


class _Layer:
    """The tensors of one layer by their parts, whose names lose `weight`; experts of old files are joined."""

    def __init__(self, facts: _Facts, number: int) -> None:
        self.facts, self.number = facts, number
        self.weights: dict[str, tuple[int, ...]] = {}
        self.biases: set[str] = set()
        self.formats: dict[str, dict[Dtype, int]] = {}  # of a kind of module: bytes in each format

    def add(self, part: str, ending: str | None, tensor: Stored) -> None:
        """Take in a tensor."""
        if ending == "bias":
            self.biases.add(part)
            return
        shape = tensor.shape
        if split := re.fullmatch(r"(ffn_\w+)\.(\d+)", part):  # one tensor for each expert
            part = f"{split[1]}_exps"
            shape = (*shape[:2], int(split[2]) + 1)
        self.weights[part] = shape
        kinds = _table()["parts"]
        if part in kinds:
            held = self.formats.setdefault(kinds[part], {})
            held[tensor.dtype] = held.get(tensor.dtype, 0) + prod(tensor.shape)

    def has(self, *parts: str) -> bool:
        """True if the layer has any of these parts."""
        return any(part in self.weights for part in parts)

    def out(self, part: str) -> int:
        """Rows of a matrix: the width of what it gives; 0 where it is absent."""
        shape = self.weights.get(part, ())
        return shape[1] if len(shape) > 1 else 0

    def size(self, part: str) -> int:
        """Elements of a vector, 0 where it is absent."""
        return prod(self.weights[part]) if part in self.weights else 0

    def number_of(self, key: str, default: int | None = None) -> int:
        """A fact of this layer."""
        return self.facts.number(key, default, self.number)

    def positive(self, key: str, default: int | None = None) -> int:
        """A fact of this layer that cannot be 0."""
        value = self.number_of(key, default)
        if not 0 < value <= _LARGEST:
            raise SpecError(f"{self.facts.path}: {self.facts.kind}.{key} {value} of layer {self.number} cannot be")
        return value

    def refuse(self, what: str) -> ArchitectureError:
        """The error for a layer whose tensors do not go together."""
        return ArchitectureError(
            f"{self.facts.path}: layer {self.number} of architecture {self.facts.kind!r} {what}; give its config.json"
        )


def network(
    path: Path, name: str, facts: Parsed, tensors: Sequence[Stored]
) -> tuple[nets.Model, list[str], list[Stored]]:
    """The model, notes, and the tensors of layers that are not costed (multi-token prediction).

    Raises ArchitectureError for a network of another kind or whose layers are not understood, and SpecError for facts
    that contradict its tensors.
    """
    kind = str(facts.get("general.architecture"))
    if kind in _table()["refused"]:
        raise ArchitectureError(f"{path}: architecture {kind!r} is not read from GGUF: {_table()['refused'][kind]}")
    known = _Facts(path, kind, facts)
    whole = {tensor.name: tensor for tensor in tensors}
    table = whole.get("token_embd.weight")
    if table is None or len(table.shape) < 2:
        raise SpecError(f"{path}: has no table token_embd.weight: it is no whole model")
    hidden, blocks = known.number("embedding_length"), known.number("block_count")
    if table.shape[0] != hidden:
        raise SpecError(f"{path}: token_embd.weight is {table.shape[0]} wide, and {kind}.embedding_length {hidden}")
    depth = blocks - known.number("nextn_predict_layers", 0)
    if not 0 < depth <= blocks <= len(tensors):
        raise SpecError(f"{path}: {kind}.block_count {blocks} of {len(tensors)} tensors, {depth} to run, cannot be")
    found, beside = _layers(known, depth, blocks, tensors)
    notes = [] if kind in _table()["known"].split() else [f"architecture {kind!r} is not known: read by its tensors"]
    layers, formats = _network(found, hidden, notes)
    base = whole["output.weight"].dtype if "output.weight" in whole else table.dtype
    usual = replace(nets.WeightFormats.uniform(Dtype.FP32), embedding=table.dtype, lm_head=base)
    stored = [replace(usual, **each) for each in formats]
    common = max(stored, key=stored.count)
    norm: nets.Norm = "layernorm" if "output_norm.bias" in whole else "rmsnorm"
    tokens = whole.get("per_layer_token_embd.weight")
    model = nets.Model(
        name=name,
        hidden=hidden,
        vocab=table.shape[1],
        layers=tuple(layers),
        dtype=Dtype.FP16,
        formats=common,
        layer_formats=tuple(stored) if len(set(stored)) > 1 else (),
        max_context=known.number("context_length"),
        tied="output.weight" not in whole,
        position_rows=whole["position_embd.weight"].shape[-1] if "position_embd.weight" in whole else 0,
        token_rows=tokens.shape[-1] if tokens is not None else 0,
        embedding_norm="token_embd_norm.weight" in whole and "output_norm.weight" in whole,
        final_norm=norm if "output_norm.weight" in whole or "token_embd_norm.weight" in whole else "none",
        lm_head_bias="output.bias" in whole,
        mtp_layers=blocks - depth,
        origin=str(path),
        read_keys={key: str(value) for key, value in facts.items() if key.startswith(f"{kind}.")},
    )
    return model, notes, beside


def _layers(facts: _Facts, depth: int, blocks: int, tensors: Iterable[Stored]) -> tuple[list[_Layer], list[Stored]]:
    """The layers' tensors, and those of layers behind the last."""
    layers, beside = [_Layer(facts, number) for number in range(depth)], []
    for tensor in tensors:
        found = re.fullmatch(_BLOCK, tensor.name)
        if found is None:
            continue
        number = int(found[1])
        if number >= blocks:
            raise SpecError(f"{facts.path}: tensor {tensor.name!r} belongs to none of the {blocks} layers")
        if number >= depth:
            beside.append(tensor)
        else:
            layers[number].add(found[2], found[3], tensor)
    return layers, beside


def _network(found: Sequence[_Layer], hidden: int, notes: list[str]) -> tuple[list[nets.Layer], list[dict[str, Dtype]]]:
    """Layers and the formats of each; a state space beside attention is a layer before it."""
    slides = _sliding(found[0].facts, len(found), notes)
    layers, formats = [], []
    for own in found:
        state, mixer, ffn = _state(own, hidden), _attention(own, hidden, slides[own.number]), _feed_forward(own, hidden)
        if mixer is None and state is None and ffn is None:
            raise own.refuse("has no tensors that are understood")
        norms = [part for part, shape in own.weights.items() if "norm" in part and shape == (hidden,)]
        norms = [part for part in norms if part not in ("attn_q_norm", "attn_k_norm", "altup_router_norm")]
        norms = [part for part in norms if part not in ("laurel_post_norm", "post_norm")]
        norm: nets.Norm = "none" if not norms else "layernorm" if norms[0] in own.biases else "rmsnorm"
        both = state is not None and mixer is not None
        parallel = len(norms) == 1 and mixer is not None and ffn is not None
        if both:
            layers.append(nets.Layer(state, None, norm, norms=0))
            formats.append(_formats(own))
        layers.append(
            nets.Layer(
                mixer or state,
                ffn,
                norm,
                norms=len(norms),
                parallel=parallel,
                streams=own.size("altup_correct_coef") // max(own.number_of("altup.num_inputs", 1), 1) or 1,
                alternating=own.has("altup_router"),
                bypass=own.out("laurel_l"),
                token_width=own.out("inp_gate"),
            )
        )
        formats.append(_formats(own))
    kinds = {layer: layer for layer in layers}  # equal layers are one object
    return [kinds[layer] for layer in layers], formats


def _formats(own: _Layer) -> dict[str, Dtype]:
    """The format of each kind of module: that of most of its weights; parts count where theirs differ."""
    chosen = {kind: max(held, key=lambda dtype: held[dtype]) for kind, held in own.formats.items()}
    for part, of in (("attention_output", "attention"), ("value", "attention"), ("shared_down", "shared_experts")):
        if part in chosen and of not in chosen:
            chosen[of] = chosen[part]
    if {"ffn", "experts"} <= chosen.keys():  # a dense block beside experts counts as shared ones
        chosen.setdefault("shared_experts", chosen["ffn"])
    return chosen


def _sliding(facts: _Facts, depth: int, notes: list[str]) -> list[tuple[int | None, int | None]]:
    """The window and the chunk of each layer, from the header's own list or period, else llama.cpp's for the name."""
    window, row = facts.number("attention.sliding_window", 0), _table()["windows"].get(facts.kind, {})
    window = window or row.get("tokens", 0)
    said = facts.facts.get(f"{facts.kind}.attention.sliding_window_pattern", row.get("period"))
    if not window:
        return [(None, None)] * depth
    if isinstance(said, list):
        slides = [bool(said[layer % len(said)]) for layer in range(depth)] if said else [False] * depth
    elif isinstance(said, int) and not isinstance(said, bool) and said >= 0:
        first = int(row.get("full_first", False))  # the full layer of a period is its first, not its last
        slides = [said == 0 or (layer % said > 0 if first else layer % said < said - 1) for layer in range(depth)]
    else:
        if facts.kind not in _table()["unwindowed"].split():
            notes.append(f"which layers see a window of {window} tokens alone is not said: all see the whole context")
        return [(None, None)] * depth
    return [((None, window) if row.get("chunks") else (window, None)) if slide else (None, None) for slide in slides]


def _attention(own: _Layer, hidden: int, seen: tuple[int | None, int | None]) -> nets.Mixer | None:
    """Softmax attention, or latent; None for a layer without."""
    if own.has("attn_kv_a_mqa"):
        return _latent(own)
    delta = own.has("ssm_beta", "ssm_ba", "ssm_alpha", "ssm_f_a")
    if not own.has("attn_q", "attn_qkv") or delta:
        return None
    heads = own.positive("attention.head_count")
    kv_heads = own.positive("attention.head_count_kv", heads)
    if own.has("attn_qkv"):
        dim = own.number_of("attention.key_length", 0) or own.out("attn_qkv") // (heads + 2 * kv_heads)
        values, cached, gated = dim, True, False
        if own.out("attn_qkv") != dim * (heads + 2 * kv_heads):
            raise own.refuse(f"has attn_qkv of {own.out('attn_qkv')} rows for {heads} + 2 x {kv_heads} heads of {dim}")
    else:
        cached = own.has("attn_k")
        dim = own.out("attn_k") // kv_heads if cached else own.out("attn_q") // heads
        values = own.out("attn_v") // kv_heads if own.has("attn_v") else dim
        gated = own.out("attn_q") == 2 * heads * dim
        if own.out("attn_q") != heads * dim * (1 + gated):
            raise own.refuse(f"has attn_q of {own.out('attn_q')} rows for {heads} heads of {dim}")
    gate = own.out("attn_gate")
    if kv_heads > heads or heads % kv_heads or gate not in (0, heads, heads * values):
        raise own.refuse(f"has {heads} heads, {kv_heads} KV heads and a gate of {gate} rows")
    last = own.number_of("block_count") - own.number_of("attention.shared_kv_layers", 0)
    last = min(last, _table()["own_keys"].get(own.facts.kind, last))
    parts = ("attn_q", "attn_k", "attn_v", "attn_qkv")
    biased = {part for part in parts if part in own.biases}
    return nets.Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        v_head_dim=values,
        window=seen[0],
        chunk=seen[1],
        qkv_bias=bool(biased),
        unbiased_keys=biased == {"attn_q", "attn_v"},
        o_bias="attn_output" in own.biases,
        q_norm=own.size("attn_q_norm"),
        k_norm=own.size("attn_k_norm"),
        sinks=own.has("attn_sinks"),
        gated=gated or gate == heads * values,
        head_gated=gate == heads != heads * values,
        keys_are_values=cached and not own.has("attn_v", "attn_qkv"),
        shared=not cached or own.number >= last,
        rotary=seen != (None, None) or not _table()["windows"].get(own.facts.kind, {}).get("unrotated", False),
    )


def _latent(own: _Layer) -> nets.LatentAttention:
    """Multi-head latent attention, whose heads are as wide as they are before they are absorbed."""
    heads, rank, rope = (
        own.positive("attention.head_count"),
        own.positive("attention.kv_lora_rank"),
        own.positive("rope.dimension_count"),
    )
    keys, values = (
        own.positive(f"attention.{part}_length_mla", own.positive(f"attention.{part}_length"))
        for part in ("key", "value")
    )
    if keys <= rope or own.out("attn_kv_a_mqa") != rank + rope:
        raise own.refuse(f"has a latent of {own.out('attn_kv_a_mqa')}, not {rank} + {rope}, and keys of {keys}")
    indexer = None
    if own.has("indexer.attn_k"):
        heads_of, dim, most = (own.positive(f"attention.indexer.{p}") for p in ("head_count", "key_length", "top_k"))
        indexer = nets.Indexer(heads_of, dim, most)
    q_rank = own.out("attn_q_a") or None
    return nets.LatentAttention(heads, q_rank, rank, keys - rope, rope, values, indexer)


def _state(own: _Layer, hidden: int) -> nets.Mixer | None:
    """A recurrence: a state space, a delta rule or a short convolution; None for a layer without."""
    if own.has("shortconv.conv"):
        return nets.GatedConvolution(own.out("shortconv.in_proj") // 3, own.positive("shortconv.l_cache"))
    if own.has("ssm_f_a"):
        dim, heads = own.positive("kda.head_dim"), own.positive("attention.head_count")
        ranks = own.out("ssm_f_a"), own.out("ssm_g_a")
        return nets.GatedDeltaNet(heads, heads, dim, dim, own.positive("ssm.conv_kernel"), *ranks)
    if not own.has("ssm_out"):
        return None
    inner, state, taps = (own.positive(f"ssm.{part}") for part in ("inner_size", "state_size", "conv_kernel"))
    rank, bias = own.positive("ssm.time_step_rank"), "ssm_conv1d" in own.biases
    if own.has("ssm_beta", "ssm_ba", "ssm_alpha"):
        return nets.GatedDeltaNet(own.positive("ssm.group_count"), rank, state, inner // rank, taps)
    if own.has("ssm_x"):
        return nets.Mamba(inner, state, taps, rank, bias, norm=own.has("ssm_dt_norm"))
    groups = own.positive("ssm.group_count", 1)
    return nets.Mamba2(rank, inner // rank, groups, state, taps, bias, norm=own.has("ssm_norm"))


def _feed_forward(own: _Layer, hidden: int) -> nets.FeedForward | None:
    """A mixture of experts, a dense block, or none; a dense block beside experts counts as shared ones."""
    dense = own.weights["ffn_down"][0] if own.has("ffn_down") else 0
    if not own.has("ffn_down_exps"):
        gated = own.has("ffn_gate") or own.out("ffn_up") == 2 * dense
        bias = bool({"ffn_down", "ffn_up"} & own.biases)
        return nets.DenseFFN(dense, gated, bias) if dense else None
    down = own.weights["ffn_down_exps"]
    if len(down) != 3:
        raise own.refuse("has experts without a third dimension")
    shared = (own.weights["ffn_down_shexp"][0] if own.has("ffn_down_shexp") else 0) + dense
    latent = own.out("ffn_latent_down") or (down[1] if down[1] != hidden else None)
    experts, used = down[2], own.positive("expert_used_count")
    if used > experts:
        raise own.refuse(f"uses {used} of {experts} experts")
    return nets.MixtureOfExperts(
        experts,
        used,
        down[0],
        gated=own.has("ffn_gate_exps", "ffn_gate_up_exps"),
        bias=bool({"ffn_down_exps", "ffn_up_exps"} & own.biases),
        shared_width=shared,
        shared_gate=own.has("ffn_gate_inp_shexp"),
        router_bias="ffn_gate_inp" in own.biases or "exp_probs_b" in own.biases or own.has("exp_probs_b"),
        latent=latent,
    )


def unread_parts(tensors: Iterable[Stored]) -> Iterator[str]:
    """The parts of layers that no kind of layer here has."""
    parts = {found[2] for tensor in tensors if (found := re.fullmatch(_BLOCK, tensor.name))}
    known = set(_table()["parts"]) | set(_table()["small"].split())
    for part in sorted(parts):
        if re.sub(r"\.\d+$", "_exps", part) not in known and "norm" not in part:
            yield part

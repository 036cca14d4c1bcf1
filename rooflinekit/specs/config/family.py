"""Model classes: a row of classes.yaml; and one config while it is being read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from rooflinekit.model.types.errors import ArchitectureError, SpecError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.model import Norm
from rooflinekit.specs.config.keys import Keys
from rooflinekit.specs.files import Parsed, parse_yaml

T = TypeVar("T")

BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Nemotron-H's letters for its blocks, and its words."""

_PATTERN = "hybrid_override_pattern"


@dataclass(frozen=True)
class Family:
    """A model class: how its layers are built, and what its config leaves unsaid. classes.yaml explains the columns."""

    mixers: object = "softmax"
    recurrence: str = ""
    attends: str = ""
    conv_bias: object = "mamba_conv_bias=true"
    proj_bias: object = "mamba_proj_bias"
    state_norm: object = True
    whole_decay: object = False
    ffns: str = ""
    streams: object = 1
    alternating: bool = False
    bypass: object = 0
    token_width: object = 0
    token_rows: object = 0
    sharing: object = 0
    sources: str = ""
    expansion: object = 0
    experts: Any = None
    window: Mapping[str, object] = field(default_factory=dict)
    norm: object = "rmsnorm"
    norms: object = 2
    final_norm: object = "norm"
    parallel: object = False
    gated: object = True
    tied: object = "tie_word_embeddings"
    qkv_bias: object = False
    o_bias: object = False
    mlp_bias: object = False
    activation: int = 0
    qk_norm: object = ""
    kv_heads: object = "kv_heads=heads"
    positions: object = None
    unbiased_keys: bool = False
    rotary: object = True
    attention_gate: object = False
    head_gate: object = False
    lm_head_bias: object = False
    embedding: object = "hidden"
    embedding_norm: bool = False
    sinks: bool = False
    vectors: Mapping[str, list[object]] = field(default_factory=dict)
    once: list[object] = field(default_factory=list)
    extra_rows: object = 0
    mean_streams: bool = False
    unmixed: bool = False
    first: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)
    nested: Mapping[str, int] = field(default_factory=dict)
    needs: Mapping[str, list[object]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


@cache
def _table() -> str:
    return Path(__file__).with_name("classes.yaml").read_text(encoding="utf-8")


@cache
def class_names() -> list[str]:
    """Every `model_type` that is understood, sorted."""
    return sorted(re.findall(r"(?m)^(\w[\w-]*):", _table()))


@cache
def family_of(model_type: str) -> Family | None:
    """The class of a `model_type`, None for one that is not understood. Only its own row is parsed."""
    row = _row(model_type) if re.fullmatch(r"\w[\w-]*", model_type) else None
    return None if row is None else Family(**row)


@cache
def class_defaults(model_type: str) -> Parsed:
    """Values that a class takes for keys that are absent, besides those of its row."""
    text = Path(__file__).with_name("class_defaults.yaml").read_text(encoding="utf-8")
    found = re.search(rf"(?m)^{re.escape(model_type)}: .*$", text)
    values: Parsed = parse_yaml(found[0])[model_type] if found else {}
    return values


def _row(name: str) -> dict[str, Any] | None:
    found = re.search(rf"(?m)^{re.escape(name)}:.*(?:\n .*)*", _table())
    if found is None:
        return None
    row: dict[str, Any] = parse_yaml(found[0])[name]
    if "attention_bias" in row:
        row = {"qkv_bias": row["attention_bias"], "o_bias": row.pop("attention_bias")} | row
    base = _row(row.pop("like")) or {} if "like" in row else {}
    base.pop("nested", None)  # of a class itself, not of those like it
    return base | row


class Reading:
    """One config while it is being read: its keys, its class, and warnings so far."""

    def __init__(self, keys: Keys, family: Family, warnings: list[str]) -> None:
        self.keys, self.family, self.warnings = keys, family, warnings
        self.hidden = keys.size("hidden")
        self.blocks: Sequence[str] = self._blocks() if family.attends == "blocks" else ()
        if family.attends == "both":  # side by side in a layer: here one after the other, the second with the block
            self.blocks = ("mamba", "attention") * (depth := keys.size("depth"))
            warnings.append(f"{depth} layers, each a state space beside attention, are listed as {2 * depth}")
        if family.attends == "common":  # a block that layers share stands before the state space of some
            parts = {"mamba": ("mamba",), "linear_attention": ("mamba",), "hybrid": ("attention", "mamba")}
            types = keys.entries("layers_block_type", keys.size("depth"), tuple(parts), required=True)
            self.blocks = tuple(part for kind in types for part in parts[kind])
            warnings.append(
                f"{types.count('hybrid')} layers, listed as two each, take turns with "
                f"{keys.size('num_mem_blocks', 1)} of attention, whose weights count once"
            )
        if family.attends == "encoder":  # self-attention, then attention to the encoder with the block
            if keys.config.get("is_encoder_decoder") is False:
                keys.refuse(
                    "is_encoder_decoder",
                    "leaves the decoder alone, which is not costed; true costs both",
                    ArchitectureError,
                )
            pairs = keys.maybe("depth") or keys.maybe("encoder_depth")
            if pairs is None:  # the keys of an encoder or a decoder alone
                called = keys.read.get("model_type") or keys.read.get("architectures")
                lacks = " or ".join(keys.names["encoder_depth"])
                raise SpecError(f"{keys.origin}: {called} is an encoder-decoder, and {lacks} is missing")
            self.blocks = ("attention", "cross_attention") * pairs
            warnings.append(
                f"{pairs} decoder layers, each with attention to itself and to the encoder, are listed as {2 * pairs}"
            )
        if family.attends == "shortcut":
            self.blocks = ("attention", "attention", "moe") * (depth := keys.size("depth"))
            warnings.append(f"{depth} layers, each of two with attention and one of experts, are listed as {3 * depth}")
        self.depth = len(self.blocks) or keys.size("depth")
        listed = {"both": 2, "encoder": 2, "shortcut": 3}
        self.stated_depth = self.depth // listed.get(family.attends, 1)
        self.norm: Norm = self.value(family.norm)

    def _blocks(self) -> Sequence[str]:
        """Nemotron-H's list of blocks, from its pattern string or from its list of words."""
        keys, depth = self.keys, self.keys.maybe("depth")
        known = {word: word for word in BLOCKS.values()} | {"linear_attention": "mamba", "full_attention": "attention"}
        words = [known[word] for word in keys.entries("layers_block_type", None, tuple(known))]
        pattern = keys.word(_PATTERN)
        if not words and not pattern:
            raise SpecError(f"{keys.at(_PATTERN)} (or layers_block_type) is missing")
        if unknown := sorted(set(pattern) - set(BLOCKS)):
            raise SpecError(f"{keys.at(_PATTERN)} holds {unknown[0]!r}; known: {' '.join(BLOCKS)}")
        blocks = words or [BLOCKS[letter] for letter in pattern]
        if depth not in (None, len(blocks)):
            raise SpecError(f"{keys.at('num_hidden_layers')} = {depth} but the pattern has {len(blocks)} blocks")
        keys.whole(_PATTERN, len(blocks), 1, 10_000)
        return blocks

    def value(self, stated: Any) -> Any:
        """Value of a column of the class: itself, or what the config chooses; sizes not chosen count as read."""
        if not isinstance(stated, Mapping) or len(stated) != 1:
            return stated
        ((key, choices),) = stated.items()
        if isinstance(choices, list):
            values = [self.value(choice) for choice in choices]
            for other in values:
                if isinstance(other, str) and other.partition("=")[0] in self.keys.names:
                    self.keys.maybe(other.partition("=")[0])
            return values[not self.is_set(key)]
        if not isinstance(choices, Mapping):
            return stated
        return self.value(choices[self.keys.word(key, next(iter(choices)), tuple(choices))])

    def is_set(self, stated: object) -> bool:
        """A yes or no: itself, what the config chooses, or a key of the config with what its absence means."""
        stated = self.value(stated)
        if isinstance(stated, bool):
            return stated
        inverted = str(stated).startswith("not ")
        key, _, default = str(stated).removeprefix("not ").partition("=")
        return self.keys.flag(key, default == "true") != inverted

    def number(self, stated: Any, least: int = 1) -> int:
        """A number: itself, what the config chooses, or a size of the config with what stands in for it."""
        stated = self.value(stated)
        if isinstance(stated, int):
            return stated
        concept, _, default = stated.partition("=")
        instead = int(default) if default.isdigit() else self.keys.size(default) if default else None
        return self.keys.size(concept, instead, least)

    def sum_of(self, products: Sequence[object]) -> int:
        """Sum of products of sizes, each a number or `size*size`."""
        factors = (
            [part if part.isdigit() else self.number(part) for part in str(each).split("*")] for each in products
        )
        return sum(math.prod(map(int, each)) for each in factors)

    @cached_property
    def variants(self) -> list[tuple[list[int], Reading]]:
        """The layers that `per_layer_config` makes differ, and the config as each kind of them sees it."""
        keys, places = self.keys, dict[str, list[int]]()
        stated = keys.child("per_layer_config").config
        for place, other in stated.items():
            if not isinstance(other, Mapping) or not place.isdigit() or int(place) >= self.depth:
                raise SpecError(f"{keys.at('per_layer_config')}.{place} is no layer with keys of its own")
            places.setdefault(repr(dict(other)), []).append(int(place))
            keys.note(f"per_layer_config.{place}", ", ".join(other))
        kinds = []
        for listed in places.values():
            prefix = next(key for key in stated if int(key) == listed[0])
            config = {**keys.config, **stated[prefix], "per_layer_config": None}
            kinds.append((listed, Reading(Keys(config, keys.origin, keys.names), self.family, [])))
        return kinds

    def by_layer(self, build: Callable[[Reading], tuple[T, ...]]) -> tuple[T, ...]:
        """Results of `build` for each layer, built once for layers of equal keys."""
        built = list(build(self))
        for places, other in self.variants:
            own = build(other)
            for place in places:
                built[place] = own[place]
        return tuple(built)

    def places(self, key: str) -> set[int]:
        """The layers that a key lists; none if it is absent."""
        listed = enumerate(self.keys.entries(key))
        return {self.keys.whole(f"{key}[{n}]", layer, 0, self.depth - 1) for n, layer in listed}

    def check_multiple(self, many: int, what: str, few: int, of: str = "") -> None:
        """Refuse heads that do not divide evenly."""
        if many % few:
            raise SpecError(f"{self.keys.origin}: {many} {what} are no multiple of {few} {of}".rstrip())

"""`quantization_config` and `hf_quant_config.json`: the number format of each kind of module.

Hugging Face's fp8, awq, gptq, mxfp4, bitsandbytes and compressed-tensors, and NVIDIA's modelopt. A scheme lists modules
by patterns, which are applied to the modules that a model has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DtypeError, SpecError, nearest_of
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.model import (
    CompressedAttention,
    DenseFFN,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    WeightFormats,
)
from rooflinekit.specs.config.family import Reading
from rooflinekit.specs.config.keys import Keys, shown
from rooflinekit.specs.files import table_of

_GROUPS = {None: Dtype.INT4, 128: Dtype.INT4, 64: Dtype.INT4_G64, 32: Dtype.INT4_G32}
_CACHES = (Dtype.FP8, Dtype.INT8, Dtype.INT4, Dtype.NVFP4)
_EXPERTS = ("fp8", "fp4")

_DECODER = r"^(?:model\.|language_model\.|backbone\.|transformer\.|decoder\.)*(?:h\.|layers\.|(?=lm_head))"
_NUMBERED = r"^(\d+)\.?([^*]*)\*?$"
_LONGEST, _REPEATS = 300, 6  # characters and repetitions of a pattern, so that none can take for ever
_NESTED = r"[*+}][^()]*\)[*+{]"
_UP_DOWN = ("gate_proj", "up_proj", "down_proj")


_table = partial(table_of, __file__)
"""How checkpoints name their formats and layers."""


@cache
def _spellings(block: str) -> list[tuple[str, ...]]:
    """The linear layers of a block, each with the names that it may go by inside its layer."""
    return [tuple(names.split()) for names in _table()["modules"][block]]


class Patterns:
    """Module names as quantisers list them: whole names, parts of names, `*` wildcards, `re:` expressions.

    >>> skipped = Patterns(["lm_head", "model.layers.3.self_attn", "re:.*shared_expert.*"], "config.json")
    >>> skipped.hit("lm_head"), skipped.hit("self_attn.q_proj", 3), skipped.hit("self_attn.q_proj", 4)
    (True, True, False)
    """

    def __init__(self, listed: Iterable[str], origin: str) -> None:
        self.parts: set[str] = set()
        self.by_layer: dict[int, list[str]] = {}
        expressions: list[str] = []
        for pattern in listed:
            inside = re.sub(_DECODER, "", pattern)
            numbered = re.match(_NUMBERED, inside) if inside != pattern else None
            if pattern.startswith("re:"):
                expressions.append(pattern[3:])
            elif numbered:
                self.by_layer.setdefault(int(numbered[1]), []).append(numbered[2].rstrip("."))
            elif "*" in inside:
                expressions.append(r".*?" + ".*".join(re.escape(part) for part in inside.split("*")))
            else:
                self.parts.add(inside.rstrip("."))
        for one in expressions:
            if len(one) > _LONGEST or len(re.findall(r"[*+{]", one)) > _REPEATS or re.search(_NESTED, one):
                raise SpecError(
                    f"{origin}: quantisation pattern {shown(one)} has more than {_LONGEST} characters, more than "
                    f"{_REPEATS} repetitions, or one inside another"
                )
        try:
            self.expression = re.compile("|".join(f"(?:{one})" for one in expressions)) if expressions else None
        except (re.error, OverflowError, RecursionError) as error:
            raise SpecError(f"{origin}: quantisation pattern is no regular expression: {error}") from None
        self._general: dict[str, bool] = {}

    def hit(self, module: str, layer: int = 0) -> bool:
        """Whether a module (named from inside its layer) is listed."""
        if module not in self._general:
            parts = module.split(".")
            spans = (parts[i:j] for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))
            full = module if module == "lm_head" else f"model.layers.0.{module}"
            matched = self.expression is not None and self.expression.match(full) is not None
            self._general[module] = matched or any(".".join(span) in self.parts for span in spans)
        return self._general[module] or any(module.startswith(name) for name in self.by_layer.get(layer, ()))


@dataclass(frozen=True)
class _Scheme:
    """How a checkpoint is quantised: groups of modules with their format, less the skipped ones."""

    groups: Sequence[tuple[Patterns | None, Dtype]]  #: None: every linear layer
    skipped: Patterns
    lm_head: bool = False  #: whether the head belongs to the linear layers
    experts_only: bool = False
    weight_only: bool = False  #: activations are not quantised: kernels dequantise the weights

    def format_of(self, spellings: Sequence[str], layer: int = 0) -> Dtype | None:
        """The format of a module, by any of its names; None if it is left as it was."""
        if any(self.skipped.hit(name, layer) for name in spellings):
            return None
        for targets, dtype in self.groups:
            if targets is None or any(targets.hit(name, layer) for name in spellings):
                return dtype
        return None


@dataclass(frozen=True)
class Formats:
    """What a checkpoint says about number formats."""

    weights: WeightFormats
    kv: Dtype | None = None  #: the cache format that it asks for
    weight_only: bool = False  #: its quantised weights are dequantised before they are multiplied


def read_formats(r: Reading, dtype: Dtype, layers: Sequence[Layer], quant_config: Mapping[str, Any] | None) -> Formats:
    """The weight format of each kind of module, what they compute in, and the cache format.

    Raises DtypeError for a method or format that is not known, SpecError for a value that cannot be.
    """
    keys, narrow = _quantization_keys(r.keys, quant_config), r.keys.word("expert_dtype", "fp8", _EXPERTS)
    if keys is None:
        return Formats(WeightFormats.uniform(dtype))
    method = keys.word("quant_method", "modelopt" if keys.has("quant_algo") else "")
    if method not in _METHODS:
        problem = f"= {shown(method or None)} is not known; nearest: {nearest_of(method, sorted(_METHODS))}"
        raise DtypeError(f"{keys.at('quant_method')} {problem}")
    scheme = _METHODS[method](keys, r.warnings)
    if scheme is None:
        return Formats(WeightFormats.uniform(dtype), _cache_format(keys))
    formats = _weight_formats(scheme, layers, dtype, r)
    if formats is None:
        raise SpecError(
            f"{keys.at('quant_method')} = {method} quantises no module of this model: its lists name none, or leave "
            "all out. Mend them, or remove the section to cost the original checkpoint"
        )
    if keys.word("expert_dtype", narrow, _EXPERTS) == "fp4":
        formats = replace(formats, experts=Dtype.MXFP4)  # DeepSeek-V4: one power of two for each 32 weights
    return Formats(formats, _cache_format(keys), scheme.weight_only)


def _quantization_keys(keys: Keys, quant_config: Mapping[str, Any] | None) -> Keys | None:
    """The config's own section, else the companion file's."""
    if keys.has("quantization_config"):
        return keys.child("quantization_config")
    if quant_config is None:
        return None
    companion = Keys(quant_config, f"{keys.origin} (hf_quant_config.json)", {})
    section = companion.child("quantization")
    keys.note("hf_quant_config.json", "weight formats")
    return section if section.config else None


def _skipped(keys: Keys) -> Patterns:
    listed: list[str] = []
    for name in _table()["skipped"].split():
        for entry in keys.entries(name):
            if not isinstance(entry, str):
                raise SpecError(f"{keys.at(name)} holds {shown(entry)}, not a module name")
            listed.append(entry)
    return Patterns(listed, keys.origin)


def _cache_format(keys: Keys) -> Dtype | None:
    """The format of the KV cache: `kv_cache_scheme` (bits and type) or `kv_cache_quant_algo` (a name)."""
    scheme_key, algo_key = "kv_cache_scheme", "kv_cache_quant_algo"
    if isinstance(keys.config.get(scheme_key), str):  # modelopt writes a name there too
        algo_key = scheme_key
    elif keys.has(scheme_key):
        scheme = keys.child(scheme_key)
        stated = _number_format(scheme, [])
        if stated not in _CACHES and stated.unit not in _CACHES:
            raise DtypeError(
                f"{scheme.at('num_bits')}: {stated} is no cache format; known: {', '.join(map(str, _CACHES))}"
            )
        return stated.unit
    algo = keys.word(algo_key)
    if not algo:
        return None
    known = {"FP8": Dtype.FP8, "NVFP4": Dtype.NVFP4, "INT8": Dtype.INT8}
    if algo not in known:
        raise DtypeError(f"{keys.at(algo_key)} = {shown(algo)} is not known; known: {', '.join(known)}")
    return known[algo]


def _fp8(keys: Keys, warnings: list[str]) -> _Scheme:
    block = keys.entries("weight_block_size")
    if block:
        _check_block(keys, "weight_block_size", block, warnings)
    dtype = Dtype.FP8_BLOCK if block else Dtype.FP8
    return _Scheme([(None, dtype)], _skipped(keys))


def _check_block(keys: Keys, name: str, block: Sequence[object], warnings: list[str]) -> None:
    sizes = [keys.whole(f"{name}[{n}]", size) for n, size in enumerate(block)]
    if sizes != [128, 128]:
        warnings.append(f"block scales of {' x '.join(map(str, sizes))} are costed as one per 128 x 128")


def _integer(keys: Keys, warnings: list[str]) -> _Scheme:
    """AWQ and GPTQ quantise weights only, to 4 or 8 bits; the head stays wide unless `lm_head` says otherwise."""
    bits = keys.size("bits")
    dtype = {4: Dtype.INT4, 8: Dtype.INT8}.get(bits)
    if dtype is None:
        raise DtypeError(f"{keys.at('bits')} = {bits} is not known; known: 4, 8")
    dtype = _grouped(dtype, keys.maybe("group_size", least=-1), warnings)
    return _Scheme([(None, dtype)], _skipped(keys), lm_head=keys.flag("lm_head", False), weight_only=True)


def _grouped(dtype: Dtype, group: int | None, warnings: list[str]) -> Dtype:
    """INT4 by the size of its groups; a size that is not costed exactly is told."""
    if dtype is not Dtype.INT4 or group in _GROUPS:
        return _GROUPS[group] if dtype is Dtype.INT4 else dtype
    warnings.append(f"int4 scales are one per {'channel' if group == -1 else group}; costed as one per 128 weights")
    return dtype


def _bitsandbytes(keys: Keys, warnings: list[str]) -> _Scheme:
    four, eight = keys.flag("load_in_4bit", False), keys.flag("load_in_8bit", False)
    if four == eight:
        raise DtypeError(f"{keys.at('load_in_4bit')} or load_in_8bit must be true, and not both")
    if four:
        warnings.append("bitsandbytes 4-bit is costed as int4 with one scale per 128 weights")
    else:
        warnings.append(
            "bitsandbytes 8-bit mixes int8 and 16-bit products: costed as int8 weights in 16-bit arithmetic"
        )
    return _Scheme([(None, Dtype.INT4 if four else Dtype.INT8)], _skipped(keys), weight_only=True)


def _compressed_tensors(keys: Keys, warnings: list[str]) -> _Scheme | None:
    """One or more groups, each with its target modules and bits; a group that names modules comes before all linear."""
    sparsity, packing = keys.child("sparsity_config").word("sparsity_structure", "0:0"), keys.word("format")
    if sparsity not in ("", "0:0", "unstructured") or packing == "marlin-24":
        kind = "2:4" if packing == "marlin-24" else sparsity
        raise DtypeError(f"{keys.origin}: weights that are {kind} sparse ({packing}) are not costed")
    groups: list[tuple[Patterns | None, Dtype]] = []
    wide: dict[bool, list[Dtype]] = {True: [], False: []}  # by whether the activations stay as they are
    section = keys.child("config_groups")
    for name in section.config:
        group = section.child(name)
        dtype = _number_format(group.child("weights"), warnings) if group.has("weights") else None
        if dtype is not None:
            listed = group.entries("targets") or ["Linear"]
            modules = [str(target) for target in listed if "." in str(target) or str(target).startswith("re:")]
            groups.append((Patterns(modules, group.origin) if len(modules) == len(listed) else None, dtype))
            wide[not group.has("input_activations")].append(dtype)
            if dtype.weight_only and group.has("input_activations"):
                warnings.append(f"{dtype} weights with quantised activations are costed in 16-bit arithmetic")
    groups.sort(key=lambda group: group[0] is None)
    weight_only = bool(wide[True]) and not wide[False]
    if not weight_only:
        _warn_of_mixture([dtype for dtype in wide[True] if not dtype.weight_only], warnings)
    return _Scheme(groups, _skipped(keys), lm_head=True, weight_only=weight_only) if groups else None


def _warn_of_mixture(dequantised: Iterable[Dtype], warnings: list[str]) -> None:
    if told := ", ".join(map(str, dict.fromkeys(dequantised))):
        warnings.append(
            f"the checkpoint quantises the activations of some groups only. Those in {told} without quantised "
            "activations are costed as computing in that format"
        )


def _number_format(keys: Keys, warnings: list[str]) -> Dtype:
    """Bits, type and granularity as compressed-tensors writes them.

    Raises DtypeError for a combination that is not known.
    """
    bits, kind = keys.size("num_bits"), keys.word("type", "int", ("int", "float"))
    strategy, group = keys.word("strategy"), keys.maybe("group_size", least=-1)
    if (kind, bits) == ("float", 8) and strategy == "block":
        _check_block(keys, "block_structure", keys.entries("block_structure"), warnings)
        return Dtype.FP8_BLOCK
    if (kind, bits) == ("float", 4) and group in (16, 32):
        return Dtype.NVFP4 if group == 16 else Dtype.MXFP4
    known = {("float", 8): Dtype.FP8, ("int", 8): Dtype.INT8, ("int", 4): Dtype.INT4}
    if (kind, bits) not in known:
        raise DtypeError(f"{keys.at('num_bits')} = {bits} of type {kind} (group {group}) is not known")
    return _grouped(known[kind, bits], group, warnings)


def _modelopt(keys: Keys, warnings: list[str]) -> _Scheme | None:
    """NVIDIA's exporter: one algorithm, with a list of modules that it left alone."""
    algo = keys.word("quant_algo")
    if not algo or algo == "NO_QUANT":
        return None
    if algo == "MIXED_PRECISION":
        return _module_by_module(keys, warnings)
    known, wide = _table()["modelopt"], _table()["modelopt_wide"]
    if algo not in known:
        raise DtypeError(f"{keys.at('quant_algo')} = {shown(algo)} is not known; known: {', '.join(known)}")
    return _Scheme([(None, Dtype(known[algo]))], _skipped(keys), lm_head=True, weight_only=algo in wide)


def _module_by_module(keys: Keys, warnings: list[str]) -> _Scheme:
    by_algo: dict[str, list[str]] = {}
    section, known, wide = keys.child("quantized_layers"), _table()["modelopt"], _table()["modelopt_wide"]
    for module in section.config:
        by_algo.setdefault(section.child(module).word("quant_algo", "", tuple(known)), []).append(module)
    by_algo.pop("", None)
    groups = [(Patterns(modules, keys.origin), Dtype(known[algo])) for algo, modules in by_algo.items()]
    weight_only = bool(by_algo) and all(algo in wide for algo in by_algo)
    if not weight_only:
        _warn_of_mixture((Dtype(known[algo]) for algo in by_algo if algo in wide), warnings)
    return _Scheme(groups, _skipped(keys), lm_head=True, weight_only=weight_only)


def _weight_formats(scheme: _Scheme, layers: Sequence[Layer], wide: Dtype, r: Reading) -> WeightFormats | None:
    """The format of each kind of module, None if none is quantised; a kind whose layers differ takes that of most."""
    votes: dict[str, Counter[Dtype]] = {}
    for number, layer in enumerate(layers):
        for kind, spellings in _modules(layer, r.family.modules):
            untouched = scheme.experts_only and kind != "experts"
            dtype = None if untouched else scheme.format_of(spellings, number // (len(layers) // r.stated_depth))
            votes.setdefault(kind, Counter())[dtype or wide] += 1
    chosen = {kind: counter.most_common(1)[0][0] for kind, counter in votes.items()}
    for kind, counter in votes.items():
        if len(counter) > 1:
            told = ", ".join(f"{count} {dtype}" for dtype, count in counter.most_common())
            r.warnings.append(
                f"the checkpoint mixes formats in {kind} ({told} modules): all are taken as {chosen[kind]}"
            )
    head = scheme.format_of(("lm_head",)) if scheme.lm_head else None
    if head is None and all(counter.keys() <= {wide} for counter in votes.values()):
        return None
    heaviest = "experts" if "experts" in votes else "ffn"
    if chosen.get(heaviest) is wide:
        r.warnings.append(f"the checkpoint leaves its {heaviest}, most of its weights, in {wide}")
    formats = replace(WeightFormats.uniform(wide), lm_head=head or wide)
    output = chosen.pop("attention_output", wide)
    formats = replace(formats, **chosen)
    return replace(formats, attention_output=output) if output != formats.attention else formats


def _modules(layer: Layer, own: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The linear layers of a block: the kind of each, and the names it may go by; `own`: where the class keeps some."""
    mixer, ffn = layer.mixer, layer.ffn
    if mixer is not None:
        latent = isinstance(mixer, LatentAttention | CompressedAttention)
        softmax = latent or mixer.kind in ("mha", "gqa", "mqa", "cross_attention", "lightning", "kda")
        names = _spellings("latent" if latent else "softmax" if softmax else "state")
        yield from (("attention", spellings) for spellings in names)
        yield "attention_output", _spellings("softmax_out" if softmax else "state_out")[0]
    kinds = ["ffn"] if isinstance(ffn, DenseFFN) else []
    if isinstance(ffn, MixtureOfExperts):
        kinds = ["experts", "shared_experts"] if ffn.shared_width else ["experts"]
    for kind in kinds:
        parts = [(f"{own[kind]}.{part}",) for part in _UP_DOWN] if kind in own else _spellings(kind)
        yield from ((kind, spellings) for spellings in (parts if ffn is not None and ffn.gated else parts[1:]))


_METHODS: dict[str, Callable[[Keys, list[str]], _Scheme | None]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "awq": _integer,
    "gptq": _integer,
    "mxfp4": lambda keys, warnings: _Scheme([(None, Dtype.MXFP4)], _skipped(keys), experts_only=True),  # gpt-oss
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
}

"""`quantization_config` and `hf_quant_config.json`: the number format of each kind of module.

A method that is bits and groups is a row of quantization.yaml; others (compressed-tensors, NVIDIA's modelopt, AMD's
Quark, torchao) say theirs section by section. Modules are listed by patterns, applied to those that a model has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import prod

from rooflinekit.model.types import model as nets
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DtypeError, SpecError, nearest_of
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.specs.config.family import Reading
from rooflinekit.specs.config.keys import Keys, is_off, named, shown
from rooflinekit.specs.files import Parsed, table_of

_NAMED: dict[tuple[float, float, float], Dtype] = {
    (8, 0, 0): Dtype.INT8,
    (4, 128, 16): Dtype.INT4,
    (4, 64, 16): Dtype.INT4_G64,
    (4, 32, 16): Dtype.INT4_G32,
}
"""Formats by their bits, weights of a group and bits of its scales."""
_WIDE = 16  # bits of weights that are left as they were
_SECTIONS = ("quantization_config", "compression_config", "quantization")
_CACHES = (Dtype.FP8, Dtype.INT8, Dtype.INT4, Dtype.NVFP4)
_EXPERTS = ("fp8", "fp4")

_DECODER = r"^(?:model\.|language_model\.|backbone\.|transformer\.|decoder\.)*(?:h\.|layers\.|(?=lm_head))"
_NUMBERED = r"^(\d+)\.?([^*]*)\*?$"
_BODIES = ("model.", "model.language_model.", "language_model.model.")  # before `layers` in the names of modules
_LONGEST, _REPEATS = 300, 6  # characters and repetitions of a pattern, so that none can take for ever
_NESTED = r"[*+}][^()]*\)[*+{]"
_VALUE = 2  # place of the value projection among those of softmax attention
_SMALL = 4096  # weights that share a scale, whose bytes count below it
_LARGEST = 10**7
_NEARLY_ALL = 0.75  # of the weights of a kind: their format stands for all
_BY_MODULE = ("module_fqn_to_config", "fqn_to_config")  # torchao's lists of recipes
_EMBEDDINGS = ("model.embed_tokens", "language_model.model.embed_tokens")
_UP_DOWN = ("gate_proj", "up_proj", "down_proj")


_table = partial(table_of, __file__)
"""Names of formats and layers in checkpoints."""


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
        """True if a module (named from inside its layer) is listed."""
        if module not in self._general:
            parts = module.split(".")
            spans = (parts[i:j] for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))
            self._general[module] = any(".".join(span) in self.parts for span in spans)
        listed = self._general[module] or any(module.startswith(name) for name in self.by_layer.get(layer, ()))
        return listed or (self.expression is not None and self._matches(module, layer, self.expression))

    @staticmethod
    def _matches(module: str, layer: int, expression: re.Pattern[str]) -> bool:
        whole = (module,) if module == "lm_head" else (f"{body}layers.{layer}.{module}" for body in _BODIES)
        return any(expression.match(name) for name in whole)


@dataclass(frozen=True)
class _Stored:
    """Format of stored modules, and the format of what they are multiplied with."""

    dtype: Dtype | None = None  #: None: left as they were
    inputs: Dtype | None = None  #: None: not quantised, so that kernels dequantise the weights


@dataclass(frozen=True)
class _Scheme:
    """Quantisation of a checkpoint: groups of modules, of which the first that names one holds, less the skipped."""

    groups: Sequence[tuple[Patterns | None, _Stored]]  #: None: every linear layer
    skipped: Patterns
    lm_head: bool = False  #: whether the head belongs to the linear layers
    experts_only: bool = False
    head: Dtype | None = None  #: of the head, where it has a format of its own
    embedding: Dtype | None = None

    def format_of(self, spellings: Sequence[str], layer: int = 0) -> Dtype | None:
        """The format of a module, by any of its names; None if it is left as it was."""
        if any(self.skipped.hit(name, layer) for name in spellings):
            return None
        for targets, stored in self.groups:
            if targets is None or any(targets.hit(name, layer) for name in spellings):
                return stored.dtype
        return None

    def head_format(self) -> Dtype | None:
        """The format of the LM head, None if it is left as it was: many methods quantise it only where they say so."""
        if self.head is not None or self.skipped.hit("lm_head"):
            return self.head
        groups = [s for targets, s in self.groups if (self.lm_head if targets is None else targets.hit("lm_head"))]
        return groups[0].dtype if groups else None

    def inputs(self, wide: Dtype, warnings: list[str]) -> tuple[tuple[Dtype, Dtype], ...]:
        """Formats in which stored formats are multiplied, other than their own."""
        found: dict[Dtype, Dtype] = {}
        for dtype, asked in dict.fromkeys((stored.dtype, stored.inputs) for _, stored in self.groups):
            if dtype is None:
                continue
            own = asked is not None and asked.unit is dtype.unit and not dtype.weight_only
            inputs = dtype if own else asked or wide
            if found.setdefault(dtype, inputs) is not inputs:
                warnings.append(f"{dtype} weights are multiplied in {found[dtype]} and {inputs}: the former is costed")
        usual = {dtype: wide if dtype.weight_only else dtype for dtype in found}
        return tuple((dtype, inputs) for dtype, inputs in found.items() if inputs is not usual[dtype])


@dataclass(frozen=True)
class Formats:
    """Number formats of a checkpoint."""

    weights: nets.WeightFormats
    kv: Dtype | None = None  #: the cache format that it asks for
    layers: tuple[nets.WeightFormats, ...] = ()  #: of each layer, where they differ
    inputs: tuple[tuple[Dtype, Dtype], ...] = ()  #: of stored formats, in what else than their own they are multiplied
    unpriced: str = ""  #: why they are not costed; `weights` are then those of the original checkpoint


def read_formats(
    r: Reading, dtype: Dtype, layers: Sequence[nets.Layer], quant_config: Mapping[str, object] | None
) -> Formats:
    """The weight format of each kind of module, what they compute in, and the cache format.

    A method or format that is not known is told in `unpriced`: a deployment may say its weights itself.
    Raises SpecError for a value that cannot be.
    """
    plain, narrow = Formats(nets.WeightFormats.uniform(dtype)), r.keys.word("expert_dtype", "fp8", _EXPERTS)
    keys = _quantization_keys(r.keys, quant_config)
    if keys is None:
        return plain
    cache = _cache_format(keys)
    try:
        return replace(_read(keys, r, plain, layers, narrow), kv=cache)
    except DtypeError as error:
        unpriced = f"{error}; it takes --weights FORMAT, or bits with their scales (--weights 4.25bpw)"
        r.warnings.append(unpriced)
        return replace(plain, kv=cache, unpriced=unpriced)


def _read(keys: Keys, r: Reading, plain: Formats, layers: Sequence[nets.Layer], narrow: str) -> Formats:
    table, wide = _table(), plain.weights.attention
    stated = keys.word(
        "quant_method", "modelopt" if keys.has("quant_algo") else "mlx" if keys.has("group_size") else ""
    )
    method = table["same"].get(stated, stated)
    if method in table["refused"]:
        raise DtypeError(f"{keys.at('quant_method')} = {stated} is not costed: {table['refused'][method]}")
    if method not in _METHODS and method not in table["integers"]:
        near = nearest_of(stated, sorted({*_METHODS, *table["same"], *table["integers"]}))
        raise DtypeError(f"{keys.at('quant_method')} = {shown(stated or None)} is not known; nearest: {near}")
    row = table["integers"].get(method)
    if row is not None and "wide" in row:
        key, _, value = row["wide"].partition("=")
        if shown(keys.config.get(key)).strip("'") == value:
            r.warnings.append(f"{keys.at(key)} = {value}: weights are stored as they were")
            keys.read.update(dict.fromkeys(keys.unread(), "weights are stored as they were"))
            return plain
    scheme = _METHODS[method](keys, r.warnings) if row is None else _integers(keys, row)
    _check_unread(keys, r.warnings)
    if scheme is None:
        return plain
    formats = _weight_formats(scheme, layers, wide, r)
    if not formats:
        raise SpecError(
            f"{keys.at('quant_method')} = {stated} quantises no module of this model: its lists name none, or leave "
            "all out. Mend them, or remove the section to cost the original checkpoint"
        )
    if keys.word("expert_dtype", narrow, _EXPERTS) == "fp4":  # DeepSeek-V4: one power of two for each 32 weights
        formats = [replace(each, experts=Dtype.MXFP4, down=None) for each in formats]
    common = Counter(formats).most_common(1)[0][0]
    by_layer = tuple(formats) if len(set(formats)) > 1 else ()
    return Formats(common, None, by_layer, scheme.inputs(wide, r.warnings))


def _quantization_keys(keys: Keys, quant_config: Mapping[str, object] | None) -> Keys | None:
    """The config's own section, else the companion file's."""
    if found := next((section for section in _SECTIONS if keys.has(section)), None):
        for section in _SECTIONS:  # MLX writes the same twice
            if keys.has(section):
                keys.note(section, "weight formats")
        return keys.child(found)
    if quant_config is None:
        return None
    companion = Keys(quant_config, f"{keys.origin} (hf_quant_config.json)", {})
    section_of = companion.child("quantization")
    keys.note("hf_quant_config.json", "weight formats")
    return section_of if section_of.config else None


def _check_unread(keys: Keys, warnings: list[str]) -> None:
    """Refuse keys that nothing has read and that may change bytes; note the others that say something."""
    plain, structural = set(_table()["plain"].split()), re.compile(_table()["structural"])
    unread = {key: value for key, value in keys.unread().items() if not is_off(value)}
    left = {key: value for key, value in unread.items() if key.rpartition(".")[2] not in plain}
    strange = [
        key for key, value in left.items() if isinstance(value, dict) or structural.search(key.rpartition(".")[2])
    ]
    if strange:
        told = ", ".join(f"{named(key[-60:])} = {shown(left[key])}" for key in strange[:4])
        raise DtypeError(f"{keys.origin}: keys that are not understood: {told}")
    keys.read.update(dict.fromkeys(unread, "changes no cost"))
    if left:
        told = ", ".join(f"{named(key[-60:])} = {shown(value)}" for key, value in list(left.items())[:6])
        warnings.append(f"keys of the quantisation that are not known are taken to change no cost: {told}")


def _skipped(keys: Keys) -> Patterns:
    listed: list[str] = []
    for name in _table()["skipped"].split():
        for entry in keys.entries(name):
            if not isinstance(entry, str):
                raise SpecError(f"{keys.at(name)} holds {shown(entry)}, not a module name")
            listed.append(entry.removesuffix(".weight"))
    return Patterns(listed, keys.origin)


def _cache_format(keys: Keys) -> Dtype | None:
    """The format of the KV cache: `kv_cache_scheme` (bits and type), `kv_cache_quant_algo` (a name), or Quark's."""
    scheme_key, algo_key = "kv_cache_scheme", "kv_cache_quant_algo"
    if isinstance(keys.config.get(scheme_key), str):  # modelopt writes a name there too
        algo_key = scheme_key
    elif keys.has(scheme_key):
        scheme = keys.child(scheme_key)
        stated = _number_format(scheme)
        cache = Dtype.INT4 if stated.unit is Dtype.INT4 else stated.unit
        if cache not in _CACHES:
            raise DtypeError(
                f"{scheme.at('num_bits')}: {stated} is no cache format; known: {', '.join(map(str, _CACHES))}"
            )
        return cache
    for section in (keys.child("kv_cache_quant_config"), keys.child("layer_quant_config")):
        for name in section.config:  # Quark: what the projections of keys and values give
            given = section.child(name).child("output_tensors")
            if re.search(r"[kv]_proj|kv", name) and given.has("dtype"):
                return _quark(given).inputs
    algo = keys.word(algo_key)
    if not algo:
        return None
    known = {"FP8": Dtype.FP8, "NVFP4": Dtype.NVFP4, "INT8": Dtype.INT8}
    if algo not in known:
        raise DtypeError(f"{keys.at(algo_key)} = {shown(algo)} is not known; known: {', '.join(known)}")
    return known[algo]


def _packed(bits: float, group: float | None = None, scales: float = 16.0) -> Dtype:
    """Bits a weight and those of the scales of each group; none: of a whole channel, which are not counted.

    >>> _packed(4, 128), _packed(4, 128, 16 + 4), _packed(8)
    (<Dtype.INT4: 'int4'>, <Dtype.4.15625bpw: '4.15625bpw'>, <Dtype.INT8: 'int8'>)
    """
    group, scales = (group, scales) if group and group > 0 else (0, 0.0)
    usual, whole = _NAMED.get((float(bits), float(group), float(scales))), bits + (scales / group if group else 0.0)
    if not 0.5 <= whole <= 4 * _WIDE:
        raise DtypeError(f"{whole:.4g} bits a weight cannot be")
    return usual or Dtype.of_bits(whole)


def _stored(kind: str, bits: float, group: float | None = None, scales: float = 16.0) -> _Stored | None:
    """Weights of so many bits as whole (int), floating (fp), MX or NVIDIA's numbers (mx, nv), and what multiplies them.

    None where nothing is known of such numbers.

    >>> _stored("fp", 4, 32), _stored("int", 8), _stored("int", 3)
    (_Stored(dtype=<Dtype.MXFP4: 'mxfp4'>, inputs=<Dtype.MXFP4: 'mxfp4'>), _Stored(dtype=<Dtype.INT8: 'int8'>, \
inputs=<Dtype.INT8: 'int8'>), _Stored(dtype=<Dtype.3bpw: '3bpw'>, inputs=None))
    """
    if bits >= _WIDE:
        return _Stored()
    if kind == "int":
        return _Stored(_packed(bits, group, scales), Dtype.INT8 if bits == 8 else None)
    blocks = {"mx": 32, "nv": 16}.get(kind, group)
    match bits, blocks:
        case 8, 32:  # MX: one 8-bit scale for 32 weights (OCP MX v1.0)
            return _Stored(Dtype.of_bits(8 + 8 / 32), Dtype.FP8)
        case 8, None | -1 | 0:
            return _Stored(Dtype.FP8, Dtype.FP8)
        case 8, int() | float():
            return _Stored(Dtype.of_bits(8 + 32 / blocks), Dtype.FP8)
        case 6, 32:
            return _Stored(Dtype.of_bits(6 + 8 / 32))  # vLLM multiplies OCP MX of 6 bits in 16
        case 4, 16 | 32:
            return _Stored(*[Dtype.NVFP4 if blocks == 16 else Dtype.MXFP4] * 2)
    return None


def _said(keys: Keys, said: float | str | None) -> float | None:
    """A number as a row says it: itself, `KEY|OTHER NAME`, or `KEY=what stands in for it`; `int4` counts as 4 bits."""
    if not isinstance(said, str):
        return said
    names, _, instead = said.partition("=")
    key = next((name for name in names.split("|") if keys.has(name)), names)
    if not keys.has(key):
        return float(instead) if instead else None
    value = keys.config[key]
    if isinstance(value, str) and (found := re.fullmatch(r"[a-z]+(\d{1,2})", value)):
        value = int(found[1])
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= _LARGEST:
        keys.refuse(key, "is no number of bits or weights")
    keys.note(key, str(value))
    return float(value)


def _by_row(keys: Keys, row: Parsed) -> _Stored:
    """Format of stored weights, and of their products, by a row of quantization.yaml."""
    own = row.get("inputs") == "own"
    inputs = Dtype(row["inputs"]) if "inputs" in row and not own else None
    if "dtype" in row:
        return _Stored(Dtype(row["dtype"]), inputs)
    bits, group = _said(keys, row["bits"]), _said(keys, row.get("group"))
    if bits is None or bits <= 0:
        where = keys.at(re.split(r"[=|]", str(row["bits"]))[0])
        raise DtypeError(f"{where} is missing" if bits is None else f"{where} = {bits:g} is no number of bits")
    zero = bits if row.get("zero") == "bits" else row.get("zero", 0)
    kind = row.get("numbers") or _kind(keys.word(row["kind"]) if "kind" in row else "")
    group = group if kind in ("int", "fp") and bits < row.get("below", _WIDE) else None
    stored = _stored(kind, bits, group, row.get("scale", 16) + zero)
    if stored is None:
        raise DtypeError(f"{keys.at(row.get('kind', 'bits'))}: {bits:g} bits of such numbers are not known")
    if own:
        return stored
    acts = _said(keys, row.get("act_bits")) or _WIDE
    if acts < _WIDE and (given := _stored(_kind(keys.word("act_data_type")), acts)):
        inputs = given.inputs
    return replace(stored, inputs=inputs)


def _kind(said: str) -> str:
    """Kind of a data type: whole, floating, or those of OCP MX and NVIDIA."""
    return next((kind for kind in ("mx", "nv", "fp") if said.replace("float", "fp").startswith(kind)), "int")


def _integers(keys: Keys, row: Parsed) -> _Scheme:
    """A method that is bits and groups; modules of their own may have others, or be left as they were."""
    inner, (outer, _, last) = keys, row.get("under", "").partition(" ")
    for name in filter(None, (outer, last)):
        inner = inner.child(name)
    if outer and not inner.config:  # HQQ: the modules that are quantised, one by one
        named_ones = {name: keys.child(outer).child(name).child(last) for name in keys.child(outer).config}
        return _Scheme(
            [(Patterns([name], keys.origin), _by_row(one, row)) for name, one in named_ones.items()], _skipped(keys)
        )
    narrowed = [name for name in row.get("narrowed", "").split() if keys.child("quant_config").has(name)]
    row = {**row, "scale": 16 - 8 * len(narrowed)}
    usual, head, whole = _by_row(inner, row), _said(keys, row.get("head_bits")), bool(row.get("whole"))
    own = keys.child(row["parts"]) if "parts" in row else keys
    groups: list[tuple[Patterns | None, _Stored]] = []
    for name, value in own.config.items() if whole or "parts" in row else ():
        if own is keys and not (isinstance(value, Mapping) or value is False):
            continue
        left = name.startswith("-:") or value is False
        stored = _Stored() if left else _by_row(_over(inner, own.child(name)), row)
        own.note(name, "formats of its own")
        pattern = re.sub(r"^[-+]:", "", name).replace("switch_mlp", "experts.0")  # MLX's name of all experts
        expression = row.get("parts") == "dynamic" or re.search(r"[\\*^$|(\[]", pattern)
        groups.append((Patterns([f"re:{pattern}" if expression else pattern], keys.origin), stored))
    blocks = keys.entries("modules_in_block_to_quantize")
    only = [str(name) for block in blocks for name in (block if isinstance(block, list) else [block])]
    scheme = _Scheme(
        [*groups, (Patterns(only, keys.origin) if only else None, usual)],
        _skipped(keys),
        lm_head=whole or any(keys.flag(name, False) for name in ("lm_head", "quant_lm_head")),
        head=None if head is None or head >= _WIDE else _packed(head),
        experts_only=bool(row.get("experts_only")),
    )
    return replace(scheme, embedding=scheme.format_of(_EMBEDDINGS)) if whole else scheme


def _over(keys: Keys, one: Keys) -> Keys:
    """The keys of some modules over those of all."""
    merged = Keys({**keys.config, **one.config}, keys.origin, {}, one.prefix)
    merged.read = keys.read
    return merged


def _fp8(keys: Keys, warnings: list[str]) -> _Scheme:
    block = keys.entries("weight_block_size")
    dtype = _block(keys, "weight_block_size", block, warnings) if block else Dtype.FP8
    return _Scheme([(None, _Stored(dtype, Dtype.FP8))], _skipped(keys))


def _block(keys: Keys, name: str, block: Sequence[object], warnings: list[str]) -> Dtype:
    """FP8 with a scale for each block of rows and columns; small ones count in its bits."""
    sizes = [keys.whole(f"{name}[{n}]", size) for n, size in enumerate(block)]
    weights = prod(sizes)
    if weights < _SMALL:
        return Dtype.of_bits(8 + (8 if "ue8m0" in keys.word("scale_fmt") else 32) / weights)
    if sizes != [128, 128]:
        warnings.append(f"block scales of {' x '.join(map(str, sizes))} are costed as one per 128 x 128")
    return Dtype.FP8_BLOCK


def _bitsandbytes(keys: Keys, warnings: list[str]) -> _Scheme:
    four, eight = keys.flag("load_in_4bit", False), keys.flag("load_in_8bit", False)
    if four == eight:
        raise SpecError(f"{keys.at('load_in_4bit')} or load_in_8bit must be true, and not both")
    if eight:
        warnings.append(
            "bitsandbytes 8-bit mixes int8 and 16-bit products: costed as int8 weights in 16-bit arithmetic"
        )
        return _Scheme([(None, _Stored(Dtype.INT8))], _skipped(keys))
    # One fp32 scale for 64 weights, or an 8-bit one and one fp32 for 256 of those (arXiv:2305.14314, section 3).
    scales = 8 + 32 / 256 if keys.flag("bnb_4bit_use_double_quant", False) else 32.0
    return _Scheme([(None, _Stored(_packed(4, 64, scales)))], _skipped(keys))


def _compressed_tensors(keys: Keys, warnings: list[str]) -> _Scheme | None:
    """One or more groups, each with its target modules and bits; a group that names modules comes before all linear."""
    sparsity, packing = keys.child("sparsity_config").word("sparsity_structure", "0:0"), keys.word("format")
    keys.read.update(
        dict.fromkeys((f"{keys.prefix}sparsity_config.{key}" for key in keys.child("sparsity_config").config), "")
    )
    if sparsity not in ("", "0:0", "unstructured") or packing == "marlin-24":
        kind = "2:4" if packing == "marlin-24" else sparsity
        raise DtypeError(f"{keys.origin}: weights that are {kind} sparse ({packing}) are not costed")
    groups: list[tuple[Patterns | None, _Stored]] = []
    section = keys.child("config_groups")
    for name in section.config:
        group = section.child(name)
        weights, given = group.child("weights"), group.child("input_activations")
        listed = group.entries("targets") or ["Linear"]
        if not weights.config:
            continue
        inputs = _inputs(given) if given.config else None
        modules = [str(target) for target in listed if "." in str(target) or str(target).startswith("re:")]
        named_ones = Patterns(modules, group.origin) if len(modules) == len(listed) else None
        groups.append((named_ones, _Stored(_number_format(weights, warnings), inputs)))
    groups.sort(key=lambda group: group[0] is None)
    skipped = _skipped(keys)
    return _Scheme(groups, skipped, lm_head=True) if groups else None


def _number_format(keys: Keys, warnings: list[str] | None = None) -> Dtype:
    """Bits, type and granularity as compressed-tensors writes them.

    Raises DtypeError for a combination that is not known.
    """
    bits, kind = keys.size("num_bits"), keys.word("type", "int", ("int", "float"))
    strategy, group = keys.word("strategy"), keys.maybe("group_size", least=-1)
    if (kind, bits, strategy) == ("float", 8, "block"):
        return _block(keys, "block_structure", keys.entries("block_structure"), [] if warnings is None else warnings)
    zero = 0 if kind == "float" or keys.flag("symmetric", True) else bits
    stored = _stored(kind[:3].replace("flo", "fp"), bits, group, 16 + zero)
    if stored is None or stored.dtype is None:
        raise DtypeError(f"{keys.at('num_bits')} = {bits} of type {kind} (group {group}) is not known")
    return stored.dtype


def _inputs(keys: Keys) -> Dtype | None:
    """The arithmetic of activations of so many bits; None where they are as wide as the stream."""
    bits, kind = keys.size("num_bits"), keys.word("type", "int", ("int", "float"))
    group = keys.maybe("group_size", least=-1)
    stored = _stored("int" if kind == "int" else "fp", bits, group if bits < 8 else None)
    if stored is None or (stored.inputs is None and bits < _WIDE):
        raise DtypeError(f"{keys.at('num_bits')} = {bits} of type {kind} (group {group}) is no known arithmetic")
    return stored.inputs


def _modelopt(keys: Keys, _: list[str]) -> _Scheme | None:
    """NVIDIA's exporter: one algorithm, with a list of modules that it left alone, or one for each of some modules."""
    algo, known = keys.word("quant_algo"), _table()["modelopt"]
    if not algo or algo == "NO_QUANT":
        return None
    for name in ("config_groups", "group_size"):
        keys.note(name, "what quant_algo says")
    if algo != "MIXED_PRECISION":
        if algo not in known:
            raise DtypeError(f"{keys.at('quant_algo')} = {shown(algo)} is not known; known: {', '.join(known)}")
        return _Scheme([(None, _by_row(keys, known[algo]))], _skipped(keys), lm_head=True)
    by_format: dict[_Stored, list[str]] = {}
    section = keys.child("quantized_layers")
    for module in section.config:
        one = section.child(module)
        one.note("group_size", "what quant_algo says")
        if own := one.word("quant_algo", "", tuple(known)):
            by_format.setdefault(_by_row(one, known[own]), []).append(module)
    groups = [(Patterns(modules, keys.origin), stored) for stored, modules in by_format.items()]
    return _Scheme(groups, _skipped(keys), lm_head=True)


def _quark(keys: Keys) -> _Stored:
    """A tensor as AMD's Quark describes it: `dtype`, and weights that share a scale."""
    dtype = keys.word("dtype")
    element = keys.word("mx_element_dtype", dtype)
    found = re.match(r"(?:mx)?(u?int|fp|b?float)(\d+)", element)
    if found is None:
        raise DtypeError(f"{keys.at('dtype')} = {shown(dtype)} is not known")
    group = keys.maybe("group_size", least=-1) if keys.word("qscheme") == "per_group" or dtype == "mx" else None
    zero = int(found[2]) if found[1] == "uint" or not keys.flag("symmetric", True) else 0
    stored = _stored("int" if "int" in found[1] else "fp", int(found[2]), group, 16 + zero)
    if stored is None:
        raise DtypeError(f"{keys.at('dtype')} = {shown(dtype)} of group {group} is not known")
    return stored


def _quark_module(keys: Keys) -> _Stored:
    """Modules as Quark describes them; of weights that are quantised twice the last is stored."""
    listed = keys.config.get("weight")
    weight = keys.child("weight") if not isinstance(listed, list) else Keys(listed[-1], keys.origin, {}, keys.prefix)
    keys.note("weight", "stored weights")
    given = keys.child("input_tensors") if not isinstance(keys.config.get("input_tensors"), list) else Keys({}, "", {})
    if not weight.config:
        return _Stored()
    return replace(_quark(weight), inputs=_quark(given).inputs if given.config else None)


def _quark_config(keys: Keys, _: list[str]) -> _Scheme | None:
    """AMD's Quark: one description for all linear layers, and others by name."""
    section, export = keys.child("layer_quant_config"), keys.child("export")
    keys.note("export", "how it was written")
    export.read.update(dict.fromkeys((f"{export.prefix}{key}" for key in export.config), "how it was written"))
    parts = [(Patterns([name], keys.origin), _quark_module(section.child(name))) for name in section.config]
    usual = _quark_module(keys.child("global_quant_config"))
    return _Scheme([*parts, (None, usual)], _skipped(keys), lm_head=True) if usual.dtype or parts else None


def _torchao(keys: Keys, _: list[str]) -> _Scheme:
    """torchao: the name of a recipe with its arguments, or an object of its class; by module if it lists them."""
    whole, parts = keys.flag("include_input_output_embeddings", False), list[tuple[Patterns | None, _Stored]]()
    if isinstance(keys.config.get("quant_type"), str):
        usual = _recipe(keys, keys.word("quant_type"), keys.child("quant_type_kwargs"))
        return _Scheme([(None, usual)], _skipped(keys), lm_head=whole, embedding=usual.dtype if whole else None)
    recipe = keys.child("quant_type").child("default")
    listed = next((recipe.child("_data").child(key) for key in _BY_MODULE if recipe.child("_data").has(key)), None)
    if listed is None:
        usual = _recipe(recipe, recipe.word("_type"), recipe.child("_data"))
    else:
        recipe.note("_type", "by module")
        found = {name: listed.child(name) for name in listed.config}
        stored = {
            name: _recipe(one, one.word("_type"), one.child("_data")) if one.config else _Stored()
            for name, one in found.items()
        }
        usual = stored.pop("_default", _Stored())
        parts += [(Patterns([name], keys.origin), one) for name, one in stored.items()]
    return _Scheme([*parts, (None, usual)], _skipped(keys), lm_head=whole, embedding=usual.dtype if whole else None)


def _recipe(keys: Keys, name: str, data: Keys) -> _Stored:
    known, short = _table()["torchao"], re.sub(r"config$|_", "", name.lower())
    if short not in known:
        raise DtypeError(f"{keys.at('quant_type')} = {shown(name)} is not known; nearest: {nearest_of(short, known)}")
    row = dict(known[short])
    for key in ("weight_dtype", "dtype"):  # torch.int4 and its like, as a text or as an object
        value = data.config.get(key)
        value = value.get("_data") if isinstance(value, Mapping) else value
        if isinstance(value, str):
            data.note(key, value)
            found = re.search(r"(?:int|float)(\d{1,2})", value)
            if found and (key == "weight_dtype" or "bits" not in row):
                row["bits"] = int(found[1])
    for key in ("weight_granularity", "granularity"):
        value = data.config.get(key)
        value = value.get("_data") if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and isinstance(value.get("group_size"), int):
            row["group"] = value["group_size"]
        if data.has(key):
            data.note(key, "weights that share a scale")
    if "bits" not in row:
        raise DtypeError(f"{keys.at('quant_type')} = {shown(name)} says no bits")
    return _by_row(data, row)


def _weight_formats(scheme: _Scheme, layers: Sequence[nets.Layer], wide: Dtype, r: Reading) -> list[nets.WeightFormats]:
    """The formats of each layer, none if nothing is quantised; a kind whose modules differ takes that of most."""
    plain = nets.WeightFormats.uniform(wide)
    usual = replace(plain, lm_head=scheme.head_format() or wide, embedding=scheme.embedding or wide)
    chosen: list[dict[str, Dtype]] = []
    kinds: dict[str, Counter[Dtype]] = {}  # of all layers
    mixed: dict[str, Counter[Dtype]] = {}  # within a layer
    for number, layer in enumerate(layers):
        votes: dict[str, Counter[Dtype]] = {}
        for kind, spellings, rows in _modules(layer, r.family.modules):
            routed = kind == "experts" or (kind == "down" and "experts" in votes)
            dtype = scheme.format_of(spellings, number // (len(layers) // r.stated_depth))
            votes.setdefault(kind, Counter())[wide if dtype is None or scheme.experts_only > routed else dtype] += rows
        chosen.append({kind: _common_format(counter) for kind, counter in votes.items()})
        for kind, dtype in chosen[-1].items():
            kinds.setdefault(kind, Counter())[dtype] += 1
            if len(votes[kind]) > 1:
                mixed.setdefault(kind, Counter()).update(votes[kind])
    for kind, counter in mixed.items():
        told = ", ".join(f"{rows / counter.total():.0%} {dtype}" for dtype, rows in counter.most_common())
        r.warnings.append(
            f"layers mix formats in their {kind} ({told}): each takes that of nearly all, or their mean bits"
        )
    common = {kind: counter.most_common(1)[0][0] for kind, counter in kinds.items()}
    if usual == plain and all(counter.keys() <= {wide} for counter in kinds.values()):
        return []
    heaviest = "experts" if "experts" in common else "ffn"
    if common.get(heaviest) is wide:
        r.warnings.append(f"the checkpoint leaves its {heaviest}, most of its weights, in {wide}")
    return [_formats_of(replace(usual, **_wholes(common)), own) for own in chosen]


def _common_format(counter: Counter[Dtype]) -> Dtype:
    """The format of nearly all weights of a kind in one layer; where they differ, their mean bits.

    >>> _common_format(Counter({Dtype.FP8: 9, Dtype.BF16: 1})), _common_format(Counter({Dtype.FP8: 1, Dtype.BF16: 1}))
    (<Dtype.FP8: 'fp8'>, <Dtype.12bpw: '12bpw'>)
    """
    dtype, rows = counter.most_common(1)[0]
    if rows >= _NEARLY_ALL * counter.total():
        return dtype
    return Dtype.of_bits(8 * sum(each.bytes * rows for each, rows in counter.items()) / counter.total())


def _wholes(formats: Mapping[str, Dtype]) -> dict[str, Dtype]:
    return {kind: dtype for kind, dtype in formats.items() if kind not in _OF}


def _formats_of(usual: nets.WeightFormats, own: Mapping[str, Dtype]) -> nets.WeightFormats:
    """The formats of a layer; those of kinds that it lacks are `usual`, and parts count where theirs differ."""
    formats = replace(usual, **_wholes(own))
    parts = {
        part: getattr(formats, "experts" if part == "down" and "experts" in own else of) for part, of in _OF.items()
    }
    return replace(formats, **{part: own[part] for part, of in parts.items() if own.get(part, of) is not of})


def _modules(layer: nets.Layer, own: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """The linear layers of a block: the kind of each, the names it may go by, and its rows beside those of its kind.

    `own` says where the class keeps some.
    """
    mixer, ffn = layer.mixer, layer.ffn
    if mixer is not None:
        latent = isinstance(mixer, nets.LatentAttention | nets.CompressedAttention)
        softmax = latent or mixer.kind in ("mha", "gqa", "mqa", "cross_attention", "lightning", "kda")
        names = _spellings("latent" if latent else "softmax" if softmax else "state")
        value = "value" if softmax and not latent else "attention"
        shares = mixer.heads // mixer.kv_heads if isinstance(mixer, nets.Attention) else 1
        for part, spelt in enumerate(names):
            yield value if part == _VALUE else "attention", spelt, 1 if part else shares
        yield "attention_output", _spellings("softmax_out" if softmax else "state_out")[0], 1
    kinds = ["ffn"] if isinstance(ffn, nets.DenseFFN) else []
    if isinstance(ffn, nets.MixtureOfExperts):
        kinds = ["experts", "shared_experts"] if ffn.shared_width else ["experts"]
    for kind in kinds:
        parts = [(f"{own[kind]}.{part}",) for part in _UP_DOWN] if kind in own else _spellings(kind)
        down = "shared_down" if kind == "shared_experts" else "down"
        kinds_of = (kind, kind, down)
        gated = ffn is not None and ffn.gated
        yield from list(zip(kinds_of, parts, (1, 1, 1), strict=True))[0 if gated else 1 :]


_OF = {"attention_output": "attention", "value": "attention", "down": "ffn", "shared_down": "shared_experts"}
"""Parts that have a format of their own where it differs from that of the rest."""

_METHODS: dict[str, Callable[[Keys, list[str]], _Scheme | None]] = {
    "fp8": _fp8,
    "mxfp4": lambda keys, _: _Scheme([(None, _Stored(Dtype.MXFP4))], _skipped(keys), experts_only=True),  # gpt-oss
    "mxfp8": lambda keys, _: _Scheme([(None, _Stored(Dtype.of_bits(8.25), Dtype.FP8))], _skipped(keys)),
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "quark": _quark_config,
    "torchao": _torchao,
}

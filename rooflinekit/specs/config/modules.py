"""Which modules of a checkpoint are quantised: a scheme's patterns, applied to the modules that a model has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.model import DenseFFN, LatentAttention, Layer, MixtureOfExperts, WeightFormats
from rooflinekit.specs.config.keys import shown

__all__ = ["Patterns", "Scheme", "weight_formats"]

_DECODER = re.compile(r"^(?:model\.|language_model\.|backbone\.|transformer\.|decoder\.)*(?:h\.|layers\.|(?=lm_head))")
_NUMBERED = re.compile(r"^(\d+)\.?([^*]*)\*?$")
_LONGEST, _REPEATS = 300, 6  # characters and repetitions of a pattern, so that none can take for ever
_NESTED = re.compile(r"[*+}][^()]*\)[*+{]")
_UP_DOWN = ("gate_proj", "up_proj", "down_proj")
_SOFTMAX_IN = (
    ("self_attn.q_proj", "self_attn.qkv_proj", "self_attention.query_key_value", "attn.c_attn", "mixer.q_proj"),
    ("self_attn.k_proj", "self_attn.qkv_proj", "self_attention.query_key_value", "attn.c_attn", "mixer.k_proj"),
    ("self_attn.v_proj", "self_attn.qkv_proj", "self_attention.query_key_value", "attn.c_attn", "mixer.v_proj"),
)
_LATENT_IN = (
    ("self_attn.q_a_proj", "self_attn.q_proj"),
    ("self_attn.q_b_proj", "self_attn.q_proj"),
    ("self_attn.kv_a_proj_with_mqa",),
    ("self_attn.kv_b_proj",),
)
_STATE_IN = (("linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv", "mixer.in_proj", "mamba.in_proj"),)
_SOFTMAX_OUT = (("self_attn.o_proj", "self_attention.dense", "attn.c_proj", "mixer.o_proj"),)
_STATE_OUT = (("linear_attn.out_proj", "mixer.out_proj", "mamba.out_proj"),)
_BLOCKS = ("mlp", "feed_forward", "block_sparse_moe", "mixer")
_FFN = tuple(tuple(f"{block}.{part}" for block in _BLOCKS) for part in _UP_DOWN)
_EXPERTS = tuple(tuple(f"{block}.experts.0.{part}" for block in _BLOCKS) for part in _UP_DOWN)
_SHARED = tuple(
    tuple(f"{block}.{word}.{part}" for block in _BLOCKS for word in ("shared_experts", "shared_expert"))
    for part in _UP_DOWN
)


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
            inside = _DECODER.sub("", pattern)
            numbered = _NUMBERED.match(inside) if inside != pattern else None
            if pattern.startswith("re:"):
                expressions.append(pattern[3:])
            elif numbered:
                self.by_layer.setdefault(int(numbered[1]), []).append(numbered[2].rstrip("."))
            elif "*" in inside:
                expressions.append(r".*?" + ".*".join(re.escape(part) for part in inside.split("*")))
            else:
                self.parts.add(inside.rstrip("."))
        self.expression = _compiled(expressions, origin)
        self._general: dict[str, bool] = {}

    def hit(self, module: str, layer: int = 0) -> bool:
        """Whether a module (named from inside its layer) is listed."""
        listed = self.by_layer.get(layer, ())
        return self._hit_anywhere(module) or any(module.startswith(name) for name in listed)

    def _hit_anywhere(self, module: str) -> bool:
        if module not in self._general:
            parts = module.split(".")
            spans = (parts[i:j] for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))
            full = module if module == "lm_head" else f"model.layers.0.{module}"
            matched = self.expression is not None and self.expression.match(full) is not None
            self._general[module] = matched or any(".".join(span) in self.parts for span in spans)
        return self._general[module]


def _compiled(expressions: list[str], origin: str) -> re.Pattern[str] | None:
    if not expressions:
        return None
    for one in expressions:
        if len(one) > _LONGEST or len(re.findall(r"[*+{]", one)) > _REPEATS or _NESTED.search(one):
            raise SpecError(
                f"{origin}: quantisation pattern {shown(one)} has more than {_LONGEST} characters, more than "
                f"{_REPEATS} repetitions, or one inside another"
            )
    try:
        return re.compile("|".join(f"(?:{one})" for one in expressions))
    except (re.error, OverflowError, RecursionError) as error:
        raise SpecError(f"{origin}: quantisation pattern is no regular expression: {error}") from None


@dataclass(frozen=True)
class Scheme:
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


def weight_formats(scheme: Scheme, layers: Sequence[Layer], wide: Dtype, warnings: list[str]) -> WeightFormats:
    """The format of each kind of module; a kind whose layers differ takes that of most, with a warning."""
    votes: dict[str, Counter[Dtype]] = {}
    for number, layer in enumerate(layers):
        for kind, spellings in _modules(layer):
            untouched = scheme.experts_only and kind != "experts"
            dtype = None if untouched else scheme.format_of(spellings, number)
            votes.setdefault(kind, Counter())[dtype or wide] += 1
    chosen = {kind: counter.most_common(1)[0][0] for kind, counter in votes.items()}
    for kind, counter in votes.items():
        if len(counter) > 1:
            told = ", ".join(f"{count} {dtype}" for dtype, count in counter.most_common())
            warnings.append(f"the checkpoint mixes formats in {kind} ({told} modules): all are taken as {chosen[kind]}")
    head = scheme.format_of(("lm_head",)) if scheme.lm_head else None
    formats = replace(WeightFormats.uniform(wide), lm_head=head or wide)
    output = chosen.pop("attention_output", wide)
    formats = replace(formats, **chosen)
    return replace(formats, attention_output=output) if output != formats.attention else formats


def _modules(layer: Layer) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The linear layers of a block: the kind of each, and the names it may go by."""
    mixer, ffn = layer.mixer, layer.ffn
    if mixer is not None:
        softmax = mixer.kind in ("mha", "gqa", "mqa", "lightning")
        inputs = _LATENT_IN if isinstance(mixer, LatentAttention) else _SOFTMAX_IN if softmax else _STATE_IN
        yield from (("attention", names) for names in inputs)
        outputs = _SOFTMAX_OUT if softmax or isinstance(mixer, LatentAttention) else _STATE_OUT
        yield from (("attention_output", names) for names in outputs)
    if isinstance(ffn, DenseFFN):
        yield from (("ffn", names) for names in _FFN)
    if isinstance(ffn, MixtureOfExperts):
        yield from (("experts", names) for names in _EXPERTS)
        if ffn.shared_width:
            yield from (("shared_experts", names) for names in _SHARED)

"""From the keys of a Hugging Face config.json to a Model; the same code reads the library's own files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches

from rooflinekit.model.types import model as nets
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.errors import ArchitectureError, DtypeError, RooflinekitError, SpecError, nearest
from rooflinekit.specs.config.family import Family, Reading, class_defaults, class_names, family_of
from rooflinekit.specs.config.feedforward import feed_forwards
from rooflinekit.specs.config.keys import Keys, named, shown, usual_names
from rooflinekit.specs.config.mixers import mixers, read_encoder
from rooflinekit.specs.config.quantization import read_formats
from rooflinekit.specs.config.refusals import (
    refuse_other_networks,
    refuse_unknown_keys,
    uncosted,
    unidentified,
    unknown_keys,
)
from rooflinekit.specs.config.towers import TOWER, tower_weights
from rooflinekit.specs.config.vision import read_vision
from rooflinekit.specs.files import Parsed
from rooflinekit.specs.locate import Loaded

_WIDE = ", ".join(dtype.value for dtype in Dtype if dtype.is_wide)
#: `architectures` of configs that have no `model_type`.
_ARCHITECTURES = {"Grok1ModelForCausalLM": "grok-1", "Grok1ForCausalLM": "grok-2"}
_HEADED = r"(?:ForCausalLM|ForConditionalGeneration|LMHeadModel)$"
#: Where a multimodal config keeps its text decoder.
_NESTED = ("text_config", "llm_config", "language_config")
#: Classes without any head; some that generate are called `...Model` as well.
_TRUNK = r"(?<!LMHead)(?<!Chat)(?<!ChatGLM)Model$"
_INHERITED = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "quantization")


def model_from_config(
    config: Mapping[str, object],
    *,
    name: str,
    origin: str,
    quant_config: Mapping[str, object] | None = None,
    kind: str = "",
) -> Loaded[nets.Model]:
    """Build the Model that a config.json describes, exact to the last weight.

    `quant_config` is the content of an `hf_quant_config.json` beside it. `origin` names the file in messages. `kind` is
    the class to read it as, whatever it says itself.

    Raises:
        ArchitectureError: the network is of another kind, or has features that are not understood.
        SpecError: a key is missing, or holds a value that cannot be.
        DtypeError: a number format or quantisation that is not known.
    """
    _only_text_keys(config, origin)
    outer = config = _thinking(config)
    config, warnings = _text_decoder(config, origin), list[str]()
    for part in (outer, config):
        refuse_other_networks(part, origin, class_names(), kind)
    if kind and family_of(kind) is None:
        raise ArchitectureError(f"no class {kind[:60]!r} is known; nearest: {', '.join(nearest(kind, class_names()))}")
    said = config.get("model_type")
    if not kind and isinstance(said, str) and said != "git" and family_of(said) is None:
        kind = _alike(config, said, origin)
        warnings.append(
            f"model_type {said!r} is not known: it has only keys of {kind} and is read as one (--as {kind})"
        )
    elif kind:
        less = f": {uncosted()[said].partition(';')[0]}, which is not counted" if said in uncosted() else ""
        warnings.append(f"read as {kind}, as asked, in place of {shown(said)}{less}")
    model_type, family = _identify({**config, "model_type": kind} if kind else config, origin)
    own = {**class_defaults(model_type), **({} if config is outer else class_defaults(str(outer.get("model_type"))))}
    # the class's own come first for the order in which keys are filled, and again since they win over the family's
    defaults = {**own, **family.defaults, **own, **({} if config is outer else family.nested)}
    for key in family.first:  # sizes of text and images
        if isinstance(pair := config.get(key), list) and pair:
            config = {**config, key: pair[0]}
            warnings.append(
                f"{key} = {shown(pair)}: the first, of text, is taken; what images have besides is not counted"
            )
    keys = Keys(_with_defaults(config, family.names, defaults, warnings), origin, {**usual_names(), **family.names})
    keys.note("model_type" if "model_type" in config else "architectures", model_type)
    model = _assemble(Reading(keys, family, warnings), name, quant_config)
    if (vision := read_vision(outer, model.hidden, origin)) is not None:
        model = replace(model, vision=vision, tower=vision.parameters)
    towers = [key for key in outer if outer[key] and re.fullmatch(TOWER, key)]
    beside = [key for key in towers if vision is None or key != "vision_config"]
    weights, counted = tower_weights(outer, model.hidden, beside, origin)
    model = replace(model, tower=model.tower + weights)
    left = [key for key in beside if key not in counted]
    warnings[:0] = _not_counted(outer, left, vision is not None or bool(counted))
    outputs = _outputs(outer, config is outer, warnings)
    model = model if outputs is None else replace(model, outputs=outputs, tied=False, lm_head_bias=False)
    refuse_unknown_keys(keys.unread(), family.ignored, origin, model_type)
    warnings += unknown_keys(keys.unread(), family.ignored)
    return Loaded(model, tuple(warnings))


_LONGEST = 60  # characters of a class's name
_PLAIN = ("llama", "deepseek_v3")
"""Classes that stand in for an unknown class with RMS norms where no known class has a similar name."""


def _alike(config: Parsed, said: str, origin: str) -> str:
    """The known class whose keys are all those of a config of an unknown one; by likeness of names, else a plain one.

    Raises ArchitectureError where there is none.
    """
    plain: tuple[str, ...] = _PLAIN if "rms_norm_eps" in config else ()
    near: list[str] = get_close_matches(said, class_names(), cutoff=0.7) if len(said) <= _LONGEST else []
    for kind in dict.fromkeys((*near, *plain)):
        with suppress(RooflinekitError):
            read = model_from_config({**config, "architectures": None}, name=said, origin=origin, kind=kind)
            if not any("is absent" in warning for warning in read.warnings):
                return kind
    raise unidentified(config, origin, class_names())


def _outputs(config: Parsed, whole: bool, warnings: list[str]) -> int | None:
    """Number of scores of a classifier, 0 for a body that embeds; the text part of a larger model may be a body."""
    listed = config.get("architectures")
    classes = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    scores = next((name for name in classes if name.endswith("ForSequenceClassification")), None)
    bare = whole and classes and all(re.search(_TRUNK, name) for name in classes)
    if not scores and not bare:
        return None
    warnings.append(
        f"{named(scores or classes[0])} {'scores' if scores else 'embeds'} text and generates none: its prefill holds, "
        "its decoding means nothing (--osl 1)"
    )
    labels = config.get("id2label")
    stated = config.get("num_labels", len(labels) if isinstance(labels, Mapping) and labels else 2)
    whole_number = isinstance(stated, int) and not isinstance(stated, bool) and 0 < stated < 10**7
    return (stated if whole_number else 2) if scores else 0


def _only_text_keys(config: Parsed, origin: str) -> None:
    if not isinstance(config, Mapping):
        raise SpecError(f"{origin}: holds a {type(config).__name__}, not keys with values")
    for key in config:
        if not isinstance(key, str):
            raise SpecError(f"{origin}: key {shown(key)} is not a string")


def _thinking(config: Mapping[str, object]) -> Mapping[str, object]:
    """Part that reads and writes of a model that hears and speaks; its speech is not counted."""
    thinker = config.get("thinker_config")
    return {"architectures": None, **thinker} if isinstance(thinker, Mapping) else config


def _text_decoder(config: Mapping[str, object], origin: str) -> Mapping[str, object]:
    """The language model of a multimodal config, or the whole of another."""
    found = next((key for key in _NESTED if config.get(key) is not None), None)
    if found is None:
        return config
    nested = config[found]
    if not isinstance(nested, Mapping):
        raise SpecError(f"{origin}: {found} = {shown(nested)} is not an object")
    _only_text_keys(nested, origin)
    inherited = {key: config[key] for key in _INHERITED if config.get(key) is not None}
    return {"model_type": config.get("model_type")} | dict(nested) | inherited


def _not_counted(config: Mapping[str, object], left: Sequence[str], seen: bool) -> list[str]:
    """The warning about what stands beside the text decoder of a multimodal config; `seen`: a part of it counts."""
    found = next((key for key in _NESTED if config.get(key) is not None), None)
    if seen:
        return [f"multimodal: {' and '.join(map(named, left))} is not counted"] if left else []
    if not left and found is None:
        return []
    others = " and ".join(map(named, left or [f"everything outside {found}"]))
    return [f"multimodal: only the text decoder is counted, not {others}"]


def _identify(config: Mapping[str, object], origin: str) -> tuple[str, Family]:
    """The family, by `model_type`, or by `architectures` when there is none, or one that is another network's."""
    model_type = config.get("model_type")
    if model_type in (None, "git"):
        listed = config.get("architectures")
        folded = {re.sub("[-_]", "", name): name for name in class_names()}
        for architecture in listed if isinstance(listed, list) else ():
            if isinstance(architecture, str):
                body = re.sub(_HEADED, "", architecture).lower()
                model_type = _ARCHITECTURES.get(architecture, folded.get(body, model_type))
    family = family_of(model_type) if isinstance(model_type, str) else None
    if family is None or not isinstance(model_type, str):
        raise unidentified(config, origin, class_names())
    return model_type, family


def _with_defaults(
    config: Mapping[str, object], own: Mapping[str, Sequence[str]], defaults: Mapping[str, object], warnings: list[str]
) -> dict[str, object]:
    """The config with what its class takes for keys that are absent; a null is there, and means the usual."""
    filled = dict(config)
    for concept, value in defaults.items():
        known = {**usual_names(), **own}
        names = known.get(concept) or next((names for names in known.values() if concept in names), (concept,))
        listed = concept == "first_k_dense_replace" and (  # layer by layer
            config.get("mlp_layer_types") or isinstance(config.get("moe_layer_freq"), list)
        )
        if not listed and not any(name in filled for name in names):
            filled[names[0]] = value
            warnings.append(f"{names[0]} is absent: the class default of {value} is taken")
    return filled


def _assemble(r: Reading, name: str, quant_config: Mapping[str, object] | None) -> nets.Model:
    keys, family = r.keys, r.family
    for key, known in family.needs.items():
        if not keys.has(key):
            continue
        value = keys.config[key]
        keys.note(key, shown(value))
        if isinstance(value, list):
            keys.entries(key, None, tuple(known))
        elif (keys.flag(key, known[0]) if isinstance(known[0], bool) else value) not in known:
            keys.refuse(key, f"is not understood; known: {', '.join(map(shown, known))}", ArchitectureError)
    layers = _layers(r)
    dtype, extra, final = _dtype(r), r.value(family.positions), r.value(family.final_norm)
    embedded = r.number(family.embedding)
    formats = read_formats(r, dtype, layers, quant_config)
    return nets.Model(
        name=name,
        hidden=r.hidden,
        vocab=keys.size("vocab"),
        layers=layers,
        dtype=dtype,
        formats=formats.weights,
        layer_formats=formats.layers,
        max_context=keys.maybe("context"),
        tied=r.is_set(family.tied),
        position_rows=0 if extra is None else keys.size("context") + extra,
        embedding_dim=embedded if embedded != r.hidden else 0,
        token_rows=r.number(family.token_rows, 0) if layers[0].token_width else 0,
        extra_rows=r.number(family.extra_rows, 0),
        embedding_norm=family.embedding_norm,
        vectors=r.sum_of(family.once),
        mean_streams=family.mean_streams,
        final_norm=r.norm if final == "norm" else final,
        lm_head_bias=r.is_set(family.lm_head_bias),
        kv_dtype=formats.kv,
        inputs=formats.inputs,
        unpriced=formats.unpriced,
        encoder=read_encoder(r, layers),
        mtp_layers=keys.size("mtp", 0, least=0),
        origin=keys.origin,
        read_keys=keys.read,
    )


def _layers(r: Reading) -> tuple[nets.Layer, ...]:
    """Mixers and feed-forward blocks, joined; equal layers are one object."""
    family = r.family
    norms = r.value(family.norms)
    norms = norms if norms is None else r.number(norms)
    parallel = r.is_set(family.parallel)
    streams, block = r.number(family.streams), r.keys.maybe(family.sources) if family.sources else None
    bypass, token_width = r.number(family.bypass, 0), r.number(family.token_width, 0)
    sums = [(1 + layer // block, layer % block == 0) if block else (0, False) for layer in range(r.depth)]
    once = r.keys.size("num_mem_blocks", 1) if family.attends == "common" else 0  # blocks that layers take in turn
    uses = [
        r.blocks[: layer + 1].count("attention") if once and r.blocks[layer] == "attention" else 0
        for layer in range(r.depth)
    ]
    common = [(bool(use), use > once) for use in uses]
    parts = list(zip(mixers(r), feed_forwards(r), common, sums, strict=True))
    kinds: dict[tuple[nets.Mixer | None, nets.FeedForward | None, tuple[bool, bool], tuple[int, bool]], nets.Layer] = {}
    for part in dict.fromkeys(parts):
        mixer, ffn, shared, earlier = part
        count = (mixer is not None) + (ffn is not None) + shared[0] if norms is None else norms * (ffn is not None)
        if family.attends == "shortcut" and mixer is None:  # read what the first attention left, normed for its block
            count = 0
        kinds[part] = nets.Layer(
            mixer, ffn, r.norm, count, parallel, streams, family.alternating, bypass, token_width, *shared, *earlier,
            family.unmixed, _vectors(r, mixer, ffn),
        )  # fmt: skip
    for _, other in r.variants:
        own = other.keys.config.keys() & {
            key for kind in r.keys.child("per_layer_config").config.values() for key in kind
        }
        if strange := sorted(own - other.keys.read.keys()):
            raise ArchitectureError(f"{r.keys.at('per_layer_config')} states {strange[0]}, which is not understood")
    return tuple(kinds[part] for part in parts)


def _vectors(r: Reading, mixer: nets.Mixer | None, ffn: nets.FeedForward | None) -> int:
    """Weights of the small vectors of a layer, by what it is made of."""
    kinds = {
        "all": True,
        "attention": isinstance(mixer, nets.Attention | nets.LatentAttention),
        "dense": isinstance(ffn, nets.DenseFFN),
        "sparse": isinstance(ffn, nets.MixtureOfExperts),
    }
    return sum(r.sum_of(products) for kind, products in r.family.vectors.items() if kinds[kind])


def _dtype(r: Reading) -> Dtype:
    """The 16-bit format of the residual stream; engines serve float32 checkpoints in bf16."""
    for key in ("torch_dtype", "dtype"):
        stated = r.keys.word(key)
        if not stated:
            continue
        try:
            dtype = parse_dtype(stated)
        except DtypeError:
            raise DtypeError(f"{r.keys.at(key)} = {shown(stated)} is no known dtype; known: {_WIDE}") from None
        if not dtype.is_wide:
            raise DtypeError(f"{r.keys.at(key)} = {shown(stated)} is no format that activations can have")
        if dtype is Dtype.FP32:
            r.warnings.append("the checkpoint is float32; engines serve it in bf16, and so is it costed")
            return Dtype.BF16
        return dtype
    r.warnings.append("the config has no torch_dtype: bf16 is assumed")
    return Dtype.BF16

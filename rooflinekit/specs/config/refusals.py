"""Configs that are refused: other kinds of networks, other formats, and keys whose meaning is not known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial

from rooflinekit.model.types.errors import ArchitectureError, nearest
from rooflinekit.specs.config.keys import is_off, named, shown, usual_keys
from rooflinekit.specs.files import table_of

_WHY = {
    "an encoder-decoder": "an encoder runs once, and the decoder also attends to what it gives",
    "a speech model": "sound comes in or out: an encoder runs once, or there is no text to decode",
}


_file = partial(table_of, __file__)


@cache
def listed_keys(kind: str) -> frozenset[str]:
    """Keys that change no cost: `harmless` ones by their full names, `plain` ones in any section of a config."""
    return frozenset(_file()[kind].split())


def uncosted() -> dict[str, str]:
    """Decoders that are not costed, and why."""
    return dict(_file()["uncosted"])


def _is_free(key: str) -> bool:
    return key in listed_keys("harmless") or key.rpartition(".")[2] in listed_keys("plain")


@cache
def _pattern(name: str) -> str:
    """One of the file's regular expressions: a text, which `re` compiles when it first needs it."""
    return "|".join(_file()["patterns"][name])


def refuse_other_networks(
    config: Mapping[str, object], origin: str, known: Sequence[str], kind_asked: str = ""
) -> None:
    """Refuse encoders, encoder-decoders beyond those `known`, speech, vision and diffusion models, other heads.

    Decoders that are not costed are refused too, unless a class is given to read them as.

    Raises ArchitectureError naming the class.
    """
    name = model_type = config.get("model_type")
    listed = config.get("architectures")
    if (
        isinstance(model_type, str)
        and not kind_asked
        and model_type in uncosted()
        and not (model_type == "git" and "residual_moe" in config)
    ):
        why = uncosted()[model_type]
        instead = f"--as {why.split()[-1]} reads it as one where its keys allow it"
        raise ArchitectureError(f"{origin}: {model_type} is a decoder that is not costed: {why} ({instead})")
    kind = next((kind for kind, names in _file()["kinds"].items() if model_type in names.split()), None)
    if kind is None and config.get("_class_name") is not None:
        kind, name = "a diffusion model", shown(config["_class_name"])
    if kind is None and config.get("is_encoder_decoder") is True and str(model_type) not in known:
        kind, name = "an encoder-decoder", shown(model_type)
    problem = f"{name} is {kind} ({_WHY.get(str(kind), 'no KV cache, no decode')})" if kind else ""
    classes = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    other = next((name for name in classes if re.search(_pattern("other_head"), name)), None)
    if not problem and other:
        problem = f"{named(other)} classifies or scores and generates no text"
    if problem:
        raise ArchitectureError(f"{origin}: {problem}; rooflinekit costs decoders, T5 and Whisper")


def unidentified(config: Mapping[str, object], origin: str, known: Iterable[str]) -> ArchitectureError:
    """The error for a config whose class is absent or unknown."""
    seen = ", ".join(map(named, list(config)[:8])) + (", ..." if len(config) > 8 else "")
    if "producer" in config and "quantization" in config:
        return ArchitectureError(
            f"{origin}: this is hf_quant_config.json, the companion of a config.json; give that one"
        )
    model_type, architectures = config.get("model_type"), config.get("architectures")
    if model_type is None and not architectures:
        native = {"dim", "n_layers", "n_heads"} <= set(config)
        why = "looks like a native inference config" if native else "has neither model_type nor architectures"
        told = f"it {why}; keys seen: {seen}; --as CLASS reads it as a known one"
        return ArchitectureError(f"{origin}: not a Hugging Face config: {told}")
    what = model_type if model_type is not None else architectures
    near = nearest(what, known) if isinstance(what, str) and len(what) <= 60 else []
    hint = f"; nearest known model_type: {', '.join(near)}" if near else ""
    structural = [key for key, value in config.items() if key not in usual_keys() and _structural(key, value)]
    keys = f"; structural keys not understood: {', '.join(map(named, structural[:12]))}" if structural else ""
    return ArchitectureError(
        f"{origin}: architecture {shown(what)} is not understood{hint}{keys}; --as CLASS reads it as a known one"
    )


def refuse_unknown_keys(unread: Mapping[str, object], ignored: Iterable[str], origin: str, model_type: str) -> None:
    """Refuse keys that look structural, say something, and were read by nobody.

    Raises ArchitectureError naming them.
    """
    excused = set(ignored)
    strange = [key for key, value in unread.items() if key not in excused and _structural(key, value)]
    if strange:
        told = ", ".join(f"{named(key)} = {shown(unread[key])}{_meant(key)}" for key in strange[:6])
        told += "; take out those that change no cost"
        raise ArchitectureError(f"{origin}: {model_type} has structural keys that are not understood: {told}")


def unknown_keys(unread: Mapping[str, object], ignored: Iterable[str]) -> list[str]:
    """A note on keys that say something, were read by nobody, and are not among those that change no cost."""
    excused = set(ignored)
    said = (key for key, value in unread.items() if not (key in excused or _is_free(key) or is_off(value)))
    strange = [key for key in said if not re.search(_pattern("harmless"), key.lower())]
    told = ", ".join(f"{named(key)} = {shown(unread[key])}{_meant(key)}" for key in strange[:6])
    more = f" and {len(strange) - 6} more" if len(strange) > 6 else ""
    return [f"keys of the config that are not known are taken to change no cost: {told}{more}"] if strange else []


def _meant(key: str) -> str:
    near = get_close_matches(key[:60], usual_keys(), n=1, cutoff=0.85)
    return f" (nearest: {near[0]})" if near and near[0] != key else ""


def _structural(key: str, value: object) -> bool:
    if is_off(value) or _is_free(key):
        return False
    lowered = key.lower()
    return bool(re.search(_pattern("structural"), lowered)) and not re.search(_pattern("harmless"), lowered)

"""A config that says which released model it is, held against that model: KV heads of another, a head counted twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rooflinekit.model.types.model import DenseFFN, FeedForward, Mixer, MixtureOfExperts, Model
from rooflinekit.specs.config.keys import NAMES

__all__ = ["claimed_name", "differences"]

_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
_ENDING = re.compile(r"(?:^[\w-][\w.-]*/)?[\w-][\w.-]*$")
_LONGEST = 200
#: What a config calls the sizes that are read by another name.
_KEYS = {
    "gated": "attn_output_gate",
    "kv_rank": "kv_lora_rank",
    "nope_dim": "qk_nope_head_dim",
    "q_rank": "q_lora_rank",
    "rope_dim": "qk_rope_head_dim",
    "v_dim": "v_head_dim",
}


def claimed_name(config: Mapping[str, Any], path: Path) -> str | None:
    """Whose config it says to be: by its entry in the Hugging Face cache, else by `_name_or_path`.

    >>> claimed_name({"_name_or_path": "/home/me/Llama-3.1-70B/"}, Path("config.json"))
    'Llama-3.1-70B'
    """
    for part in path.parts:
        if cached := _CACHED.fullmatch(part):
            return "/".join(cached.groups())
    stated = config.get("_name_or_path")
    if not isinstance(stated, str) or len(stated) > _LONGEST:
        return None
    ending = _ENDING.search(stated.rstrip("/"))
    return ending and ending.group()


def differences(model: Model, known: Model) -> list[tuple[str, str, str]]:
    """What costs in one model and not in the other: the key of the config, and both values."""
    if _costs(model) == _costs(known):
        return []
    stated = {meaning.partition(" = ")[0]: key for key, meaning in model.read_keys.items()}
    mine, theirs = _facts(model), _facts(known)
    told = []
    for fact in dict.fromkeys((*mine, *theirs)):
        ours, its = _told(mine.get(fact)), _told(theirs.get(fact))
        if ours != its:
            told.append((stated.get(fact, NAMES.get(fact, (fact,))[0]), ours, its))
    return told


def _costs(model: Model) -> tuple[object, ...]:
    return model.hidden, model.vocab, model.tied, model.position_rows, model.lm_head_bias, model.layer_counts


def _facts(model: Model) -> dict[str, Counter[object]]:
    """Every size of a model under its concept, with the number of layers that have it."""
    facts: dict[str, Counter[object]] = {
        "depth": Counter([model.depth]),
        "hidden": Counter([model.hidden]),
        "vocab": Counter([model.vocab]),
        "tie_word_embeddings": Counter([model.tied]),
        "position_rows": Counter([model.position_rows]),
        "lm_head_bias": Counter([model.lm_head_bias]),
    }
    for layer, times in model.layer_counts.items():
        for block in (layer.mixer, layer.ffn):
            if block is None:
                continue
            for part in fields(block):
                facts.setdefault(_concept(block, part.name), Counter())[getattr(block, part.name)] += times
    return facts


def _concept(block: Mixer | FeedForward, name: str) -> str:
    if isinstance(block, MixtureOfExperts) and name == "width":
        return "expert_width"
    if isinstance(block, DenseFFN | MixtureOfExperts) and name in ("gated", "bias"):
        return f"mlp_{name}"
    return _KEYS.get(name, name)


def _told(values: Counter[object] | None) -> str:
    """One value as it is; several with the number of layers that have each."""
    if values is None or not values:
        return "none"
    names = {value: "none" if value is None else str(value).lower() for value in values}
    if len(values) == 1:
        return next(iter(names.values()))
    return ", ".join(f"{names[value]} ({times} layers)" for value, times in values.most_common())

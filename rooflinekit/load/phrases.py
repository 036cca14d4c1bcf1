"""Phrases for a length or an arrival process: a name, and numbers by name."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rooflinekit.model.types.errors import WorkloadError, nearest_of


def read_phrase(text: str, kind: str, known: Mapping[str, Mapping[str, float | None]]) -> tuple[str, dict[str, float]]:
    """Split `name:key=value,…`; `known` are the names, each with its keys and their defaults (None: must be given).

    >>> read_phrase("gamma:rate=4", "arrival process", {"gamma": {"rate": None, "cv": 1.0}})
    ('gamma', {'rate': 4.0, 'cv': 1.0})

    Raises WorkloadError for an unknown name or key, a missing or repeated one, and a value that is no finite number.
    """
    name, _, rest = text.strip().partition(":")
    name = name.strip().lower()
    if name not in known:
        raise WorkloadError(f"unknown {kind} {name!r}; nearest: {nearest_of(name, sorted(known))}")
    words: dict[str, str] = {}
    for part in filter(None, map(str.strip, rest.split(","))):
        key, sign, word = (each.strip() for each in part.partition("="))
        if not sign or key in words:
            why = "is given twice" if key in words else "is no key=value"
            raise WorkloadError(f"{text!r}: {part!r} {why}")
        words[key] = word
    values = {}
    for key, default in known[name].items():
        if key not in words and default is None:
            whole = ",".join(f"{each}={words.get(each, '…')}" for each, usual in known[name].items() if usual is None)
            raise WorkloadError(f"{text!r} lacks {key}; write it like '{name}:{whole}'")
        values[key] = _number(f"{text!r}: {key}", words[key]) if key in words else float(default or 0.0)
    for key in words.keys() - values.keys():
        raise WorkloadError(f"{text!r}: {name} takes no {key!r}; nearest: {nearest_of(key, values)}")
    return name, values


def _number(what: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise WorkloadError(f"{what} must be a number, not {word!r}")
    return value

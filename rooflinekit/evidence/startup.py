"""What an engine says when it starts: its model, its split, its formats, its cache and its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, partial

from rooflinekit.evidence.measurement import Facts, StartUp
from rooflinekit.model.types.errors import InputError, SpecError
from rooflinekit.model.types.units import GB, GIB
from rooflinekit.specs import load_model
from rooflinekit.specs.engines import load_engine
from rooflinekit.specs.files import table_of
from rooflinekit.specs.foreign import MOST, number_of

_SIZES = {"GiB": GIB, "GB": GB, "MiB": GIB / 1024.0}
_BEGIN = 1 << 20  # characters of a file within which an engine says how it starts
_NO_ENGINE = ("formats", "caches")


_lines = partial(table_of, __file__)
"""Patterns of lines by engine and quantity, and the names of formats."""


@cache
def _patterns() -> Mapping[str, Mapping[str, Sequence[re.Pattern[str]]]]:
    return {
        engine: {name: [re.compile(each, re.MULTILINE) for each in lines] for name, lines in quantities.items()}
        for engine, quantities in _lines().items() if engine not in _NO_ENGINE
    }  # fmt: skip


def is_startup(text: str) -> bool:
    """Whether a text holds a line that an engine writes when it starts."""
    begin = text[:_BEGIN]
    return any(each.search(begin) for quantities in _patterns().values() for lines in quantities.values()
               for each in lines)  # fmt: skip


def read_startup(source: str, text: str) -> StartUp:
    """Read what the engine that wrote most of the known lines says.

    vLLM before 0.7.3 gives blocks and the longest request instead of tokens: tokens = concurrency · longest.

    >>> log = "GPU KV cache size: 178,880 tokens, Maximum concurrency for 40,960 tokens per request: 4.37x"
    >>> read_startup("log", log).kv_tokens
    178880

    Raises SpecError if the cache has no room, or a number is out of range.
    """
    every = {engine: _found(quantities, text) for engine, quantities in _patterns().items()}
    engine = max(every, key=lambda name: len(every[name]))
    said = every[engine]
    plain = {name: value[0].replace(",", "") for name, value in said.items()}
    try:
        number = {name: number_of(word) for name, word in plain.items() if word.replace(".", "", 1).isdigit()}
        size, weights = (number_of(said[name][0], -MOST) * _SIZES[said[name][1]] if name in said else None
                         for name in ("kv_size", "weight_size"))  # fmt: skip
    except ValueError as error:
        raise SpecError(f"{source}: the engine says {error}") from None
    longest, times = number.get("max_len"), number.get("concurrency")
    room = number.get("kv_tokens") or (times * longest if times and longest else None)
    if engine == "llama.cpp" and "kv_tokens" not in said and longest:
        room = number.get("max_num_seqs", 1.0) * longest  # every slot has a cache of its own
    if (size is not None and size <= 0) or room == 0:
        raise SpecError(f"{source}: the engine found no room for its cache")
    tp, most = (int(number[name]) if name in number else None for name in ("tp", "max_num_seqs"))
    model, version = (said.get(name, (None,))[0] for name in ("model", "version"))
    formats = dict(_lines()["formats"].get(said.get("quantization", ("",))[0], {}))
    if cache_format := _lines()["caches"].get(said.get("kv", ("",))[0]):
        formats["kv"] = cache_format
    facts = Facts(_known(model), engine=_versioned(engine, version), tp=tp, max_num_seqs=most)
    deployment = formats | ({"pp": int(number["pp"])} if number.get("pp", 1) > 1 else {})
    return StartUp(source, size, round(room) if room else None, weights, int(longest) if longest else None, times,
                   facts, deployment)  # fmt: skip


def _found(quantities: Mapping[str, Sequence[re.Pattern[str]]], text: str) -> dict[str, tuple[str, ...]]:
    """The groups of the last line of each quantity, by the newest pattern that matches."""
    found = {}
    for name, lines in quantities.items():
        for line in lines:
            if matches := list(line.finditer(text)):
                found[name] = matches[-1].groups()
                break
    return found


def _known(name: str | None) -> str | None:
    """A model's name or path as it can be read here; of a path also its end, as caches of the hub name it.

    >>> _known("/models/models--meta-llama--Meta-Llama-3.1-8B"), _known("my-finetune")
    ('meta-llama/Meta-Llama-3.1-8B', None)
    """
    end = (name or "").rstrip("/").rpartition("/")[2]
    for each in (name, end.removeprefix("models--").replace("--", "/")):
        try:
            if each:
                load_model(each)
                return each
        except (InputError, SpecError):
            continue
    return None


def _versioned(engine: str, version: str | None) -> str:
    """`vllm@0.8.5`, or the engine alone where its version says nothing here."""
    plain = re.match(r"\d+\.\d+(\.\d+)?", version or "")
    try:
        load_engine(engine, plain[0] if plain else None)
    except InputError:
        return engine
    return f"{engine}@{plain[0]}" if plain else engine

"""Start-up logs of engines: its model, its split, its formats, its cache and its limits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path

from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.evidence.measurement import RunFacts, StartUp
from rooflinekit.model.types.errors import InputError, SpecError
from rooflinekit.model.types.units import GIB
from rooflinekit.specs import load_model
from rooflinekit.specs.engines import load_engine
from rooflinekit.specs.files import table_of
from rooflinekit.specs.foreign import MOST, number_of

_SIZES = {"GiB": GIB, "GB": GIB, "MiB": GIB / 1024.0}  # engines that label GB divide by 2^30 too
_STATES = re.compile(r"\b(?:conv_state|ssm_state|intermediate_ssm_state_cache|conv_window):? ([\d.]+) ?GB")
_TOLD = ("memory_fraction", "token_budget", "max_model_len", "block_size", "lora_rank", "lora_adapters")
_TOLD_ABOVE_ONE = ("pp", "dp", "api_servers", "stream_interval", "scheduler_recv_interval")
_DRAFTED = ("weight_size", "key_size", "value_size", "graph_size")
_DIVIDED = 1.05  # tokens of all sequences of the longest length, over those that are printed, above rounding
_BEGIN = 1 << 20  # characters of a file within which an engine says how it starts
_STARTED, _COMPILED = "Initializing a V1 LLM engine", "Compiling a graph for"  # lines of vLLM
_NO_ENGINE = ("formats", "caches", "prefixes")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_GGUF = re.compile(r"\b((?:I?Q|TQ)\d\w*?)(?: - (?:([SML])\w+))?(?: MoE)?$")


_lines = partial(table_of, __file__)
"""Patterns of lines by engine and quantity, and the names of formats."""


@cache
def _patterns() -> Mapping[str, Mapping[str, Sequence[re.Pattern[str]]]]:
    return {
        engine: {name: [re.compile(each, re.MULTILINE) for each in lines] for name, lines in quantities.items()}
        for engine, quantities in _lines().items()
        if engine not in _NO_ENGINE
    }


def is_startup(text: str) -> bool:
    """True if a text holds a line that an engine writes when it starts."""
    begin = text[:_BEGIN]
    return any(
        each.search(begin) for quantities in _patterns().values() for lines in quantities.values() for each in lines
    )


def read_startups(source: str, text: str) -> list[StartUp]:
    """The start-up log of each service whose lines a text holds, as compose, kubectl and journald put them together."""
    parts = {name: part for name, part in services(text).items() if is_startup(part)}
    return [read_startup(f"{source} ({name})" if len(parts) > 1 else source, part) for name, part in parts.items()]


def read_startup(source: str, text: str) -> StartUp:
    """Read what the engine that wrote most of the known lines says.

    vLLM before 0.7.3 gives blocks and the longest request instead of tokens: tokens = concurrency · longest. So they
    are where vLLM divides the tokens of a hybrid model by its groups of layers.

    >>> log = "GPU KV cache size: 178,880 tokens, Maximum concurrency for 40,960 tokens per request: 4.37x"
    >>> read_startup("log", log).kv_tokens
    178880
    """
    try:
        every = {engine: _found(quantities, text) for engine, quantities in _patterns().items()}
        engine = max(every, key=lambda name: len(every[name]))
        said = every[engine]
        plain = {name: value[0].replace(",", "") for name, value in said.items()}
        number = {name: number_of(word) for name, word in plain.items() if word.replace(".", "", 1).isdigit()}
        size = {
            name.removesuffix("_size"): number_of(value[0], -MOST) * _SIZES[value[1]]
            for name, value in said.items()
            if name.endswith("_size") and len(value) > 1
        }
        line = next((line for line in reversed(text.splitlines()) if "ssm_state" in line), "")
        states = GIB * sum(map(number_of, _STATES.findall(line))) if engine == "sglang" else 0.0
    except ValueError as error:
        raise SpecError(f"{source}: the engine says {error}") from None
    if "second" in said:  # of several accelerators, whose parts differ, none is said
        size = {}
    if "key" in size:
        size["kv"] = size["key"] + size.get("value", 0.0)
    longest, times, printed = (number.get(name) for name in ("max_len", "concurrency", "kv_tokens"))
    whole = times * longest if times and longest else None
    divided = bool(printed and whole and whole > _DIVIDED * printed)
    room = whole if divided or not printed else printed
    if engine == "llama.cpp" and "kv_tokens" not in said and longest:
        room = number.get("max_num_seqs", 1.0) * longest  # every slot has a cache of its own
    if size.get("kv", 1.0) <= 0 or room == 0:
        raise SpecError(f"{source}: the engine found no room for its cache")
    tp, most = (int(number[name]) if name in number else None for name in ("tp", "max_num_seqs"))
    model, version = (said.get(name, (None,))[0] for name in ("model", "version"))
    stored = said.get("quantization", ("",))[0]
    told: OwnKeywords = formats_of(stored, said.get("kv", ("",))[0])
    told |= {
        name: value if name == "memory_fraction" else int(value)
        for name in _TOLD + _TOLD_ABOVE_ONE
        if (value := number.get(name, 0.0)) > (name in _TOLD_ABOVE_ONE)
    }
    if "eager" in said:
        told["eager"] = True
    for name in ("async_scheduling", "prefix_caching"):
        for key, on in ((name, "True"), (f"{name}_off", "False")):
            if key in said:
                told[name] = "on" if plain[key] == on else "off"
    if "ep" in said and (ranks := (tp or 1) * int(told.get("dp", 1))) > 1:
        told["ep"] = ranks
    return StartUp(
        source, size.get("kv"), round(room) if room else None, size.get("weight"), int(longest) if longest else None,
        times, RunFacts(known_model(model), engine=_versioned(engine, version), tp=tp, max_num_seqs=most), told,
        printed_tokens=round(printed) if divided and printed else None, state_bytes=states or None,
        graph_bytes=size.get("graph"), activation_bytes=size.get("activation"), called=model,
        draft=said.get("draft", (None,))[0], draft_tokens=int(number.get("drafted", 0.0)),
        stored=stored if stored not in ("", "None") and "weights" not in told else None,
        compiled=text.rfind(_COMPILED) > text.rfind(_STARTED),
    )  # fmt: skip


def formats_of(quantization: str | None, kv: str | None) -> dict[str, str]:
    """Formats of weights, activations and cache as options name them, from an engine's own names; unknown ones not.

    >>> formats_of("awq_marlin", "fp8_e4m3")
    {'weights': 'int4', 'kv': 'fp8'}
    """
    formats, caches = _lines()["formats"], _lines()["caches"]
    return dict(formats.get(quantization or "", {})) | ({"kv": caches[kv]} if kv in caches else {})


def gguf_format(said: str) -> str | None:
    """The format at the end of what llama.cpp calls a model, as options name it.

    >>> gguf_format("qwen3moe 30B.A3B Q4_K - Medium"), gguf_format("llama 7B Q4_0"), gguf_format("llama 7B all F32")
    ('q4_k_m', 'q4_0', None)
    """
    if known := next((key for key in _lines()["formats"] if said.endswith(f" {key}")), None):
        return str(_lines()["formats"][known]["weights"])
    hit = _GGUF.search(said)
    return "_".join(filter(None, hit.groups())).lower() if hit else None


def services(text: str) -> dict[str, str]:
    """A log without what compose, kubectl or journald put before each line, by the service that wrote it.

    >>> {name: part.split() for name, part in services(f"a | x{chr(10)}b | y{chr(10)}a | z").items()}
    {'a': ['x', 'z'], 'b': ['y']}
    """
    found: dict[str, list[str]] = {}
    for raw in _COLOURS.sub("", text).splitlines():
        name, line = "", _unwrapped(raw)
        for prefix in _lines()["prefixes"]:
            if hit := re.match(prefix, line):
                name, line = hit.groupdict().get("name") or name, line[hit.end() :]
        found.setdefault(name, []).append(line)
    if len(found) == 2 and "" in found:  # lines without a prefix are of the one service
        return {"": "".join(f"{line}\n" for line in chain(*found.values()))}
    return {name: "".join(f"{line}\n" for line in lines) for name, lines in found.items()}


def _unwrapped(line: str) -> str:
    """The line in what docker's json-file driver writes; any other as it is."""
    if not line.startswith('{"log":'):
        return line
    try:
        return str(json.loads(line)["log"]).rstrip("\n")
    except (ValueError, TypeError, KeyError):
        return line


def _found(quantities: Mapping[str, Sequence[re.Pattern[str]]], text: str) -> dict[str, tuple[str, ...]]:
    """The groups of the last line of each quantity, by the newest pattern that matches.

    Of sizes that SGLang says at its last start for a model and then for its draft, the model's, which are the larger.
    """
    found, sglang = {}, quantities is _patterns()["sglang"]
    start = text.rfind("ServerArgs(")
    for name, lines in quantities.items():
        for line in lines:
            if matches := list(line.finditer(text)):
                drafted = [hit for hit in matches if hit.start() > start] if sglang and name in _DRAFTED else []
                hit = max(drafted, key=lambda hit: number_of(hit[1])) if drafted else matches[-1]
                found[name] = hit.groups()
                break
    return found


def known_model(name: str | None) -> str | None:
    """A model's name or path as it can be read here; of a path also its end, as caches of the hub name it.

    >>> known_model("/models/models--meta-llama--Meta-Llama-3.1-8B"), known_model("my-finetune")
    ('meta-llama/Meta-Llama-3.1-8B', None)
    """
    path = Path(name or "")
    end = path.name.removeprefix("models--").replace("--", "/")
    elsewhere = path.is_absolute() and not os.path.lexists(path)  # on the disk of its engine
    for each in (end, name) if elsewhere else (name, end):
        try:
            if each:
                load_model(each)
                return each
        except (InputError, SpecError):
            continue
    return None


def _versioned(engine: str, version: str | None) -> str:
    """`vllm@0.8.5`, or the engine alone where its version says nothing here."""
    plain = re.match(r"\d+\.\d+(\.\d+)?|\d{4,5}$", version or "")
    try:
        load_engine(engine, plain[0] if plain else None)
    except InputError:
        return engine
    return f"{engine}@{plain[0]}" if plain else engine

"""Engine profiles by version: how an engine divides memory, what a step costs it, which flags its server takes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

from rooflinekit.model.types.engine import Budget, Engine, LoadErrors, MemoryRule, Pair, Places, StepCosts, Variances
from rooflinekit.model.types.errors import InputError, UnknownNameError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.hardware import Provenance
from rooflinekit.specs.doubt import own_loads, version_variances
from rooflinekit.specs.files import Parsed, kept, table_of
from rooflinekit.specs.section import EMPTY, Cites, FileLayout, FileSection, described

T = TypeVar("T")

_FOLDER = Path(__file__).resolve().with_name("profiles")
_VERSION = r"(?i)[vb]?\d+(?:\.\d+)*(?:[.+-]?[a-z][\w.+-]*)?"
_TABLE = table_of(__file__)
UNITLESS: Mapping[str, float] = _TABLE["unitless"]
"""Quantities of step costs without a unit, and their largest values; the other costs are times."""


class _Fact(FileLayout):
    """One number of a profile, or a pair of them, with the documents that say it."""

    value: Any
    source: Cites
    spread: Any = None
    note: str = ""


class _Versions(FileLayout):
    memory: Parsed
    serial_states: bool = False
    since: str = ""
    until: str = ""


class _Profile(FileLayout):
    title: str
    versions: tuple[_Versions, ...]
    sources: Parsed = EMPTY
    vendors: tuple[str, ...] = ()


class _Flag(FileLayout):
    flag: str
    kind: Literal["integer", "number", "text", "choice", "json", "switch", "flag", "nothing"]
    since: str
    source: Cites
    last: str = ""
    default: str = ""
    values: Mapping[str, str] = EMPTY


class _FlagFile(FileLayout):
    title: str
    program: tuple[str, ...]
    read: tuple[str, ...]
    notes: Mapping[str, str]
    sources: Parsed
    flags: Parsed


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, as far as they go, compared one by one; trailing zeros do not count.

    >>> version_key("0.8") == version_key("0.8.0") < version_key("0.8.5.post1") < version_key("0.10")
    True
    """
    numbers: list[int] = []
    for part in version.lower().lstrip("vb").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        numbers += [int(digits)] if digits else []
        if digits != part:
            break
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def engine_names() -> list[str]:
    """Every engine that has a profile, sorted."""
    return [*kept(_stems, _FOLDER)]


def split_version(text: str) -> tuple[str, str | None]:
    """Engine and version of `vllm@0.8.5`; the version is None if none is given.

    >>> split_version("vLLM@0.8.5"), split_version("sglang")
    (('vllm', '0.8.5'), ('sglang', None))
    """
    name, at, version = text.strip().lower().partition("@")
    name = "llama.cpp" if name in ("llamacpp", "llama-cpp", "llama_cpp") else name
    if at and not re.fullmatch(_VERSION, version):
        like = "b4404" if name == "llama.cpp" else "0.8.5"
        raise InputError(f"engine {text!r}: {version!r} is not a version; write it like {name}@{like}")
    return name, version if at else None


def load_engine(name: str, version: str | None = None, accelerator: str = "") -> Engine:
    """The profile of an engine at a version, the newest it knows by default; `name` may be `vllm@0.8.5`.

    Costs of a step that were measured on an accelerator alone hold for its name.

    >>> load_engine("ideal").memory.budget
    'none'
    """
    engine, given = split_version(name)
    if engine not in engine_names():
        raise UnknownNameError("engine", engine, engine_names())
    alone = accelerator if (accelerator in [_measured_on(part) for part in _ranges(engine)]) else ""
    also = (engine, given or version, alone)
    return kept(_engine, _FOLDER / f"{engine}.yaml", _FOLDER / "steps" / f"{engine}.yaml", also=also)


def _engine(path: Path, _: Path, name: str, version: str | None, accelerator: str) -> Engine:
    root = FileSection.open(path)
    profile = root.read(_Profile)
    for earlier, later in pairwise(profile.versions):
        if earlier.until != later.since:
            root.refuse("versions", f"{earlier.until!r} is followed by {later.since!r}; ranges must join, oldest first")
    number = _choose(name, profile.versions, version)
    chosen = profile.versions[number]
    rule, provenance = read_facts(root.entries("versions")[number].section("memory"), MemoryRule, "memory.")
    engine = Engine(
        name,
        profile.title,
        chosen.since,
        chosen.until,
        rule,
        serial_states=chosen.serial_states,
        vendors=profile.vendors,
        provenance=provenance,
    )
    steps = _range(name, version, accelerator)
    if steps is None:
        return engine
    costs, origins = read_facts(steps.section("costs"), StepCosts)
    whole = steps.text("measured") if _measured_on(steps) == accelerator != "" else ""
    costs = replace(costs, whole=whole)
    loaded, factors = read_facts(steps.section("loaded"), LoadErrors, "loaded.")
    loaded = replace(loaded, version=version_variances(name, version), own=own_loads(name))
    words = {key: steps.section("tested").text(key) for key in ("static", "load")} if steps.has("tested") else {}
    return replace(engine, costs=costs, loaded=loaded, tested=words, provenance=(*provenance, *origins, *factors))


def engine_version_of(name: str, text: str) -> str | None:
    """The version that a free text means: `TRT-LLM ~0.9-0.11`, `0.5.6.post2`, a date (`2024-09`); None if it has none.

    A year alone counts as its middle; a date means the newest version released by then.

    >>> engine_version_of("trtllm", "vLLM ~0.4-0.6 / TRT-LLM ~0.9-0.11 (2024)"), engine_version_of("vllm", "dev")
    ('0.9', None)
    """
    if not load_engine(name).since:
        return None
    spelt = _TABLE["spellings"].get(name, name)
    own = re.search(rf"(?:{spelt})\D{{0,3}}(\d+\.\d+(?:\.\d+)*)", text, re.IGNORECASE)
    found = own or re.search(r"(?<![\d.-])(?!20\d\d)(\d+\.\d+(?:\.\d+)*)", text)
    if found:
        return found[1]
    date = re.search(r"20\d\d(?:-\d\d)?", text)
    if date is None:
        return None
    month = date[0] if len(date[0]) > 4 else f"{date[0]}-07"
    began = [part.text("since") for part in _ranges(name) if not _only(part) and part.text("released") <= month]
    return began[-1] if began else None


def step_ranges(name: str) -> list[tuple[str, str]]:
    """Version from which each range of step costs holds, oldest first, and its accelerator ("" for all others)."""
    return [(part.text("since"), _only(part)) for part in _ranges(name)]


def _only(part: FileSection) -> str:
    return part.text("accelerator") if part.has("accelerator") else ""


def _measured_on(part: FileSection) -> str:
    """The accelerator whose steps were measured whole, where it is one."""
    return _only(part) or (part.text("measured_on") if part.has("measured_on") else "")


def step_range(name: str, version: str | None = None) -> str:
    """The version from which the step costs of a version hold; empty for an engine without versions."""
    found = _range(name, version)
    return found.text("since") if found else ""


def _ranges(name: str) -> list[FileSection]:
    """Costs of a step from each version on, oldest first (benchmarks/fit_engines.py writes the files)."""
    path = _FOLDER / "steps" / f"{name}.yaml"
    return kept(_read_ranges, path) if path.is_file() else []


def _read_ranges(path: Path) -> list[FileSection]:
    root = FileSection.open(path)
    root.expect(("steps",), ("sources",))
    ranges = root.entries("steps")
    for part in ranges:
        part.expect((), ("since", "accelerator", "measured_on", "measured", "released", "costs", "loaded", "tested"))
    return ranges


def _range(name: str, version: str | None, accelerator: str = "") -> FileSection | None:
    """The step costs of a version: of the range it falls in, else of the nearest one; None for an engine without."""
    ranges = [part for part in _ranges(name) if _only(part) in ("", accelerator)]
    later = [part for part in ranges if version is not None and version_key(part.text("since")) > version_key(version)]
    return ranges[max(len(ranges) - len(later) - 1, 0)] if ranges else None


def _choose(name: str, ranges: tuple[_Versions, ...], version: str | None) -> int:
    """Index of the range that the version falls in; the newest stands last in the file."""
    if version is None:
        return len(ranges) - 1
    if not ranges[0].since:
        raise InputError(f"engine {name} has no versions; leave @{version} out")
    key = version_key(version)
    for number, part in enumerate(ranges):
        if version_key(part.since) <= key and (not part.until or key < version_key(part.until)):
            return number
    raise InputError(f"engine {name} {version} is older than any version described; the first is {ranges[0].since}")


def read_facts(section: FileSection, kind: type[T], prefix: str = "") -> tuple[T, tuple[Provenance, ...]]:
    """The facts of a section as a `kind` (memory rule, step costs, errors under load), and where each comes from.

    Keys that are not there keep their defaults. Raises SpecError for anything unknown.
    """
    required, hints = described(kind)
    section.expect(required, [key for key in hints if key != "spread"])
    chosen: dict[str, Any] = {}
    spread: dict[str, float] = {}
    provenance: list[Provenance] = []
    for key in section.data:
        if hints[key] in (bool, str, Budget):
            chosen[key] = section.value(key, hints[key])
            continue
        entry = section.section(key)
        fact = entry.read(_Fact)
        values = fact.value if isinstance(fact.value, list) else [fact.value]
        places = hints[key] in (Places, Places | None)
        several = (7,) if places else {Pair: (1, 2), Variances: (5,)}.get(hints[key], (1,))
        if len(values) not in several:
            entry.refuse("value", f"{fact.value!r} has the wrong length")
        unit = ("" if key in UNITLESS else "s") if kind is StepCosts else _TABLE["units"].get(key, "")
        read = [_number(entry, key, "value", value, unit) for value in values]
        if hints[key] == Variances and min(read) < 0.0:
            entry.refuse("value", f"{fact.value!r} has a variance below 0")
        if places and read != sorted(read):
            entry.refuse("value", f"{fact.value!r} does not rise")
        if kind is StepCosts:
            spread[key] = _number(entry, key, "spread", fact.spread, unit) if entry.has("spread") else 0.0
        note = "" if fact.spread is None else f" ± {fact.spread}"
        for value, part in zip(
            read, _TABLE["parts"].get(key, (".low", ".high")) if len(read) > 1 else ("",), strict=True
        ):
            title = entry.titles(fact.source)
            provenance.append(Provenance(f"engine.{prefix}{key}{part}{note}", value, unit, title))
        chosen[key] = (read[0], read[-1]) if hints[key] == Pair else tuple(read) if read[1:] else hints[key](read[0])
    return kind(**chosen, **({"spread": spread} if kind is StepCosts else {})), tuple(provenance)


def _number(entry: FileSection, key: str, part: str, value: object, unit: str) -> float:
    if unit:
        return entry.quantity_in(part, value, unit)
    least, most = (-100.0, 100.0) if key.endswith("_places") else (0.0, UNITLESS.get(key, math.inf))
    return entry.number_in(part, value, least, most)


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting: an option of the command line (it begins with `-`) or a key of the configuration file."""

    concept: str  #: what it is for, the same word in every engine's table
    spelling: str  #: `--max-num-seqs`, or `kv_cache_config.dtype`
    kind: str  #: integer, number, text, choice, json, switch (an option alone), flag (true or false), nothing (null)
    since: str  #: oldest version that was read and has it
    last: str = ""  #: newest version that was read and has it; "" if the newest of all has it
    default: str = ""  #: what the engine does without it, where its source says so
    values: Mapping[str, str] = field(default_factory=dict, hash=False)  #: our word -> the engine's
    source: str = ""

    @property
    def on_command_line(self) -> bool:
        """True if it is an option of the command, not a key of a file."""
        return self.spelling.startswith("-")

    def known_at(self, version: str) -> bool:
        """True if a version is one for which it was read, or lies between two such versions."""
        key = version_key(version)
        return version_key(self.since) <= key and (not self.last or key <= version_key(self.last))

    def shared(self, later: Flag) -> Flag | None:
        """Common part of this and a later form of a setting; None if it changed its name or kind."""
        if (self.spelling, self.kind) != (later.spelling, later.kind):
            return None
        values = {ours: theirs for ours, theirs in self.values.items() if later.values.get(ours) == theirs}
        return replace(self, values=values, default=self.default if self.default == later.default else "")


@dataclass(frozen=True, slots=True)
class FlagTable:
    """Everything that is known about the settings of one engine's server."""

    engine: str
    title: str
    program: tuple[str, ...]  #: the command that starts a server
    read: tuple[str, ...]  #: versions whose sources were read, oldest first
    flags: tuple[Flag, ...]
    notes: Mapping[str, str] = field(default_factory=dict)  #: how `replicas`, or those of a `split`, become a service

    def check(self, version: str) -> str:
        """The version to look up; the newest that was read if it is empty."""
        first, newest = self.read[0], self.read[-1]
        if not version:
            return newest
        if not version_key(first) <= version_key(version) or self.ends_before(version):
            raise InputError(
                f"the settings of {self.engine} {version} are not known. Sources of {first} to {newest} were read: "
                f"take one of these, such as --engine {self.engine}@{newest}"
            )
        return version

    def ends_before(self, version: str) -> bool:
        """True if a version is newer than all that were read; patches of the newest are not."""
        return (*version_key(version), 0)[:2] > (*version_key(self.read[-1]), 0)[:2]

    def values(self, concept: str) -> set[str]:
        """Every word that a version takes for a concept; empty where none has a setting for it."""
        return {word for flag in self.flags if flag.concept == concept for word in flag.values}

    def find(self, concept: str, version: str) -> Flag | None:
        """The setting for a concept at a version; None if none is known there.

        Between two versions that were read, a setting that both have is there too, with the values that both take.
        """
        flags, key = [flag for flag in self.flags if flag.concept == concept], version_key(version)
        for flag in flags:
            if flag.known_at(version):
                return flag
        before = [flag for flag in flags if flag.last and version_key(flag.last) < key]
        after = [flag for flag in flags if key < version_key(flag.since)]
        return before[-1].shared(after[0]) if before and after else None

    def known(self, spelling: str, version: str) -> bool:
        """True if a spelling is one of the settings of a version."""
        concepts = {flag.concept for flag in self.flags if flag.spelling == spelling}
        found = (self.find(concept, version) for concept in concepts)
        return any(flag is not None and flag.spelling == spelling for flag in found)


def launchable() -> list[str]:
    """Every engine whose server's settings are known, sorted."""
    return [*kept(_stems, _FOLDER / "flags")]


def caches_prefixes(engine: str, version: str | None) -> bool:
    """True if an engine's server keeps the blocks of prompts unless it is told not to; without a version its newest.

    >>> caches_prefixes("vllm", None), caches_prefixes("vllm", "0.6.3"), caches_prefixes("sglang", None)
    (True, False, True)
    """
    on, off = (server_setting(engine, version, concept) for concept in ("prefix_cache", "prefix_cache_off"))
    return (on is not None and on.default in ("on", "true")) or (off is not None and off.default == "off")


def server_setting(engine: str, version: str | None, concept: str) -> Flag | None:
    """The setting of an engine's server for a concept, None where it has none; without a version of its newest.

    >>> server_setting("sglang", None, "api_servers").spelling, server_setting("llama.cpp", None, "api_servers")
    ('--tokenizer-worker-num', None)
    """
    if engine not in launchable():
        return None
    table = load_flags(engine)
    return table.find(concept, version or table.read[-1])


def newest_before(engine: str, version: str | None) -> str:
    """The newest version known of an engine, where this one is newer still; else empty.

    >>> newest_before("vllm", "9.9.9"), newest_before("vllm", "0.33.2"), newest_before("vllm", None)
    ('0.33.0', '', '')
    """
    if version is None or engine not in launchable():
        return ""
    table = load_flags(engine)
    return table.read[-1] if table.ends_before(version) else ""


def _stems(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


@lru_cache(maxsize=8)
def load_flags(engine: str) -> FlagTable:
    """The table of what an engine's server takes, from `profiles/flags/ENGINE.yaml`.

    >>> load_flags("vllm").find("sequences", "0.8.5").spelling
    '--max-num-seqs'
    """
    if engine not in launchable():
        raise InputError(f"no server settings of {engine} are known; nearest: {', '.join(launchable())}")
    root = FileSection.open(_FOLDER / "flags" / f"{engine}.yaml")
    file = root.read(_FlagFile)
    concepts = root.section("flags")
    flags = []
    for concept in concepts.data:
        for part in concepts.entries(concept):
            entry = part.read(_Flag)
            for key, version in (("since", entry.since), ("last", entry.last)):
                if version and version not in file.read:
                    part.refuse(key, f"value {version!r} is not under `read`: {', '.join(file.read)}")
            about = (entry.flag, entry.kind, entry.since, entry.last, entry.default, dict(entry.values))
            flags.append(Flag(concept, *about, part.titles(entry.source)))
    return FlagTable(engine, file.title, file.program, file.read, tuple(flags), file.notes)

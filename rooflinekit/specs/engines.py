"""Engine profiles: which versions a file describes, and how each divides the memory of an accelerator."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

from rooflinekit.model.types.engine import Budget, Engine, MemoryRule, Pair, StepCosts
from rooflinekit.model.types.errors import InputError, UnknownNameError
from rooflinekit.model.types.hardware import Provenance, Source
from rooflinekit.model.types.units import parse_quantity
from rooflinekit.specs.cited import read_sources
from rooflinekit.specs.engine_costs import read_step_costs
from rooflinekit.specs.reading import read_yaml
from rooflinekit.specs.section import Section

__all__ = ["engine_names", "engine_version_of", "load_engine", "split_version", "step_range", "step_ranges"]

_FOLDER = Path(__file__).resolve().with_name("profiles")
_VERSION = re.compile(r"[vb]?(\d+(?:\.\d+)*)(?:[.+-]?[a-z][\w.+-]*)?", re.IGNORECASE)
_SIZES = (
    "large", "context", "non_torch", "graphs", "graphs_per_layer", "layer_base", "sampler_base", "state_base",
    "loading", "slack",
)  # fmt: skip
# the fields of a memory rule that are in bytes

_PARTS = {
    **dict.fromkeys(("context", "non_torch"), (".one", ".several")),
    **dict.fromkeys(("token_budget", "max_num_seqs"), (".small", ".large")),
    "mxfp4_multiple": (".inputs", ".outputs"),
}  # what the two numbers of a pair are


def engine_names() -> list[str]:
    """Every engine that has a profile, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def split_version(text: str) -> tuple[str, str | None]:
    """Engine and version of `vllm@0.8.5`; the version is None if none is given.

    >>> split_version("vLLM@0.8.5"), split_version("sglang")
    (('vllm', '0.8.5'), ('sglang', None))

    Raises InputError for something that is no version.
    """
    name, at, version = text.strip().lower().partition("@")
    if at and not _VERSION.fullmatch(version):
        raise InputError(f"engine {text!r}: {version!r} is not a version; write it like {name}@0.8.5")
    return name, version if at else None


def load_engine(name: str, version: str | None = None) -> Engine:
    """The profile of an engine at a version, the newest it knows by default; `name` may be `vllm@0.8.5`.

    >>> load_engine("ideal").memory.budget
    'none'

    Raises UnknownNameError for an engine without a profile, InputError for a version that none of its profiles
    describes, and SpecError for a file that cannot be trusted.
    """
    engine, given = split_version(name)
    if engine not in engine_names():
        raise UnknownNameError("engine", engine, engine_names())
    at = given or version
    profile = _choose(engine, _profiles(engine), at)
    costs, origins = _costs(engine, at)
    return replace(profile, costs=costs, provenance=(*profile.provenance, *origins))


def engine_version_of(name: str, text: str) -> str | None:
    """The version that a free text means: `TRT-LLM ~0.9-0.11`, `0.5.6.post2`, a date (`2024-09`); None if it has none.

    A year alone counts as its middle; a date means the newest version released by then.

    >>> engine_version_of("trtllm", "vLLM ~0.4-0.6 / TRT-LLM ~0.9-0.11 (2024)"), engine_version_of("vllm", "dev")
    ('0.9', None)
    """
    if not _profiles(name)[0].since:
        return None
    spelt = _SPELLINGS.get(name, name)
    own = re.search(rf"(?:{spelt})\D{{0,3}}(\d+\.\d+(?:\.\d+)*)", text, re.IGNORECASE)
    found = own or re.search(r"(?<![\d.-])(?!20\d\d)(\d+\.\d+(?:\.\d+)*)", text)
    if found:
        return found[1]
    date = re.search(r"20\d\d(?:-\d\d)?", text)
    return _released_by(name, date[0] if len(date[0]) > 4 else f"{date[0]}-07") if date else None


def _released_by(name: str, month: str) -> str | None:
    """The first version of the newest range of step costs that began by then."""
    root = _steps_root(name)
    began = [part.text("since") for part in _parts(root, "steps") if part.text("released") <= month] if root else []
    return began[-1] if began else None


_SPELLINGS = {"trtllm": "trt-?llm|tensorrt-?llm", "vllm": "vllm", "gpt-fast": "gpt-?fast"}


def step_ranges(name: str) -> list[str]:
    """The versions from which each range of step costs holds, oldest first; empty for an engine without costs."""
    root = _steps_root(name)
    return [part.text("since") for part in _parts(root, "steps")] if root else []


def step_range(name: str, version: str | None = None) -> str:
    """The version from which the step costs of a version hold; empty for an engine without versions."""
    found = _range(name, version)
    return found.text("since") if found else ""


def _range(name: str, version: str | None) -> Section | None:
    """The step costs of a version: of the range it falls in, else of the nearest one."""
    root = _steps_root(name)
    parts = list(_parts(root, "steps")) if root else []
    later = [part for part in parts if version is not None and _key(part.text("since")) > _key(version)]
    return parts[max(len(parts) - len(later) - 1, 0)] if parts else None


@lru_cache(maxsize=64)
def _costs(name: str, version: str | None) -> tuple[StepCosts, tuple[Provenance, ...]]:
    chosen = _range(name, version)
    if chosen is None:
        return StepCosts(), ()
    root = _steps_root(name)
    sources = read_sources(root.section("sources")) if root else {}
    chosen.expect((), ("since", "released", "costs"))
    return read_step_costs(chosen.section("costs"), sources)


@lru_cache(maxsize=16)
def _steps_root(name: str) -> Section | None:
    """The file of step costs, which benchmarks/fit_engines.py writes; None for an engine without one."""
    path = _FOLDER / "steps" / f"{name}.yaml"
    if not path.is_file():
        return None
    root = Section(path, "", read_yaml(path))
    root.expect(("steps",), ("sources",))
    return root


def _root(name: str) -> Section:
    path = _FOLDER / f"{name}.yaml"
    root = Section(path, "", read_yaml(path))
    root.expect(("title", "versions"), ("sources",))
    return root


def _choose(name: str, profiles: tuple[Engine, ...], version: str | None) -> Engine:
    """The profile in whose range the version falls; the newest stands last in the file."""
    if version is None:
        return profiles[-1]
    if not profiles[0].since:
        raise InputError(f"engine {name} has no versions; leave @{version} out")
    key = _key(version)
    for profile in profiles:
        if _key(profile.since) <= key and (not profile.until or key < _key(profile.until)):
            return profile
    raise InputError(f"engine {name} {version} is older than any version described; the first is {profiles[0].since}")


def _key(version: str) -> tuple[int, ...]:
    """The numbers of a version, compared one by one.

    >>> _key("0.8.5.post1") < _key("0.10") < _key("1.0.0rc2")
    True
    """
    found = _VERSION.fullmatch(version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


@lru_cache(maxsize=16)
def _profiles(name: str) -> tuple[Engine, ...]:
    root = _root(name)
    sources = read_sources(root.section("sources"))
    found = [_profile(name, root, part, sources) for part in _parts(root)]
    for earlier, later in pairwise(found):
        if earlier.until != later.since:
            root.refuse("versions", f"{earlier.until!r} is followed by {later.since!r}; ranges must join, oldest first")
    return tuple(found)


def _parts(root: Section, key: str = "versions") -> Iterator[Section]:
    """The ranges under `versions` (memory) or `steps` (time), oldest first."""
    listed = root.data.get(key, [])
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        root.refuse(key, "is not a list of sections; put `- since: …` with keys under it")
    for number, item in enumerate(listed):
        yield Section(root.file, f"{key}[{number}]", item)


def _profile(name: str, root: Section, part: Section, sources: dict[str, Source]) -> Engine:
    part.expect(("memory",), ("since", "until"))
    numbers = _Numbers(part.section("memory"), sources)
    rule = numbers.rule()
    facts = (root.text("title"), part.text("since"), part.text("until"))
    return Engine(name, *facts, rule, provenance=tuple(numbers.provenance))


@dataclass(frozen=True)
class _Numbers:
    """The `memory` section of a profile; every number is a section with `value`, `source` and maybe `spread`."""

    section: Section
    sources: dict[str, Source]
    provenance: list[Provenance] = field(default_factory=list)

    def rule(self) -> MemoryRule:
        """Read the keys that are there; the others keep the default of `MemoryRule`."""
        hints = get_type_hints(MemoryRule)
        self.section.expect(("budget",), [f.name for f in fields(MemoryRule) if f.name != "budget"])
        return MemoryRule(**{key: self._value(key, hints[key]) for key in self.section.data})

    def _value(self, key: str, kind: Any) -> Any:
        if key == "budget":
            return self._choice(key, get_args(Budget))
        if kind is bool:
            return self.section.flag(key)
        if kind is str:
            return self.section.text(key)
        entry = self.section.section(key)
        entry.expect(("value", "source"), ("spread", "note"))
        self._check_sources(entry)
        given = entry.data["value"]
        values = given if isinstance(given, list) else [given]
        if len(values) not in ((1, 2) if kind == Pair else (1,)):
            entry.refuse("value", f"{given!r} has the wrong length")
        read = [self._number(entry, value, key) for value in values]
        for value, part in zip(read, _PARTS.get(key, ("",)) if len(read) > 1 else ("",), strict=True):
            self._record(entry, key + part, value)
        return (read[0], read[-1]) if kind == Pair else kind(read[0])

    def _choice(self, key: str, known: Collection[str]) -> str:
        text = self.section.text(key)
        if text not in known:
            self.section.refuse(key, f"value {text!r} is not one of {', '.join(known)}")
        return text

    def _number(self, entry: Section, value: object, key: str) -> float:
        if key in _SIZES:
            try:
                return parse_quantity(value, "B")
            except (ValueError, OverflowError) as error:
                entry.refuse("value", str(error))
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            entry.refuse("value", f"{value!r} is not a number of at least 0")
        return float(value)

    def _check_sources(self, entry: Section) -> None:
        for name in entry.texts("source"):
            if name not in self.sources:
                entry.refuse(
                    "source", f"{name!r} is not under `sources`: {', '.join(self.sources) or 'none is listed'}"
                )

    def _record(self, entry: Section, key: str, value: float) -> None:
        cited = [self.sources[name] for name in entry.texts("source")]
        titles = "; ".join(source.title + ("" if source.read else " (not read)") for source in cited)
        spread = f" ± {entry.data['spread']}" if entry.has("spread") else ""
        unit = "B" if key.partition(".")[0] in _SIZES else ""
        self.provenance.append(Provenance(f"engine.memory.{key}{spread}", value, unit, titles))

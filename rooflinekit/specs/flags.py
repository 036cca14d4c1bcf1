"""Reads the tables of what an engine's server takes, `rooflinekit/specs/profiles/flags/ENGINE.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.flags import Flag, FlagTable
from rooflinekit.model.types.hardware import Source
from rooflinekit.specs.cited import read_sources
from rooflinekit.specs.reading import read_yaml
from rooflinekit.specs.section import Section

__all__ = ["launchable", "load_flags"]

_FOLDER = Path(__file__).resolve().with_name("profiles") / "flags"
_KINDS = ("integer", "number", "text", "choice", "json", "switch", "flag", "nothing")


def launchable() -> list[str]:
    """Every engine whose server's settings are known, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


@lru_cache(maxsize=8)
def load_flags(engine: str) -> FlagTable:
    """The table of one engine.

    >>> load_flags("vllm").find("sequences", "0.8.5").spelling
    '--max-num-seqs'

    Raises InputError for an engine that has no server, SpecError for a file that cannot be trusted.
    """
    if engine not in launchable():
        raise InputError(f"engine {engine} has no server to launch; nearest: {', '.join(launchable())}")
    path = _FOLDER / f"{engine}.yaml"
    root = Section(path, "", read_yaml(path))
    root.expect(("title", "program", "read", "sources", "flags"))
    sources = read_sources(root.section("sources"))
    flags = tuple(_flags(root, sources))
    return FlagTable(engine, root.text("title"), root.texts("program"), root.texts("read"), flags)


def _flags(root: Section, sources: dict[str, Source]) -> Iterator[Flag]:
    concepts = root.section("flags")
    for concept in concepts.data:
        entries = concepts.data[concept]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            concepts.refuse(concept, "is not a list of sections; put `- {flag: …}` under it")
        for number, entry in enumerate(entries):
            part = Section(concepts.file, f"{concepts.path(concept)}[{number}]", entry)
            yield _flag(concept, part, sources, root.texts("read"))


def _flag(concept: str, part: Section, sources: dict[str, Source], read: tuple[str, ...]) -> Flag:
    part.expect(("flag", "kind", "since", "source"), ("last", "default", "values"))
    if part.text("kind") not in _KINDS:
        part.refuse("kind", f"value {part.text('kind')!r} is not one of {', '.join(_KINDS)}")
    for key in ("since", "last"):
        if part.has(key) and part.text(key) not in read:
            part.refuse(key, f"value {part.text(key)!r} is not under `read`: {', '.join(read)}")
    for name in part.texts("source"):
        if name not in sources:
            part.refuse("source", f"{name!r} is not under `sources`: {', '.join(sources)}")
    cited = [sources[name] for name in part.texts("source")]
    titles = "; ".join(source.title + ("" if source.read else " (not read)") for source in cited)
    values = part.section("values")
    return Flag(
        concept, part.text("flag"), part.text("kind"), part.text("since"), part.text("last"), part.text("default"),
        {key: values.text(key) for key in values.data}, titles,
    )  # fmt: skip

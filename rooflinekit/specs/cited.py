"""A section of a spec file whose numbers all have a source and a confidence; reading one leaves its provenance."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rooflinekit.model.types.errors import nearest
from rooflinekit.model.types.hardware import Provenance, Source
from rooflinekit.specs.section import Section

__all__ = ["Cited", "read_sources"]

_CONFIDENCE = ("A", "B", "C")


@dataclass(frozen=True)
class Cited:
    """A section with `confidence` (A, B or C), `source` (ids under `sources`) and, where facts lack, `assumed`."""

    section: Section
    confidence: str
    source: str
    assumed: Mapping[str, str]
    provenance: list[Provenance] = field(default_factory=list)

    @classmethod
    def of(
        cls, section: Section, sources: Mapping[str, Source], required: Collection[str], optional: Collection[str] = ()
    ) -> Cited:
        """Check the section's keys, and look its sources up.

        Raises SpecError for an unknown or missing key, another confidence, or a source that is not listed.
        """
        section.expect((*required, "confidence", "source"), (*optional, "assumed"))
        confidence = section.text("confidence")
        if confidence not in _CONFIDENCE:
            section.refuse("confidence", f"value {confidence!r} is not one of A, B, C")
        ids = section.texts("source")
        if not ids:
            section.refuse("source", "is empty; name at least one id from `sources`")
        for unknown in (name for name in ids if name not in sources):
            near = ", ".join(nearest(unknown, sources)) or "none is listed"
            section.refuse("source", f"value {unknown!r} is not under `sources`; nearest: {near}")
        titles = "; ".join(sources[name].title + ("" if sources[name].read else " (not read)") for name in ids)
        assumed = section.section("assumed")
        assumed.expect((), (*required, *optional))
        return cls(section, confidence, titles, {key: assumed.text(key) for key in assumed.data})

    def quantity(self, key: str, dimension: str) -> float:
        """A positive number in SI units of `dimension`; raises SpecError for anything else."""
        value = self.section.quantity(key, dimension)
        self._record(key, value, dimension)
        return value

    def optional(self, key: str, dimension: str) -> float:
        """The same, or 0 if the file does not give it."""
        return self.quantity(key, dimension) if self.section.has(key) else 0.0

    def count(self, key: str) -> int:
        """A whole number above 0; raises SpecError for anything else."""
        value = self.section.count(key)
        self._record(key, value, "")
        return value

    def quantities(self, key: str, dimension: str) -> dict[str, float]:
        """Every number of the mapping under `key`."""
        inner = self.section.section(key)
        values = {name: inner.quantity(name, dimension) for name in inner.data}
        for name, value in values.items():
            self._record(f"{key}.{name}", value, dimension)
        return values

    def _record(self, key: str, value: float, unit: str) -> None:
        reason = self.assumed.get(key)
        source, confidence = (f"assumed: {reason}", "C") if reason else (self.source, self.confidence)
        self.provenance.append(Provenance(self.section.path(key), value, unit, source, confidence))


def read_sources(section: Section) -> dict[str, Source]:
    """The documents that a file cites, by id.

    Raises SpecError if one lacks its title, its address, or whether it was read.
    """
    found = {}
    for name in section.data:
        entry = section.section(name)
        entry.expect(("title", "url", "read"))
        found[name] = Source(name, entry.text("title"), entry.text("url"), entry.flag("read"))
    return found

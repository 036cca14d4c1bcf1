"""The `step` section of an engine profile: what a step costs besides its kernels."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.hardware import Provenance, Source
from rooflinekit.model.types.units import parse_quantity
from rooflinekit.specs.section import Section

__all__ = ["read_step_costs"]

_SHARES = {"hidden": 1.0, "grouped": 20.0, "memory": 10.0, "compute": 10.0}
"""Shares and factors, with the most that makes sense."""
_FLAGS = ("graphs", "mixes")
_TIMES = tuple(f.name for f in fields(StepCosts) if f.name not in (*_SHARES, *_FLAGS, "interval", "spread"))


def read_step_costs(section: Section, sources: dict[str, Source]) -> tuple[StepCosts, tuple[Provenance, ...]]:
    """The costs of one range of versions and where they come from; raises SpecError for anything unknown."""
    section.expect((), (*_TIMES, *_SHARES, *_FLAGS, "interval"))
    chosen: dict[str, Any] = {key: section.flag(key) for key in _FLAGS if section.has(key)}
    spread, provenance = {}, []
    for key in (key for key in section.data if key not in _FLAGS):
        entry = section.section(key)
        entry.expect(("value", "source"), ("spread", "note"))
        chosen[key] = _number(entry, key, "value")
        spread[key] = _number(entry, key, "spread") if entry.has("spread") else 0.0
        label = f"engine.{key}" + (f" ± {entry.data['spread']}" if entry.has("spread") else "")
        titles = "; ".join(_titles(entry, sources))
        provenance.append(Provenance(label, chosen[key], "s" if key in _TIMES else "", titles))
    return StepCosts(**chosen, spread=spread), tuple(provenance)


def _number(entry: Section, key: str, part: str) -> float:
    given = entry.data[part]
    if key in _TIMES:
        try:
            return parse_quantity(given, "s")
        except (ValueError, OverflowError) as error:
            entry.refuse(part, str(error))
    most = _SHARES.get(key, 100.0)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= most:
        entry.refuse(part, f"{given!r} is not a number from 0 to {most:g}")
    return float(given)


def _titles(entry: Section, sources: dict[str, Source]) -> list[str]:
    for name in entry.texts("source"):
        if name not in sources:
            entry.refuse("source", f"{name!r} is not under `sources`: {', '.join(sources) or 'none is listed'}")
    return [sources[name].title for name in entry.texts("source")]

"""A walk as one page to step through: no network, and nothing is computed in the browser but how large to draw."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rooflinekit.explanation.walk.result import Phase, Section, Stop, Tensor, Walk
from rooflinekit.model.types.units import format_bytes, format_count
from rooflinekit.report.markup import filled, script_hashes, script_json
from rooflinekit.report.walk import Steps, attention_mask, headline, letter_value, ridge_sentence, section_title

_TEMPLATE = Path(__file__).with_name("walk.html")
_MASKED = ("causal mask", "softmax")
_LEAST = 0.001  # share that is told as a number


def walk_page(walk: Walk) -> str:
    """The whole page; it works without JavaScript too, as tables."""
    title, *lead = headline(walk)
    parts = {
        "title": escape(title),
        "lead": _paragraphs(lead),
        "foot": _paragraphs([*_totals(walk), *(f"Note: {warning}" for warning in walk.warnings)]),
        "tables": "".join(_phase_tables(phase) for phase in walk.phases),
        "hashes": script_hashes(_TEMPLATE.read_text(encoding="utf-8")),
        "data": script_json(_data(walk)),
    }
    return filled(_TEMPLATE, parts)


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _totals(walk: Walk) -> list[str]:
    lines = []
    for phase in walk.phases:
        work, intensity = phase.work, phase.work.intensity or 0.0
        moved = f"{format_bytes(work.bytes)}, {format_bytes(work.weight_bytes)} of them weights"
        lines.append(f"{phase.name}: {format_count(work.flops, 'FLOP')}, {moved}: {intensity:.3g} FLOP/B")
    return [*lines, ridge_sentence(walk), f"rooflinekit {walk.version}"]


def _data(walk: Walk) -> dict[str, Any]:
    names, mask = attention_mask(walk)
    stops = [
        _slide(stop, section, phase, mask)
        for phase in walk.phases for section in phase.sections for stop in section.stops
    ]  # fmt: skip
    return {"names": names, "mask": mask, "stops": stops}


def _slide(stop: Stop, section: Section, phase: Phase, mask: Sequence[str]) -> dict[str, Any]:
    """One step with everything that is shown of it, as text."""
    told = {symbol.name: symbol.value for symbol in section.symbols}
    used = set(re.findall(r"\w+", " ".join(stop.lettered)))
    letters = [[s.name, letter_value(s.value), s.meaning] for s in section.symbols if s.name in used]
    pairs = sum(row.count("1") for row in mask)
    return {
        "phase": phase.name,
        "where": section_title(section),
        "name": stop.name,
        "does": stop.does,
        "note": stop.note,
        "mask": stop.name in _MASKED and phase.name == "prefill" and pairs > 0 and told["pairs"] == pairs,
        "outputs": [_picture(tensor) for tensor in stop.outputs],
        "weights": [_picture(tensor, "weight") for tensor in stop.weights],
        "flops": _amount(stop, "flops", section, phase),
        "bytes": _amount(stop, "bytes", section, phase),
        "network": _amount(stop, "network", section, phase) if stop.network_formula else None,
        "letters": letters,
    }


def _picture(tensor: Tensor, kind: str = "") -> dict[str, Any]:
    return {
        "name": tensor.name,
        "symbols": list(tensor.symbols),
        "shape": list(tensor.shape),
        "letters": tensor.letters,
        "numbers": tensor.numbers,
        "dtype": tensor.dtype,
        "kind": kind or ("kv" if "cache" in tensor.name or tensor.name == "state" else "act"),
        "table": not kind and tensor.name in ("scores", "weights"),
    }


def _amount(stop: Stop, of: str, section: Section, phase: Phase) -> dict[str, str]:
    """A number, its formula, the formula with numbers, and its share of the whole step of the engine."""
    key, unit = ("flops", "FLOP") if of == "flops" else (f"{of}_bytes" if of == "network" else of, "B")
    value, whole = getattr(stop.work, key), getattr(phase.work, key)
    share = section.count * value / whole if whole else 0.0
    formula = {"flops": stop.flops_formula, "bytes": stop.bytes_formula, "network": stop.network_formula}[of]
    told = f"{'<0.1%' if share < _LEAST else f'{share:.1%}'} of the {phase.name}" + (
        f", all {section.count} {'layers' if section.layers else 'times'} together" if section.count > 1 else ""
    )
    return {
        "text": format_count(value, unit) if stop.kernel else "a view: none",
        "formula": formula,
        "numbers": stop.substituted.get(of, ""),
        "share": told if value else "",
        "width": f"{share:.2%}",
    }


def _phase_tables(phase: Phase) -> str:
    tables = []
    for section in phase.sections:
        steps = Steps(section)
        title = f"<h3>{escape(section_title(section))}</h3><p>{escape(steps.letters)}</p>"
        tables.append(f'{title}<div class="wide">{steps.table.html(" class=n", "")}</div>')
    return f"<h2>{escape(phase.name)}: {escape(phase.title)}</h2>{''.join(tables)}"

"""Ours beside other predictors: who is nearer how often, and the largest differences by name."""

from __future__ import annotations

import math
from typing import Any

from rooflinekit.evidence.league import OURS, Figure, League, Standing
from rooflinekit.model.types.units import percent
from rooflinekit.report.document import Document, Section, Table, Words, footer, three
from rooflinekit.version import __version__

_SHOWN = 8  # wins and losses by name
_METRICS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2EL", "output_tok_s_total": "tok/s"}


def rows(found: League) -> list[dict[str, Any]]:
    """One flat row a figure, with every tool's answer, its error and who is nearer."""
    tools = [each.tool for each in found.standings]
    names = ("name", "source", "model", "gpu", "engine", "users", "metric", "measured")
    return [
        {name: getattr(each, name) for name in names}
        | {tool: each.answers.get(tool) for tool in tools}
        | {f"{tool} error": each.error(tool) for tool in tools}
        | {f"against {tool}": each.outcome(tool) for tool in tools if tool != OURS}
        | {"version": __version__}
        for each in found.figures
    ]


def document(found: League) -> Document:
    """The standings, then wins and losses by name."""
    head = ["", "answered", "error", "bias", "ours there", "wins", "losses", "draws"]
    lines = [_standing(each) for each in found.standings]
    others = [each.tool for each in found.standings if each.tool != OURS]
    absent = [Words(f"{name} is not installed here, so it was not asked") for name in found.absent]
    return [
        Section(f"{len(found.figures):,} measured figures", [Table(head, lines, left=(0,))]),
        Section(
            "", [Words("error: median over source, model, accelerator and metric. A win: ours is nearer"), *absent]
        ),
        *(section for tool in others for section in _named(found, tool)),
        *(Section("", [Words(f"{count} not answered: {why}")]) for why, count in found.unanswered.items()),
        footer("", ()),
    ]


def _standing(each: Standing) -> list[str]:
    apart = ["", "", ""] if each.tool == OURS else [str(each.wins), str(each.losses), str(each.draws)]
    sizes = [_percent(each.error), _percent(each.bias, signed=True), "" if each.tool == OURS else _percent(each.ours)]
    return [each.tool, f"{each.answered:,}", *sizes, *apart]


def _percent(value: float | None, signed: bool = False) -> str:
    return "–" if value is None else percent(value, 1, signed=signed)


def _named(found: League, tool: str) -> list[Section]:
    """The largest wins and the largest losses against a tool."""
    sections = []
    for outcome, words in (("win", "nearer than"), ("loss", "further off than")):
        own = sorted((each for each in found.figures if each.outcome(tool) == outcome),
                     key=lambda each: -_apart(each, tool))  # fmt: skip
        if own:
            head = [f"{OURS} is {words} {tool}", "", "measured", "ours", tool]
            cells = [[each.name, _METRICS.get(each.metric, each.metric), three(each.measured),
                      *(_said(each, name) for name in (OURS, tool))] for each in own[:_SHOWN]]  # fmt: skip
            more = [Words(f"and {len(own) - _SHOWN:,} more")] if len(own) > _SHOWN else []
            sections.append(Section("", [Table(head, cells, left=(0, 1)), *more]))
    return sections


def _apart(each: Figure, tool: str) -> float:
    """By how much one error is larger than the other, as logarithms."""
    ours, theirs = (abs(math.log((each.answers[name] or 1.0) / each.measured)) for name in (OURS, tool))
    return abs(ours - theirs)


def _said(each: Figure, tool: str) -> str:
    answer, error = each.answers[tool], each.error(tool)
    return "–" if answer is None or error is None else f"{three(answer)} ({percent(error, 0, signed=True)})"

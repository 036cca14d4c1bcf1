"""Results as HTML for notebooks: what a command prints as Markdown, with every word escaped.

Only the Markdown that this package writes is read: headings, tables, code, bullets and paragraphs. Colours are those
of the notebook, so that it looks right on light and on dark paper.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rooflinekit.decision.economics.cost import Cost
from rooflinekit.decision.launching.launch import Launch
from rooflinekit.decision.planning.plan import PlanAnswer
from rooflinekit.decision.sensitivity.levers import Levers
from rooflinekit.estimation.results import Estimate
from rooflinekit.explanation.derivation.front import Derivation
from rooflinekit.explanation.walk.result import Walk
from rooflinekit.model.parameter_count import ParameterCount
from rooflinekit.report.table import markdown
from rooflinekit.simulation.outcome import Outcome

__all__ = ["html_of", "markdown_html"]

_STYLE = "text-align:{};padding:.1em .6em;font-variant-numeric:tabular-nums"
_DEPTH = 2  # levels of a derivation
_SPLIT = re.compile(r"(?<!\\)\|")
_WORDS = re.compile(r"(`[^`]+`|\*\*[^*]+\*\*)")


def html_of(result: Any) -> str:
    """A result as a piece of HTML that stands by itself.

    >>> import rooflinekit as rk
    >>> html_of(rk.parameters("llama-3-8b"))[:47]
    '<div class="rooflinekit"><h4>Parameters</h4><ta'
    """
    inside = markdown_html(_text_of(result), folded=isinstance(result, Estimate | Walk))
    return f'<div class="rooflinekit">{inside}</div>'


def _text_of(result: Any) -> str:
    """The Markdown of a result; what writes it is loaded with it."""
    from rooflinekit.report import cost, derivation, launch, levers, plan, simulation, terminal, walk  # noqa: PLC0415

    written: Mapping[type, Callable[[Any], str]] = {
        Estimate: terminal.estimate_markdown,
        Outcome: simulation.outcome_markdown,
        Levers: lambda found: levers.levers_text(found, markdown_style=True),
        Cost: lambda found: cost.cost_text(found, markdown_style=True),
        Walk: walk.walk_markdown,
        Derivation: lambda found: derivation.derivation_markdown(found, _DEPTH),
        PlanAnswer: plan.plan_markdown,
        Launch: launch.launch_markdown,
        ParameterCount: _count_markdown,
    }
    return written[type(result)](result)


def _count_markdown(count: ParameterCount) -> str:
    names = ("embedding", "attention", "ffn", "experts", "shared_experts", "lm_head", "other", "total", "active")
    rows = [[name, f"{getattr(count, name):,}"] for name in names]
    return "\n".join(["## Parameters", "", *markdown(["module", "weights"], rows)])


def markdown_html(text: str, folded: bool = False) -> str:
    r"""Markdown of this package as HTML; `folded` closes the sections below headings of the third level.

    >>> markdown_html("## a <b>\n\nwords `x`")
    '<h4>a &lt;b&gt;</h4><p>words <code>x</code></p>'
    """
    parts, inside = [], False
    for block in _blocks(text.splitlines()):
        if block[0].startswith("### ") or block[0].startswith("## "):
            parts.append("</details>" if inside else "")
            inside = block[0].startswith("### ")
            words = _words(block[0].lstrip("# "))
            open_ = "" if folded else " open"
            parts.append(f"<details{open_}><summary><b>{words}</b></summary>" if inside else f"<h4>{words}</h4>")
        else:
            parts.append(_block(block))
    return "".join([*parts, "</details>" if inside else ""])


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Runs of lines of one kind; code is one, whatever is in it."""
    block: list[str] = []
    for line in lines:
        code = bool(block) and block[0].startswith("```") and not (len(block) > 1 and block[-1].startswith("```"))
        if not code and block and (not line.strip() or _kind(line) != _kind(block[0])):
            yield block
            block = []
        if code or line.strip():
            block.append(line)
    if block:
        yield block


def _kind(line: str) -> str:
    start = line.lstrip()
    if start.startswith("#"):
        return line  # every heading by itself
    if line.startswith("```"):
        return "code"
    return "table" if start.startswith("|") else "list" if start.startswith("- ") or line.startswith("  ") else "text"


def _block(lines: Sequence[str]) -> str:
    if lines[0].startswith("```"):
        return f"<pre>{escape(chr(10).join(lines[1:-1]))}</pre>"
    if lines[0].startswith("|") and len(lines) > 1:
        return _table(lines)
    if lines[0].lstrip().startswith("- "):
        return _list(lines)
    return f"<p>{'<br>'.join(_words(line.strip()) for line in lines)}</p>"


def _table(lines: Sequence[str]) -> str:
    header, marks, *rows = [[cell.strip().replace("\\|", "|") for cell in _SPLIT.split(line)[1:-1]] for line in lines]
    sides = ["right" if mark.endswith(":") and not mark.startswith(":") else "left" for mark in marks]
    return f"<table>{_row(header, sides, 'th')}{''.join(_row(row, sides, 'td') for row in rows)}</table>"


def _row(cells: Sequence[str], sides: Sequence[str], tag: str) -> str:
    opened = (f'<{tag} style="{_STYLE.format(side)}">' for side in sides)
    filled = (f"{start}{_words(cell)}</{tag}>" for start, cell in zip(opened, cells, strict=False))
    return f"<tr>{''.join(filled)}</tr>"


def _list(lines: Sequence[str]) -> str:
    """Bullets below each other by their indent; other lines go on with the bullet before them."""
    items: list[tuple[int, str]] = []
    for line in lines:
        text = line.strip()
        if text.startswith("- ") or not items:
            items.append(((len(line) - len(line.lstrip())) // 2, text.removeprefix("- ")))
        else:
            items[-1] = (items[-1][0], f"{items[-1][1]} {text}")
    parts, depth = [], -1
    for level, text in items:
        parts.append("<ul>" * (level - depth) + "</ul>" * (depth - level) + f"<li>{_words(text)}</li>")
        depth = level
    return "".join(parts) + "</ul>" * (depth + 1)


def _words(text: str) -> str:
    """Escaped, with code and bold type."""
    found = []
    for part in _WORDS.split(text):
        code, bold = part.startswith("`") and len(part) > 1, part.startswith("**") and len(part) > 3
        tag = "code" if code else "b" if bold else ""
        inner = escape(part.strip("`") if code else part.strip("*") if bold else part)
        found.append(f"<{tag}>{inner}</{tag}>" if tag else inner)
    return "".join(found)

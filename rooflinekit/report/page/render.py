"""Parts of a page put together: text is escaped, JSON cannot end its element, scripts are named by their hashes."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

__all__ = ["LIMIT_BYTES", "Page", "card", "paragraphs", "render", "table"]

LIMIT_BYTES = 2_500_000
"""A page is at most this large."""

_HERE = Path(__file__).parent
_SCRIPTS = ("vendor/echarts.min.js", "evaluate.js", "draw.js", "charts.js", "state.js", "page.js", "sweep.js",
            "sections.js")  # fmt: skip


@dataclass(frozen=True)
class Page:
    """What a page says: finished markup of its sections, and the data that its charts are drawn from."""

    title: str
    lead: str
    before: str = ""
    accountant: str = ""
    after: str = ""
    foot: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    framed: tuple[str, ...] = ()  #: pages shown inside, whose scripts may run too


def render(page: Page) -> str:
    """The whole page as one file that loads nothing."""
    scripts = [(_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    inner = [script for framed in page.framed for script in re.findall(r"<script>(.*?)</script>", framed, re.DOTALL)]
    parts = {
        "title": escape(page.title), "lead": page.lead, "before": page.before, "after": page.after, "foot": page.foot,
        "accountant": page.accountant, "style": (_HERE / "page.css").read_text(encoding="utf-8"),
        "hashes": " ".join(_hash(script) for script in [*scripts, *inner]), "data": script_json(page.data),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }  # fmt: skip
    template = (_HERE / "template.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda hit: parts[hit[1]], template)


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def script_json(data: object) -> str:
    """JSON that cannot end the script element it stands in; what is no number is null."""
    text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def paragraphs(lines: Iterable[str], kind: str = "facts") -> str:
    """Lines of plain text."""
    return "".join(f'<p class="{kind}">{escape(line)}</p>' for line in lines)


def card(title: str, body: str, name: str = "", short: bool = False) -> str:
    """A section with a heading; `body` is markup. A short one is not split between printed pages."""
    place = f' id="{escape(name)}"' if name else ""
    return f'<section class="card{" short" if short else ""}"{place}><h2>{escape(title)}</h2>{body}</section>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of plain text; numbers stand right."""
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    inside = f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="region" aria-label="Table">{inside}</div>'


def _cell(value: object) -> str:
    kind = ' class="n"' if isinstance(value, (int, float)) else ""
    text = f"{value:,.6g}" if isinstance(value, float) else "" if value is None else str(value)
    return f"<td{kind}>{escape(text)}</td>"

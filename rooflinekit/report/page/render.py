"""Parts of a page put together; what is text is escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from rooflinekit.report.look import hues
from rooflinekit.report.markup import filled, packed, script_hashes, script_json
from rooflinekit.report.page.loop import loop_source, ranking_source

LIMIT_BYTES = 1_500_000
"""A page is at most this large."""

HERE = Path(__file__).parent
_SCRIPTS = ("vendor/echarts.min.js", "draw.js", "answers.js", "tables.js", "plays.js", "names.js", "charts.js",
            "state.js", "spent.js", "advice.js", "moves.js", "request.js", "page.js", "sweep.js",
            "sections.js")  # fmt: skip


@dataclass(frozen=True)
class Page:
    """Content of a page: finished markup of its sections, and the data that its charts are drawn from."""

    title: str
    lead: str
    before: str = ""
    accountant: str = ""
    after: str = ""
    below: str = ""  #: long sections that readers open; they are packed
    foot: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    functions: str = ""  #: of the deployments, as JavaScript
    framed: tuple[str, ...] = ()  #: pages shown inside, whose scripts may run too


def render(page: Page) -> str:
    """The whole page as one file that loads nothing; its scripts, its data and its long sections are packed."""
    app = "\n".join(('"use strict";', page.functions, *scripts()))
    loader = f"<script>{(HERE / 'load.js').read_text(encoding='utf-8')}</script>"
    written = f"{_packed('data', script_json(page.data))}{_packed('app', app)}\n{loader}"
    below = f"{_packed('below', page.below)}<noscript><p>{_NO_SCRIPTS}</p></noscript>"
    allowed = "".join((loader, f"<script>{app}</script>", *page.framed))
    parts = {key: getattr(page, key) for key in ("lead", "before", "accountant", "foot")}
    parts |= {"title": escape(page.title), "after": page.after + below}
    parts |= {"style": style(), "hashes": script_hashes(allowed), "scripts": written}
    return filled(HERE / "template.html", parts)


def style() -> str:
    """The style sheet of a page."""
    return hues() + (HERE / "page.css").read_text(encoding="utf-8")


_NO_SCRIPTS = "Charts, derivation and sources need JavaScript; rooflinekit explain prints them."


def _packed(name: str, text: str) -> str:
    """Text in an element that the page unpacks."""
    return f'<script type="text/plain" id="{name}">{b64encode(packed(text)).decode()}</script>'


def scripts() -> list[str]:
    """The scripts that draw a page, in their order."""
    return [loop_source(), ranking_source(), *((HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)]


def paragraphs(lines: Iterable[str], kind: str = "facts") -> str:
    """Lines of plain text."""
    return "".join(f'<p class="{kind}">{escape(line)}</p>' for line in lines)


def heading(text: str) -> str:
    """A title on the page."""
    return f"<h1>{escape(text)}</h1>"


def figure(name: str, heading: str, key: bool = False) -> str:
    """A place for a chart under its heading; with `key`, one for what its colours mean."""
    keys = f'<ul class="key" id="{name}-key"></ul>' if key else ""
    return f'<div class="figure"><h3>{heading}</h3>{keys}<div class="chart" id="{name}"></div></div>'


def card(title: str, body: str, name: str = "", short: bool = False, of: str = "") -> str:
    """A section with a heading; `body` is markup. A short one is not split between printed pages.

    `of`: what it is of, where it does not follow the controls: it says so once they are moved.
    """
    place = f' id="{escape(name)}"' if name else ""
    stays = f'<p class="stays" hidden>This part does not follow the controls: it is of {escape(of)}.</p>' if of else ""
    return f'<section class="card{" short" if short else ""}"{place}><h2>{escape(title)}</h2>{stays}{body}</section>'


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

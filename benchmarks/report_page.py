"""Pages of reports: blocks, written as Markdown and as one HTML page."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd


@dataclass(frozen=True)
class Block:
    """A piece of the page: heading ("h1" .. "h3"), paragraph ("p"), item ("li"), table or picture."""

    kind: str
    text: str = ""
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def percent(value: float, digits: int = 1) -> str:
    return "–" if pd.isna(value) else f"{100 * value:.{digits}f} %"


def table(head: list[str], rows: list[list[str]]) -> Block:
    return Block("table", head=tuple(head), rows=tuple(map(tuple, rows)))


def markdown(blocks: list[Block]) -> str:
    lines: list[str] = []
    for block in blocks:
        if block.kind == "table":
            lines += ["| " + " | ".join(block.head) + " |", "|" + "---|" * len(block.head)]
            lines += ["| " + " | ".join(row) + " |" for row in block.rows]
        else:
            lines.append({"h1": "# ", "h2": "## ", "h3": "### ", "li": "- "}.get(block.kind, "") + block.text)
        lines.append("")
    return "\n".join(lines)


STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:0 auto;padding:1rem;color:#1c1c1e;background:#fff}
h1{font-size:1.6rem;line-height:1.2}h2{margin-top:2.2rem}
.wide{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .55rem;text-align:right;border-bottom:1px solid #8884;white-space:nowrap}
th{white-space:normal;vertical-align:bottom}
th:first-child,td:first-child{text-align:left}
.figures{display:flex;flex-wrap:wrap;gap:.5rem}
figure{margin:0;flex:1 1 290px;max-width:360px}figure svg{width:100%;height:auto}
p,li{overflow-wrap:anywhere}
@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#16181c}}
"""


def web(blocks: list[Block], title: str) -> str:
    parts = []
    for block in blocks:
        if block.kind == "table":
            head = "".join(f"<th scope=col>{html.escape(cell)}</th>" for cell in block.head)
            rows = "".join(
                "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in block.rows
            )
            inner = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            parts.append(f'<div class="wide" tabindex="0">{inner}</div>')
        elif block.kind == "picture":
            parts.append(block.text)
        else:
            text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(block.text.replace("\\*", "*")))
            text = re.sub(r"`(.+?)`", r"<code>\1</code>", text)
            text = re.sub(r"\[([^\]]+)\]\((https?:[^)\s]+)\)", r'<a href="\2">\1</a>', text)
            text = f"<ul><li>{text}</li></ul>" if block.kind == "li" else f"<{block.kind}>{text}</{block.kind}>"
            parts.append(text)
    body = "\n".join(parts).replace("</ul>\n<ul>", "\n")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>' + html.escape(title) + "</title>"
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def hand_over(text: str, out: Path | None) -> None:
    """Write a report, or print it."""
    if out is None:
        print(text)
    else:
        out.write_text(text.rstrip() + "\n", encoding="utf-8")


def insert(path: Path, text: str, name: str = "accuracy") -> None:
    """Put text between the comments `name` and `/name` of a document."""
    before, rest = path.read_text(encoding="utf-8").split(f"<!-- {name} -->\n")
    after = rest.split(f"<!-- /{name} -->")[1]
    path.write_text(f"{before}<!-- {name} -->\n{text}<!-- /{name} -->{after}", encoding="utf-8")

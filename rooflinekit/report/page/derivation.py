"""TTFT and TPOT down to the datasheet, as lists to open."""

from __future__ import annotations

from html import escape

from rooflinekit.explanation.front import derive
from rooflinekit.model.graph.tree import Node
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.report.derivation import quantity
from rooflinekit.report.page.deployment import Deployed
from rooflinekit.report.page.render import card, paragraphs

__all__ = ["derivation_card"]

_DEPTH = 5  # levels that are written: below, the tree is that of one kernel's fit


def derivation_card(deployed: Deployed) -> str:
    """Both derivations; empty where this deployment has none."""
    try:
        roots = [derive(deployed.case, metric).root for metric in ("tpot", "ttft")]
    except RooflinekitError:
        return ""
    said = paragraphs(
        ["Each number with its formula; open one to see what it was computed from, down to the datasheet."]
    )
    shown: set[int] = set()
    return card("Derivation", said + "".join(_node(root, _DEPTH, shown) for root in roots), "derivation")


def _node(node: Node, depth: int, shown: set[int]) -> str:
    """A line to open; what stands above already is not shown again."""
    head = f"<b>{escape(node.symbol)} = {escape(quantity(node.value, node.unit))}</b> {escape(node.title)}"
    source = f"<p>{escape(node.source.text)}</p>" if node.source else ""
    if not node.children or depth == 0:
        return f"<div class=leaf>{head}{source}</div>"
    if id(node.children) in shown:
        return f"<div class=leaf>{head} (above)</div>"
    shown.add(id(node.children))
    lines = f"<p><code>{escape(node.formula)}</code></p>" if node.formula else ""
    inside = "".join(_node(child, depth - 1, shown) for child in node.children)
    return f"<details><summary>{head}</summary><div class=below>{lines}{source}{inside}</div></details>"

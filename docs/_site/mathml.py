"""Equations as MathML, which browsers draw by themselves: no script, no font, no network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

logger = logging.getLogger(__name__)

_THOUSANDS = re.compile(r"<mn>([\d,]+)</mn><mrow><mo>&#x0002C;</mo></mrow><mn>(\d{3}(?:\.\d+)?)</mn>")
_FUNCTION = re.compile(r"<m[io][^>]*>(log|max|min)</m[io]>")


def mathml(node: nodes.Element, display: str) -> str:
    """LaTeX as MathML; a warning, which ends the build, for what the converter cannot read."""
    latex = " ".join(node.astext().split())  # a backslash at the end of a line is a space, too
    written = convert(re.sub(r"\b(begin|end)\{aligned\}", r"\1{align*}", latex), display=display).replace("\\_", "_")
    written = _THOUSANDS.sub(r"<mn>\1,\2</mn>", written)
    written = _FUNCTION.sub(r'<mo form="prefix" lspace="0.17em" rspace="0">\1</mo>', written)
    if "<mi>&</mi>" in written or re.search(r"<m[io]>\\", written):
        logger.warning("latex2mathml does not know what is in %r", latex, location=node)
    return written


def visit_inline(writer: Any, node: nodes.math) -> None:
    """$ … $."""
    writer.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def visit_block(writer: Any, node: nodes.math_block) -> None:
    """A fence of math; wide ones scroll."""
    writer.body.append(f'<div class="equation">{mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Take the place of Sphinx's default, which loads MathJax from the network."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}

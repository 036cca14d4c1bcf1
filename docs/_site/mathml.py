"""Equations as MathML, which browsers draw by themselves: no script, no font, no network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def mathml(latex: str, display: str) -> str:
    """LaTeX as MathML; what the converter cannot read must stop the build."""
    line = " ".join(latex.split())  # "\\ " at the end of a line is a space, too
    written = convert(re.sub(r"\b(begin|end)\{aligned\}", r"\1{align*}", line), display=display)
    written = written.replace("\\_", "_")
    if "<mi>&</mi>" in written or re.search(r"<m[io]>\\", written):
        raise ValueError(f"latex2mathml does not know what is in {latex!r}")
    return written


def visit_inline(writer: Any, node: nodes.math) -> None:
    """$ … $."""
    writer.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_block(writer: Any, node: nodes.math_block) -> None:
    """A fence of math; wide ones scroll."""
    writer.body.append(f'<div class="equation">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Take the place of Sphinx's default, which loads MathJax from the network."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}

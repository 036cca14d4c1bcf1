"""`rooflinekit shapes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rooflinekit.cli.command import command
from rooflinekit.cli.output import emit, rendered
from rooflinekit.estimation.scenario import Accelerator, Shapes, Written
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.writing import check_target

__all__ = ["shapes"]


@command(
    Accelerator, Shapes, Written,
    examples=(
        "rooflinekit shapes llama3-8b --tokens 6",
        "rooflinekit shapes deepseek-v3 --tp 8 --out walk.html",
    ),
)  # fmt: skip
def shapes(model: str, *, format: str = "table", out: Path | None = None, force: bool = False, **scenario: Any) -> None:
    """Walk every tensor of a prefill and a decode step through a model: shapes, FLOP and bytes of each step.

    A file given to --out that ends in .html is a page to step through.
    """
    from rooflinekit.explanation.walk.front import shapes as walk_through
    from rooflinekit.report.walk import walk_markdown, walk_text
    from rooflinekit.report.walk_page import walk_page

    page = out is not None and out.suffix.lower() == ".html"
    if page and format != "table":
        raise InputError(f"{out} would be a page, and --format {format} is another format; leave one of them out")
    if out is not None:
        check_target(out, force)
    walk = walk_through(model, **scenario)
    text = walk_page(walk) if page else rendered(walk, format, walk.to_rows, walk_text, walk_markdown)
    emit(text, out, force)

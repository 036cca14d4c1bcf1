"""`rooflinekit shapes`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import command
from rooflinekit.cli.output import emit, to_csv, to_json
from rooflinekit.estimation.scenario import Accelerator, Shapes, Written
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.explanation.walk.result import Walk

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

    page = out is not None and out.suffix.lower() == ".html"
    if page and format != "table":
        raise InputError(f"{out} would be a page, and --format {format} is another format; leave one of them out")
    if out is not None:
        check_target(out, force)
    walk = walk_through(model, **scenario)
    emit(_page(walk) if page else _render(walk, format), out, force)


def _page(walk: Walk) -> str:
    from rooflinekit.report.walk_page import walk_page

    return walk_page(walk)


def _render(walk: Walk, format: str) -> str:
    from rooflinekit.report.walk import walk_markdown, walk_text

    match format:
        case "json":
            return to_json(walk.to_dict())
        case "csv":
            return to_csv(walk.to_rows())
        case _:
            return walk_markdown(walk) if format == "md" else walk_text(walk)

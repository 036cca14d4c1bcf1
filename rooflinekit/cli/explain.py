"""`rooflinekit explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rooflinekit.cli.estimate import estimate
from rooflinekit.cli.options import Count, with_options_of
from rooflinekit.cli.output import Format, emit, to_csv, to_json
from rooflinekit.model.types.errors import WorkloadError

__all__ = ["explain"]


@with_options_of(estimate, "plots")
def explain(
    model: Annotated[str, typer.Argument(help="As in estimate.")],
    metric: Annotated[str, typer.Argument(help="tpot, ttft, memory, decode.attention, decode.flops, ridge ...")],
    depth: Annotated[int | None, Count("Levels of the tree (default: what fits on a page or two).")] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    **scenario: Any,
) -> None:
    """Derive one number of an estimate: formulas, numbers and sources, down to the kernels."""
    from rooflinekit.explanation.front import explain as derive
    from rooflinekit.report.derivation import derivation_markdown, derivation_rows, derivation_text

    if depth is not None and depth < 1:
        raise WorkloadError(f"depth must be a whole number of at least 1, not {depth}")
    found = derive(model, metric, **scenario)
    texts = {
        Format.json: lambda: to_json(found.to_dict()),
        Format.csv: lambda: to_csv(derivation_rows(found)),
        Format.md: lambda: derivation_markdown(found, depth),
        Format.table: lambda: derivation_text(found, depth),
    }
    emit(texts[format](), out, force)

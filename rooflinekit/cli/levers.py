"""`rooflinekit levers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rooflinekit.cli.command import check_pictures, command, write_pictures
from rooflinekit.cli.output import emit, rendered
from rooflinekit.estimation.scenario import Accelerator, Levers, Pictures, Written
from rooflinekit.specs.writing import check_target

__all__ = ["levers"]


@command(
    Accelerator, Levers, Pictures, Written,
    examples=(
        "rooflinekit levers llama3-8b --batch 32 --isl 2K",
        "rooflinekit levers llama-3.3-70b --tp 4 --concurrency 64 --by tpot",
    ),
)  # fmt: skip
def levers(
    model: str, *, plots: Path | None = None, format: str = "table", out: Path | None = None, force: bool = False,
    **scenario: Any,
) -> None:  # fmt: skip
    """Say what would help a deployment most: elasticities, weights or cache, and moves ranked by gain."""
    from rooflinekit.decision.sensitivity.levers import levers as found_levers
    from rooflinekit.report.levers import levers_text

    if out is not None:
        check_target(out, force)
    check_pictures(plots, "levers", force)
    found = found_levers(model, **scenario)
    write_pictures(found, plots, force)
    emit(rendered(found, format, found.to_rows, levers_text), out, force)

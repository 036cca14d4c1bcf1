"""`rooflinekit explain`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from rooflinekit.cli.command import MODEL, Argument, command
from rooflinekit.cli.output import emit, rendered
from rooflinekit.estimation.scenario import Accelerator, Scenario, Tree
from rooflinekit.model.types.errors import WorkloadError

__all__ = ["explain"]


@command(
    Accelerator, Scenario, Tree,
    arguments={"model": MODEL, "metric": Argument("tpot, ttft, memory, decode.attention, decode.flops, ridge ...")},
    examples=(
        "rooflinekit explain llama3-8b tpot --batch 32",
        "rooflinekit explain llama3-8b ttft --rate 20",
    ),
)  # fmt: skip
def explain(
    model: str, metric: str, *, depth: int | None = None, format: str = "table", out: Path | None = None,
    force: bool = False, **scenario: Any,
) -> None:  # fmt: skip
    """Derive one number of an estimate: formulas, numbers and sources, down to the kernels."""
    from rooflinekit.explanation.derivation.front import explain as derive
    from rooflinekit.report.derivation import derivation_markdown, derivation_rows, derivation_text

    if depth is not None and depth < 1:
        raise WorkloadError(f"depth must be a whole number of at least 1, not {depth}")
    found = derive(model, metric, **scenario)
    text, markdown = partial(derivation_text, depth=depth), partial(derivation_markdown, depth=depth)
    emit(rendered(found, format, lambda: derivation_rows(found), text, markdown), out, force)

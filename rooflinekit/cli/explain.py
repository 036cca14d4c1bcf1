"""`rooflinekit explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rooflinekit.cli.command import MODEL, Argument, command
from rooflinekit.cli.output import emit, to_csv, to_json
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
    from rooflinekit.explanation.front import explain as derive
    from rooflinekit.report.derivation import derivation_markdown, derivation_rows, derivation_text

    if depth is not None and depth < 1:
        raise WorkloadError(f"depth must be a whole number of at least 1, not {depth}")
    found = derive(model, metric, **scenario)
    texts = {
        "json": lambda: to_json(found.to_dict()),
        "csv": lambda: to_csv(derivation_rows(found)),
        "md": lambda: derivation_markdown(found, depth),
        "table": lambda: derivation_text(found, depth),
    }
    emit(texts[format](), out, force)

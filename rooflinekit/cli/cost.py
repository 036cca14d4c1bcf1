"""`rooflinekit cost`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rooflinekit.cli.command import command
from rooflinekit.cli.output import emit, rendered
from rooflinekit.estimation.scenario import Accelerator, Cost, Written
from rooflinekit.specs.writing import check_target

__all__ = ["cost"]


@command(
    Accelerator, Cost, Written,
    examples=(
        "rooflinekit cost llama3-8b --isl 2000 --osl 300",
        "rooflinekit cost llama-3.3-70b --tp 4 --concurrency 64 --price 2.5",
    ),
)  # fmt: skip
def cost(model: str, *, format: str = "table", out: Path | None = None, force: bool = False, **scenario: Any) -> None:
    """Price cached, input and output tokens, dialogues and long contexts, and say why output costs more."""
    from rooflinekit.decision.economics.cost import cost as found_cost
    from rooflinekit.report.cost import cost_text

    if out is not None:
        check_target(out, force)
    found = found_cost(model, **scenario)
    emit(rendered(found, format, found.to_rows, cost_text), out, force)

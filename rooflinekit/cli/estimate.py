"""`rooflinekit estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rooflinekit.cli.command import check_pictures, command, write_pictures
from rooflinekit.cli.output import emit, rendered
from rooflinekit.estimation.scenario import Accelerator, Pictures, Scenario, Written

__all__ = ["estimate"]


@command(
    Accelerator, Scenario, Pictures, Written,
    examples=(
        "rooflinekit estimate llama3-8b --batch 32 --isl 2K",
        "rooflinekit estimate llama-3.3-70b --gpu h200 --tp 4 --rate 20rps --ttft 1s --tpot 40ms",
    ),
)  # fmt: skip
def estimate(
    model: str, *, plots: Path | None = None, format: str = "table", out: Path | None = None, force: bool = False,
    **scenario: Any,
) -> None:  # fmt: skip
    """Predict TTFT, TPOT, throughput and memory of a static batch, or under load, kernel by kernel."""
    from rooflinekit.estimation.estimator import estimate as predict
    from rooflinekit.report.terminal import estimate_markdown, estimate_text

    check_pictures(plots, "estimate", force)
    answer = predict(model, **scenario)
    write_pictures(answer, plots, force)
    emit(rendered(answer, format, lambda: [answer.to_row()], estimate_text, estimate_markdown), out, force)

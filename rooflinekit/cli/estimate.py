"""`rooflinekit estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import check_pictures, command, write_pictures
from rooflinekit.cli.output import emit, to_csv, to_json
from rooflinekit.estimation.scenario import Accelerator, Pictures, Scenario, Written

if TYPE_CHECKING:
    from rooflinekit.estimation.results import Estimate

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

    check_pictures(plots, "estimate", force)
    answer = predict(model, **scenario)
    write_pictures(answer, plots, force)
    emit(_render(answer, format), out, force)


def _render(answer: Estimate, format: str) -> str:
    match format:
        case "json":
            return to_json(answer.to_dict())
        case "csv":
            return to_csv([answer.to_row()])
    from rooflinekit.report.terminal import estimate_markdown, estimate_text

    return estimate_markdown(answer) if format == "md" else estimate_text(answer)

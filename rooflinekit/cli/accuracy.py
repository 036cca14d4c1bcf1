"""`rooflinekit accuracy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rooflinekit.cli.command import Argument, command
from rooflinekit.cli.output import emit, rendered
from rooflinekit.cli.progress import counting
from rooflinekit.estimation.scenario import Scored, Written

if TYPE_CHECKING:
    from rooflinekit.evidence.accuracy import Accuracy

__all__ = ["kernels", "memory", "serving"]


@command(
    Scored,
    arguments={"files": Argument("Measurement files (.jsonl), or kernel tables (CSV, Parquet).", many=True)},
    examples=(
        "rooflinekit accuracy kernels gemm.csv",
        "rooflinekit accuracy kernels measured/measurements.jsonl --format csv",
    ),
)  # fmt: skip
def kernels(
    files: list[str], *, calibration: str | None = None, gpu: str | None = None, format: str = "table",
    out: Path | None = None, force: bool = False,
) -> int:  # fmt: skip
    """Score kernel latencies: errors by operation, accelerator, engine and number format."""
    from rooflinekit.evidence.accuracy import kernel_accuracy

    with counting("scoring") as progress:
        found = kernel_accuracy([Path(file) for file in files], calibration, progress, gpu)
    return _show(found, format, out, force)


@command(Written, arguments={"files": Argument("Memory tables (CSV).", many=True)})
def memory(files: list[str], *, format: str = "table", out: Path | None = None, force: bool = False) -> int:
    """Score memory: weights, activation peak, cache pool and its tokens, by engine."""
    from rooflinekit.evidence.accuracy_memory import memory_accuracy

    with counting("scoring") as progress:
        found = memory_accuracy([Path(file) for file in files], progress)
    return _show(found, format, out, force)


@command(
    Scored, leave=("gpu",),
    arguments={"files": Argument("Serving tables (CSV, Parquet); none: the shipped one.", required=False, many=True)},
    examples=(
        "rooflinekit accuracy serving",
        "rooflinekit accuracy serving mine.csv --format csv --out errors.csv",
    ),
)  # fmt: skip
def serving(
    files: list[str], *, calibration: str | None = None, format: str = "table", out: Path | None = None,
    force: bool = False,
) -> int:  # fmt: skip
    """Score whole requests: latencies and throughputs by source, model, accelerator and metric."""
    from rooflinekit.evidence.accuracy_serving import published_table, serving_accuracy

    with counting("scoring") as progress:
        found = serving_accuracy([Path(file) for file in files] or [published_table()], calibration, progress)
    return _show(found, format, out, force)


def _show(found: Accuracy, format: str, out: Path | None, force: bool) -> int:
    from rooflinekit.report.accuracy import accuracy_rows, accuracy_text

    emit(rendered(found, format, lambda: accuracy_rows(found), accuracy_text), out, force)
    return 4 if found.answered < found.rows else 0

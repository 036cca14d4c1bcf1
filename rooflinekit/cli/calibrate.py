"""`rooflinekit calibrate`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.output import emit
from rooflinekit.cli.progress import counting

if TYPE_CHECKING:
    from rooflinekit.calibration.build import Built

__all__ = ["calibrate"]


def calibrate(
    files: Annotated[list[Path], typer.Argument(help="Measurement files (.jsonl), or kernel tables (CSV, Parquet).")],
    gpu: Annotated[str, typer.Option(help="Accelerator: a name, or a path to its file.")],
    out: Annotated[Path, typer.Option(help="The calibration file to write (YAML).")],
    engine: Annotated[str, typer.Option(help="Engine whose kernels were measured.")] = "vllm",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Fit a calibration to measured kernels; use it with --calibration FILE."""
    from rooflinekit.calibration.build import build_calibration
    from rooflinekit.cli.output import check_free
    from rooflinekit.specs import load_accelerator

    check_free(out, force)
    accelerator = load_accelerator(gpu).value
    with counting("fitting") as progress:
        built = build_calibration(files, accelerator, engine.lower(), f"{datetime.now(UTC):%Y-%m-%d}", progress)
    emit(built.text, out, force)
    emit(_summary(built, out))
    _show_models(files, gpu, out)


def _show_models(files: list[Path], gpu: str, out: Path) -> None:
    """Steps of models that measurement files hold, predicted with the calibration just written."""
    from rooflinekit.calibration.measurements import SUFFIX, read_measurements
    from rooflinekit.validate.compare_model import model_report

    for path in files:
        rows = read_measurements(path).of("model") if path.suffix == SUFFIX else ()
        if rows:
            emit("\n".join(["", *model_report(rows, gpu, str(out))]))


def _summary(built: Built, out: Path) -> str:
    from rooflinekit.report.table import aligned

    cells = [[key, str(fit.rows), f"{fit.error:.1%}", ", ".join(fit.frozen)] for key, fit in built.fitted.items()]
    lines = [f"wrote {out}", "", *aligned(["fitted", "rows", "error on unseen shapes", "frozen"], cells, left=(0, 3))]
    kept = ", ".join(dict.fromkeys(key.partition("/")[0] for key in built.borrowed))
    lines += ["", f"kept from the nearest calibration: {len(built.borrowed)} fits of {kept}"] if kept else []
    return "\n".join([*lines, *(f"note: {note}" for note in built.notes)])

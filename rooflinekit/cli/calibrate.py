"""`rooflinekit calibrate`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.benchmark_options import given_of
from rooflinekit.cli.compare import compare
from rooflinekit.cli.options import with_options_of
from rooflinekit.cli.output import emit
from rooflinekit.cli.progress import counting
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.evidence.kernel_fit.calibrate import Built

__all__ = ["calibrate"]


@with_options_of(compare, "format")
def calibrate(
    files: Annotated[
        list[Path],
        typer.Argument(help="Measurement files (.jsonl), kernel tables (CSV, Parquet), or benchmark results."),
    ],
    out: Annotated[Path, typer.Option(help="The calibration file to write (YAML).")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    **served: Any,
) -> None:
    """Fit a calibration to measured kernels, or to benchmark results; use it with --calibration FILE."""
    from rooflinekit.evidence.measured.read import is_benchmark

    check_target(out, force)
    benchmarks = [path for path in files if is_benchmark(path)]
    if benchmarks and len(benchmarks) < len(files):
        other = next(path for path in files if path not in benchmarks)
        raise InputError(
            f"{other.name} holds kernels and {benchmarks[0].name} is of a benchmark; calibrate on the kernels first, "
            f"then on the benchmark with --calibration and the file that was written"
        )
    said = {"files": files, "out": out, "force": force, **served}
    (_from_benchmarks if benchmarks else _from_kernels)(said)


def _from_benchmarks(said: dict[str, Any]) -> None:
    from rooflinekit.evidence.engine_fit import fit_engine
    from rooflinekit.report.engine_fit import fit_text

    given = given_of(said)
    with counting("fitting") as progress:
        fit = fit_engine(said["files"], given, f"{datetime.now(UTC):%Y-%m-%d}", progress)
    emit(fit.text, said["out"], said["force"])
    emit(f"wrote {said['out']}\n\n{fit_text(fit)}")
    if fit.failed:
        raise typer.Exit(4)


def _from_kernels(said: dict[str, Any]) -> None:
    from rooflinekit.evidence.kernel_fit.calibrate import build_calibration
    from rooflinekit.specs import load_accelerator

    _check_kernel_options(said)
    files, out = said["files"], said["out"]
    accelerator = load_accelerator(said["gpu"]).value
    engine, today = (said["engine"] or "vllm").lower(), f"{datetime.now(UTC):%Y-%m-%d}"
    with counting("fitting") as progress:
        built = build_calibration(files, accelerator, engine, today, progress)
    emit(built.text, out, said["force"])
    emit(_summary(built, out))
    _show_models(files, said["gpu"], out)


_OWN = ("files", "out", "gpu", "engine", "force")


def _check_kernel_options(said: dict[str, Any]) -> None:
    """Kernels are of one accelerator that has to be named, and nothing else says how they ran."""
    if said["gpu"] is None:
        raise InputError("kernels are of one accelerator; name it with --gpu")
    for name, value in said.items():
        if name not in _OWN and value not in (None, 1):
            raise InputError(f"--{name} says how a benchmark was run, and these files hold kernels; leave it out")


def _show_models(files: list[Path], gpu: str, out: Path) -> None:
    """Steps of models that measurement files hold, predicted with the calibration just written."""
    from rooflinekit.evidence.kernel_fit.groups import SUFFIX, read_measurements
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

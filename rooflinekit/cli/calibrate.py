"""`rooflinekit calibrate`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import Argument, command
from rooflinekit.cli.compare import given_of
from rooflinekit.cli.output import emit
from rooflinekit.cli.progress import counting
from rooflinekit.estimation.scenario import Served, Written
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.evidence.kernel_fit.calibrate import Built

__all__ = ["calibrate"]


@command(
    Served, Written, leave=("format",),
    arguments={"files": Argument(
        "Measurement files (.jsonl), kernel tables (CSV, Parquet), or benchmark results.", many=True
    )},
    examples=(
        "rooflinekit calibrate measured/measurements.jsonl --gpu my-chip.yaml --out mine.yaml",
        "rooflinekit calibrate result.json --gpu h100 --out served.yaml",
    ),
)  # fmt: skip
def calibrate(files: list[str], *, out: Path | None = None, force: bool = False, **served: Any) -> int:
    """Fit a calibration to measured kernels, or to benchmark results; use it with --calibration FILE."""
    from rooflinekit.evidence.measured import is_benchmark

    if out is None:
        raise InputError("missing option '--out': the calibration file to write (YAML)")
    check_target(out, force)
    paths = [Path(file) for file in files]
    benchmarks = [path for path in paths if is_benchmark(path)]
    if benchmarks and len(benchmarks) < len(paths):
        other = next(path for path in paths if path not in benchmarks)
        raise InputError(
            f"{other.name} holds kernels and {benchmarks[0].name} is of a benchmark; calibrate on the kernels first, "
            f"then on the benchmark with --calibration and the file that was written"
        )
    said = {"files": paths, "out": out, "force": force, **served}
    return (_from_benchmarks if benchmarks else _from_kernels)(said)


def _from_benchmarks(said: dict[str, Any]) -> int:
    from rooflinekit.evidence.engine_fit import fit_engine
    from rooflinekit.report.engine_fit import fit_text

    given = given_of({key: value for key, value in said.items() if key not in ("files", "out", "force")})
    with counting("fitting") as progress:
        fit = fit_engine(said["files"], given, f"{datetime.now(UTC):%Y-%m-%d}", progress)
    emit(fit.text, said["out"], said["force"])
    emit(f"wrote {said['out']}\n\n{fit_text(fit)}")
    return 4 if fit.failed else 0


def _from_kernels(said: dict[str, Any]) -> int:
    from rooflinekit.evidence.kernel_fit.calibrate import build_calibration
    from rooflinekit.specs import load_accelerator

    _check_kernel_options(said)
    files, out = said["files"], said["out"]
    accelerator = load_accelerator(said["gpu"]).value
    engine, today = said.get("engine", "vllm").lower(), f"{datetime.now(UTC):%Y-%m-%d}"
    with counting("fitting") as progress:
        built = build_calibration(files, accelerator, engine, today, progress)
    emit(built.text, out, said["force"])
    emit(_summary(built, out))
    _show_models(files, said["gpu"], out)
    return 0


_OWN = ("files", "out", "gpu", "engine", "force")


def _check_kernel_options(said: dict[str, Any]) -> None:
    """Kernels are of one accelerator that has to be named, and nothing else says how they ran."""
    if said.get("gpu") is None:
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

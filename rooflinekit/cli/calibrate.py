"""`rooflinekit calibrate`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rooflinekit.cli.command import Argument, command
from rooflinekit.cli.output import CommandOutput, counting, emit
from rooflinekit.cli.standard_input import pasted
from rooflinekit.estimation.options import OwnKeywords, Value
from rooflinekit.estimation.scenario import ServedOptions, WrittenOptions
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.units import percent

if TYPE_CHECKING:
    from rooflinekit.evidence.kernel_fit.calibrate import Built


@command(
    ServedOptions,
    WrittenOptions,
    leave=("format",),
    arguments={
        "files": Argument("Measurement files (.jsonl), kernel tables (CSV, Parquet), or benchmark results.", many=True)
    },
)
def calibrate(files: list[str], *, to: CommandOutput, **served: Value) -> int:
    """Fit a calibration to measured kernels, or to benchmark results; use it with --calibration FILE."""
    if to.out is None:
        raise InputError("missing option '--out': the calibration file to write (YAML)")
    to.check()
    with pasted(files) as names:
        return _fit([Path(name) for name in names], to, served)


def _fit(paths: list[Path], to: CommandOutput, served: dict[str, object]) -> int:
    """Calibrate on kernels or on benchmarks, whichever the files hold."""
    from rooflinekit.evidence.measured import is_benchmark

    benchmarks = [path for path in paths if is_benchmark(path) or _of_steps(path)]
    if benchmarks and len(benchmarks) < len(paths):
        other = next(path for path in paths if path not in benchmarks)
        raise InputError(
            f"{other.name} holds kernels and {benchmarks[0].name} is of a benchmark. Calibrate on the kernels "
            f"first, then on the benchmark with --calibration FILE"
        )
    fit = _from_benchmarks if benchmarks else _from_kernels
    return fit(paths, to, served)


def _of_steps(path: Path) -> bool:
    """True if a file holds an engine's whole steps and no kernels: they tell what the engine adds to its kernels."""
    from rooflinekit.evidence.kernel_fit.groups import ENGINE_STEP, SUFFIX, read_measurements
    from rooflinekit.evidence.kernel_fit.tables import OPERATIONS
    from rooflinekit.evidence.measured import is_of_harness

    if path.suffix != SUFFIX or not is_of_harness(path):
        return False
    found = read_measurements(path)
    return bool(found.of(ENGINE_STEP)) and not any(map(found.of, OPERATIONS))


def _from_benchmarks(files: list[Path], to: CommandOutput, said: dict[str, object]) -> int:
    from rooflinekit.evidence.benchmark_runs import Given
    from rooflinekit.evidence.engine_fit import fit_engine
    from rooflinekit.report.answers import document_of
    from rooflinekit.report.document import plain_text

    with counting("fitting") as progress:
        fit = fit_engine(files, Given.of(**said), f"{datetime.now(UTC):%Y-%m-%d}", progress)
    text = plain_text(document_of(fit))
    if fit.worse and not to.force:
        emit(text)
        these = "files left out" if fit.unseen else "its own files"
        raise InputError(f"{to.out} is not written: it predicts {these} worse than before; --force writes it")
    to.emit(fit.text)
    emit(f"wrote {to.out}\n\n{text}")
    return 4 if fit.failed else 0


def _from_kernels(files: list[Path], to: CommandOutput, said: OwnKeywords) -> int:
    """Kernels are of one accelerator that has to be named, and nothing else says how they ran."""
    from rooflinekit.evidence.kernel_fit.calibrate import build_calibration
    from rooflinekit.specs import load_accelerator

    if said.get("gpu") is None:
        raise InputError("kernels are of one accelerator; name it with --gpu")
    for name, value in said.items():
        if name not in ("gpu", "engine") and value not in (None, 1):
            raise InputError(f"--{name} says how a benchmark was run, and these files hold kernels; leave it out")
    accelerator = load_accelerator(said["gpu"]).value
    engine, today = said.get("engine", "vllm").lower(), f"{datetime.now(UTC):%Y-%m-%d}"
    with counting("fitting") as progress:
        built = build_calibration(files, accelerator, engine, today, progress)
    to.emit(built.text)
    emit(_summary(built, to.out))
    _show_models(files, said["gpu"], to.out)
    return 0


def _show_models(files: list[Path], gpu: str, out: Path | None) -> None:
    """Steps of models that measurement files hold, predicted with the calibration just written."""
    from rooflinekit.evidence.kernel_fit.groups import SUFFIX, read_measurements
    from rooflinekit.validate.compare_model import model_report

    for path in files:
        found = read_measurements(path) if path.suffix == SUFFIX else None
        rows = found.of("model") + found.of("serving_step") if found else ()
        if rows:
            emit("\n".join(["", *model_report(rows, gpu, str(out))]))


def _summary(built: Built, out: Path | None) -> str:
    from rooflinekit.report.document import CellTable

    cells = [
        [key, str(each.fit.rows), percent(each.donor, 1), percent(each.error, 1), ", ".join(each.fit.frozen)]
        for key, each in built.carried.items()
        if each.fit is not None
    ]
    heads = ["fitted", "rows", "error of the donor", "error on unseen shapes", "frozen"]
    lines = [f"wrote {out}", "", *CellTable(heads, cells, left=(0, 4)).text()]
    kept = ", ".join(dict.fromkeys(key.partition("/")[0] for key in built.borrowed))
    lines += ["", f"kept from the nearest calibration: {len(built.borrowed)} fits of {kept}"] if kept else []
    return "\n".join([*lines, *(f"note: {note}" for note in built.notes)])

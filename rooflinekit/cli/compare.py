"""`rooflinekit compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooflinekit.cli.benchmark_options import (
    Concurrency,
    InputLength,
    MaybeTensorParallel,
    OutputLength,
    OutputVariation,
    Rate,
    Replicas,
    ServedBy,
    ServedModel,
    ServedOn,
    given_of,
)
from rooflinekit.cli.options import (
    Activations,
    Cache,
    Calibration,
    DataParallel,
    ExpertParallel,
    PipelineParallel,
    Weights,
)
from rooflinekit.cli.output import Format, emit, rendered
from rooflinekit.cli.progress import counting

__all__ = ["compare"]


def compare(
    files: Annotated[list[Path], typer.Argument(help="Results of benchmark clients, and vLLM start-up logs.")],
    model: ServedModel = None,
    gpu: ServedOn = None,
    tp: MaybeTensorParallel = None,
    pp: PipelineParallel = 1,
    ep: ExpertParallel = 1,
    dp: DataParallel = 1,
    replicas: Replicas = 1,
    isl: InputLength = None,
    osl: OutputLength = None,
    osl_cv: OutputVariation = None,
    concurrency: Concurrency = None,
    rate: Rate = None,
    weights: Weights = None,
    activations: Activations = None,
    kv: Cache = None,
    engine: ServedBy = None,
    calibration: Calibration = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Set measured benchmark files beside the prediction, and say what the gap is made of."""
    given = given_of(locals())
    from rooflinekit.evidence.compare import compare as compared
    from rooflinekit.report.compare import compare_rows, compare_text

    with counting("comparing", len(files)) as progress:
        found = compared(files, given, progress=progress)
    emit(rendered(found, format, lambda: compare_rows(found), compare_text), out, force)
    if found.failed:
        raise typer.Exit(4)

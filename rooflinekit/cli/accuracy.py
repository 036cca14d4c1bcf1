"""`rooflinekit accuracy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.output import Format, emit, rendered
from rooflinekit.cli.progress import counting

if TYPE_CHECKING:
    from rooflinekit.evidence.accuracy import Accuracy

__all__ = ["accuracy"]

accuracy = typer.Typer(help="Predictions against measured tables.", no_args_is_help=True)


@accuracy.callback()
def _root() -> None:
    """Predictions against measured tables."""


@accuracy.command()
def kernels(
    files: Annotated[list[Path], typer.Argument(help="Measurement files (.jsonl), or kernel tables (CSV, Parquet).")],
    calibration: Annotated[str | None, typer.Option(help="A calibration, or 'none' for the datasheet bound.")] = None,
    gpu: Annotated[str | None, typer.Option(help="File of your own accelerator, for the rows that name it.")] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Score kernel latencies: errors by operation, accelerator, engine and number format."""
    from rooflinekit.evidence.accuracy import kernel_accuracy

    with counting("scoring") as progress:
        found = kernel_accuracy(files, calibration, progress, gpu)
    _show(found, format, out, force)


@accuracy.command()
def memory(
    files: Annotated[list[Path], typer.Argument(help="Memory tables (CSV).")],
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Score memory: weights, activation peak, cache pool and its tokens, by engine."""
    from rooflinekit.evidence.accuracy_memory import memory_accuracy

    with counting("scoring") as progress:
        found = memory_accuracy(files, progress)
    _show(found, format, out, force)


@accuracy.command()
def serving(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Serving tables (CSV, Parquet); none: the shipped one.")
    ] = None,
    calibration: Annotated[str | None, typer.Option(help="A calibration, or 'none' for the datasheet bound.")] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Score whole requests: latencies and throughputs by source, model, accelerator and metric."""
    from rooflinekit.evidence.accuracy_serving import published_table, serving_accuracy

    with counting("scoring") as progress:
        found = serving_accuracy(files or [published_table()], calibration, progress)
    _show(found, format, out, force)


def _show(found: Accuracy, format: Format, out: Path | None, force: bool) -> None:
    from rooflinekit.report.accuracy import accuracy_rows, accuracy_text

    emit(rendered(found, format, lambda: accuracy_rows(found), accuracy_text), out, force)
    if found.answered < found.rows:
        raise typer.Exit(4)

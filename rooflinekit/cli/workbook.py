"""`rooflinekit workbook`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.options import Calibration, Count, Engine
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.report.workbook import Built

__all__ = ["workbook"]

_SHOWN = 3  # reasons that are printed; the sheet Notes has all


def workbook(
    model: Annotated[str | None, typer.Option(help="Models to offer, separated by commas.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Accelerators to offer, separated by commas.")] = None,
    tp: Annotated[str, typer.Option(help="Tensor parallel degrees to offer.")] = "1,2,4,8",
    weights: Annotated[str, typer.Option(help="Weight formats to offer; own: the checkpoint's.")] = "own,fp8",
    kv: Annotated[str, typer.Option(help="KV cache formats to offer; own: as activations.")] = "own,fp8",
    engine: Engine = "vllm",
    calibration: Calibration = None,
    batch: Annotated[int, Count("Sequences that a replica runs at once.")] = 32,
    isl: Annotated[int, Count("Prompt length in tokens.")] = 1024,
    osl: Annotated[int, Count("Output length in tokens.")] = 256,
    users: Annotated[int, Count("Users in an average hour.")] = 1000,
    requests: Annotated[float, typer.Option(help="Requests of a user in an average hour.")] = 12.0,
    rate: Annotated[float | None, typer.Option(help="Requests a second, in place of users and requests.")] = None,
    peak: Annotated[float, typer.Option(help="Busiest hour over the average one.")] = 2.0,
    headroom: Annotated[float, typer.Option(help="Share of a replica's knee that stays free.")] = 0.2,
    ttft: Annotated[float, typer.Option(help="Objective: mean time to first token in ms.")] = 1000.0,
    tpot: Annotated[float, typer.Option(help="Objective: mean time per output token in ms.")] = 50.0,
    price: Annotated[float | None, typer.Option(help="USD an hour for one accelerator (default: its file's).")] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("workbook.xlsx"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a capacity workbook (.xlsx) whose formulas are live: results, sweeps, fleet and cost."""
    from rooflinekit.report.workbook import Choices, Planned, write_workbook

    check_target(out, force)
    usual = Choices()
    choices = Choices(
        models=_names(model) if model is not None else usual.models,
        gpus=_names(gpu) if gpu is not None else usual.gpus,
        tp=tuple(_degree(text) for text in _names(tp)),
        weights=_names(weights),
        kv=_names(kv),
        engine=engine,
        calibration=calibration,
    )
    planned = Planned(batch, isl, osl, users, requests, rate, peak, headroom, ttft, tpot, price)
    typer.echo(_summary(out, write_workbook(out, choices, planned)))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _degree(text: str) -> int:
    from rooflinekit.model.types.errors import InputError

    try:
        return int(text)
    except ValueError:
        raise InputError(f"tp must be whole numbers separated by commas, such as 1,2,4; {text!r} is none") from None


def _summary(out: Path, built: Built) -> str:
    lines = [f"{out}: {built.offered} deployments to choose from, {built.bytes / 1e6:.1f} MB"]
    if built.refused:
        lines.append(f"{len(built.refused)} combinations cannot be run (sheet Notes has all):")
        lines += [f"  {key.replace('|', ', ')}: {reason}" for key, reason in built.refused[:_SHOWN]]
    return "\n".join(lines)

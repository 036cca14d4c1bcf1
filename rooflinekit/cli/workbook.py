"""`rooflinekit workbook`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.estimate import estimate
from rooflinekit.cli.options import Count, said, with_options_of
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.report.workbook import Built

__all__ = ["workbook"]

_STARTS = ("isl", "osl", "cached", "burstiness", "isl_cv", "osl_cv")  # yellow cells
_SHOWN = 3  # reasons that are printed; the sheet Notes has all


@with_options_of(estimate, "context", "concurrency", "allow_oom", "plots", "format")
def workbook(
    call: typer.Context,
    model: Annotated[str | None, typer.Option(help="Models to offer, separated by commas.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Accelerators to offer, separated by commas.")] = None,
    tp: Annotated[str, typer.Option(help="Tensor parallel degrees to offer.")] = "1,2,4,8",
    pp: Annotated[str, typer.Option(help="Pipeline parallel degrees to offer.")] = "1",
    ep: Annotated[str, typer.Option(help="Expert parallel degrees to offer.")] = "1",
    dp: Annotated[str, typer.Option(help="Attention data parallel degrees to offer.")] = "1",
    cp: Annotated[str, typer.Option(help="Context parallel degrees to offer.")] = "1",
    microbatches: Annotated[str, typer.Option(help="Numbers of microbatches to offer.")] = "1",
    weights: Annotated[str, typer.Option(help="Weight formats to offer; own: the checkpoint's.")] = "own,fp8",
    kv: Annotated[str, typer.Option(help="KV cache formats to offer; own: as activations.")] = "own,fp8",
    batch: Annotated[int, Count("Sequences of the static batch.")] = 32,
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
    **scenario: Any,
) -> None:
    """Write a capacity workbook (.xlsx) whose formulas are live: results, sweeps, fleet and cost."""
    from rooflinekit.report.workbook import Choices, Planned, write_workbook

    check_target(out, force)
    lists = {"tp": tp, "pp": pp, "ep": ep, "dp": dp, "cp": cp, "microbatches": microbatches}
    offered: dict[str, Any] = {
        key: _names(text) for key, text in {"models": model, "gpus": gpu}.items() if text is not None
    }
    offered |= {key: tuple(_degree(text, key) for text in _names(texts)) for key, texts in lists.items()}
    given = {key: value for key, value in scenario.items() if said(call, key)}
    start = {key: given.pop(key) for key in _STARTS if key in given}
    common = {key: given.pop(key) for key in ("engine", "calibration") if key in given}
    choices = Choices(
        **offered,
        weights=_names(weights),
        kv=_names(kv),
        **common,
        scenario=given,
    )
    planned = Planned(
        batch=batch, users=users, requests_per_hour=requests, rate=rate, peak=peak, headroom=headroom, ttft_ms=ttft,
        tpot_ms=tpot, price=price, **start,
    )  # fmt: skip
    typer.echo(_summary(out, write_workbook(out, choices, planned)))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _degree(text: str, name: str) -> int:
    from rooflinekit.model.types.errors import InputError

    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name} must be whole numbers separated by commas, such as 1,2,4; {text!r} is none") from None


def _summary(out: Path, built: Built) -> str:
    lines = [f"{out}: {built.offered} deployments to choose from, {built.bytes / 1e6:.1f} MB"]
    if built.refused:
        lines.append(f"{len(built.refused)} combinations cannot be run (sheet Notes has all):")
        lines += [f"  {key.replace('|', ', ')}: {reason}" for key, reason in built.refused[:_SHOWN]]
    return "\n".join(lines)

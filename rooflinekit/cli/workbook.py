"""`rooflinekit workbook`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import command
from rooflinekit.cli.output import emit
from rooflinekit.decision.economics.price import price_among
from rooflinekit.estimation.options import part_of
from rooflinekit.estimation.scenario import Workbook, Written
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.writing import check_target

if TYPE_CHECKING:
    from rooflinekit.report.workbook import Built

__all__ = ["workbook"]

_PLURAL = {"model": "models", "gpu": "gpus"}
_STARTS = {"requests": "requests_per_hour", "ttft": "ttft_ms", "tpot": "tpot_ms"}
_CELLS = ("batch", "isl", "osl", "users", "requests", "rate", "peak", "headroom", "ttft", "tpot", "price")
_SHOWN = 3  # reasons that are printed; the sheet Notes has all


@command(
    Written, Workbook, arguments={}, leave=("format",),
    examples=(
        "rooflinekit workbook --model llama-3.1-8b,llama-3.3-70b --gpu h100,h200",
        "rooflinekit workbook --rate 20rps",
    ),
)  # fmt: skip
def workbook(*, out: Path = Path("workbook.xlsx"), force: bool = False, **said: Any) -> None:
    """Write a capacity workbook (.xlsx) whose formulas are live: results, sweeps, fleet and cost."""
    from rooflinekit.report.workbook import Choices, Planned, write_workbook

    check_target(out, force)
    offered: dict[str, Any] = {
        _PLURAL.get(key, key): tuple(said[key]) for key in ("model", "gpu", "tp", "weights", "kv") if key in said
    }
    choices = Choices(**offered, **part_of(said, ("engine", "calibration")))
    lengths = {key: said[key] for key in ("isl", "osl") if key in said}
    for key, tokens in lengths.items():
        if isinstance(tokens, str):
            raise InputError(f"{key} of a workbook is a number of tokens, not {tokens!r}")
    starts = {_STARTS.get(key, key): value for key, value in said.items() if key in _CELLS}
    if isinstance(price := starts.get("price"), dict):
        starts["price"] = price_among(price, [load_accelerator(gpu).value for gpu in choices.gpus])
    emit(_summary(out, write_workbook(out, choices, Planned(**starts))))


def _summary(out: Path, built: Built) -> str:
    lines = [f"{out}: {built.offered} deployments to choose from, {built.bytes / 1e6:.1f} MB"]
    if built.refused:
        lines.append(f"{len(built.refused)} combinations cannot be run (sheet Notes has all):")
        lines += [f"  {key.replace('|', ', ')}: {reason}" for key, reason in built.refused[:_SHOWN]]
    return "\n".join(lines)

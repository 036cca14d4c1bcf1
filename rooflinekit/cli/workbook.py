"""`rooflinekit workbook`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rooflinekit.cli.command import command
from rooflinekit.cli.output import Output, emit, working
from rooflinekit.decision.economics.price import price_among, priced_names
from rooflinekit.estimation.scenario import Prefix, Requests, Seeing, Speculation, Workbook, Written
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs import load_accelerator

_OFFERED = {"model": "models", "gpu": "gpus"} | {
    key: key for key in ("tp", "pp", "ep", "dp", "cp", "microbatches", "weights", "kv", "engine", "calibration")
}
_STARTS = {"requests": "requests_per_hour", "ttft": "ttft_ms", "tpot": "tpot_ms"} | {
    key: key for key in ("batch", "isl", "osl", "cached", "users", "rate", "peak", "headroom", "price", "burstiness",
                         "isl_cv", "osl_cv")
}  # fmt: skip
_SHOWN = 3  # reasons that are printed; the sheet Notes has all


@command(  # the lists of a workbook count where a deployment has one value, and come first in the help
    Written, Workbook, Prefix, Seeing, Speculation, Requests, Workbook, arguments={}, leave=("format",),
)  # fmt: skip
def workbook(*, to: Output, **said: Any) -> None:
    """Write a capacity workbook (.xlsx) whose formulas are live: results, sweeps, fleet and cost."""
    from rooflinekit.report.workbook import Choices, Planned, write_workbook

    out = to.out or Path("workbook.xlsx")
    to._replace(out=out).check()
    offered, starts = ({told[key]: said.pop(key) for key in told.keys() & said.keys()} for told in (_OFFERED, _STARTS))
    lists: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in offered.items()}
    choices = Choices(**lists, scenario=said)
    if "rate" in starts and starts.keys() & {"users", "requests_per_hour"}:
        raise InputError("--rate stands in place of --users and --requests; give one or the other")
    for key in ("isl", "osl"):
        if isinstance(tokens := starts.get(key), str):
            raise InputError(f"{key} of a workbook is a number of tokens, not {tokens!r}")
    if isinstance(price := starts.get("price"), (dict, str)):
        names = {load_accelerator(gpu).value.name for gpu in choices.gpus}
        starts["prices"] = priced_names(starts.pop("price"))
        if not names & starts["prices"].keys():
            price_among(price, [load_accelerator(gpu).value for gpu in choices.gpus])
    with working(f"writing {out.name}"):
        built = write_workbook(out, choices, Planned(**starts), to.force)
    lines = [f"{out}: {built.offered} deployments to choose from, {built.bytes / 1e6:.1f} MB"]
    if built.refused:
        lines.append(f"{len(built.refused)} combinations cannot be run (sheet Notes has all):")
        lines += [f"  {key.replace('|', ', ')}: {reason}" for key, reason in built.refused[:_SHOWN]]
    emit("\n".join(lines))

"""`rooflinekit report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.estimate import estimate
from rooflinekit.cli.options import Count, Plots, said, with_options_of
from rooflinekit.cli.pictures import check_pictures, write_pictures
from rooflinekit.model.types.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.simulation.outcome import Outcome

__all__ = ["report"]

_WITHOUT = (
    "requests", "burstiness", "isl_cv", "osl_cv", "ttft", "tpot",
    "draft", "draft_tokens", "acceptance", "draft_tree", "draft_tp", "allow_oom", "format",
)  # fmt: skip
_ABOUT_A_MODEL = ("model", "against", "simulate", "plots")
_STATIC = ("batch", "cached", "context")


@with_options_of(estimate, *_WITHOUT)
def report(
    call: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Name, Hugging Face id, or path to a config.json.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Report on what plan --format json wrote, not on MODEL.")] = None,
    sweep: Annotated[
        Path | None, typer.Option(help="Report on rows of a sweep (.csv, .parquet), not on MODEL.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Compare with another GPU, or with tp=4,weights=fp8.")] = None,
    simulate: Annotated[int | None, Count("Simulate so many requests of --rate or --concurrency too.")] = None,
    models: Annotated[str | None, typer.Option(help="Models that the sliders offer besides, comma between.")] = None,
    gpus: Annotated[str | None, typer.Option(help="Accelerators that the sliders offer besides.")] = None,
    plots: Plots = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("report.html"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    **scenario: Any,
) -> None:
    """Write one self-contained HTML page on a deployment, a comparison, a plan or a sweep, with live sliders."""
    from rooflinekit.estimation.estimator import estimate as predict
    from rooflinekit.report.page import write_report
    from rooflinekit.specs.writing import check_target

    if model is None and plan is None and sweep is None:
        raise InputError("say what the report is on: MODEL, --plan FILE or --sweep FILE")
    check_target(out, force)
    if plots is not None:
        check_pictures(plots, "estimate", force)
        if simulate is not None:
            check_pictures(plots, "simulation", force)
    offered = (("models", models), ("gpus", gpus))
    told: dict[str, Any] = {name: None if text is None else _names(text) for name, text in offered}
    if model is None or plan is not None or sweep is not None:
        _alone([key for key in (*_ABOUT_A_MODEL, *scenario) if said(call, key)])
        made = write_report(out, plan=plan, sweep=sweep, force=force, **told)
    else:
        outcome = _simulated(model, simulate, scenario)
        made = write_report(out, model, against=against, simulation=outcome, force=force, **told, **scenario)
        if plots is not None:
            drawn = predict(model, allow_oom=True, **scenario)
            write_pictures(drawn if outcome is None else [drawn, outcome], plots, force)
    typer.echo(f"{made.path}: {made.title}, {made.bytes / 1e6:.2f} MB")


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _alone(given: list[str]) -> None:
    """Refuse what describes a deployment beside a plan or a sweep, which bring their own."""
    for key in given:
        name = "MODEL" if key == "model" else "--" + key.replace("_", "-")
        raise InputError(f"{name} belongs to a report on a model; leave it out beside --plan or --sweep")


def _simulated(model: str, requests: int | None, scenario: dict[str, Any]) -> Outcome | None:
    from rooflinekit.simulation.simulate import simulate as run

    if requests is None:
        return None
    if scenario["rate"] is None and scenario["concurrency"] is None:
        raise InputError("--simulate needs a load: add --rate or --concurrency")
    asked = {key: value for key, value in scenario.items() if key not in _STATIC}
    return run(model, requests=requests, **asked | {key: str(scenario[key]) for key in ("isl", "osl")})

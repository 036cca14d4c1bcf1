"""`rooflinekit report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.cli.command import MAYBE_MODEL, command
from rooflinekit.cli.output import Output, emit, working
from rooflinekit.estimation.options import options_of
from rooflinekit.estimation.scenario import Accelerator, Page, Pictures, Scenario, Simulation, Written
from rooflinekit.model.types.errors import InputError

if TYPE_CHECKING:
    from rooflinekit.simulation.outcome import Outcome


@command(
    Written, Page, Accelerator, Scenario, Pictures,
    arguments={"model": MAYBE_MODEL}, leave=("allow_oom", "format"),
)  # fmt: skip
def report(
    model: str | None, *, to: Output, plan: Path | None = None, sweep: Path | None = None, against: str | None = None,
    simulate: int | None = None, models: list[str] | None = None, gpus: list[str] | None = None,
    engines: list[str] | None = None, price: Any = None,
    **scenario: Any,
) -> None:  # fmt: skip
    """Write one self-contained HTML page on a deployment, a comparison, a plan or a sweep, with live sliders."""
    from rooflinekit.estimation.estimator import estimate as predict
    from rooflinekit.report.page import write_report

    if model is None and plan is None and sweep is None:
        raise InputError("say what the report is on: MODEL, --plan FILE or --sweep FILE")
    out = to.out or Path("report.html")
    to = to._replace(out=out)
    to.check("Estimate")
    if simulate is not None:
        to.check("Outcome")
    told: dict[str, Any] = {"models": models, "gpus": gpus, "engines": engines}
    if model is None or plan is not None or sweep is not None:
        said = {"model": model, "against": against, "simulate": simulate, "price": price, "plots": to.plots, **scenario}
        for key in (key for key, value in said.items() if value is not None):  # a plan or a sweep brings its own
            name = "MODEL" if key == "model" else "--" + key.replace("_", "-")
            raise InputError(f"{name} belongs to a report on a model; leave it out beside --plan or --sweep")
        with working(f"writing {out.name}"):
            made = write_report(out, plan=plan, sweep=sweep, force=to.force, **told)
    else:
        with working(f"writing {out.name}"):
            outcome = _simulated(model, simulate, scenario)
            told |= {"against": against, "simulation": outcome, "price": price}
            made = write_report(out, model, force=to.force, **told, **scenario)
        if to.plots is not None:
            drawn = predict(model, allow_oom=True, **scenario)
            to.draw(drawn if outcome is None else [drawn, outcome])
    emit(f"{made.path}: {made.title}, {made.bytes / 1e6:.2f} MB")


def _simulated(model: str, requests: int | None, scenario: dict[str, Any]) -> Outcome | None:
    from rooflinekit.simulation.simulate import simulate as run

    if requests is None:
        return None
    if "rate" not in scenario and "concurrency" not in scenario:
        raise InputError("--simulate needs a load: add --rate or --concurrency")
    known = {key: value for key, value in scenario.items() if key in ("gpu", *options_of(Simulation))}
    return run(model, **known | {"requests": requests})

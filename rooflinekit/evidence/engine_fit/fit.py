"""The front door of the fit: benchmark files in, a calibration with the engine's costs of this deployment out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rooflinekit.evidence.benchmark_runs import Given
from rooflinekit.evidence.engine_fit.cases import METRICS
from rooflinekit.evidence.engine_fit.outcome import EngineFit, Outcome
from rooflinekit.evidence.engine_fit.parameters import FACTORS, priors
from rooflinekit.evidence.engine_fit.problem import Answers, Problem
from rooflinekit.evidence.engine_fit.read import Benchmarks, read_benchmarks
from rooflinekit.evidence.engine_fit.remarks import alike, remarks
from rooflinekit.evidence.engine_fit.solve import Posterior
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.numeric import Array
from rooflinekit.model.types.time import SIGMAS
from rooflinekit.specs.calibration.load import calibration_path
from rooflinekit.specs.calibration.served import UNITLESS, Fitted, ServingHeading, plain, with_serving
from rooflinekit.specs.engines import step_range
from rooflinekit.specs.files import read_text

__all__ = ["fit_engine"]


def fit_engine(
    files: Sequence[Path], given: Given, date: str, progress: Callable[[str], None] = lambda _: None
) -> EngineFit:
    """Fit an engine's host costs, and a factor on its memory-bound and compute-bound kernels, to benchmark files.

    Every run gives ln(measured / predicted) of TTFT and TPOT (or of throughput, where TPOT is missing). The prior is
    the shipped costs with their standard errors; values stay inside bounds and near the prior where files say nothing.

    Args:
        files: results of benchmark clients of one deployment, and its start-up logs.
        given: what the files leave out, and the calibration to start from.
        date: of the fit, for the file.
        progress: called with the name of each piece of work.

    Raises:
        RooflinekitError: (one of its kinds) if no run can be used; otherwise failures are listed.
    """
    benchmarks = read_benchmarks(files, given)
    own = benchmarks.cases[0].posed.resolved.plan.engine.costs
    problem = Problem(benchmarks, own, priors(own, benchmarks.calibration.served, benchmarks.cases), progress)
    linear, posterior = problem.solve()
    times = problem.answers(linear, posterior)
    outcomes, errors = problem.outcomes(posterior), problem.errors(times)
    costs = _costs(problem, posterior, times)
    listed = problem.files(times)
    fitted = Fitted(costs, problem.spreads(posterior), _notes(outcomes, own, costs))
    text = with_serving(_base_text(given, benchmarks), _heading(given, benchmarks, date), listed, fitted)
    noise = {name: float(posterior.noise[number]) for number, name in enumerate(METRICS) if name in errors}
    pairs = alike([each.prior.name for each in outcomes], posterior)
    said = (*benchmarks.notes, *remarks(outcomes, errors, own.interval, costs.interval))
    return EngineFit(text, costs, outcomes, listed, errors, pairs, noise, said, benchmarks.failed)


def _costs(problem: Problem, posterior: Posterior, times: Answers) -> StepCosts:
    """The costs that the file holds; what an interval takes from them is never wider than it was."""
    own, errors = problem.own, problem.spreads(posterior)
    spread = {name: min(errors.get(name, width), width) for name, width in own.spread.items()}
    spread |= {name: 0.0 for name in FACTORS if name in errors}
    return replace(problem.costs(posterior.places), interval=_interval(own, problem, times.unseen), spread=spread)


def _interval(own: StepCosts, problem: Problem, unseen: Array | None) -> float:
    """The shipped factor, or a wider one where steps of files that a fit had not seen are further off."""
    rows = problem.rows
    if unseen is None:
        return own.interval
    steps = (rows.metric > 0) & np.isfinite(unseen)
    left = np.log(rows.measured[steps] / unseen[steps])
    off = math.sqrt(float(left @ left) / max(len(left), 1))
    return max(own.interval, math.exp(SIGMAS * off))


def _base_text(given: Given, benchmarks: Benchmarks) -> str:
    return read_text(calibration_path(given.calibration or benchmarks.calibration.name))


def _heading(given: Given, benchmarks: Benchmarks, date: str) -> ServingHeading:
    plan, base = benchmarks.cases[0].posed.resolved.plan, benchmarks.calibration
    engine, version = plan.deployment.engine, plan.deployment.engine_version
    shipped = given.calibration is None or (base.served is not None and base.served.shipped)
    earlier = base.served.hashes if base.served else ()
    since = step_range(engine, version)
    gpu = plan.system.accelerator.name
    return ServingHeading(gpu, engine, since, date, (base.name, base.hash), shipped, earlier)


def _notes(outcomes: Sequence[Outcome], own: StepCosts, costs: StepCosts) -> dict[str, str]:
    """What to say of every cost in the file: what it was."""
    said = dict.fromkeys(own.spread, "as before")
    if costs.interval != own.interval:
        said["interval"] = f"was {own.interval:.4g}; files left out were further off"
    for each in outcomes:
        name, prior = each.prior.name, each.prior
        scale, unit = (1.0, "") if name in UNITLESS else (1e6, " us")
        said[name] = f"was {plain(scale * prior.value)} ± {plain(scale * prior.spread)}{unit}; data {each.data:.0%}"
    return said

"""The front door of the fit: benchmark files in, a calibration with the engine's costs of this deployment out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rooflinekit.benchmark_runs import Given
from rooflinekit.calibration.load import calibration_path
from rooflinekit.calibration.served import UNITLESS, ServedFile, ServingHeading, plain, with_serving
from rooflinekit.engine_fit.cases import METRICS, Case
from rooflinekit.engine_fit.outcome import EngineFit, Error, Outcome
from rooflinekit.engine_fit.parameters import Parameter, costs_at, priors
from rooflinekit.engine_fit.read import Benchmarks, read_benchmarks
from rooflinekit.engine_fit.remarks import alike, remarks
from rooflinekit.engine_fit.solve import Linear, Posterior, Rows, solve
from rooflinekit.specs.engines import step_range
from rooflinekit.specs.locate import read_text
from rooflinekit.types.engine import StepCosts
from rooflinekit.types.numeric import Array

__all__ = ["fit_engine"]

_ROUNDS = 4  # of asking the predictor anew
_PROBE = 0.25  # prior spreads by which a slope is probed
_SETTLED = 0.02  # prior spreads
_FEW = 3  # files from which leaving one out says something
_SIGMAS = 1.645


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
    served = benchmarks.calibration.served
    own = benchmarks.cases[0].posed.resolved.plan.engine.costs
    problem = _Problem(benchmarks, own, priors(own, served, benchmarks.cases), progress)
    linear, posterior = problem.solve()
    unseen = problem.unseen(linear)
    costs = problem.costs(posterior.places)
    costs = replace(costs, interval=_interval(own, problem, unseen), spread=problem.spreads(posterior))
    outcomes = problem.outcomes(posterior)
    before, after = problem.times(np.zeros(len(outcomes))), problem.times(posterior.places)
    listed = problem.files(before, after, unseen)
    errors = problem.errors(before, after, unseen)
    pairs = alike([each.prior.name for each in outcomes], posterior)
    text = with_serving(_base_text(given, benchmarks), _heading(given, benchmarks, date), listed, costs,
                        _notes(outcomes, own, costs))  # fmt: skip
    noise = {name: float(posterior.noise[number]) for number, name in enumerate(METRICS) if name in errors}
    said = (*benchmarks.notes, *remarks(outcomes, errors, own.interval, costs.interval))
    return EngineFit(text, costs, outcomes, listed, errors, pairs, noise, said, benchmarks.failed)


@dataclass(frozen=True)
class _Problem:
    """Rows, parameters, and the predictor between them."""

    benchmarks: Benchmarks
    own: StepCosts
    parameters: tuple[Parameter, ...]
    progress: Callable[[str], None]

    @property
    def cases(self) -> tuple[Case, ...]:
        return self.benchmarks.cases

    @property
    def rows(self) -> Rows:
        measured = [time for case in self.cases for time in case.measured.values()]
        places = [(METRICS.index(name), case.file) for case in self.cases for name in case.measured]
        metric, file = np.array(places, np.intp).T
        return Rows(np.array(measured), metric, file)

    @property
    def ends(self) -> Array:
        return np.array([each.ends for each in self.parameters]).T

    def costs(self, places: Array) -> StepCosts:
        return costs_at(self.own, self.parameters, places.tolist())

    def times(self, places: Array, cases: Sequence[Case] | None = None) -> Array:
        costs = self.costs(places)
        return np.array([time for case in (self.cases if cases is None else cases) for time in case.times(costs)])

    def solve(self) -> tuple[Linear, Posterior]:
        """Linearise, solve, and again where that leads."""
        places = np.zeros(len(self.parameters))
        for number in range(_ROUNDS):
            linear = self._linear(places, f"round {number + 1}")
            posterior = solve(linear, self.rows, self.ends, np.isfinite(linear.times))
            moved = float(np.abs(posterior.places - places).max())
            places = posterior.places
            if moved < _SETTLED:
                break
        return linear, posterior

    def _linear(self, places: Array, name: str) -> Linear:
        """Slopes by finite differences, towards the inside of the bounds; rows without an end count as infinite."""
        times, slopes = self.times(places), []
        for number in range(len(places)):
            self.progress(name)
            probe = np.zeros(len(places))
            probe[number] = _PROBE if places[number] + _PROBE <= self.ends[1][number] else -_PROBE
            slopes.append((self.times(places + probe) - times) / probe[number])
        table = np.stack(slopes, axis=1)
        good = np.isfinite(times) & np.isfinite(table).all(axis=1)
        return Linear(places, np.where(good, times, np.inf), np.where(good[:, None], table, 0.0))

    def unseen(self, linear: Linear) -> Array | None:
        """Times of each file's runs from a fit to the others; None for too few files."""
        count = len(self.benchmarks.names)
        if count < _FEW:
            return None
        rows, found = self.rows, np.full(len(self.rows.measured), np.inf)
        for number in range(count):
            self.progress("files left out")
            keep = (rows.file != number) & np.isfinite(linear.times)
            cases = [case for case in self.cases if case.file == number]
            if keep.any() and cases:
                places = solve(linear, rows, self.ends, keep).places
                found[rows.file == number] = self.times(places, cases)
        return found

    def spreads(self, posterior: Posterior) -> dict[str, float]:
        """One standard error of each parameter."""
        places = np.sqrt(np.diag(posterior.covariance)).tolist()
        return {each.name: each.spread * place for each, place in zip(self.parameters, places, strict=True)}

    def outcomes(self, posterior: Posterior) -> tuple[Outcome, ...]:
        variances, spreads = np.diag(posterior.covariance).tolist(), self.spreads(posterior)
        low, high = self.ends
        return tuple(
            Outcome(each, each.at(place), spreads[each.name], max(1.0 - variance, 0.0), _bound(place, least, most))
            for each, place, variance, least, most in zip(
                self.parameters, posterior.places.tolist(), variances, low.tolist(), high.tolist(), strict=True
            )
        )

    def files(self, before: Array, after: Array, unseen: Array | None) -> tuple[ServedFile, ...]:
        rows, named = self.rows, self.benchmarks
        found = []
        for number, facts in enumerate(zip(named.names, named.hashes, named.tools, strict=True)):
            error = _error(rows, rows.file == number, before, after, unseen)
            if error is not None:
                found.append(ServedFile(*facts, error.rows, error.before, error.after, error.unseen))
        return tuple(sorted(found, key=lambda file: (file.name, file.sha256)))

    def errors(self, before: Array, after: Array, unseen: Array | None) -> dict[str, Error]:
        rows, found = self.rows, {}
        for number, name in enumerate(METRICS):
            found[name] = _error(rows, rows.metric == number, before, after, unseen)
        return {name: error for name, error in found.items() if error is not None}


def _error(rows: Rows, mine: Array, before: Array, after: Array, unseen: Array | None) -> Error | None:
    """Errors of some rows, of those with a prediction; None for none."""
    chosen = mine & np.isfinite(before) & np.isfinite(after)
    if not chosen.any():
        return None

    def mean(times: Array) -> float:
        left = np.abs(times[chosen] / rows.measured[chosen] - 1.0)
        return float(left[np.isfinite(left)].mean()) if np.isfinite(left).any() else math.inf

    return Error(int(chosen.sum()), mean(before), mean(after), None if unseen is None else mean(unseen))


def _bound(place: float, least: float, most: float) -> str:
    if abs(place) < 1e-9:
        return ""
    return "most" if place > most - 1e-6 else "least" if place < least + 1e-6 else ""


def _interval(own: StepCosts, problem: _Problem, unseen: Array | None) -> float:
    """The shipped factor, or a wider one where steps of files that a fit had not seen are further off."""
    rows = problem.rows
    if unseen is None:
        return own.interval
    steps = (rows.metric > 0) & np.isfinite(unseen)
    left = np.log(rows.measured[steps] / unseen[steps])
    off = math.sqrt(float(left @ left) / max(len(left), 1))
    return max(own.interval, math.exp(_SIGMAS * off))


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

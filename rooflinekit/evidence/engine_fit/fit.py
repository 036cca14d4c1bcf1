"""The front door of the fit: benchmark files in, a calibration with the engine's costs of this deployment out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.evidence.benchmark_runs import Given
from rooflinekit.evidence.engine_fit import posterior as fits
from rooflinekit.evidence.engine_fit.cases import METRICS, Benchmarks, FitCase, read_benchmarks, with_costs
from rooflinekit.evidence.engine_fit.posterior import FACTORS, FitParameter, FitRows, Linearised, Posterior, solve
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import Array
from rooflinekit.model.types.time import SIGMAS
from rooflinekit.model.types.units import percent
from rooflinekit.specs.calibration import served as written
from rooflinekit.specs.calibration.load import calibration_path
from rooflinekit.specs.calibration.served import FittedCosts, ServedFile, ServedLoad, ServingHeading, plain
from rooflinekit.specs.engines import UNITLESS, step_range
from rooflinekit.specs.files import read_text

_ALIKE = 0.5  # correlation of two errors beyond which files tell the sum of two costs, and not each
_SILENT = 0.1  # share of the files in a value, below which they say nothing of it
_NEAR = 0.25  # prior spreads
_OFF = 0.25  # error that is left where something else than the engine is wrong
_ROUNDS = 6  # of asking the predictor anew
_FAR = 0.5  # prior spreads from which slopes are asked again too
_PROBE = 0.25  # prior spreads by which a slope is probed
_HALVINGS = 5
_SETTLED = 0.02  # prior spreads
_NOISE = tuple(fits.WAITS if name == "ttft_ms" else fits.STEPS for name in METRICS)
_FEW = 3  # files from which leaving one out says something


@dataclass(frozen=True)
class FittedParameter:
    """One parameter after the fit.

    spread: one standard error (of the logarithm for a factor); data: 1 − (spread / prior spread)², the share that the
    files have in the value; at: the bound where it stands ("least", "most", or ""); moved: by how many prior spreads.
    """

    prior: FitParameter
    value: float
    spread: float
    data: float
    at: str = ""
    moved: float = 0.0


@dataclass(frozen=True)
class Error:
    """Mean |predicted / measured − 1| of one metric; unseen: of fits without the file in question, if there are 3."""

    rows: int
    before: float
    after: float
    unseen: float | None


@dataclass(frozen=True)
class EngineFit:
    """A fit, and the text of the calibration file that holds it.

    alike: pairs of costs that the files do not tell apart; noise: one standard deviation of the logarithm by metric.
    """

    text: str
    costs: StepCosts
    outcomes: tuple[FittedParameter, ...]
    files: tuple[ServedFile, ...]
    errors: Mapping[str, Error]
    alike: tuple[tuple[str, str], ...]
    noise: Mapping[str, float]
    notes: tuple[str, ...]
    failed: Mapping[str, str]

    @property
    def unseen(self) -> bool:
        """True if files were left out in turn."""
        return any(error.unseen is not None for error in self.errors.values())

    @property
    def worse(self) -> tuple[str, ...]:
        """Metrics that are predicted worse than by the calibration before.

        Of files left out: TTFT where no step is. Of too few to leave one out: those of its own, where all rows together
        are worse.
        """
        if not self.unseen:
            more = {name: error.rows * (error.after - error.before) for name, error in self.errors.items()}
            return tuple(name for name, each in more.items() if each > 0.0) if sum(more.values()) > 0.0 else ()
        steps = {name: error for name, error in self.errors.items() if name != "ttft_ms"} or self.errors
        return tuple(name for name, error in steps.items() if error.unseen is not None and error.unseen > error.before)


def alike(names: Sequence[str], posterior: Posterior) -> tuple[tuple[str, str], ...]:
    """Pairs of costs that go down as the other goes up, the closest first."""
    scale = np.sqrt(np.diag(posterior.covariance))
    correlation = posterior.covariance / np.outer(scale, scale)
    pairs = [(correlation[a, b], a, b) for a in range(len(names)) for b in range(a) if correlation[a, b] < -_ALIKE]
    return tuple((names[b], names[a]) for _, a, b in sorted(pairs))


def remarks(
    outcomes: Sequence[FittedParameter], errors: Mapping[str, Error], interval: float, widened: float
) -> tuple[str, ...]:
    """Bounds that were reached, costs that the files say nothing of, errors that are left, what intervals do."""
    said = [
        f"{each.prior.name} stands at its bound, {'the most' if each.at == 'most' else 'the least'} that is believed"
        for each in outcomes
        if each.at and not (each.at == "least" and each.value == 0.0)
    ]
    if silent := [each.prior.name for each in outcomes if each.data < _SILENT and abs(each.moved) < _NEAR]:
        said.append(f"the files say little of {', '.join(silent)}: they stay near what was shipped")
    waits = errors.get("ttft_ms")
    if any(error.after > _OFF for name, error in errors.items() if name != "ttft_ms"):
        check = "check --gpu, --tp, --model, formats and load"
        said.append(f"over {percent(_OFF)} is left, which no cost explains: {check}")
    elif waits is not None and waits.after > _OFF:
        depend = "Waits depend on how the client starts and how output lengths vary (--osl-cv), not on the engine"
        said.append(f"TTFT stays {percent(waits.after)} off. {depend}")
    if any(error.unseen is not None and error.unseen > error.before for error in errors.values()):
        said.append("a file that the fit has not seen is predicted no better than before: the fit does not generalise")
    if all(error.unseen is None for error in errors.values()):
        said.append("with three files or more, each would be left out in turn to show whether the fit generalises")
    if widened > interval:
        said.append(f"intervals widen to a factor of {widened:.2f}, as far as left-out files are off")
    else:
        said.append(
            "intervals: under load they narrow by what the files' loads say of loads like them. Of a static batch only"
            f" the part of the engine's costs narrows; that of kernels and the least factor of {interval:.2f} stay"
        )
    return tuple(said)


@dataclass(frozen=True)
class Problem:
    """Rows, parameters, and the predictor between them."""

    benchmarks: Benchmarks
    own: StepCosts
    parameters: tuple[FitParameter, ...]
    progress: Callable[[str], None]

    @property
    def cases(self) -> tuple[FitCase, ...]:
        """The measured runs."""
        return self.benchmarks.cases

    @property
    def rows(self) -> FitRows:
        """Every measured time."""
        measured = [time for case in self.cases for time in case.measured.values()]
        places = [(METRICS.index(name), case.file) for case in self.cases for name in case.measured]
        metric, file = np.array(places, np.intp).T
        return FitRows(np.array(measured), metric, file, _NOISE)

    @property
    def ends(self) -> Array:
        """The lowest place of each parameter, and the highest."""
        return np.array([each.ends for each in self.parameters]).T

    def costs(self, places: Array) -> StepCosts:
        """The engine's costs at these places."""
        return fits.costs_at(self.own, self.parameters, places.tolist())

    def times(self, places: Array, cases: Sequence[FitCase] | None = None) -> Array:
        """Predicted times of all rows, or of those of some cases [s]."""
        costs, predictors = self.costs(places), dict[int, Predictor]()  # runs of one deployment share its step table
        times: list[float] = []
        for case in self.cases if cases is None else cases:
            own = case.posed.resolved.predictor
            times += case.times(predictors.setdefault(id(own), with_costs(own, costs)))
        return np.array(times)

    def solve(self) -> tuple[Linearised, Posterior]:
        """Linearise, solve, and again from where that leads; slopes, which hardly change, only after a long way."""
        rows = self.rows
        linear = self._linear(np.zeros(len(self.parameters)))
        for _ in range(_ROUNDS):
            found = solve(linear, rows, self.ends, linear.good)
            start = linear.at
            posterior = replace(found, places=self._no_worse(linear, found))
            moved = float(np.abs(posterior.places - start).max())
            if moved < _SETTLED:
                break
            linear = self._linear(posterior.places, None if moved > _FAR else linear)
        return linear, posterior

    def _no_worse(self, linear: Linearised, found: Posterior) -> Array:
        """The solution, or a part of the way, so that the prediction itself gets no worse."""
        measured, good = self.rows.measured[linear.good], linear.good
        weight = 1.0 / found.noise[self.rows.metric[good]]

        def cost(at: Array) -> float:
            return fits.misfit(measured, self.times(at)[good], weight, at)

        return fits.shortened(cost, linear.at, found.places, _HALVINGS)

    def _linear(self, places: Array, like: Linearised | None = None) -> Linearised:
        """Times at a place, with the slopes of another one, or their own by finite differences inside the bounds."""
        times = self.times(places)
        slopes, good = (like.slopes, like.good) if like else (np.zeros((len(times), len(places))), np.isfinite(times))
        for number in range(len(places) if like is None else 0):
            self.progress(self.parameters[number].name)
            probe = np.zeros(len(places))
            probe[number] = _PROBE if places[number] + _PROBE <= self.ends[1][number] else -_PROBE
            moved = self.times(places + probe)
            good = good & np.isfinite(moved)
            slopes[good, number] = (moved[good] - times[good]) / probe[number]
        good = good & np.isfinite(times)
        return Linearised(places, np.where(good, times, self.rows.measured), np.where(good[:, None], slopes, 0.0), good)

    def answers(self, linear: Linearised, posterior: Posterior) -> pd.DataFrame:
        """Every measured time [s] by metric and file, as predicted before and after, and by a fit without its file.

        `unseen` is left out for too few files.
        """
        rows, count = self.rows, len(self.benchmarks.names)
        metrics = [METRICS[number] for number in rows.metric]
        before, after = self.times(np.zeros(len(self.parameters))), self.times(posterior.places)
        table = pd.DataFrame({"metric": metrics, "file": rows.file, "measured": rows.measured})
        table = table.assign(before=before, after=after)
        if count < _FEW:
            return table
        unseen = np.full(len(table), np.inf)
        for number in range(count):
            self.progress("files left out")
            keep = (rows.file != number) & linear.good
            cases = [case for case in self.cases if case.file == number]
            if keep.any() and cases:
                unseen[rows.file == number] = self.times(solve(linear, rows, self.ends, keep).places, cases)
        return table.assign(unseen=unseen)

    def spreads(self, posterior: Posterior) -> dict[str, float]:
        """One standard error of each parameter."""
        places = np.sqrt(np.diag(posterior.covariance)).tolist()
        return {each.name: each.spread * place for each, place in zip(self.parameters, places, strict=True)}

    def outcomes(self, posterior: Posterior) -> tuple[FittedParameter, ...]:
        """Every parameter after the fit."""
        data = np.maximum(1.0 - np.diag(posterior.covariance), 0.0).tolist()
        spreads = self.spreads(posterior)
        low, high = self.ends
        return tuple(
            FittedParameter(each, each.at(place), spreads[each.name], share, _bound(place, least, most), place)
            for each, place, share, least, most in zip(
                self.parameters, posterior.places.tolist(), data, low.tolist(), high.tolist(), strict=True
            )
        )


def _errors(table: pd.DataFrame, by: str) -> dict[Any, Error]:
    """Errors by file or metric, of the rows with a prediction; what has none is not there."""
    known = table[np.isfinite(table["before"]) & np.isfinite(table["after"])]
    found = {}
    for key, own in known.groupby(by):
        left = own.drop(columns=["metric", "file", "measured"]).div(own["measured"], axis=0).sub(1.0).abs()
        means = left.where(np.isfinite(left)).mean().fillna(math.inf)
        found[key] = Error(len(own), float(means["before"]), float(means["after"]), means.get("unseen"))
    return found


def _bound(place: float, least: float, most: float) -> str:
    if abs(place) < 1e-9:
        return ""
    return "most" if place > most - 1e-6 else "least" if place < least + 1e-6 else ""


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
    return fit_benchmarks(read_benchmarks(files, given), given, date, progress)


def fit_benchmarks(
    benchmarks: Benchmarks, given: Given, date: str, progress: Callable[[str], None] = lambda _: None
) -> EngineFit:
    """Fit benchmark runs that have been read."""
    own = benchmarks.cases[0].posed.resolved.plan.engine.costs
    problem = Problem(benchmarks, own, fits.priors(own, benchmarks.calibration.served, benchmarks.cases), progress)
    linear, posterior = problem.solve()
    table = problem.answers(linear, posterior)
    outcomes, by_metric = problem.outcomes(posterior), _errors(table, "metric")
    errors = {name: by_metric[name] for name in METRICS if name in by_metric}
    costs = _costs(problem, posterior, table)
    of_files = []
    for number, each in _errors(table, "file").items():
        name, digest, tool = benchmarks.names[number], benchmarks.hashes[number], benchmarks.tools[number]
        of_files.append(ServedFile(name, digest, tool, each.rows, each.before, each.after, each.unseen))
    named = tuple(sorted(of_files, key=lambda file: (file.name, file.sha256)))
    fitted = FittedCosts(costs, problem.spreads(posterior), _notes(outcomes, own, costs), _loads(problem, posterior))
    base = read_text(calibration_path(given.calibration or benchmarks.calibration.name))
    text = written.with_serving(base, _heading(given, benchmarks, date), named, fitted)
    noise = {name: float(posterior.noise[number]) for number, name in enumerate(METRICS) if name in errors}
    pairs = alike([each.prior.name for each in outcomes], posterior)
    said = (*benchmarks.notes, *remarks(outcomes, errors, own.interval, costs.interval))
    return EngineFit(text, costs, outcomes, named, errors, pairs, noise, said, benchmarks.failed)


def _costs(problem: Problem, posterior: Posterior, table: pd.DataFrame) -> StepCosts:
    """The costs that the file holds; what an interval takes from them is never wider than it was.

    The interval is the shipped factor, or a wider one where steps of files that a fit had not seen are further off.
    """
    own, errors, interval = problem.own, problem.spreads(posterior), problem.own.interval
    spread = errors | {name: min(errors.get(name, width), width) for name, width in own.spread.items()}
    spread |= {name: 0.0 for name in FACTORS if name in errors}
    if "unseen" in table:
        steps = table[(table["metric"] != "ttft_ms") & np.isfinite(table["unseen"])]
        left = np.log(steps["measured"] / steps["unseen"])
        interval = max(interval, math.exp(SIGMAS * math.sqrt(float(left @ left) / max(len(left), 1))))
    return replace(problem.costs(posterior.places), interval=interval, spread=spread)


def _loads(problem: Problem, posterior: Posterior) -> list[ServedLoad]:
    """The loads that intervals may be narrowed by, after those that the calibration before had.

    Loads within half an octave of users and prompts count as one, with the mean logarithms: they say the same.
    """
    alike: dict[tuple[str, int, int, int], list[ServedLoad]] = {}
    served, times = problem.benchmarks.calibration.served, problem.times(posterior.places).tolist()
    known = [
        ServedLoad(
            *key, each.users, each.prompt, *(None if log is None else math.exp(log) for log in (each.ttft, each.tpot))
        )
        for key, loads in (served.loads.items() if served else ())
        for each in loads
    ]
    for case in problem.cases:
        ours = dict(zip(case.measured, times, strict=False))
        del times[: len(case.measured)]
        known_here = [name for name in METRICS[:2] if math.isfinite(ours.get(name, math.inf))]
        over = {name: case.measured[name] / ours[name] for name in known_here}
        plan, load = case.posed.resolved.plan, case.posed.load
        if case.posed.work is None and over:
            users, prompt = max(float(load.users or case.running), 1.0), max(load.isl.mean, 1.0)
            of = plan.model.name, plan.deployment.gpus
            known.append(ServedLoad(*of, users, prompt, over.get("ttft_ms"), over.get("tpot_ms")))
    for each in known:
        place = round(2.0 * math.log2(each.users)), round(2.0 * math.log2(each.prompt))
        alike.setdefault((each.model, each.gpus, *place), []).append(each)
    return [_mean(alike[key]) for key in sorted(alike)]


def _mean(loads: Sequence[ServedLoad]) -> ServedLoad:
    """Loads that say the same as one: geometric means."""
    means = {}
    for name in ("users", "prompt", "ttft", "tpot"):
        logs = [math.log(value) for each in loads if (value := getattr(each, name)) is not None]
        means[name] = math.exp(math.fsum(logs) / len(logs)) if logs else None
    return ServedLoad(loads[0].model, loads[0].gpus, **means)  # type: ignore[arg-type]


def _heading(given: Given, benchmarks: Benchmarks, date: str) -> ServingHeading:
    plan, base = benchmarks.cases[0].posed.resolved.plan, benchmarks.calibration
    engine, version = plan.deployment.engine, plan.deployment.engine_version
    shipped = given.calibration is None or (base.served is not None and base.served.shipped)
    earlier = base.served.hashes if base.served else ()
    since = step_range(engine, version)
    gpu = plan.system.accelerator.name
    return ServingHeading(gpu, engine, since, date, (base.name, base.hash), shipped, earlier)


def _notes(outcomes: Sequence[FittedParameter], own: StepCosts, costs: StepCosts) -> dict[str, str]:
    """Notes on every cost in the file: its value before."""
    said = dict.fromkeys(own.spread, "as before")
    if costs.interval != own.interval:
        said["interval"] = f"was {own.interval:.4g}; files left out were further off"
    for each in outcomes:
        name, prior = each.prior.name, each.prior
        scale, unit = (1.0, "") if name in UNITLESS else (1e6, " us")
        value, spread = plain(scale * prior.value), plain(scale * prior.spread)
        said[name] = f"was {value} ± {spread}{unit}; data {percent(each.data)}"
    return said

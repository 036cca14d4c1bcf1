"""Engine costs before and after benchmark files: what is believed before, and the most probable values after.

Parameters are the engine's costs and two factors on its kernels. Places z count prior spreads from the prior's value.
With r = ln(measured / predicted) and σ the noise of each metric,

    minimise  Σ (r/σ)² + Σ z²      within the bounds
    σ² = (ν·s² + Σ r²)/(ν + n − γ),  γ = Σ of the rows' leverages   (MacKay 1992, doi:10.1162/neco.1992.4.3.415)
    covariance = (JᵀJ/σ² + 1)⁻¹

Times are nearly linear in the costs, so each round linearises times, not their logarithms, and asks the predictor anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, pstdev

import numpy as np
from numpy.typing import NDArray

from rooflinekit.evidence.engine_fit.cases import FitCase
from rooflinekit.model.roofline import time_step
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.engine import ServedCosts, StepCosts
from rooflinekit.model.types.errors import needing
from rooflinekit.model.types.numeric import Array
from rooflinekit.model.types.time import SIGMAS
from rooflinekit.specs.engines import engine_names, load_engine, step_ranges

MOST = {
    "step": 2e-2, "ranks": 1e-2, "sequence": 1e-3, "sequence_ranks": 1e-3, "layer": 1e-3, "collective": 1e-3,
    "hidden": 1.0, "grouped": 5.0, "launch": 1e-3, "request": 1.0, "memory": 2.0, "compute": 2.0,
}  # fmt: skip
"""The most that each may become [s, or a factor]; the least is 0, and 1/2 for a factor. Assumptions."""

FACTORS = ("memory", "compute")
STAND_IN = 10.0
"""The most of a factor where kernels of another accelerator stand in: an assumption; the least is its inverse."""

REACH = 4.0
"""Prior spreads that a value may move at most, either way: an assumption. Beyond it a wrong fact is likelier."""

_NOTHING = 1e-9  # prior spreads: rounding beside 0


@dataclass(frozen=True)
class FitParameter:
    """One number and its prior: normal around `value` with the standard error `spread` (log-normal for a factor).

    most: what it may become, by `MOST` where nothing is said.
    """

    name: str
    value: float
    spread: float
    most: float | None = None

    @property
    def factor(self) -> bool:
        """True if it multiplies, and its spread is one of its logarithm."""
        return self.name in FACTORS

    def at(self, place: float) -> float:
        """The value `place` prior spreads from the prior's.

        >>> FitParameter("step", 2e-4, 1e-4).at(1.0)
        0.0003
        """
        if self.factor:
            return self.value * math.exp(self.spread * place)
        value = self.value + self.spread * place
        return value if value > _NOTHING * self.spread else 0.0

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest place."""
        most = self.most or MOST[self.name]
        if self.factor:
            low, high = -math.log(most * self.value) / self.spread, math.log(most / self.value) / self.spread
        else:
            low, high = -self.value / self.spread, (most - self.value) / self.spread
        return min(max(low, -REACH), 0.0), max(min(high, REACH), 0.0)


def costs_at(costs: StepCosts, parameters: Sequence[FitParameter], places: Sequence[float]) -> StepCosts:
    """The costs with these parameters moved."""
    moved = {each.name: each.at(float(place)) for each, place in zip(parameters, places, strict=True)}
    return replace(costs, **moved)  # type: ignore[arg-type]


def priors(own: StepCosts, served: ServedCosts | None, cases: Sequence[FitCase]) -> tuple[FitParameter, ...]:
    """The prior of every parameter that the engine has.

    Costs: the shipped value, with its standard error, or with the standard deviation of that cost over all engines
    where this is larger: the standard error is that of a mean over published deployments, and one deployment differs
    from the mean (an assumption). Of an engine without a known cost: `unknown`. Factors: 1, with the error of the
    kernels that the runs are made of. Where files were used before, their posterior.
    """
    plan = cases[0].posed.resolved.plan
    most = dict.fromkeys(FACTORS, STAND_IN) if plan.calibration and plan.calibration.widening else {}
    if served is not None:
        values = {name: getattr(served.costs, name) for name in served.errors}
        most |= {name: max(MOST[name], 2.0 * values[name]) for name in ("step", "sequence") if name in values}
        return tuple(FitParameter(name, values[name], error, most.get(name)) for name, error in served.errors.items())
    shipped = {name: max(own.spread[name], pstdev(_known(name))) for name in MOST if name in own.spread}
    found = [FitParameter(name, getattr(own, name), spread) for name, spread in shipped.items()]
    if not own.spread:
        found = list(unknown(cases))
    found += [FitParameter(name, 1.0, spread, most.get(name)) for name, spread in kernel_errors(cases).items()]
    return tuple(each for each in found if each.spread > 0.0)


def unknown(cases: Sequence[FitCase]) -> tuple[FitParameter, ...]:
    """Parameters of an engine without known costs: nothing, give or take what its kernels take themselves.

    To a step as much as a decode step of the runs in the mean, to a sequence as much as its part of one; to a request
    what the other engines' front ends take. Assumptions.
    """
    steps, parts = [], []
    for case in cases:
        plan, load = case.posed.resolved.plan, case.posed.load
        kernels = plan.kernels(Batch.decode(case.running, load.isl.mean + load.osl.mean / 2.0))
        steps.append(float(time_step(kernels, plan.system, plan.calibration).expected))
        parts.append(steps[-1] / case.running)
    front = fmean(_known("request"))
    sizes = {"step": fmean(steps), "sequence": fmean(parts)}
    found = (FitParameter(name, 0.0, size, REACH * size) for name, size in sizes.items())
    return (*found, FitParameter("request", front, front))


def _known(name: str) -> list[float]:
    ranges = [(engine, since or None, only) for engine in engine_names() for since, only in step_ranges(engine)]
    known = [load_engine(*place).costs for place in ranges]
    return [getattr(costs, name) for costs in known if name in costs.spread]


def kernel_errors(cases: Sequence[FitCase]) -> Mapping[str, float]:
    """Standard error of the log of kernel times in the steps of the runs, by what the kernels wait for.

    ln(high / time) / 1.645 of each kernel, weighed by its time: the errors of one model's kernels go together, so they
    add up as they do in an interval.
    """
    weights, errors = dict.fromkeys(FACTORS, 0.0), dict.fromkeys(FACTORS, 0.0)
    for case in cases:
        plan, load = case.posed.resolved.plan, case.posed.load
        users = math.ceil(case.running / plan.deployment.dp)
        isl, context = load.isl.mean, load.isl.mean + load.osl.mean / 2.0
        for batch in (Batch.decode(float(users), context), Batch.prefill(1.0, isl)):
            step = time_step(plan.kernels(batch), plan.system, plan.calibration)
            for timed in step.kernels:
                memory = float(timed.memory / max(timed.memory + timed.compute, 1e-30))
                for name, share in zip(FACTORS, (memory, 1.0 - memory), strict=True):
                    weight = share * float(timed.expected / step.expected)
                    weights[name] += weight
                    errors[name] += weight * math.log(float(timed.high / timed.expected)) / SIGMAS
    return {name: errors[name] / weights[name] for name in FACTORS if weights[name] > 0.0}


@dataclass(frozen=True)
class Believed:
    """The noise of a metric before any data (s, as long as ν rows say), and its limits.

    Beyond the upper limit it is not noise, and the bounds show it.
    """

    size: float
    least: float
    most: float


STEPS = Believed(0.05, 0.01, 0.2)
"""Time a token: what a repeated run differs by and no cost expresses. An assumption."""
WAITS = Believed(0.4, 0.02, 1.5)
"""Time to the first token: mostly waits, whose error in published closed loops is 48 % in the median
(docs/accuracy.md), because it hangs on how the client starts. Its limits are an assumption."""
_WEIGHT = 3.0
_ROUNDS = 60
_LEAST = 0.05  # of a time: no cost makes it shorter


@dataclass(frozen=True)
class FitRows:
    """Measured times [s], the number of each one's metric, and of its file; noise: what is believed of each metric."""

    measured: Array
    metric: NDArray[np.intp]
    file: NDArray[np.intp]
    noise: tuple[Believed, ...] = (STEPS,)


@dataclass(frozen=True)
class Linearised:
    """Predicted times near the place `at`: times + slopes · (z − at) [s]; good: rows that have a prediction."""

    at: Array
    times: Array
    slopes: Array
    good: NDArray[np.bool_]

    def times_at(self, places: Array) -> Array:
        """Times at other places."""
        moved: Array = self.times + self.slopes @ (places - self.at)
        return np.maximum(moved, _LEAST * self.times)


@dataclass(frozen=True)
class Posterior:
    """The most probable places, their covariance, and the noise of each metric."""

    places: Array
    covariance: Array
    noise: Array


def solve(linear: Linearised, rows: FitRows, ends: Array, keep: NDArray[np.bool_]) -> Posterior:
    """Fit the rows of `keep`; ends: the lowest and highest place of each parameter."""
    with needing("fitting engine costs", "accuracy"):
        from scipy.optimize import lsq_linear  # noqa: PLC0415
    count = linear.slopes.shape[1]
    places, noise = np.zeros(count), np.array([believed.size for believed in rows.noise])
    for _ in range(_ROUNDS):
        weight = np.where(keep, 1.0 / noise[rows.metric], 0.0)
        predicted = linear.times_at(places)
        slopes = linear.slopes / predicted[:, None]
        left = np.log(rows.measured / predicted)
        matrix = np.vstack([slopes * weight[:, None], np.eye(count)])
        target = np.concatenate([(left + slopes @ places) * weight, np.zeros(count)])
        wanted = lsq_linear(matrix, target, bounds=(ends[0], ends[1]), method="bvls").x
        moved = shortened(partial(_cost, linear, rows, weight), places, wanted)
        covariance = np.linalg.inv(matrix.T @ matrix)
        own = matrix[: len(weight)]
        heard = _noise(linear, rows, moved, np.einsum("ij,jk,ik->i", own, covariance, own), keep)
        still = np.abs(moved - places).max() < 1e-9 and np.abs(heard - noise).max() < 1e-9
        places, noise = moved, heard
        if still:
            break
    return Posterior(places, covariance, noise)


def _cost(linear: Linearised, rows: FitRows, weight: Array, places: Array) -> float:
    return misfit(rows.measured, linear.times_at(places), weight, places)


def misfit(measured: Array, times: Array, weight: Array, places: Array) -> float:
    """Objective of the fit: Σ (weight·ln(measured / times))² + Σ z²; infinite where a load has become unstable."""
    if not np.isfinite(times).all():
        return math.inf
    left = np.log(measured / times) * weight
    return float(left @ left + places @ places)


def shortened(cost: Callable[[Array], float], start: Array, end: Array, halvings: int = 10) -> Array:
    """The end of a step, halved while it makes things worse."""
    least = cost(start)
    for _ in range(halvings):
        if cost(end) <= least:
            return end
        end = (start + end) / 2.0
    return start


def _noise(linear: Linearised, rows: FitRows, places: Array, leverage: Array, keep: NDArray[np.bool_]) -> Array:
    left = np.log(rows.measured / linear.times_at(places))
    found = []
    for number, believed in enumerate(rows.noise):
        mine = keep & (rows.metric == number)
        free = max(float(mine.sum()) - float(leverage[mine].sum()), 0.0)
        size = (_WEIGHT * believed.size**2 + float(left[mine] @ left[mine])) / (_WEIGHT + free)
        found.append(min(max(math.sqrt(size), believed.least), believed.most))
    return np.array(found)

"""A fit as rows, parameters, and the predictor between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rooflinekit.evidence.engine_fit.cases import METRICS, Case
from rooflinekit.evidence.engine_fit.outcome import Error, Outcome
from rooflinekit.evidence.engine_fit.parameters import Parameter, costs_at
from rooflinekit.evidence.engine_fit.read import Benchmarks
from rooflinekit.evidence.engine_fit.solve import STEPS, WAITS, Linear, Posterior, Rows, solve
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.numeric import Array
from rooflinekit.specs.calibration.served import ServedFile

__all__ = ["Answers", "Problem"]

_ROUNDS = 6  # of asking the predictor anew
_FAR = 0.5  # prior spreads from which slopes are asked again too
_PROBE = 0.25  # prior spreads by which a slope is probed
_HALVINGS = 5
_SETTLED = 0.02  # prior spreads
_NOISE = tuple(WAITS if name == "ttft_ms" else STEPS for name in METRICS)
_FEW = 3  # files from which leaving one out says something


@dataclass(frozen=True)
class Answers:
    """Predicted times of all rows [s]: before, after, and by fits without their file (None for too few files)."""

    before: Array
    after: Array
    unseen: Array | None


@dataclass(frozen=True)
class Problem:
    """Rows, parameters, and the predictor between them."""

    benchmarks: Benchmarks
    own: StepCosts
    parameters: tuple[Parameter, ...]
    progress: Callable[[str], None]

    @property
    def cases(self) -> tuple[Case, ...]:
        """The measured runs."""
        return self.benchmarks.cases

    @property
    def rows(self) -> Rows:
        """Every measured time."""
        measured = [time for case in self.cases for time in case.measured.values()]
        places = [(METRICS.index(name), case.file) for case in self.cases for name in case.measured]
        metric, file = np.array(places, np.intp).T
        return Rows(np.array(measured), metric, file, _NOISE)

    @property
    def ends(self) -> Array:
        """The lowest place of each parameter, and the highest."""
        return np.array([each.ends for each in self.parameters]).T

    def costs(self, places: Array) -> StepCosts:
        """The engine's costs at these places."""
        return costs_at(self.own, self.parameters, places.tolist())

    def times(self, places: Array, cases: Sequence[Case] | None = None) -> Array:
        """Predicted times of all rows, or of those of some cases [s]."""
        costs = self.costs(places)
        return np.array([time for case in (self.cases if cases is None else cases) for time in case.times(costs)])

    def solve(self) -> tuple[Linear, Posterior]:
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

    def _no_worse(self, linear: Linear, found: Posterior) -> Array:
        """Where the solution leads, or a part of the way, so that the prediction itself gets no worse."""
        least, share = self._cost(linear, linear.at, found.noise), 1.0
        for _ in range(_HALVINGS):
            end: Array = linear.at + share * (found.places - linear.at)
            if self._cost(linear, end, found.noise) <= least:
                return end
            share /= 2.0
        return linear.at

    def _cost(self, linear: Linear, places: Array, noise: Array) -> float:
        times, rows = self.times(places)[linear.good], self.rows
        if not np.isfinite(times).all():  # a load that becomes unstable
            return math.inf
        left = np.log(rows.measured[linear.good] / times) / noise[rows.metric[linear.good]]
        return float(left @ left + places @ places)

    def _linear(self, places: Array, like: Linear | None = None) -> Linear:
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
        return Linear(places, np.where(good, times, self.rows.measured), np.where(good[:, None], slopes, 0.0), good)

    def answers(self, linear: Linear, posterior: Posterior) -> Answers:
        """Predicted times of all rows."""
        before, after = self.times(np.zeros(len(self.parameters))), self.times(posterior.places)
        return Answers(before, after, self._unseen(linear))

    def _unseen(self, linear: Linear) -> Array | None:
        """Times of each file's runs from a fit to the others; None for too few files."""
        count = len(self.benchmarks.names)
        if count < _FEW:
            return None
        rows, found = self.rows, np.full(len(self.rows.measured), np.inf)
        for number in range(count):
            self.progress("files left out")
            keep = (rows.file != number) & linear.good
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
        """Every parameter after the fit."""
        data = np.maximum(1.0 - np.diag(posterior.covariance), 0.0).tolist()
        spreads = self.spreads(posterior)
        low, high = self.ends
        return tuple(
            Outcome(each, each.at(place), spreads[each.name], share, _bound(place, least, most), place)
            for each, place, share, least, most in zip(
                self.parameters, posterior.places.tolist(), data, low.tolist(), high.tolist(), strict=True
            )
        )

    def files(self, times: Answers) -> tuple[ServedFile, ...]:
        """Errors of every file, by name."""
        rows, named = self.rows, self.benchmarks
        found = []
        for number, facts in enumerate(zip(named.names, named.hashes, named.tools, strict=True)):
            error = _error(rows, rows.file == number, times)
            if error is not None:
                found.append(ServedFile(*facts, error.rows, error.before, error.after, error.unseen))
        return tuple(sorted(found, key=lambda file: (file.name, file.sha256)))

    def errors(self, times: Answers) -> dict[str, Error]:
        """Errors of every metric."""
        rows, found = self.rows, {}
        for number, name in enumerate(METRICS):
            found[name] = _error(rows, rows.metric == number, times)
        return {name: error for name, error in found.items() if error is not None}


def _error(rows: Rows, mine: Array, times: Answers) -> Error | None:
    """Errors of some rows, of those with a prediction; None for none."""
    chosen = mine & np.isfinite(times.before) & np.isfinite(times.after)
    if not chosen.any():
        return None

    def mean(predicted: Array) -> float:
        left = np.abs(predicted[chosen] / rows.measured[chosen] - 1.0)
        return float(left[np.isfinite(left)].mean()) if np.isfinite(left).any() else math.inf

    unseen = None if times.unseen is None else mean(times.unseen)
    return Error(int(chosen.sum()), mean(times.before), mean(times.after), unseen)


def _bound(place: float, least: float, most: float) -> str:
    if abs(place) < 1e-9:
        return ""
    return "most" if place > most - 1e-6 else "least" if place < least + 1e-6 else ""

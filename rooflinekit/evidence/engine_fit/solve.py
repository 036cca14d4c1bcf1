"""The most probable costs: normal priors, log-normal noise of a size that is estimated too, and bounds.

Places z count prior spreads from the prior's value. With r = ln(measured / predicted) and σ the noise of each metric,

    minimise  Σ (r/σ)² + Σ z²      within the bounds
    σ² = (ν·s² + Σ r²)/(ν + n − γ),  γ = Σ of the rows' leverages   (MacKay 1992, doi:10.1162/neco.1992.4.3.415)
    covariance = (JᵀJ/σ² + 1)⁻¹

Times are nearly linear in the costs, so each round linearises times, not their logarithms, and asks the predictor anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooflinekit.model.types.errors import MissingExtraError
from rooflinekit.model.types.numeric import Array

__all__ = ["STEPS", "WAITS", "Linear", "Posterior", "Rows", "solve"]


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
"""Time to the first token: mostly waits, whose error in published closed loops is 42 % in the median
(docs/accuracy.md), because it hangs on how the client starts. Its limits are an assumption."""
_WEIGHT = 3.0
_ROUNDS = 60
_LEAST = 0.05  # of a time: no cost makes it shorter


@dataclass(frozen=True)
class Rows:
    """Measured times [s], the number of each one's metric, and of its file; noise: what is believed of each metric."""

    measured: Array
    metric: NDArray[np.intp]
    file: NDArray[np.intp]
    noise: tuple[Believed, ...] = (STEPS,)


@dataclass(frozen=True)
class Linear:
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


def solve(linear: Linear, rows: Rows, ends: Array, keep: NDArray[np.bool_]) -> Posterior:
    """Fit the rows of `keep`; ends: the lowest and highest place of each parameter.

    Raises MissingExtraError without scipy.
    """
    try:
        from scipy.optimize import lsq_linear  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("fitting engine costs", "accuracy") from None
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
        moved = _shortened(linear, rows, weight, places, wanted)
        covariance = np.linalg.inv(matrix.T @ matrix)
        heard = _noise(linear, rows, moved, np.einsum("ij,jk,ik->i", matrix[: len(weight)], covariance,
                                                      matrix[: len(weight)]), keep)  # fmt: skip
        still = np.abs(moved - places).max() < 1e-9 and np.abs(heard - noise).max() < 1e-9
        places, noise = moved, heard
        if still:
            break
    return Posterior(places, covariance, noise)


def _shortened(linear: Linear, rows: Rows, weight: Array, start: Array, end: Array) -> Array:
    """The step, halved while it makes things worse."""

    def cost(places: Array) -> float:
        left = np.log(rows.measured / linear.times_at(places)) * weight
        return float(left @ left + places @ places)

    least = cost(start)
    for _ in range(10):
        if cost(end) <= least:
            return end
        end = (start + end) / 2.0
    return start


def _noise(linear: Linear, rows: Rows, places: Array, leverage: Array, keep: NDArray[np.bool_]) -> Array:
    left = np.log(rows.measured / linear.times_at(places))
    found = []
    for number, believed in enumerate(rows.noise):
        mine = keep & (rows.metric == number)
        free = max(float(mine.sum()) - float(leverage[mine].sum()), 0.0)
        size = (_WEIGHT * believed.size**2 + float(left[mine] @ left[mine])) / (_WEIGHT + free)
        found.append(min(max(math.sqrt(size), believed.least), believed.most))
    return np.array(found)

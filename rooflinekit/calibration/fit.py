"""Fit the three-parameter form to measured kernels: launch floor, compute share, memory (or network) share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooflinekit.types.calibration import FamilyFit, Parameter
from rooflinekit.types.errors import MissingExtraError
from rooflinekit.types.numeric import Array

__all__ = ["Measured", "fit_family", "predict"]

_FLOOR_US, _SHARE = 1e-3, (0.02, 1.0)


@dataclass(frozen=True)
class Measured:
    """Kernels of one family that ran: what each resource needs at datasheet rates [s], and the measured time [s]."""

    compute: Array
    memory: Array
    network: Array
    hops: Array  #: further accelerators in the group
    time: Array
    group: Array  #: number of each row's shape group; intervals come from groups that the fit has not seen

    def subset(self, rows: NDArray[np.bool_]) -> Measured:
        """Rows by a boolean mask."""
        return Measured(
            self.compute[rows],
            self.memory[rows],
            self.network[rows],
            self.hops[rows],
            self.time[rows],
            self.group[rows],
        )


def fit_family(measured: Measured, source: str, folds: int = 5, seed: int = 0) -> FamilyFit:
    """Robust least squares on log(time / prediction); 90 % interval from whole groups left out in turn.

    A resource that no row needs keeps share 1 with spread 0. Spreads are one standard error from the Jacobian.

    Raises MissingExtraError without scipy.
    """
    theta, spread = _least_squares(measured)
    numbers, position = np.unique(measured.group, return_inverse=True)
    fold = (np.random.default_rng(seed).permutation(len(numbers)) % folds)[position]
    ratios = np.concatenate([_left_out(measured, fold == index) for index in range(folds)])
    low, high = np.quantile(ratios, [0.05, 0.95])
    launch, compute, memory, network, hop = (Parameter(float(v), float(s)) for v, s in zip(theta, spread, strict=True))
    return FamilyFit(
        launch, compute, memory, network, hop, min(float(low), 1.0), max(float(high), 1.0), len(measured.time), source
    )


def predict(fit: FamilyFit, rows: Measured) -> Array:
    """Time of each row under fitted parameters [s]."""
    parameters = (fit.launch, fit.compute, fit.memory, fit.network, fit.hop)
    return _predict(np.array([parameter.value for parameter in parameters]), rows)


def _left_out(measured: Measured, held: NDArray[np.bool_]) -> Array:
    if held.all() or not held.any():
        return np.ones(0)
    theta, _ = _least_squares(measured.subset(~held))
    unseen = measured.subset(held)
    ratios: Array = unseen.time / _predict(theta, unseen)
    return ratios


def _predict(theta: Array, rows: Measured) -> Array:
    launch, compute, memory, network, hop = theta
    busy = np.maximum(np.maximum(rows.compute / compute, rows.memory / memory), rows.network / network)
    time: Array = launch + hop * rows.hops + busy
    return time


def _least_squares(rows: Measured) -> tuple[Array, Array]:
    try:
        from scipy.optimize import least_squares  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("fitting a calibration", "accuracy") from None
    free = np.array([True, rows.compute.any(), rows.memory.any(), rows.network.any(), rows.hops.any()])
    start = np.array([np.min(rows.time) * 0.8, 0.6, 0.8, 0.8, 1e-6])
    lower = np.array([_FLOOR_US * 1e-6, _SHARE[0], _SHARE[0], _SHARE[0], 0.0])
    upper = np.array([np.median(rows.time) + 1e-4, _SHARE[1], _SHARE[1], _SHARE[1], 1e-4])
    start = np.clip(start, lower + 1e-12, upper)
    full = np.where(free, start, [0.0, 1.0, 1.0, 1.0, 0.0])

    def residuals(theta: Array) -> Array:
        full[free] = theta
        logs: Array = np.log(rows.time / _predict(full, rows))
        return logs

    fit = least_squares(
        residuals, start[free], bounds=(lower[free], upper[free]), loss="soft_l1", f_scale=0.1, x_scale=start[free]
    )
    full[free] = fit.x
    spread = np.zeros(5)
    noise = 2.0 * fit.cost / max(len(rows.time) - len(fit.x), 1)
    jacobian: Array = np.asarray(fit.jac, dtype=float)
    spread[free] = np.sqrt(np.diag(np.linalg.pinv(jacobian.T @ jacobian)) * noise)
    return full.copy(), spread

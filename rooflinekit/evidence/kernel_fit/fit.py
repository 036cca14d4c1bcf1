"""Fit a time form to measured kernels: robust least squares on logarithms, within physical bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rooflinekit.evidence.kernel_fit.tables import Measured
from rooflinekit.model.timing.forms import FORMS, TimeForm, parameters
from rooflinekit.model.types.errors import MissingExtraError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.numeric import Array

__all__ = ["Prior", "fit_form", "form_time"]

_SCALE = 0.08
"""Log error beyond which a row counts linearly instead of squared: the usual misfit of the forms."""
_UNPINNED = 0.5
"""A parameter is frozen when its standard error exceeds this share of its allowed range, or of its value."""
_EVALUATIONS = 40


@dataclass(frozen=True)
class Prior:
    """What to believe before measuring: the form of another accelerator, and how far parameters move [log].

    `distant`: an accelerator of another kind, whose discrete parameters (how its resources overlap) mean nothing here.
    """

    form: TimeForm
    spread: float = 0.3
    distant: bool = False


@dataclass(frozen=True)
class FormFit:
    """A fitted form; spread: one standard error of each parameter (SI); frozen: what the data could not pin."""

    form: TimeForm
    spread: dict[str, float]
    frozen: tuple[str, ...]
    cost: float


def form_time(form: TimeForm, rows: Measured, system: System) -> Array:
    """Time of each row by a form, as it was measured: cold or in a loop [s]."""
    return rows.each(lambda kernel: form.time(kernel, system, rows.warm).total)


def fit_form(
    rows: Measured, system: System, prior: Prior | None = None, start: TimeForm | None = None, weigh: bool = False
) -> FormFit:
    """Minimise Σ ρ(log(measured / form)) within the bounds of the parameters, ρ growing linearly for outliers.

    Discrete parameters are tried one by one (only those of `start`, or of a prior that is not distant, if given).
    Parameters that the data cannot pin are frozen at the prior (or at their usual value) and the rest is fitted again.
    `weigh` weighs a row by √time, for end-to-end use.

    Raises MissingExtraError without scipy.
    """
    usual = prior.form if prior else FORMS[rows.family]()
    variants = [start] if start else _choices(usual) if prior is None or prior.distant else [usual]
    start = variants[0]
    free = [name for name, bound in parameters(start).items() if not bound.choices]
    weights = np.sqrt(rows.time / rows.time.mean()) if weigh else np.ones(len(rows.time))
    problem = _Problem(rows, system, prior, weights)
    fits = [problem.solve(variant, free) for variant in variants]
    best = min(fits, key=lambda fit: fit.cost)
    frozen: list[str] = []
    while unpinned := [name for name in free if name not in frozen and not _pinned(best, name)]:
        frozen += unpinned
        held = replace(best.form, **{name: getattr(usual, name) for name in unpinned})  # type: ignore[type-var]
        best = problem.solve(held, [name for name in free if name not in frozen])
    return replace(best, frozen=tuple(frozen))


def _choices(form: TimeForm) -> list[TimeForm]:
    named = {name: bound.choices for name, bound in parameters(form).items() if bound.choices}
    forms = [form]
    for name, values in named.items():
        forms = [replace(each, **{name: value}) for each in forms for value in values]  # type: ignore[type-var]
    return forms


def _pinned(fit: FormFit, name: str) -> bool:
    bound, spread = parameters(fit.form)[name], fit.spread[name]
    value: float = getattr(fit.form, name)
    if value <= (bound.low + 1e-6 * (bound.high - bound.low)) * bound.scale:
        return True  # at its floor: the term is absent
    least = min(bound.high - bound.low, max(value / bound.scale, bound.usual))
    return spread < _UNPINNED * least * bound.scale


@dataclass(frozen=True)
class _Problem:
    rows: Measured
    system: System
    prior: Prior | None
    weights: Array

    def solve(self, start: TimeForm, free: Sequence[str]) -> FormFit:
        """Fit the named parameters, all others as in `start`."""
        try:
            from scipy.optimize import least_squares  # noqa: PLC0415
        except ImportError:
            raise MissingExtraError("fitting a calibration", "accuracy") from None
        bounds = parameters(start)
        scale = np.array([bounds[name].scale for name in free])
        low, high = (np.array([getattr(bounds[name], end) for name in free]) for end in ("low", "high"))
        guess = np.clip(
            [getattr(start, name) for name in free] / scale, low + 1e-4 * (high - low), high - 1e-4 * (high - low)
        )
        typical = np.maximum(guess, 0.02 * np.minimum(high - low, 50.0))

        def residuals(theta: Array) -> Array:
            form = _with(start, free, theta * scale)
            logs = self.weights * np.log(self.rows.time / form_time(form, self.rows, self.system))
            return np.concatenate([logs, self._prior(theta * scale, free, typical * scale)])

        fit = least_squares(
            residuals, guess, bounds=(low, high), loss="soft_l1", f_scale=_SCALE, x_scale=typical, max_nfev=_EVALUATIONS
        )
        errors = _standard_errors(np.asarray(fit.jac, float), float(fit.cost))
        spread = np.minimum(errors, high - low) * scale
        return FormFit(
            _with(start, free, fit.x * scale), dict(zip(free, map(float, spread), strict=True)), (), float(fit.cost)
        )

    def _prior(self, theta: Array, free: Sequence[str], typical: Array) -> Array:
        """Distance from the prior in units of its spread, on the scale of a typical row's error."""
        if self.prior is None:
            return np.zeros(0)
        centre = np.array([getattr(self.prior.form, name) for name in free])
        small = 0.1 * typical
        logs: Array = np.log((theta + small) / (centre + small))
        return logs * (_SCALE / self.prior.spread)


def _with(form: TimeForm, names: Sequence[str], values: Array) -> TimeForm:
    changes: dict[str, Any] = dict(zip(names, map(float, values), strict=True))
    return replace(form, **changes)  # type: ignore[type-var]


def _standard_errors(jacobian: Array, cost: float) -> Array:
    rows, count = jacobian.shape
    noise = 2.0 * cost / max(rows - count, 1)
    norms = np.linalg.norm(jacobian, axis=0)
    scaled = jacobian / np.where(norms > 0.0, norms, 1.0)
    covariance = np.linalg.pinv(scaled.T @ scaled, rcond=1e-10) * noise
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0)) / np.where(norms > 0.0, norms, np.inf)
    return np.where(norms > 0.0, errors, np.inf)

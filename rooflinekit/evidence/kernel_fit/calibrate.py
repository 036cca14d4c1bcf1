"""From measured kernels of one family to its fit: form, correction, error bars, and what happens on unseen shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rooflinekit.evidence.kernel_fit.correction import fit_surface
from rooflinekit.evidence.kernel_fit.fit import Prior, fit_form, form_time
from rooflinekit.evidence.kernel_fit.intervals import coverage, fit_regimes
from rooflinekit.evidence.kernel_fit.lattice import LATTICES
from rooflinekit.evidence.kernel_fit.tables import Measured
from rooflinekit.model.timing import AXES, TimeForm
from rooflinekit.model.timing.calibrated import Beyond, FamilyFit, Regimes
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.numeric import Array

__all__ = ["Fitted", "calibrate_family", "predict"]

FOLDS = 4
_FEW, _KERNEL = 20, 200
"""Rows below which a correction would follow noise, and rows that a kernel of its own needs."""
_SWITCH = {"attention_decode": ("group", 40.0)}
"""Where an engine may change its kernel: decode with more than 32 query heads a KV head (TensorRT-LLM does)."""
_APART = 0.4
"""Median |log error| beyond the switch, under the fit from below it, that makes it another kernel."""
_UNKNOWN = Regimes("", (), (1.0,))


@dataclass(frozen=True)
class Fitted:
    """A fit, and the predictions for each row from folds that left its shape group out [s]."""

    fit: FamilyFit
    form_alone: Array
    corrected: Array
    inside: NDArray[np.bool_]
    fold: NDArray[np.intp]


def predict(fit: FamilyFit, rows: Measured, system: System, corrected: bool = True) -> Array:
    """Time of each row as it was measured, cold or in a loop [s]."""
    return rows.each(lambda kernel: fit.time(kernel, system, rows.warm, corrected).total)


def calibrate_family(
    rows: Measured, system: System, source: str, prior: Prior | None = None, folds: int = FOLDS
) -> Fitted:
    """Fit all rows, and again with each fold of whole shape groups left out (seeded).

    The interval and the stated error come from the left-out rows.
    """
    whole = _fit(rows, system, prior, None)
    fold = _folds(rows.group, folds)
    alone, corrected = np.zeros(len(rows.time)), np.zeros(len(rows.time))
    for number in range(folds):
        held = fold == number
        if not held.any() or held.all():
            continue
        part = _fit(rows.subset(~held), system, prior, whole)
        unseen = rows.subset(held)
        alone[held] = predict(part, unseen, system, corrected=False)
        corrected[held] = predict(part, unseen, system)
    ratio = rows.time / corrected
    fit = replace(
        whole,
        regimes=fit_regimes(rows, ratio),
        rows=len(rows.time),
        error=float(np.mean(np.abs(1.0 / ratio - 1.0))),
        source=source,
    )
    return Fitted(fit, alone, corrected, coverage(rows, ratio, fold), fold)


def _folds(group: NDArray[np.intp], folds: int, seed: int = 0) -> NDArray[np.intp]:
    """Whole shape groups dealt to folds; rows where there is only one group, which no fold could do without."""
    numbers, position = np.unique(group, return_inverse=True)
    if len(numbers) == 1:
        numbers = position = np.arange(len(group))
    return (np.random.default_rng(seed).permutation(len(numbers)) % folds)[position]


def _fit(rows: Measured, system: System, prior: Prior | None, start: FamilyFit | None) -> FamilyFit:
    """Fit the form and its correction, apart for a kernel that the engine changes to."""
    if rows.family not in _SWITCH:
        return _fit_one(rows, system, prior, start.form if start else None)
    axis, edge = _SWITCH[rows.family]
    far = rows.each(AXES[axis]) >= edge
    if min(far.sum(), (~far).sum()) < _KERNEL:
        return _fit_one(rows, system, prior, start.form if start else None)
    near = _fit_one(rows.subset(~far), system, prior, start.form if start else None)
    beyond = rows.subset(far)
    apart = abs(float(np.median(np.log(beyond.time / form_time(near.form, beyond, system)))))
    if apart < _APART:
        return _fit_one(rows, system, prior, start.form if start else None)
    other = _fit_one(beyond, system, None, start.beyond.fit.form if start and start.beyond else None)
    return replace(near, beyond=Beyond(axis, edge, other))


def _fit_one(rows: Measured, system: System, prior: Prior | None, start: TimeForm | None) -> FamilyFit:
    found = fit_form(rows, system, prior, start)
    surface = None
    if len(rows.time) >= _FEW and rows.family in LATTICES:
        surface = fit_surface(rows, found.form, system, rows.time / form_time(found.form, rows, system))
    return FamilyFit(found.form, found.spread, found.frozen, surface, _UNKNOWN, len(rows.time), 0.0, "")

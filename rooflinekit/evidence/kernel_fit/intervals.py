"""Error bars: quantiles of what shape groups that a fit has not seen show, one for each regime of size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rooflinekit.evidence.kernel_fit.tables import Measured
from rooflinekit.model.timing import AXES
from rooflinekit.model.timing.calibrated import Regimes
from rooflinekit.model.types.kernel import Family
from rooflinekit.model.types.numeric import Array

__all__ = ["REGIMES", "coverage", "fit_regimes", "regime_of"]

LEVEL = 0.9
_LEAST = 15
"""Rows that a regime needs for a quantile of its own; smaller ones take the pooled one."""

REGIMES: dict[Family, tuple[str, tuple[float, ...]]] = {
    "gemm": ("m", (16.0, 128.0, 1024.0)),
    "attention_decode": ("cached", (2.0**13, 2.0**17, 2.0**20)),
    "attention_prefill": ("queries", (2.0**12, 2.0**16, 2.0**19)),
    "mla_decode": ("cached", (2.0**10, 2.0**14, 2.0**18)),
    "mla_prefill": ("queries", (2.0**12, 2.0**16, 2.0**19)),
    "moe": ("tokens", (16.0, 128.0, 1024.0)),
    "collective": ("bytes", (2.0**15, 2.0**23)),
    **dict.fromkeys(("elementwise", "kv_append", "embedding", "sampling"), ("traffic", (2.0**17, 2.0**23))),
}
"""The shape that tells small from large, and where: launch bound, in between, bound by memory or compute."""


def regime_of(rows: Measured) -> NDArray[np.intp]:
    """Number of the regime of each row."""
    axis, edges = REGIMES[rows.family]
    return np.searchsorted(np.array(edges), rows.each(AXES[axis]), side="left")


def fit_regimes(rows: Measured, ratio: Array) -> Regimes:
    """Widths from the ratios measured / predicted of rows that the predictions had not seen."""
    axis, edges = REGIMES[rows.family]
    return Regimes(axis, edges, tuple(_widths(np.abs(np.log(ratio)), regime_of(rows), len(edges) + 1)))


def _widths(errors: Array, regime: NDArray[np.intp], count: int) -> Sequence[float]:
    sets = [errors[regime == number] for number in range(count)]
    return [float(np.exp(_quantile(each if len(each) >= _LEAST else errors))) for each in sets]


def _quantile(errors: Array) -> float:
    """The conformal quantile: LEVEL with the correction (n + 1)/n for few rows."""
    return float(np.quantile(errors, min(LEVEL * (len(errors) + 1) / len(errors), 1.0)))


def coverage(rows: Measured, ratio: Array, fold: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each row lies in the interval that the other folds give (cross-conformal)."""
    errors, regime = np.abs(np.log(ratio)), regime_of(rows)
    inside = np.zeros(len(ratio), bool)
    for number in np.unique(fold):
        held = fold == number
        if held.all():
            continue
        widths = np.log(_widths(errors[~held], regime[~held], len(REGIMES[rows.family][1]) + 1))
        inside[held] = errors[held] <= widths[regime[held]]
    return inside

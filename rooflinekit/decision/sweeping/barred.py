"""What keeps a row off a front: it has no answer, does not fit, cannot be sustained, or meets no objective."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["FAILED", "LATE", "MISFIT", "OVERLOADED", "runs", "why_not"]

FAILED = "has an error"
MISFIT = "does not fit"
OVERLOADED = "overloaded"
LATE = "misses the objectives"

_FALSE = ("false", "no", "0", "0.0")


def why_not(table: pd.DataFrame) -> NDArray[np.object_]:
    """Of each row the first of these that holds, and an empty text where none does.

    `FAILED`: `error` says something. `MISFIT`: `fits` is false. `OVERLOADED`: `stable` is false, that is more requests
    arrive than can be served, and the queue grows without end. `LATE`: `goodput` is zero, no request meets the
    objectives. A column that is missing, or a cell that is empty, says nothing against a row.

    >>> rows = pd.DataFrame({"fits": [True, False, True], "stable": [False, None, True], "goodput": [0.0, None, 0.0]})
    >>> why_not(rows).tolist()
    ['overloaded', 'does not fit', 'misses the objectives']
    """
    found = np.full(len(table), "", dtype=object)
    if "goodput" in table:
        found[(pd.to_numeric(table["goodput"], errors="coerce") == 0.0).to_numpy(dtype=bool, na_value=False)] = LATE
    for name, word in (("stable", OVERLOADED), ("fits", MISFIT)):
        if name in table:
            found[_denied(table[name])] = word
    if "error" in table:
        said = table["error"].astype(object)
        found[(said.where(said.notna(), "").astype(str).str.strip() != "").to_numpy(dtype=bool)] = FAILED
    return found


def runs(table: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows can be run at all, late or not."""
    return np.isin(why_not(table).astype(str), ("", LATE))


def _denied(column: pd.Series[Any]) -> NDArray[np.bool_]:
    """Where a column of yes and no says no, whatever wrote it."""
    if pd.api.types.is_bool_dtype(column):
        return ~column.astype("boolean").fillna(value=True).to_numpy(dtype=bool)
    return column.astype(str).str.strip().str.lower().isin(_FALSE).to_numpy(dtype=bool)

"""What becomes of the rows of a sweep: what keeps one off a front, and how many of each kind pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["FAILED", "LATE", "MISFIT", "OVERLOADED", "Tally", "runs", "why_not"]

FAILED = "has an error"
MISFIT = "does not fit"
OVERLOADED = "overloaded"
LATE = "misses the objectives"

_FALSE = ("false", "no", "0", "0.0")

_WORDS = {
    MISFIT: "do not fit in memory",
    OVERLOADED: "are overloaded: requests arrive faster than they can be served",
    LATE: "miss the objectives: no request meets them",
}


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


@dataclass
class Tally:
    """Rows that were answered, that failed and why, and that are on no front for another reason."""

    rows: int = 0
    barred: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def counting(self, answers: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The same answers."""
        for part in answers:
            self.rows += len(part)
            failed = part["error"][part["error"] != ""]
            self.errors.update({str(error): count for error, count in failed.value_counts().items()})
            self.barred.update(why_not(part).tolist())
            yield part

    @property
    def failed(self) -> int:
        """Rows with an error."""
        return self.errors.total()

    def words(self) -> list[str]:
        """What a user should hear; nothing if every row was answered, fits, and can be sustained."""
        lines = []
        if self.failed:
            most, count = self.errors.most_common(1)[0]
            others = f", and {len(self.errors) - 1} other reasons" if len(self.errors) > 1 else ""
            lines.append(f"{self.failed:,} of {self.rows:,} rows could not be answered: {most} ({count:,}){others}")
        told = ((word, words) for word, words in _WORDS.items() if self.barred[word])
        lines += [f"{self.barred[word]:,} of {self.rows:,} rows {words}" for word, words in told]
        return lines

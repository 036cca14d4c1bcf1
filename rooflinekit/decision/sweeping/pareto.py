"""The Pareto front: what nothing else beats in every respect, and what keeps a row off it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.estimation.frames.columns import INPUT_COLUMNS
from rooflinekit.model.types.errors import InputError, nearest

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


_SHORT = {
    "tok_s_user": "output_tok_s_per_user",
    "tok_s_gpu": "output_tok_s_per_gpu",
    "tok_s": "output_tok_s",
    "usd_per_m": "usd_per_million_output_tokens",
}

_MORE_IS_BETTER = (
    "tok_s", "rate", "goodput", "concurrency", "max_batch", "max_context", "kv_pool", "available", "running", "slots",
)  # fmt: skip


def why_not(table: pd.DataFrame) -> NDArray[np.object_]:
    """The first reason that holds for each row, and an empty text where none does.

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
    """Select the rows that can be run at all, late or not."""
    return np.isin(why_not(table).astype(str), ("", LATE))


def _denied(column: pd.Series[Any]) -> NDArray[np.bool_]:
    """Select the rows where a column of yes and no says no, whatever wrote it."""
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
        """Count answers that pass through."""
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
        """Sentences on failed rows; nothing if every row was answered, fits, and can be sustained."""
        lines = []
        if self.failed:
            most, count = self.errors.most_common(1)[0]
            more = len(self.errors) - 1
            others = f", and {more} other reason{'' if more == 1 else 's'}" if more else ""
            lines.append(f"{self.failed:,} of {self.rows:,} rows could not be answered: {most} ({count:,}){others}")
        told = ((word, words) for word, words in _WORDS.items() if self.barred[word])
        lines += [f"{self.barred[word]:,} of {self.rows:,} rows {words}" for word, words in told]
        return lines


@dataclass(frozen=True)
class Goal:
    """A result column, and whether less or more of it is better."""

    column: str
    direction: Literal["min", "max"]


def parse_goals(text: str) -> tuple[Goal, ...]:
    """Read goals: columns separated by colons, each with `=min` or `=max` unless it is clear.

    Rates, goodput and capacities are better large, times and costs small.

    >>> parse_goals("tok_s_user:usd_per_million_output_tokens=min")[1]
    Goal(column='usd_per_million_output_tokens', direction='min')
    """
    goals = []
    for word in text.split(":"):
        name, _, direction = (part.strip() for part in word.partition("="))
        column = _SHORT.get(name, name)
        direction = direction or ("max" if any(part in column for part in _MORE_IS_BETTER) else "min")
        if not column or direction not in ("min", "max"):
            raise InputError(f"pareto: {word!r} is no goal; write a column, with =min or =max, as in tpot_ms=min")
        goals.append(Goal(column, "max" if direction == "max" else "min"))
    if len(goals) < 2 or len({goal.column for goal in goals}) < len(goals):
        raise InputError(f"pareto takes two or more different columns, as in tok_s_user:tok_s_gpu, not {text!r}")
    return tuple(goals)


def pareto_front(table: pd.DataFrame, goals: tuple[Goal, ...]) -> pd.DataFrame:
    """The rows that no other row beats, in their order; rows without one of the numbers are not among them.

    Rows that `why_not` speaks against do not compete: those with an error, that do not fit in memory, that cannot be
    sustained, or of which no request meets the objectives.
    """
    for goal in goals:
        if goal.column not in table:
            near = nearest(goal.column, map(str, table.columns)) or ["ttft_ms", "tpot_ms", *_SHORT.values()]
            raise InputError(f"pareto: no column {goal.column!r}; nearest: {', '.join(near)}")
    signs = [-1.0 if goal.direction == "max" else 1.0 for goal in goals]
    losses = np.column_stack(
        [
            sign * pd.to_numeric(table[goal.column], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
            for sign, goal in zip(signs, goals, strict=True)
        ]
    )
    losses[why_not(table) != ""] = np.nan
    return table[on_front(losses)]


def on_front(losses: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Select the rows that none beats: no other row is at most as large everywhere and smaller somewhere.

    Equal rows stand together; a row with a NaN is never on the front. Sorted by the first column (ties by the others)
    only an earlier row can beat a later one, and whatever beats a row is itself on the front or beaten by one that is.

    >>> on_front(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [1.0, 2.0]])).tolist()
    [True, True, False, True]
    """
    result = np.zeros(len(losses), bool)
    known = np.flatnonzero(~np.isnan(losses).any(axis=1))
    if not len(known):
        return result
    points, back = np.unique(losses[known], axis=0, return_inverse=True)  # sorted by rows; equal rows become one
    standing, alive = np.zeros(len(points), bool), np.arange(len(points))
    if points.shape[1] == 2:  # the second has to be less than it ever was before
        standing, alive = np.append(True, points[1:, 1] < np.minimum.accumulate(points[:-1, 1])), alive[:0]
    while len(alive):  # the first that is left is on the front, and removes what it beats: all differ
        first, alive = alive[0], alive[1:]
        standing[first] = True
        alive = alive[~(points[first] <= points[alive]).all(axis=1)]
    result[known] = standing[back.ravel()]
    return result


USER, GPU = "output_tok_s_per_user", "output_tok_s_per_gpu"
STEP = 10.0
"""Width of a bucket [tok/s of a user]."""

_BY = ("gpu", "model", "engine", "tp", "weights", "kv")  # the first that differs is compared


def compared(table: pd.DataFrame) -> str:
    """The input whose values are compared; empty where none of the usual ones differs."""
    return next((name for name in _BY if name in table and table[name].nunique() > 1), "")


def interactivity(table: pd.DataFrame, by: str = "") -> pd.DataFrame:
    """The most output tokens a second of one GPU at which each user still gets 10, 20, 30 … tokens a second.

    Args:
        table: what `sweep` or `estimate_frame` returned.
        by: the input whose values are compared; by default the first of gpu, model, engine, tp, weights, kv that
            differs.

    Returns:
        A row for each speed of a user [tok/s], a column for each value of `by`, of the rows that fit, hold their load
        and meet their objectives; NaN where none is as fast. Of speeds between which nothing changes the fastest stays.

    Raises:
        InputError: for a table without both rates, or without such an input.

    >>> rows = pd.DataFrame({"gpu": ["a", "a", "b"], USER: [35.0, 12.0, 22.0], GPU: [100.0, 300.0, 200.0]})
    >>> interactivity(rows).to_dict()
    {'a': {10.0: 300.0, 20.0: 100.0, 30.0: 100.0}, 'b': {10.0: 200.0, 20.0: 200.0, 30.0: nan}}
    """
    by = by or compared(table)
    if not {USER, GPU} <= set(table) or by not in table:
        lacking = by if {USER, GPU} <= set(table) else f"{USER} and {GPU}"
        near = nearest(by, INPUT_COLUMNS) if by else []
        words = f"; nearest: {', '.join(near)}" if near else ""
        raise InputError(f"interactivity: the table has no column {lacking or 'that differs between its rows'}{words}")
    rows = table[(why_not(table) == "") & table[[USER, GPU]].notna().all(axis=1)]
    speeds = np.arange(1.0, np.floor(rows[USER].max() / STEP) + 1.0) * STEP if len(rows) else np.array([])
    found = pd.DataFrame(
        {
            name: [part[GPU][part[USER] >= speed].max() for speed in speeds]
            for name, part in rows.groupby(by, sort=False)
        },
        index=pd.Index(speeds, name="tok/s of a user"),
    )
    after = found.shift(-1)
    same = ((found == after) | (found.isna() & after.isna())).all(axis=1)
    return found[~same.to_numpy(dtype=bool)] if len(found) else found

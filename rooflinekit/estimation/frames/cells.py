"""Cells as numbers, rows that share a deployment as groups, and texts that repeat as codes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from types import NoneType
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.frames.columns import FIXED, is_loaded
from rooflinekit.estimation.notes import Remark
from rooflinekit.estimation.options import options_of, part_of, read
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, SPECULATION_KEYS, WORKLOAD_KEYS, Scenario
from rooflinekit.model.types.batch import MOST, whole_number
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.numeric import Array
from rooflinekit.model.types.speculation import Speculation

_WIDEST = 2**31  # a key that may be multiplied once more without leaving 64 bits

Rows = NDArray[np.intp]
"""Positions of rows in a table."""


class Texts:
    """A code a row, and the texts that codes stand for; code 0 is the empty text.

    >>> said = Texts(3)
    >>> said.put(np.array([0, 2]), "slow")
    >>> said.append(np.array([1, 2]), [Remark(True, lambda heat: f"hot: {heat:.0f}", (7.0,))])
    >>> list(said.column())
    ['slow', 'hot: 7', 'slow; hot: 7']
    """

    def __init__(self, rows: int) -> None:
        self._codes = np.zeros(rows, np.int64)
        self._known = {"": 0}  # codes by text, in their order

    def put(self, rows: Rows | int, text: str) -> None:
        """Say the same in some rows, in place of what they said."""
        self._codes[rows] = self._code(text)

    def empty(self, rows: Rows) -> Rows:
        """Those of the rows that say nothing."""
        silent: Rows = rows[self._codes[rows] == 0]
        return silent

    def append(self, rows: Rows, remarks: Iterable[Remark]) -> None:
        """Say more in those of the rows of which a remark holds; rows with equal facts share a text."""
        for remark in remarks:
            holds = np.broadcast_to(remark.holds, len(rows))
            code = self._codes[rows[0]] if len(rows) and not remark.facts else -1
            if remark.holds is True and (self._codes[rows] == code).all():
                self.put(rows, "; ".join(filter(None, (list(self._known)[code], remark.say()))))
            elif holds.any():
                self._add(rows[holds], remark, [np.broadcast_to(fact, len(rows))[holds] for fact in remark.facts])

    def _add(self, rows: Rows, remark: Remark, facts: list[Any]) -> None:
        key = self._codes[rows]
        for fact in facts:
            code, values = pd.factorize(fact)
            key = key * len(values) + code
            if key.max() > _WIDEST:
                key = pd.factorize(key)[0]
        key = pd.factorize(key)[0]
        first = np.zeros(int(key.max()) + 1, np.intp)
        first[key[::-1]] = np.arange(len(key))[::-1]
        texts = list(self._known)
        before = [texts[code] for code in self._codes[rows[first]].tolist()]
        told = zip(*(fact[first].tolist() for fact in facts), strict=True) if facts else [()] * len(first)
        added = [remark.say(*values) for values in told]
        codes = [self._code(f"{old}; {new}" if old else new) for old, new in zip(before, added, strict=True)]
        self._codes[rows] = np.array(codes)[key]

    def column(self) -> Any:
        """All rows, as an array that pandas takes."""
        return pd.Series(list(self._known)).array.take(self._codes)

    def _code(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known))


_OPTIONS = options_of(Scenario)


@dataclass(frozen=True)
class Group:
    """Rows that share model, accelerator and deployment, and either all or none of which fix the context or the load.

    fixed: the cells that they share, empty ones left out.
    """

    fixed: dict[str, Any]
    rows: Rows
    loaded: bool

    @property
    def allow_oom(self) -> bool:
        """Whether rows that do not fit are timed; raises WorkloadError for a cell that is neither True nor False."""
        return bool(
            read(Scenario, {"allow_oom": _OPTIONS["allow_oom"].of_cell(self.fixed.get("allow_oom"))}).get("allow_oom")
        )


def read_workloads(scenarios: pd.DataFrame, errors: Texts) -> dict[str, Array]:
    """Counts as floats; a row with a senseless one gets its error. `context` is NaN where the mean is meant."""
    work = {}
    for name, default in WORKLOAD_KEYS.items():
        least = 0 if name == "cached" else 1
        fallback = np.nan if default is None else float(default)
        if name not in scenarios:
            work[name] = np.full(len(scenarios), fallback)
            continue
        given = scenarios[name]
        numbers, empty = _numbers(given), given.isna().to_numpy()
        bad = ~empty & ~((numbers >= least) & (numbers <= MOST) & (numbers == np.floor(numbers)))
        for row in np.flatnonzero(bad):
            errors.put(np.array([row]), _refusal(given.iloc[row], numbers[row], name, least))
        numbers[empty] = fallback
        work[name] = numbers
    for row in errors.empty(np.flatnonzero(work["cached"] >= work["isl"])):
        said = f"cached={work['cached'][row]:.0f} leaves nothing of isl={work['isl'][row]:.0f} to compute"
        errors.put(np.array([row]), said)
    return work


def _numbers(given: pd.Series[Any]) -> Array:
    """A column as floats, NaN where it holds none. Text is read too: one bad cell makes a whole column text."""
    if pd.api.types.is_bool_dtype(given):
        return np.full(len(given), np.nan)
    if pd.api.types.is_numeric_dtype(given):
        return np.array(given.to_numpy(dtype=float, na_value=np.nan))
    if given.dtype != object and pd.api.types.is_string_dtype(given):
        return np.array(pd.to_numeric(given, errors="coerce").to_numpy(dtype=float, na_value=np.nan))
    return np.array([number(cell) for cell in given], dtype=float)


def number(cell: object) -> float:
    """A cell as a number; NaN if it is none."""
    if isinstance(cell, bool) or not isinstance(cell, (str, Real)):
        return math.nan
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return math.nan


def _refusal(cell: object, value: float, name: str, least: int) -> str:
    try:
        whole_number(cell if isinstance(cell, Real) else value, name, least)
    except InputError as error:
        return str(error).replace("not nan", f"not {cell}")
    return f"{name} must be a whole number of at least {least}, not {cell}"


def groups(scenarios: pd.DataFrame) -> Iterator[Group]:
    """The groups of a table."""
    names = [name for name in FIXED if name in scenarios]
    codes = [pd.factorize(_hashable(scenarios[name]), use_na_sentinel=False) for name in names]
    free = scenarios["context"].isna().to_numpy() if "context" in scenarios else np.ones(len(scenarios), bool)
    loaded: Any = np.zeros(len(scenarios), bool)
    if is_loaded(scenarios):
        loaded = ~scenarios[[key for key in ("concurrency", "rate") if key in scenarios]].isna().to_numpy().all(axis=1)
    combined = 2 * free.astype(np.int64) + loaded
    for code, values in codes:
        combined = pd.factorize(combined * len(values) + code)[0]
    order = np.argsort(combined, kind="stable")
    starts = np.flatnonzero(np.diff(combined[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else []:
        fixed = {name: values[code[rows[0]]] for name, (code, values) in zip(names, codes, strict=True)}
        yield Group({key: cell for key, cell in fixed.items() if not pd.isna(cell)}, rows, bool(loaded[rows[0]]))


def _hashable(column: pd.Series[Any]) -> pd.Series[Any]:
    """Cells that cannot be compared (a list in a cell) become text, and are refused by name later."""
    if column.dtype != object:
        return column
    plain = (str, Real, PathLike, NoneType)
    cells = [cell if isinstance(cell, plain) else f"{type(cell).__name__} {cell!r}" for cell in column]
    return pd.Series(cells, index=column.index, dtype=object)


class Resolutions:
    """Predictors by what rows share, each laid out once; a deployment that cannot be is refused each time alike."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, Any], ...], Resolved | RooflinekitError] = {}

    def of(self, fixed: dict[str, Any]) -> Resolved:
        """The predictor of a group; raises InputError (and its kinds) for what makes no sense."""
        key = tuple(sorted(fixed.items()))
        if key not in self._known:
            try:
                self._known[key] = _resolve(fixed)
            except RooflinekitError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, RooflinekitError):
            raise found.with_traceback(None)
        return found


def _resolve(fixed: dict[str, Any]) -> Resolved:
    if "model" not in fixed:
        raise InputError("model is empty")
    given = {key: _OPTIONS[key].of_cell(cell) if key in _OPTIONS else cell for key, cell in fixed.items()}
    deployment = read_deployment(part_of(given, DEPLOYMENT_KEYS))
    calibration = str(given["calibration"]) if "calibration" in given else None
    choice = Speculation.read(part_of(given, SPECULATION_KEYS))
    return resolve(str(given["model"]), str(given.get("gpu", "h100-sxm")), deployment, calibration, choice)

"""Tables of scenarios in, the same rows with their results out; a deployment at a time; loads are played row by row.

Cells are read as numbers, rows that share a deployment are groups, and texts that repeat are codes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from types import NoneType
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.estimation.estimator import Resolved, deploy, refuse_static
from rooflinekit.estimation.frames.columns import (
    ENDS,
    FIXED,
    LOAD_NUMBERS,
    NUMBERS,
    TIMED,
    check_columns,
    is_loaded,
    numbers_of,
    power_columns,
)
from rooflinekit.estimation.loaded import load_memory, load_notes, load_result
from rooflinekit.estimation.notes import Remark, limit_remarks, memory_remarks
from rooflinekit.estimation.options import OwnKeywords, options_of, part_of, read
from rooflinekit.estimation.results import about
from rooflinekit.estimation.scenario import (
    DEPLOYMENT_KEYS,
    LOAD_KEYS,
    SPECULATION_KEYS,
    WORKLOAD_KEYS,
    LoadOptions,
    Scenario,
)
from rooflinekit.estimation.traffic import VARIES, read_load
from rooflinekit.load.answer import Load, play_load
from rooflinekit.load.lengths import parse_length
from rooflinekit.model.graph import Pool, trace
from rooflinekit.model.graph.arrays import Vectorised
from rooflinekit.model.serving.energy import static_power
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.numeric import Array, Numeric
from rooflinekit.model.types.workload import Workload
from rooflinekit.version import __version__

_OPTIONS = options_of(Scenario)
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
        """Rows of texts that are empty."""
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


@dataclass(frozen=True)
class RowGroup:
    """Rows that share model, accelerator and deployment, and either all or none of which fix the context or the load.

    fixed: the cells that they share, empty ones left out.
    """

    fixed: OwnKeywords
    rows: Rows
    loaded: bool

    @property
    def allow_oom(self) -> bool:
        """True if rows that do not fit are timed; raises WorkloadError for a cell that is neither True nor False."""
        return bool(
            read(Scenario, {"allow_oom": _OPTIONS["allow_oom"].of_cell(self.fixed.get("allow_oom"))}).get("allow_oom")
        )


def laws_of(scenarios: pd.DataFrame) -> dict[str, dict[int, str]]:
    """Laws of lengths in place of numbers, by column and row."""
    columns = {name: scenarios[name] for name in ("isl", "osl") if name in scenarios}
    return {
        name: {row: cell for row, cell in enumerate(column) if isinstance(cell, str) and ":" in cell}
        for name, column in columns.items()
        if not pd.api.types.is_numeric_dtype(column)
    }


def read_workloads(scenarios: pd.DataFrame, errors: Texts, laws: Mapping[str, Mapping[int, str]]) -> dict[str, Array]:
    """Counts as floats, of a law its mean; a row with a senseless one gets its error.

    `context` is NaN where the mean is meant.
    """
    work = {}
    for name, default in WORKLOAD_KEYS.items():
        least = 0 if name == "cached" else 1
        fallback = np.nan if default is None else float(default)
        if name not in scenarios:
            work[name] = np.full(len(scenarios), fallback)
            continue
        given = scenarios[name]
        numbers, empty = _numbers(given), given.isna().to_numpy()
        for place, law in laws.get(name, {}).items():
            numbers[place] = 1.0
            try:
                numbers[place] = max(round(parse_length(law).mean), 1)
            except RooflinekitError as error:
                errors.put(place, str(error))
        bad = ~empty & ~((numbers >= least) & (numbers <= _OPTIONS[name].most) & (numbers == np.floor(numbers)))
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
    given = cell if isinstance(cell, Real) else value
    try:
        whole_number(given, name, least)
        _OPTIONS[name].check(name, given)
    except InputError as error:
        return str(error).replace("not nan", f"not {cell}")
    return f"{name} must be a whole number of at least {least}, not {cell}"


def groups(scenarios: pd.DataFrame) -> Iterator[RowGroup]:
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
        yield RowGroup({key: cell for key, cell in fixed.items() if not pd.isna(cell)}, rows, bool(loaded[rows[0]]))


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

    def of(self, fixed: OwnKeywords) -> Resolved:
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


def _resolve(fixed: dict[str, object]) -> Resolved:
    if "model" not in fixed:
        raise InputError("model is empty")
    given = {key: _OPTIONS[key].of_cell(cell) if key in _OPTIONS else cell for key, cell in fixed.items()}
    given |= {"calibration": str(given["calibration"])} if "calibration" in given else {}
    told = read(Scenario, part_of(given, (*DEPLOYMENT_KEYS, *SPECULATION_KEYS, "calibration")))
    return deploy(str(given["model"]), str(given.get("gpu", "h100-sxm")), told)


def read_loads(scenarios: pd.DataFrame) -> pd.DataFrame:
    """The columns that describe traffic, texts that are numbers read; empty cells are None."""
    given = {key: scenarios[key] for key in LOAD_KEYS if key in scenarios}
    cells = {
        key: pd.Series(
            [None if pd.isna(cell) else _OPTIONS[key].of_cell(cell) for cell in column.tolist()], dtype=object
        )
        for key, column in given.items()
    }
    return pd.DataFrame(cells, index=pd.RangeIndex(len(scenarios)))


def played_row(resolved: Resolved, work: Workload, asked: Load) -> tuple[dict[str, Numeric], str]:
    """Answer of `estimate` to a load: numbers by column, and what its reader should know."""
    found = play_load(resolved.predictor, asked)
    ttft, tpot, e2e = found.times()
    load, rate = load_result(found), found.output_rate
    values = numbers_of({"ttft": ttft, "tpot": tpot}, e2e, rate, load_memory(found), resolved.plan.deployment.gpus)
    values |= power_columns(found.power)
    values |= {name: getattr(load, name) for name in ("running", "slots", "knee_rate", "prompt_share", "queue_ms")}
    values |= {
        f"{time.removesuffix('_ms')}_{name}_ms": value
        for time, each in load.percentiles.items()
        for name, value in each.items()
    }
    good = math.nan if load.goodput is None else load.goodput
    values |= {"request_rate": load.rate, "goodput": good, "stable": float(load.stable)}
    return values, "; ".join(load_notes(found))


_CHUNK = 8_192  # rows evaluated at once: an array of them is below the size at which an allocator asks the kernel
_MANY = 65_536  # rows from which a graph pays for being printed
_STATIC = len(NUMBERS)
_TEXTS = ("level", "evidence", "calibration_hash", "warnings", "error")


def estimate_frame(scenarios: pd.DataFrame) -> pd.DataFrame:
    """Estimate every row of a table; the same rows come back with the results beside them.

    Args:
        scenarios: one scenario a row; columns `model` (required), gpu, batch, isl, osl, cached, context, tp, pp, ep,
            dp, weights, activations, kv, kv_policy, engine, draft, draft_tokens, acceptance, draft_tree, draft_tp,
            calibration, and the other keywords of `estimate`; concurrency or rate, with requests, burstiness, isl_cv,
            osl_cv and objectives ttft and tpot [ms], for rows under load, where isl and osl may be laws. A missing
            column or an empty cell takes the default. Other columns are kept as they are.

    Returns:
        A new frame with the same index: times in ms, sizes in bytes, `fits`, and `error` (empty where the row was
        answered). A row that does not fit in memory has sizes and `fits` False, and no times unless its `allow_oom` is
        True; `warnings` says by how much. With a column concurrency or rate, also `LOAD_COLUMNS`, empty in rows
        without a load; rows under load are played one by one, about ten a second (`sweep` shares them among workers,
        and keeps finished pieces).

    Raises:
        InputError: not a DataFrame, no `model` column, a column that looks like a misspelt one, or one named like a
            result.

    >>> import pandas as pd
    >>> rows = estimate_frame(pd.DataFrame({"model": "llama-3-8b", "batch": [1, 64, 0]}))
    >>> rows["error"].tolist()
    ['', '', 'batch must be a whole number of at least 1, not 0']
    """
    return answer_table(scenarios, Resolutions())


def answer_table(scenarios: pd.DataFrame, known: Resolutions) -> pd.DataFrame:
    """Answer one of several tables, whose deployments are laid out once."""
    check_columns(scenarios)
    return _AnsweredTable(scenarios, known).answered()


class _AnsweredTable:
    """A table while it is being answered."""

    def __init__(self, scenarios: pd.DataFrame, known: Resolutions) -> None:
        rows = len(scenarios)
        self.scenarios, self.known, self.loads = scenarios, known, read_loads(scenarios)
        self.names = (*NUMBERS, *LOAD_NUMBERS, "stable") if is_loaded(scenarios) else NUMBERS
        self.numbers = np.full((len(self.names), rows), np.nan)
        self.results: dict[str, Array] = dict(zip(self.names, self.numbers, strict=True))
        self.texts = {name: Texts(rows) for name in _TEXTS}
        self.laws = laws_of(scenarios)
        self.work = read_workloads(scenarios, self.texts["error"], self.laws)

    def answered(self) -> pd.DataFrame:
        """All rows with their results."""
        errors = self.texts["error"]
        for group in groups(self.scenarios):
            try:
                resolved = self.known.of(group.fixed)
                self.work["isl"][group.rows] = resolved.plan.prompt(self.work["isl"][group.rows])
                if group.loaded:
                    self._fill_loaded(group.rows, resolved)
                else:
                    self._fill(group.rows, resolved, group.allow_oom)
            except RooflinekitError as error:
                errors.put(errors.empty(group.rows), str(error))
        return self._frame()

    def _fill(self, rows: Rows, resolved: Resolved, allow_oom: bool) -> None:
        """Rows of a static batch; one that says something about traffic is refused, one that does not fit untimed."""
        errors = self.texts["error"]
        for key, cells in self.loads.items():
            words = f"{key} describes traffic; add concurrency (a closed loop) or rate (requests/s)"
            errors.put(errors.empty(rows[cells.notna().to_numpy()[rows]]), words)
        for key, laws in self.laws.items():
            for row in errors.empty(np.intersect1d(rows, np.fromiter(laws, np.intp))):
                errors.put(row, VARIES.format(key=key, law=laws[row]))
        rows = errors.empty(rows)
        if len(rows):
            whole = rows[-1] - rows[0] + 1 == len(rows)
            place = slice(rows[0], rows[-1] + 1) if whole else rows
            out = self.numbers[:_STATIC, place] if whole else np.empty((_STATIC, len(rows)))
            inputs = _inputs(self.work, place)
            _points(resolved, inputs, out)
            need, have = (out[NUMBERS.index(name)] for name in ("needed_bytes", "available_bytes"))
            if not allow_oom and (misfit := need > have).any():
                out[: len(TIMED), misfit] = np.nan
            if not whole:
                self.numbers[:_STATIC, place] = out
            self._say(rows, resolved, inputs, memory_remarks(need, have))

    def _fill_loaded(self, rows: Rows, resolved: Resolved) -> None:
        """Rows under load, each of which is played."""
        errors, image_tokens = self.texts["error"], resolved.plan.image_tokens
        for row in errors.empty(rows).tolist():
            cells = {str(key): cell for key, cell in self.loads.iloc[row].items()}
            counts = {name: column[row] for name, column in self.work.items()}
            static = {name: None if math.isnan(value) else value for name, value in counts.items()}
            text = {"isl": int(counts["isl"]) - image_tokens, "osl": int(counts["osl"]), "cached": counts["cached"]}
            text |= {key: laws[row] for key, laws in self.laws.items() if row in laws}
            try:
                asked = read_load(read(LoadOptions, cells) | text, image_tokens)
                refuse_static(static, resolved.plan.deployment)
                if asked is not None:
                    work = Workload(1.0, counts["isl"], counts["osl"], counts["cached"])
                    values, notes = played_row(resolved, work, asked)
            except RooflinekitError as error:
                errors.put(row, str(error))
                continue
            for name, value in values.items():
                self.results[name][row] = value
            self.texts["warnings"].put(row, notes)
        rows = errors.empty(rows)
        self._say(rows, resolved, _inputs(self.work, rows))

    def _say(self, rows: Rows, resolved: Resolved, inputs: dict[str, Array], remarks: Iterable[Remark] = ()) -> None:
        made, notes = about(resolved.plan), "; ".join(resolved.warnings)
        made["calibration_hash"] = made["calibration"]["hash"] if made["calibration"] else ""
        for name in ("level", "evidence", "calibration_hash"):
            self.texts[name].put(rows, made[name])
        told = [Remark(True, lambda: notes)] if notes else []
        limits = limit_remarks(resolved.plan, Workload(**inputs))
        self.texts["warnings"].append(rows, (*told, *limits, *remarks))

    def _frame(self) -> pd.DataFrame:
        index, results = self.scenarios.index, self.results
        ends: dict[str, Any] = {"fits": _truth(results["needed_bytes"] <= results["available_bytes"], results["gpus"])}
        ends |= {name: said.column() for name, said in self.texts.items()} | {"version": __version__}
        if "stable" in results:
            ends["stable"] = _truth(results["stable"] == 1.0, results["stable"])
        numbers = pd.DataFrame(self.numbers.T, index=index, columns=list(self.names), copy=False)
        numbers = numbers.drop(columns="stable", errors="ignore")
        numbers.loc[np.asarray(ends["level"] == "bound", dtype=bool), list(ENDS)] = np.nan
        return pd.concat([self.scenarios, numbers, pd.DataFrame(ends, index=index, copy=False)], axis=1)


def _truth(holds: Any, known: Array) -> object:
    """Truth values, missing where a number is."""
    return pd.arrays.BooleanArray(holds, np.isnan(known))


def _inputs(work: Mapping[str, Array], place: Any) -> dict[str, Array]:
    """The counts of rows; without a context where none is fixed."""
    given = {name: column[place] for name, column in work.items()}
    return {name: column for name, column in given.items() if name != "context" or not np.isnan(column).any()}


def _points(resolved: Resolved, given: dict[str, Array], out: Array) -> None:
    """The numbers of NUMBERS, one row each; many rows through the graph of the deployment, with the same bits."""
    rows = out.shape[1]
    if rows >= _MANY:
        names = [name for name, column in given.items() if name != "cached" or column.any()]
        point = Vectorised(trace(lambda **inputs: _values(resolved, inputs), names, pool=Pool(names=False)))
        point(out=out, **{name: given[name] for name in names})
        return
    for start in range(0, rows, _CHUNK):
        piece = slice(start, start + _CHUNK)
        found = _values(resolved, {name: column[piece] for name, column in given.items()})
        for number, name in enumerate(NUMBERS):
            out[number, piece] = found[name]


def _values(resolved: Resolved, inputs: dict[str, Any]) -> dict[str, Any]:
    work = Workload(**inputs)
    point, gpus = resolved.predictor.evaluate(work), resolved.plan.deployment.gpus
    rate, times = point.output_rate(work.batch, work.osl), {"ttft": point.ttft, "tpot": point.tpot}
    found = numbers_of(times, point.e2e(work.osl), rate, point.memory, gpus)
    found |= power_columns(static_power(resolved.predictor, work, point))
    return {name: found[name] for name in NUMBERS}

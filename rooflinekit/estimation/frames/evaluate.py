"""Tables of scenarios in, the same rows with their results out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.estimation.estimator import Resolved
from rooflinekit.estimation.frames.cells import Group, Resolutions, groups, read_workloads
from rooflinekit.estimation.frames.columns import LOAD_NUMBERS, NUMBERS, check_columns, is_loaded
from rooflinekit.estimation.frames.loaded import answer_loads, read_loads
from rooflinekit.estimation.frames.texts import Rows, Texts
from rooflinekit.estimation.frames.values import Times, values_of
from rooflinekit.estimation.frames.warn import warn
from rooflinekit.estimation.results import about
from rooflinekit.model.graph import trace
from rooflinekit.model.graph.arrays import Vectorised
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.numeric import Array
from rooflinekit.model.types.workload import Workload
from rooflinekit.version import __version__

__all__ = ["answer_table", "estimate_frame"]

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
            osl_cv and objectives ttft and tpot [ms], for rows under load. A missing column or an empty cell takes the
            default. Other columns are kept as they are.

    Returns:
        A new frame with the same index: times in ms, sizes in bytes, `fits`, and `error` (empty where the row was
        answered). A row that does not fit in memory has its numbers and `fits` False; `warnings` says what `estimate`
        would. With a column concurrency or rate, also `LOAD_COLUMNS`, empty in rows without a load.

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
    """The same for one of several tables, whose deployments are laid out once."""
    check_columns(scenarios)
    return _Table(scenarios, known).answered()


class _Table:
    """A table while it is being answered."""

    def __init__(self, scenarios: pd.DataFrame, known: Resolutions) -> None:
        rows = len(scenarios)
        self.scenarios, self.known = scenarios, known
        self.names = (*NUMBERS, *LOAD_NUMBERS, "stable") if is_loaded(scenarios) else NUMBERS
        self.numbers = np.full((len(self.names), rows), np.nan)
        self.results: dict[str, Array] = dict(zip(self.names, self.numbers, strict=True))
        self.texts = {name: Texts(rows) for name in _TEXTS}
        self.work = read_workloads(scenarios, self.texts["error"])

    def answered(self) -> pd.DataFrame:
        """All rows with their results."""
        loads = read_loads(self.scenarios)
        for group in groups(self.scenarios):
            try:
                resolved = self.known.of(group.fixed)
                if group.loaded:
                    self._fill_loaded(group, resolved, loads)
                else:
                    self._fill(self._told(group, loads), resolved)
            except RooflinekitError as error:
                self.texts["error"].put(self.texts["error"].empty(group.rows), str(error))
        return self._frame()

    def _told(self, group: Group, loads: pd.DataFrame) -> Rows:
        """Rows of a static batch that can be answered: they say nothing about traffic."""
        for key in loads.columns:
            said = group.rows[loads[key].notna().to_numpy()[group.rows]]
            words = f"{key} describes traffic; add concurrency (a closed loop) or rate (requests/s)"
            self.texts["error"].put(self.texts["error"].empty(said), words)
        return self.texts["error"].empty(group.rows)

    def _fill(self, rows: Rows, resolved: Resolved) -> None:
        if len(rows):
            whole = rows[-1] - rows[0] + 1 == len(rows)
            place = slice(rows[0], rows[-1] + 1) if whole else rows
            work = {key: column[place] for key, column in self.work.items()}
            if whole:
                _points(resolved, work, self.numbers[:_STATIC, place])
            else:
                self.numbers[:_STATIC, place] = _points(resolved, work, np.empty((_STATIC, len(rows))))
        self._say(rows, resolved)
        warn(self.texts["warnings"], rows, resolved, self.work, self.results)

    def _fill_loaded(self, group: Group, resolved: Resolved, loads: pd.DataFrame) -> None:
        rows = self.texts["error"].empty(group.rows)
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            for answer in answer_loads(resolved, part, self.work, loads, self.texts):
                for name, values in answer.values.items():
                    self.results[name][answer.rows] = values
        self._say(self.texts["error"].empty(rows), resolved)

    def _say(self, rows: Rows, resolved: Resolved) -> None:
        made = about(resolved.plan)
        for name, text in made.items():
            if name in self.texts:
                self.texts[name].put(rows, text)
        self.texts["calibration_hash"].put(rows, made["calibration"]["hash"] if made["calibration"] else "")

    def _frame(self) -> pd.DataFrame:
        index, given = self.scenarios.index, self.scenarios
        fits = _truth(self.results["needed_bytes"] <= self.results["available_bytes"], self.results["total_bytes"])
        texts: dict[str, Any] = {name: said.column() for name, said in self.texts.items()} | {"version": __version__}
        if "stable" in self.names:
            texts["stable"] = _truth(self.results["stable"] == 1.0, self.results["stable"])
        numbers = pd.DataFrame(self.numbers.T, index=index, columns=list(self.names), copy=False)
        numbers = numbers.drop(columns="stable", errors="ignore")
        ends = pd.DataFrame({"fits": fits, **texts}, index=index, copy=False)
        return pd.concat([given, numbers, ends], axis=1)


def _truth(holds: Any, known: Array) -> Any:
    """Truth values, missing where a number is."""
    return pd.arrays.BooleanArray(holds, np.isnan(known))


def _points(resolved: Resolved, work: dict[str, Array], out: Array) -> Array:
    """The numbers of NUMBERS, one row each; many rows through the graph of the deployment, with the same bits."""
    rows = out.shape[1]
    given = {name: column for name, column in work.items() if name != "context" or not np.isnan(column).any()}
    if rows >= _MANY:
        names = [name for name, column in given.items() if name != "cached" or column.any()]
        point = Vectorised(trace(lambda **inputs: _values(resolved, inputs), names))
        point(out=out, **{name: given[name] for name in names})
        return out
    for start in range(0, rows, _CHUNK):
        piece = slice(start, start + _CHUNK)
        found = _values(resolved, {name: column[piece] for name, column in given.items()})
        for number, name in enumerate(NUMBERS):
            out[number, piece] = found[name]
    return out


def _values(resolved: Resolved, inputs: dict[str, Any]) -> dict[str, Any]:
    work = Workload(**inputs)
    point = resolved.predictor.evaluate(work)
    times = Times(point.ttft, point.tpot, point.e2e(work.osl), point.output_rate(work.batch, work.osl))
    found = values_of(times, point.memory, resolved.plan.deployment.gpus)
    return {name: found[name] for name in NUMBERS}

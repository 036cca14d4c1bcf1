"""Estimates to and from pandas; the one place where column names exist."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from numbers import Real
from os import PathLike
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit import __version__
from rooflinekit.estimator import DEGREES, DEPLOYMENT_KEYS, WORKLOAD_KEYS, Resolved, read_deployment, resolve
from rooflinekit.operating_point import OperatingPoint
from rooflinekit.types.batch import MOST, whole_number
from rooflinekit.types.errors import InputError, RooflinekitError
from rooflinekit.types.numeric import Array
from rooflinekit.types.speculation import SPECULATION_KEYS, Speculation
from rooflinekit.types.units import GB
from rooflinekit.types.workload import Workload

__all__ = ["INPUT_COLUMNS", "RESULT_COLUMNS", "estimate_frame"]

_Fact = TypeVar("_Fact", float, "tuple[float, ...]")

_CHUNK = 16_384  # rows evaluated at once: the arrays of a step stay in the processor's cache

_FIXED = ("model", "gpu", *DEPLOYMENT_KEYS, *SPECULATION_KEYS, "calibration")
INPUT_COLUMNS = (*_FIXED, *WORKLOAD_KEYS)
_LONG_COLUMNS = tuple(name for name in INPUT_COLUMNS if len(name) > 3)
_SLIP = 0.83  # likeness (difflib) of a name with one letter missing or too many
_TIMES = ("ttft", "tpot")
_MEMORY = (
    "capacity_bytes", "weight_bytes", "kv_bytes", "activation_bytes", "overhead_bytes", "total_bytes",
    "kv_pool_bytes", "kv_pool_tokens", "kv_blocks", "max_concurrency", "needed_bytes", "available_bytes",
)  # fmt: skip
_NUMBERS = (
    *(f"{time}_{part}" for time in _TIMES for part in ("ms", "low_ms", "high_ms", "bound_ms")),
    "e2e_ms", "output_tok_s", "output_tok_s_per_gpu", "output_tok_s_per_user",
    *_MEMORY, "max_batch", "max_context",
)  # fmt: skip
RESULT_COLUMNS = (*_NUMBERS, "gpus", "fits", "level", "calibration_hash", "warnings", "error", "version")
_MISSPELT = {
    "batchsize": "batch", "bs": "batch", "concurrency": "batch", "inputlen": "isl", "inputlength": "isl",
    "promptlen": "isl",
    "outputlen": "osl", "outputlength": "osl", "accelerator": "gpu", "tensorparallel": "tp", "tensorparallelsize": "tp",
    "kvdtype": "kv", "weightdtype": "weights", "dtype": "weights", "modelname": "model",
}  # fmt: skip


def estimate_frame(scenarios: pd.DataFrame) -> pd.DataFrame:
    """Estimate every row of a table; the same rows come back with the results beside them.

    Args:
        scenarios: one scenario a row; columns `model` (required), gpu, batch, isl, osl, cached, context, tp, pp, ep,
            dp, weights, activations, kv, kv_policy, engine, draft, draft_tokens, acceptance, draft_tree, draft_tp,
            calibration. A missing column or an empty cell takes the default.
            Other columns are kept as they are.

    Returns:
        A new frame with the same index: times in ms, sizes in bytes, `fits`, and `error` (empty where the row was
        answered). A row that does not fit in memory has its numbers and `fits` False; `warnings` says what `estimate`
        would.

    Raises:
        InputError: not a DataFrame, no `model` column, a column that looks like a misspelt one, or one named like a
            result.

    >>> import pandas as pd
    >>> rows = estimate_frame(pd.DataFrame({"model": "llama-3-8b", "batch": [1, 64, 0]}))
    >>> rows["error"].tolist()
    ['', '', 'batch must be a whole number of at least 1, not 0']
    """
    _check_columns(scenarios)
    results = {name: np.full(len(scenarios), np.nan) for name in (*_NUMBERS, "gpus")}
    texts = {
        name: np.full(len(scenarios), "", dtype=object) for name in ("level", "calibration_hash", "warnings", "error")
    }
    work = _read_workloads(scenarios, texts["error"])
    for fixed, rows in _groups(scenarios):
        answerable = rows[texts["error"][rows] == ""]
        try:
            resolved = _resolve(fixed)
            for start in range(0, len(answerable), _CHUNK):
                part = answerable[start : start + _CHUNK]
                _fill(results, part, resolved, {key: column[part] for key, column in work.items()})
            calibration = resolved.plan.calibration
            texts["level"][answerable] = "expected" if calibration else "bound"
            texts["calibration_hash"][answerable] = calibration.hash if calibration else ""
            _warn(texts["warnings"], answerable, resolved, work, results)
        except RooflinekitError as error:
            texts["error"][answerable] = str(error)
    fits = pd.array(results["needed_bytes"] <= results["available_bytes"], dtype="boolean")
    fits[np.isnan(results["total_bytes"])] = pd.NA
    columns = {**{name: results[name] for name in _NUMBERS}, "gpus": results["gpus"], "fits": fits, **texts}
    columns["version"] = __version__
    return pd.concat([scenarios, pd.DataFrame(columns, index=scenarios.index)], axis=1)


def _check_columns(scenarios: pd.DataFrame) -> None:
    if not isinstance(scenarios, pd.DataFrame):
        raise InputError(f"scenarios must be a pandas DataFrame, not a {type(scenarios).__name__}; use pd.DataFrame(…)")
    if "model" not in scenarios:
        raise InputError(f"the table has no column 'model'; it has: {', '.join(map(str, scenarios.columns)) or 'none'}")
    twice = scenarios.columns[scenarios.columns.duplicated()]
    if wrong := [str(column) for column in twice if column in INPUT_COLUMNS]:
        raise InputError(f"column {wrong[0]!r} is there twice; keep one")
    for column in map(str, scenarios.columns):
        if column in RESULT_COLUMNS:
            raise InputError(f"column {column!r} would be overwritten by a result; rename it")
        folded = column.lower().replace("_", "").replace("-", "").replace(" ", "")
        meant = _MISSPELT.get(folded) or _like(folded)
        if column not in INPUT_COLUMNS and meant is not None and meant not in scenarios:
            raise InputError(f"column {column!r} is not read; rename it to {meant!r} if that is what it means")


def _like(folded: str) -> str | None:
    """The input column that this is, but for a slip; a table's own columns are like none of them.

    Two letters swapped are a slip in any name; a letter missing or too many only in a long one, because names of two
    or three letters (tp, isl) are near to everything.
    """
    if folded in INPUT_COLUMNS:
        return folded
    swapped = [folded[:i] + folded[i + 1] + folded[i] + folded[i + 2 :] for i in range(len(folded) - 1)]
    slips = [name for name in INPUT_COLUMNS if len(name) > 2 and name in swapped]
    return next(iter(slips or get_close_matches(folded, _LONG_COLUMNS, 1, _SLIP)), None)


def _read_workloads(scenarios: pd.DataFrame, errors: NDArray[Any]) -> dict[str, Array]:
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
            errors[row] = _refusal(given.iloc[row], numbers[row], name, least)
        numbers[empty] = fallback
        work[name] = numbers
    for row in np.flatnonzero((work["cached"] >= work["isl"]) & (errors == "")):
        errors[row] = f"cached={work['cached'][row]:.0f} leaves nothing of isl={work['isl'][row]:.0f} to compute"
    return work


def _numbers(given: pd.Series[Any]) -> Array:
    """A column as floats, NaN where it holds none. Text is read too: one bad cell makes a whole column text."""
    if pd.api.types.is_bool_dtype(given):
        return np.full(len(given), np.nan)
    if pd.api.types.is_numeric_dtype(given):
        return np.array(given.to_numpy(dtype=float, na_value=np.nan))
    return np.array([_number(cell) for cell in given], dtype=float)


def _number(cell: object) -> float:
    if isinstance(cell, bool) or not isinstance(cell, (str, Real)):
        return math.nan
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return math.nan


def _refusal(cell: object, number: float, name: str, least: int) -> str:
    try:
        whole_number(cell if isinstance(cell, Real) else number, name, least)
    except InputError as error:
        return str(error).replace("not nan", f"not {cell}")
    return f"{name} must be a whole number of at least {least}, not {cell}"


def _groups(scenarios: pd.DataFrame) -> Iterator[tuple[dict[str, Any], NDArray[np.intp]]]:
    """Rows that share model, accelerator and deployment; with and without a fixed context are different groups."""
    keys = [scenarios[name] for name in _FIXED if name in scenarios]
    names = [name for name in _FIXED if name in scenarios]
    if "context" in scenarios:
        keys.append(scenarios["context"].isna().rename("free context"))
        names.append("free context")
    codes = [pd.factorize(_hashable(key), use_na_sentinel=False) for key in keys]
    combined = np.zeros(len(scenarios), dtype=np.int64)
    for code, values in codes:
        combined = combined * len(values) + code
    order = np.argsort(combined, kind="stable")
    starts = np.flatnonzero(np.diff(combined[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else []:
        fixed = {name: values[code[rows[0]]] for name, (code, values) in zip(names, codes, strict=True)}
        yield {key: value for key, value in fixed.items() if key in _FIXED and not pd.isna(value)}, rows


def _hashable(column: pd.Series[Any]) -> pd.Series[Any]:
    """Cells that cannot be compared (a list in a cell) become text, and are refused by name later."""
    if column.dtype != object:
        return column
    cells = [cell if isinstance(cell, (str, Real, PathLike)) or cell is None else _named(cell) for cell in column]
    return pd.Series(cells, index=column.index, dtype=object)


def _named(cell: object) -> str:
    return f"{type(cell).__name__} {cell!r}"


def _resolve(fixed: dict[str, Any]) -> Resolved:
    if "model" not in fixed:
        raise InputError("model is empty")
    degrees = {key: _number(value) for key, value in fixed.items() if key in DEGREES and isinstance(value, str)}
    deployment = read_deployment({key: value for key, value in (fixed | degrees).items() if key in DEPLOYMENT_KEYS})
    calibration = str(fixed["calibration"]) if "calibration" in fixed else None
    choice = Speculation.read(fixed)
    return resolve(str(fixed["model"]), str(fixed.get("gpu", "h100-sxm")), deployment, calibration, choice)


def _warn(
    warnings: NDArray[Any],
    rows: NDArray[np.intp],
    resolved: Resolved,
    work: dict[str, Array],
    results: dict[str, Array],
) -> None:
    """The warnings of the deployment, and those of each row in the words of `estimate`."""
    warnings[rows] = "; ".join(resolved.warnings)
    model = resolved.plan.model
    if model.max_context is not None:
        longest = np.fmax(work["context"][rows], (work["isl"] + work["osl"])[rows])
        over = longest > model.max_context
        beyond = f" tokens exceed {model.name}'s maximum context of {model.max_context}"
        _add(warnings, rows[over], longest[over].tolist(), lambda tokens: f"{int(tokens)}{beyond}")
    alone = rows[work["osl"][rows] == 1]
    _add(warnings, alone, [1.0] * len(alone), lambda _: "osl 1 has no second token: TPOT is the step that would follow")
    _warn_of_settings(warnings, rows, resolved, work)
    need, have = results["needed_bytes"][rows], results["available_bytes"][rows]
    over = need > have
    sizes = [_tenths(size[over] / GB).tolist() for size in (need, have, need - have)]
    _add(warnings, rows[over], list(zip(*sizes, strict=True)), _misfit)


def _warn_of_settings(
    warnings: NDArray[Any], rows: NDArray[np.intp], resolved: Resolved, work: dict[str, Array]
) -> None:
    """Say where a row asks for more than the engine was told to admit."""
    deployment = resolved.plan.deployment
    longest, sequences = deployment.settings.max_model_len, deployment.settings.max_num_seqs
    if longest is not None:
        tokens = np.fmax(work["context"][rows], (work["isl"] + work["osl"])[rows])
        refused = f" tokens exceed max_model_len {longest}: the engine would refuse them"
        over = tokens > longest
        _add(warnings, rows[over], tokens[over].tolist(), lambda count: f"{int(count)}{refused}")
    if sequences is not None:
        over = work["batch"][rows] > sequences * deployment.dp
        words = f"max_num_seqs {sequences} would run a batch of "
        _add(warnings, rows[over], work["batch"][rows][over].tolist(), lambda count: f"{words}{int(count)} in turns")


def _add(warnings: NDArray[Any], rows: NDArray[np.intp], facts: list[_Fact], say: Callable[[_Fact], str]) -> None:
    """Add a warning to some rows; rows with the same facts share its text."""
    said = {fact: say(fact) for fact in set(facts)}
    before = warnings[rows].tolist()
    warnings[rows] = [f"{old}; {said[fact]}" if old else said[fact] for old, fact in zip(before, facts, strict=True)]


def _tenths(value: Array) -> Array:
    """One digit behind the point, and all of a number that is too large for one."""
    return np.where(value < 1e12, np.round(value, 1), value)


def _misfit(sizes: tuple[float, ...]) -> str:
    need, have, more = (f"{size:.1f} GB" for size in sizes)
    return f"does not fit: needs {need} per accelerator and has {have}, {more} too little"


def _fill(results: dict[str, Array], rows: NDArray[np.intp], resolved: Resolved, work: dict[str, Array]) -> None:
    context = work["context"]
    fixed = None if np.isnan(context).any() else context
    point = resolved.predictor.evaluate(Workload(work["batch"], work["isl"], work["osl"], work["cached"], fixed))
    gpus = resolved.plan.deployment.gpus
    results["gpus"][rows] = gpus
    for name, values in _values(point, work, gpus).items():
        results[name][rows] = values


def _values(point: OperatingPoint, work: dict[str, Array], gpus: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, time in (("ttft", point.ttft), ("tpot", point.tpot)):
        values |= {f"{name}_ms": time.time * 1e3, f"{name}_low_ms": time.low * 1e3}
        values |= {f"{name}_high_ms": time.high * 1e3, f"{name}_bound_ms": time.bound * 1e3}
    rate = point.output_rate(work["batch"], work["osl"])
    values |= {"e2e_ms": point.e2e(work["osl"]) * 1e3, "output_tok_s": rate}
    values |= {"output_tok_s_per_gpu": rate / gpus, "output_tok_s_per_user": 1.0 / point.tpot.time}
    values |= {name: getattr(point.memory, name) for name in (*_MEMORY, "max_batch", "max_context")}
    return values

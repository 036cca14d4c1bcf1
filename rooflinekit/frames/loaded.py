"""Rows under load: each is one question to the closed form, in the words of `estimate`."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.estimator import WORKLOAD_KEYS, Resolved, refuse_static, under_load
from rooflinekit.frames.cells import number
from rooflinekit.frames.columns import LOAD_NUMBERS, NUMBERS
from rooflinekit.frames.texts import Texts
from rooflinekit.results import Estimate
from rooflinekit.traffic.question import LOAD_KEYS, LoadResult, read_load
from rooflinekit.types.errors import RooflinekitError
from rooflinekit.types.workload import Workload

__all__ = ["LoadedRows", "read_loads"]


def read_loads(scenarios: pd.DataFrame) -> pd.DataFrame:
    """The columns that describe traffic, texts that are numbers read; empty cells are None."""
    given = {key: scenarios[key].tolist() for key in LOAD_KEYS if key in scenarios}
    read = {key: pd.Series([_cell(cell) for cell in cells], dtype=object) for key, cells in given.items()}
    return pd.DataFrame(read, index=pd.RangeIndex(len(scenarios)))


def _cell(cell: object) -> object:
    if cell is None or cell is pd.NA or (isinstance(cell, float) and math.isnan(cell)):
        return None
    value = number(cell) if isinstance(cell, str) else math.nan
    return cell if math.isnan(value) else value


class LoadedRows:
    """Answers of one deployment; equal rows are asked once."""

    def __init__(self, resolved: Resolved, errors: Texts, warnings: Texts) -> None:
        self._resolved, self._errors, self._warnings = resolved, errors, warnings
        self._known: dict[tuple[Any, ...], Estimate | RooflinekitError] = {}

    def fill(self, row: int, counts: dict[str, float], load: dict[str, Any], results: dict[str, Any]) -> None:
        """Answer one row; what cannot be answered is said in it."""
        key = (*counts.values(), *load.values())
        if key not in self._known:
            self._known[key] = self._ask(counts, load)
        answer = self._known[key]
        at = np.array([row])
        if isinstance(answer, RooflinekitError):
            return self._errors.put(at, str(answer))
        self._warnings.put(at, "; ".join(answer.warnings))
        for name, value in _numbers(answer).items():
            results[name][row] = math.nan if value is None else value
        return None

    def _ask(self, counts: dict[str, float], load: dict[str, Any]) -> Estimate | RooflinekitError:
        work = {key: None if math.isnan(counts[key]) else counts[key] for key in WORKLOAD_KEYS}
        try:
            question = read_load(load, counts["isl"], counts["osl"])
            assert question is not None  # such a row has a concurrency or a rate
            refuse_static(work)
            return under_load(self._resolved, Workload(**work), question)  # type: ignore[arg-type]
        except RooflinekitError as error:
            return error


def _numbers(answer: Estimate) -> dict[str, float | None]:
    load = answer.load
    assert load is not None  # the answer to a question about load
    row = answer.to_row() | _load_numbers(load) | {"stable": float(load.stable), "gpus": answer.inputs["gpus"]}
    row["max_context"] = math.inf if row["max_context"] is None else row["max_context"]
    return {name: row[name] for name in (*NUMBERS, *LOAD_NUMBERS, "stable")}


def _load_numbers(load: LoadResult) -> dict[str, float | None]:
    plain = asdict(load)
    row = {name: plain[name] for name in ("running", "slots", "knee_rate", "prompt_share", "queue_ms", "goodput")}
    for time, values in load.percentiles.items():
        row |= {f"{time.removesuffix('_ms')}_{name}_ms": value for name, value in values.items()}
    return row | {"request_rate": load.rate}

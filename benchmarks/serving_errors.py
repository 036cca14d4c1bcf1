"""Every row of serving tables, predicted in several ways, and the errors by group.

Ours, with the engine costs that ship (`shipped`), and with costs from fits that have not seen the row's model or its
source (`model_out`, `source_out`; benchmarks/fit_engines.py); the datasheet bound; two rules of thumb
(benchmarks/textbook.py). The interval is that of the prediction with the model left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fit_engines
import numpy as np
import pandas as pd
from textbook import derated, textbook

from rooflinekit.accuracy_serving import Answer, predict_group
from rooflinekit.operating_point import Predictor
from rooflinekit.serving_table import ServedGroup, read_serving_table, served_groups

WAYS = ("model_out", "source_out", "shipped", "bound", "textbook", "derated")
GROUP = ["kind", "tier", "source_key", "model", "gpu", "metric"]
_KINDS = {"ttft_ms": "closed loop, TTFT", "tpot_ms": "closed loop, TPOT"}
_FEW = 5  # rows; smaller groups of a source and an accelerator are merged


def predicted_rows(paths: list[Path], fitted: fit_engines.Rows) -> tuple[pd.DataFrame, Counter[str]]:
    """All rows with a column for each way, and why rows could not be answered."""
    unseen = {key: _folds(fitted, key) for key in ("model", "source_key")}
    unanswered: Counter[str] = Counter()
    parts = [_ours(group, unseen, unanswered) for group in _groups(paths, None, unanswered)]
    simple = [_simple(group) for group in _groups(paths, "none", Counter())]
    rows = pd.concat(parts).join(pd.concat(simple))
    closed = rows["metric"].map(_KINDS).fillna("closed loop, other")
    return rows.assign(kind=rows["load"].where(rows["load"] != "concurrency", closed)), unanswered


def _groups(paths: list[Path], calibration: str | None, unanswered: Counter[str]) -> list[ServedGroup]:
    tables = pd.concat([read_serving_table(path) for path in paths], ignore_index=True)
    return list(served_groups(tables, calibration, unanswered))


def _folds(rows: fit_engines.Rows, key: str) -> dict[str, dict[str, np.ndarray]]:
    """Costs by engine range from all rows but those of one model or source, for each of them; "" is from all rows."""
    values = rows.table[key].to_numpy()
    return {"": fit_engines.fit(rows)} | {
        name: fit_engines.fit(rows.where(values != name)) for name in np.unique(values)
    }


def _ours(
    group: ServedGroup, unseen: dict[str, dict[str, dict[str, np.ndarray]]], unanswered: Counter[str]
) -> pd.DataFrame:
    shipped = predict_group(group)
    unanswered.update(shipped.reason[shipped.reason != ""].tolist())
    table = group.table.assign(shipped=shipped.value, engine_range=fit_engines.engine_range(group))
    table["calibration"] = group.resolved.plan.calibration.name
    table["reason"] = shipped.reason
    model = str(table["model"].iloc[0])
    whole = _with(group, unseen["model"].get(model, unseen["model"][""]))
    table["model_out"], table["low"], table["high"] = whole.value, whole.low, whole.high
    table["source_out"] = np.nan
    for source, own in table.groupby("source_key"):
        fits = unseen["source_key"].get(str(source), unseen["source_key"][""])
        part = ServedGroup(group.resolved, group.table.loc[own.index])
        table.loc[own.index, "source_out"] = _with(part, fits).value
    return table


def _with(group: ServedGroup, fits: dict[str, np.ndarray]) -> Answer:
    """A group under the costs of a fit; a launch without a graph, and the interval, stay."""
    plan = group.resolved.plan
    costs = fit_engines.costs_of(fits, fit_engines.engine_range(group))
    engine = replace(
        plan.engine, costs=replace(plan.engine.costs, **dict(zip(fit_engines.COSTS, map(float, costs), strict=True)))
    )
    predictor = Predictor(replace(plan, engine=engine), group.resolved.predictor.memory)
    return predict_group(ServedGroup(replace(group.resolved, predictor=predictor), group.table))


def _simple(group: ServedGroup) -> pd.DataFrame:
    columns: dict[str, Callable[[ServedGroup], np.ndarray]] = {
        "bound": lambda one: predict_group(one).value, "textbook": textbook, "derated": derated,
    }  # fmt: skip
    return pd.DataFrame({name: predict(group) for name, predict in columns.items()}, index=group.table.index)


def errors(rows: pd.DataFrame, by: list[str] | None = None) -> pd.DataFrame:
    """Median error of each way by group; a group under 5 rows joins the others of its source and accelerator.

    `by`: columns that part the groups further.
    """
    key = [*GROUP, *(by or [])]
    parts = {f"e_{way}": (rows[way] / rows["value"] - 1.0).abs() for way in WAYS}
    table = rows.assign(**parts, bias=rows["model_out"] / rows["value"] - 1.0)
    table["inside"] = ((rows["value"] >= rows["low"]) & (rows["value"] <= rows["high"])).where(
        rows["model_out"].notna()
    )
    small = table.groupby(key)["value"].transform("size") < _FEW
    table.loc[small, ["model", "metric"]] = "*"
    found = table.groupby(key)
    out = found.agg(
        n=("value", "size"), answered=("shipped", "count"), bias=("bias", "median"), inside=("inside", "mean")
    )
    for way in WAYS:
        out[way] = found[f"e_{way}"].median()
    return out.reset_index()

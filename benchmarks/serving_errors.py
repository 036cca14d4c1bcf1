"""Every row of serving tables, predicted in several ways, and the errors by group.

Ours, with the engine costs that ship (`shipped`), and with costs from fits that have not seen the row's model, its
accelerator or its source (`model_out`, `gpu_out`, `source_out`; benchmarks/fit_engines.py), all of them played; the
datasheet bound; two rules of thumb (benchmarks/textbook.py). The
interval is that of the prediction with the model left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fit_engines
import numpy as np
import pandas as pd
from cached_rows import on_all_cores
from textbook import derated, textbook

from rooflinekit.evidence.accuracy_serving import (
    ServedGroup,
    ServedPrediction,
    predict_group,
    read_serving_table,
    served_groups,
)
from rooflinekit.model.types.engine import LoadErrors
from rooflinekit.model.types.model import MixtureOfExperts

WAYS = ("model_out", "gpu_out", "source_out", "shipped", "bound", "textbook", "derated")
_FOLDS = {"model_out": "model", "gpu_out": "gpu", "source_out": "source_key"}
GROUP = ["kind", "tier", "source_key", "model", "gpu", "metric"]
_KINDS = {"ttft_ms": "closed loop, TTFT", "tpot_ms": "closed loop, TPOT"}
_FEW = 5  # rows; smaller groups of a source and an accelerator are merged


def predicted_rows(paths: list[Path], fitted: fit_engines.Rows) -> tuple[pd.DataFrame, Counter[str]]:
    """All rows with a column for each way, and why rows could not be answered."""
    rows, unanswered = unseen_rows(paths, fitted)
    simple = pd.concat(on_all_cores(_simple, _groups(paths, "none", Counter())))
    return rows.join(simple), unanswered


def unseen_rows(paths: list[Path], fitted: fit_engines.Rows) -> tuple[pd.DataFrame, Counter[str]]:
    """All rows predicted as shipped, and by fits that have not seen the row's model, accelerator or source.

    Intervals of the latter are those of the steps, as they are played at both ends (benchmarks/fit_load_errors.py).
    """
    unseen = {way: _folds(fitted, key) for way, key in _FOLDS.items()}
    unanswered: Counter[str] = Counter()
    groups = _groups(paths, None, unanswered)
    rows = pd.concat(on_all_cores(lambda group: _ours(group, unseen), groups))
    bounds = on_all_cores(_at_bound, _groups(paths, "none", Counter()))
    rows = rows.join(pd.concat(bounds))
    unanswered.update(rows["reason"][rows["reason"] != ""].tolist())
    closed = rows["metric"].map(_KINDS).fillna("closed loop, other")
    return rows.assign(kind=rows["load"].where(rows["load"] != "concurrency", closed)), unanswered


def _groups(paths: list[Path], calibration: str | None, unanswered: Counter[str]) -> list[ServedGroup]:
    tables = pd.concat([read_serving_table(path) for path in paths], ignore_index=True)
    return list(served_groups(tables, calibration, unanswered))


# Costs of dequantised experts that are chosen by hand, as they are without the rows of gpt-oss-120b: queues of
# gpt-oss-20b say 2.35. Triton's experts took 90 us a layer more than Marlin's at batch 8, and 76 with 16 users (vLLM
# PR 27523, gpt-oss-120b itself under vLLM on Hopper; TensorRT-LLM takes the same library there). Kernels beyond those
# of other experts are counted in TensorRT-LLM's fused_moe_triton.py and in triton_kernels.
_WITHOUT = {"gpt-oss-120b": {"dequantised": 2.35, "routed": 83e-6, "routed_launches": 9}}


def _folds(rows: fit_engines.Rows, key: str) -> dict[str, dict[str, np.ndarray]]:
    """Costs by engine range without one model, accelerator or source, for each of them; "" is from all rows."""
    values = rows.table[key].to_numpy()
    return {"": fit_engines.fit(rows)} | {
        name: fit_engines.fit(rows.where(values != name)) for name in np.unique(values)
    }


def _ours(group: ServedGroup, unseen: dict[str, dict[str, dict[str, np.ndarray]]]) -> pd.DataFrame:
    shipped, layers = predict_group(group, ends=False), group.resolved.plan.model.layers
    table = group.table.assign(shipped=shipped.value, engine_range=fit_engines.engine_range(group))
    table["calibration"] = group.resolved.plan.calibration.name
    table["experts"] = "MoE" if any(isinstance(layer.ffn, MixtureOfExperts) for layer in layers) else "dense"
    stands_in = group.resolved.plan.stands_in
    table["stands_in"] = [stands_in("tpot" if metric == "tpot_ms" else "ttft") for metric in group.table["metric"]]
    table["whole"] = group.resolved.plan.measured_whole
    table["faulty"] = fit_engines.faulty(group)
    table["reason"], table["engine"] = shipped.reason, group.resolved.plan.deployment.engine
    for way, key in _FOLDS.items():
        table[[way, f"{way}_low", f"{way}_high"]] = np.nan
        for name, own in table.groupby(key):
            fits = unseen[way].get(str(name), unseen[way][""])
            part = _with(replace(group, table=group.table.loc[own.index]), fits, str(name))
            for column, values in ((way, part.value), (f"{way}_low", part.low), (f"{way}_high", part.high)):
                table.loc[own.index, column] = values
    return table


def _with(group: ServedGroup, fits: dict[str, np.ndarray], name: str) -> ServedPrediction:
    """A group under the costs of a fit without `name`; a launch without a graph, and the interval, stay."""
    plan = group.resolved.plan
    costs = fit_engines.costs_of(fits, fit_engines.engine_range(group))
    changed = replace(plan.engine.costs, **dict(zip(fit_engines.COSTS, map(float, costs), strict=True)))
    changed = replace(changed, **{key: each for key, each in _WITHOUT.get(name, {}).items() if getattr(changed, key)})
    engine = replace(plan.engine, costs=changed, loaded=LoadErrors())
    return predict_group(group.under(engine))


def _at_bound(group: ServedGroup) -> pd.DataFrame:
    return pd.DataFrame({"at_bound": predict_group(group, ends=False).value}, index=group.table.index)


def _simple(group: ServedGroup) -> pd.DataFrame:
    columns: dict[str, Callable[[ServedGroup], np.ndarray]] = {
        "bound": lambda one: predict_group(one, ends=False).value, "textbook": textbook, "derated": derated,
    }  # fmt: skip
    return pd.DataFrame({name: predict(group) for name, predict in columns.items()}, index=group.table.index)


def errors(rows: pd.DataFrame, by: list[str] | None = None) -> pd.DataFrame:
    """Median error of each way, and cover, by group; one under 5 rows joins the others of its source and accelerator.

    `by`: columns that part the groups further.
    """
    key = [*GROUP, *(by or [])]
    parts = {f"e_{way}": (rows[way] / rows["value"] - 1.0).abs() for way in WAYS}
    table = rows.assign(**parts, bias=rows["model_out"] / rows["value"] - 1.0)
    table["inside"] = rows["model_out_inside"]
    found = merged(table, key).groupby(key)
    out = found.agg(
        n=("value", "size"), answered=("shipped", "count"), bias=("bias", "median"), inside=("inside", "mean")
    )
    for way in WAYS:
        out[way] = found[f"e_{way}"].median()
    return out.reset_index()


def merged(rows: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Rows whose group has under 5 of them joined with the others of its source and accelerator."""
    small = rows.groupby(key)["value"].transform("size") < _FEW
    return rows.assign(model=rows["model"].mask(small, "*"), metric=rows["metric"].mask(small, "*"))


def under_load(rows: pd.DataFrame) -> pd.DataFrame:
    """Median error of each way over rows, and over groups of a source, model and accelerator, by kind of load."""
    table = rows[rows["load"] != "static"].copy()
    for way in WAYS:
        table[way] = (table[way] / table["value"] - 1.0).abs()
    both = [table, table.assign(experts="all")]
    found = []
    for (kind, experts), own in pd.concat(both).groupby(["kind", "experts"]):
        groups = own.groupby(GROUP[2:])[list(WAYS)].median()
        for over, medians in (("rows", own[list(WAYS)].median()), ("groups", groups.median())):
            number = len(own) if over == "rows" else len(groups)
            found.append({"kind": kind, "experts": experts, "over": over, "n": number, **medians})
    return pd.DataFrame(found)

"""Predictions of whole requests against measured serving tables: errors, bias and coverage by group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.evidence.accuracy import Accuracy, Score, score, signature
from rooflinekit.evidence.serving_table import ServedGroup, read_serving_table, served_groups, server_settings
from rooflinekit.model.traffic.closed_form import Loaded, Traffic, closed_loop
from rooflinekit.model.traffic.mixing import InFlight, StaticRun, static_run
from rooflinekit.model.types.client import Client
from rooflinekit.model.types.numeric import Array

__all__ = ["Answer", "predict_group", "serving_accuracy"]

_KEY = ("source_key", "model", "gpu", "metric")
_PER_TIME = {"output_tok_s_total", "output_tok_s_per_gpu", "output_tok_s_per_user", "prefill_tok_s"}


@dataclass(frozen=True)
class Answer:
    """Predicted value of each row with its 90 % interval, in the row's own unit; NaN where `reason` says why not."""

    value: Array
    low: Array
    high: Array
    reason: NDArray[np.str_]


def serving_accuracy(
    files: Sequence[Path],
    calibration: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Accuracy:
    """Score serving tables; every figure of a row comes from the same step function.

    `calibration` is a name, a path, "none" for the datasheet bound, or None for the one that `estimate` would take.
    A row that cannot be answered is counted with its reason.

    Raises SpecError for a file that is no serving table.
    """
    unanswered: Counter[str] = Counter()
    told = progress or (lambda _: None)
    rows = pd.concat([_predicted(read_serving_table(path), calibration, unanswered, told) for path in files])
    scores = tuple(_score(own) for _, own in rows.groupby([rows[name].astype(str) for name in _KEY]))
    answered = sum(group.answered for group in scores)
    return Accuracy(answered + sum(unanswered.values()), answered, dict(unanswered), scores, "metric")


def _predicted(
    table: pd.DataFrame, calibration: str | None, unanswered: Counter[str], progress: Callable[[str], None]
) -> pd.DataFrame:
    """A table with its predictions; NaN where there is none."""
    out = table.assign(predicted=np.nan, low=np.nan, high=np.nan, calibration="")
    for group in served_groups(table, calibration, unanswered):
        plan, rows = group.resolved.plan, group.table.index
        progress(f"{plan.model.name} {plan.system.accelerator.name} {plan.deployment.engine}")
        answer = predict_group(group)
        for name, values in (("predicted", answer.value), ("low", answer.low), ("high", answer.high)):
            out.loc[rows, name] = values
        out.loc[rows, "calibration"] = signature(plan.calibration)
        unanswered.update(answer.reason[answer.reason != ""].tolist())
    return out


def _score(rows: pd.DataFrame) -> Score:
    good = rows["predicted"].notna().to_numpy()
    value, predicted, low, high = (
        rows[name].to_numpy(dtype=float)[good] for name in ("value", "predicted", "low", "high")
    )
    inside = None if (low == high).all() else (value >= low) & (value <= high)
    used = ", ".join(sorted(set(rows["calibration"]) - {""}))
    key = {name: str(rows[name].iloc[0]) for name in _KEY}
    return replace(score(key, value, predicted, inside, len(rows)), calibration=used)


def predict_group(group: ServedGroup) -> Answer:
    """Predict every row of one deployment in one pass for each kind of load."""
    size = len(group.table)
    answer = Answer(np.full(size, np.nan), np.full(size, np.nan), np.full(size, np.nan), _reasons(group))
    loads = group.table["load"].to_numpy()
    for load, predict in _LOADS.items():
        rows = (loads == load) & (answer.reason == "")
        if rows.any():
            predict(group, np.flatnonzero(rows), answer)
    lost = np.isnan(answer.value) & (answer.reason == "")
    answer.reason[lost] = "not one such request fits in memory"
    return answer


def _reasons(group: ServedGroup) -> NDArray[np.str_]:
    """Why a row cannot be answered whatever the model says; empty where it can."""
    reason = np.full(len(group.table), "", dtype=object)
    for name in ("isl", "value"):
        column = group.column(name)
        reason[~(np.isfinite(column) & (column > 0))] = f"column {name!r} is empty or not above 0"
    users, osl = group.column("concurrency"), group.column("osl")
    loads, metrics = group.table["load"].to_numpy(), group.table["metric"].to_numpy()
    reason[(loads != "saturated") & ~(users > 0)] = "column 'concurrency' is empty or not above 0"
    reason[(metrics != "ttft_ms") & (metrics != "prefill_tok_s") & ~(osl > 0) & (loads != "static")] = (
        "column 'osl' is empty"
    )
    return reason


def _static(group: ServedGroup, rows: NDArray[np.intp], answer: Answer) -> None:
    isl, users = group.column("isl")[rows], group.column("concurrency")[rows]
    osl = np.nan_to_num(group.column("osl")[rows], nan=_USUAL_OSL)
    run = static_run(group.resolved.predictor, InFlight(users, isl, osl))
    for part in ("expected", "low", "high"):
        _fill(group, rows, answer, part, _static_values(run, part, users, isl, osl))


_QUEUE = 1e6  # users of a saturated run: more than any deployment holds
_USUAL_OSL = 128.0  # a row that names none: long enough that the first token hardly counts


def _static_values(run: StaticRun, part: str, users: Array, isl: Array, osl: Array) -> dict[str, Array]:
    """Each metric from one end of the interval; sums of times, so a slow end is a low rate."""
    ttft, tpot = (np.broadcast_to(getattr(each, part), users.shape) for each in (run.ttft, run.tpot))
    whole = (ttft + (osl - 1.0) * tpot) * run.waves
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "ttft_ms": 1e3 * ttft, "tpot_ms": 1e3 * tpot, "e2e_ms": 1e3 * whole,
            "output_tok_s_total": users * osl / whole, "output_tok_s_per_user": 1.0 / tpot,
            "prefill_tok_s": users * isl / ttft,
        }  # fmt: skip


def _concurrency(group: ServedGroup, rows: NDArray[np.intp], answer: Answer) -> None:
    _loaded(group, rows, answer, group.column("concurrency")[rows])


def _saturated(group: ServedGroup, rows: NDArray[np.intp], answer: Answer) -> None:
    """An offline queue is a closed loop with more users than fit."""
    _under_client(group, rows, answer, np.full(len(rows), _QUEUE), Client(requests=math.inf))


def _loaded(group: ServedGroup, rows: NDArray[np.intp], answer: Answer, users: Array) -> None:
    """Continuous batching under the client that each source used."""
    _under_client(group, rows, answer, users, group.client)


def _under_client(group: ServedGroup, rows: NDArray[np.intp], answer: Answer, users: Array, client: Client) -> None:
    osl = np.nan_to_num(group.column("osl")[rows], nan=1.0)
    traffic = Traffic(
        client.mean_length * group.column("isl")[rows], client.mean_length * osl,
        isl_cv=client.cv, osl_cv=client.cv, requests=client.requests,
        **server_settings(group, rows, users),
    )  # fmt: skip
    loaded = closed_loop(group.resolved.predictor, users, traffic)
    for part in ("expected", "low", "high"):
        _fill(group, rows, answer, part, _loaded_values(loaded, part, users, traffic))


def _loaded_values(loaded: Loaded, part: str, users: Array, traffic: Traffic) -> dict[str, Array]:
    ttft, tpot = (np.broadcast_to(getattr(each, part), users.shape) for each in (loaded.ttft, loaded.tpot))
    whole = ttft + (traffic.osl - 1.0) * tpot
    rate = loaded.rate * loaded.e2e / whole  # a slow end of the interval is a low rate
    return {
        "ttft_ms": 1e3 * ttft, "tpot_ms": 1e3 * tpot, "e2e_ms": 1e3 * whole,
        "output_tok_s_total": rate * traffic.osl, "output_tok_s_per_user": 1.0 / tpot,
        "prefill_tok_s": rate * traffic.isl,
    }  # fmt: skip


def _fill(group: ServedGroup, rows: NDArray[np.intp], answer: Answer, part: str, values: dict[str, Array]) -> None:
    metrics = group.table["metric"].to_numpy()[rows]
    values["output_tok_s_per_gpu"] = values["output_tok_s_total"] / group.resolved.plan.deployment.gpus
    for metric, value in values.items():
        own = metrics == metric
        target = {"expected": answer.value, "low": answer.low, "high": answer.high}[_end(part, metric)]
        target[rows[own]] = np.where(np.isfinite(value[own]), value[own], np.nan)


def _end(part: str, metric: str) -> str:
    """A short time is a high rate."""
    return {"low": "high", "high": "low"}.get(part, part) if metric in _PER_TIME else part


_LOADS = {"static": _static, "concurrency": _concurrency, "saturated": _saturated}

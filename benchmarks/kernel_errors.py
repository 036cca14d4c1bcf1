"""How far predictions of kernels lie from measurements, next to other ways to predict them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rooflinekit.evidence.kernel_fit.calibrate import REGIMES, Fitted, fit_form, form_time, regime_of
from rooflinekit.evidence.kernel_fit.groups import Group
from rooflinekit.evidence.kernel_fit.tables import Measured
from rooflinekit.model.roofline import roofline_bound
from rooflinekit.model.timing.calibrated import AXES
from rooflinekit.model.timing.forms import PlainTime
from rooflinekit.model.types.hardware import System


def errors(group: Group, rows: Measured, system: System, fitted: Fitted, boosted: bool) -> dict[str, object]:
    """One line of the table of errors: mean |predicted / measured - 1| of each way to predict."""

    def mape(predicted: np.ndarray) -> float:
        return float(np.mean(np.abs(predicted / rows.time - 1.0)))

    line = {"op": group.operation, "gpu": group.gpu, "engine": group.engine, "key": group.key, "n": len(rows.time)}
    bound = rows.each(lambda kernel: np.maximum.reduce(np.broadcast_arrays(*roofline_bound(kernel, system))))
    line["roofline"] = mape(bound)
    line["three"] = mape(three(rows, system)) if group.operation != "comm" else np.nan
    line["form"], line["corrected"] = mape(fitted.form_alone), mape(fitted.corrected)
    line["bias"] = float(np.median(np.log(fitted.corrected / rows.time)))
    line["coverage"] = float(fitted.inside.mean())
    line["black_box"] = mape(black_box(group, rows, fitted)) if boosted else np.nan
    return line


def coverage_lines(group: Group, rows: Measured, fitted: Fitted) -> list[dict[str, object]]:
    """Rows inside the interval of the other folds, by regime."""
    regime, edges = regime_of(rows), REGIMES[rows.family][1]
    return [
        {"op": group.operation, "gpu": group.gpu, "engine": group.engine, "key": group.key, "regime": number,
         "axis": REGIMES[rows.family][0], "from": edges[number - 1] if number else 0.0, "n": int(own.sum()),
         "inside": int(fitted.inside[own].sum())}
        for number in range(len(edges) + 1) if (own := regime == number).any()
    ]  # fmt: skip


def sampled(group: Group, rows: Measured, fitted: Fitted, count: int = 60) -> pd.DataFrame:
    """Some rows, drawn evenly (seeded), with their held-out predictions: for pictures."""
    chosen = np.random.default_rng(0).permutation(len(rows.time))[:count]
    size = rows.each(AXES[REGIMES[rows.family][0]])
    shown = {"size": size, "measured_us": 1e6 * rows.time, "predicted_us": 1e6 * fitted.corrected}
    found = pd.DataFrame({name: np.char.mod("%.5g", value[chosen]) for name, value in shown.items()})
    found.insert(0, "op", group.operation)
    found.insert(1, "gpu", group.gpu)
    return found


def three(rows: Measured, system: System) -> np.ndarray:
    found = fit_form(rows, system, start=PlainTime())
    return form_time(found.form, rows, system)


def black_box(group: Group, rows: Measured, fitted: Fitted) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415

    numbers = group.table.select_dtypes("number").drop(columns="latency_us")
    if group.operation == "comm":
        numbers = numbers.sort_values("gpus", kind="stable")
    shapes, target = np.log2(numbers.to_numpy(float)), np.log(rows.time / fitted.form_alone)
    guess = np.zeros(len(target))
    for number in np.unique(fitted.fold):
        held = fitted.fold == number
        model = HistGradientBoostingRegressor(max_iter=300, learning_rate=0.08, random_state=0)
        guess[held] = model.fit(shapes[~held], target[~held]).predict(shapes[held])
    return fitted.form_alone * np.exp(guess)


SHOWN = ["roofline", "three", "form", "corrected", "black_box", "coverage"]


def medians(table: pd.DataFrame) -> pd.DataFrame:
    """Median over groups, by operation and by whether the rows are the L2-warm ones of the L40S."""
    kind = table["op"] + table["key"].map(band)
    where = np.where(table["gpu"] == "l40s", "l40s", "others")
    return table.assign(kind=kind, where=where).groupby(["kind", "where"])[SHOWN].median()


def band(key: str) -> str:
    """What, besides the operation, has a target of its own."""
    parts = key.split("/")
    host = " eager" if parts[-1] == "eager" and parts[0] != "collective" else ""
    if parts[0] == "gemm":
        return (" bf16" if parts[1] == "bf16" else " narrow") + host
    return ((" skewed" if "power_law_1.2" in parts else " balanced") if parts[0] == "moe" else "") + host


def covered(lines: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Coverage pooled over groups."""
    where = np.where(lines["gpu"] == "l40s", "l40s", "others")
    found = lines.assign(where=where).groupby([*by, "where"])[["n", "inside"]].sum()
    return found.assign(coverage=found["inside"] / found["n"])

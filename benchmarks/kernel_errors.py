"""How far predictions of kernels lie from measurements, next to other ways to predict them."""

from __future__ import annotations

import numpy as np
import pandas as pd
from kernel_groups import Group

from rooflinekit.calibration.calibrate import Fitted
from rooflinekit.calibration.fit import fit_form, form_time
from rooflinekit.calibration.tables import OPERATIONS, Measured
from rooflinekit.roofline import roofline_bound
from rooflinekit.timing import PlainTime
from rooflinekit.types.hardware import System


def errors(group: Group, rows: Measured, fitted: Fitted, boosted: bool) -> dict[str, object]:
    def mape(predicted: np.ndarray) -> float:
        return float(np.mean(np.abs(predicted / rows.time - 1.0)))

    line = {"op": group.operation, "gpu": group.gpu, "engine": group.engine, "key": group.key, "n": len(rows.time)}
    bound = rows.each(lambda kernel: np.maximum.reduce(np.broadcast_arrays(*roofline_bound(kernel, group.system))))
    line["roofline"] = mape(bound)
    line["three"] = mape(three(rows, group.system)) if group.operation != "comm" else np.nan
    line["form"], line["corrected"] = mape(fitted.form_alone), mape(fitted.corrected)
    line["bias"] = float(np.median(np.log(fitted.corrected / rows.time)))
    line["coverage"] = float(fitted.inside.mean())
    line["black_box"] = mape(black_box(group, rows, fitted)) if boosted else np.nan
    return line


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


def print_errors(table: pd.DataFrame) -> None:
    shown = ["roofline", "three", "form", "corrected", "black_box", "coverage"]
    pd.set_option("display.width", 220, "display.max_rows", 500)
    print(table.round(3).to_string(index=False))
    table = table.assign(
        kind=table["op"] + table["key"].map(band), where=np.where(table["gpu"] == "l40s", "l40s", "others")
    )
    print("\nMedian over groups\n", table.groupby(["kind", "where"])[shown].median().round(4).to_string())


def band(key: str) -> str:
    parts = key.split("/")
    if parts[0] == "gemm":
        return " bf16" if parts[1] == "bf16" else " narrow"
    return " " + parts[2].split("_")[0] if parts[0] == "moe" else ""


def print_coverage(found: list[Group], inside: list[np.ndarray]) -> None:
    print("\nCoverage of the 90 % intervals on unseen shape groups, by operation and regime (rows)")
    for operation in OPERATIONS:
        for warm in (False, True):
            some = [
                each
                for group, each in zip(found, inside, strict=True)
                if group.operation == operation and (group.gpu == "l40s") is warm
            ]
            if not some:
                continue
            hits, regime = np.concatenate(some, axis=1)
            parts = [
                f"{hits[regime == number].mean():.3f} ({int((regime == number).sum())})" for number in np.unique(regime)
            ]
            print(
                f"{operation:18s} {'l40s' if warm else 'others':7s} {hits.mean():.3f}   by regime: {'  '.join(parts)}"
            )

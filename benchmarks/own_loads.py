"""Fit what loads of one deployment have in common (specs/doubt.yaml, `own`), and test intervals that loads narrow.

    python benchmarks/own_loads.py TABLE... [--cache rows.pkl]

TABLE is a serving table (docs/accuracy.md). The error of a row is log(measured / predicted) over the scale of its 80 %
interval. Errors of the rows of a deployment are one draw of a normal distribution, with correlations as in
`rooflinekit.model.types.engine.OwnLoads`. Shares are those of the largest likelihood, on a grid; a deployment weighs as
the root of its rows. Then 1, 3 and 5 random loads of each deployment are taken as measured: printed are how much of its
other rows lies inside the intervals of 80 and 90 %, and how wide those of 90 % are. Rows are predicted with the shipped
costs, which have seen most of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from cached_rows import cached, on_all_cores, table_parser

from rooflinekit.evidence.accuracy_serving import ServedGroup, predict_group, read_serving_table, served_groups
from rooflinekit.model.types.engine import OwnLoad, OwnLoads

_FEWEST = 4  # rows of a deployment
_DEPLOYMENT = ["model", "gpu", "n_gpus", "engine", "engine_version", "source_key", "weight_dtype"]
_STEP = 0.05
_SCALES = (0.3, 0.5, 0.7, 1.0, 1.4, 2.0)  # variance of errors over that of the intervals
_DRAWS = 6
_ENDS = ("low", "high", "low80", "high80")


def _predicted(group: ServedGroup) -> pd.DataFrame:
    found = predict_group(group)
    return group.table.assign(predicted=found.value, **{name: getattr(found, name) for name in _ENDS})


def errors(paths: Sequence[Path]) -> pd.DataFrame:
    """Rows of closed loops with their errors and the logarithms of the ends of their intervals."""
    tables = pd.concat([read_serving_table(path) for path in paths], ignore_index=True)
    closed = tables[(tables["load"] == "concurrency") & tables["metric"].isin(["ttft_ms", "tpot_ms"])]
    rows = pd.concat(on_all_cores(_predicted, list(served_groups(closed, None, Counter()))))
    rows = rows[np.isfinite(rows["predicted"])]
    logs = {name: np.log(rows[name] / rows["predicted"]) for name in ("value", *_ENDS)}
    return rows.assign(**logs, scale=(logs["high80"] - logs["low80"]) / (2.0 * 1.2816))


def deployments(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows of each deployment that has enough of them."""
    for _, own in rows.groupby(rows[_DEPLOYMENT].astype(str).agg("|".join, axis=1)):
        if len(own) >= _FEWEST:
            yield own


def fit(rows: pd.DataFrame) -> tuple[float, float]:
    """Level and near of the largest likelihood."""
    parts = []
    for own in deployments(rows):
        places = np.log(own[["concurrency", "isl"]].to_numpy(float))
        apart = ((places[:, None] - places[None]) ** 2).sum(axis=2)
        parts.append((np.exp(-apart / 2.0), (own["value"] / own["scale"]).to_numpy(float)))
    shares = np.arange(0.0, 1.0 - _STEP / 2.0, _STEP)
    grid = [(a, b, v) for a, b, v in product(shares, shares, _SCALES) if a + b < 1.0 - _STEP / 2.0]
    level, near, _ = min(grid, key=lambda at: sum(_unlikely(close, z, *at) for close, z in parts))
    return float(level), float(near)


def _unlikely(close: np.ndarray, z: np.ndarray, level: float, near: float, scale: float) -> float:
    """Twice the negative logarithm of the likelihood of a deployment's errors, over the root of their number."""
    matrix = scale * (level + near * close + (1.0 - level - near) * np.eye(len(z)))
    return float((np.linalg.slogdet(matrix)[1] + z @ np.linalg.solve(matrix, z)) / np.sqrt(len(z)))


def tested(rows: pd.DataFrame, metric: str, shares: tuple[float, float], known: int) -> tuple[float, float, float]:
    """Share of other rows inside the intervals of 80 and 90 % with `known` loads, and how wide those of 90 % are."""
    draw, found = np.random.default_rng(0), []
    for own in deployments(rows):
        loads = [OwnLoad(row.concurrency, row.isl, **{metric: row.value}) for row in own.itertuples()]
        if len(loads) <= known:
            continue
        one = []
        for _ in range(_DRAWS):
            picked = set(draw.choice(len(loads), known, replace=False).tolist())
            law = OwnLoads(**{metric: shares}, loads=tuple(loads[number] for number in sorted(picked)))
            for number, row in enumerate(own.itertuples()):
                if number not in picked:
                    left, error = law.left(metric, row.concurrency, row.isl)
                    ends = {name: left**0.5 * getattr(row, name) + error for name in _ENDS}
                    low, high = min(ends["low"], 0.0), max(ends["high"], 0.0)
                    inner = min(ends["low80"], 0.0) <= row.value <= max(ends["high80"], 0.0)
                    one.append((inner, low <= row.value <= high, high - low))
        found.append((*np.mean([each[:2] for each in one], axis=0), np.exp(np.median([each[2] for each in one]))))
    inner, outer, wide = np.array(found).T
    return float(inner.mean()), float(outer.mean()), float(np.median(wide))


def main() -> None:
    arguments = table_parser(__doc__).parse_args()
    rows = cached(arguments.cache, lambda: errors(arguments.tables))
    for (engine, metric), own in rows.groupby(["engine", "metric"]):
        count = sum(1 for _ in deployments(own))
        if count < _FEWEST:
            continue
        short = metric.removesuffix("_ms")
        level, near = fit(own)
        print(f"{engine} {short}: [{level:.2f}, {near:.2f}] of {count} deployments")
        for known in (0, 1, 3, 5):
            inner, outer, wide = tested(own, short, (level, near), known)
            print(f"  {known} loads: {inner:.0%} inside 80 %, {outer:.0%} inside 90 %, {wide:.2f}x wide")


if __name__ == "__main__":
    main()

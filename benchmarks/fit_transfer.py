"""Fit how much wider the 90 % interval of a stand-in is than at home, and test it with the accelerator left out.

    python benchmarks/fit_transfer.py TABLE... [--write hardware_specs/calibrations/transfer.yaml] [--out transfer.csv]

TABLE is a kernel table (docs/accuracy.md), also of accelerators without a calibration. Each group of rows is predicted
by the nearest calibration that is not of its accelerator, and by that of another engine on it. The factor of a family
is the quantile of |log(measured / predicted)| beyond the interval at home, accelerators weighing alike; its level is
the least from 90 % on at which accelerators left out are covered 90 % of the time on average, and each of them 85 %
where a level up to 95 % gives it. Families of one accelerator take the factor of all families together, and no less
than that of the nearer reach before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from cached_rows import cached, table_parser

from rooflinekit.evidence.kernel_fit.calibrate import predict
from rooflinekit.evidence.kernel_fit.groups import Group, kernel_groups, read_kernel_tables
from rooflinekit.model.timing.calibrated import BORROWED, Calibration
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration.choose import REACH, donors, serving_engine
from rooflinekit.specs.calibration.load import calibration_names, carried, load_calibration

LEVEL = 0.9
LEAST, UP_TO = 0.85, 0.955  # cover of each accelerator left out, where a level up to 0.95 gives it
_LEVELS = np.arange(LEVEL, 0.985, 0.01)
_FEWEST_ROWS, _MOST_ROWS = 20, 300  # of a group
_BESIDE = (("l40s", "a100-sxm-80gb"), ("a100-sxm-80gb", "l40s"))  # the nearest generation of each other


def transfers(group: Group) -> Iterator[tuple[str, str, Calibration]]:
    """Accelerator, reach and calibration of the nearest stand-in across each reach."""
    accelerator, known = load_accelerator(group.gpu).value, calibration_names()
    engine = serving_engine(group.engine)
    own = f"{accelerator.name}--{engine}"
    places = [(name, reach) for name, reach in donors(accelerator, engine) if name in known and name != own]
    places += [(f"{near}--{engine}", "generation") for name, near in _BESIDE if name == accelerator.name]
    if accelerator.architecture.startswith("Hopper"):  # H100's is no calibration of another kind for them
        places = [place for place in places if place[1] != "maker"]
    for reach in REACH:
        nearest = next((name for name, each in places if each == reach and name in known), None)
        if nearest is not None and (reach != "engine" or own in known):
            yield accelerator.name, reach, load_calibration(nearest)


def scores(paths: list[Path]) -> pd.DataFrame:
    """Rows with their log error under each stand-in, and half the width of its interval at home."""
    found, unanswered = [], Counter[str]()
    rng = np.random.default_rng(0)
    for path in paths:
        for operation, table in read_kernel_tables(path, unanswered):
            for group in kernel_groups(operation, table):
                if group.named.get("clock") == "host" or len(group.table) < _FEWEST_ROWS:
                    continue  # a deployment has none of the host's gaps; an accelerator counts by more than a few rows
                try:
                    system = System.of(load_accelerator(group.gpu).value)
                    size = len(group.table)
                    chosen = rng.choice(size, min(size, _MOST_ROWS), replace=False)
                    some = replace(group, table=group.table.iloc[chosen].reset_index(drop=True))
                    rows = some.on(system.accelerator).rows()
                    for accelerator, reach, calibration in transfers(group):
                        fit = carried(
                            calibration.fit(rows.kernels[0]), calibration.accelerator, system.accelerator, reach
                        )
                        if fit.source.startswith(BORROWED):
                            continue  # that calibration did not measure such kernels either
                        error = np.abs(np.log(rows.time / predict(fit, rows, system)))
                        width = np.log(rows.each(lambda kernel, fit=fit, own=calibration: own.factors(kernel, fit)[0]))
                        found.append(pd.DataFrame({"error": error, "width": width}).assign(
                            reach=reach, family=group.family, accelerator=accelerator))  # fmt: skip
                except RooflinekitError as error:
                    unanswered[str(error)] += len(group.table)
        print(path, flush=True)
    print(dict(unanswered.most_common(5)))
    return pd.concat(found, ignore_index=True)


def factor(rows: pd.DataFrame, family: str, level: float) -> float:
    """The logarithm of a family's factor at one reach."""
    own = rows[rows["family"] == family]
    own = own if own["accelerator"].nunique() > 1 else rows
    beyond = (own["error"] - own["width"]).to_numpy()
    weight = 1.0 / own.groupby("accelerator")["error"].transform("size").to_numpy()
    order = np.argsort(beyond)
    total = np.cumsum(weight[order])
    return max(float(beyond[order][min(np.searchsorted(total, level * total[-1]), len(order) - 1)]), 0.0)


def measured(rows: pd.DataFrame) -> set[str]:
    """Families with a factor of their own: rows of more than one accelerator."""
    counts = rows.groupby("family")["accelerator"].nunique()
    return set(counts[counts > 1].index)


def left_out(rows: pd.DataFrame, level: float) -> pd.DataFrame:
    """Share of each accelerator's rows that factors from the others cover, by family."""
    found = []
    for name in rows["accelerator"].unique():
        rest, own = rows[rows["accelerator"] != name], rows[rows["accelerator"] == name]
        for family, part in own.groupby("family"):
            inside = part["error"] <= part["width"] + factor(rest, str(family), level)
            found.append({"accelerator": name, "family": family, "rows": len(part), "cover": inside.mean()})
    return pd.DataFrame(found)


def mean_cover(found: pd.DataFrame) -> pd.Series:
    """By accelerator."""
    inside = (found["cover"] * found["rows"]).groupby(found["accelerator"]).sum()
    return inside / found.groupby("accelerator")["rows"].sum()


def main() -> None:
    parser = table_parser(__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = cached(arguments.cache, lambda: scores(arguments.tables))
    lines, tested, tables = [], [], []
    nearer: dict[str, float] = {}
    for reach in REACH:
        own = rows[rows["reach"] == reach]
        tried = {level: mean_cover(left_out(own, level)) for level in _LEVELS}
        enough = [level for level, cover in tried.items() if cover.mean() >= LEVEL]
        each = [level for level in enough if level < UP_TO and tried[level].min() >= LEAST]
        level = min(each or enough, default=_LEVELS[-1])
        factors = {family: np.exp(factor(own, family, level)) for family in sorted(rows["family"].unique())}
        for family in set(factors) & set(nearer) - measured(own):  # who lies farther is not known better
            factors[family] = max(factors[family], nearer[family])
        nearer = factors
        lines.append(f"  {reach}: {{{', '.join(f'{family}: {each:.2f}' for family, each in factors.items())}}}")
        found = left_out(own, level)
        tables.append(found.assign(reach=reach, level=level))
        cover = 100.0 * mean_cover(found)
        tested.append(f'  {reach}: "{cover.mean():.0f} % ({cover.min():.0f} to {cover.max():.0f} %)"')
        print(f"{reach}: level {level:.2f}, accelerators left out {tried[level].mean():.1%}")
        print(mean_cover(found).round(3).to_dict(), "\n", lines[-1])
    if arguments.out:
        pd.concat(tables).to_csv(arguments.out, index=False, float_format="%.3f")
    if arguments.write:
        text = arguments.write.read_text(encoding="utf-8")
        kept = re.sub(r"(?m)^(?:widening|tested):\n(?:  .*\n)+", "", text)
        lines = ["widening:", *lines, "tested:", *tested, ""]
        arguments.write.write_text(kept + "\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()

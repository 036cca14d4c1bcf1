"""How many planted regressions of kernels `rooflinekit guard` finds in measured tables, and how often it errs.

    python benchmarks/guard_errors.py TABLE... [--rows 80] [--turns 20]

From each kernel table (Parquet or CSV) rows are drawn as a suite. Against a baseline, the repeats of both runs are the
measured times with drawn noise, 1 % in the median and unequal between rows; 40 rows are made 5 to 30 % slower. Against
the prediction, rows are as they were measured, and then the same slow-downs are planted.

    python benchmarks/guard_errors.py --tails TABLE...

says which powers of the interval's ends hold 98 % of the rows in three of four tables (an operation on an accelerator
with an engine each); and how many rows of each operation and accelerator lie beyond, if that choice leaves it out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.evidence.accuracy import timed_rows, timed_with
from rooflinekit.evidence.guard import guard, read_readings
from rooflinekit.evidence.kernel_fit.groups import kernel_groups, read_kernel_tables


def drawn(path: Path, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """A suite: shapes of a table that are all different."""
    (operation, table), *_ = read_kernel_tables(path)
    table = table.drop(columns=[name for name in ("samples_min", "power_w", "power_limit_w") if name in table])
    table = table.drop_duplicates([name for name in table if name not in ("latency_us", "engine_version")])
    return table.iloc[rng.choice(len(table), rows, replace=False)].assign(op=operation)


def judged(suite: pd.DataFrame, factors: list[np.ndarray], before: list[np.ndarray], folder: Path):
    """The answer for runs of a suite whose times are multiplied."""
    paths: dict[str, list[Path]] = {"now": [], "before": []}
    for which, all_of in (("now", factors), ("before", before)):
        for number, each in enumerate(all_of):
            path = folder / f"{which}{number}.csv"
            suite.assign(latency_us=suite["latency_us"] * each).to_csv(path, index=False)
            paths[which].append(path)
    return guard(paths["now"], paths["before"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=80)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tails", action="store_true")
    asked = parser.parse_args()
    if asked.tails:
        tails(asked.tables)
        return
    rng = np.random.default_rng(1)
    print("table | against | repeats | found of planted | of the detectable | suites that alarm for nothing | rows")
    with tempfile.TemporaryDirectory() as scratch:
        for path in asked.tables:
            for repeats in (0, 1, 3):
                report(path, repeats, asked, rng, Path(scratch))


def report(path: Path, repeats: int, asked: argparse.Namespace, rng: np.random.Generator, folder: Path) -> None:
    """One line: a table, judged by the prediction (no repeats) or by baselines of so many runs."""
    rows, turns = asked.rows, asked.turns
    found = planted = above = above_found = alarms = false = judged_rows = 0
    for _ in range(turns):
        suite = drawn(path, rows, rng)
        slower = np.ones(rows)
        slower[: min(40, rows // 2)] = 1.0 + np.linspace(0.05, 0.30, min(40, rows // 2))
        noise = 0.01 * np.exp(rng.normal(0.0, 0.3, rows))

        def runs(factor: np.ndarray, noise: np.ndarray = noise) -> list[np.ndarray]:
            if not repeats:
                return [factor]
            return [factor * np.exp(noise * rng.normal(size=rows)) for _ in range(repeats)]

        before = runs(np.ones(rows)) if repeats else []
        clean = judged(suite, runs(np.ones(rows)), before, folder)
        slow = judged(suite, runs(slower), before, folder)
        alarms += bool(clean.regressions)
        false += len(clean.regressions)
        judged_rows += len(clean.checks)
        already = {row.name for row in clean.regressions}
        factors = dict(zip((row.name for row in read_readings(folder / "now0.csv")), slower, strict=True))
        for row in slow.checks:
            if (factor := factors[row.name]) > 1.0 and row.name not in already:
                planted += 1
                found += row.regressed
                above += factor - 1.0 >= row.detectable
                above_found += row.regressed and factor - 1.0 >= row.detectable
    against = f"baseline | {repeats}" if repeats else "prediction | -"
    rate = f"{alarms / turns:.1%} | {false / judged_rows:.2%}"
    print(f"{path.stem} | {against} | {found} of {planted} | {above_found} of {above} | {rate}")


SOUND, TABLES, FEWEST = 0.98, 0.75, 100  # share of rows, of tables, and rows that a table needs


def tails(paths: list[Path]) -> None:
    """The powers, and how they do where they were not chosen."""
    rows = pd.concat([beyond(path) for path in paths])
    named = ["operation", "gpu", "engine"]
    rows = rows[rows.groupby(named)["above"].transform("size") >= FEWEST]
    grouped = rows.groupby(named)
    quantiles = grouped[["above", "below"]].quantile(SOUND).reset_index()
    print(f"{len(quantiles)} tables; powers {quantiles[['above', 'below']].quantile(TABLES).round(2).to_dict()}")
    for out in ("operation", "gpu"):
        for end in ("above", "below"):
            others = {name: quantiles[quantiles[out] != name][end].quantile(TABLES) for name in quantiles[out].unique()}
            passed = rows[end] > rows[out].map(others)
            share = passed.groupby([rows[name] for name in named]).mean()
            powers = f"{min(others.values()):.2f} to {max(others.values()):.2f}"
            print(f"{out} left out, {end}: power {powers}; rows beyond: "
                  f"mean {share.mean():.1%}, one table of ten {share.quantile(0.9):.1%}, most {share.max():.1%} "
                  f"({'/'.join(share.idxmax())}); within 2 %: {(share <= 1 - SOUND).mean():.0%} of tables")  # fmt: skip


def beyond(path: Path) -> pd.DataFrame:
    """How far each row of a table lies above and below its prediction, in logarithms of the interval's ends."""
    found = []
    for operation, table in read_kernel_tables(path):
        for group in kernel_groups(operation, table):
            measured, timed = timed_rows(group, *timed_with(group, None, None))
            low, middle, high = (
                np.log(measured.joined(getattr(one, part) for one in timed)) for part in ("low", "expected", "high")
            )
            off = np.log(measured.time) - middle
            with np.errstate(divide="ignore", invalid="ignore"):
                found.append(pd.DataFrame({"operation": operation, "gpu": group.gpu, "engine": group.engine,
                                           "above": off / (high - middle), "below": off / (low - middle)}))  # fmt: skip
    return pd.concat(found).replace([np.inf, -np.inf], np.nan).dropna() if found else pd.DataFrame()


if __name__ == "__main__":
    main()

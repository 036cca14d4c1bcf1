"""Draw a few rows of measured kernels, carry a donor's calibration to them, and score both on the rows not drawn.

    python benchmarks/carry.py FOLDER_WITH_KERNEL_TABLES --gpu h200-sxm --engine vllm --out reports/carried.md

A donor is the calibration shipped for this accelerator and engine (home), that of another engine on it, of the same
architecture, or of another generation. A figure is the error of the carried fit over that of the donor, both the mean
|log(predicted / measured)| over rows that were not drawn, as the median over draws.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one thread a process: the jobs are the parallelism

import numpy as np
import pandas as pd

from rooflinekit.evidence.kernel_fit.calibrate import DonorReach, carry, predict
from rooflinekit.evidence.kernel_fit.groups import Group, kernel_groups, read_kernel_tables
from rooflinekit.model.timing.calibrated import BORROWED, FamilyFit
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration.choose import donors, stand_in
from rooflinekit.specs.calibration.load import calibration_names, load_calibration

SIZES = {8: 20, 20: 20, 40: 20, 160: 5}  # rows, and how many times they are drawn
SCORED = 400  # rows at most that a draw is scored on
WANTED = (
    ("gemm", "gemm/bf16"), ("gemm", "gemm/fp8"), ("attention_decode", "attention_decode/bf16/bf16"),
    ("attention_prefill", "attention_prefill/bf16/bf16"), ("mla_decode", "mla_decode/bf16/bf16"),
    ("mla_prefill", "mla_prefill/bf16/bf16"), ("moe", "moe/bf16/power_law_1.2"),
    ("comm", "collective/bf16/all_reduce"),
)  # fmt: skip
ANOTHER = {"h100-sxm": "a100-sxm-80gb", "h200-sxm": "b200-sxm", "b200-sxm": "h200-sxm", "a100-sxm-80gb": "h100-sxm",
           "l40s": "h100-sxm"}  # fmt: skip
"""A calibrated accelerator of another generation."""
LATENT = {"vllm": "sglang"}
"""Whose latent attention is measured where the engine's own is not."""


class Case(NamedTuple):
    """A group of rows, and a fit that was made from others."""

    group: Group
    donor: FamilyFit
    reach: DonorReach
    crossed: str  #: "home", "engine", "architecture" or "generation"


def cases(folder: Path, gpu: str, engine: str) -> Iterator[Case]:
    for operation, key in WANTED:
        for name, table in read_kernel_tables(folder / f"{operation}.parquet"):
            for group in kernel_groups(name, table):
                asked = LATENT.get(engine, engine) if operation.startswith("mla") else engine
                if (group.gpu, group.engine, group.key) == (gpu, asked, key):
                    yield from _donors(group)


def _donors(group: Group) -> Iterator[Case]:
    accelerator = load_accelerator(group.gpu).value
    found = {"home": f"{group.gpu}--{group.engine}", "generation": f"{ANOTHER[group.gpu]}--{group.engine}"}
    for name, reach in donors(accelerator, group.engine):
        crossed = "architecture" if reach == "sibling" else reach
        if name in calibration_names() and name not in found.values() and reach not in ("maker", "generic"):
            found.setdefault(crossed, name)
    for crossed, name in found.items():
        if name not in calibration_names():
            continue
        calibration, _ = stand_in(load_calibration(name), accelerator, group.engine)
        fit = calibration.families.get(group.key)
        if fit is not None and not fit.source.startswith(BORROWED):
            yield Case(group, fit, DonorReach.of(calibration, fit, group.family, distant=False), crossed)


def scored(case: Case) -> list[dict[str, object]]:
    """One line a draw and size."""
    rows, system = case.group.rows(), System.of(load_accelerator(case.group.gpu).value)
    count, lines = len(rows.time), []
    for size, draws in SIZES.items():
        rng = np.random.default_rng(size)
        for _ in range(draws if 1.5 * size <= count else 0):
            order = rng.permutation(count)
            some, unseen = np.zeros(count, bool), np.zeros(count, bool)
            some[order[:size]], unseen[order[size : size + SCORED]] = True, True
            test = rows.subset(unseen)
            found = carry(case.donor, rows.subset(some), system, "drawn", case.reach)
            donor, own = (float(np.mean(np.abs(np.log(test.time / predict(fit, test, system)))))
                          for fit in (case.donor, found.fit or case.donor))  # fmt: skip
            lines.append({"family": case.group.key, "donor": case.crossed, "rows": size, "off": donor,
                          "ratio": own / donor, "kept": found.fit is None})  # fmt: skip
    print(case.group.key, case.crossed, flush=True)
    return lines


def report(table: pd.DataFrame, gpu: str, engine: str) -> str:
    every = table.groupby(["donor", "rows"])["ratio"].median().unstack().assign(family="all")
    by = table.groupby(["donor", "family", "rows"])["ratio"].median().unstack().reset_index("family")
    off = table.groupby(["donor", "family"])["off"].median()
    kept = table.groupby(["donor", "rows"])["kept"].mean().unstack()
    draws = ", ".join(f"{number} draws of {size}" for size, number in SIZES.items())
    lines = [
        "# A calibration carried to a few rows", "",
        f"Rows are drawn from measured kernels of {gpu} with {engine} (latent attention: "
        f"{LATENT.get(engine, engine)}). "
        f"There are {draws}. A number is the error of the carried fit over that of its donor, on rows not drawn. It is "
        "the median over draws: 0.75 is a quarter less. `benchmarks/carry.py` makes this table.", "",
        f"| donor | family | donor's error | {' | '.join(f'{size} rows' for size in SIZES)} |",
        f"|---|---|---|{'---|' * len(SIZES)}",
    ]  # fmt: skip
    for donor in ("home", "engine", "architecture", "generation"):
        for frame in (every, by):
            for name, row in frame[frame.index == donor].iterrows():
                error = "" if row["family"] == "all" else f"{100 * off[name, row['family']]:.1f} %"
                cells = ["" if pd.isna(row.get(size)) else f"{row[size]:.2f}" for size in SIZES]
                lines.append(f"| {donor} | {row['family']} | {error} | {' | '.join(cells)} |")
    shares = "; ".join(
        f"{donor} {', '.join(f'{100 * share:.0f} %' for share in row)}" for donor, row in kept.iterrows()
    )
    return "\n".join([*lines, "", f"Draws that kept the donor, by size: {shares}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", default="h200-sxm")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.jobs) as pool:
        lines = pool.map(scored, cases(asked.folder, asked.gpu, asked.engine))
        table = pd.DataFrame([line for each in lines for line in each])
    text = report(table, asked.gpu, asked.engine)
    print(text)
    if asked.out:
        asked.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

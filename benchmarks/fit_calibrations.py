"""Fit every shipped calibration, and measure how well each predicts shapes that it has not seen.

    python benchmarks/fit_calibrations.py FOLDER_WITH_KERNEL_TABLES --out hardware_specs/calibrations --jobs 2

The folder holds kernel tables (gemm.parquet, attention_decode.parquet, ...) with the columns of docs/method.md. Errors
and intervals come from four folds of whole shape groups (seeded). Prints the error table, the coverage of the intervals
and what a transfer costs; --report FOLDER also keeps them as CSV, from which benchmarks/report_accuracy.py makes the
report. --black-box adds gradient boosting (scikit-learn) on the same folds, for scale.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one thread a process: the jobs are the parallelism

import numpy as np
import pandas as pd
from kernel_errors import coverage_lines, covered, errors, medians, sampled

from rooflinekit.evidence.kernel_fit.calibrate import Prior, calibrate_family, fit_form, predict
from rooflinekit.evidence.kernel_fit.groups import Group, kernel_groups, read_kernel_tables
from rooflinekit.evidence.kernel_fit.tables import OPERATIONS, Measured
from rooflinekit.model.timing.calibrated import BORROWED, FamilyFit, Regimes
from rooflinekit.model.timing.forms import PlainTime
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration.write import Heading, render

Fits = dict[tuple[str, str, str], FamilyFit]  # by GPU, engine and key
GPUS = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "l40s")
ENGINES = ("vllm", "sglang", "trtllm")
SOURCE = "kernel tables of github.com/ai-dynamo/aiconfigurator @ 095f58a5 (Apache-2.0, NVIDIA), CUDA-graph replays"
ASSUMED = ("elementwise", "embedding", "sampling", "linear_attention")
APPEND = "assumption: no launch of its own, since measured attention includes the write; shares of the bf16 GEMM"
DEFAULTS = {
    "gemm": "gemm/bf16", "attention_decode": "attention_decode/bf16/bf16",
    "attention_prefill": "attention_prefill/bf16/bf16", "mla_decode": "mla_decode/bf16/bf16",
    "mla_prefill": "mla_prefill/bf16/bf16", "moe": "moe/bf16", "collective": "collective/bf16/all_reduce",
}  # fmt: skip
NEAREST = {  # where a GPU without rows of a family borrows them: same architecture, then generation
    "h100-sxm": ("h200-sxm",), "h200-sxm": ("h100-sxm",), "b200-sxm": ("h200-sxm", "h100-sxm"),
    "a100-sxm-80gb": ("h100-sxm",), "l40s": ("h100-sxm",),
}  # fmt: skip
REACH = {"h100-sxm": "architecture", "h200-sxm": "architecture", "b200-sxm": "generation",
         "a100-sxm-80gb": "generation", "l40s": "generic"}  # fmt: skip
"""How far the first of those is."""


@dataclass(frozen=True)
class Work:
    """What one group of rows gives."""

    fit: FamilyFit
    errors: dict[str, object]
    coverage: list[dict[str, object]]
    sample: pd.DataFrame


def groups(folder: Path) -> list[Group]:
    """Every group of every table whose number format the accelerator has."""
    found = []
    for operation in OPERATIONS:
        for name, table in read_kernel_tables(folder / f"{operation}.parquet"):
            pooled = table.assign(dtype="bfloat16") if name == "comm" else table  # bytes are bytes
            found += [group for group in kernel_groups(name, pooled) if supported(group)]
    return found


def supported(group: Group) -> bool:
    return group.operation == "comm" or system_of(group).accelerator.supports(parse_dtype(group.named["dtype"]))


def system_of(group: Group) -> System:
    return System.of(load_accelerator(group.gpu).value)


def work(group: Group, boosted: bool) -> Work:
    rows, system = group.rows(), system_of(group)
    fitted = calibrate_family(rows, system, group.source)
    line = errors(group, rows, system, fitted, boosted)
    return Work(fitted.fit, line, coverage_lines(group, rows, fitted), sampled(group, rows, fitted))


Task = tuple[Group, FamilyFit, FamilyFit, dict[str, object]]


def transfers(found: list[Group], fits: Fits) -> Iterator[Task]:
    """Every group with the calibration of another GPU and of another engine, its own, and what is crossed."""
    for group in found:
        places = [(gpu, group.engine, REACH[group.gpu]) for gpu in NEAREST[group.gpu][:1]]
        places += [(group.gpu, engine, "engine") for engine in ENGINES if engine != group.engine]
        for gpu, engine, reach in places:
            fit = fits.get((gpu, engine, group.key))
            if fit is not None and not group.key.endswith("eager"):
                yield group, fit, fits[group.gpu, group.engine, group.key], {"reach": reach, "from": gpu}


def carried(task: Task) -> dict[str, object]:
    """A group predicted by another's calibration, without and with 20 rows of its own."""
    group, fit, own, crossed = task
    rows, system = group.rows(), system_of(group)
    zero = predict(fit, rows, system)
    ratio, width = np.abs(np.log(rows.time / zero)), np.log(rows.each(fit.regimes.factor))
    place = {"op": group.operation, "gpu": group.gpu, "engine": group.engine, "key": group.key}
    return {**crossed, **place, "own": own.error,
            "zero_shot": mean_error(zero, rows), "20_rows": mean_error(few_points(fit, rows, system), rows),
            "coverage": float(np.mean(ratio <= width)), "widening": float(np.quantile(ratio / width, 0.9))}  # fmt: skip


def mean_error(predicted: np.ndarray, rows: Measured) -> float:
    return float(np.mean(np.abs(predicted / rows.time - 1.0)))


def few_points(fit: FamilyFit, rows: Measured, system: System, count: int = 20) -> np.ndarray:
    """Fit again on rows spread evenly over the measured time, from the donor's form; its correction is kept."""
    order = np.argsort(rows.time)
    chosen = np.zeros(len(order), bool)
    chosen[order[np.linspace(0, len(order) - 1, count).astype(int)]] = True
    some = rows.subset(chosen)
    surface = fit.surface.ratio if fit.surface else (lambda kernel: 1.0)
    adjusted = replace(some, time=some.time / some.each(surface))
    form = fit_form(adjusted, system, Prior(fit.form)).form
    return predict(replace(fit, form=form), rows, system)


def widenings(moved: pd.DataFrame) -> dict[str, dict[str, float]]:
    """By reach and family: the median over groups of the power that would have held 90 % of the rows."""
    medians = moved.groupby(["reach", "op"])["widening"].median()
    found: dict[str, dict[str, float]] = {}
    for reach in ("engine", "architecture", "generation", "generic"):
        found[reach] = {OPERATIONS[op][0]: max(float(power), 1.0) for op, power in medians[reach].items()}
    return found


def donors(gpu: str, engine: str, key: str) -> Iterator[tuple[str, str, str]]:
    """Where a fit may come from, nearest first, and how far that is ("" for one's own)."""
    if key.startswith("collective") and "/all_reduce" not in key:  # NCCL's, whatever the engine
        yield gpu, "nccl", ""
        yield from ((near, "nccl", REACH[gpu]) for near in NEAREST[gpu])
        return
    yield gpu, engine, ""
    if key.endswith("/eager"):  # only where it was measured
        return
    yield from ((gpu, other, "engine") for other in ENGINES if other != engine)
    yield from ((near, other, REACH[gpu]) for near in NEAREST[gpu] for other in (engine, *ENGINES))


def calibration(gpu: str, engine: str, fits: Fits, widening: dict[str, dict[str, float]]) -> dict[str, FamilyFit]:
    """Own fits, then what the engine has no rows for: another engine's on this GPU, another GPU's, wider."""
    accelerator = load_accelerator(gpu).value
    chosen: dict[str, FamilyFit] = {}
    for key in sorted({key for _, _, key in fits}):
        family, dtype = key.split("/")[:2]
        if family != "collective" and not accelerator.supports(parse_dtype(dtype)):
            continue
        for place, donor, reach in donors(gpu, engine, key):
            if (fit := fits.get((place, donor, key))) is not None:
                powers = widening.get(reach, {})
                chosen[key] = widened(fit, powers.get(family, max(powers.values()))) if reach else fit
                break
    return chosen | assumptions(chosen["gemm/bf16"])


def assumptions(gemm: FamilyFit) -> dict[str, FamilyFit]:
    """Families without measurements: a plain roofline with the floor and shares of the bf16 GEMM."""
    plain = PlainTime(gemm.form.launch, gemm.form.compute, gemm.form.memory)
    text = "assumption: launch floor and shares of the bf16 GEMM, within a factor of 2"
    frozen = ("launch", "compute", "memory")
    assumed = FamilyFit(plain, {}, frozen, None, Regimes("", (), (2.0,)), 0, 0.0, text)
    inside = replace(assumed, form=replace(plain, launch=0.0), source=APPEND)
    return dict.fromkeys(ASSUMED, assumed) | {"kv_append": inside}


def widened(fit: FamilyFit, power: float) -> FamilyFit:
    widths = tuple(width**power for width in fit.regimes.width)
    return replace(fit, regimes=replace(fit.regimes, width=widths), source=f"{BORROWED}{fit.source}")


def write(folder: Path, date: str, found: list[Group], fits: Fits, widening: dict[str, dict[str, float]]) -> None:
    for gpu, engine in product(GPUS, ENGINES):
        own = [group for group in found if (group.gpu, group.engine) == (gpu, engine)]
        if any(group.operation == "gemm" for group in own):
            release = "/".join(sorted({version for group in own for version in group.table["engine_version"].unique()}))
            text = render(
                Heading(gpu, engine, release, SOURCE, date, DEFAULTS), calibration(gpu, engine, fits, widening)
            )
            (folder / f"{gpu}--{engine}.yaml").write_text(text, encoding="utf-8")
    path = folder / "transfer.yaml"
    kept = path.read_text(encoding="utf-8").split("widening:\n")[0]
    lines = [f"  {reach}: {{{', '.join(f'{family}: {power:.2f}' for family, power in powers.items())}}}"
             for reach, powers in widening.items()]  # fmt: skip
    path.write_text(kept + "\n".join(["widening:", *lines, ""]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path, help="folder for the CSV files of the report")
    parser.add_argument("--only", nargs="*", default=[], help="parts of op/gpu/engine/key")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--black-box", action="store_true")
    parser.add_argument("--date", default=f"{datetime.now(UTC):%Y-%m-%d}")
    args = parser.parse_args()
    found = [group for group in groups(args.folder) if all(part in name_of(group) for part in args.only)]
    with ProcessPoolExecutor(args.jobs) as pool:
        done = list(pool.map(partial(work, boosted=args.black_box), found, chunksize=2))
        fits = {(group.gpu, group.engine, group.key): each.fit for group, each in zip(found, done, strict=True)}
        moved = pd.DataFrame(list(pool.map(carried, transfers(found, fits), chunksize=4)))
    table = pd.DataFrame([each.errors for each in done])
    lines = pd.DataFrame([line for each in done for line in each.coverage])
    show(table, lines, moved)
    if args.report:
        args.report.mkdir(parents=True, exist_ok=True)
        for part, frame in {"": table, "-coverage": lines, "-transfer": moved}.items():
            frame.to_csv(args.report / f"accuracy-kernels{part}.csv", index=False, float_format="%.4f")
        sample = pd.concat([each.sample for each in done])
        sample.to_csv(
            args.report / "accuracy-kernels-sample.csv.gz", index=False, compression={"method": "gzip", "mtime": 1}
        )
    if args.out:
        write(args.out, args.date, found, fits, widenings(moved))


def name_of(group: Group) -> str:
    return f"{group.operation}/{group.gpu}/{group.engine}/{group.key}"


def show(table: pd.DataFrame, lines: pd.DataFrame, moved: pd.DataFrame) -> None:
    pd.set_option("display.width", 220, "display.max_rows", 500)
    print(table.round(3).to_string(index=False))
    print("\nMedian over groups\n", medians(table).round(4).to_string())
    print("\nCoverage of the 90 % intervals on unseen shape groups\n", covered(lines, ["op"]).round(3).to_string())
    print("\nThe same by regime\n", covered(lines, ["op", "regime"]).round(3).to_string())
    if not moved.empty:
        shown = ["own", "zero_shot", "20_rows", "coverage", "widening"]
        print("\nTransfer without and with 20 own rows, median over groups")
        print(moved.groupby(["op", "reach", "gpu", "from"])[shown].median().round(3).to_string())


if __name__ == "__main__":
    main()

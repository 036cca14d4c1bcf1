"""Fit shipped calibrations, and measure how well each predicts shapes that it has not seen.

    python benchmarks/fit_calibrations.py FOLDER... --gpus mi300x gb200 --out hardware_specs/calibrations --jobs 2

The folders hold kernel tables (gemm.parquet, attention_decode.parquet, ...) with the columns of docs/method.md. Errors
and intervals come from four folds of whole shape groups (seeded). Accelerators that --gpus does not name keep their
files, and lend their fits. Prints the error table, the coverage of the intervals and what a transfer costs; --report
FOLDER also puts them into its CSV files, from which benchmarks/report_accuracy.py makes the report. --black-box adds
gradient boosting (scikit-learn) on the same folds, for scale. --cache FOLDER keeps finished groups.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
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

from rooflinekit.evidence.kernel_fit.calibrate import Prior, calibrate_family, kernel_of, moved, predict
from rooflinekit.evidence.kernel_fit.groups import Group, kernel_groups, read_kernel_tables
from rooflinekit.evidence.kernel_fit.tables import OPERATIONS, Measured, number_formats
from rooflinekit.model.timing.calibrated import BORROWED, Calibration, FamilyFit
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration.choose import choose_calibration, donors, serving_engine, widening
from rooflinekit.specs.calibration.load import SERVED, calibration_names, load_calibration, whole_keys
from rooflinekit.specs.calibration.load import carried as as_it_serves
from rooflinekit.specs.calibration.write import Heading, Lent, defaults_lines, entry, render
from rooflinekit.specs.files import parse_yaml

Fits = dict[tuple[str, str, str], FamilyFit]  # by GPU, engine and key
ENGINES = ("vllm", "sglang", "trtllm")
SOURCES = {
    "aiconfigurator": "kernel tables of github.com/ai-dynamo/aiconfigurator @ 095f58a5 (Apache-2.0, NVIDIA)",
    "aiter": "tuned kernels of github.com/ROCm/aiter @ e4048607 (MIT, AMD), the best of its tuner for each shape",
    "llmservingsim": "profiles of github.com/casys-kaist/LLMServingSim @ 5daddb21 (MIT)",
    "infersim": "benchmarks of github.com/alibaba/InferSim @ f2293dab (Apache-2.0)",
    "frontier": "profiles of github.com/NetX-lab/Frontier @ a4b22df8 (MIT; A40: microsoft/vidur, MIT)",
}
"""By the column `source` of the tables, without the version of the profiler."""
DEFAULTS = {
    "gemm": "gemm/bf16", "attention_decode": "attention_decode/bf16/bf16",
    "attention_prefill": "attention_prefill/bf16/bf16", "mla_decode": "mla_decode/bf16/bf16",
    "mla_prefill": "mla_prefill/bf16/bf16", "moe": "moe/bf16", "collective": "collective/bf16/all_reduce",
}  # fmt: skip
FEW = 300
"""Rows below which the form of the nearest calibration is the prior of a fit."""
SHORTCUTS = ("dense", "skip_indexer")
"""Words of kernels that leave the indexer out, which serve no deployment."""
QWEN3_HIDDEN = 2048.0
LAYERS, LEAST = "sparse_attention", 40
"""Whole layers, and the rows of one kernel of theirs that have a fit of their own; fewer take that of the commonest."""
EAGER = "/eager"
NO_GAPS = "without the host's time, with the launch of {}: "


@dataclass(frozen=True)
class Work:
    """What one group of rows gives."""

    fit: FamilyFit
    errors: dict[str, object]
    coverage: list[dict[str, object]]
    sample: pd.DataFrame


def groups(folders: list[Path], gpus: list[str]) -> list[Group]:
    """Every group of every table whose number format the accelerator has; spellings of one format together."""
    found: dict[tuple[str, str, str], Group] = {}
    for folder, operation in product(folders, OPERATIONS):
        if not (folder / f"{operation}.parquet").exists():
            continue
        for name, table in read_kernel_tables(folder / f"{operation}.parquet"):
            alone = table[~with_norms(table)] if name == "gemm" and "layer" in table else table
            own = alone[alone["gpu"].isin(gpus)] if gpus else alone
            pooled = own.assign(dtype="bfloat16") if name == "comm" else own  # bytes are bytes
            for raw in kernel_groups(name, pooled):
                group = raw.on(load_accelerator(raw.gpu).value)
                place = (group.gpu, group.engine, group.key)
                if supported(group) and (group.family != LAYERS or len(group.table) >= LEAST):
                    found[place] = found[place].joined(group) if place in found else group
    return list(found.values())


def with_norms(table: pd.DataFrame) -> pd.Series[bool]:
    """Rows of Frontier's `attn_pre_proj` for Qwen3-30B-A3B (k = 2,048), which hold norms besides the product.

    Its table says `use_qk_norm` and has no column of its own for these norms. On an H800 768 columns take 9 µs at one
    row and 14 at two; 2,048 columns of the product after attention take 5.
    """
    return table["layer"].astype(str).str.startswith("attn_pre_proj") & (table["k"] == QWEN3_HIDDEN)


def supported(group: Group) -> bool:
    return group.operation == "comm" or system_of(group).accelerator.supports(number_formats(group.named["dtype"])[1])


def system_of(group: Group) -> System:
    return System.of(load_accelerator(group.gpu).value)


def work(group: Group, boosted: bool, cache: Path | None = None) -> Work:
    kept = cache / (name_of(group).replace("/", "@") + ".pickle") if cache else None
    if kept and kept.exists():
        found: Work = pickle.loads(kept.read_bytes())
        return found
    rows, system = group.rows(surroundings(group)), system_of(group)
    fitted = calibrate_family(rows, system, group.source, prior(group))
    line = errors(group, rows, system, fitted, boosted)
    done = Work(fitted.fit, line, coverage_lines(group, rows, fitted), sampled(group, rows, fitted))
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps(done))
    return done


def surroundings(group: Group) -> Calibration:
    """What says how long the other kernels of a layer take that was measured whole."""
    return choose_calibration(load_accelerator(group.gpu).value, serving_engine(group.engine))[0]


def prior(group: Group) -> Prior | None:
    """What to believe of few rows: the form that the nearest other accelerator has for such kernels."""
    if len(group.table) >= FEW:
        return None
    key = group.key.removesuffix(EAGER)
    for name, _ in elsewhere(group.gpu, serving_engine(group.engine)):
        families = load_calibration(name).families
        if (near := families.get(key) or families.get(group.family)) is not None and near.rows:
            return Prior(kernel_of(near, group.rows(surroundings(group))).form, distant=True)
    return None


def elsewhere(gpu: str, engine: str) -> Iterator[tuple[str, str]]:
    """Calibrations of other accelerators by growing distance, and what they reach across."""
    known = calibration_names()
    for name, reach in donors(load_accelerator(gpu).value, engine):
        if reach != "engine" and name in known:
            yield name, reach


Task = tuple[Group, FamilyFit, FamilyFit, dict[str, object]]


def transfers(found: list[Group], fits: Fits) -> Iterator[Task]:
    """Every group with the calibration of another GPU and of another engine, its own, and what is crossed."""
    for group in found:
        if group.key.endswith(EAGER) or group.engine == "nccl":
            continue
        engine, own = serving_engine(group.engine), fits[group.gpu, group.engine, group.key]
        for name, reach in elsewhere(group.gpu, engine):
            fit = load_calibration(name).families.get(group.key)
            if fit is not None and not fit.source.startswith(BORROWED):
                yield group, fit, own, {"reach": reach, "from": name.split("--")[0]}
                break
        for other in ENGINES:
            fit = fits.get((group.gpu, other, group.key))
            if other != group.engine and fit is not None:
                yield group, fit, own, {"reach": "engine", "from": group.gpu}


def carried(task: Task) -> dict[str, object]:
    """A group predicted by another's calibration, without and with 20 rows of its own."""
    group, fit, own, crossed = task
    rows, system, reach = group.rows(surroundings(group)), system_of(group), str(crossed["reach"])
    fit = as_it_serves(fit, str(crossed["from"]), system.accelerator, reach)
    zero = predict(fit, rows, system)
    ratio, width = np.abs(np.log(rows.time / zero)), np.log(rows.each(lambda kernel: fit.regimes.factors(kernel)[0]))
    wider = np.log(widening(reach).get(group.family, 1.0))
    place = {"op": group.operation, "gpu": group.gpu, "engine": group.engine, "key": group.key}
    return {**crossed, **place, "own": own.error,
            "zero_shot": mean_error(zero, rows), "20_rows": mean_error(few_points(fit, rows, system), rows),
            "coverage": float(np.mean(ratio <= width + wider))}  # fmt: skip


def mean_error(predicted: np.ndarray, rows: Measured) -> float:
    return float(np.mean(np.abs(predicted / rows.time - 1.0)))


def few_points(fit: FamilyFit, rows: Measured, system: System, count: int = 20) -> np.ndarray:
    """Fit again on rows spread evenly over the measured time, from the donor's form; its correction is kept."""
    order = np.argsort(rows.time)
    chosen = np.zeros(len(order), bool)
    chosen[order[np.linspace(0, len(order) - 1, count).astype(int)]] = True
    return predict(moved(fit, rows.subset(chosen), system, Prior.spread), rows, system)


def own_fits(gpu: str, engine: str, fits: Fits) -> dict[str, FamilyFit]:
    """What was fitted to rows of this accelerator and engine."""
    own = {key: fit for (place, runs, key), fit in fits.items() if place == gpu and serves(runs, engine)}
    for key in [key for key in own if key.endswith(EAGER) and key.removesuffix(EAGER) not in own]:
        plain = key.removesuffix(EAGER)
        own[plain] = graphed(own[key], plain, gpu, engine)
    return own


def serves(runs: str, engine: str) -> bool:
    """Whether an engine runs what a table names; collectives of NCCL are every engine's."""
    return runs == "nccl" or serving_engine(runs) == engine


def calibration(gpu: str, engine: str, fits: Fits) -> tuple[dict[str, FamilyFit], Lent]:
    """Own fits, and what the others are borrowed from."""
    accelerator, own = load_accelerator(gpu).value, own_fits(gpu, engine, fits)
    near = [*((f"{gpu}--{other}", "engine") for other in ENGINES if other != engine), *elsewhere(gpu, engine)]
    keys = {key for name, _ in near if name in calibration_names() for key in load_calibration(name).families}
    borrowed: dict[str, tuple[str, str]] = {}
    for key in sorted(keys):
        family, *rest = key.split("/")
        if key in own or key.endswith((EAGER, SERVED)) or not rest:
            continue
        if family != "collective" and not accelerator.supports(parse_dtype(rest[0])):
            continue
        if (donor := lender(key, near, fits)) is not None:
            borrowed[key] = donor
    return own, borrowed


def lender(key: str, near: list[tuple[str, str]], fits: Fits) -> tuple[str, str] | None:
    """The nearest calibration that has measured a key, and what it reaches across."""
    for name, reach in near:
        gpu, engine = name.split("--")
        if any(place == gpu and kind == key and serving_engine(runs) == engine for place, runs, kind in fits):
            return name, reach
        fit = load_calibration(name).families.get(key) if name in calibration_names() else None
        if fit is not None and not fit.source.startswith(BORROWED):
            return name, reach
    return None


def graphed(fit: FamilyFit, key: str, gpu: str, engine: str) -> FamilyFit:
    """A fit to times that the host took, as the kernel runs in a graph: with the launch of the nearest calibration."""
    for name, _ in elsewhere(gpu, engine):
        near = load_calibration(name).families.get(key)
        if near is not None and near.form.launch < fit.form.launch:
            return replace(fit, form=replace(fit.form, launch=near.form.launch), surface=None,
                           source=NO_GAPS.format(name) + fit.source)  # fmt: skip
    return fit


def write(folder: Path, date: str, found: list[Group], fits: Fits) -> None:
    """Files of what was fitted; one that exists keeps its other entries."""
    texts = {}
    for gpu, engine in product(sorted({group.gpu for group in found}), ENGINES):
        own = [group for group in found if group.gpu == gpu and serving_engine(group.engine) == engine]
        path = folder / f"{gpu}--{engine}.yaml"
        if own and path.exists():
            fitted = own_fits(gpu, engine, fits)
            texts[path] = served(added(path.read_text(encoding="utf-8"), fitted), fitted)
        elif any(group.operation == "gemm" for group in own):
            releases = sorted(
                {
                    f"{'' if group.engine == engine else group.engine + ' '}{version}"
                    for group in own
                    if group.engine != "nccl"
                    for version in group.table["engine_version"].unique()
                }
            )
            families, borrowed = calibration(gpu, engine, fits)
            heading = Heading(gpu, engine, ", ".join(releases), source_of(own), date, DEFAULTS)
            texts[path] = render(heading, families, borrowed)
    for path, text in texts.items():  # after all were made, since they lend each other fits
        path.write_text(text, encoding="utf-8")


def added(text: str, families: dict[str, FamilyFit]) -> str:
    """The text of a calibration file with these entries, in place of what it had for their keys."""
    for key, fit in families.items():
        block = "\n".join([*entry(key, fit), ""])
        held = re.search(rf"(?m)^  {re.escape(key)}:(?: {{.*}}\n|\n(?:    .*\n)+)", text)
        text = text.replace(held[0], block) if held else text + block
    return text


def served(text: str, families: dict[str, FamilyFit]) -> str:
    """The text with the kernel that serves each kind of layer: of those that an engine has, the one with most rows."""
    commonest: dict[str, str] = {}
    for key in sorted(families, key=lambda key: -families[key].rows):
        if key.startswith(LAYERS) and not any(word in key for word in SHORTCUTS):
            commonest.setdefault("/".join(key.split("/")[:2]) + "/" + layer_of(key), key)
    heading = re.search(r"(?m)^defaults:.*\n(?:  .*\n)*", text)
    if heading is None or not commonest:
        return text
    stated = whole_keys(parse_yaml(heading[0])["defaults"])
    known = {name: key for name, key in stated.items() if not name.startswith(LAYERS)} | {
        name: key for name, key in stated.items() if name.startswith(LAYERS) and f"\n  {key}:" in text
    } | dict(sorted(commonest.items()))  # fmt: skip
    return text.replace(heading[0], "\n".join([*defaults_lines(known), ""]))


def layer_of(key: str) -> str:
    """Kind, weights, phase and cache of a layer's key, without the kernel.

    >>> layer_of("sparse_attention/bf16/dsa_fp8_block_decode_bf16_FLASHMLA_SPARSE")
    'dsa_fp8_block_decode_bf16'
    """
    found = re.match(r"(.*_(?:decode|prefill)_(?:bf16|fp16|fp8))(?:_.*)?$", key.rpartition("/")[2])
    return found[1] if found else key.rpartition("/")[2]


def source_of(groups: list[Group]) -> str:
    named = {str(name).removesuffix("-v0") for group in groups
             for name in group.table.get("source", pd.Series(["aiconfigurator"])).dropna().unique()}  # fmt: skip
    named = {"aiter"} if any(group.engine == "aiter" for group in groups) else named
    return "; ".join(SOURCES[name] for name in sorted(named))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--gpus", nargs="*", default=[], help="fit these alone")
    parser.add_argument("--cache", type=Path, help="folder in which finished groups are kept")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path, help="folder for the CSV files of the report")
    parser.add_argument("--only", nargs="*", default=[], help="parts of op/gpu/engine/key")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--black-box", action="store_true")
    parser.add_argument("--date", default=f"{datetime.now(UTC):%Y-%m-%d}")
    args = parser.parse_args()
    found = [group for group in groups(args.folders, args.gpus) if all(part in name_of(group) for part in args.only)]
    with ProcessPoolExecutor(args.jobs) as pool:
        done = list(pool.map(partial(work, boosted=args.black_box, cache=args.cache), found, chunksize=2))
        fits = {(group.gpu, group.engine, group.key): each.fit for group, each in zip(found, done, strict=True)}
        moved = pd.DataFrame(list(pool.map(carried, transfers(found, fits), chunksize=4)))
    table = pd.DataFrame([each.errors for each in done])
    lines = pd.DataFrame([line for each in done for line in each.coverage])
    show(table, lines, moved)
    if args.report:
        args.report.mkdir(parents=True, exist_ok=True)
        for part, frame in {"": table, "-coverage": lines, "-transfer": moved}.items():
            merged(args.report / f"accuracy-kernels{part}.csv", frame).to_csv(
                args.report / f"accuracy-kernels{part}.csv", index=False, float_format="%.4f")  # fmt: skip
        path = args.report / "accuracy-kernels-sample.csv.gz"
        sample = merged(path, pd.concat([each.sample for each in done]))
        sample.to_csv(path, index=False, compression={"method": "gzip", "mtime": 1})
    if args.out:
        write(args.out, args.date, found, fits)


def merged(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """The lines of a file of accelerators that were not fitted now, and the new ones."""
    if not path.exists():
        return frame
    kept = pd.read_csv(path)
    fitted = set(zip(frame["op"], frame["gpu"], strict=True))
    others = [place not in fitted for place in zip(kept["op"], kept["gpu"], strict=True)]
    return pd.concat([kept[others], frame])


def name_of(group: Group) -> str:
    return f"{group.operation}/{group.gpu}/{group.engine}/{group.key}"


def show(table: pd.DataFrame, lines: pd.DataFrame, moved: pd.DataFrame) -> None:
    pd.set_option("display.width", 220, "display.max_rows", 500)
    print(table.round(3).to_string(index=False))
    print("\nMedian over groups\n", medians(table).round(4).to_string())
    print("\nCoverage of the 90 % intervals on unseen shape groups\n", covered(lines, ["op"]).round(3).to_string())
    print("\nThe same by regime\n", covered(lines, ["op", "regime"]).round(3).to_string())
    if not moved.empty:
        shown = ["own", "zero_shot", "20_rows", "coverage"]
        print("\nTransfer without and with 20 own rows, median over groups")
        print(moved.groupby(["op", "reach", "gpu", "from"])[shown].median().round(3).to_string())


if __name__ == "__main__":
    main()

"""Fit prefill of latent attention to whole layers, for engines whose bare kernel nobody measured (vLLM).

    python benchmarks/fit_latent.py FOLDER/families/mla_module_prefill.parquet --out hardware_specs/calibrations

A row is a layer: attention, its other kernels, and what the harness adds to a layer. The other kernels take the times
of the calibration. The rest is fitted together with the attention: a constant and a time a token, for each format of
the projections. The constants of H100, H200, B300, GB200 and L40S (15 to 70 us) are not those of a server, whose
compiler fuses these launches: on B200 the same layers run without them. The attention's own time is what is left, in
rows where that is at least three tenths. Prints the mean error of the layers by the old fit and by the new one.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from fit_calibrations import added
from scipy.optimize import least_squares

from rooflinekit.evidence.kernel_fit.calibrate import Prior, calibrate_family, form_time, predict
from rooflinekit.evidence.kernel_fit.groups import kernel_groups, layer_rows, read_kernel_tables
from rooflinekit.evidence.kernel_fit.tables import Measured, measured_rows
from rooflinekit.model.timing.calibrated import FamilyFit
from rooflinekit.model.timing.forms import TimeForm, parameters
from rooflinekit.model.types.errors import UnknownNameError
from rooflinekit.model.types.hardware import System
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration.load import load_calibration

OPERATION, BARE, BACKEND = "mla_module_prefill", "mla_prefill", "FLASH_ATTN"
LEAST = 0.3  # share of a layer that its attention takes at least, in rows that are fitted
WORST = 0.08  # log error beyond which a row counts linearly
HIDDEN = ("launch", "length")  # a layer's own constant and these cannot be told apart


def layers(path: Path) -> dict[tuple[str, str], pd.DataFrame]:
    """The layers of vLLM that attend to up-projected keys in 16 bit, with what their other kernels take [us]."""
    found: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for operation, table in read_kernel_tables(path):
        for group in kernel_groups(operation, table):
            if group.engine != "vllm" or not group.key.endswith(f"_{BACKEND}") or "/bf16/" not in group.key:
                continue
            rows = layer_rows(group.table, operation, System.of(load_accelerator(group.gpu).value),
                              load_calibration(f"{group.gpu}--vllm"))  # fmt: skip
            rest = 1e6 * np.broadcast_to(rows.kernels[0].shape.besides, rows.time.shape)
            cache = group.key.split("_prefill_")[1].split("_")[0]
            found.setdefault((group.gpu, f"{BARE}/bf16/{cache}"), []).append(group.table.assign(rest=rest))
    return {place: pd.concat(tables, ignore_index=True) for place, tables in found.items()}


def harness(table: pd.DataFrame, prior: TimeForm, system: System) -> np.ndarray:
    """What a layer of each row takes besides its kernels [us], fitted together with the attention."""
    rows, bounds = measured_rows(table, BARE), parameters(prior)
    names = [name for name, bound in bounds.items() if not bound.choices and name not in HIDDEN]
    formats, tokens = table["gemm_dtype"].astype(str), (table["batch"] * table["seq_len"]).to_numpy(float) / 1e3
    kinds = pd.get_dummies(formats).to_numpy(float)
    count = len(names), len(names) + kinds.shape[1]

    def besides(theta: np.ndarray) -> np.ndarray:
        return kinds @ theta[count[0] : count[1]] + kinds @ theta[count[1] :] * tokens

    def misfit(theta: np.ndarray) -> np.ndarray:
        values = {name: float(value) * bounds[name].scale for name, value in zip(names, theta, strict=False)}
        core = 1e6 * form_time(replace(prior, **values), rows, system)
        whole = np.maximum(core + table["rest"] + besides(theta), 1.0)
        return np.log(whole / table["latency_us"]).to_numpy()

    low = np.array([bounds[name].low for name in names] + [-50.0] * kinds.shape[1] + [0.0] * kinds.shape[1])
    high = np.array([bounds[name].high for name in names] + [300.0] * kinds.shape[1] + [60.0] * kinds.shape[1])
    start = [getattr(prior, name) / bounds[name].scale for name in names]
    start = np.array(start + [20.0] * kinds.shape[1] + [0.5] * kinds.shape[1])
    start = np.clip(start, low + 1e-3 * (high - low), high - 1e-3 * (high - low))
    scale = np.maximum(np.abs(start), 0.05)
    fit = least_squares(misfit, start, bounds=(low, high), loss="soft_l1", f_scale=WORST, x_scale=scale, max_nfev=60)
    return besides(fit.x)


def fitted(gpu: str, key: str, table: pd.DataFrame) -> FamilyFit:
    """The attention's own fit, with its errors and interval on shape groups left out; prints what it does."""
    system, home = System.of(load_accelerator(gpu).value), load_calibration(f"{gpu}--vllm")
    lender = f"{gpu}--trtllm"
    try:
        prior = load_calibration(lender).families[key].form
    except UnknownNameError:
        prior = home.families[key].form
    besides = harness(table, prior, system)
    own = table["latency_us"] - table["rest"] - besides
    kept = table.assign(latency_us=own)[own > LEAST * table["latency_us"]].reset_index(drop=True)
    releases = "/".join(sorted(table["engine_version"].astype(str).unique()))
    source = (
        f"{len(kept)} {OPERATION} rows of {gpu} with vllm {releases} ({BACKEND}), less projections and "
        f"{besides.min():.0f} us a layer and more of the harness"
    )
    fit = calibrate_family(measured_rows(kept, BARE), system, source, Prior(prior)).fit
    rows: Measured = measured_rows(table, BARE)
    errors = [
        float(np.mean(np.abs((1e6 * predict(each, rows, system) + table["rest"] + besides) / table["latency_us"] - 1)))
        for each in (home.families[key], fit)
    ]
    print(f"{gpu} {key}: {len(table)} layers, {len(kept)} fitted; layers {errors[0]:.3f} -> {errors[1]:.3f}, "
          f"attention left out {fit.error:.3f}")  # fmt: skip
    return fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--gpus", nargs="*", default=[])
    args = parser.parse_args()
    for (gpu, key), table in layers(args.table).items():
        if args.gpus and gpu not in args.gpus:
            continue
        fit = fitted(gpu, key, table)
        if args.out:
            path = args.out / f"{gpu}--vllm.yaml"
            path.write_text(added(path.read_text(encoding="utf-8"), {key: fit}), encoding="utf-8")


if __name__ == "__main__":
    main()

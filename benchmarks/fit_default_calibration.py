"""Fit the calibration that is used where none fits better: H100 SXM with vLLM, three parameters a kernel family.

    python benchmarks/fit_default_calibration.py FOLDER --out hardware_specs/calibrations/h100-sxm--vllm.yaml

The folder holds kernel tables (gemm.parquet, attention_decode.parquet, ...) with the columns that
`rooflinekit.calibration.tables` reads. Where vLLM has no measured kernel (block FP8 GEMM, MLA), the table's SGLang rows
stand in, and NVFP4 comes from B200; those intervals are widened by the transfer error, and each family says so.
Families without any table (norms, embedding, sampling, recurrent mixers) are named assumptions.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit import __version__
from rooflinekit.calibration.fit import fit_family, predict
from rooflinekit.calibration.tables import measured_rows
from rooflinekit.specs import load_accelerator
from rooflinekit.types.calibration import FamilyFit, Parameter
from rooflinekit.types.hardware import System

GPU = "h100-sxm"
HOME = f"{GPU} with vllm 0.24.0"
OTHERS = ("h200-sxm", "b200-sxm", "a100-sxm-80gb")
SOURCE = "kernel tables of github.com/ai-dynamo/aiconfigurator @ 095f58a5 (Apache-2.0, NVIDIA), CUDA-graph replays"
BF16 = {"dtype": "bfloat16"}
CASES = {  # family -> table, engine, rows [, accelerator]
    "gemm": ("gemm", "vllm", BF16),
    "gemm/fp8": ("gemm", "vllm", {"dtype": "fp8"}),
    "gemm/fp8_block": ("gemm", "sglang", {"dtype": "fp8_block"}),
    "attention_decode": ("attention_decode", "vllm", {"kv_dtype": "bfloat16"}),
    "attention_prefill": ("attention_prefill", "vllm", BF16 | {"kv_dtype": "bfloat16"}),
    "mla_decode": ("mla_decode", "sglang", {"kv_dtype": "bfloat16"}),
    "mla_prefill": ("mla_prefill", "sglang", {"kv_dtype": "bfloat16"}),
    "moe": ("moe", "vllm", BF16 | {"routing": "balanced"}),
    "moe/fp8": ("moe", "vllm", {"dtype": "fp8", "routing": "balanced"}),
    "moe/fp8_block": ("moe", "vllm", {"dtype": "fp8_block", "routing": "balanced"}),
    "gemm/nvfp4": ("gemm", "vllm", {"dtype": "nvfp4"}, "b200-sxm"),
    "moe/nvfp4": ("moe", "vllm", {"dtype": "nvfp4", "routing": "balanced"}, "b200-sxm"),
    "collective": ("comm", "vllm", {"collective": "custom_all_reduce", "mode": "graph"}),
}
ASSUMED = ("elementwise", "embedding", "sampling", "linear_attention")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tables = {name: pd.read_parquet(args.folder / f"{name}.parquet") for name in {case[0] for case in CASES.values()}}
    fits = {}
    for family, (name, engine, rows, *elsewhere) in CASES.items():
        gpu = elsewhere[0] if elsewhere else GPU
        table = select(tables[name], gpu, engine, rows)
        version = "/".join(sorted(table["engine_version"].unique()))
        origin = f"{len(table)} {name} rows of {gpu} with {engine} {version}"
        fits[family] = fit_family(measured_rows(table, name, System.of(load_accelerator(gpu).value)), origin)
    args.out.write_text(render(fits, transfer(tables, fits)), encoding="utf-8")


def select(table: pd.DataFrame, gpu: str, engine: str, rows: dict[str, str]) -> pd.DataFrame:
    table = table[(table["gpu"] == gpu) & (table["engine"] == engine)]
    for column, value in rows.items():
        table = table[table[column] == value]
    return table


def transfer(tables: dict[str, pd.DataFrame], fits: dict[str, FamilyFit]) -> tuple[float, float, int]:
    """How much further the 5 % and 95 % quantiles lie on other accelerators and engines: 10 % and 90 % over groups."""
    low, high = [], []
    for family, (name, _, rows, *elsewhere) in CASES.items():
        for gpu in () if elsewhere else OTHERS:
            for engine in ("vllm", "sglang", "trtllm"):
                table = select(tables[name], gpu, engine, rows)
                if table.empty:
                    continue
                measured = measured_rows(table, name, System.of(load_accelerator(gpu).value))
                ratio = measured.time / predict(fits[family], measured)
                low.append(np.quantile(ratio, 0.05) / fits[family].low)
                high.append(np.quantile(ratio, 0.95) / fits[family].high)
    return min(float(np.quantile(low, 0.1)), 1.0), max(float(np.quantile(high, 0.9)), 1.0), len(low)


def render(fits: dict[str, FamilyFit], widening: tuple[float, float, int]) -> str:
    low, high, groups = widening
    lines = [
        "# Time of a launch: launch + max(FLOP/(compute · peak), bytes/(memory · bandwidth), sent/(network · link)).",
        "# [value, spread]: one standard error; interval: 5 % and 95 % quantiles of measured / predicted, in shape",
        "# groups that the fit had not seen. Rebuild: benchmarks/fit_default_calibration.py.",
        f"name: {GPU}--vllm",
        f"accelerator: {GPU}",
        "engine: vllm 0.24.0",
        "form: roofline-3",
        f'source: "{SOURCE}"',
        f'date: "{datetime.now(UTC):%Y-%m-%d}"',
        f'version: "{__version__}"',
        "transfer:",
        f"  low: {low:.3f}",
        f"  high: {high:.3f}",
        f'  source: "how far the interval ends move on {", ".join(OTHERS)}: 10 % and 90 % over {groups} groups"',
        "families:",
    ]
    for family, fit in fits.items():
        stands_in = not fit.source.endswith(HOME)
        widened = replace(fit, low=fit.low * low, high=fit.high * high) if stands_in else fit
        lines += entry(
            family, widened, fit.source + ("; stands in, interval widened by the transfer" if stands_in else "")
        )
    assumed = replace(fits["gemm"], low=0.5, high=2.0, rows=0)
    note = "assumption: launch floor and shares of the bf16 GEMM; interval 0.5 to 2"
    for family in ASSUMED:
        lines += entry(family, assumed, note)
    inside = replace(assumed, launch=Parameter(0.0))
    lines += entry("kv_append", inside, "assumption: vLLM's attention rows include the write, so no launch of its own")
    return "\n".join(lines) + "\n"


def entry(family: str, fit: FamilyFit, source: str) -> list[str]:
    """One family; an assumption (no rows) has no spread."""
    pairs = {"launch_us": (fit.launch, 1e6), "compute": (fit.compute, 1.0), "memory": (fit.memory, 1.0)}
    pairs |= {"network": (fit.network, 1.0), "hop_us": (fit.hop, 1e6)}
    lines = [f"  {family}:"]
    for key, (parameter, scale) in pairs.items():
        spread = parameter.spread * scale if fit.rows else 0
        lines.append(f"    {key}: [{parameter.value * scale:.4g}, {spread:.2g}]")
    lines.append(f"    interval: [{fit.low:.3f}, {fit.high:.3f}]")
    return [*lines, f"    rows: {fit.rows}", f'    source: "{source}"']


if __name__ == "__main__":
    main()

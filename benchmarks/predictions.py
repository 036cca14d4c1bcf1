"""The table of predictions that may only change on purpose: `--write` makes it, `--check` compares.

    python benchmarks/predictions.py --check

Each deployment is predicted at both levels, expected and bound. A figure that moved by more than a billionth
of itself fails the check.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.estimation.frames import estimate_frame

TABLE = Path(__file__).resolve().parents[1] / "tests" / "predictions.csv"
TOLERANCE = 1e-9
FIGURES = (
    "ttft_ms", "ttft_high_ms", "tpot_ms", "tpot_high_ms", "output_tok_s_per_gpu", "weight_bytes", "kv_bytes",
    "activation_bytes", "total_bytes", "kv_pool_tokens", "max_batch", "max_context",
)  # fmt: skip
_DIGITS = "%.12g"
_SHOWN = 12

# model, gpu, what differs from batch 1 and the defaults
DEPLOYMENTS: list[tuple[str, str, str]] = [
    ("llama-3-8b", "h100-sxm", ""),
    ("llama-3-8b", "h100-sxm", "batch=32"),
    ("llama-3-8b", "h100-sxm", "batch=256 isl=512"),
    ("llama-3-8b", "h100-sxm", "batch=8 isl=7168 osl=512"),
    ("llama-3-8b", "h100-sxm", "batch=32 engine=trtllm"),
    ("llama-3-8b", "h100-sxm", "batch=32 engine=sglang"),
    ("llama-3-8b", "h100-sxm", "batch=32 cached=512 kv=fp8"),
    ("llama-3-8b", "h100-sxm", "engine=gpt-fast"),
    ("llama-3-8b", "h100-sxm", "batch=32 engine=vllm@0.6.3"),
    ("llama-3-8b", "h100-sxm", "batch=32 engine=trtllm@0.9.0"),
    ("llama-3-8b", "h100-sxm", "batch=32 engine=sglang@0.2.13"),
    ("llama-3-8b", "h100-sxm", "batch=32 weights=fp8 kv=fp8"),
    ("llama-3-8b", "h100-sxm", "weights=int4"),
    ("llama-3-8b", "h100-sxm", "batch=4 eager=true"),
    ("llama-3-8b", "h100-sxm", "batch=8 cached=768"),
    ("llama-3-8b", "h100-sxm", "batch=16 tp=2"),
    ("llama-3-8b", "h100-sxm", "batch=16 tp=4 sequence_parallel=true"),
    ("llama-3-8b", "h100-sxm", "batch=16 pp=2"),
    ("llama-3-8b", "h100-sxm", "batch=64 dp=2"),
    ("llama-3-8b", "h200-sxm", "batch=32"),
    ("llama-3-8b", "b200-sxm", "batch=32"),
    ("llama-3-8b", "a100-sxm-80gb", "batch=32"),
    ("llama-3-8b", "a100-sxm-40gb", "batch=16 tp=2"),
    ("llama-3-8b", "l40s", "batch=32"),
    ("llama-3-8b", "l4", "batch=1"),
    ("llama-3-8b", "a10g", "batch=4"),
    ("llama-3-8b", "mi300x", "batch=32"),
    ("llama-3-8b", "gh200-96gb", "batch=32 engine=trtllm"),
    ("llama-3-8b", "rtx-4090", "weights=int4"),
    ("llama-3-8b", "h100-pcie", "batch=32"),
    ("llama-3-8b", "h20", "batch=32"),
    ("llama-3.1-8b", "h100-sxm", "isl=65536 osl=1024"),
    ("llama-3.1-8b", "h100-sxm", "isl=65536 tp=2 cp=2"),
    ("llama-3.1-8b", "h100-sxm", "isl=32768 kv_policy=window:4096"),
    ("llama-3.1-8b", "h100-sxm", "isl=16384 kv_policy=topk:2048"),
    ("llama-3.2-1b", "h100-sxm", "batch=128"),
    ("llama-2-7b", "a100-sxm-80gb", "engine=gpt-fast"),
    ("llama-2-7b", "a100-sxm-80gb", "engine=gpt-fast weights=int8"),
    ("llama-2-7b", "a100-sxm-40gb", "batch=16 isl=256"),
    ("llama-2-13b", "a100-sxm-80gb", "batch=16"),
    ("llama-2-70b", "h100-sxm", "batch=32 tp=4"),
    ("llama-3-70b", "h100-sxm", "batch=32 isl=3968 tp=8"),
    ("llama-3-70b", "h100-sxm", "batch=1 tp=8"),
    ("llama-3-70b", "h100-sxm", "batch=32 tp=4 engine=trtllm"),
    ("llama-3-70b", "h100-sxm", "batch=32 tp=8 all_reduce=in_switch system=hgx-h100"),
    ("llama-3-70b", "h100-sxm", "batch=32 tp=4 pp=2"),
    ("llama-3-70b", "h100-sxm", "batch=32 tp=4 pp=2 microbatches=4"),
    ("llama-3-70b", "h100-sxm", "batch=16 tp=2 weights=fp8 kv=fp8"),
    ("llama-3-70b", "h200-sxm", "batch=32 weights=fp8"),
    ("llama-3-70b", "b200-sxm", "batch=32 weights=nvfp4"),
    ("llama-3-70b", "a100-sxm-80gb", "batch=32 tp=4"),
    ("llama-3-70b", "l40s", "batch=8 tp=8 weights=fp8"),
    ("llama-3-70b", "mi300x", "batch=32"),
    ("llama-3-70b", "h100-sxm", "tp=4 draft=llama-3-8b draft_tokens=4 acceptance=0.7"),
    ("llama-3.1-405b", "h200-sxm", "batch=16 tp=8 weights=fp8"),
    ("llama-3.1-405b", "h100-sxm", "batch=16 tp=8 pp=2 system=hgx-h100"),
    ("llama-3.1-405b", "b200-sxm", "batch=32 tp=8 weights=nvfp4"),
    ("mixtral-8x7b", "h100-sxm", "batch=32 isl=1920 tp=2"),
    ("mixtral-8x7b", "h100-sxm", "batch=1 tp=2"),
    ("mixtral-8x7b", "h100-sxm", "batch=64 tp=4 ep=4"),
    ("mixtral-8x7b", "a100-sxm-80gb", "batch=8 tp=2 engine=trtllm"),
    ("mixtral-8x22b", "h100-sxm", "batch=32 tp=8"),
    ("deepseek-v3", "h200-sxm", "batch=64 tp=8"),
    ("deepseek-v3", "h200-sxm", "batch=64 tp=8 ep=8"),
    ("deepseek-v3", "h200-sxm", "batch=256 dp=8 ep=8"),
    ("deepseek-v3", "h200-sxm", "batch=256 dp=8 ep=8 skew=0.8 redundant_experts=32"),
    ("deepseek-v3", "h200-sxm", "batch=32 tp=8 engine=sglang"),
    ("deepseek-v3", "h200-sxm", "tp=8 draft=mtp draft_tokens=1 acceptance=0.85"),
    ("deepseek-v3", "h200-sxm", "isl=65536 tp=8"),
    ("deepseek-v3", "b200-sxm", "batch=64 tp=8 engine=trtllm"),
    ("deepseek-v3", "gb200", "batch=1024 dp=32 ep=32 system=gb200-nvl72"),
    ("deepseek-v2-lite", "h100-sxm", "batch=32"),
    ("deepseek-v3.2", "h200-sxm", "batch=8 isl=32768 tp=8"),
    ("kimi-k2", "h200-sxm", "batch=32 tp=8 pp=2 system=hgx-h200"),
    ("gpt-oss-120b", "h100-sxm", "batch=32"),
    ("gpt-oss-120b", "h100-sxm", "batch=1"),
    ("gpt-oss-120b", "b200-sxm", "batch=64 engine=trtllm"),
    ("gpt-oss-120b", "h200-sxm", "batch=64 tp=2"),
    ("gpt-oss-20b", "h100-sxm", "batch=64"),
    ("gpt-oss-20b", "l40s", "batch=8"),
    ("qwen3-8b", "h100-sxm", "batch=64"),
    ("qwen3-32b", "h100-sxm", "batch=32 tp=2"),
    ("qwen3-30b-a3b", "h100-sxm", "batch=32"),
    ("qwen3-30b-a3b", "b200-sxm", "batch=128 engine=trtllm"),
    ("qwen3-235b-a22b", "h100-sxm", "batch=64 tp=8"),
    ("qwen3-next-80b-a3b", "h200-sxm", "batch=32 tp=2"),
    ("qwen2.5-72b", "h100-sxm", "batch=32 tp=4"),
    ("qwen2.5-0.5b", "l4", "batch=16"),
    ("mistral-7b", "h100-sxm", "batch=32 engine=trtllm"),
    ("gemma-3-27b", "h100-sxm", "batch=16 isl=8192"),
    ("gemma-2-9b", "a100-sxm-80gb", "batch=32"),
    ("phi-4", "h100-sxm", "batch=32"),
    ("command-r-plus", "h100-sxm", "batch=16 tp=4"),
    ("jamba-v0.1", "h100-sxm", "batch=16 tp=2"),
    ("nemotron-h-56b", "h100-sxm", "batch=16 tp=4"),
    ("minimax-m1", "h200-sxm", "batch=16 tp=8"),
    ("llama-4-scout", "h100-sxm", "batch=32 tp=8"),
    ("falcon-40b", "a100-sxm-80gb", "batch=16 tp=2"),
    ("gpt-j-6b", "h100-sxm", "batch=64 engine=trtllm weights=fp8 kv=fp8"),
    ("opt-13b", "a100-sxm-40gb", "batch=8"),
]


def predicted(deployments: list[tuple[str, str, str]]) -> pd.DataFrame:
    """Each deployment at both levels; a deployment that is refused says why instead of its figures."""
    rows = [
        {"model": model, "gpu": gpu, **{"options": options}, **dict(pair.split("=") for pair in options.split())}
        for model, gpu, options in deployments
    ]
    table = pd.concat([pd.DataFrame(rows).assign(calibration=None), pd.DataFrame(rows).assign(calibration="none")])
    found = estimate_frame(_typed(table.assign(allow_oom=True).reset_index(drop=True)))
    return found[["model", "gpu", "options", "level", *FIGURES, "error"]]


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    """Numbers and truths where a column holds them."""
    for name in table.columns.difference(["model", "gpu", "options", "calibration"]):
        cells = [None if pd.isna(cell) else _value(cell) for cell in table[name]]
        table[name] = pd.Series(cells, index=table.index, dtype=object)
    return table


def _value(cell: str) -> object:
    if cell == "true":
        return True
    try:
        number = float(cell)
    except ValueError:
        return cell
    return int(number) if number == int(number) else number


def moved(old: pd.DataFrame, new: pd.DataFrame) -> list[str]:
    """What changed by more than the tolerance, the largest first."""
    key = ["model", "gpu", "options", "level"]
    both = old.merge(new, on=key, how="outer", suffixes=("_old", "_new"), indicator=True)
    said: list[tuple[float, str]] = []
    for row in both.to_dict("records"):
        name = " ".join(str(row[part]) for part in key)
        if row["_merge"] != "both":
            said.append((np.inf, f"{name}: only in the {'table' if row['_merge'] == 'left_only' else 'code'}"))
            continue
        if row["error_old"] != row["error_new"]:
            said.append((np.inf, f"{name}: {row['error_old'] or 'answered'} -> {row['error_new'] or 'answered'}"))
        said += [(size, f"{name}: {figure} {text}") for figure in FIGURES if (size := _change(row, figure)) > TOLERANCE
                 for text in [f"{row[f'{figure}_old']:.6g} -> {row[f'{figure}_new']:.6g}"]]  # fmt: skip
    return [text for _, text in sorted(said, key=lambda one: -one[0])]


def _change(row: dict[str, float], figure: str) -> float:
    old, new = row[f"{figure}_old"], row[f"{figure}_new"]
    if pd.isna(old) or pd.isna(new):
        return 0.0 if pd.isna(old) and pd.isna(new) else np.inf
    return abs(new - old) / max(abs(old), abs(new)) if old != new else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--check", action="store_true", help="compare with the committed table")
    group.add_argument("--write", action="store_true", help="write the table anew")
    parser.add_argument("--table", type=Path, default=TABLE)
    arguments = parser.parse_args()
    new = predicted(DEPLOYMENTS)
    if arguments.write:
        new.to_csv(arguments.table, index=False, float_format=_DIGITS)
        return 0
    old = pd.read_csv(arguments.table, keep_default_na=False, na_values={name: [""] for name in FIGURES})
    changes = moved(old, new)
    if not changes:
        print(f"{len(new)} predictions, none moved by more than {TOLERANCE:g} of itself")
        return 0
    print("\n".join(changes[:_SHOWN]), file=sys.stderr)
    rest = f"and {len(changes) - _SHOWN} more; " if len(changes) > _SHOWN else ""
    print(f"{rest}{len(changes)} figures moved. If that is meant: python benchmarks/predictions.py --write, commit the "
          "table with the change, and name the shift in CHANGELOG.md.", file=sys.stderr)  # fmt: skip
    return 1


if __name__ == "__main__":
    sys.exit(main())

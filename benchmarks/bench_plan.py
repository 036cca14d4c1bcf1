"""How long a whole plan takes, its plays included: `python benchmarks/bench_plan.py`."""

from __future__ import annotations

import time
from typing import Any

import rooflinekit as rk

CASES: dict[str, tuple[str, list[str], str, dict[str, Any]]] = {
    "Llama-3.3-70B, 50 requests/s": (
        "llama-3.3-70b", ["h100-sxm", "h200-sxm", "b200-sxm"], "p95 ttft<1s, p95 tpot<40ms",
        {"rate": 50, "isl": 2000, "osl": 300},
    ),
    "DeepSeek-V3, 10 requests/s": (
        "deepseek-v3", ["h200-sxm", "b200-sxm"], "p95 ttft<2s, p95 tpot<60ms", {"rate": 10, "isl": 2000, "osl": 500},
    ),
    "Llama-3.1-70B, six accelerators": (
        "llama-3.1-70b", ["h100-sxm", "h200-sxm", "a100-sxm-80gb", "mi300x", "b200-sxm", "l40s"],
        "p95 ttft<2s, p95 tpot<50ms", {"rate": 20, "isl": 2000, "osl": 300},
    ),
    "DeepSeek-R1": ("deepseek-r1", ["h200-sxm"], "p95 ttft<2s, p95 tpot<50ms", {"rate": 20, "isl": 2000, "osl": 300}),
    "gpt-oss-120b": ("gpt-oss-120b", ["h100-sxm"], "p95 ttft<2s, p95 tpot<50ms", {"rate": 20, "isl": 2000, "osl": 300}),
    "Llama-3-8B, 500 users": (
        "llama-3-8b", ["h100-sxm", "l40s"], "p95 ttft<2s, p95 tpot<30ms", {"users": 500, "isl": 1000, "osl": 200},
    ),
}  # fmt: skip


def main() -> None:
    """Print wall and CPU seconds of each case."""
    for name, (model, gpus, slo, traffic) in CASES.items():
        wall, cpu = time.perf_counter(), time.process_time()
        answer = rk.plan(model, gpus, slo, **traffic)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        best = answer.best
        print(
            f"{name:<32} {wall:5.1f} s wall, {cpu:5.1f} s CPU; {answer.tried} settings, {len(answer.candidates)} "
            f"candidates; {best.name} on {best.gpu}, {best.gpus} GPUs"
        )


if __name__ == "__main__":
    main()

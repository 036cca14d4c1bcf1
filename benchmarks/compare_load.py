"""The closed form of closed loops against the simulator on the same step times: random loads, errors of the means.

    python benchmarks/compare_load.py [--loads 300] [--out errors.csv]

1 to 300 users, ten requests each, all at once at first. Prompts of 64 to 8,192 tokens, answers of 1 to 900, lengths
even within a tenth or within a half of the mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.model.traffic.closed_form import Traffic, closed_loop
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.simulation.arrivals import Arrival
from rooflinekit.simulation.simulate import Load, serve

DEPLOYMENTS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3-8b", "h100-sxm", {}),
    ("llama-3-8b", "h200-sxm", {"engine": "sglang", "weights": "fp8"}),
    ("llama-3.1-70b", "h200-sxm", {"engine": "trtllm", "weights": "fp8", "tp": 4}),
    ("llama-3.1-70b", "b200-sxm", {"weights": "fp8", "tp": 2}),
    ("qwen3-30b-a3b", "h100-sxm", {}),
    ("mixtral-8x7b", "h100-sxm", {"engine": "sglang", "tp": 2}),
    ("gpt-oss-120b", "h100-sxm", {"tp": 4}),
    ("deepseek-v3", "h200-sxm", {"engine": "sglang", "tp": 8}),
    ("qwen3-30b-a3b", "h100-sxm", {"dp": 2}),
    ("deepseek-v3", "b200-sxm", {"engine": "trtllm", "tp": 8, "dp": 8, "ep": 8}),
    ("llama-3-8b", "h100-sxm", {"engine": "ideal"}),
]
_TURNS = 10  # requests of a user


def compared(number: int, known: dict[int, Resolved]) -> dict[str, Any] | None:
    """One load, in closed form and simulated; None where it does not fit."""
    rng = np.random.default_rng(number)
    which = int(rng.integers(len(DEPLOYMENTS)))
    model, gpu, told = DEPLOYMENTS[which]
    resolved = known.setdefault(which, resolve(model, gpu, read_deployment(told), None))
    users, isl, osl = (np.exp(rng.uniform(np.log(low), np.log(high))) for low, high in ((1, 300), (64, 8192), (1, 900)))
    users, half = int(users), float(rng.choice([0.1, 0.5]))
    ins, outs = (np.maximum(np.round(mean * rng.uniform(1 - half, 1 + half, _TURNS * users)), 1) for mean in (isl, osl))
    spread = (float(lengths.std() / lengths.mean()) for lengths in (ins, outs))  # whole tokens: short ones vary more
    isl_cv, osl_cv = spread
    traffic = Traffic(float(ins.mean()), float(outs.mean()), isl_cv=isl_cv, osl_cv=osl_cv, requests=float(_TURNS))
    arrivals = (Arrival(0.0, int(i), int(o)) for i, o in zip(ins, outs, strict=True))
    try:
        formed = closed_loop(resolved.predictor, float(users), traffic)
        load = Load(arrivals, traffic.isl + traffic.osl, int(ins.max() + outs.max()), users)
        played = serve(resolved, load)
    except RooflinekitError:
        return None
    own = {"ttft": formed.ttft.expected, "tpot": formed.tpot.expected, "e2e": formed.e2e}
    row = {"model": model, "mixes": resolved.plan.costs.mixes,
           "dp": told.get("dp", 1), "users": users, "isl": isl, "osl": osl}  # fmt: skip
    for key, value in own.items():
        row[key] = 1e3 * float(value) / (getattr(played, f"{key}_ms").mean or np.nan) - 1.0
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=300)
    parser.add_argument("--out", type=Path, help="the errors of each load, as CSV")
    arguments = parser.parse_args()
    known: dict[int, Resolved] = {}
    rows = pd.DataFrame([row for number in range(arguments.loads) if (row := compared(number, known))])
    if arguments.out:
        rows.to_csv(arguments.out, index=False, float_format="%.5g")
    parts = {
        "prompts mixed with decoding": rows["mixes"] & (rows["dp"] == 1),
        "prompts in steps of their own": ~rows["mixes"],
        "attention replicas": rows["dp"] > 1,
    }
    for name, own in parts.items():
        errors = [rows[own][key].dropna().abs() for key in ("tpot", "ttft", "e2e")]
        said = ", ".join(
            f"{100 * each.median():.1f} % ({100 * (each < 0.05).mean():.0f} % within 5 %)" for each in errors
        )
        print(f"{name}: {own.sum()} loads, TPOT, TTFT, end to end {said}")


if __name__ == "__main__":
    main()

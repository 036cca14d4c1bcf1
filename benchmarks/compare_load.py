"""The closed form of closed loops against the simulator on the same step times: random loads, means and P95.

    python benchmarks/compare_load.py [--loads 300] [--out errors.csv]

1 to 300 users, ten requests each, all at once at first. Prompts of 64 to 8,192 tokens, answers of 1 to 900, lengths
even within a tenth or within a half of the mean. Loads with a request that is refused, too long for the model, are
left out.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.load.arrivals import Arrival
from rooflinekit.model.traffic.closed_form import Traffic, closed_loop
from rooflinekit.model.traffic.percentiles import spread
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.simulation.requests import Job
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
_LATE = 0.95


def compared(number: int, known: dict[int, Resolved]) -> dict[str, Any] | None:
    """One load, in closed form and simulated; None where it does not fit, or a request is refused."""
    rng = np.random.default_rng(number)
    which = int(rng.integers(len(DEPLOYMENTS)))
    model, gpu, told = DEPLOYMENTS[which]
    resolved = known.setdefault(which, resolve(model, gpu, read_deployment(told), None))
    users, isl, osl = (np.exp(rng.uniform(np.log(low), np.log(high))) for low, high in ((1, 300), (64, 8192), (1, 900)))
    users, half = int(users), float(rng.choice([0.1, 0.5]))
    ins, outs = (np.maximum(np.round(mean * rng.uniform(1 - half, 1 + half, _TURNS * users)), 1) for mean in (isl, osl))
    isl_cv, osl_cv = (float(lengths.std() / lengths.mean()) for lengths in (ins, outs))  # short ones vary more
    laws = [partial(_law, np.sort(lengths) / lengths.mean()) for lengths in (ins, outs)]
    traffic = Traffic(
        float(ins.mean()), float(outs.mean()), isl_cv=isl_cv, osl_cv=osl_cv, requests=float(_TURNS),
        isl_law=laws[0], osl_law=laws[1],
    )  # fmt: skip
    arrivals = (Arrival(0.0, int(i), int(o)) for i, o in zip(ins, outs, strict=True))
    felt: list[tuple[float, float, float]] = []

    def keep(job: Job, now: float, how: str) -> None:
        if how == "finished":
            tpot = (now - job.first) / (job.osl - 1) if job.osl > 1 else np.nan
            felt.append((job.first - job.arrived, tpot, now - job.arrived))

    try:
        formed = closed_loop(resolved.predictor, float(users), traffic)
        load = Load(arrivals, traffic.isl + traffic.osl, int(ins.max() + outs.max()), users, keep=keep)
        played = serve(resolved, load)
    except RooflinekitError:
        return None
    if len(felt) < len(ins):
        return None
    own = {"ttft": formed.ttft.expected, "tpot": formed.tpot.expected, "e2e": formed.e2e}
    late = spread(formed, traffic, closed=True)
    row = {"model": model, "mixes": resolved.plan.costs.mixes,
           "dp": told.get("dp", 1), "users": users, "isl": isl, "osl": osl}  # fmt: skip
    for place, (key, value) in enumerate(own.items()):
        row[key] = 1e3 * float(value) / (getattr(played, f"{key}_ms").mean or np.nan) - 1.0
        latest = [times[place] for times in felt]
        row[f"{key}_p95"] = float(getattr(late, key)(_LATE)) / float(np.nanquantile(latest, _LATE)) - 1.0
    return row


def _law(sorted_lengths: np.ndarray, share: float) -> float:
    """Quantile of lengths."""
    return float(np.quantile(sorted_lengths, share))


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
        for kind, within in (("", 0.05), ("_p95", 0.1)):
            errors = [rows[own][key + kind].dropna().abs() for key in ("tpot", "ttft", "e2e")]
            said = ", ".join(
                f"{100 * each.median():.1f} % ({100 * (each < within).mean():.0f} % within {100 * within:.0f} %)"
                for each in errors
            )
            print(f"{name}: {own.sum()} loads, {'P95 of ' if kind else ''}TPOT, TTFT, end to end {said}")


if __name__ == "__main__":
    main()

"""The closed form of load against the simulator on the same step times: random loads, errors of the means.

    python benchmarks/compare_load.py [--loads 400] [--out errors.csv]

Closed loops of 1 to 300 users, ten requests each, all at once at first; open loops of Poisson arrivals at a share of
the knee, twenty for each place that is taken on average, of which the first five are not counted. Prompts of 64 to
8,192 tokens, answers of 1 to 900, lengths even within a tenth or within a half of the mean.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.model.traffic.closed_form import OpenLoop, Traffic, closed_loop, open_loop
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
_TURNS, _TAKEN, _WARM, _MOST = 10, 20, 5, 2000  # requests a user, arrivals a place, not counted, arrivals at most


def compared(number: int, known: dict[int, Resolved]) -> dict[str, Any] | None:
    """One load, in closed form and simulated; None where it does not fit, or takes too long to simulate."""
    rng = np.random.default_rng(number)
    which = int(rng.integers(len(DEPLOYMENTS)))
    model, gpu, told = DEPLOYMENTS[which]
    resolved = known.setdefault(which, resolve(model, gpu, read_deployment(told), None))
    users, isl, osl = (np.exp(rng.uniform(np.log(low), np.log(high))) for low, high in ((1, 300), (64, 8192), (1, 900)))
    users, half, closed, share = int(users), float(rng.choice([0.1, 0.5])), rng.random() < 0.6, rng.uniform(0.1, 1.0)
    cv = half / 3.0**0.5
    traffic = Traffic(isl, osl, isl_cv=cv, osl_cv=cv, requests=float(_TURNS))
    try:
        count, warm, rate = _TURNS * users, 0, 0.0
        if not closed:
            level = OpenLoop.of(resolved.predictor, traffic, None)
            rate = share * float(level.knee)
            taken = int(level.at(rate).running) + 20
            count, warm = _TAKEN * taken, _WARM * taken
            if count > _MOST:
                return None
        ins, outs = (np.maximum(np.round(mean * rng.uniform(1 - half, 1 + half, count)), 1) for mean in (isl, osl))
        traffic = replace(traffic, isl=float(ins.mean()), osl=float(outs.mean()))
        at = np.zeros(count) if closed else np.cumsum(rng.exponential(1.0 / rate, count))
        formed = (
            closed_loop(resolved.predictor, float(users), traffic)
            if closed
            else open_loop(resolved.predictor, rate, traffic)
        )
        arrivals = (Arrival(float(t), int(i), int(o)) for t, i, o in zip(at, ins, outs, strict=True))
        load = Load(arrivals, traffic.isl + traffic.osl, int(ins.max() + outs.max()), users if closed else None, warm)
        played = serve(resolved, load)
    except RooflinekitError:
        return None
    own = {"ttft": formed.ttft.expected, "tpot": formed.tpot.expected, "e2e": formed.e2e}
    row = {"model": model, "closed": closed, "share": share, "mixes": resolved.plan.costs.mixes,
           "dp": told.get("dp", 1), "users": users, "isl": isl, "osl": osl}  # fmt: skip
    for key, value in own.items():
        row[key] = 1e3 * float(value) / (getattr(played, f"{key}_ms").mean or np.nan) - 1.0
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=400)
    parser.add_argument("--out", type=Path, help="the errors of each load, as CSV")
    arguments = parser.parse_args()
    known: dict[int, Resolved] = {}
    rows = pd.DataFrame([row for number in range(arguments.loads) if (row := compared(number, known))])
    if arguments.out:
        rows.to_csv(arguments.out, index=False, float_format="%.5g")
    light = ~rows["closed"] & (rows["share"] < 0.85)
    one = rows["dp"] == 1
    parts = {
        "closed loops, mixed": rows["closed"] & rows["mixes"] & one,
        "closed loops, own steps": rows["closed"] & ~rows["mixes"],
        "closed loops, attention replicas": rows["closed"] & ~one,
        "open loops below 85 % of the knee": light,
        "open loops at 85 to 100 %": ~rows["closed"] & ~light,
    }
    for name, own in parts.items():
        errors = [rows[own][key].dropna().abs() for key in ("tpot", "ttft", "e2e")]
        said = ", ".join(
            f"{100 * each.median():.1f} % ({100 * (each < 0.05).mean():.0f} % within 5 %)" for each in errors
        )
        print(f"{name}: {own.sum()} loads, TPOT, TTFT, end to end {said}")


if __name__ == "__main__":
    main()

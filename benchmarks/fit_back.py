"""What `calibrate` on a few runs of a deployment does to its other runs, on published closed loops.

    python benchmarks/fit_back.py TABLE... [--runs 6]

TABLE is a serving table (docs/accuracy.md). Each deployment (source, model, accelerator, engine, tensor parallel
degree, weights) with at least twice as many operating points as `--runs` is fitted on that many of them, drawn at
random, and scored on the rest: mean |predicted / measured − 1| before and after. The tables do not say how many
requests a client sent; ten a user are assumed for both.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.evidence.benchmark_runs import Given
from rooflinekit.evidence.compare import compare
from rooflinekit.evidence.engine_fit import fit_engine
from rooflinekit.evidence.measured import RunFacts
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.specs.engines import engine_version_of

_DEPLOYMENT = ["source_key", "model", "gpu", "engine", "tp", "weight_dtype"]
_POINT = ["isl", "osl", "concurrency"]


def deployments(path: Path) -> Iterator[tuple[str, Given, pd.DataFrame]]:
    """Closed loops of one replica without further splits, a table of TTFT and TPOT by operating point."""
    table = pd.read_csv(path).fillna({"weight_dtype": "", "engine_version": ""})
    plain = np.all([table[name].astype(str).isin(["1", "1.0", "nan"]) for name in ("pp", "ep", "dp")], axis=0)
    closed = table[plain & (table["load"] == "concurrency") & table["metric"].isin(["ttft_ms", "tpot_ms"])]
    for key, rows in closed.groupby(_DEPLOYMENT):
        _, model, gpu, engine, tp, weights = key
        version = engine_version_of(engine, str(rows["engine_version"].iloc[0]) or str(rows["source"].iloc[0]))
        facts = RunFacts(model=model, gpu=gpu, engine=f"{engine}@{version}" if version else engine, tp=int(tp))
        points = rows.pivot_table(index=_POINT, columns="metric", values="value", aggfunc="first")
        if "tpot_ms" in points:
            yield " ".join(map(str, key)), Given(facts, {"weights": weights or None}), points.dropna(subset="tpot_ms")


def write(folder: Path, points: pd.DataFrame) -> list[Path]:
    """Each operating point as a file of `vllm bench serve`."""
    files = []
    for (isl, osl, users), row in points.iterrows():
        done = 10 * int(users)
        means = {f"mean_{name}": row[name] for name in row.dropna().index}
        data = {"model_id": "", "max_concurrency": int(users), "completed": done, **means}
        data |= {"total_input_tokens": int(isl) * done, "total_output_tokens": int(osl) * done}
        files.append(folder / f"{isl:.0f}-{osl:.0f}-{users:.0f}.json")
        files[-1].write_text(json.dumps(data), encoding="utf-8")
    return files


def errors(files: list[Path], given: Given) -> dict[str, float]:
    """Mean absolute error by metric."""
    metrics = [metric for run in compare(files, given).runs for metric in run.metrics]
    return {name: float(np.mean([abs(m.error) for m in metrics if m.metric == name]))
            for name in ("tpot_ms", "ttft_ms") if any(m.metric == name for m in metrics)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=6, help="operating points that a fit sees")
    arguments = parser.parse_args()
    found = []
    for name, given, points in (each for path in arguments.tables for each in deployments(path)):
        if len(points) < 2 * arguments.runs:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            files = write(Path(temporary), points)
            random.Random(0).shuffle(files)
            own, mine = Path(temporary) / "mine.yaml", files[: arguments.runs]
            try:
                own.write_text(fit_engine(mine, given, "").text, encoding="utf-8")
                pair = [errors(files[arguments.runs :], each) for each in (given, replace(given, calibration=str(own)))]
            except RooflinekitError as error:
                print(f"{name}: {error}", flush=True)
                continue
        found.append(pair)
        scores = ", ".join(f"{key} {pair[0][key]:.1%} -> {pair[1][key]:.1%}" for key in pair[0])
        print(f"{name}: {len(points) - arguments.runs} unseen, {scores}", flush=True)
    for key in ("tpot_ms", "ttft_ms"):
        before, after = (np.array([pair[side][key] for pair in found if key in pair[0]]) for side in (0, 1))
        print(f"{key}: median over {len(before)} deployments {np.median(before):.1%} -> {np.median(after):.1%}; "
              f"better in {(after < before).sum()}")  # fmt: skip


if __name__ == "__main__":
    main()

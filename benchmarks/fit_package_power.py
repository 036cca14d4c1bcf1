r"""Fit what the CPU cores of a package draw beside its GPU to the power of whole runs, each model left out in turn.

    python benchmarks/fit_package_power.py RUNS ryzen-ai-max-395

RUNS is a table of runs as `rooflinekit accuracy energy` reads, with `power_kind` apu_package_median: the meter of such
a chip shows GPU, CPU cores and memory controller together. Prompts and decode steps of each model count alike, however
many rows they have: the number is the median of their medians. Before a fit, `host` in `power.yaml` is set to 0.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.evidence.accuracy_energy import METRICS, predict_run


def compared(path: Path, chip: str) -> pd.DataFrame:
    """Measured and predicted power of the runs of a chip [W]."""
    runs = pd.read_csv(path, dtype=str).fillna("")
    runs = runs[(runs["gpu"] == chip) & (runs["power_kind"] == "apu_package_median")]
    predicted = [predict_run(run)[0][METRICS[0]][0] for run in runs.to_dict("records")]
    phase = np.where(pd.to_numeric(runs["osl_mean"]) < 1.0, "prompts", "decode steps")
    return pd.DataFrame(
        {"model": runs["model"], "phase": phase, "watts": runs[METRICS[0]].astype(float), "predicted": predicted}
    )


def host(rows: pd.DataFrame) -> tuple[float, float]:
    """Watts that the runs draw above their prediction, and their deviation between models."""
    above = (rows["watts"] - rows["predicted"]).groupby([rows["model"], rows["phase"]]).median()
    models = above.groupby("model").mean()
    return float(above.median()), float(models.std() / np.sqrt(len(models)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("chip")
    arguments = parser.parse_args()
    rows = compared(arguments.runs, arguments.chip)
    print("host: [{:.1f}, {:.1f}]".format(*host(rows)))
    for model, own in rows.groupby("model"):
        watts, _ = host(rows[rows["model"] != model])
        before, after = own["predicted"] / own["watts"] - 1.0, (own["predicted"] + watts) / own["watts"] - 1.0
        print(
            f"{model}: {len(own)} runs, median error {before.abs().median():.1%}, "
            f"with the other models' {watts:.1f} W {after.abs().median():.1%} (bias {after.mean():+.1%})"
        )


if __name__ == "__main__":
    main()

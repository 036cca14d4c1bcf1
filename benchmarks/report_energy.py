"""The report on power and energy: kernels that the fit had not seen, and measured runs with and without their times.

    python benchmarks/report_energy.py RUNS.csv reports/data/accuracy-power.csv [--out reports/accuracy-energy.md]

RUNS has the columns that `rooflinekit accuracy energy` reads; the other file is what benchmarks/fit_power.py wrote.
Runs are predicted twice: their measured throughput sets the share of waiting, and the predicted times do.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from report_page import markdown, percent, table

from rooflinekit.evidence.accuracy import Accuracy
from rooflinekit.evidence.accuracy_energy import energy_accuracy

TIMES = ("itl_steady_ms", "output_tok_s_total", "prefill_tok_s")
HEAD = """# Power and energy against measurements

The law of [method, section 11](../docs/method.md#11-power-and-energy) against board power of kernels and of whole
runs. Written by `benchmarks/report_energy.py`.

## Kernels

Board power of kernels of vLLM 0.22 on H200, B200 and GB200 (aiconfigurator @ 095f58a5), of shape groups that the fit
had not seen, each in its measured time; three readings of the meter or more. `settled`: kernels of more than 200 us,
which ran for a second.

"""
BETWEEN = """
Targets were 8 % of power and 10 % of joules over all rows; with the measured time given, both errors are the same.
B200 meets both, H200 that of joules alone, GB200 neither. `mla_module`: whole layers of latent attention with their
products. Each prediction is what the benchmark's meter would have shown: the mean of readings every 0.1 s, each of the
second before it; they begin with the board as a pause left it, in which weights, keys and pages of tokens were made.
How many there are says how long the replays took, and how many launches one has. What is left is the kernel before:
the tables do not say which it was, so that products of one length read 550 W or 690 W of an H200, and long prompts,
whose inputs take long to make, 320 W or 620 W. At equal use GB200 reads less of its limit than B200, which has the same
chip.

## Runs

Means over whole runs. Those of the Ryzen AI Max were in a fit of one number (below), the others in none. All were
known when the priors of running power and of tiles were chosen. Chips other than H200, B200 and GB200 have no table:
their law is scaled. `given`: the measured throughput sets the share of waiting. `predicted`: nothing of a run is given
but its setting; a year for a version is its last release.

"""
TAIL = """
Targets were 15 % with times given and 20 % without: every group meets both. A batch of one is
predicted 3 to 18 % too high; large batches of the servers of 2024 up to 25 % too low: those servers ran other attention
kernels. H100 with TensorRT-LLM stays at 450 W, a cap that its source does not state. A Ryzen AI Max is no board: its
package feeds the CPU cores too. What they draw, 18.0 W, is fitted to these runs; with each model left out of that fit
the medians are 2.5 to 13.1 % (9 to 25 % without the cores). The worst, gpt-oss-20b, is predicted 22 % too high in the
mean: it draws 63 or 76 W through Vulkan and 88 W through HIP at the same speed, which the law does not tell apart.

"""


def scored(runs: pd.DataFrame) -> Accuracy:
    """Score runs as the command does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.csv"
        runs.to_csv(path, index=False)
        return energy_accuracy([path])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("kernels", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    kernels, runs = pd.read_csv(arguments.kernels), pd.read_csv(arguments.runs)
    shown = [[row.gpu, row.op, str(row.n), *map(percent, (row.median, row.p90, row.bias, row.coverage)),
              "-" if np.isnan(row.median_settled) else percent(row.median_settled)]
             for row in kernels.itertuples()]  # fmt: skip
    head = ["GPU", "operation", "n", "median", "p90", "bias", "in 90 %", "settled: median"]
    text = HEAD + markdown([table(head, shown)]) + BETWEEN
    ways = {"given": scored(runs), "predicted": scored(runs.assign(**{name: "" for name in TIMES if name in runs}))}
    rows = []
    for way, found in ways.items():
        groups = [group for group in found.groups if group.answered and group.key["metric"] == "power_w_per_gpu"]
        for group in groups:
            figures = map(percent, (group.median_ape, group.p90_ape, group.bias, group.coverage90))
            rows.append(
                [way, group.key["source_key"], group.key["model"], group.key["gpu"], str(group.answered), *figures]
            )
    text += markdown([table(["times", "source", "model", "GPU", "n", "median", "p90", "bias", "in 90 %"], rows)]) + TAIL
    reasons = [[reason, str(count)] for reason, count in ways["given"].unanswered.items()]
    text += markdown([table(["without an answer", "rows"], reasons)])
    if arguments.out:
        arguments.out.write_text(text.rstrip() + "\n", encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()

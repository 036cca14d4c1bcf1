"""The report on power and energy: kernels that the fit had not seen, and measured runs with and without their times.

    python benchmarks/report_energy.py RUNS.csv reports/data/accuracy-power.csv [--out reports/accuracy-energy.md]

RUNS has the columns that `rooflinekit accuracy energy` reads; the other file is what benchmarks/fit_power.py wrote.
Runs are predicted twice: their measured throughput sets the share of waiting, and the predicted times do.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from report_page import markdown, percent, table

from rooflinekit.evidence.accuracy import Accuracy
from rooflinekit.evidence.accuracy_energy import METRICS, energy_accuracy, predict_run
from rooflinekit.model.types.errors import RooflinekitError

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
whose inputs take long to make, 320 W or 620 W.

How much of it is noise: products of m and of m + 1 rows that take the same time within 10 % are one kernel. Their
readings differ by 2 % on H200, 13 % on B200 and 19 % on GB200 in the median; below 60 us by 28 to 32 % on each chip,
above 200 us by 0.3, 1 and 13 %. A black box (gradient boosting) with every column of the tables has 5.2, 4.3 and 6.8 %
on the same unseen groups: shapes say in part which rows were measured cold. A pause for each number of rows or tokens
gains 0.1 points on H200 and loses on B200 and GB200. At equal use GB200 reads less of its limit than B200, which
has the same chip.

Share of peak from watts: large products (m, n, k from 4,096) run at 0.97 to 0.99 of the limit. A clock whose cube the
law scales with fits that limit at 0.75 of peak in bf16 on H200 (measured 0.71 in the median, 0.77 in the best tenth),
0.71 on B200 (0.63, 0.68) and 0.84 on GB200 (0.63, 0.75). In FP4 it says 0.72 and 0.77 where 0.42 and 0.40 stand:
the tables have no clocks, and kernels at the limit do not tell joules a FLOP from a slower pipeline. So a calibrated
chip keeps its measured share; a stand-in takes its share from the cube root of watts for a FLOP.

H100, whose law is that of H200: 24 kernels in passes of 1.2 s without a pause are 10 % off in the median, with a bias
of -8 %, and 71 % lie in their 90 % intervals ([rows](sustained.md#power-of-these-kernels)). Products are at the limit
and right; attention of prompts reads 680 to 750 W where 500 to 600 are predicted, and kernels that stream memory 480 to
660 W where 350 to 580 are. Prompts of a vLLM read 676 and 687 W where 662 and 668 are predicted.

## Runs

Means over whole runs. Those of the Ryzen AI Max were in a fit of one number (below), the others in none. All were
known when the priors of running power and of tiles were chosen. Chips other than H200, B200 and GB200 have no table:
their law is scaled. `given`: the measured throughput sets the share of waiting. `predicted`: nothing of a run is given
but its setting; a year for a version is its last release. The interval of runs has one width for every chip: the widest
conformal 90 % factor of a source.

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


def spreads(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """|log(predicted / measured)| of the power of each source's runs that have an answer."""
    found: dict[str, list[float]] = {}
    for run in runs.astype(str).replace("nan", "").to_dict("records"):
        try:
            predicted = predict_run(run)[0][METRICS[0]][0]
        except RooflinekitError:
            continue
        found.setdefault(run["source_key"], []).append(abs(np.log(predicted / float(run[METRICS[0]]))))
    return {source: np.array(errors) for source, errors in found.items()}


def widths(runs: pd.DataFrame) -> Iterator[str]:
    """The conformal factor of each source, and the share of each inside the factor that the others give."""
    errors = spreads(runs)
    factor = {source: np.exp(np.quantile(each, min(0.9 * (len(each) + 1) / len(each), 1.0)))
              for source, each in errors.items()}  # fmt: skip
    yield f"The widest is {max(factor.values()):.2f}."
    for source, each in errors.items():
        rest = max(other for name, other in factor.items() if name != source)
        inside = np.mean(each <= np.log(rest))
        yield f"{source}: {factor[source]:.2f} of its own; {rest:.2f} of the others holds {inside:.0%} of its runs."


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
    for way, table_of in (("given", runs), ("predicted", runs.drop(columns=[n for n in TIMES if n in runs]))):
        text += f"Interval of runs, times {way}. {' '.join(widths(table_of))}\n\n"
    reasons = [[reason, str(count)] for reason, count in ways["given"].unanswered.items()]
    text += markdown([table(["without an answer", "rows"], reasons)])
    if arguments.out:
        arguments.out.write_text(text.rstrip() + "\n", encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()

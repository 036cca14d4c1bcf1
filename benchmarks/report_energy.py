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
from report_page import hand_over, markdown, percent, table

from rooflinekit.evidence.accuracy import Accuracy
from rooflinekit.evidence.accuracy_energy import METRICS, energy_accuracy, predict_run
from rooflinekit.model.types.errors import RooflinekitError

TIMES = ("itl_steady_ms", "output_tok_s_total", "prefill_tok_s")
HEAD = """# Power and energy against measurements

The law of [method, section 11](../docs/method.md#11-power-and-energy) against board power of kernels and of whole
runs. Written by `benchmarks/report_energy.py`.

## Kernels

Board power of kernels of vLLM 0.22 on H200, B200 and GB200 (aiconfigurator @ 095f58a5). The fit had not seen their
shape groups. Each kernel runs in its measured time, with three readings of the meter or more. `settled`: kernels
of more than 200 us, which ran for a second.

"""
BETWEEN = """
Targets were 8 % of power and 10 % of joules over all rows. With the measured time given, both errors are the same.
B200 meets both, H200 and GB200 that of joules alone. `mla_module`: whole layers of latent attention with
their products. Each prediction is what the benchmark's meter would have shown. A reading comes every 0.1 s and
holds the second before it. The first ones hold the pause in which weights, keys and pages of tokens were made. The
number of readings of a row counts. Over all rows it says how long the replays took, and how many launches one has.
The tables do not say which kernel ran before, and that explains most of what is left. Products of one length read 550 W
or 690 W of an H200. Long prompts read 320 W or 620 W.

**Data.** Prompts read less here than on our boards: 300 to 690 W of an H200, where ours drew 680 to 760 W. The
benchmark's source makes their pages without values, and vLLM's call of attention has written none since 0.16. So their
keys are what the memory held. Fewer bits that change take less power: up to 40 % of a GPU's in products (Gregersen et
al., 2024, arXiv:2409.18324). Times agree. Prompts
with 16-bit keys that read less than 75 % of the limit are 10 to 14 % faster on H200 than their like at 94 %, and 17 to
29 % on GB200. (Same length, size of heads, and with or without the same batch and key heads.) So they were not
slowed. B200 shows 3 to 10 %, and H200 with FP8 keys nothing. So a FLOP of attention costs what one of a 16-bit
product does. Its prior is the slowdown of an H100 ([1.5 ± 0.2 of limit/peak](sustained.md)). Fitted by itself it was
0.6 on H200 and 1.5 on B200 and GB200.

**Noise.** Products of m and of m + 1 rows that take the same time within 10 % are one kernel. In the median their
readings differ by 2 % on H200, 13 % on B200 and 19 % on GB200. Below 60 us they differ by 28 to 32 % on each chip,
above 200 us by 0.3, 1 and 13 %. A black box (gradient boosting) with every column of the tables has 5.2, 4.3 and
6.8 % on the same unseen groups. So shapes say in part which rows were measured cold. A pause for each number of
rows or tokens gains 0.1 points on H200 and loses on B200 and GB200. At equal use GB200 reads less of its limit
than B200, which has the same chip.

**Share of peak from watts.** Large products (m, n, k from 4,096) run at 0.97 to 0.99 of the limit. The law scales
with the cube of the clock. In bf16 on H200 it reaches that limit at 0.76 of the peak (measured: 0.71 in the
median, 0.77 in the best tenth). On B200 it is 0.71 (0.63, 0.68) and on GB200 0.75 (0.63, 0.75). In FP4 the law
says 0.72 and 0.77, where 0.42 and 0.40 were measured. The tables have no clocks. So at the limit they cannot tell
more joules a FLOP from a slower pipeline. A calibrated chip keeps its measured share; a stand-in takes its share
from the cube root of watts for a FLOP.

Boards of our own, in passes of 1.2 s without a pause: [rows](sustained.md#power-of-these-kernels). Products and
attention of prompts are at the limit and right within 11 %. Kernels of PyTorch that stream memory or convert numbers
read 480 to 680 W where 350 to 540 are predicted. One that keeps few cores busy reads 160 W where 341 are.

## Runs

Means over whole runs. Those of the Ryzen AI Max were in a fit of one number (below), the others in none. All were
known when the priors of running power and of tiles were chosen. Chips other than H200, B200 and GB200 have no table:
their law is scaled. `given`: the measured throughput sets the share of waiting. `predicted`: nothing of a run is given
but its setting; a year for a version is its last release. The interval of runs has one width for every chip: the widest
conformal 90 % factor of a source.

"""
TAIL = """
Targets were 15 % with times given and 20 % without: every group meets both. A batch of one is predicted 3 to 18 %
too high. Large batches of the servers of 2024 are up to 25 % too low, since those servers ran other attention
kernels. H100 with TensorRT-LLM stays at 450 W, a cap that its source does not state. A Ryzen AI Max is no board:
its package feeds the CPU cores too. They draw 18.0 W, fitted to these runs. With each model left out of that fit
the medians are 2.5 to 13.1 % (9 to 25 % without the cores). The worst, gpt-oss-20b, is predicted 22 % too high in
the mean. It draws 63 or 76 W through Vulkan and 88 W through HIP, at the same speed. The law cannot tell these
apart.

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
        yield (
            f"The width of {source} is {factor[source]:.2f}; that of the others, {rest:.2f}, holds "
            f"{100 * inside:.0f} % of its runs."
        )


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
    hand_over(text, arguments.out)


if __name__ == "__main__":
    main()

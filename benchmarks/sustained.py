"""What a burst of a kernel takes, and what it takes at the power limit: measured, by the law, and in whole steps.

    python benchmarks/sustained.py MEASURED [--unseen FOLDER GPU] [--pairs POWER KERNELS] [--served TABLE...]
        [--cache FOLDER] [--out FILE.md]

MEASURED is the folder of a run of `rooflinekit validate` with sustained passes: kernels.jsonl and engine.jsonl. FOLDER
is one of another GPU, to which the law was not fitted. POWER
and KERNELS are folders of kernel tables: the same kernels replayed for a second with the board's power, and in a short
burst. They say what hardware_specs/calibrations/power.yaml calls `asked`. TABLE is a serving table. It is predicted
with the law and without, engine costs fitted again for each.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import fit_engines
import numpy as np
import pandas as pd
from cached_rows import cached
from report_page import hand_over, markdown, percent, table
from scipy.optimize import least_squares
from serving_errors import unseen_rows

import rooflinekit as rk
from rooflinekit.evidence.board_power import power_of, powered
from rooflinekit.evidence.kernel_fit.groups import Group, kernel_groups, read_kernel_tables, read_measurements
from rooflinekit.evidence.steps import StepPoint, deployment_of
from rooflinekit.model import step
from rooflinekit.model.power import sustained
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.specs import load_accelerator

GPU, RELEASE = "h100-sxm", "0.24.0"
_BINDS = 1.05  # sustained / burst from which a kernel counts as slowed
_BUSY, _FREE = 0.97, 0.85  # of the limit
_EDGES = (60.0, 200.0, 500.0, 1000.0, 3000.0, 1e5)  # us
_WIDE = (0.8, 1.45)  # ratios beyond are of other kernels: the two tables are of different releases
_DIMS = ["gpu", "engine", "dtype", "m", "n", "k"]
_KEY = ["kind", "tier", "source_key", "model", "gpu", "metric"]
_FEW = 5


@contextmanager
def in_bursts() -> Iterator[None]:
    """All predictions inside are of boards whose clock never falls."""
    law = step.sustained
    step.sustained = lambda timed, accelerator: timed
    try:
        yield
    finally:
        step.sustained = law


def law_ratio(group: Group, share: float = 1.0, settled: float | None = None) -> np.ndarray:
    """Sustained over burst of a table's rows by the law; `share`: of the shipped joules a FLOP; settled [s].

    Its bursts are in the column latency_us.
    """
    accelerator = _asking(load_accelerator(str(group.gpu)).value, share, settled)
    rows = powered(group)
    return np.broadcast_to(sustained(rows.kernel, accelerator).expected, rows.time.shape) / rows.time


def _asking(accelerator: Accelerator, share: float, settled: float | None) -> Accelerator:
    law = accelerator.power
    assert law is not None
    asked = {dtype: share * each for dtype, each in law.ask.items()}
    return replace(accelerator, power=replace(law, ask=asked, settled=law.settled if settled is None else settled))


def passes(path: Path) -> list[Group]:
    """Kernels with a sustained pass, by group, with its ratio to the burst and the law's."""
    found = []
    for operation, measured in read_kernel_tables(path):
        if "sustained_us" in measured:
            own = measured[measured["sustained_us"].notna()].reset_index(drop=True)
            own = own.assign(op=operation, ratio=own["sustained_us"] / own["latency_us"])
            found += list(kernel_groups(operation, own)) if len(own) else []
    return found


def shown(groups: list[Group], gpu: str = GPU) -> pd.DataFrame:
    """All kernels as rows, with what the law says and what the law of energy says of their power."""
    found = []
    for group in groups:
        power = power_of(group, load_accelerator(gpu).value)
        named = dict(zip(("read", "predicted", "low", "high"), power, strict=True))
        found.append(group.table.assign(law=law_ratio(group, settled=math.inf), **named))
    rows = pd.concat(found).drop_duplicates(["op", "backend", "latency_us", "sustained_us"])
    return rows.sort_values("ratio")


def pairs(power: Path, kernels: Path) -> list[Group]:
    """16-bit products of vLLM that both tables have: replayed for a second, and in a burst."""
    long, short = pd.read_parquet(power / "gemm.parquet"), pd.read_parquet(kernels / "gemm.parquet")
    burst = short.groupby(_DIMS)["latency_us"].median().rename("burst_us").reset_index()
    both = long[(long["engine"] == "vllm") & (long["dtype"] == "bfloat16")].merge(burst, on=_DIMS)
    both = both.assign(ratio=both["latency_us"] / both["burst_us"], share=both["power_w"] / both["power_limit_w"])
    both = both[(both["burst_us"] > _EDGES[0]) & both["ratio"].between(*_WIDE)]
    both = both.assign(latency_us=both["burst_us"], engine="vllm", dtype="bf16")
    return [group for _, own in both.groupby("gpu") for group in kernel_groups("gemm", own.reset_index(drop=True))]


def fitted_share(groups: list[Group]) -> float:
    """The joules a FLOP that passes say, of those that ship."""

    def errors(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.log(law_ratio(each, x[0], math.inf) / each.table["ratio"]) for each in groups])

    return float(least_squares(errors, [1.0], loss="soft_l1", f_scale=0.02).x[0])


def fitted_settled(groups: list[Group]) -> float:
    """The time by which pairs hold half of the slowdown [s]; another release shifts all kernels of a chip alike."""
    rows = pd.concat([group.table for group in groups])
    level = rows[rows["share"] < _FREE].groupby("gpu")["ratio"].median()

    def errors(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.log(law_ratio(each, settled=np.exp(x[0])) * level[each.gpu] / each.table["ratio"])
                               for each in groups])  # fmt: skip

    return float(np.exp(least_squares(errors, [np.log(1e-3)], loss="soft_l1", f_scale=0.02).x[0]))


def kernels_part(rows: pd.DataFrame) -> str:
    cells = [[row.op, row.backend.removeprefix(f"vllm {RELEASE}, "), row.dtype, f"{row.latency_us:.0f}",
              f"{row.sustained_us:.0f}", f"{row.ratio:.2f}", f"{row.law:.2f}", f"{row.sm_mhz:.0f}",
              f"{row.power_w:.0f}", f"{row.predicted:.0f}"]
             for row in rows.itertuples()]  # fmt: skip
    heads = ["operation", "kernel", "format", "burst [µs]", "sustained [µs]", "ratio", "law", "MHz", "W", "W predicted"]
    return markdown([table(heads, cells)])


def kernels_text(rows: pd.DataFrame, groups: list[Group]) -> str:
    bound = rows[rows["ratio"] >= _BINDS]
    error = np.abs(np.log(rows["law"] / rows["ratio"]))
    return (
        f"{len(bound)} of {len(rows)} kernels are slowed, by {bound['ratio'].min():.2f} to {bound['ratio'].max():.2f} "
        f"(median {bound['ratio'].median():.2f}), at {bound['sm_mhz'].min():.0f} to {bound['sm_mhz'].max():.0f} MHz. "
        f"The law is {error.median():.1%} off in the median and {error.max():.1%} at most. A fit to these rows asks "
        f"for {fitted_share(groups):.2f} of its joules a FLOP."
    )


def power_part(rows: pd.DataFrame) -> str:
    cells = []
    for name, own in (
        ("slowed", rows[rows["ratio"] >= _BINDS]),
        ("not slowed", rows[rows["ratio"] < _BINDS]),
        ("all", rows),
    ):
        error = own["predicted"] / own["read"] - 1.0
        inside = ((own["read"] >= own["low"]) & (own["read"] <= own["high"])).mean()
        cells.append([name, str(len(own)), percent(error.abs().median()), percent(error.median()), percent(inside)])
    return markdown([table(["kernels", "n", "median error", "median bias", "in 90 %"], cells)])


def pairs_part(groups: list[Group]) -> str:
    rows = pd.concat([group.table.assign(law=law_ratio(group)) for group in groups])
    band = pd.cut(rows["burst_us"], _EDGES, labels=[f"{a:,.0f} to {b:,.0f} µs" for a, b in pairwise(_EDGES)])
    cells = []
    for (chip, label), own in rows.groupby(["gpu", band], observed=True):
        busy, free = own[own["share"] >= _BUSY], own[own["share"] < _FREE]
        cells.append([str(chip), str(label), str(len(free)), _number(free["ratio"].median()), str(len(busy)),
                      f"{busy['ratio'].median():.2f}", f"{busy['law'].median():.2f}"])  # fmt: skip
    heads = ["GPU", "burst", f"below {_FREE:.0%} of the limit", "ratio", f"from {_BUSY:.0%}", "ratio", "law"]
    return markdown([table(heads, cells)])


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


_READINGS = 20
"""Readings of a row from which its mean says what the board drew: over a second of them."""


def prompts_part(path: Path) -> str:
    steps, cells = read_measurements(path).of("serving_step"), []
    for row in sorted(steps, key=lambda each: (each["phase"], each["batch"] * each["context"])):
        prompt, measured = row["phase"] == "prefill", row["latency_us"] / 1e3
        errors = []
        for way in (in_bursts, nullcontext):
            with way():
                found = _step(row)
            errors.append(f"{(found.ttft_ms if prompt else found.tpot_ms) / measured - 1.0:+.1%}")
        read = "power_w" in row and row["readings"] >= _READINGS  # the board's reading lags behind a shorter run
        watts = [f"{row['power_w']:.0f}", f"{_step(row).energy.prefill_w:.0f}"] if read else ["–", "–"]
        clock = f"{row['sm_mhz']:.0f}" if read else "–"
        name = f"{'prompts' if prompt else 'decode'} {row['batch']} × {row['context']:,}"
        cells.append([name, f"{measured:.1f}", *errors, clock, *watts])
    heads = ["step", "measured [ms]", "in bursts", "sustained", "MHz", "W", "W predicted"]
    return markdown([table(heads, cells)])


def _step(row: Mapping[str, Any]) -> Any:
    return rk.estimate(row["model"], GPU, allow_oom=True, **StepPoint.of(row).workload, **deployment_of(row))


def served(tables: list[Path], folder: Path | None) -> str:
    """Median error over groups, and its bias, of rows predicted without their model or their source."""

    def rows(name: str) -> pd.DataFrame:
        fit = cached(folder and folder / f"{name}_fit.pkl", lambda: fit_engines.read(tables))
        return cached(folder and folder / f"{name}_unseen.pkl", lambda: unseen_rows(tables, fit))[0]

    ways = {"sustained": rows("sustained")}
    with in_bursts():
        ways = {"in bursts": rows("bursts")} | ways
    found = {name: _medians(each) for name, each in ways.items()}
    cells = [[kind, tier, *(found[name][kind, tier, way] for way in ("model_out", "source_out") for name in ways)]
             for kind, tier, way in sorted(found["sustained"]) if way == "model_out"]  # fmt: skip
    heads = [f"{way} left out, {name}" for way in ("model", "source") for name in ways]
    return markdown([table(["rows", "tier", *heads], cells)])


def _medians(rows: pd.DataFrame) -> dict[tuple[str, str, str], str]:
    found = {}
    for way in ("model_out", "source_out"):
        own = rows.assign(signed=rows[way] / rows["value"] - 1.0)
        own = own.assign(error=own["signed"].abs())
        own.loc[own.groupby(_KEY)["value"].transform("size") < _FEW, ["model", "metric"]] = "*"
        groups = own.groupby(_KEY)[["error", "signed"]].median().reset_index()
        for (kind, tier), part in groups.groupby(["kind", "tier"]):
            found[str(kind), str(tier), way] = f"{part['error'].median():.1%} ({part['signed'].median():+.1%})"
    return found


HEAD = """# A burst, and the power limit

What a kernel takes alone, and what it takes when the board has run it without a pause for a second. Written by
`benchmarks/sustained.py`.

Measured: an H100 SXM (validate/measurements/h100-sxm-2026-11-27), vLLM 0.24.0 and PyTorch 2.11, limit 700 W, largest
clock 1,980 MHz. A burst is 8 passes of 1 ms or one call, with a pause before each; a sustained pass lasts 1.2 s.

"""
UNSEEN = """
## A chip that the law had not seen

Kernels of an H200 ({folder}), measured after the law was written down. Nothing was fitted to them.

"""
BURST = """

One product's passes take less than its burst. Why is not known.
"""
LAW = """
**The law.** A kernel asks for the power that it would draw at the largest clock. That is the law of
[method, section 11](../docs/method.md#11-power-and-energy) without the limit, with {share:g} x limit/peak joules a FLOP
in every format. Where it asks for more than the limit, the clock falls until it fits. Power falls with the cube of
the clock, so the time of arithmetic grows by (asked/limit)^(1/3). Kernels that wait for memory keep their time.
`W predicted` is the shipped law of energy in the sustained time. Clocks fall further than times grow: to 0.67, where
the time grows by 1.19. What waits for memory or the last cache does not slow with the cores.

The largest errors are FlashAttention-2 in PyTorch, at half the rate of newer kernels: it takes more a FLOP.
Temperature says nothing: it was 43 to 62 °C. `warm_us`, the same call on the same data again, lies between burst and
sustained time.
"""
POWER = """
The law of H200 stands in for H100. It was fitted to readings of a meter with pauses in them. Its joules a FLOP of
16 bit, in attention too, have the 1.5 x limit/peak of this slowdown as their prior. Here, without pauses, kernels that
stream memory or convert numbers draw more than it says. What they cost besides bytes is not known. Products in FP8 take
3.1 there, and the slowdown says 1.1 to 2.2.

## Kernel tables hold a part of it

Calibrations come from tables of short bursts: 6 to 20 replays (aiconfigurator @ 095f58a5). Other tables have the same
products, replayed for a second with the board's power. Ratios are of 16-bit products of vLLM, 0.22 over 0.24.

"""
PAIRS = """
Short products below the limit do not change. The meter's mean of long ones has pauses in it, so that some read less
than they draw. At the limit short products take up to a fifth longer. Long ones change less: their burst lasts long
enough for the clock to fall. So a calibration holds the share t/(t + {settled:.3g} ms) of the
slowdown of a kernel of t. A fit to these pairs says {fitted:.2g} ms. A replay of some 36 kernels of that length takes
70 ms: about as long as a board takes to slow down.

## Whole steps of a real vLLM

Llama-3-8B in bf16 on the same H100, steps repeated without a pause. Nothing of the law was fitted to them.

"""
AFTER = """
The shortest prompt waits for the host, and so does that of 1,024 tokens for a part of its time: the law gives that part
to the limit. Readings of decode rows cover their prompts too, so nobody knows the power of those steps.

"""
SERVED = """## Served rows

Rows of the [report on whole requests](accuracy-serving.md), predicted from fits without their model or their source.
Engine costs are fitted for each way. Median over groups of the median error, and in brackets its bias.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--unseen", nargs=2, metavar=("FOLDER", "GPU"))
    parser.add_argument("--pairs", type=Path, nargs=2, metavar=("POWER", "KERNELS"))
    parser.add_argument("--served", type=Path, nargs="+", metavar="TABLE")
    parser.add_argument(
        "--cache", type=Path, help="keep rows in pickles of this folder, and use them if they are there"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    kernels = passes(arguments.measured / "kernels.jsonl")
    rows, law = shown(kernels), load_accelerator(GPU).value
    assert law.power is not None
    share = next(each * law.peak(dtype) / law.power.limit for dtype, each in law.power.ask.items())
    text = HEAD + kernels_part(rows) + "\n" + kernels_text(rows, kernels) + "\n" + LAW.format(share=share)
    if arguments.unseen:
        others = passes(Path(arguments.unseen[0]) / "kernels.jsonl")
        found = shown(others, arguments.unseen[1])
        text += (
            UNSEEN.format(folder=arguments.unseen[0]) + kernels_part(found) + "\n" + kernels_text(found, others) + BURST
        )
    text += "\n## Power of these kernels\n\n" + power_part(rows) + POWER
    if arguments.pairs:
        both = pairs(*arguments.pairs)
        settled = {"settled": 1e3 * law.power.settled, "fitted": 1e3 * fitted_settled(both)}
        text += pairs_part(both) + PAIRS.format(**settled)
    text += prompts_part(arguments.measured / "engine.jsonl") + AFTER
    if arguments.served:
        text += SERVED + served(arguments.served, arguments.cache)
    hand_over(text, arguments.out)


if __name__ == "__main__":
    main()

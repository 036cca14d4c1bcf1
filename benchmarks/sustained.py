"""What a burst of a kernel takes, and what it takes at the power limit: measured, by a law, and in whole steps.

    python benchmarks/sustained.py MEASURED [--pairs POWER KERNELS] [--served TABLE... --cache FOLDER] [--out FILE.md]

MEASURED is the folder of a run of `rooflinekit validate` with sustained passes: kernels.jsonl and engine.jsonl. POWER
and KERNELS are folders of kernel tables: the same kernels replayed for a second with the board's power, and in a short
burst. TABLE is a serving table. It is predicted as shipped and with the law, engine costs fitted again for each.
"""

from __future__ import annotations

import argparse
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
from rooflinekit.model.power import kernel_energy
from rooflinekit.model.step import Plan
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import Accelerator, PowerLaw
from rooflinekit.model.types.numeric import maximum
from rooflinekit.model.types.time import KernelTime
from rooflinekit.specs import load_accelerator

SHARE = 1.5
"""Joules that a FLOP asks for at the largest clock, of limit/peak, in every format: fitted to sustained passes."""
SETTLED = 1.85e-3
"""Time of a kernel [s] whose rows in a kernel table hold half of the slowdown already: fitted to pairs of rows."""
GPU, ENGINE, RELEASE, MODEL = "h100-sxm", "vllm", "0.24.0", "llama-3-8b"
_BINDS = 1.05  # sustained / burst from which a kernel counts as slowed
_BUSY, _FREE = 0.97, 0.85  # of the limit
_EDGES = (60.0, 200.0, 500.0, 1000.0, 3000.0, 1e5)  # us
_WIDE = (0.8, 1.45)  # ratios beyond are of other kernels: the two tables are of different releases
_DIMS = ["gpu", "engine", "dtype", "m", "n", "k"]
_KEY = ["kind", "tier", "source_key", "model", "gpu", "metric"]
_FEW = 5


def asking(accelerator: Accelerator, share: float = SHARE) -> PowerLaw | None:
    """The law of a board without its limit, every FLOP at the same share of limit/peak."""
    law = accelerator.power
    if law is None:
        return None
    each = {dtype: share * law.limit / accelerator.peak(dtype) for dtype in law.flop if accelerator.supports(dtype)}
    wide = next(each[dtype] for dtype in (Dtype.BF16, Dtype.FP16, *each) if dtype in each)
    return replace(law, flop=each, attention=wide, limit=1e6 * law.limit)


def slowed(timed: KernelTime, accelerator: Accelerator, settled: float = SETTLED) -> KernelTime:
    """A kernel at the power limit: (asked/limit)^(1/3) times as long, less what its calibration holds already."""
    law = asking(accelerator)
    if law is None or timed.kernel.family == "host" or timed.kernel.on_host:
        return timed
    asked = kernel_energy(timed, accelerator, law).total / maximum(timed.expected, 1e-30)
    whole = maximum(asked * (1e6 / law.limit), 1.0) ** (1.0 / 3.0)
    factor = 1.0 + (whole - 1.0) / (1.0 + timed.expected / timed.kernel.count / settled)
    return timed.changed(lambda end: end * factor, compute=timed.compute * factor)


@contextmanager
def at_the_limit() -> Iterator[None]:
    """All predictions inside are of boards that are kept busy."""
    burst = Plan.apart

    def apart(self: Plan, *what: object) -> list[KernelTime]:
        found = burst(self, *what)  # type: ignore[arg-type]
        return found if what[1] is None else [slowed(each, self.system.accelerator) for each in found]

    Plan.apart = apart  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Plan.apart = burst  # type: ignore[method-assign]


def asked_parts(group: Group, accelerator: Accelerator, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What kernels ask for besides arithmetic, and their share of the peak, both over their burst [of the limit, 1]."""
    law = asking(accelerator)
    assert law is not None
    rows = powered(replace(group, table=group.table.assign(latency_us=1e6 * time)))
    energy, kernel = kernel_energy(rows.kernel, accelerator, law), rows.kernel.kernel
    rest = (energy.total - energy.arithmetic) / time / (law.limit / 1e6)
    peak = accelerator.peak(kernel.dtype)
    return np.broadcast_to(rest, time.shape), np.broadcast_to(kernel.flops / peak / time, time.shape)


def passes(path: Path) -> pd.DataFrame:
    """Every kernel with a sustained pass: burst, sustained time, clock, power, and what the law asks."""
    found = []
    gpu = load_accelerator(GPU).value
    for operation, measured in read_kernel_tables(path):
        if "sustained_us" not in measured:
            continue
        own = measured[measured["sustained_us"].notna()].reset_index(drop=True)
        for group in kernel_groups(operation, own) if len(own) else ():
            columns = [
                "backend",
                "dtype",
                "latency_us",
                "warm_us",
                "sustained_us",
                "sm_mhz",
                "power_w",
                "power_limit_w",
            ]
            rest, used = asked_parts(group, gpu, group.table["latency_us"].to_numpy(float) * 1e-6)
            shown = dict(zip(("read", "predicted", "low", "high"), power_of(group, gpu), strict=True))
            found.append(group.table[columns].assign(op=operation, rest=rest, used=used, **shown))
    rows = pd.concat(found).drop_duplicates(["op", "backend", "latency_us", "sustained_us"])
    return rows.assign(ratio=rows["sustained_us"] / rows["latency_us"], burst=0.0).sort_values("ratio")


def pairs(power: Path, kernels: Path) -> pd.DataFrame:
    """16-bit products of vLLM that both tables have: replayed for a second, and in a burst."""
    long, short = pd.read_parquet(power / "gemm.parquet"), pd.read_parquet(kernels / "gemm.parquet")
    burst = short.groupby(_DIMS)["latency_us"].median().rename("burst_us").reset_index()
    both = long[(long["engine"] == "vllm") & (long["dtype"] == "bfloat16")].merge(burst, on=_DIMS)
    found = []
    for chip, own in both.groupby("gpu"):
        for group in kernel_groups("gemm", own.assign(engine="vllm", dtype="bf16").reset_index(drop=True)):
            rest, used = asked_parts(
                group, load_accelerator(str(chip)).value, group.table["burst_us"].to_numpy() * 1e-6
            )
            found.append(group.table.assign(rest=rest, used=used))
    rows = pd.concat(found)
    rows = rows.assign(ratio=rows["latency_us"] / rows["burst_us"], burst=rows["burst_us"] * 1e-6)
    rows = rows[(rows["burst_us"] > _EDGES[0]) & rows["ratio"].between(*_WIDE)]
    return rows.assign(share=rows["power_w"] / rows["power_limit_w"])


def law_ratio(rows: pd.DataFrame, share: float = SHARE, settled: float = SETTLED) -> np.ndarray:
    """Sustained over burst by the law; `burst` is 0 where the burst held no slowdown."""
    whole = np.maximum(rows["rest"] + share * rows["used"], 1.0) ** (1.0 / 3.0)
    return np.asarray(1.0 + (whole - 1.0) / (1.0 + rows["burst"] / settled))


def fitted_share(rows: pd.DataFrame) -> float:
    """The share that passes say."""
    found = least_squares(lambda x: np.log(law_ratio(rows, x[0]) / rows["ratio"]), [1.0], loss="soft_l1", f_scale=0.02)
    return float(found.x[0])


def fitted_settled(rows: pd.DataFrame) -> float:
    """The time by which pairs hold half of the slowdown [s]; another release shifts all kernels of a chip alike."""
    level = rows["gpu"].map(rows[rows["share"] < _FREE].groupby("gpu")["ratio"].median())

    def errors(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(law_ratio(rows, SHARE, np.exp(x[0])) * level / rows["ratio"]))

    return float(np.exp(least_squares(errors, [np.log(1e-3)], loss="soft_l1", f_scale=0.02).x[0]))


def kernels_part(rows: pd.DataFrame) -> str:
    cells = [[row.op, row.backend.removeprefix(f"vllm {RELEASE}, "), row.dtype, f"{row.latency_us:.0f}",
              f"{row.sustained_us:.0f}", f"{row.ratio:.2f}", f"{law:.2f}", f"{row.sm_mhz:.0f}", f"{row.power_w:.0f}",
              f"{row.predicted:.0f}"]
             for row, law in zip(rows.itertuples(), law_ratio(rows), strict=True)]  # fmt: skip
    heads = ["operation", "kernel", "format", "burst [µs]", "sustained [µs]", "ratio", "law", "MHz", "W", "W predicted"]
    return markdown([table(heads, cells)])


def kernels_text(rows: pd.DataFrame) -> str:
    bound = rows[rows["ratio"] >= _BINDS]
    error = np.abs(np.log(law_ratio(rows) / rows["ratio"]))
    return (
        f"{len(bound)} of {len(rows)} kernels are slowed, by {bound['ratio'].min():.2f} to {bound['ratio'].max():.2f} "
        f"(median {bound['ratio'].median():.2f}), at {bound['sm_mhz'].min():.0f} to {bound['sm_mhz'].max():.0f} MHz. "
        f"The law is {error.median():.1%} off in the median and {error.max():.1%} at most; a fit of its share to these "
        f"rows says {fitted_share(rows):.2f}."
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


def pairs_part(rows: pd.DataFrame) -> str:
    band = pd.cut(rows["burst_us"], _EDGES, labels=[f"{a:,.0f} to {b:,.0f} µs" for a, b in pairwise(_EDGES)])
    cells = []
    for (chip, label), own in rows.groupby(["gpu", band], observed=True):
        busy, free = own[own["share"] >= _BUSY], own[own["share"] < _FREE]
        cells.append([str(chip), str(label), str(len(free)), f"{free['ratio'].median():.2f}", str(len(busy)),
                      f"{busy['ratio'].median():.2f}", f"{np.median(law_ratio(busy)):.2f}"])  # fmt: skip
    heads = ["GPU", "burst", f"below {_FREE:.0%} of the limit", "ratio", f"from {_BUSY:.0%}", "ratio", "law"]
    return markdown([table(heads, cells)])


_READINGS = 20
"""Readings of a row from which its mean says what the board drew: over a second of them."""


def prompts_part(path: Path) -> str:
    steps, cells = read_measurements(path).of("serving_step"), []
    for row in sorted(steps, key=lambda each: (each["phase"], each["batch"] * each["context"])):
        prompt, measured = row["phase"] == "prefill", row["latency_us"] / 1e3
        errors = []
        for way in (nullcontext, at_the_limit):
            with way():
                found = _step(row)
            errors.append(f"{(found.ttft_ms if prompt else found.tpot_ms) / measured - 1.0:+.1%}")
        read = "power_w" in row and row["readings"] >= _READINGS  # the board's reading lags behind a shorter run
        watts = [f"{row['power_w']:.0f}", f"{_step(row).energy.prefill_w:.0f}"] if read else ["–", "–"]
        clock = f"{row['sm_mhz']:.0f}" if read else "–"
        name = f"{'prompts' if prompt else 'decode'} {row['batch']} × {row['context']:,}"
        cells.append([name, f"{measured:.1f}", *errors, clock, *watts])
    heads = ["step", "measured [ms]", "as shipped", "with the law", "MHz", "W", "W predicted"]
    return markdown([table(heads, cells)])


def _step(row: Mapping[str, Any]) -> Any:
    lengths = {"isl": row["context"], "osl": 2} if row["phase"] == "prefill" else {"context": row["context"]}
    return rk.estimate(MODEL, gpu=GPU, engine=ENGINE, engine_version=RELEASE, batch=row["batch"], **lengths)


def served(tables: list[Path], folder: Path | None) -> str:
    """Median error over groups, and its bias, of rows predicted without their model or their source."""

    def rows(name: str) -> pd.DataFrame:
        fit = cached(folder and folder / f"{name}_fit.pkl", lambda: fit_engines.read(tables))
        return cached(folder and folder / f"{name}_unseen.pkl", lambda: unseen_rows(tables, fit))[0]

    ways = {"as shipped": rows("burst")}
    with at_the_limit():
        ways["with the law"] = rows("limit")
    found = {name: _medians(each) for name, each in ways.items()}
    cells = [[kind, tier, *(found[name][kind, tier, way] for way in ("model_out", "source_out") for name in ways)]
             for kind, tier, way in sorted(found["as shipped"]) if way == "model_out"]  # fmt: skip
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
LAW = """
**The law.** A kernel asks for the power that it would draw at the largest clock. That is the law of
[method, section 11](../docs/method.md#11-power-and-energy) without the limit, with {share:g} x limit/peak joules a FLOP
in every format. Where it asks for more than the limit, the clock falls until it fits. Power falls with the cube of
the clock, so the time grows by (asked/limit)^(1/3). Kernels that wait for memory ask for less, and keep their time.
`W predicted` is the shipped law of energy in the sustained time. Clocks fall further than times grow: to 0.67, where
the time grows by 1.19. What waits for memory or the last cache does not slow with the cores.

The largest errors are FlashAttention-2 in PyTorch, at half the rate of newer kernels: it takes more a FLOP.
Temperature says nothing: it was 43 to 62 °C. `warm_us`, the same call on the same data again, lies between burst and
sustained time.

## Power of these kernels

"""
POWER = """
The law of H200 stands in for H100. It was fitted to readings of a meter with pauses in them. Here, without pauses,
attention of prompts and kernels that stream memory draw more than it says. It takes 0.6 x limit/peak joules a FLOP of
attention, and the slowdown says 1.5. Products in FP8 take 3.0 there, and the slowdown says 1.1 to 2.2.

## Kernel tables hold a part of it

Calibrations come from tables of short bursts: 6 to 20 replays (aiconfigurator @ 095f58a5). Other tables have the same
products, replayed for a second with the board's power. Ratios are of 16-bit products of vLLM, 0.22 over 0.24.

"""
PAIRS = """
Short products below the limit do not change. The meter's mean of long ones has pauses in it, so that some read less
than they draw. At the limit short products take up to a fifth longer. Long ones change less: their burst lasts long
enough for the clock to fall. So a calibration holds the share t/(t + {settled:.3g} ms) of the
slowdown of a kernel of t. These pairs say {fitted:.2g} ms. A replay of some 36 kernels of that length takes 70 ms:
about as long as a board takes to slow down.

## Whole steps of a real vLLM

Llama-3-8B in bf16 on the same H100, steps repeated without a pause. Nothing of the law was fitted to them.

"""
AFTER = """
The shortest prompt waits for the host, and so does that of 1,024 tokens for a part of its time: the law gives that part
to the limit. Readings of decode rows cover their prompts too, so nobody knows the power of those steps. The law ships
in no answer yet.

"""
SERVED = """## Served rows

Rows of the [report on whole requests](accuracy-serving.md), predicted from fits without their model or their source.
Engine costs were fitted again for each way. Median over groups of the median error, and in brackets its bias.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--pairs", type=Path, nargs=2, metavar=("POWER", "KERNELS"))
    parser.add_argument("--served", type=Path, nargs="+", metavar="TABLE")
    parser.add_argument(
        "--cache", type=Path, help="keep rows in pickles of this folder, and use them if they are there"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    kernels = passes(arguments.measured / "kernels.jsonl")
    text = (
        HEAD
        + kernels_part(kernels)
        + "\n"
        + kernels_text(kernels)
        + "\n"
        + LAW.format(share=SHARE)
        + power_part(kernels)
    )
    text += POWER
    if arguments.pairs:
        both = pairs(*arguments.pairs)
        text += pairs_part(both) + PAIRS.format(settled=1e3 * SETTLED, fitted=1e3 * fitted_settled(both))
    text += prompts_part(arguments.measured / "engine.jsonl") + AFTER
    if arguments.served:
        text += SERVED + served(arguments.served, arguments.cache)
    hand_over(text, arguments.out)


if __name__ == "__main__":
    main()

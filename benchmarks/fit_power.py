r"""Fit board power of kernels (rooflinekit.model.power) to tables with a column `power_w`, and write power.yaml.

    python benchmarks/fit_power.py TABLE... \
        [--write hardware_specs/calibrations/power.yaml] [--errors reports/data/accuracy-power.csv]

TABLE is a kernel table with `latency_us`, `power_w`, `power_limit_w` and `samples_min`, a lower bound on the readings
of the board's meter behind a row (github.com/ai-dynamo/aiconfigurator @ 095f58a5, Apache-2.0, NVIDIA). Only vLLM's rows
with three readings or more are fitted: with fewer the meter shows the start of a run, and TensorRT-LLM's inputs were
made on the host meanwhile. Parameters are fitted with priors from the literature (PRIORS), because kernels at the power
limit say nothing but that. Shape groups are split in four; errors and 90 % intervals are those of groups that a fit had
not seen.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from scipy.optimize import least_squares

from rooflinekit.evidence.board_power import READINGS, PoweredRows, as_read, metered, powered
from rooflinekit.evidence.kernel_fit.groups import kernel_groups, read_kernel_tables
from rooflinekit.model.power import kernel_energy
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import Accelerator, PowerLaw
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.power import PowerBench

FOLDS = 4
EDGES = (60.0, 200.0)  # us: between them and beyond them errors have sizes of their own
MOST_ROWS = 3000
FORMATS = (Dtype.BF16, Dtype.FP8, Dtype.NVFP4)
PRIORS = {  # middle and relative deviation; shares of the limit, and of limit/peak for arithmetic
    "active": (0.42, 0.06), "held": (0.98, 0.01), "memory": (60e-12, 0.15), "cache": (15e-12, 0.3),
    "padding": (0.1, 0.4), "bf16": (1.5, 0.13), "fp8": (1.0, 0.5), "nvfp4": (1.0, 0.5),
}  # fmt: skip
"""Memory: 3.9 pJ/bit in an HBM2 stack (O'Connor et al., MICRO 2017), as much again for controller and wires. Cache: 0.1
to 0.2 pJ/bit a mm over some ten mm (Dally, 2020). Arithmetic: dense work at its peak takes the board's limit; in 16
bit, of products and attention alike, it asks for the 1.5 ± 0.2 by which passes of an H100 slow down
(reports/sustained.md). Prompts of a table say less: their keys lie in memory that nobody wrote, so that few bits change
(Gregersen et al., Input-Dependent Power Usage in GPUs, 2024, arXiv:2409.18324)."""
STEADY = 0.65  # quantile of the readings that is fitted: most boards start colder than after a mean pause
PAUSE = 0.1, 3.0  # s, s a GB, and s a million tokens, that a board waits before a kernel; deviation of their logarithms
LAUNCHES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)  # of a kernel in one replay
CALLS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.2, 1.6, 2.2)  # ms of a replay that the host launches
ALIKE = 0.01  # of the rows: the least of the launches and calls that explain as many readings is taken
SHARP = 0.05  # |log error| above which a reading counts by its error, not by the square
PRIOR = 0.006  # of a deviation from a prior, beside the error of a reading
SOURCE = "aiconfigurator @ 095f58a5 (benchmarks/fit_power.py)"

Array = NDArray[np.float64]
Benches = dict[str, PowerBench]


def law_of(values: Mapping[str, float], idle: float, limit: float, gpu: Accelerator) -> PowerLaw:
    """The law of fitted numbers; arithmetic is in units of limit/peak."""
    each = {dtype: values[dtype.value] * limit / gpu.peak(dtype) for dtype in FORMATS if gpu.supports(dtype)}
    return PowerLaw(
        idle=idle, active=values["active"] * limit, limit=limit, held=values["held"], flop=each,
        padding=values["padding"], memory=values["memory"], cache=values["cache"], link=0.0, edges=(), widths=(1.0,),
        run_width=1.0, source="", measured=True,
    )  # fmt: skip


def powered_rows(path: Path, chip: str, engine: str) -> Iterator[PoweredRows]:
    """The rows of a chip and an engine that have a power."""
    for operation, table in read_kernel_tables(path, Counter()):
        own = table[(table["gpu"] == chip) & (table["engine"] == engine) & (table["power_w"] > 0)]
        for group in kernel_groups(operation, own.reset_index(drop=True)) if len(own) else ():
            yield powered(group)


class Rows:
    """Kernels of one chip with their readings, the shape group of each, and how they are predicted."""

    def __init__(self, tables: list[Path], chip: str, engine: str, readings: int) -> None:
        self.gpu = load_accelerator(chip).value
        self.parts = [part for path in tables for part in powered_rows(path, chip, engine)]
        self.replays = replays(self.parts)
        self.keep = [part.table["samples_min"].to_numpy() >= readings for part in self.parts]
        if not self.parts:
            return
        self.power = self._all(lambda part: part.table["power_w"].to_numpy(float))
        self.time = self._all(lambda part: part.time)
        self.limit = float(np.median(self._all(lambda part: part.table["power_limit_w"].to_numpy(float))))
        self.idle = min(float(part.table["power_w"].min()) for part in self.parts)
        names = [np.array([f"{part.operation}{g}" for g in part.group])[keep] for part, keep in self._pairs()]
        self.group = np.concatenate(names)
        self.operation = np.concatenate([np.full(keep.sum(), part.operation) for part, keep in self._pairs()])

    def _pairs(self) -> Iterator[tuple[PoweredRows, NDArray[np.bool_]]]:
        return zip(self.parts, self.keep, strict=True)

    def _all(self, column: Callable[[PoweredRows], Array]) -> Array:
        return np.concatenate([column(part)[keep] for part, keep in self._pairs()])

    def predict(self, law: PowerLaw, benches: Benches) -> Array:
        """What the meter would show of each row [W]."""
        found = []
        for part, keep in self._pairs():
            energy = kernel_energy(part.kernel, self.gpu, law, warm=True).total
            power = np.broadcast_to(energy, part.time.shape) / part.time
            found.append(as_read(power, law.idle, part, benches[part.bench])[keep])
        return np.concatenate(found)


def replays(parts: list[PoweredRows]) -> Benches:
    """Launches in a replay, and the host's least time for one, of each benchmark by the readings behind its rows.

    `samples_min` is the number of readings in most rows, and one more or fewer where a window ends near a reading.
    """
    found = {}
    for bench in sorted({part.bench for part in parts}):
        own = [part for part in parts if part.bench == bench]
        time, read = (np.concatenate(each) for each in
                      zip(*((part.time, part.table["samples_min"]) for part in own), strict=True))  # fmt: skip
        tried = {}
        for launches, call in itertools.product(LAUNCHES, CALLS):
            shape = PowerBench(launches=launches, call=call * 1e-3)
            away = np.abs(metered(time, shape)[1] + 1.0 - read)
            tried[shape] = float(np.mean(np.where(away == 0.0, 1.0, np.where(away == 1.0, 0.7, 0.0))))
        found[bench] = next(shape for shape, score in tried.items() if score >= max(tried.values()) - ALIKE)
    return found


def _errors(rows: Rows, chosen: NDArray[np.bool_], law: PowerLaw, benches: Benches) -> Array:
    """Residuals of the chosen readings, robust and tilted to the quantile that is fitted."""
    errors = np.log(rows.predict(law, benches) / rows.power)[chosen]
    side = np.where(errors < 0.0, STEADY, 1.0 - STEADY)
    robust: Array = np.sign(errors) * np.sqrt(side * 4.0 * SHARP * (np.sqrt(SHARP**2 + errors**2) - SHARP))
    return robust


def _paused(rows: Rows, logs: Array) -> Benches:
    """The benchmarks with their pauses: seconds, seconds a byte, and where rows have sequences seconds a token."""
    least, each, token = PAUSE[0] * np.exp(logs.reshape(3, -1))
    long = {part.bench for part in rows.parts if "seq_len" in part.table}
    return {name: bench._replace(pause=float(a), pause_per_byte=float(b) * 1e-9,
                                 pause_per_token=float(c) * 1e-6 * (name in long))
            for (name, bench), a, b, c in zip(rows.replays.items(), least, each, token, strict=True)}  # fmt: skip


def fit(rows: Rows, chosen: NDArray[np.bool_]) -> tuple[dict[str, float], dict[str, float], Benches]:
    """Parameters, their standard errors, and the benchmarks with their pauses."""
    names = [name for name in PRIORS if name not in [d.value for d in FORMATS] or rows.gpu.supports(Dtype(name))]
    middle = np.array([PRIORS[name][0] for name in names])
    wide = np.array([PRIORS[name][1] for name in names])
    own = len(names)

    def residuals(logs: Array) -> Array:
        values = dict(zip(names, middle * np.exp(logs[:own]), strict=True))
        found = _errors(rows, chosen, law_of(values, rows.idle, rows.limit, rows.gpu), _paused(rows, logs[own:]))
        return np.concatenate([found, PRIOR * logs / scale * np.sqrt(chosen.sum())])

    scale = np.concatenate([wide, np.full(3 * len(rows.replays), PAUSE[1])])
    found = least_squares(residuals, np.zeros(len(scale)), x_scale=np.minimum(scale, 1.0), xtol=1e-5, ftol=1e-5)
    values = middle * np.exp(found.x[:own])
    error = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))[:own]
    spread = dict(zip(names, map(float, error * values), strict=True))
    return dict(zip(names, map(float, values), strict=True)), spread, _paused(rows, found.x[own:])


def fit_pauses(rows: Rows, law: PowerLaw) -> Benches:
    """The benchmarks with their pauses on a board whose law is known."""
    every = np.ones(len(rows.power), bool)

    def residuals(logs: Array) -> Array:
        found = _errors(rows, every, law, _paused(rows, logs))
        return np.concatenate([found, PRIOR * logs / PAUSE[1] * np.sqrt(len(every))])

    return _paused(rows, least_squares(residuals, np.zeros(3 * len(rows.replays)), xtol=1e-5, ftol=1e-5).x)


def folds(rows: Rows) -> NDArray[np.int_]:
    """The fold of every row; a shape group is in one fold."""
    groups = np.unique(rows.group)
    fold = dict(zip(groups, np.random.default_rng(0).integers(0, FOLDS, len(groups)), strict=True))
    return np.array([fold[group] for group in rows.group])


def held_out(rows: Rows) -> Array:
    """Predictions of every row by a fit that has not seen its shape group."""
    rng, of = np.random.default_rng(1), folds(rows)
    out = np.zeros(len(of))
    for one in range(FOLDS):
        seen = of != one
        if seen.sum() > MOST_ROWS:
            seen &= rng.random(len(of)) < MOST_ROWS / seen.sum()
        values, _, benches = fit(rows, seen)
        out[of == one] = rows.predict(law_of(values, rows.idle, rows.limit, rows.gpu), benches)[of == one]
    return out


def widths(rows: Rows, predicted: Array, chosen: NDArray[np.bool_] | slice = slice(None)) -> list[float]:
    """Factor either way that holds 90 % of the kernels, by their time."""
    error = np.abs(np.log(rows.power / predicted))[chosen]
    place = np.searchsorted(EDGES, rows.time * 1e6)[chosen]
    return [float(np.exp(np.quantile(error[place == regime], 0.9))) for regime in range(len(EDGES) + 1)]


def scores(rows: Rows, predicted: Array) -> Iterator[dict[str, object]]:
    """Errors on unseen groups by operation; intervals are those of the other folds."""
    of, error = folds(rows), np.abs(predicted / rows.power - 1.0)
    place, inside = np.searchsorted(EDGES, rows.time * 1e6), np.zeros(len(of), bool)
    for one in range(FOLDS):
        own = of == one
        width = np.array(widths(rows, predicted, ~own))[place[own]]
        inside[own] = np.abs(np.log(rows.power / predicted))[own] <= np.log(width)
    for name in (*np.unique(rows.operation), "all"):
        own = (rows.operation == name) | (name == "all")
        settled = own & (rows.time * 1e6 > EDGES[1])
        yield {
            "gpu": rows.gpu.name, "op": name, "n": int(own.sum()), "median": np.median(error[own]),
            "p90": np.quantile(error[own], 0.9), "bias": np.mean(predicted[own] / rows.power[own] - 1.0),
            "coverage": np.mean(inside[own]), "n_settled": int(settled.sum()),
            "median_settled": np.median(error[settled]) if settled.any() else np.nan,
        }  # fmt: skip


def entry(rows: Rows, others: list[Rows], predicted: Array) -> dict[str, object]:
    """What power.yaml holds of a chip; of other engines' rows only the pauses of their benchmarks."""
    values, spread, benches = fit(rows, np.ones(len(predicted), bool))
    error = np.abs(predicted / rows.power - 1.0)
    law = law_of(values, rows.idle, rows.limit, rows.gpu)
    for other in others:
        benches |= fit_pauses(other, law)

    def pair(name: str, scale: float = 1.0, digits: int = 3) -> list[float]:
        return [float(f"{number * scale:.{digits}g}") for number in (values[name], spread[name])]

    return {
        "limit": rows.limit,
        "memory_type": "HBM3e",
        "idle": [rows.idle, 0],
        "active": pair("active", rows.limit),
        "held": pair("held"),
        "memory": pair("memory", 1e12),
        "cache": pair("cache", 1e12),
        "padding": pair("padding"),
        "arithmetic": {dtype.value: pair(dtype.value) for dtype in FORMATS if dtype.value in values},
        "interval": {"edges": list(EDGES), "width": [round(width, 2) for width in widths(rows, predicted)]},
        "bench": {
            name: [
                float(f"{each:.2g}")
                for each in (
                    bench.pause,
                    bench.pause_per_byte * 1e9,
                    bench.launches,
                    bench.call * 1e3,
                    bench.pause_per_token * 1e6,
                )
            ]
            for name, bench in benches.items()
        },
        "rows": len(error),
        "error": round(float(np.median(error)), 3),
        "source": f"{len(error)} kernels of vLLM with three power readings or more, {SOURCE}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--chips", default="h200-sxm,b200-sxm,gb200")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--errors", type=Path, help="CSV of the errors on shape groups that a fit had not seen")
    arguments = parser.parse_args()
    chips, errors = {}, []
    for chip in arguments.chips.split(","):
        own, other = (Rows(arguments.tables, chip, engine, READINGS) for engine in ("vllm", "trtllm"))
        predicted = held_out(own)
        chips[chip] = entry(own, [other] if other.parts else [], predicted)
        errors += scores(own, predicted)
        print(errors[-1], flush=True)
    if arguments.errors:
        pd.DataFrame(errors).to_csv(arguments.errors, index=False, float_format="%.4g")
    if arguments.write:
        head, _, rest = arguments.write.read_text().partition("chips:\n")
        _, _, tail = rest.partition("transfer:\n")
        body = yaml.safe_dump({"chips": chips}, sort_keys=False, default_flow_style=None, width=110)
        arguments.write.write_text(f"{head}{body}transfer:\n{tail}")


if __name__ == "__main__":
    main()

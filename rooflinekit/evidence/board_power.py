"""Kernel tables with measured board power: their rows as timed kernels, and what the board's meter shows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.evidence.kernel_fit.groups import Group
from rooflinekit.model.power import kernel_energy
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.hardware import Accelerator, PowerLaw
from rooflinekit.model.types.numeric import Array
from rooflinekit.model.types.time import KernelTime
from rooflinekit.specs.power import PowerBench, power_benches

READINGS = 3
"""Readings of the meter behind a row at least: fewer show the start of a run, not the power that it settles at."""

SUSTAINED = "sustained_us"
"""Time of a call in passes without a pause, over which a row of `rooflinekit validate` has its power."""

_ABOVE = 1.02  # readings overshoot the limit by 1.5 % at most
_EVERY, _BLIND, _RISE = 0.1, 0.1, 0.9
"""A benchmark reads its board's meter every 0.1 s. Each reading is the mean of a second (NVML, nvmlDeviceGetPowerUsage,
from GA102 and Hopper on): what runs is in it after 0.1 s, and all of it 0.9 s later."""
_REPLAYS, _LEAST, _WINDOW = 3000, 6, 1.0
_ENOUGH, _FOLDS, _READING, _TRANSFER, _STEPS, _STEP = 8, 4, 0.1, 0.25, 8, 1e-3


@dataclass(frozen=True)
class PoweredRows:
    """Rows of one operation and format: kernels in their measured time [s], and the shape group of each."""

    operation: str
    bench: str  #: whose pauses between kernels are alike: operation and format, behind the engine's name if not vLLM
    table: pd.DataFrame
    kernel: KernelTime
    time: Array
    group: NDArray[np.intp]


def powered(group: Group) -> PoweredRows:
    """The rows of a group, each in its measured time."""
    rows = group.rows()
    time = rows.time
    timed = KernelTime(time, time, time, time, rows.kernels[0], 0.0, 0.0, 0.0, 0.0)
    engine, operation = group.engine, group.operation
    bench = f"{operation}/{timed.kernel.dtype.value}"
    bench = bench if engine == "vllm" else f"{engine}/{bench}"
    return PoweredRows(operation, bench, group.table, timed, time, rows.group)


def readable(group: Group) -> PoweredRows | None:
    """The rows with enough readings, or with a pass of their own; None without any.

    Rows of `rooflinekit validate` have the board's energy over a pass of two seconds (`sustained_us`).
    """
    table, steady = group.table, SUSTAINED in group.table
    enough = table["samples_min"].to_numpy() >= READINGS if "samples_min" in table else np.ones(len(table), bool)
    table = table[enough & (table[SUSTAINED].notna().to_numpy() if steady else True)].reset_index(drop=True)
    if not len(table):
        return None
    return powered(replace(group, table=table.assign(latency_us=table[SUSTAINED]) if steady else table))


def shown_power(rows: PoweredRows, accelerator: Accelerator, law: PowerLaw) -> Array:
    """Power on the meter of the kernels in their measured time [W].

    In a pass of two seconds it has no lag, and no cache holds the inputs.
    """
    steady = SUSTAINED in rows.table
    energy = np.broadcast_to(kernel_energy(rows.kernel, accelerator, law, warm=not steady).total, rows.time.shape)
    if steady:
        return np.asarray(energy / rows.time)
    return as_read(energy / rows.time, law.idle, rows, power_benches(accelerator.name).get(rows.bench, PowerBench()))


def power_of(
    group: Group, accelerator: Accelerator, calibration: Calibration | None = None
) -> tuple[Array, Array, Array, Array]:
    """Measured power of the rows with enough readings, the prediction, and both ends of its interval [W]."""
    law = accelerator.power
    if law is None:
        raise InputError(f"{accelerator.name} has no rated power (power.tdp) in its file")
    if calibration is not None and calibration.power is not None:
        law = law.scaled(*calibration.power, calibration.name)
    rows = readable(group)
    if rows is None:
        return (np.zeros(0),) * 4
    shown = shown_power(rows, accelerator, law)
    width = np.array(law.widths)[np.searchsorted(law.edges, rows.time)]
    ends = np.maximum(shown / width, law.idle), np.minimum(shown * width, _ABOVE * law.limit)
    return rows.table["power_w"].to_numpy(float), shown, *ends


@dataclass(frozen=True)
class CarriedPower:
    """An accelerator's law carried to measured kernels: factors, and median errors on shape groups left out."""

    running: float
    work: float
    rows: int
    law: float  #: of the law as it was
    error: float  #: of the law with factors fitted to the other groups


def carry_power(groups: Sequence[Group], accelerator: Accelerator) -> CarriedPower | None:
    """Factors of running power and of work that fit measured kernels, shrunk to 1; None for too few to leave some out.

    Before measuring, factors deviate by a quarter, as a law carried to another chip; a reading errs by a tenth.
    """
    law, parts = accelerator.power, [rows for group in groups if (rows := readable(group)) is not None]
    if law is None or not parts:
        return None
    measured = np.concatenate([rows.table["power_w"].to_numpy(float) for rows in parts])
    names = np.concatenate([[f"{rows.bench} {each}" for each in rows.group] for rows in parts])
    fold = np.unique(names, return_inverse=True)[1] % _FOLDS
    if len(measured) < _ENOUGH or len(set(fold)) < _FOLDS:
        return None
    known = law

    def errors(logs: Array) -> Array:
        running, work = np.exp(logs)
        scaled = known.scaled(float(running), float(work), known.source)
        shown = np.concatenate([shown_power(rows, accelerator, scaled) for rows in parts])
        return np.asarray(np.log(shown / measured))

    def fitted(chosen: NDArray[np.bool_]) -> Array:
        logs = np.zeros(2)
        for _ in range(_STEPS):  # Gauss and Newton; far readings count by their error, not by its square
            now = errors(logs)[chosen] / _READING
            slope = np.stack([(errors(logs + step)[chosen] / _READING - now) / _STEP for step in _STEP * np.eye(2)], 1)
            weight = 1.0 / np.sqrt(1.0 + now**2)
            inner = slope.T @ (weight[:, None] * slope) + np.eye(2) / _TRANSFER**2
            logs = np.clip(logs - np.linalg.solve(inner, slope.T @ (weight * now) + logs / _TRANSFER**2), -1.5, 1.5)
        return logs

    left_out = [errors(fitted(fold != one))[fold == one] for one in range(_FOLDS)]
    found = np.exp(fitted(np.ones(len(measured), bool)))
    medians = (float(np.median(np.abs(np.expm1(each)))) for each in (errors(np.zeros(2)), np.concatenate(left_out)))
    return CarriedPower(float(found[0]), float(found[1]), len(measured), *medians)


def metered(time: Array, bench: PowerBench) -> tuple[Array, Array]:
    """The window of each kernel's replays [s], and the number of its last reading, from 0.

    Replays are as many as calls from the host fit into a second, at most 3,000. Such a call takes the host's time where
    that is longer than its kernels', so that replays of a graph of many short launches end early.
    """
    replays = np.minimum(_WINDOW / np.maximum(time * bench.launches, bench.call), _REPLAYS)
    window = np.maximum(replays * bench.launches, _LEAST) * time
    return window, np.floor(np.minimum(window, 2.0 * _WINDOW) / _EVERY + 1e-9)


def as_read(power: Array, idle: float, rows: PoweredRows, bench: PowerBench) -> Array:
    """Reading of the meter of kernels that are replayed: the mean of its readings.

    idle + (S + (1 − S)·w/(w + pause))·(P − idle): S is the mean share that readings in a window w show of what runs; at
    first they show the time before, when a kernel like this one ran for w after a pause to make its weights, its keys,
    and the pages of its tokens. A row's own number of readings counts; where its mean looks like that of fewer, the
    multiple nearest to what the window holds.
    """
    window, last = metered(rows.time, bench)
    if "samples_min" in rows.table:
        least = rows.table["samples_min"].to_numpy(float)
        last = np.maximum(np.round((last + 1.0) / least), 1.0) * least - 1.0
    reading = np.arange(int(last.max()) + 1)
    seen = np.where(reading <= last[:, None], np.clip((reading * _EVERY - _BLIND) / _RISE, 0.0, 1.0), 0.0)
    share = seen.sum(axis=1) / (last + 1.0)
    kernel, table = rows.kernel.kernel, rows.table
    waits = bench.pause + bench.pause_per_byte * np.asarray(kernel.weight_bytes + kernel.kv_read_bytes)
    if "seq_len" in table:
        waits = waits + bench.pause_per_token * (table["batch"] * table["seq_len"]).to_numpy(float)
    return np.asarray(idle + (share + (1.0 - share) * window / (window + waits)) * (power - idle))

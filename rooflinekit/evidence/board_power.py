"""Kernel tables with measured board power: their rows as timed kernels, and what the board's meter shows of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rooflinekit.evidence.kernel_fit.groups import Group
from rooflinekit.model.power import kernel_energy
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.numeric import Array
from rooflinekit.model.types.time import KernelTime
from rooflinekit.specs.power import meter_shares

READINGS = 3
"""Readings of the meter behind a row at least: fewer show the start of a run, not the power that it settles at."""

SUSTAINED = "sustained_us"
"""Time of a call in passes without a pause, over which a row of `rooflinekit validate` has its power."""

_METER = {"attention_decode": 0.1, "attention_prefill": 0.05, "gemm": 0.2, "moe": 0.15}
"""Seconds after which a board's meter shows two thirds of the step from idle, fitted to windows of 0.02 to 1 s: where
the benchmark makes its inputs on the accelerator just before, the meter starts higher."""
_USUAL = 0.1
_ABOVE = 1.02  # readings overshoot the limit by 1.5 % at most
_LAUNCHES = {"gemm": 6, "moe": 5}  # in one replay of the benchmark behind the tables
_REPLAYS, _WINDOW, _SHORT, _BRIEF = 3000, 1.0, 0.3, 1e-4


@dataclass(frozen=True)
class PoweredRows:
    """Rows of one operation and format: kernels in their measured time [s], and the shape group of each."""

    operation: str
    bench: str  #: whose meter readings are alike: the operation of vLLM's, else engine, operation and format
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
    bench = operation if engine == "vllm" else f"{engine}/{operation}/{timed.kernel.dtype.value}"
    return PoweredRows(operation, bench, group.table, timed, time, rows.group)


def power_of(group: Group, accelerator: Accelerator) -> tuple[Array, Array, Array, Array]:
    """Measured power of the rows with enough readings, the prediction, and both ends of its interval [W].

    The prediction is what the meter would show of the kernel in its measured time. Rows of `rooflinekit validate` have
    the board's energy over a pass of two seconds (`sustained_us`) on inputs that no cache holds, and no meter's lag.

    Raises InputError where the accelerator has no rated power.
    """
    law = accelerator.power
    if law is None:
        raise InputError(f"{accelerator.name} has no rated power (power.tdp) in its file")
    table, steady = group.table, SUSTAINED in group.table
    enough = table["samples_min"].to_numpy() >= READINGS if "samples_min" in table else np.ones(len(table), bool)
    table = table[enough & (table[SUSTAINED].notna().to_numpy() if steady else True)].reset_index(drop=True)
    if not len(table):
        return (np.zeros(0),) * 4
    rows = powered(replace(group, table=table.assign(latency_us=table[SUSTAINED]) if steady else table))
    energy = np.broadcast_to(kernel_energy(rows.kernel, accelerator, law, warm=not steady).total, rows.time.shape)
    shown = energy / rows.time
    if not steady:
        shares = meter_shares(accelerator.name)
        share = shares.get(rows.bench, shares.get(rows.operation, 1.0))
        shown = as_read(shown, law.idle, rows.operation, rows.time, share)
    width = np.array(law.widths)[np.searchsorted(law.edges, rows.time)]
    ends = np.maximum(shown / width, law.idle), np.minimum(shown * width, _ABOVE * law.limit)
    return rows.table["power_w"].to_numpy(float), shown, *ends


def as_read(power: Array, idle: float, operation: str, time: Array, share: float = 1.0) -> Array:
    """What the meter shows of a kernel that is replayed for a second, or 3,000 times: it starts near idle.

    idle + share·(P − idle)·(1 − e^(−window/τ)), with the windows of aiconfigurator's collector (0.3 s for kernels under
    100 us); the share is below 1 where the benchmark pauses between its kernels.
    """
    replay = time * _LAUNCHES.get(operation, 1)
    window = np.minimum(np.maximum(np.where(time < _BRIEF, _SHORT, _WINDOW), replay), _REPLAYS * replay)
    risen = 1.0 - np.exp(-window / _METER.get(operation, _USUAL))
    return idle + share * risen * (power - idle)

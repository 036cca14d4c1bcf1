"""Benchmarks of kernels and of servers as readings that two runs of one suite have in common.

pytest-benchmark and nvbench write JSON, Triton's `perf_report` CSV; kernel tables and the results of load generators
are read as everywhere else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rooflinekit.evidence.kernel_fit.groups import (
    KEY,
    SUFFIX,
    VERSIONS,
    read_kernel_tables,
)
from rooflinekit.evidence.kernel_fit.tables import OPERATIONS
from rooflinekit.evidence.measured import Measurement, is_benchmark, read_measurements
from rooflinekit.evidence.measurement import Fields
from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs.delimited import read_table
from rooflinekit.specs.files import refuse_device

_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
RATES = ("TFLOPS", "TFLOP/s", "GFLOPS", "GFLOP/s", "GB/s", "TB/s", "tok/s", "1/s")
UNITS = (*_TIMES, *RATES)
"""Units of a value in a CSV: a time, of which less is better, or a rate, of which more is."""

_IN_BRACKETS = re.compile(r"(.*?)\s*[(\[]\s*([^()\[\]]+?)\s*[)\]]")
_P10_TO_P90 = 2.563  # standard deviations of a normal distribution between them
_QUARTILES = 1.349
_SERVED = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2e"}
_MEAN, _NOISE = "nv/cold/time/gpu/mean", "nv/cold/time/gpu/stdev/relative"
_BATCH = "nv/batch/time/gpu/mean"  # where isolated launches were left out


@dataclass(frozen=True)
class Reading:
    """One value of one benchmark.

    name: the same in every run of the suite. value: a time [s], or a rate where `rate` is true. spread: standard
    deviation of single repeats over their mean, None where the file does not say. columns: of a kernel table, or what
    the benchmark says of itself in its words. run: that of a load generator, which `metric` is of.
    """

    name: str
    value: float
    rate: bool = False
    spread: float | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    run: Measurement | None = None
    metric: str = ""

    @property
    def slowness(self) -> float:
        """Logarithm of the time, or of one over the rate."""
        return -math.log(self.value) if self.rate else math.log(self.value)


def read_readings(path: Path, unit: str | None = None) -> list[Reading]:
    """Every reading of a file; `unit` is that of a CSV whose header names none.

    Raises SpecError for a file that cannot be read or that no known tool wrote.
    """
    found = list(_read(path, unit))
    if not found:
        raise SpecError(f"{path}: holds no reading")
    return found


def _read(path: Path, unit: str | None) -> Iterator[Reading]:
    if path.suffix == ".json" and (data := _benchmarks(path)) is not None:
        states = any("states" in entry for entry in data["benchmarks"])
        yield from (_nvbench if states else _pytest_benchmark)(path.name, data)
    elif path.suffix not in (".csv", ".parquet", SUFFIX) or (path.suffix != ".parquet" and is_benchmark(path)):
        for run in read_measurements(path):
            if isinstance(run, Measurement):
                yield from _served(run)
    elif path.suffix == SUFFIX or "latency_us" in read_table(path):
        yield from _kernel_table(path)
    else:
        yield from _table(path, unit)


def _benchmarks(path: Path) -> dict[str, Any] | None:
    """The JSON of pytest-benchmark or nvbench, else None."""
    refuse_device(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return None  # whoever reads the others says what is wrong
    entries = data.get("benchmarks") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    if entries and not any(key in entry for entry in entries for key in ("states", "stats")):
        return None
    return dict(data)


def _pytest_benchmark(source: str, data: Mapping[str, Any]) -> Iterator[Reading]:
    """The median of the rounds [s], and their spread from the quartiles; `params` and `extra_info` are columns."""
    for entry in data["benchmarks"]:
        own = Fields(source, entry)
        stats = own.inside("stats")
        name = own.text("fullname", "name")
        value = stats.number("median", "mean")
        if not name or not value:
            raise SpecError(f"{source}: a benchmark without a name or a time")
        middle, rounds = stats.number("iqr"), stats.count("rounds") or 1
        spread = middle / _QUARTILES / value if middle is not None and rounds > 1 else None
        columns = {**own.inside("params").data, **own.inside("extra_info").data}
        yield Reading(name, value, spread=spread, columns=columns)


def _nvbench(source: str, data: Mapping[str, Any]) -> Iterator[Reading]:
    """Mean GPU time of isolated launches [s] of every state, and nvbench's noise of it; axes are columns."""
    listed = data.get("devices")
    devices = {each.get("id"): each.get("name") for each in listed if isinstance(each, dict)} if isinstance(
        listed, list) else {}  # fmt: skip
    for entry in data["benchmarks"]:
        bench = Fields(source, entry)
        states = entry.get("states")
        for state in states if isinstance(states, list) else []:
            own = Fields(f"{source}: {bench.text('name')}", state if isinstance(state, dict) else {})
            if own.data.get("is_skipped"):
                continue
            figures = Fields(own.source, dict(_summaries(own.data.get("summaries"))))
            value = figures.number(_MEAN, _BATCH)
            if not value:
                raise SpecError(f"{own.source}: {own.text('name') or 'a state'} has no GPU time")
            axes = own.data.get("axis_values")
            cells = {str(each.get("name")).removesuffix("{ct}"): each.get("value")
                     for each in (axes if isinstance(axes, list) else []) if isinstance(each, dict)}  # fmt: skip
            columns = {"op": bench.text("name"), "gpu": devices.get(own.data.get("device")), **cells}
            yield Reading(_named(str(bench.text("name")), cells), value, spread=figures.number(_NOISE), columns=columns)


def _summaries(listed: Any) -> Iterator[tuple[str, Any]]:
    for each in listed if isinstance(listed, list) else []:
        parts = each.get("data") if isinstance(each, dict) else None
        for part in parts if isinstance(parts, list) else []:
            if isinstance(part, dict) and part.get("name") == "value":
                yield str(each.get("tag")), part.get("value")


def _kernel_table(path: Path) -> Iterator[Reading]:
    """Rows of a kernel table or a measurement file; the p10 and p90 of a row say how it spreads."""
    for operation, table in read_kernel_tables(path):
        own = {*KEY, *OPERATIONS[operation].needed.split()}
        texts = [name for name in table if name in own or (table[name].dtype == object and name not in VERSIONS)]
        for row in table.to_dict("records"):
            cells = {str(name): row[name] for name in texts if row[name] == row[name]}
            time, low, high = row["latency_us"], row.get("p10_us"), row.get("p90_us")
            spread = (high - low) / _P10_TO_P90 / time if low is not None and high is not None else None
            columns = {str(name): cell for name, cell in row.items()} | {"op": operation}
            yield Reading(_named(operation, {k: v for k, v in cells.items() if k != "op"}), time * 1e-6, spread=spread,
                          columns=columns)  # fmt: skip


def _table(path: Path, unit: str | None) -> Iterator[Reading]:
    """A report of Triton: columns of whole numbers or words are the axes, the others providers."""
    table = read_table(path)
    units = {name: hit[2] for name in map(str, table) if (hit := _IN_BRACKETS.fullmatch(name)) and hit[2] in UNITS}
    for name in () if units else map(str, table):
        if table[name].dtype.kind == "f" and (table[name].dropna() % 1 != 0).any():
            if unit is None:
                raise SpecError(f"{path}: column {name!r} names no unit; write it as '{name} (ms)', or give --unit")
            units[name] = unit
    axes = [name for name in map(str, table) if name not in units]
    for row in table.to_dict("records"):
        cells = {name: row[name] for name in axes}
        for name, own in units.items():
            if not (isinstance(row[name], (int, float)) and 0 < row[name] < math.inf):
                continue  # a provider that cannot run this shape
            value = float(row[name]) * _TIMES.get(own, 1.0)
            yield Reading(_named(f"{path.stem} {name}", cells), value, own not in _TIMES, columns=cells)


def _served(run: Measurement) -> Iterator[Reading]:
    """What users felt of one run, and the rate of tokens."""
    facts = run.facts
    load = {"in": facts.isl and round(facts.isl), "out": facts.osl and round(facts.osl), "rate": facts.rate,
            "in flight": facts.concurrency}  # fmt: skip
    said = _named(str(facts.model or "model"), {name: cell for name, cell in load.items() if cell})
    for metric, part in _SERVED.items():
        if value := getattr(run, part).middle[1]:
            yield Reading(f"{said}: {part.upper()}", value * 1e-3, run=run, metric=metric)
    if run.output_tok_s:
        yield Reading(f"{said}: output", run.output_tok_s, rate=True, run=run, metric="output_tok_s")


def _named(first: str, cells: Mapping[str, Any]) -> str:
    """A name and what tells it apart.

    >>> _named("gemm", {"m": 16.0, "dtype": "bf16"})
    'gemm m=16 dtype=bf16'
    """
    words = (f"{name}={cell:g}" if isinstance(cell, float) else f"{name}={cell}" for name, cell in cells.items())
    return " ".join((first, *words))

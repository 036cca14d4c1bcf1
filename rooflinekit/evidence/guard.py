"""Benchmarks of a change against what they should be: an earlier run with its noise, or the prediction's interval.

A row has regressed where it is slower than noise explains. Times are compared by their logarithms, so that a rate and a
time count alike. Of N rows that nothing happened to, one or more alarm with the probability `chance`: each row's limit
is z(chance / N) standard errors (Bonferroni). A slow-down as large as the limit is found in half of all runs; each row
therefore says from which slow-down on it is missed as seldom as it alarms for nothing.

Readings are what two runs of one suite have in common: pytest-benchmark and nvbench write JSON, Triton's `perf_report`
CSV; kernel tables and the results of load generators are read as everywhere else.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from statistics import NormalDist, fmean, median
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.estimation.options import Value
from rooflinekit.estimation.results import time_by_cause
from rooflinekit.evidence.accuracy import timed_rows, timed_with
from rooflinekit.evidence.benchmark_runs import Given, pose
from rooflinekit.evidence.compare import Gap, attribute, metrics_of
from rooflinekit.evidence.kernel_fit import groups
from rooflinekit.evidence.kernel_fit.groups import KEY, SUFFIX, VERSIONS, Group
from rooflinekit.evidence.kernel_fit.tables import OPERATIONS
from rooflinekit.evidence.measured import MeasuredRun, is_benchmark, read_measurements
from rooflinekit.evidence.measurement import Fields
from rooflinekit.model.types.answer import Answer, Json
from rooflinekit.model.types.errors import InputError, RooflinekitError, SpecError
from rooflinekit.model.types.units import percent
from rooflinekit.specs.calibration.load import load_calibration
from rooflinekit.specs.delimited import read_table
from rooflinekit.specs.files import Parsed
from rooflinekit.specs.places import admit
from rooflinekit.version import __version__

_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
RATES = ("TFLOPS", "TFLOP/s", "GFLOPS", "GFLOP/s", "GB/s", "TB/s", "tok/s", "1/s")
UNITS = (*_TIMES, *RATES)
"""Units of a value in a CSV: a time, of which less is better, or a rate, of which more is."""

_IN_BRACKETS = re.compile(r"(.*?)\s*[(\[]\s*([^()\[\]]+?)\s*[)\]]")
_P10_TO_P90 = 2.563  # standard deviations of a normal distribution between them
_QUARTILES = 1.349
_SERVED = ("ttft_ms", "tpot_ms", "e2e_ms")
_OUTPUT, _REQUESTS = "output tok/s", "requests/s"  # at the end of names
_MEAN, _NOISE = "nv/cold/time/gpu/mean", "nv/cold/time/gpu/stdev/relative"
_BATCH = "nv/batch/time/gpu/mean"  # where isolated launches were left out


@dataclass(frozen=True)
class BenchmarkValue:
    """One value of one benchmark.

    name: the same in every run of the suite. value: a time [s], or a rate where `rate` is true. spread: standard
    deviation of single repeats over their mean, None where the file does not say. columns: of a kernel table, or what
    the benchmark says of itself in its words. run: that of a load generator, which `metric` is of.
    """

    name: str
    value: float
    rate: bool = False
    spread: float | None = None
    columns: Parsed = field(default_factory=dict)
    run: MeasuredRun | None = None
    metric: str = ""

    @property
    def slowness(self) -> float:
        """Logarithm of the time, or of one over the rate."""
        return -math.log(self.value) if self.rate else math.log(self.value)


def read_readings(path: Path, unit: str | None = None) -> list[BenchmarkValue]:
    """Every reading of a file; `unit` is that of a CSV whose header names none."""
    found = list(_read(path, unit))
    if not found:
        raise SpecError(f"{path.name}: holds no time and no rate of output tokens")
    return found


def _read(path: Path, unit: str | None) -> Iterator[BenchmarkValue]:
    if path.suffix == ".json" and (data := _benchmarks(path)) is not None:
        states = any("states" in entry for entry in data["benchmarks"])
        yield from (_nvbench if states else _pytest_benchmark)(path.name, data)
    elif path.suffix not in (".csv", ".parquet", SUFFIX) or (path.suffix != ".parquet" and is_benchmark(path)):
        for run in read_measurements(path):
            if isinstance(run, MeasuredRun):
                yield from _served_readings(run)
    elif path.suffix == SUFFIX or "latency_us" in read_table(path):
        yield from _kernel_table(path)
    else:
        yield from _table(path, unit)


def _benchmarks(path: Path) -> dict[str, Any] | None:
    admit(path)
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


def _pytest_benchmark(source: str, data: Mapping[str, object]) -> Iterator[BenchmarkValue]:
    """The median of the rounds [s], and their spread from the quartiles; `params` and `extra_info` are columns."""
    for own in Fields(source, data).entries("benchmarks"):
        stats = own.inside("stats")
        name = own.text("fullname", "name")
        value = stats.number("median", "mean")
        if not name or not value:
            raise SpecError(f"{source}: a benchmark without a name or a time")
        middle, rounds = stats.number("iqr"), stats.count("rounds") or 1
        spread = middle / _QUARTILES / value if middle is not None and rounds > 1 else None
        columns = {**own.inside("params").data, **own.inside("extra_info").data}
        yield BenchmarkValue(name, value, spread=spread, columns=columns)


def _nvbench(source: str, data: Mapping[str, object]) -> Iterator[BenchmarkValue]:
    """Mean GPU time of isolated launches [s] of every state, and nvbench's noise of it; axes are columns."""
    report = Fields(source, data)
    devices = {each.data.get("id"): each.data.get("name") for each in report.entries("devices")}
    for bench in report.entries("benchmarks"):
        name = bench.text("name")
        for own in bench.entries("states"):
            if own.data.get("is_skipped"):
                continue
            summaries = [(each, part.data) for each in own.entries("summaries") for part in each.entries("data")]
            values = ((each, part) for each, part in summaries if part.get("name") == "value")
            told = {str(each.data.get("tag")): part.get("value") for each, part in values}
            figures = Fields(f"{source}: {name}", told)
            value = figures.number(_MEAN, _BATCH)
            if not value:
                raise SpecError(f"{figures.source}: {own.text('name') or 'a state'} has no GPU time")
            axes = own.entries("axis_values")
            cells = {str(each.data.get("name")).removesuffix("{ct}"): each.data.get("value") for each in axes}
            columns = {"op": name, "gpu": devices.get(own.data.get("device")), **cells}
            yield BenchmarkValue(_named(str(name), cells), value, spread=figures.number(_NOISE), columns=columns)


def _kernel_table(path: Path) -> Iterator[BenchmarkValue]:
    """Rows of a kernel table or a measurement file; the p10 and p90 of a row say how it spreads."""
    for operation, table in groups.read_kernel_tables(path):
        own = {*KEY, *OPERATIONS[operation].needed.split()}
        texts = [name for name in table if name in own or (table[name].dtype == object and name not in VERSIONS)]
        for row in table.to_dict("records"):
            cells = {str(name): row[name] for name in texts if row[name] == row[name]}
            time, low, high = row["latency_us"], row.get("p10_us"), row.get("p90_us")
            spread = (high - low) / _P10_TO_P90 / time if low and high and low <= high else None
            columns = {str(name): cell for name, cell in row.items()} | {"op": operation}
            named = _named(operation, {k: v for k, v in cells.items() if k != "op"})
            yield BenchmarkValue(named, time * 1e-6, spread=spread, columns=columns)


def _table(path: Path, unit: str | None) -> Iterator[BenchmarkValue]:
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
            yield BenchmarkValue(_named(f"{path.stem} {name}", cells), value, own not in _TIMES, columns=cells)


def _served_readings(run: MeasuredRun) -> Iterator[BenchmarkValue]:
    facts = run.facts
    load = {"in": facts.isl and round(facts.isl), "out": facts.osl and round(facts.osl)}
    load |= {"rate": facts.rate, "in flight": facts.concurrency}
    said = _named(str(facts.model or "model"), {name: cell for name, cell in load.items() if cell})
    for metric in _SERVED:
        if value := run.figures[metric][1]:
            yield BenchmarkValue(f"{said}: {metric.removesuffix('_ms').upper()}", value * 1e-3, run=run, metric=metric)
    if run.output_tok_s:
        yield BenchmarkValue(f"{said}: {_OUTPUT}", run.output_tok_s, rate=True, run=run, metric="output_tok_s")
    elif run.request_s:
        yield BenchmarkValue(f"{said}: {_REQUESTS}", run.request_s, rate=True, run=run, metric="request_s")


def _named(first: str, cells: Mapping[str, object]) -> str:
    """A name and what tells it apart.

    >>> _named("gemm", {"m": 16.0, "dtype": "bf16"})
    'gemm m=16 dtype=bf16'
    """
    words = (f"{name}={cell:g}" if isinstance(cell, float) else f"{name}={cell}" for name, cell in cells.items())
    return " ".join((first, *words))


ASSUMED = 0.03
"""Standard deviation of a reading that was taken once and says no spread: an assumption, for `noise` to replace."""
RUN_TO_RUN = 0.01
"""Spread that clocks, heat and addresses add between two runs, where only the spread within a run is known: an
assumption.
"""
_FINEST = 0.001  # no suite is less noisy, however alike a few readings are
_PRIOR = 4  # repeats that the noise of the other rows is worth in the estimate of a row's own
_BEYOND, _BELOW = 1.45, 1.2
"""Logarithms of limits over those of the interval's high and low ends, beyond which lie 2 % of sound rows.

Normal errors would need 1.25 (the quantiles 98 % over 95 %). Those of kernels have heavier tails above, and tables (an
operation on an accelerator with an engine) differ: 1.45 and 1.2 suffice in three of four of 275.
`benchmarks/guard_errors.py --tails` chooses them without an operation or an accelerator, and scores what was left out.
"""
_TOGETHER = 5  # rows that it takes to say that all have moved
_LIMITS = {"compute": "arithmetic", "memory": "memory", "network": "links", "overhead": "launches"}


@dataclass(frozen=True)
class Check:
    """One row: what was measured and what it should be, times [s] or rates.

    change: how much slower it is, as a share (below 0: faster); limit: the change from which it counts; detectable: the
    slow-down from which on it is missed by chance alone; cause: what a regression waits for, or where its time went;
    share: of the time of all rows.
    """

    name: str
    measured: float
    expected: float
    rate: bool
    change: float
    limit: float
    detectable: float
    share: float | None
    cause: str = ""

    @property
    def regressed(self) -> bool:
        """True if it is slower than its limit."""
        return self.change > self.limit


@dataclass(frozen=True)
class Guarded(Answer):
    """All rows of some files. against: `baseline` or `prediction`; noise: what the limits rest on, in words."""

    against: str
    checks: tuple[Check, ...]
    noise: str
    notes: tuple[str, ...] = ()
    version: str = __version__

    @property
    def regressions(self) -> tuple[Check, ...]:
        """The rows that are slower than their limits, the worst first."""
        return tuple(sorted((row for row in self.checks if row.regressed), key=lambda row: -row.change))

    def to_dict(self) -> Json:
        """The JSON of the command."""
        rows = [asdict(row) | {"regressed": row.regressed} for row in self.checks]
        told = {"noise": self.noise, "notes": list(self.notes), "version": self.version}
        return {"against": self.against, "regressed": len(self.regressions), "checks": rows, **told}


def guard(
    files: Sequence[str | PathLike[str]],
    baseline: Sequence[str | PathLike[str]] = (),
    *,
    noise: float | None = None,
    chance: float = 0.02,
    unit: str | None = None,
    **said: Value,
) -> Guarded:
    """Judge benchmark files by earlier runs of the same suite, or by the prediction where there are none.

    Args:
        files: runs of the change; several are repeats.
        baseline: earlier runs, likewise.
        noise: relative standard deviation of a reading for which neither repeats nor the file give one.
        chance: probability that a run to which nothing happened alarms at all.
        unit: of the values of a CSV whose header names none.
        **said: what the files leave out, as for `compare`; `gpu` and `engine` also of kernels.

    Raises:
        RooflinekitError: (one of its kinds) for a file that cannot be read, or if no row can be judged.
    """
    given = Given.of(**said)
    now = _gathered(files, unit)
    if baseline:
        return _by_baseline(now, _gathered(baseline, unit), noise, chance, given)
    return _by_prediction([row for rows in now.values() for row in rows], given)


def _gathered(files: Sequence[str | PathLike[str]], unit: str | None) -> dict[str, list[BenchmarkValue]]:
    found: dict[str, list[BenchmarkValue]] = {}
    for path in files:
        for row in read_readings(Path(path), unit):
            found.setdefault(row.name, []).append(row)
    return found


def _by_baseline(
    now: Mapping[str, list[BenchmarkValue]],
    before: Mapping[str, list[BenchmarkValue]],
    noise: float | None,
    chance: float,
    given: Given,
) -> Guarded:
    shared = [name for name in now if name in before]
    if not shared:
        first, other = next(iter(now)), next(iter(before))
        raise InputError(f"no row is in both: {first!r} is not in the baseline, which has {other!r}")
    own = {name: _deviation(now[name], before[name]) for name in shared}
    known = [deviation for deviation in own.values() if deviation is not None]
    usual = max(median(known), _FINEST) if known else noise or ASSUMED
    z = NormalDist().inv_cdf(1.0 - chance / len(shared))
    change = {name: _middle(now[name]) - _middle(before[name]) for name in shared}
    limits = {name: _limit(now[name], before[name], own[name], usual, z) for name in shared}
    moved = median(change.values()) if len(shared) >= _TOGETHER else 0.0
    total = sum(row.value for name in shared for row in now[name][:1] if _kernel(row))
    slower = [now[name][0] for name in shared if change[name] > limits[name]]
    found = _kernels(slower, given, Counter())
    causes = {row.name: one.cause(row.value, before[row.name][0].value, "before") for row, one in found}
    checks = []
    for name in shared:
        row, old, limit = now[name][0], before[name][0], limits[name]
        cause = causes.get(name) or _served_cause(row, old)
        if change[name] > limit > change[name] - moved:
            cause = "; ".join(filter(None, ("it moved with all rows: clock, power, driver or host", cause)))
        sign = -1.0 if row.rate else 1.0
        measured, expected = (math.exp(sign * _middle(rows)) for rows in (now[name], before[name]))
        share = row.value / total if _kernel(row) else None
        told = cause if change[name] > limit else ""
        checks.append(Check(name, measured, expected, row.rate, math.expm1(change[name]), math.expm1(limit),
                            math.expm1(2.0 * limit), share, told))  # fmt: skip
    notes = []
    if abs(moved) > RUN_TO_RUN:
        notes.append(f"all rows moved by {percent(math.expm1(moved), 1, signed=True)} in the median")
    for said, some, others in (("not in the baseline", now, before), ("not run again", before, now)):
        if lost := [name for name in some if name not in others]:
            notes.append(f"{len(lost)} {said}, {lost[0]!r} first")
    said_once = "as given" if noise else "assumed: rows were read once, and say no spread"
    source = f"median of {len(known)} rows" if known else said_once
    words = f"a reading varies by {percent(usual, 2)} ({source}); {percent(chance)} of runs without a change alarm"
    return Guarded("baseline", tuple(checks), words, tuple(notes))


def _kernel(row: BenchmarkValue) -> bool:
    """True if it is a time that adds up with others, not what users feel."""
    return not row.rate and row.run is None


def _middle(rows: Sequence[BenchmarkValue]) -> float:
    return fmean(row.slowness for row in rows)


def _deviation(now: Sequence[BenchmarkValue], before: Sequence[BenchmarkValue]) -> float | None:
    """Standard deviation of one reading: of repeated runs, else within a run, to which runs add their own."""
    freedom = len(now) + len(before) - 2
    if freedom:
        squares = sum((row.slowness - _middle(rows)) ** 2 for rows in (now, before) for row in rows)
        return math.sqrt(squares / freedom)
    spreads = [row.spread for row in (*now, *before) if row.spread is not None]
    return max(*spreads, RUN_TO_RUN) if spreads else None


def _limit(
    now: Sequence[BenchmarkValue], before: Sequence[BenchmarkValue], own: float | None, usual: float, z: float
) -> float:
    """Change of the logarithm from which a row is slower.

    A variance from few repeats is joined with the suite's as `_PRIOR` more (Smyth 2004, doi:10.2202/1544-6115.1027);
    Student's quantile is expanded about the normal one (Abramowitz and Stegun 26.7.5).
    """
    freedom = len(now) + len(before) - 2
    deviation, quantile = max(own or usual, usual), z
    if freedom and own is not None:
        n = freedom + _PRIOR
        deviation = math.sqrt((_PRIOR * usual**2 + freedom * own**2) / n)
        quantile += (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        quantile += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    return quantile * deviation * math.sqrt(1.0 / len(now) + 1.0 / len(before))


def _by_prediction(rows: Sequence[BenchmarkValue], given: Given) -> Guarded:
    if given.calibration == "none":
        raise InputError("the datasheet bound has no interval; leave --calibration none out, or give --baseline")
    lost: Counter[str] = Counter()
    (checks, fast), releases = _served(rows, given, lost), Counter[str]()
    total = sum(row.value for row in rows if _kernel(row))
    for row, predicted in _kernels(rows, given, lost):
        limit, detectable = _sound(predicted.expected, predicted.low, predicted.high)
        change = row.value / predicted.expected - 1.0
        if limit <= 0.0:
            lost["no calibration"] += 1
            continue
        cause = predicted.cause(row.value, predicted.expected, "predicted") if change > limit else ""
        judged = (change, limit, detectable, row.value / total, cause)
        checks.append(Check(row.name, row.value, predicted.expected, False, *judged))
        fast += row.value < predicted.bound
        releases[predicted.release] += 1
    if not checks:
        why = ", ".join(lost) or "no columns of a kernel table (op, gpu, dtype, m, n, k ...)"
        raise InputError(f"nothing can be predicted: {why}; give --baseline FILE")
    if left := len(rows) - len(checks) - sum(lost.values()):
        lost["no prediction has an interval for them"] += left
    if fast:
        lost["faster than the datasheet allows: a cache, or a measurement to look at"] = fast
    lost |= {said: count for said, count in releases.items() if said}
    words = f"the high end of the prediction's 90 % interval to the power {_BEYOND}; some 2 % of sound rows are slower"
    left_out = (f"{count} row{'' if count == 1 else 's'}: {said}" for said, count in lost.items())
    return Guarded("prediction", tuple(checks), words, tuple(left_out))


def _sound(expected: float, low: float, high: float) -> tuple[float, float]:
    """The change from which a row counts, and the slow-down that lifts the fastest sound row above it."""
    limit = float((high / expected) ** _BEYOND)
    return limit - 1.0, limit * float((expected / low) ** _BELOW) - 1.0


@dataclass(frozen=True)
class _Predicted:
    """A kernel's predicted time, its datasheet bound and the ends of its interval [s], and what it waits for.

    release: words on a release of the engine that is not the calibration's.
    """

    expected: float
    bound: float
    low: float
    high: float
    limit: str
    release: str

    def cause(self, value: float, other: float, said: str) -> str:
        """Resource that limits the kernel, and the share of the datasheet's rate that it reaches."""
        if self.limit == "overhead":
            return f"waits for {_LIMITS[self.limit]}: {other * 1e6:.3g} µs {said}"
        reached, should = percent(self.bound / value), percent(self.bound / other)
        return f"waits for {_LIMITS[self.limit]}: {reached} of the datasheet's rate, {should} {said}"


def _kernels(
    rows: Sequence[BenchmarkValue], given: Given, notes: Counter[str]
) -> list[tuple[BenchmarkValue, _Predicted]]:
    """The rows that say which kernel they are, each with its prediction."""
    usual = {"gpu": given.facts.gpu, "engine": given.facts.engine or "vllm"}
    by_operation: dict[str, list[dict[str, object]]] = {}
    for place, row in enumerate(rows):
        cells = {key.lower(): cell for key, cell in row.columns.items()}
        cells |= {key: cell for key, cell in usual.items() if cell is not None and not cells.get(key)}
        if (operation := str(cells.get("op", "")).lower()) in OPERATIONS and not row.rate:
            by_operation.setdefault(operation, []).append(cells | {"latency_us": row.value * 1e6, "place": place})

    found: list[tuple[BenchmarkValue, _Predicted]] = []
    for operation, listed in by_operation.items():
        table = groups.checked_table(Path(operation), operation, pd.DataFrame(listed), notes)
        table = table.sort_values("gpus", kind="stable") if "gpus" in table else table
        for group in groups.kernel_groups(operation, table) if len(table) else ():
            try:
                predicted = _group(group, given)
            except RooflinekitError as error:
                notes[str(error)] += len(group.table)
            else:
                found += [(rows[place], one) for place, one in zip(group.table["place"], predicted, strict=True)]
    return found


def _group(group: Group, given: Given) -> list[_Predicted]:
    asked = None if given.calibration is None else load_calibration(given.calibration)
    system, calibration = timed_with(group, asked, None)
    measured, timed = timed_rows(group, system, calibration)
    engine, _, release = calibration.engine.partition(" ") if calibration else ("", "", "")
    known = "engine_version" in group.table and engine == group.engine
    versions = group.table["engine_version"].fillna(release).astype(str) if known else [release] * len(group.table)
    judged = f"judged by a calibration of {release}"
    told = ["" if version == release else f"of {engine} {version}, {judged}" for version in versions]
    ends = [measured.joined(getattr(one, part) for one in timed) for part in ("expected", "bound", "low", "high")]
    split, named = [time_by_cause(one) for one in timed], list(_LIMITS)
    most = np.argmax([measured.joined(part[cause] for part in split) for cause in named], axis=0)
    return [
        _Predicted(float(expected), float(bound), float(low), float(high), named[cause], said)
        for expected, bound, low, high, cause, said in zip(*ends, most, told, strict=True)
    ]


def _served_cause(row: BenchmarkValue, old: BenchmarkValue) -> str:
    """Cause that made a serving run slower than another one, by the figures that tell steps from waiting."""
    if row.run is None or old.run is None:
        return ""
    what, figure, rest = "a step", "median gap between tokens", "prompts of others"
    now, before = row.run.itl.p50, old.run.itl.p50
    if row.metric == "ttft_ms":
        what, figure, rest = "its own prompt", "smallest TTFT", "waiting"
        now, before = row.run.ttft.low, old.run.ttft.low
    if not now or not before:
        return ""
    return f"{what} {percent(now / before - 1.0, 1, signed=True)} ({figure}), the rest is {rest}"


def _served(rows: Sequence[BenchmarkValue], given: Given, notes: Counter[str]) -> tuple[list[Check], int]:
    """TTFT and TPOT of serving runs against the interval under load, and how many figures beat the datasheet.

    Of a run that has neither, its latency and rate. The cause is the largest part of the gap.
    """
    runs: dict[int, tuple[MeasuredRun, list[BenchmarkValue]]] = {}
    for row in rows:
        if row.run is not None:
            runs.setdefault(id(row.run), (row.run, []))[1].append(row)
    found, beaten = list[Check](), 0
    for run, every in runs.values():
        own = [row for row in every if row.metric in ("ttft_ms", "tpot_ms")] or every
        posed = pose(run, given)
        expected = posed.predict()
        if posed.resolved.plan.calibration is None or expected.overloaded:
            notes["no calibration, or more load than can be served"] += len(own)
            continue
        for place, row in enumerate(own):  # of requests, where the user says what the file leaves out
            if row.metric == "request_s" and (output := posed.run.output_tok_s):
                name = row.name.removesuffix(_REQUESTS) + _OUTPUT
                own[place] = replace(row, name=name, value=output, metric="output_tok_s")
        own = [row for row in own if all(0.0 < end < math.inf for end in expected.ends.get(row.metric, (0.0,)))]
        beaten += sum(each.impossible for each in metrics_of(run, expected) if each.metric in _SERVED)
        gap, more = attribute(run, expected, posed.load), max(posed.load.osl.mean - 1.0, 1.0)
        for row in own:
            scale, (low, high) = 1.0 if row.rate else 1e-3, expected.ends[row.metric]
            predicted = getattr(expected, row.metric) * scale
            change, limits = row.value / predicted - 1.0, _sound(predicted, low * scale, high * scale)
            if row.rate:  # of which less is slower
                change, limits = predicted / row.value - 1.0, _sound(1.0 / predicted, 1.0 / high, 1.0 / low)
            check = Check(row.name, row.value, predicted, row.rate, change, *limits, None)
            found.append(replace(check, cause=_gap(row, predicted, gap, more) if gap and check.regressed else ""))
    return found, beaten


def _gap(row: BenchmarkValue, predicted: float, gap: Gap, more: float) -> str:
    """The two parts of what a metric of a run is above its prediction."""
    first = row.metric == "ttft_ms"
    other = (gap.queue_ms if first else gap.interference_ms / more) / 1e3
    own, names = row.value - predicted - other, ("prompt", "waiting") if first else ("step", "prompts of others")
    return f"{names[0]} {own * 1e3:+.3g} ms, {names[1]} {other * 1e3:+.3g} ms"

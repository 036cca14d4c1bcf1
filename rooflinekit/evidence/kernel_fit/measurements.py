"""Measurement files: what `rooflinekit validate` writes, one JSON object a line, read and checked.

The first line is the header, the last one says how the run ended; a run that was killed has none, and perhaps half a
line, which is left out. docs/validate.md explains every field.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.evidence.kernel_fit.tables import OPERATIONS
from rooflinekit.model.types.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SCHEMA", "STATUSES", "SUFFIX", "Measurements", "kernel_tables", "read_measurements"]

SCHEMA = 1
"""Version of the format; a reader refuses others."""
SUFFIX = ".jsonl"
STATUSES = ("ok", "oom", "missing", "failed")
"""ok; not enough memory; a backend that this machine lacks; an error, which `detail` says."""

_HEADER = {"schema": int, "run": str, "started": str, "suite": str, "model": str, "engine": str,
           "engine_version": str, "dtype": str, "device": dict}  # fmt: skip
_ROW = {"op": str, "backend": str, "status": str, "detail": str}
_TIMES = ("latency_us", "p10_us", "p90_us")
_NOT_SHAPE = {"type", "run", "key", *_ROW, *_TIMES, "launch", "repeats", "outliers", "samples_us"}


@dataclass(frozen=True)
class Measurements:
    """One run. `ending` is "complete", "budget" (time was up), "interrupted", or "" for a run that was killed."""

    path: Path
    header: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    ending: str

    def of(self, op: str) -> tuple[Mapping[str, Any], ...]:
        """The measured rows of one operation."""
        return tuple(row for row in self.rows if row["op"] == op and row["status"] == "ok")

    @property
    def counts(self) -> dict[str, int]:
        """Rows by status."""
        return dict(Counter(str(row["status"]) for row in self.rows))


def read_measurements(path: Path) -> Measurements:
    """Read one file, whole or cut off.

    Raises SpecError, by line and field, for another schema, rows of two runs, or a value that no measurement has.
    """
    if not path.is_file():
        raise SpecError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
    lines = list(_lines(path))
    if not lines or lines[0].get("type") != "header":
        raise SpecError(f"{path}: line 1 is not the header of a measurement file")
    header = lines[0]
    _check_header(path, header)
    rows, ending = [], ""
    for number, line in enumerate(lines[1:], start=2):
        if line.get("run") != header["run"]:
            raise SpecError(f"{path}: line {number}: run {line.get('run')!r} in a file of run {header['run']!r}")
        if line.get("type") == "end":
            ending = str(line.get("status"))
            continue
        _check_row(f"{path}: line {number}", line)
        rows.append(line)
        ending = ""
    return Measurements(path, header, tuple(rows), ending)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every line that was written in full."""
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True), 1):
        if not text.endswith("\n"):
            return
        try:
            line = json.loads(text)
        except ValueError:
            raise SpecError(f"{path}: line {number} is not JSON") from None
        if not isinstance(line, dict):
            raise SpecError(f"{path}: line {number} is not an object")
        yield line


def _check_header(path: Path, header: Mapping[str, Any]) -> None:
    if header.get("schema") != SCHEMA:
        raise SpecError(f"{path}: schema {header.get('schema')!r}; this version reads {SCHEMA}")
    _check_types(f"{path}: line 1", header, _HEADER)
    if not isinstance(header["device"].get("name"), str):
        raise SpecError(f"{path}: line 1: device.name is missing")


def _check_types(where: str, line: Mapping[str, Any], known: Mapping[str, type]) -> None:
    for name, kind in known.items():
        if not isinstance(line.get(name), kind):
            raise SpecError(f"{where}: {name} = {line.get(name)!r} is not a {kind.__name__}")


def _check_row(where: str, row: Mapping[str, Any]) -> None:
    _check_types(where, row, _ROW)
    if row["status"] not in STATUSES:
        raise SpecError(f"{where}: status {row['status']!r} is not one of {', '.join(STATUSES)}")
    if row["status"] != "ok":
        return
    for name in _TIMES:
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise SpecError(f"{where}: {name} = {value!r} is not a time above 0")
    if not row["p10_us"] <= row["latency_us"] <= row["p90_us"]:
        raise SpecError(f"{where}: latency_us is not between p10_us and p90_us")


def kernel_tables(found: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows that calibrations are fitted to, as one kernel table an operation.

    Of several backends that ran a shape the fastest counts, as in an engine that picks its kernels.
    """
    import pandas as pd  # noqa: PLC0415

    named = {"gpu": found.header["device"]["name"], "engine": found.header["engine"],
             "engine_version": found.header["engine_version"], "residency": "cold"}  # fmt: skip
    for operation in OPERATIONS:
        best: dict[str, Mapping[str, Any]] = {}
        for row in found.of(operation):
            shape = json.dumps({name: row[name] for name in row if name not in _NOT_SHAPE}, sort_keys=True)
            if shape not in best or row["latency_us"] < best[shape]["latency_us"]:
                best[shape] = row
        if best:
            plain = [{name: row[name] for name in row if name != "samples_us"} for row in best.values()]
            yield operation, pd.DataFrame(plain).assign(**named)

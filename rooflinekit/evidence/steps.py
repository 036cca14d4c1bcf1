"""Whole steps that `rooflinekit validate` measured, of its own models or of an engine, beside what `estimate` says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.evidence.kernel_fit.groups import STEPS, read_measurements
from rooflinekit.model.types.frozen import dataclass

if TYPE_CHECKING:
    from rooflinekit.estimation.results import Estimate

_ENGINE = "gpt-fast"  # PyTorch's own kernels without a server around them, as the decoder of validate runs


class StepPoint(NamedTuple):
    """B sequences: prompts of T tokens, or one more token each at T keys."""

    phase: str
    batch: int
    context: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> StepPoint:
        """Read the point of a row."""
        return cls(row["phase"], row["batch"], row["context"])

    @property
    def metric(self) -> str:
        """The metric of an estimate that a step of this phase is."""
        return "ttft_ms" if self.phase == "prefill" else "tpot_ms"

    @property
    def workload(self) -> dict[str, int]:
        """Keywords of `estimate` for this point."""
        if self.phase == "prefill":
            return {"batch": self.batch, "isl": self.context, "osl": 2}
        return {"batch": self.batch, "isl": self.context - 1, "osl": 2, "context": self.context}


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A row of a measurement file that holds a whole step, and the accelerator that it ran on, as the driver says."""

    source: str
    gpu: str
    row: Mapping[str, Any]

    @property
    def point(self) -> StepPoint:
        """The measured point."""
        return StepPoint.of(self.row)

    @property
    def tool(self) -> str:
        """Tool that measured the step."""
        return f"rooflinekit validate, {self.row['backend']}"


def read_steps(path: Path) -> list[MeasuredStep]:
    """The whole steps of a measurement file. Raises SpecError, by line, for a file that is none."""
    found = read_measurements(path)
    name = str(found.header["device"]["name"])
    rows = [row for operation in STEPS for row in found.of(operation)]
    return [MeasuredStep(f"{path.name}: {row['phase']} {row['mode']}", name, row) for row in rows]


@dataclass(frozen=True, slots=True)
class Compared:
    """One measured step beside the prediction for the whole model [ms]; `low` to `high` is its 90 % interval."""

    model: str
    point: StepPoint
    mode: str
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float
    extrapolated: bool  #: not all layers ran
    estimate: Estimate

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted_ms / self.measured_ms - 1.0


def compare_model(rows: Iterable[Mapping[str, Any]], gpu: str, calibration: str | None = None) -> Iterator[Compared]:
    """Predict every measured row of a step: the TTFT of a batch, or a decode step at its context."""
    from rooflinekit.estimation.estimator import estimate  # noqa: PLC0415 - points are measured where it cannot run

    for row in rows:
        point = StepPoint.of(row)
        work: OwnKeywords = {**point.workload, **deployment_of(row)}
        answer = estimate(row["model"], gpu, calibration=calibration, allow_oom=True, **work)
        predicted = getattr(answer, point.metric)
        low, high = (answer.interval or {}).get(point.metric) or (predicted, predicted)
        assert low is not None
        assert high is not None
        launches = sum(each.count for each in getattr(answer, point.phase).kernels)
        middle, least, most = (as_launched(row, each, launches) for each in (predicted, low, high))
        cut = row["layers_run"] < row["layers"]
        yield Compared(row["model"], point, row["mode"], row["whole_us"] / 1e3, middle, least, most, cut, answer)


def as_launched(row: Mapping[str, Any], fused_ms: float, launches: float) -> float:
    """The time [ms] of a step that is predicted as `launches` kernels and ran as those that the profiler counted.

    A graph of unfused kernels has a launch floor for each one more; launched one by one, it takes no less than the host
    needs to enqueue them all. Both costs are of this run's device. Rows without them (a CPU's) stay as predicted.
    """
    if "kernels" not in row:
        return fused_ms
    count = row["kernels"] * row["layers"] / row["layers_run"]
    return float(max(fused_ms + max(count - launches, 0.0) * row["floor_us"] / 1e3, count * row["enqueue_us"] / 1e3))


_LIMITS = ("engine_version", "token_budget", "max_num_seqs", "memory_fraction")
"""Columns of an engine's rows with its release and its limits."""


def deployment_of(row: Mapping[str, Any]) -> OwnKeywords:
    """Deployment of a row: which engine with which limits, all in one format, and with or without CUDA graphs.

    Prompts beyond the largest graph of a run (`graph_tokens`, where a row says it) were launched kernel by kernel.
    """
    formats = dict.fromkeys(("weights", "activations", "kv"), row["dtype"])
    beyond = row["phase"] == "prefill" and row["batch"] * row["context"] > row.get("graph_tokens", math.inf)
    limits = {name: row[name] for name in _LIMITS if "engine" in row and name in row}
    return {"engine": row.get("engine", _ENGINE), "eager": row["mode"] == "eager" or beyond, **formats, **limits}

"""Whole steps of models that ran, against the sum of their predicted kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rooflinekit.calibration.measurements import Measurements
from rooflinekit.specs import load_model
from rooflinekit.step import make_plan
from rooflinekit.timing.calibrated import Calibration
from rooflinekit.types.batch import Batch
from rooflinekit.types.deployment import Deployment
from rooflinekit.types.dtype import parse_dtype
from rooflinekit.types.hardware import System

__all__ = ["StepError", "step_errors"]


@dataclass(frozen=True)
class StepError:
    """One measured step and its prediction [s]; `low` to `high` is the 90 % interval of the sum of kernels."""

    model: str
    phase: str
    batch: int
    context: int
    mode: str  #: "eager" or "graph"
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Predicted / measured − 1."""
        return self.predicted / self.measured - 1.0


def step_errors(found: Measurements, system: System, calibration: Calibration) -> Iterator[StepError]:
    """Every model step of a measurement file: a prefill is TTFT without a queue, a decode step is TPOT."""
    for row in found.of("model"):
        dtype = parse_dtype(str(row["dtype"]))
        deployment = Deployment(weights=dtype, activations=dtype, kv=dtype)
        plan = make_plan(load_model(str(row["model"])).value, deployment, system, calibration)
        step = plan.time(_batch(row))
        yield StepError(
            str(row["model"]), str(row["phase"]), int(row["batch"]), int(row["context"]), str(row["mode"]),
            float(row["whole_us"]) * 1e-6, float(step.time), float(step.low), float(step.high),
        )  # fmt: skip


def _batch(row: Any) -> Batch:
    batch, context = float(row["batch"]), float(row["context"])
    return Batch.prefill(batch, context) if row["phase"] == "prefill" else Batch.decode(batch, context)

"""One engine step: a model on a deployment is a list of operations; a batch turns them into kernels and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooflinekit.kernels import Operation, Step
from rooflinekit.layers import Precision, check_deployment, model_operations, resolve_precision
from rooflinekit.roofline import StepTime, time_step
from rooflinekit.timing.calibrated import Calibration
from rooflinekit.types.batch import Batch
from rooflinekit.types.deployment import Deployment
from rooflinekit.types.hardware import System
from rooflinekit.types.kernel import Kernel
from rooflinekit.types.model import Model

__all__ = ["Plan", "make_plan"]


@dataclass(frozen=True)
class Plan:
    """A model on a deployment on a system, ready to cost any number of batches. Build it once with `make_plan`."""

    model: Model
    deployment: Deployment
    system: System
    precision: Precision
    calibration: Calibration | None
    operations: Mapping[Operation, int]

    def kernels(self, batch: Batch, grows: bool | None = None) -> list[Kernel]:
        """The launches of one step on one accelerator; `batch` is the sequences of one attention replica.

        `grows` picks the operations whose decode work depends on the context, or those whose work does not.
        """
        step = Step(batch, self.precision.stream, self.precision.kv, self.deployment.dp)
        chosen = [(op, n) for op, n in self.operations.items() if grows is None or op.grows is grows]
        return [kernel for op, count in chosen for kernel in op.kernels(step, count)]

    def time(self, batch: Batch, grows: bool | None = None) -> StepTime:
        """The same with times. Fields are scalars or arrays, as the batch is."""
        return time_step(self.kernels(batch, grows), self.system, self.calibration)


def make_plan(model: Model, deployment: Deployment, system: System, calibration: Calibration | None) -> Plan:
    """Check the split and the formats, and lay out the operations.

    Raises DeploymentError for a split that does not exist, DtypeError for a format the accelerator lacks.
    """
    check_deployment(model, deployment, system)
    precision = resolve_precision(model, deployment, system.accelerator)
    return Plan(
        model,
        deployment,
        system,
        precision,
        calibration,
        model_operations(model, deployment, precision, system.domain_size),
    )

"""One engine step: a model on a deployment is a list of operations; a batch turns them into kernels and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

from rooflinekit.model.execution import Iteration, changed, host_entries
from rooflinekit.model.kernels import Operation, Step
from rooflinekit.model.layers import (
    Precision,
    Shard,
    check_deployment,
    model_operations,
    resolve_precision,
    stage_operations,
)
from rooflinekit.model.roofline import StepTime, time_kernel
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.engine import IDEAL, Engine, StepCosts
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.model import Model
from rooflinekit.model.types.numeric import Numeric, ceil_div, maximum
from rooflinekit.model.types.time import KernelTime

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
    engine: Engine = IDEAL

    @property
    def shard(self) -> Shard:
        """How the model is cut for one accelerator, as the operations were laid out."""
        deployment = _as_run(self.deployment, self.system)
        return Shard(self.model.hidden, self.precision, deployment, self.system.domain_size)

    @property
    def token_budget(self) -> float:
        """Tokens that one engine step computes at most."""
        rule = self.engine.memory
        default = rule.default(rule.token_budget, self.system.accelerator)
        return float(self.deployment.settings.token_budget or default)

    @property
    def costs(self) -> StepCosts:
        """What the engine adds to kernels: nothing to the bound, and nothing on a CPU, since it was fitted on GPUs.

        How the engine works (graphs, mixed steps) stays.
        """
        own = self.engine.costs
        if self.calibration is None:
            return StepCosts(graphs=own.graphs, mixes=own.mixes)
        cpu = self.system.accelerator.is_cpu
        return StepCosts(graphs=own.graphs, mixes=own.mixes, interval=own.interval) if cpu else own

    def seen(self, batch: Batch) -> Step:
        """A step as one accelerator of the fullest attention replica sees it."""
        dp, cp = self.deployment.dp, self.deployment.cp
        return Step(batch, self.precision.stream, self.precision.kv, dp * cp * batch.filled, cp)

    def kernels(self, batch: Batch, grows: bool | None = None) -> list[Kernel]:
        """The launches of one step on one accelerator; `batch` is the sequences of one attention replica.

        `grows` picks the operations whose decode work depends on the context, or those whose work does not.
        """
        step = self.seen(batch)
        chosen = [(op, n) for op, n in self.operations.items() if grows is None or op.grows is grows]
        return [kernel for op, count in chosen for kernel in op.kernels(step, count)]

    def time(self, batch: Batch, grows: bool | None = None) -> StepTime:
        """The same with times, as the engine runs it. Fields are scalars or arrays, as the batch is.

        The work that does not depend on the context carries what the engine adds to a step.
        """
        costs = self.costs
        timed = self.run(batch, costs, grows)
        if grows or not timed:
            return StepTime(timed, costs.interval)
        iteration = self.iteration(batch)
        whole = timed if grows is None or not iteration.eager else self.run(batch, costs)
        return StepTime((*timed, *host_entries(costs, iteration, whole)), costs.interval)

    def run(self, batch: Batch, costs: StepCosts | None, grows: bool | None = None) -> tuple[KernelTime, ...]:
        """The kernels of a step with their times; with `costs`, as they run among their neighbours."""
        timed = (time_kernel(kernel, self.system, self.calibration) for kernel in self.kernels(batch, grows))
        return tuple(timed if costs is None else (changed(each, costs) for each in timed))

    def busiest_share(self, batch: Batch) -> tuple[Numeric, Numeric]:
        """Shares of a step's time and of its bound that the busiest pipeline stage takes.

        What an engine adds is shared as the kernels are.
        """
        stages = Counter(
            frozenset(
                stage_operations(self.model, self.deployment, self.precision, stage, self.system.domain_size).items()
            )
            for stage in range(self.deployment.pp)
        )
        timed = [(replace(self, operations=dict(held))._bare(batch), count) for held, count in stages.items()]
        shares = []
        for kind in ("expected", "bound"):
            times: list[Numeric] = [getattr(step, kind) for step, _ in timed]
            whole = sum((n * time for time, (_, n) in zip(times, timed, strict=True)), 0.0)
            shares.append(reduce(maximum, times) / whole)
        return shares[0], shares[1]

    def _bare(self, batch: Batch) -> StepTime:
        return StepTime(self.run(batch, None))

    @property
    def _together(self) -> int:
        """Accelerators that one engine step has to bring together: attention replicas only where they share experts."""
        deployment = self.deployment
        return deployment.gpus if deployment.ep > 1 else deployment.gpus // deployment.dp

    def iteration(self, batch: Batch) -> Iteration:
        """What the engine's loop turns over in this step."""
        new = batch.prefilling.tokens if batch.prefilling else 0.0
        return Iteration(
            passes=maximum(ceil_div(new, self.token_budget), 1.0),
            sequences=batch.sequences,
            layers=self.model.depth,
            gpus=self._together,
            eager=batch.prefilling is not None or not self.costs.graphs or self.deployment.settings.eager,
        )


def make_plan(
    model: Model, deployment: Deployment, system: System, calibration: Calibration | None, engine: Engine = IDEAL
) -> Plan:
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
        model_operations(model, _as_run(deployment, system), precision, system.domain_size),
        engine,
    )


def _as_run(deployment: Deployment, system: System) -> Deployment:
    """The all-reduce that engines take where none is named.

    Over PCI Express alone, vLLM and SGLang switch their custom kernel off for more than two accelerators, and NCCL's
    ring is left (custom_all_reduce.py in both).
    """
    if deployment.all_reduce != "auto" or deployment.tp <= _PAIR or not system.over_pcie:
        return deployment
    return deployment if deployment.sequence_parallel else replace(deployment, all_reduce="ring")


_PAIR = 2

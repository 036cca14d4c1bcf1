"""What a workbook calculates of one deployment, as nodes of the pool that all deployments share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from rooflinekit.model.graph.symbol import Pool, Symbol
from rooflinekit.model.graph.trace import flat
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan
from rooflinekit.model.traffic.closed_form import Traffic, open_loop
from rooflinekit.model.traffic.mixing import InFlight, Rotation, Shared, shared_times, slots
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.numeric import Numeric, maximum
from rooflinekit.model.types.time import ENDS, KernelTime, Time
from rooflinekit.model.types.workload import Workload

_CALLED = ("step", "share", "alone", "own")  # times of `Shared` that depend on how many requests run


def _labelling(labels: dict[Symbol, tuple[str, ...]]) -> type[Plan]:
    """Plans that tell which nodes are the times of which kernel."""

    class Labelled(Plan):
        def time(self, batch: Batch, grows: bool | None = None) -> StepTime:
            return self._labelled(batch, super().time(batch, grows))

        def _bare(self, batch: Batch) -> StepTime:
            return self._labelled(batch, super()._bare(batch))

        def _labelled(self, batch: Batch, timed: StepTime) -> StepTime:
            step = "prefill" if batch.decoding is None else "decode" if batch.prefilling is None else "mixed step"
            for name, kernel in _kernels(timed):
                for part in ENDS:
                    node = getattr(kernel, part)
                    if isinstance(node, Symbol):
                        labels.setdefault(node, (step, name, part))
            return timed

    return Labelled


def _kernels(step: StepTime) -> Iterable[tuple[str, KernelTime]]:
    """The kernels of a step by name; a second of the same name has a number."""
    seen: Counter[str] = Counter()
    for kernel in step.kernels:
        name = kernel.kernel.name
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name} {seen[name]}"), kernel


class Tracing:
    """Traces deployments, and remembers which nodes are the times of which kernel."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.labels: dict[Symbol, tuple[str, ...]] = {}
        self.plan = _labelling(self.labels)

    def outputs(self, bare: Predictor) -> dict[str, Any]:
        """A static batch, the times that requests share, and the deployment under load, by name."""
        plan = self.plan(**{entry.name: getattr(bare.plan, entry.name) for entry in fields(Plan)})
        predictor = replace(bare, plan=plan)
        given = {name: self._input(name) for name in ("isl", "osl", "cached")}
        work = Workload(self._input("batch"), **given)
        found: dict[str, Any] = {"gpus": float(plan.deployment.gpus)}
        point = predictor.evaluate(work)
        for step, timed in {"prefill": point.prefill, "decode": point.decode}.items():
            for name, kernel in _kernels(timed):
                found |= {f"kernel.{step}.{name}.{key}": value for key, value in _work(kernel).items()}
        found |= dict(flat({"ttft": point.ttft, "tpot": point.tpot, "memory": point.memory}))
        found |= {f"memory.{name}": getattr(point.memory, name) for name in ("overhead_bytes", "total_bytes", "fits")}
        shared = shared_times(predictor, InFlight(self._input("users"), **given))
        found |= {f"shared.{name}": value for name, value in flat(shared)}
        return found | self._load(predictor, shared)

    def _load(self, predictor: Predictor, shared: Shared) -> dict[str, Any]:
        """The open loop of the command line, in which the shared times are calls."""
        names = ("isl", "osl", "isl_cv", "osl_cv", "most", "cached")
        traffic = Traffic(**{name: self._input(name) for name in names}, arrival_cv=self._input("burstiness"))

        def known(running: Numeric) -> Shared:
            users = self.pool.lifted(maximum(running, 1.0))
            times: dict[str, Any] = {
                name: Time(*(self._called(f"shared.{name}.{part}", users) for part in ENDS)) for name in _CALLED
            }
            names = (entry.name for entry in fields(Rotation))
            turning = Rotation(*(self._called(f"shared.turning.{name}", users) for name in names))
            return replace(shared, **times, turning=turning)

        room: Any = slots(predictor, traffic.isl, traffic.osl, traffic.most)
        if not isinstance(room, Symbol) and room < 1.0:
            return {"slots": room}
        loaded = open_loop(predictor, self._input("rate"), traffic, known)
        return {"slots": room, **{f"load.{name}": value for name, value in flat(loaded)}}

    def _input(self, name: str) -> Any:
        return self.pool.variable(name)

    def _called(self, name: str, users: Symbol) -> Any:
        return self.pool.node("call", name, users)


def _work(kernel: KernelTime) -> dict[str, Any]:
    """All launches of a kernel: work, bytes and times."""
    done, count = kernel.kernel, kernel.kernel.count
    streamed = done.weight_bytes + done.cache_bytes
    work = {"flops": count * done.flops, "streamed": count * streamed, "activations": count * done.activation_bytes}
    return {"count": float(count), **work, **{part: getattr(kernel, part) for part in ENDS}}

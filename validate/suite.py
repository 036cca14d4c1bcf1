"""One run: ceilings, kernels and models within a time budget, each row written as soon as it is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from rooflinekit.evidence.kernel_fit.groups import read_measurements
from rooflinekit.model.types.errors import ArchitectureError
from rooflinekit.validate.case import Case
from rooflinekit.validate.ceilings import ceilings
from rooflinekit.validate.collective import all_reduce_rows
from rooflinekit.validate.device import Device
from rooflinekit.validate.model_run import open_bench
from rooflinekit.validate.plan import EXTENTS, kernel_cases
from rooflinekit.validate.points import remaining
from rooflinekit.validate.record import Recorder
from rooflinekit.validate.shapes import Extent, Rates
from rooflinekit.validate.timing import summary, time_work

__all__ = ["BUDGETS", "MODELS", "SUITES", "Run", "run_suite"]

BUDGETS = {"quick": 5.0, "full": 25.0, "ceilings": 5.0, "kernels": 20.0, "model": 10.0}
"""Minutes of each suite."""
SUITES = tuple(BUDGETS)
MODELS = {"cpu": "smollm2-135m", "cuda": "llama-3-8b"}
"""Whose layers are measured by default."""
_KERNELS_END, _CEILINGS_END = 0.75, 0.3
"""Shares of the budget by which kernels and ceilings make room for what follows."""
_QUICK_POINTS = 4
"""Points of a model that the quick suite measures: both phases."""
_SECONDS = {"quick": 0.08, "full": 0.25}
"""Time that the repeats of one kernel take."""
_MISSING = (ImportError, AttributeError, NotImplementedError)
_ABSENT = ("not available", "no available kernel", "not implemented", "could not run", "not compiled", "unsupported",
           "only supported on", "no kernel image")  # fmt: skip
"""How libraries say that a kernel does not exist here."""


@dataclass(frozen=True)
class Run:
    """What to do, and whom to tell. `deadline` is on the clock of time.monotonic()."""

    device: Device
    suite: str
    model: str
    recorder: Recorder
    deadline: float
    say: Callable[[str, int, int], None] = lambda name, number, of: None  #: what starts, its number, of how many
    extent: Extent | None = None  #: other than the suite's own

    @property
    def size(self) -> str:
        """How much to measure: "quick" or "full"."""
        return "quick" if self.suite == "quick" else "full"

    def until(self, share: float) -> Run:
        """The same, ending when that share of the time that is left has passed; alone, a part has all of it."""
        if self.suite not in ("quick", "full"):
            return self
        now = time.monotonic()
        return replace(self, deadline=now + share * (self.deadline - now))


def run_suite(run: Run) -> str:
    """Measure, and return how it ended: "complete", or "budget" if the time was up before."""
    whole = run.suite in ("quick", "full")
    done = []
    if whole or run.suite in ("ceilings", "kernels"):
        done.append(_run_ceilings(run.until(_CEILINGS_END)))
    if whole or run.suite == "kernels":
        done.append(_run_kernels(run.until(_KERNELS_END)))
    if whole or run.suite == "model":
        done.append(_run_model(run))
    return "complete" if all(done) else "budget"


def _run_ceilings(run: Run) -> bool:
    """Ceilings that are not in the file yet; whether the time sufficed."""
    planned = list(ceilings(run.device, quick=run.size == "quick" or run.suite == "kernels"))
    for number, (columns, take) in enumerate(planned):
        key = f"ceiling {sorted(columns.items())}"
        if key in run.recorder.done:
            continue
        if time.monotonic() > run.deadline:
            return False
        run.say(" ".join(map(str, columns.values())), number, len(planned))
        row = {"op": "ceiling", "backend": "torch", **columns, "key": key}
        run.recorder.row({**row, **_guarded(run.device, partial(take, _SECONDS[run.size]))})
    reduced = any(key.startswith("all_reduce") for key in run.recorder.done)
    if not reduced and time.monotonic() < run.deadline:
        run.say("all_reduce", len(planned), len(planned))
        for number, row in enumerate(list(all_reduce_rows(run.device, quick=run.size == "quick"))):
            run.recorder.row({**row, "key": f"all_reduce {number}"})
    return True


def _run_model(run: Run) -> bool:
    """Steps of the model that are not in the file yet; whether the time sufficed."""
    most = _QUICK_POINTS if run.suite == "quick" else None
    wanted = remaining(run.model, run.device.torch.type, run.recorder.done, most)
    if not wanted or time.monotonic() > run.deadline:
        return not wanted
    try:
        bench = open_bench(run.model, run.device)
    except (ArchitectureError, torch.OutOfMemoryError) as error:
        row = {"op": "model", "backend": "torch", "model": run.model, "key": f"model {run.model}"}
        status = "missing" if isinstance(error, ArchitectureError) else "oom"
        if row["key"] not in run.recorder.done:
            run.recorder.row({**row, "status": status, "detail": str(error)})
        return True
    for number, (point, mode) in enumerate(wanted):
        if time.monotonic() > run.deadline:
            return False
        run.say(f"{run.model} {point.phase} {point.batch}x{point.context} {mode}", number, len(wanted))
        measured = _guarded(run.device, partial(bench.measure, point, mode))
        run.recorder.row({**bench.label(point, mode), **measured})
    return True


def _run_kernels(run: Run) -> bool:
    """Kernels that are not in the file yet; whether the time sufficed, for the ceilings that place them too."""
    rates = _rates(run)
    if rates is None:
        return False
    extent = run.extent or EXTENTS["cuda" if run.device.is_cuda else "cpu", run.size]
    return run_cases(run, kernel_cases(run.model, run.device, rates, extent))


def _rates(run: Run) -> Rates | None:
    """The best that this run's ceilings show, to place shapes by their roofline time; None without them."""
    best: dict[str, float] = {}
    for row in read_measurements(run.recorder.path).of("ceiling"):
        if row.get("dtype", run.device.dtype) == run.device.dtype:
            best[row["kind"]] = max(best.get(row["kind"], 0.0), float(row["value"]))
    return Rates(best["gemm"], best["copy"]) if {"gemm", "copy"} <= best.keys() else None


def run_cases(run: Run, cases: Sequence[Case]) -> bool:
    """Measure the cases that are not in the file yet; whether the time sufficed."""
    for number, case in enumerate(cases):
        if case.key in run.recorder.done:
            continue
        if time.monotonic() > run.deadline:
            return False
        run.say(f"{case.op} {' '.join(str(value) for value in case.shape.values())}", number, len(cases))
        row = {"op": case.op, "backend": case.backend, **case.shape, "key": case.key}
        run.recorder.row({**row, **_measure(case, run)})
    return True


def _measure(case: Case, run: Run) -> dict[str, Any]:
    if 2.0 * case.bytes > run.device.free_bytes:
        return {"status": "oom", "detail": f"needs {case.bytes / 1e9:.1f} GB"}

    def take() -> dict[str, Any]:
        timing = time_work(case.build(), run.device, _SECONDS[run.size])
        return {"launch": timing.launch, **summary(timing.samples)}

    return _guarded(run.device, take)


def _guarded(device: Device, take: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was measured, or why nothing could be: one kernel that fails must not end a run."""
    try:
        with torch.inference_mode():
            return take()
    except (torch.OutOfMemoryError, MemoryError):
        return {"status": "oom", "detail": "out of memory"}
    except Exception as error:
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        absent = isinstance(error, _MISSING) or any(word in detail.lower() for word in _ABSENT)
        return {"status": "missing" if absent else "failed", "detail": detail}
    finally:
        if device.is_cuda:
            torch.cuda.empty_cache()  # a graph keeps its memory to itself until then

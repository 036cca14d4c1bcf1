"""One run: ceilings, kernels and models within a time budget, each row written as soon as it is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from rooflinekit.calibration.measurements import read_measurements
from rooflinekit.validate.case import Case
from rooflinekit.validate.ceilings import ceilings
from rooflinekit.validate.collective import all_reduce_rows
from rooflinekit.validate.device import Device
from rooflinekit.validate.model_run import GRID, measure_model
from rooflinekit.validate.plan import EXTENTS, kernel_cases
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
    say: Callable[[str], None] = lambda _: None
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
        grid = GRID[run.device.torch.type][: _QUICK_POINTS if run.suite == "quick" else None]
        measure_model(run.model, str(run.device.torch), _writer(run), run.deadline, grid)
        done.append(time.monotonic() < run.deadline)
    return "complete" if all(done) else "budget"


def _writer(run: Run) -> Callable[[Mapping[str, Any]], None]:
    """Writes a model's row once, whichever run of several it is."""

    def write(row: Mapping[str, Any]) -> None:
        run.say(f"{row.get('model', '')} {row.get('phase', '')} {row.get('batch', '')}x{row.get('context', '')}")
        if row.get("key") not in run.recorder.done:
            run.recorder.row(row)

    return write


def _run_ceilings(run: Run) -> bool:
    """Ceilings that are not in the file yet; whether the time sufficed."""
    for columns, take in ceilings(run.device, quick=run.size == "quick" or run.suite == "kernels"):
        key = f"ceiling {sorted(columns.items())}"
        if key in run.recorder.done:
            continue
        if time.monotonic() > run.deadline:
            return False
        run.say(" ".join(map(str, columns.values())))
        row = {"op": "ceiling", "backend": "torch", **columns, "key": key}
        run.recorder.row({**row, **_guarded(lambda take=take: take(_SECONDS[run.size]))})  # type: ignore[misc]
    if "all_reduce" not in run.recorder.done and time.monotonic() < run.deadline:
        run.say("all_reduce")
        for row in all_reduce_rows(run.device, quick=run.size == "quick"):
            run.recorder.row({**row, "key": "all_reduce"})
    return True


def _run_kernels(run: Run) -> bool:
    extent = run.extent or EXTENTS["cuda" if run.device.is_cuda else "cpu", run.size]
    return run_cases(run, kernel_cases(run.model, run.device, _rates(run), extent))


def _rates(run: Run) -> Rates:
    """The best that this run's ceilings show, to place shapes by their roofline time."""
    rows = read_measurements(run.recorder.path).of("ceiling")
    best = {
        kind: max(
            float(row["value"])
            for row in rows
            if row["kind"] == kind and row.get("dtype", run.device.dtype) == run.device.dtype
        )
        for kind in ("gemm", "copy")
    }
    return Rates(best["gemm"], best["copy"])


def run_cases(run: Run, cases: Iterable[Case]) -> bool:
    """Measure the cases that are not in the file yet; whether the time sufficed."""
    for case in cases:
        if case.key in run.recorder.done:
            continue
        if time.monotonic() > run.deadline:
            return False
        run.say(f"{case.op} {' '.join(str(value) for value in case.shape.values())}")
        row = {"op": case.op, "backend": case.backend, **case.shape, "key": case.key}
        run.recorder.row({**row, **_measure(case, run)})
    return True


def _measure(case: Case, run: Run) -> dict[str, Any]:
    if 2.0 * case.bytes > run.device.free_bytes:
        return {"status": "oom", "detail": f"needs {case.bytes / 1e9:.1f} GB"}

    def take() -> dict[str, Any]:
        timing = time_work(case.build(), run.device, _SECONDS[run.size])
        return {"launch": timing.launch, **summary(timing.samples)}

    try:
        return _guarded(take)
    finally:
        if run.device.is_cuda:
            torch.cuda.empty_cache()  # a graph keeps its memory to itself until then


def _guarded(take: Callable[[], dict[str, Any]]) -> dict[str, Any]:
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

"""One run: ceilings, kernels and models within a time budget, each row written as soon as it is known."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rooflinekit.validate.case import TimedCase, why_not
from rooflinekit.validate.ceilings import bandwidth, ceilings, collective_rows, rate
from rooflinekit.validate.device import Device
from rooflinekit.validate.engine_run import engine_points, key_of_step, open_engine
from rooflinekit.validate.model_run import open_bench
from rooflinekit.validate.plan import EXTENTS, CeilingRates, kernel_cases
from rooflinekit.validate.points import remaining
from rooflinekit.validate.record import RowSink
from rooflinekit.validate.timing import LONG, UncapturableError, summary, sustained, time_work

BUDGETS = {"quick": 5.0, "full": 25.0, "ceilings": 5.0, "kernels": 20.0, "model": 10.0, "engine": 15.0}
"""Minutes of each suite."""
MODELS = {"cpu": "smollm2-135m", "cuda": "llama-3-8b"}
"""Whose layers are measured by default."""
_KERNELS_END, _CEILINGS_END = 0.75, 0.3
"""Shares of the budget by which kernels and ceilings make room for what follows."""
_QUICK_POINTS = 4
"""Points of a model that the quick suite measures: both phases."""
_EVERY = 60.0
"""Seconds between sentinels."""
_SECONDS = {"quick": 0.08, "full": 0.25}
"""Time that the repeats of one kernel take."""
_SUSTAINED = 3
"""Shapes of each kernel that get a sustained pass: what power they reach depends on the kernel more than on the shape,
and every pass takes the time of several rows."""

Take = Callable[[], Mapping[str, Any]]


class DeviceFaultError(RuntimeError):
    """A kernel has left the GPU unusable for this process."""


@dataclass(frozen=True)
class SuiteRun:
    """What to do, and whom to tell. `deadline` is on the clock of time.monotonic()."""

    device: Device
    suite: str
    model: str
    recorder: RowSink
    deadline: float
    say: Callable[[str, int, int], None] = lambda name, number, of: None  #: what starts, its number, of how many
    eager: frozenset[str] = frozenset()  #: kernels that no graph can hold
    wrong: Mapping[str, str] = field(default_factory=dict)  #: kernels that failed their check, and how

    @property
    def size(self) -> str:
        """How much to measure: "quick" or "full"."""
        return "quick" if self.suite == "quick" else "full"

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.deadline

    def until(self, share: float) -> SuiteRun:
        """The same, ending when that share of the time that is left has passed; alone, a part has all of it."""
        if self.suite not in ("quick", "full"):
            return self
        now = time.monotonic()
        return replace(self, deadline=now + share * (self.deadline - now))


def run_suite(run: SuiteRun) -> str:
    """Measure, and return how it ended: "complete", or "budget" if the time was up before."""
    whole = run.suite in ("quick", "full")
    done = []
    if whole or run.suite in ("ceilings", "kernels"):
        done.append(_run_ceilings(run.until(_CEILINGS_END)))
    if whole or run.suite == "kernels":
        done.append(_run_kernels(run.until(_KERNELS_END)))
    if whole or run.suite == "model":
        done.append(_run_model(run))
    if run.suite == "engine":
        done += [_run_engine(run, engine) for engine in ("vllm", "sglang")]
    return "complete" if all(done) else "budget"


def _each(run: SuiteRun, planned: Sequence[tuple[str, Mapping[str, Any], Take]]) -> bool:
    """Measure what is planned and not in the file yet, each with its name and row; whether the time sufficed."""
    for number, (name, row, take) in enumerate(planned):
        if row["key"] in run.recorder.done:
            continue
        if run.over:
            return False
        run.say(name, number, len(planned))
        _record(run, row, take)
    return True


def _run_ceilings(run: SuiteRun) -> bool:
    planned = [
        (" ".join(map(str, columns.values())),
         {"op": "ceiling", "backend": "torch", **columns, "key": f"ceiling {sorted(columns.items())}"},
         partial(take, _SECONDS[run.size]))
        for columns, take in ceilings(run.device, quick=run.size == "quick" or run.suite == "kernels")
    ]  # fmt: skip
    if not _each(run, planned):
        return False
    if not run.over and not any(key.startswith("all_reduce") for key in run.recorder.done):
        run.say("all_reduce", len(planned), len(planned))
        run.recorder.begin({"op": "ceiling", "backend": "all_reduce", "key": "all_reduce"})
        for number, row in enumerate(collective_rows(run.device, quick=run.size == "quick")):
            run.recorder.row({**row, "key": f"all_reduce {number}"})
    return True


def _run_model(run: SuiteRun) -> bool:
    """Steps of the model that are not in the file yet; whether the time sufficed."""
    most = _QUICK_POINTS if run.suite == "quick" else None
    wanted = remaining(run.model, run.device.torch.type, run.recorder.done, most)
    row = {"op": "model", "backend": "torch", "model": run.model, "key": f"model {run.model}"}
    return _run_steps(run, row, wanted, lambda: open_bench(run.model, run.device))


def _run_engine(run: SuiteRun, engine: str) -> bool:
    """Steps of an engine, or a row that it is not installed here; whether the time sufficed.

    Each engine has a process of its own: the next one starts when no point of the first is left.
    """
    done = run.recorder.done
    row = {"op": "serving_step", "backend": engine, "engine": engine, "model": run.model, "key": f"engine {engine}"}
    wanted = [(point,) for point in engine_points() if key_of_step(engine, run.model, point) not in done]
    with tempfile.TemporaryDirectory() as folder:
        return _run_steps(run, row, wanted, lambda: open_engine(engine, run.model, run.device, Path(folder)))


def _run_steps(
    run: SuiteRun, row: Mapping[str, Any], wanted: Sequence[tuple[Any, ...]], opened: Callable[[], Any]
) -> bool:
    """The wanted steps of what is opened, or the row with the reason why it cannot be."""
    if not wanted or row["key"] in run.recorder.done:
        return True
    if run.over:
        return False
    run.recorder.begin(row)
    try:
        bench = opened()
    except Exception as error:
        run.recorder.row({**row, **why_not(error)})
        return True
    labels = [bench.label(*step) for step in wanted]
    return _each(run, [
        (f"{run.model} {each['phase']} {each['batch']}x{each['context']} {each['mode']}", each,
         partial(bench.measure, *step)) for step, each in zip(wanted, labels, strict=True)
    ])  # fmt: skip


def _run_kernels(run: SuiteRun) -> bool:
    """Kernels that are not in the file yet; whether the time sufficed, for the ceilings that place them too."""
    rates = _rates(run)
    if rates is None:
        return False
    extent = EXTENTS["cuda" if run.device.is_cuda else "cpu", run.size]
    return run_cases(run, kernel_cases(run.model, run.device, rates, extent))


def _rates(run: SuiteRun) -> CeilingRates | None:
    """The best that this run's ceilings show, to place shapes by their roofline time; None without them."""
    best = run.recorder.best
    return CeilingRates(best["gemm"], best["copy"]) if {"gemm", "copy"} <= best.keys() else None


def run_cases(run: SuiteRun, cases: Sequence[TimedCase]) -> bool:
    """Measure the cases that are not in the file yet; whether the time sufficed."""
    sentinels, next_one = sum(key.startswith("sentinel") for key in run.recorder.done), 0.0
    sustained_passes: Counter[str] = Counter()
    for number, case in enumerate(cases):
        if case.key in run.recorder.done:
            continue
        if run.over:
            return False
        if time.monotonic() > next_one:
            for row, take in _sentinels(run.device, sentinels):
                _record(run, row, take)
            sentinels, next_one = sentinels + 2, time.monotonic() + _EVERY
        run.say(f"{case.op} {' '.join(str(value) for value in case.shape.values())}", number, len(cases))
        row = {**case.named, **case.shape, "key": case.key}
        if case.kernel in run.wrong:
            run.recorder.row({**row, "status": "failed", "detail": run.wrong[case.kernel]})
        elif 2.0 * case.bytes > run.device.free_bytes:
            run.recorder.row({**row, "status": "oom", "detail": f"needs {case.bytes / 1e9:.1f} GB"})
        else:
            _record(run, row, partial(_timed, case, run, sustained_passes))
    return True


def _timed(case: TimedCase, run: SuiteRun, passes: Counter[str]) -> dict[str, Any]:
    """A burst of passes with what the board says meanwhile, the warm time, and a sustained pass of long kernels.

    `passes` counts the sustained passes of each kernel.
    """
    with run.device.watched() as board:
        timing = time_work(case.build(), run.device, _SECONDS[run.size], eager=case.kernel in run.eager)
    board.pop("power_w", None)  # of making inputs and compiling as well; a sustained pass shows the kernel's
    row = {"launch": timing.launch, **summary(timing.samples), "warm_us": float(f"{1e6 * timing.warm:.6g}"), **board}
    enough = run.size == "quick" or passes[case.kernel] >= _SUSTAINED
    if timing.again is None or enough or min(timing.samples) < LONG:
        return row
    passes[case.kernel] += 1
    return {**row, **sustained(timing, run.device)}


def _sentinels(device: Device, number: int) -> Iterator[tuple[dict[str, Any], Take]]:
    """The same product and the same copy again: what they gain or lose, every row beside them has."""
    size, exponent = (4096, 28) if device.is_cuda else (512, 22)

    def watched(take: Callable[[float], dict[str, Any]]) -> dict[str, Any]:
        with device.watched() as board:
            row = take(_SECONDS["quick"])
        return {**row, **board}

    for columns, take in (
        ({"kind": "gemm", "size": size}, partial(rate, device.dtype, size, device)),
        ({"kind": "copy", "bytes": 2**exponent}, partial(bandwidth, "copy", 2**exponent, device)),
    ):
        key = f"sentinel {number} {columns}"
        yield {"op": "sentinel", "backend": "torch", **columns, "number": number, "key": key}, partial(watched, take)


def _record(run: SuiteRun, row: Mapping[str, Any], take: Take) -> None:
    """Write what was measured, or why nothing could be: one kernel that fails must not end a run.

    Raises DeviceFaultError where the GPU no longer answers, and UncapturableError; a new process has to go on then.
    """
    run.recorder.begin(row)
    measured: Mapping[str, Any]
    try:
        with torch.inference_mode():
            measured = take()
    except UncapturableError:
        raise
    except Exception as error:
        measured = why_not(error)
    if run.device.is_cuda:
        try:  # give memory back that a graph has kept to itself; what a faulting kernel left behind shows here
            run.device.synchronize()
            torch.cuda.empty_cache()
        except Exception as error:
            raise DeviceFaultError(measured.get("detail") or why_not(error)["detail"]) from None
    run.recorder.row({**row, **measured})

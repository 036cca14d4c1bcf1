"""Measured models beside the prediction: TTFT and TPOT of every point, and where the time of a step went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooflinekit.estimation.estimator import estimate, read_deployment, resolve
from rooflinekit.model.step import make_plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.units import format_time
from rooflinekit.report.document import aligned
from rooflinekit.validate.attribution import Line, Spent, causes, classes
from rooflinekit.validate.points import Point, spread_layers

_ENGINE = "gpt-fast"  # PyTorch's own kernels without a server around them, as the decoder runs


@dataclass(frozen=True, slots=True)
class Compared:
    """One measured point beside the prediction for the whole model [ms]; `low` to `high` is its 90 % interval."""

    model: str
    point: Point
    mode: str
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float
    extrapolated: bool  #: not all layers ran

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted_ms / self.measured_ms - 1.0


def compare_model(rows: Iterable[Mapping[str, Any]], gpu: str, calibration: str | None = None) -> Iterator[Compared]:
    """Predict every measured row of op "model" or "serving_step": the TTFT of a batch, or a decode step at its context.

    Raises InputError (and its kinds) as `estimate` does.
    """
    for row in rows:
        point = Point(row["phase"], row["batch"], row["context"])
        metric, work = _question(point)
        answer = estimate(row["model"], gpu, calibration=calibration, allow_oom=True, **_deployment(row), **work)
        predicted = getattr(answer, metric)
        low, high = (answer.interval or {}).get(metric) or (predicted, predicted)
        assert low is not None
        assert high is not None
        cut = row["layers_run"] < row["layers"]
        launches = sum(each.count for each in getattr(answer, point.phase).kernels)
        middle, least, most = (as_launched(row, each, launches) for each in (predicted, low, high))
        yield Compared(row["model"], point, row["mode"], row["whole_us"] / 1e3, middle, least, most, cut)


def as_launched(row: Mapping[str, Any], fused_ms: float, launches: float) -> float:
    """The time [ms] of a step that is predicted as `launches` kernels and ran as those that the profiler counted.

    A graph of unfused kernels has a launch floor for each one more; launched one by one, it takes no less than the host
    needs to enqueue them all. Both costs are of this run's device. Rows without them (a CPU's) stay as predicted.
    """
    if "kernels" not in row:
        return fused_ms
    count = row["kernels"] * row["layers"] / row["layers_run"]
    return max(fused_ms + max(count - launches, 0.0) * row["floor_us"] / 1e3, count * row["enqueue_us"] / 1e3)


def _deployment(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row ran as: which engine, everything in one format, and with or without CUDA graphs."""
    formats = dict.fromkeys(("weights", "activations", "kv"), row["dtype"])
    return {"engine": row.get("engine", _ENGINE), "eager": row["mode"] == "eager", **formats}


def _question(point: Point) -> tuple[str, dict[str, Any]]:
    """The metric of an estimate that a point measures, and the workload to ask for."""
    if point.phase == "prefill":
        return "ttft_ms", {"batch": point.batch, "isl": point.context, "osl": 1}
    return "tpot_ms", {"batch": point.batch, "isl": point.context - 1, "osl": 2, "context": point.context}


def comparison_table(compared: Sequence[Compared]) -> list[str]:
    """One line a point: measured, predicted, its interval, and the error; a star where not all layers ran."""
    header = ["model", "phase", "batch", "tokens", "mode", "measured", "predicted", "90 % interval", "error"]
    cells = [
        [c.model, c.point.phase, str(c.point.batch), str(c.point.context), c.mode,
         _ms(c.measured_ms) + "*" * c.extrapolated, _ms(c.predicted_ms), f"{_ms(c.low_ms)} – {_ms(c.high_ms)}",
         f"{c.error:+.0%}"]
        for c in compared
    ]  # fmt: skip
    cut = any(c.extrapolated for c in compared)
    note = ["* not all layers fit: extrapolated by the slope between two depths"] if cut else []
    return [*aligned(header, cells, left=(0, 1, 4)), *note]


def _ms(value: float) -> str:
    return format_time(value / 1e3)


def explain(row: Mapping[str, Any], gpu: str, calibration: str | None = None) -> tuple[list[Line], list[Line]]:
    """Where one measured step went, by cause and by class of work, beside the prediction for the layers that ran.

    The events come from a run under the profiler, whose host time is larger than without it.
    """
    plan = resolve(row["model"], gpu, read_deployment(_deployment(row)), calibration).plan
    run = spread_layers(plan.model, row["layers_run"])
    plan = make_plan(run, plan.deployment, plan.system, plan.calibration, plan.engine)
    B, T = float(row["batch"]), float(row["context"])
    step = plan.time(Batch.prefill(B, T) if row["phase"] == "prefill" else Batch.decode(B, T))
    spent = Spent(row["busy_us"], row["launch_us"], row["host_us"])
    return causes(spent, step), classes(spent, step)


def breakdown_table(lines: Sequence[Line], title: str = "") -> list[str]:
    """One line a cause or class: measured, predicted, and what the model missed."""
    cells = [
        [line.what, *(format_time(us / 1e6) for us in (line.measured_us, line.predicted_us)), _signed(line.missed_us)]
        for line in lines
    ]
    return aligned([title, "measured", "predicted", "missed"], cells)


def _signed(us: float) -> str:
    return ("-" if us < 0 else "+") + format_time(abs(us) / 1e6)


def model_report(rows: Sequence[Mapping[str, Any]], gpu: str, calibration: str | None = None) -> list[str]:
    """All points beside their prediction, then the time by cause and class of the first prefill and the first decode.

    Raises InputError (and its kinds) as `estimate` does.
    """
    lines = comparison_table(list(compare_model(rows, gpu, calibration)))
    for row in {row["phase"]: row for row in reversed(rows)}.values():
        by_cause, by_class = explain(row, gpu, calibration)
        first = max(by_cause, key=lambda line: abs(line.missed_us))
        lines += [
            "", f"{row['phase']} {row['batch']} x {row['context']}, {row['mode']}, under the profiler; "
            f"missed most: {first.what} ({_signed(first.missed_us)})",
            *breakdown_table(by_cause, "cause"), "", *breakdown_table(by_class, "work"),
        ]  # fmt: skip
    return lines

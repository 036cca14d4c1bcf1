"""Measured models beside the prediction: TTFT and TPOT of every point, and where the time of a step went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.evidence.steps import Compared, compare_model, deployment_of
from rooflinekit.model.step import make_plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.units import format_time
from rooflinekit.report.document import CellTable
from rooflinekit.validate.attribution import Line, StepShares, causes, classes
from rooflinekit.validate.points import spread_layers


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
    return [*CellTable(header, cells, left=(0, 1, 4)).text(), *note]


def _ms(value: float) -> str:
    return format_time(value / 1e3)


def explain(row: Mapping[str, Any], gpu: str, calibration: str | None = None) -> tuple[list[Line], list[Line]]:
    """Where one measured step went, by cause and by class of work, beside the prediction for the layers that ran.

    The events come from a run under the profiler, whose host time is larger than without it.
    """
    plan = resolve(row["model"], gpu, read_deployment(deployment_of(row)), calibration).plan
    run = spread_layers(plan.model, row["layers_run"])
    plan = make_plan(run, plan.deployment, plan.system, plan.calibration, plan.engine)
    B, T = float(row["batch"]), float(row["context"])
    step = plan.time(Batch.prefill(B, T) if row["phase"] == "prefill" else Batch.decode(B, T))
    spent = StepShares(row["busy_us"], row["launch_us"], row["host_us"])
    return causes(spent, step), classes(spent, step)


def breakdown_table(lines: Sequence[Line], title: str = "") -> list[str]:
    """One line a cause or class: measured, predicted, and what the model missed."""
    cells = [
        [line.what, *(format_time(us / 1e6) for us in (line.measured_us, line.predicted_us)), _signed(line.missed_us)]
        for line in lines
    ]
    return CellTable([title, "measured", "predicted", "missed"], cells).text()


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

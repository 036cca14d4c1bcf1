"""Measured runs as rows of a fit: times, and their prediction under any engine costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rooflinekit.evidence.benchmark_runs import Posed
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.simulation.interference import Interference, LoadPrediction

__all__ = ["METRICS", "Case", "case_of"]

METRICS = ("ttft_ms", "tpot_ms", "output_tok_s")


@dataclass(frozen=True)
class Case:
    """One run of the file number `file`; measured: metric -> time [s], that of a token for throughput."""

    posed: Posed
    replicas: int
    file: int
    measured: dict[str, float]
    running: float

    def times(self, costs: StepCosts) -> list[float]:
        """What was measured, as predicted with these costs [s]; infinite for the TTFT of an unstable load."""
        found = _predict(self.posed, costs)
        times = {
            "ttft_ms": found.ttft_ms / 1e3,
            "tpot_ms": found.tpot_ms / 1e3,
            "output_tok_s": 1.0 / (found.output_tok_s * self.replicas),
        }
        return [times[name] for name in self.measured]


def case_of(posed: Posed, replicas: int, file: int) -> Case:
    """The rows of a run: TTFT and TPOT; throughput only where TPOT is missing, since it follows from them.

    In an open loop throughput is the rate and says nothing.

    Raises DoesNotFitError if the prediction has no room for one request.
    """
    run = posed.run
    times: dict[str, float] = {}
    for name, spread in (("ttft_ms", run.ttft), ("tpot_ms", run.tpot)):
        value = spread.middle[1]
        if value and (name == "ttft_ms" or posed.load.osl > 1):
            times[name] = value / 1e3
    if run.output_tok_s and "tpot_ms" not in times and posed.load.rate is None:
        times["output_tok_s"] = 1.0 / run.output_tok_s
    return Case(posed, replicas, file, times, _predict(posed, posed.resolved.plan.engine.costs).running)


def _predict(posed: Posed, costs: StepCosts) -> LoadPrediction:
    plan, memory = posed.resolved.plan, posed.resolved.predictor.memory
    changed = replace(plan, engine=replace(plan.engine, costs=costs))
    return Interference(Predictor(changed, memory)).predict(posed.load)


def numbered(cases: Sequence[Case]) -> list[tuple[str, int]]:
    """Metric and file of every row."""
    return [(name, case.file) for case in cases for name in case.measured]

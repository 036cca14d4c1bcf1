"""Measured benchmark files against prediction, and what the gap between them is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rooflinekit.estimation.estimator import Resolved
from rooflinekit.evidence.benchmark_runs import Given, known_facts, pose, resolve_facts, room_of
from rooflinekit.evidence.gap import Gap, attribute
from rooflinekit.evidence.measured import Facts, Measurement, StartUp, read_measurements
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.simulation.interference import Interference, LoadPrediction, LoadPredictor
from rooflinekit.version import __version__

__all__ = ["Comparison", "Given", "Metric", "Run", "compare"]


_EQUAL = (
    "the file does not say how output lengths vary; equal ones are taken, whose users start every turn together, and a "
    "small --osl-cv shortens TTFT much"
)


@dataclass(frozen=True)
class Metric:
    """One figure; `error` is (predicted − measured) / measured. `statistic` says what the file gave."""

    metric: str
    statistic: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Signed relative error of the prediction."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class Run:
    """One measured run beside its prediction. `gap` is None where TTFT or TPOT was not measured."""

    source: str
    tool: str
    facts: Facts
    metrics: tuple[Metric, ...]
    gap: Gap | None
    notes: tuple[str, ...]
    calibration: dict[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON of one run."""
        rows = [asdict(metric) | {"error": metric.error} for metric in self.metrics]
        data = {"source": self.source, "tool": self.tool, **asdict(self.facts), "metrics": rows}
        data |= {"gap": self.gap.to_dict() if self.gap else None, "notes": list(self.notes)}
        return data | {"calibration": self.calibration, "version": __version__}


@dataclass(frozen=True)
class Comparison:
    """All runs of some files, and what could not be compared, with the reason."""

    runs: tuple[Run, ...]
    failed: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of the command."""
        return {"runs": [run.to_dict() for run in self.runs], "failed": dict(self.failed)}


def compare(
    files: Sequence[Path],
    given: Given,
    predictor: Callable[[Predictor], LoadPredictor] = Interference,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Read files, predict each run of them, and set both side by side.

    A start-up log among the files caps the running batch of the others by the tokens that the engine's cache held.

    Args:
        files: results of benchmark clients, and start-up logs.
        given: what the files leave out.
        predictor: turns a plan with its memory into a prediction under load.
        progress: called with the name of each run.

    Raises:
        RooflinekitError: (one of its kinds) if no run can be compared; otherwise failures are listed.
    """
    entries, failures = _read(files)
    room = room_of(entries)
    runs = []
    for entry in entries:
        if progress is not None:
            progress(entry.source)
        try:
            runs.append(_memory(entry, given) if isinstance(entry, StartUp) else _run(entry, given, predictor, room))
        except RooflinekitError as error:
            failures[entry.source] = error
    if not runs and failures:
        raise next(iter(failures.values()))
    return Comparison(tuple(runs), {name: str(error) for name, error in failures.items()})


def _read(files: Sequence[Path]) -> tuple[list[Measurement | StartUp], dict[str, RooflinekitError]]:
    entries: list[Measurement | StartUp] = []
    failures: dict[str, RooflinekitError] = {}
    for path in files:
        try:
            entries += read_measurements(path)
        except RooflinekitError as error:
            failures[str(path)] = error
    return entries, failures


def _run(run: Measurement, given: Given, predictor: Callable[[Predictor], LoadPredictor], room: int | None) -> Run:
    posed = pose(run, given, room)
    resolved, load = posed.resolved, posed.load
    one = predictor(resolved.predictor).predict(load)
    expected = replace(one, output_tok_s=one.output_tok_s * given.replicas)
    notes = [*run.notes, *([expected.note] if expected.note else []), *resolved.warnings]
    together = not resolved.plan.costs.mixes and load.rate is None and (load.users or 1) > 1
    if together and posed.facts.osl_cv is None:
        notes.append(_EQUAL)
    gap = attribute(run, expected, load)
    return Run(
        run.source,
        run.tool,
        replace(posed.facts, model=resolved.plan.model.name, gpu=resolved.plan.system.accelerator.name),
        tuple(_metrics(run, expected)),
        gap,
        tuple(notes + list(gap.notes if gap else ())),
        _calibration(resolved),
    )


def _calibration(resolved: Resolved) -> dict[str, str] | None:
    used = resolved.plan.calibration
    return {"name": used.name, "hash": used.hash} if used else None


def _metrics(run: Measurement, expected: LoadPrediction) -> list[Metric]:
    spreads = {
        "ttft_ms": (run.ttft, expected.ttft_ms),
        "tpot_ms": (run.tpot, expected.tpot_ms),
        "e2e_ms": (run.e2e, expected.e2e_ms),
    }
    found = []
    for name, (spread, predicted) in spreads.items():
        statistic, measured = spread.middle
        if measured:
            found.append(Metric(name, statistic, measured, predicted))
    if run.output_tok_s:
        found.append(Metric("output_tok_s", "mean", run.output_tok_s, expected.output_tok_s))
    return found


def _memory(log: StartUp, given: Given) -> Run:
    """A start-up log: weights, and cache a token, of one accelerator."""
    facts = known_facts(log.source, Facts(), given.facts, ("model", "gpu", "tp"))
    resolved = resolve_facts(facts, given)
    memory = resolved.predictor.memory
    short, long = (memory.evaluate(1.0, tokens, 1.0) for tokens in (8192.0, 16384.0))
    a_token = float(long.kv_bytes - short.kv_bytes) / 8192.0
    found = []
    if log.weight_bytes:
        found.append(Metric("weight_bytes", "log", log.weight_bytes, float(short.weight_bytes)))
    if log.kv_bytes and log.kv_tokens and not math.isclose(a_token, 0.0):
        found.append(Metric("kv_bytes_per_token_per_gpu", "log", log.kv_bytes / log.kv_tokens, a_token))
    notes = (f"the cache holds {log.kv_tokens:,} tokens",) if log.kv_tokens else ()
    named = replace(facts, model=resolved.plan.model.name, gpu=resolved.plan.system.accelerator.name)
    return Run(log.source, "vllm start-up log", named, tuple(found), None, (*notes, *resolved.warnings))

"""Measured benchmark files against prediction, and what the gap between them is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rooflinekit import __version__
from rooflinekit.estimator import Resolved, read_deployment, resolve
from rooflinekit.gap import Gap, attribute
from rooflinekit.measured import Facts, Measurement, StartUp, read_measurements
from rooflinekit.operating_point import Predictor
from rooflinekit.serving.interference import Interference, LoadPoint, LoadPrediction, LoadPredictor
from rooflinekit.serving.spelling import at_least
from rooflinekit.specs import load_model
from rooflinekit.types.batch import whole_number
from rooflinekit.types.errors import InputError, RooflinekitError

__all__ = ["Comparison", "Given", "Metric", "Run", "checked_facts", "compare"]

_OPTIONS = {"model": "--model", "gpu": "--gpu", "tp": "--tp", "isl": "--isl", "osl": "--osl"}


@dataclass(frozen=True)
class Given:
    """What the user says: facts that go before those of a file, and the rest of the deployment.

    replicas: independent copies of the deployment that shared the load evenly.
    """

    facts: Facts = field(default_factory=Facts)
    deployment: Mapping[str, Any] = field(default_factory=dict)
    calibration: str | None = None
    replicas: int = 1


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


def checked_facts(**said: Any) -> Facts:
    """Facts that a user typed.

    Raises WorkloadError for a count below 1 or a rate that is not above 0, InputError for both kinds of load.
    """
    for name in ("tp", "isl", "osl", "concurrency"):
        if said.get(name) is not None:
            whole_number(said[name], name)
    if said.get("rate") is not None:
        at_least(said["rate"], 0, "rate")
        if said.get("concurrency") is not None:
            raise InputError("--concurrency is a closed loop and --rate an open one; give one of them")
    return Facts(**said)


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
    room = min((entry.kv_tokens for entry in entries if isinstance(entry, StartUp) and entry.kv_tokens), default=None)
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


def _facts(source: str, read: Facts, given: Facts, needed: Sequence[str]) -> Facts:
    """Facts of the file under those of the user.

    Raises InputError naming the options for all that is still missing.
    """
    own = {entry.name: getattr(given, entry.name) for entry in fields(Facts) if entry.name != "cv"}
    known = replace(read, **{name: value for name, value in own.items() if value is not None})
    if given.rate is not None or given.concurrency is not None:
        known = replace(known, rate=given.rate, concurrency=given.concurrency)
    missing = [option for name, option in _OPTIONS.items() if name in needed and not getattr(known, name)]
    if "isl" in needed and known.rate is None and known.concurrency is None:
        missing.append("--concurrency or --rate")
    if missing:
        raise InputError(f"{source} does not say how it was run; add {', '.join(missing)}")
    return replace(known, engine=known.engine or "vllm")


def _resolved(facts: Facts, given: Given) -> Resolved:
    deployment = read_deployment({**given.deployment, "tp": facts.tp, "engine": facts.engine})
    if given.facts.model is None:  # a server may call its model whatever it likes
        try:
            load_model(str(facts.model))
        except InputError as error:
            raise InputError(f"the file calls its model {facts.model!r}, and that is {error}; add --model") from None
    return resolve(str(facts.model), str(facts.gpu), deployment, given.calibration)


def _run(run: Measurement, given: Given, predictor: Callable[[Predictor], LoadPredictor], room: int | None) -> Run:
    facts = _facts(run.source, run.facts, given.facts, tuple(_OPTIONS))
    isl, osl = (max(round(length or 1.0), 1) for length in (facts.isl, facts.osl))
    facts = replace(facts, isl=isl, osl=osl)
    most = None if room is None else max(room // (isl + osl), 1)
    resolved = _resolved(facts, given)
    load = _share(LoadPoint(isl, osl, facts.concurrency, facts.rate, facts.requests, most), given.replicas)
    one = predictor(resolved.predictor).predict(load)
    expected = replace(one, output_tok_s=one.output_tok_s * given.replicas)
    notes = [*run.notes, *([expected.note] if expected.note else []), *resolved.warnings]
    gap = attribute(run, expected, load)
    return Run(
        run.source,
        run.tool,
        replace(facts, model=resolved.plan.model.name, gpu=resolved.plan.system.accelerator.name),
        tuple(_metrics(run, expected)),
        gap,
        tuple(notes + list(gap.notes if gap else ())),
        _calibration(resolved),
    )


def _calibration(resolved: Resolved) -> dict[str, str] | None:
    used = resolved.plan.calibration
    return {"name": used.name, "hash": used.hash} if used else None


def _share(load: LoadPoint, replicas: int) -> LoadPoint:
    """The load of one of several replicas."""
    if replicas == 1:
        return load
    users, requests = (None if count is None else -(-count // replicas) for count in (load.users, load.requests))
    return replace(load, users=users, requests=requests, rate=load.rate / replicas if load.rate else None)


def _metrics(run: Measurement, expected: LoadPrediction) -> list[Metric]:
    spreads = {
        "ttft_ms": (run.ttft, expected.ttft_ms),
        "tpot_ms": (run.tpot, expected.tpot_ms),
        "e2e_ms": (run.e2e, expected.e2e_ms),
    }
    found = []
    for name, (spread, predicted) in spreads.items():
        statistic, measured = ("mean", spread.mean) if spread.mean else ("median", spread.p50)
        if measured:
            found.append(Metric(name, statistic, measured, predicted))
    if run.output_tok_s:
        found.append(Metric("output_tok_s", "mean", run.output_tok_s, expected.output_tok_s))
    return found


def _memory(log: StartUp, given: Given) -> Run:
    """A start-up log: weights, and cache a token, of one accelerator."""
    facts = _facts(log.source, Facts(), given.facts, ("model", "gpu", "tp"))
    resolved = _resolved(facts, given)
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

"""Measured benchmark files against prediction, and what the gap between them is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

from rooflinekit.estimation.results import about
from rooflinekit.evidence.benchmark_runs import (
    Given,
    LoadPrediction,
    known_facts,
    listed,
    pose,
    predict_load,
    resolve_facts,
    room_of,
)
from rooflinekit.evidence.kernel_fit.groups import read_measurements as read_rows
from rooflinekit.evidence.measured import Facts, Measurement, StartUp, is_of_harness, read_measurements
from rooflinekit.evidence.steps import compare_model, read_steps
from rooflinekit.load.answer import AskedLoad
from rooflinekit.model.types.answer import Answer
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.specs import load_accelerator
from rooflinekit.version import __version__

__all__ = ["CAUSES", "Comparison", "Gap", "Given", "Metric", "Run", "attribute", "compare", "compare_runs"]

CAUSES = ("step", "interference", "queue", "protocol")
_BUDGET = 2048  # tokens a step, the smallest default of the engines: the most chunks that a prompt is cut into
_COMMON = 0.5  # where more gaps than this hold a prefill, the median gap does too
_SAME = 1.05  # a median gap this much above the mean time a token is no single token

_EQUAL = "the file does not say how output lengths vary, so equal ones are played; --osl-cv says how they do"


@dataclass(frozen=True)
class Gap:
    """Measured minus predicted end-to-end latency by cause [ms]; the four causes add up to `e2e_ms`.

    step: time of decode steps and of one's own prefill; interference: decode steps that share with the prefills of
    others; queue: waiting before the first token; protocol: what the client's definitions and its averaging leave.
    in_flight: requests that were under way on average (Little's law), None if it cannot be said.
    """

    e2e_ms: float
    step_ms: float
    interference_ms: float
    queue_ms: float
    protocol_ms: float
    in_flight: float | None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without the notes."""
        return {name: value for name, value in asdict(self).items() if name != "notes"}


def attribute(run: Measurement, expected: LoadPrediction, load: AskedLoad) -> Gap | None:
    """Divide the gap of E2EL = TTFT + (osl − 1) · TPOT.

    The median gap between tokens is a step without a prefill as long as few steps hold one, and the smallest TTFT is a
    prefill that met no queue; where the file has them, they tell step time from interference and from the queue.
    None without a mean TTFT and TPOT.
    """
    if not run.ttft.mean or not run.tpot.mean:
        return None
    isl, osl, parts, notes = load.isl.mean, load.osl.mean, expected.parts, []
    more = osl - 1.0
    step = run.tpot.mean - expected.tpot_ms
    chunks, median = math.ceil(isl / _BUDGET), run.itl.p50 or 0.0
    if 0.0 < median <= _SAME * run.tpot.mean and expected.running * chunks / osl < _COMMON:
        step = median - parts["step"]
    elif expected.running > 1:
        notes.append("step includes interference: the median gap between tokens does not separate them")
    waited = run.ttft.mean - expected.ttft_ms
    own = parts["front_end"] + parts["prompt"]
    prefill = run.ttft.low - own if run.ttft.low else 0.0 if expected.running > 1 else waited
    if not run.ttft.low and expected.running > 1:
        notes.append("queue includes the error of the prefill: the file has no smallest TTFT")
    whole = run.ttft.mean + more * run.tpot.mean
    measured = run.e2e.mean or whole
    return Gap(
        e2e_ms=measured - expected.e2e_ms,
        step_ms=more * step + prefill,
        interference_ms=more * (run.tpot.mean - expected.tpot_ms - step),
        queue_ms=waited - prefill,
        protocol_ms=measured - whole,
        in_flight=run.request_s * measured / 1e3 if run.request_s else None,
        notes=tuple(notes),
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
    """One measured run beside its prediction. `gap` is None where TTFT or TPOT was not measured.

    interval: both ends of the predicted times' 90 % intervals [ms]; evidence: what they rest on.
    """

    source: str
    tool: str
    facts: Facts
    metrics: tuple[Metric, ...]
    gap: Gap | None
    notes: tuple[str, ...]
    calibration: dict[str, str] | None = None
    overloaded: bool = False  #: more requests arrive than the prediction can serve; times are those of the run alone
    interval: Mapping[str, tuple[float, float]] | None = None
    evidence: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON of one run."""
        rows = [asdict(metric) | {"error": metric.error} for metric in self.metrics]
        data = {"source": self.source, "tool": self.tool, **asdict(self.facts), "metrics": rows}
        data |= {"gap": self.gap.to_dict() if self.gap else None, "notes": list(self.notes)}
        data |= {name: getattr(self, name) for name in ("overloaded", "interval", "evidence")}
        return data | {"calibration": self.calibration, "version": __version__}


@dataclass(frozen=True)
class Comparison(Answer):
    """All runs of some files, and what could not be compared, with the reason."""

    runs: tuple[Run, ...]
    failed: Mapping[str, str]


def compare(
    files: str | PathLike[str] | Sequence[str | PathLike[str]],
    given: Given | None = None,
    progress: Callable[[str], None] | None = None,
    **said: Any,
) -> Comparison:
    """Read files, predict each run of them, and set both side by side.

    A start-up log among the files says how the engine of the others was started, where `given` does not, and caps their
    running batch by the tokens that its cache held. Steps that `rooflinekit validate` measured have no load and no
    queue: they are set beside a static batch.

    Args:
        files: one or more results of benchmark clients, start-up logs, measurement files with steps.
        given: what the files leave out.
        progress: called with the name of each run.
        **said: the same as keywords: model, gpu, engine, tp, pp, ep, dp, weights, activations, kv, isl, osl,
            concurrency, rate, osl_cv, calibration, replicas.

    Raises:
        RooflinekitError: (one of its kinds) if no run can be compared; otherwise failures are listed.

    >>> import json, tempfile
    >>> run = {"backend": "vllm", "model_id": "llama-3.1-8b", "num_prompts": 320, "max_concurrency": 32,
    ...        "request_rate": "inf", "duration": 100.0, "completed": 320, "total_input_tokens": 327680,
    ...        "total_output_tokens": 81920, "mean_ttft_ms": 150.0, "mean_tpot_ms": 11.0}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "bench.json"
    ...     _ = path.write_text(json.dumps(run))
    ...     found = compare(path, gpu="h100-sxm", tp=1)
    >>> [each.metric for each in found.runs[0].metrics]
    ['ttft_ms', 'tpot_ms']
    """
    given = given or Given.of(**said)
    files = [files] if isinstance(files, (str, PathLike)) else files
    entries: list[Measurement | StartUp] = []
    ours: list[Path] = []
    failures: dict[str, RooflinekitError] = {}
    for path in map(Path, files):
        with listed(failures, str(path)):
            if is_of_harness(path):
                ours.append(path)
            else:
                entries += read_measurements(path)
    steps: list[Run] = []
    for path in ours:
        with listed(failures, str(path)):
            steps += _steps(path, given, alone=not entries)
    return compare_runs(entries, given, failures, progress, steps)


def compare_runs(
    entries: Sequence[Measurement | StartUp],
    given: Given,
    failures: dict[str, RooflinekitError],
    progress: Callable[[str], None] | None = None,
    done: Sequence[Run] = (),
) -> Comparison:
    """The same for runs that have been read; `done` are compared already, `failures` is what has gone wrong so far."""
    room, runs, given = room_of(entries), list(done), given.with_logs(entries)
    for entry in entries:
        if progress is not None:
            progress(entry.source)
        with listed(failures, entry.source):
            runs.append(_memory(entry, given) if isinstance(entry, StartUp) else _run(entry, given, room))
    if not runs and failures:
        raise next(iter(failures.values()))
    return Comparison(tuple(runs), {name: str(error) for name, error in failures.items()})


def _run(run: Measurement, given: Given, room: int | None) -> Run:
    posed = pose(run, given, room)
    resolved, load = posed.resolved, posed.load
    expected = predict_load(resolved.predictor, load, posed.scheduler)
    notes = [*run.notes, expected.played, *expected.notes, *resolved.warnings]
    if load.equal and posed.facts.osl_cv is None:
        notes.append(_EQUAL)
    gap, known = attribute(run, expected, load), about(resolved.plan)
    pairs = (
        ("ttft_ms", *run.ttft.middle, expected.ttft_ms),
        ("tpot_ms", *run.tpot.middle, expected.tpot_ms),
        ("e2e_ms", *run.e2e.middle, expected.e2e_ms),
        ("output_tok_s", "mean", run.output_tok_s, expected.output_tok_s),
    )
    return Run(
        run.source,
        run.tool,
        replace(posed.facts, model=resolved.plan.model.name, gpu=resolved.plan.system.accelerator.name),
        tuple(
            Metric(name, part, measured, predicted)
            for name, part, measured, predicted in pairs
            if measured
        ),
        gap,
        tuple(notes + list(gap.notes if gap else ())),
        known["calibration"],
        expected.overloaded,
        expected.ends_ms if known["calibration"] else None,
        known["evidence"],
    )  # fmt: skip


def _steps(path: Path, given: Given, alone: bool) -> list[Run]:
    """Whole steps of a measurement file, each beside a static batch; `alone`: what is given is of no other file.

    Raises InputError for a file without steps, and for facts that such a file says itself.
    """
    steps = read_steps(path)
    if not steps:
        kernels = "; `accuracy kernels` sets its kernels beside the prediction" if read_rows(path).rows else ""
        raise InputError(f"{path.name} holds no whole steps{kernels}")
    if alone:
        given.refuse_beside(path.name)
    name = steps[0].gpu
    gpu = given.facts.gpu or name
    other = () if gpu == name else _of_another(name, gpu)
    return [
        Run(
            step.source, step.tool,
            Facts(model=each.estimate.model, gpu=each.estimate.gpu, engine=each.estimate.engine, tp=1,
                  isl=each.point.context, osl=1 if each.point.phase == "prefill" else 2, concurrency=each.point.batch),
            (Metric(each.point.metric, "median", each.measured_ms, each.predicted_ms),), None,
            (*([f"90 % interval {each.low_ms:.4g} to {each.high_ms:.4g} ms"] if each.estimate.interval else []), *other,
             *each.estimate.warnings),
            each.estimate.calibration, False,
            {each.point.metric: (each.low_ms, each.high_ms)} if each.estimate.interval else None,
            each.estimate.evidence,
        )
        for step, each in zip(steps, compare_model([one.row for one in steps], gpu, given.calibration), strict=True)
    ]  # fmt: skip


def _of_another(name: str, gpu: str) -> tuple[str, ...]:
    """A note where the device of a file is not the accelerator that it is predicted for."""
    try:
        own = load_accelerator(name).value.name
    except RooflinekitError:
        return ()  # the driver's name says nothing
    asked = load_accelerator(gpu).value.name
    return () if own == asked else (f"measured on {own} and predicted for {asked}",)


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
    return Run(log.source, f"{facts.engine} start-up log", named, tuple(found), None, (*notes, *resolved.warnings))

"""Measured benchmark files against prediction, and what the gap between them is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path

from rooflinekit.estimation.options import Value
from rooflinekit.estimation.results import about
from rooflinekit.evidence import benchmark_runs
from rooflinekit.evidence.benchmark_runs import Given, LoadPrediction, Posed, listed, pose, room_of
from rooflinekit.evidence.kernel_fit.groups import read_measurements as read_rows
from rooflinekit.evidence.measured import MeasuredRun, RunFacts, StartUp, is_of_harness, read_measurements
from rooflinekit.evidence.measurement import PREDICTED
from rooflinekit.evidence.steps import compare_model, read_steps
from rooflinekit.evidence.why import Why, explain, told
from rooflinekit.load.answer import Load
from rooflinekit.model.capacity import MemoryModel
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.speculation import speculate
from rooflinekit.model.types.answer import Answer, Json
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.speculation import METHODS, Speculation
from rooflinekit.model.types.units import GIB, format_bytes, format_time
from rooflinekit.specs import load_accelerator
from rooflinekit.version import __version__

__all__ = [
    "CAUSES", "ComparedMetric", "ComparedRun", "Comparison", "Gap", "Given", "attribute", "beaten", "compare",
    "compare_runs", "doubts", "metrics_of",
]  # fmt: skip

CAUSES = ("step", "interference", "queue", "protocol")
_BUDGET = 2048  # tokens a step, the smallest default of the engines: the most chunks that a prompt is cut into
_COMMON = 0.5  # where more gaps than this hold a prefill, the median gap does too
_SAME = 1.05  # a median gap this much above the mean time a token is no single token

_CLOSE = 1.02  # two clocks, and what files round
_COLD = 0.97  # of the predicted pool: less is more than rounding and what drivers differ by
TITLES = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "e2e_ms": "E2EL",
    "output_tok_s": "output",
    "weight_bytes": "weights",
    "kv_bytes_per_token_per_gpu": "cache a token",
    "kv_pool_bytes": "cache pool",
    "kv_bytes_per_sequence_per_gpu": "cache a sequence",
    "kv_pool_tokens": "tokens in the pool",
    "graph_bytes": "graphs",
    "activation_bytes": "activations",
}
"""Words for the figures of a comparison."""
_REPEATED = (
    "first tokens are faster than 19 of 20 such runs: were prompts repeated, so that the prefix cache had them? Send "
    "each prompt once, or switch the cache off"
)
_NEGATIVE = "a negative part: there the run was faster than predicted, so that much of another part is hidden"
_COMPILED = (
    "the engine compiled at this start, and vLLM takes what that needed from the cache (vLLM issue 54122): started "
    "again, it has more"
)
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

    def to_dict(self) -> Json:
        """Return the gap as JSON, without the notes."""
        return {name: value for name, value in asdict(self).items() if name != "notes"}


def attribute(run: MeasuredRun, expected: LoadPrediction, load: Load) -> Gap | None:
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
class ComparedMetric:
    """One figure; `error` is (predicted − measured) / measured. `statistic` says what the file gave.

    low, high: ends of the 90 % interval, None where there is none; bound: what nothing can beat.
    """

    metric: str
    statistic: str
    measured: float
    predicted: float
    low: float | None = None
    high: float | None = None
    bound: float | None = None

    @property
    def error(self) -> float:
        """Signed relative error of the prediction."""
        return self.predicted / self.measured - 1.0

    @property
    def title(self) -> str:
        """Words for the figure."""
        return TITLES[self.metric]

    def text(self, value: float) -> str:
        """A value of this figure with its unit."""
        if self.metric.endswith("_ms"):
            return format_time(value / 1e3)
        if self.metric == "kv_pool_tokens":
            return f"{value:,.0f}"
        return f"{value:,.0f} tok/s" if self._rate else format_bytes(value)

    @property
    def impossible(self) -> bool:
        """True if it is better than the datasheet allows, beyond rounding."""
        if not self.bound:
            return False
        return self.measured > _CLOSE * self.bound if self._rate else _CLOSE * self.measured < self.bound

    @property
    def verdict(self) -> str:
        """Verdict on the measured value; empty without an interval.

        >>> [ComparedMetric("tpot_ms", "mean", measured, 10.0, 9.0, 11.0).verdict for measured in (12.0, 10.5)]
        ['slower than 19 of 20 such runs', 'inside']
        """
        if self.impossible:
            return "better than the datasheet allows"
        if self.low is None or self.high is None:
            return ""
        if self.low <= self.measured <= self.high:
            return "inside"
        slower = (self.measured > self.high) != self._rate
        return f"{'slower' if slower else 'faster'} than 19 of 20 such runs"

    @property
    def _rate(self) -> bool:
        return self.metric == "output_tok_s"


@dataclass(frozen=True)
class ComparedRun:
    """One measured run beside its prediction. `gap` is None where TTFT or TPOT was not measured.

    interval: both ends of the predicted times' 90 % intervals [ms]; evidence: what they rest on.
    """

    source: str
    tool: str
    facts: RunFacts
    metrics: tuple[ComparedMetric, ...]
    gap: Gap | None
    notes: tuple[str, ...]
    calibration: dict[str, str] | None = None
    overloaded: bool = False  #: more requests arrive than the prediction can serve; times are those of the run alone
    interval: Mapping[str, tuple[float, float]] | None = None
    evidence: str | None = None
    why: Why | None = None  #: changes of assumptions that would explain it, where that was asked
    doubted: int = 0  #: notes, the first ones, that doubt the measurement itself

    @property
    def inside(self) -> bool:
        """True if no figure lies outside its interval."""
        return all(each.verdict in ("", "inside") for each in self.metrics)

    def to_dict(self) -> Json:
        """The JSON of one run."""
        rows = [asdict(each) | {"error": each.error, "verdict": each.verdict} for each in self.metrics]
        data = {"source": self.source, "tool": self.tool, **asdict(self.facts), "metrics": rows}
        data |= {"gap": self.gap.to_dict() if self.gap else None, "notes": list(self.notes)}
        data |= {name: getattr(self, name) for name in ("overloaded", "interval", "evidence", "doubted")}
        data["why"] = None if self.why is None else asdict(self.why)
        return data | {"calibration": self.calibration, "version": __version__}


@dataclass(frozen=True)
class Comparison(Answer):
    """All runs of some files, and what could not be compared, with the reason."""

    runs: tuple[ComparedRun, ...]
    failed: Mapping[str, str]


def compare(
    files: str | PathLike[str] | Sequence[str | PathLike[str]],
    given: Given | None = None,
    progress: Callable[[str], None] | None = None,
    why: str = "",
    **said: Value,
) -> Comparison:
    """Read files, predict each run of them, and set both side by side.

    A start-up log among the files says how the engine of the others was started, where `given` does not, and caps their
    running batch by the tokens that its cache held. Steps that `rooflinekit validate` measured have no load and no
    queue: they are set beside a static batch. The first prediction among the files (an estimate's JSON) says what is
    assumed of the others, where `given` does not.

    Args:
        files: one or more results of benchmark clients, start-up logs, measurement files with steps.
        given: what the files leave out.
        progress: called with the name of each run.
        why: "all" finds the changes of assumptions that explain each run; "outside" those of runs outside an interval.
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
    entries: list[MeasuredRun | StartUp] = []
    ours: list[Path] = []
    failures: dict[str, RooflinekitError] = {}
    for path in map(Path, files):
        with listed(failures, str(path)):
            if is_of_harness(path):
                ours.append(path)
            else:
                entries += read_measurements(path)
    steps: list[ComparedRun] = []
    for path in ours:
        with listed(failures, str(path)):
            steps += _steps(path, given, alone=not entries)
    predicted = next((one for one in entries if isinstance(one, MeasuredRun) and one.tool == PREDICTED), None)
    stated = {entry.source: told(entry) for entry in entries if isinstance(entry, MeasuredRun)}
    if predicted is not None and len(entries) > 1:
        entries.remove(predicted)
        for number, entry in enumerate(entries):
            if isinstance(entry, MeasuredRun) and entry.tool == PREDICTED:
                entries[number] = replace(entry, facts=predicted.facts, deployment=(), static=predicted.static)
        given = given.assuming(predicted)
    found = compare_runs(entries, given, failures, progress, steps)
    if not why:
        return found
    room, given = room_of(entries), given.with_logs(entries)
    read = {entry.source: entry for entry in entries if isinstance(entry, MeasuredRun)}
    asked = [run.source in read and (why == "all" or not run.inside) for run in found.runs]
    runs = (
        replace(run, why=explain(read[run.source], given, room, stated[run.source])) if each else run
        for run, each in zip(found.runs, asked, strict=True)
    )
    return replace(found, runs=tuple(runs))


def compare_runs(
    entries: Sequence[MeasuredRun | StartUp],
    given: Given,
    failures: dict[str, RooflinekitError],
    progress: Callable[[str], None] | None = None,
    done: Sequence[ComparedRun] = (),
) -> Comparison:
    """Compare runs that have been read; `done` are compared already, `failures` is what has gone wrong so far."""
    room, runs, given = room_of(entries), list(done), given.with_logs(entries)
    beside = any(isinstance(entry, MeasuredRun) for entry in entries)
    for entry in entries:
        if progress is not None:
            progress(entry.source)
        with listed(failures, entry.source):
            runs += _memory(entry, given, beside) if isinstance(entry, StartUp) else [_run(entry, given, room)]
    if not runs and failures:
        raise next(iter(failures.values()))
    return Comparison(tuple(runs), {name: str(error) for name, error in failures.items()})


def _run(run: MeasuredRun, given: Given, room: int | None) -> ComparedRun:
    posed = pose(run, given, room)
    resolved, load = posed.resolved, posed.load
    expected = posed.predict()
    other, run = _with_small_cache(run, given, posed, expected) if room is None else None, posed.run
    notes = [] if other is None else [_of_the_cache(run, expected, other, posed.load.users or 0)]
    expected = expected.or_as(other) if other else expected
    notes += [*posed.assumed, *run.notes, expected.played, *expected.notes, *resolved.warnings]
    if load.equal and posed.facts.osl_cv is None and posed.work is None:
        notes.append(_EQUAL)
    gap, known = attribute(run, expected, load), about(resolved.plan)
    metrics = metrics_of(run, expected, ends=known["calibration"] is not None)
    doubted = doubts(metrics, posed.work is None)
    notes = [*doubted, *notes, *(gap.notes if gap else ())]
    if gap and min(gap.step_ms, gap.interference_ms, gap.queue_ms, gap.protocol_ms) < 0.0:
        notes.append(_NEGATIVE)
    facts = replace(posed.facts, model=resolved.plan.model.name, gpu=resolved.plan.system.accelerator.name)
    ends, rests = expected.ends if known["calibration"] else None, (known["calibration"], expected.overloaded)
    compared = (run.source, run.tool, facts, metrics, gap, tuple(notes), *rests)
    return ComparedRun(*compared, ends, known["evidence"], doubted=len(doubted))


def _with_small_cache(run: MeasuredRun, given: Given, posed: Posed, expected: LoadPrediction) -> LoadPrediction | None:
    """The prediction with an 8-bit cache, where nobody says the format and all users have a place with that one alone.

    Published runs often leave the format out, and it decides whether first tokens wait for seconds.
    """
    users, said = posed.load.users, "kv" in {**dict(run.deployment), **given.deployment}
    if said or not users or not 0 < expected.places < users or not posed.resolved.plan.precision.kv.is_wide:
        return None
    try:
        other = pose(run, replace(given, deployment={**given.deployment, "kv": "fp8"})).predict()
    except RooflinekitError:  # an accelerator or an engine without such a cache
        return None
    return other if other.places >= users else None


def _of_the_cache(run: MeasuredRun, wide: LoadPrediction, small: LoadPrediction, users: int) -> str:
    room = f"{wide.places} of {users} users have a place in a 16-bit cache, and all in one of FP8"
    inside = [all(each.verdict == "inside" for each in metrics_of(run, expected)) for expected in (wide, small)]
    if inside == [False, True]:
        return f"only an FP8 cache explains this (--kv fp8): {room}"
    return f"nobody says the format of the cache (--kv): {room}; the intervals hold both"


def metrics_of(run: MeasuredRun, expected: LoadPrediction, ends: bool = True) -> tuple[ComparedMetric, ...]:
    """The figures that a file has, each beside its prediction, its interval and its bound."""
    found = []
    for name, (statistic, measured) in run.figures.items():
        if measured:
            low, high = expected.ends.get(name, (None, None)) if ends else (None, None)
            predicted, bound = getattr(expected, name), expected.bounds.get(name)
            found.append(ComparedMetric(name, statistic, measured, predicted, low, high, bound))
    return tuple(found)


def beaten(run: MeasuredRun, bounds: Mapping[str, float]) -> list[ComparedMetric]:
    """The figures of a run that are better than bounds."""
    found = [
        ComparedMetric(name, part, value, bounds[name], bound=bounds[name])
        for name, (part, value) in run.figures.items()
        if value and bounds.get(name)
    ]
    return [each for each in found if each.impossible]


def doubts(metrics: Sequence[ComparedMetric], served: bool = True) -> list[str]:
    """Suspicions about a measurement before the prediction: it beats the datasheet, or first tokens are too fast.

    served: by a server, which may keep prompts.
    """
    said = [
        f"{each.title} {each.text(each.measured)} is better than the {each.text(each.bound)} that "
        "the datasheet allows: prompts were cached, or the accelerator or the count is another"
        for each in metrics
        if each.impossible and each.bound
    ]
    early = served and any(each.metric == "ttft_ms" and each.verdict.startswith("faster") for each in metrics)
    return said or ([_REPEATED] if early else [])


def _steps(path: Path, given: Given, alone: bool) -> list[ComparedRun]:
    """Whole steps of a measurement file, each beside a static batch; `alone`: what is given is of no other file."""
    steps = read_steps(path)
    if not steps:
        kernels = "; `accuracy kernels` sets its kernels beside the prediction" if read_rows(path).rows else ""
        raise InputError(f"{path.name} holds no whole steps{kernels}")
    if alone:
        given.refuse_beside(path.name)
    name = steps[0].gpu
    gpu = given.facts.gpu or name
    other: tuple[str, ...] = ()
    with suppress(RooflinekitError):  # the driver's name may say nothing
        own, asked = (load_accelerator(each).value.name for each in (name, gpu))
        other = () if own == asked else (f"measured on {own} and predicted for {asked}",)
    return [
        ComparedRun(
            step.source, step.tool,
            RunFacts(model=each.estimate.model, gpu=each.estimate.gpu, engine=each.estimate.engine, tp=1,
                  isl=each.point.context, osl=1 if each.point.phase == "prefill" else 2, concurrency=each.point.batch),
            (ComparedMetric(each.point.metric, "median", each.measured_ms, each.predicted_ms),), None,
            (*([f"90 % interval {each.low_ms:.4g} to {each.high_ms:.4g} ms"] if each.estimate.interval else []), *other,
             *each.estimate.warnings),
            each.estimate.calibration, False,
            {each.point.metric: (each.low_ms, each.high_ms)} if each.estimate.interval else None,
            each.estimate.evidence,
        )
        for step, each in zip(steps, compare_model([one.row for one in steps], gpu, given.calibration), strict=True)
    ]  # fmt: skip


def _memory(log: StartUp, given: Given, beside: bool) -> list[ComparedRun]:
    """A start-up log: weights, pool, and cache a token, of one accelerator, as the engine was started.

    beside: other files are compared as it was started, so that it may state no memory. Raises InputError.
    """
    unknown = log.called and not (log.facts.model or given.facts.model)
    called = f" (the log calls its model {log.called})" if unknown else ""
    facts = benchmark_runs.known_facts(f"{log.source}{called}", log.facts, given.facts, ("model", "gpu"))
    resolved = benchmark_runs.resolve_facts(facts, given, log.deployment)
    plan, (memory, unknown_draft) = resolved.plan, _drafting(log, resolved.predictor)
    longest = float(log.max_len or plan.deployment.settings.max_model_len or plan.model.max_context or 8192)
    held = memory.evaluate(float(plan.deployment.dp), longest, 1.0)
    short, long = (memory.evaluate(1.0, tokens, 1.0) for tokens in (8192.0, 16384.0))
    a_token = float(long.kv_bytes - short.kv_bytes) / 8192.0
    pool = (log.kv_bytes or 0.0) + (log.state_bytes or 0.0)
    fits = float(held.kv_pool_bytes) > 0.0 and longest == (plan.deployment.settings.max_model_len or longest)
    fits = fits and plan.engine.memory.budget != "none"  # llama.cpp has a cache of its context, and no pool
    pairs: list[tuple[str, float | None, float]] = [("weight_bytes", log.weight_bytes, float(held.weight_bytes))]
    if fits:
        pairs.append(("kv_pool_bytes", pool or None, float(held.kv_pool_bytes)))
    if log.printed_tokens and log.kv_bytes and log.concurrency:
        whole = held.kv_pool_bytes / held.max_concurrency if fits else held.kv_bytes  # as it reckons itself
        pairs.append(("kv_bytes_per_sequence_per_gpu", log.kv_bytes / log.concurrency, float(whole)))
    elif log.kv_bytes and log.kv_tokens and not math.isclose(a_token, 0.0):
        pairs.append(("kv_bytes_per_token_per_gpu", log.kv_bytes / log.kv_tokens, a_token))
    if fits and not log.state_bytes:  # states and tokens share SGLang's pool by a ratio that is not known here
        tokens = float(held.max_concurrency) * longest if log.printed_tokens else float(held.kv_pool_tokens)
        pairs.append(("kv_pool_tokens", log.kv_tokens, tokens))
    pairs.append(("graph_bytes", log.graph_bytes, held.graph_bytes))
    pairs.append(("activation_bytes", log.activation_bytes, float(held.activation_bytes)))
    known = ((name, measured, predicted) for name, measured, predicted in pairs if measured and predicted > 0.0)
    found = tuple(ComparedMetric(name, "log", measured, predicted) for name, measured, predicted in known if measured)
    if not found:
        if beside:
            return []
        raise InputError(f"{log.source}: the log of {facts.engine} states no bytes and no tokens of a cache")
    named = replace(facts, model=plan.model.name, gpu=plan.system.accelerator.name)
    doubted, claimed, capacity = [], (log.weight_bytes or 0.0) + pool, float(held.capacity_bytes)
    if claimed > capacity:
        more = f"more than the {format_bytes(capacity)} of {named.gpu}: the accelerator or --tp is another"
        doubted.append(f"weights and cache of the log take {format_bytes(claimed)}, {more}")
    if log.stored is not None and all(getattr(plan.precision.formats, kind).is_wide for kind in plan.model.matrices):
        wide = "the prediction has 16-bit ones: give --model its config.json, or --weights"
        doubted.append(f"the log's weights are quantised ({log.stored}), and {wide}")
    less = fits and log.compiled and 0.0 < pool < _COLD * float(held.kv_pool_bytes)
    notes = (*doubted, *_cache_words(log), *([_COMPILED] if less else []), *unknown_draft, *resolved.warnings)
    return [ComparedRun(log.source, f"{facts.engine} start-up log", named, found, None, notes, doubted=len(doubted))]


def _drafting(log: StartUp, predictor: Predictor) -> tuple[MemoryModel, list[str]]:
    """The memory with the draft that a log states, and a note where it is none that is known here."""
    if not log.draft or not log.draft_tokens:
        return predictor.memory, []
    method = "mtp" if log.draft.endswith("mtp") else log.draft
    choice = Speculation.read({"draft": method, "draft_tokens": log.draft_tokens}) if method in METHODS else None
    if choice is None or (method == "mtp" and not predictor.plan.model.mtp_layers):
        return predictor.memory, [f"the log's draft ({log.draft}) is not in the prediction"]
    return speculate(predictor, choice).memory, []


def _cache_words(log: StartUp) -> list[str]:
    if not log.kv_tokens:
        return []
    if not log.printed_tokens:
        return [f"the cache holds {log.kv_tokens:,} tokens"]
    pool = f" in {log.kv_bytes / GIB:.4g} GiB" if log.kv_bytes else ""
    holds = f"{log.concurrency:g} sequences of {log.max_len:,} tokens{pool}, {log.kv_tokens:,} tokens"
    return [f"the cache holds {holds}; the log's own {log.printed_tokens:,} are divided by groups of layers"]

"""Measured runs as deployments under load, and what a prediction says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.loaded import load_notes
from rooflinekit.estimation.options import Keywords, OwnKeywords, Value, options_of, part_of, read
from rooflinekit.estimation.scenario import ServedOptions, Steps
from rooflinekit.evidence.measured import MeasuredRun, MeasuredSpread, RunFacts, StartUp
from rooflinekit.evidence.startup import known_model
from rooflinekit.load.answer import Load, LoadPlay, play_load
from rooflinekit.load.lengths import MOST_TOKENS, Fixed, Length, LogNormal
from rooflinekit.load.scene import Scheduler
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.model import Model
from rooflinekit.model.types.time import Time
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_model

_FACTS = ("model", "gpu", "engine", "tp", "isl", "osl", "concurrency", "rate", "isl_cv", "osl_cv", "max_num_seqs")
_SPLIT = ("pp", "ep", "dp", "weights", "activations", "kv", *options_of(Steps), "memory_fraction", "token_budget",
          "max_model_len")  # fmt: skip
_SETTINGS = ("memory_fraction", "token_budget", "max_model_len", "block_size", "eager")
_USUAL = {"tp": 1, "engine": "vllm"}  # where neither file nor user says
_CLOSE = 0.02  # of the tokens of a request: means are rounded
_CROWDED = 16.0  # prompts of a step that is all arithmetic
_OPTIONS = {"model": "--model", "gpu": "--gpu", "isl": "--isl", "osl": "--osl"}


@dataclass(frozen=True)
class LoadPrediction:
    """Predicted latencies, as means.

    parts [ms]: `step` and `prompts` of others add up to TPOT; `front_end`, `under_way`, `behind`, `place` and the own
    `prompt` to TTFT (`rooflinekit.load.played.FirstParts`). running: sequences in steps of one replica. played: what
    was played, in words; notes: what the reader should know; overloaded: whether more comes than can be served; places:
    requests that run at once at most, 0 of a static batch.
    """

    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    output_tok_s: float
    parts: Mapping[str, float]
    running: float
    played: str = ""
    notes: tuple[str, ...] = ()
    overloaded: bool = False
    ends: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)
    places: int = 0

    def or_as(self, other: LoadPrediction) -> LoadPrediction:
        """The prediction with intervals that hold those of another one too."""
        both = {name: (*ends, *other.ends[name]) for name, ends in self.ends.items()}
        return replace(self, ends={name: (min(ends), max(ends)) for name, ends in both.items()})


def predict_load(predictor: Predictor, asked: Load, scheduler: Scheduler | None = None) -> LoadPrediction:
    """A load as it is played, told apart as a comparison needs it."""
    found = play_load(predictor, asked, scheduler)
    ttft, tpot, e2e = found.times()
    parts = asdict(found.tokens) | found.played.first_parts._asdict()
    replicas, osl, rate = found.scene.replicas, asked.osl.mean, found.output_rate
    return LoadPrediction(
        ttft_ms=1e3 * float(ttft.expected),
        tpot_ms=1e3 * float(tpot.expected),
        e2e_ms=1e3 * e2e,
        output_tok_s=rate,
        parts={name: 1e3 * value for name, value in parts.items()},
        running=found.played.running / replicas,
        played=_words(asked, replicas),
        notes=tuple(load_notes(found)),
        overloaded=not found.stable,
        ends=_ends((ttft, tpot), osl, rate if asked.rate is None else None),
        bounds=_bounds(found),
        places=found.places,
    )


def predict_static(predictor: Predictor, work: Workload) -> LoadPrediction:
    """One batch that begins together, without a server around it: its prompts in one step, then decode steps."""
    point, osl = predictor.evaluate(work), float(work.osl)
    ttft, tpot, rate = point.ttft, point.tpot, float(point.output_rate(work.batch, work.osl))
    parts = dict.fromkeys(("prompts", "front_end", "under_way", "behind", "place"), 0.0)
    parts |= {"step": 1e3 * float(tpot.expected), "prompt": 1e3 * float(ttft.expected)}
    bounds = {"ttft_ms": 1e3 * float(ttft.bound) * _lifted(predictor), "tpot_ms": 1e3 * float(tpot.bound)}
    bounds["e2e_ms"] = bounds["ttft_ms"] + (osl - 1.0) * bounds["tpot_ms"]
    first, token, whole = (1e3 * float(time) for time in (ttft.expected, tpot.expected, point.e2e(work.osl)))
    played, ends = f"one batch of {work.batch:g} that begins together", _ends((ttft, tpot), osl, rate)
    return LoadPrediction(first, token, whole, rate, parts, float(work.batch), played, ends=ends, bounds=bounds)


def _ends(times: tuple[Time, Time], osl: float, rate: float | None) -> dict[str, tuple[float, float]]:
    """Ends of TTFT and TPOT, of a whole request whose two times stand at the same end, and of the rate [tok/s].

    rate: that of users who wait for their answers; None where it is the client's.
    """
    ttft, tpot = times
    named = ("ttft_ms", ttft), ("tpot_ms", tpot)
    found = {name: (1e3 * float(time.low), 1e3 * float(time.high)) for name, time in named}
    whole = [first + (osl - 1.0) * each for first, each in zip(found["ttft_ms"], found["tpot_ms"], strict=True)]
    found["e2e_ms"] = whole[0], whole[1]
    if rate is not None and whole[0] > 0.0:
        expected = 1e3 * float(ttft.expected + (osl - 1.0) * tpot.expected)
        found["output_tok_s"] = rate * expected / whole[1], rate * expected / whole[0]
    return found


def _bounds(found: LoadPlay) -> dict[str, float]:
    """Bounds that no server of these accelerators can beat under this load.

    A first token takes its prompt alone at the least; in a burst the prompts that are computed before it too. A token
    takes a step of its sequence alone. Tokens come no faster than from steps of all sequences that there is room for,
    and requests no faster than the arithmetic of their prompts.
    """
    asked, plan = found.asked, found.predictor.plan
    ranks, stages = found.scene.replicas * plan.deployment.dp, plan.deployment.pp
    isl, osl, cached = asked.isl.mean, asked.osl.mean, asked.cached
    most = max(min(float(asked.users or found.places), float(found.places)) / ranks, 1.0)
    prompts = ((count, float(plan.time(Batch.prefill(count, isl, cached)).bound)) for count in (1.0, _CROWDED))
    prompt, together = (_lifted(found.predictor) * bound / count for count, bound in prompts)
    alone, full = (float(plan.time(Batch.decode(count, isl + osl / 2.0)).bound) for count in (1.0, most))
    rate = stages * ranks * min(most / full, osl / together)
    burst = asked.users is not None and asked.counted <= asked.users
    before = (asked.counted / ranks + 1.0) / 2.0 if burst else 1.0
    bounds = {"ttft_ms": 1e3 * max(prompt, before * together / stages), "tpot_ms": 1e3 * alone}
    bounds["e2e_ms"] = bounds["ttft_ms"] + (osl - 1.0) * bounds["tpot_ms"]
    return bounds | {"output_tok_s": rate}


def _lifted(predictor: Predictor) -> float:
    """Share of the bound on prompts that holds where llama.cpp multiplies quantised weights in integers.

    Its kernels quantise activations to 8 bit (mmq), which is faster than the format of the activations on most devices.
    """
    plan = predictor.plan
    if plan.deployment.engine != "llama.cpp" or plan.precision.weights_of(plan.model.matrices[-1]).is_wide:
        return 1.0
    peaks = plan.system.accelerator.peaks
    own = [peaks[each] for each in (Dtype.FP16, Dtype.BF16) if each in peaks]
    return min(max(own) / max(peaks.values()), 1.0) if own else 1.0


def _words(asked: Load, replicas: int) -> str:
    users, more = asked.users, asked.warmup or 0
    how = f"at {asked.rate:.4g}/s" if users is None else f"{users} in flight"
    if users is not None and asked.counted <= users:
        how = "all at once"
    first = f"after {more:,} of warm-up" if more else "from an empty engine"
    if asked.requests is None and users is None:
        first = f"of which the first {asked.filling:,} do not count"
    over = f" over {replicas} replicas" if replicas > 1 else ""
    return f"played: {asked.counted:,} requests, {how}{over}, {first}"


@dataclass(frozen=True)
class Given:
    """Facts of the user, which go before those of a file, and the rest of the deployment.

    replicas: independent copies of the deployment that shared the load evenly (None: as many as servers were measured).
    prompts: different ones that the client sent again and again (0: no two were equal).
    """

    facts: RunFacts = field(default_factory=RunFacts)
    deployment: Keywords = field(default_factory=dict)
    calibration: str | None = None
    replicas: int | None = None
    prompts: int = 0

    @classmethod
    def of(cls, **said: Value) -> Given:
        """Read keywords of one level; raises WorkloadError and InputError for what makes no sense."""
        known = read(ServedOptions, said)
        if "rate" in known and "concurrency" in known:
            raise InputError("--concurrency is a closed loop and --rate an open one; give one of them")
        split, replicas = part_of(known, _SPLIT), known.get("replicas")
        known = {name: option.default for name, option in options_of(ServedOptions).items()} | known
        return cls(RunFacts(**part_of(known, _FACTS)), split, known["calibration"], replicas, known["seed_reuse"] or 0)

    def copies(self, run: MeasuredRun) -> int:
        """Copies of the deployment that a run measured."""
        return self.replicas or run.servers

    def refuse_beside(self, name: str) -> None:
        """Raise InputError for what a file of whole steps says itself: all but the accelerator."""
        said = {each for each, value in asdict(self.facts).items() if value not in (None, asdict(RunFacts())[each])}
        said |= set(self.deployment) | ({"replicas"} if self.replicas not in (None, 1) else set())
        if others := said - {"gpu"}:
            option = min(others).replace("_", "-")
            raise InputError(f"{name} says itself how its steps ran; leave --{option} out")

    def assuming(self, prediction: MeasuredRun) -> Given:
        """Fill gaps with what a prediction assumes where the user says nothing."""
        read = prediction.facts
        facts = {name: getattr(read, name) for name in _FACTS if getattr(self.facts, name) is None}
        if self.facts.rate is not None or self.facts.concurrency is not None:
            facts |= {"rate": self.facts.rate, "concurrency": self.facts.concurrency}
        stated = _stated(load_model(str(read.model)).value, dict(prediction.deployment), self)
        return replace(self, facts=replace(self.facts, **facts), deployment=stated | dict(self.deployment))

    def with_logs(self, entries: Sequence[MeasuredRun | StartUp]) -> Given:
        """Fill gaps with what start-up logs among the entries say where the user says nothing, and logs agree."""
        logs = [entry for entry in entries if isinstance(entry, StartUp)]
        told = {name: {getattr(log.facts, name) for log in logs} for name in ("model", "engine", "tp", "max_num_seqs")}
        told |= {name: {log.deployment.get(name) for log in logs} for name in (*_SPLIT, *_SETTINGS)}
        agreed = {name: next(iter(found)) for name, each in told.items() if len(found := each - {None}) == 1}
        facts = {name: agreed[name] for name in _FACTS if name in agreed and getattr(self.facts, name) is None}
        deployment = part_of(agreed, (*_SPLIT, *_SETTINGS)) | dict(self.deployment)
        return replace(self, facts=replace(self.facts, **facts), deployment=deployment)


@dataclass(frozen=True)
class Posed:
    """A measured run as a question: its facts completed, its deployment, its load, and the replicas that share it.

    work: the static batch, of a step that was measured without a load. assumed: what neither file nor user says.
    """

    run: MeasuredRun
    facts: RunFacts
    resolved: Resolved
    load: Load
    scheduler: Scheduler = field(default_factory=Scheduler)
    work: Workload | None = None
    assumed: tuple[str, ...] = ()

    def predict(self) -> LoadPrediction:
        """Predict the run. Raises DoesNotFitError if not one such request fits."""
        predictor = self.resolved.predictor
        if self.work is not None:
            return predict_static(predictor, self.work)
        return predict_load(predictor, self.load, self.scheduler)

    def limits(self) -> tuple[dict[str, float], float]:
        """Bounds that nothing can beat, as `LoadPrediction.bounds`, and sequences in steps of one replica."""
        if self.work is not None:
            return dict(predict_static(self.resolved.predictor, self.work).bounds), float(self.work.batch)
        found = play_load(self.resolved.predictor, self.load, self.scheduler)
        return _bounds(found), found.played.running / self.scheduler.replicas


Kept = dict[tuple[Any, ...], Resolved]
"""Deployments that were resolved before."""


def pose(run: MeasuredRun, given: Given, room: int | None = None, kept: Kept | None = None) -> Posed:
    """The question that a run answers; `room` is the tokens that the engine's cache held, where a log says so.

    kept: deployments that were resolved before with the same `given`; a new one is added. A file that knows but the sum
    of prompt and answer leaves one of them to the user.

    A server that counts tokens alone has their rate over their mean number as its rate, and the requests that wait for
    their first token over that as TTFT (Little's law).
    """
    read, osl = run.facts, given.facts.osl or run.facts.osl
    counts = read.rate is None and run.tool == "llamacpp metrics" and run.output_tok_s
    if counts and osl:
        read = replace(read, rate=counts / osl)
    if run.ttft.mean is None and run.unbegun is not None and read.rate:
        run = replace(run, ttft=MeasuredSpread(mean=1e3 * run.unbegun / read.rate))
    if run.total:
        read = _divided(run, read, given.facts)
    facts = known_facts(run.source, read, given.facts, (*_OPTIONS, "" if counts else "load"))
    assumed = tuple(
        f"{name} {value} is assumed; --{name} says otherwise"
        for name, value in _USUAL.items()
        if getattr(read, name) is None and getattr(given.facts, name) is None
    )
    if run.total and run.output_tok_s is None and run.request_s and facts.osl:
        run = replace(run, output_tok_s=run.request_s * facts.osl)
    for name, length in (("isl", facts.isl), ("osl", facts.osl)):
        if length is not None and not length <= MOST_TOKENS:
            raise InputError(f"{run.source}: {name} is {length:g} tokens; at most {MOST_TOKENS:,} make sense")
    isl, osl = (max(round(length or 1.0), 1) for length in (facts.isl, facts.osl))
    facts = replace(facts, isl=isl, osl=osl)
    laws = _length(isl, facts.isl_cv), _length(osl, facts.osl_cv)
    cached = min(round((facts.hits or 0.0) * isl), isl - 1)  # the last token is always computed
    load = Load(*laws, facts.concurrency, facts.rate, facts.cv, facts.requests, facts.warmup, cached=cached)
    load = replace(load, prompts=given.prompts)
    served = RunFacts(facts.model, facts.gpu, facts.engine, facts.tp, max_num_seqs=facts.max_num_seqs)
    kept, key = {} if kept is None else kept, (served, run.deployment)
    if key not in kept:
        kept[key] = resolve_facts(served, given, dict(run.deployment))
    work = None
    if run.static:
        work = Workload.checked(facts.concurrency or 1, isl, osl, load.cached)
        load = replace(load, requests=facts.concurrency)
    scheduler = Scheduler(replicas=given.copies(run), kv_tokens=room)
    return Posed(run, facts, kept[key], load, scheduler, work, assumed)


def _divided(run: MeasuredRun, read: RunFacts, said: RunFacts) -> RunFacts:
    """Lengths of a run whose file knows but their sum, where the user says one of them. Raises InputError."""
    isl, osl, total = said.isl or read.isl, said.osl or read.osl, run.total or 0.0
    told = f"{run.source}: requests have {total:.4g} tokens in and out"
    if isl and osl and abs(isl + osl - total) > _CLOSE * total:
        raise InputError(f"{told}, not {isl + osl:.4g}")
    if not isl and not osl:
        raise InputError(f"{told}; add --isl or --osl, the other follows")
    if max(isl or 0.0, osl or 0.0) >= total:
        raise InputError(f"{told}, no more than --isl or --osl alone")
    return replace(read, isl=isl or total - (osl or 0.0), osl=osl or total - (isl or 0.0))


def _length(mean: int, variation: float | None) -> Length:
    return LogNormal(float(mean), variation) if variation else Fixed(mean)


@contextmanager
def listed(failed: dict[str, RooflinekitError], name: str) -> Iterator[None]:
    """List what goes wrong inside under a name, and go on after it."""
    try:
        yield
    except RooflinekitError as error:
        failed[name] = error


def room_of(entries: Sequence[MeasuredRun | StartUp]) -> int | None:
    """Tokens that the cache held, by the start-up logs among the entries."""
    return min((entry.kv_tokens for entry in entries if isinstance(entry, StartUp) and entry.kv_tokens), default=None)


def known_facts(source: str, read: RunFacts, given: RunFacts, needed: Sequence[str]) -> RunFacts:
    """Facts of the file under those of the user."""
    own = {entry.name: getattr(given, entry.name) for entry in fields(RunFacts) if entry.name != "cv"}
    known = replace(read, **{name: value for name, value in own.items() if value is not None})
    if given.rate is not None or given.concurrency is not None:
        known = replace(known, rate=given.rate, concurrency=given.concurrency)
    missing = [option for name, option in _OPTIONS.items() if name in needed and not getattr(known, name)]
    if "load" in needed and known.rate is None and known.concurrency is None:
        all_at_once = f" (--concurrency {known.requests} where all came at once)" if known.requests else ""
        missing.append(f"--concurrency or --rate{all_at_once}")
    if missing:
        raise InputError(f"{source} does not say how it was run; add {', '.join(missing)}")
    return replace(known, engine=known.engine or str(_USUAL["engine"]), tp=known.tp or 1)


def resolve_facts(facts: RunFacts, given: Given, stated: Mapping[str, object] | None = None) -> Resolved:
    """Model, accelerator and deployment of a run; stated: what its file says of formats, limits and degrees."""
    name = str(facts.model)
    if given.facts.model is None:  # a server may call its model whatever it likes
        if (read := known_model(name)) is None:
            try:
                load_model(name)
            except RooflinekitError as error:
                raise InputError(f"the file calls its model {name!r}, and that is {error}; add --model") from None
        name = read or name
    known = {"tp": facts.tp, "engine": facts.engine, "max_num_seqs": facts.max_num_seqs}
    own = _stated(load_model(name).value, dict(stated or {}), given)
    deployment = read_deployment({**own, **given.deployment, **known})
    return resolve(name, str(facts.gpu), deployment, given.calibration)


def _stated(model: Model, stated: OwnKeywords, given: Given) -> OwnKeywords:
    """Options that a file states: formats that are the checkpoint's own in other words stay the checkpoint's."""
    weights = None if "weights" in given.deployment else stated.get("weights")
    own = {_family(each.value) for each in (model.formats.ffn, model.formats.experts)}
    if weights is not None and _family(weights) in own:
        stated = {name: value for name, value in stated.items() if name not in ("weights", "activations")}
    resident = stated.pop("resident_layers", None)
    if resident is not None and resident < len(model.layers):
        stated["offload_layers"] = len(model.layers) - resident
    return stated


def _family(weights: object) -> str:
    """Common family of formats of one width and kind: fp8 of fp8_block, fp4 of nvfp4."""
    name = parse_dtype(str(weights)).value
    hit = re.search(r"(?:fp|int)\d+", name)
    return hit[0] if hit and not name.startswith(("bf", "fp16", "fp32")) else name

"""Measured runs as deployments under load, and what a prediction says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.loaded import load_notes
from rooflinekit.estimation.options import options_of, part_of, read
from rooflinekit.estimation.scenario import Served
from rooflinekit.evidence.measured import Facts, Measurement, Spread, StartUp
from rooflinekit.load.answer import AskedLoad, play_load
from rooflinekit.load.lengths import MOST_TOKENS, Fixed, Length, LogNormal
from rooflinekit.load.scene import Scheduler
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_model

_FACTS = ("model", "gpu", "engine", "tp", "isl", "osl", "concurrency", "rate", "osl_cv", "max_num_seqs")
_SPLIT = ("pp", "ep", "dp", "weights", "activations", "kv")
_OPTIONS = {"model": "--model", "gpu": "--gpu", "tp": "--tp", "isl": "--isl", "osl": "--osl"}


@dataclass(frozen=True)
class LoadPrediction:
    """What users feel, as means.

    parts [ms]: `step` and `prompts` of others add up to TPOT; `front_end`, `under_way`, `behind`, `place` and the own
    `prompt` to TTFT (`rooflinekit.load.played.FirstParts`). running: sequences in steps of one replica. played: what
    was played, in words; notes: what the reader should know; overloaded: whether more comes than can be served.
    ends_ms: both ends of the 90 % intervals of `ttft_ms` and `tpot_ms`.
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
    ends_ms: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def predict_load(predictor: Predictor, asked: AskedLoad, scheduler: Scheduler | None = None) -> LoadPrediction:
    """A load as it is played, told apart as a comparison needs it.

    Raises DoesNotFitError if not one such request fits.
    """
    found = play_load(predictor, asked, scheduler)
    ttft, tpot, e2e = found.times()
    parts = asdict(found.tokens) | found.played.first_parts._asdict()
    replicas = found.scene.replicas
    return LoadPrediction(
        ttft_ms=1e3 * float(ttft.expected),
        tpot_ms=1e3 * float(tpot.expected),
        e2e_ms=1e3 * e2e,
        output_tok_s=found.output_rate,
        parts={name: 1e3 * value for name, value in parts.items()},
        running=found.played.running / replicas,
        played=_words(asked, replicas),
        notes=tuple(load_notes(found)),
        overloaded=not found.stable,
        ends_ms={
            f"{name}_ms": (1e3 * float(time.low), 1e3 * float(time.high))
            for name, time in (("ttft", ttft), ("tpot", tpot))
        },
    )


def _words(asked: AskedLoad, replicas: int) -> str:
    """How many requests were played, and how they came."""
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
    """What the user says: facts that go before those of a file, and the rest of the deployment.

    replicas: independent copies of the deployment that shared the load evenly (None: as many as servers were measured).
    """

    facts: Facts = field(default_factory=Facts)
    deployment: Mapping[str, Any] = field(default_factory=dict)
    calibration: str | None = None
    replicas: int | None = None

    @classmethod
    def of(cls, **said: Any) -> Given:
        """The same as keywords of one level; raises WorkloadError and InputError for what makes no sense."""
        known = read(Served, said)
        if "rate" in known and "concurrency" in known:
            raise InputError("--concurrency is a closed loop and --rate an open one; give one of them")
        split, replicas = part_of(known, _SPLIT), known.get("replicas")
        known = {name: option.default for name, option in options_of(Served).items()} | known
        return cls(Facts(**part_of(known, _FACTS)), split, known["calibration"], replicas)

    def copies(self, run: Measurement) -> int:
        """Copies of the deployment that a run measured."""
        return self.replicas or run.servers

    def refuse_beside(self, name: str) -> None:
        """Raise InputError for what a file of whole steps says itself: all but the accelerator."""
        said = {each for each, value in asdict(self.facts).items() if value not in (None, asdict(Facts())[each])}
        said |= set(self.deployment) | ({"replicas"} if self.replicas not in (None, 1) else set())
        if others := said - {"gpu"}:
            option = min(others).replace("_", "-")
            raise InputError(f"{name} says itself how its steps ran; leave --{option} out")

    def with_logs(self, entries: Sequence[Measurement | StartUp]) -> Given:
        """The same, with what start-up logs among the entries say where the user says nothing, and logs agree."""
        logs = [entry for entry in entries if isinstance(entry, StartUp)]
        told = {name: {getattr(log.facts, name) for log in logs} for name in ("model", "engine", "tp", "max_num_seqs")}
        told |= {name: {log.deployment.get(name) for log in logs} for name in _SPLIT}
        agreed = {name: next(iter(found)) for name, each in told.items() if len(found := each - {None}) == 1}
        facts = {name: agreed[name] for name in _FACTS if name in agreed and getattr(self.facts, name) is None}
        deployment = part_of(agreed, _SPLIT) | dict(self.deployment)
        return replace(self, facts=replace(self.facts, **facts), deployment=deployment)


@dataclass(frozen=True)
class Posed:
    """A measured run as a question: its facts completed, its deployment, its load, and the replicas that share it.

    work: the static batch, of a step that was measured without a load.
    """

    run: Measurement
    facts: Facts
    resolved: Resolved
    load: AskedLoad
    scheduler: Scheduler = field(default_factory=Scheduler)
    work: Workload | None = None


def pose(run: Measurement, given: Given, room: int | None = None, kept: dict[Facts, Resolved] | None = None) -> Posed:
    """The question that a run answers; `room` is the tokens that the engine's cache held, where a log says so.

    kept: deployments that were resolved before with the same `given`; a new one is added.

    A server that counts tokens alone has their rate over their mean number as its rate, and the requests that wait for
    their first token over that as TTFT (Little's law).

    Raises InputError for facts that are missing, and whatever `resolve` raises.
    """
    read, osl = run.facts, given.facts.osl or run.facts.osl
    counts = read.rate is None and run.tool == "llamacpp metrics" and run.output_tok_s
    if counts and osl:
        read = replace(read, rate=counts / osl)
    if run.ttft.mean is None and run.unbegun is not None and read.rate:
        run = replace(run, ttft=Spread(mean=1e3 * run.unbegun / read.rate))
    facts = known_facts(run.source, read, given.facts, (*_OPTIONS, "" if counts else "load"))
    for name, length in (("isl", facts.isl), ("osl", facts.osl)):
        if length is not None and not length <= MOST_TOKENS:
            raise InputError(f"{run.source}: {name} is {length:g} tokens; at most {MOST_TOKENS:,} make sense")
    isl, osl = (max(round(length or 1.0), 1) for length in (facts.isl, facts.osl))
    facts = replace(facts, isl=isl, osl=osl)
    load = AskedLoad(
        _length(isl, facts.isl_cv), _length(osl, facts.osl_cv), facts.concurrency, facts.rate, facts.cv,
        facts.requests, facts.warmup,
        cached=min(round((facts.hits or 0.0) * isl), isl - 1),  # the last token is always computed
    )  # fmt: skip
    served = Facts(facts.model, facts.gpu, facts.engine, facts.tp, max_num_seqs=facts.max_num_seqs)
    kept = {} if kept is None else kept
    if served not in kept:
        kept[served] = resolve_facts(served, given)
    return Posed(run, facts, kept[served], load, Scheduler(replicas=given.copies(run), kv_tokens=room))


def _length(mean: int, variation: float | None) -> Length:
    return LogNormal(float(mean), variation) if variation else Fixed(mean)


@contextmanager
def listed(failed: dict[str, RooflinekitError], name: str) -> Iterator[None]:
    """List what goes wrong inside under a name, and go on after it."""
    try:
        yield
    except RooflinekitError as error:
        failed[name] = error


def room_of(entries: Sequence[Measurement | StartUp]) -> int | None:
    """Tokens that the cache held, by the start-up logs among the entries."""
    return min((entry.kv_tokens for entry in entries if isinstance(entry, StartUp) and entry.kv_tokens), default=None)


def known_facts(source: str, read: Facts, given: Facts, needed: Sequence[str]) -> Facts:
    """Facts of the file under those of the user.

    Raises InputError naming the options for all that is still missing.
    """
    own = {entry.name: getattr(given, entry.name) for entry in fields(Facts) if entry.name != "cv"}
    known = replace(read, **{name: value for name, value in own.items() if value is not None})
    if given.rate is not None or given.concurrency is not None:
        known = replace(known, rate=given.rate, concurrency=given.concurrency)
    missing = [option for name, option in _OPTIONS.items() if name in needed and not getattr(known, name)]
    if "load" in needed and known.rate is None and known.concurrency is None:
        missing.append("--concurrency or --rate")
    if missing:
        raise InputError(f"{source} does not say how it was run; add {', '.join(missing)}")
    return replace(known, engine=known.engine or "vllm")


def resolve_facts(facts: Facts, given: Given) -> Resolved:
    """Model, accelerator and deployment of a run; raises InputError for a model that only its server knows."""
    known = {"tp": facts.tp, "engine": facts.engine, "max_num_seqs": facts.max_num_seqs}
    deployment = read_deployment({**given.deployment, **known})
    if given.facts.model is None:  # a server may call its model whatever it likes
        try:
            load_model(str(facts.model))
        except InputError as error:
            raise InputError(f"the file calls its model {facts.model!r}, and that is {error}; add --model") from None
    return resolve(str(facts.model), str(facts.gpu), deployment, given.calibration)

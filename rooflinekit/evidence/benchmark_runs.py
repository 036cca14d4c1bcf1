"""Measured runs as deployments under load, and what a prediction says of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.options import options_of, part_of, read
from rooflinekit.estimation.scenario import Served
from rooflinekit.evidence.measured import Facts, Measurement, Spread, StartUp
from rooflinekit.load.lengths import MOST_TOKENS
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Traffic, closed_loop, no_room, open_loop
from rooflinekit.model.traffic.mixing import slots
from rooflinekit.model.traffic.question import LoadQuestion
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_model

_FACTS = ("model", "gpu", "engine", "tp", "isl", "osl", "concurrency", "rate", "osl_cv", "max_num_seqs")
_SPLIT = ("pp", "ep", "dp", "weights", "activations", "kv")
_OPTIONS = {"model": "--model", "gpu": "--gpu", "tp": "--tp", "isl": "--isl", "osl": "--osl"}


@dataclass(frozen=True)
class LoadPrediction:
    """What users feel, as means.

    parts [ms]: `step` and `interference` add up to TPOT; `prefill` and `queue` to TTFT. running: sequences in the
    batch. note: what the reader should know, else empty. ends_ms: both ends of the 90 % intervals of `ttft_ms` and
    `tpot_ms`.
    """

    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    output_tok_s: float
    parts: Mapping[str, float]
    running: float
    note: str = ""
    ends_ms: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def predict_load(predictor: Predictor, question: LoadQuestion) -> LoadPrediction:
    """The closed form of `rooflinekit.model.traffic` at one load, told apart as a comparison needs it.

    Raises DoesNotFitError if not one such request fits.
    """
    traffic, users, rate = question.traffic, question.users, question.rate
    room = float(slots(predictor, traffic.isl, traffic.osl, traffic.most, traffic.osl_cv))
    if room < 1.0:
        raise no_room(predictor, traffic)
    loaded = closed_loop(predictor, users or 1.0, traffic) if rate is None else open_loop(predictor, rate, traffic)
    times = loaded.shared
    step, own = float(times.step.expected), float(loaded.first.expected) + float(times.request)
    tpot, ttft = float(loaded.tpot.expected), float(loaded.ttft.expected)
    parts = {"step": step, "interference": tpot - step, "prefill": own, "queue": ttft - own}
    note, ends = "", {"ttft_ms": loaded.ttft, "tpot_ms": loaded.tpot}
    if not loaded.stable:
        note = f"unstable: {rate:g} requests/s exceed the {float(loaded.knee):.3g} that can be sustained"
    elif users is not None and users > room:
        note = f"{room:.0f} of {users:.0f} requests fit in memory at a time; the others wait"
    return LoadPrediction(
        ttft_ms=1e3 * ttft,
        tpot_ms=1e3 * tpot,
        e2e_ms=1e3 * float(loaded.e2e),
        output_tok_s=min(float(loaded.rate), float(loaded.knee)) * float(traffic.osl),
        parts={name: 1e3 * value for name, value in parts.items()},
        running=float(loaded.running),
        note=note,
        ends_ms={name: (1e3 * float(time.low), 1e3 * float(time.high)) for name, time in ends.items()},
    )


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
    """A measured run as a question: its facts completed, its deployment, and the load of one replica.

    work: the static batch, of a step that was measured without a load.
    """

    run: Measurement
    facts: Facts
    resolved: Resolved
    load: LoadQuestion
    work: Workload | None = None


def pose(run: Measurement, given: Given, room: int | None = None) -> Posed:
    """The question that a run answers; `room` is the tokens that the engine's cache held, where a log says so.

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
    copies = given.copies(run)  # which share the load evenly
    users, requests = (None if count is None else -(-count // copies) for count in (facts.concurrency, facts.requests))
    traffic = Traffic(
        float(isl), float(osl), osl_cv=facts.osl_cv or 0.0,
        requests=max(requests / users, 1.0) if requests is not None and users else math.inf,
        most=math.inf if room is None else float(max(room // (isl + osl), 1)),
        cached=min((facts.hits or 0.0) * isl, isl - 1.0),  # the last token is always computed
    )  # fmt: skip
    rate = facts.rate / copies if facts.rate else facts.rate
    load = LoadQuestion(None if users is None else float(users), rate, traffic, None, None)
    return Posed(run, facts, resolve_facts(facts, given), load)


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

"""Measured runs as deployments under load: what their files say, under what the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.spelling import at_least
from rooflinekit.evidence.measured import Facts, Measurement, StartUp
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import InputError
from rooflinekit.simulation.interference import LoadPoint
from rooflinekit.specs import load_model

__all__ = ["Given", "Posed", "checked_facts", "known_facts", "pose", "resolve_facts", "room_of"]

_MOST_VARIED = 10.0
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
class Posed:
    """A measured run as a question: its facts completed, its deployment, and the load of one replica."""

    run: Measurement
    facts: Facts
    resolved: Resolved
    load: LoadPoint


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
    variation = said.get("osl_cv")
    if variation is not None and not 0.0 <= variation <= _MOST_VARIED:
        raise InputError(f"--osl-cv must be from 0 (equal answers) to {_MOST_VARIED:g}, not {variation:g}")
    return Facts(**said)


def pose(run: Measurement, given: Given, room: int | None = None) -> Posed:
    """The question that a run answers; `room` is the tokens that the engine's cache held, where a log says so.

    Raises InputError for facts that are missing, and whatever `resolve` raises.
    """
    facts = known_facts(run.source, run.facts, given.facts, tuple(_OPTIONS))
    isl, osl = (max(round(length or 1.0), 1) for length in (facts.isl, facts.osl))
    facts = replace(facts, isl=isl, osl=osl)
    most = None if room is None else max(room // (isl + osl), 1)
    load = LoadPoint(isl, osl, facts.concurrency, facts.rate, facts.requests, most, facts.osl_cv or 0.0)
    return Posed(run, facts, resolve_facts(facts, given), _share(load, given.replicas))


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
    if "isl" in needed and known.rate is None and known.concurrency is None:
        missing.append("--concurrency or --rate")
    if missing:
        raise InputError(f"{source} does not say how it was run; add {', '.join(missing)}")
    return replace(known, engine=known.engine or "vllm")


def resolve_facts(facts: Facts, given: Given) -> Resolved:
    """Model, accelerator and deployment of a run; raises InputError for a model that only its server knows."""
    deployment = read_deployment({**given.deployment, "tp": facts.tp, "engine": facts.engine})
    if given.facts.model is None:  # a server may call its model whatever it likes
        try:
            load_model(str(facts.model))
        except InputError as error:
            raise InputError(f"the file calls its model {facts.model!r}, and that is {error}; add --model") from None
    return resolve(str(facts.model), str(facts.gpu), deployment, given.calibration)


def _share(load: LoadPoint, replicas: int) -> LoadPoint:
    """The load of one of several replicas."""
    if replicas == 1:
        return load
    users, requests = (None if count is None else -(-count // replicas) for count in (load.users, load.requests))
    return replace(load, users=users, requests=requests, rate=load.rate / replicas if load.rate else None)

"""From what a user asks for to the arrivals of a simulation: a rate, users, an arrival process or a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rooflinekit.estimation.lengths import parse_length
from rooflinekit.model.types.errors import InputError, WorkloadError
from rooflinekit.simulation.arrivals import (
    Burst,
    ClosedLoop,
    Gamma,
    Poisson,
    Process,
    Requests,
    generate,
    parse_process,
)
from rooflinekit.simulation.ledger import Objective
from rooflinekit.simulation.request import Arrival
from rooflinekit.simulation.simulate import Load
from rooflinekit.simulation.traces import Trace, load_trace

__all__ = ["Question", "make_load"]

_REQUESTS = 1000  # of an open loop, unless told
_PER_USER = 10  # requests of a closed loop for each user, as benchmark clients send
_IN_STEP = (
    "answers of one length keep the users of a closed loop in step, so that their prompts come all at once; "
    "estimate takes them to drift apart, as answers of random length do (osl=uniform:200-300)"
)
_PREFIX_TOKENS = 16  # granularity of a synthetic shared prefix


@dataclass(frozen=True)
class Question:
    """What is sent, as a user says it. Of rate, concurrency, arrivals and trace, one is given; a trace may have users.

    rate: Poisson arrivals [1/s], or with `cv` other than 1, gamma ones. arrivals: as `parse_process` reads it. trace:
    file, replayed `speed` times as fast; `clean` drops rows that cannot be trusted. shared_prefix: leading tokens that
    requests have in common, in `prefix_groups` groups. ttft_ms, tpot_ms: the objective.
    """

    rate: float | None = None
    cv: float = 1.0
    concurrency: int | None = None
    arrivals: str | None = None
    trace: Path | None = None
    speed: float = 1.0
    clean: bool = False
    isl: str = "1024"
    osl: str = "256"
    requests: int | None = None
    warmup: int = 0
    duration: float = math.inf
    samples: int = 1
    classes: tuple[float, ...] = ()
    shared_prefix: int = 0
    prefix_groups: int = 1
    ttft_ms: float | None = None
    tpot_ms: float | None = None


def make_load(question: Question, seed: int = 0) -> tuple[Load, int, tuple[str, ...]]:
    """Arrivals for `simulate`, the tokens that a hash stands for, and what the reader should know.

    >>> load, _, _ = make_load(Question(rate=2.0, requests=3, isl="64", osl="8"))
    >>> [arrival.isl for arrival in load.arrivals]
    [64, 64, 64]

    Raises InputError (and its kinds) for a question that makes no sense.
    """
    given = [key for key in ("rate", "arrivals", "trace") if getattr(question, key) is not None]
    if question.concurrency is not None and question.trace is None:
        given.append("concurrency")
    if len(given) != 1:
        what = f"not {' and '.join(given)}" if given else "none is given"
        raise InputError(f"requests come by one of --rate, --concurrency, --arrivals and --trace; {what}")
    if not question.duration > 0 or question.warmup < 0 or min(question.samples, question.prefix_groups) < 1:
        raise WorkloadError("duration must be above 0, warmup at least 0, samples and prefix_groups at least 1")
    if question.trace is not None:
        return _replay(question, load_trace(question.trace, question.clean))
    return _synthetic(question, _process(question), seed)


def _process(question: Question) -> Process:
    if question.arrivals is not None:
        return parse_process(question.arrivals)
    if question.concurrency is not None:
        return ClosedLoop(question.concurrency, question.requests or _PER_USER * question.concurrency, question.warmup)
    rate = float(question.rate or 0.0)
    if not 0 < rate < math.inf or not 0 < question.cv < math.inf:
        raise WorkloadError(f"rate and cv must be above 0, not {rate} and {question.cv}")
    return Poisson(rate) if question.cv == 1 else Gamma(rate, question.cv)


def _synthetic(question: Question, process: Process, seed: int) -> tuple[Load, int, tuple[str, ...]]:
    isl, osl = parse_length(question.isl), parse_length(question.osl)
    requests = Requests(isl, osl, question.classes)
    users, warmup, count = None, question.warmup, question.requests or _REQUESTS
    if isinstance(process, ClosedLoop):
        users, warmup, count = process.users, process.warmup, process.prompts + process.warmup
    elif isinstance(process, Burst) and not process.period_s:
        count = min(question.requests or process.size, process.size)
    arrivals = _dressed(generate(process, requests, count, seed), question)
    longest = int(isl.quantile(1.0) + osl.quantile(1.0))
    notes = (_IN_STEP,) if (users or 0) > 1 and osl.quantile(0.0) == osl.quantile(1.0) else ()
    return _load(question, arrivals, (isl.mean + osl.mean, longest), users, warmup), _PREFIX_TOKENS, notes


def _replay(question: Question, trace: Trace) -> tuple[Load, int, tuple[str, ...]]:
    arrivals = trace.arrivals(question.speed, question.requests)
    typical = (sum(trace.isl) + sum(trace.osl)) / len(trace)
    longest = max(isl + osl for isl, osl in zip(trace.isl, trace.osl, strict=True))
    notes = tuple(f"{trace.name}: {count} rows cleaned: {reason}" for reason, count in trace.cleaned.items())
    users = question.concurrency
    if users is not None:
        arrivals = (arrival._replace(time=0.0) for arrival in arrivals)
    load = _load(question, _dressed(arrivals, question), (typical, longest), users, question.warmup)
    return load, trace.block_tokens or _PREFIX_TOKENS, notes


def _load(
    question: Question, arrivals: Iterator[Arrival], size: tuple[float, int], users: int | None, warmup: int
) -> Load:
    ttft, tpot = (None if ms is None else ms / 1e3 for ms in (question.ttft_ms, question.tpot_ms))
    return Load(arrivals, *size, users, warmup, question.duration, Objective(ttft, tpot))


def _dressed(arrivals: Iterator[Arrival], question: Question) -> Iterator[Arrival]:
    """Give arrivals their samples and their shared prefix."""
    if question.samples > 1:
        arrivals = (arrival._replace(samples=question.samples) for arrival in arrivals)
    blocks = question.shared_prefix // _PREFIX_TOKENS
    if not blocks:
        return arrivals
    groups = [tuple(range(group * blocks, (group + 1) * blocks)) for group in range(question.prefix_groups)]
    return (
        arrival._replace(hashes=groups[number % question.prefix_groups][: arrival.isl // _PREFIX_TOKENS])
        for number, arrival in enumerate(arrivals)
    )

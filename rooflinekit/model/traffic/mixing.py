"""Requests in flight on one deployment: what a step costs when prompts and answers share it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.side_by_side import side_by_side
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.numeric import Numeric, ceil_div, maximum, minimum, where
from rooflinekit.model.types.time import ENDS, Time
from rooflinekit.model.types.workload import Workload

__all__ = [
    "InFlight",
    "Shared",
    "StaticRun",
    "lone_prompt",
    "mixed_step",
    "prefill_share",
    "shared_times",
    "slots",
    "static_run",
]


@dataclass(frozen=True)
class InFlight:
    """Requests in flight: `users` of them, each of `isl` tokens in and `osl` out (means; scalars or arrays).

    cached: of each prompt, already in the cache and not computed again.
    """

    users: Numeric
    isl: Numeric
    osl: Numeric
    cached: Numeric = 0.0


@dataclass(frozen=True)
class StaticRun:
    """A batch run to its end: times of the sequences that run together, and how often that repeats to serve all."""

    ttft: Time
    tpot: Time
    waves: Numeric


def static_run(predictor: Predictor, load: InFlight) -> StaticRun:
    """A static batch on an engine with a fixed room for the cache.

    An engine that cannot hold all sequences at once runs as many as fit and lets the others wait: batch/fitting waves.
    Where the memory model has no room even for one, all are taken to run: what was measured did.
    """
    room = predictor.memory.max_batch(load.isl + load.osl, load.isl)
    room = where(room >= 1.0, room, load.users)
    running = minimum(load.users, room)
    work = Workload(running, load.isl, load.osl)
    return StaticRun(predictor.ttft(work), predictor.tpot(work), maximum(load.users / room, 1.0))


@dataclass(frozen=True)
class Shared:
    """Times that requests in flight share [s].

    step: a decode step of all of them; share: what one prompt adds to the steps of the others; first: the steps that
    hold the own prompt, by itself or beside the others; request: front end of one request (HTTP, tokeniser); mixes:
    prompts and decodes share steps.
    """

    step: Time
    share: Time
    first: Time
    request: float
    mixes: bool


def slots(predictor: Predictor, isl: Numeric, osl: Numeric, most: Numeric = math.inf) -> Numeric:
    """Sequences that run at once: as many as the cache holds at their mean length, and as the engine allows.

    `most`: a limit that the user knows. 0 where not one fits.
    """
    room = predictor.memory.max_batch(isl + osl / 2.0, isl)
    fits = predictor.memory.max_batch(isl + osl, isl) >= 1.0
    return where(
        fits, minimum(maximum(room, 1.0), minimum(predictor.memory.rows * predictor.memory.replicas, most)), 0.0
    )


def shared_times(predictor: Predictor, load: InFlight) -> Shared:
    """The times of `load.users` requests in flight."""
    step = predictor.tpot(Workload(load.users, load.isl, load.osl))
    costs, replicas = predictor.plan.costs, predictor.plan.deployment.dp
    added, beside = _added(predictor, load)
    share = added.times(1.0 / beside, 1.0 / beside)
    alone = predictor.plan.time(lone_prompt(load, 1.0 / replicas)).total
    if not costs.mixes:
        return Shared(step, share, alone, costs.request, False)
    mixed = added.plus(step, _chunks(predictor, load))
    first = alone.plus(mixed.plus(alone, -1.0), 1.0 - 1.0 / load.users)
    return Shared(step, share, first, costs.request, True)


def lone_prompt(load: InFlight, filled: Numeric) -> Batch:
    """A prompt by itself in a step; `filled` of the attention replicas compute one."""
    return replace(Batch.prefill(1.0, load.isl, load.cached), filled=filled)


def _chunks(predictor: Predictor, load: InFlight) -> Numeric:
    """Steps that a prompt takes beside the decoding sequences of its attention replica."""
    budget = predictor.plan.token_budget
    return ceil_div(load.isl - load.cached, maximum(budget - _own(predictor, load), budget / 2.0))


def _own(predictor: Predictor, load: InFlight) -> Numeric:
    """Decoding sequences of the fullest attention replica."""
    replicas = predictor.plan.deployment.dp
    return load.users if replicas == 1 else ceil_div(load.users, float(replicas))


def mixed_step(predictor: Predictor, load: InFlight) -> tuple[Numeric, Numeric, Batch]:
    """Chunks of one prompt; how many stand beside each other; and the mean step that holds them and the decodes.

    Of C sequences that run C/N are replaced in every step, so C/N·chunks stand in it on average.
    """
    chunks, own, replicas = _chunks(predictor, load), _own(predictor, load), predictor.plan.deployment.dp
    new = (load.isl - load.cached) / chunks
    beside = side_by_side(load.users / load.osl * chunks, replicas)
    filled = 1.0 if replicas == 1 else (own + beside / replicas * new) / (own + new)
    decoding = Sequences(own, 1.0, load.isl + load.osl / 2)
    prompt = Sequences(1.0, new, (load.cached + load.isl - new) / 2, 1.0 / chunks)
    return chunks, beside, Batch(prompt, decoding, filled)


def prefill_share(predictor: Predictor, load: InFlight) -> Time:
    """What one prompt adds to the steps of the sequences that decode meanwhile [s].

    Chunked prefill puts at most the token budget into one step, beside the decoding sequences: the added time is
    Σ over chunks of t(chunk and decodes) − t(decodes), less than a prefill by itself, because weights are read and
    kernels launched for both. An engine that does not mix phases runs the prefill alone. Attention replicas (dp)
    compute a prompt each, where there are as many (`side_by_side`): the step waits once for all of them.
    """
    added, beside = _added(predictor, load)
    return added.times(1.0 / beside, 1.0 / beside)


def _added(predictor: Predictor, load: InFlight) -> tuple[Time, Numeric]:
    """What the chunks of a prompt, and those that stand beside them, add to their steps [s]; and how many those are."""
    plan = predictor.plan
    if not plan.costs.mixes:
        beside = side_by_side(load.users / load.osl, plan.deployment.dp)
        return plan.time(lone_prompt(load, beside / plan.deployment.dp)).total, beside
    chunks, beside, mixed = mixed_step(predictor, load)
    both, one = plan.time(mixed).total, plan.time(Batch(None, mixed.decoding)).total
    return Time(*(chunks * maximum(getattr(both, end) - getattr(one, end), 0.0) for end in ENDS)), beside

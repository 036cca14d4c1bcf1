"""Requests in flight on one deployment: how many there is room for, and what a prompt adds to the steps of others.

Of n requests that share steps each of the others begins a prompt once in its N steps: q = (n − 1)/N a step, by
Poisson's law. Prices of tokens and the energy of a prompt are made of that; loads are played (`rooflinekit.load`).
"""

from __future__ import annotations

import math

from rooflinekit.model.graph import fact, named
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import Numeric, ceil_div, exp, log, maximum, minimum, sqrt, where
from rooflinekit.model.types.time import ENDS, Time
from rooflinekit.model.types.workload import Workload


@dataclass(frozen=True)
class InFlight:
    """Requests in flight: `users` of them, each of `isl` tokens in and `osl` out (means; scalars or arrays).

    cached: of each prompt, already in the cache and not computed again.
    """

    users: Numeric
    isl: Numeric
    osl: Numeric
    cached: Numeric = 0.0


def front_end(costs: StepCosts, isl: Numeric) -> Numeric:
    """Work of the front end on a request before it comes to the engine's queue: HTTP, tokeniser, hand-over [s].

    >>> front_end(StepCosts(request=3e-3, token=3e-6), 1000.0)
    0.006
    """
    return costs.request + isl * costs.token if costs.token else costs.request


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
class Rotation:
    """Rotation of the requests in flight through the steps of the engine, counted in steps.

    arriving: prompts of others that begin in a step; decoding: sequences that decode on the fullest attention replica;
    holding: steps that hold prompts, for each step (each decode step, where prompts have steps of their own); beside:
    prompts that attention replicas compute side by side; fitting: prompts that the steps of one have room for; each:
    share of a step of all replicas that a prompt takes.
    """

    arriving: Numeric
    decoding: Numeric
    holding: Numeric
    beside: Numeric
    fitting: Numeric
    each: Numeric

    @property
    def together(self) -> Numeric:
        """Prompts, or what chunks are of one, in a step that holds some."""
        return named(self.arriving / self.holding, "together", "prompts in a step that holds some")


def slots(predictor: Predictor, isl: Numeric, osl: Numeric, osl_cv: Numeric = 0.0) -> Numeric:
    """Sequences that run at once: as many as the cache holds at their mean length, and as the engine allows.

    Half of an answer is in the cache at any moment, or all where an engine reserves that. Long answers count in
    proportion to their length: N·(1 + osl_cv²) in the mean, osl_cv being their deviation over their mean N. 0 where not
    one whole request fits.
    """
    memory, shares = predictor.memory, 1.0 if predictor.plan.engine.memory.reserves else 2.0
    room = memory.max_batch(isl + osl * (1.0 + osl_cv**2) / shares, isl)
    room = maximum(named(room, "room", "sequences that the cache admits at once"), 1.0)
    fits = memory.max_batch(isl + osl, isl) >= 1.0
    allowed = minimum(memory.rows, memory.window_places(isl)) * memory.replicas
    found = where(fits, minimum(room, allowed), 0.0)
    return named(found, "slots", "sequences that the cache and the engine's limit allow at once")


def rotation(predictor: Predictor, load: InFlight) -> Rotation:
    """Rotation of n requests that share steps: each other begins a prompt once in its N steps, q = (n − 1)/N a step.

    As many come by Poisson's law, so that 1 − exp(−q) of the steps hold prompts: several in one step, up to the token
    budget. Where the engine computes prompts in steps of their own, only decode steps count, N − 1 of them.
    """
    costs, replicas = predictor.plan.costs, predictor.plan.deployment.dp
    budget = predictor.plan.token_budget
    budget = fact(budget, "budget", "tokens of a step at most", source="the engine's token budget")
    new = load.isl - load.cached
    turn = load.osl if costs.mixes else maximum(load.osl - 1.0, 1.0)
    arriving = named(maximum((load.users - 1.0) / turn, _FEW), "q", "prompts of others that begin in a step")
    decoding = 1.0 + arriving * (load.osl - 1.0)
    lanes = replicas * predictor.plan.lanes
    if lanes > 1:
        decoding = ceil_div(decoding * WITHIN, fact(lanes, "lanes", "attention replicas x microbatches", *_ASKED))
    decoding = named(decoding, "own", "sequences that decode on the fullest attention replica")
    if costs.mixes:
        room = maximum((budget - decoding) * WITHIN, 1.0)
        sizes = named(new / room, "size", "of a prompt, in the room that a step has for prompts")
        pieces = named(steps_begun(sizes, sqrt(decoding) / room), "chunks", "steps that a prompt takes")
        sizes, chunks = _whole(costs, room, new, sizes, pieces)
        fitting = chunks / sizes
    elif costs.splits:
        sizes = named(new / budget, "size", "of a prompt, in the room that a step has for prompts")
        fitting = named(ceil_div(sizes * WITHIN, 1.0), "chunks", "steps that a prompt takes") / sizes
    else:
        fitting = maximum(budget // new, 1.0)
        sizes = 1.0 / fitting
    full = named(minimum(arriving * sizes / lanes, 1.0), "rho", "share of the room for prompts that is used")
    pieces = arriving * (maximum(sizes, 1.0) if costs.mixes else 1.0)
    beside = side_by_side(pieces, replicas)
    if replicas > 1:  # where prompts queue, every replica has its own
        beside = 1.0 / ((1.0 - full * full) / beside + full * full / replicas)
    some = any_of(pieces) if costs.mixes else _steps_of_prompts(arriving, 1.0)
    some = where(load.osl > 1.0, some, pieces / (1.0 + pieces))  # without a decode step each step holds the own prompt
    holding = maximum(some, full if costs.mixes else arriving * sizes / lanes)
    holding = named(holding, "holding", "steps that hold prompts, for each step")
    return Rotation(arriving, decoding, holding, beside, fitting, sizes / lanes)


def _whole(costs: StepCosts, room: Numeric, new: Numeric, sizes: Numeric, pieces: Numeric) -> tuple[Numeric, Numeric]:
    """A prompt's share of a step, and steps that it takes, of an engine that cuts none which a step has room for."""
    if costs.splits:
        return sizes, pieces
    whole = named(room // new, "whole", "prompts that a step has room for, each whole")
    return where(whole >= 1.0, 1.0 / maximum(whole, 1.0), sizes), where(whole >= 1.0, 1.0, pieces)


_ASKED = "", "your input"


def _staged(plan: Plan, time: Time, batch: Batch) -> Time:
    """Time of a step with prompts for the others: of pipeline stages the busiest one's, while others work.

    No more microbatches work at the same time than there are.
    """
    if plan.lanes == 1:
        return time
    return time.times(*(maximum(share, 1.0 / plan.lanes) for share in plan.busiest_share(batch)))


WITHIN = 1.0 - 1e-12
"""No rounding makes a full step, or a mean number of sequences, one more than a whole number, and so another tile."""


def steps_begun(sizes: Numeric, varying: Numeric) -> Numeric:
    """Steps that a prompt of so many steps' size takes: rounded up, in the mean over the room that it finds.

    varying: deviation of the room over the room; as many decode by Poisson's law. The room is taken as even over √12
    times that, so that no sequence more is the one that makes every prompt take another step.
    """
    whole = named((sizes + 0.5) // 1.0, "whole", "the nearest number of steps")
    width = named(minimum(math.sqrt(12.0) * sizes * varying, 1.0), "width", "of sizes that the room makes of one")
    return maximum(whole + minimum(maximum(0.5 + (sizes - whole) / width, 0.0), 1.0), 1.0)


def any_of(count: Numeric) -> Numeric:
    """1 − exp(−x), the chance of any where x come on average; for few by its series, which loses no digits."""
    few = count * (1.0 - count / 2.0 * (1.0 - count / 3.0))
    return where(count < _RARE, few, 1.0 - exp(-count))


_RARE = 1e-3


def _steps_of_prompts(arriving: Numeric, ratio: Numeric) -> Numeric:
    """Steps of prompts for each decode step: one follows each step of either kind in which a prompt has come.

    x prompts come in a decode step and r·x in a step of prompts, which is `ratio` times as long, so that there are
    n = (1 − exp(−x))·exp(r·x) such steps, and x·(1 + r·n) = q prompts come in all: by Newton's method on logarithms.
    """
    at = minimum(arriving, log(1.0 + arriving * maximum(ratio, 1.0)) / maximum(ratio, _FEW))
    for _ in range(_NEWTON):
        some, more = any_of(at), exp(minimum(ratio * at, _STEEP))
        steps = some * more
        value = at * (1.0 + ratio * steps)
        slope = 1.0 + ratio * steps + at * ratio * ((1.0 - some) * more + ratio * steps)
        at = at * exp(minimum(maximum((log(arriving) - log(value)) * value / (at * slope), -2.0), 2.0))
    return any_of(at) * exp(minimum(ratio * at, _STEEP))


_NEWTON, _STEEP = 4, 50.0
_FEW = 1e-9  # prompts of others in a step, below which there are none


def _pieces(load: InFlight, prompts: Numeric) -> Sequences:
    """Prompts of a step: whole ones, or a piece of one, at the middle of it."""
    pieces = maximum(prompts, 1.0)
    new = named((load.isl - load.cached) * (prompts / pieces), "new", "tokens of a piece")  # a whole one exactly
    return Sequences(pieces, new, (load.cached + load.isl - new) / 2, prompts / pieces)


def mixed_step(predictor: Predictor, load: InFlight) -> tuple[Numeric, Batch]:
    """Prompts in a step that holds some, and the mean such step of the fullest attention replica.

    By Poisson's law the variance of their number is m·(1 − m·e^−q) for m in the mean, where there is one.
    """
    plan, turning = predictor.plan, rotation(predictor, load)
    own, beside, replicas = turning.decoding, turning.beside, plan.deployment.dp
    least = 1.0 / maximum(turning.each * replicas * plan.lanes, 1.0)
    fullest = named(maximum(_in_one_step(plan, turning, 0.0) / beside, least), "fullest", "of them on one replica")
    variance = maximum(fullest * (1.0 - fullest * (1.0 - turning.holding)), 0.0)
    together, prompt = fullest * beside, _pieces(load, fullest)
    tokens = prompt.new * prompt.count
    filled: Numeric = 1.0
    if replicas > 1:
        filled = minimum((own + beside / replicas * tokens) / (own + tokens), 1.0)
    decoding = Sequences(own, 1.0, load.isl + load.osl / 2 - 1.0)
    varying: Numeric = 0.0
    if plan.graph_tokens:
        deviation = (load.isl - load.cached) * sqrt(variance)
        varying = named(deviation, "varying", "deviation of the tokens of a step with prompts")
    return together, Batch(prompt, decoding, filled, varying)


def _in_one_step(plan: Plan, turning: Rotation, ratio: Numeric) -> Numeric:
    """Prompts in a step that holds some; of microbatches each has its own prompts in steps of its own."""
    if plan.lanes == 1:
        return turning.together
    arriving = turning.arriving / plan.lanes
    return minimum(arriving / _steps_of_prompts(arriving, ratio), turning.fitting * plan.deployment.dp)


def prefill_share(predictor: Predictor, load: InFlight) -> Time:
    """Time that one prompt adds to the steps of the sequences that decode meanwhile [s].

    (t(prompts and decodes) − t(decodes))/prompts in the mean step that holds some: less than a prefill by itself,
    because weights are read and kernels launched for all of them. An engine that does not mix phases computes prompts
    in steps of their own. Attention replicas (dp) compute a prompt each, where there are as many (`side_by_side`): the
    step waits once for all of them.
    """
    plan = predictor.plan
    if not plan.costs.mixes:
        turning = rotation(predictor, load)
        together, beside = _in_one_step(plan, turning, 1.0), turning.beside
        least = minimum(plan.token_budget / (load.isl - load.cached), 1.0) if plan.costs.splits else 1.0
        each = maximum(together / beside, least)
        prompts = Batch(_pieces(load, each), filled=minimum(together / (each * plan.deployment.dp), 1.0))
        time = _staged(plan, plan.time(prompts).total, prompts)
        return time.times(1.0 / (each * beside), 1.0 / (each * beside))
    together, mixed = mixed_step(predictor, load)
    both = plan.time(mixed).total.named("both", "a step with prompts")
    one = plan.time(Batch(None, mixed.decoding)).total.named("one", "the same step without them")
    added = Time(*(maximum(getattr(both, end) - getattr(one, end), 0.0) / together for end in ENDS))
    return _staged(plan, added, mixed)


_SUMMED = 32.0  # chunks in a step up to which the sum is made; beyond it the mean of a rounded-up quotient is known
_TERMS = 80  # of the Poisson law with that mean: what is left out is below 1e-10


def side_by_side(chunks: Numeric, replicas: int) -> Numeric:
    """Chunks of prompts for each time that the fullest attention replica computes one.

    q chunks come with a step on average, J of them by Poisson's law, spread evenly over d replicas: the fullest has
    ⌈J/d⌉, so q/E⌈J/d⌉ share a time: one where they are few, d where they are many.

    Args:
        chunks: that come with a step on average, above 0.
        replicas: attention replicas.

    >>> side_by_side(5.0, 1), round(side_by_side(0.001, 8), 3), round(side_by_side(2.0, 8), 2)
    (1.0, 1.001, 2.31)
    >>> round(side_by_side(1e4, 8), 2)
    7.99
    """
    if replicas == 1:
        return 1.0
    few = maximum(minimum(chunks, _SUMMED), 1e-9)
    chance = math.e ** (-few)
    fullest: Numeric = 0.0
    for count in range(1, _TERMS):
        chance = chance * few / count
        fullest = fullest + -(-count // replicas) * chance
    many = chunks / maximum(chunks / replicas + (replicas - 1) / (2.0 * replicas), 1.0)
    found = maximum(where(chunks > _SUMMED, minimum(many, float(replicas)), few / fullest), 1.0)
    return named(found, "beside", "chunks that attention replicas compute side by side", source=_LAW)


_LAW = "rooflinekit.model.serving.flight"

"""Requests in flight on one deployment: what a step costs when prompts and answers share it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from rooflinekit.model.graph import fact, named
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import Plan
from rooflinekit.model.traffic.encoding import Encoded
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import (
    LOGISTIC,
    Numeric,
    absolute,
    ceil_div,
    choose,
    exp,
    floor_div,
    log,
    maximum,
    minimum,
    sqrt,
    where,
)
from rooflinekit.model.types.time import ENDS, Time
from rooflinekit.model.types.workload import Workload


@dataclass(frozen=True)
class InFlight:
    """Requests in flight: `users` of them, each of `isl` tokens in and `osl` out (means; scalars or arrays).

    cached: of each prompt, already in the cache and not computed again; in_step: each comes when a step has ended;
    osl_cv, isl_cv: standard deviation of each over its mean; again: prompts that a request computes again, preempted,
    which come in the same steps as new ones: both come where an answer has ended. turns: of a closed loop whose
    requests all began at once, the first included (infinite: the start is long over), and crowd: how many of them did.
    """

    users: Numeric
    isl: Numeric
    osl: Numeric
    cached: Numeric = 0.0
    in_step: bool = False
    osl_cv: Numeric = 0.0
    again: Numeric = 0.0
    turns: Numeric = math.inf
    crowd: Numeric = 1.0
    isl_cv: Numeric = 0.0

    @property
    def under_way(self) -> Numeric:
        """Mean length of the answers that are being made [tokens]."""
        return under_way(self.osl, self.osl_cv)


def under_way(osl: Numeric, osl_cv: Numeric) -> Numeric:
    """Mean length of the answers that are being made at any moment [tokens].

    An answer is met for as long as it takes, so that long ones count in proportion to their length:
    E[N²]/E[N] = N·(1 + v²), with v the standard deviation over the mean N.

    >>> under_way(256.0, 0.0), under_way(256.0, 0.5)
    (256.0, 320.0)
    """
    if isinstance(osl_cv, float) and osl_cv == 0.0:
        return osl
    return named(osl * (1.0 + osl_cv**2), "N_w", "mean length of the answers under way: N·(1 + v²)")


def front_end(costs: StepCosts, isl: Numeric) -> Numeric:
    """Time of a request before it comes to the engine's queue: HTTP, hand-over, and the tokeniser [s].

    >>> front_end(StepCosts(request=3e-3, token=3e-6), 1000.0)
    0.006
    """
    return costs.request + isl * costs.token if costs.token else costs.request


def follows(plan: Plan) -> bool:
    """Whether the prompts of a closed loop come in the groups whose answers ended in one decode step.

    They do where there is no front end and no encoder apart, and where prompts have steps of their own: no answer ends
    in those, and who ended together comes back together.
    """
    return (plan.costs.request == 0.0 and not plan.deployment.encoder_gpus) or not plan.costs.mixes


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
    """How the requests in flight go through the steps of the engine, counted in steps.

    arriving: prompts of others that begin in a step; decoding: sequences that decode on the fullest attention replica;
    chunks: steps that a prompt takes; full: share of the room for prompts that is used; holding: steps that hold
    prompts, for each step (each decode step, where prompts have steps of their own); beside: prompts that attention
    replicas compute side by side, and beside_own with the own one; fitting: prompts that the steps of one have room
    for; each: share of a step of all replicas that a prompt takes; even: how evenly replicas share prompts, at most 1;
    bunched, width: by how much the prompts of a turn come more densely than evenly over it, and over what share of it;
    drifted: share of that width (squared) which answers of unlike lengths made, so that prompts come at random in it.
    """

    arriving: Numeric
    decoding: Numeric
    chunks: Numeric
    full: Numeric
    holding: Numeric
    beside: Numeric
    beside_own: Numeric
    fitting: Numeric
    each: Numeric
    even: Numeric
    bunched: Numeric = 1.0
    width: Numeric = 1.0
    drifted: Numeric = 1.0

    @property
    def together(self) -> Numeric:
        """Prompts, or what chunks are of one, in a step that holds some."""
        return named(self.arriving / self.holding, "together", "prompts in a step that holds some")

    def beyond(self, osl: Numeric) -> Numeric:
        """Density of prompts in the N − 1 steps after the own prompt, over that of all N."""
        return _thinned(osl, self.bunched)

    def bunch(self, others: Numeric) -> Numeric:
        """Prompts of others in the own step: those that come at any time, and the more of the own turn."""
        return others + self.arriving * (self.bunched - 1.0)

    def met(self, others: Numeric) -> Numeric:
        """Prompts in the steps of one, itself included, on its replica, where so many `others` came meanwhile."""
        own = minimum(maximum((1.0 + others) / self.beside_own, 1.0), self.fitting)
        return named(own, "met", "prompts in the steps of the own one, on its replica")

    def meanwhile(self, step: Numeric, share: Numeric, mixes: bool) -> Numeric:
        """Prompts of others that come in the step in which a prompt comes: a long one is met more often, q·t²/t².

        step: a decode step; share: what a prompt adds [s].
        """
        long = self.together * share + (step if mixes else 0.0)
        plain = (1.0 - self.holding if mixes else 1.0) * step
        time = plain + self.holding * long
        return self.arriving * (plain * step + self.holding * long * long) / (time * time)


@dataclass(frozen=True)
class Shared:
    """Times that requests in flight share [s].

    step: a decode step of those that decode; share: what one prompt adds to the steps of the others; alone: a prompt by
    itself in a step; own: the steps of a prompt beside those that come with it, and decodes where phases mix; request:
    front end of one request (HTTP, tokeniser); mixes: prompts and decodes share steps; turning: how requests go through
    these steps, None where nobody worked it out.
    """

    step: Time
    share: Time
    alone: Time
    own: Time
    again: Time
    request: Numeric
    mixes: bool
    turning: Rotation | None = None
    encoded: Encoded | None = None

    @property
    def before(self) -> Numeric:
        """Until a request comes to the engine's queue: front end, and encoders of images of their own [s]."""
        return self.request + self.encoded.whole if self.encoded else self.request

    @property
    def unhindered(self) -> Numeric:
        """The same where nobody waits for an encoder [s]."""
        return self.request + self.encoded.time.expected if self.encoded else self.request

    def at_bound(self) -> Shared:
        """The same at the datasheet's rates, without a front end."""
        parts = (self.step, self.share, self.alone, self.own, self.again)
        step, share, alone, own, again = (each.at_bound() for each in parts)
        return Shared(step, share, alone, own, again, 0.0, self.mixes, self.turning)


@dataclass(frozen=True)
class Places:
    """Room for sequences on one deployment: what the cache holds, and what the engine allows.

    cache: sequences of mean length that the cache holds; limit: of the engine or the user; fits: whether one whole
    request does; spread: standard deviation of a running sequence's length, over its mean; grown: a whole answer over
    that mean, of equal answers; reserves: whether the engine keeps room for whole answers, so that none gives back.
    """

    cache: Numeric
    limit: Numeric
    fits: Any
    spread: Numeric
    grown: Numeric
    reserves: bool

    @property
    def slots(self) -> Numeric:
        """Sequences that run at once, 0 where not one fits."""
        found = where(self.fits, minimum(self.cache, self.limit), 0.0)
        return named(found, "slots", "sequences that the cache and the engine's limit allow at once")

    def beside(self, others: Numeric, in_step: Numeric = 0.0) -> Numeric:
        """Of so many others that would run beside one, those that do: it has a place of its own."""
        rest = replace(self, cache=maximum(self.cache - 1.0, _NONE), limit=maximum(self.limit - 1.0, _NONE))
        return where(self.fits, rest.taken(maximum(others, _NONE), in_step)[0], others)

    def back(self, asked: Numeric, running: Numeric, load: InFlight, begun: Numeric = 0.0) -> Numeric:
        """Of `asked` sequences of a load, those that gave their place back to the `running` ones and wait for another.

        n sequences take n tokens a step and give S + N back where one ends, n/N times a step: of what they have, and
        had, the part that finds no room grows by n and falls by S + N, and new prompts keep it from falling below 0.
        Where ends come by Poisson's law its mean is about N + E[N²]/(2·S), in the (n/N)/(exp(n/N) − 1) of the time in
        which none ends. The newest gave that back, one younger than the other by N/n tokens: K·S + K²·N/(2n) from K of
        them. They come back before those who wait for their first place. `begun`: share of the requests that began
        together, of which all had a place whose prompts found room.
        """
        if self.reserves:
            return 0.0
        waiting = maximum(minimum(asked, self.limit) - running, 0.0)
        ends = named(running / load.osl, "ends", "answers that end in a step")
        beyond = load.osl * (1.0 + load.under_way / (2.0 * load.isl))
        beyond = beyond / (exp(minimum(maximum(ends, _NONE), _STEEP)) - 1.0)
        newest = minimum(ends * (sqrt(load.isl**2 + 2.0 * beyond) - load.isl), waiting)
        prompts = self.cache * (load.isl + load.under_way / 2.0) / load.isl
        together = minimum(maximum(prompts - running, 0.0), waiting)
        return named(newest + begun * (together - newest), "back", "sequences that gave their place back")

    def taken(self, users: Numeric, in_step: Numeric = 0.0) -> tuple[Numeric, Numeric]:
        """Sequences that run at once in the mean, of `users` that would, and the share of the time with a full cache.

        Lengths of n independent sequences add up to n of the mean, with a deviation of √n times that of one; what is
        beyond the cache waits. The sum is taken as logistic. `in_step`: share of the time in which all began together,
        so that all grow together, from the prompt alone to the whole answer.
        """
        asked = minimum(minimum(users, self.limit), _MANY)
        if self.reserves:
            return minimum(asked, self.cache), 0.0
        wide = sqrt(asked) * self.spread / LOGISTIC
        beyond = minimum(maximum((asked - self.cache) / wide, -_STEEP), _STEEP)
        far = exp(-absolute(beyond))
        full = where(beyond > 0.0, 1.0, far) / (1.0 + far)
        running = minimum(asked, self.cache) - wide * log(1.0 + far)
        if not (isinstance(in_step, float) and in_step == 0.0):
            grown = asked * self.grown
            wave = minimum(maximum((asked - self.cache) / grown + 0.5, 0.0), 1.0)
            full = full + in_step * (wave - full)
            swollen = where(wave < 1.0, asked - grown * wave * wave / 2.0, self.cache)
            running = running + in_step * (swollen - running)
        full = named(full, "crowded", "share of the time in which the cache is full")
        return named(maximum(running, minimum(asked, 1.0)), "crowd", "sequences that run at once in the mean"), full


_NONE = 1e-9  # places of the others where there is one
_MANY = 1e9  # stands for a limit that there is not


def held(plan: Plan, isl: Numeric, osl: Numeric, osl_cv: Numeric = 0.0) -> Numeric:
    """What the cache holds for a sequence at any moment [tokens]: half of its answer, or all where that is reserved."""
    return isl + under_way(osl, osl_cv) / (1.0 if plan.engine.memory.reserves else 2.0)


def places(  # noqa: PLR0913, PLR0917 - what a traffic has
    predictor: Predictor, isl: Numeric, osl: Numeric, most: Numeric = math.inf, osl_cv: Numeric = 0.0,
    isl_cv: Numeric = 0.0,
) -> Places:  # fmt: skip
    """Room for sequences of these lengths; `most`: a limit that the user knows.

    A running sequence has its prompt and any share of its answer, which is met for as long as it takes. Of answers of
    mean N and relative deviation v (lognormal) E[N³]/(3·E[N]) − (E[N²]/(2·E[N]))² is the variance of that share.
    """
    memory, reserves = predictor.memory, predictor.plan.engine.memory.reserves
    length = held(predictor.plan, isl, osl, osl_cv)
    room = named(memory.max_batch(length, isl), "room", "sequences that the cache admits at once")
    fits = memory.max_batch(isl + osl, isl) >= 1.0
    rows = memory.rows * memory.replicas
    limit = rows if isinstance(most, float) and most == math.inf else minimum(rows, most)
    if reserves:
        return Places(maximum(room, 1.0), limit, fits, 0.0, 0.0, reserves)
    longer = 1.0 + osl_cv * osl_cv
    variance = osl * osl * (longer**3 / 3.0 - longer * longer / 4.0) + (isl * isl_cv) ** 2
    return Places(maximum(room, 1.0), limit, fits, sqrt(variance) / length, osl / length, reserves)


def slots(predictor: Predictor, isl: Numeric, osl: Numeric, most: Numeric = math.inf, osl_cv: Numeric = 0.0) -> Numeric:
    """Sequences that run at once: as many as the cache holds at their mean length, and as the engine allows.

    An engine that reserves room for whole answers holds fewer: as many as fit at their full length. `most`: a limit
    that the user knows; osl_cv: standard deviation of `osl` over its mean. 0 where not one fits.
    """
    return places(predictor, isl, osl, most, osl_cv).slots


def rotation(predictor: Predictor, load: InFlight, ratio: Numeric) -> Rotation:
    """Of n requests that share steps each of the others begins a prompt once in its N steps: q = (n − 1)/N a step.

    As many come by Poisson's law, so that 1 − exp(−q) of the steps hold prompts: several in one step, up to the token
    budget. Where the engine computes prompts in steps of their own, only decode steps count, N − 1 of them.
    """
    costs, replicas = predictor.plan.costs, predictor.plan.deployment.dp
    budget = predictor.plan.token_budget
    budget = fact(budget, "budget", "tokens of a step at most", source="the engine's token budget")
    new = load.isl - load.cached
    arriving = others_arriving(predictor.plan, load)
    dense, width, drifted = bunched(predictor, load)
    decoding = _decoding(load, arriving, dense if costs.mixes else 1.0)
    lanes = replicas * microbatches(predictor.plan)
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
        chunks = named(ceil_div(sizes * WITHIN, 1.0), "chunks", "steps that a prompt takes")
        fitting = chunks / sizes
    else:
        chunks = 1.0
        fitting = maximum(floor_div(budget, new), 1.0)
        sizes = 1.0 / fitting
    every = arriving * (1.0 + load.again)
    full = named(minimum(every * sizes / lanes, 1.0), "rho", "share of the room for prompts that is used")
    pieces = arriving * (maximum(sizes, 1.0) if costs.mixes else 1.0) / width
    beside = side_by_side(pieces * (1.0 + load.again), replicas)
    if replicas > 1:  # where prompts queue, every replica has its own
        beside = 1.0 / ((1.0 - full * full) / beside + full * full / replicas)
    some = width * (any_of(pieces) if costs.mixes else _steps_of_prompts(arriving / width, ratio))
    some = where(load.osl > 1.0, some, pieces / (1.0 + pieces))  # without a decode step each step holds the own prompt
    holding = maximum(some, full if costs.mixes else every * sizes / lanes)
    holding = named(holding, "holding", "steps that hold prompts, for each step")
    beside_own = side_by_side(1.0 + arriving * dense, replicas)
    each, even = sizes / lanes, beside / replicas
    return Rotation(
        every, decoding, chunks, full, holding, beside, beside_own, fitting, each, even, dense, width, drifted
    )


def _whole(costs: StepCosts, room: Numeric, new: Numeric, sizes: Numeric, pieces: Numeric) -> tuple[Numeric, Numeric]:
    """A prompt's share of a step, and steps that it takes, of an engine that cuts none which a step has room for."""
    if costs.splits:
        return sizes, pieces
    whole = named(floor_div(room, new), "whole", "prompts that a step has room for, each whole")
    return where(whole >= 1.0, 1.0 / maximum(whole, 1.0), sizes), where(whole >= 1.0, 1.0, pieces)


_ASKED = "", "the question"


def microbatches(plan: Plan) -> int:
    """Parts of the sequences that pipeline stages compute at once, each with a token budget of its own."""
    return plan.lanes


def _staged(plan: Plan, time: Time, batch: Batch) -> Time:
    """What a step with prompts takes of the others' time: of pipeline stages the busiest one's, while others work.

    No more microbatches work at the same time than there are.
    """
    parts = microbatches(plan)
    if parts == 1:
        return time
    return time.times(*(maximum(share, 1.0 / parts) for share in plan.busiest_share(batch)))


def bunched(predictor: Predictor, load: InFlight) -> tuple[Numeric, Numeric, Numeric]:
    """By how much the prompts of a turn come more densely than evenly over its steps, over what share, and the drift.

    The first is at least 1, the others at most 1. The first prompts fill W of the N steps of a turn. After j turns the
    begins have a deviation of √j·v·N steps more, so that they come over √(W² + 12·j·v²·N²) steps, and never over more
    than all N. The mean over all turns but the first, which is a burst: ∫N/√(W² + 12·j·v²·N²) dj, until nothing is
    left of it.
    """
    plan, turns = predictor.plan, load.turns
    if isinstance(turns, float) and math.isinf(turns):
        return 1.0, 1.0, 1.0
    later = maximum(minimum(turns, _MANY) - 1.0, _NONE)
    lanes = plan.deployment.dp * microbatches(plan)
    filling = load.crowd * (load.isl - load.cached) / (plan.token_budget * lanes)
    filling = maximum(filling, 1.0) if plan.costs.mixes else 1.0
    first = minimum(filling / turn_steps(plan, load), 1.0) ** 2
    drift = maximum(12.0 * load.osl_cv**2, _NONE)
    until = minimum(maximum((1.0 - first) / drift, 0.5), later + 0.5)
    narrow, wide = (sqrt(minimum(first + drift * turn, 1.0)) for turn in (0.5, until))
    drifting, even, both = until - 0.5, later + 0.5 - until, narrow + wide
    dense = (drifting * 2.0 / both + even) / later
    width = (drifting * 2.0 / 3.0 * (both - narrow * wide / both) + even) / later
    dense, width = where(turns < math.inf, dense, 1.0), where(turns < math.inf, width, 1.0)
    dense = named(maximum(dense, 1.0), "dense", "prompts in a step that has its share of them, over those in the mean")
    drifted = named(maximum(1.0 - first * dense * dense, 0.0), "drifted", "share of their spread that answers made")
    width = named(minimum(width, 1.0), "width", "of the steps of a turn, those over which its prompts come")
    return dense, width, where(turns < math.inf, drifted, 1.0)


def _decoding(load: InFlight, arriving: Numeric, dense: Numeric) -> Numeric:
    """Sequences that decode in a step: one, and of the others those that hold no prompt in it.

    In the N − 1 steps after his own prompt one meets the prompts of others but for those that came with it.
    """
    return 1.0 + arriving * (load.osl - _thinned(load.osl, dense))


def _thinned(osl: Numeric, dense: Numeric) -> Numeric:
    """(N − b)/(N − 1): what prompts that come b times as densely in a step leave for the N − 1 others; 1 without any.

    >>> _thinned(101.0, 1.0), _thinned(101.0, 51.0), _thinned(1.0, 1.0)
    (1.0, 0.5, 1.0)
    """
    if isinstance(dense, float) and dense == 1.0:
        return 1.0
    return where(osl > 1.0, minimum(maximum(osl - dense, 0.0) / maximum(osl - 1.0, _NONE), 1.0), 1.0)


WITHIN = 1.0 - 1e-12
"""No rounding makes a full step, or a mean number of sequences, one more than a whole number, and so another tile."""


def steps_begun(sizes: Numeric, varying: Numeric) -> Numeric:
    """Steps that a prompt of so many steps' size takes: rounded up, in the mean over the room that it finds.

    varying: deviation of the room over the room; as many decode by Poisson's law. The room is taken as even over √12
    times that, so that no sequence more is the one that makes every prompt take another step.
    """
    whole = named(floor_div(sizes + 0.5, 1.0), "whole", "the nearest number of steps")
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


def others_arriving(plan: Plan, load: InFlight) -> Numeric:
    """Prompts of others that begin in a step, of the decode steps where prompts have steps of their own."""
    return named(
        maximum((load.users - 1.0) / turn_steps(plan, load), _FEW), "q", "prompts of others that begin in a step"
    )


def turn_steps(plan: Plan, load: InFlight) -> Numeric:
    """Steps of a turn in which answers end: all, or the decode steps, where prompts have steps of their own."""
    return load.osl if plan.costs.mixes else maximum(load.osl - 1.0, 1.0)


def shared_times(predictor: Predictor, load: InFlight, full: bool = True, alone: Time | None = None) -> Shared:
    """The times of `load.users` requests that share steps; `full`: with what comes again where the cache is full.

    alone: a prompt by itself, where it is known: it is the same beside any number of others.
    """
    plan = predictor.plan
    arriving = others_arriving(plan, load)
    decoding = _decoding(load, arriving, bunched(predictor, load)[0] if plan.costs.mixes else 1.0)
    tpot, middle = predictor.decoding(Workload(decoding, load.isl, load.under_way))
    step = tpot.named("step", "a decode step of all that decode")
    whole = type(predictor) is Predictor and plan.deployment.in_flight == 1  # no draft, and no part of the batch
    one = middle().total if plan.costs.mixes and whole else None
    if alone is None:
        alone = _alone(predictor, load).named("alone", "the prompt by itself")
    ratio: Numeric = 0.0 if load.in_step else alone.expected / step.expected
    share = prefill_share(predictor, load, ratio, one).named("s", "what one prompt adds to the steps of the others")
    turning = rotation(predictor, load, ratio)
    met = arriving if load.in_step else turning.meanwhile(step.expected, share.expected, plan.costs.mixes)
    met = turning.bunch(met)
    own = _own_steps(predictor, load, turning, met)
    own = own.named("own_steps", "the steps of a prompt, with what they hold beside it")
    again = share.times(0.0, 0.0)
    shared = Shared(step, share, alone, own, again, front_end(plan.costs, load.isl), plan.costs.mixes, turning)
    return replace(shared, again=preempted(predictor, load, shared, one)) if full else shared


def preempted(predictor: Predictor, load: InFlight, shared: Shared, one: Time | None = None) -> Time:
    """What prompts that are computed again add to a mean step where the cache is full [s].

    Each step asks for a token for each of n sequences. Where no answer ends in it, exp(−n/N) of the steps, none is
    free: the newest sequences give back as many, and compute them again where the next answer has ended. So each
    request repeats N·exp(−n/N) tokens, N/S·exp(−n/N) prompts, in steps that hold its own.
    """
    share = shared.share
    if predictor.plan.engine.memory.reserves:
        return share.times(0.0, 0.0)
    arriving = others_arriving(predictor.plan, load)
    again = load.osl / load.isl * exp(-load.users / predictor.plan.deployment.dp / load.osl)
    again = named(again, "repeats", "prompts that a request computes again, preempted")
    ratio: Numeric = 0.0 if load.in_step else shared.alone.expected / shared.step.expected
    whole = prefill_share(predictor, replace(load, again=again), ratio, one)
    added = (arriving * ((1.0 + again) * getattr(whole, end) - getattr(share, end)) for end in ENDS)
    return Time(*(maximum(each, 0.0) for each in added)).named("again", "what prompts that come again add to a step")


def _own_steps(predictor: Predictor, load: InFlight, turning: Rotation, met: Numeric) -> Time:
    """The steps of a prompt beside the `met` that come with it, and decodes where phases mix [s]."""
    plan, own = predictor.plan, turning.met(met / microbatches(predictor.plan))
    if plan.costs.mixes:
        own = own / turning.chunks
        others = maximum(own - 1.0, 0.0)
        step = plan.time(_mixed(predictor, load, turning.decoding, own, turning.beside_own, others)).total
        return step.times(turning.chunks, turning.chunks)
    filled = minimum((1.0 + met) / (own * plan.deployment.dp), 1.0)
    step = plan.time(Batch(_pieces(load, own / turning.chunks), filled=filled)).total
    return step.times(turning.chunks, turning.chunks)


def _apart(predictor: Predictor, load: InFlight, together: Numeric, beside: Numeric) -> Time:
    """Time for each of the prompts that are computed together in a step of their own [s]."""
    plan, replicas = predictor.plan, predictor.plan.deployment.dp
    least = minimum(plan.token_budget / (load.isl - load.cached), 1.0) if plan.costs.splits else 1.0
    each = maximum(together / beside, least)
    prompts = Batch(_pieces(load, each), filled=minimum(together / (each * replicas), 1.0))
    time = _staged(plan, plan.time(prompts).total, prompts)
    return time.times(1.0 / (each * beside), 1.0 / (each * beside))


def _pieces(load: InFlight, prompts: Numeric) -> Sequences:
    """So many prompts in a step: whole ones, or a piece of one, at the middle of it."""
    pieces = maximum(prompts, 1.0)
    new = named((load.isl - load.cached) * (prompts / pieces), "new", "tokens of a piece")  # a whole one exactly
    return Sequences(pieces, new, (load.cached + load.isl - new) / 2, prompts / pieces)


def _alone(predictor: Predictor, load: InFlight) -> Time:
    """A prompt by itself, in as many steps as it is cut into [s]."""
    plan = predictor.plan
    lone = lone_prompt(load, 1.0 / plan.deployment.dp)
    if plan.costs.mixes or not plan.costs.splits:
        return plan.time(lone).total
    chunks = ceil_div((load.isl - load.cached) / plan.token_budget * WITHIN, 1.0)
    return plan.time(replace(lone, prefilling=_pieces(load, 1.0 / chunks))).total.times(chunks, chunks)


def burst(predictor: Predictor, load: InFlight) -> tuple[Time, Numeric]:
    """A step of `load.users` prompts that come at once to an idle engine, and how many such steps they fill.

    As many prompts share a step as its token budget holds; decodes of those whose prompts are done come with them.
    """
    plan, new, replicas = predictor.plan, load.isl - load.cached, predictor.plan.deployment.dp
    mixes = plan.costs.mixes
    fitting = plan.token_budget / new
    if not plan.costs.splits:
        fitting = where(fitting < 1.0, fitting if mixes else 1.0, floor_div(fitting, 1.0))
    together = named(minimum(load.users, fitting * replicas), "at_once", "prompts of a burst in a step")
    fullest = maximum(together / replicas, minimum(fitting, 1.0))
    if replicas > 1:  # whole prompts, dealt evenly, unless they fill the step
        fullest = maximum(fullest, minimum(ceil_div(together * WITHIN, replicas), fitting))
    if mixes:
        decoding = (load.users - together) / (2.0 * replicas * microbatches(plan))
        mixed = _mixed(predictor, load, maximum(decoding, _FEW), fullest, together / fullest)
        step = choose(
            decoding > 0.0, lambda: plan.time(mixed).total, lambda: plan.time(replace(mixed, decoding=None)).total
        )
        step = _staged(plan, step, mixed)
    else:
        step = _apart(predictor, load, together, together / fullest).times(together, together)
    return step, load.users / together


def lone_prompt(load: InFlight, filled: Numeric) -> Batch:
    """A prompt by itself in a step; `filled` of the attention replicas compute one."""
    varying = (load.isl - load.cached) * load.isl_cv
    return replace(Batch.prefill(1.0, load.isl, load.cached), filled=filled, varying=varying)


def mixed_step(predictor: Predictor, load: InFlight) -> tuple[Numeric, Batch]:
    """Prompts in a step that holds some, and the mean such step of the fullest attention replica."""
    turning, replicas = rotation(predictor, load, 1.0), predictor.plan.deployment.dp
    least = 1.0 / maximum(turning.each * replicas * microbatches(predictor.plan), 1.0)
    together = _in_one_step(predictor.plan, turning, 0.0)
    fullest = named(maximum(together / turning.beside, least), "fullest", "of them on one replica")
    others = maximum(fullest * (1.0 - fullest * (1.0 - turning.holding)), 0.0)
    return fullest * turning.beside, _mixed(predictor, load, turning.decoding, fullest, turning.beside, others)


def _in_one_step(plan: Plan, turning: Rotation, ratio: Numeric) -> Numeric:
    """Prompts in a step that holds some; of microbatches each has its own prompts in steps of its own."""
    parts = microbatches(plan)
    if parts == 1:
        return turning.together
    arriving = turning.arriving / parts
    return minimum(arriving / _steps_of_prompts(arriving, ratio), turning.fitting * plan.deployment.dp)


def _mixed(  # noqa: PLR0913, PLR0917 - what a step has
    predictor: Predictor, load: InFlight, own: Numeric, prompts: Numeric, beside: Numeric, variance: Numeric = 0.0
) -> Batch:  # fmt: skip
    """A step of the fullest attention replica: `own` decodes and its prompts; all have `beside` times as many.

    variance: of the number of prompts: m·(1 − m·e^−q) of m in the mean by Poisson's law, where there is one.
    """
    replicas = predictor.plan.deployment.dp
    prompt = _pieces(load, prompts)
    tokens = prompt.new * prompt.count
    filled: Numeric = 1.0
    if replicas > 1:
        filled = minimum((own + beside / replicas * tokens) / (own + tokens), 1.0)
    decoding = Sequences(own, 1.0, load.isl + load.under_way / 2 - 1.0)
    varying: Numeric = 0.0
    if predictor.plan.graph_tokens:
        varying = (load.isl - load.cached) * sqrt(variance + prompts * load.isl_cv**2)
        varying = named(varying, "varying", "deviation of the tokens of a step with prompts")
    return Batch(prompt, decoding, filled, varying)


def prefill_share(predictor: Predictor, load: InFlight, ratio: Numeric = 1.0, one: Time | None = None) -> Time:
    """What one prompt adds to the steps of the sequences that decode meanwhile [s].

    (t(prompts and decodes) − t(decodes))/prompts in the mean step that holds some: less than a prefill by itself,
    because weights are read and kernels launched for all of them. An engine that does not mix phases computes prompts
    in steps of their own. Attention replicas (dp) compute a prompt each, where there are as many (`side_by_side`): the
    step waits once for all of them. `one`: the decode step by itself, where it is known.
    """
    plan = predictor.plan
    if not plan.costs.mixes:
        turning = rotation(predictor, load, ratio)
        return _apart(predictor, load, _in_one_step(plan, turning, ratio), turning.beside)
    together, mixed = mixed_step(predictor, load)
    both = plan.time(mixed).total.named("both", "a step with prompts")
    one = (one or plan.time(Batch(None, mixed.decoding)).total).named("one", "the same step without them")
    return _staged(
        plan, Time(*(maximum(getattr(both, end) - getattr(one, end), 0.0) / together for end in ENDS)), mixed
    )


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


_LAW = "rooflinekit.model.traffic.mixing"

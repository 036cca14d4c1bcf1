"""Latency under load in closed form: continuous batching as conservation of the accelerator's time.

Symbols: C sequences running, S and N mean tokens in and out, t_d(C) a decode step, s what one prompt adds to the steps
of the others (`prefill_share`), λ prompts a second.

    TPOT  = t_d(C) + (C − 1)·s/N                   closed loop: in the time of N tokens, each other prefills once
          = (t_d(C) + Q·s/(N − 1))/(1 − λ·s)       open loop: a share λ·s of the time goes to prompts, and Q
                                                   prompts stand behind a request when its decode begins
    first = chunks·t_d(C) + s                      the steps that hold the own prompt
    TTFT  = request + TPOT/2 + wait + first        front end, the step under way, prompts ahead, the own prompt
    wait  = ρ/(1 − ρ)·(c_a² + c_s²)/2·s,  ρ = λ·s  Kingman's formula (doi:10.1017/S0305004100036094); c: variation

In a closed loop a request meets each other prompt once a turn, in its decode steps or before: the wait is at most (C
− 1)·s/N. A closed loop that starts with all users at once makes each of them wait for (C − 1)/2 prompts on average,
once in the `requests` that each sends: beside decoding sequences the prompts end one by one, and so do the answers.
Users beyond the room for sequences wait for a slot: a full turn each. In an open loop C = 1 + λ·(N − 1)·TPOT by
Little's law, and the wait for a slot from Sakasegawa's approximation of the M/M/c queue (doi:10.1007/BF02480951).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from rooflinekit.model.graph import named
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.mixing import InFlight, Shared, shared_times, slots
from rooflinekit.model.traffic.root import root
from rooflinekit.model.types.errors import DoesNotFitError
from rooflinekit.model.types.numeric import Numeric, choose, fails, largest, maximum, minimum, sqrt, where
from rooflinekit.model.types.time import Time

__all__ = ["Loaded", "Times", "Traffic", "closed_loop", "largest_rate", "no_room", "open_loop"]

Times = Callable[[Numeric], Shared]
"""The shared times of a number of sequences in flight, where they are known already (a table of them)."""

_SETTLED = 1e-6  # relative: neighbours of the fixed point agree


@dataclass(frozen=True)
class Traffic:
    """What arrives: lengths, how they vary, and how clients send.

    isl, osl: mean tokens; cached: of each prompt, already in the cache; isl_cv, osl_cv: standard deviation over mean;
    arrival_cv: of the gaps between arrivals (1 Poisson, 0 clockwork, more is bursty); requests: that each user of a
    closed loop sends, the first of all users at once (infinite: the start is long over); most: sequences that run at
    once at the most. receive_interval: decode steps between two looks at new requests (SGLang's
    --scheduler-recv-interval); batch_wait: decode steps for which prompts are held back, so that several are computed
    together (TensorRT-LLM's batch_wait_timeout_iters).
    """

    isl: Numeric
    osl: Numeric
    isl_cv: Numeric = 0.0
    osl_cv: Numeric = 0.0
    arrival_cv: Numeric = 1.0
    requests: Numeric = math.inf
    most: Numeric = math.inf
    receive_interval: Numeric = 1.0
    batch_wait: Numeric = 0.0
    cached: Numeric = 0.0


@dataclass(frozen=True)
class Loaded:
    """What users feel, as means [s], and what the deployment does.

    running: sequences that a decoding request finds in its steps, itself included; rate: requests a second; knee:
    the rate that cannot be exceeded; queue: seconds of TTFT spent waiting; busy: share of the time that goes to
    prompts; stable: 1 where the rate can be sustained; together: share of the requests whose prompts come all at
    once.
    """

    ttft: Time
    tpot: Time
    e2e: Numeric
    running: Numeric
    rate: Numeric
    knee: Numeric
    queue: Numeric
    busy: Numeric
    stable: Numeric
    together: Numeric
    shared: Shared  #: the times it is made of


def closed_loop(predictor: Predictor, users: Numeric, traffic: Traffic, known: Times | None = None) -> Loaded:
    """`users` requests in flight at any time; each that ends is followed by the next. Scalars or arrays.

    `known`: times that are tabulated; by default each is worked out. Where the memory model has no room for one
    sequence, all are taken to run: what was measured did.
    """
    room = slots(predictor, traffic.isl, traffic.osl, traffic.most)
    running = named(minimum(users, where(room >= 1.0, room, users)), "C", "sequences running")
    times = (known or _worked_out(predictor, traffic))(running)
    others = 1.0 - 1.0 / running
    tpot = times.step.plus(times.share, (running - 1.0) / traffic.osl).named(*_TPOT)
    first = times.first.plus(tpot, 0.5 * others)
    decode = (traffic.osl - 1.0) * tpot.expected
    together = 1.0 / traffic.requests if times.mixes else _together(traffic, running * times.share.expected, decode)
    together = named(together, "together", "share of the requests whose prompts come all at once", source=FORM)
    burst = together * ((running - 1.0) / 2.0 * times.share.expected)
    burst = named(burst, "burst", "behind the prompts of all users at once", "s")
    rate = named(running / (first.expected + burst + decode), "rate_1", "requests a second, without other waits", "1/s")
    rho = named(minimum(others * rate * times.share.expected, _FULL), *_RHO, source=FORM)
    ahead = minimum(
        _kingman(rho, times.share.expected, 1.0, traffic), (running - 1.0) / traffic.osl * times.share.expected
    )
    ahead = named(ahead, "ahead", "behind other prompts, at most all of them in a turn", "s")
    wait = burst + ahead + others * held_back(traffic, running / traffic.osl) * tpot.expected
    request = named(times.request + first.expected + wait + decode, *_HELD)
    slot = maximum(users / running - 1.0, 0.0) * request * (1.0 - 0.5 / traffic.requests)
    slot = named(slot, "slot", "for a slot: a turn of those that run", "s")
    queue = named(wait + slot, *_QUEUE)
    ttft = first.later(times.request + queue).named(*_TTFT)
    rate = named(running / request, "rate", "requests a second that are served", "1/s")
    e2e = named(request + slot, *_E2E)
    return Loaded(ttft, tpot, e2e, running, rate, rate, queue, rho, 1.0 + 0.0 * rate, together, times)


FORM = "docs/serving.md"
_TPOT = "TPOT", "mean time of an output token, prompts of others included", FORM
_TTFT = "TTFT", "time to the first token under load", FORM
_HELD = "held", "a request's time without waiting for a slot", "s"
_E2E = "E2E", "a request from end to end", "s"
_QUEUE = "queue", "waiting for prompts ahead and for a slot", "s"
_RHO = "rho", "share of the time that goes to the prompts of others"


def held_back(traffic: Traffic, prompts: Numeric) -> Numeric:
    """Decode steps that a prompt waits because of the engine's settings; `prompts` come with each step.

    It comes anywhere between two looks at the queue, (n − 1)/2 steps before the next on average. Of those that are
    gathered the first waits all w steps and the w·p that come meanwhile half of them: w·(1 + w·p/2)/(1 + w·p).

    >>> held_back(Traffic(1024.0, 256.0, receive_interval=31.0), 0.1)
    15.0
    >>> held_back(Traffic(1024.0, 256.0, batch_wait=20.0), 0.0), held_back(Traffic(1024.0, 256.0, batch_wait=20.0), 0.1)
    (20.0, 13.333)
    """
    meanwhile = traffic.batch_wait * prompts
    gathered = traffic.batch_wait * (1.0 + meanwhile / 2.0) / (1.0 + meanwhile)
    return (traffic.receive_interval - 1.0) / 2.0 + gathered


def _together(traffic: Traffic, prompts: Numeric, turn: Numeric) -> Numeric:
    """Share of the requests of a closed loop whose prompts come all at once, where prompts have steps of their own.

    The first turn starts together; after j turns the users have drifted apart by √j·cv of a turn, as if evenly over
    √12 times that, and once this is more than the `prompts` of all take, they no longer meet. Equal answers never
    drift: every turn is a burst.
    """
    turns = traffic.requests
    if isinstance(turns, float) and math.isinf(turns):
        return 0.0
    met: Numeric = 0.0
    for turn_number in range(_TURNS):
        window = math.sqrt(12.0 * turn_number) * traffic.osl_cv * turn
        met = met + where(turn_number < turns, maximum(1.0 - window / maximum(prompts, 1e-12), 0.0), 0.0)
    return where((traffic.osl_cv == 0.0) & (turns < math.inf), 1.0, met / turns)


_TURNS = 64  # after which users that drift at all have drifted apart, or the average has settled
_FULL = 0.98  # of the time that prompts may take before Kingman's formula loses its meaning in a finite loop


def _worked_out(predictor: Predictor, traffic: Traffic) -> Times:
    return lambda running: shared_times(predictor, InFlight(running, traffic.isl, traffic.osl, traffic.cached))


def open_loop(predictor: Predictor, rate: Numeric, traffic: Traffic, known: Times | None = None) -> Loaded:
    """`rate` requests a second arrive, whether or not others have ended. Scalars or arrays.

    Above the knee there is no steady state: `stable` is 0, and times are those of the full deployment, to which the
    ever-growing queue comes on top (infinite). `known`: times that are tabulated; by default each is worked out.

    Raises DoesNotFitError if not one such request fits.
    """
    room = slots(predictor, traffic.isl, traffic.osl, traffic.most)
    if fails(room >= 1.0):
        raise no_room(predictor, traffic)
    times = known or _worked_out(predictor, traffic)
    knee = largest_rate(predictor, traffic, room, times)
    return choose(
        rate < knee,
        lambda: _steady(times, rate, traffic, room, knee),
        lambda: _endless(closed_loop(predictor, room, traffic, times), rate, knee),
    )


def _endless(full: Loaded, rate: Numeric, knee: Numeric) -> Loaded:
    """Above the knee: the full deployment, and a queue that grows for ever."""
    never = math.inf + 0.0 * rate
    return replace(
        full, ttft=full.ttft.later(math.inf), e2e=never, rate=rate, knee=knee, queue=never, stable=0.0 * rate
    )


def largest_rate(predictor: Predictor, traffic: Traffic, room: Numeric, known: Times | None = None) -> Numeric:
    """Requests a second of a full batch: C/(N·t_d(C) + C·s), the knee [1/s].

    It grows with C, so the full batch gives the largest.
    """
    times = (known or _worked_out(predictor, traffic))(room)
    rate = room / (traffic.osl * times.step.expected + room * times.share.expected)
    return named(rate, "knee", "largest rate that can be sustained: a full batch", "1/s", FORM)


def no_room(predictor: Predictor, traffic: Traffic) -> DoesNotFitError:
    """The memory holds not one request; of arrays the longest is named."""
    tokens = float(largest(traffic.isl + traffic.osl))
    return DoesNotFitError(f"{predictor.plan.model.name}: not one request of {tokens:.0f} tokens fits in memory")


def _steady(known: Times, rate: Numeric, traffic: Traffic, room: Numeric, knee: Numeric) -> Loaded:
    """The fixed point of C = 1 + λ·(N − 1)·TPOT(C)."""
    running = root(lambda count: _demand(known(count), rate, traffic) - count, 1.0 + 0.0 * room, room, _SETTLED)
    return steady(known, named(running, *LITTLE, source=FORM), rate, traffic, room, knee)


LITTLE = "C", "sequences running, C = 1 + rate·(osl − 1)·TPOT (Little's law), where both sides agree"


def steady(  # noqa: PLR0913, PLR0917 - the sequences that run, and what keeps them running
    known: Times, running: Numeric, rate: Numeric, traffic: Traffic, room: Numeric, knee: Numeric
) -> Loaded:
    """An open loop in which so many sequences run."""
    times = known(running)
    busy = named(minimum(rate * times.share.expected, _FULL), *_RHO)
    behind = named(_behind(busy, traffic), *_BEHIND)
    tpot = times.step.plus(times.share, behind).scaled(1.0 / (1.0 - busy)).named(*_TPOT)
    decode = (traffic.osl - 1.0) * tpot.expected
    prompts = _kingman(busy, times.share.expected, traffic.arrival_cv, traffic)
    prompts = named(prompts, "prompts", "behind prompts that came before (Kingman)", "s")
    first = times.first.plus(tpot, 0.5)
    held = times.request + first.expected + prompts + decode
    held = named(held, *_HELD)
    slot = named(_slot_wait(rate / knee, room, held, traffic), "slot", "for a slot (Sakasegawa 1977)", "s")
    queue = named(prompts + slot, *_QUEUE)
    ttft = first.later(times.request + queue).named(*_TTFT)
    certain = 1.0 + 0.0 * rate
    e2e = named(held + slot, *_E2E)
    return Loaded(ttft, tpot, e2e, running, rate, knee, queue, busy, certain, 0.0 * rate, times)


_BEHIND = "Q", "prompts behind a request when its decode begins, for each step (M/G/1)"


def _demand(times: Shared, rate: Numeric, traffic: Traffic) -> Numeric:
    """Sequences that a decoding request finds in its steps, itself included (Poisson arrivals see time averages)."""
    busy = minimum(rate * times.share.expected, _FULL)
    step = times.step.expected + _behind(busy, traffic) * times.share.expected
    return 1.0 + rate * (traffic.osl - 1.0) * step / (1.0 - busy)


def _behind(busy: Numeric, traffic: Traffic) -> Numeric:
    """Prompts that stand behind a request when its decode begins, for each of its steps: they are computed beside it.

    In an M/G/1 queue as many as are there on average: ρ + ρ²·(c_a² + c_s²)/2/(1 − ρ) (Pollaczek and Khinchine).
    """
    variation = (traffic.arrival_cv**2 + traffic.isl_cv**2) / 2.0
    standing = busy + busy**2 * variation / (1.0 - busy)
    return standing / maximum(traffic.osl - 1.0, 1.0)


def _kingman(rho: Numeric, service: Numeric, arrival_cv: Numeric, traffic: Traffic) -> Numeric:
    variation = named((arrival_cv**2 + traffic.isl_cv**2) / 2.0, "v", "mean squared variation")
    return rho / (1.0 - rho) * variation * service


def _slot_wait(load: Numeric, room: Numeric, held: Numeric, traffic: Traffic) -> Numeric:
    """Wait for one of `room` slots, each held for `held` seconds (Sakasegawa 1977)."""
    load = named(minimum(load, _FULL), "load", "rate over the knee, at most 0.98")
    variation = named((traffic.arrival_cv**2 + traffic.osl_cv**2) / 2.0, "v_o", "mean squared variation of the answers")
    return variation * held / room * load ** (sqrt(2.0 * (room + 1.0)) - 1.0) / (1.0 - load)

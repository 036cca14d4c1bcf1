"""Latency under load in closed form: continuous batching as conservation of steps, of time and of requests.

Symbols: S and N mean tokens in and out, λ requests a second, q prompts of others that begin in a step, t_d(D) a decode
step of the D that decode, s what one prompt adds to a step, beside the others that it holds.

    D     = 1 + q·(N − 1)                          each of the others is in decode for N − 1 steps; who waits is not
    TPOT  = t_d(D) + q·s                           every step holds q prompts of others in the mean
    first = t(own prompt, those that came in the same step, and decodes)
    q     = λ·(first + (N − 2)·TPOT)/(N − 1)       prompts that come from the begin of the own one delay its tokens
    TTFT  = request + late + ahead + slot + first  front end, the step under way, behind other prompts, for a place;
                                                   with encoders of images before it (`encoding`)
    ahead = v·w·ρ^(√(2/w + 2) − 1)/(1 − ρ)·t_full  Sakasegawa: a full step serves 1/w prompts at once; v: mean squared
                                                   variation of gaps and prompts
    E     = λ·(first + (N − 1)·TPOT)               requests in a place (Little's law): who waits for a step has none

One unknown, q, and one equation for it: an open loop gives λ; in a closed loop of C users λ = E/(first + (N − 1)·TPOT),
where those ask for a place who are neither in the front end nor in the queue, and get it where there is one. Where more
ask, the places serve all in turns. So the users are those in the front end and the queue, in prefill, and decoding, at
any number of them; a turn is at least the steps and prompts of all users. Beside a root nothing is searched. TPOT and λ
grow with q. Places are filled at E: the knee is the rate of a full engine.

Where the cache is full, sequences give their place back and wait for another: their first token has come, so that it is
a wait for their next. Others wait for a first place.

A closed loop that starts with all users at once makes each of them wait for half of the steps that hold their prompts
on average, once in the `requests` that each sends; all of these requests take whole turns of the places, the last of
which leaves some empty. In later turns their prompts still come together, until answers have drawn them apart
(`mixing.bunched`). Users beyond the room for sequences wait for a slot: a full turn each. In an open loop the wait
for a slot is Sakasegawa's approximation of the M/M/c queue (doi:10.1007/BF02480951).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from rooflinekit.model.graph import named
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.encoding import FULL, Encoders, encoders_of, queue_wait, served
from rooflinekit.model.traffic.mixing import (
    WITHIN,
    InFlight,
    Places,
    Rotation,
    Shared,
    any_of,
    burst,
    follows,
    microbatches,
    places,
    preempted,
    rotation,
    shared_times,
    steps_begun,
)
from rooflinekit.model.traffic.root import root
from rooflinekit.model.types.errors import DoesNotFitError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import Numeric, choose, exp, fails, largest, log, maximum, minimum, sqrt, where
from rooflinekit.model.types.time import Time

Times = Callable[[Numeric], Shared]
"""The shared times of a number of requests that share steps, where they are known already (a table of them)."""

Find = Callable[[Callable[[Numeric], Numeric], Numeric, Numeric, float], Numeric]
"""Finds the root of a function between two numbers, to a relative difference, as `root` does."""

FORM = "docs/under-load.md"
SHARING = "n", "requests that share the steps of one, itself included: 1 + q·N"
_FIRST = "first", "the steps that hold the own prompt"
_TPOT = "TPOT", "mean time of an output token, prompts of others included", FORM
_TTFT = "TTFT", "time to the first token under load", FORM
_STAY = "stay", "a request's time in the engine", "s"
_HELD = "held", "a request's time in a place", "s"
_E2E = "E2E", "a request from end to end", "s"
_QUEUE = "queue", "waiting for prompts ahead and for a slot", "s"
_RHO = "rho", "share of the time that goes to prompts"
_RUNNING = "E", "requests that hold a place: rate x their time in it (Little's law)"

_KNEE = "knee", "largest rate that can be sustained: a full engine, or full encoders", "1/s", FORM

_SETTLED = 1e-14  # relative: neighbours of the root agree, and a wait that is less is none
_NOTHING = 1e-12  # stands for none where something is divided by: a decode pool has no prompts


@dataclass(frozen=True)
class Traffic:
    """What arrives: lengths, how they vary, and how clients send.

    isl, osl: mean tokens; cached: of each prompt, already in the cache; isl_cv, osl_cv: standard deviation over mean;
    arrival_cv: of the gaps between arrivals (1 Poisson, 0 clockwork, more is bursty); requests: that each user of a
    closed loop sends, the first of all users at once (infinite: the start is long over); most: sequences that run at
    once at the most. receive_interval: decode steps between two looks at new requests (SGLang's
    --scheduler-recv-interval); batch_wait: decode steps for which prompts are held back, so that several are computed
    together (TensorRT-LLM's batch_wait_timeout_iters); crowd: users of a closed loop that begin at once. isl_law,
    osl_law: quantiles of the lengths over their mean, where a law is known; else lengths are taken as lognormal.
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
    crowd: Numeric = 1.0
    isl_law: Callable[[float], float] | None = None
    osl_law: Callable[[float], float] | None = None

    def places(self, predictor: Predictor) -> Places:
        """Room for sequences of such requests."""
        return places(predictor, self.isl, self.osl, self.most, self.osl_cv, self.isl_cv)

    def of(self, users: Numeric, in_step: bool = False) -> InFlight:
        """So many of these requests in flight."""
        turns, crowd, isl_cv = self.requests, self.crowd, self.isl_cv
        asked = users, self.isl, self.osl, self.cached, in_step, self.osl_cv
        return InFlight(*asked, turns=turns, crowd=crowd, isl_cv=isl_cv)


@dataclass(frozen=True)
class Loaded:
    """What users feel, as means [s], and what the deployment does.

    running: requests that hold a place, rate x their time in it (Little's law); sharing: those that share the
    steps of one, itself included; rate: requests a second; knee: the rate that cannot be exceeded; queue: seconds of
    TTFT spent waiting, of which `ahead` behind other prompts; late: until the step under way has ended; first: the
    steps that hold the own prompt; busy: share of the time that goes to prompts; stable: 1 where the rate can be
    sustained; together: share of the requests whose prompts come all at once; grouped: share of the later turns in
    which no tokens wait for prompts, because all users are one group.
    """

    ttft: Time
    tpot: Time
    e2e: Numeric
    running: Numeric
    sharing: Numeric
    rate: Numeric
    knee: Numeric
    queue: Numeric
    ahead: Numeric
    late: Numeric
    first: Time
    busy: Numeric
    stable: Numeric
    together: Numeric
    shared: Shared  #: the times it is made of
    grouped: Numeric = 0.0
    slot: Numeric = 0.0  #: wait for a place, part of the queue [s]
    burst: Numeric = 0.0  #: from the first to the last of the first tokens, where all prompts come at once [s]
    begin: Numeric = 0.0  #: mean time to first token, where all prompts come at once [s]


@dataclass(frozen=True)
class _Stay:
    """A request from the moment when it may be admitted to its end, without waiting for a place.

    late: until a step begins that may hold its prompt; ahead: behind prompts that came before; first: the steps that
    hold its prompt; exposed: from their start, as long as prompts that come delay its tokens; held: from their start to
    the end, in a place [s].
    """

    turning: Rotation
    times: Shared
    tpot: Time
    first: Time
    late: Numeric
    ahead: Numeric
    exposed: Numeric
    held: Numeric

    @property
    def time(self) -> Numeric:
        """In the engine [s]."""
        return named(self.late + self.ahead + self.held, *_STAY)


@dataclass(frozen=True)
class _Start:
    """The prompts of all users at once: `filled` steps `one`, after the `lone` first one where that comes before [s].

    others: share of the users whose prompts are in those steps; pause: a decode step of the first users, made up before
    the others came [s]; going: share of the first users whose answers go on after it.
    """

    one: Time
    filled: Numeric
    lone: Numeric
    others: Numeric
    pause: Numeric = 0.0
    going: Numeric = 1.0

    @property
    def whole(self) -> Numeric:
        """Until the last first token [s]."""
        return self.lone + self.pause + self.one.expected * self.filled

    @property
    def behind(self) -> Numeric:
        """Steps of prompts that follow the own one in the mean."""
        return self.filled - self.others * (self.filled + 1.0) / 2.0

    @property
    def delaying(self) -> Numeric:
        """Of those, the steps that delay tokens."""
        return self.behind - (1.0 - self.others) * (1.0 - self.going) * self.filled

    @property
    def wait(self) -> Numeric:
        """From the mean first token to the last [s]."""
        return self.one.expected * self.behind + (1.0 - self.others) * self.pause

    @property
    def last(self) -> Numeric:
        """From the first first token to the last [s]."""
        return self.one.expected * maximum(self.filled - where(self.lone > 0.0, 0.0, 1.0), 0.0) + self.pause


def closed_loop(  # noqa: PLR0913, PLR0917 - what both loops take, and what may be known
    predictor: Predictor, users: Numeric, traffic: Traffic, known: Times | None = None, find: Find = root,
    room: Places | None = None, in_step: bool | None = None,
) -> Loaded:  # fmt: skip
    """`users` requests in flight at any time; each that ends is followed by the next. Scalars or arrays.

    `known`: times that are tabulated, else worked out; `find` searches the roots; `room` where it is known; `in_step`
    where it is not the engine's: whether each comes when a step has ended. Where the memory model has no room
    for one sequence, all are taken to run: what was measured did.
    """
    predictor = served(predictor)
    room = room or traffic.places(predictor)
    if not (isinstance(traffic.requests, float) and math.isinf(traffic.requests)):
        traffic = replace(traffic, crowd=crowd_of(users, room))
    in_step = follows(predictor.plan) if in_step is None else in_step
    return _Flow.of(predictor, traffic, known, find, in_step=in_step).closed(users, room)


def crowd_of(users: Numeric, room: Places) -> Numeric:
    """Users of a closed loop whose first prompts come at once: all that have a place."""
    return minimum(users, where(room.fits, room.slots, users))


def open_loop(
    predictor: Predictor, rate: Numeric, traffic: Traffic, known: Times | None = None, find: Find = root
) -> Loaded:
    """`rate` requests a second arrive, whether or not others have ended. Scalars or arrays.

    Above the knee there is no steady state: `stable` is 0, and times are those of the full deployment, to which the
    ever-growing queue comes on top (infinite). `known` and `find` as in `closed_loop`.

    Raises DoesNotFitError if not one such request fits.
    """
    return OpenLoop.of(predictor, traffic, known, find).within(rate)


@dataclass(frozen=True)
class OpenLoop:
    """Open loops of one traffic on one deployment; what is the same at every rate is worked out once.

    places: room for sequences; most: requests that share the steps of a full engine; knee: the rate that cannot be
    exceeded.
    """

    flow: _Flow
    places: Places
    most: Numeric
    knee: Numeric

    @classmethod
    def of(  # noqa: PLR0913, PLR0917 - what both loops take, and what may be known
        cls, predictor: Predictor, traffic: Traffic, known: Times | None = None, find: Find = root,
        closed: Callable[[Numeric], Loaded] | None = None, room: Places | None = None,
    ) -> OpenLoop:  # fmt: skip
        """As `open_loop`, without a rate; `closed`: loops of users who come at any time; both where they are known."""
        predictor = served(predictor)
        places = room or traffic.places(predictor)
        if fails(places.slots >= 1.0):
            raise no_room(predictor, traffic)
        flow = _Flow.of(predictor, traffic, known, find)
        full = closed(_MANY) if closed else flow.closed(_MANY, places)
        return cls(flow, places, flow.reached(full), named(full.rate, *_KNEE))

    def at(self, rate: Numeric) -> Loaded:
        """What users feel at a rate [1/s]; ends and bounds of its times are its steps', beside as many requests."""
        flow = self.flow
        return choose(
            rate < self.knee,
            lambda: flow.steady(flow.sharing(self.most, rate), rate, self.places, self.knee),
            lambda: _endless(self._full, rate, self.knee),
        )

    def within(self, rate: Numeric) -> Loaded:
        """The same, ends and bounds those of engines whose steps stand there, and so hold more requests or fewer.

        Steps that take F times as long at a rate λ are steps of the expected length at F·λ, on a clock that runs F
        times as fast. There is no upper end of TTFT where F·λ cannot be sustained. What first tokens err beyond the
        steps that hold their prompts is no reason for longer queues, and multiplies the time.
        """
        found = self.at(rate)
        if self.flow.predictor.plan.calibration is None:
            return found
        first = choose(found.stable > 0.0, lambda: found.ttft, lambda: found.tpot)  # an endless one has no factor
        ttft, tpot = self.bounds(rate)
        return replace(
            found,
            ttft=self._between(replace(found.ttft, bound=ttft), first, found.first, rate, "ttft"),
            tpot=self._between(replace(found.tpot, bound=tpot), found.tpot, found.tpot, rate, "tpot"),
        )

    def bounds(self, rate: Numeric) -> tuple[Numeric, Numeric]:
        """TTFT and TPOT of an engine at the datasheet's rates, which may carry more; no wait is in them [s]."""
        fastest = self._fastest.at(rate)
        return fastest.ttft.bound, fastest.tpot.bound

    def _between(self, time: Time, whole: Time, steps: Time, rate: Numeric, metric: str) -> Time:
        """The time with other ends: `whole` of it, of which those of `steps` change the load."""

        def place(name: str) -> Numeric:
            factor = getattr(steps, name) / steps.expected
            slower: Time = getattr(self.at(factor * rate), metric)
            end: Numeric = getattr(whole, name)
            return end / whole.expected * slower.expected

        low, high = place("low"), place("high")
        return replace(time, low=maximum(minimum(low, time.expected), time.bound), high=maximum(high, time.expected))

    @cached_property
    def _full(self) -> Loaded:
        """A full engine behind an endless queue, as the ends of its times have it."""
        predictor = self.flow.predictor
        plan = predictor.plan
        engine = replace(plan.engine, loaded=plan.engine.loaded.endless)
        flow = replace(self.flow, predictor=replace(predictor, plan=replace(plan, engine=engine)))
        return flow.loaded(self.most, _MANY, self.places)

    @cached_property
    def _fastest(self) -> OpenLoop:
        flow = self.flow.at_bound()
        return OpenLoop(flow, self.places, self.most, flow.knee(self.most, self.places))


def largest_rate(predictor: Predictor, traffic: Traffic) -> Numeric:
    """Requests a second of a full engine, the knee [1/s]; raises DoesNotFitError as `open_loop`."""
    return OpenLoop.of(predictor, traffic).knee


def _endless(full: Loaded, rate: Numeric, knee: Numeric) -> Loaded:
    """Above the knee: the full deployment, and a queue that grows for ever."""
    never = math.inf + 0.0 * rate
    ttft = full.ttft.later(math.inf)
    return replace(full, ttft=ttft, e2e=never, rate=rate, knee=knee, queue=never, stable=0.0 * rate)


@dataclass(frozen=True)
class _Flow:
    """Traffic through a deployment, whose operating points follow from one number: the requests that share steps."""

    predictor: Predictor
    traffic: Traffic
    times: Times
    repeating: Callable[[Numeric], Time]  #: what prompts add to a step that are computed again
    known: Times | None
    find: Find
    in_step: bool = False
    encoders: Encoders | None = None

    @classmethod
    def of(
        cls, predictor: Predictor, traffic: Traffic, known: Times | None, find: Find, in_step: bool = False
    ) -> _Flow:  # fmt: skip
        """Work the shared times out where they are not known; in_step: each request comes when a step has ended."""
        met: dict[float, Shared] = {}  # ends and roots are asked for again
        alone: list[Time] = []

        def worked_out(sharing: Numeric) -> Shared:
            if isinstance(sharing, float) and sharing in met:
                return met[sharing]
            found = shared_times(predictor, traffic.of(sharing, in_step), False, *alone)
            alone[:] = [found.alone]
            if isinstance(sharing, float):
                met[sharing] = found
            return found

        def repeating(sharing: Numeric) -> Time:
            return known(sharing).again if known else preempted(predictor, traffic.of(sharing, in_step), times(sharing))

        times = known or worked_out
        return cls(predictor, traffic, times, repeating, known, find, in_step, encoders_of(predictor.plan))

    def at_bound(self) -> _Flow:
        """The same where every step takes its datasheet bound."""

        def times(sharing: Numeric) -> Shared:
            return self.times(sharing).at_bound()

        def repeating(sharing: Numeric) -> Time:
            return self.repeating(sharing).at_bound()

        predictor = replace(self.predictor, plan=replace(self.predictor.plan, calibration=None))
        encoders = self.encoders and self.encoders.at_bound()
        return _Flow(predictor, self.traffic, times, repeating, self.known and times, self.find, encoders=encoders)

    @property
    def _mixes(self) -> bool:
        return self.predictor.plan.costs.mixes

    @property
    def _after(self) -> Numeric:
        """Tokens after the first."""
        return self.traffic.osl - 1.0

    @property
    def _apart(self) -> Numeric:
        """Least time from one request to the next that comes to the engine's queue [s]."""
        apart = self.predictor.plan.costs.hand_over
        return maximum(self.encoders.apart, apart) if self.encoders else apart

    def _behind_images(self, times: Shared, rate: Numeric, gaps: Numeric) -> Shared:
        """The times with what encoders of images take before, where `rate` others come a second."""
        if self.encoders is None:
            return times
        return replace(times, encoded=self.encoders.beside(rate, gaps))

    # --- the root ----------------------------------------------------------------------------------------------------

    def closed(self, users: Numeric, room: Places) -> Loaded:
        """So many users, each of whom sends the next request when an answer has come."""
        return self.loaded(self.full(users, room), users, room)

    def full(self, users: Numeric, room: Places) -> Numeric:
        """Of `users`, those that share steps.

        Nobody brings more than one prompt in the steps of a stay, waits behind other prompts included; who holds a
        place brings one in his time in it. The smaller of both is what the steps hold.
        """
        plan, traffic, after = self.predictor.plan, self.traffic, maximum(self._after, 1.0)

        in_step = _in_step(traffic)

        def begun(sharing: Numeric) -> Numeric:
            turning = (self.known(sharing).turning if self.known else None) or self._turning(sharing, 1.0)
            return users - 1.0 - turning.arriving * self._steps(turning)

        most = minimum(users, where(room.fits, room.slots, users)) - 1.0
        most = most * traffic.osl / after
        if self._mixes:
            lanes = plan.deployment.dp * microbatches(plan)
            fitting = lanes * plan.token_budget / (traffic.isl - traffic.cached + self._after)
            most = minimum(most, traffic.osl * fitting)  # a stay has room for the tokens of all
            most = self.find(begun, 1.0, 1.0 + most, _SETTLED) - 1.0

        def excess(sharing: Numeric) -> Numeric:
            stay = self.stay(sharing, users)
            others = room.beside((users - 1.0) * self._asking(stay), in_step)
            return others * stay.exposed / stay.held - stay.turning.arriving * after

        return named(self.find(excess, 1.0 + 0.0 * most, 1.0 + most, _SETTLED), *SHARING, source=FORM)

    def sharing(self, most: Numeric, rate: Numeric) -> Numeric:
        """Requests that share steps at a rate, at most `most`."""

        def excess(sharing: Numeric) -> Numeric:
            stay = self.stay(sharing, math.inf, rate)
            return rate * stay.exposed - stay.turning.arriving * maximum(self._after, 1.0)

        return named(self.find(excess, 1.0 + 0.0 * most, most, _SETTLED), *SHARING, source=FORM)

    def reached(self, full: Loaded) -> Numeric:
        """Requests that share steps at the knee: fewer than those of a full engine where encoders are the limit."""
        if self.encoders is None:
            return full.sharing
        limited = full.rate * self.encoders.apart > _LIMIT
        return where(limited, self.sharing(full.sharing, full.rate), full.sharing)

    def _asking(self, stay: _Stay) -> Numeric:
        """Share of its time in which a request of a closed loop holds a place, were there room for all."""
        return stay.held / (stay.times.before + stay.time)

    # --- operating points --------------------------------------------------------------------------------------------

    def knee(self, most: Numeric, room: Places) -> Numeric:
        """The rate of an engine in which every place is taken [1/s]."""
        return named(self.loaded(most, _MANY, room).rate, *_KNEE)

    def _repeating(self, stay: _Stay, sharing: Numeric, crowded: Numeric) -> _Stay:
        """The stay with prompts that are computed again while the cache is full, which delay tokens as others do."""
        if isinstance(crowded, float) and crowded < _NOTHING:
            return stay
        times = replace(stay.times, again=self.repeating(sharing))
        tpot = stay.tpot.plus(times.again, crowded).named(*_TPOT)
        return replace(stay, times=times, tpot=tpot, held=stay.first.expected + self._after * tpot.expected)

    def loaded(self, sharing: Numeric, users: Numeric, room: Places) -> Loaded:
        """A closed loop in which so many requests share steps.

        Who waits for a step holds no place: of the users, those ask for one who are neither in the front end nor in the
        queue. Where more ask than there are, each waits for as long as the places take to serve all.
        """
        stay, traffic, in_step = self.stay(sharing, users), self.traffic, _in_step(self.traffic)
        together: Numeric = 1.0 / traffic.requests
        most = where(room.fits, room.taken(users, in_step)[0], users)
        endless = isinstance(traffic.requests, float) and math.isinf(traffic.requests)
        start = None if endless else self._start(most, stay.times)
        stay = _begun(self._within(self._soon(stay, start), users), most, together if start else 0.0)
        crowded = room.taken(users * self._asking(stay), in_step)[1]
        times, turning = stay.times, stay.turning
        behind, last, prompt = 0.0 * users, 0.0 * users, times.share.expected
        if start:
            last, first = start.last, minimum(together, most / (users * traffic.requests))
            prompt = prompt + first * (minimum(start.whole / most, prompt) - prompt)
            if not times.mixes:
                together = _together(traffic)
            stay = self._at_once(stay, most, together, start)
            behind = together * self._behind_burst(stay, start, most)
        stay = self._repeating(stay, sharing, where(room.fits, crowded, 0.0))
        together = named(together, "together", "share of the requests whose prompts come all at once", source=FORM)
        behind = named(behind, "burst", "behind the prompts of all users at once", "s")
        held = behind + (1.0 - 1.0 / maximum(users, 1.0)) * held_back(traffic, turning.arriving) * stay.tpot.expected
        time = named(stay.held + held, "held", "in a place, or held back from one", "s")
        stay, free = self._free(stay, time, users)
        least = named(self._least(users, turning, times, prompt), "least", "steps and prompts of a turn", "s")
        asking = users * time / (free + time)
        crowd = where(room.fits, room.taken(asking, in_step)[0], asking)
        slot, short = self._waits((free + time) * (asking / crowd - 1.0), least - free - time)
        rate: Numeric = users / (free + time + slot + short)
        back = where(room.fits, room.back(asking, crowd, traffic.of(users), 1.0 / traffic.requests), 0.0)
        lost = where(self._after > 0.0, minimum(back / rate, slot), 0.0)
        lost = named(lost, "lost", "for a place that a request had and gave back", "s")
        slot, longer = slot - lost, (lost + short) / maximum(self._after, 1.0)
        tpot = stay.tpot.times(1.0 + longer / stay.tpot.expected, 1.0)
        stay = replace(stay, tpot=tpot.named(*_TPOT))
        if start:
            turns = where(traffic.requests < math.inf, users * traffic.requests / most, _ENDLESS)
            turns = named(turns, "turns", "turns of all places")
            again = crowded * stay.times.again.expected
            run = self._run(turning, sharing, turns, most, prompt, again)
        slot = named(slot * (1.0 - 0.5 / traffic.requests), "slot", "for a slot: a turn of those that run", "s")
        if start:  # a user sends when the last answer has come: `requests` answers one after the other
            apart = (traffic.requests - 1.0) * (free + time + slot + lost + short) + times.unhindered + run / turns
            run = maximum(run, where(users > most, 0.0, apart))
            rate = where(turns < _ENDLESS, turns * most / run, rate)
            stay, rate, apart = self._in_one_group(stay, users, start, rate, users <= most)
            slot, held, rate = self._conserved(stay, users, rate, apart * slot, apart * held)
        rate = named(rate, "rate", "requests a second that are served", "1/s")
        found = self._loaded(stay, sharing, rate, rate, slot, held, together, last)
        if not start:
            return found
        return replace(
            found, grouped=1.0 - apart, running=where(turns < _ENDLESS, minimum(found.running, most), found.running),
            begin=times.unhindered + start.whole - start.wait, together=together * minimum(most / users, 1.0),
        )  # fmt: skip

    def _free(self, stay: _Stay, time: Numeric, users: Numeric) -> tuple[_Stay, Numeric]:
        """The stay, and a request's time without a place [s]; where all need full encoders, the rest is spent there."""
        free, encoded = stay.times.before + stay.late + stay.ahead, stay.times.encoded
        if encoded:
            longer = maximum(users * encoded.apart - free - time, 0.0)
            wait = named(encoded.wait + longer, "images_queue", "for an accelerator of the encoder, a turn of all", "s")
            stay = replace(stay, times=replace(stay.times, encoded=replace(encoded, wait=wait)))
            free = free + longer
        return stay, named(free, "free", "of a request's time, without a place", "s")

    def _waits(self, slot: Numeric, least: Numeric) -> tuple[Numeric, Numeric]:
        """What a request waits for a place, and how much longer its tokens take, where a turn lasts `least` longer [s].

        Nobody waits for a place that is free: it is the prompts of others that a turn has more of, and tokens wait for
        those. Where hardly any token follows the first, the first does.
        """
        short = maximum(least - slot, 0.0)
        first = minimum(maximum(2.0 - self._after, 0.0), 1.0)
        return slot + first * short, named((1.0 - first) * short, "short", "for prompts that a turn has more of", "s")

    def _conserved(
        self, stay: _Stay, users: Numeric, rate: Numeric, slot: Numeric, held: Numeric
    ) -> tuple[Numeric, Numeric, Numeric]:  # fmt: skip
        """The waits for a place and behind others, and the rate: times the time of a request it is no more than users.

        Of a run of some requests the last turn leaves places empty, so that it is less (Little's law). Nobody waits for
        a place longer than the rest of the turns lasts, and a rate is no more than the times of requests allow.
        """
        rest = stay.times.before + stay.late + stay.ahead + held
        rest = rest + stay.first.expected + self._after * stay.tpot.expected
        rest = named(rest, "rest", "of a request's time, without the wait for a place", "s")
        slot = minimum(slot, maximum(users / rate - rest, 0.0))
        return slot, held, minimum(rate, users / rest)

    def _least(self, users: Numeric, turning: Rotation, times: Shared, prompt: Numeric) -> Numeric:
        """Steps and prompts of a turn, or its hand-overs; prompts fill no more steps than they come over [s]."""
        prompts = users * prompt
        if times.mixes:
            most_steps = maximum(turning.width * self.traffic.osl, users * turning.each)
            beyond = maximum(prompts - most_steps * turning.together * times.share.expected, 0.0)
            prompts = prompts - (1.0 - turning.width) * beyond
        handed = users * self.predictor.plan.costs.hand_over
        return maximum(self._steps_of(users, turning) * times.step.expected + prompts, handed)

    def _start(self, crowd: Numeric, times: Shared) -> _Start:
        """The prompts of so many at once; a step lasts until the front end has handed over those of the next.

        A front end reads prompts of unlike lengths one after the other. Those come with the first that are no longer
        than it: 1 + 1/2 + … + 1/n of n in the mean, the mean place of the next record.
        """
        costs = self.predictor.plan.costs
        apart = costs.hand_over
        made_up = costs.overlap * minimum(self._after, 1.0) * times.step.expected
        going = minimum(maximum(self._after - costs.overlap, 0.0), 1.0) if costs.overlap else 1.0
        if not apart:
            varying: Any = self.traffic.isl_cv
            if not costs.token or (isinstance(varying, float) and varying == 0.0):
                return _Start(*burst(self.predictor, self.traffic.of(crowd)), 0.0, 1.0)
            leading = minimum(log(crowd) + _EULER + 0.5 / crowd, crowd)
            leading = named(
                where(varying > 0.0, leading, crowd), "leading", "users whose prompts are read with the first"
            )
            first, steps = burst(self.predictor, self.traffic.of(leading))
            others = crowd - leading
            parted = named(minimum(others, 1.0), "parted", "whether any come later")
            one, filled = burst(self.predictor, self.traffic.of(maximum(others, _NOTHING)))
            return _Start(
                one=first.plus(one.plus(first, -1.0), parted),
                filled=steps + parted * (filled - steps),
                lone=parted * first.expected * steps,
                others=1.0 + parted * (others / crowd - 1.0),
                pause=parted * made_up,
                going=1.0 + parted * (going - 1.0),
            )
        lone, others = times.alone.expected, maximum(crowd - 1.0, _NOTHING)
        parts = minimum(maximum(others * apart / lone, 1.0), 2.0)
        behind = named(others / parts, "behind", "users whose prompts come while that of the first is computed")
        one, filled = burst(self.predictor, self.traffic.of(behind))
        filled = filled * parts * minimum(others, 1.0)
        return _Start(one, filled, lone, others / maximum(crowd, 1.0), made_up * minimum(others, 1.0), going)

    def _behind_burst(self, stay: _Stay, start: _Start, crowd: Numeric) -> Numeric:
        """What the mean request of a burst of a crowd waits, beyond what others wait and compute [s]."""
        if self._mixes:
            wait = maximum(start.whole - start.wait - stay.late - stay.ahead - stay.first.expected, 0.0)
        else:
            wait = start.whole - start.wait - start.one.expected
        encoded = stay.times.encoded
        return maximum(wait - encoded.burst(crowd), 0.0) if encoded else wait

    def _soon(self, stay: _Stay, start: _Start | None) -> _Stay:
        """The stay in a turn whose prompts come densely: none waits longer than where all come at once."""
        if not start or not self._mixes:
            return stay
        step = (1.0 + self.predictor.plan.costs.overlap) * stay.times.step.expected
        longest = maximum(start.whole - start.wait - stay.ahead - stay.first.expected, 0.0) + step
        late = stay.late - (1.0 - stay.turning.width) * maximum(stay.late - longest, 0.0)
        return replace(stay, late=named(late, "late", "until the step under way has ended", "s"))

    def _within(self, stay: _Stay, crowd: Numeric) -> _Stay:
        """The stay where prompts have steps of their own, in which each of `crowd` requests computes one prompt.

        Prompts go before decode steps, so that one waits for no more than the step under way. Who has short answers, or
        began together, comes back together: what would be beyond that delays no tokens. Where phases mix this is so in
        turns whose prompts come densely. The first prompt by itself takes a step of its own.
        """
        times, after = stay.times, self._after
        step, share = times.step.expected, times.share.expected
        steps = after + 1.0 + self.predictor.plan.costs.overlap
        longest = crowd * (share if times.mixes else maximum(times.alone.expected, share)) + steps * step
        if self.predictor.plan.costs.hand_over and times.mixes:
            longest = longest + minimum(crowd - 1.0, 1.0) * maximum(times.alone.expected - share, 0.0)
        longest = named(longest, "longest", "the prompts of all, the own decode steps, and the step under way", "s")
        beyond = maximum(stay.time - longest, 0.0)
        if times.mixes:  # prompts that come evenly over a turn are of several turns of others, but where none decodes
            beyond = beyond * where(after > 0.0, 1.0 - stay.turning.width, 1.0)
        each = maximum(share, _NOTHING)
        prompts = maximum(stay.tpot.expected - step, 0.0) / each
        less = minimum(beyond / each / maximum(after, 1.0), where(after > 0.0, prompts, 0.0))
        if times.mixes:
            less = less * (1.0 - stay.turning.width)
        tpot = stay.tpot.plus(times.share, -less).named(*_TPOT)
        beyond = beyond - less * after * share
        late = maximum(stay.late - beyond, 0.0)
        ahead = maximum(stay.ahead - maximum(beyond - stay.late, 0.0), 0.0)
        return replace(stay, tpot=tpot, late=late, ahead=ahead, held=stay.first.expected + after * tpot.expected)

    def _at_once(self, stay: _Stay, crowd: Numeric, together: Numeric, start: _Start) -> _Stay:
        """The stay where a share of the requests comes all at once: nobody's tokens wait for prompts but the first.

        Where phases mix, the steps of these prompts give tokens as well. Who finds no place at first comes with the
        others of a later turn.
        """
        after, one = maximum(self._after, 1.0), start.one
        step, behind = self._step_of(crowd, stay.turning), start.delaying / after
        own = step.plus(one.plus(step, -1.0), minimum(behind, 1.0)) if self._mixes else step.plus(one, behind)
        tpot = stay.tpot.plus(own.plus(stay.tpot, -1.0), together).named(*_TPOT)
        first, late, ahead = stay.first, stay.late, stay.ahead
        if not self._mixes:
            first = first.plus(one.plus(first, -1.0), together).named(*_FIRST)
            late, ahead = (1.0 - together) * late, (1.0 - together) * ahead
        held = first.expected + self._after * tpot.expected
        return replace(stay, tpot=tpot, first=first, late=late, ahead=ahead, held=held)

    def _step_of(self, crowd: Numeric, turning: Rotation) -> Time:
        """A decode step of so many."""
        if not self._mixes:
            return self.times(crowd).step
        osl = self.traffic.osl
        own = where(self._after > 0.0, osl / maximum(osl - turning.beyond(osl), _NOTHING), 1.0)
        return self.times(1.0 + maximum(crowd * WITHIN - 1.0, 0.0) * own).step

    def _in_one_group(
        self, stay: _Stay, users: Numeric, start: _Start, rate: Numeric, fits: Any
    ) -> tuple[_Stay, Numeric, Numeric]:
        """The stay and the rate with the turns in which all users are one group, and the share of the other turns.

        Prompts that come at once and fit in one step give their first tokens together, and equal answers end together.
        Then nobody decodes beside the prompts, nobody waits for a step, and the engine rests while all are in the front
        end: a turn is the front end, the step of the prompts, and the decode steps of all. So it is in the first turn,
        and in later ones until one answer differs, of which each does by a token with the chance σ². Who is apart stays
        apart. A front end that hands over one request after the other parts the first from them: it ends a decode step
        before the others, and they come while its next prompt is computed. `fits`: whether their prompts do.
        """
        traffic, after = self.traffic, self._after
        later = maximum(minimum(traffic.requests, _MANY) - 1.0, _NOTHING)
        differing = where(after > 0.0, (traffic.osl_cv * traffic.osl) ** 2, 0.0)
        differing = minimum(users, 2.0 * (users - 1.0)) * differing
        differing = named(minimum(differing, _STEEP), "differing", "answers of a turn that differ")
        some = maximum(differing, _NOTHING)
        lasting = where(differing > 0.0, any_of(some * later) / (any_of(some) * exp(some) * later), 1.0)
        lasting = lasting * minimum(maximum(5.0 - 4.0 * start.filled, 0.0), 1.0)
        grouped = where(fits & (traffic.requests < math.inf), lasting, 0.0)
        grouped = named(grouped, "grouped", "share of the later turns in which all users are one group", source=FORM)
        apart, step = 1.0 - grouped, self._step_of(users, stay.turning)
        beside = where(start.lone > 0.0, minimum(start.others * users, 1.0), 0.0)  # others than the first
        parted = (1.0 - start.others) * beside
        made_up = self.predictor.plan.costs.overlap * minimum(after, 1.0)
        ended = step.expected * (1.0 + made_up)  # so long before the others, or by their prompts without a decode step
        ended = start.one.expected + minimum(after, 1.0) * (ended - start.one.expected)
        request = minimum(stay.times.before, ended)
        wait = maximum(start.lone + made_up * step.expected - request, 0.0) * beside
        wait = named(wait, "wait", "of the group, for the prompt of the first", "s")
        place = named(wait + start.one.expected + after * step.expected, "place", "of a group, in its places", "s")
        longer = parted * minimum(maximum(after - made_up, 0.0), 1.0) / maximum(after, 1.0)
        own = step.plus(start.one.plus(step, -1.0), longer)
        tpot = stay.tpot.plus(own.plus(stay.tpot, -1.0), grouped).named(*_TPOT)
        one = start.one.plus(stay.times.alone.plus(start.one, -1.0), 1.0 - start.others)
        begun = stay.first.plus(one.plus(stay.first, -1.0), grouped).named(*_FIRST)
        waits = start.others * wait + parted * (ended - request)
        late, ahead = apart * stay.late + grouped * waits, apart * stay.ahead
        held = apart * stay.held + grouped * (place - wait)
        found = replace(stay, tpot=tpot, first=begun, late=late, ahead=ahead, held=held)
        return found, 1.0 / (apart / rate + grouped * (stay.times.before + place) / users), apart

    def _run(  # noqa: PLR0913, PLR0917
        self, turning: Rotation, sharing: Numeric, turns: Numeric, crowd: Numeric, prompt: Numeric, again: Numeric
    ) -> Numeric:  # fmt: skip
        """Seconds that `turns` of `crowd` places take, from the first prompt to the last token.

        The first turn begins over the steps that the prompts of all places fill, and so does each later one; the last
        has as many requests as are left. Answers that vary let the turns drift, as if there were more or fewer of them.
        Prompts that are computed again add `again` to a step [s].
        """
        after = self._after
        filling = crowd * turning.each if self._mixes else 0.0
        own = after + turning.chunks if self._mixes else after
        drift = maximum(self.traffic.osl_cv * (turns - 1.0) / turns, _EQUAL)  # the first turn begins together
        begun = steps_begun(turns * (1.0 - 4.0 * _EQUAL), drift)
        steps = (begun - 1.0) * maximum(own, filling) + maximum(turns - begun + 1.0, 0.0) * filling + own
        steps = named(steps, "steps", "decode steps of the run")
        requests = turns * crowd
        decoding = minimum(requests * after / maximum(steps, 1.0), sharing)
        step = self.times(maximum(1.0 + (decoding - 1.0) * self.traffic.osl / maximum(after, 1.0), 1.0)).step.expected
        least = requests * self._apart
        run = maximum(requests * prompt + steps * (step + again), least)
        return named(run, "run", "from the first prompt to the end", "s")

    def steady(self, sharing: Numeric, rate: Numeric, room: Places, knee: Numeric) -> Loaded:
        """An open loop below its knee."""
        stay = self.stay(sharing, math.inf, rate)
        slot = _slot_wait(rate / knee, room.taken(_MANY)[0], stay.held, self.traffic)
        slot = named(slot, "slot", "for a slot (Sakasegawa 1977)", "s")
        return self._loaded(stay, sharing, rate, knee, slot, 0.0, 0.0 * rate)

    def _loaded(  # noqa: PLR0913, PLR0917 - what both loops have
        self, stay: _Stay, sharing: Numeric, rate: Numeric, knee: Numeric, slot: Numeric, held: Numeric,
        together: Numeric, last: Numeric = 0.0,
    ) -> Loaded:  # fmt: skip
        queue = named(stay.ahead + held + slot, *_QUEUE)
        before, ends = stay.times.before, self.predictor.plan.load_ends
        e2e = before + stay.late + queue + stay.first.expected + self._after * stay.tpot.expected
        e2e = named(e2e, *_E2E)
        ttft, tpot, encoded = stay.first, stay.tpot, stay.times.encoded
        if encoded:
            ttft, before = ttft.plus(encoded.time), stay.times.request + encoded.wait
        ttft = ttft.later(before + stay.late + queue).named(*_TTFT)
        return Loaded(
            ttft=ends.moved(ttft, ends.ttft, slot / e2e),
            tpot=ends.moved(tpot, ends.tpot, slot / e2e),
            e2e=e2e,
            running=named(rate * stay.held, *_RUNNING),
            sharing=sharing,
            rate=rate,
            knee=knee,
            queue=queue,
            ahead=stay.ahead,
            late=stay.late,
            first=stay.first,
            busy=named(minimum(rate * stay.times.share.expected, 1.0), *_RHO),
            stable=1.0 + 0.0 * rate,
            together=together,
            slot=slot,
            burst=last,
            shared=stay.times,
        )

    # --- a stay ------------------------------------------------------------------------------------------------------

    def stay(self, sharing: Numeric, crowd: Numeric, rate: Numeric | None = None) -> _Stay:
        """What a request finds where `sharing` of them share steps.

        crowd: requests that there are at most; rate: of the others, where it is known.
        """
        times, after, mixes, in_step = self.times(sharing), self._after, self._mixes, self.in_step
        closed, gaps = rate is None, 1.0 if rate is None else self.traffic.arrival_cv
        turning = times.turning
        if turning is None:
            turning = self._turning(sharing, 0.0 if self.in_step else times.alone.expected / times.step.expected)
        arriving, step, share = turning.arriving, times.step.expected, times.share.expected
        behind = arriving - self._behind_once(arriving * (turning.bunched - 1.0))
        tpot = times.step.plus(times.share, behind).named("mean", "a step in the mean, prompts of others included")
        if rate is None:
            once = minimum(turning.chunks * step + share, times.alone.expected) if mixes else times.alone.expected
            once = named(
                once + share * arriving * turning.bunched, "once", "about the steps that hold the own prompt", "s"
            )
            rate = arriving * maximum(after, 1.0) / self._exposed(once, tpot.expected, step)
            rate = named(rate, "others", "prompts of others in a second", "1/s")
        times = self._behind_images(times, rate, gaps)
        company = _company(rate * tpot.expected * after, crowd)
        company = named(company, "company", "chance that others decode beside the prompt")
        under_way, late = self._late(turning, times, rate, company, crowd if closed else None)
        if closed:  # users send when a step has ended: a long one meets no more of them than the front end spans
            under_way = minimum(
                named(under_way, "met_step", "the step under way", "s"), maximum(times.request, tpot.expected)
            )
            under_way = named(under_way, "span", "time in which others send who come in the same step", "s")
        met = turning.bunch(arriving if in_step else rate * under_way)
        if in_step:
            company = named(_company(arriving * after, crowd), "company", "chance that others decode beside the prompt")
        first = self._first(turning, times, met, company)
        exposed = self._exposed(first.expected, tpot.expected, step)
        ahead = self._ahead(turning, times, rate, in_step, gaps, tpot.expected if closed else None)
        at_once = in_step and self.predictor.plan.costs.request == 0.0
        if in_step and not mixes:  # prompts that come together: some before the own one, some behind it
            before = ahead / maximum(share, _NOTHING)
            tpot = times.step.plus(times.share, arriving - self._behind_once(arriving * turning.bunched - before))
        late = named(0.0 if at_once else late, "late", "until the step under way has ended", "s")
        tpot = tpot.named(*_TPOT)
        held = named(first.expected + after * tpot.expected, *_HELD)
        return _Stay(turning, times, tpot, first, late, ahead, exposed, held)

    def _behind_once(self, prompts: Numeric) -> Numeric:
        """For each token after the first: prompts that delay the first of them less than the others."""
        return where(self._after > 0.0, prompts / maximum(self._after, 1.0), 0.0)

    def _turning(self, sharing: Numeric, ratio: Numeric) -> Rotation:
        return rotation(self.predictor, self.traffic.of(sharing), ratio)

    def _late(
        self, turning: Rotation, times: Shared, rate: Numeric, company: Numeric, crowd: Numeric | None
    ) -> tuple[Numeric, Numeric]:  # fmt: skip
        """The step under way when a prompt comes, and what is left of it.

        Half of it is left where prompts come at any time, and a long one is met more often. A user of a closed loop
        sends the next prompt when a step has ended: as long as the front end takes after the next one began. Steps that
        are made up by then come before the prompt too, where any others decode in them. crowd: users of a closed loop,
        None of an open one. Where answers have one token, a step of the others' prompts follows the own one.
        """
        step, request = times.step.expected, times.before
        long = turning.together * times.share.expected + (step if times.mixes else 0.0)
        long = named(long, "long", "a step that holds prompts", "s")
        holding = named(minimum(rate / turning.together * long, 1.0), "prompts", "share of the time in such steps")
        plain = minimum(1.0 - holding, rate * self._after * step)
        beyond = turning.beyond(self.traffic.osl)
        local = turning.holding * turning.bunched * beyond
        next_long = local if times.mixes else local / (1.0 + local)
        mean = (holding + plain) * (step + next_long * (long - step))
        if crowd is not None:
            phase = long if times.mixes else times.share.expected * turning.arriving / any_of(turning.arriving)
            left = [maximum(time - request, time / 2.0) for time in (step, phase)]
            under_way, late = mean, (holding + plain) * (left[0] + next_long * (left[1] - left[0]))
            ends = maximum(1.0 - self._after, 0.0) if times.mixes else 0.0  # with the first token, in a step of prompts
            following = minimum(crowd - 1.0, 1.0) * minimum(phase / maximum(request, _NOTHING), 1.0)
            late = late + ends * maximum(following * left[1] - late, 0.0)
        else:
            under_way = holding * long + plain * step
            late = under_way / 2.0
        after_it = (holding + plain) * (step + next_long * beyond * (long - step))
        late += self.predictor.plan.costs.overlap * after_it * company
        return under_way, named(late, "under_way", "what is left of the step under way, and of those made up", "s")

    def _first(self, turning: Rotation, times: Shared, met: Numeric, company: Numeric) -> Time:
        """The steps that hold the own prompt, and `met` of those that came in the same step.

        company: chance that others decode beside it.
        """
        mean = turning.arriving
        if not self.in_step:
            mean = turning.meanwhile(times.step.expected, times.share.expected, times.mixes)
        mean = turning.bunch(mean)
        own = turning.met(met)
        further = named(own - turning.met(mean), "further", "prompts in them beyond those in the mean")
        further = turning.beside * further
        first = times.own.plus(times.share, further)
        if times.mixes:
            lone = times.alone.plus(times.share, turning.beside * (own - 1.0))
            first = lone.plus(first.plus(lone, -1.0), company)
        return first.named(*_FIRST)

    def _exposed(self, first: Numeric, tpot: Numeric, step: Numeric) -> Numeric:
        """How long prompts that come delay the tokens: to the begin of the last step that they can still join."""
        if self._mixes:
            time = first + maximum(self._after - 1.0, 0.0) * tpot
        else:
            time = first + where(self._after > 0.0, self._after * tpot - step, 0.0)
        return named(time, "exposed", "time in which prompts that come delay the tokens", "s")

    def _ahead(  # noqa: PLR0913, PLR0917 - who waits, for what, and how they come
        self, turning: Rotation, times: Shared, rate: Numeric, in_step: bool, gaps: Numeric, mean: Numeric | None
    ) -> Numeric:  # fmt: skip
        """Waiting behind prompts that came before [s].

        mean: a step in the mean, in a closed loop. Its prompts come when steps have ended. So as many come in a long
        step as in a short one, unless the front end takes longer than it; and those of a turn come more densely.
        """
        step, share, each = times.step.expected, times.share.expected, turning.each
        crowded = share * turning.even + (each * step if times.mixes else 0.0)
        crowded = named(crowded, "crowded", "time of a prompt where full steps follow each other", "s")
        load = turning.full if in_step else rate * crowded
        if mean is not None and not in_step:
            ended = minimum(maximum(times.request / mean, 1.0), maximum(load / turning.full, 1.0))
            ended = named(ended, "ended", "steps whose users send while a full step lasts")
            denser = (1.0 + (turning.bunched - 1.0) * turning.drifted) * ended
            load = 1.0 - (1.0 - minimum(turning.full, FULL)) ** denser
        ahead = _behind(load, each, self.traffic, gaps) * crowded / each
        if in_step and not times.mixes:
            steps = maximum((1.0 + turning.arriving * turning.bunched) / turning.fitting - 1.0, 0.0) / 2.0
            ahead = where(self._after > 0.0, steps * turning.chunks * turning.together * share, ahead)
        if times.encoded:  # who waited there does not wait again behind the same prompts
            ahead = maximum(ahead - times.encoded.wait, 0.0)
        return named(ahead, "ahead", "behind prompts that came before", "s")

    def _steps_of(self, users: Numeric, turning: Rotation) -> Numeric:
        """Decode steps in which each of the users begins a prompt: those of an answer, or those that prompts fill."""
        filled = users * turning.holding / turning.arriving
        return maximum(self._after, filled) if self._mixes else self._after

    def _steps(self, turning: Rotation) -> Numeric:
        """Steps of a stay in which each of the others brings one prompt; decode steps, where prompts have their own."""
        steps = self._after + turning.chunks + _behind(turning.full, turning.each, self.traffic)
        return steps if self._mixes else where(self._after > 0.0, self._after, steps)


def _begun(stay: _Stay, crowd: Numeric, share: Numeric) -> _Stay:
    """The stay where a share of the requests comes to the encoders all at once."""
    times = stay.times
    if times.encoded is None or (isinstance(share, float) and share == 0.0):
        return stay
    return replace(stay, times=replace(times, encoded=times.encoded.begun(crowd, share)))


def _behind(full: Numeric, each: Numeric, traffic: Traffic, gaps: Numeric = 1.0) -> Numeric:
    """Full steps that a prompt waits behind others (Sakasegawa); each takes the share `each` of a step.

    gaps: variation of those between prompts, which answers of any length make as random as Poisson's.
    """
    full = named(minimum(full, FULL), "full", "share of the room for prompts that is used")
    variation = named((gaps**2 + traffic.isl_cv**2) / 2.0, "v", "mean squared variation")
    return variation * each * full ** (sqrt(2.0 * (maximum(1.0 / each, 1.0) + 1.0)) - 1.0) / (1.0 - full)


def _company(others: Numeric, crowd: Numeric) -> Numeric:
    """Chance that any of the others is there: by Poisson's law, or by the binomial one of a crowd."""
    if isinstance(crowd, float) and math.isinf(crowd):
        return 1.0 - exp(-others)
    most = maximum(crowd - 1.0, _NOTHING)
    return where(crowd > 1.0, 1.0 - (1.0 - minimum(others / most, 1.0)) ** most, 0.0)


def _slot_wait(load: Numeric, room: Numeric, held: Numeric, traffic: Traffic) -> Numeric:
    """Wait for one of `room` slots, each held for `held` seconds (Sakasegawa 1977)."""
    load = named(minimum(load, FULL), "load", "rate over the knee")
    variation = named((traffic.arrival_cv**2 + traffic.osl_cv**2) / 2.0, "v_o", "mean squared variation of the answers")
    return queue_wait(load, room, held, variation)


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


def _together(traffic: Traffic) -> Numeric:
    """Share of the requests of a closed loop whose prompts come all at once, where prompts have steps of their own.

    After j turns the answers so far vary by √j·σ tokens, as if evenly over √(1 + 12·j·σ²) decode steps. Prompts go
    before the decode steps of others, who thus end later: they meet those of users who end in the same step alone.
    """
    sigma = traffic.osl_cv * traffic.osl
    return _met(traffic, lambda turn: 1.0 / sqrt(1.0 + 12.0 * turn * sigma**2))


def _in_step(traffic: Traffic) -> Numeric:
    """Share of the requests of a closed loop that end their turn before any user is a whole turn ahead."""
    return _met(traffic, lambda turn: maximum(1.0 - math.sqrt(12.0 * turn) * traffic.osl_cv, 0.0))


def _met(traffic: Traffic, share: Callable[[int], Numeric]) -> Numeric:
    """Mean over the turns of a closed loop of the share after each; all of them where answers are equal."""
    turns = traffic.requests
    if isinstance(turns, float) and math.isinf(turns):
        return 0.0
    met: Numeric = 0.0
    for turn in range(_TURNS):
        met = met + minimum(maximum(turns - turn, 0.0), 1.0) * share(turn)  # of the users, who are in this turn
    return where((traffic.osl_cv == 0.0) & (turns < math.inf), 1.0, met / turns)


_MANY = 1e9  # users, more than any places
_EULER = 0.5772156649  # 1 + 1/2 + … + 1/n is about log(n) + 1/(2n) and this
_LIMIT = 1.0 - 1e-6  # share of the time that encoders work, from which they and not the engine are the limit
_STEEP = 50.0  # beyond which exp(−x) is nothing
_ENDLESS = 1e9  # turns after which a queue counts as one that never ends
_EQUAL = 1e-9  # variation of answers that are all as long
_TURNS = 64  # after which users that drift at all have drifted apart, or the average has settled


def no_room(predictor: Predictor, traffic: Traffic) -> DoesNotFitError:
    """The memory holds not one request; of arrays the longest is named."""
    tokens = float(largest(traffic.isl + traffic.osl))
    return DoesNotFitError(f"{predictor.plan.model.name}: not one request of {tokens:.0f} tokens fits in memory")

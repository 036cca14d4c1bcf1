"""A load as it is asked for, and what playing it says: means, percentiles and their errors, parts, ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from rooflinekit.load.arrivals import ClosedLoop, Drawn, Gamma, Process, Requests, open_arrivals
from rooflinekit.load.law import full_rate, in_flight
from rooflinekit.load.lengths import Length, cv
from rooflinekit.load.played import Played, Sample, play, standard_errors
from rooflinekit.load.scene import Scene, Scheduler, counts_upto, scene_of, usual_rounds
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.energy import LoadPower, Run, TokenEnergy, run_power, token_energy
from rooflinekit.model.serving.flight import InFlight
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.engine import ROOM, Reach
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.late import np
from rooflinekit.model.types.time import Time
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs.files import once

if TYPE_CHECKING:
    from rooflinekit.model.roofline import StepTime
    from rooflinekit.model.step import Plan

PER_USER = 10
"""Requests of a closed loop for each user, unless told: as benchmark clients send."""

STEADY = 2000
"""Requests of an open loop, unless told."""

FILLING = 5
"""One in so many requests of an open loop fills the engine and does not count, unless the requests are told.

Where more are in flight at once, as many fill it.
"""

CROWD = 20_000
"""Requests of a closed loop, unless told, from which each user sends fewer, but two at least."""

MOST = 1_000_000
"""Requests that one answer plays at most."""

POOL_ERROR = 0.05
"""One standard error of the cache's size, as a share: of 68 start-ups nine of ten were within 8.2 % (reports)."""

_ENDS = 400  # requests of a replica on which the ends of intervals are played


def usual_requests(users: int | None) -> int:
    """Requests of a load unless they are told: ten a user, fewer of a crowd; or those of a steady open loop.

    >>> usual_requests(64), usual_requests(5000), usual_requests(50_000), usual_requests(None)
    (640, 20000, 100000, 2000)
    """
    return STEADY if users is None else min(PER_USER * users, max(CROWD, 2 * users))


def steady_requests(in_flight: float, least: int = STEADY) -> int:
    """Requests of an open loop with so many in flight at once: five times as many, fewer of a crowd.

    >>> steady_requests(64.0), steady_requests(1000.0), steady_requests(5000.0), steady_requests(50_000.0)
    (2000, 5000, 20000, 150000)
    """
    most = max(float(CROWD), 3.0 * in_flight)
    return max(least, _HUNDRED * math.ceil(min(FILLING * in_flight, most) / _HUNDRED))


_HUNDRED = 100


@dataclass(frozen=True)
class Load:
    """A load: users of a closed loop, or a rate of arrivals [1/s]; lengths; objectives [s].

    requests, warmup: None leaves them to the protocol; burstiness: variation of the gaps of an open loop; cached:
    mean tokens of a prompt that are in the cache already, the same share of each; prompts: different ones, which are
    sent again and again and stay in the cache (0: no two are equal); source: draws requests that are more than lengths,
    by how they come, their number and the seed; least: requests of an open loop, unless told, where few are in flight;
    in_flight: those that run at once, by the law, which fill the engine first (0: not known); pace: requests a second
    that users offer at most (0: as many as get answers).
    """

    isl: Length
    osl: Length
    users: int | None = None
    rate: float | None = None
    burstiness: float = 1.0
    requests: int | None = None
    warmup: int | None = None
    ttft: float | None = None
    tpot: float | None = None
    seed: int = 0
    cached: float = 0.0
    prompts: int = 0
    source: Callable[[Process, int, int], Drawn] | None = None
    least: int = STEADY
    in_flight: float = 0.0
    pace: float = 0.0

    def on(self, scene: Scene) -> Load:
        """The load with as many requests as fill a deployment and show it steady, where nobody says how many.

        An overload is played as long as a full engine.
        """
        if self.rate is None or self.requests is not None:
            return self
        each = min(self.rate, largest_rate(scene, self)) / scene.replicas
        count = in_flight(scene.tables, scene.rules, self.isl.mean, self.osl.mean, each, self.cached)
        return replace(self, in_flight=float(math.ceil(count * scene.replicas)))

    def times(self, replicas: int) -> Load:
        """The load with requests for so many replicas."""
        if self.rate is not None and self.requests is None:
            return replace(self, least=replicas * self.least)
        return replace(self, requests=replicas * self.counted, warmup=replicas * self.filling)

    @property
    def arrivals(self) -> str:
        """In words, up to the lengths."""
        spread = (cv(self.isl), cv(self.osl))
        means = f", mean lengths (cv {spread[0]:.3g} in, {spread[1]:.3g} out)" if any(spread) else ""
        if self.users is None:
            return open_arrivals(self.rate or 0.0, self.burstiness) + means
        many = "user" if self.users == 1 else "users"
        pace = f", {self.pace:g} a second at most" if self.pace else ""
        return f"closed loop of {self.users} {many}, {self.counted:,} requests{pace}{means}"

    @property
    def process(self) -> Process:
        """How requests come."""
        if self.users is not None:
            return ClosedLoop(self.users, self.counted, self.filling, self.pace)
        return Gamma(self.rate or 0.0, self.burstiness)

    @property
    def counted(self) -> int:
        """Requests that are told, or that the protocol sends."""
        if self.requests or self.users is not None:
            return self.requests or usual_requests(self.users)
        return steady_requests(self.in_flight, self.least)

    @property
    def at_once(self) -> int:
        """Users of a closed loop who wait for an answer at once at most, one a request; 0 of an open loop."""
        return min(self.users or 0, self.counted)

    @property
    def filling(self) -> int:
        """Requests that come first and do not count."""
        if self.warmup is not None:
            return self.warmup
        usual = self.users is None and self.requests is None
        return max(self.counted // FILLING, int(self.in_flight)) if usual else 0

    @property
    def count(self) -> int:
        """Requests in all; a warm-up of an open loop is part of them, that of a closed loop comes before."""
        return self.counted + (self.filling if self.users is not None else 0)

    @property
    def typical(self) -> float:
        """Mean tokens of a request."""
        return self.isl.mean + self.osl.mean

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return int(self.isl.quantile(1.0) + self.osl.quantile(1.0))

    @property
    def equal(self) -> bool:
        """Whether users of a closed loop send and get lengths that are all equal."""
        fixed = all(each.quantile(0.0) == each.quantile(1.0) for each in (self.isl, self.osl))
        return self.at_once > 1 and fixed and not self.pace

    @cached_property
    def drawn(self) -> Drawn:
        """The requests."""
        return self.draw(self.process, self.count, self.seed)

    def draw(self, process: Process, count: int, seed: int) -> Drawn:
        """So many requests of such lengths, however they come."""
        if self.source is not None:
            return self.source(process, count, seed)
        return Drawn.of(process, Requests(self.isl, self.osl, prompts=self.prompts), count, seed)


@dataclass(frozen=True)
class TokenParts:
    """What the mean time of an output token is made of [s]: its share of decode steps, and prompts of others."""

    step: float
    prompts: float


@dataclass(frozen=True)
class LoadPlay:
    """A load on one deployment, played at expected step times and, in part, at both ends and at the bound."""

    predictor: Predictor
    asked: Load
    scene: Scene
    played: Played
    knee: float  #: largest rate that can be sustained, by the law; of an overload at most what was served [1/s]
    scheduler: Scheduler

    @property
    def stable(self) -> bool:
        """Whether the rate can be sustained: it is below the knee, and requests do not pile up."""
        if self.asked.rate is None:
            return True
        return self.asked.rate < self.knee and not all(self.played.growth)

    @property
    def rate(self) -> float:
        """Requests a second: as they come, or as the users of a closed loop get them."""
        if self.asked.rate is not None:
            return self.asked.rate
        return int(self.played.counted.sum()) / self.played.makespan

    @property
    def output_rate(self) -> float:
        """Output tokens a second: those of the requests that count, from the first sending to the last end."""
        return float(self.played.osl[self.played.counted].sum()) / self.played.makespan

    @cached_property
    def tokens(self) -> TokenParts:
        """Parts of the mean time of a token."""
        prompts = min(self.played.prompts_of_others, self.tpot)
        return TokenParts(self.tpot - prompts, prompts)

    @cached_property
    def tpot(self) -> float:
        """Mean time of a token after the first [s]."""
        sample = self.samples["tpot"]
        return sample.mean if sample.count else self.lone_step

    @cached_property
    def samples(self) -> dict[str, Sample]:
        """`ttft`, `tpot` and `e2e` of the requests that count [s]."""
        return {metric: Sample(getattr(self.played, metric)) for metric in ("ttft", "tpot", "e2e")}

    @cached_property
    def by_kind(self) -> dict[int, dict[str, Sample]]:
        """The same of each class of the requests."""
        done, kinds = self.played, np.asarray(self.asked.drawn.kind)
        several = done.counted & (done.osl > 1)
        return {
            int(kind): {
                "ttft": Sample(done.ttft[kinds[done.counted] == kind]),
                "tpot": Sample(done.tpot[kinds[several] == kind]),
                "e2e": Sample(done.e2e[kinds[done.counted] == kind]),
            }
            for kind in np.unique(kinds)
        }

    @property
    def places(self) -> int:
        """Requests of mean lengths that run at once at most, in all replicas."""
        return self._places()

    def _places(self, size: float = 1.0) -> int:
        """The same with a cache of so many times the size."""
        rules, asked = self.scene.rules, self.asked
        held = asked.isl.mean + (asked.osl.mean if rules.reserves else asked.osl.mean / 2.0)
        return int(max(min(float(rules.most), int(rules.blocks * size) * rules.block / held), 1.0)) * rules.replicas

    @cached_property
    def lone_step(self) -> float:
        """The decode step that would follow an answer of one token [s]."""
        return float(self.decode.expected)

    @cached_property
    def sequences(self) -> float:
        """Sequences that decode in a step, in the mean over decode steps; at least 1."""
        did = self.played.replicas
        steps = float(did["decode_steps"].sum())
        made = float(did["tokens_out"].sum()) / self.scene.drafting.yielded
        return max(made / steps, 1.0) if steps else 1.0

    @property
    def run(self) -> Run:
        """Sums of the whole run, warm-up included, for its energy."""
        did, asked, done = self.played.replicas, self.asked, self.played
        return Run(
            prompts=float(did["prompt_tokens"].sum()) / max(asked.isl.mean - asked.cached, 1.0),
            decoded=float(did["tokens_out"].sum()),
            tokens=float(done.osl[done.finished].sum()),
            busy=float(did["busy"].sum()),
            seconds=done.now * self.scene.replicas,
        )

    @cached_property
    def token_energy(self) -> TokenEnergy | None:
        """Energy of the requests as they were run together; None where no power limit is known."""
        if self.predictor.plan.system.accelerator.power is None:
            return None
        asked = self.asked
        return token_energy(
            self.predictor, InFlight(self.sequences, asked.isl.mean, asked.osl.mean, float(asked.cached))
        )

    @cached_property
    def power(self) -> LoadPower | None:
        """Power over the run as it was played; None where no power limit is known, or no request has ended."""
        each, run = self.token_energy, self.run
        return None if each is None or not run.tokens else run_power(each, run)

    @property
    def held(self) -> int:
        """Sequences that one replica holds, in the mean, as a whole number."""
        return max(round(self.played.running / self.scene.replicas), 1)

    @property
    def decoding(self) -> tuple[float, float]:
        """Sequences of a decode step on one attention replica, as a whole number, and their mean context."""
        own = max(round(self.sequences / self.predictor.plan.deployment.dp), 1)
        return float(own), self.asked.isl.mean + self.asked.osl.mean / 2.0

    @cached_property
    def decode(self) -> StepTime:
        """A decode step of that many sequences at the mean context; with a draft, a round of it."""
        own, context = self.decoding
        if self.scene.drafting.tokens:
            batch = own * self.predictor.plan.deployment.dp
            return self.predictor.decode_step(Workload(batch, self.asked.isl.mean, 2.0, context=context))
        return _decode_step(self.scene.shared.plan or self.predictor.plan, own, context)

    @cached_property
    def step_ends(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Ends of the interval of a decode step, between powers of two of sequences, and of a prompt, over expected."""
        plan, (own, context) = self.scene.shared.plan, self.decoding
        if self.scene.drafting.tokens:
            most = counts_upto(max(-(-self.scene.limits.max_num_seqs // self.predictor.plan.deployment.dp), int(own)))
            low, high = (end[int(own) - 1] for end in _round_ends(usual_rounds(self.predictor), context, most))
            return (low, high), _ends_of(self.prompt)
        if plan is None:
            return _ends_of(self.decode), _ends_of(self.prompt)
        low, high = (float(np.interp(own, _POWERS, end)) for end in _decode_ends(plan, context))
        return (low, high), _ends_of(_lone_prompt(plan, *self._own_prompt))

    @property
    def _own_prompt(self) -> tuple[float, float]:
        return float(max(self.asked.isl.mean, self.asked.cached + 1.0)), float(self.asked.cached)

    @cached_property
    def prompt(self) -> StepTime:
        """The prompt of a request alone."""
        return _lone_prompt(self.predictor.plan, *self._own_prompt)

    def means(self) -> tuple[Time, Time, float]:
        """Mean TTFT, TPOT and time of whole requests as they were played, without intervals [s]."""
        ttft, tpot = self.samples["ttft"].mean, self.tpot
        return Time(ttft, ttft, ttft, ttft), Time(tpot, tpot, tpot, tpot), self.samples["e2e"].mean

    def times(self, within: float = 0.9) -> tuple[Time, Time, float]:
        """Mean TTFT and TPOT with bounds and intervals that hold `within` of the loads, and the mean of requests [s].

        within: 0.9 or 0.8.
        """
        if self.predictor.plan.calibration is None:
            return self.means()
        found = []
        for metric, time, least in zip(("ttft", "tpot"), self.means()[:2], self._bounds, strict=True):
            expected = float(time.expected)
            less, more = self.reaches[metric].factors(within)
            found.append(Time(expected, least, max(expected * less, least), expected * more))
        return found[0], found[1], self.samples["e2e"].mean

    @property
    def _bounds(self) -> tuple[float, float]:
        """Of TTFT and TPOT [s]."""
        return min(float(self.prompt.bound), self.samples["ttft"].mean), min(self.bound_token, self.tpot)

    @cached_property
    def reaches(self) -> dict[str, Reach]:
        """How far TTFT and TPOT may lie from what is played, by the plays at both ends of the steps' interval.

        Where the error of the cache's size decides whether all users have a place, both sides of that count.
        """
        lows, highs = (self._at(end) for end in ("low", "high"))
        found = {
            metric: self.reach(metric, (low, high))
            for metric, low, high in zip(("ttft", "tpot"), lows, highs, strict=True)
        }
        if (size := self._other_size) is None:
            return found
        other = self._play_some(None, size)
        waits = other.first_parts.place / float(other.e2e.mean())
        for metric, here, there in zip(found, _means(self._some), _means(other), strict=True):
            further = math.log(there / here)
            reach = self.reach(metric, (lows[metric == "tpot"], highs[metric == "tpot"]), waits)
            found[metric] = found[metric].or_as(replace(reach, logs=tuple(log + further for log in reach.logs)), ROOM)
        return found

    @property
    def _other_size(self) -> float | None:
        """The size of the cache over the expected one at which users wait who do not here, or the other way round."""
        users, places = self.asked.at_once, self.places
        if not users:
            return None
        size = 1.0 - POOL_ERROR if users <= places else 1.0 + POOL_ERROR
        return size if (users <= self._places(size)) != (users <= places) else None

    def reach(self, metric: str, steps: tuple[float, float], waiting: float | None = None) -> Reach:
        """How far `ttft` or `tpot` may lie from what is played.

        steps: times of the load over the expected ones, where all steps stand at the ends of their interval; waiting:
        share of their time that requests wait for a place, that of the play by default.
        """
        plan, users = self.predictor.plan, self.asked.at_once or self.played.running
        if waiting is None:
            waiting = self.played.first_parts.place / self.samples["e2e"].mean
        low, high = min(steps[0], 1.0), max(steps[1], 1.0)
        return plan.load_errors.reach(
            metric,
            math.log(high / low),
            max(users, 1.0),
            plan.stands_in(metric),
            waiting,
            max(self.asked.isl.mean, 1.0),
        )

    @cached_property
    def bound_token(self) -> float:
        """Mean time of a token on an engine at the datasheet's rates, which carries the load with shorter steps [s].

        Of the first of the requests.
        """
        part, some = self._first_requests
        other = _at_bound(self.predictor)
        found = _played(scene_for(other, self.asked, self.scheduler), part, some)
        return float(found.tpot.mean()) if len(found.tpot) else float(self.decode.bound)

    def _at(self, end: str) -> tuple[float, float]:
        """TTFT and TPOT over the expected ones where all steps stand at this end, on the first of the requests."""
        decode, prompt = (float(getattr(step, end) / step.expected) for step in (self.decode, self.prompt))
        first, token = _means(self._some)
        moved_first, moved_token = _means(self._play_some((decode, prompt)))
        return moved_first / first, moved_token / token if token > 0.0 else decode

    @cached_property
    def _some(self) -> Played:
        """The first of the requests, as expected: the run itself where they are all of it."""
        whole = self._counted_ends == self.asked.count and not self.asked.filling
        return self.played if whole else self._play_some(None)

    @property
    def _counted_ends(self) -> int:
        """Requests on which the ends of intervals are played; of a closed loop whole turns of all users."""
        count = max(_ENDS * self.scene.replicas, 2 * (self.asked.users or 0))
        return min(count, self.asked.count)

    @cached_property
    def _first_requests(self) -> tuple[Load, Drawn]:
        """The same requests, as a load of their own."""
        count = self._counted_ends
        return replace(self.asked, requests=count, warmup=0), self.asked.drawn.first(count)

    def _play_some(self, factors: tuple[float, float] | None, size: float = 1.0) -> Played:
        return _played(self.scene, *self._first_requests, factors, size)

    def quantile(self, metric: str, share: float) -> float:
        """Of `ttft`, `tpot` or `e2e` over the requests that count [s]; of answers of one token, their next step."""
        sample = self.samples[metric]
        return sample.quantile(share) if sample.count else self.lone_step

    def errors(self, metric: str) -> dict[str, float]:
        """Standard errors of the mean and the percentiles of `ttft`, `tpot` or `e2e` [ms], from pieces of the run."""
        which = self.played.counted & (self.played.osl > 1) if metric == "tpot" else self.played.counted
        return standard_errors(self.played.pieces(getattr(self.played, metric), which))


def play_load(
    predictor: Predictor, asked: Load, scheduler: Scheduler | None = None, scene: Scene | None = None
) -> LoadPlay:
    """Play a load on one deployment.

    scene: the one of this predictor and scheduler with these lengths, where it was made before.

    Raises:
        DoesNotFitError: the cache holds not one request.
        WorkloadError: more requests than are played, or all are refused.

    >>> from rooflinekit.estimation.estimator import resolve
    >>> from rooflinekit.load.lengths import Fixed
    >>> from rooflinekit.model.types.deployment import Deployment
    >>> predictor = resolve("llama-3-8b", "h100-sxm", Deployment(), "none").predictor
    >>> found = play_load(predictor, Load(Fixed(1024), Fixed(256), users=16))
    >>> found.stable, len(found.played.ttft)
    (True, 160)
    """
    scheduler = scheduler or Scheduler(seed=asked.seed)
    scene = scene or scene_for(predictor, asked, scheduler)
    asked = asked.on(scene)
    if asked.count > MOST:
        raise WorkloadError(
            f"{asked.count:,} requests are too many for one answer; at most {MOST:,}: give --requests, or simulate "
            "with --cells"
        )
    played = _played(scene, asked, asked.drawn)
    if not played.counted.any():
        longest = scene.limits.max_model_len or scene.blocks * scene.block
        raise WorkloadError(f"all requests are refused: of {asked.typical:.0f} tokens, where {longest} is the most")
    knee = largest_rate(scene, asked)
    if asked.rate is not None and (asked.rate >= knee or all(played.growth)):
        knee = min(asked.rate, played.served)
    return LoadPlay(predictor, asked, scene, played, knee, scheduler)


def scene_for(predictor: Predictor, asked: Load, scheduler: Scheduler, longest: int = 0) -> Scene:
    """What requests of these lengths are played on; longest: tokens that the step table has room for at least.

    Raises DoesNotFitError where the cache holds not one request.
    """
    return scene_of(predictor, scheduler, asked.typical, max(asked.longest, longest), asked.isl.mean)


def largest_rate(scene: Scene, asked: Load) -> float:
    """Requests a second that can be sustained, by the law of a full engine; nothing is played [1/s]."""
    means, front = (asked.isl.mean, asked.osl.mean, asked.cached), scene.front
    if means not in scene.full_rates:
        scene.full_rates[means] = full_rate(scene.tables, scene.rules, *means)
    each = scene.full_rates[means]
    return min(min(each, front.rate(asked.isl.mean)) * scene.replicas, front.most)


_POWERS = [float(1 << power) for power in range(13)]


@once
def _decode_ends(plan: Plan, context: float) -> tuple[list[float], list[float]]:
    """Ends of the interval of decode steps of `_POWERS` sequences, over what is expected."""
    step = plan.time(Batch.decode(np.array(_POWERS), context))
    low, high = ((end / step.expected * np.ones(len(_POWERS))).tolist() for end in (step.low, step.high))
    return low, high


@once
def _round_ends(predictor: Predictor, context: float, most: str) -> tuple[list[float], list[float]]:
    """Ends of the interval of rounds of 1, 2, … sequences of an attention replica, with a draft, over expected."""
    batch = np.arange(1.0, int(most) + 1.0) * predictor.plan.deployment.dp
    step = predictor.decode_step(Workload(batch, context, 2.0, context=context))
    low, high = ((end / step.expected * np.ones(len(batch))).tolist() for end in (step.low, step.high))
    return low, high


def _ends_of(step: StepTime) -> tuple[float, float]:
    return float(step.low / step.expected), float(step.high / step.expected)


@once
def _decode_step(plan: Plan, sequences: float, context: float) -> StepTime:
    return plan.time(Batch.decode(sequences, context))


@once
def _lone_prompt(plan: Plan, isl: float, cached: float) -> StepTime:
    return plan.time(Batch.prefill(1.0, isl, cached))


@once
def _at_bound(predictor: Predictor) -> Predictor:
    """The same deployment at the datasheet's rates."""
    return predictor.on(replace(predictor.plan, calibration=None))


def _played(
    scene: Scene, asked: Load, drawn: Drawn, factors: tuple[float, float] | None = None, size: float = 1.0
) -> Played:
    """Play the requests.

    factors: of decode steps, and of prompts and images, at an end of their interval; size: of the cache, over its own.
    """
    encoders = scene.front.encoders.gpus if scene.front.encoders else 0
    tables, rules = scene.tables, scene.rules
    if size != 1.0:
        rules = rules._replace(blocks=max(int(rules.blocks * size), 1))
    if factors is not None:
        (own, half), (decode, prompt) = tables, factors
        tables = own._replace(decode_factor=decode, prompt_factor=prompt), half
        parts = [prompt * rules.encoder_parts[each] for each in range(len(rules.encoder_parts))]
        rules = rules._replace(encoder_parts=parts, encoder_send=prompt * rules.encoder_send)
    clients = scene.clients(drawn, asked.users, asked.filling, asked.cached / asked.isl.mean, asked.prompts)
    return play(clients, rules, tables, seed=scene.seed, encoders=encoders, warmup=asked.filling)


def _means(found: Played) -> tuple[float, float]:
    """Of TTFT and TPOT [s]."""
    return float(found.ttft.mean()), float(found.tpot.mean()) if len(found.tpot) else math.nan

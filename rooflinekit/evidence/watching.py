"""A running fleet beside its prediction: each interval's gap and its cause, drifts, and the headroom that is left."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import fmean, median, stdev

import numpy as np

from rooflinekit.estimation.options import Value
from rooflinekit.estimation.results import about
from rooflinekit.evidence.benchmark_runs import Given, Kept, Posed, pose, room_of
from rooflinekit.evidence.engine_fit.cases import posed_benchmarks
from rooflinekit.evidence.engine_fit.fit import EngineFit, fit_benchmarks
from rooflinekit.evidence.exposition import MeasuredInterval
from rooflinekit.evidence.measurement import MeasuredRun, StartUp
from rooflinekit.load.answer import STEADY, play_load
from rooflinekit.load.compiled import prepare
from rooflinekit.load.lengths import Fixed, LogNormal, cv
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.answer import Json, Tabled
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.time import ENDS, Time
from rooflinekit.model.types.units import percent
from rooflinekit.model.types.workload import Workload
from rooflinekit.version import __version__

SMALLEST = {"tpot": 0.05, "stalls": 0.05, "ttft": 0.2}
"""The smallest lasting change that must be found, as a share of the time: of steps, of TPOT by stalls, of TTFT."""
LEARNT = 60
"""Intervals that say what is usual here before anything counts as a drift."""
DISTINCT = 12
"""Intervals from which the engine's costs are updated at most."""
_STEADY = 0.8  # of the knee: above it a minute's rate does not say how long requests wait
_DAY = 24  # hours
_A_DAY = 60 * _DAY  # intervals of a minute
_A_WEEK = 7 * _A_DAY  # between two false alarms
_CERTAIN = 1.645  # standard errors within which an estimate is 19 times out of 20, on the side that matters
_ALONE = 0.34  # of the limit: what one interval may add to a sum
_LEAST_SPREAD = 0.003  # of the logarithm of a mean time: less is chance
_MAD = 1.4826  # standard deviations in a median absolute deviation of a normal variable
_FAR, _LEFT = 2.5, 0.978  # standard deviations to which values are drawn in; the variance that this leaves a normal one
_STEEP = 0.2  # share by which the gap of a prediction changes from a load to one whose times are e times as long
_APART = 0.2  # variation of lengths at least, so that requests under way end one by one
_TURNS, _ENOUGH = 6, 200  # turns of those under way, and requests of them, that are played at least
_ROUNDS = 3  # of least squares over winsorised values
_BLOCKS = 6  # of a day or less, whose means a line goes through
_FREEDOM = 4  # heights beyond those that a line takes, at least
_LIKELY, _SURE = 2.13, 4.60  # quantiles of Student's t with so many degrees of freedom: 95 % and 99.5 %
_LIKELY_BLOCK = 2.015  # the 95 % quantile with one degree more: of a mean of six blocks
_TOLD_APART = 10.0  # by how many variances the squares that another cause leaves are larger: odds of e⁵ to 1


@dataclass(frozen=True)
class Figure:
    """A mean time [ms]: measured (None where nothing says so), predicted, its bound and its 90 % interval.

    There is no upper end where slower steps could not keep up.
    """

    measured: float | None
    expected: float
    bound: float
    low: float
    high: float | None

    @classmethod
    def of(cls, measured: float | None, time: Time) -> Figure:
        """A measured time [ms] beside a predicted one [s]."""
        expected, bound, low, high = (1e3 * float(getattr(time, end)) for end in ENDS)
        return cls(measured, expected, bound, low, high if math.isfinite(high) else None)


@dataclass(frozen=True)
class Beside:
    """One interval, measured and predicted for the traffic that came in it; times in ms, rates a second.

    in_flight: requests under way. The gap of TPOT is batch_ms (more are under way than this rate explains) + stall_ms
    (tokens that wait for requests that stood still; None where nothing tells them apart) + step_ms (a step of that many
    takes longer); that of TTFT is queue_ms + prompt_ms; None where nothing says who waits. waiting_expected,
    kv_expected: what this rate explains of requests that wait (None above the knee) and of the cache. knee: the rate
    that the deployment could sustain. step: predicted TPOT of as many requests as were under way, of which
    host_ms and kv_ms are the engine's own time and reads of the cache. replicas: that shared the rate.
    """

    start: float
    end: float
    rate: float
    isl: float
    osl: float
    hits: float | None
    in_flight: float
    waiting: float | None
    waiting_expected: float | None
    kv_use: float | None
    kv_expected: float
    preemptions: float | None
    ttft: Figure
    tpot: Figure
    step: Figure
    output_tok_s: float | None
    output_expected_tok_s: float
    batch_ms: float | None
    stall_ms: float | None
    step_ms: float | None
    queue_ms: float | None
    prompt_ms: float | None
    knee: float
    host_ms: float
    kv_ms: float
    replicas: int = 1

    @property
    def strain(self) -> dict[str, tuple[float, float]]:
        """Logarithms of measured over predicted time, each with that of the predicted one.

        Of a step of that many requests, of stalls beside it, and of the first token, but not near the knee. Requests
        that stood still are few, and their share of TPOT says nothing of steps.
        """
        found = {
            name: (math.log(figure.measured / figure.expected), math.log(figure.expected))
            for name, figure in (("tpot", self.step), ("ttft", self.ttft))
            if figure.measured and 0.0 < figure.expected < math.inf
        }
        if self.stall_ms is not None and self.step.measured:
            found["stalls"] = math.log1p(self.stall_ms / self.step.measured), math.log(self.step.expected)
        if self.rate > _STEADY * self.knee:
            found.pop("ttft", None)
        return found


@dataclass(frozen=True)
class Drift:
    """A lasting change since some time, found at another: `change` is the ratio to what was usual here, less 1."""

    metric: str
    since: float
    found: float
    change: float
    cause: str


@dataclass(frozen=True)
class Headroom:
    """Headroom below the knee: its share, and the hours until a rate that grows as now reaches it.

    peak: the mean rate of the highest hour of the last day, or of the last week after two; hours_left are then those
    until it reaches the knee. hours_between: the 90 % interval of hours_left, by the scatter of the rates.
    From one day to six, where a growth cannot be told from the swing of a week: day_change is the last day's mean rate
    over that of the same hours a day before, less 1; day_between its 90 % interval, by the scatter of the hours;
    hours_if_repeated the hours until the highest hour reaches the knee if each day adds as much as the last: at the
    upper end of day_between with the highest hour in proportion, and at the lower end with as many requests at each
    hour (None where there may be no change); known_from the time [s since 1970] from which six days tell a growth.
    """

    rate: float
    knee: float
    share: float
    hours_left: float | None = None
    peak: float | None = None
    hours_between: tuple[float, float] | None = None
    day_change: float | None = None
    day_between: tuple[float, float] | None = None
    hours_if_repeated: tuple[float, float] | None = None
    known_from: float | None = None


@dataclass(frozen=True)
class Watched(Tabled):
    """All that was seen: intervals, drifts that last, the headroom, and why the prediction moved."""

    model: str
    gpu: str
    engine: str
    gpus: int
    intervals: tuple[Beside, ...]
    drifts: tuple[Drift, ...]
    headroom: Headroom | None
    moved: dict[str, float]  #: predicted TPOT over that of the usual traffic, with one thing alone as it is now
    notes: tuple[str, ...] = ()
    calibration: dict[str, str] | None = None
    version: str = __version__

    @property
    def now(self) -> Beside:
        """The last interval."""
        return self.intervals[-1]

    @property
    def predicted_replicas(self) -> int:
        """The fewest replicas that the last interval's rate leaves at most 80 % of their knee."""
        now = self.now
        return max(math.ceil(now.rate / (_STEADY * now.knee / now.replicas) - 1e-9), 1)

    def to_rows(self) -> list[Json]:
        """One row an interval; the parts of a figure have its name before them."""
        rows = list[Json]()
        for each in self.intervals:
            rows.append({})
            for name, value in asdict(each).items():
                parts = {f"{name}_{part}_ms": one for part, one in value.items()} if isinstance(value, dict) else {}
                rows[-1].update(parts or {name: value})
        return rows


class Watcher:
    """Sets one interval after another beside its prediction."""

    def __init__(self, given: Given, learnt: int = LEARNT, logs: Sequence[StartUp] = ()) -> None:
        """Args: given, what the servers do not say; learnt, intervals that say what is usual; logs, of their start."""
        self.given, self.learnt = given.with_logs(logs), learnt
        self.seen: list[Beside] = []
        self._room = room_of(logs)
        self._intervals: list[MeasuredInterval] = []
        self._changes = {name: ChangeDetector(smallest, learnt) for name, smallest in SMALLEST.items()}
        self._found: dict[str, float] = {}
        self._posed: Posed | None = None
        self._resolved: Kept = {}

    def see(self, interval: MeasuredInterval) -> Beside:
        """Predict an interval, and judge it."""
        posed = pose(interval.run, self.given, self._room_of(interval), self._resolved)
        beside = set_beside(interval, posed, self.given.copies(interval.run))
        self._posed = posed
        self.seen.append(beside)
        self._intervals.append(interval)
        for name, (strain, at) in beside.strain.items():
            self._changes[name].see(strain, len(self.seen) - 1, at)
            if self._changes[name].since is None:
                self._found.pop(name, None)
            else:
                self._found.setdefault(name, beside.end)
        return beside

    def see_all(self, intervals: Iterable[MeasuredInterval]) -> list[str]:
        """Judge intervals; returns why each that cannot be predicted is left out."""
        errors, intervals = list[RooflinekitError](), list(intervals)
        prepare(2 * STEADY * len(intervals))  # an open loop and a closed one for each
        for each in intervals:
            try:
                self.see(each)
            except RooflinekitError as error:
                errors.append(error)
        if errors and not self.seen:
            raise errors[0]
        return list(map(str, errors))

    def answer(self) -> Watched:
        """The answer so far. Raises InputError before the first interval."""
        if self._posed is None:
            raise InputError("no request came to its first token while the servers were watched")
        resolved, missing = self._posed.resolved, []
        servers = [each.run.servers for each in self._intervals]
        if self.given.replicas is not None and servers[-1] != max(servers):
            answered = f"{servers[-1]} of {max(servers)} servers answered last"
            missing.append(f"{answered}; their load is divided by {self.given.replicas} replicas, as given")
        plan, posed = resolved.plan, self._posed
        engine, gpus = posed.facts.engine or "vllm", plan.deployment.gpus * self.given.copies(posed.run)
        named = (plan.model.name, plan.system.accelerator.name, engine, gpus)
        drifts = tuple(self._drift(name) for name, change in self._changes.items() if change.since is not None)
        found = (tuple(self.seen), drifts, headroom(self.seen), self._moved())
        notes = (*resolved.warnings, *self._notes(), *missing, *posed.assumed)
        return Watched(*named, *found, notes, about(plan)["calibration"])

    def _notes(self) -> list[str]:
        last = {each.run.source.partition(" at ")[0]: each.run.notes for each in self._intervals}
        return list(dict.fromkeys(note for notes in last.values() for note in notes))

    def _room_of(self, interval: MeasuredInterval) -> int | None:
        """Tokens that the cache of one replica holds."""
        return interval.kv_tokens // self.given.copies(interval.run) if interval.kv_tokens else self._room

    def fit(self, date: str) -> EngineFit:
        """The engine's costs after these intervals, with those in use as prior: what `calibrate` does with a recording.

        Since the last lasting change of TPOT, if one lasts; at most `DISTINCT` of them, spread evenly over the requests
        under way, since neighbouring minutes repeat each other. date: of the fit, for its file.
        """
        since = self._changes["tpot"].since or 0
        places = sorted(range(since, len(self.seen)), key=lambda place: self.seen[place].in_flight)
        step = max(len(places) / DISTINCT, 1.0)
        chosen = [self._intervals[places[int(turn * step)]] for turn in range(min(len(places), DISTINCT))]
        if not chosen:
            raise InputError("no request came to its first token while the servers were watched")
        runs = sorted((each.run for each in chosen), key=lambda run: run.source)
        digest = hashlib.sha256(repr(runs).encode()).hexdigest()[:16]
        entries: list[MeasuredRun | StartUp] = [*runs, StartUp("cache", kv_tokens=self._room_of(chosen[-1]))]
        name = runs[0].source.partition(" at ")[0]
        benchmarks = posed_benchmarks({digest: name}, {digest: entries}, self.given, [], {})
        return fit_benchmarks(benchmarks, self.given, date)

    def _drift(self, name: str) -> Drift:
        change = self._changes[name]
        since = change.since or 0
        before, after = self.seen[:since], self.seen[since:]
        cause = "first tokens wait or compute longer"
        if name == "stalls":
            cause = _preempted(before, after) or "requests stand still; the server counts no more preemptions"
        elif name == "tpot":
            cause = cause_of(before, after, change.usual)
        return Drift(name, self.seen[since].start, self._found[name], math.exp(change.size) - 1.0, cause)

    def _moved(self) -> dict[str, float]:
        """Each of rate, lengths and hits alone, as it is now, in the traffic that was usual."""
        usual, now, posed = self.seen[: self.learnt], self.seen[-1], self._posed
        if posed is None or len(self.seen) <= self.learnt:
            return {}
        parts = ("rate", "isl", "osl", "hits")
        told = [{part: getattr(each, part) or 0.0 for part in parts} for each in (*usual, now)]
        for each, said in zip((*usual, now), told, strict=True):
            said["rate"] /= each.replicas
        base = {part: fmean(each[part] for each in told[:-1]) for part in parts}
        predictor = posed.resolved.predictor

        def tpot(**changed: float) -> float:
            at = base | changed
            isl, osl = (max(round(at[side]), 1) for side in ("isl", "osl"))
            cached, rate = min(round(at["hits"] * isl), isl - 1), at["rate"] * now.replicas
            load = replace(posed.load, isl=Fixed(isl), osl=Fixed(osl), rate=rate, cached=cached)
            return play_load(predictor, load, posed.scheduler).tpot

        whole = tpot()
        return {part: tpot(**{part: told[-1][part]}) / whole for part in parts}


def watch(intervals: Iterable[MeasuredInterval], given: Given | None = None, **said: Value) -> Watched:
    """Set the intervals of a recording or of a request log beside their prediction.

    Args:
        intervals: in order of time, as `read_intervals` gives them.
        given: what the server does not say.
        **said: the same as keywords, as `compare` takes them.

    An interval that cannot be predicted beside others is left out with a note. Raises InputError without intervals or
    for what the deployment lacks.
    """
    watcher = Watcher(given or Given.of(**said))
    lost = watcher.see_all(intervals)
    answer = watcher.answer()
    return replace(answer, notes=(*answer.notes, *left_out(lost)))


def left_out(lost: Sequence[str]) -> tuple[str, ...]:
    """The note on intervals that cannot be predicted."""
    return (f"{len(lost)} intervals are left out: {lost[0]}",) if lost else ()


def set_beside(interval: MeasuredInterval, posed: Posed, replicas: int) -> Beside:
    """An interval beside the open loop at its rate, and beside as many requests as were under way in it; both played.

    Those are Little's law where end-to-end times are counted, else the gauges, else what the open loop has.
    """
    run, load, predictor = posed.run, posed.load, posed.resolved.predictor
    if not (arriving := load.rate or 0.0):
        raise InputError(f"{run.source} does not say how many requests came; add --rate")
    at_rate = play_load(predictor, load, posed.scheduler)
    first, token, e2e = at_rate.times()
    in_flight = arriving * e2e
    if run.e2e.mean and run.request_s:
        in_flight = run.request_s * run.e2e.mean / 1e3
    elif interval.running is not None:
        in_flight = interval.running + (interval.waiting or 0.0)
    together, sequences = _together(posed, in_flight)
    ttft, tpot = Figure.of(run.ttft.mean, first), Figure.of(run.tpot.mean, token)
    mean, moving, longer = run.tpot.mean, interval.moving_ms, together / float(token.expected)
    step = Figure.of(moving or mean, Time(*(longer * float(getattr(token, end)) for end in ENDS)))
    parts, done = at_rate.played.first_parts, at_rate.played
    waiting = arriving * (parts.under_way + parts.behind + parts.place) if at_rate.stable else None
    queue = None
    if interval.waiting is not None and waiting is not None:
        queue = 1e3 * (interval.waiting - waiting) / arriving
    rules, blocks = at_rate.scene.rules, float(done.replicas["block_time"].sum())
    used = blocks / (done.now * rules.blocks * rules.replicas) if at_rate.stable else 1.0  # above the knee it fills
    isl, osl = load.isl.mean, load.osl.mean
    host, kv = _told_apart(predictor, sequences, isl, osl)
    return Beside(
        interval.start, interval.end, arriving, isl, osl, posed.facts.hits, in_flight,
        interval.waiting, waiting,
        interval.kv_use, used, interval.preemptions, ttft, tpot, step,
        output_tok_s=run.output_tok_s,
        output_expected_tok_s=at_rate.output_rate,
        batch_ms=step.expected - tpot.expected if tpot.measured else None,
        stall_ms=mean - moving if mean and moving else None,
        step_ms=step.measured - step.expected if step.measured else None,
        queue_ms=queue,
        prompt_ms=ttft.measured - ttft.expected - queue if ttft.measured and queue is not None else None,
        knee=at_rate.knee, host_ms=host, kv_ms=kv, replicas=replicas,
    )  # fmt: skip


def _together(posed: Posed, in_flight: float) -> tuple[float, float]:
    """Mean time of a token [s] of so many requests under way that end one by one, and how many share a step.

    They are a closed loop whose lengths vary by a fifth at least, without its first turns and its last.
    """
    users = max(round(in_flight), 1)
    isl, osl = (LogNormal(each.mean, max(cv(each), _APART)) for each in (posed.load.isl, posed.load.osl))
    turns = max(_TURNS, -(-_ENOUGH // users))
    asked = replace(posed.load, isl=isl, osl=osl, users=users, rate=None, requests=turns * users)
    found = play_load(posed.resolved.predictor, asked, posed.scheduler)
    done = found.played
    middle = slice(2 * users, (turns - 1) * users)
    each = (done.end - done.first)[middle] / np.maximum(done.osl[middle] - 1, 1)
    return (float(each.mean()) if osl.mean > 1.0 else found.tpot), found.sequences


def _told_apart(predictor: Predictor, running: float, isl: float, osl: float) -> tuple[float, float]:
    """The engine's part of a decode step, and what kernels that read the cache take of it [ms]."""
    middle = Workload(max(running, 1.0), isl, osl, context=isl + osl / 2.0)
    kernels = predictor.decode_step(middle).kernels
    host = sum(float(each.expected) for each in kernels if each.kernel.family == "host")
    kv = sum(float(each.expected) for each in kernels if float(each.kernel.kv_read_bytes) > 0.0)
    return 1e3 * host, 1e3 * kv


class ChangeDetector:
    """Finds a lasting change of a mean by two cumulative sums (Page 1954), after learning what is usual at each load.

    S ← max(S + min((x − usual)/σ − k, h/3), 0) upwards and likewise downwards, k = half the smallest change; S above h
    is a change since S was last 0. The minimum makes three intervals the least, because minutes of real requests have
    outliers. h is where normal noise would pass twice a week without it: the mean run of one sum is
    (exp(2kb) − 2kb − 1)/(2k²) with b = h + 1.166 (Siegmund 1985, 2.5). With it, measured minutes pass less than once a
    week (benchmarks/watch_errors.py).

    A prediction is not off by the same share at all loads. So the usual is a line over the logarithm of the predicted
    time, by least squares over winsorised values, whose slope is 0 ± `_STEEP` before anything is known. It is learnt
    over a day of values as long as nothing changes. Errors of its level widen σ and lessen k; what the slope may be off
    at a load, and beyond the loads that were seen, counts as no change.

    >>> change = ChangeDetector(0.05)
    >>> for place in range(70):
    ...     change.see(0.01 * (-1) ** place + (0.05 if place >= 64 else 0.0), place)
    >>> change.since, round(change.size, 2)
    (64, 0.05)
    """

    def __init__(self, smallest: float, learnt: int = LEARNT) -> None:
        self.smallest, self.learnt = smallest, learnt
        self.size = 0.0
        self.since: int | None = None
        self._kept: list[tuple[float, float]] = []
        self._level = self._slope = self._middle = self._slope_error = 0.0
        self._loads = (0.0, 0.0)  # the least and the greatest that were learnt
        self._sums, self._starts = [0.0, 0.0], [0, 0]
        self._lately: list[float] = []
        self._spread = self._k = self._h = 0.0

    def see(self, value: float, place: int, at: float = 0.0) -> None:
        """The next value; `place` is what `since` counts, `at` the logarithm of the predicted time."""
        if len(self._kept) >= self.learnt:
            self._judge(value, place, at)
        quiet = max(self._sums) < self._h / 2.0 or len(self._kept) < self.learnt
        if quiet and len(self._kept) < _A_DAY and self.since is None:
            self._kept.append((at, value))
            if len(self._kept) % self.learnt == 0:
                self._learn()

    def usual(self, at: float) -> float:
        """The usual value where the logarithm of the predicted time is `at`."""
        return self._level + self._slope * (at - self._middle)

    def _judge(self, value: float, place: int, at: float) -> None:
        away = (value - self.usual(at)) / self._spread
        beyond = max(self._loads[0] - at, at - self._loads[1], 0.0)
        unknown = _CERTAIN * (self._slope_error * abs(at - self._middle) + _STEEP * beyond) / self._spread
        for side, sign in enumerate((1.0, -1.0)):
            if self._sums[side] == 0.0:
                self._starts[side] = place
            grown = max(self._sums[side] + min(sign * away - unknown - self._k, _ALONE * self._h), 0.0)
            self._sums[side] = min(grown, 2.0 * self._h)  # so that a change that ends is seen to end
        side = max((0, 1), key=self._sums.__getitem__)
        self._lately = [*self._lately[-_A_DAY:], away * self._spread]
        if self._sums[side] <= self._h:
            self.since = None
            return
        if self.since is None:
            self.since = self._starts[side]
        self.size = fmean(self._lately[-(place - self.since + 1) :])

    def _learn(self) -> None:
        loads, values = zip(*self._kept, strict=True)
        self._loads, self._middle = (min(loads), max(loads)), fmean(loads)
        self._level = median(values)
        for _ in range(_ROUNDS):
            rests = [value - self.usual(at) for at, value in self._kept]
            steps = [(after - before) / math.sqrt(2.0) for before, after in pairwise(rests)]  # a slow swing is no noise
            rough = max(_MAD * median(map(abs, steps)), _LEAST_SPREAD)
            spread = max(math.sqrt(fmean(_within(each, rough) ** 2 for each in steps) / _LEFT), _LEAST_SPREAD)
            far = math.fsum((at - self._middle) ** 2 for at in loads) + (spread / _STEEP) ** 2
            near = [_within(rest, spread) for rest in rests]
            self._level += fmean(near)
            pull = math.fsum((at - self._middle) * each for at, each in zip(loads, near, strict=True))
            self._slope += (pull - self._slope * (spread / _STEEP) ** 2) / far
        error = _CERTAIN / math.sqrt(len(self._kept))
        self._slope_error = spread / math.sqrt(far)
        self._spread = spread * (1.0 + error)
        self._k = max(self.smallest / self._spread / 2.0 - 1.25 * error, 0.1)
        self._h = max(limit(self._k, _A_WEEK / 2.0), self._k)


def _within(value: float, spread: float) -> float:
    return max(min(value, _FAR * spread), -_FAR * spread)


def limit(k: float, run: float) -> float:
    """The limit of a one-sided cumulative sum whose mean run without a change is `run`, from Siegmund's formula.

    >>> round(limit(0.5, 336.0), 2), round(limit(0.5, 930.0), 2)  # Montgomery, table 9.3: 4 and 5
    (3.99, 5.0)
    """
    low, high = 0.0, 50.0
    for _ in range(60):
        h = (low + high) / 2.0
        exponent = 2.0 * k * (h + 1.166)
        short = exponent < 600.0 and (math.exp(exponent) - exponent - 1.0) / (2.0 * k * k) < run
        low, high = (h, high) if short else (low, h)
    return high


def _preempted(before: Sequence[Beside], after: Sequence[Beside]) -> str:
    """Sentence on more preemptions; nothing if there are none."""
    rates = [sum(each.preemptions or 0.0 for each in part) / max(len(part), 1) for part in (before, after)]
    more = rates[1] > 2.0 * rates[0] + 1.0
    return f"preemptions: {rates[1]:.3g} an interval, {rates[0]:.3g} before" if more else ""


def cause_of(before: Sequence[Beside], after: Sequence[Beside], usual: Callable[[float], float]) -> str:
    """Cause of a longer step: the one cause that leaves the least squares, if the loads tell them apart.

    usual: what the logarithm of measured over predicted was before, by that of the predicted time.
    """
    if after[0].stall_ms is None and (said := _preempted(before, after)):
        return said
    factors = np.array([math.exp(usual(math.log(each.step.expected))) for each in after])
    expected, host, kv = np.array([(each.step.expected, each.host_ms, each.kv_ms) for each in after]).T
    longer = np.array([each.step.measured or 0.0 for each in after]) - factors * expected
    shapes = {"kernels": factors * (expected - host), "host": np.ones(len(after)), "cache reads": factors * kv}
    found: dict[str, tuple[float, float]] = {}
    for name, sizes in shapes.items():
        if square := float(sizes @ sizes):
            share = float(sizes @ longer) / square
            found[name] = float(np.sum((longer - share * sizes) ** 2)), share
    best = min(found, key=found.__getitem__)
    left, share = found[best]
    variance = left / max(len(after) - 1, 1)
    if any(other - left < _TOLD_APART * variance for name, (other, _) in found.items() if name != best):
        return "steps take longer; these loads do not tell kernels, cache reads and host apart"
    return f"host: {share:+.2f} ms a step" if best == "host" else f"{best}: {percent(share, signed=True)}"


def headroom(seen: Sequence[Beside]) -> Headroom | None:
    """The rate against the knee, and when a growth that is more than chance would reach it.

    Rates before are those of a replica, times the replicas now: a server that answers no look takes its load with it.

    Of up to one day the rate is a straight line over time. From six days on it is one over the highest hour of each
    day, and from two weeks on with a height for each day of the week, since traffic swings with both. Between one day
    and six the last day is set beside the same hours of the day before, and a time holds only if days to come add as
    much. Neighbouring minutes and hours err alike. So the line goes through the means of six blocks, or through whole
    days, and only these count as independent (batch means, Law & Carson 1979).
    """
    if not seen:
        return None
    now = seen[-1]
    left = Headroom(now.rate, now.knee, 1.0 - now.rate / now.knee)
    every = [each.rate / each.replicas * now.replicas for each in seen]
    if len(seen) <= LEARNT:
        return left
    ages = [(now.end - each.end) / 3600.0 for each in seen]
    if ages[0] <= _DAY:
        parts = [slice(len(seen) * turn // _BLOCKS, len(seen) * (turn + 1) // _BLOCKS) for turn in range(_BLOCKS)]
        times = [-fmean(ages[part]) for part in parts]
        found = _reached(times, [fmean(every[part]) for part in parts], now.knee)
        return left if found is None else replace(left, hours_left=found[0], hours_between=found[1:])
    hours: dict[int, list[float]] = {}
    for age, rate in zip(ages, every, strict=True):
        hours.setdefault(math.floor(age), []).append(rate)
    days: dict[int, list[float]] = {}  # by how long ago
    for hour, rates in hours.items():
        days.setdefault(hour // _DAY, []).append(fmean(rates))
    whole = (ages[0] + 1.0) // _DAY  # the earliest day began before it was watched
    if whole < _FREEDOM + 2:
        left = replace(_day_on_day(left, hours), known_from=seen[0].end + 3600.0 * (_DAY * (_FREEDOM + 2) - 1.0))
    if ages[0] < 2 * _DAY:
        return left
    peaks = {day: max(rates) for day, rates in days.items() if day < whole and 2 * len(rates) >= _DAY}
    kinds = 7 if whole >= 14 else 1
    highest = max((day for day in peaks if day < kinds), key=peaks.__getitem__, default=None)
    if highest is None:
        return left
    times, weekdays = [-float(day * _DAY) for day in peaks], [(day - highest) % kinds for day in peaks]
    found = _reached(times, list(peaks.values()), now.knee, weekdays)
    left = replace(left, peak=peaks[highest])
    return left if found is None else replace(left, hours_left=found[0], hours_between=found[1:])


def _day_on_day(left: Headroom, hours: Mapping[int, Sequence[float]]) -> Headroom:
    """The rates of the last day beside those of the same hours before, by six blocks; hours: rates by hours ago."""
    both = [ago for ago in range(_DAY) if ago in hours and ago + _DAY in hours]
    pairs = [(fmean(hours[ago]), fmean(hours[ago + _DAY])) for ago in both]
    if len(pairs) < _BLOCKS:
        return left
    ends = [len(pairs) * turn // _BLOCKS for turn in range(_BLOCKS + 1)]
    more = [fmean(now - before for now, before in pairs[start:end]) for start, end in pairwise(ends)]
    before, change = fmean(before for _, before in pairs), fmean(more)
    error = _LIKELY_BLOCK * stdev(more) / math.sqrt(_BLOCKS)
    if before <= 0.0:
        return left
    between = (change - error) / before, (change + error) / before
    left = replace(left, day_change=change / before, day_between=between)
    peak = max(fmean(rates) for hour, rates in hours.items() if hour < _DAY)
    if change <= error or peak >= left.knee:
        return left
    quickest = (change + error) * max(peak / (before + change), 1.0)
    sooner, later = (_DAY * (left.knee - peak) / rise for rise in (quickest, change - error))
    return replace(left, hours_if_repeated=(sooner, later))


def _reached(
    times: Sequence[float], heights: Sequence[float], limit: float, kinds: Sequence[int] = ()
) -> tuple[float, float, float] | None:
    """Time at which the least-squares line of kind 0 reaches a limit, with its 90 % interval (Fieller 1954).

    Each kind has a height of its own, and all have one slope. None where the slope may be chance, or too few heights
    say so.

    >>> [round(time, 1) for time in _reached([0, 1, 2, 3, 4, 5], [0.1, 1, 1.9, 3, 4.1, 4.9], 10.0)]
    [10.1, 9.8, 10.5]
    """
    kind = np.asarray(kinds or [0] * len(times))
    groups = [kind == each for each in np.unique(kind)]  # kind 0 first
    freedom = len(times) - len(groups) - 1
    if freedom < _FREEDOM:
        return None
    x, y = np.asarray(times, float), np.asarray(heights, float)
    middle, height = float(x[groups[0]].mean()), float(y[groups[0]].mean())
    for own in groups:
        x[own], y[own] = x[own] - x[own].mean(), y[own] - y[own].mean()
    width = float(x @ x)
    slope = float(x @ y) / width
    variance = float(np.sum((y - slope * x) ** 2)) / freedom / width
    if slope <= _SURE * math.sqrt(variance):
        return None
    chance = _LIKELY**2 * variance
    rise, beside = limit - height, slope**2 - chance
    root = math.sqrt(chance * (rise**2 + beside * width / int(groups[0].sum())))
    ends = (slope * rise - root) / beside, (slope * rise + root) / beside
    return tuple(max(middle + each, 0.0) for each in (rise / slope, *ends))  # type: ignore[return-value]

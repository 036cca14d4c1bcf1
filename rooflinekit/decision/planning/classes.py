"""Classes of requests on one fleet or on several: whichever is cheapest, several models on the same hosts.

Of the classes of one model every partition into fleets is priced, by what a replica bears of each mix.

Batch jobs beside requests that come by the hour take what the hours leave free:

b(x) = the largest rate of a job beside x requests/s on a replica with which the objectives of these hold
job k in interval h on n replicas:  n·b_k(λ_h/n) requests/s, the job with the earliest deadline first
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from os import PathLike
from typing import Any, Unpack

import numpy as np

from rooflinekit.decision.planning.cost import Hosts, added, hosts_of
from rooflinekit.decision.planning.demand import Mix, Profile, TrafficClass, read_classes
from rooflinekit.decision.planning.fleet import Option, Part
from rooflinekit.decision.planning.objective import Objective, limits_in_words, missed
from rooflinekit.decision.planning.plan import (
    DEFAULT_SLO,
    Candidate,
    candidate_of,
    deployment_name,
    nothing_found,
    read_question,
)
from rooflinekit.decision.planning.rank import Ranked, ranked, warnings
from rooflinekit.decision.planning.search import Found, PlanQuestion, Progress, refused_fleet, search
from rooflinekit.estimation.options import keywords, read
from rooflinekit.estimation.scenario import PlanOptions
from rooflinekit.model.types.answer import Plain, Tabled
from rooflinekit.model.types.errors import InfeasibleError, InputError, WorkloadError
from rooflinekit.specs import load_model
from rooflinekit.version import __version__

_GRID = (0.0, 0.4, 0.7, 0.9, 1.0)  # of what a replica bears, where b is worked out
_FULL = 0.95  # of the knee that a job takes at most, so that queues stay short
_CLOSE = 0.02  # relative, of b
_LEAST = 1e-3  # of a rate: below it a job gets nothing
_MOST_REPLICAS = 1 << 14  # replicas


@dataclass(frozen=True)
class Hour:
    """An interval: when it begins [h], requests/s that come and of the jobs, and replicas."""

    hour: float
    rate: float
    jobs: dict[str, float]
    replicas: int


@dataclass(frozen=True)
class Valleys:
    """A deployment that serves steady classes by a profile, and jobs in what is left; mix: all of them."""

    question: PlanQuestion
    part: Part
    mix: Mix
    profile: Profile
    _free: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def jobs(self) -> list[TrafficClass]:
        """By deadline."""
        return sorted(steady_and_jobs(self.mix.classes)[1], key=lambda each: each.deadline_h or 0.0)

    def at(self, rate: float, job: str, beside: float) -> Mix:
        """Requests of one replica: `rate` of the steady classes, `beside` of a job [1/s]."""
        steady, _ = steady_and_jobs(self.mix.classes)
        whole = sum(each.rate for each in steady)
        return self.mix.at({each.name: each.rate / whole * rate for each in steady} | {job: beside})

    def free(self, job: str, rate: float) -> float:
        """The largest rate of a job beside one of the steady classes [1/s], on straight lines between five of these."""
        top = self.part.ability.load * (1.0 - self.question.reserve.headroom)
        if job not in self._free:
            self._free[job] = [self._beside(job, share * top) for share in _GRID]
        return float(np.interp(rate / top, _GRID, self._free[job]))

    def _beside(self, job: str, rate: float) -> float:
        bearer = self.part.bearer
        alone = self.at(0.0, job, 1.0)
        most = _FULL * bearer.knee(alone)
        if not rate:
            return most

        def good(beside: float) -> bool:
            mix = self.at(rate, job, beside)
            fresh = replace(bearer, replica=replace(bearer.replica, _curves={}, _samples={}))  # of this mix alone
            if mix.mean_load >= _FULL * fresh.knee(mix):
                return False
            return not missed(fresh.feels(mix, mix.mean_load, exact=True), mix.slo, self.part.deviations)

        low, high = _LEAST * most, most
        if not good(low):
            return 0.0
        while high > low * (1.0 + _CLOSE):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if good(middle) else (low, middle)
        return low

    def hours(self, replicas: int) -> tuple[list[Hour], dict[str, float]]:
        """The intervals up to the last deadline, and the hour at which each job is done (infinite: not in time)."""
        left = {job.name: job.requests or 0.0 for job in self.jobs}
        done: dict[str, float] = dict.fromkeys(left, math.inf)
        last = max(job.deadline_h or 0.0 for job in self.jobs)
        found: list[Hour] = []
        clock, place = 0.0, 0
        while clock < last - 1e-9:
            rate = self.profile.rates[place % len(self.profile.rates)]
            length = min(self.profile.hours[place % len(self.profile.hours)], last - clock)
            taken, used = 0.0, dict[str, float]()
            for job in self.jobs:
                speed = replicas * self.free(job.name, rate / replicas) * 3600.0  # an hour
                if not left[job.name] or not speed:
                    continue
                hours = min(left[job.name] / speed, length - taken)
                left[job.name] -= hours * speed
                taken += hours
                used[job.name] = hours * speed / length / 3600.0
                if left[job.name] < 1e-6:
                    left[job.name], done[job.name] = 0.0, clock + taken
            found.append(Hour(clock, rate, used, replicas))
            clock, place = clock + length, place + 1
        return found, done

    def in_time(self, replicas: int) -> bool:
        """True if so many replicas do every job by its deadline."""
        _, done = self.hours(replicas)
        return all(done[job.name] <= (job.deadline_h or 0.0) + 1e-9 for job in self.jobs)

    def replicas(self) -> int | None:
        """The fewest, at least those of the peak; None where none is enough."""
        low, high = self.part.working, self.part.working
        while not self.in_time(high):
            low, high = high + 1, 2 * high
            if high > _MOST_REPLICAS:
                return None
        return low + bisect_left(range(low, high), True, key=self.in_time)


def steady_and_jobs(classes: Sequence[TrafficClass]) -> tuple[list[TrafficClass], list[TrafficClass]]:
    """Classes that come by the hour, and batch jobs."""
    jobs = [each for each in classes if each.deadline_h is not None]
    return [each for each in classes if each.deadline_h is None], jobs


_MOST = 6  # classes of one model of which all partitions are priced
_SHOWN = 6  # of the others
_FILLED = 2  # deployments of a fleet into whose valleys jobs are put
_OF_CLASSES = ("rate", "users", "concurrency", "trace", "sessions", "isl", "osl", "isl_cv", "osl_cv", "cached", "peak",
               "images", "image_size", "encoder_gpus")  # fmt: skip
_NO_PART = (
    "cache_tier",
    "growth",
    "months",
    "autoscale",
    "tco",
    "disaggregated",
    "mixed",
    "by",
    "clean",
    "router",
    "sensitivity",
)


@dataclass(frozen=True)
class Held:
    """An objective of a class: what is predicted of it [ms], and the probability that it holds.

    within: share of requests within the limit.
    """

    objective: str
    predicted_ms: float | None
    within: float
    probability: float | None


@dataclass(frozen=True)
class ClassRow:
    """One class: its fleet (from 1; None where it cannot be met, `unmet` says why), and requests/s in the mean.

    done_h: hour in which a batch job is done, of `deadline_h`.
    """

    name: str
    model: str
    fleet: int | None
    rate: float
    isl: float
    osl: float
    priority: int
    requests: float | None
    deadline_h: float | None
    done_h: float | None
    objectives: tuple[Held, ...]
    unmet: str


@dataclass(frozen=True)
class ClassFleet(Plain):
    """One fleet: its classes, model and deployment; hours: what it does beside batch jobs, empty without a profile."""

    classes: tuple[str, ...]
    model: str
    candidate: Candidate
    hours: tuple[Hour, ...]

    @property
    def gpus(self) -> int:
        """Accelerators."""
        return self.candidate.gpus


@dataclass(frozen=True)
class Grouping:
    """One partition of the classes of a model: `chat + rag | batch`, and its price."""

    fleets: str
    gpus: int
    usd_per_hour: float | None


@dataclass(frozen=True)
class ClassPlan(Tabled):
    """The cheapest fleets for classes of requests.

    answer: in words, with why they are pooled or separate; classes: each with its fleet; fleets; groupings: how else
    the classes could be put together, by cost; hosts: what the fleets take; usd_per_hour: None without a price.
    """

    version: str
    question: str
    confidence: float
    answer: str
    classes: tuple[ClassRow, ...]
    fleets: tuple[ClassFleet, ...]
    groupings: tuple[Grouping, ...]
    hosts: tuple[Hosts, ...]
    gpus: int
    usd_per_hour: float | None
    interrupted: bool
    warnings: tuple[str, ...]

    derived = ("unmet",)

    @property
    def unmet(self) -> tuple[str, ...]:
        """Classes that no deployment serves within their objectives."""
        return tuple(each.name for each in self.classes if each.fleet is None)

    def to_rows(self) -> list[dict[str, Any]]:
        """One flat row for each objective of each class, and one for a class without."""
        found = []
        for each in self.classes:
            own = {key: value for key, value in asdict(each).items() if key != "objectives"}
            fleet = None if each.fleet is None else self.fleets[each.fleet - 1]
            more = (
                {}
                if fleet is None
                else {
                    "plan": fleet.candidate.name,
                    "gpu": fleet.candidate.gpu,
                    "gpus": fleet.gpus,
                    "usd_per_hour": fleet.candidate.cost.usd_per_hour,
                }
            )
            found += [own | asdict(held) | more for held in each.objectives] or [own | more]
        return found


@dataclass
class _Group:
    """Classes of one model on one fleet: the search for it, and the cheapest option."""

    classes: tuple[TrafficClass, ...]
    question: PlanQuestion
    found: Found
    filled: list[Valleys]
    entry: Ranked | None = None
    why: str = ""  #: nothing serves them whatever the objectives

    @property
    def name(self) -> str:
        """`chat + rag`."""
        return " + ".join(each.name for each in self.classes)

    @property
    def option(self) -> Option:
        """The cheapest."""
        assert self.entry is not None  # of groups that are met alone
        return self.entry.option

    @property
    def rank(self) -> tuple[float, float]:
        """Cost and accelerators, or the other way round."""
        return (math.inf, math.inf) if self.entry is None else self.question.tariff.rank(self.option)

    @property
    def need(self) -> float:
        """Accelerators that the peak takes before whole replicas are rounded up."""
        (part,) = self.option.parts
        return self.question.demand.peak_load / part.ability.load * part.replica.gpus

    @property
    def valleys(self) -> Valleys | None:
        """Batch jobs of the group, where they fill the valleys of a profile."""
        (part,) = self.option.parts
        return next((each for each in self.filled if each.part.replica is part.replica), None)


@keywords(PlanOptions)
def plan_classes(
    file: str | PathLike[str],
    model: str | PathLike[str],
    gpus: str | Sequence[str] = ("h100-sxm",),
    slo: str | Sequence[str] | None = None,
    *,
    progress: Progress | None = None,
    **scenario: Unpack[PlanOptions],
) -> ClassPlan:
    r"""The cheapest fleets for several classes of requests, pooled or separate.

    Args:
        file: a YAML of classes by name, or a CSV with a column `name`; keys as in docs/plan.md.
        model: of classes that name none, a name or path.
        gpus: accelerators to choose from.
        slo: objectives of classes that say none.
        progress: as `plan` takes it.
        **scenario: the options of `plan` but for the load; a profile is the shape of the day of all classes but jobs.

    Returns:
        A `ClassPlan`: `answer` in words, `classes`, `fleets`, `groupings`, `hosts`.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; InfeasibleError if no class can be met.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = (file := Path(folder, "two.csv")).write_text("name,rate,isl,osl\nchat,4,500,100\nlong,1,4000,100\n")
    ...     plan_classes(file, "llama-3-8b", price=3.0, tp=[1]).groupings[0].fleets
    'chat + long'
    """
    for key in (*_OF_CLASSES, *_NO_PART):
        if scenario.get(key) is not None:
            why = "each class has its own load" if key in _OF_CLASSES else "leave it out"
            raise InputError(f"{key} and classes exclude each other: {why}")
    given = {key: value for key, value in read(PlanOptions, scenario).items() if key != "classes"}
    classes = read_classes(file, slo or DEFAULT_SLO)
    by_model: dict[str, list[TrafficClass]] = {}
    for each in classes:
        by_model.setdefault(load_model(each.model or model).value.name, []).append(each)
    paths = {load_model(name).value.name: name for name in (each.model or model for each in classes)}
    chosen: list[_Group] = []
    groupings: list[Grouping] = []
    words, unmet, names = list[str](), dict[str, str](), dict[int, str]()
    for name, own in by_model.items():
        steady, jobs = steady_and_jobs(own)  # the profile has the rate of the steady classes
        load = {"rate": sum(each.rate for each in steady or jobs), "disaggregated": False, "mixed": False}
        told = {key: value for key, value in given.items() if steady or key != "profile"}
        question = read_question(paths[name], gpus, DEFAULT_SLO, load | told, progress)
        groups = _groups(question, own)
        refused = {
            group.classes[0].name: group.why or str(nothing_found(group.question, group.found))
            for group in groups.values()
            if len(group.classes) == 1 and group.entry is None
        }
        unmet |= refused
        met = tuple(each.name for each in own if each.name not in refused)
        if met:
            best, others, why = _cheapest(groups, met)
            chosen += best
            names |= {id(group): name for group in best}
            groupings += [_grouping(each) for each in (best, *others)]
            words.append(why)
    if not chosen:
        raise InfeasibleError(f"no class can be met. {'; '.join(f'{name}: {why}' for name, why in unmet.items())}")
    return _told(classes, chosen, groupings, names, unmet, words)


def _groups(question: PlanQuestion, classes: Sequence[TrafficClass]) -> dict[tuple[str, ...], _Group]:
    """Every set of classes that is looked at, by its names; those with a class that is not met alone are left out."""
    counts = range(1, len(classes) + 1) if len(classes) <= _MOST else (1, len(classes))
    found: dict[tuple[str, ...], _Group] = {}
    searched: dict[tuple[str, ...], Found] = {}  # a job that fills the valleys has no part in the search
    try:
        for count in counts:
            for own in combinations(classes, count):
                alone = [found[each.name,] for each in own] if count > 1 else []
                if all(group.entry is not None for group in alone):
                    found[tuple(each.name for each in own)] = _group(question, own, searched)
    except KeyboardInterrupt:
        if len(found) < len(classes):
            raise
        for group in found.values():  # each class has a fleet by now
            group.found.interrupted = True
    return found


def _group(question: PlanQuestion, classes: tuple[TrafficClass, ...], searched: dict[tuple[str, ...], Found]) -> _Group:
    """Search the deployments of some classes on one fleet."""
    steady, jobs = steady_and_jobs(classes)
    filling = question.course is not None and steady and jobs
    peak = question.demand.peak if steady and question.course is not None else 1.0
    mix = _mix(question, steady if filling else classes, peak)
    asked = replace(question, demand=mix, slo=mix.slo, course=None)
    names = tuple(each.name for each in mix.classes)
    if names not in searched:
        try:
            searched[names] = search(asked)
        except WorkloadError as error:  # longer than the model's context
            return _Group(classes, asked, Found(), [], why=str(error))
    found = replace(searched[names], refused=list(searched[names].refused))
    group = _Group(classes, asked, found, [])
    if filling and question.course is not None:
        whole = _mix(question, classes, 1.0)
        share = mix.mean_load / question.demand.mean_load
        options = []
        for option in sorted(found.options, key=asked.tariff.rank)[:_FILLED]:
            valleys = Valleys(asked, option.parts[0], whole, question.course.profile.scaled(share))
            filled = _filled(asked, option, valleys)
            if filled is not None:
                options.append(filled)
                group.filled.append(valleys)
        found.options = options
    group.entry = next(iter(ranked(asked, found)), None)
    return group


def _mix(question: PlanQuestion, classes: Sequence[TrafficClass], peak: float) -> Mix:
    """All requests of some classes, as they come to the fleet of the question."""
    return replace(Mix.of(classes, peak, question.demand.arrival_cv), router=question.demand.router)


def _filled(question: PlanQuestion, option: Option, valleys: Valleys) -> Option | None:
    """The option with as many replicas as do the jobs in time; None where that is not to be had."""
    working = valleys.replicas()
    if working is None:
        return None
    parts = (replace(option.parts[0], working=max(working, option.parts[0].working)),)
    return None if refused_fleet(question, parts) else replace(option, parts=parts)


def partitions(names: Sequence[str]) -> Iterator[list[tuple[str, ...]]]:
    """Every way to put names into sets, their order kept.

    >>> [len(list(partitions("abcd"[:count]))) for count in (1, 2, 3, 4)]  # Bell's numbers
    [1, 2, 5, 15]
    """
    if not names:
        yield []
        return
    *rest, last = names
    for smaller in partitions(rest):
        for place, part in enumerate(smaller):
            yield [*smaller[:place], (*part, last), *smaller[place + 1 :]]
        yield [*smaller, (last,)]


def _cheapest(
    groups: Mapping[tuple[str, ...], _Group], names: tuple[str, ...]
) -> tuple[list[_Group], list[list[_Group]], str]:
    """The cheapest partition, some others by cost, and why it is."""
    whole = [[groups[part] for part in parts] for parts in partitions(names) if all(part in groups for part in parts)]
    left = sorted((each for each in whole if all(group.entry is not None for group in each)), key=_rank)
    ends = [each for each in left[1:] if len(each) in {1, len(names)}]
    return left[0], [each for place, each in enumerate(left[1:]) if place < _SHOWN or each in ends], _why(left[0], ends)


def _rank(fleets: Sequence[_Group]) -> tuple[float, float, int]:
    first, second = (sum(values) for values in zip(*(group.rank for group in fleets), strict=True))
    return round(first, 6), round(second, 6), len(fleets)


def _grouping(fleets: Sequence[_Group]) -> Grouping:
    return Grouping(
        " | ".join(group.name for group in fleets),
        sum(group.option.gpus for group in fleets),
        added(group.question.tariff.per_hour(group.option) for group in fleets),
    )


def _why(best: Sequence[_Group], ends: Sequence[Sequence[_Group]]) -> str:
    """Why the classes are pooled or apart, in one sentence; nothing of a single class."""
    if not ends:
        return ""
    other = min(ends, key=_rank)
    mine, theirs = (_grouping(each) for each in (best, other))
    how = "pooled" if len(other) == 1 else "separate"
    more = f"{theirs.gpus} GPUs" if theirs.usd_per_hour is None else f"${theirs.usd_per_hour:,.2f} an hour"
    head = f"Together {mine.fleets}" if len(best) == 1 else f"Apart {mine.fleets}"
    if len(best) not in (1, sum(len(group.classes) for group in best)):
        head = f"As {mine.fleets}"
    if _rank(best)[:2] == _rank(other)[:2]:
        return f"{head}: {how} fleets cost the same, {more}."
    needs = [sum(group.need for group in each) for each in (best, other)]
    if any(group.valleys for group in best) and len(other) > len(best):
        why = "the batch job takes what the peak leaves free in other hours"
    elif needs[1] <= needs[0] * 1.02:
        why = f"the work is {needs[1]:.1f} GPUs apart, rounded up to whole replicas {theirs.gpus}"
    else:
        (part,) = max(other, key=lambda group: group.need).option.parts
        bound = limits_in_words(part.ability.binds)
        why = f"{how}, {bound} binds and the work takes {needs[1]:.1f} GPUs, not {needs[0]:.1f}"
    return f"{head}: {how} fleets cost {more}, since {why}."


def _told(  # noqa: PLR0913, PLR0917 - all that was found
    classes: Sequence[TrafficClass],
    chosen: Sequence[_Group],
    groupings: Sequence[Grouping],
    names: Mapping[int, str],
    unmet: Mapping[str, str],
    words: Sequence[str],
) -> ClassPlan:
    fleets, notes = list[ClassFleet](), list[str]()
    met: dict[str, tuple[str, int, float | None, tuple[Held, ...]]] = {}
    for number, group in enumerate(chosen, 1):
        entry = group.entry
        assert entry is not None  # of groups that are met
        candidate, model = candidate_of(group.question, entry), names[id(group)]
        hours, done = group.valleys.hours(group.option.parts[0].working) if group.valleys else ([], {})
        fleets.append(ClassFleet(tuple(each.name for each in group.classes), model, candidate, tuple(hours)))
        for each in group.classes:  # a job that has no hours of its own has the rate of its deadline
            held = tuple(_held(group, candidate, objective) for objective in each.slo)
            met[each.name] = model, number, done.get(each.name, each.deadline_h), held
        notes += warnings(group.question, group.found, [entry])
    hosts = hosts_of(
        (
            (f"{names[id(group)]} {deployment_name(part.replica.scenario)}", part)
            for group in chosen
            for part in group.option.parts
        ),
        chosen[0].question.reserve.rack,
    )
    gpus, usd = sum(each.gpus for each in fleets), added(each.candidate.cost.usd_per_hour for each in fleets)
    peaks = max(group.question.demand.peak for group in chosen)
    many = f"{len(classes)} class{'es' if len(classes) > 1 else ''}"
    asked = f"{many}, {sum(each.rate for each in classes):.4g} requests/s"
    pieces = []
    for fleet in fleets:
        (part,) = fleet.candidate.fleets
        many = f"{part.replicas} replica{'s' if part.replicas > 1 else ''}"
        pieces.append(
            f"{many} x {deployment_name(part.scenario)} of {fleet.model} on {part.scenario['gpu']} for "
            f"{', '.join(fleet.classes)}"
        )
    money = "no price is known" if usd is None else f"${usd:,.2f} an hour"
    answer = f"{gpus:,} GPU{'s' if gpus > 1 else ''} = {'; '.join(pieces)}: {money}."
    told = []
    for each in classes:
        model, place, ended, held = met.get(each.name, (each.model, None, None, ()))
        isl, osl, why = each.isl.mean, each.osl.mean, unmet.get(each.name, "")
        row = ClassRow(each.name, model, place, each.rate, isl, osl, each.priority, each.requests, each.deadline_h,
                       ended, held, why)  # fmt: skip
        told.append(row)
    return ClassPlan(
        version=__version__,
        question=f"{asked}, {peaks:.3g} times as many at the peak" if peaks > 1 else asked,
        confidence=chosen[0].question.confidence,
        answer=" ".join([answer, *filter(None, words), *_done(told)]),
        classes=tuple(told),
        fleets=tuple(fleets),
        groupings=tuple(groupings),
        hosts=hosts,
        gpus=gpus,
        usd_per_hour=usd,
        interrupted=any(group.found.interrupted for group in chosen),
        warnings=tuple(dict.fromkeys(notes)),
    )


def _held(group: _Group, candidate: Candidate, objective: Objective) -> Held:
    felt, name = group.option.feels(group.question.demand)(1.0), str(objective)
    said = objective.value(felt)
    predicted = said * 1e3 if math.isfinite(said) else None
    return Held(name, predicted, objective.attained(felt), candidate.probability.get(name))


def _done(classes: Sequence[ClassRow]) -> Iterator[str]:
    """Batch jobs, and classes that are not met."""
    for each in classes:
        if each.fleet is not None and each.requests is not None and each.done_h is not None:
            yield f"{each.name}: {each.requests:,.0f} requests take {each.done_h:.3g} of {each.deadline_h:g} h."
        if each.fleet is None:
            yield f"{each.name} cannot be met: {each.unmet}."

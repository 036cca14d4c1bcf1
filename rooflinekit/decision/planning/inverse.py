"""Questions the other way round: the largest batch or load (also for a budget), the least bandwidth or fleet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rooflinekit.decision.planning.demand import Course, flat, read_demand
from rooflinekit.decision.planning.fleet import Bearer, Option, ability, lay_out
from rooflinekit.decision.planning.objective import Objective, limits_in_words, parse_objectives, refuse_undecoded
from rooflinekit.decision.planning.over_time import Capacity, gpu_table
from rooflinekit.decision.planning.plan import DEFAULT_SLO, PlanAnswer, deployment_name, plan, read_question
from rooflinekit.decision.planning.rank import worst_evidence
from rooflinekit.decision.planning.search import PlanQuestion, Progress, search
from rooflinekit.estimation.estimator import Resolved, read_deployment, read_workload, resolve
from rooflinekit.estimation.options import options_of, part_of, read
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, LoadCase, Spreads, StaticCase
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.answer import Plain
from rooflinekit.model.types.errors import DoesNotFitError, InfeasibleError, InputError, UnknownNameError
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.time import Time
from rooflinekit.model.types.units import format_rate, format_time
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import counted_chips, load_accelerator, load_model
from rooflinekit.specs.calibration.evidence import EVIDENCE
from rooflinekit.version import __version__

_ALL = 1 << 15  # whole numbers up to which every one is tried
_PROBES = 1025

Test = Callable[[NDArray[np.float64]], NDArray[np.bool_]]

LARGEST = ("batch", "context", "rate", "users")
_WAITING = 64  # users for each one that runs, up to which a limit on waiting is searched
_PLACES = "the places of the engine: more users would wait"
_FASTEST = 1e3  # times the bandwidth there is
_LEAST, _MOST = 1e-6, 1e7  # requests/s between which the load of a budget is looked for
_CLOSE = 1e-7  # relative
_RATE = 1e-4  # of a rate, to which the load of a budget is found: every further digit would be played for
_ROUGH = 0.03  # of a rate: within it one replica more or less is a matter of the requests that are played


@dataclass(frozen=True)
class Solution(Plain):
    """The answer to one inverse question.

    binds: what stops it; at: latencies there [ms]; regained: larger values meet the objectives again, which is not
    counted on.
    """

    version: str
    what: str
    value: float
    unit: str
    answer: str
    model: str
    gpu: str
    subject_to: tuple[str, ...]
    binds: tuple[str, ...]
    at: dict[str, float]
    regained: bool
    scenario: dict[str, Any]
    warnings: tuple[str, ...]


def last_before_violation(good: Test, low: int, high: int) -> tuple[int | None, bool]:
    """The largest whole number up to `high` below which nothing fails, None if `low` does; and whether more is good.

    Up to 32,768 numbers are all tried. Of more, 1,025 are, and then those between the last good one and the first that
    fails: exact where `good` does not change twice within such a gap.

    >>> last_before_violation(lambda n: n * n <= 1000, 1, 10**6)
    (31, False)
    >>> last_before_violation(lambda n: n != 7, 1, 100)
    (6, True)
    """
    points = np.arange(low, high + 1) if high - low < _ALL else np.unique(np.linspace(low, high, _PROBES).astype(int))
    fine = np.broadcast_to(good(points.astype(float)), points.shape)
    if fine.all():
        return high, False
    at = int(np.argmin(fine))
    again = bool(fine[at:].any())
    if at == 0:
        return None, again
    if points[at] - points[at - 1] == 1:
        return int(points[at - 1]), again
    found, within = last_before_violation(good, int(points[at - 1]), int(points[at]))
    return found, again or within


def _halved(good: Callable[[float], bool], low: float, high: float, close: float) -> tuple[float, float]:
    """Two neighbours, to a share `close`, of which the low one is good as `low` is, and the high one is not."""
    while high - low > close * high:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if good(middle) else (low, middle)
    return low, high


@dataclass(frozen=True)
class _Asked:
    """One deployment, the objectives on it, and the question as it was put."""

    resolved: Resolved
    slo: tuple[Objective, ...]
    scenario: dict[str, Any]

    @classmethod
    def static(
        cls, model: str | PathLike[str], gpu: str | PathLike[str], slo: tuple[Objective, ...], given: dict[str, Any]
    ) -> _Asked:
        """A question about a static batch. Raises InputError for an objective on a percentile."""
        for each in slo:
            if each.share is not None:
                what = f"leave {each.statistic} out, or ask for rate"
                raise InputError(f"{each}: a static batch has no percentiles; {what}")
        deployment = read_deployment(part_of(given, DEPLOYMENT_KEYS))
        resolved = resolve(model, gpu, deployment, given.get("calibration"))
        return cls(resolved, slo, {"model": str(model), "gpu": str(gpu), **given})

    @property
    def predictor(self) -> Predictor:
        """The plan with its memory."""
        return self.resolved.predictor

    def times(self, work: Workload) -> dict[str, Time]:
        """TTFT, TPOT and the time of a whole request."""
        ttft, tpot = self.predictor.ttft(work), self.predictor.tpot(work)
        return {"ttft": ttft, "tpot": tpot, "e2el": ttft.plus(tpot, work.osl - 1.0)}

    def at(self, work: Workload) -> dict[str, float]:
        """Percentile of the play in ms."""
        return {f"{key}_ms": float(time.expected) * 1e3 for key, time in self.times(work).items()}

    def meets(self, work: Workload) -> NDArray[np.bool_]:
        """True if every objective holds; an array where the workload is one."""
        times = self.times(work)
        met = [np.asarray(times[each.metric].expected) <= each.limit for each in self.slo]
        return np.asarray(np.logical_and.reduce(np.broadcast_arrays(True, *met)), bool)

    def missed(self, work: Workload) -> list[str]:
        """Objectives that fail."""
        times = self.times(work)
        return [str(each) for each in self.slo if float(times[each.metric].expected) > each.limit]

    def largest(self, name: str, unit: str, found: tuple[int, bool], work: Workload, stops: list[str]) -> Solution:
        """The largest value of a static batch, and what stops more."""
        value, at = found[0], self.at(work)
        inside = f"batch {work.batch:.0f}, {work.isl:,.0f} tokens in, {work.osl:,.0f} out"
        answer = (
            f"The largest {name} is {value:,}, limited by {' and '.join(stops)}. "
            f"There ({inside}) TTFT is {format_time(at['ttft_ms'] / 1e3)} and TPOT "
            f"{format_time(at['tpot_ms'] / 1e3)}."
        )
        return self.solution(name, float(value), unit, answer, tuple(stops), at, found[1])

    def solution(  # noqa: PLR0913, PLR0917 - the fields of an answer
        self,
        what: str,
        value: float,
        unit: str,
        answer: str,
        binds: tuple[str, ...],
        at: dict[str, float],
        regained: bool = False,
    ) -> Solution:
        """Put an answer together; a larger value that is good again is said."""
        if regained:
            answer += " Larger values meet the objectives again, but one below them does not: they are not counted on."
        plan, slo = self.resolved.plan, tuple(map(str, self.slo))
        return Solution(
            __version__, what, value, unit, answer, plan.model.name, plan.system.accelerator.name, slo, binds, at,
            regained, self.scenario, self.resolved.warnings,
        )  # fmt: skip

    def no_room(self, tokens: float, batch: int = 1) -> DoesNotFitError:
        """Why not one such batch fits."""
        plan = self.resolved.plan
        held = self.predictor.memory.evaluate(float(batch), tokens, 1.0)
        return DoesNotFitError(
            f"no solution: {plan.model.name} on {plan.deployment.gpus} x {plan.system.accelerator.name} has no room "
            f"for {batch} sequence{'s' if batch > 1 else ''} of {tokens:,.0f} tokens. Raise tp (weights take "
            f"{float(held.weight_bytes) / 1e9:.1f} of {float(held.capacity_bytes) / 1e9:.1f} GB "
            f"a {plan.system.accelerator.noun})"
        )

    def no_solution(self, where: str, work: Workload) -> InfeasibleError:
        """Why even the least fails, and whether the datasheet allows it."""
        times, words = self.times(work), []
        for each in self.slo:
            time, bound = (float(getattr(times[each.metric], part)) * 1e3 for part in ("expected", "bound"))
            if time <= each.limit * 1e3:
                continue
            reach = (
                "so no engine can do it" if bound > each.limit * 1e3 else "so it is not out of reach of the hardware"
            )
            words.append(f"{each.metric.upper()} is {time:.4g} ms (datasheet bound {bound:.4g} ms, {reach})")
        asked = ", ".join(map(str, self.slo))
        return InfeasibleError(f"no solution: already with {where} {' and '.join(words)}; {asked} asked")


def largest(
    what: str, model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", subject_to: str = "", **scenario: Any
) -> Solution:
    """The largest batch, context, rate or number of users that one deployment serves within objectives.

    Args:
        what: batch (a static batch of isl and osl), context (tokens of each sequence of a static batch, osl of them
            out), rate [requests/s] or users (under load).
        model: a model's name or path.
        gpu: an accelerator's name or path.
        subject_to: objectives, such as "tpot<30ms, ttft<500ms"; percentiles under load alone. "" asks for memory (or
            the knee) alone.
        **scenario: batch, isl, osl, cached; cv of the gaps under load; the deployment as `estimate` takes it;
            calibration. Of a rate and users also confidence: with which objectives have to hold (0.5, expected times).

    Returns:
        A `Solution`: the largest value below the first violation.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if not one request fits;
            InfeasibleError if even the smallest value fails: it says what the datasheet bound is.

    >>> largest("batch", "llama-3-8b", subject_to="tpot<10ms", isl=2048, osl=1, calibration="none").value
    68.0
    """
    if what not in LARGEST:
        raise UnknownNameError("quantity", what, LARGEST)
    slo = parse_objectives(subject_to) if subject_to.strip() else ()
    confidence = scenario.pop("confidence", 0.5)
    if not 0.5 <= confidence <= 0.999:
        raise InputError(f"confidence must be from 0.5 to 0.999, not {confidence}")
    given = read(LoadCase if what in ("rate", "users") else StaticCase, scenario)
    if what in ("rate", "users"):
        return _under_load(what, str(model), str(gpu), slo, given, confidence)
    asked = _Asked.static(model, gpu, slo, given)
    work = read_workload(given, asked.resolved.plan)
    return _batch(asked, work) if what == "batch" else _context(asked, work)


def _batch(asked: _Asked, work: Workload) -> Solution:
    room = int(asked.predictor.memory.max_batch(work.isl + work.osl, work.isl - work.cached))
    if room < 1:
        raise asked.no_room(float(work.isl + work.osl))
    value, again = last_before_violation(lambda n: asked.meets(replace(work, batch=n)), 1, room)
    if value is None:
        raise asked.no_solution("batch 1", replace(work, batch=1.0))
    stops = asked.missed(replace(work, batch=value + 1.0)) if value < room else ["memory"]
    return asked.largest("batch", "sequences", (value, again), replace(work, batch=float(value)), stops)


def _context(asked: _Asked, work: Workload) -> Solution:
    memory, model, images = asked.predictor.memory, asked.resolved.plan.model, asked.resolved.plan.image_tokens
    least = int(work.osl) + 1 + int(work.cached) + images
    most = int(min(float(memory.max_context(1.0, 1.0)), 1e7))
    if most < least:
        raise asked.no_room(float(least))

    def at(context: Numeric) -> Workload:
        return replace(work, isl=context - work.osl)

    def good(context: NDArray[np.float64]) -> NDArray[np.bool_]:
        now = at(context)
        held = memory.evaluate(work.batch, context, now.isl - work.cached)
        return (np.asarray(held.fits) > 0) & (context <= (model.max_context or math.inf)) & asked.meets(now)

    value, again = last_before_violation(good, least, most)
    if value is None:
        if not bool(memory.evaluate(work.batch, float(least), 1.0).fits):
            raise asked.no_room(float(least), int(work.batch))
        raise asked.no_solution(f"a context of {least}", at(float(least)))
    stops = asked.missed(at(value + 1.0))
    stops = stops or [f"{model.name}'s own maximum" if value == model.max_context else "memory"]
    return asked.largest("context", "tokens", (value, again), at(float(value)), stops)


def _under_load(  # noqa: PLR0913, PLR0917 - a question with its parts
    what: str, model: str, gpu: str, slo: tuple[Objective, ...], given: dict[str, Any], confidence: float
) -> Solution:
    cv = {"cv": given["burstiness"]} if "burstiness" in given else {}
    lengths, layout = part_of(given, ("isl", "osl", *options_of(Spreads))), part_of(given, DEPLOYMENT_KEYS)
    lengths |= {"image_tokens": resolve(model, gpu, read_deployment(layout), None).plan.image_tokens}
    probe = read_demand({"rate": 1.0, **lengths, **cv} if what == "rate" else {"users": 1, **lengths})
    refuse_undecoded(slo, probe.osl.mean)
    replica = lay_out(model, gpu, layout, probe, given.get("calibration"))
    demand = probe
    waits = any(each.metric != "tpot" for each in slo)
    if what == "users":  # those that run at once; more where an objective limits how long they wait
        demand = replace(probe, users=replica.room * (_WAITING if waits else 1))
    bearer = Bearer(replica)
    able = ability(bearer, demand, slo, NormalDist().inv_cdf(confidence))
    if able.load <= 0.0:
        felt = bearer.feel(demand, bearer.curve(demand).loads[0])
        words = [f"{each} is missed with {each.value(felt) * 1e3:.4g} ms" for each in slo if not each.met(felt)]
        sure = "" if words else f" with {confidence * 100:g} % confidence {' and '.join(able.binds)}"
        raise InfeasibleError(f"no solution: even without waiting{sure} {' and '.join(words) or 'is missed'}")
    at = bearer.feel(demand, able.load, exact=True).at(slo)
    binds = tuple(_PLACES if why == "users" and not waits else why for why in able.binds)
    stops = tuple("the users that were tried" if why == "users" else why for why in binds)
    number = f"{able.load:,.0f}" if demand.closed else f"{able.load:,.4g}"
    named = f"number of users is {number}" if demand.closed else f"rate is {number} {demand.unit}"
    answer = f"The largest {named}, limited by {limits_in_words(binds)}."
    if slo:
        sure = (
            "if times are as expected, with no margin"
            if confidence == 0.5
            else (f"with a probability of at least {confidence * 100:g} %")
        )
        answer += f" Objectives hold {sure}."
    asked = _Asked(replica.resolved, slo, {"model": model, "gpu": gpu, **given})
    return asked.solution(what, able.load, demand.unit, answer, stops, at)


def required_bandwidth(
    model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", subject_to: str = "tpot<20ms", **scenario: Any
) -> Solution:
    """The memory bandwidth at which a static batch meets its objectives, all else of the accelerator as it is.

    The calibrated shares of the bandwidth, the launches and the network stay, so that beyond some bandwidth nothing is
    gained. Times fall with the bandwidth, so bisection finds it.

    Raises InputError (and its kinds) for anything that makes no sense, InfeasibleError where no bandwidth suffices.

    >>> solved = required_bandwidth("llama-3-8b", subject_to="tpot<10ms", isl=2047, osl=2, batch=32, calibration="none")
    >>> solved.value > 2e12, solved.value < 3.35e12  # 23.6 GB in 10 ms
    (True, True)
    """
    given = read(StaticCase, scenario)
    asked = _Asked.static(model, gpu, parse_objectives(subject_to), given)
    whole = asked.resolved.plan
    work, now = read_workload(given, whole), float(whole.system.accelerator.memory_bandwidth)
    words = ", ".join(map(str, asked.slo))

    def at(bandwidth: float) -> _Asked:
        plan = asked.resolved.plan
        accelerator = replace(plan.system.accelerator, memory_bandwidth=bandwidth)
        faster = replace(plan, system=replace(plan.system, accelerator=accelerator))
        return replace(asked, resolved=replace(asked.resolved, predictor=replace(asked.predictor, plan=faster)))

    low, high = now / _FASTEST, now * _FASTEST
    if not bool(at(high).meets(work)):
        times = at(high).at(work)
        left = [
            f"{each.metric.upper()} stays at {times[f'{each.metric}_ms']:.4g} ms"
            for each in asked.slo
            if times[f"{each.metric}_ms"] > each.limit * 1e3
        ]
        raise InfeasibleError(
            f"no solution: with a thousand times the bandwidth {' and '.join(left)} (arithmetic, launches and "
            f"network), and {words} is asked"
        )
    _, high = _halved(lambda bandwidth: not at(bandwidth).meets(work), low, high, 1e-9)
    answer = (
        f"{format_rate(high, 'B/s')} of memory bandwidth meet {words}: {high / now:.3g} times the "
        f"{format_rate(now, 'B/s')} of {asked.resolved.plan.system.accelerator.name}."
    )
    return asked.solution("bandwidth", high, "B/s", answer, ("memory bandwidth",), at(high).at(work))


def fewest_gpus(
    model: str | PathLike[str], gpus: str | Sequence[str], slo: str | None = None, **scenario: Any
) -> PlanAnswer:
    """The plan of fewest accelerators, whatever they cost; arguments, answer and errors as of `plan`.

    Raises InputError for a `by` that asks for something else.
    """
    if scenario.get("by") not in (None, "gpus"):
        raise InputError(f"by {scenario['by']!r} has no part in the fewest GPUs; leave it out")
    return plan(model, gpus, slo, **scenario | {"by": "gpus"})


@dataclass(frozen=True)
class BreakEven(Plain):
    """The fewest accelerators of each kind for one traffic, and the price at which each is the cheapest.

    rows: gpu, gpus, usd_per_gpu_hour (None: unknown), break_even_usd: at which it costs what the cheapest other costs
    (None: no other has a price), why (of those that cannot).
    """

    version: str
    model: str
    answer: str
    rows: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]


def break_even_prices(
    model: str | PathLike[str], gpus: Sequence[str], slo: str | None = None, **scenario: Any
) -> BreakEven:
    """The hourly price at which each accelerator costs as much a token as the cheapest of the others.

    All serve the same traffic within the same objectives (`plan`, with the keywords it takes). So tokens cost the same
    where the fleets do: p·n = p'·n'.

    Raises InputError (and its kinds) for anything that makes no sense, InfeasibleError where fewer than two can serve.

    >>> found = break_even_prices(
    ...     "llama-3-8b", ["h100-sxm", "l40s"], "p95 tpot<50ms", rate=20, tp=[1], prices={"h100-sxm": 3.0},
    ...     disaggregated=False)
    >>> h100, l40s = found.rows
    >>> l40s["break_even_usd"] == 3.0 * h100["gpus"] / l40s["gpus"], h100["break_even_usd"]
    (True, None)
    """
    names = [gpus] if isinstance(gpus, str) else list(gpus)
    if len(names) < 2:
        raise InputError("a break-even price needs at least two gpus to compare")
    answer = plan(model, names, slo, **{**scenario, "mixed": False})
    rows: list[dict[str, Any]] = []
    for gpu in (load_accelerator(name).value.name for name in names):
        best = next((each for each in answer.candidates if each.gpu == gpu), None)
        why = next(
            (each.why for each in answer.refused if each.what.startswith(gpu)), "no deployment serves the traffic"
        )
        price = answer.prices.get(gpu)
        rows.append(
            {
                "gpu": gpu,
                "gpus": best and best.gpus,
                "usd_per_gpu_hour": price and price["usd_per_gpu_hour"],
                "usd_per_hour": best and best.cost.usd_per_hour,
                "why": None if best else why,
            }
        )
    able = [row for row in rows if row["gpus"]]
    if len(able) < 2:
        raise InfeasibleError("no solution: " + "; ".join(f"{r['gpu']}: {r['why']}" for r in rows if r["why"]))
    for row in rows:
        others = [o["usd_per_hour"] for o in able if o is not row and o["usd_per_hour"] is not None]
        row["break_even_usd"] = min(others) / row["gpus"] if others and row["gpus"] else None
    words = [
        f"{row['gpus']} x {row['gpu']} cost as much as the cheapest other at ${row['break_even_usd']:.2f} an hour each"
        + (f" (now ${row['usd_per_gpu_hour']:.2f})" if row["usd_per_gpu_hour"] is not None else "")
        for row in able
        if row["break_even_usd"] is not None
    ]
    told = "; ".join(words) + "." if words else "no price is known; give one with --price"
    return BreakEven(__version__, str(model), told, tuple(rows), answer.warnings)


def affordable(
    model: str | PathLike[str],
    gpus: str | Sequence[str],
    slo: str | Sequence[str] | None,
    budget: float,
    progress: Progress | None = None,
    **scenario: Any,
) -> Solution:
    """The largest rate that a fleet carries within its objectives for a budget.

    Args:
        model: a model's name or path.
        gpus: accelerators to choose from.
        slo: objectives as `plan` takes them.
        budget: USD a month of all accelerators, by the hour where a profile is given, else at one rate all the time.
        progress: as `plan` takes it.
        **scenario: as `plan` takes it, without a load; a profile gives the shape of the day, its mean is the answer.

    Returns:
        A `Solution` whose value is the mean rate [1/s]; `scenario` has the replicas at the peak.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; InfeasibleError where not one replica is paid for.

    >>> solved = affordable("llama-3-8b", "h100-sxm", "p95 tpot<50ms", 2 * 730 * 3.0, price=3.0, tp=[1])
    >>> solved.scenario["gpus"]  # two at 3 USD an hour
    2
    """
    for key in ("rate", "concurrency", "users", "trace", "growth", "months", "by", "autoscale", "tco"):
        if scenario.get(key) is not None:
            raise InputError(f"{key} has no part in a budget: the load is the answer")
    load = {} if scenario.get("profile") else {"rate": 1.0}
    question = read_question(model, gpus, slo or DEFAULT_SLO, {**scenario, **load, "one_kind": True}, progress)
    course = question.course or Course(flat(1.0))
    course = Course(course.profile.scaled(1.0 / course.profile.mean))
    if question.reserve.watts < math.inf:
        raise InputError("limit power has no part in a budget: the load is the answer")
    best = _best_paid(question, course, budget)
    if best is None:
        priced = any(each is not None for each in question.tariff.prices.values())
        why = f"{budget:,.0f} USD a month do not pay for one replica" if priced else "no price is known; give --price"
        raise InfeasibleError(f"no solution: {why}")
    at_scale = replace(question, demand=replace(question.demand, rate=best.rate))  # pools are chosen for a rate
    best = _best_paid(at_scale, course, budget, best) or best
    return _of_budget(question, Capacity(question, best.option), course, best.rate, budget)


class _Paid(NamedTuple):
    """An option that is paid for, its level of evidence, and the largest mean rate that it carries [1/s]."""

    level: int
    rate: float
    option: Option


def _best_paid(question: PlanQuestion, course: Course, budget: float, best: _Paid | None = None) -> _Paid | None:
    """The option of the best evidence that carries most, or `best`; None where nothing is paid for.

    One that cannot carry more than the best so far is asked for that rate alone.
    """
    priced = [each for each in search(question).options if question.tariff.per_hour(each) is not None]
    for level, option in sorted(
        ((EVIDENCE.index(worst_evidence(each)), each) for each in priced), key=lambda each: each[0]
    ):
        capacity, least = Capacity(question, option), 0.0
        if best is not None and level > best.level:
            break
        if best is not None and level == best.level:
            least = best.rate * (1.0 + _RATE)
        if rate := _paid_for(capacity, course, budget, least):
            best = _Paid(level, rate, option)
    return best


def monthly(capacity: Capacity, course: Course) -> float:
    """Cost of the fleet in the first month, by the hour [USD]."""
    return float(gpu_table(capacity, course)[0] @ course.month_hours) * (capacity.price or 0.0)


def _paid_for(capacity: Capacity, course: Course, budget: float, least: float = 0.0) -> float:
    """The largest mean rate that costs no more, from `least` on [1/s]; 0 where there is none.

    More requests never cost less.
    """

    def pays(rate: float) -> bool:
        within = capacity.fleet(rate * course.profile.peak).gpus <= capacity.limit
        return within and monthly(capacity, Course(course.profile.scaled(rate))) <= budget * (1.0 + _CLOSE)

    low = least or _LEAST
    if not pays(low):
        return 0.0
    one = monthly(capacity, Course(course.profile.scaled(1.0)))
    high = max(low * (1.0 + _ROUGH), budget / one if one else 0.0)
    while high < _MOST and pays(high):
        low, high = high, high * 2.0
    return _halved(pays, low, high, _RATE)[0]


def _of_budget(question: PlanQuestion, capacity: Capacity, course: Course, rate: float, budget: float) -> Solution:
    top = rate * course.profile.peak
    fleet, demand = capacity.fleet(top), capacity.demand(top)
    cost = monthly(capacity, Course(course.profile.scaled(rate)))
    at = fleet.feels(demand)(1.0).at(question.slo)
    pieces = [
        f"{part.replicas} {'' if part.role == 'serve' else part.role + ' '}x {deployment_name(part.replica.scenario)}"
        for part in fleet.parts
    ]
    peak = f", {top:.4g} at the peak of {course.profile.name}" if len(course.profile.rates) > 1 else ""
    binds = "limit" if capacity.fleet(top * (1.0 + _ROUGH)).gpus > capacity.limit else "budget"
    one = fleet.gpus == 1
    answer = (
        f"The largest rate is {rate:.4g} requests/s{peak}: {counted_chips(fleet.gpus, *fleet.names)} as "
        f"{' + '.join(pieces)} {'costs' if one else 'cost'} ${cost:,.0f} of the ${budget:,.0f} a month."
    )
    scenario = fleet.parts[-1].replica.scenario | {"replicas": fleet.replicas, "gpus": fleet.gpus}
    return Solution(
        __version__, "rate", rate, "requests/s", answer, load_model(question.model).value.name, fleet.names[0],
        tuple(map(str, question.slo)), (binds,), at, False, scenario, question.tariff.assumptions,
    )  # fmt: skip

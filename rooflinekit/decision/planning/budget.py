"""The largest load that a budget carries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from rooflinekit.decision.planning.capacity import Capacity, agreed_capacity, formula_capacity
from rooflinekit.decision.planning.fleet import Option
from rooflinekit.decision.planning.inverse import Solution
from rooflinekit.decision.planning.over_time import gpu_table
from rooflinekit.decision.planning.plan import DEFAULT_SLO, deployment_name, read_question
from rooflinekit.decision.planning.profile import Course, flat
from rooflinekit.decision.planning.search import PlanQuestion, Progress, search
from rooflinekit.model.types.errors import InfeasibleError, InputError
from rooflinekit.specs import load_model
from rooflinekit.specs.calibration.evidence import EVIDENCE, evidence
from rooflinekit.version import __version__

_LEAST, _MOST = 1e-6, 1e7  # requests/s between which the load is looked for
_CLOSE = 1e-7  # relative
_LOW = 0.5  # of what the formula allows, from which up the simulation is asked


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

    >>> solved = affordable("llama-3-8b", "h100-sxm", "p95 tpot<50ms", 2 * 730 * 3.0, price=3.0, tp=[1], confirm=0)
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
    found = _options(question, course, budget)
    if not found:
        priced = any(each is not None for each in question.tariff.prices.values())
        why = f"{budget:,.0f} USD a month do not pay for one replica" if priced else "no price is known; give --price"
        raise InfeasibleError(f"no solution: {why}")
    at_scale = replace(question, demand=replace(question.demand, rate=found[0][1]))  # pools are chosen for a rate
    _, rate, option = min([*found, *_options(at_scale, course, budget)], key=lambda each: (each[0], -each[1]))
    capacity = formula_capacity(question, option)
    if question.confirm:

        def rates(trial: Capacity) -> list[float]:
            paid = _largest(trial, course, budget)
            return [paid * each for each in course.profile.rates]

        capacity = agreed_capacity(question, option, (_LOW,) * len(option.parts), rates)
        rate = _largest(capacity, course, budget)
    return _solution(question, capacity, course, rate, budget)


def _options(question: PlanQuestion, course: Course, budget: float) -> list[tuple[int, float, Option]]:
    """Level of evidence, largest rate and option of all that is paid for, the best first."""
    found = []
    for option in search(question).options:
        if question.tariff.per_hour(option) is not None:
            level = max(EVIDENCE.index(evidence(part.replica.resolved.plan)) for part in option.parts)
            found.append((level, _largest(formula_capacity(question, option), course, budget), option))
    return sorted((each for each in found if each[1] > 0.0), key=lambda each: (each[0], -each[1]))


def monthly(capacity: Capacity, course: Course) -> float:
    """What the fleet costs in the first month, by the hour [USD]."""
    price = capacity.question.tariff.price(capacity.option.names[0]) or 0.0
    return float(gpu_table(capacity, course)[0] @ course.month_hours) * price


def _largest(capacity: Capacity, course: Course, budget: float) -> float:
    """The largest mean rate that costs no more [1/s]; 0 where nothing does. More requests never cost less."""
    limit = capacity.question.reserve.limit(capacity.option.names[0])

    def pays(rate: float) -> bool:
        within = capacity.gpus(rate * course.profile.peak) <= limit
        return within and monthly(capacity, Course(course.profile.scaled(rate))) <= budget * (1.0 + _CLOSE)

    low, high = _LEAST, _LEAST
    if not pays(low):
        return 0.0
    while high < _MOST and pays(high):
        low, high = high, high * 4.0
    while high - low > _CLOSE * high:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low


def _solution(question: PlanQuestion, capacity: Capacity, course: Course, rate: float, budget: float) -> Solution:
    top = rate * course.profile.peak
    fleet, demand = capacity.fleet(top), capacity.demand(top)
    cost = monthly(capacity, Course(course.profile.scaled(rate)))
    at = fleet.feels(demand)(1.0).at(question.slo)
    pieces = [f"{part.replicas} {'' if part.role == 'serve' else part.role + ' '}x "
              f"{deployment_name(part.replica.scenario)}" for part in fleet.parts]  # fmt: skip
    peak = f", {top:.4g} at the peak of {course.profile.name}" if len(course.profile.rates) > 1 else ""
    binds = "limit" if capacity.gpus(top * 1.0001) > question.reserve.limit(fleet.names[0]) else "budget"
    sure = "The simulation agrees." if question.confirm and min(capacity.used) > _LOW else "By the formula alone."
    answer = (
        f"The largest rate is {rate:.4g} requests/s{peak}: {fleet.gpus:,} GPUs as {' + '.join(pieces)} cost "
        f"${cost:,.0f} of the ${budget:,.0f} a month. {sure}"
    )
    scenario = fleet.parts[-1].replica.scenario | {"replicas": fleet.replicas, "gpus": fleet.gpus}
    return Solution(
        __version__, "rate", rate, "requests/s", answer, load_model(question.model).value.name, fleet.names[0],
        tuple(map(str, question.slo)), (binds,), at, False, scenario, question.tariff.assumptions,
    )  # fmt: skip

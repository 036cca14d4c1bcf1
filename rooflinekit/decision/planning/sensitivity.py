"""Dependence of a plan on each of its assumptions: the same deployments, sized again with one a fifth off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

from rooflinekit.decision.economics.price import MONTH_HOURS
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.fleet import Option, Part, lay_out, remembering
from rooflinekit.decision.planning.objective import Objective
from rooflinekit.decision.planning.search import Found, PlanQuestion, longest_admitted
from rooflinekit.load.lengths import stretched
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.types.answer import Plain
from rooflinekit.model.types.errors import DeploymentError, DoesNotFitError, WorkloadError

_FACTORS = (0.8, 1.2)  # of an assumption that is a fifth off, to either side
_SURE = 0.9  # of the interval of times: 10 % of deployments are as fast as its fast end, 10 % as slow as its slow end


@dataclass(frozen=True)
class Sized(Plain):
    """Size of a fleet, None where no number of these replicas carries the load, or no price is known."""

    gpus: int | None
    usd_per_month: float | None


@dataclass(frozen=True)
class Swing(Plain):
    """An assumption that is a fifth less, and a fifth more; of step times the fast and the slow end of the interval."""

    name: str
    less: Sized
    more: Sized

    @property
    def reach(self) -> float:
        """Between both ends: dollars a month, or else accelerators; infinite where one end cannot be had."""
        ends = [self.less, self.more]
        if any(end.gpus is None for end in ends):
            return math.inf
        usd = [end.usd_per_month for end in ends if end.usd_per_month is not None]
        numbers = usd if len(usd) == len(ends) else [float(end.gpus or 0) for end in ends]
        return max(numbers) - min(numbers)


class _Case(NamedTuple):
    """A case that a fleet is sized for; scenario: options of its replicas that are others."""

    demand: Demand
    slo: Sequence[Objective]
    deviations: float | None = None
    scenario: dict[str, Any] | None = None


def swings(question: PlanQuestion, option: Option) -> list[Swing]:
    """Each assumption of the plan to either side, the one that moves the bill most first.

    The deployments stay as they are, with no other settings, so that the best fleet of the other case may be cheaper.

    >>> from rooflinekit.decision.planning.plan import plan
    >>> found = plan("llama-3-8b", rate=60, isl=1000, osl=100, tp=[1], aggregated_only=True, sensitivity=True)
    >>> rate = next(each for each in found.sensitivity if each.name == "rate")
    >>> rate.less.gpus <= found.best.gpus <= rate.more.gpus
    True
    """
    cases = dict(_cases(question, option))
    found = []
    for place, (name, case) in enumerate(cases.items()):
        question.progress("size the fleet with assumptions a fifth off", place, len(cases))
        found.append(Swing(name, *(_sized(question, option, case(factor)) for factor in _FACTORS)))
    if (hour := question.tariff.per_hour(option)) is not None:  # the fleet stays, replayed or not
        found.append(Swing("price of a GPU", *(Sized(option.gpus, hour * each * MONTH_HOURS) for each in _FACTORS)))
    return sorted(found, key=lambda swing: -swing.reach)


def _cases(question: PlanQuestion, option: Option) -> Iterator[tuple[str, Callable[[float], _Case]]]:
    """The question with each assumption times a factor. A trace and sessions bring their own lengths."""
    demand, slo = question.demand, question.slo

    def load(factor: float) -> _Case:
        more = factor * demand.mean_load
        return _Case(replace(demand, users=more) if demand.closed else replace(demand, rate=more), slo)

    def prompts(factor: float) -> _Case:
        return _Case(replace(demand, isl=stretched(demand.isl, factor)), slo, scenario={})

    def answers(factor: float) -> _Case:
        return _Case(replace(demand, osl=stretched(demand.osl, factor)), slo, scenario={})

    def objective(which: Objective, factor: float) -> _Case:
        return _Case(demand, [replace(each, limit=factor * each.limit) if each is which else each for each in slo])

    def times(factor: float) -> _Case:
        return _Case(demand, slo, math.copysign(NormalDist().inv_cdf(_SURE), factor - 1.0))

    def acceptance(factor: float) -> _Case:
        drafts = [part.replica.predictor for part in option.parts]
        rates = next(each.draft.choice.acceptance for each in drafts if isinstance(each, SpeculativePredictor))
        return _Case(demand, slo, scenario={"acceptance": [min(rate * factor, 1.0) for rate in rates]})

    yield "users" if demand.closed else "rate", load
    if demand.trace is None and demand.prefixes is None:
        yield "prompt length", prompts
        yield "output length", answers
    yield "step times, 80 % interval", times
    for each in slo:
        yield each.what, partial(objective, each)
    if any("draft" in part.replica.scenario for part in option.parts):
        yield "acceptance of drafts", acceptance


def _sized(question: PlanQuestion, option: Option, case: _Case) -> Sized:
    try:
        if case.scenario is not None:
            option = replace(option, parts=tuple(_laid_out(question, part, case) for part in option.parts))
        sized = option.sized(case.demand, case.slo, question.reserve, case.deviations)
    except (DoesNotFitError, DeploymentError, WorkloadError):
        return Sized(None, None)
    if not all(part.working for part in sized.parts):
        return Sized(None, None)
    hour = question.tariff.per_hour(sized)
    return Sized(sized.gpus, None if hour is None else hour * MONTH_HOURS)


def _laid_out(question: PlanQuestion, part: Part, case: _Case) -> Part:
    """The deployment with room for the longest request of the case. Raises what `lay_out` does."""
    old, demand = part.replica, case.demand
    scenario = {key: each for key, each in old.scenario.items() if key not in ("model", "gpu", "cached")}
    if "max_model_len" in scenario:
        scenario["max_model_len"] = longest_admitted(old.predictor.plan.model, demand, Found())
    new = lay_out(question.model, old.scenario["gpu"], scenario | (case.scenario or {}), demand, question.calibration)
    if old.kept is not None:
        new = remembering(new, demand, old.kept.tiers, part.working)
    return replace(part, bearer=replace(part.bearer, replica=new))

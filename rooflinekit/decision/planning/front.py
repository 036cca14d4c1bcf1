"""The front door of planning: traffic, objectives and prices in, `PlanAnswer` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Unpack

from rooflinekit.decision.planning.answer import Candidate, Fleet, PlanAnswer
from rooflinekit.decision.planning.confirm import Played
from rooflinekit.decision.planning.cost import Tariff, cold_start_s, cost_of
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.explain import answer_in_words, lost_in_words
from rooflinekit.decision.planning.option import Option, Part
from rooflinekit.decision.planning.pareto import points
from rooflinekit.decision.planning.pools import DecodePool, PrefillPool
from rooflinekit.decision.planning.ranking import ranked, warnings
from rooflinekit.decision.planning.reading import read_question
from rooflinekit.decision.planning.search import Found, Question, search
from rooflinekit.estimation.options import keywords
from rooflinekit.estimation.scenario import Plan
from rooflinekit.model.types.errors import DoesNotFitError, InfeasibleError
from rooflinekit.specs import load_model
from rooflinekit.version import __version__

__all__ = ["DEFAULT_SLO", "plan"]

_SHARES = (0.5, 0.9, 0.95, 0.99)
DEFAULT_SLO = "p95 ttft<1s, p95 tpot<50ms"


@keywords(Plan)
def plan(
    model: str | PathLike[str],
    gpus: str | Sequence[str] = ("h100-sxm",),
    slo: str | None = None,
    **scenario: Unpack[Plan],
) -> PlanAnswer:
    """The cheapest deployments that carry a traffic within its objectives.

    Args:
        model: a model's name or path.
        gpus: accelerators to choose from, names or paths, or one of them.
        slo: objectives as `parse_objectives` reads them, such as "p95 ttft<1s, p95 tpot<40ms".
        **scenario: the options of `Plan` in docs/cli.md: traffic, search, money, reserves; None is the default.

    Returns:
        A `PlanAnswer`: `answer` in words, `best`, `candidates` by cost, `pareto`, `refused`.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if no deployment holds the model;
            InfeasibleError if none meets the objectives: it says how near the best comes.

    >>> answer = plan("llama-3-8b", rate=20, isl=1000, osl=100, tp=[1], disaggregated=False, confirm=0)
    >>> answer.best.gpus == answer.best.replicas, answer.best.fleets[0].scenario["tp"]
    (True, 1)
    """
    question = read_question(model, gpus, slo or DEFAULT_SLO, scenario)
    found = search(question)
    if not found.options:
        raise _nothing(question, found)
    order = ranked(question, found)
    if not order:
        raise _nothing(question, found)
    candidates = [_candidate(question, *entry) for entry in order]
    best = candidates[0]
    lost = [replace(each, lost=lost_in_words(each, best, question.demand)) for each in candidates[1:]]
    return PlanAnswer(
        version=__version__,
        model=load_model(question.model).value.name,
        traffic=question.demand.to_dict(),
        question=str(question.demand),
        slo=tuple(map(str, question.slo)),
        answer=answer_in_words(best, question.demand, question.reserve),
        candidates=(best, *lost),
        pareto=tuple(points([able.replica for able in found.able], question.demand, question.tariff)),
        refused=tuple(found.refused),
        tried=found.tried,
        prices=_prices(question.tariff),
        warnings=tuple(dict.fromkeys(warnings(question, found, order))),
    )


def _nothing(question: Question, found: Found) -> DoesNotFitError | InfeasibleError:
    """Why there is no plan, and how near the best comes."""
    slo = ", ".join(map(str, question.slo))
    if found.near:
        nearest_one = min(found.near)[1]
        return InfeasibleError(f"no deployment meets {slo}; the nearest is {nearest_one}")
    if found.able:
        limits = ", ".join(f"{most} {gpu}" for gpu, most in question.reserve.limits)
        return InfeasibleError(
            f"{limits} do not carry {question.demand}; {found.refused[-1].what} {found.refused[-1].why}"
        )
    tried = "; ".join(f"{each.what}: {each.why}" for each in found.refused[:3])
    return DoesNotFitError(f"no deployment holds {question.model}; {tried or 'nothing was left to try'}")


def _candidate(question: Question, option: Option, played: Played | None, formula: int) -> Candidate:
    demand = question.demand
    return Candidate(
        kind=option.kind,
        fleets=tuple(_fleet(question, part) for part in option.parts),
        cost=cost_of(option, demand, question.tariff),
        predicted=option.feel(demand).table(_SHARES),
        interval=_interval(option, demand),
        simulated=None if played is None else played.felt.table(_SHARES),
        simulated_requests=0 if played is None else played.requests,
        confirmed=None if played is None else played.confirmed,
        formula_gpus=formula,
    )


def _fleet(question: Question, part: Part) -> Fleet:
    demand, load = question.demand, part.load(question.demand)
    knee = _knee(part, demand)
    return Fleet(
        role=part.role,
        scenario=part.replica.scenario,
        gpus_per_replica=part.replica.gpus,
        replicas=part.replicas,
        spare=part.spare,
        share=part.share,
        load=load,
        capacity=part.ability.load,
        knee=knee,
        utilisation=None if knee is None else load / knee,
        headroom=1.0 - load / part.ability.load,
        binds=part.ability.binds,
        cold_start_s=cold_start_s(part.replica, question.tariff),
    )


def _knee(part: Part, demand: Demand) -> float | None:
    if demand.closed:
        return None
    if part.role == "prefill":
        return PrefillPool.of(part.replica, demand).knee(demand)
    if part.role == "decode":
        return DecodePool(part.replica, 0.0).knee(demand)
    return float(part.replica.answer(demand, 1e-9).loaded.knee)


def _interval(option: Option, demand: Demand) -> dict[str, list[float]] | None:
    """90 % of the means, of one deployment that serves whole requests."""
    part = option.parts[0]
    if option.kind != "aggregated" or part.replica.resolved.plan.calibration is None:
        return None
    loaded = part.replica.answer(part.seen(demand), part.load(demand)).loaded
    times = {"ttft_ms": loaded.ttft, "tpot_ms": loaded.tpot}
    return {key: [float(time.low) * 1e3, float(time.high) * 1e3] for key, time in times.items()}


def _prices(tariff: Tariff) -> dict[str, dict[str, Any] | None]:
    return {
        gpu: None if price is None else {
            "usd_per_gpu_hour": float(price.usd_per_gpu_hour), "source": price.source, "low": price.low,
            "high": price.high,
        }
        for gpu, price in tariff.prices.items()
    }  # fmt: skip

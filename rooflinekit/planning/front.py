"""The front door of planning: traffic, objectives and prices in, `PlanAnswer` out."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from os import PathLike
from typing import Any

from rooflinekit import __version__
from rooflinekit.planning.answer import Candidate, Fleet, PlanAnswer
from rooflinekit.planning.confirm import Played, play
from rooflinekit.planning.cost import Tariff, cold_start_s, cost_of, read_tariff
from rooflinekit.planning.demand import Demand, read_demand
from rooflinekit.planning.explain import answer_in_words, lost_in_words
from rooflinekit.planning.objective import parse_objectives
from rooflinekit.planning.option import Option, Part, Reserve
from rooflinekit.planning.pareto import points
from rooflinekit.planning.pools import DecodePool, PrefillPool
from rooflinekit.planning.search import Found, Question, Refusal, search
from rooflinekit.planning.space import Space
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.types.batch import whole_number
from rooflinekit.types.dtype import parse_dtype
from rooflinekit.types.errors import DoesNotFitError, InfeasibleError, InputError, WorkloadError, nearest

__all__ = ["DEFAULT_SLO", "DEMAND_KEYS", "PLAN_KEYS", "plan", "read_question"]

DEMAND_KEYS = ("rate", "users", "trace", "peak", "isl", "osl", "cv", "clean")
_SPACE_LISTS = ("engines", "weights", "kv", "tp", "pp", "ep", "dp", "token_budgets", "max_num_seqs")
_SPACE_SINGLE = ("max_gpus", "memory_fraction", "activations", "disaggregated", "mixed")
_MONEY = ("prices", "pue", "load_gbps")
_RESERVE = ("headroom", "redundancy", "limits")
PLAN_KEYS = (*DEMAND_KEYS, *_SPACE_LISTS, *_SPACE_SINGLE, *_MONEY, *_RESERVE, "calibration", "confirm", "seed", "by")
"""Keywords of `plan` beside model, gpus and slo."""

_SHARES = (0.5, 0.9, 0.95, 0.99)
_RUNS = 12  # simulations beyond those of the candidates that are asked for
DEFAULT_SLO = "p95 ttft<1s, p95 tpot<50ms"


def plan(
    model: str | PathLike[str], gpus: str | Sequence[str] = ("h100-sxm",), slo: str = DEFAULT_SLO, **scenario: Any
) -> PlanAnswer:
    """The cheapest deployments that carry a traffic within its objectives.

    Args:
        model: a model's name or path.
        gpus: accelerators to choose from, names or paths, or one of them.
        slo: objectives as `parse_objectives` reads them, such as "p95 ttft<1s, p95 tpot<40ms".
        **scenario: the traffic: rate [requests/s] or users, or trace (a file), isl and osl (tokens, or a distribution
            such as "lognormal:mean=900,cv=1"), peak (busiest hour over the mean), cv (of the gaps between arrivals);
            what is searched: engines, weights, kv, tp, pp, ep, dp, token_budgets, max_num_seqs (lists; None: all that
            are valid, formats only the checkpoint's), max_gpus of one replica, disaggregated, mixed (False leaves them
            out), memory_fraction, activations; money: prices {gpu: USD an hour}, pue, load_gbps [GB/s]; reserve:
            headroom (share of what a replica bears), redundancy (replicas that may fail), limits {gpu: how many there
            are}; calibration; confirm (candidates that are simulated, 3), seed; by: what is to be least, cost or gpus.

    Returns:
        A `PlanAnswer`: `answer` in words, `best`, `candidates` by cost, `pareto`, `refused`.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if no deployment holds the model;
            InfeasibleError if none meets the objectives: it says how near the best comes.

    >>> answer = plan("llama-3-8b", rate=20, isl=1000, osl=100, tp=[1], disaggregated=False, confirm=0)
    >>> answer.best.gpus == answer.best.replicas, answer.best.fleets[0].scenario["tp"]
    (True, 1)
    """
    question = read_question(model, gpus, slo, scenario)
    confirm = whole_number(scenario.get("confirm", 3), "confirm", 0)
    seed = whole_number(scenario.get("seed", 0), "seed", 0)
    question = replace(question, confirm=confirm)
    found = search(question)
    if not found.options:
        raise _nothing(question, found)
    ranked = _ranked(question, found, seed)
    if not ranked:
        raise _nothing(question, found)
    candidates = [_candidate(question, *entry) for entry in ranked]
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
        warnings=tuple(dict.fromkeys(_warnings(question, found, ranked))),
    )


def read_question(
    model: str | PathLike[str], gpus: str | Sequence[str], slo: str, scenario: Mapping[str, Any]
) -> Question:
    """Read what a plan is asked.

    Raises InputError (and its kinds) for anything that makes no sense.
    """
    for key in scenario:
        if key not in PLAN_KEYS:
            raise InputError(f"unknown option {key!r}; nearest: {', '.join(nearest(key, PLAN_KEYS) or PLAN_KEYS)}")
    given = {key: value for key, value in scenario.items() if value is not None}
    names = tuple(dict.fromkeys(_gpu_names((gpus,) if isinstance(gpus, str) else tuple(gpus))))
    load_model(model)
    return Question(
        model=str(model),
        demand=read_demand({key: given[key] for key in DEMAND_KEYS if key in given}),
        slo=parse_objectives(slo),
        space=_space(names, given),
        reserve=_reserve(names, given),
        tariff=_tariff(names, given),
        calibration=given.get("calibration"),
    )


def _tariff(gpus: tuple[str, ...], given: dict[str, Any]) -> Tariff:
    by = given.get("by", "cost")
    if by not in ("cost", "gpus"):
        raise InputError(f"by must be cost or gpus, not {by!r}")
    tariff = read_tariff(gpus, given.get("prices", {}), given.get("pue", 1.0), given.get("load_gbps"))
    return replace(tariff, by_gpus=by == "gpus")


def _gpu_names(gpus: tuple[str, ...]) -> list[str]:
    """Names as given; those of one accelerator twice are refused."""
    seen: dict[str, str] = {}
    for gpu in gpus:
        name = load_accelerator(gpu).value.name
        if name in seen:
            raise InputError(f"{gpu} and {seen[name]} are the same accelerator; name it once")
        seen[name] = gpu
    return list(gpus)


def _space(gpus: tuple[str, ...], given: dict[str, Any]) -> Space:
    lists: dict[str, Any] = {key: _listed(key, given[key]) for key in _SPACE_LISTS if key in given}
    single: dict[str, Any] = {key: given[key] for key in _SPACE_SINGLE if key in given}
    if "max_gpus" in single:
        single["max_gpus"] = whole_number(single["max_gpus"], "max_gpus")
    return Space(gpus, **lists, **single)


def _listed(key: str, value: Any) -> tuple[Any, ...]:
    """One or several; counts are checked."""
    several = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not several:
        raise WorkloadError(f"{key} is an empty list; leave it out to search all")
    if key in ("weights", "kv"):
        for each in several:
            parse_dtype(each)  # a format that nobody knows is no candidate's fault
    counted = key not in ("engines", "weights", "kv")
    return tuple(dict.fromkeys(whole_number(each, key) if counted else str(each) for each in several))


def _reserve(gpus: tuple[str, ...], given: dict[str, Any]) -> Reserve:
    limits = []
    for name, most in dict(given.get("limits", {})).items():
        accelerator = load_accelerator(name).value.name
        if accelerator not in {load_accelerator(gpu).value.name for gpu in gpus}:
            raise InputError(f"a limit is given for {accelerator}, which is not among the gpus: {', '.join(gpus)}")
        limits.append((accelerator, whole_number(most, f"limit of {name}", 0)))
    headroom = given.get("headroom", 0.0)
    if isinstance(headroom, (bool, str)):
        raise WorkloadError(f"headroom is a share from 0 to below 1, not {headroom!r}")
    return Reserve(float(headroom), whole_number(given.get("redundancy", 0), "redundancy", 0), tuple(limits))


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


def _ranked(question: Question, found: Found, seed: int) -> list[tuple[Option, Played | None, int]]:
    """Options by cost, those confirmed first; a refuted one goes on with one more replica until it is confirmed.

    The cheapest is simulated until as many as asked are confirmed, so none that is left could be cheaper than they.
    """
    tie, rank, confirm = count(), question.tariff.rank, question.confirm
    heap = [(rank(option), next(tie), option, option.gpus) for option in found.options]
    heapq.heapify(heap)
    kept: list[tuple[Option, Played | None, int]] = []
    runs = confirm + _RUNS if confirm else 0
    while heap and len(kept) < confirm and runs:
        _, _, option, formula = heapq.heappop(heap)
        runs -= 1
        played = play(option, question.demand, question.slo, seed)
        if played.confirmed:
            kept.append((option, played, formula))
            continue
        more = option.grown(max(1, option.parts[0].working // 20))
        if all(part.gpus <= question.reserve.limit(part.replica.gpu) for part in more.parts):
            heapq.heappush(heap, (rank(more), next(tie), more, formula))
        else:
            name = ", ".join(f"{part.replicas} x {part.replica.gpu}" for part in option.parts)
            found.refused.append(Refusal(name, "the simulation refutes it, and more are not to be had"))
    rest = [(option, None, formula) for _, _, option, formula in sorted(heap)]
    return [*kept, *rest]


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
        return PrefillPool(part.replica).knee(demand)
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


def _warnings(question: Question, found: Found, ranked: list[tuple[Option, Played | None, int]]) -> list[str]:
    """What a planner should hear beside the numbers."""
    notes = list(found.notes)
    unknown = [gpu for gpu, price in question.tariff.prices.items() if price is None]
    if unknown:
        notes.append(f"no price is known for {', '.join(unknown)}; give --price {unknown[0]}=USD to compare by cost")
    notes += question.tariff.assumptions
    if not question.demand.closed:
        notes.append("requests reach replicas at random; a balancer that evens them out does better")
    best, played, _ = ranked[0]
    if played is None and question.confirm:
        notes.append("no candidate was confirmed: each that was simulated missed an objective, with replicas added too")
    if played is not None and played.felt.stable:
        notes += _disagreements(question, best, played)
    notes += _formats(best)
    notes += [note for part in best.parts for note in part.replica.resolved.warnings]
    return notes


def _formats(option: Option) -> list[str]:
    """Formats that were asked for change what the model says."""
    scenarios = [part.replica.scenario for part in option.parts]
    told = {(key, each[key]): None for each in scenarios for key in ("weights", "kv", "activations") if key in each}
    return [f"{key} {value} as asked: what that does to the quality of answers is not weighed" for key, value in told]


def _disagreements(question: Question, option: Option, played: Played) -> list[str]:
    """Objectives of which formula and simulation say things more than a fifth apart."""
    felt, found = option.feel(question.demand), []
    for each in question.slo:
        said, seen = each.value(felt), each.value(played.felt)
        if abs(seen / said - 1.0) > _APART:
            words = f"{each.statistic} {each.metric.upper()}"
            found.append(f"{words}: the formula says {said * 1e3:.3g} ms, the simulation {seen * 1e3:.3g} ms")
    return found


_APART = 0.2

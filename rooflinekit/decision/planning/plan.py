"""The front door of planning: traffic, objectives and prices in, `PlanAnswer` out, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Unpack

from rooflinekit.decision.planning.confirm import Ranked, ranked, warnings
from rooflinekit.decision.planning.cost import FleetCost, Point, Tariff, cold_start_s, cost_of, points, read_tariff
from rooflinekit.decision.planning.demand import Demand, read_demand
from rooflinekit.decision.planning.fleet import DecodePool, Option, Part, PrefillPool, Reserve
from rooflinekit.decision.planning.objective import parse_objectives, refuse_undecoded
from rooflinekit.decision.planning.search import Found, PlanQuestion, Refusal, Space, search
from rooflinekit.estimation.options import keywords, read
from rooflinekit.estimation.scenario import Plan
from rooflinekit.model.types.answer import Answer
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.errors import DoesNotFitError, InfeasibleError, InputError, WorkloadError
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.version import __version__

__all__ = ["DEFAULT_SLO", "Candidate", "Fleet", "PlanAnswer", "plan", "read_question", "split_name"]

_CLOSE = 0.005  # relative: costs this near are equal
_FORMATS = ("weights", "kv", "activations")
_SPACE_LISTS = ("engines", "weights", "kv", "tp", "pp", "ep", "dp", "token_budgets", "max_num_seqs")
_SPACE_SINGLE = ("max_gpus", "memory_fraction", "activations", "disaggregated", "mixed")
_NAMES = {
    "engine": "engines", "token_budget": "token_budgets", "concurrency": "users", "burstiness": "cv", "price": "prices",
    "limit": "limits",
}  # fmt: skip
"""Options whose parts have names of their own here: there may be several."""

_SHARES = (0.5, 0.9, 0.95, 0.99)
DEFAULT_SLO = "p95 ttft<1s, p95 tpot<50ms"


@dataclass(frozen=True)
class Fleet:
    """Replicas of one deployment. Loads are requests/s or users of one replica.

    scenario: keywords of `rk.estimate`; replicas: all of them, `spare` of which may fail; load: at the peak with the
    spares down; capacity: within the objectives; knee: at any latency (None in a closed loop); utilisation: load over
    knee; cold_start_s: weights at the stated rate.
    """

    role: str
    scenario: dict[str, Any]
    gpus_per_replica: int
    replicas: int
    spare: int
    share: float
    load: float
    capacity: float
    knee: float | None
    utilisation: float | None
    headroom: float
    binds: tuple[str, ...]
    cold_start_s: float

    @property
    def gpus(self) -> int:
        """Accelerators."""
        return self.replicas * self.gpus_per_replica

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {key: getattr(self, key) for key in self.__dataclass_fields__} | {
            "binds": list(self.binds), "gpus": self.gpus
        }  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """One way to serve the traffic.

    predicted, simulated: mean and percentiles of ttft_ms, tpot_ms and e2el_ms at the peak with the spares down;
    formula_gpus: what the formula alone asked for, before the simulation; lost: why it is not the best.
    """

    kind: str
    fleets: tuple[Fleet, ...]
    cost: FleetCost
    predicted: dict[str, dict[str, float | None]]
    interval: dict[str, list[float]] | None
    simulated: dict[str, dict[str, float | None]] | None
    simulated_requests: int
    confirmed: bool | None
    formula_gpus: int
    lost: str | None = None

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return sum(fleet.gpus for fleet in self.fleets)

    @property
    def replicas(self) -> int:
        """Replicas in all."""
        return sum(fleet.replicas for fleet in self.fleets)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: `scenario` and `replicas`, or `prefill` and `decode`, or `fleet`."""
        cost = self.cost
        row: dict[str, Any] = {"kind": self.kind, "gpus": self.gpus, "replicas": self.replicas}
        if self.kind == "aggregated":
            row |= self.fleets[0].to_dict()
        elif self.kind == "disaggregated":
            row |= {fleet.role: fleet.to_dict() for fleet in self.fleets}
        else:
            row |= {"fleet": [fleet.to_dict() for fleet in self.fleets]}
        million = {
            "cached_input": cost.cached_input_usd, "input": cost.input_usd, "output": cost.output_usd,
            "all": cost.million_tokens_usd,
        }  # fmt: skip
        return row | {
            "usd_per_hour": cost.usd_per_hour, "usd_per_million_tokens": million, "watts": cost.watts,
            "joules_per_output_token": cost.joules_per_output_token, "output_tok_s": cost.output_tok_s,
            "predicted": self.predicted, "interval": self.interval, "simulated": self.simulated,
            "simulated_requests": self.simulated_requests, "confirmed": self.confirmed,
            "formula_gpus": self.formula_gpus, "lost": self.lost,
        }  # fmt: skip


@dataclass(frozen=True)
class PlanAnswer(Answer):
    """A plan: the answer in words, the best candidate, all others by cost, the fronts, and what was refused."""

    version: str
    model: str
    traffic: dict[str, Any]
    question: str
    slo: tuple[str, ...]
    answer: str
    candidates: tuple[Candidate, ...]
    pareto: tuple[Point, ...]
    refused: tuple[Refusal, ...]
    tried: int
    prices: dict[str, dict[str, Any] | None]
    warnings: tuple[str, ...]

    @property
    def best(self) -> Candidate:
        """The cheapest that was not refuted."""
        return self.candidates[0]

    def to_dict(self) -> dict[str, Any]:
        """Nested plain data for JSON."""
        return {
            "version": self.version, "model": self.model, "traffic": self.traffic, "slo": list(self.slo),
            "answer": self.answer, "best": self.best.to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "pareto": [point.to_dict() for point in self.pareto],
            "refused": [refusal.to_dict() for refusal in self.refused],
            "tried": self.tried, "prices": self.prices, "warnings": list(self.warnings),
        }  # fmt: skip


def split_name(scenario: dict[str, Any]) -> str:
    """`TP8`, or `TP1 DP8 EP8`.

    >>> split_name({"tp": 4, "ep": 4}), split_name({})
    ('TP4 EP4', 'TP1')
    """
    degrees = [(key, scenario.get(key, 1)) for key in ("tp", "pp", "dp", "ep")]
    return " ".join(f"{key.upper()}{n}" for key, n in degrees if n > 1 or key == "tp")


def deployment_name(scenario: dict[str, Any]) -> str:
    """Split, and formats that were asked for.

    >>> deployment_name({"tp": 2, "weights": "fp8"})
    'TP2 weights fp8'
    """
    return " ".join([split_name(scenario), *(f"{key} {scenario[key]}" for key in _FORMATS if key in scenario)])


def answer_in_words(best: Candidate, demand: Demand, reserve: Reserve) -> str:
    """The answer as a sentence or four, with the arithmetic that leads to it."""
    pieces = []
    for fleet in best.fleets:
        role = "" if fleet.role == "serve" else f"{fleet.role} "
        number = f"{fleet.replicas} {role}replica{'s' if fleet.replicas > 1 else ''}"
        pieces.append(f"{number} x {deployment_name(fleet.scenario)} on {fleet.scenario['gpu']}")
    cost, engine = best.cost, best.fleets[0].scenario["engine"]
    money = "no price is known, so plans are compared by GPUs"
    if cost.usd_per_hour is not None:
        million = _three(cost.million_tokens_usd or 0.0)
        money = f"${cost.usd_per_hour:,.2f} an hour, ${million} a million tokens in and out"
    parts = [f"{best.gpus} GPU{'s' if best.gpus > 1 else ''} = {' + '.join(pieces)}, {engine}: {money}."]
    parts += [_sizing(fleet, demand, reserve) for fleet in best.fleets]
    if best.formula_gpus != best.gpus:
        parts.append(
            f"The formula alone asks for {best.formula_gpus} GPUs; simulating {best.simulated_requests:,} requests "
            f"refutes that and confirms {best.gpus}."
        )
    elif best.confirmed:
        parts.append(f"Simulating {best.simulated_requests:,} requests confirms every objective.")
    else:
        parts.append("No simulation has confirmed it.")
    return " ".join(parts)


def _sizing(fleet: Fleet, demand: Demand, reserve: Reserve) -> str:
    """How many replicas, from what each bears."""
    working, peak, unit = fleet.replicas - fleet.spare, demand.peak_load * fleet.share, demand.unit
    role = "replica" if fleet.role == "serve" else f"{fleet.role} replica"
    if fleet.binds == ("users",):
        return f"One {role} bears all {peak:,g} users."
    limit = "the knee" if fleet.binds == ("knee",) else f"{' and '.join(fleet.binds)} fails"
    each, divisor = fleet.capacity * (1.0 - reserve.headroom), _three(fleet.capacity)
    if reserve.headroom:
        divisor = f"({divisor} x {1.0 - reserve.headroom:g})"
    needed = max(math.ceil(peak / each - 1e-6), 1)
    carry = "carries" if needed == 1 else "carry"
    sentence = (
        f"One {role} bears {_three(fleet.capacity)} {unit} before {limit}; "
        f"{_three(peak)} / {divisor} = {_three(peak / each)}, so {needed} {carry} the "
        f"{'peak' if demand.peak > 1 else 'load'}"
    )
    sentence += f", {working} with what the simulation adds" if working > needed else ""
    return sentence + (f", and {fleet.spare} more may fail." if fleet.spare else ".")


def lost_in_words(other: Candidate, best: Candidate, demand: Demand) -> str:
    """Why a candidate is not the best: which of price, use of a GPU and rounding makes it dearer."""
    mine, theirs = other.cost.usd_per_hour, best.cost.usd_per_hour
    priced = mine is not None and theirs is not None
    ratio = mine / theirs if mine is not None and theirs is not None else other.gpus / best.gpus
    if abs(ratio - 1.0) < _CLOSE:
        return "costs the same; more is left to spare in the best" if priced else "as many GPUs; less to spare"
    head = f"{ratio - 1.0:.0%} {'dearer' if priced else 'more GPUs'}" if ratio > 1 else "cheaper, but not confirmed"
    binds = dict.fromkeys(what for fleet in other.fleets for what in fleet.binds)
    use, its = demand.peak_load / best.gpus, demand.peak_load / other.gpus
    reasons = [f"a GPU carries {_three(its)} against {_three(use)} {demand.unit} ({', '.join(binds)} binds)"]
    if priced and mine is not None and theirs is not None:
        hours = [cost / candidate.gpus for cost, candidate in ((mine, other), (theirs, best))]
        if abs(hours[0] / hours[1] - 1.0) > _CLOSE:
            reasons.append(f"for ${hours[0]:.2f} against ${hours[1]:.2f} an hour")
    idle = min(fleet.headroom for fleet in other.fleets)
    if idle > 0.1:
        reasons.append(f"{idle:.0%} of what it bears stays unused")
    return f"{head}: {', '.join(reasons)}"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def read_question(
    model: str | PathLike[str], gpus: str | Sequence[str], slo: str, scenario: Mapping[str, Any]
) -> PlanQuestion:
    """Read what a plan is asked.

    Raises InputError (and its kinds) for anything that makes no sense.
    """
    given = {_NAMES.get(key, key): value for key, value in read(Plan, scenario).items()}
    if given.pop("aggregated_only", False):
        given["disaggregated"] = False
    if given.pop("one_kind", False):
        given["mixed"] = False
    names = tuple(dict.fromkeys(_gpu_names((gpus,) if isinstance(gpus, str) else tuple(gpus))))
    load_model(model)
    demand, objectives = read_demand(given), parse_objectives(slo)
    refuse_undecoded(objectives, demand.osl.mean)
    return PlanQuestion(
        model=str(model),
        demand=demand,
        slo=objectives,
        space=_space(names, given),
        reserve=_reserve(names, given),
        tariff=_tariff(names, given),
        calibration=given.get("calibration"),
        confirm=given.get("confirm", 3),
        seed=given.get("seed", 0),
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
    return Reserve(float(headroom), given.get("redundancy", 0), tuple(limits))


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
    order = ranked(question, found)
    if not order:
        raise _nothing(question, found)
    candidates = [_candidate(question, entry) for entry in order]
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
        prices={
            gpu: None
            if price is None
            else {
                "usd_per_gpu_hour": float(price.usd_per_gpu_hour),
                "source": price.source,
                "low": price.low,
                "high": price.high,
            }
            for gpu, price in question.tariff.prices.items()
        },
        warnings=tuple(dict.fromkeys(warnings(question, found, order))),
    )


def _nothing(question: PlanQuestion, found: Found) -> DoesNotFitError | InfeasibleError:
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


def _candidate(question: PlanQuestion, entry: Ranked) -> Candidate:
    demand, option, played = question.demand, entry.option, entry.played
    return Candidate(
        kind=option.kind,
        fleets=tuple(_fleet(question, part) for part in option.parts),
        cost=cost_of(option, demand, question.tariff),
        predicted=option.feel(demand).table(_SHARES),
        interval=_interval(option, demand),
        simulated=None if played is None else played.felt.table(_SHARES),
        simulated_requests=0 if played is None else played.requests,
        confirmed=None if played is None else played.confirmed,
        formula_gpus=entry.formula_gpus,
    )


def _fleet(question: PlanQuestion, part: Part) -> Fleet:
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

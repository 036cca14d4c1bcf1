"""Fleets in order of cost: those that are known well enough first, each with what it takes at expected times."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

from rooflinekit.decision.economics.price import MONTH_HOURS
from rooflinekit.decision.planning.cost import fleet_watts
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.fleet import Option, Part, lay_out
from rooflinekit.decision.planning.objective import Objective
from rooflinekit.decision.planning.replay import Replayed, needs_replay, replay
from rooflinekit.decision.planning.search import Found, PlanQuestion, Refusal, longest_admitted, refused_fleet
from rooflinekit.estimation.loaded import version_notes
from rooflinekit.estimation.measuring import benchmark_commands
from rooflinekit.load.answer import PER_USER, Load
from rooflinekit.load.lengths import Fixed, stretched
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.types.answer import Plain
from rooflinekit.model.types.errors import DeploymentError, DoesNotFitError, WorkloadError
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.calibration.evidence import EVIDENCE, evidence

_GROWS = 0.04  # of a fleet that a replay refutes: how many more are tried next
_TRIES = 40  # such fleets of one deployment


@dataclass(frozen=True)
class Ranked:
    """An option, what it would be at expected times, and its evidence.

    known: whether the interval that decides is narrower than 3 times, so that the option holds with the confidence
    asked for; else it is the one at expected times. replayed: its requests one by one, where a curve knows them not.
    """

    option: Option
    expected: Option
    evidence: str
    known: bool = True
    replayed: Replayed | None = None


def ranked(question: PlanQuestion, found: Found) -> list[Ranked]:
    """Options by cost, those that are known well enough first; what has to be replayed is, until the first agrees."""
    entries = [_entry(question, option) for option in found.options]
    left = sorted(entries, key=lambda entry: _order(question, entry))
    done: list[Ranked] = []
    tries: dict[tuple[str, ...], int] = {}
    while left:
        entry = left.pop(0)
        if done or found.interrupted or not needs_replay(entry.option, question.demand):
            done.append(entry)
            continue
        question.progress(f"replay {entry.option.gpus} {'+'.join(entry.option.names)}", len(tries), len(tries) + 1)
        try:
            replayed = replay(entry.option, question)
            if replayed.agrees and question.demand.trace is not None:
                replayed = replay(entry.option, question, whole=True)
        except KeyboardInterrupt:  # what is known by now is an answer
            found.interrupted = True
            done.append(entry)
            continue
        if replayed.agrees:
            done.append(replace(entry, replayed=replayed))
            continue
        name = _name(entry.option)
        tries[name] = tries.get(name, 0) + 1
        more = entry.option.grown(max(math.ceil(_GROWS * entry.option.replicas), 1))
        refused = refused_fleet(question, more.parts)
        if tries[name] >= _TRIES or refused:
            why = refused or "its requests one by one miss an objective, with replicas added too"
            found.refused.append(Refusal(", ".join(name), why))
        else:
            left.append(replace(entry, option=more))
            left.sort(key=lambda entry: _order(question, entry))
    seen = bool(done) and done[0].replayed is not None
    return _confirmed(
        question, sorted(done, key=lambda entry: (seen and entry.replayed is None, *_order(question, entry)))
    )


def _confirmed(question: PlanQuestion, order: list[Ranked]) -> list[Ranked]:
    """The same with the first at expected times, and the cheapest that is there, as they are played."""
    place, left = 0, set(range(len(order)))
    while place in left:
        left.remove(place)
        entry = order[place]
        if entry.expected is not entry.option:
            order[place] = replace(entry, expected=entry.expected.confirmed(question.demand, question.slo))
        enough = [each for each in range(len(order)) if order[each].expected.gpus]
        place = min(enough, key=lambda place: question.tariff.rank(order[place].expected), default=-1)
    return order


def _name(option: Option) -> tuple[str, ...]:
    return tuple(f"{part.role} {part.replica.scenario}" for part in option.parts)


def _order(question: PlanQuestion, entry: Ranked) -> tuple[bool, tuple[float, float], int]:
    return not entry.known, question.tariff.rank(entry.option), EVIDENCE.index(entry.evidence)


def _entry(question: PlanQuestion, option: Option) -> Ranked:
    """The option beside the one at expected times, or in its place where too little is known of its times."""
    expected = option
    if option.deviations > 0.0 and option.kind != "mixed":
        expected = option.by_curves(question.demand, question.slo, question.reserve, 0.0)
    return Ranked(option, expected, worst_evidence(option), option.deviations == question.deviations)


def worst_evidence(option: Option) -> str:
    """Evidence of the accelerator that is known least."""
    return max((evidence(part.replica.resolved.plan) for part in option.parts), key=EVIDENCE.index)


OWN_FORMATS = "weights and cache are in the formats as published; others, such as fp8, are tried if asked for"


def router_note(question: PlanQuestion, option: Option) -> str:
    """Fleet that random routing would take; empty where it is no larger."""
    demand = question.demand
    if demand.closed or demand.router in {"random", "prefix-affinity"} or option.kind == "mixed":
        return ""
    other = replace(demand, router="random")
    at_random = option.sized(other, question.slo, question.reserve)
    how = "in turn" if demand.router == "round-robin" else f"by the router {demand.router}"
    if not all(part.working for part in at_random.parts):
        return f"Requests reach replicas {how}; at random, no number of these meets the objectives."
    if at_random.gpus <= option.gpus:
        return ""
    return f"Requests reach replicas {how}; at random this fleet takes {at_random.gpus:,} GPUs, not {option.gpus:,}."


def warnings(question: PlanQuestion, found: Found, order: Sequence[Ranked]) -> list[str]:
    """Notes for a planner beside the numbers."""
    bought = {part.replica.gpu for entry in order for part in entry.option.parts}
    notes = [*found.notes, *question.demand.notes]
    notes += [] if found.interrupted else _without_fleet(question, found, bought)
    unknown = [gpu for gpu, price in question.tariff.prices.items() if price is None and gpu in bought]
    if unknown:
        notes.append(f"no price is known for {', '.join(unknown)}; give --price {unknown[0]}=USD to compare by cost")
    notes += question.tariff.assumptions
    best = order[0].option
    if (carbon := question.tariff.carbon) is not None:
        watts = fleet_watts(best.parts, question.demand, question.tariff.pue)
        kg = "not known, as the power is not" if watts is None else f"{watts * carbon[0] / 1e6:.3g} kg an hour"
        notes.append(f"CO2: {kg}, at {carbon[0]:g} g/kWh ({carbon[1]})")
    kept = best.parts[0].replica.kept
    if kept is not None and kept.tiers and not kept.usd_hour:
        notes.append("cache tiers have no price; say one as host=1TB,50GB/s,0.002$/GBh")
    elif kept is not None and kept.usd_hour and question.course is not None:
        notes.append("costs over time leave out the rent of cache tiers")
    scenarios = [part.replica.scenario for part in best.parts]
    told = {(key, each[key]): None for each in scenarios for key in ("weights", "kv", "activations") if key in each}
    notes += [f"{key} {value} as asked; its effect on the quality of answers is not counted" for key, value in told]
    if question.space.weights == question.space.kv == (None,):
        notes.append(OWN_FORMATS)
    for resolved in (part.replica.resolved for part in best.parts):
        notes += [*resolved.warnings, *version_notes(resolved.plan)]
    return notes


def _without_fleet(question: PlanQuestion, found: Found, bought: Collection[str]) -> Iterator[str]:
    """Say why accelerators that were asked about are not in the table."""
    for gpu in question.space.gpus:
        if (name := load_accelerator(gpu).value.name) in bought:
            continue
        near = [each for each in found.near if each[0].name.split()[0] == name]
        if near:
            nearest = min(near, key=lambda each: max(one.over for one in each))
            missed = "; ".join(
                f"{one.objective} is missed with {one.seconds * 1e3:,.4g} ms, as {one.cause}" for one in nearest
            )
            sure = f" with {question.confidence * 100:g} % confidence" if question.deviations > 0.0 else ""
            yield f"{name} has no fleet{sure}: at the least load of {nearest[0].name} {missed}"
        elif own := [each for each in found.refused if each.what.split()[0] in (gpu, name)]:
            yield f"{name} has no fleet: {own[-1].what}: {own[-1].why}"


NOISE = {"ttft": 0.4, "tpot": 0.05}
"""Standard deviation of the logarithm of what one run says: what `calibrate` believes before it has seen any."""
MOST = 5
"""Load points that are named at most."""
_DEPLOYMENTS = 3  # that are looked at, one for each accelerator
_RESULT = re.compile(r"\bresult\.jsonl?$")
_FEWER = 8  # users of the second load point over those of the first: small and large batches tell costs apart


@dataclass(frozen=True)
class Measurement(Plain):
    """Load points on one deployment that would take most doubt off a plan.

    users: of closed loops, one a run; minutes: that they take together; gpus: accelerators that are needed;
    gpus_after: those of the fleet that is bought then; usd_per_month: what it costs less (None without a price, or
    where no fleet is known to hold before); commands: to start the server, to measure, to calibrate, to plan again.
    """

    gpu: str
    scenario: dict[str, Any]
    users: tuple[int, ...]
    minutes: float
    gpus: int
    gpus_after: int
    usd_per_month: float | None
    commands: tuple[str, ...]

    def __str__(self) -> str:
        less = f"a fleet of {self.gpus_after:,} GPU{'s' * (self.gpus_after > 1)} that is known to hold"
        worth = less if self.usd_per_month is None else f"${self.usd_per_month:,.0f} a month less"
        *most, last = map(str, self.users)
        users = f"{', '.join(most)} and {last}" if most else last
        users += " user" if self.users == (1,) else " users"
        return f"{worth}: {users} on {self.gpus} {self.gpu}, {max(math.ceil(self.minutes), 2)} minutes"


def measurements(question: PlanQuestion, order: Sequence[Ranked]) -> list[Measurement]:
    """Measurements that would make the plan cheaper, of the cheapest deployment of each accelerator, the best first.

    A fleet is sized for the place d of the interval of the times that end its capacity, whose logarithm errs by s. A
    run errs by σ itself, so that after it the error is s' = (1/s² + 1/σ²)^(−1/2), and the same confidence stands at
    d·s'/s. What the cheapest fleet costs less then is what the run is worth (Lindley 1956, Annals of Mathematical
    Statistics 27(4): information is worth what the decision gains by it).
    """
    demand, rank, best = question.demand, question.tariff.rank, order[0].option
    if question.deviations <= 0.0 or demand.closed or demand.prefixes is not None or demand.trace is not None:
        return []
    if not order[0].known:  # which is bought at expected times: sureness would take this today
        best = best.sized(demand, question.slo, question.reserve, question.deviations)
    firsts: dict[tuple[str, ...], Option] = {}
    for entry in order:
        if entry.option.kind != "mixed":
            firsts.setdefault(entry.option.names, entry.option)
    found = list[tuple[Option, list[Part]]]()
    for option in [*firsts.values()][:_DEPLOYMENTS]:
        question.progress("size fleets as after a measurement", len(found), len(firsts))
        for parts in _deployments(option):
            if _run(question, parts[0], 1, "") is None:
                continue
            after = _after(question, option, parts)
            dearer = not all(each.working for each in best.parts) or rank(after) < rank(best)
            if all(each.working for each in after.parts) and dearer:
                found.append((after, parts))
    named: list[Measurement] = []
    for after, parts in sorted(found, key=lambda each: rank(each[0])):
        if sum(len(each.users) for each in named) < MOST - 1:
            named.append(_measurement(question, parts, after, best, len(named) + 1))
    return named


def _deployments(option: Option) -> list[list[Part]]:
    """The parts by what is deployed: a run of one deployment says nothing of another, and tells of all pools of it."""
    found: list[list[Part]] = []
    for part in option.parts:
        same = next((each for each in found if each[0].replica.scenario == part.replica.scenario), None)
        if same is None:
            found.append([part])
        else:
            same.append(part)
    return found


def _after(question: PlanQuestion, option: Option, measured: Sequence[Part]) -> Option:
    """The fleet as it is sized after runs of some of its parts."""
    left = (_left(question, part) if part in measured else 1.0 for part in option.parts)
    parts = (
        replace(part, deviations=question.deviations * share) for part, share in zip(option.parts, left, strict=True)
    )
    return replace(option, parts=tuple(parts)).sized(question.demand, question.slo, question.reserve)


def _left(question: PlanQuestion, part: Part) -> float:
    """Share of its standard deviation that the error of what ends the capacity has left after a run."""
    shares = []
    felt = part.bearer.feel(part.seen(question.demand), part.load(question.demand), known=True)
    for each in question.slo:
        if each.metric in NOISE and str(each) in part.ability.binds:
            own = math.log(math.prod(felt.factors(each.metric, question.deviations))) / question.deviations
            shares.append(NOISE[each.metric] / math.hypot(own, NOISE[each.metric]) if own > 0.0 else 1.0)
    return max(shares, default=1.0)


def _points(question: PlanQuestion, part: Part) -> tuple[int, ...]:
    """Users at the load of a part, and fewer; of prompts alone one."""
    load = part.bearer.in_flight(part.seen(question.demand), part.load(question.demand))
    users = max(round(float(load.users)), 1)
    return users, max(users // _FEWER, 1)


def _measurement(
    question: PlanQuestion, parts: Sequence[Part], after: Option, best: Option, number: int
) -> Measurement:
    demand, replica = question.demand, parts[0].replica
    points = tuple(sorted({users for part in parts for users in _points(question, part)}, reverse=True))
    felts = [part.bearer.feel(part.seen(demand), part.load(demand), known=True) for part in parts]
    sure = all(each.working for each in best.parts)
    hours = [question.tariff.per_hour(each) if sure else None for each in (best, after)]
    saved = None if hours[0] is None or hours[1] is None else (hours[0] - hours[1]) * MONTH_HOURS
    return Measurement(
        gpu=replica.gpu,
        scenario=replica.scenario,
        users=points,
        minutes=len(points) * PER_USER * max(felt.value("e2el", None) for felt in felts) / 60.0,
        gpus=replica.gpus,
        gpus_after=after.gpus,
        usd_per_month=saved,
        commands=tuple(_commands(question, parts[0], points, number)),
    )


def _commands(question: PlanQuestion, part: Part, points: Sequence[int], number: int) -> Iterator[str]:
    """Commands to start the server, measure each load, and take the files back into the prediction."""
    scenario = part.replica.scenario
    told = {key: each for key, each in scenario.items() if key not in ("model", "cached") and each not in (1, False)}
    flags = " ".join(
        f"--{key.replace('_', '-')}" if each is True else f"--{key.replace('_', '-')} {shlex.quote(str(each))}"
        for key, each in told.items()
    )
    model, made = shlex.quote(question.model), f"{part.replica.gpu}-{number}"
    yield f"rooflinekit launch {model} {flags}"
    files = [f"run-{number}-{users}.json" for users in points]
    for users, file in zip(points, files, strict=True):
        yield _run(question, part, users, file) or ""
    yield f"rooflinekit calibrate {' '.join(files)} --model {model} {flags} --out {made}.yaml"
    yield f"rooflinekit plan {model} --gpu {scenario['gpu']} --calibration {made}.yaml  # and the rest of the question"


def _run(question: PlanQuestion, part: Part, users: int, file: str) -> str | None:
    """The command that measures so many users into a file; None where no client of the engine writes one."""
    plan, demand = part.replica.predictor.plan, question.demand
    isl, osl, cached = (round(each) for each in (demand.isl.mean, demand.osl.mean, demand.cached))
    load = Load(Fixed(isl), Fixed(osl), users=users, cached=float(cached))
    each = (run["command"] for run in benchmark_commands(plan, Workload(users, isl, osl), load))
    return next((_RESULT.sub(file, run) for run in each if _RESULT.search(run)), None)


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
    less, more = (dict(_cases(question, option, factor)) for factor in _FACTORS)
    found = []
    for place, name in enumerate(less):
        question.progress("size the fleet with assumptions a fifth off", place, len(less))
        found.append(Swing(name, *(_sized(question, option, cases[name]) for cases in (less, more))))
    if (hour := question.tariff.per_hour(option)) is not None:  # the fleet stays, replayed or not
        found.append(Swing("price of a GPU", *(Sized(option.gpus, hour * each * MONTH_HOURS) for each in _FACTORS)))
    return sorted(found, key=lambda swing: -swing.reach)


def _cases(question: PlanQuestion, option: Option, factor: float) -> Iterator[tuple[str, _Case]]:
    """The question with each assumption times a factor. A trace and sessions bring their own lengths."""
    demand, slo, more = question.demand, question.slo, factor * question.demand.mean_load
    if demand.closed:
        yield "users", _Case(replace(demand, users=more), slo)
    else:
        yield "rate", _Case(replace(demand, rate=more), slo)
    if demand.trace is None and demand.prefixes is None:
        yield "prompt length", _Case(replace(demand, isl=stretched(demand.isl, factor)), slo, scenario={})
        yield "output length", _Case(replace(demand, osl=stretched(demand.osl, factor)), slo, scenario={})
    yield "step times, 80 % interval", _Case(demand, slo, math.copysign(NormalDist().inv_cdf(_SURE), factor - 1.0))
    for which in slo:
        moved = [replace(each, limit=factor * each.limit) if each is which else each for each in slo]
        yield which.what, _Case(demand, moved)
    if any("draft" in part.replica.scenario for part in option.parts):
        drafts = [part.replica.predictor for part in option.parts]
        rates = next(each.draft.choice.acceptance for each in drafts if isinstance(each, SpeculativePredictor))
        yield (
            "acceptance of drafts",
            _Case(demand, slo, scenario={"acceptance": [min(rate * factor, 1.0) for rate in rates]}),
        )


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
        new = new.remembering(demand, old.kept.tiers, part.working)
    return replace(part, bearer=replace(part.bearer, replica=new))

"""Fleets in order of cost: those that are known well enough first, each with what it takes at expected times."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from rooflinekit.decision.planning.cost import fleet_watts
from rooflinekit.decision.planning.fleet import Option
from rooflinekit.decision.planning.replay import Replayed, needs_replay, replay
from rooflinekit.decision.planning.search import Found, PlanQuestion, Refusal, refused_fleet
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
    return sorted(done, key=lambda entry: (entry.replayed is None and done[0].replayed is not None,
                                           *_order(question, entry)))  # fmt: skip


def _name(option: Option) -> tuple[str, ...]:
    return tuple(f"{part.role} {part.replica.scenario}" for part in option.parts)


def _order(question: PlanQuestion, entry: Ranked) -> tuple[bool, tuple[float, float], int]:
    return not entry.known, question.tariff.rank(entry.option), EVIDENCE.index(entry.evidence)


def _entry(question: PlanQuestion, option: Option) -> Ranked:
    """The option beside the one at expected times, or in its place where too little is known of its times."""
    expected = option
    if option.deviations > 0.0 and option.kind != "mixed":
        expected = option.sized(question.demand, question.slo, question.reserve, 0.0)
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
    notes += [note for part in best.parts for note in part.replica.resolved.warnings]
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

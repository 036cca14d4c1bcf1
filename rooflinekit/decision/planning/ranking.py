"""Candidates in order of cost, the cheapest confirmed by simulation; and what a planner should hear about them."""

from __future__ import annotations

import heapq
from itertools import count

from rooflinekit.decision.planning.confirm import Played, play
from rooflinekit.decision.planning.option import Option
from rooflinekit.decision.planning.search import Found, Question, Refusal

__all__ = ["Ranked", "ranked", "warnings"]

Ranked = tuple[Option, Played | None, int]
"""An option, its simulation, and how many accelerators the formula alone asked for."""

_RUNS = 12  # simulations beyond those of the candidates that are asked for
_APART = 0.2  # of formula and simulation, beyond which it is said


def ranked(question: Question, found: Found) -> list[Ranked]:
    """Options by cost, those confirmed first; a refuted one goes on with one more replica until it is confirmed.

    The cheapest is simulated until as many as asked are confirmed, so none that is left could be cheaper than they.
    """
    tie, rank, confirm = count(), question.tariff.rank, question.confirm
    heap = [(rank(option), next(tie), option, option.gpus) for option in found.options]
    heapq.heapify(heap)
    kept: list[Ranked] = []
    runs = confirm + _RUNS if confirm else 0
    while heap and len(kept) < confirm and runs:
        _, _, option, formula = heapq.heappop(heap)
        runs -= 1
        played = play(option, question.demand, question.slo, question.seed)
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


def warnings(question: Question, found: Found, order: list[Ranked]) -> list[str]:
    """What a planner should hear beside the numbers."""
    notes = list(found.notes)
    unknown = [gpu for gpu, price in question.tariff.prices.items() if price is None]
    if unknown:
        notes.append(f"no price is known for {', '.join(unknown)}; give --price {unknown[0]}=USD to compare by cost")
    notes += question.tariff.assumptions
    if not question.demand.closed:
        notes.append("requests reach replicas at random; a balancer that evens them out does better")
    best, played, _ = order[0]
    if played is None and question.confirm:
        notes.append("no candidate was confirmed: each that was simulated missed an objective, with replicas added too")
    if played is not None and played.felt.stable:
        notes += _disagreements(question, best, played)
    notes += _formats(best)
    if question.space.weights == question.space.kv == (None,):
        notes.append("weights and cache are in the checkpoint's formats; others, such as fp8, are tried if asked for")
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

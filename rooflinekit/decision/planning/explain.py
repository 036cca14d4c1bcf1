"""An answer in words: its arithmetic, what binds, and why the others lost."""

from __future__ import annotations

import math
from typing import Any

from rooflinekit.decision.planning.answer import Candidate, Fleet
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.option import Reserve

__all__ = ["answer_in_words", "deployment_name", "lost_in_words", "split_name"]

_CLOSE = 0.005  # relative: costs this near are equal
_FORMATS = ("weights", "kv", "activations")


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
    parts = [f"{_arithmetic(best)}: {_money(best)}."]
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


def _arithmetic(best: Candidate) -> str:
    """`40 GPUs = 5 replicas x TP8`."""
    pieces = []
    for fleet in best.fleets:
        role = "" if fleet.role == "serve" else f"{fleet.role} "
        number = f"{fleet.replicas} {role}replica{'s' if fleet.replicas > 1 else ''}"
        pieces.append(f"{number} x {deployment_name(fleet.scenario)} on {fleet.scenario['gpu']}")
    first = best.fleets[0].scenario
    return f"{best.gpus} GPU{'s' if best.gpus > 1 else ''} = {' + '.join(pieces)}, {first['engine']}"


def _money(best: Candidate) -> str:
    cost = best.cost
    if cost.usd_per_hour is None:
        return "no price is known, so plans are compared by GPUs"
    return f"${cost.usd_per_hour:,.2f} an hour, ${_three(cost.million_tokens_usd or 0.0)} a million tokens in and out"


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
    head = f"{_percent(ratio)} {'dearer' if priced else 'more GPUs'}" if ratio > 1 else "cheaper, but not confirmed"
    use, its = demand.peak_load / best.gpus, demand.peak_load / other.gpus
    reasons = [f"a GPU carries {_three(its)} against {_three(use)} {demand.unit} ({_binding(other)})"]
    if priced and mine is not None and theirs is not None:
        hours = [cost / candidate.gpus for cost, candidate in ((mine, other), (theirs, best))]
        if abs(hours[0] / hours[1] - 1.0) > _CLOSE:
            reasons.append(f"for ${hours[0]:.2f} against ${hours[1]:.2f} an hour")
    idle = min(fleet.headroom for fleet in other.fleets)
    if idle > 0.1:
        reasons.append(f"{idle:.0%} of what it bears stays unused")
    return f"{head}: {', '.join(reasons)}"


def _binding(candidate: Candidate) -> str:
    bound = dict.fromkeys(what for fleet in candidate.fleets for what in fleet.binds)
    return f"{', '.join(bound)} binds"


def _percent(ratio: float) -> str:
    return f"{ratio - 1.0:.0%}"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

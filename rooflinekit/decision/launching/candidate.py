"""The candidates of a plan: one kind of server, a prefill and a decode kind, or a fleet of several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard

from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.files import read_json

_LENGTHS = {"isl": "isl_mean", "osl": "osl_mean"}  # keywords of estimate, and what a plan's traffic calls them
_SPREADS = ("isl_cv", "osl_cv")
_LOADS = ("batch", "rate", "concurrency")


@dataclass(frozen=True, slots=True)
class ServerPart:
    """Servers of one kind: their scenario, how many, and their place in a split or a fleet."""

    role: str  #: "", prefill or decode
    scenario: Mapping[str, Any]
    replicas: int
    number: int = 0  #: part of a mixed fleet, from 1; 0 if there is only one

    @property
    def name(self) -> str:
        """What its script and files are called."""
        return f"part-{self.number}-{self.role or 'serve'}" if self.number else self.role or "serve"


def read_plan(plan: str | PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """What `rooflinekit plan --format json` wrote.

    Raises InputError (SpecError for the file) if it is something else.
    """
    data: Any = plan if isinstance(plan, Mapping) else read_json(Path(plan))
    if not isinstance(data, Mapping) or not isinstance(data.get("candidates"), list):
        raise InputError("plan: no list of candidates in it; give what `rooflinekit plan --format json` writes")
    return data


def choose(plan: Mapping[str, Any], candidate: int | None) -> Mapping[str, Any]:
    """The candidate of that number, counted from 1, or the best.

    Raises InputError if there is none.
    """
    found, count = plan["candidates"], len(plan["candidates"])
    if candidate is None:
        best = plan.get("best")
        if not isinstance(best, Mapping):
            raise InputError(
                "plan: it has no best candidate, since none meets the objectives"
                + (f"; choose one with candidate, 1 to {count}" if count else "")
            )
        return best
    number = whole_number(candidate, "candidate")
    if number > count:
        raise InputError(f"candidate {number} is not in the plan; it has {f'1 to {count}' if count else 'none'}")
    chosen = found[number - 1]
    if not isinstance(chosen, Mapping):
        raise InputError(f"plan: candidate {number} is {chosen!r}, not an object")
    return chosen


def planned(candidate: Mapping[str, Any]) -> str | None:
    """What the plan predicts for the candidate as a whole, and what its simulation gave; None if it does not say."""
    said = []
    for key, verb in (("predicted", "predicts"), ("simulated", "simulated")):
        table = candidate.get(key)
        times = [table.get(f"{name}_ms") if isinstance(table, Mapping) else None for name in ("ttft", "tpot")]
        found = [f"p95 {name} {p95:.1f} ms" for name, each in zip(("TTFT", "TPOT"), times, strict=True)
                 if isinstance(each, Mapping) and _is_number(p95 := each.get("p95"))]  # fmt: skip
        said += [f"{verb} {', '.join(found)}"] if found else []
    return f"the plan {' and '.join(said)} at its peak" if said else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def parts(candidate: Mapping[str, Any], traffic: object = None) -> Iterator[ServerPart]:
    """The kinds of server of a candidate; lengths and load that their scenarios leave out are those of the traffic.

    Raises InputError for a candidate without a scenario.
    """
    fleet = candidate.get("fleet")
    members = [candidate] if fleet is None else fleet
    if not isinstance(members, list) or not members:
        raise InputError(f"plan: fleet {fleet!r} is not a list of candidates")
    for number, member in enumerate(members, start=0 if fleet is None else 1):
        if number and (not isinstance(member, Mapping) or "fleet" in member):
            raise InputError(f"plan: fleet: part {number} is not a candidate")
        split = [role for role in ("prefill", "decode") if member.get(role) is not None]
        if len(split) == 1:
            raise InputError(f"plan: a candidate has {split[0]} and no {'decode' if 'prefill' in split else 'prefill'}")
        for role in split or [""]:
            entry = member[role] if role else member
            scenario = entry.get("scenario") if isinstance(entry, Mapping) else None
            if not isinstance(entry, Mapping) or not isinstance(scenario, Mapping):
                raise InputError(f"plan: {role or 'a candidate'} has no scenario (keywords of estimate)")
            replicas = entry.get("replicas")
            count = 1 if replicas is None else whole_number(replicas, "replicas")
            asked = _asked(traffic, entry, role, scenario) if isinstance(traffic, Mapping) else {}
            yield ServerPart(role, {**asked, **scenario}, count, number)


def _asked(
    traffic: Mapping[str, Any], entry: Mapping[str, Any], role: str, scenario: Mapping[str, Any]
) -> dict[str, Any]:
    """Lengths, and the load of one replica for a server of both prefill and decode that has no prefix cached."""
    numbers = {key: value for key, value in traffic.items() if _is_number(value)}
    asked: dict[str, Any] = {key: max(round(numbers[name]), 1) for key, name in _LENGTHS.items() if name in numbers}
    load = entry.get("load")
    if role or not _is_number(load) or any(key in scenario for key in (*_LOADS, "cached")):
        return asked
    asked |= {key: numbers[key] for key in _SPREADS if key in numbers}
    if "users" in numbers:
        return asked | {"concurrency": max(round(load), 1)}
    return asked | {"rate": load} | ({"burstiness": numbers["arrival_cv"]} if "arrival_cv" in numbers else {})

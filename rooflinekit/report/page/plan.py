"""A plan, read and checked, as sections of a page: candidates by cost, latencies of the answer, fronts.

What a page needs of a plan is checked here: another version, or a hand, may have written it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from html import escape
from operator import or_
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, get_args

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, FiniteFloat, Tag, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # typing's own cannot be read back before Python 3.12

from rooflinekit.decision.economics.price import HourlyPrice
from rooflinekit.decision.planning.demand import decoding
from rooflinekit.decision.planning.objective import probability_text
from rooflinekit.estimation.options import Keywords, OwnKeywords
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.document import degrees
from rooflinekit.report.page.render import card, figure, paragraphs, table
from rooflinekit.specs.files import read_json

_METRICS = (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2el_ms", "whole request"))
_LEFT = ("max_model_len", "model", "gpu")  # the first changes no time, and sliders cannot express it

PlanPart: TypeAlias = Mapping[str, Any]
"""A plan as JSON, or a part of one: `read_plan` has checked the keys that pages read."""


@dataclass(frozen=True)
class Chosen:
    """One replica of the best candidate, as `estimate` is asked for it; `pool`: how it comes to a batch of its own."""

    model: str
    gpu: str
    scenario: OwnKeywords
    pool: str  #: "" for a replica that computes its prompts itself

    @property
    def heading(self) -> str:
        """Heading of the part of the page below."""
        return "One decode replica at its batch" if self.pool else "One replica at its load"


def chosen_replica(plan: PlanPart) -> Chosen:
    """A replica of the best candidate under its load; of two pools one that decodes, at the batch that it keeps.

    A decode replica computes no prompts, so that its load is no load of `estimate`; its batch follows from its rate and
    the plan's own TPOT.
    """
    best, traffic = plan["candidates"][0], plan["traffic"]
    fleet = _fleets(best)[-1]
    given = dict(fleet["scenario"])
    lengths = {"isl": max(round(traffic["isl_mean"]), 1), "osl": max(round(traffic["osl_mean"]), 1)}
    pool, load = "", _load(traffic, fleet)
    if fleet.get("role") == "decode":  # never with users, who wait for whole answers
        if (each := best["predicted"]["tpot_ms"]["mean"]) is None:
            raise InputError("the time per token of its decode replicas has no end")
        load = {"batch": max(round(decoding(fleet["load"], lengths["osl"], each / 1e3)), 1)}
        law = f"{fleet['load']:.3g} requests/s x {lengths['osl'] - 1} tokens x {each:.3g} ms"
        pool = f"{law} keep {load['batch']} sequences running (Little's law). {_POOL}"
    kept = {key: value for key, value in given.items() if key not in _LEFT}
    return Chosen(str(given.get("model", plan["model"])), str(given["gpu"]), kept | lengths | load, pool)


_POOL = (
    "Their prompts come from the prefill replicas. The page below shows this replica as a whole server. So its first "
    "tokens, and its tokens/s each GPU, count prompts that it does not compute here."
)


def _load(traffic: PlanPart, fleet: PlanPart) -> dict[str, float]:
    """Load of one working replica, in the words of `estimate`."""
    spreads = {key: traffic[key] for key in ("isl_cv", "osl_cv") if traffic.get(key)}
    if traffic.get("rate") is None:
        return {"concurrency": max(round(fleet["load"]), 1), **spreads}
    return {"rate": fleet["load"], "burstiness": fleet.get("burstiness") or 0.0, **spreads}


def plan_prices(plan: PlanPart) -> dict[str, HourlyPrice]:
    """Price of an hour of each accelerator in the plan, by name."""
    return {gpu: HourlyPrice(**price) for gpu, price in plan.get("prices", {}).items() if price}


def _length(traffic: PlanPart, name: str) -> str:
    """Mean tokens, and how they vary."""
    spread = traffic.get(f"{name}_cv")
    return f"{traffic[f'{name}_mean']:,.0f}{f' (cv {spread:.2g})' if spread else ''}"


def plan_lead(plan: PlanPart) -> str:
    """The answer, the traffic and the objectives."""
    traffic = plan["traffic"]
    asked = f"{traffic['rate']:,g} requests/s" if traffic.get("rate") else f"{traffic['users']:,g} users"
    peak = traffic.get("peak", 1)
    cached = f" ({traffic['cached']:,.0f} cached)" if traffic.get("cached") else ""
    told = [
        f"{asked} in the mean{'' if peak == 1 else f', peak {peak:g} times that'}; {_length(traffic, 'isl')} tokens "
        f"in{cached}, {_length(traffic, 'osl')} out; {', '.join(plan['slo'])}.",
        f"{plan.get('tried', 0):,} deployments tried, {len(plan['candidates'])} can serve the traffic.",
    ]
    first, stop, rest = str(plan["answer"]).partition(". ")  # the sentence that is the answer, and those behind it
    body = paragraphs([first + stop.strip()], "answer") + paragraphs([rest] if rest else []) + paragraphs(told)
    quotes = (f"{gpu}: {HourlyPrice(**price)}" for gpu, price in plan.get("prices", {}).items() if price)
    said = (*plan.get("stand_ins", ()), *quotes, *plan["warnings"])
    notes = "".join(f"<li>{escape(str(warning))}</li>" for warning in said)
    return body + (f'<ul class="notes">{notes}</ul>' if notes else "")


def plan_cards(plan: PlanPart) -> str:
    """Places for charts, and why the others lost."""
    rows = list[tuple[object, ...]]()
    for place, each in enumerate(plan["candidates"]):
        row, known = _candidate(each, place), (each.get("evidence"), _least(each.get("probability") or {}))
        million = float(f"{row['million']:.3g}") if row["million"] else row["million"]
        rows.append((row["title"], row["gpus"], row["usd"], million, *known, row["verdict"]))
    head = ("candidate", "GPUs", "$/h", "$ per million tokens", "evidence", "all objectives hold", "verdict")
    losses = table(("not a candidate", "why"), [(entry["what"], entry["why"]) for entry in plan.get("refused", ())])
    refused = f"<details><summary>Candidates that cannot serve the traffic</summary>{losses}</details>"
    costs = card("Candidates", '<div class="chart" id="plan-cost"></div>' + table(head, rows) + refused, "plan")
    latency = card("Latencies of the answer at its peak", '<div class="chart" id="plan-spread"></div>', short=True)
    charts = {"plan-speed": "Tokens/s each GPU", "plan-price": "$ per million tokens"}
    boxes = "".join(figure(name, heading, key=True) for name, heading in charts.items())
    fronts = card("Best trade-offs (Pareto front)", f'<div class="two">{boxes}</div>')
    hours = ""
    if made := plan.get("over_time"):
        chart = '<div class="chart" id="plan-hours"></div>'
        hours = card(f"By the hour: {made['profile']}", paragraphs([made["answer"]]) + chart)
    return f'<div class="wrap">{costs}{latency}{hours}{fronts}</div>'


def _least(probability: Mapping[str, float | None]) -> str | None:
    """The probability of the objective that is most at risk: errors go together, so all hold as often as that one."""
    known = [value for value in probability.values() if value is not None]
    return probability_text(min(known)) if known else None


def plan_data(plan: PlanPart) -> dict[str, object]:
    """Data of the charts."""
    best = plan["candidates"][0]
    spreads = [(title, best["predicted"][metric], False) for metric, title in _METRICS if best["predicted"].get(metric)]
    points = [
        {"title": _deployment(point["scenario"]), "gpu": point["scenario"]["gpu"]}
        | {key: point[name] for key, name in _POINT.items()}
        | {"on": list(point["on"])}
        for point in plan["pareto"]
    ]
    candidates = [_candidate(row, place) for place, row in enumerate(plan["candidates"])]
    data: dict[str, object] = {"candidates": candidates, "spreads": spreads, "points": points}
    if made := plan.get("over_time"):  # the first month's intervals, and the end of the last
        rows = [row for row in made["intervals"] if row["month"] == 1]
        rows.append(rows[-1] | {"hour": made["span_h"]})
        named = {"time": "hour", "gpus": "gpus", "rate": "rate"}
        data["hours"] = {name: [row[key] for row in rows] for name, key in named.items()}
    return data


_POINT = {"user": "tok_s_per_user", "gpu_rate": "tok_s_per_gpu", "e2e": "e2el_ms", "usd": "usd_per_million_tokens"}


def _candidate(row: PlanPart, place: int) -> dict[str, object]:
    parts = list[str]()
    for fleet in _fleets(row):
        role = f"{fleet['role']} " if fleet.get("role") in ("prefill", "decode") else ""
        parts.append(f"{fleet['replicas']} x {role}{_deployment(fleet['scenario'])}")
    title = " + ".join(parts)
    million = (row.get("usd_per_million_tokens") or {}).get("all")
    verdict = row.get("lost") or ("the answer" if place == 0 else "")
    return {"title": title, "gpus": row["gpus"], "usd": row.get("usd_per_hour"), "million": million, "verdict": verdict}


def _fleets(candidate: PlanPart) -> list[PlanPart]:
    """Fleets of a plan, the one that decodes last."""
    if "fleet" in candidate:
        return list(candidate["fleet"])
    if "scenario" in candidate:
        return [candidate]
    return [candidate[name] for name in ("prefill", "decode") if name in candidate]


def _deployment(scenario: Keywords) -> str:
    return " ".join(map(str, (scenario["gpu"], *degrees(scenario), *filter(None, [scenario.get("weights")]))))


def _object(**entries: object) -> Any:
    """A part of a plan; keys that no page reads may be there too."""
    made: Any = TypedDict
    found = made("part", entries)
    found.__pydantic_config__ = ConfigDict(strict=True)
    return found


def _one_load(traffic: dict[str, object]) -> dict[str, object]:
    if (traffic["rate"] is None) == (traffic["users"] is None):
        raise ValueError("must have a rate or users, one of the two")
    return traffic


def _checks() -> TypeAdapter[object]:
    """Type of a plan in JSON."""
    size, positive = Annotated[FiniteFloat, Field(ge=0)], Annotated[FiniteFloat, Field(gt=0)]
    count, natural = Annotated[int, Field(gt=0)], Annotated[int, Field(ge=0)]
    means = {"isl_mean": positive, "osl_mean": positive, "peak": NotRequired[positive]}
    spreads = dict.fromkeys(("isl_cv", "osl_cv", "arrival_cv", "cached"), NotRequired[size])
    traffic = _object(rate=positive | None, users=positive | None, **means, **spreads)
    scenario = _object(gpu=str)
    fleet = {"role": NotRequired[str], "scenario": scenario, "replicas": count, "spare": NotRequired[natural]}
    fleet |= {"share": NotRequired[positive], "load": positive, "burstiness": NotRequired[size | None]}
    time = _object(**dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), size | None))
    times = _object(ttft_ms=time, tpot_ms=time, e2el_ms=time)
    candidate = {"gpus": count, "usd_per_hour": size | None, "usd_per_million_tokens": _object(all=size | None)}
    candidate |= {"predicted": times, "lost": str | None}
    kinds = {
        "aggregated": _object(**candidate, **fleet),
        "disaggregated": _object(**candidate, prefill=_object(**fleet), decode=_object(**fleet)),
        "mixed": _object(**candidate, fleet=Annotated[list[_object(**fleet)], Field(min_length=1)]),  # type: ignore[misc]
    }
    tagged: object = reduce(or_, (Annotated[kind, Tag(name)] for name, kind in kinds.items()))
    one: Any = Annotated[tagged, Discriminator(_kind)]
    speeds = dict.fromkeys(("tok_s_per_user", "tok_s_per_gpu", "e2el_ms"), positive)
    point = _object(scenario=scenario, **speeds, usd_per_million_tokens=size | None, on=list[str])
    interval = _object(month=count, hour=size, rate=size, gpus=count)
    price = _object(usd_per_gpu_hour=size, source=str, term=str, low=size | None, high=size | None)
    hours = _object(profile=str, answer=str, span_h=positive, intervals=Annotated[list[interval], Field(min_length=1)])  # type: ignore[valid-type]
    return TypeAdapter(_object(
        version=str, model=str, traffic=Annotated[traffic, AfterValidator(_one_load)], slo=list[str], answer=str,
        candidates=Annotated[list[one], Field(min_length=1)], pareto=list[point],  # type: ignore[valid-type]
        refused=NotRequired[list[_object(what=str, why=str)]],  # type: ignore[misc]
        prices=NotRequired[dict[str, price | None]],  # type: ignore[valid-type]
        tried=NotRequired[natural], warnings=list[str], over_time=NotRequired[hours | None],
    ))  # fmt: skip


_Kind = Literal["aggregated", "disaggregated", "mixed"]


def _kind(candidate: object) -> object:
    return candidate.get("kind") if isinstance(candidate, Mapping) else None


def read_plan(plan: object) -> dict[str, Any]:
    """A plan from what `rk.plan` returned, from its JSON as a dict, or from a file of `rooflinekit plan --format json`.

    Raises InputError (SpecError for the file) where it is no plan, naming the first part of it that is wrong.
    """
    named = plan if isinstance(plan, (str, PathLike)) else "the plan"
    found = plan.to_dict() if hasattr(plan, "to_dict") else plan
    if isinstance(plan, (str, PathLike)):
        found = read_json(Path(plan))
    if not isinstance(found, Mapping):
        raise InputError(f"a plan is what rk.plan returns, its JSON as a dict, or a file, not a {type(plan).__name__}")
    if {"what", "value", "at"} <= found.keys():
        told = "one deployment, no candidates; report on it by its MODEL and options"
        raise InputError(f"this answers plan --max: {told}")
    try:
        _checks().validate_python(found)
    except ValidationError as error:
        raise InputError(f"{named} is no plan of `rooflinekit plan --format json`: {_first(error)}") from None
    return dict(found)


def _first(error: ValidationError) -> str:
    """Place of the first difference, and the expected value there."""
    told = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in told["loc"] if part not in get_args(_Kind))
    if told["type"].startswith("union_tag"):
        return f"{where}.kind must be one of {', '.join(get_args(_Kind))}"
    wanted = {"missing": "is missing", "too_short": "is empty"}.get(told["type"])
    return f"{where} {wanted or _plain(told['msg'])}"


def _plain(message: str) -> str:
    """The checker's words in ours."""
    ours = {"Input should": "must", "valid ": "", "Value error, ": "", "a dictionary": "an object"}
    for theirs, own in ours.items():
        message = message.replace(theirs, own)
    return message.partition(" or instance")[0]

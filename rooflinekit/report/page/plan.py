"""A plan as sections of a page: the candidates by cost, latencies by formula and simulated, the fronts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from rooflinekit.decision.economics.price import HourlyPrice
from rooflinekit.decision.planning.demand import decoding, thinned_cv
from rooflinekit.decision.planning.objective import probability_text
from rooflinekit.report.page.render import card, figure, paragraphs, table

_METRICS = (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2el_ms", "whole request"))
_LEFT = ("max_model_len", "model", "gpu")  # the first changes no time, and sliders cannot express it


@dataclass(frozen=True)
class Chosen:
    """One replica of the best candidate, as `estimate` is asked for it; `pool`: how it comes to a batch of its own."""

    model: str
    gpu: str
    scenario: dict[str, Any]
    pool: str  #: "" for a replica that computes its prompts itself

    @property
    def heading(self) -> str:
        """What the part of the page below is of."""
        return "One decode replica at its batch" if self.pool else "One replica at its load"


def chosen_replica(plan: Mapping[str, Any]) -> Chosen:
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
        each = best["predicted"]["tpot_ms"]["mean"]
        load = {"batch": max(round(decoding(fleet["load"], lengths["osl"], each / 1e3)), 1)}
        pool = (
            f"{fleet['load']:.3g} requests/s x {lengths['osl'] - 1} tokens x {each:.3g} ms keep {load['batch']} "
            "sequences running (Little's law). Their prompts come from the prefill replicas. The page below shows "
            "this replica as a whole server. So its first tokens, and its tokens/s each GPU, count prompts that it "
            "does not compute here."
        )
    kept = {key: value for key, value in given.items() if key not in _LEFT}
    return Chosen(str(given.get("model", plan["model"])), str(given["gpu"]), kept | lengths | load, pool)


def _load(traffic: Mapping[str, Any], fleet: Mapping[str, Any]) -> dict[str, float]:
    """What one working replica sees of the traffic, in the words of `estimate`."""
    spreads = {key: traffic[key] for key in ("isl_cv", "osl_cv") if traffic.get(key)}
    if traffic.get("rate") is None:
        return {"concurrency": max(round(fleet["load"]), 1), **spreads}
    of = max((fleet["replicas"] - fleet.get("spare", 0)) / fleet.get("share", 1.0), 1.0)
    return {"rate": fleet["load"], "burstiness": thinned_cv(traffic.get("arrival_cv", 1.0), of), **spreads}


def plan_prices(plan: Mapping[str, Any]) -> dict[str, HourlyPrice]:
    """What an hour of each accelerator costs in the plan, by name."""
    return {gpu: HourlyPrice(**price) for gpu, price in plan.get("prices", {}).items() if price}


def _length(traffic: Mapping[str, Any], name: str) -> str:
    """Mean tokens, and how they vary."""
    spread = traffic.get(f"{name}_cv")
    return f"{traffic[f'{name}_mean']:,.0f}{f' (cv {spread:.2g})' if spread else ''}"


def plan_lead(plan: Mapping[str, Any]) -> str:
    """The answer, the traffic and the objectives."""
    traffic = plan["traffic"]
    asked = f"{traffic['rate']:,g} requests/s" if traffic.get("rate") else f"{traffic['users']:,g} users"
    peak = traffic.get("peak", 1)
    told = [
        f"{asked} in the mean{'' if peak == 1 else f', peak {peak:g} times that'}; {_length(traffic, 'isl')} tokens "
        f"in, {_length(traffic, 'osl')} out; {', '.join(plan['slo'])}.",
        f"{plan.get('tried', 0):,} deployments tried, {len(plan['candidates'])} can serve the traffic.",
    ]
    first, stop, rest = str(plan["answer"]).partition(". ")  # the sentence that is the answer, and those behind it
    body = paragraphs([first + stop.strip()], "answer") + paragraphs([rest] if rest else []) + paragraphs(told)
    quotes = (f"{gpu}: {HourlyPrice(**price)}" for gpu, price in plan.get("prices", {}).items() if price)
    said = (*plan.get("stand_ins", ()), *quotes, *plan["warnings"])
    notes = "".join(f"<li>{escape(str(warning))}</li>" for warning in said)
    return body + (f'<ul class="notes">{notes}</ul>' if notes else "")


def plan_cards(plan: Mapping[str, Any]) -> str:
    """Places for charts, and why the others lost."""
    rows = [
        (
            row["title"], row["gpus"], row["usd"], row["million"] and float(f"{row['million']:.3g}"),
            candidate.get("evidence"),
            _least(candidate.get("probability") or {}), row["verdict"],
        )
        for row, candidate in ((_candidate(each, place), each) for place, each in enumerate(plan["candidates"]))
    ]  # fmt: skip
    head = ("candidate", "GPUs", "$/h", "$ per million tokens", "evidence", "all objectives hold", "verdict")
    losses = table(("not a candidate", "why"), [(entry["what"], entry["why"]) for entry in plan.get("refused", ())])
    refused = f"<details><summary>What cannot serve the traffic</summary>{losses}</details>"
    costs = card("Candidates", '<div class="chart" id="plan-cost"></div>' + table(head, rows) + refused, "plan")
    latency = card("Latencies of the answer at its peak", '<div class="chart" id="plan-spread"></div>', short=True)
    charts = {"plan-speed": "Tokens/s each GPU", "plan-price": "$ per million tokens"}
    boxes = "".join(figure(name, heading, key=True) for name, heading in charts.items())
    fronts = card("What cannot be improved in one respect alone", f'<div class="two">{boxes}</div>')
    hours = ""
    if made := plan.get("over_time"):
        chart = '<div class="chart" id="plan-hours"></div>'
        hours = card(f"By the hour: {made['profile']}", paragraphs([made["answer"]]) + chart)
    return f'<div class="wrap">{costs}{latency}{hours}{fronts}</div>'


def _least(probability: Mapping[str, float | None]) -> str | None:
    """The probability of the objective that is most at risk: errors go together, so all hold as often as that one."""
    known = [value for value in probability.values() if value is not None]
    return probability_text(min(known)) if known else None


def plan_data(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What the charts show."""
    best = plan["candidates"][0]
    sources = (("predicted", "formula", True), ("simulated", "simulated", False))
    spreads = [
        (f"{title}, {source}", best[key][metric], hollow)
        for metric, title in _METRICS
        for key, source, hollow in sources
        if best.get(key) and best[key].get(metric)
    ]
    points = [{"title": _deployment(point["scenario"]), "gpu": point["scenario"]["gpu"],
               "user": point["tok_s_per_user"],
               "gpu_rate": point["tok_s_per_gpu"], "e2e": point["e2el_ms"], "usd": point["usd_per_million_tokens"],
               "on": list(point["on"])} for point in plan["pareto"]]  # fmt: skip
    candidates = [_candidate(row, place) for place, row in enumerate(plan["candidates"])]
    data: dict[str, Any] = {"candidates": candidates, "spreads": spreads, "points": points}
    if made := plan.get("over_time"):  # the first month's intervals, and the end of the last
        rows = [row for row in made["intervals"] if row["month"] == 1]
        rows.append(rows[-1] | {"hour": made["span_h"]})
        named = {"time": "hour", "gpus": "gpus", "rate": "rate"}
        data["hours"] = {name: [row[key] for row in rows] for name, key in named.items()}
    return data


def _candidate(row: Mapping[str, Any], place: int) -> dict[str, Any]:
    confirmed = {True: "the simulation agrees", False: "the simulation does not agree", None: "by formula"}[
        row.get("confirmed")
    ]
    roles = {"prefill": "prefill ", "decode": "decode "}
    title = " + ".join(
        f"{fleet['replicas']} x {roles.get(fleet.get('role', ''), '')}{_deployment(fleet['scenario'])}"
        for fleet in _fleets(row)
    )
    million = (row.get("usd_per_million_tokens") or {}).get("all")
    verdict = row.get("lost") or ("the answer, " + confirmed if place == 0 else confirmed)
    return {"title": title, "gpus": row["gpus"], "usd": row.get("usd_per_hour"), "million": million, "verdict": verdict}


def _fleets(candidate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Its fleets, the one that decodes last."""
    if "fleet" in candidate:
        return list(candidate["fleet"])
    if "scenario" in candidate:
        return [candidate]
    return [candidate[name] for name in ("prefill", "decode") if name in candidate]


def _deployment(scenario: Mapping[str, Any]) -> str:
    split = " ".join(f"{key}{scenario[key]}" for key in ("tp", "pp", "ep", "dp") if scenario.get(key, 1) != 1)
    formats = " ".join(str(scenario[key]) for key in ("weights",) if scenario.get(key))
    return " ".join(part for part in (str(scenario["gpu"]), split, formats) if part)

"""A plan: the answer and its arithmetic first, then the candidates, what they cost, and why they lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rooflinekit.decision.economics.price import HourlyPrice
from rooflinekit.decision.planning.cost import Point
from rooflinekit.decision.planning.plan import Candidate, Fleet, PlanAnswer, split_name
from rooflinekit.report import over_time
from rooflinekit.report.document import Document, Facts, Items, Section, Table, Words, amount, ms, notes, three

_SHOWN, _EXPLAINED, _POINTS = 8, 5, 7
_METRICS = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "E2EL": "e2el_ms"}


def document(answer: PlanAnswer) -> Document:
    """The whole answer."""
    rest = len(answer.candidates) - _SHOWN
    told = [f"and {rest} more (--format json or csv)"] if rest > 0 else []
    told.append(
        "* the simulation agrees, and its times are shown; the others are figures of the formula. At risk: the "
        f"objective that is least likely to hold, and how likely it is ({answer.confidence * 100:g} % asked); load: of "
        "what the objectives allow"
    )
    lost = [f"{number}  {other.lost}" for number, other in enumerate(answer.candidates[1:], 2)]
    return [
        Section(f"{answer.model}: {answer.question}", [Words(", ".join(answer.slo))]),
        Section("", [Words(answer.answer)]),
        Section("", [_candidates(answer), Words(*told)]),
        Section("", [_latencies(answer.best)]),
        Section("", [Facts(*_facts(answer.best))]),
        *(over_time.document(answer.over_time) if answer.over_time else ()),
        Section("why the others lost" if lost else "", [Items(*lost, indent="   ", most=_EXPLAINED)]),
        Section("", [_front(answer.pareto)]),
        Section("", [notes(_notes(answer))]),
    ]


def rows(answer: PlanAnswer) -> list[dict[str, Any]]:
    """The intervals of a plan over time, else the candidates."""
    return (answer.over_time or answer).to_rows()


def _candidates(answer: PlanAnswer) -> Table:
    """The first eight and the best of each level of evidence, with the objective that is most at risk."""
    shown = [*enumerate(answer.candidates, 1)]
    firsts = {each.evidence: place for place, each in reversed(shown)}
    several = len({each.engine for each in answer.candidates}) > 1
    head = ["", "gpu", "replicas", "GPUs", "$/h", "evidence", "at risk", "holds", "load", "$/Mtok"]
    rows = []
    for rank, each in shown:
        if rank > _SHOWN and rank not in firsts.values():
            continue
        name, chance = each.risk
        risk = f"{name.rpartition(' <= ')[0]} {ms(each.latency(name))}"
        holds = "-" if chance is None else f"{min(math.floor(chance * 100), 99)} %"
        mark, load = "*" if each.confirmed else "", 1.0 - min(fleet.headroom for fleet in each.fleets)
        hour, million = amount(each.cost.usd_per_hour), three(each.cost.million_tokens_usd)
        plan = f"{each.name} {each.engine}" if several else each.name
        kinds = each.gpu.split("+")
        short = [kind.partition("-")[0] for kind in kinds]
        gpu = "+".join(short if len({*short}) > 1 else kinds)
        row = [f"{rank}{mark}", gpu, plan, f"{each.gpus:,}", hour, each.evidence.removeprefix("fitted ")]
        rows.append([*row, risk, holds, f"{load:.0%}", million])
    return Table(head, rows, left=(0, 1, 2, 5, 6), gap=1, drop=(9, 8, 5))


def _latencies(best: Candidate) -> Table:
    """The best candidate at the peak, by formula and by simulation."""
    tables = [("", best.predicted), ("sim. ", best.simulated)]
    shown = [(start, table, name) for start, table in tables if table for name in ("mean", "p95", "p99")]
    head = ["at the peak", *(f"{start}{name}" for start, _, name in shown)]
    rows = [[label, *(ms(table[key][name]) for _, table, name in shown)] for label, key in _METRICS.items()]
    return Table(head, rows)


def _facts(best: Candidate) -> Iterator[tuple[str, str]]:
    """Bound, knee, settings, money, energy and start of the best."""
    for fleet in best.fleets:
        yield from _fleet(fleet)
    cost = best.cost
    if cost.usd_per_hour is not None:
        yield (
            "tokens",
            (
                f"${three(cost.input_usd)} input, ${three(cost.cached_input_usd)} cached input, "
                f"${three(cost.output_usd)} output, a million each"
            ),
        )
    if cost.watts is not None and cost.joules_per_output_token is not None:
        yield "power", f"{cost.watts / 1e3:,.1f} kW, {cost.joules_per_output_token:.3g} J an output token"
    if best.interval:
        named = ((key.removesuffix("_ms").rpartition("_"), ends) for key, ends in best.interval.items())
        spans = [f"{start or 'mean'} {metric.upper()} {ms(low)} to {ms(high)}"
                 for (start, _, metric), (low, high) in named]  # fmt: skip
        yield "interval", f"90 %: {', '.join(spans)}"
    if best.simulated_error:
        errors = (f"{name.partition(' <= ')[0]} ± {ms(value)}" for name, value in best.simulated_error.items())
        yield "simulated", f"standard errors: {', '.join(errors)}"


def _fleet(fleet: Fleet) -> Iterator[tuple[str, str]]:
    knee = f", knee {fleet.knee:.3g}" if fleet.knee is not None else ""
    settings = ("token_budget", "max_num_seqs", "max_model_len")
    words = [f"{key} {fleet.scenario[key]}" for key in settings if key in fleet.scenario]
    yield (
        {"serve": "replica"}.get(fleet.role, fleet.role),
        (
            f"{fleet.load:.3g} of at most {fleet.capacity:.3g}{knee}; limited by {', '.join(fleet.binds)}; "
            f"{fleet.headroom:.0%} headroom"
        ),
    )
    yield "", f"{', '.join([*words, f'cold start {fleet.cold_start_s:.0f} s'])}"


def _front(points: Sequence[Point]) -> Table:
    """Speed against use, thinned."""
    speed = sorted((point for point in points if "speed" in point.on), key=lambda point: point.load)
    if len(speed) > _POINTS:
        speed = [speed[round(place * (len(speed) - 1) / (_POINTS - 1))] for place in range(_POINTS)]
    head = ["Pareto front", "", "load", "tok/s/user", "tok/s/GPU", "TTFT", "request", "$/Mtok"]
    rows = [
        [
            point.scenario["gpu"], split_name(point.scenario), f"{point.load:.3g}", f"{point.tok_s_per_user:.0f}",
            f"{point.tok_s_per_gpu:.0f}", ms(point.ttft_ms), ms(point.e2el_ms),
            three(point.usd_per_million_tokens),
        ]
        for point in speed
    ]  # fmt: skip
    return Table(head, rows, left=(0, 1))


def _notes(answer: PlanAnswer) -> Iterator[str]:
    yield from answer.stand_ins
    for gpu, price in answer.prices.items():
        if price is not None:
            yield f"{gpu}: {HourlyPrice(**price)}"
    yield from answer.warnings
    yield f"{answer.tried} settings were tried; {len(answer.refused)} deployments refused (--format json names them)"

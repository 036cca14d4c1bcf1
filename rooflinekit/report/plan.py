"""A plan as text: the answer and its arithmetic first, then the candidates, what they cost, and why they lost."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from rooflinekit.decision.economics.price import HourlyPrice
from rooflinekit.decision.planning.cost import Point
from rooflinekit.decision.planning.inverse import BreakEven, Solution
from rooflinekit.decision.planning.plan import Candidate, Fleet, PlanAnswer, split_name
from rooflinekit.model.types.units import format_time
from rooflinekit.report.table import WIDTH, aligned, markdown

__all__ = ["break_even_text", "plan_markdown", "plan_text", "solution_row", "solution_text"]

_SHOWN, _EXPLAINED, _POINTS = 8, 5, 7
_LEAST = 8  # columns of the candidates that are always shown
_METRICS = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "E2EL": "e2el_ms"}


def plan_text(answer: PlanAnswer) -> str:
    """The whole answer for a terminal, at most 80 columns wide."""
    head, rows = _candidates(answer)
    blocks = [
        [*_wrap(f"{answer.model}: {answer.question}"), *_wrap(", ".join(answer.slo))],
        _wrap(answer.answer),
        [*_narrow(head, rows), *_more(answer)],
        _latencies(answer.best),
        [line for text in _facts(answer.best) for line in _wrap(text, "          ")],
        ["why the others lost", *_lost(answer)] if answer.candidates[1:] else [],
        _front(answer.pareto),
        _footer(answer),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def plan_markdown(answer: PlanAnswer) -> str:
    """The same as Markdown."""
    head, rows = _candidates(answer)
    lines = [f"## {answer.model}: {answer.question}", "", ", ".join(answer.slo), "", answer.answer, ""]
    lines += [*markdown(head, rows, left=_LEFT), *_more(answer), ""]
    lines += [f"- {' '.join(text.split())}" for text in _facts(answer.best)]
    lines += ["", *(f"{number}. {other.lost}" for number, other in enumerate(answer.candidates[1:], 2))]
    return "\n".join([*lines, "", *(f"- {note}" for note in _notes(answer))])


def solution_text(solution: Solution) -> str:
    """An inverse answer."""
    lines = _wrap(f"{solution.model} on {solution.gpu}: {solution.answer}")
    return "\n".join([*lines, *(line for note in solution.warnings for line in _wrap(f"note: {note}", "      "))])


def solution_row(solution: Solution) -> dict[str, object]:
    """The same as one flat row."""
    keys = ("what", "value", "unit", "model", "gpu", "answer")
    joined = {"subject_to": "; ".join(solution.subject_to), "binds": "; ".join(solution.binds)}
    return {key: getattr(solution, key) for key in keys} | joined | solution.at


def break_even_text(found: BreakEven) -> str:
    """Accelerators, their prices, and those at which they would be the cheapest."""
    head = ["gpu", "GPUs", "$/GPU-hour", "$/hour", "break-even $/GPU-hour"]
    rows = [
        [row["gpu"], _number(row["gpus"]), _dollars(row["usd_per_gpu_hour"]), _dollars(row["usd_per_hour"]),
         _dollars(row.get("break_even_usd"))]
        for row in found.rows
    ]  # fmt: skip
    failed = [f"{row['gpu']}: {row['why']}" for row in found.rows if row["why"]]
    notes = [line for note in (*failed, *found.warnings) for line in _wrap(f"note: {note}", "      ")]
    return "\n".join([*_wrap(f"{found.model}: {found.answer}"), "", *aligned(head, rows), "", *notes])


def _wrap(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent)


def _candidates(answer: PlanAnswer) -> tuple[list[str], list[list[str]]]:
    """The first eight, with the objective that is most at risk; the best of each level of evidence among them."""
    shown = [*enumerate(answer.candidates, 1)]
    firsts = {each.evidence: place for place, each in reversed(shown)}
    kept = {*range(1, _SHOWN + 1), *firsts.values()}
    several = len({each.engine for each in answer.candidates}) > 1
    head = ["", "gpu", "replicas", "GPUs", "$/h", "evidence", "at risk", "holds", "load", "$/Mtok"]
    rows = []
    for rank, each in [entry for entry in shown if entry[0] in kept]:
        name, chance = each.risk
        value = each.latency(name) if name else None
        risk = f"{name.rpartition(' <= ')[0]} {_time(value)}" if name else "-"
        holds = "-" if chance is None else f"{min(math.floor(chance * 100), 99)} %"
        plan = f"{each.name} {each.engine}" if several else each.name
        mark, load = "*" if each.confirmed else "", 1.0 - min(fleet.headroom for fleet in each.fleets)
        hour, million = _dollars(each.cost.usd_per_hour), _small(each.cost.million_tokens_usd)
        row = [f"{rank}{mark}", each.gpu, plan, f"{each.gpus:,}", hour, each.evidence]
        rows.append([*row, risk, holds, f"{load:.0%}", million])
    return head, rows


def _narrow(head: list[str], rows: list[list[str]]) -> list[str]:
    """The table without its last columns, as far as the terminal has no room for them."""
    lines = aligned(head, rows, left=_LEFT)
    while max(map(len, lines)) > WIDTH and len(head) > _LEAST:
        head, rows = head[:-1], [row[:-1] for row in rows]
        lines = aligned(head, rows, left=_LEFT)
    return lines


_LEFT = (0, 1, 2, 5, 6)


def _more(answer: PlanAnswer) -> list[str]:
    rest = len(answer.candidates) - _SHOWN
    words = (
        f"* the simulation agrees, and its times are shown; the others are figures of the formula. At risk: the "
        f"objective that is least likely to hold, and with which probability it does ({answer.confidence * 100:g} % "
        "asked); load: of what the objectives allow"
    )
    return (["", *_wrap(f"and {rest} more (--format json or csv)")] if rest > 0 else []) + _wrap(words)


def _latencies(best: Candidate) -> list[str]:
    """The best candidate at the peak, by formula and by simulation."""
    tables = [("", best.predicted), ("sim. ", best.simulated)]
    shown = [(start, table, name) for start, table in tables if table for name in ("mean", "p95", "p99")]
    head = ["at the peak", *(f"{start}{name}" for start, _, name in shown)]
    rows = [[label, *(_time(table[key][name]) for _, table, name in shown)] for label, key in _METRICS.items()]
    return aligned(head, rows)


def _time(value: float | None) -> str:
    return "-" if value is None else format_time(value / 1e3)


def _facts(best: Candidate) -> Iterator[str]:
    """Bound, knee, settings, money, energy and start of the best."""
    for fleet in best.fleets:
        yield from _fleet(fleet)
    cost = best.cost
    if cost.usd_per_hour is not None:
        yield (
            f"tokens    ${_small(cost.input_usd)} input, ${_small(cost.cached_input_usd)} cached input, "
            f"${_small(cost.output_usd)} output, a million each"
        )
    if cost.watts is not None and cost.joules_per_output_token is not None:
        yield f"power     {cost.watts / 1e3:,.1f} kW, {cost.joules_per_output_token:.3g} J an output token"
    if best.interval:
        spans = [f"{key[:4].upper()} {_time(low)} to {_time(high)}" for key, (low, high) in best.interval.items()]
        yield f"interval  90 % of the means: {', '.join(spans)}"


def _fleet(fleet: Fleet) -> Iterator[str]:
    label = {"serve": "replica", "prefill": "prefill", "decode": "decode"}[fleet.role]
    knee = f", knee {fleet.knee:.3g}" if fleet.knee is not None else ""
    settings = ("token_budget", "max_num_seqs", "max_model_len")
    words = [f"{key} {fleet.scenario[key]}" for key in settings if key in fleet.scenario]
    yield (
        f"{label:<9} {fleet.load:.3g} of {fleet.capacity:.3g} it bears{knee}; binds: {', '.join(fleet.binds)}; "
        f"{fleet.headroom:.0%} headroom"
    )
    yield f"          {', '.join([*words, f'cold start {fleet.cold_start_s:.0f} s'])}"


def _lost(answer: PlanAnswer) -> list[str]:
    return [
        line
        for number, other in enumerate(answer.candidates[1 : _EXPLAINED + 1], 2)
        for line in textwrap.wrap(f"{number}  {other.lost}", WIDTH, subsequent_indent="   ")
    ]


def _front(points: Sequence[Point]) -> list[str]:
    """Speed against use, thinned."""
    speed = [point for point in points if "speed" in point.on]
    speed = sorted(speed, key=lambda point: point.load)
    if len(speed) > _POINTS:
        speed = [speed[round(place * (len(speed) - 1) / (_POINTS - 1))] for place in range(_POINTS)]
    head = ["Pareto front", "", "load", "tok/s/user", "tok/s/GPU", "TTFT", "request", "$/Mtok"]
    rows = [
        [
            point.scenario["gpu"], split_name(point.scenario), f"{point.load:.3g}", f"{point.tok_s_per_user:.0f}",
            f"{point.tok_s_per_gpu:.0f}", _time(point.ttft_ms), _time(point.e2el_ms),
            _small(point.usd_per_million_tokens),
        ]
        for point in speed
    ]  # fmt: skip
    return aligned(head, rows, left=(0, 1)) if rows else []


def _footer(answer: PlanAnswer) -> list[str]:
    return [line for note in _notes(answer) for line in _wrap(f"note: {note}", "      ")]


def _notes(answer: PlanAnswer) -> Iterator[str]:
    yield from answer.stand_ins
    for gpu, price in answer.prices.items():
        if price is not None:
            yield f"{gpu}: {HourlyPrice(**price)}"
    yield from answer.warnings
    yield f"{answer.tried} settings were tried; {len(answer.refused)} deployments refused (--format json names them)"


def _dollars(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= _WHOLE else f"{value:.3g}"


_WHOLE = 999.5  # from which nobody wants decimals


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"

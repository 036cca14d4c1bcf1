"""A plan: the answer and its arithmetic first, then the candidates, what they cost, and why they lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rooflinekit.decision.planning.cost import Point
from rooflinekit.decision.planning.plan import Candidate, Fleet, PlanAnswer, split_name
from rooflinekit.model.types.units import format_time
from rooflinekit.report.document import Document, Facts, Items, Section, Table, Words

__all__ = ["document", "rows"]

_SHOWN, _EXPLAINED, _POINTS = 8, 5, 7
_LEAST = 4  # columns of the candidates that are always shown
_STATISTICS = ("mean", "p50", "p95", "p99")
_METRICS = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "E2EL": "e2el_ms"}


def document(answer: PlanAnswer) -> Document:
    """The whole answer."""
    rest = len(answer.candidates) - _SHOWN
    told = [f"and {rest} more that cost more"] if rest > 0 else []
    told.append("* confirmed by simulation, whose percentiles are shown; load: of what the objectives allow")
    lost = [f"{number}  {other.lost}" for number, other in enumerate(answer.candidates[1:], 2)]
    return [
        Section(f"{answer.model}: {answer.question}", [Words(", ".join(answer.slo))]),
        Section("", [Words(answer.answer)]),
        Section("", [_candidates(answer), Words(*told)]),
        Section("", [_latencies(answer.best)]),
        Section("", [Facts(*_facts(answer.best))]),
        Section("why the others lost" if lost else "", [Items(*lost, indent="   ", most=_EXPLAINED)]),
        Section("", [_front(answer.pareto)]),
        Section("", [Items(*(f"note: {note}" for note in _notes(answer)), indent="      ")]),
    ]


def rows(answer: PlanAnswer) -> list[dict[str, object]]:
    """One flat row a candidate."""
    return [
        {
            "rank": rank, "kind": each.kind, "plan": _plan(each), "gpu": _joined(each, "gpu"), "gpus": each.gpus,
            "replicas": each.replicas, "usd_per_hour": each.cost.usd_per_hour,
            "cached_input_usd_per_million": each.cost.cached_input_usd, "input_usd_per_million": each.cost.input_usd,
            "output_usd_per_million": each.cost.output_usd, "usd_per_million_tokens": each.cost.million_tokens_usd,
            "watts": each.cost.watts, "joules_per_output_token": each.cost.joules_per_output_token,
            **{f"{kind}_{metric}_{name}": (table or {}).get(metric, {}).get(name)
               for kind, table in (("predicted", each.predicted), ("simulated", each.simulated))
               for metric in _METRICS.values() for name in _STATISTICS},
            "confirmed": each.confirmed, "lost": each.lost,
        }
        for rank, each in enumerate(answer.candidates, 1)
    ]  # fmt: skip


def _candidates(answer: PlanAnswer) -> Table:
    named = [name.rpartition(" <= ")[0] for name in answer.slo][:2]
    several = len({fleet.scenario["engine"] for each in answer.candidates for fleet in each.fleets}) > 1
    head = ["", "gpu", "replicas", "GPUs", "$/h", "$/Mtok", *named, "load"]
    rows = []
    for rank, each in enumerate(answer.candidates[:_SHOWN], 1):
        plan = f"{_plan(each)} {_joined(each, 'engine')}" if several else _plan(each)
        money = [_dollars(each.cost.usd_per_hour), _small(each.cost.million_tokens_usd)]
        latencies = [_statistic(each, name) for name in named]
        mark = "*" if each.confirmed else ""
        rows.append([f"{rank}{mark}", _joined(each, "gpu"), plan, str(each.gpus), *money, *latencies, _busy(each)])
    return Table(head, rows, left=(0, 1, 2), drop=range(len(head) - 1, _LEAST - 1, -1))


def _joined(candidate: Candidate, key: str) -> str:
    return "+".join(dict.fromkeys(str(fleet.scenario[key]) for fleet in candidate.fleets))


def _plan(candidate: Candidate) -> str:
    """`11 x TP2`, or `8P TP2 + 3D TP2`."""
    pieces = []
    for fleet in candidate.fleets:
        role = {"prefill": "P", "decode": "D"}.get(fleet.role, "")
        formats = "".join(f" {fleet.scenario[key]}" for key in ("weights", "kv") if key in fleet.scenario)
        sign = f"{fleet.replicas}{role}" if role else f"{fleet.replicas} x"
        pieces.append(f"{sign} {split_name(fleet.scenario)}{formats}")
    return " + ".join(pieces)


def _statistic(candidate: Candidate, name: str) -> str:
    """What the simulation says of an objective, else the formula."""
    statistic, metric = name.split()
    value = (candidate.simulated or candidate.predicted)[f"{metric.lower()}_ms"].get(statistic)
    return "-" if value is None else format_time(value / 1e3)


def _busy(candidate: Candidate) -> str:
    """Load over what the objectives allow, of the fullest part."""
    return f"{1.0 - min(fleet.headroom for fleet in candidate.fleets):.0%}"


def _latencies(best: Candidate) -> Table:
    """The best candidate at the peak, by formula and by simulation."""
    tables = [("", best.predicted), ("sim. ", best.simulated)]
    shown = [(start, table, name) for start, table in tables if table for name in ("mean", "p95", "p99")]
    head = ["at the peak", *(f"{start}{name}" for start, _, name in shown)]
    rows = [[label, *(_time(table[key][name]) for _, table, name in shown)] for label, key in _METRICS.items()]
    return Table(head, rows)


def _time(value: float | None) -> str:
    return "-" if value is None else format_time(value / 1e3)


def _facts(best: Candidate) -> Iterator[tuple[str, str]]:
    """Bound, knee, settings, money, energy and start of the best."""
    for fleet in best.fleets:
        yield from _fleet(fleet)
    cost = best.cost
    if cost.usd_per_hour is not None:
        yield (
            "tokens",
            (
                f"${_small(cost.input_usd)} input, ${_small(cost.cached_input_usd)} cached input, "
                f"${_small(cost.output_usd)} output, a million each"
            ),
        )
    if cost.watts is not None and cost.joules_per_output_token is not None:
        yield "power", f"{cost.watts / 1e3:,.1f} kW, {cost.joules_per_output_token:.3g} J an output token"
    if best.interval:
        spans = [f"{key[:4].upper()} {_time(low)} to {_time(high)}" for key, (low, high) in best.interval.items()]
        yield "interval", f"90 % of the means: {', '.join(spans)}"


def _fleet(fleet: Fleet) -> Iterator[tuple[str, str]]:
    knee = f", knee {fleet.knee:.3g}" if fleet.knee is not None else ""
    settings = ("token_budget", "max_num_seqs", "max_model_len")
    words = [f"{key} {fleet.scenario[key]}" for key in settings if key in fleet.scenario]
    yield (
        {"serve": "replica"}.get(fleet.role, fleet.role),
        (
            f"{fleet.load:.3g} of {fleet.capacity:.3g} it bears{knee}; binds: {', '.join(fleet.binds)}; "
            f"{fleet.headroom:.0%} headroom"
        ),
    )
    yield "", f"{', '.join([*words, f'cold start {fleet.cold_start_s:.0f} s'])}"


def _front(points: Sequence[Point]) -> Table:
    """Speed against use, thinned."""
    speed = [point for point in points if "speed" in point.on]
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
    return Table(head, rows, left=(0, 1))


def _notes(answer: PlanAnswer) -> Iterator[str]:
    for gpu, price in answer.prices.items():
        if price is not None:
            span = f", quotes from ${price['low']:g} to ${price['high']:g}" if price["low"] and price["high"] else ""
            yield f"{gpu}: ${price['usd_per_gpu_hour']:g} a GPU-hour ({price['source']}{span})"
    yield from answer.warnings
    yield f"{answer.tried} settings were tried; {len(answer.refused)} deployments refused (--format json names them)"


def _dollars(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= _WHOLE else f"{value:.3g}"


_WHOLE = 999.5  # from which nobody wants decimals

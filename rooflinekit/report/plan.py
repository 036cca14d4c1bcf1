"""Plans: candidates and why they lost, classes of requests, hours and months, and inverse answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rooflinekit.decision.economics.price import POWER_NOTE, HourlyPrice
from rooflinekit.decision.planning.classes import ClassFleet, ClassPlan
from rooflinekit.decision.planning.cost import LOAD_NOTE, Point
from rooflinekit.decision.planning.fleet import WIDE
from rooflinekit.decision.planning.inverse import BreakEven, Solution
from rooflinekit.decision.planning.objective import limits_in_words
from rooflinekit.decision.planning.over_time import OverTime
from rooflinekit.decision.planning.plan import Candidate, Fleet, PlanAnswer, split_name
from rooflinekit.decision.planning.rank import OWN_FORMATS, Measurement, Sized, Swing
from rooflinekit.decision.planning.rollout import RolloutPlan
from rooflinekit.model.types.answer import Json
from rooflinekit.model.types.units import format_time, percent, significant
from rooflinekit.report import document as blocks
from rooflinekit.report.document import CellTable, Document, Facts, Items, Section, Words, amount, apart, ms, three
from rooflinekit.report.estimate import command

_SHOWN, _EXPLAINED, _POINTS = 8, 5, 5
_LONG = 26  # letters of a fleet beyond which its pools stand below each other
_SENTENCES, _SOURCES = 3, 2  # below the table at most; prices of which the sources are named there
_MILLION = 7  # column of the price of output tokens
_LOAD, _LOAD_LEGEND = 8, "Load: share of what the objectives allow."
ASSUMPTIONS = (POWER_NOTE, LOAD_NOTE, OWN_FORMATS)
"""Notes that stand below every plan unless options say otherwise: the help has them, and JSON."""
_METRICS = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "E2EL": "e2el_ms"}


def document(answer: PlanAnswer, details: bool = False) -> Document:
    """Document for a buyer; with `details` how it was found."""
    table = _fleets_by_gpu(answer)
    legend = f"Holds: the least probable objective ({answer.confidence * 100:g} % asked). kW: at the peak."
    if any("?" in row[0] for row in table.rows):
        legend += " ?: the fleet at expected times, since too little is known to be surer."
    head = [
        Section(f"{answer.model}: {answer.question}", [Words(", ".join(answer.slo))]),
        Section("", [table, blocks.Legend(table, legend, {_MILLION: "$/M: a million tokens, idle time included."})]),
    ]
    swings = _sensitivity(answer.sensitivity)
    over = over_time_document(answer.over_time) if answer.over_time else []
    if not details:
        known = blocks.notes(_known(answer, "-v shows sizing, latencies and why others lost"))
        return [*head, *apart(Words(*answer.summary[:_SENTENCES], indent="")), *swings, *over, *apart(known)]
    candidates = _candidates(answer)
    rest = len(answer.candidates) - len(_shown(answer))
    left = [f"and {rest} more (--format json or csv)"] if rest > 0 else []
    told = "P, D: prefill, decode replicas. At risk: the objective least likely to hold."
    lost = [f"{number}  {other.lost}" for number, other in enumerate(answer.candidates[1:], 2)]
    return [
        *head,
        *apart(Words(answer.answer, indent="")),
        Section("", [candidates, Words(*left), blocks.Legend(candidates, told, {_LOAD: _LOAD_LEGEND})]),
        *apart(_latencies(answer.best), Facts(*_facts(answer.best))),
        *_measurements(answer.measure),
        *swings,
        *over,
        Section("why the others lost" if lost else "", [Items(*lost, indent="   ", most=_EXPLAINED)]),
        *apart(_front(answer.pareto), blocks.notes(_notes(answer))),
    ]


def _fleets_by_gpu(answer: PlanAnswer) -> CellTable:
    """The cheapest fleet of each accelerator, as it is bought."""
    head = ["", "gpu", "fleet", "GPUs", "hosts", "$/month", "$/M in", "$/M out", "kW", "holds", "evidence"]
    first: dict[str, tuple[int, Candidate]] = {}
    for each in answer.candidates:
        first.setdefault(each.gpu, (len(first) + 1, each))
    rows = []
    for place, each in [*first.values()][:_SHOWN]:
        cost, (_, chance) = each.cost, each.risk
        holds = "-" if chance is None or not each.known else f"{min(math.floor(chance * 100), 99)} %"
        peak = "-" if cost.peak_watts is None else significant(cost.peak_watts / 1e3)
        name, *below = _lines_of(each.name)
        rows.append([
            f"{place}{'' if each.known else '?'}", _short(each.gpu), name, f"{each.gpus:,}",
            f"{sum(host.count for host in each.hosts):,}", amount(cost.usd_per_month, 0), three(cost.input_usd),
            three(cost.output_usd), peak, holds, each.evidence if each.known else f"interval > {WIDE:g}x",
        ])  # fmt: skip
        rows += [["", "", pool, *[""] * (len(head) - 3)] for pool in below]
    return CellTable(head, rows, left=(0, 1, 2, 10), gap=1, drop=(4, 6, 7))


def _lines_of(fleet: str) -> list[str]:
    """A fleet on one line, or where it is long its pools below each other."""
    first, plus, after = fleet.partition(" + ")
    return [first, f"+ {after}"] if plus and len(fleet) > _LONG else [fleet]


def _sensitivity(swings: Sequence[Swing]) -> list[Section]:
    """The fleet with each assumption a fifth off; a dash where no number of its replicas carries the load."""

    def fleet(end: Sized) -> list[str]:
        return ["-" if end.gpus is None else f"{end.gpus:,}", amount(end.usd_per_month, 0)]

    rows = [[swing.name, *fleet(swing.less), *fleet(swing.more)] for swing in swings]
    table = CellTable(["", "GPUs", "$/month", "GPUs", "$/month"], rows)
    told = "On the left a fifth less (fast steps), on the right a fifth more (slow ones); the deployment stays."
    return [Section("the fleet where one assumption is a fifth off", [table, Words(told)])] if swings else []


def _measurements(several: Sequence[Measurement]) -> list[Section]:
    """Worth of each measurement, and its commands."""
    titles = ("the measurements that would pay", *[""] * len(several))
    told = zip(titles, several, strict=False)
    return [Section(title, [Words(f"{each}:"), *map(command, each.commands)]) for title, each in told]


def _short(gpu: str) -> str:
    """Names of several accelerators without what they have in common."""
    kinds = gpu.split("+")
    short = [kind.partition("-")[0] for kind in kinds]
    return "+".join(short if len({*short}) > 1 else kinds)


def _known(answer: PlanAnswer, more: str) -> Iterator[str]:
    """Notes for a buyer beside the table."""
    prices = {gpu: HourlyPrice(**price) for gpu, price in answer.prices.items() if price is not None}
    if len(prices) > _SOURCES:
        each = ", ".join(f"{gpu} ${price.usd_per_gpu_hour:g}" for gpu, price in prices.items())
        yield f"a GPU-hour: {each} (-v has the sources)"
    else:
        yield from (f"{gpu}: {price}" for gpu, price in prices.items())
    yield from (warning for warning in answer.warnings if warning not in ASSUMPTIONS)
    yield f"{answer.tried} settings were tried; {more}"


def rows(answer: PlanAnswer) -> list[Json]:
    """The intervals of a plan over time, else the candidates."""
    return (answer.over_time or answer).to_rows()


def _shown(answer: PlanAnswer) -> list[tuple[int, Candidate]]:
    """The first eight and the best of each level of evidence."""
    every = [*enumerate(answer.candidates, 1)]
    firsts = {each.evidence: place for place, each in reversed(every)}
    return [(place, each) for place, each in every if place <= _SHOWN or place in firsts.values()]


def _candidates(answer: PlanAnswer) -> CellTable:
    """Table of the shown candidates, with the objective that is most at risk."""
    several = len({each.engine for each in answer.candidates}) > 1
    head = ["", "gpu", "replicas", "GPUs", "$/h", "evidence", "at risk", "holds", "load", "$/Mtok"]
    rows = []
    for rank, each in _shown(answer):
        name, chance = each.risk
        risk = f"{name.rpartition(' <= ')[0]} {ms(each.latency(name))}"
        holds = "-" if chance is None else f"{min(math.floor(chance * 100), 99)} %"
        mark, load = "" if each.known else "?", 1.0 - min(fleet.headroom for fleet in each.fleets)
        hour, million = amount(each.cost.usd_per_hour), three(each.cost.million_tokens_usd)
        plan, *below = _lines_of(f"{each.name} {each.engine}" if several else each.name)
        row = [f"{rank}{mark}", _short(each.gpu), plan, f"{each.gpus:,}", hour, each.evidence.removeprefix("fitted ")]
        used = "-" if any(fleet.binds == ("users",) for fleet in each.fleets) else percent(load)
        rows.append([*row, risk, holds, used, million])
        rows += [["", "", pool, *[""] * (len(head) - 3)] for pool in below]
    return CellTable(head, rows, left=(0, 1, 2, 5, 6), gap=1, drop=(9, _LOAD, 5, 6))


def _latencies(best: Candidate) -> CellTable:
    """The best candidate at the peak."""
    names = ("mean", "p50", "p90", "p95", "p99")
    rows = [[label, *(ms(best.predicted[key].get(name)) for name in names)] for label, key in _METRICS.items()]
    return CellTable(["at the peak", *names], rows)


def _facts(best: Candidate) -> Iterator[tuple[str, str]]:
    """Bound, knee, settings, money, energy and start of the best."""
    for fleet in best.fleets:
        yield from _fleet(fleet)
    cost = best.cost
    if cost.usd_per_hour is not None:
        read = f"${three(cost.input_usd)} input, ${three(cost.cached_input_usd)} cached input"
        yield "tokens", f"{read}, ${three(cost.output_usd)} output, a million each"
    if cost.watts is not None and cost.joules_per_output_token is not None:
        hosts = "; ".join(each.power for each in best.hosts if each.size > 1)
        joules = significant(cost.joules_per_output_token)
        site = f"at the meter {cost.watts / 1e3:,.1f} kW in the mean, {joules} J an output token"
        yield "power", "; ".join(filter(None, (site, hosts)))
    if best.interval:
        spans = list[str]()
        for key, (low, high) in best.interval.items():
            start, _, metric = key.removesuffix("_ms").rpartition("_")
            spans.append(f"{start or 'mean'} {metric.upper()} {ms(low)} to {ms(high, 'no end')}")
        yield "interval", f"90 %: {', '.join(spans)}"
    if best.errors:
        errors = (f"{name.partition(' <= ')[0]} ± {ms(value)}" for name, value in best.errors.items())
        yield "played", f"{best.played}; standard errors: {', '.join(errors)}"


def _fleet(fleet: Fleet) -> Iterator[tuple[str, str]]:
    knee = f" (knee {significant(fleet.knee)}, approximate)" if fleet.knee is not None else ""
    settings = ("token_budget", "max_num_seqs", "max_model_len")
    words = [f"{key} {fleet.scenario[key]}" for key in settings if key in fleet.scenario]
    role = {"serve": "replica"}.get(fleet.role, fleet.role)
    if fleet.binds == ("users",):
        yield role, f"{fleet.load:,.0f} users; whether it serves more was not asked (--max users)"
    else:
        most = f"{significant(fleet.load)} requests/s of at most {significant(fleet.capacity)}{knee}"
        yield role, f"{most}; limited by {limits_in_words(fleet.binds)}; {percent(fleet.headroom)} headroom"
    yield "", ", ".join([*words, f"cold start {fleet.cold_start_s:.0f} s"])


def _front(points: Sequence[Point]) -> CellTable:
    """Speed against use, thinned."""
    speed = sorted((point for point in points if "speed" in point.on), key=lambda point: point.load)
    if len(speed) > _POINTS:
        speed = [speed[round(place * (len(speed) - 1) / (_POINTS - 1))] for place in range(_POINTS)]
    head = ["Pareto front", "", "load", "tok/s/user", "tok/s/GPU", "TTFT", "request", "$/Mtok"]
    rows = []
    for point in speed:
        speeds = [significant(point.load), f"{point.tok_s_per_user:.0f}", f"{point.tok_s_per_gpu:.0f}"]
        times = [ms(point.ttft_ms), ms(point.e2el_ms), three(point.usd_per_million_tokens)]
        rows.append([point.scenario["gpu"], split_name(point.scenario), *speeds, *times])
    return CellTable(head, rows, left=(0, 1))


def _notes(answer: PlanAnswer) -> Iterator[str]:
    yield from filter(None, (answer.router, *answer.stand_ins))
    for gpu, price in answer.prices.items():
        if price is not None:
            yield f"{gpu}: {HourlyPrice(**price)}"
    yield from (warning for warning in answer.warnings if warning not in ASSUMPTIONS)
    refused = f"; {len(answer.refused)} deployments refused (--format json names them)" if answer.refused else ""
    yield f"{answer.tried} settings were tried{refused}; `rooflinekit plan --help` lists what every plan assumes"


_CLASS_HOURS = 24  # rows of a table of hours at most


def classes_document(plan: ClassPlan) -> Document:
    """The whole answer."""
    told = (
        "First: priority; 0 is served before 1. Within: share of the requests within the limit. "
        "Holds: how likely the objective is to hold."
    )
    asked = f"({plan.confidence * 100:g} % asked)"
    groupings = [[each.fleets, f"{each.gpus:,}", amount(each.usd_per_hour)] for each in plan.groupings]
    compared = CellTable(["fleets", "GPUs", "$/h"], groupings if len(groupings) > 1 else [])
    hours = (_class_hours(number, fleet) for number, fleet in enumerate(plan.fleets, 1) if fleet.hours)
    return [
        Section(plan.question, [Words(plan.answer)]),
        Section("", [_classes(plan), Words(f"{told} {asked}")]),
        *apart(_fleets(plan), compared, *hours),
        Section("hosts", [Items(*(each.stands for each in plan.hosts))]),
        *apart(blocks.notes(plan.warnings)),
    ]


def _classes(plan: ClassPlan) -> CellTable:
    head = ["class", "fleet", "req/s", "first", "objective", "predicted", "within", "holds"]
    rows = []
    for each in plan.classes:
        own = [each.name, "-" if each.fleet is None else str(each.fleet), three(each.rate), str(each.priority)]
        if each.deadline_h is not None and not each.unmet:
            done = "-" if each.done_h is None else f"{significant(each.done_h)} h"
            rows.append([*own, f"{each.requests:,.0f} in {each.deadline_h:g} h", done, "-", "-"])
        for place, held in enumerate(each.objectives):
            sure = "-" if held.probability is None else f"{math.floor(min(held.probability, 0.99) * 100)} %"
            start = own if not place else ["", "", "", ""]
            objective = held.objective.removeprefix(f"{each.name} ")
            rows.append([*start, objective, ms(held.predicted_ms), percent(held.within, 1), sure])
        if each.unmet:
            rows.append([*own, "cannot be met", "-", "-", "-"])
    return CellTable(head, rows, left=(0, 4), gap=1, drop=(3,))


def _fleets(plan: ClassPlan) -> CellTable:
    head = ["fleet", "classes", "gpu", "replicas", "GPUs", "$/h", "load", "binds"]
    rows = []
    for number, fleet in enumerate(plan.fleets, 1):
        (part,), best = fleet.candidate.fleets, fleet.candidate
        rows.append([str(number), ", ".join(fleet.classes), best.gpu, best.name, f"{fleet.gpus:,}",
                     amount(best.cost.usd_per_hour), percent(1.0 - part.headroom),
                     limits_in_words(part.binds)])  # fmt: skip
    return CellTable(head, rows, left=(1, 2, 3, 7), gap=1, drop=(7,))


def _class_hours(number: int, fleet: ClassFleet) -> CellTable:
    names = list(dict.fromkeys(name for each in fleet.hours for name in each.jobs))
    head = [f"fleet {number}, hour", "req/s", *(f"{name} req/s" for name in names), "replicas"]
    rows = []
    for each in fleet.hours[:_CLASS_HOURS]:
        jobs = [three(each.jobs.get(name, 0.0)) for name in names]
        rows.append([f"{each.hour:.4g}", three(each.rate), *jobs, f"{each.replicas:,}"])
    return CellTable(head, rows)


_ROWS, _BAR = 24, 24  # rows of a table at most, and letters of a bar


def over_time_document(made: OverTime) -> Document:
    """The answer, then hours, months and terms."""
    tables = (_hours(made), _months(made), _terms(made), _policies(made), _tco(made))
    return [Section(f"over time: {made.profile}", [Words(made.answer)]), *apart(*tables, blocks.notes(made.warnings))]


def _tco(made: OverTime) -> Facts:
    """One accelerator a month."""
    if made.tco is None:
        return Facts()
    each, said = made.tco, made.tco.inputs
    parts = f"${each.capital_usd:,.2f} capital + ${each.running_usd:,.2f} power, racks and staff"
    owned = f"{parts} = ${each.capital_usd + each.running_usd:,.2f} a GPU and month"
    terms = f"${said.purchase:,.0f} a GPU over {said.years:g} years at {percent(said.interest, 1)}"
    given = f"{terms}, {percent(said.residual)} left, ${said.power_price:g}/kWh, PUE {said.pue:g}"
    return Facts(("owning", owned), ("", given))


def _policies(made: OverTime) -> CellTable:
    """The cheapest setting of each policy for each cold start, the best with a star."""
    if made.autoscaling is None:
        return CellTable([], [])
    head = ["cold start", "policy", "target", "within", "simulated", "GPU-hours", "$ a month", "changes/h", "back/h",
            "holds"]  # fmt: skip
    return CellTable(head, [
        [f"{each.cold_start_s:.0f} s", f"{each.policy}{'*' if each is made.autoscaling.best else ''}",
         percent(each.target), percent(min(each.attained.values()), 2),
         percent(min(each.simulated.values()), 1) if each.simulated else "-", f"{each.gpu_hours_per_month:,.0f}",
         amount(each.usd_per_month, 0), f"{each.changes_per_hour:.2f}", f"{each.reversals_per_hour:.2f}",
         "yes" if each.meets else "no"]
        for each in made.autoscaling.policies
    ], left=(1,), gap=1, drop=(5,))  # fmt: skip


def _hours(made: OverTime) -> CellTable:
    """The first month: of more than 24 intervals the largest fleet of each of 24 parts."""
    rows = [row for row in made.intervals if row.month == 1]
    if len(rows) == 1:
        return CellTable([], [])
    size, most = -(-len(rows) // _ROWS), max(row.gpus for row in rows)
    cells = []
    for start in range(0, len(rows), size):
        row = max(rows[start : start + size], key=lambda row: row.gpus)
        bar = "█" * max(round(_BAR * row.gpus / most), 1)
        counts = [three(row.rate), f"{row.replicas:,}", f"{row.gpus:,}", amount(row.usd_per_hour)]
        cells.append([f"{rows[start].hour:.4g}", *counts, bar])
    return CellTable(["hour", "req/s", "replicas", "GPUs", "$/h", ""], cells, left=(5,))


def _months(made: OverTime) -> CellTable:
    bought = {month: more for month, more, _ in made.buy}
    head = ["month", "peak req/s", "GPUs", "buy", "GPU-hours", "$ by the hour", "$ for the peak"]
    return CellTable(head, [
        [str(row.month), three(row.peak_rate), f"{row.gpus:,}", f"{bought.get(row.month, 0) or ''}",
         f"{row.gpu_hours:,.0f}", amount(row.usd, 0), amount(row.peak_usd, 0)]
        for row in made.months if len(made.months) > 1
    ])  # fmt: skip


def _terms(made: OverTime) -> CellTable:
    head = ["paid as", "$/GPU-hour", "GPUs at most", "GPU-hours", "$"]
    return CellTable(head, [
        [each.term, f"{each.usd_per_gpu_hour:.2f}", f"{each.gpus:,.0f}", f"{each.gpu_hours:,.0f}", amount(each.usd, 0)]
        for each in made.paid if made.saved_usd
    ])  # fmt: skip


def inverse_document(found: Solution | BreakEven) -> Document:
    """The whole answer."""
    if isinstance(found, Solution):
        return [Section("", [Words(f"{found.model} on {found.gpu}: {found.answer}"), blocks.notes(found.warnings)])]
    head = ["gpu", "GPUs", "$/GPU-hour", "$/hour", "break-even $/GPU-hour"]
    keys = ("usd_per_gpu_hour", "usd_per_hour", "break_even_usd")
    cells = [[row["gpu"], amount(row["gpus"], 0), *(amount(row.get(key)) for key in keys)] for row in found.rows]
    failed = (f"{row['gpu']}: {row['why']}" for row in found.rows if row["why"])
    answer = Words(f"{found.model}: {found.answer}")
    return apart(answer, CellTable(head, cells), blocks.notes((*failed, *found.warnings)))


def inverse_rows(found: Solution | BreakEven) -> list[dict[str, object]]:
    """One flat row, or one for each accelerator."""
    if isinstance(found, BreakEven):
        return [*found.rows]
    keys = ("what", "value", "unit", "model", "gpu", "answer")
    joined = {"subject_to": "; ".join(found.subject_to), "binds": "; ".join(found.binds)}
    return [{key: getattr(found, key) for key in keys} | joined | found.at]


def rollout_document(found: RolloutPlan) -> Document:
    """Document of a training step on each fleet."""
    head = ["generate", "train", "step", "generation", "last 10 %", "training", "weights", "GPU-h", "tok/s/GPU"]
    cells = []
    for each in found.steps:
        gpus = [amount(each.rollout_gpus, 0), amount(each.train_gpus, 0) if each.train_gpus else "in turn"]
        parts = (each.step_s, each.generation_s, each.tail_s, each.training_s, each.sync_s)
        cells.append([*gpus, *map(format_time, parts), amount(each.gpu_hours), amount(each.tok_s_per_gpu, 0)])
    work = f"A step has {found.tokens:,.0f} tokens and {found.train_flops:.3g} FLOPs of training"
    size = f"{work}; each replica then gets {found.weight_bytes / 1e9:,.1f} GB."
    many = f"{found.best.gpus} GPU{'s' * (found.best.gpus > 1)}"
    best = f"The fewest GPU-hours: {many}, {format_time(found.best.step_s)} a step."
    first = Section(f"{found.model} on {found.gpu}: {found.question}", [Words(f"{size} {best}")])
    return [first, *apart(CellTable(head, cells), blocks.notes(found.notes))]

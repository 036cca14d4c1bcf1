"""Measurements beside predictions: scores, comparisons, what a fit changed, a running fleet, what became slower."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from statistics import median
from xml.etree import ElementTree as ET

from rooflinekit.evidence.accuracy import FIGURES, Accuracy
from rooflinekit.evidence.compare import CAUSES, TITLES, ComparedMetric, ComparedRun, Comparison
from rooflinekit.evidence.engine_fit.fit import EngineFit, Error
from rooflinekit.evidence.guard import Check, Guarded
from rooflinekit.evidence.kernel_fit.groups import KEY
from rooflinekit.evidence.league import OURS, League, Standing
from rooflinekit.evidence.league import LeagueFigure as Rated
from rooflinekit.evidence.watching import Beside, Figure, Watched
from rooflinekit.evidence.why import Why
from rooflinekit.model.types.units import format_time, percent, significant
from rooflinekit.report import document as blocks
from rooflinekit.report.document import CellTable, Document, Items, Section, Words, apart, footer, ms, signed_ms, three
from rooflinekit.specs.calibration.served import ServedFile
from rooflinekit.specs.engines import UNITLESS
from rooflinekit.version import __version__

WRITTEN = {
    "Accuracy": "accuracy",
    "Comparison": "comparison",
    "EngineFit": "fit",
    "Guarded": "guard",
    "League": "league",
    "Watched": "watch",
}
"""Types of answers, and what stands before the `document` and the `rows` of each."""
_HEADER = ["n", "median", "p90", "bias", "in 80 %", "in 90 %", "width"]
_SHOWN = ("median_ape", "p90_ape", "bias", "coverage80", "coverage90")
_NAMED = 8  # wins and losses of a league by name
_METRIC_WORDS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2EL", "output_tok_s_total": "tok/s"}
_KEYS = {
    "op": ("op", *KEY, "metric"),
    "quantity": ("engine", "quantity"),
    "metric": ("source_key", "model", "gpu", "metric"),
}


def accuracy_rows(found: Accuracy) -> list[dict[str, object]]:
    """One flat row a group, with what made it."""
    return [
        {key: group.key.get(key, "") for key in _KEYS[found.by]}
        | {"n": group.n, "answered": group.answered}
        | {figure: getattr(group, figure) for figure in FIGURES}
        | {"calibration": group.calibration, "version": __version__}
        for group in found.groups
    ]


def accuracy_document(found: Accuracy) -> Document:
    """The whole answer."""
    summary = [
        [kind, str(sum(group.n for group in found.kinds[kind])), *_cells(figures)]
        for kind, figures in found.summary.items()
    ]
    counted = f"{found.answered} of {found.rows} rows answered; errors are |predicted − measured| / measured"
    used = ", ".join(f"{name} ({digest})" for name, digest in found.calibrations.items())
    tables = (CellTable(["median over groups", *_HEADER], summary), *(_groups(found, kind) for kind in found.summary))
    left = (Words(f"{n} rows not answered: {reason}") for reason, n in found.unanswered.items())
    return [Section(counted, []), *apart(*tables, *left), footer(f"calibration {used}" if used else "", ())]


_NAME = 34  # columns of a group's name


def _groups(found: Accuracy, kind: str) -> CellTable:
    rows = []
    for group in (each for each in found.groups if each.key[found.by] == kind):
        name = " ".join(group.key[key] for key in _KEYS[found.by] if key in group.key and key != found.by)
        rows.append([name, str(group.n), *_cells({figure: getattr(group, figure) for figure in FIGURES})])
    return CellTable([f"{kind}, by group", *_HEADER], rows, room=_NAME)


def _cells(figures: Mapping[str, float | None]) -> list[str]:
    """Cells of a group's row; its width is that of the 90 % interval."""
    width = figures["width"]
    return [*(_percent(figures[name]) for name in _SHOWN), "-" if width is None else f"{width:.2g}x"]


def _percent(value: float | None) -> str:
    return "-" if value is None else percent(value, 1)


_FACTS = ("model", "gpu", "engine", "tp", "isl", "osl", "concurrency", "rate", "requests")


def comparison_rows(found: Comparison) -> list[dict[str, object]]:
    """One flat row for each run and metric."""
    return [
        {"source": run.source, "tool": run.tool}
        | {name: getattr(run.facts, name) for name in _FACTS}
        | {"metric": metric.metric, "statistic": metric.statistic}
        | {"measured": metric.measured, "predicted": metric.predicted, "error": metric.error}
        | {"low": metric.low, "high": metric.high, "verdict": metric.verdict}
        | {"calibration_hash": run.calibration["hash"] if run.calibration else "", "version": __version__}
        for run in found.runs
        for metric in run.metrics
    ]


def comparison_document(found: Comparison) -> Document:
    """The whole answer."""
    failed = (f"not compared: {source}: {why.removeprefix(f'{source}: ')}" for source, why in found.failed.items())
    return [*(section for run in found.runs for section in _run(run)), *apart(Items(*failed))]


def _run(run: ComparedRun) -> Iterator[Section]:
    facts = run.facts
    many = f"{facts.tp} x " if facts.tp and facts.tp > 1 else ""
    parts = [f"{facts.model} on {many}{facts.gpu}, {facts.engine}"]
    if facts.isl:
        parts.append(f"{facts.isl:.0f} token{'' if facts.isl == 1 else 's'} in, {facts.osl:.0f} out")
        parts.append(f"{facts.rate:g} requests/s" if facts.rate else f"{facts.concurrency} in flight")
    yield Section(f"{run.source} ({run.tool})", [Words("; ".join(parts))])
    yield from apart(*_compared(run))
    yield footer(blocks.calibrated(run.calibration), run.notes[run.doubted :])


def _compared(run: ComparedRun) -> Iterator[blocks.Block]:
    """What doubts the run, its figures beside the predicted ones, and what the gap is made of."""
    if run.doubted:
        yield blocks.notes(run.notes[: run.doubted])
    cells, judged = [], []
    for each in run.metrics:
        error = percent(each.error, 1, signed=True)
        cells.append([each.title, each.statistic, each.text(each.measured), each.text(each.predicted), error])
        if each.verdict:
            judged.append([each.title, _interval(each), each.verdict])
    yield CellTable(["", "", "measured", "predicted", "error"], cells, left=(0, 1))
    if judged:
        yield CellTable(["", "90 % interval", "the run is"], judged, left=(0, 2))
    if run.gap is not None:
        causes = [[cause, signed_ms(getattr(run.gap, f"{cause}_ms"))] for cause in CAUSES]
        yield CellTable(["measured − predicted E2EL", signed_ms(run.gap.e2e_ms)], causes)
        if run.gap.in_flight is not None:
            offered = f" of {run.facts.concurrency}" if run.facts.concurrency else ""
            yield Words(f"{run.gap.in_flight:.1f}{offered} requests were in flight on average")
    if run.why is not None:
        yield from _reconciled(run, run.why)


def _reconciled(run: ComparedRun, why: Why) -> Iterator[blocks.Block]:
    times, rows = [each for each in run.metrics if each.metric in ("ttft_ms", "tpot_ms")], []
    for reason in why.reasons:
        changes = ", ".join(f"{_option(change.option)} {_said(change.value)}" for change in reason.changes)
        was = ", ".join(_said(change.was) for change in reason.changes)
        predicted = [ms(reason.predicted[each.metric]) for each in times]
        rows.append([changes, was, *predicted, f"{reason.misfit:.1f}", f"{reason.score:.1f}"])
    head = ["changes that explain it", "in place of", *(each.title for each in times), "misfit", "score"]
    if rows:
        rows.append(["measured", "", *(ms(each.measured) for each in times), "", ""])
        yield CellTable(head, rows, left=(0, 1), room=_CHANGES)
    more = "" if rows else "; none is worth its price" if why.misfit > 1.0 else ": it needs no explanation"
    yield Words(f"misfit as assumed {why.misfit:.1f}, {why.tried} changes tried{more}")


def _option(name: str) -> str:
    return _FACT_WORDS.get(name, f"--{name.replace('_', '-')}")


def _said(value: object) -> str:
    if value is None:
        return "its default"
    return f"{value:g}" if isinstance(value, float) else str(value)


_CHANGES = 26  # columns of the changes, of which several take lines of their own
_FACT_WORDS = {
    "hits": "cached share of prompts",
    "cv": "burstiness",
    "requests": "requests in all",
    "warmup": "requests of warm-up",
}


def _interval(metric: ComparedMetric) -> str:
    if metric.low is None or metric.high is None:
        return ""
    return f"{metric.text(metric.low).removesuffix(' tok/s')} – {metric.text(metric.high)}"


_LONGEST = 40  # letters of a file's name


def fit_document(fit: EngineFit) -> Document:
    """The whole answer."""
    noise = ", ".join(f"{TITLES[name]} {percent(size, 1)}" for name, size in fit.noise.items())
    doubts = [f"unexplained by the costs, one standard deviation: {noise}"]
    if fit.alike:
        pairs = ", ".join(f"{first} and {second}" for first, second in fit.alike)
        doubts.append(f"note: the files tell these apart only by what was believed before: {pairs}")
    doubts += [f"note: {note}" for note in fit.notes]
    doubts += [f"not used: {name}: {why}" for name, why in fit.failed.items()]
    limits = {"most": "at the most", "least": "at the least"}
    costs = []
    for each in fit.outcomes:
        name, before = each.prior.name, _cost(each.prior.name, each.prior.value, each.prior.spread)
        after = _cost(name, each.value, each.spread)
        costs.append([name, before, after, percent(each.data), limits.get(each.at, "")])
    table = CellTable(["engine cost", "before", "after", "data", ""], costs, left=(0, 4))
    return apart(table, _errors(fit), Items(*doubts))


def _cost(name: str, value: float, spread: float) -> str:
    if name in UNITLESS:
        return f"{value:.3f} ± {spread:.3f}"
    return f"{format_time(value)} ± {format_time(spread)}"


def _errors(fit: EngineFit) -> CellTable:
    ends = (file.name if len(file.name) <= _LONGEST else f"…{file.name[1 - _LONGEST :]}" for file in fit.files)
    errors: list[tuple[str, ServedFile | Error]] = [*zip(ends, fit.files, strict=True)]
    errors += ((f"all, {TITLES[name]}", error) for name, error in fit.errors.items())
    table = []
    for name, each in errors:
        figures = ("" if figure is None else percent(figure, 1) for figure in (each.before, each.after, each.unseen))
        table.append([name, str(each.rows), *figures])
    return CellTable(["mean error", "figures", "before", "after", "left out"], table)


_SAID = {"rate": "the request rate", "isl": "the prompts' length", "osl": "the answers' length", "hits": "prefix hits"}
_DRIFTS = {"tpot": "TPOT is", "ttft": "TTFT is", "stalls": "requests that stand still hold TPOT"}
_GROWS = "grows"  # above the knee
_LITTLE = 0.01  # of a cache, or of a request that waits: less makes no ratio
_LEAST = 1e-3  # ms: a part of a gap that is less is rounding
_MOVED = 0.05  # of the predicted TPOT: less is not worth a sentence


def watch_document(found: Watched) -> Document:
    """The last interval beside its prediction, its gap, what drifts, and what is left."""
    now = found.now
    sizes = f"{now.isl:,.0f} tokens in, {now.osl:,.0f} out"
    hits = "" if now.hits is None else f", {percent(now.hits)} of the prompt in the prefix cache"
    title = f"{found.model} on {blocks.machine(found.gpu, found.gpus, {})}, {found.engine}"
    span = f"{_clock(now.start)} to {_clock(now.end)} UTC, interval {len(found.intervals)}"
    rows = [
        ["TTFT", *_times(now.ttft)],
        ["TPOT", *_times(now.tpot)],
        ["output", *_beside(now.output_tok_s, now.output_expected_tok_s, "{:,.0f} tok/s".format)],
    ]
    if now.kv_use is not None:
        rows.append(["cache in use", *_beside(now.kv_use, now.kv_expected, percent)])
    if now.waiting is not None:
        rows.append(["requests waiting", *_beside(now.waiting, now.waiting_expected, "{:.1f}".format)])
    preempted = [f"{now.preemptions:.0f} preemptions"] if now.preemptions else []
    table = CellTable(["", "measured", "predicted", "90 % interval", "ratio"], rows, left=(0,))
    lasting = Items(*preempted, *_drifts(found), *_moved(found), *_left(found))
    return [
        Section(title, [Words(f"{span}: {significant(now.rate)} requests/s, {sizes}{hits}")]),
        *apart(table, Items(*_gaps(now)), lasting),
        footer(blocks.calibrated(found.calibration), found.notes),
    ]


def _times(figure: Figure) -> list[str]:
    measured = ms(figure.measured, "not said")
    if figure.expected == math.inf:
        return [measured, _GROWS, "", ""]
    span = f"{ms(figure.low)} – {ms(figure.high, 'no end')}"
    return [measured, ms(figure.expected), span, _ratio(figure.measured, figure.expected)]


def _beside(measured: float | None, expected: float | None, form: Callable[[float], str]) -> list[str]:
    told = ["not said" if measured is None else form(measured)]
    return [*told, _GROWS if expected is None else form(expected), "", _ratio(measured, expected)]


def _ratio(measured: float | None, expected: float | None) -> str:
    return f"x {measured / expected:.2f}" if measured is not None and expected and expected >= _LITTLE else ""


def _part(value: float) -> str:
    return signed_ms(value if abs(value) >= _LEAST else 0.0)


def _gaps(now: Beside) -> Iterator[str]:
    if now.tpot.measured is not None and now.batch_ms is not None and now.step_ms is not None:
        stalls = "" if now.stall_ms is None else f"{_part(now.stall_ms)} from requests that stood still, "
        steps = f"{stalls}{_part(now.step_ms)} from steps of that many"
        batch = f"{_part(now.batch_ms)} from {now.in_flight:.1f} requests under way"
        yield f"gap of TPOT {signed_ms(now.tpot.measured - now.tpot.expected)}: {batch}, {steps}"
    if now.ttft.measured is not None and now.queue_ms is not None and now.prompt_ms is not None:
        parts = f"{_part(now.queue_ms)} from waiting, {_part(now.prompt_ms)} from the prompt's own steps"
        yield f"gap of TTFT {signed_ms(now.ttft.measured - now.ttft.expected)}: {parts}"


def _drifts(found: Watched) -> Iterator[str]:
    for drift in found.drifts:
        side = "above" if drift.change > 0 else "below"
        change = f"{_DRIFTS[drift.metric]} {percent(abs(drift.change))} {side} the usual"
        yield f"{change} since {_clock(drift.since)}: {drift.cause}"


def _moved(found: Watched) -> Iterator[str]:
    if found.moved:
        part = max(found.moved, key=lambda name: abs(found.moved[name] - 1.0))
        change = found.moved[part] - 1.0
        if abs(change) >= _MOVED:
            moved = percent(change, signed=True)
            yield f"{_SAID[part]} alone moves the predicted TPOT by {moved} against the first hour"


def _left(found: Watched) -> Iterator[str]:
    if (left := found.headroom) is not None:
        words = f"headroom {percent(left.share)}: {significant(left.rate)} of {significant(left.knee)} requests/s"
        if left.share < 0:
            sustained = significant(left.knee)
            words = f"no headroom: {significant(left.rate)} requests/s come, and {sustained} can be sustained"
        elif left.hours_left is not None:
            grows = "now" if left.peak is None else f"from day to day, {significant(left.peak)} in the highest hour"
            words += f"; as the rate grows {grows}, none is left in {_spell(left.hours_left)}"
            if left.hours_between is not None:
                words += f" (90 % interval {' to '.join(map(_spell, left.hours_between))})"
        if left.day_change is not None and left.day_between is not None:
            between = " to ".join(percent(end, signed=True) for end in left.day_between)
            words += f"; {percent(left.day_change, signed=True)} (90 % interval {between})"
            words += " against the same hours a day before"
        if left.hours_if_repeated is not None:
            words += f"; if each day adds as much, none is left in {' to '.join(map(_spell, left.hours_if_repeated))}"
        yield words
        if left.known_from is not None:
            yield f"too early to tell a growth from the swing of a week: known from {_clock(left.known_from)}"


def _spell(hours: float) -> str:
    """A time to come.

    >>> _spell(3.25), _spell(100.0)
    ('3.2 hours', '4 days')
    """
    return f"{hours:.1f} hours" if hours < 48.0 else f"{hours / 24.0:.0f} days"


def _clock(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%a %H:%M}"


_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_AGAINST = {"baseline": "in the baseline", "prediction": "predicted"}


class _WholeLines(Items):
    """Items of which each is one line, however long: what reads them counts lines."""

    def text(self, width: int = blocks.WIDTH) -> list[str]:
        return [*self.lines]


def guard_rows(found: Guarded) -> list[dict[str, object]]:
    """One flat row for each check, the regressions first."""
    checks = sorted(found.to_dict()["checks"], key=lambda row: not row["regressed"])
    return [row | {"against": found.against, "version": found.version} for row in checks]


def guard_line(row: Check, against: str) -> str:
    """A check in one line."""
    measured, expected = (three(value) if row.rate else format_time(value) for value in (row.measured, row.expected))
    share = f", {percent(row.share)} of the suite's time" if row.share is not None else ""
    change, limit = (percent(each, 1, signed=True) for each in (row.change, row.limit))
    told = f"{row.name}: {measured}, {expected} {_AGAINST[against]} ({change} time, limit {limit}{share})"
    return f"{told}; {row.cause}" if row.cause else told


def guard_document(found: Guarded) -> Document:
    """The answer: how many, which, and why one may believe it."""
    slow = [guard_line(row, found.against) for row in found.regressions]
    title = f"{len(slow)} of {len(found.checks)} rows regressed against the {found.against}"
    faster = sum(row.change < -row.limit for row in found.checks) if found.against == "baseline" else 0
    more = [f"{faster} rows are faster by more than their limit; a new baseline would hold them"] if faster else []
    half, every = (percent(each(row.detectable for row in found.checks), 1) for each in (median, max))
    found_in = "any row" if half == every else f"half of the rows, one of {every} in all"
    limits = f"noise: {found.noise}" if found.against == "baseline" else f"limit: {found.noise}"
    limits += f"; a slow-down of {half} is found in {found_in}"
    return [Section(title, [_WholeLines(*slow)]), footer(limits, (*more, *found.notes), found.version)]


def junit_xml(found: Guarded) -> str:
    """JUnit XML: a test for every row, and a failure for every regression.

    >>> from rooflinekit.evidence.guard import Check, Guarded
    >>> print(junit_xml(Guarded("baseline", (Check("gemm", 1e-3, 1e-3, False, 0.0, 0.1, 0.2, 1.0),), "")))
    <testsuite name="rooflinekit guard" tests="1" failures="0">
      <testcase classname="baseline" name="gemm" />
    </testsuite>
    """
    tests, failures = str(len(found.checks)), str(len(found.regressions))
    suite = ET.Element("testsuite", name="rooflinekit guard", tests=tests, failures=failures)
    for row in found.checks:
        case = ET.SubElement(suite, "testcase", classname=found.against, name=_NO_XML.sub("?", row.name))
        if row.regressed:
            ET.SubElement(case, "failure", message=_NO_XML.sub("?", guard_line(row, found.against)))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode")


def league_rows(found: League) -> list[dict[str, object]]:
    """One flat row a figure, with every tool's answer, its error and who is nearer."""
    tools = [each.tool for each in found.standings]
    names = ("name", "source", "model", "gpu", "engine", "users", "metric", "measured")
    return [
        {name: getattr(each, name) for name in names}
        | {tool: each.answers.get(tool) for tool in tools}
        | {f"{tool} error": each.error(tool) for tool in tools}
        | {f"against {tool}": each.outcome(tool) for tool in tools if tool != OURS}
        | {"version": __version__}
        for each in found.figures
    ]


def league_document(found: League) -> Document:
    """The standings, then wins and losses by name."""
    head = ["", "answered", "error", "bias", "ours there", "wins", "losses", "draws"]
    lines = [_league_standing(each) for each in found.standings]
    others = [each.tool for each in found.standings if each.tool != OURS]
    absent = [Words(f"{name} is not installed here, so it was not asked") for name in found.absent]
    told = Words("error: median over source, model, accelerator and metric. A win: ours is nearer")
    return [
        Section(f"{len(found.figures):,} measured figures", [CellTable(head, lines, left=(0,))]),
        Section("", [told, *absent]),
        *(section for tool in others for section in _league_named(found, tool)),
        *apart(*(Words(f"{count} not answered: {why}") for why, count in found.unanswered.items())),
        footer("", ()),
    ]


def _league_standing(each: Standing) -> list[str]:
    def share(value: float | None, signed: bool = False) -> str:
        return "–" if value is None else percent(value, 1, signed=signed)

    ours, counts = share(each.ours), [str(each.wins), str(each.losses), str(each.draws)]
    beside = [""] * 4 if each.tool == OURS else [ours, *counts]
    return [each.tool, f"{each.answered:,}", share(each.error), share(each.bias, signed=True), *beside]


def _league_named(found: League, tool: str) -> list[Section]:
    sections = []
    for outcome, words in (("win", "nearer than"), ("loss", "further off than")):
        own = [each for each in found.figures if each.outcome(tool) == outcome]
        own.sort(key=lambda each: -abs(_league_miss(each, OURS) - _league_miss(each, tool)))
        head, cells = [f"{OURS} is {words} {tool}", "", "measured", "ours", tool], []
        for each in own[:_NAMED]:
            answers = [_league_answer(each, name) for name in (OURS, tool)]
            cells.append([each.name, _METRIC_WORDS.get(each.metric, each.metric), three(each.measured), *answers])
        more = [Words(f"and {len(own) - _NAMED:,} more")] if len(own) > _NAMED else []
        if own:
            sections.append(Section("", [CellTable(head, cells, left=(0, 1)), *more]))
    return sections


def _league_miss(each: Rated, tool: str) -> float:
    return abs(math.log((each.answers[tool] or 1.0) / each.measured))


def _league_answer(each: Rated, tool: str) -> str:
    answer, error = each.answers[tool], each.error(tool)
    return "–" if answer is None or error is None else f"{three(answer)} ({percent(error, 0, signed=True)})"

"""Measurements beside predictions: scores of kernels and runs, comparisons, and what a fit to benchmarks changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rooflinekit.evidence.accuracy import Accuracy, Score
from rooflinekit.evidence.compare import CAUSES, Comparison, Metric, Run
from rooflinekit.evidence.engine_fit.fit import EngineFit
from rooflinekit.model.types.units import format_bytes, format_time, percent
from rooflinekit.report.document import Document, Items, Section, Table, Words, calibrated, footer, ms, signed_ms
from rooflinekit.specs.engines import UNITLESS
from rooflinekit.version import __version__

_HEADER = ["n", "median", "mean", "p90", "bias", "in 90 %"]
_KEYS = {
    "op": ("op", "gpu", "engine", "dtype", "kv_dtype", "routing", "collective", "mode", "kind", "metric"),
    "quantity": ("engine", "quantity"),
    "metric": ("source_key", "model", "gpu", "metric"),
}


def accuracy_rows(found: Accuracy) -> list[dict[str, Any]]:
    """One flat row a group, with what made it."""
    return [
        {key: group.key.get(key, "") for key in _KEYS[found.by]}
        | {"n": group.n, "answered": group.answered, "median_ape": group.median_ape, "mape": group.mape}
        | {"p90_ape": group.p90_ape, "bias": group.bias, "coverage90": group.coverage90}
        | {"calibration": group.calibration, "version": __version__}
        for group in found.groups
    ]


def accuracy_document(found: Accuracy) -> Document:
    """The whole answer."""
    summary = [
        [
            kind,
            str(sum(group.n for group in found.kinds[kind])),
            *(_percent(value) for value in figures.values()),
        ]
        for kind, figures in found.summary.items()
    ]
    counted = f"{found.answered} of {found.rows} rows answered; errors are |predicted − measured| / measured"
    used = ", ".join(f"{name} ({digest})" for name, digest in found.calibrations.items())
    return [
        Section(counted, []),
        Section("", [Table(["median over groups", *_HEADER], summary)]),
        *(Section("", [_groups(found, kind)]) for kind in found.summary),
        *(Section("", [Words(f"{n} rows not answered: {reason}")]) for reason, n in found.unanswered.items()),
        footer(f"calibration {used}" if used else "", ()),
    ]


_NAME = 34  # columns of a group's name


def _groups(found: Accuracy, kind: str) -> Table:
    """The groups of one operation or metric."""
    rows = [_cells(group, found.by) for group in found.groups if group.key[found.by] == kind]
    return Table([f"{kind}, by group", *_HEADER], rows, room=_NAME)


def _cells(group: Score, by: str) -> list[str]:
    name = " ".join(group.key[key] for key in _KEYS[by] if key in group.key and key != by)
    figures = (group.median_ape, group.mape, group.p90_ape, group.bias, group.coverage90)
    return [name, str(group.n), *(_percent(value) for value in figures)]


def _percent(value: float | None) -> str:
    return "-" if value is None else percent(value, 1)


_NAMES = {
    "ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2EL", "output_tok_s": "output",
    "weight_bytes": "weights", "kv_bytes_per_token_per_gpu": "cache a token",
}  # fmt: skip
_FACTS = ("model", "gpu", "engine", "tp", "isl", "osl", "concurrency", "rate", "requests")


def comparison_rows(found: Comparison) -> list[dict[str, Any]]:
    """One flat row for each run and metric."""
    return [
        {"source": run.source, "tool": run.tool}
        | {name: getattr(run.facts, name) for name in _FACTS}
        | {"metric": metric.metric, "statistic": metric.statistic}
        | {"measured": metric.measured, "predicted": metric.predicted, "error": metric.error}
        | {"calibration_hash": run.calibration["hash"] if run.calibration else "", "version": __version__}
        for run in found.runs
        for metric in run.metrics
    ]


def comparison_document(found: Comparison) -> Document:
    """The whole answer."""
    failed = (f"not compared: {source}: {reason}" for source, reason in found.failed.items())
    return [*(section for run in found.runs for section in _run(run)), Section("", [Items(*failed)])]


def _run(run: Run) -> Iterator[Section]:
    facts = run.facts
    many = f"{facts.tp} x " if facts.tp and facts.tp > 1 else ""
    parts = [f"{facts.model} on {many}{facts.gpu}, {facts.engine}"]
    if facts.isl:
        parts.append(f"{facts.isl:.0f} tokens in, {facts.osl:.0f} out")
        parts.append(f"{facts.rate:g} requests/s" if facts.rate else f"{facts.concurrency} in flight")
    yield Section(f"{run.source} ({run.tool})", [Words("; ".join(parts))])
    cells = [
        [_NAMES[metric.metric], metric.statistic, _value(metric, metric.measured), _value(metric, metric.predicted),
         "" if metric.error is None else percent(metric.error, 1, signed=True)]
        for metric in run.metrics
    ]  # fmt: skip
    yield Section("", [Table(["", "", "measured", "predicted", "error"], cells, left=(0, 1))])
    if run.gap is not None:
        causes = [[cause, signed_ms(getattr(run.gap, f"{cause}_ms"))] for cause in CAUSES]
        yield Section("", [Table(["measured − predicted E2EL", signed_ms(run.gap.e2e_ms)], causes)])
        if run.gap.in_flight is not None:
            offered = f" of {facts.concurrency}" if facts.concurrency else ""
            yield Section("", [Words(f"{run.gap.in_flight:.1f}{offered} requests were in flight on average")])
    yield footer(calibrated(run.calibration), run.notes)


def _value(metric: Metric, value: float | None) -> str:
    if value is None:
        return "without end"
    if metric.metric.endswith("_ms"):
        return ms(value)
    return f"{value:,.0f} tok/s" if metric.metric == "output_tok_s" else format_bytes(value)


_LONGEST = 40  # letters of a file's name
_FITTED = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "output_tok_s": "output"}


def fit_document(fit: EngineFit) -> Document:
    """The whole answer."""
    noise = ", ".join(f"{_FITTED[name]} {percent(size, 1)}" for name, size in fit.noise.items())
    doubts = [f"what the costs do not explain, one standard deviation: {noise}"]
    if fit.alike:
        pairs = ", ".join(f"{first} and {second}" for first, second in fit.alike)
        doubts.append(f"note: the files tell these apart only by what was believed before: {pairs}")
    doubts += [f"note: {note}" for note in fit.notes]
    doubts += [f"not used: {name}: {why}" for name, why in fit.failed.items()]
    limits = {"most": "at the most", "least": "at the least"}
    costs = [
        [each.prior.name, _cost(each.prior.name, each.prior.value, each.prior.spread),
         _cost(each.prior.name, each.value, each.spread), percent(each.data), limits.get(each.at, "")]
        for each in fit.outcomes
    ]  # fmt: skip
    return [
        Section("", [Table(["engine cost", "before", "after", "data", ""], costs, left=(0, 4))]),
        Section("", [_errors(fit)]),
        Section("", [Items(*doubts)]),
    ]


def _cost(name: str, value: float, spread: float) -> str:
    if name in UNITLESS:
        return f"{value:.3f} ± {spread:.3f}"
    return f"{format_time(value)} ± {format_time(spread)}"


def _errors(fit: EngineFit) -> Table:
    def cells(name: str, rows: int, figures: tuple[float, float, float | None]) -> list[str]:
        return [name, str(rows), *("" if figure is None else percent(figure, 1) for figure in figures)]

    ends = (file.name if len(file.name) <= _LONGEST else f"…{file.name[1 - _LONGEST :]}" for file in fit.files)
    table = [
        cells(name, file.rows, (file.before, file.after, file.unseen))
        for name, file in zip(ends, fit.files, strict=True)
    ]
    table += [
        cells(f"all, {_FITTED[name]}", error.rows, (error.before, error.after, error.unseen))
        for name, error in fit.errors.items()
    ]
    return Table(["mean error", "figures", "before", "after", "left out"], table)

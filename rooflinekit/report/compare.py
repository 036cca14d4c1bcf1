"""Measured against predicted: every run with its figures, its gap and its notes; then what failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rooflinekit.evidence.compare import CAUSES, Comparison, Metric, Run
from rooflinekit.model.types.units import format_bytes
from rooflinekit.report.document import Document, Items, Section, Table, Words, calibrated, footer, ms, signed_ms
from rooflinekit.version import __version__

_NAMES = {
    "ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2EL", "output_tok_s": "output",
    "weight_bytes": "weights", "kv_bytes_per_token_per_gpu": "cache a token",
}  # fmt: skip
_FACTS = ("model", "gpu", "engine", "tp", "isl", "osl", "concurrency", "rate", "requests")


def rows(found: Comparison) -> list[dict[str, Any]]:
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


def document(found: Comparison) -> Document:
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
         "" if metric.error is None else f"{metric.error:+.1%}"]
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

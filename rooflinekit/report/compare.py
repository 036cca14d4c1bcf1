"""Measured against predicted, as text and as rows."""

from __future__ import annotations

from typing import Any

from rooflinekit.evidence.compare import CAUSES, Comparison, Gap, Metric, Run
from rooflinekit.model.types.units import format_bytes, format_time
from rooflinekit.report.table import aligned, markdown, wrapped
from rooflinekit.version import __version__

__all__ = ["compare_rows", "compare_text"]

_NAMES = {
    "ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2EL", "output_tok_s": "output",
    "weight_bytes": "weights", "kv_bytes_per_token_per_gpu": "cache a token",
}  # fmt: skip
_FACTS = ("model", "gpu", "engine", "tp", "isl", "osl", "concurrency", "rate", "requests")


def compare_rows(found: Comparison) -> list[dict[str, Any]]:
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


def compare_text(found: Comparison, markdown_style: bool = False) -> str:
    """Every run: how it was made, its figures, its gap, its notes; then what failed."""
    lines: list[str] = []
    for run in found.runs:
        lines += [*_head(run), "", *_table(run, markdown_style)]
        if run.gap is not None:
            lines += ["", *_gap(run, run.gap, markdown_style)]
        lines += [piece for note in run.notes for piece in wrapped(f"note: {note}")]
        used = f"calibration {run.calibration['name']} ({run.calibration['hash']}); " if run.calibration else ""
        lines += [f"{used}rooflinekit {__version__}", ""]
    for source, reason in found.failed.items():
        lines += wrapped(f"not compared: {source}: {reason}")
    return "\n".join(lines)


def _head(run: Run) -> list[str]:
    facts = run.facts
    many = f"{facts.tp} x " if facts.tp and facts.tp > 1 else ""
    parts = [f"{facts.model} on {many}{facts.gpu}, {facts.engine}"]
    if facts.isl:
        parts.append(f"{facts.isl:.0f} tokens in, {facts.osl:.0f} out")
        parts.append(f"{facts.rate:g} requests/s" if facts.rate else f"{facts.concurrency} in flight")
    return [f"{run.source}  ({run.tool})", *wrapped("; ".join(parts))]


def _table(run: Run, markdown_style: bool) -> list[str]:
    cells = [
        [_NAMES[metric.metric], metric.statistic, _value(metric, metric.measured), _value(metric, metric.predicted),
         "" if metric.error is None else f"{metric.error:+.1%}"]
        for metric in run.metrics
    ]  # fmt: skip
    return (markdown if markdown_style else aligned)(["", "", "measured", "predicted", "error"], cells, left=(0, 1))


def _value(metric: Metric, value: float | None) -> str:
    if value is None:
        return "without end"
    if metric.metric.endswith("_ms"):
        return format_time(value / 1e3)
    return f"{value:,.0f} tok/s" if metric.metric == "output_tok_s" else format_bytes(value)


def _gap(run: Run, gap: Gap, markdown_style: bool) -> list[str]:
    rows = [[cause, _signed(getattr(gap, f"{cause}_ms"))] for cause in CAUSES]
    table = markdown if markdown_style else aligned
    lines = table(["measured − predicted E2EL", _signed(gap.e2e_ms)], rows)
    if gap.in_flight is not None:
        offered = f" of {run.facts.concurrency}" if run.facts.concurrency else ""
        lines += ["", f"{gap.in_flight:.1f}{offered} requests were in flight on average"]
    return lines


def _signed(milliseconds: float) -> str:
    return f"{'+' if milliseconds >= 0 else '−'}{format_time(abs(milliseconds) / 1e3)}"

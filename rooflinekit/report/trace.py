"""A trace as a few lines of text."""

from __future__ import annotations

from rooflinekit.report.table import aligned
from rooflinekit.simulation.traces import LengthSummary, TraceSummary

__all__ = ["trace_text"]


def trace_text(summary: TraceSummary) -> str:
    """Requests, rate and burstiness; lengths; what a prefix cache could save; what was cleaned."""
    pace = "all at once"
    if summary.rate_req_s is not None:
        pace = (
            f"{summary.rate_req_s:.3g} requests/s over {summary.duration_s:,.0f} s, gaps with cv {summary.gap_cv:.2f}"
        )
    lines = [f"{summary.name} ({summary.format}): {summary.requests:,} requests, {pace}", ""]
    cells = [_cells("prompt", summary.isl), _cells("output", summary.osl)]
    lines += aligned(["tokens", "mean", "P50", "P90", "P99", "longest"], cells)
    if summary.reusable is not None:
        lines.append(f"{summary.reusable:.1%} of the prompt blocks repeat an earlier prefix")
    if summary.cleaned:
        lines.append(f"cleaned: {', '.join(f'{count:,} {kind}' for kind, count in summary.cleaned.items())}")
    return "\n".join(lines)


def _cells(name: str, lengths: LengthSummary) -> list[str]:
    figures = (lengths.mean, lengths.p50, lengths.p90, lengths.p99, lengths.longest)
    return [name, *(f"{figure:,.0f}" for figure in figures)]

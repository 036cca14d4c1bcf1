"""A simulation as a section of a page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rooflinekit.report.page.render import card, figure, paragraphs
from rooflinekit.simulation.outcome import Outcome

_BINS = 400  # of a timeline: more cannot be told apart on a screen
_METRICS = (("ttft_ms", "first token (TTFT)"), ("tpot_ms", "a token (TPOT)"), ("itl_ms", "between tokens (ITL)"),
            ("e2e_ms", "whole request"), ("queue_ms", "waiting"))  # fmt: skip


def simulation_card(outcome: Outcome, of: str) -> str:
    """Counts, and places for three charts; `of`: what was simulated."""
    counts = outcome.requests
    words = [
        f"{counts.measured:,} requests counted of {counts.finished:,} finished, {counts.rejected:,} rejected, "
        f"{counts.cut:,} cut by the end, {counts.preemptions:,} preemptions, in {outcome.duration_s:.4g} s. From the "
        f"first counted arrival to the last answer {outcome.request_rate or 0.0:.4g} requests/s and "
        f"{outcome.output_tok_s or 0.0:.4g} tokens/s; the ramp and the tail of a short run lower both.",
        *outcome.warnings,
    ]
    charts = (("sim-spread", "Percentiles"), ("sim-line", "Requests over time"), ("sim-kv", "Cache in use"))
    boxes = "".join(figure(name, heading) for name, heading in charts)
    return card("Simulated, request by request", paragraphs(words, "facts") + boxes, "simulation", of=of)


def simulation_data(outcome: Outcome) -> dict[str, Any]:
    """Percentiles [ms], and the timeline of all replicas together in a few hundred steps."""
    spreads = [(title, asdict(getattr(outcome, name)), False) for name, title in _METRICS if getattr(outcome, name).n]
    return {"spreads": spreads, "line": _line(outcome.timeline)}


def _line(rows: tuple[dict[str, float], ...]) -> dict[str, list[float]]:
    """Sums over replicas of queue and batch, mean of the cache's use, at the ends of equal spans of time."""
    line: dict[str, list[float]] = {"time": [], "queue": [], "batch": [], "kv": []}
    if not rows:
        return line
    width = max(rows[-1]["time_s"] / _BINS, 1e-9)
    latest: dict[float, dict[str, float]] = {}
    end = width
    for row in rows:
        while row["time_s"] > end and latest:
            _record(line, end, latest)
            end += width
        latest[row["replica"]] = row
    _record(line, rows[-1]["time_s"], latest)
    return line


def _record(line: dict[str, list[float]], time: float, latest: dict[float, dict[str, float]]) -> None:
    line["time"].append(round(time, 6))
    line["queue"].append(sum(row["queue"] for row in latest.values()))
    line["batch"].append(sum(row["batch"] for row in latest.values()))
    line["kv"].append(round(sum(row["kv_use"] for row in latest.values()) / len(latest), 5))

"""A running fleet beside its prediction: the last interval, its gap, what drifts, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from rooflinekit.evidence.watching import Beside, Figure, Watched
from rooflinekit.report.document import (
    Document,
    Items,
    Section,
    Table,
    Words,
    calibrated,
    footer,
    machine,
    ms,
    signed_ms,
)

_SAID = {"rate": "the request rate", "isl": "the prompts' length", "osl": "the answers' length", "hits": "prefix hits"}
_DRIFTS = {"tpot": "TPOT is", "ttft": "TTFT is", "stalls": "requests that stand still hold TPOT"}
_MOVED = 0.05  # of the predicted TPOT: less is not worth a sentence


def document(found: Watched) -> Document:
    """The whole answer."""
    now = found.now
    sizes = f"{now.isl:,.0f} tokens in, {now.osl:,.0f} out"
    hits = "" if now.hits is None else f", {now.hits:.0%} of the prompt in the prefix cache"
    title = f"{found.model} on {machine(found.gpu, found.gpus, {})}, {found.engine}"
    span = f"{_clock(now.start)} to {_clock(now.end)}, interval {len(found.intervals)}"
    rows = [
        ["TTFT", *_times(now.ttft)],
        ["TPOT", *_times(now.tpot)],
        ["output", *_rates(now.output_tok_s, now.output_expected_tok_s)],
    ]
    return [
        Section(title, [Words(f"{span}: {now.rate:.3g} requests/s, {sizes}{hits}")]),
        Section("", [Table(["", "measured", "predicted", "90 % interval", "ratio"], rows, left=(0,))]),
        Section("", [Items(*_gaps(now))]),
        Section("", [Items(*_state(now), *_drifts(found), *_moved(found), *_left(found))]),
        footer(calibrated(found.calibration), found.notes),
    ]


def _times(figure: Figure) -> list[str]:
    span = f"{ms(figure.low)} – {ms(figure.high, 'no limit')}"
    ratio = _ratio(figure.measured, figure.expected)
    return [ms(figure.measured, "not said"), ms(figure.expected), span, ratio]


def _rates(measured: float | None, expected: float) -> list[str]:
    told = "not said" if measured is None else f"{measured:,.0f} tok/s"
    return [told, f"{expected:,.0f} tok/s", "", _ratio(measured, expected)]


def _ratio(measured: float | None, expected: float) -> str:
    return "" if measured is None else f"x {measured / expected:.2f}"


def _gaps(now: Beside) -> Iterator[str]:
    """Of each time that was measured, where its gap comes from."""
    if now.tpot.measured is not None and now.batch_ms is not None and now.step_ms is not None:
        stalls = "" if now.stall_ms is None else f"{signed_ms(now.stall_ms)} from requests that stood still, "
        yield (f"gap of TPOT {signed_ms(now.tpot.measured - now.tpot.expected)}: {signed_ms(now.batch_ms)} from "
               f"{now.in_flight:.1f} requests under way, {stalls}"
               f"{signed_ms(now.step_ms)} from steps of that many")  # fmt: skip
    if now.ttft.measured is not None and now.queue_ms is not None and now.prompt_ms is not None:
        yield (f"gap of TTFT {signed_ms(now.ttft.measured - now.ttft.expected)}: {signed_ms(now.queue_ms)} from "
               f"waiting, {signed_ms(now.prompt_ms)} from the prompt's own steps")  # fmt: skip


def _state(now: Beside) -> Iterator[str]:
    parts = [
        "" if now.waiting is None else f"{now.waiting:.1f} requests wait",
        "" if now.kv_use is None else f"{now.kv_use:.0%} of the cache is in use",
        "" if not now.preemptions else f"{now.preemptions:.0f} preemptions",
    ]
    if any(parts):
        yield "; ".join(part for part in parts if part)


def _drifts(found: Watched) -> Iterator[str]:
    for drift in found.drifts:
        side = "above" if drift.change > 0 else "below"
        change = f"{_DRIFTS[drift.metric]} {abs(drift.change):.0%} {side} the usual"
        yield f"{change} since {_clock(drift.since)}: {drift.cause}"


def _moved(found: Watched) -> Iterator[str]:
    """Which part of the traffic moved the prediction most."""
    if found.moved:
        part = max(found.moved, key=lambda name: abs(found.moved[name] - 1.0))
        change = found.moved[part] - 1.0
        if abs(change) >= _MOVED:
            yield f"{_SAID[part]} alone moves the predicted TPOT by {change:+.0%} against the first hour"


def _left(found: Watched) -> Iterator[str]:
    if (left := found.headroom) is not None:
        words = f"headroom {left.share:.0%}: {left.rate:.3g} of {left.knee:.3g} requests/s"
        if left.share < 0:
            words = f"no headroom: {left.rate:.3g} requests/s come, and {left.knee:.3g} can be sustained"
        elif left.hours_left is not None:
            words += f"; as the rate grows now, none is left in {left.hours_left:.1f} hours"
        yield words


def _clock(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%a %H:%M}"

"""A running fleet beside its prediction: the last interval, its gap, what drifts, and what is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from rooflinekit.evidence.watching import Beside, Figure, Watched
from rooflinekit.model.types.units import percent, significant
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
_GROWS = "grows"  # above the knee
_LITTLE = 0.01  # of a cache, or of a request that waits: less makes no ratio
_LEAST = 1e-3  # ms: a part of a gap that is less is rounding
_MOVED = 0.05  # of the predicted TPOT: less is not worth a sentence


def document(found: Watched) -> Document:
    """The whole answer."""
    now = found.now
    sizes = f"{now.isl:,.0f} tokens in, {now.osl:,.0f} out"
    hits = "" if now.hits is None else f", {percent(now.hits)} of the prompt in the prefix cache"
    title = f"{found.model} on {machine(found.gpu, found.gpus, {})}, {found.engine}"
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
    return [
        Section(title, [Words(f"{span}: {significant(now.rate)} requests/s, {sizes}{hits}")]),
        Section("", [Table(["", "measured", "predicted", "90 % interval", "ratio"], rows, left=(0,))]),
        Section("", [Items(*_gaps(now))]),
        Section("", [Items(*preempted, *_drifts(found), *_moved(found), *_left(found))]),
        footer(calibrated(found.calibration), found.notes),
    ]


def _times(figure: Figure) -> list[str]:
    measured = ms(figure.measured, "not said")
    if figure.expected == math.inf:
        return [measured, _GROWS, "", ""]
    span = f"{ms(figure.low)} – {ms(figure.high, 'no limit')}"
    return [measured, ms(figure.expected), span, _ratio(figure.measured, figure.expected)]


def _beside(measured: float | None, expected: float | None, form: Callable[[float], str]) -> list[str]:
    told = ["not said" if measured is None else form(measured)]
    return [*told, _GROWS if expected is None else form(expected), "", _ratio(measured, expected)]


def _ratio(measured: float | None, expected: float | None) -> str:
    return f"x {measured / expected:.2f}" if measured is not None and expected and expected >= _LITTLE else ""


def _part(value: float) -> str:
    return signed_ms(value if abs(value) >= _LEAST else 0.0)


def _gaps(now: Beside) -> Iterator[str]:
    """Of each time that was measured, where its gap comes from."""
    if now.tpot.measured is not None and now.batch_ms is not None and now.step_ms is not None:
        stalls = "" if now.stall_ms is None else f"{_part(now.stall_ms)} from requests that stood still, "
        yield (f"gap of TPOT {signed_ms(now.tpot.measured - now.tpot.expected)}: {_part(now.batch_ms)} from "
               f"{now.in_flight:.1f} requests under way, {stalls}"
               f"{_part(now.step_ms)} from steps of that many")  # fmt: skip
    if now.ttft.measured is not None and now.queue_ms is not None and now.prompt_ms is not None:
        yield (f"gap of TTFT {signed_ms(now.ttft.measured - now.ttft.expected)}: {_part(now.queue_ms)} from "
               f"waiting, {_part(now.prompt_ms)} from the prompt's own steps")  # fmt: skip


def _drifts(found: Watched) -> Iterator[str]:
    for drift in found.drifts:
        side = "above" if drift.change > 0 else "below"
        change = f"{_DRIFTS[drift.metric]} {percent(abs(drift.change))} {side} the usual"
        yield f"{change} since {_clock(drift.since)}: {drift.cause}"


def _moved(found: Watched) -> Iterator[str]:
    """Which part of the traffic moved the prediction most."""
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
            words = (
                f"no headroom: {significant(left.rate)} requests/s come, and {significant(left.knee)} can be sustained"
            )
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

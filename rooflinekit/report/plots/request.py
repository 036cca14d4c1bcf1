"""One request, to scale: along the axis of time, its first token enlarged, a token after it enlarged."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from rooflinekit.estimation.results import Estimate
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.document import ms
from rooflinekit.report.look import FIRST, TOKEN, TimePart
from rooflinekit.report.plots.style import Picture, Theme, headed, legend, shortened
from rooflinekit.report.request import LEAST, Request
from rooflinekit.simulation.outcome import Outcome

_INSIDE = 0.09  # share of a bar that holds its time


def request(answer: Estimate | Outcome, theme: Theme) -> Picture:
    """The mean request of a load, to scale."""
    found = Request.of(answer)
    if found is None:
        raise InputError("nothing to draw: no request of a load was played to its end")
    frame = headed("One request, to scale", answer, theme)
    figure, (whole, first, token) = frame.panels(7.2, 4.0, 3, ncols=1)
    marked = "; purple among tokens: prompts of others" if found.others_spans else ""
    whole.set_title(f"{shortened(frame.subject)}\n{found.said}{marked}")
    _whole(whole, found, theme)
    said = f"time to first token, {ms(found.ttft)}", f"time per token, {ms(found.tpot)}"
    _bar(first, found.first, FIRST, said[0], theme)
    bound = "" if found.bound is None else f"; dashed: datasheet bound {ms(found.bound)}"
    _bar(token, found.token if found.tokens else {}, TOKEN, said[1] + bound, theme, found.bound)
    if found.bound is not None and found.tokens:
        token.axvline(found.bound, color=theme.ink, lw=1.0, ls="--", gid="bound")
    parts = "; ".join(
        f"{title}: " + ", ".join(f"{names[part].name} {ms(time)}" for part, time in times.items() if time)
        for title, times, names in zip(said, (found.first, found.token), (FIRST, TOKEN), strict=True)
    )
    words = f"{found.said[0].upper()}{found.said[1:]}, of {answer.model} on {answer.gpu}. {parts}."
    return Picture("request", frame.title, words, figure, theme)


def _whole(axes: Axes, found: Request, theme: Theme) -> None:
    """The first token, those after it, and between them the prompts of others that the request met."""
    rest, prompts = found.e2e - found.ttft, theme.tint("prefill")
    axes.barh(0, found.ttft, color=prompts, height=0.8, gid="first token")
    axes.barh(0, rest, left=found.ttft, color=theme.tint("decode"), height=0.8, gid="tokens")
    for since, until in found.others_spans:
        left = found.ttft + rest * since
        axes.barh(0, rest * (until - since), left=left, color=prompts, height=0.8, lw=0, gid="prompts of others")
    _dressed(axes, found.e2e)
    axes.set_xlabel("")


def _bar(  # noqa: PLR0913, PLR0917 - a bar with its names, and the line across it
    axes: Axes,
    parts: Mapping[str, float],
    names: Mapping[str, TimePart],
    title: str,
    theme: Theme,
    bound: float | None = None,
) -> None:
    """One bar in its parts, named above it; times stand beside the line of the bound."""
    whole, left, handles = sum(parts.values()), 0.0, []
    for part, (tint, _, name) in names.items():
        time = parts.get(part, 0.0)
        if time < LEAST * whole or not time:
            continue
        color = theme.tint(tint)
        axes.barh(0, time, left=left, color=color, edgecolor=theme.paper, lw=0.8, height=0.8, gid=part)
        ends = left, left + time
        if bound is not None and abs(bound - sum(ends) / 2) < _INSIDE / 2 * whole:
            ends = (left, bound) if bound - left > left + time - bound else (bound, left + time)
        if ends[1] - ends[0] >= _INSIDE * whole:
            axes.text(sum(ends) / 2, 0, ms(time), ha="center", va="center", fontsize=7, color=theme.on(color))
        handles.append(Patch(color=color, label=f"{name} {ms(time)}"))
        left += time
    _dressed(axes, whole or 1.0)
    axes.set_title(title, pad=16)
    if handles:
        legend(axes, handles=handles, fontsize=6.5)


def _dressed(axes: Axes, whole: float) -> None:
    axes.set(xlim=(0.0, whole), ylim=(-0.5, 0.5), yticks=[])
    unit, size = ("s", 1e3) if whole >= 1e3 else ("ms", 1.0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / size:g}{f' {unit}' if value else ''}")
    axes.grid(False, axis="y")

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
_MOST = 400  # tokens that are drawn one by one


def request(answer: Estimate | Outcome, theme: Theme) -> Picture:
    """The mean request of a load, to scale."""
    found = Request.of(answer)
    if found is None:
        raise InputError("nothing to draw: no request of a load was played to its end")
    frame = headed("One request, to scale", answer, theme)
    figure, (whole, first, token) = frame.panels(7.2, 4.0, 3, ncols=1)
    pale = "; pale: prompts of others" if found.token.get("prompts") else ""
    whole.set_title(f"{shortened(frame.subject)}\n{found.said}{pale}")
    _whole(whole, found, theme)
    said = f"the first token, {ms(found.ttft)}", f"a token after it, {ms(found.tpot)}"
    _bar(first, found.first, FIRST, said[0], theme)
    bound = "" if found.bound is None else f"; dashed: datasheet bound {ms(found.bound)}"
    _bar(token, found.token if found.tokens else {}, TOKEN, said[1] + bound, theme)
    if found.bound is not None and found.tokens:
        token.axvline(found.bound, color=theme.ink, lw=1.0, ls="--", gid="bound")
    parts = "; ".join(
        f"{title}: " + ", ".join(f"{names[part].name} {ms(time)}" for part, time in times.items() if time)
        for title, times, names in zip(said, (found.first, found.token), (FIRST, TOKEN), strict=True)
    )
    words = f"{found.said[0].upper()}{found.said[1:]}, of {answer.model} on {answer.gpu}. {parts}."
    return Picture("request", frame.title, words, figure, theme)


def _whole(axes: Axes, found: Request, theme: Theme) -> None:
    """The first token, and a slice for each token after it, of which the pale end is what prompts of others add."""
    axes.barh(0, found.ttft, color=theme.tint("prefill"), height=0.8, gid="first token")
    count = min(found.tokens, _MOST)
    each = (found.e2e - found.ttft) / max(count, 1)
    starts = [found.ttft + each * number for number in range(count)]
    share = found.token.get("prompts", 0.0) / (found.tpot or 1.0)
    axes.bar(starts, 0.8, each * (1.0 - share), -0.4, align="edge", color=theme.tint("decode"), lw=0)
    ends = [start + each * (1.0 - share) for start in starts]
    axes.bar(ends, 0.8, each * share, -0.4, align="edge", color=theme.paler(theme.tint("prefill"), 0.3), lw=0)
    _dressed(axes, found.e2e)
    axes.set_xlabel("")


def _bar(axes: Axes, parts: Mapping[str, float], names: Mapping[str, TimePart], title: str, theme: Theme) -> None:
    """One bar in its parts, named above it."""
    whole, left, handles = sum(parts.values()), 0.0, []
    for part, (tint, _, name) in names.items():
        time = parts.get(part, 0.0)
        if time < LEAST * whole or not time:
            continue
        color = theme.tint(tint)
        axes.barh(0, time, left=left, color=color, edgecolor=theme.paper, lw=0.8, height=0.8, gid=part)
        if time >= _INSIDE * whole:
            axes.text(left + time / 2, 0, ms(time), ha="center", va="center", fontsize=7, color=theme.on(color))
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

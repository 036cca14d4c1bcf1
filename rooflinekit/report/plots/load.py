"""A load request by request: lanes of requests over time, times to first token, and both over the load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from rooflinekit.estimation.estimator import play, question_of
from rooflinekit.estimation.loaded import load_result
from rooflinekit.estimation.results import Estimate
from rooflinekit.load.curve import LoadCurve
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.document import ms, three
from rooflinekit.report.look import TOKEN
from rooflinekit.report.plots.style import Picture, Theme, headed, legend, shortened

if TYPE_CHECKING:
    from rooflinekit.load.answer import LoadPlay

_LANES = 40  # requests that are drawn
_BINS = 30  # of the histogram of first tokens
_SHARES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)  # of the rate that can be sustained
_MOST_USERS = 2  # times the users of a closed loop


def _played(answer: Estimate) -> LoadPlay:
    question = question_of(answer)
    if question is None or question.asked is None:
        raise InputError("nothing to draw: the load of an answer that was read back is not played again")
    return play(question)


def lanes(answer: Estimate, theme: Theme) -> Picture:
    """Some 40 requests over time: wait, prompt and answer of each; and a histogram of times to first token."""
    found = _played(answer)
    done = found.played
    frame = headed("Requests over the engine's time", answer, theme)
    figure, (axes, beside) = frame.panels(7.2, 4.4, 2, width_ratios=(2.2, 1.0))
    counted = np.flatnonzero(done.counted)
    middle = counted[len(counted) // 2 :][:_LANES]
    start = float(done.sent[middle].min())
    colors = {"waits": theme.tint("engine"), "prompt": theme.tint("prefill"), "answer": theme.tint("decode")}
    ends = (done.sent, done.begun, done.first, done.end)
    for name, left, right in zip(colors, ends[:-1], ends[1:], strict=True):
        widths = np.maximum(right[middle] - left[middle], 0.0)
        axes.barh(range(len(middle)), widths, left=left[middle] - start, color=colors[name], height=0.8, lw=0, gid=name)
    axes.set(xlabel="seconds", yticks=[], ylim=(len(middle) - 0.4, -0.6), axisbelow=True)
    axes.set_title(shortened(frame.subject), pad=18)
    axes.grid(False, axis="y")
    legend(axes, handles=[Patch(color=color, label=name) for name, color in colors.items()])
    first = 1e3 * done.ttft
    beside.hist(first, bins=_BINS, color=theme.tint("prefill"), gid="first tokens")
    marks = {name: 1e3 * found.quantile("ttft", share) for name, share in (("P50", 0.5), ("P95", 0.95))}
    for name, value in marks.items():
        beside.axvline(value, color=theme.ink, lw=1.0, ls="--" if name == "P95" else "-", gid=name)
        at = value, 0.97 if name == "P50" else 0.88
        beside.annotate(f" {name} {ms(value)}", at, xycoords=("data", "axes fraction"), fontsize=6.5, color=theme.ink)
    beside.set(xlabel="time to first token [ms]", yticks=[])
    words = (
        f"{len(middle)} requests of {answer.model} on {answer.gpu} over time, and the times to first token of "
        f"{len(first):,}: P50 {ms(marks['P50'])}, P95 {ms(marks['P95'])}."
    )
    return Picture("lanes", frame.title, words, figure, theme)


def over_load(answer: Estimate, theme: Theme) -> Picture:
    """First token and time per token over the load, P50 and P95, and the parts of the time per token as areas."""
    found = _played(answer)
    asked, curve = found.asked, LoadCurve(found.predictor, found.asked)
    if curve.closed:
        most = _MOST_USERS * (asked.users or 1)
        loads = sorted({max(1.0, float(round(most * share))) for share in (*_SHARES, 1.0)})
        here, across = float(asked.users or 1), "users"
    else:
        loads, here, across = [share * curve.full for share in _SHARES], asked.rate or 0.0, "requests/s"
    plays = [curve.play(load) for load in loads]
    frame = headed("First token and time per token over the load", answer, theme)
    figure, (first, token, parts) = frame.panels(7.2, 3.4, 3)
    drawn = (first, "ttft", asked.ttft, theme.tint("prefill")), (token, "tpot", asked.tpot, theme.tint("decode"))
    for axes, metric, goal, tint in drawn:
        for name, share, dashes in (("P50", 0.5, "-"), ("P95", 0.95, "--")):
            values = [1e3 * each.quantile(metric, share) for each in plays]
            axes.plot(loads, values, color=tint, ls=dashes, label=name, gid=f"{metric} {name}")
        if goal is not None:
            axes.axhline(1e3 * goal, color=theme.soft, lw=0.8, gid=f"objective {metric}")
        axes.set(ylabel=f"{metric.upper()} [ms]", xlabel=across, ylim=(0.0, None))
        _marked(axes, here, None if curve.closed else curve.full, theme)
        axes.legend(loc="upper left", fontsize=6.5)
    first.title.set_in_layout(False)
    _areas(parts, loads, plays, theme)
    parts.set(ylabel="parts of TPOT [ms]", xlabel=across)
    _marked(parts, here, None if curve.closed else curve.full, theme)
    ends = (
        f"at {three(loads[-1])} {across} P95 is {ms(1e3 * plays[-1].quantile('ttft', 0.95))} and "
        f"{ms(1e3 * plays[-1].quantile('tpot', 0.95))}"
    )
    knee = "" if curve.closed else f"; more than {three(curve.full)}/s cannot be served"
    words = f"TTFT and TPOT of {answer.model} on {answer.gpu} over the load: {ends}{knee}."
    return Picture("over-load", frame.title, words, figure, theme)


def _areas(axes: Axes, loads: list[float], plays: list[LoadPlay], theme: Theme) -> None:
    every = [load_result(each).tpot_parts_ms for each in plays]
    names = [part for part in TOKEN if any(each.get(part, 0.0) > 0.0 for each in every)]
    colors = [theme.tint(TOKEN[part].tint) for part in names]
    heights = [[each.get(part, 0.0) for each in every] for part in names]
    axes.stackplot(loads, heights, colors=colors, labels=[TOKEN[part].name for part in names], lw=0)
    axes.set_ylim(0.0, None)
    axes.legend(loc="upper left", fontsize=6.0, reverse=True)


def _marked(axes: Axes, here: float, most: float | None, theme: Theme) -> None:
    """The load that was asked for, and where overload begins."""
    axes.axvline(here, color=theme.ink, lw=0.8, ls=":", gid="load")
    if most is not None:
        end = max(axes.get_xlim()[1], 1.05 * most)
        axes.axvspan(most, end, color=theme.tint("overhead"), alpha=0.25, lw=0, gid="overload")

"""Pictures of what would help: elasticities, and moves by what they gain."""

from __future__ import annotations

from rooflinekit.decision.sensitivity.levers import Levers
from rooflinekit.report.plots.picture import Picture
from rooflinekit.report.plots.style import Theme, decades, label_ticks, legend
from rooflinekit.report.plots.words import headed

_METRICS = {"TTFT": ("ttft", "s"), "TPOT": ("tpot", "o"), "throughput": ("throughput", "^")}
_LOWER = ("ttft", "tpot", "cost", "energy")
_SEEN = 0.005  # of a change: less is not drawn
_NAMES = {"cost": "cost of a token", "tpot": "time per output token", "ttft": "time to first token",
          "throughput": "throughput of a GPU"}  # fmt: skip


def elasticities(levers: Levers, theme: Theme) -> Picture:
    """By how many percent each answer changes when a parameter grows by one percent."""
    frame = headed("What the answer follows: change for 1 % more of each", levers, theme)
    figure, (axes,) = frame.panels(7.2, 3.4)
    names = [entry.parameter for entry in levers.elasticities]
    colors = theme.series
    for number, (label, (key, shape)) in enumerate(_METRICS.items()):
        values = [getattr(entry, key) for entry in levers.elasticities]
        places = [place + (number - 1) * 0.22 for place in range(len(names))]
        axes.hlines(places, 0, values, color=colors[number], lw=1.2, alpha=0.6)
        axes.plot(values, places, ls="", marker=shape, ms=5.5, color=colors[number], label=label, gid=f"slope {key}")
    axes.axvline(0, color=theme.soft, lw=0.8)
    label_ticks(axes.yaxis, names)
    axes.invert_yaxis()
    axes.set_xlabel("elasticity [% change for 1 % more]; times: left is faster, throughput: right is more")
    axes.set_title(frame.subject, pad=18)
    legend(axes)
    first = max(levers.elasticities, key=lambda entry: abs(entry.tpot))
    words = f"Elasticities of {levers.model} on {levers.gpu}. TPOT follows {first.parameter} most: {first.tpot:+.2f}."
    return Picture("elasticities", frame.title, words, figure, theme)


def moves(levers: Levers, theme: Theme) -> Picture:
    """What each possible move makes of the metric that ranks them, as a factor, the best on top.

    Those on weaker evidence than the present stand below the others, hollow.
    """
    metric, lower = levers.by, levers.by in _LOWER
    ranked = [(move, move.ratio[metric] or 1.0) for move in levers.moves if move.possible and move.ratio.get(metric)]
    tried = [(move, ratio) for move, ratio in ranked if abs(ratio - 1.0) >= _SEEN] or ranked
    weak = [move for move, _ in tried if levers.weaker(move)]
    frame = headed(f"Moves by what they make of the {_NAMES[metric]}", levers, theme)
    figure, (axes,) = frame.panels(7.2, 1.3 + 0.19 * len(tried))
    for place, (move, ratio) in enumerate(tried):
        color, hollow = theme.accent if (ratio < 1.0) is lower else theme.soft, levers.weaker(move)
        axes.plot([1.0, ratio], [place, place], color=color, lw=1.4, ls=":" if hollow else "-")
        axes.plot([ratio], [place], ls="", marker="o", ms=5.5, color=color, gid=f"move {move.move}",
                  markerfacecolor=theme.paper if hollow else color)  # fmt: skip
        axes.annotate(_percent(ratio - 1.0), (ratio, place), (-6 if ratio < 1.0 else 6, 0), va="center", fontsize=6.5,
                      textcoords="offset points", ha="right" if ratio < 1.0 else "left", color=theme.soft)  # fmt: skip
    axes.set_xscale("log")
    axes.axvline(1.0, color=theme.soft, lw=0.8)
    label_ticks(axes.yaxis, [move.move for move, _ in tried])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(False, axis="y")
    decades(axes.xaxis, lambda value: f"{value:g} ×")
    rings = "; hollow: on weaker evidence" if weak else ""
    axes.set_xlabel(f"{_NAMES[metric]} over that of the present deployment; green: better{rings}")
    best = f"{tried[0][0].move} ({_percent(tried[0][1] - 1.0)})" if tried else "none"
    words = f"{len(ranked)} moves for {levers.model} on {levers.gpu} by {_NAMES[metric]}; first: {best}."
    return Picture("moves", frame.title, words, figure, theme)


def _percent(change: float) -> str:
    """As text, without a sign before zero.

    >>> _percent(-0.256), _percent(-0.001)
    ('-26 %', '0 %')
    """
    whole = round(100 * change)
    return f"{whole:+d} %" if whole else "0 %"

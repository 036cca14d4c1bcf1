"""Pictures of a simulated run, of what would help, of a plan over time, and of a trace."""

from __future__ import annotations

from itertools import cycle

import pandas as pd
from matplotlib.ticker import MaxNLocator

from rooflinekit.decision.economics.retention import TraceAnswer
from rooflinekit.decision.planning.over_time import OverTime
from rooflinekit.decision.planning.plan import PlanAnswer
from rooflinekit.decision.sensitivity.levers import Levers
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.units import format_count, format_time, percent
from rooflinekit.report.document import three
from rooflinekit.report.plots import labels, style
from rooflinekit.simulation.outcome import Outcome
from rooflinekit.version import __version__

_DURATIONS = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "ITL": "itl_ms", "end to end": "e2e_ms", "queue": "queue_ms"}
_MARKS = {"p50": "o", "p90": "s", "p95": "D", "p99": "^", "max": "|"}
_LEAST = 1e-3  # ms: what is shorter stands at the edge
_FEW = 4  # replicas with a colour of their own


def percentiles(outcome: Outcome, theme: style.Theme) -> style.Picture:
    """Median, 90th, 95th, 99th percentile and largest of each duration, on one scale."""
    frame = style.headed("Latency of requests: percentiles", outcome, theme)
    figure, (axes,) = frame.panels(7.2, 3.2)
    spreads = {name: getattr(outcome, key) for name, key in _DURATIONS.items()}
    spreads = {name: spread for name, spread in spreads.items() if spread.n}
    for place, (name, spread) in enumerate(spreads.items()):
        values = {mark: max(getattr(spread, mark), _LEAST) for mark in _MARKS}
        axes.plot([values["p50"], values["max"]], [place, place], color=theme.ink, lw=1.2, alpha=0.5)
        for mark, shape in _MARKS.items():
            axes.plot(values[mark], place, marker=shape, ms=7, color=theme.ink, ls="", mec=theme.paper if shape != "|"
                      else theme.ink, label=mark if place == 0 else None, gid=f"{name} {mark}")  # fmt: skip
        words = f"{format_time(spread.p50 / 1e3)} · {format_time(spread.p99 / 1e3)}"
        style.note(axes, words, (values["p50"], place), (0, 7), color=theme.soft)
    style.label_ticks(axes.yaxis, list(spreads))
    axes.set(xscale="log", ylim=(len(spreads) - 0.5, -0.7), xlabel="duration [ms]; numbers: median · 99th percentile")
    style.decades(axes.xaxis, style.scale_text)
    axes.margins(x=0.08)
    if spreads:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handletextpad=0.2)
    return style.Picture("percentiles", frame.title, _words(outcome), figure, theme)


def _words(outcome: Outcome) -> str:
    parts = [
        f"{name} median {spread.p50:.3g} ms, 99th percentile {spread.p99:.3g} ms"
        for name, key in _DURATIONS.items()
        if (spread := getattr(outcome, key)).n
    ]
    return f"{outcome.requests.measured} requests of {outcome.model} on {outcome.gpu}: {'; '.join(parts) or 'none'}."


def timeline(outcome: Outcome, theme: style.Theme) -> style.Picture:
    """Waiting and decoding requests and the use of the cache, at the ends of steps."""
    frame = style.headed("The run over time", outcome, theme)
    figure, panels = frame.panels(7.2, 4.2, 3, ncols=1)
    rows = pd.DataFrame(outcome.timeline, columns=["time_s", "replica", "queue", "batch", "prompts", "kv_use"])
    shown = {
        "queue": ("requests\nwaiting", theme.ink),
        "batch": ("sequences\ndecoding", theme.ink),
        "kv_use": ("cache\nin use", theme.tint("cache")),
    }
    replicas = list(rows.groupby("replica"))
    alpha = 1.0 if len(replicas) <= _FEW else 0.4
    for panel, (column, (title, color)) in zip(panels, shown.items(), strict=True):
        for number, (replica, part) in enumerate(replicas):
            tint = theme.series[number] if 1 < len(replicas) <= _FEW else color
            line = panel.plot(part["time_s"], part[column], color=tint, lw=0.9, drawstyle="steps-post", alpha=alpha)
            line[0].set(gid=f"{column} {replica:g}", label=f"replica {replica:g}")
        panel.set_ylabel(title)
        panel.set_ylim(0, max(float(rows[column].max()) * 1.08 if len(rows) else 1.0, 1e-9) or 1.0)
        panel.yaxis.set_major_locator(MaxNLocator(4, integer=column != "kv_use"))
        panel.set_xlim(0, max(outcome.duration_s, 1e-9))
        panel.tick_params(labelbottom=panel is panels[-1])
    panels[-1].yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    panels[-1].set_xlabel("time [s]")
    if 1 < len(replicas) <= _FEW:
        panels[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    peak = {name: float(rows[name].max()) if len(rows) else 0.0 for name in shown}
    words = (
        f"{outcome.duration_s:.3g} s of {outcome.model} on {outcome.gpu}: at most {peak['queue']:.0f} requests "
        f"wait, {peak['batch']:.0f} sequences decode, the cache is at {100 * peak['kv_use']:.0f} %."
    )
    return style.Picture("timeline", frame.title, words, figure, theme)


_SLOPES = {"TTFT": ("ttft", "s"), "TPOT": ("tpot", "o"), "throughput": ("throughput", "^")}
_LOWER = ("ttft", "tpot", "cost", "energy")
_SEEN = 0.005  # of a change: less is not drawn
_NAMES = {
    "cost": "cost of a token",
    "tpot": "time per output token",
    "ttft": "time to first token",
    "throughput": "throughput of a GPU",
}


def elasticities(levers: Levers, theme: style.Theme) -> style.Picture:
    """By how many percent each answer changes when a parameter grows by one percent."""
    frame = style.headed("Sensitivity: change for 1 % more of each resource", levers, theme)
    figure, (axes,) = frame.panels(7.2, 3.4)
    names = [entry.parameter for entry in levers.elasticities]
    colors = theme.series
    for number, (label, (key, shape)) in enumerate(_SLOPES.items()):
        values = [getattr(entry, key) for entry in levers.elasticities]
        places = [place + (number - 1) * 0.22 for place in range(len(names))]
        axes.hlines(places, 0, values, color=colors[number], lw=1.2, alpha=0.6)
        axes.plot(values, places, ls="", marker=shape, ms=5.5, color=colors[number], label=label, gid=f"slope {key}")
    axes.axvline(0, color=theme.soft, lw=0.8)
    style.label_ticks(axes.yaxis, names)
    axes.invert_yaxis()
    axes.set_xlabel("elasticity [% change for 1 % more]; times: left is faster, throughput: right is more")
    axes.set_title(frame.subject, pad=18)
    style.legend(axes)
    first = max(levers.elasticities, key=lambda entry: abs(entry.tpot))
    words = f"Elasticities of {levers.model} on {levers.gpu}. TPOT follows {first.parameter} most: {first.tpot:+.2f}."
    return style.Picture("elasticities", frame.title, words, figure, theme)


def moves(levers: Levers, theme: style.Theme) -> style.Picture:
    """Factor of each possible move on the metric that ranks them, the best on top.

    Those on weaker evidence than the present stand below the others, hollow.
    """
    metric, lower = levers.by, levers.by in _LOWER
    ranked = [(move, move.ratio[metric] or 1.0) for move in levers.moves if move.possible and move.ratio.get(metric)]
    tried = [(move, ratio) for move, ratio in ranked if abs(ratio - 1.0) >= _SEEN] or ranked
    weak = [move for move, _ in tried if levers.weaker(move)]
    frame = style.headed(f"How each move changes the {_NAMES[metric]}", levers, theme)
    figure, (axes,) = frame.panels(7.2, 1.3 + 0.19 * len(tried))
    for place, (move, ratio) in enumerate(tried):
        color, hollow = theme.tint("activations") if (ratio < 1.0) is lower else theme.soft, levers.weaker(move)
        axes.plot([1.0, ratio], [place, place], color=color, lw=1.4, ls=":" if hollow else "-")
        fill = theme.paper if hollow else color
        axes.plot([ratio], [place], ls="", marker="o", ms=5.5, color=color, mfc=fill, gid=f"move {move.move}")
        far, side = (-6, "right") if ratio < 1.0 else (6, "left")
        style.note(axes, _percent(ratio - 1.0), (ratio, place), (far, 0), va="center", ha=side, color=theme.soft)
    axes.set_xscale("log")
    axes.axvline(1.0, color=theme.soft, lw=0.8)
    style.label_ticks(axes.yaxis, [move.move for move, _ in tried])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(False, axis="y")
    style.decades(axes.xaxis, lambda value: f"{value:g} ×")
    rings = "; hollow: on weaker evidence" if weak else ""
    axes.set_xlabel(f"{_NAMES[metric]} over that of the present deployment; green: better{rings}")
    best = f"{tried[0][0].move} ({_percent(tried[0][1] - 1.0)})" if tried else "none"
    words = f"{len(ranked)} moves for {levers.model} on {levers.gpu} by {_NAMES[metric]}; first: {best}."
    return style.Picture("moves", frame.title, words, figure, theme)


def _percent(change: float) -> str:
    """Percent as text, without a sign before zero.

    >>> _percent(-0.256), _percent(-0.001)
    ('-26 %', '0 %')
    """
    whole = round(100 * change)
    return f"{whole:+d} %" if whole else "0 %"


def hours(answer: PlanAnswer | OverTime, theme: style.Theme) -> style.Picture:
    """The first month's fleet by the hour, and the requests that it carries."""
    made = answer.over_time if isinstance(answer, PlanAnswer) else answer
    if made is None:
        raise InputError("nothing to draw: the plan has one peak; give profile, or growth")
    rows = [row for row in made.intervals if row.month == 1]
    ends = [row.hour for row in rows] + [made.span_h]
    subject = f"{made.deployment}, {made.profile}"
    frame = style.Frame("The fleet by the hour", subject, f"rooflinekit {__version__}", theme)
    figure, (fleet, load) = frame.panels(7.2, 3.6, 2, ncols=1, height_ratios=[2, 1])
    gpus, rates, tint = [row.gpus for row in rows], [row.rate for row in rows], theme.tint("weights")
    fleet.stairs(gpus, ends, fill=True, color=tint, alpha=0.6, gid="gpus", label="by the hour")
    fleet.axhline(max(gpus), color=theme.ink, lw=1.0, ls="--", label="for the peak")
    load.stairs(rates, ends, color=theme.ink, gid="rate", baseline=None)
    for panel, name, values in ((fleet, "GPUs", gpus), (load, "requests/s", rates)):
        panel.set(ylabel=name, xlim=(0.0, made.span_h), ylim=(0.0, max(values) * 1.08))
        panel.yaxis.set_major_locator(MaxNLocator(4, integer=panel is fleet))
    load.set_xlabel("hour")
    fleet.tick_params(labelbottom=False)
    fleet.set_title(style.shortened(frame.subject), pad=18)
    style.legend(fleet)
    return style.Picture("hours", frame.title, made.answer, figure, theme)


def hit_rate(found: TraceAnswer, theme: style.Theme) -> style.Picture:
    """Share of the prompt tokens that a cache finds, over its tokens; where each memory ends; TTFT and USD there."""
    if found.hit_rate is None:
        raise InputError(f"{found.trace} has no block ids (hash_ids): nothing to draw")
    count = 3 if found.memories else 1
    place = "" if found.deployment is None else f", {found.deployment['model']} on {found.deployment['gpu']}"
    subject = f"{found.trace}, {found.replicas} replica{'s' if found.replicas > 1 else ''}{place}"
    frame = style.Frame("Hit rate of a prefix cache", subject, f"rooflinekit {found.version}", theme)
    figure, panels = frame.panels(3.6 + 1.9 * count, 3.4, count, width_ratios=[2, 1, 1][:count])
    first = panels[0]
    sizes, shares = zip(*found.curve, strict=True)
    first.plot(sizes, [100 * share for share in shares], color=theme.ink, gid="hit rate")
    first.set(xscale="log", xlabel="cache of one replica [tokens]", ylabel="prompt tokens found [%]")
    first.set_ylim(0, max(100 * found.hit_rate * 1.15, 1.0))
    style.decades(first.xaxis, style.scale_text)
    names, parts = list[labels.Label](), list[str]()
    for each, color in zip(found.memories, cycle(theme.series), strict=False):
        first.plot(each.tokens, 100 * each.hit_rate, marker="o", ms=6, color=color, ls="", gid=each.memory)
        names.append(labels.Label(each.memory, each.tokens, 100 * each.hit_rate, color))
        parts.append(f"{each.memory} {format_count(each.tokens)} tokens, {percent(each.hit_rate, 1)}")
    ticks = ["alone", *(f"+ {each.memory}" for each in found.memories[1:])]
    told = (("ttft_ms", "mean TTFT [ms]", "piles up"), ("usd_per_million", "USD a million tokens", "no price"))
    for panel, (key, title, missing) in zip(panels[1:], told, strict=False):
        values = [getattr(each, key) for each in found.memories]
        panel.bar(range(len(values)), [value or 0.0 for value in values], color=theme.series[: len(values)], gid=key)
        for at, value in enumerate(values):
            text = missing if value is None else three(value)
            style.note(panel, text, (at, value or 0.0), (0, 3), ha="center", fontsize=7)
        style.label_ticks(panel.xaxis, ticks)
        panel.set_ylabel(title)
        panel.margins(y=0.15)
    labels.place(first, names)
    found_share = percent(found.hit_rate, 1)
    words = f"Of {found.trace} a cache without end finds {found_share} of the prompt tokens. {'; '.join(parts)}"
    return style.Picture("hit-rate", frame.title, f"{words.rstrip('. ')}.", figure, theme)

"""Pictures of a simulated run: percentiles of what users feel, and queue, batch and cache over time."""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from rooflinekit.model.types.units import format_time
from rooflinekit.report.plots.picture import Picture
from rooflinekit.report.plots.style import Theme, decades, label_ticks
from rooflinekit.report.plots.words import headed, scale_text
from rooflinekit.simulation.outcome import Outcome

_METRICS = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "ITL": "itl_ms", "end to end": "e2e_ms", "queue": "queue_ms"}
_MARKS = {"p50": "o", "p90": "s", "p99": "^", "max": "|"}
_LEAST = 1e-3  # ms: what is shorter stands at the edge
_FEW = 4  # replicas with a colour of their own


def percentiles(outcome: Outcome, theme: Theme) -> Picture:
    """Median, 90th, 99th percentile and largest of each duration, on one scale."""
    frame = headed("What users feel", outcome, theme)
    figure, (axes,) = frame.panels(7.2, 3.2)
    spreads = {name: getattr(outcome, key) for name, key in _METRICS.items()}
    spreads = {name: spread for name, spread in spreads.items() if spread.n}
    for place, (name, spread) in enumerate(spreads.items()):
        values = {mark: max(getattr(spread, mark), _LEAST) for mark in _MARKS}
        axes.plot([values["p50"], values["max"]], [place, place], color=theme.ink, lw=1.2, alpha=0.5)
        for mark, shape in _MARKS.items():
            axes.plot(values[mark], place, marker=shape, ms=7, color=theme.ink, ls="", mec=theme.paper if shape != "|"
                      else theme.ink, label=mark if place == 0 else None, gid=f"{name} {mark}")  # fmt: skip
        words = f"{format_time(spread.p50 / 1e3)} · {format_time(spread.p99 / 1e3)}"
        axes.annotate(words, (values["p50"], place), (0, 7), textcoords="offset points", fontsize=6.5, color=theme.soft)
    label_ticks(axes.yaxis, list(spreads))
    axes.set(xscale="log", ylim=(len(spreads) - 0.5, -0.7), xlabel="duration [ms]; numbers: median · 99th percentile")
    decades(axes.xaxis, scale_text)
    axes.margins(x=0.08)
    if spreads:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handletextpad=0.2)
    return Picture("percentiles", frame.title, _words(outcome), figure, theme)


def _words(outcome: Outcome) -> str:
    parts = [f"{name} median {spread.p50:.3g} ms, 99th percentile {spread.p99:.3g} ms"
             for name, key in _METRICS.items() if (spread := getattr(outcome, key)).n]  # fmt: skip
    return f"{outcome.requests.measured} requests of {outcome.model} on {outcome.gpu}: {'; '.join(parts) or 'none'}."


def timeline(outcome: Outcome, theme: Theme) -> Picture:
    """Who waits, who decodes and how full the cache is, at the ends of steps."""
    frame = headed("The run over time", outcome, theme)
    figure, panels = frame.panels(7.2, 4.2, 3, ncols=1)
    rows = pd.DataFrame(outcome.timeline, columns=["time_s", "replica", "queue", "batch", "prompts", "kv_use"])
    shown = {"queue": ("requests\nwaiting", theme.ink), "batch": ("sequences\ndecoding", theme.ink),
             "kv_use": ("cache\nin use", theme.tint("KV"))}  # fmt: skip
    replicas = list(rows.groupby("replica"))
    for panel, (column, (title, color)) in zip(panels, shown.items(), strict=True):
        for number, (replica, part) in enumerate(replicas):
            tint = color if len(replicas) == 1 else theme.series[number] if len(replicas) <= _FEW else color
            panel.plot(part["time_s"], part[column], color=tint, lw=0.9, alpha=1.0 if len(replicas) <= _FEW else 0.4,
                       drawstyle="steps-post", gid=f"{column} {replica:g}", label=f"replica {replica:g}")  # fmt: skip
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
    words = (f"{outcome.duration_s:.3g} s of {outcome.model} on {outcome.gpu}: at most {peak['queue']:.0f} requests "
             f"wait, {peak['batch']:.0f} sequences decode, the cache is at {100 * peak['kv_use']:.0f} %.")  # fmt: skip
    return Picture("timeline", frame.title, words, figure, theme)

"""What a load does to users: TTFT and TPOT over the rate of arrivals, or over users, up to the knee and beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from rooflinekit.decision.sweeping.pareto import OVERLOADED, runs
from rooflinekit.report.plots.labels import Label, end_labels
from rooflinekit.report.plots.style import Picture, Theme, decades, scale_text
from rooflinekit.report.plots.sweeps import WIDE, Curve, axis_of, curves, frame_of, ring_words, tints

LOADS = ("rate", "concurrency")
_ACROSS = {"rate": "requests a second that arrive", "concurrency": "users, each with one request at a time"}
_TIMES = {"ttft": "time to first token [ms]", "tpot": "time per output token [ms]"}
_PARTS = {"": ("mean", "-"), "p90_": ("P90", (0, (4, 2))), "p99_": ("P99", (0, (1, 1.4)))}
_NEAR = 4.0  # times the largest rate: a knee beyond is only told
_TICKS = 8
_UPRIGHT = (0, (6, 3))
_SIZE = (7.2, 4.0)  # inch
_HEADING, _LINE = 0.27, 0.165  # inch: what the title takes, and a line of the legend
_LETTERS, _MARK = 105, 6  # that a line of the legend has room for; what a mark takes


def load_sweep(table: pd.DataFrame, theme: Theme) -> Picture:
    """TTFT and TPOT over the load: means and percentiles, the knee, and rings where it is exceeded.

    Raises InputError if no load differs between rows, or for more lines than can be told apart.
    """
    axis = axis_of(table, LOADS)
    lines = curves(table, axis)
    frame = frame_of("What more load does", table, theme)
    if lines[0].clear and any(_column(line.rows, time, "low_") is not None for line in lines for time in _TIMES):
        frame = replace(frame, source=f"shaded: 90 % interval of the mean; {frame.source}")
    figure, panels = frame.panels(*_SIZE, 2)
    for panel, time in zip(panels, _TIMES, strict=True):
        for line, color in zip(lines, tints(lines, theme), strict=True):
            _draw(panel, line, axis, time, color)
        _scales(panel, lines, axis, time)
        _goal(panel, table, time, theme)
    ends = [end for panel in panels for end in panel.get_xlim()]
    for panel in panels:
        panel.set_xlim(min(ends), max(ends))
    _legend(figure, panels, lines, theme)
    end_labels(panels[-1], list(_ends(lines, axis, "tpot", theme)))
    return Picture("load", frame.title, _description(lines, axis), figure, theme)


def _column(rows: pd.DataFrame, time: str, part: str = "") -> NDArray[np.float64] | None:
    """Milliseconds of each row; means of simulated rows have a name of their own."""
    names = (f"{time}_{part}ms", *(() if part else (f"{time}_mean_ms",)))
    found = next((name for name in names if name in rows), None)
    if found is None:
        return None
    values = pd.to_numeric(rows[found], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def _parts(lines: Sequence[Curve]) -> list[str]:
    """Of one line mean, P90 and P99, of several mean and P99."""
    return [part for part in _PARTS if part != "p90_" or len(lines) == 1]


def _ends(lines: Sequence[Curve], axis: str, time: str, theme: Theme) -> Iterator[Label]:
    """Names of several lines, where the last load is that holds."""
    for line, color in zip(lines, tints(lines, theme), strict=True):
        held = line.rows[runs(line.rows)]
        values = _column(held, time)
        if values is not None and len(values) and np.isfinite(values[-1]) and line.label:
            yield Label(line.label, float(held[axis].iloc[-1]), float(values[-1]), theme.ink, lead=color)


def _draw(axes: Axes, line: Curve, axis: str, time: str, color: str) -> None:
    """Lines of what holds, of few lines with the mean's interval; what does not hold as rings; the knee upright."""
    x, holds = line.rows[axis].to_numpy(dtype=float), runs(line.rows)
    low, high = (_column(line.rows, time, f"{end}_") for end in ("low", "high"))
    if line.clear and low is not None and high is not None:
        axes.fill_between(
            x[holds], low[holds], high[holds], color=color, alpha=0.13, lw=0, gid=f"interval {line.label}"
        )
    for part, (word, dashes) in _PARTS.items():
        values = _column(line.rows, time, part)
        if values is None or (part == "p90_" and line.label):
            continue
        more: dict[str, Any] = {"lw": 1.0} if part else {"marker": "o", "ms": 3.5}
        axes.plot(x[holds], values[holds], color=color, ls=dashes, gid=f"{time} {word} {line.label}", **more)
        if not part and not holds.all():
            axes.plot(x[~holds], values[~holds], ls="", marker="o", ms=4.5, mfc=axes.get_facecolor(), mec=color,
                      gid=f"{time} rings {line.label}")  # fmt: skip
    if axis == "rate" and (knee := _knee(line.rows)) and knee <= _NEAR * float(x.max()):
        axes.axvline(knee, color=color, lw=0.8, ls=_UPRIGHT, alpha=0.8, gid=f"{time} knee {line.label}")


def _knee(rows: pd.DataFrame) -> float | None:
    """The largest rate that these rows can be served at, where it is known."""
    values = (
        pd.to_numeric(rows["knee_rate"], errors="coerce").dropna() if "knee_rate" in rows else pd.Series(dtype=float)
    )
    return float(values.iloc[0]) if len(values) and math.isfinite(values.iloc[0]) else None


def _scales(axes: Axes, lines: Sequence[Curve], axis: str, time: str) -> None:
    loads = sorted({float(value) for line in lines for value in line.rows[axis]})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(_thinned(loads))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    axes.set(xlabel=_ACROSS[axis], ylabel=_TIMES[time])
    every = [
        values for line in lines for part in _parts(lines) if (values := _column(line.rows, time, part)) is not None
    ]
    drawn = np.concatenate(every) if every else np.array([])
    drawn = drawn[drawn > 0.0]
    if len(drawn) and drawn.max() > WIDE * drawn.min():
        axes.set_yscale("log")
        decades(axes.yaxis, scale_text)
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    if not len(drawn):
        axes.set_yticks([])
        axes.annotate("no load can be sustained", (0.5, 0.5), xycoords="axes fraction", ha="center",
                      bbox={"facecolor": axes.get_facecolor(), "edgecolor": "none"})  # fmt: skip


def _thinned(loads: Sequence[float]) -> Iterator[float]:
    """Loads far enough apart on the axis for their numbers."""
    span, last = math.log(loads[-1] / loads[0]) / _TICKS if loads[0] > 0.0 else 0.0, -math.inf
    for load in loads:
        if math.log(load) - last >= span:
            last = math.log(load)
            yield load


def _goal(axes: Axes, table: pd.DataFrame, time: str, theme: Theme) -> None:
    """The objective, if all rows have the same and it lies among what is drawn."""
    goals = np.unique(pd.to_numeric(table[time], errors="coerce").dropna()) if time in table else np.array([])
    if len(goals) == 1 and goals[0] <= axes.get_ylim()[1]:
        axes.axhline(goals[0], color=theme.soft, lw=0.8, gid=f"objective {time}")
        axes.annotate("objective", (0.0, goals[0]), (3, 2), xycoords=("axes fraction", "data"), fontsize=6.5,
                      textcoords="offset points", color=theme.soft)  # fmt: skip


def _legend(figure: Figure, panels: Sequence[Axes], lines: Sequence[Curve], theme: Theme) -> None:
    """What dashes and rings mean, between the title and the panels."""
    lines_drawn = (each for panel in panels for each in panel.lines)
    drawn = [
        str(each.get_gid()) for each in lines_drawn if np.isfinite(np.asarray(each.get_ydata(), dtype=float)).any()
    ]
    found = []
    for part in _parts(lines):
        word, dashes = _PARTS[part]
        if any(gid.split(" ")[1] == word for gid in drawn):
            found.append(Line2D([], [], color=theme.ink, ls=dashes, lw=1.0 if part else 1.6, label=word))
    if any(" knee " in gid for gid in drawn):
        found.append(Line2D([], [], color=theme.ink, ls=_UPRIGHT, lw=0.8, label="knee: more cannot be served"))
    if words := ring_words([line.rows for line in lines]):
        words = words.replace(OVERLOADED, f"{OVERLOADED}: no limit to TTFT")
        found.append(Line2D([], [], color=theme.ink, ls="", marker="o", mfc="none", ms=4.5, label=words))
    long = sum(len(str(mark.get_label())) + _MARK for mark in found) > _LETTERS
    columns = 3 if long else len(found)
    figure.legend(handles=found, loc="upper left", bbox_to_anchor=(0.005, 1.0 - _HEADING / _SIZE[1]), ncols=columns,
                  columnspacing=1.4, handlelength=1.8)  # fmt: skip
    room = 1.0 - (-(-len(found) // columns) * _LINE + 0.08) / _SIZE[1]
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.04, rect=(0.0, 0.0, 1.0, room)))


def _description(lines: Sequence[Curve], axis: str) -> str:
    first = lines[0].rows[axis]
    start = f"From {float(first.iloc[0]):g} to {float(first.iloc[-1]):g} ({_ACROSS[axis]}): "
    return start + "; ".join(_told(line, axis) for line in lines) + "."


def _told(line: Curve, axis: str) -> str:
    """What becomes of a line's times over the loads that hold, its knee, and what is beyond."""
    rows, over = line.rows[runs(line.rows)], (~runs(line.rows)).sum()
    words = []
    for time in _TIMES:
        values = _column(rows, time)
        if values is not None and len(values):
            words.append(f"mean {time.upper()} goes from {values[0]:.3g} to {values[-1]:.3g} ms")
    knee = _knee(line.rows) if axis == "rate" else None
    words += [f"at most {knee:.3g} requests a second can be served"] if knee else []
    words += [f"{over} of {len(line.rows)} loads do not hold"] if over else []
    return f"{line.label}{': ' if line.label else ''}{', '.join(words)}"

"""Pictures of tables: answers over the batch, the context or the load; the front of speed against throughput."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from rooflinekit.decision.sweeping.pareto import (
    FAILED,
    OVERLOADED,
    compared,
    interactivity,
    pareto_front,
    parse_goals,
    runs,
    why_not,
)
from rooflinekit.estimation.frames import INPUT_COLUMNS
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.document import three
from rooflinekit.report.look import SERIES, hues_of, shades
from rooflinekit.report.plots import style
from rooflinekit.report.plots.labels import Label, end_labels, place

_MOST = len(SERIES)  # lines that can be told apart
_WIDE = 2.0  # of the largest over the least: beyond, an axis is logarithmic
_CLEAR = 2  # lines up to which intervals and bounds can be told apart
_LABELLED = 14  # points of a front with their words
_UNITS = {
    "batch": "sequences in the batch",
    "concurrency": "users",
    "isl": "prompt length [tokens]",
    "context": "context of the decode step [tokens]",
}
_TITLES = {
    "tpot_ms": "time per output token [ms]",
    "ttft_ms": "time to first token [ms]",
    "output_tok_s_per_gpu": "output of one GPU [tok/s]",
}


@dataclass(frozen=True)
class SweepLine:
    """Rows that differ in one input alone, in its order."""

    label: str
    rows: pd.DataFrame
    clear: bool = True  #: few enough lines that intervals and bounds can be told apart


_COUNTS = {"batch": ("batch", "concurrency"), "context": ("isl", "context"), "load": ("rate", "concurrency")}


def kinds_of(table: pd.DataFrame) -> list[str]:
    """Pictures of a table: one picture for each count that takes several values, and the front."""
    kinds = [
        kind
        for kind, names in _COUNTS.items()
        if (kind == "load" or "tpot_ms" in table) and any(0 < _lines(table, name) <= _MOST for name in names)
    ]
    both = {"output_tok_s_per_user", "output_tok_s_per_gpu"} <= set(table.columns)
    if both and len(answered(table)) > 1:
        kinds.append("pareto")
        by = compared(table)
        kinds += ["interactivity"] if by and min(interactivity(table, by).shape) > 1 else []
    return kinds


def left_out(table: pd.DataFrame) -> list[str]:
    """Pictures that a table lacks because of its many lines, and the reason."""
    drawn = kinds_of(table)
    most = {kind: max(_lines(table, name) for name in names) for kind, names in _COUNTS.items() if kind not in drawn}
    return [
        f"no picture {kind}: {lines} lines cannot be told apart, at most {_MOST}"
        for kind, lines in most.items()
        if lines
    ]


def _lines(table: pd.DataFrame, axis: str) -> int:
    """Lines over an input; 0 where it takes one value."""
    if not _several(table, axis):
        return 0
    rows = _along(table, axis)
    others = varying(rows, axis)
    return rows.groupby(others, dropna=False).ngroups if others else 1


def axis_of(table: pd.DataFrame, names: Sequence[str]) -> str:
    """The first of these inputs that differs between rows."""
    for name in names:
        if _several(table, name):
            return name
    raise InputError(f"nothing to draw: the table has no answered rows that differ in {' or '.join(names)}")


def _groups(rows: pd.DataFrame, axis: str) -> list[tuple[str, pd.DataFrame]]:
    """Rows that differ in one input alone, with what tells them from the others."""
    others = varying(rows, axis)
    parts = rows.groupby(others, dropna=False, sort=False) if others else [((), rows)] if len(rows) else []
    return [(_words(part.iloc[0], others), part) for _, part in parts]


def _several(table: pd.DataFrame, name: str) -> bool:
    return name in table and answered(table)[name].nunique() > 1


def answered(table: pd.DataFrame) -> pd.DataFrame:
    """Rows with an answer."""
    timed = next((name for name in ("tpot_ms", "tpot_mean_ms") if name in table), None)
    rows = table.iloc[:0] if timed is None else table[table[timed].notna()]
    found: pd.DataFrame = rows[why_not(rows) != FAILED]
    return found


def _along(table: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Answered rows that have a value of this input."""
    rows = answered(table)
    return rows[rows[axis].notna()]


def varying(table: pd.DataFrame, but: str = "") -> list[str]:
    """Inputs that differ between rows."""
    return [name for name in table if name in INPUT_COLUMNS and name != but and table[name].nunique(dropna=False) > 1]


def curves(table: pd.DataFrame, axis: str) -> list[SweepLine]:
    """The table as lines over one input."""
    found = _groups(_along(table, axis), axis)
    if len(found) > _MOST:
        first = varying(_along(table, axis), axis)[0]
        raise InputError(f"{len(found)} lines cannot be told apart; at most {_MOST}: filter the table by {first!r}")
    return [SweepLine(label, part.sort_values(axis), len(found) <= _CLEAR) for label, part in found]


def tints(lines: Sequence[SweepLine], theme: style.Theme) -> list[str]:
    """A colour for each line: the hue of its accelerator where they differ, paler for each further line of that hue."""
    return [theme.ink] if len(lines) == 1 else shaded(kinds(lines), theme)


def shaded(names: Sequence[str], theme: style.Theme) -> list[str]:
    """A colour for each name: of an accelerator the hue of its generation, of others the next that is free."""
    known = hues_of(dict.fromkeys(names))
    free = iter([hue for hue in SERIES if hue not in known.values()] + [*SERIES] * len(names))
    given = {name: known.get(name) or next(free) for name in dict.fromkeys(names)}
    hues = [given[name] for name in names]
    return [theme.paler(theme.tint(hue), share) for hue, share in zip(hues, shades(hues), strict=True)]


def kinds(lines: Sequence[SweepLine]) -> list[str]:
    """The source of each line's hue: its accelerator where they differ."""
    gpus = [str(line.rows["gpu"].iloc[0]) if "gpu" in line.rows else "" for line in lines]
    return gpus if len(set(gpus)) > 1 else [line.label for line in lines]


def _words(row: pd.Series, names: Sequence[str]) -> str:
    """The words that tell a row from others.

    >>> _words(pd.Series({"gpu": "l40s", "tp": 2, "batch": 8.0}), ["gpu", "tp", "batch"])
    'l40s, tp 2, batch 8'
    """
    texts = (f"{row[name]:g}" if isinstance(row[name], (int, float, np.number)) else str(row[name]) for name in names)
    pairs = zip(names, texts, strict=True)
    return ", ".join(text if name in ("model", "gpu", "engine") else f"{name} {text}" for name, text in pairs)


def batch_sweep(table: pd.DataFrame, theme: style.Theme) -> style.Picture:
    """Time per token and throughput of a GPU over the batch, or over users."""
    axis = axis_of(table, ("batch", "concurrency"))
    frame = frame_of("Larger batches", table, theme)
    return _over(table, axis, "batch", frame, ("tpot_ms", "output_tok_s_per_gpu"))


def context_sweep(table: pd.DataFrame, theme: style.Theme) -> style.Picture:
    """Times over the prompt length, or over the context of the decode step."""
    axis = axis_of(table, ("isl", "context"))
    shown = ("ttft_ms", "tpot_ms") if axis == "isl" else ("tpot_ms", "output_tok_s_per_gpu")
    return _over(table, axis, "context", frame_of("Longer contexts", table, theme), shown)


def frame_of(title: str, table: pd.DataFrame, theme: style.Theme) -> style.Frame:
    """Inputs that all rows share stand above, as does the version below."""
    fixed = [name for name in table if name in INPUT_COLUMNS and table[name].nunique(dropna=False) == 1]
    kept = [name for name in fixed if pd.notna(table[name].iloc[0]) and str(table[name].iloc[0])]
    levels = " and ".join(map(str, answered(table)["level"].unique())) if "level" in table else ""
    version = table["version"].dropna().iloc[0] if "version" in table and table["version"].notna().any() else ""
    return style.Frame(title, _words(table.iloc[0], kept), f"rooflinekit {version}, level {levels}", theme)


def _over(table: pd.DataFrame, axis: str, name: str, frame: style.Frame, shown: Sequence[str]) -> style.Picture:
    lines, theme = curves(table, axis), frame.theme
    if lines[0].clear and (answered(table)["level"] == "expected").any():
        frame = replace(frame, source=f"dashed: datasheet bound; shaded: 90 % interval; {frame.source}")
    if words := ring_words(lines):
        frame = replace(frame, source=f"rings: {words}; {frame.source}")
    figure, panels = frame.panels(7.2, 3.6, len(shown))
    for panel, column in zip(panels, shown, strict=True):
        panel.set_xscale("log", base=2)
        style.powers_of_two(panel.xaxis, sorted({float(v) for line in lines for v in line.rows[axis]}))
        panel.set(xlabel=_UNITS[axis], ylabel=_TITLES[column])
        for line, color in zip(lines, tints(lines, theme), strict=True):
            _draw(panel, line, axis, column, color)
        _scale(panel, np.concatenate([line.rows[column].dropna().astype(float) for line in lines]))
        end_labels(panel, list(_ends(lines, axis, column, theme)))
    return style.Picture(name, frame.title, _description(lines, axis, shown), figure, theme)


def _scale(axes: Axes, drawn: NDArray[np.float64]) -> None:
    """Logarithmic where values differ widely, else from 0 on."""
    if len(drawn) and drawn.max() > _WIDE * drawn.min() > 0.0:
        axes.set_yscale("log")
        style.decades(axes.yaxis, style.scale_text)
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}")


def _draw(axes: Axes, line: SweepLine, axis: str, column: str, color: str) -> None:
    """Expected, of few lines with its interval and bound (dashed); rows that do not fit in memory as rings."""
    rows, x, holds = line.rows, line.rows[axis].astype(float), runs(line.rows)
    stem = column.removesuffix("_ms")
    _interval(axes, line, axis, stem, color)
    if line.clear and f"{stem}_bound_ms" in rows and (rows["level"] == "expected").any():
        axes.plot(x, rows[f"{stem}_bound_ms"], color=color, lw=1.0, ls=(0, (4, 2)), gid=f"bound {line.label}")
    axes.plot(x, rows[column], color=color, gid=f"line {line.label}")
    axes.plot(x[holds], rows[column][holds], ls="", marker="o", ms=3.5, color=color, gid=f"fits {line.label}")
    _rings(axes, x[~holds], rows[column][~holds], color, f"misfit {line.label}")


def _interval(axes: Axes, line: SweepLine, axis: str, time: str, color: str) -> None:
    """The 90 % interval of one of few lines, where it is known."""
    low, high = (_column(line.rows, time, f"{end}_") for end in ("low", "high"))
    if line.clear and low is not None and high is not None and np.isfinite(low).any():
        x = line.rows[axis].astype(float)
        axes.fill_between(x, low, high, color=color, alpha=0.13, lw=0, gid=f"interval {line.label}")


def _rings(axes: Axes, x: Any, y: Any, color: str, gid: str) -> None:
    """Rows that cannot run."""
    if len(x):
        axes.plot(x, y, ls="", marker="o", ms=4.5, mfc=axes.get_facecolor(), mec=color, gid=gid)


def ring_words(lines: Sequence[SweepLine]) -> str:
    """The meaning of rings among these lines; empty if there are none."""
    words = (str(word) for line in lines for word in why_not(line.rows)[~runs(line.rows)])
    return " or ".join(dict.fromkeys(words))


def _ends(lines: Sequence[SweepLine], axis: str, column: str, theme: style.Theme) -> Iterator[Label]:
    for line, color in zip(lines, tints(lines, theme), strict=True):
        known = line.rows[line.rows[column].notna()]
        if known.empty:
            continue
        last, stem = known.iloc[-1], column.removesuffix("_ms")
        timed = f"{stem}_bound_ms" in line.rows and last["level"] == "expected"
        words = line.label or ("expected" if timed else "")
        yield Label(words, float(last[axis]), float(last[column]), theme.ink, lead=color)
        if timed and len(lines) == 1:
            yield Label("bound", float(last[axis]), float(last[f"{stem}_bound_ms"]), theme.soft)


def _description(lines: Sequence[SweepLine], axis: str, shown: Sequence[str]) -> str:
    parts = []
    for line in lines:
        known = {name: line.rows[name].dropna() for name in shown}
        changes = ", ".join(
            f"{_TITLES[name].split(' [')[0]} goes from {values.iloc[0]:.3g} to {values.iloc[-1]:.3g} "
            f"{_TITLES[name].split('[')[1].rstrip(']')}"
            for name, values in known.items()
            if len(values)
        )
        parts.append(f"{line.label}{': ' if line.label else ''}{changes}")
    span = f"From {lines[0].rows[axis].iloc[0]:g} to {lines[0].rows[axis].iloc[-1]:g} ({_UNITS[axis]}): "
    return span + "; ".join(parts) + "."


_ACROSS = {"rate": "requests a second that arrive", "concurrency": "users, each with one request at a time"}
_TIMES = {"ttft": "time to first token [ms]", "tpot": "time per output token [ms]"}
_PARTS = {"": ("mean", "-"), "p90_": ("P90", (0, (4, 2))), "p99_": ("P99", (0, (1, 1.4)))}
_NEAR = 4.0  # times the largest rate: a knee beyond is only told
_UPRIGHT = (0, (6, 3))
_SIZE = (7.2, 4.0)  # inch
_HEADING, _LINE = 0.27, 0.165  # inch: what the title takes, and a line of the legend
_LETTERS, _MARK = 105, 6  # that a line of the legend has room for; what a mark takes


def load_sweep(table: pd.DataFrame, theme: style.Theme) -> style.Picture:
    """TTFT and TPOT over the load: means and percentiles, the knee, and rings where it is exceeded."""
    axis = axis_of(table, _COUNTS["load"])
    lines, frame = curves(table, axis), frame_of("Latency and throughput over the load", table, theme)
    if lines[0].clear and any(_column(line.rows, time, "low_") is not None for line in lines for time in _TIMES):
        frame = replace(frame, source=f"shaded: 90 % interval of the mean; {frame.source}")
    figure, panels = frame.panels(*_SIZE, 2)
    for panel, time in zip(panels, _TIMES, strict=True):
        for line, color in zip(lines, tints(lines, theme), strict=True):
            _draw_load(panel, line, axis, time, color)
        panel.set_xscale("log", base=2)
        style.powers_of_two(panel.xaxis, sorted({float(v) for line in lines for v in line.rows[axis]}), ",.4g")
        panel.set(xlabel=_ACROSS[axis], ylabel=_TIMES[time])
        every = [
            values for line in lines for part in _parts(lines) if (values := _column(line.rows, time, part)) is not None
        ]
        drawn = np.concatenate([values[values > 0.0] for values in every]) if every else np.array([])
        _scale(panel, drawn)
        if not len(drawn):
            panel.set_yticks([])
            box = {"facecolor": panel.get_facecolor(), "edgecolor": "none"}
            panel.annotate("no load can be sustained", (0.5, 0.5), xycoords="axes fraction", ha="center", bbox=box)
        goals = np.unique(pd.to_numeric(table[time], errors="coerce").dropna()) if time in table else np.array([])
        if len(goals) == 1 and goals[0] <= panel.get_ylim()[1]:  # all rows have the same objective
            panel.axhline(goals[0], color=theme.soft, lw=0.8, gid=f"objective {time}")
            told = style.note(panel, "objective", (0.0, goals[0]), (3, 2), color=theme.soft)
            told.xycoords = "axes fraction", "data"
    ends = [end for panel in panels for end in panel.get_xlim()]
    for panel in panels:
        panel.set_xlim(min(ends), max(ends))
    _legend(figure, panels, lines, theme)
    names = []
    for line, color in zip(lines, tints(lines, theme), strict=True):  # where the last load is that holds
        held = line.rows[runs(line.rows)]
        values = _column(held, "tpot")
        if values is not None and len(values) and np.isfinite(values[-1]) and line.label:
            names.append(Label(line.label, float(held[axis].iloc[-1]), float(values[-1]), theme.ink, lead=color))
    end_labels(panels[-1], names)
    return style.Picture("load", frame.title, _load_words(lines, axis), figure, theme)


def _column(rows: pd.DataFrame, time: str, part: str = "") -> NDArray[np.float64] | None:
    """Milliseconds of each row; means of simulated rows have a name of their own."""
    names = (f"{time}_{part}ms", *(() if part else (f"{time}_mean_ms",)))
    found = next((name for name in names if name in rows), None)
    if found is None:
        return None
    values = pd.to_numeric(rows[found], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def _parts(lines: Sequence[SweepLine]) -> list[str]:
    """Parts of a time: of one line mean, P90 and P99, of several mean and P99."""
    return [part for part in _PARTS if part != "p90_" or len(lines) == 1]


def _draw_load(axes: Axes, line: SweepLine, axis: str, time: str, color: str) -> None:
    """Lines of what holds, of few lines with the mean's interval; what does not hold as rings; the knee upright."""
    x, holds = line.rows[axis].to_numpy(dtype=float), runs(line.rows)
    _interval(axes, replace(line, rows=line.rows[holds]), axis, time, color)
    for part, (word, dashes) in _PARTS.items():
        values = _column(line.rows, time, part)
        if values is None or (part == "p90_" and line.label):
            continue
        more: dict[str, Any] = {"lw": 1.0} if part else {"marker": "o", "ms": 3.5}
        axes.plot(x[holds], values[holds], color=color, ls=dashes, gid=f"{time} {word} {line.label}", **more)
        if not part:
            _rings(axes, x[~holds], values[~holds], color, f"{time} rings {line.label}")
    if axis == "rate" and (knee := _knee(line.rows)) and knee <= _NEAR * float(x.max()):
        axes.axvline(knee, color=color, lw=0.8, ls=_UPRIGHT, alpha=0.8, gid=f"{time} knee {line.label}")


def _knee(rows: pd.DataFrame) -> float | None:
    """The largest rate that these rows can be served at, where it is known."""
    known = pd.to_numeric(rows.get("knee_rate", pd.Series(dtype=float)), errors="coerce").dropna()
    return float(known.iloc[0]) if len(known) and math.isfinite(known.iloc[0]) else None


def _legend(figure: Figure, panels: Sequence[Axes], lines: Sequence[SweepLine], theme: style.Theme) -> None:
    """The meaning of dashes and rings, between the title and the panels."""
    every = (each for panel in panels for each in panel.lines)
    drawn = [str(each.get_gid()) for each in every if np.isfinite(np.asarray(each.get_ydata(), dtype=float)).any()]
    found = []
    for part in _parts(lines):
        word, dashes = _PARTS[part]
        if any(gid.split(" ")[1] == word for gid in drawn):
            found.append(Line2D([], [], color=theme.ink, ls=dashes, lw=1.0 if part else 1.6, label=word))
    if any(" knee " in gid for gid in drawn):
        found.append(Line2D([], [], color=theme.ink, ls=_UPRIGHT, lw=0.8, label="knee: more cannot be served"))
    if words := ring_words(lines):
        words = words.replace(OVERLOADED, f"{OVERLOADED}: TTFT grows without end")
        found.append(Line2D([], [], color=theme.ink, ls="", marker="o", mfc="none", ms=4.5, label=words))
    long = sum(len(str(mark.get_label())) + _MARK for mark in found) > _LETTERS
    columns = 3 if long else len(found)
    corner = {"loc": "upper left", "bbox_to_anchor": (0.005, 1.0 - _HEADING / _SIZE[1])}
    figure.legend(handles=found, ncols=columns, columnspacing=1.4, handlelength=1.8, **corner)
    room = 1.0 - (-(-len(found) // columns) * _LINE + 0.08) / _SIZE[1]
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.04, rect=(0.0, 0.0, 1.0, room)))


def _load_words(lines: Sequence[SweepLine], axis: str) -> str:
    """Words on each line's times over the loads that hold, on its knee and beyond."""
    told = []
    for line in lines:
        rows, over = line.rows[runs(line.rows)], (~runs(line.rows)).sum()
        values = {time: found for time in _TIMES if (found := _column(rows, time)) is not None and len(found)}
        words = [f"mean {time.upper()} goes from {v[0]:.3g} to {v[-1]:.3g} ms" for time, v in values.items()]
        knee = _knee(line.rows) if axis == "rate" else None
        words += [f"at most {knee:.3g} requests a second can be served"] if knee else []
        words += [f"{over} of {len(line.rows)} loads do not hold"] if over else []
        told.append(f"{line.label}{': ' if line.label else ''}{', '.join(words)}")
    first = lines[0].rows[axis]
    return f"From {float(first.iloc[0]):g} to {float(first.iloc[-1]):g} ({_ACROSS[axis]}): {'; '.join(told)}."


def pareto(table: pd.DataFrame, theme: style.Theme) -> style.Picture:
    """Best trade-offs of a user's speed and a GPU's throughput: a front for each accelerator, the rest thin and grey.

    Fronts that share most with that of all have hues, and names at their ends; numbers along them are the batch or the
    load. What misses the objective for the time per token is shaded.
    """
    frame = frame_of("Best trade-offs (Pareto front)", table, theme)
    goals = parse_goals("tok_s_user:tok_s_gpu")
    x, y = (goal.column for goal in goals)
    rows = answered(table)
    holds, front = why_not(rows) == "", pareto_front(rows, goals).sort_values(x)
    counts = (name for name in ("batch", "concurrency", "rate") if name in rows)
    axis = next((name for name in counts if rows[name][holds].nunique() > 1), "")
    found = [SweepLine(label, part.sort_values(x)) for label, part in _groups(rows[holds], axis)]
    of = dict[str, list[pd.DataFrame]]()
    for line, kind in zip(found, kinds(found), strict=True):
        of.setdefault(kind, []).append(line.rows)
    fronts = {kind: pareto_front(pd.concat(parts), goals).sort_values(x) for kind, parts in of.items()}
    ranked = sorted(fronts, key=lambda kind: -fronts[kind].index.isin(front.index).sum())
    named = [kind for kind in fronts if kind in ranked[:_MOST]]
    figure, (axes,) = frame.panels(7.2, 4.6)
    for line in found:
        axes.plot(line.rows[x], line.rows[y], color=theme.soft, lw=0.5, marker="o", ms=1.5, alpha=0.4)
    colors = dict(zip(named, shaded(named, theme) if len(named) > 1 else [theme.ink] * len(named), strict=True))
    for kind, color in colors.items():
        axes.plot(fronts[kind][x], fronts[kind][y], color=color, lw=1.6, marker="o", ms=4, gid=f"front {kind}")
    axes.plot(rows[x][~holds], rows[y][~holds], ls="", marker="o", ms=4, mfc="none", mec=theme.soft, alpha=0.7,
              mew=0.8, gid="barred")  # fmt: skip
    axes.plot(front[x], front[y], color=theme.ink, ls="", marker="o", ms=6.5, mfc="none", mew=1.0, gid="front")
    goals_ms = [*pd.to_numeric(table["tpot"], errors="coerce").dropna().unique()] if "tpot" in table else []
    if len(goals_ms) == 1 and len(front):  # all rows have the same objective
        axes.axvspan(axes.get_xlim()[0], 1e3 / float(goals_ms[0]), color=theme.soft, alpha=0.15, lw=0, gid="missed")
    axes.set(xscale="log", yscale="log", xlabel="output of one user [tok/s]", ylabel="output of one GPU [tok/s]")
    for each in (axes.xaxis, axes.yaxis):
        style.decades(each, style.scale_text)
    told = ["", "outlined: best of all"] + ([f"numbers: {_UNITS.get(axis, 'requests a second')}"] if axis else [])
    told += [f"without a name: {len(fronts) - len(named)} others"] if len(fronts) > len(named) else []
    told += ["grey rings: " + " or ".join(dict.fromkeys(why_not(rows)[~holds]))] if not holds.all() else []
    said = "; ".join(told)
    axes.set_title(f"{style.shortened(frame.subject, max(style.TITLE - len(said), 20))}{said}")
    ends = ((kind, color, fronts[kind].iloc[-1]) for kind, color in colors.items() if kind)
    labels = [Label(kind, float(row[x]), float(row[y]), theme.legible(color), lead=color) for kind, color, row in ends]
    for kind, color in colors.items() if axis else ():
        own = fronts[kind]
        best = own[own.index.isin(front.index)]
        marked = own.iloc[:: -(-len(own) // _LABELLED)] if best.empty else best.iloc[:: -(-len(best) // _LABELLED)]
        ink = theme.legible(color)
        labels += [Label(f"{row[axis]:g}", float(row[x]), float(row[y]), ink, 6.0) for _, row in marked.iterrows()]
    place(axes, labels)
    words = f"{len(front)} of {len(rows)} rows are on the front of {_TITLES[y]} and speed of a user."
    return style.Picture("pareto", frame.title, words, figure, theme)


_HIGH, _CELL = 0.21, 1.1  # inch: a row and a column of the table


def interactivity_table(table: pd.DataFrame, theme: style.Theme) -> style.Picture:
    """The best throughput of a GPU by the speed of a user; the best of a row is filled, the others over the first."""
    by = compared(table)
    found = interactivity(table, by)
    if len(found.columns) < 2 or not len(found):
        raise InputError("nothing to draw: interactivity takes two accelerators, or two values of another choice")
    names = [*map(str, found.columns)][:_MOST]
    frame = frame_of("Interactivity: best tokens/s of one GPU", table, theme)
    figure, (axes,) = frame.panels(max(1.6 + _CELL * len(names), _SIZE[0]), 1.3 + _HIGH * len(found))
    colors = shaded(names, theme)
    for row, (speed, cells) in enumerate(found[found.columns[: len(names)]].iterrows()):
        best = cells.max()
        for column, (cell, color) in enumerate(zip(cells, colors, strict=True)):
            if np.isnan(cell):
                continue
            ratio = f"  x {cell / cells.iloc[0]:.2f}" if column and not np.isnan(cells.iloc[0]) else ""
            if cell == best:
                axes.barh(row, 0.96, left=column - 0.48, height=0.9, color=color, lw=0, gid=f"best {speed:g}")
            words, ink = f"{three(float(cell))}{ratio}", theme.on(color) if cell == best else theme.ink
            axes.text(column, row, words, ha="center", va="center", fontsize=7, color=ink)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(found) - 0.5, -0.5))
    axes.grid(visible=False)
    axes.xaxis.set_ticks_position("top")
    style.label_ticks(axes.xaxis, names)
    style.label_ticks(axes.yaxis, [f"from {speed:g} tok/s" for speed in found.index])
    top = found.iloc[0]
    words = f"At {found.index[0]:g} tokens/s of each user {top.idxmax()} is best: {three(float(top.max()))} of one GPU."
    return style.Picture("interactivity", frame.title, words, figure, theme)

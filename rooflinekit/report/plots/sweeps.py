"""Pictures of tables: answers over the batch, over the context, and the front of speed against throughput."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rooflinekit.decision.sweeping.pareto import FAILED, pareto_front, parse_goals, runs, why_not
from rooflinekit.estimation.frames import INPUT_COLUMNS
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.palette import SERIES
from rooflinekit.report.plots.labels import Label, end_labels, place
from rooflinekit.report.plots.style import TITLE, Frame, Picture, Theme, decades, powers_of_two, scale_text, shortened

_AXES = ("batch", "isl", "context", "concurrency")
_MOST = len(SERIES)  # lines that can be told apart
WIDE = 2.0  # of the largest over the least: beyond, an axis is logarithmic
_CLEAR = 2  # lines up to which intervals and bounds can be told apart
_LABELLED = 14  # points of a front with their words
_UNITS = {"batch": "sequences in the batch", "concurrency": "users", "isl": "prompt length [tokens]",
          "context": "context of the decode step [tokens]"}  # fmt: skip
_TITLES = {"tpot_ms": "time per output token [ms]", "ttft_ms": "time to first token [ms]",
           "output_tok_s_per_gpu": "output of one GPU [tok/s]"}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """Rows that differ in one input alone, in its order."""

    label: str
    rows: pd.DataFrame
    clear: bool = True  #: few enough lines that intervals and bounds can be told apart


_COUNTS = {"batch": ("batch", "concurrency"), "context": ("isl", "context"), "load": ("rate", "concurrency")}


def kinds_of(table: pd.DataFrame) -> list[str]:
    """What can be drawn of a table: one picture for each count that takes several values, and the front."""
    kinds = [kind for kind, names in _COUNTS.items() if (kind == "load" or "tpot_ms" in table)
             and any(0 < _lines(table, name) <= _MOST for name in names)]  # fmt: skip
    both = {"output_tok_s_per_user", "output_tok_s_per_gpu"} <= set(table.columns)
    return [*kinds, "pareto"] if both and len(answered(table)) > 1 else kinds


def left_out(table: pd.DataFrame) -> list[str]:
    """What a table would have, were its lines fewer, and why it has not."""
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
    """The first of these inputs that differs between rows.

    Raises InputError if none does.
    """
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


def curves(table: pd.DataFrame, axis: str) -> list[Curve]:
    """The table as lines over one input.

    Raises InputError if they are more than can be told apart.
    """
    found = _groups(_along(table, axis), axis)
    if len(found) > _MOST:
        first = varying(_along(table, axis), axis)[0]
        raise InputError(f"{len(found)} lines cannot be told apart; at most {_MOST}: filter the table by {first!r}")
    return [Curve(label, part.sort_values(axis), len(found) <= _CLEAR) for label, part in found]


def tints(lines: Sequence[Curve], theme: Theme) -> list[str]:
    """A colour for each line: a hue for each accelerator where they differ, paler for each further line of the same."""
    if len(lines) == 1:
        return [theme.ink]
    kinds = hues(lines)
    colors = dict(zip(dict.fromkeys(kinds), theme.series, strict=False))
    return [theme.paler(colors[kind], kinds[:place].count(kind)) for place, kind in enumerate(kinds)]


def hues(lines: Sequence[Curve]) -> list[str]:
    """What gives each line its hue: its accelerator where they differ."""
    gpus = [str(line.rows["gpu"].iloc[0]) if "gpu" in line.rows else "" for line in lines]
    return gpus if len(set(gpus)) > 1 else [line.label for line in lines]


def _words(row: pd.Series, names: Sequence[str]) -> str:
    """What tells a row from others.

    >>> _words(pd.Series({"gpu": "l40s", "tp": 2, "batch": 8.0}), ["gpu", "tp", "batch"])
    'l40s, tp 2, batch 8'
    """
    texts = (f"{row[name]:g}" if isinstance(row[name], (int, float, np.number)) else str(row[name]) for name in names)
    pairs = zip(names, texts, strict=True)
    return ", ".join(text if name in ("model", "gpu", "engine") else f"{name} {text}" for name, text in pairs)


def batch_sweep(table: pd.DataFrame, theme: Theme) -> Picture:
    """Time per token and throughput of a GPU over the batch, or over users."""
    axis = axis_of(table, ("batch", "concurrency"))
    frame = frame_of("What a larger batch does", table, theme)
    return _over(table, axis, "batch", frame, ("tpot_ms", "output_tok_s_per_gpu"))


def context_sweep(table: pd.DataFrame, theme: Theme) -> Picture:
    """Times over the prompt length, or over the context of the decode step."""
    axis = axis_of(table, ("isl", "context"))
    shown = ("ttft_ms", "tpot_ms") if axis == "isl" else ("tpot_ms", "output_tok_s_per_gpu")
    return _over(table, axis, "context", frame_of("What a longer context does", table, theme), shown)


def frame_of(title: str, table: pd.DataFrame, theme: Theme) -> Frame:
    """Inputs that all rows share stand above, as does the version below."""
    fixed = [name for name in table if name in INPUT_COLUMNS and table[name].nunique(dropna=False) == 1]
    kept = [name for name in fixed if pd.notna(table[name].iloc[0]) and str(table[name].iloc[0])]
    levels = " and ".join(map(str, answered(table)["level"].unique())) if "level" in table else ""
    version = table["version"].dropna().iloc[0] if "version" in table and table["version"].notna().any() else ""
    return Frame(title, _words(table.iloc[0], kept), f"rooflinekit {version}, level {levels}", theme)


def _over(table: pd.DataFrame, axis: str, name: str, frame: Frame, shown: Sequence[str]) -> Picture:
    lines = curves(table, axis)
    if lines[0].clear and (answered(table)["level"] == "expected").any():
        frame = replace(frame, source=f"dashed: datasheet bound; shaded: 90 % interval; {frame.source}")
    if words := ring_words([line.rows for line in lines]):
        frame = replace(frame, source=f"rings: {words}; {frame.source}")
    figure, panels = frame.panels(7.2, 3.6, len(shown))
    for panel, column in zip(panels, shown, strict=True):
        _panel(panel, axis, sorted({float(v) for line in lines for v in line.rows[axis]}))
        panel.set_ylabel(_TITLES[column])
        for line, color in zip(lines, tints(lines, frame.theme), strict=True):
            _draw(panel, line, axis, column, color)
        drawn = np.concatenate([line.rows[column].dropna().astype(float) for line in lines])
        if len(drawn) and drawn.max() > WIDE * drawn.min() > 0.0:
            panel.set_yscale("log")
            decades(panel.yaxis, scale_text)
        else:
            panel.set_ylim(bottom=0)
        end_labels(panel, list(_ends(lines, axis, column, frame.theme)))
    return Picture(name, frame.title, _description(lines, axis, shown), figure, frame.theme)


def _panel(axes: Axes, axis: str, values: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    powers_of_two(axes.xaxis, values)
    axes.set_xlabel(_UNITS[axis])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}")


def _draw(axes: Axes, line: Curve, axis: str, column: str, color: str) -> None:
    """Expected, of few lines with its interval and bound (dashed); rows that do not fit in memory as rings."""
    rows, x = line.rows, line.rows[axis].astype(float)
    stem = column.removesuffix("_ms")
    if {f"{stem}_low_ms", f"{stem}_high_ms"} <= set(rows) and rows[f"{stem}_low_ms"].notna().any() and line.clear:
        low, high = rows[f"{stem}_low_ms"].astype(float), rows[f"{stem}_high_ms"].astype(float)
        axes.fill_between(x, low, high, color=color, alpha=0.13, lw=0, gid=f"interval {line.label}")
    if line.clear and f"{stem}_bound_ms" in rows and (rows["level"] == "expected").any():
        axes.plot(x, rows[f"{stem}_bound_ms"], color=color, lw=1.0, ls=(0, (4, 2)), gid=f"bound {line.label}")
    axes.plot(x, rows[column], color=color, gid=f"line {line.label}")
    holds = runs(rows)
    axes.plot(x[holds], rows[column][holds], ls="", marker="o", ms=3.5, color=color, gid=f"fits {line.label}")
    if not holds.all():
        axes.plot(x[~holds], rows[column][~holds], ls="", marker="o", ms=4.5, mfc=axes.get_facecolor(), mec=color,
                  gid=f"misfit {line.label}")  # fmt: skip


def ring_words(tables: Sequence[pd.DataFrame]) -> str:
    """What rings mean among these rows; empty if there are none."""
    return " or ".join(dict.fromkeys(str(word) for rows in tables for word in why_not(rows)[~runs(rows)]))


def _ends(lines: Sequence[Curve], axis: str, column: str, theme: Theme) -> Iterator[Label]:
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


def _description(lines: Sequence[Curve], axis: str, shown: Sequence[str]) -> str:
    parts = []
    for line in lines:
        known = {name: line.rows[name].dropna() for name in shown}
        changes = ", ".join(f"{_TITLES[name].split(' [')[0]} goes from {values.iloc[0]:.3g} to {values.iloc[-1]:.3g} "
                            f"{_TITLES[name].split('[')[1].rstrip(']')}" for name, values in known.items()
                            if len(values))  # fmt: skip
        parts.append(f"{line.label}{': ' if line.label else ''}{changes}")
    span = f"From {lines[0].rows[axis].iloc[0]:g} to {lines[0].rows[axis].iloc[-1]:g} ({_UNITS[axis]}): "
    return span + "; ".join(parts) + "."


def pareto(table: pd.DataFrame, theme: Theme) -> Picture:
    """Speed of a user against throughput of a GPU: a line for each deployment, with ticks of the batch or the load.

    Of many lines those with most of the front, which is what nothing else beats in both, have colours and names.
    """
    frame = frame_of("Speed for a user against throughput of a GPU", table, theme)
    goals = parse_goals("tok_s_user:tok_s_gpu")
    x, y = (goal.column for goal in goals)
    rows = answered(table)
    holds, front = why_not(rows) == "", pareto_front(rows, goals).sort_values(x)
    counts = (name for name in ("batch", "concurrency", "rate") if name in rows)
    axis = next((name for name in counts if rows[name][holds].nunique() > 1), "")
    found = [Curve(label, part.sort_values(x)) for label, part in _groups(rows[holds], axis)]
    best = sorted(found, key=lambda line: -line.rows.index.isin(front.index).sum())[:_MOST]
    named = found if len(found) <= 2 * _MOST and len(hues(found)) <= _MOST else best
    figure, (axes,) = frame.panels(7.2, 4.6)
    for line in found:
        axes.plot(line.rows[x], line.rows[y], color=theme.soft, lw=0.7, marker="o", ms=2, alpha=0.45)
    for line, color in zip(named, tints(named, theme), strict=True):
        axes.plot(line.rows[x], line.rows[y], color=color, lw=1.6, marker="o", ms=3.5, gid=f"line {line.label}")
    axes.plot(rows[x][~holds], rows[y][~holds], ls="", marker="o", ms=4, mfc="none", mec=theme.soft, alpha=0.7,
              mew=0.8, gid="barred")  # fmt: skip
    axes.plot(front[x], front[y], color=theme.ink, lw=0, marker="o", ms=6, mfc="none", mew=0.8, gid="front")
    axes.set(xscale="log", yscale="log", xlabel="output of one user [tok/s]", ylabel="output of one GPU [tok/s]")
    for each in (axes.xaxis, axes.yaxis):
        decades(each, scale_text)
    told = ["", "circled: the front"] + (
        [f"numbers: {_UNITS.get(axis, 'requests a second')}"] if axis and named else []
    )
    told += [f"grey: {len(found) - len(named)} others"] if len(found) - len(named) > _MOST else []
    told += ["rings: " + " or ".join(dict.fromkeys(why_not(rows)[~holds]))] if not holds.all() else []
    said = "; ".join(told)
    axes.set_title(f"{shortened(frame.subject, max(TITLE - len(said), 20))}{said}")
    ends = [(line, color, line.rows.iloc[-1]) for line, color in zip(named, tints(named, theme), strict=True)]
    others = [line for line in found if line not in named]
    ends += [(line, theme.soft, line.rows.iloc[-1]) for line in others if len(others) <= _MOST]
    labels = [Label(line.label, float(row[x]), float(row[y]), theme.legible(color), lead=color)
              for line, color, row in ends if line.label]  # fmt: skip
    step = -(-len(front) // _LABELLED) if len(front) else 1
    place(axes, labels + [Label(f"{row[axis]:g}", float(row[x]), float(row[y]), theme.ink, 6.0)
                          for _, row in front.iloc[::step].iterrows() if axis])  # fmt: skip
    words = f"{len(front)} of {len(rows)} rows are on the front of {_TITLES[y]} and speed of a user."
    return Picture("pareto", frame.title, words, figure, theme)

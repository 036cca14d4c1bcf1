"""Words beside what they name, without lying on each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

__all__ = ["Label", "along", "end_labels", "place"]

_AROUND = tuple((dx, dy) for far in (7, 14, 24, 36, 50, 66, 90) for dx, dy in (
    (far, 0), (-far, 0), (0, far), (0, -far), (far, far), (-far, far), (far, -far), (-far, -far)
))  # fmt: skip


_FAR = 20  # points: from here on a line leads to the words
_THICK = 0.7  # points: words may cross thinner lines


@dataclass(frozen=True)
class Label:
    """Words, the point in data coordinates that they belong to, and their colour."""

    text: str
    x: float
    y: float
    color: str
    size: float = 7.0


def place(axes: Axes, labels: Sequence[Label], taken: Sequence[Label] = ()) -> None:
    """Put each label at the nearest place around its point that is free; the first ones choose first.

    `taken` are points that words must not cover. A label that finds no place is left out.
    """
    figure = axes.get_figure(root=True)
    if figure is None:
        return
    _settle(figure)
    canvas = FigureCanvasAgg(figure)
    renderer, inside = canvas.get_renderer(), axes.get_window_extent()
    points = [axes.transData.transform((mark.x, mark.y)) for mark in (*labels, *taken)]
    boxes = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in points]
    boxes += [text.get_window_extent(renderer) for text in axes.texts]
    boxes += [Bbox.from_bounds(x - 1, y - 1, 2, 2) for x, y in _along_lines(axes)]
    for label in labels:
        for dx, dy in _AROUND:
            note = _note(axes, label, dx, dy)
            box = note.get_window_extent(renderer).padded(1.5)
            if inside.containsx(box.x0) and inside.containsx(box.x1) and _free(box, inside, boxes):
                boxes.append(box)
                break
            note.remove()


def _settle(figure: Figure) -> None:
    """Lay the figure out once and for all: what is written inside the axes from now on needs no more room."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def _along_lines(axes: Axes) -> Iterator[tuple[float, float]]:
    """Places a few pixels apart on every line of the drawing."""
    for line in axes.lines:
        if line.get_linestyle() == "None" or line.get_linewidth() < _THICK:
            continue
        ends = line.get_transform().transform(np.asarray(line.get_xydata(), float))
        for (x0, y0), (x1, y1) in pairwise(ends):
            steps = max(int(max(abs(x1 - x0), abs(y1 - y0)) // 5), 1)
            yield from zip(np.linspace(x0, x1, steps), np.linspace(y0, y1, steps), strict=True)


def along(axes: Axes, label: Label, other: tuple[float, float]) -> None:
    """Write above a line from the label's point on, turned as the line is; `other` is a point further on it."""
    figure = axes.get_figure(root=True)
    if figure is None:
        return
    _settle(figure)
    (x0, y0), (x1, y1) = axes.transData.transform([(label.x, label.y), other])
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    axes.annotate(
        label.text, (label.x, label.y), (-2, 3), textcoords="offset points", rotation=angle, rotation_mode="anchor",
        fontsize=label.size, color=label.color, va="bottom", ha="left",
    )  # fmt: skip


def _halo(axes: Axes) -> dict[str, Any]:
    """Paper behind words, so that they can be read across lines."""
    return {"facecolor": axes.get_facecolor(), "alpha": 0.75, "edgecolor": "none", "pad": 0.6}


def _note(axes: Axes, label: Label, dx: float, dy: float) -> Annotation:
    across = "left" if dx > 0 else "right" if dx < 0 else "center"
    up = "bottom" if dy > 0 else "top" if dy < 0 else "center"
    thin = {"arrowstyle": "-", "lw": 0.5, "color": label.color, "shrinkA": 0.0, "shrinkB": 2.0}
    return axes.annotate(
        label.text, (label.x, label.y), (dx, dy), textcoords="offset points", ha=across, va=up, fontsize=label.size,
        color=label.color, bbox=_halo(axes), annotation_clip=False, zorder=2.9,
        arrowprops=thin if abs(dx) + abs(dy) > _FAR else None,
    )  # fmt: skip


def _free(box: Bbox, inside: Bbox, boxes: Sequence[Bbox]) -> bool:
    fits = inside.y0 <= box.y0 and box.y1 <= inside.y1
    return fits and not any(box.overlaps(other) for other in boxes)


def end_labels(axes: Axes, labels: Sequence[Label], gap: float = 10.0) -> None:
    """Name lines at their right ends, moved apart up and down to `gap` points."""
    figure = axes.get_figure(root=True)
    if figure is None:
        return
    figure.draw_without_rendering()
    scale = figure.dpi / 72.0
    ordered = sorted(labels, key=lambda label: label.y)
    heights = [float(axes.transData.transform((label.x, label.y))[1]) / scale for label in ordered]
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    for label, own, height in zip(ordered, heights, placed, strict=True):
        axes.annotate(
            label.text, (label.x, label.y), (6, height - own), textcoords="offset points", va="center",
            fontsize=label.size, color=label.color, annotation_clip=False,
        )  # fmt: skip

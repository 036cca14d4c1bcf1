"""Words beside what they name, without lying on each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Affine2D, Bbox

from rooflinekit.report.plots.style import note

_AROUND = tuple(
    (dx, dy)
    for far in (7, 14, 20, 26, 36, 50, 66, 90)
    for dx, dy in ((far, 0), (-far, 0), (0, far), (0, -far), (far, far), (-far, far), (far, -far), (-far, -far))
)


_FAR = 20  # points: from here on a line leads to the words
_MOVED = 3.0  # points: a name that stands further from the end of its line has a line to it
_GAP = 11.0  # points between two of them
_BESIDE, _LEAD = 6, 14  # points from the ends of lines to their names, without and with lines between them
_SHARES = tuple(step / 10 for step in range(11))  # of a line, where words along it may begin
_THICK = 0.7  # points: words may cross thinner lines


@dataclass(frozen=True)
class Label:
    """Words, the point in data coordinates that they belong to, and their colour."""

    text: str
    x: float
    y: float
    color: str
    size: float = 7.0
    lead: str = ""  #: colour of the line that it names the end of


def place(axes: Axes, labels: Sequence[Label]) -> None:
    """Put each label at the nearest place around its point that is free; the first ones choose first.

    A label that finds no place beside lines too crosses them; one that finds none beside points and other words is
    left out.
    """
    renderer, inside = FigureCanvasAgg(_settled(axes)).get_renderer(), axes.get_window_extent()
    points = [axes.transData.transform((label.x, label.y)) for label in labels]
    boxes = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in points]
    boxes += _marks(axes)
    lines = [Bbox.from_bounds(x - 1, y - 1, 2, 2) for x, y in _along_lines(axes)]
    written = [text.get_window_extent(renderer) for text in axes.texts]
    boxes += written
    for label in labels:
        for crossed, (dx, dy) in product((lines, []), _AROUND):
            note = _note(axes, label, dx, dy)
            note.update_positions(renderer)
            box = Text.get_window_extent(note, renderer).padded(1.5)  # of the words without the line that leads to them
            lead = _lead(axes, label, box) if abs(dx) + abs(dy) > _FAR else []
            clear = not any(box.overlaps(other) for other in chain(boxes, crossed))
            within = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if clear and within and not any(own.overlaps(words) for own, words in product(lead, written)):
                boxes += [box, *lead]
                written.append(box)
                break
            note.remove()


def _lead(axes: Axes, label: Label, box: Bbox) -> list[Bbox]:
    """Places on the line from a label's point to its words."""
    (x0, y0), (x1, y1) = axes.transData.transform((label.x, label.y)), ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
    return [Bbox.from_bounds(x0 + share * (x1 - x0) - 1, y0 + share * (y1 - y0) - 1, 2, 2) for share in _SHARES[1:]]


def _settled(axes: Axes) -> Figure:
    """The figure, laid out once and for all: what is written inside the axes from now on needs no more room."""
    figure = _figure(axes)
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    return figure


def _figure(axes: Axes) -> Figure:
    figure = axes.figure.figure
    assert figure is not None  # of axes that were not removed
    return figure


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
    """Write above a line from the label's point on, turned as the line is; `other` is a point further on it.

    On logarithmic axes: words that would cover a mark begin further along, where they cover none.
    """
    _settled(axes)
    (x0, y0), (x1, y1) = axes.transData.transform([(label.x, label.y), other])
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    starts = [
        replace(label, x=label.x * (other[0] / label.x) ** share, y=label.y * (other[1] / label.y) ** share)
        for share in _SHARES
    ]
    free = next((start for start in starts if not _covers(axes, start, angle)), label)
    _turned(axes, free, angle)


def _turned(axes: Axes, label: Label, angle: float) -> Annotation:
    turned = {"rotation": angle, "rotation_mode": "anchor", "va": "bottom", "ha": "left"}
    return note(axes, label.text, (label.x, label.y), (-2, 3), fontsize=label.size, color=label.color, **turned)


def _covers(axes: Axes, label: Label, angle: float) -> bool:
    """True if words along a line would cover a mark: looked at in a frame that is turned as they are."""
    note = _turned(axes, label, 0.0)
    box = note.get_window_extent(FigureCanvasAgg(_figure(axes)).get_renderer()).padded(4.0)
    note.remove()
    x, y = axes.transData.transform((label.x, label.y))
    back = Affine2D().rotate_deg_around(x, y, -angle)
    centres = ((mark.x0 + mark.width / 2, mark.y0 + mark.height / 2) for mark in _marks(axes))
    return any(box.contains(*back.transform(centre)) for centre in centres)


def _marks(axes: Axes) -> Iterator[Bbox]:
    """Boxes that points cover [pixels]; their sizes are squares of their widths [points]."""
    scale = _figure(axes).dpi / 72.0
    for points in (each for each in axes.collections if isinstance(each, PathCollection)):
        places = axes.transData.transform(np.asarray(points.get_offsets(), float))
        widths = np.sqrt(np.resize(points.get_sizes(), len(places))) * scale
        yield from (Bbox.from_bounds(x - w / 2, y - w / 2, w, w) for (x, y), w in zip(places, widths, strict=True))


def _note(axes: Axes, label: Label, dx: float, dy: float) -> Annotation:
    across = "left" if dx > 0 else "right" if dx < 0 else "center"
    up = "bottom" if dy > 0 else "top" if dy < 0 else "center"
    halo = {"facecolor": axes.get_facecolor(), "alpha": 0.75, "edgecolor": "none", "pad": 0.6}  # legible across lines
    thin = {"lw": 0.5, "color": label.lead or label.color} if abs(dx) + abs(dy) > _FAR else None
    return _led(axes, label, (dx, dy), thin, ha=across, va=up, bbox=halo, zorder=2.9)


def _led(
    axes: Axes, label: Label, by: tuple[float, float], thin: Mapping[str, object] | None, **look: object
) -> Annotation:
    """A label beside its place, also outside of the axes; a thin line leads to it."""
    lead = None if thin is None else {"arrowstyle": "-", "shrinkA": 0.0, "shrinkB": 2.0, **thin}
    at, offset = (label.x, label.y), "offset points"
    made = axes.annotate(label.text, at, by, textcoords=offset, arrowprops=lead, annotation_clip=False)
    made.set(fontsize=label.size, color=label.color, **look)
    return made


def end_labels(axes: Axes, labels: Sequence[Label]) -> None:
    """Name lines at their right ends, moved apart up and down; a thin line leads to each that moved."""
    figure = _figure(axes)
    figure.draw_without_rendering()
    scale = figure.dpi / 72.0
    ordered = sorted(labels, key=lambda label: label.y)
    heights = [float(axes.transData.transform((label.x, label.y))[1]) / scale for label in ordered]
    box = axes.get_window_extent()
    last = max(
        (float(line.get_window_extent().x1) / scale for line in axes.lines if line.get_marker() == "o"), default=0.0
    )
    places = _apart(heights, _GAP, (box.y0 / scale, box.y1 / scale))
    far = _LEAD if any(abs(own - place) > _MOVED for own, place in zip(heights, places, strict=True)) else _BESIDE
    for label, own, height in zip(ordered, heights, places, strict=True):
        behind = max(last - float(axes.transData.transform((label.x, label.y))[0]) / scale, 0.0)
        moved = (abs(height - own) > _MOVED or behind > _MOVED) and bool(label.lead)
        thin = {"lw": 0.6, "color": label.lead, "relpos": (0.0, 0.5)} if moved else None
        _led(axes, label, (far + behind, height - own), thin, va="center")


def _apart(heights: Sequence[float], gap: float, span: tuple[float, float]) -> list[float]:
    """Rising heights, at least `gap` apart and inside a span, each as near as can be to where it was.

    The least squares of a monotone sequence: largest over starts of the least over ends of the mean in between.

    >>> _apart([0.0, 2.0, 50.0], 10.0, (-100.0, 100.0))
    [-4.0, 6.0, 50.0]
    >>> _apart([0.0, 2.0, 50.0], 10.0, (0.0, 40.0))
    [0.0, 10.0, 40.0]
    """
    count, high = len(heights), span[1] - gap * (len(heights) - 1)
    free = np.array(heights) - gap * np.arange(count)
    places = (
        max(min(float(free[start:end].mean()) for end in range(place + 1, count + 1)) for start in range(place + 1))
        for place in range(count)
    )
    return [max(min(place, high), span[0]) + gap * number for number, place in enumerate(places)]

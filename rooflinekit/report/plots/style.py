"""One look for all pictures: colours that mean the same everywhere, type, grid, ticks at decades."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from rooflinekit.report.palette import CLASSES, PALETTES, SERIES

TITLE = 106  # characters of a heading
_DIGIT = 5.2  # points that a digit at a tick takes
_NARROWER = 0.8
_LEAST = 2  # numbers that an axis needs
_FEW_DECADES = 2.2  # on an axis of fewer, 2 and 5 are written too


@dataclass(frozen=True)
class Theme:
    """Paper, ink, two weaker inks, and the colours of things."""

    paper: str
    ink: str
    soft: str
    grid: str
    palette: Mapping[str, str]

    def tint(self, name: str) -> str:
        """The colour of a class of bytes or a cause of time.

        >>> THEMES["light"].tint("KV") == THEMES["light"].palette["cache"]
        True
        """
        return self.palette[CLASSES.get(name, name)]

    @property
    def series(self) -> tuple[str, ...]:
        """Colours of lines, in their order."""
        return tuple(map(self.tint, SERIES))

    def paler(self, color: str, steps: int) -> str:
        """A colour some steps nearer to the paper, where it still stands out.

        >>> THEMES["light"].paler("#000000", 0), THEMES["light"].paler("#000000", 2)
        ('#000000', '#999999')
        """
        share = min(0.3 * steps, 0.6)
        mixed = zip(to_rgb(color), to_rgb(self.paper), strict=True)
        return to_hex([own + share * (paper - own) for own, paper in mixed])

    @property
    def accent(self) -> str:
        """What is better."""
        return self.tint("activations")

    def on(self, fill: str) -> str:
        """The one of paper and ink that is better to read on a fill.

        >>> THEMES["light"].on("#26488a"), THEMES["light"].on("#b28614")
        ('#ffffff', '#1b1b1b')
        """
        return max((self.paper, self.ink), key=lambda words: _contrast(words, fill))


def _contrast(one: str, other: str) -> float:
    """Ratio of luminances (WCAG 2.1)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


THEMES = {
    "light": Theme("#ffffff", "#1b1b1b", "#5c5c5c", "#dcdcdc", PALETTES["light"]),
    "dark": Theme("#16181d", "#ececec", "#b0b0b0", "#3a3d44", PALETTES["dark"]),
}


@contextmanager
def styled(theme: Theme) -> Iterator[None]:
    """Settings of matplotlib inside; those of the caller stay as they are."""
    settings: dict[str, Any] = {
        "font.family": "DejaVu Sans", "font.size": 8.0, "text.parse_math": False, "text.color": theme.ink,
        "figure.facecolor": theme.paper, "savefig.facecolor": theme.paper, "figure.titlesize": 11.0,
        "figure.titleweight": "bold", "axes.facecolor": theme.paper, "axes.edgecolor": theme.soft,
        "axes.labelcolor": theme.ink, "axes.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False,
        "axes.titlesize": 7.5, "axes.titlelocation": "left", "axes.titlecolor": theme.soft, "axes.grid": True,
        "axes.axisbelow": True, "grid.color": theme.grid, "grid.linewidth": 0.5, "xtick.color": theme.soft,
        "ytick.color": theme.soft,
        "xtick.minor.size": 1.5, "ytick.minor.size": 1.5, "xtick.labelcolor": theme.ink, "ytick.labelcolor": theme.ink,
        "lines.linewidth": 1.6, "legend.frameon": False, "legend.fontsize": 7.5, "svg.fonttype": "path",
        "hatch.linewidth": 0.5,
    }  # fmt: skip
    with mpl.rc_context():
        mpl.rcdefaults()  # what a user has set in matplotlibrc does not change a picture
        mpl.rcParams.update(settings)
        yield


@dataclass(frozen=True)
class Frame:
    """What stands around a drawing: its title, what it is of, where its numbers come from."""

    title: str
    subject: str
    source: str
    theme: Theme

    def sheet(self, width: float, height: float) -> Figure:
        """An empty figure [inch] with the words on it."""
        room = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.04)
        figure = Figure(figsize=(width, height), layout=room)
        figure.suptitle(self.title, x=0.01, horizontalalignment="left")
        figure.supxlabel(self.source, x=0.99, horizontalalignment="right", fontsize=6.0, color=self.theme.soft)
        return figure

    def panels(self, width: float, height: float, count: int = 1, **grid: Any) -> tuple[Figure, list[Axes]]:
        """A figure with panels side by side (or below each other, with `ncols` 1); the first one names the subject."""
        figure = self.sheet(width, height)
        columns = int(grid.pop("ncols", count))
        spec = GridSpec(-(-count // columns), columns, figure=figure, **grid)
        axes = [figure.add_subplot(spec[place]) for place in range(count)]
        axes[0].set_title(shortened(self.subject))
        return figure, axes


def shortened(text: str, most: int = TITLE) -> str:
    """The text, without its middle if it is too long for a line.

    >>> shortened("abcdefghij", 7)
    'abc…hij'
    """
    keep = most - 1
    return text if len(text) <= most else f"{text[: keep - keep // 2]}…{text[len(text) - keep // 2 :]}"


def decades(axis: Axis, text: Callable[[float], str]) -> None:
    """Ticks at powers of ten, written by `text`, and small ones between them."""
    axis.set_major_locator(LogLocator(10.0, numticks=20))
    axis.set_minor_locator(LogLocator(10.0, subs=tuple(range(2, 10)), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    low, high = axis.get_view_interval()
    few = high < low * 10**_FEW_DECADES
    if sum(low <= step * 10.0**power <= high for step in (1, 2, 5) for power in range(-15, 25)) < _LEAST:
        axis.set_major_locator(MaxNLocator(4))
        axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(FuncFormatter(lambda value, _: text(value) if few and f"{value:e}"[0] in "25" else ""))


def powers_of_two(axis: Axis, values: Sequence[float]) -> None:
    """Ticks at the values of a sweep, the largest among them, as many as can be read."""
    box = axis.axes.get_window_extent()
    room = _NARROWER * box.width * 72 / axis.axes.figure.dpi  # points; what stands beside the axes takes of it
    across = math.log(max(values) / min(values)) or 1.0
    kept: list[float] = []
    for value in sorted(values, reverse=True):
        words = f"{value:,.0f}"
        if not kept or math.log(kept[-1] / value) / across * room > _DIGIT * (len(f"{kept[-1]:,.0f}{words}") / 2 + 1):
            kept.append(value)
    axis.set_major_locator(FixedLocator(kept[::-1]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def label_ticks(axis: Axis, names: Sequence[str]) -> None:
    """Names at 0, 1, 2, … without marks."""
    axis.set_ticks(range(len(names)), list(names))
    axis.set_tick_params(length=0)


def legend(axes: Axes, **where: Any) -> None:
    """Names of what is drawn, in one line above the drawing."""
    place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2, "columnspacing": 1.2}
    axes.legend(**(place | {"ncols": 6, "handlelength": 1.0, "handletextpad": 0.4} | where))

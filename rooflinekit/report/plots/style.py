"""One look for all pictures: colours that mean the same everywhere, type, grid, ticks at decades.

Colours are those of Okabe and Ito (2008), which people with any kind of colour vision can tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

__all__ = [
    "ACCENT", "CAUSES", "CLASSES", "SERIES", "THEMES", "Frame", "Theme", "decades", "label_ticks", "legend",
    "powers_of_two", "shortened", "styled",
]  # fmt: skip

CLASSES = {"weights": "#0072B2", "KV": "#D55E00", "activations": "#009E73", "network": "#E69F00", "engine": "#999999"}
"""What bytes are: weights and keys and values have these colours in every picture."""

CAUSES = {"memory": "#56B4E9", "compute": "#CC79A7", "network": "#E69F00", "overhead": "#999999"}
"""What time is spent on."""

ACCENT = "#009E73"
SERIES = ("#CC79A7", "#009E73", "#56B4E9", "#E69F00", "#8C6D31", "#999999")
"""Lines of a table: never the colours of weights and of keys and values."""

_TITLE = 112  # characters of a heading
_FEW_DECADES = 2.2  # on an axis of fewer, 2 and 5 are written too


@dataclass(frozen=True)
class Theme:
    """Paper, ink, and two weaker inks."""

    paper: str
    ink: str
    soft: str
    grid: str


THEMES = {
    "light": Theme("#ffffff", "#1b1b1b", "#5c5c5c", "#dcdcdc"),
    "dark": Theme("#16181d", "#ececec", "#b0b0b0", "#3a3d44"),
}


@contextmanager
def styled(theme: Theme) -> Iterator[None]:
    """Settings of matplotlib inside; those of the caller stay as they are."""
    settings: dict[str, Any] = {
        "font.family": "DejaVu Sans", "font.size": 8.0, "text.parse_math": False, "text.color": theme.ink,
        "figure.facecolor": theme.paper, "savefig.facecolor": theme.paper, "figure.titlesize": 11.0,
        "figure.titleweight": "bold", "axes.facecolor": theme.paper, "axes.edgecolor": theme.soft,
        "axes.labelcolor": theme.ink, "axes.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False,
        "axes.titlesize": 8.0, "axes.titlelocation": "left", "axes.titlecolor": theme.soft, "axes.grid": True,
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


def shortened(text: str, most: int = _TITLE) -> str:
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
    axis.set_minor_formatter(FuncFormatter(lambda value, _: text(value) if few and f"{value:e}"[0] in "25" else ""))


def powers_of_two(axis: Axis, values: Sequence[float]) -> None:
    """Ticks at the values of a sweep, thinned to what can be read."""
    step = -(-len(values) // 9)
    axis.set_major_locator(FixedLocator(list(values)[::step]))
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

"""Common style of all pictures: one look, the words around a drawing, and how it is written."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from rooflinekit.decision.sensitivity.levers import Levers
from rooflinekit.estimation.results import Estimate
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.document import degrees, tokens_in
from rooflinekit.report.look import PALETTES, SERIES
from rooflinekit.simulation.outcome import Outcome
from rooflinekit.specs.writing import check_target, write_whole

_LOOK = Path(__file__).with_name("pictures.mplstyle")
TITLE = 106  # characters of a heading
_SHARES, _LEGIBLE = tuple(step / 20 for step in range(21)), 4.5  # of the ink in a colour; contrast of words
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
        """The hue of a quantity, of a phase or of an accelerator.

        >>> THEMES["light"].tint("cache")
        '#a34115'
        """
        return self.palette[name]

    @property
    def series(self) -> tuple[str, ...]:
        """Colours of lines, in their order."""
        return tuple(map(self.tint, SERIES))

    def paler(self, color: str, share: float) -> str:
        """A colour some of the way nearer to the paper.

        >>> THEMES["light"].paler("#000000", 0.0), THEMES["light"].paler("#000000", 0.6)
        ('#000000', '#999999')
        """
        return _mixed(color, self.paper, share)

    def on(self, fill: str) -> str:
        """The one of paper and ink that is better to read on a fill.

        >>> THEMES["light"].on("#26488a"), THEMES["light"].on("#b28614")
        ('#ffffff', '#1b1b1b')
        """
        return max((self.paper, self.ink), key=lambda words: _contrast(words, fill))

    def legible(self, color: str) -> str:
        """A colour for words: so near to the ink that its contrast on the paper is 4.5 at least (WCAG 2.1).

        >>> THEMES["light"].legible("#182e90"), THEMES["light"].legible("#fca183")
        ('#182e90', '#976554')
        """
        steps = (_mixed(color, self.ink, share) for share in _SHARES)
        return next(words for words in steps if _contrast(words, self.paper) >= _LEGIBLE)


def _mixed(color: str, other: str, share: float) -> str:
    return to_hex([own + share * (far - own) for own, far in zip(to_rgb(color), to_rgb(other), strict=True)])


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
    colours = {
        theme.ink: ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"),
        theme.soft: ("axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color"),
        theme.paper: ("figure.facecolor", "savefig.facecolor", "axes.facecolor"),
        theme.grid: ("grid.color",),
    }
    with mpl.rc_context():
        mpl.rc_file(_LOOK)  # over matplotlib's own defaults: what a user has set does not change a picture
        mpl.rcParams.update({name: colour for colour, names in colours.items() for name in names})
        yield


@dataclass(frozen=True)
class Frame:
    """Frame of a drawing: its title, what it is of, where its numbers come from."""

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


def powers_of_two(axis: Axis, values: Sequence[float], form: str = ",.0f") -> None:
    """Ticks at the values of a sweep, the largest among them, as many as can be read."""
    box = axis.axes.get_window_extent()
    room = _NARROWER * box.width * 72 / axis.axes.figure.dpi  # points; what stands beside the axes takes of it
    across = math.log(max(values) / min(values)) or 1.0
    kept: list[float] = []
    for value in sorted(values, reverse=True):
        words = f"{value:{form}}"
        if not kept or math.log(kept[-1] / value) / across * room > _DIGIT * (len(f"{kept[-1]:{form}}{words}") / 2 + 1):
            kept.append(value)
    axis.set_major_locator(FixedLocator(kept[::-1]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:{form}}"))


def label_ticks(axis: Axis, names: Sequence[str]) -> None:
    """Names at 0, 1, 2, … without marks."""
    axis.set_ticks(range(len(names)), list(names))
    axis.set_tick_params(length=0)


def note(axes: Axes, words: str, at: tuple[float, float], by: tuple[float, float], **look: object) -> Annotation:
    """Small words so many points beside a place of the data."""
    made = axes.annotate(words, at, by, textcoords="offset points", fontsize=6.5)
    made.set(**look)
    return made


def legend(axes: Axes, **where: object) -> None:
    """Names of what is drawn, in one line above the drawing."""
    place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2, "columnspacing": 1.2}
    axes.legend(**(place | {"ncols": 6, "handlelength": 1.0, "handletextpad": 0.4} | where))


_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_NAME = 40  # characters of a model, which may be a path
_LONG, _LARGEST = 1e3, 1e21  # from here on with a prefix, from there on with an exponent

Answer: TypeAlias = Estimate | Outcome | Levers


def scale_text(value: float) -> str:
    """A number at a tick.

    >>> scale_text(0.1), scale_text(100.0), scale_text(1e3), scale_text(1e4)
    ('0.1', '100', '1 k', '10 k')
    """
    if not _LONG <= value < _LARGEST:
        return f"{value:g}"
    thousands = min(int(math.log10(value) // 3), len(_PREFIXES) - 1)
    return f"{value / 1000.0**thousands:g} {_PREFIXES[thousands]}"


def headed(title: str, answer: Answer, theme: Theme) -> Frame:
    """The words around a picture of one answer: what runs where, and what is asked of it."""
    i = answer.inputs
    split = " ".join(degrees(i))
    where = f"{shortened(answer.model, _NAME)} on {answer.gpu}{f' ({split})' if split else ''}, {answer.engine}"
    if isinstance(answer, Outcome):
        asked = f"{answer.requests.arrived} requests"
    else:
        load = next((f"{key} {i[key]:g}" for key in ("concurrency", "rate") if i.get(key)), f"batch {i.get('batch')}")
        asked = f"{load}, {tokens_in(i)}, {i['osl']} out; weights {i['weights']}, kv {i['kv']}"
    return Frame(title, f"{where}; {asked}", source_of(answer), theme)


def source_of(answer: Answer) -> str:
    """Level, calibration and version."""
    used = answer.calibration
    level = f"expected: calibration {used['name']} ({used['hash']})" if used else "datasheet bound"
    return f"rooflinekit {answer.version}, {level}"


_DPI = 200
_SILENT = ("Date", "Creator", "Format", "Type")  # metadata that would change from day to day


@dataclass(frozen=True)
class Picture:
    """A drawing. Notebooks show it; `save` writes it.

    name: of its file; description: what it shows, with its main numbers, for those who do not see it.
    """

    name: str
    title: str
    description: str
    figure: Figure
    theme: Theme

    def svg(self) -> str:
        """Return SVG with title and description; the same picture is the same text."""
        text = io.StringIO()
        with styled(self.theme), mpl.rc_context({"svg.hashsalt": self.name}):
            FigureCanvasSVG(self.figure).print_svg(text, metadata=dict.fromkeys(_SILENT))
        head, _, body = text.getvalue().partition("<svg ")
        tag, _, inside = body.partition(">")
        words = f"<title>{escape(self.title)}</title>\n <desc>{escape(self.description)}</desc>"
        return f'{head}<svg role="img" {tag}>\n {words}{inside}'

    def png(self) -> bytes:
        """Return PNG, 200 dots an inch."""
        data = io.BytesIO()
        with styled(self.theme):
            canvas = FigureCanvasAgg(self.figure)
            self.figure.set_dpi(_DPI)
            canvas.print_png(data, metadata={"Software": None})
            self.figure.set_dpi(100)
        return data.getvalue()

    def save(self, path: str | Path, force: bool = False) -> Path:
        """Write it; the suffix, .svg or .png, says how."""
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise InputError(f"{path}: a picture is written as .svg or .png")
        check_target(path, force, "save with force=True")
        return write_whole(path, self.png() if path.suffix == ".png" else self.svg().encode(), force)

    def _repr_svg_(self) -> str:
        return self.svg()

"""A drawing with its name, its title and its description in words."""

from __future__ import annotations

import io
from dataclasses import dataclass
from html import escape
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from rooflinekit.model.types.errors import InputError
from rooflinekit.report.plots.style import Theme, styled
from rooflinekit.specs.writing import check_target, write_whole

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
        """As SVG with title and description; the same picture is the same text."""
        text = io.StringIO()
        with styled(self.theme), mpl.rc_context({"svg.hashsalt": self.name}):
            FigureCanvasSVG(self.figure).print_svg(text, metadata=dict.fromkeys(_SILENT))
        head, _, body = text.getvalue().partition("<svg ")
        tag, _, inside = body.partition(">")
        words = f"<title>{escape(self.title)}</title>\n <desc>{escape(self.description)}</desc>"
        return f'{head}<svg role="img" {tag}>\n {words}{inside}'

    def png(self) -> bytes:
        """As PNG, 200 dots an inch."""
        data = io.BytesIO()
        with styled(self.theme):
            canvas = FigureCanvasAgg(self.figure)
            self.figure.set_dpi(_DPI)
            canvas.print_png(data, metadata={"Software": None})
            self.figure.set_dpi(100)
        return data.getvalue()

    def save(self, path: str | Path, force: bool = False) -> Path:
        """Write it; the suffix, .svg or .png, says how.

        Raises InputError for another suffix, a folder that is not there, or a file that is there, unless `force`.
        """
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise InputError(f"{path}: a picture is written as .svg or .png")
        check_target(path, force, "save with force=True")
        return write_whole(path, self.png() if path.suffix == ".png" else self.svg().encode(), force)

    def _repr_svg_(self) -> str:
        return self.svg()

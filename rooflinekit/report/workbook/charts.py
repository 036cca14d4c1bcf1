"""The charts, which follow the cells that they show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooflinekit.report.workbook.sheet import Book, Sheet

if TYPE_CHECKING:
    from xlsxwriter.chart import Chart

__all__ = ["Area", "bar_chart", "line_chart", "memory_chart", "sweep_chart"]

_GRID = {"visible": True, "line": {"color": "#D9D9D9"}}
_BLUE, _PALE, _RED = "#1F3864", "#8EA9DB", "#C00000"


@dataclass(frozen=True)
class Area:
    """Rows under a row of heads, and the columns that are drawn over the first."""

    sheet: Sheet
    head: int
    last: int
    columns: tuple[int, ...]

    def series(self, column: int) -> dict[str, Any]:
        """Name, values and categories of one column."""
        name, first = self.sheet.name, self.head + 1
        return {
            "name": [name, self.head, column],
            "values": [name, first, column, self.last, column],
            "categories": [name, first, 0, self.last, 0],
        }


def _labelled(chart: Chart, title: str, x: str, y: str) -> None:
    """Title, names of both axes, a light grid from 0 on."""
    chart.set_title({"name": title, "name_font": {"size": 12}})
    chart.set_x_axis({"name": x})
    chart.set_y_axis({"name": y, "num_format": "#,##0", "min": 0, "major_gridlines": _GRID})
    chart.set_legend({"position": "bottom"})
    chart.set_size({"width": 620, "height": 340})


def sweep_chart(book: Book, area: Area, title: tuple[str, str, str], place: tuple[int, int]) -> None:
    """Columns of a sweep over its logarithm: bounds and capacities in red, ends of intervals pale."""
    text, x, y = title
    chart = book.file.add_chart({"type": "scatter", "subtype": "straight_with_markers"})
    for column in area.columns:
        head = area.sheet.heads_at[area.head, column]
        chart.add_series(area.series(column) | _look(head))
    _labelled(chart, text, x, y)
    chart.set_x_axis({"name": x, "log_base": 10, "num_format": "#,##0", "major_gridlines": _GRID})
    area.sheet.page.insert_chart(*place, chart)


def _look(head: str) -> dict[str, Any]:
    if "low" in head or "high" in head:
        return {"line": {"color": _PALE, "width": 1, "dash_type": "dash"}, "marker": {"type": "none"}}
    if "bound" in head or "capacity" in head:
        return {"line": {"color": _RED, "width": 2, "dash_type": "dash"}, "marker": {"type": "none"}}
    marker = {"type": "circle", "size": 5, "fill": {"color": _BLUE}, "border": {"color": _BLUE}}
    return {"line": {"color": _BLUE, "width": 2}, "marker": marker}


def bar_chart(book: Book, area: Area, title: tuple[str, str, str], place: tuple[int, int]) -> None:
    """One column as bars with their values, over shares."""
    chart = book.file.add_chart({"type": "column"})
    for column in area.columns:
        chart.add_series(area.series(column) | {"fill": {"color": _BLUE}, "gap": 60, "data_labels": {"value": True}})
    _labelled(chart, *title)
    chart.set_x_axis({"name": title[1], "num_format": "0 %"})
    chart.set_legend({"none": True})
    area.sheet.page.insert_chart(*place, chart)


def line_chart(book: Book, area: Area, title: tuple[str, str, str], place: tuple[int, int]) -> None:
    """Columns as lines."""
    chart = book.file.add_chart({"type": "line"})
    for column, colour in zip(area.columns, (_RED, _BLUE), strict=True):
        chart.add_series(area.series(column) | {"line": {"color": colour, "width": 2}})
    _labelled(chart, *title)
    area.sheet.page.insert_chart(*place, chart)


def memory_chart(book: Book, sheet: Sheet, first: int, place: tuple[int, int]) -> None:
    """Four rows of a sheet one on top of the other."""
    chart = book.file.add_chart({"type": "column", "subtype": "stacked"})
    for row in range(first, first + 4):
        chart.add_series({"name": [sheet.name, row, 0], "values": [sheet.name, row, 1, row, 1], "gap": 60,
                          "categories": [sheet.name, first + 4, 0, first + 4, 0]})  # fmt: skip
    chart.set_title({"name": "Memory of one GPU [GB]", "name_font": {"size": 12}})
    chart.set_y_axis({"num_format": "#,##0", "major_gridlines": _GRID})
    chart.set_legend({"position": "right"})
    chart.set_size({"width": 560, "height": 300})
    sheet.page.insert_chart(*place, chart)

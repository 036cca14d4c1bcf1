"""The charts, which follow the cells that they show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooflinekit.report.workbook.sheet import Book, Sheet

if TYPE_CHECKING:
    from xlsxwriter.chart import Chart

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


def _drawn(book: Book, kind: dict[str, str], area: Area, looks: Iterable[dict[str, Any]]) -> Chart:
    chart = book.file.add_chart(kind)
    for column, look in zip(area.columns, looks, strict=True):
        chart.add_series(area.series(column) | look)
    return chart


def _placed(chart: Chart, area: Area, title: tuple[str, str, str], place: tuple[int, int], **x: Any) -> None:
    """Title, names of both axes, a light grid from 0 on."""
    chart.set_title({"name": title[0], "name_font": {"size": 12}})
    chart.set_x_axis({"name": title[1], **x})
    chart.set_y_axis({"name": title[2], "num_format": "#,##0", "min": 0, "major_gridlines": _GRID})
    chart.set_legend({"position": "bottom"} if len(area.columns) > 1 or x.get("log_base") else {"none": True})
    chart.set_size({"width": 620, "height": 340})
    area.sheet.page.insert_chart(*place, chart)


def sweep_chart(book: Book, area: Area, title: tuple[str, str, str], place: tuple[int, int]) -> None:
    """Columns of a sweep over its logarithm: bounds and capacities in red, ends of intervals pale."""
    looks = (_look(area.sheet.heads_at[area.head, column]) for column in area.columns)
    chart = _drawn(book, {"type": "scatter", "subtype": "straight_with_markers"}, area, looks)
    _placed(chart, area, title, place, log_base=10, num_format="#,##0", major_gridlines=_GRID)


def _look(head: str) -> dict[str, Any]:
    if "low" in head or "high" in head:
        return {"line": {"color": _PALE, "width": 1, "dash_type": "dash"}, "marker": {"type": "none"}}
    if "bound" in head or "capacity" in head:
        return {"line": {"color": _RED, "width": 2, "dash_type": "dash"}, "marker": {"type": "none"}}
    marker = {"type": "circle", "size": 5, "fill": {"color": _BLUE}, "border": {"color": _BLUE}}
    return {"line": {"color": _BLUE, "width": 2}, "marker": marker}


def bar_chart(book: Book, area: Area, title: tuple[str, str, str], place: tuple[int, int]) -> None:
    """One column as bars with their values, over shares."""
    bars = {"fill": {"color": _BLUE}, "gap": 60, "data_labels": {"value": True}}
    _placed(_drawn(book, {"type": "column"}, area, [bars]), area, title, place, num_format="0 %")


def line_chart(book: Book, area: Area, title: tuple[str, str, str], place: tuple[int, int]) -> None:
    """Two columns as lines."""
    looks = [{"line": {"color": colour, "width": 2}} for colour in (_RED, _BLUE)]
    _placed(_drawn(book, {"type": "line"}, area, looks), area, title, place)


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

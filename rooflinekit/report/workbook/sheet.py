"""Worksheets whose cells can be referred to with their values, and what all sheets share: styles, lines, colours."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from rooflinekit.model.graph.cells import Cell, Given, when

if TYPE_CHECKING:
    from xlsxwriter.format import Format
    from xlsxwriter.workbook import Workbook
    from xlsxwriter.worksheet import Worksheet

_YELLOW: dict[str, Any] = {"bg_color": "#FFF2CC", "border": 1, "border_color": "#BF9000"}
_HEAD: dict[str, Any] = {"bold": True, "bg_color": "#D9E2F3", "text_wrap": True, "valign": "vcenter", "bottom": 1}
_STYLES: Mapping[str, dict[str, Any]] = {
    "text": {},
    "wrap": {"text_wrap": True, "valign": "top"},
    "title": {"bold": True, "font_size": 16, "font_color": "#1F3864"},
    "section": {"bold": True, "font_size": 12, "font_color": "#1F3864", "bottom": 1, "bottom_color": "#1F3864"},
    "head": _HEAD,
    "head_right": {**_HEAD, "align": "right"},
    "note": {"italic": True, "font_color": "#595959"},
    "unit": {"italic": True, "font_color": "#595959", "indent": 1},
    "input": {**_YELLOW, "font_color": "#1F3864"},
    "input_whole": {**_YELLOW, "num_format": "#,##0"},
    "input_number": {**_YELLOW, "num_format": "#,##0.00##"},
    "input_share": {**_YELLOW, "num_format": "0 %"},
    "whole": {"num_format": "#,##0", "align": "right"},
    "one": {"num_format": "#,##0.0", "align": "right"},
    "two": {"num_format": "#,##0.00", "align": "right"},
    "three": {"num_format": "#,##0.000", "align": "right"},
    "share": {"num_format": "0.0 %", "align": "right"},
    "words": {"align": "right"},
    "status": {"bold": True, "align": "center"},
    "faint": {"font_color": "#BFBFBF"},
    "general": {"num_format": "General"},
}


@dataclass
class Sheet:
    """One worksheet."""

    name: str
    page: Worksheet
    styles: Mapping[str, Format]
    heads_at: dict[tuple[int, int], str] = field(default_factory=dict)

    def put(self, row: int, column: int, content: Given, style: str = "text") -> Cell:
        """Write a cell; the answer refers to it."""
        value = content.value if isinstance(content, Cell) else content
        look = self.styles[style]
        if isinstance(content, Cell):
            cached = "#NUM!" if isinstance(value, float) and not math.isfinite(value) else value
            self.page.write_formula(row, column, f"={content.text.replace(self.prefix, '')}", look, cached)
        elif isinstance(content, str):
            self.page.write_string(row, column, content, look)
        else:
            self.page.write_number(row, column, content, look)
        return self.at(row, column, value)

    def blank(self, row: int, column: int, style: str) -> Cell:
        """An empty cell to be filled in."""
        self.page.write_blank(row, column, None, self.styles[style])
        return self.at(row, column, "")

    def at(self, row: int, column: int, value: Any = "") -> Cell:
        """A reference to a cell with this value."""
        return Cell(f"{self.prefix}${_letters(column)}${row + 1}", value)

    def area(self, first: tuple[int, int], last: tuple[int, int]) -> str:
        """A range by row and column of its corners."""
        (top, left), (bottom, right) = first, last
        return f"{self.prefix}${_letters(left)}${top + 1}:${_letters(right)}${bottom + 1}"

    def heads(self, row: int, names: Sequence[str], texts: Collection[int] | None = None) -> None:
        """A row of column heads; with `texts`, all but those columns hold numbers."""
        for column, name in enumerate(names):
            self.put(row, column, name, "head" if texts is None or column in texts else "head_right")
            self.heads_at[row, column] = name

    def band(self, row: int, title: str, width: int = 4) -> None:
        """A title over the next rows."""
        for column in range(width):
            self.put(row, column, "" if column else title, "section")

    def widths(self, *widths: float) -> None:
        """Widths of the first columns."""
        for column, width in enumerate(widths):
            self.page.set_column(column, column, width)

    @property
    def prefix(self) -> str:
        """What stands before the cells of this sheet on others."""
        return f"'{self.name}'!" if " " in self.name else f"{self.name}!"


@cache
def _letters(column: int) -> str:
    from xlsxwriter.utility import xl_col_to_name  # noqa: PLC0415 - an extra

    return str(xl_col_to_name(column))


@dataclass
class Book:
    """The workbook in the making."""

    file: Workbook
    styles: Mapping[str, Format]
    kind: type[Worksheet]
    sheets: dict[str, Sheet] = field(default_factory=dict)

    @classmethod
    def of(cls, file: Workbook, kind: type[Worksheet]) -> Book:
        """Declare the styles."""
        looks = {name: file.add_format({"font_name": "Calibri", **style}) for name, style in _STYLES.items()}
        return cls(file, looks, kind)

    def sheet(self, name: str, title: str = "", note: str = "") -> Sheet:
        """The sheet of that name, made when it is first asked for; with a title and what it says below."""
        if name not in self.sheets:
            self.sheets[name] = Sheet(name, self.file.add_worksheet(name, self.kind), self.styles)
        sheet = self.sheets[name]
        if title:
            sheet.put(0, 0, title, "title")
            sheet.put(1, 0, note, "note")
        return sheet

    def name(self, name: str, cell: Cell) -> Cell:
        """Give a cell a name; the answer uses it."""
        self.file.define_name(name, f"={cell.text}")
        return Cell(name, cell.value)


@dataclass
class Lines:
    """Label, value, unit and remark, one below the other; each value has a name."""

    book: Book
    sheet: Sheet
    row: int = 2

    def section(self, title: str) -> None:
        """A head over the next lines."""
        self.sheet.band(self.row + 1, title)
        self.row += 2

    def add(  # noqa: PLR0913, PLR0917 - the cells of one line
        self, name: str, label: str, value: Given, unit: str, style: str = "two", note: str = ""
    ) -> Cell:
        """One line; the answer is the value by its name, `out_` before it."""
        for column, (text, look) in {0: (label, "text"), 2: (unit, "unit"), 3: (note, "note")}.items():
            self.sheet.put(self.row, column, text, look)
        cell = self.book.name(f"out_{name}", self.sheet.put(self.row, 1, value, style))
        if style == "status":
            status_colours(self.book, self.sheet, (self.row, 1, self.row, 1))
        self.row += 1
        return cell


def shown(condition: Cell, value: Given) -> Cell:
    """The value, or "n/a"."""
    return when(condition, value, "n/a")


_GREEN, _RED, _AMBER = ("#C6EFCE", "#006100"), ("#FFC7CE", "#9C0006"), ("#FFEB9C", "#7F6000")
_COLOURS = {"FITS": _GREEN, "MEETS": _GREEN, "OOM": _RED, "MISSES": _RED, "NOT": _RED, "BEYOND": _AMBER, "n/a": _AMBER}


def status_colours(book: Book, sheet: Sheet, cells: tuple[int, int, int, int]) -> None:
    """Green where a cell says FITS or MEETS, red for OOM, MISSES and what cannot be run."""
    for text, (background, ink) in _COLOURS.items():
        look = book.file.add_format({"bg_color": background, "font_color": ink})
        rule = {"type": "text", "criteria": "begins with", "value": text, "format": look}
        sheet.page.conditional_format(*cells, rule)

"""Worksheets whose cells can be referred to with their values, and what all sheets share: styles, lines, colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Any

from xlsxwriter.format import Format
from xlsxwriter.utility import xl_col_to_name
from xlsxwriter.workbook import Workbook
from xlsxwriter.worksheet import Worksheet

from rooflinekit.load.curve import SHARES
from rooflinekit.model.graph.cells import Cell, Given, composed, function, literal, when
from rooflinekit.specs.files import table_of

TABLES = table_of(__file__)
"""Sheets, and tables of what stands on them; sheet.yaml explains each."""


HEAD = 3
"""Row of the heads of most sheets."""


class PlainWorksheet(Worksheet):  # type: ignore[misc] # XlsxWriter has no types
    """No function of the workbook is newer than Excel 2007, so that none has to be searched for: half the time."""

    def _prepare_formula(self, formula: str, expand_future_functions: bool = False) -> str:
        return formula.removeprefix("=")


_letters: Callable[[int], str] = cache(xl_col_to_name)


@dataclass
class Sheet:
    """One worksheet."""

    name: str
    page: Worksheet
    styles: Mapping[str, Format]
    heads_at: dict[tuple[int, int], str] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)  #: labels of rows that come one after the other

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

    def laid_out(self, says: Mapping[str, Any]) -> None:
        """Make the sheet as its row of sheet.yaml has it."""
        self.put(0, 0, says["title"], "title")
        self.put(1, 0, says["note"].format(shares=", ".join(f"{share:.0%}" for share in SHARES)), "note")
        column = 0
        for width, _, times in (part.partition("x") for part in str(says.get("widths", "")).split()):
            self.page.set_column(column, column + int(times or 1) - 1, float(width))
            column += int(times or 1)
        self.page.set_tab_color(says.get("colour", "#BFBFBF"))
        self.page.hide_gridlines(2)
        self.page.set_landscape()
        self.page.fit_to_pages(1, 0 if "hidden" in says or "long" in says else 1)
        if "hidden" in says:
            self.page.hide()
        if "head" in says:
            self.page.set_row(HEAD, says["head"])
        if "freeze" in says:
            self.page.freeze_panes(*says["freeze"])

    @property
    def prefix(self) -> str:
        """Prefix of this sheet's cells on other sheets."""
        return f"'{self.name}'!" if " " in self.name else f"{self.name}!"


@dataclass
class Book:
    """The workbook in the making."""

    file: Workbook
    styles: Mapping[str, Format]
    sheets: Mapping[str, Sheet]
    named: dict[str, Cell] = field(default_factory=dict)

    @classmethod
    def of(cls, file: Workbook) -> Book:
        """All sheets, still empty."""
        looks = {name: file.add_format({"font_name": "Calibri", **style}) for name, style in TABLES["styles"].items()}
        sheets = {name: Sheet(name, file.add_worksheet(name, PlainWorksheet), looks) for name in TABLES["sheets"]}
        for name, sheet in sheets.items():
            sheet.laid_out(TABLES["sheets"][name])
        return cls(file, looks, sheets)

    def sheet(self, name: str) -> Sheet:
        """The sheet of that name."""
        return self.sheets[name]

    def name(self, name: str, cell: Cell) -> Cell:
        """Give a cell a name; the answer uses it."""
        self.file.define_name(name, f"={cell.text}")
        self.named[name] = Cell(name, cell.value)
        return self.named[name]


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
            if text:  # beside an empty cell a long value is shown in full
                self.sheet.put(self.row, column, text, look)
        cell = self.book.name(f"out_{name}", self.sheet.put(self.row, 1, value, style))
        if style == "status":
            status_colours(self.book, self.sheet, (self.row, 1, self.row, 1))
        self.row += 1
        return cell


def known(value: Cell) -> Cell:
    """True if it is a number."""
    return function("ISNUMBER({0})", not isinstance(value.value, str), value)


def at_least_one(value: Cell) -> Cell:
    """True if it is a number of 1 or more; what is blank is none."""
    return known(value) & (value >= 1.0)


def every(conditions: Sequence[Cell]) -> Cell:
    """True if all of them hold."""
    return reduce(lambda before, one: before & one, conditions)


def joined(*parts: Given) -> Cell:
    """Texts and numbers one after the other."""
    return reduce(lambda before, part: composed("joined", before, literal(part)), parts[1:], literal(parts[0]))


def as_text(value: Cell, digits: int = 0) -> Cell:
    """A number as text, as the reader's country writes it, with so many digits after the point."""
    number = value.value
    text = f"{number:,.{digits}f}" if isinstance(number, (int, float)) else number
    return function(f"FIXED({{0}},{digits})", text, value)


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

"""A worksheet that remembers what it holds, so that other cells can refer to it with its value."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rooflinekit.model.types.errors import InputError
from rooflinekit.report.workbook.formula import Formula, Given, Range, Value

if TYPE_CHECKING:
    from xlsxwriter.format import Format
    from xlsxwriter.workbook import Workbook
    from xlsxwriter.worksheet import Worksheet

__all__ = ["Book", "Sheet", "column_letters"]

_LETTERS = 26

_STYLES: Mapping[str, dict[str, Any]] = {
    "text": {},
    "wrap": {"text_wrap": True, "valign": "top"},
    "title": {"bold": True, "font_size": 16, "font_color": "#1F3864"},
    "section": {"bold": True, "font_size": 12, "font_color": "#1F3864", "bottom": 1, "bottom_color": "#1F3864"},
    "head": {"bold": True, "bg_color": "#D9E2F3", "text_wrap": True, "valign": "vcenter", "bottom": 1},
    "note": {"italic": True, "font_color": "#595959"},
    "unit": {"italic": True, "font_color": "#595959", "indent": 1},
    "head_right": {
        "bold": True,
        "bg_color": "#D9E2F3",
        "text_wrap": True,
        "valign": "vcenter",
        "bottom": 1,
        "align": "right",
    },
    "input": {"bg_color": "#FFF2CC", "border": 1, "border_color": "#BF9000", "font_color": "#1F3864"},
    "input_whole": {"bg_color": "#FFF2CC", "border": 1, "border_color": "#BF9000", "num_format": "#,##0"},
    "input_number": {"bg_color": "#FFF2CC", "border": 1, "border_color": "#BF9000", "num_format": "#,##0.00##"},
    "input_share": {"bg_color": "#FFF2CC", "border": 1, "border_color": "#BF9000", "num_format": "0 %"},
    "whole": {"num_format": "#,##0", "align": "right"},
    "one": {"num_format": "#,##0.0", "align": "right"},
    "two": {"num_format": "#,##0.00", "align": "right"},
    "three": {"num_format": "#,##0.000", "align": "right"},
    "share": {"num_format": "0.0 %", "align": "right"},
    "words": {"align": "right"},
    "status": {"bold": True, "align": "center"},
    "general": {"num_format": "General"},
}


def column_letters(column: int) -> str:
    """Name of a column, from 0.

    >>> column_letters(0), column_letters(27)
    ('A', 'AB')
    """
    letters, column = "", column + 1
    while column:
        column, rest = divmod(column - 1, _LETTERS)
        letters = chr(ord("A") + rest) + letters
    return letters


@dataclass
class Sheet:
    """One worksheet."""

    name: str
    page: Worksheet
    styles: Mapping[str, Format]
    held: dict[tuple[int, int], Value] = field(default_factory=dict)

    def put(self, row: int, column: int, content: Given, style: str = "text") -> Formula:
        """Write a cell; the answer refers to it.

        Raises InputError for a formula without a value: the workbook would open with an error in it.
        """
        value = content.value if isinstance(content, Formula) else content
        if isinstance(value, (int, float)) and not math.isfinite(value):
            raise InputError(f"the workbook's cell {self.name}!{column_letters(column)}{row + 1} has no finite value")
        if isinstance(content, Formula):
            self.page.write_formula(row, column, f"={content.text}", self.styles[style], value)
        elif isinstance(content, str):
            self.page.write_string(row, column, content, self.styles[style])
        else:
            self.page.write_number(row, column, content, self.styles[style])
        self.held[row, column] = value
        return self.at(row, column)

    def blank(self, row: int, column: int, style: str) -> Formula:
        """An empty cell to be filled in."""
        self.page.write_blank(row, column, None, self.styles[style])
        self.held[row, column] = ""
        return self.at(row, column)

    def at(self, row: int, column: int) -> Formula:
        """A reference to a cell that has been written."""
        return Formula(f"{self._prefix}${column_letters(column)}${row + 1}", self.held[row, column])

    def across(self, row: int, first: int, last: int) -> Range:
        """Cells of one row; those never written are empty."""
        text = f"{self._prefix}${column_letters(first)}${row + 1}:${column_letters(last)}${row + 1}"
        return Range(text, [self.held.get((row, column), "") for column in range(first, last + 1)])

    def down(self, column: int, first: int, last: int) -> Range:
        """Cells of one column."""
        text = f"{self._prefix}${column_letters(column)}${first + 1}:${column_letters(column)}${last + 1}"
        return Range(text, [self.held.get((row, column), "") for row in range(first, last + 1)])

    def heads(self, row: int, names: Sequence[str], texts: Collection[int] | None = None) -> None:
        """A row of column heads; with `texts`, all but those columns hold numbers."""
        for column, name in enumerate(names):
            self.put(row, column, name, "head" if texts is None or column in texts else "head_right")

    @property
    def _prefix(self) -> str:
        return f"'{self.name}'!" if " " in self.name else f"{self.name}!"


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
        return cls(
            file, {name: file.add_format({"font_name": "Calibri", **style}) for name, style in _STYLES.items()}, kind
        )

    def sheet(self, name: str) -> Sheet:
        """The sheet of that name, made when it is first asked for."""
        if name not in self.sheets:
            self.sheets[name] = Sheet(name, self.file.add_worksheet(name, self.kind), self.styles)
        return self.sheets[name]

    def name(self, name: str, cell: Formula) -> Formula:
        """Give a cell a name; the answer uses it."""
        self.file.define_name(name, f"={cell.text}")
        return Formula(name, cell.value)

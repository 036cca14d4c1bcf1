"""A planner's own workbook: its scenarios, wherever on the sheet they are, and the results beside them.

A library that reads a workbook and writes it again loses what it does not know (stored values of formulas, charts,
pictures, macros). So the sheet's XML is copied as a stream, with cells put before the end of each row
(ECMA-376, part 1, 18.3: `row` holds `c` in the order of columns), and all else stays byte for byte.
"""

from __future__ import annotations

import math
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import partial
from itertools import product
from pathlib import Path
from typing import IO, Any, NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pandas as pd

from rooflinekit.decision.sweeping.tables import FAULT, Headers, Rows, as_inputs
from rooflinekit.estimation.frames import input_names
from rooflinekit.model.types.errors import InputError, nearest_of

_TITLE_ROWS = 50  # above the headers at most
_MERGE = re.compile(rb'<(?:\w+:)?mergeCell\b[^>]*?ref="([A-Z]+\d+:[A-Z]+\d+)"')
_FORMULA = re.compile(rb"<(?:\w+:)?f[\s>/]")


@dataclass(frozen=True)
class ScenarioSheet:
    """Scenarios of one sheet. The index of `table` is the row on the sheet, counted from 1.

    member: the sheet's file within the workbook; header_row: where the headers are; width: columns in use; notes: what
    the planner should hear.
    """

    path: Path
    name: str
    member: str
    header_row: int
    width: int
    headers: Headers
    table: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns by the sweep's names."""
        return self.headers.columns

    @property
    def rows(self) -> int:
        """Scenarios."""
        return len(self.table)

    def pieces(self, size: int, start: int, stop: int) -> Iterator[Rows]:
        """Rows start to stop, at most `size` at a time."""
        slices = (self.table.iloc[first : min(first + size, stop)] for first in range(start, stop, size))
        return (partial(part.copy, deep=False) for part in slices)


def read_sheet(path: Path, name: str | None = None) -> ScenarioSheet:
    """Read the scenarios of a sheet: the one named, else the first that has a header `model`.

    Values of formulas are those that the spreadsheet program stored; a formula without one is an error in its row.
    The value of merged cells counts for every scenario that they cover. Rows without any input are not scenarios.
    """
    members = _members(path)
    if name is not None and name not in members:
        raise InputError(f"{path} has no sheet {name!r}; nearest: {nearest_of(name, members)}")
    book = _open(path, values=True)
    for title in [name] if name is not None else members:
        found = _find_headers(book[title]) if title in book.sheetnames else None
        if found is not None:
            return _SheetReader(path, title, members[title], *found).read(book[title])
    where = f"sheet {name!r}" if name is not None else f"none of the sheets {', '.join(map(repr, members))}"
    raise InputError(f"{path}: {where} has a header 'model' in its first {_TITLE_ROWS} rows")


def _open(path: Path, values: bool) -> Any:
    from openpyxl import load_workbook  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415 - takes a while

    return load_workbook(path, read_only=True, data_only=values)


def _members(path: Path) -> dict[str, str]:
    """Sheets by name, and their files within the workbook."""
    try:
        with zipfile.ZipFile(path) as book:
            sheets = ElementTree.fromstring(book.read("xl/workbook.xml"))
            links = ElementTree.fromstring(book.read("xl/_rels/workbook.xml.rels"))
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError):
        raise InputError(f"{path} is no .xlsx workbook (or it is encrypted)") from None
    targets = {link.get("Id"): str(link.get("Target")) for link in links}
    found = {}
    for sheet in sheets.iter():
        if sheet.tag.endswith("}sheet"):
            link = next(value for key, value in sheet.attrib.items() if key.endswith("}id"))
            target = targets[link].lstrip("/")
            found[str(sheet.get("name"))] = target if target.startswith("xl/") else f"xl/{target}"
    return found


def _find_headers(sheet: Any) -> tuple[int, list[object]] | None:
    """The first row with a header that means the model."""
    sheet.reset_dimensions()
    for number, cells in enumerate(sheet.iter_rows(max_row=_TITLE_ROWS, values_only=True), 1):
        texts = [str(cell) for cell in cells if isinstance(cell, str)]
        if any(name == "model" for text in texts for name in input_names([text]).values()):
            return number, list(cells)
    return None


class _Area(NamedTuple):
    """Merged cells: columns and rows from 1, the last included."""

    left: int
    top: int
    right: int
    bottom: int


class _SheetReader:
    """One pass over a sheet."""

    def __init__(self, path: Path, name: str, member: str, header_row: int, headers: list[object]) -> None:
        self.path, self.name, self.member, self.header_row = path, name, member, header_row
        self.places = [place for place, cell in enumerate(headers) if cell is not None and str(cell).strip()]
        given = [str(headers[place]).strip() for place in self.places]
        input_names(given)  # refuses an input that is there twice
        self.headers = Headers.of(_different(given))
        self.asked = [
            place
            for place, header in zip(self.places, self.headers.given, strict=True)
            if header in self.headers.inputs
        ]
        self.merged, self.formulas = self._structure()
        self.width = max([len(headers), *(area.right for area in self.merged)])

    def read(self, sheet: Any) -> ScenarioSheet:
        """The scenarios with their faults."""
        faults = self._faults() if self.formulas else {}
        rows, cells = self._rows(sheet, faults)
        columns = [_column([row[place] for row in cells]).array for place in range(len(self.places))]
        table = pd.DataFrame(dict(enumerate(columns)), index=pd.Index(rows, dtype="int64"))
        table = as_inputs(table, self.headers)
        if faults:
            table[FAULT] = [faults.get(row, "") for row in rows]
        covered = any(area.bottom > max(self.header_row, area.top) for area in self.merged)
        notes = ("merged cells: their value counts for every scenario that they cover",) if covered else ()
        return ScenarioSheet(self.path, self.name, self.member, self.header_row, self.width, self.headers, table, notes)

    def _rows(self, sheet: Any, faults: dict[int, str]) -> tuple[list[int], list[list[Any]]]:
        """Rows with an input of their own, merged cells filled in."""
        numbers, kept = [], []
        corners = {(area.top, area.left): area for area in self.merged}
        covering: dict[tuple[int, int], object] = {}  # cells below and beside the first of merged ones, and its value
        sheet.reset_dimensions()
        for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
            self.width = max(self.width, len(cells))
            for place, cell in enumerate(cells):
                if (area := corners.get((number, place + 1))) is not None:
                    under = [own for own in self.places if place <= own < area.right]
                    covering |= dict.fromkeys(product(range(area.top, area.bottom + 1), under), cell)
            own = number in faults or any(_said(cells, place) for place in self.asked)
            if number <= self.header_row or not own:
                continue
            numbers.append(number)
            padded = [*cells, *([None] * (self.places[-1] + 1 - len(cells)))]
            kept.append(
                [covering.get((number, place)) if (cell := padded[place]) is None else cell for place in self.places]
            )
        return numbers, kept

    def _structure(self) -> tuple[list[_Area], bool]:
        """Merged areas, and whether there are formulas."""
        from openpyxl.utils import range_boundaries  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415

        merged, formulas, tail = [], False, b""
        with zipfile.ZipFile(self.path) as book, book.open(self.member) as file:
            while part := file.read(1 << 20):
                text = tail + part
                formulas = formulas or bool(_FORMULA.search(text))
                merged += [_Area(*range_boundaries(ref.decode())) for ref in _MERGE.findall(text)]
                tail = b"" if text.endswith(b">") else text[text.rfind(b"<") :]
        return merged, formulas

    def _faults(self) -> dict[int, str]:
        """Formulas of inputs whose value is not stored, by row."""
        from openpyxl.utils import get_column_letter  # noqa: PLC0415 - as above

        book, stored = _open(self.path, values=False), _open(self.path, values=True)
        sheets = [each[self.name] for each in (book, stored)]
        for sheet in sheets:
            sheet.reset_dimensions()
        faults = {}
        pairs = zip(*(sheet.iter_rows(values_only=True) for sheet in sheets), strict=True)
        for number, (written, values) in enumerate(pairs, 1):
            empty = [place for place in self.asked if _said(written, place) and not _said(values, place)]
            if number > self.header_row and empty:
                cell = f"{get_column_letter(empty[0] + 1)}{number}"
                faults[number] = (
                    f"cell {cell} is a formula without a stored value; open and save the file in a spreadsheet"
                )
        return faults


def _said(cells: tuple[object, ...], place: int) -> bool:
    return place < len(cells) and cells[place] is not None and str(cells[place]).strip() != ""


def _different(headers: list[str]) -> list[object]:
    """Headers that are there twice get a number."""
    seen: dict[str, int] = {}
    found: list[object] = []
    for header in headers:
        seen[header] = seen.get(header, 0) + 1
        found.append(header if seen[header] == 1 else f"{header} ({seen[header]})")
    return found


def _column(cells: list[object]) -> pd.Series[Any]:
    """Numbers as numbers, truth values as such, anything else, and a mixture, as text; dates as dates are written."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds <= {int, float} or kinds == {bool}:
        return pd.Series(
            cells, dtype={frozenset({bool}): "boolean", frozenset({int}): "Int64"}.get(frozenset(kinds), "float64")
        )
    return pd.Series([None if cell is None else _text(cell) for cell in cells], dtype="str")


def _text(cell: object) -> str:
    if isinstance(cell, (datetime, date, time)):
        return cell.isoformat().removesuffix("T00:00:00")
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


_COLUMNS = 16_384
_BLOCK = 1 << 20
_OPEN = re.compile(rb"<(?:(\w+):)?row\b([^>]*?)(/?)>")
_NUMBER = re.compile(rb'\br="(\d+)"')
_SPANS = re.compile(rb'\s+spans="[^"]*"')
_DIMENSION = re.compile(rb"<(?:\w+:)?dimension\b[^>]*?(?:/>|></(?:\w+:)?dimension>)")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # characters that XML does not know


def write_beside(sheet: ScenarioSheet, answers: Iterable[pd.DataFrame], out: Path) -> None:
    """Copy the workbook with the results in the first free columns of the sheet.

    Args:
        sheet: as it was read.
        answers: its rows in order with their results; the index is the row on the sheet.
        out: the new workbook.

    Raises:
        InputError: no columns are left, or the sheet is not written in UTF-8; KeyboardInterrupt: the answers were
            interrupted, and the copy, which is whole, has those until then.
    """
    interrupted: list[bool] = []  # an interruption ends the results, not the copy
    cells = _results(sheet, answers, interrupted)
    with zipfile.ZipFile(sheet.path) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            with old.open(member) as source, new.open(_entry(member), "w", force_zip64=True) as target:
                if member.filename == sheet.member:
                    _copy_rows(source, target, cells, sheet.width)
                else:
                    shutil.copyfileobj(source, target, _BLOCK)
    if interrupted:
        raise KeyboardInterrupt


def _entry(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(member.filename, member.date_time)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, member.external_attr
    return entry


def _results(
    sheet: ScenarioSheet, answers: Iterable[pd.DataFrame], interrupted: list[bool]
) -> Iterator[tuple[int, tuple[object, ...]]]:
    """Rows of the sheet with their new cells, the header first; where this was interrupted is said."""
    names: tuple[str, ...] = ()
    try:
        for part in answers:
            results = part[[name for name in part if name not in sheet.columns]]
            if not names:
                names = tuple(map(str, results))
                if sheet.width + len(names) > _COLUMNS:
                    raise InputError(f"{sheet.path}: sheet {sheet.name!r} has no columns left for results")
                yield sheet.header_row, names
            cells = results.astype(object).itertuples(index=False, name=None)
            yield from zip(results.index.tolist(), cells, strict=True)
    except KeyboardInterrupt:
        interrupted.append(True)


def _cell(place: str, p: str, value: Any) -> str:
    if pd.isna(value) or value == "":
        return ""
    if isinstance(value, bool):
        return f'<{p}c r="{place}" t="b"><{p}v>{int(value)}</{p}v></{p}c>'
    if isinstance(value, (int, float)) and math.isfinite(value):
        return f'<{p}c r="{place}"><{p}v>{value!r}</{p}v></{p}c>'
    text = escape(_FORBIDDEN.sub("\ufffd", str(value)))
    return f'<{p}c r="{place}" t="inlineStr"><{p}is><{p}t xml:space="preserve">{text}</{p}t></{p}is></{p}c>'


def _copy_rows(
    source: IO[bytes], target: IO[bytes], cells: Iterator[tuple[int, tuple[object, ...]]], width: int
) -> None:
    """Copy the sheet's XML, row by row, with the new cells right of `width` columns."""
    from openpyxl.utils import get_column_letter  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415

    text = source.read(_BLOCK)
    if b"UTF-16" in text[:200].upper() or text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError("the sheet is written in UTF-16; save the workbook again in a spreadsheet program")
    text, at, row = _DIMENSION.sub(b"", text, count=1), 0, 0
    coming = next(cells, None)
    while True:
        first = _OPEN.search(text, at)
        end = None if first is None else _end(text, first)
        if first is None or end is None:
            block = source.read(_BLOCK)
            if not block:
                break
            text, at = text[at:] + block, 0
            continue
        number = _NUMBER.search(first[2])
        row = int(number[1]) if number else row + 1
        prefix, more = (first[1] + b":").decode() if first[1] else "", ""
        if coming is not None and coming[0] == row:
            letters = map(get_column_letter, range(width + 1, width + 1 + len(coming[1])))
            more = "".join(
                _cell(f"{letter}{row}", prefix, value) for letter, value in zip(letters, coming[1], strict=True)
            )
            coming = next(cells, None)
        target.write(text[at : first.start()] + _row(text[first.start() : end], first, more, prefix))
        at = end
    target.write(text[at:])


def _end(text: bytes, opened: re.Match[bytes]) -> int | None:
    """End of a row; None if that is not read yet."""
    if opened[3]:
        return opened.end()
    closing = b"</" + (opened[1] + b":" if opened[1] else b"") + b"row>"
    at = text.find(closing, opened.end())
    return None if at < 0 else at + len(closing)


def _row(text: bytes, opened: re.Match[bytes], more: str, prefix: str) -> bytes:
    """A row with cells added; `spans` names the columns in use, and is only a hint."""
    if not more or opened[3]:
        return text
    closing = f"</{prefix}row>".encode()
    head = _SPANS.sub(b"", opened[0])
    return head + text[opened.end() - opened.start() : -len(closing)] + more.encode() + closing

"""Results beside a planner's scenarios: cells are added to the rows of one sheet, and all else stays byte for byte.

A library that reads a workbook and writes it again loses what it does not know (stored values of formulas, charts,
pictures, macros). So the sheet's XML is copied as a stream, with cells put before the end of each row
(ECMA-376, part 1, 18.3: `row` holds `c` in the order of columns).
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any
from xml.sax.saxutils import escape

import pandas as pd

from rooflinekit.decision.sweeping.workbook import Sheet, column_letters
from rooflinekit.model.types.errors import InputError

__all__ = ["write_beside"]

_COLUMNS = 16_384
_BLOCK = 1 << 20
_OPEN = re.compile(rb"<(?:(\w+):)?row\b([^>]*?)(/?)>")
_NUMBER = re.compile(rb'\br="(\d+)"')
_SPANS = re.compile(rb'\s+spans="[^"]*"')
_DIMENSION = re.compile(rb"<(?:\w+:)?dimension\b[^>]*?(?:/>|></(?:\w+:)?dimension>)")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # characters that XML does not know


def write_beside(sheet: Sheet, answers: Iterable[pd.DataFrame], out: Path) -> None:
    """Copy the workbook with the results in the first free columns of the sheet.

    Args:
        sheet: as it was read.
        answers: its rows in order with their results; the index is the row on the sheet.
        out: the new workbook.

    Raises:
        InputError: no columns are left, or the sheet is not written in UTF-8; KeyboardInterrupt: the answers were
            interrupted, and the copy, which is whole, has those until then.
    """
    cells = _Cells(sheet, answers)  # an interruption ends the results, not the copy
    with zipfile.ZipFile(sheet.path) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            with old.open(member) as source, new.open(_entry(member), "w", force_zip64=True) as target:
                if member.filename == sheet.member:
                    _copy_rows(source, target, cells)
                else:
                    while block := source.read(_BLOCK):
                        target.write(block)
    if cells.interrupted:
        raise KeyboardInterrupt


def _entry(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(member.filename, member.date_time)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, member.external_attr
    return entry


class _Cells:
    """New cells of each row, in the order of rows."""

    def __init__(self, sheet: Sheet, answers: Iterable[pd.DataFrame]) -> None:
        self._sheet, self._names = sheet, list[str]()
        self._rows = self._each(answers)
        self.interrupted = False
        self._next = self._following()

    def of(self, row: int, prefix: str) -> str:
        """XML of the new cells of a row; nothing for a row that is no scenario."""
        if row == self._sheet.header_row:
            return self._written(row, prefix, self._names)
        if self._next is None or self._next[0] != row:
            return ""
        text = self._written(row, prefix, self._next[1])
        self._next = self._following()
        return text

    def _following(self) -> tuple[int, tuple[Any, ...]] | None:
        try:
            return next(self._rows, None)
        except KeyboardInterrupt:
            self.interrupted = True
            return None

    def _each(self, answers: Iterable[pd.DataFrame]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        for part in answers:
            results = part[[name for name in part if name not in self._sheet.columns]]
            if not self._names:
                self._names = [str(name) for name in results]
                if self._sheet.width + len(self._names) > _COLUMNS:
                    raise InputError(f"{self._sheet.path}: sheet {self._sheet.name!r} has no columns left for results")
                places = range(self._sheet.width, self._sheet.width + len(self._names))
                self._letters = [column_letters(place) for place in places]
            yield from zip(
                results.index.tolist(), results.astype(object).itertuples(index=False, name=None), strict=True
            )

    def _written(self, row: int, prefix: str, values: Iterable[Any]) -> str:
        if not self._names:
            return ""
        return "".join(
            _cell(f"{letters}{row}", prefix, value) for letters, value in zip(self._letters, values, strict=True)
        )


def _cell(place: str, p: str, value: Any) -> str:
    if value is None or value is pd.NA or value == "" or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return f'<{p}c r="{place}" t="b"><{p}v>{int(value)}</{p}v></{p}c>'
    if isinstance(value, (int, float)) and math.isfinite(value):
        return f'<{p}c r="{place}"><{p}v>{value!r}</{p}v></{p}c>'
    text = escape(_FORBIDDEN.sub("\ufffd", str(value)))
    return f'<{p}c r="{place}" t="inlineStr"><{p}is><{p}t xml:space="preserve">{text}</{p}t></{p}is></{p}c>'


def _copy_rows(source: IO[bytes], target: IO[bytes], cells: _Cells) -> None:
    """Copy the sheet's XML, row by row."""
    text = source.read(_BLOCK)
    if b"UTF-16" in text[:200].upper() or text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError("the sheet is written in UTF-16; save the workbook again in a spreadsheet program")
    text, at, row = _DIMENSION.sub(b"", text, count=1), 0, 0
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
        prefix = (first[1] + b":").decode() if first[1] else ""
        target.write(text[at : first.start()] + _row(text[first.start() : end], first, cells.of(row, prefix), prefix))
        at = end
    target.write(text[at:])


def _end(text: bytes, opened: re.Match[bytes]) -> int | None:
    """Where a row ends; None if that is not read yet."""
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

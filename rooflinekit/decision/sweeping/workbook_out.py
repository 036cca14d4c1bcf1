"""Results beside a planner's scenarios: cells are added to the rows of one sheet, and all else stays byte for byte.

A library that reads a workbook and writes it again loses what it does not know (stored values of formulas, charts,
pictures, macros). So the sheet's XML is copied as a stream, with cells put before the end of each row
(ECMA-376, part 1, 18.3: `row` holds `c` in the order of columns).
"""

from __future__ import annotations

import math
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any
from xml.sax.saxutils import escape

import pandas as pd

from rooflinekit.decision.sweeping.workbook import Sheet
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
    sheet: Sheet, answers: Iterable[pd.DataFrame], interrupted: list[bool]
) -> Iterator[tuple[int, tuple[Any, ...]]]:
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
    if value is None or value is pd.NA or value == "" or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return f'<{p}c r="{place}" t="b"><{p}v>{int(value)}</{p}v></{p}c>'
    if isinstance(value, (int, float)) and math.isfinite(value):
        return f'<{p}c r="{place}"><{p}v>{value!r}</{p}v></{p}c>'
    text = escape(_FORBIDDEN.sub("\ufffd", str(value)))
    return f'<{p}c r="{place}" t="inlineStr"><{p}is><{p}t xml:space="preserve">{text}</{p}t></{p}is></{p}c>'


def _copy_rows(source: IO[bytes], target: IO[bytes], cells: Iterator[tuple[int, tuple[Any, ...]]], width: int) -> None:
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

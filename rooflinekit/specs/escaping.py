"""Texts of others in CSV, in Markdown and on a terminal, so that no program that shows them takes them for orders.

Each of these formats has one writer, and every command writes through it. A number stays a number.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pandas as pd

Cell = TypeVar("Cell")

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that move a cursor, set colours or turn the direction of reading: all of it but tab and new line."""
_BREAKING = re.compile("[\t\n\u2028\u2029]")
_FORMULA = re.compile(r"\s*(?:[=+@＝＋－＠]|-(?!(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?$|$))")
"""Texts that a spreadsheet program calculates: OWASP, CSV Injection. A negative number and a lone dash are none."""
_MARKDOWN = re.compile(r"[\\`*~<]|\](?=[(\[])|^\[(?=.*\]:)|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
_MARKED = re.compile(r"((?<!`)`[^`]+`(?!`)|\*\*[^*]+\*\*)")


def visible(text: str) -> str:
    r"""A text in which what would steer a terminal can be read.

    >>> visible("a\x1b[2J b")
    'a\\x1b[2J b'
    """
    return STEERING.sub(lambda hit: ascii(hit[0])[1:-1], text)


def terminal_cell(text: str) -> str:
    r"""A cell of a table on a terminal: it has one line.

    >>> terminal_cell("a\nb")
    'a\\nb'
    """
    return _BREAKING.sub(lambda hit: ascii(hit[0])[1:-1], visible(text))


def csv_cell(cell: Cell) -> Cell | str:
    r"""A cell of a CSV file: a text that a spreadsheet would calculate gets an apostrophe. Numbers stay.

    >>> [csv_cell(cell) for cell in ("=1+1", "-2.5", " @SUM(A1)", "a\x1b[2J", -2.5)]
    ["'=1+1", '-2.5', "' @SUM(A1)", 'a\\x1b[2J', -2.5]
    """
    if not isinstance(cell, str):
        return cell
    return f"'{visible(cell)}" if _FORMULA.match(cell) else visible(cell)


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    r"""Rows that share their keys as CSV with a header, empty where a number is not finite; nothing for no rows.

    >>> csv_text([{"name": "=1", "ms": -2.5}, {"name": "b", "ms": float("nan")}])
    "name,ms\n'=1,-2.5\nb,\n"
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for names in rows[:1]:
        writer.writerow(map(csv_cell, names))
    for row in rows:
        finite = (None if isinstance(cell, float) and not math.isfinite(cell) else cell for cell in row.values())
        writer.writerow(map(csv_cell, finite))
    return text.getvalue()


def csv_table(table: pd.DataFrame, header: bool = True) -> str:
    """A table, or a later part of one, as CSV."""
    shown = table.copy(deep=False)
    for place, kind in enumerate(table.dtypes):
        if kind.kind not in "biufmM":
            shown.isetitem(place, table.iloc[:, place].map(csv_cell).array)
    shown.columns = table.columns.map(csv_cell)
    return shown.to_csv(index=False, header=header, lineterminator="\n")


class Marked(str):
    """A text that is Markdown already, written by hand."""

    __slots__ = ()


def markdown_words(text: str) -> str:
    r"""A text that Markdown shows as it is, in one line: no element, no link, no mark.

    >>> markdown_words("<b> [a](javascript:b) *c* kv_bytes")
    '&lt;b> [a\\](javascript:b) \\*c\\* kv_bytes'
    """
    if isinstance(text, Marked):
        return text
    escaped = _MARKDOWN.sub(lambda hit: "&lt;" if hit[0] == "<" else f"\\{hit[0]}", text)
    return visible(" ".join(escaped.splitlines()))


def markdown_marked(text: str) -> str:
    r"""Escape the text where names in stars and formulas in back quotes stand out.

    >>> markdown_marked("**a<b** is `x<y`, not `")
    '**a&lt;b** is `x<y`, not \\`'
    """
    marks = {"": "", "b": "**", "code": "`"}
    parts = ((marks[tag], inner if tag == "code" else markdown_words(inner)) for tag, inner in marked_parts(text))
    return "".join(f"{mark}{inner}{mark}" for mark, inner in parts)


def markdown_cell(text: str) -> str:
    r"""A cell of a table in Markdown.

    >>> markdown_cell("a|b")
    'a\\|b'
    """
    return markdown_words(text).replace("|", "\\|")


def marked_parts(text: str) -> Iterable[tuple[str, str]]:
    """Parts of a text with the element that each stands in on a page: "b", "code" or none.

    >>> list(marked_parts("**a** is `b`"))
    [('b', 'a'), ('', ' is '), ('code', 'b')]
    """
    for number, part in enumerate(_MARKED.split(text)):
        if number % 2:
            yield ("code", part[1:-1]) if part[0] == "`" else ("b", part[2:-2])
        elif part:
            yield "", part

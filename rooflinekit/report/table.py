"""Aligned plain-text tables that fit a terminal of 80 columns, the same as Markdown, and lines of words."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

WIDTH = 80


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,), gap: int = 2
) -> list[str]:
    """Columns as wide as their widest cell; the columns in `left` flush left, the others right.

    A table wider than a terminal closes its gaps to one space.

    >>> aligned(["name", "n"], [["a", "1"], ["bb", "20"]])
    ['name   n', 'a      1', 'bb    20']
    """
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    if sum(widths) + gap * (len(widths) - 1) > WIDTH:
        gap = 1
    return [
        (" " * gap)
        .join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        .rstrip()
        for row in table
    ]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    r"""The same as a Markdown table.

    >>> markdown(["name", "n"], [["a|b", "1"]])
    ['| name | n |', '|:--|--:|', '| a\\|b | 1 |']
    """
    marks = [":--" if column in left else "--:" for column in range(len(header))]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(marks) + "|"]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def wrapped(text: str, indent: str = "  ", start: str = "", whole: bool = False) -> list[str]:
    """Words as lines of a terminal's width, all but the first indented; a percent sign stays with its number.

    `whole` breaks no word, such as an address or a path.

    >>> wrapped("one", start="note: ")
    ['note: one']
    """
    kept = text.replace(" %", "\u00a0%")
    lines = textwrap.wrap(kept, WIDTH, initial_indent=start, subsequent_indent=indent, break_long_words=not whole,
                          break_on_hyphens=not whole)  # fmt: skip
    return [line.replace("\u00a0", " ") for line in lines]

"""Aligned plain-text tables that fit a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

__all__ = ["WIDTH", "aligned", "bullets", "markdown", "sentences", "wrapped"]

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


def wrapped(text: str) -> list[str]:
    """Words in lines of a terminal."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = f"  {word}"
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def sentences(lines: Sequence[str], indent: str = "") -> list[str]:
    """Sentences as lines of a terminal's width, each on a new one; a percent sign stays with its number.

    >>> sentences(["one"], "  ")
    ['one']
    """
    kept = [line.replace(" %", "\u00a0%") for line in lines]
    parts = [part for line in kept for part in textwrap.wrap(line, WIDTH, subsequent_indent=indent)]
    return [part.replace("\u00a0", " ") for part in parts]


def bullets(lines: Sequence[str], marked: bool) -> list[str]:
    """Sentences of which each stands by itself: with a hanging indent, or, `marked`, as a Markdown list.

    >>> bullets(["one", "two"], marked=True)
    ['- one', '- two']
    """
    return sentences([f"- {line}" for line in lines] if marked else lines, "  ")

"""Where a command's text goes: the terminal, a pipe, or a file that is not there yet."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rooflinekit.specs.writing import check_target, write_whole

__all__ = ["emit", "rendered", "to_csv", "to_json"]

Row = Mapping[str, Any]


def emit(text: str, out: Path | None = None, force: bool = False) -> None:
    """Print the text, or write it to `out`.

    Raises InputError if `out` exists and may not be overwritten, or its folder does not exist.
    """
    if out is None:
        try:
            sys.stdout.write(text.rstrip("\n") + "\n")
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has gone, as `head` does; nothing is wrong
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    check_target(out, force)
    write_whole(out, (text.rstrip("\n") + "\n").encode())


def rendered(
    answer: Any,
    format: str,
    rows: Callable[[], Sequence[Row]],
    text: Callable[..., str],
    markdown: Callable[[Any], str] | None = None,
) -> str:
    """An answer in the format asked for; without `markdown`, `text` is told whether it is Markdown."""
    match format:
        case "json":
            return to_json(answer.to_dict())
        case "csv":
            return to_csv(rows())
        case _ if markdown is None:
            return text(answer, format == "md")
        case _:
            return markdown(answer) if format == "md" else text(answer)


def to_json(data: object) -> str:
    """Strict JSON (no NaN), two spaces deep."""
    return json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False)


def to_csv(rows: Sequence[Row]) -> str:
    """Rows that share their keys as CSV with a header; nothing for no rows."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

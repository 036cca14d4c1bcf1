"""Where a command's answer goes: the terminal, a pipe, or a file that is not there yet; and in which format."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rooflinekit.specs.writing import check_target, write_whole

if TYPE_CHECKING:
    from rooflinekit.report.document import Document

__all__ = ["Output", "emit", "note", "to_csv", "to_json"]

Row = Mapping[str, Any]


class Output(NamedTuple):
    """How an answer is printed, where to, whether over a file that is there, and a folder for its pictures."""

    format: str = "table"
    out: Path | None = None
    force: bool = False
    plots: Path | None = None

    def check(self, pictures: str = "") -> None:
        """Refuse what could not be written, before the work. Raises InputError."""
        if self.out is not None:
            check_target(self.out, self.force)
        if self.plots is not None and pictures:
            from rooflinekit.report.plots import PICTURES, check_plots

            check_plots(self.plots, PICTURES[pictures], self.force)

    def draw(self, result: Any) -> None:
        """Write pictures if they are asked for, and say on the standard error which there are."""
        if self.plots is not None:
            from rooflinekit.report.plots import write_plots

            written = write_plots(result, self.plots, self.force)
            names = ", ".join(path.name for path in written if path.suffix == ".svg")
            note(f"{names} in {self.plots}, and each as PNG")

    def show(self, answer: Any, **how: Any) -> None:
        """Print an answer, or write it; `how` is for the document that it becomes."""
        from rooflinekit.report.answers import document_of, rows_of

        self.write(answer.to_dict, lambda: rows_of(answer), lambda: document_of(answer, **how))

    def write(
        self, data: Callable[[], Any], rows: Callable[[], Sequence[Row]], document: Callable[[], Document]
    ) -> None:
        """Print the one of three views that the format is of, or write it."""
        from rooflinekit.report.document import markdown_text, plain_text

        match self.format:
            case "json":
                self.emit(to_json(data()))
            case "csv":
                self.emit(to_csv(rows()))
            case "md":
                self.emit(markdown_text(document()))
            case _:
                self.emit(plain_text(document()))

    def emit(self, text: str) -> None:
        """Print a text, or write it."""
        emit(text, self.out, self.force)


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


def note(text: str) -> None:
    """Say something beside the answer, on the standard error."""
    print(f"rooflinekit: {text}", file=sys.stderr)  # noqa: T201 - this is the edge


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

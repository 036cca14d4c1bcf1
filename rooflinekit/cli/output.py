"""Output of a command's answer: the terminal, a pipe, or a file that is not there yet; and in which format."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from rooflinekit.estimation.options import Value
from rooflinekit.model.types.errors import InputError
from rooflinekit.specs.escaping import STEERING, csv_text, visible
from rooflinekit.specs.writing import check_target, write_whole

if TYPE_CHECKING:
    from rooflinekit.report.document import Document

Row = Mapping[str, Any]
_LONG = re.compile(r"\S{200,}")

_NARROWEST, _WIDEST = 40, 110  # columns of an answer in a terminal


class CommandOutput(NamedTuple):
    """Format, file and overwriting of an answer, and a folder for its pictures."""

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

            check_plots(self.plots, list(PICTURES[pictures]), self.force)

    def draw(self, result: Any) -> None:
        """Write pictures if they are asked for, and say on the standard error which there are."""
        if self.plots is not None:
            from rooflinekit.report.plots import write_plots

            written = write_plots(result, self.plots, self.force)
            names = ", ".join(path.name for path in written if path.suffix == ".svg")
            note(f"{names} in {self.plots}, and each as PNG")

    def show(self, answer: Any, **how: Value) -> None:
        """Print an answer, or write it; `how` is for the document that it becomes."""
        from rooflinekit.report.answers import document_of, rows_of

        self.write(answer.to_dict, lambda: rows_of(answer), lambda: document_of(answer, **how))

    def write(
        self, data: Callable[[], Any], rows: Callable[[], Sequence[Row]], document: Callable[[], Document]
    ) -> None:
        """Print the one of three views that the format is of, or write it."""
        from rooflinekit.report.document import WIDTH, markdown_text, plain_text

        match self.format:
            case "json":
                self.emit(to_json(data()))
            case "csv":
                self.emit(csv_text(rows()))
            case "md":
                self.emit(visible(markdown_text(document())))
            case _:
                text = visible(plain_text(document(), WIDTH if self.out else columns_of(sys.stdout, WIDTH)))
                self.emit(_coloured(text) if self.out is None and _in_colour() else text)

    def emit(self, text: str) -> None:
        """Print a text, or write it."""
        emit(text, self.out, self.force)


def columns_of(stream: TextIO | None, usual: int) -> int:
    """Columns of the terminal that an output is, no more than people read; elsewhere the usual ones."""
    if stream is None or not stream.isatty():
        return usual
    return max(min(get_terminal_size().columns, _WIDEST), _NARROWEST)


def _in_colour() -> bool:
    """True if the standard output is a terminal of colours, and nobody has asked for none (no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and sys.stdout is not None and sys.stdout.isatty()


_ANSWERS = "Half of the users|now: |Best for |lowest |cheapest "  # lines that answer, whose numbers stand out
_NUMBER = re.compile(r"[+−$]?\d[\d.,]*\d(?: (?:[mµn]?s|tokens/s|%|GPUs?)(?!\w))?|x \d+\.\d+")


def _coloured(text: str) -> str:
    r"""Bars, and limits at the ends of lines, in the colours of what they wait for.

    >>> _coloured("host   1  overhead")
    'host   1  \x1b[90moverhead\x1b[0m'
    """
    from rooflinekit.report.look import ALARM, BOLD, INKS, PLAIN, TERMINAL

    limits, named = "|".join(INKS), "|".join(map(re.escape, TERMINAL))
    text = re.sub(rf"(?m)\b(?:{limits})$", lambda hit: f"{INKS[hit[0]]}{hit[0]}{PLAIN}", text)
    text = re.sub(r"(?:DOES NOT FIT|OVERLOAD):[^\n]*", lambda hit: f"{ALARM}{hit[0]}{PLAIN}", text)
    text = re.sub(r"(?m)^(?:TTFT|TPOT|end to end) +\d[\d.,]* [mµn]?s\b", lambda hit: f"{BOLD}{hit[0]}{PLAIN}", text)
    text = re.sub(rf"(?m)^(?:{_ANSWERS}).*$", lambda line: _NUMBER.sub(rf"{BOLD}\g<0>{PLAIN}", line[0]), text)
    return re.sub(
        rf"(?m)^({named}) .*[█▏].*$",
        lambda line: re.sub("[█▏]+", lambda bar: f"{TERMINAL[line[1]]}{bar[0]}{PLAIN}", line[0]),
        text,
    )


def emit(text: str, out: Path | None = None, force: bool = False) -> None:
    """Print the text, or write it to `out`, which has been checked: what is there now is another's, and both stay."""
    text = text.rstrip("\n") + "\n"
    if out is None:
        _print(text)
    else:
        write_whole(out, text.encode(), force)


def _print(text: str) -> None:
    """Write all of a text to the standard output: an unbuffered one may take a part of it, and say nothing."""
    stream = sys.stdout
    if stream is None:
        raise InputError("the standard output is closed; give --out FILE")
    try:
        raw = getattr(getattr(stream, "buffer", None), "raw", None) or getattr(stream, "buffer", None)
        if raw is None:  # no file, such as a text in memory
            stream.write(text)
        else:
            stream.flush()
            data = memoryview(text.encode(stream.encoding, stream.errors or "strict"))
            while data:
                data = data[raw.write(data) :]
        stream.flush()
    except BrokenPipeError:  # the reader has gone, as `head` does; nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, "the standard output") from None


def note(text: str, start: str = "rooflinekit: ") -> None:
    """Say something beside the answer, on the standard error."""
    said = f"{start}{visible(brief(text))}"
    if sys.stderr.isatty():  # one line elsewhere, so that scripts find it whole
        said = textwrap.fill(said, get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    print(said, file=sys.stderr)  # noqa: T201 - this is the edge


def brief(text: str) -> str:
    """Shorten a very long name or value to its two ends."""
    return _LONG.sub(lambda hit: f"{hit[0][:120]}…{hit[0][-60:]}", text)


def to_json(data: object) -> str:
    """Strict JSON, two spaces deep: what is no finite number is null, and nothing in it steers a terminal."""
    from rooflinekit.report.markup import strict_json

    text = strict_json(data, indent=2, ensure_ascii=False)
    return STEERING.sub(lambda hit: f"\\u{ord(hit[0]):04x}", text)


@contextmanager
def working(verb: str) -> Iterator[None]:
    """Show on a terminal what is done, while it lasts."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{verb} …"):
        yield


@contextmanager
def counting(verb: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Yield a function to call with the name of each piece of work as it starts.

    Where the pieces are not known beforehand, each call also says which piece it is and of how many.
    """
    if not sys.stderr.isatty() or find_spec("rich") is None:  # hosts that only measure have no rich
        yield lambda *_: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)

        def step(name: str, number: int | None = None, of: int | None = total) -> None:
            description = f"{verb} {name}"[:60]
            if number is None:
                bar.update(task, advance=1, description=description)
            else:
                bar.update(task, completed=number, total=of, description=description)

        yield step

"""Text tables as spreadsheets write them: commas, semicolons or tabs, perhaps another one behind each row."""

from __future__ import annotations

import csv
import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rooflinekit.model.types.errors import InputError, MissingExtraError, SpecError
from rooflinekit.specs.files import read_text
from rooflinekit.specs.places import admit, check_file


def delimiter_of(header: str) -> str:
    """A comma, or the semicolon or tab that a spreadsheet wrote instead.

    >>> delimiter_of("model;batch;isl"), delimiter_of("model,batch")
    (';', ',')
    """
    return max(",", ";", "\t", key=header.count)


def check_columns(name: str, header: str) -> None:
    """Refuse a table that has one column twice: nobody knows which is meant."""
    names = [cell.strip() for cell in next(csv.reader([header], delimiter=delimiter_of(header)), []) if cell.strip()]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise InputError(f"{name}: has the column {twice!r} twice; name each once")


def text_rows(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Columns in small letters, and rows with their lines; all cells are text without blanks around them."""
    whole = read_text(path)
    text = whole.lstrip("\n")
    header, before = text.partition("\n")[0].lower(), len(whole) - len(text)
    check_columns(str(path), header)
    table = csv.DictReader([header, *text.splitlines()[1:]], delimiter=delimiter_of(header), skipinitialspace=True)
    names = [name.strip() for name in table.fieldnames or () if name.strip()]
    rows = [
        (
            before + table.line_num,
            {(key or "").strip(): (cell or "").strip() for key, cell in row.items() if key is not None},
        )
        for row in table
    ]
    return names, rows


def read_delimited(name: str, **how: Any) -> Any:
    """Read a file by pandas, or standard input for "-": a table, or parts of it with `chunksize`.

    An empty cell behind the last mark of a row or of the header is none. Raises InputError for a column that is there
    twice and for any other cell beyond the header, and what pandas raises.
    """
    import pandas as pd  # noqa: PLC0415 - takes a while

    source: Any = name
    admit(Path(name) if name != "-" else standard_input())
    with nullcontext(sys.stdin) if name == "-" else Path(name).open(encoding="utf-8-sig", errors="replace") as file:
        header = file.readline()
        if name == "-":
            source = io.StringIO(header + file.read())
    check_columns(name, header)
    names = next(csv.reader([header], delimiter=delimiter_of(header)), [])
    if names and not names[-1].strip() and all(each.strip() for each in names[:-1]):  # it ends with a mark too
        how |= {"names": names[:-1], "header": 0}
    with cells_checked(name):
        return pd.read_csv(source, sep=delimiter_of(header), index_col=False, **how)


def standard_input() -> int:
    """The number of the standard input; that of no file where a test or a notebook has replaced it."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return -1


def read_table(path: Path, needed: Sequence[str] = (), what: str = "table", text: bool = False) -> Any:
    """A CSV or Parquet file as a frame; with `text` every cell is text, and an empty one ""."""
    import pandas as pd  # noqa: PLC0415 - takes a while

    check_file(path)
    how: dict[str, Any] = {"dtype": str, "keep_default_na": False} if text else {"low_memory": False}
    try:
        parquet = path.suffix.lower() == ".parquet"
        table = pd.read_parquet(path) if parquet else read_delimited(str(path), **how)
    except ImportError:
        raise MissingExtraError("reading Parquet", "accuracy") from None
    except InputError:
        raise
    except (OSError, ValueError) as error:  # the parser's errors are ValueErrors
        said = " ".join(str(error).removeprefix("Error tokenizing data. C error: ").split())[:120]
        raise SpecError(f"{path}: is no table that can be read: {said}") from None
    if missing := [name for name in needed if name not in table]:
        columns = ", ".join(needed)
        raise SpecError(f"{path}: is no {what}: column {missing[0]!r} is missing; it needs {columns}")
    return table.astype(object).where(table.notna(), "").astype(str) if text and parquet else table


@contextmanager
def cells_checked(name: str) -> Iterator[None]:
    """While rows are read: raises InputError for one that has more cells than the header."""
    import pandas as pd  # noqa: PLC0415 - takes a while

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            yield
    except pd.errors.ParserWarning:
        raise InputError(f"{name}: a row has more cells than the header") from None

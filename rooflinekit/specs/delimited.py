"""What stands between the cells of a text table, and which columns it has."""

from __future__ import annotations

import csv

from rooflinekit.model.types.errors import InputError

__all__ = ["check_columns", "delimiter_of"]


def delimiter_of(header: str) -> str:
    """A comma, or the semicolon or tab that a spreadsheet wrote instead.

    >>> delimiter_of("model;batch;isl"), delimiter_of("model,batch")
    (';', ',')
    """
    return max(",", ";", "\t", key=header.count)


def check_columns(name: str, header: str) -> None:
    """Refuse a table that has one column twice: nobody knows which is meant.

    Raises InputError.
    """
    names = [cell.strip() for cell in next(csv.reader([header], delimiter=delimiter_of(header)), []) if cell.strip()]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise InputError(f"{name}: has the column {twice!r} twice; name each once")

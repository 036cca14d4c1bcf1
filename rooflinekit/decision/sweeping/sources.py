"""Which reader a file of scenarios takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rooflinekit.decision.sweeping.tables import ParquetTable, TextTable
from rooflinekit.decision.sweeping.workbook import Sheet, read_sheet
from rooflinekit.model.types.errors import InputError

__all__ = ["WORKBOOKS", "identity", "is_table", "open_table"]

WORKBOOKS = (".xlsx", ".xlsm")
_TABLES = (".csv", ".parquet", *WORKBOOKS)


def is_table(name: str) -> bool:
    """Whether an argument means a file of scenarios, or "-" standard input, and not a model.

    >>> is_table("plan.XLSX"), is_table("-"), is_table("llama-3-8b"), is_table("config.json")
    (True, True, False, False)
    """
    return name == "-" or Path(name).suffix.lower() in _TABLES


def open_table(name: str, sheet: str | None = None) -> TextTable | ParquetTable | Sheet:
    """The scenarios of a file, by its suffix.

    Raises InputError for a file that is not there, and a sheet of what has none.
    """
    path = Path(name)
    kind = path.suffix.lower()
    if name != "-" and not path.is_file():
        raise InputError(f"{name}: no such file")
    if sheet is not None and kind not in WORKBOOKS:
        raise InputError(f"--sheet names a sheet of a workbook; {name} has none")
    if kind in WORKBOOKS:
        return read_sheet(path, sheet)
    return ParquetTable(name) if kind == ".parquet" else TextTable(name)


def identity(name: str) -> list[Any]:
    """What tells this content of a file from another: its name, size and time."""
    if name == "-":
        raise InputError("--resume cannot go on with standard input; write the scenarios to a file")
    facts = Path(name).stat()
    return [str(Path(name).resolve()), facts.st_size, facts.st_mtime_ns]

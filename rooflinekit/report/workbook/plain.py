"""Worksheets of XlsxWriter whose formulas are written as they are."""

from __future__ import annotations

from xlsxwriter.worksheet import Worksheet


class PlainWorksheet(Worksheet):  # type: ignore[misc] # XlsxWriter has no types
    """No function of the workbook is newer than Excel 2007, so that none has to be searched for: half the time."""

    def _prepare_formula(self, formula: str, expand_future_functions: bool = False) -> str:
        return formula.removeprefix("=")

"""The capacity workbook: results as a spreadsheet whose formulas go on working."""

from rooflinekit.report.workbook.offers import Choices, Planned
from rooflinekit.report.workbook.write import BuiltWorkbook, write_workbook

__all__ = ["BuiltWorkbook", "Choices", "Planned", "write_workbook"]

"""The capacity workbook: results as a spreadsheet whose formulas go on working."""

from rooflinekit.report.workbook.offers import Choices, Planned
from rooflinekit.report.workbook.write import Built, write_workbook

__all__ = ["Built", "Choices", "Planned", "write_workbook"]

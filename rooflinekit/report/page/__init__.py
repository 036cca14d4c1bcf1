"""A report as one HTML file: the answer, charts, and sliders that run the model in the browser."""

from rooflinekit.report.page.front import Report, write_report

__all__ = ["Report", "write_report"]

"""Static pictures of results by matplotlib: drawn, described in words, written as SVG and PNG."""

from rooflinekit.report.plots.front import PICTURES, check_plots, plot, write_plots

__all__ = ["PICTURES", "check_plots", "plot", "write_plots"]

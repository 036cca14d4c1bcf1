"""Static pictures of results by matplotlib: drawn, described in words, written as SVG and PNG."""

from rooflinekit.report.plots.front import KINDS, plot, write_plots
from rooflinekit.report.plots.picture import Picture

__all__ = ["KINDS", "Picture", "plot", "write_plots"]

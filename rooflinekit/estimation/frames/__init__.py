"""Tables of scenarios in and out; the one place where column names exist."""

from rooflinekit.estimation.frames.columns import INPUT_COLUMNS, LOAD_COLUMNS, RESULT_COLUMNS, input_names
from rooflinekit.estimation.frames.evaluate import estimate_frame

__all__ = ["INPUT_COLUMNS", "LOAD_COLUMNS", "RESULT_COLUMNS", "estimate_frame", "input_names"]

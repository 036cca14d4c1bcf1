"""Files that benchmark clients and engines write, read into one set of definitions."""

from __future__ import annotations

from rooflinekit.measured.measurement import Facts, Measurement, Spread
from rooflinekit.measured.read import read_measurements
from rooflinekit.measured.startup import StartUp

__all__ = ["Facts", "Measurement", "Spread", "StartUp", "read_measurements"]

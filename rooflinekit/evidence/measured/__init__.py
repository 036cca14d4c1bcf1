"""Files that benchmark clients and engines write, read into one set of definitions."""

from __future__ import annotations

from rooflinekit.evidence.measured.logs import StartUp
from rooflinekit.evidence.measured.measurement import Facts, Measurement, Spread
from rooflinekit.evidence.measured.read import read_measurements

__all__ = ["Facts", "Measurement", "Spread", "StartUp", "read_measurements"]

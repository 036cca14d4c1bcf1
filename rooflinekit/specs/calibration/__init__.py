"""Calibrations: readable YAML beside the accelerators, and which one stands in where there is none."""

from rooflinekit.specs.calibration.choose import choose_calibration, for_serving, stand_in
from rooflinekit.specs.calibration.load import calibration_names, load_calibration

__all__ = ["calibration_names", "choose_calibration", "for_serving", "load_calibration", "stand_in"]

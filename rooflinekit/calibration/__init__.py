"""Calibrations: loaded from readable YAML beside the accelerators, fitted from measured kernels."""

from rooflinekit.calibration.choose import choose_calibration, for_serving, stand_in
from rooflinekit.calibration.load import calibration_names, load_calibration

__all__ = ["calibration_names", "choose_calibration", "for_serving", "load_calibration", "stand_in"]

"""Calibrations fitted to measured kernels: tables, time forms, corrections, intervals."""

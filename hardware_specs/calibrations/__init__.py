"""Calibrations, one YAML file an accelerator and engine."""

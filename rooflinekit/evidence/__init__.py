"""Measurements beside predictions: tables, benchmark files, fits and accuracy."""

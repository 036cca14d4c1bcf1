"""Hugging Face config.json -> Model: one loader, driven by a table of model classes."""

from __future__ import annotations

from rooflinekit.specs.config.family import class_names
from rooflinekit.specs.config.importer import model_from_config

__all__ = ["class_names", "model_from_config"]

"""Hugging Face config.json -> Model: one loader, driven by a table of model classes."""

from __future__ import annotations

from rooflinekit.specs.config.families import FAMILIES
from rooflinekit.specs.config.importer import model_from_config

__all__ = ["FAMILIES", "model_from_config"]

"""The only code that opens spec files: locate, validate, import."""

from __future__ import annotations

from rooflinekit.specs.files import read_json, read_text, read_yaml
from rooflinekit.specs.hardware import (
    accelerator_template,
    counted_chips,
    load_accelerator,
    load_system,
    noun_of,
    systems_of,
)
from rooflinekit.specs.locate import Loaded, aliases, in_catalogue, names, resolve
from rooflinekit.specs.models import load_model, model_template
from rooflinekit.specs.places import Kind, spec_dir, user_dir

__all__ = [
    "Kind",
    "Loaded",
    "accelerator_template",
    "aliases",
    "counted_chips",
    "in_catalogue",
    "load_accelerator",
    "load_model",
    "load_system",
    "model_template",
    "names",
    "noun_of",
    "read_json",
    "read_text",
    "read_yaml",
    "resolve",
    "spec_dir",
    "systems_of",
    "user_dir",
]

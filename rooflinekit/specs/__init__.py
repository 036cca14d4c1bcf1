"""The only code that opens spec files: locate, validate, import."""

from __future__ import annotations

from rooflinekit.specs.hardware import load_accelerator
from rooflinekit.specs.locate import (
    Kind,
    Loaded,
    Resolved,
    aliases,
    names,
    read_json,
    read_text,
    read_yaml,
    resolve,
    spec_dir,
    user_dir,
)
from rooflinekit.specs.models import load_model
from rooflinekit.specs.systems import load_system
from rooflinekit.specs.template import accelerator_template

__all__ = [
    "Kind",
    "Loaded",
    "Resolved",
    "accelerator_template",
    "aliases",
    "load_accelerator",
    "load_model",
    "load_system",
    "names",
    "read_json",
    "read_text",
    "read_yaml",
    "resolve",
    "spec_dir",
    "user_dir",
]

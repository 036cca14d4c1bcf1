"""The published JSON Schemas: one for each command whose JSON other programs read.

python -m rooflinekit.report.schema docs/schema
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rooflinekit.report.schema_answers import (
    cost_schema,
    derivation_schema,
    levers_schema,
    outcome_schema,
    plan_schema,
    walk_schema,
)
from rooflinekit.report.schema_estimate import estimate_schema
from rooflinekit.report.schema_types import Schema

__all__ = ["SCHEMAS"]

SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "cost": cost_schema,
    "estimate": estimate_schema,
    "explain": derivation_schema,
    "levers": levers_schema,
    "plan": plan_schema,
    "shapes": walk_schema,
    "simulate": outcome_schema,
}
"""By command."""


def _main(folder: str) -> None:
    for command, made in SCHEMAS.items():
        text = json.dumps(made(), indent=2) + "\n"
        (Path(folder) / f"{command}.schema.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _main(sys.argv[1])

"""The JSON Schema of `rooflinekit estimate --format json`, made from the types of the result.

python -m rooflinekit.report.schema docs/schema/estimate.schema.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rooflinekit.results import Estimate
from rooflinekit.types.deployment import ALL_REDUCE, ENGINES, Deployment
from rooflinekit.types.dtype import Dtype
from rooflinekit.types.engine import EngineSettings
from rooflinekit.types.kernel import FAMILIES
from rooflinekit.types.kv_policy import KVPolicy

__all__ = ["estimate_schema"]

_Schema = dict[str, Any]
_PLAIN: dict[type, _Schema] = {
    str: {"type": "string"}, bool: {"type": "boolean"}, int: {"type": "integer"}, float: {"type": "number"},
}  # fmt: skip
_COUNT: _Schema = {"type": "integer", "minimum": 1}
_DTYPE: _Schema = {"enum": [dtype.value for dtype in Dtype]}
_REGIME: _Schema = {"enum": ["compute", "memory", "network", "overhead"]}


def estimate_schema() -> _Schema:
    """JSON Schema (draft 2020-12) of `Estimate.to_dict()`: every key required, none besides them.

    >>> estimate_schema()["properties"]["tpot_ms"]
    {'type': 'number', 'minimum': 0}
    """
    definitions: dict[str, _Schema] = {}
    whole = _object_of(Estimate, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rooflinekit estimate --format json",
        "description": "Times in ms and us, sizes in bytes, work in FLOP, shares as fractions; work and memory are per "
        "accelerator (the busiest). Every key is explained in docs/nomenclature.md.",
        **whole,
        "$defs": dict(sorted(definitions.items())),
    }


def _object_of(kind: type, definitions: dict[str, _Schema]) -> _Schema:
    hints = get_type_hints(kind)
    special = _SPECIAL.get(kind.__name__, {})
    return _object(
        {f.name: special.get(f.name) or _number(f.name, _schema(hints[f.name], definitions)) for f in fields(kind)}
    )


def _object(properties: Mapping[str, _Schema]) -> _Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _schema(hint: Any, definitions: dict[str, _Schema]) -> _Schema:
    """The schema of one annotated type; a dataclass becomes a definition that is referred to by its name."""
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if isinstance(hint, UnionType):
        choices = [arg for arg in get_args(hint) if arg is not NoneType]
        return _or_null(_schema(choices[0], definitions))
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _schema(get_args(hint)[0], definitions)}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if isinstance(hint, type) and is_dataclass(hint):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = _object_of(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    raise TypeError(f"no schema for {hint!r}; add it to _SPECIAL")


def _or_null(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _number(name: str, schema: _Schema) -> _Schema:
    """No time, size or share is negative; the value of a cited fact may be anything."""
    if "anyOf" in schema:
        first, *others = schema["anyOf"]
        return {**schema, "anyOf": [_number(name, first), *others]}
    numeric = schema.get("type") in ("number", "integer") and name != "value"
    return {**schema, "minimum": 0} if numeric else schema


def _numbers(*names: str) -> _Schema:
    return _object({name: {"type": "number", "minimum": 0} for name in names})


def _inputs() -> _Schema:
    """What `inputs` holds: the workload, the deployment, and the number of accelerators."""
    hints = get_type_hints(Deployment)
    positive = _or_null({"type": "number", "exclusiveMinimum": 0})
    by_type: dict[Any, _Schema] = {int: _COUNT, str: {"enum": list(ENGINES)}, KVPolicy: {"type": "string"}}
    workload: dict[str, _Schema] = {"batch": _COUNT, "isl": _COUNT, "osl": _COUNT}
    workload |= {"cached": {"type": "integer", "minimum": 0}, "context": {"type": "number", "minimum": 1}}
    names = [field.name for field in fields(Deployment) if field.name not in ("settings", "engine_version")]
    split = {name: by_type.get(hints[name], _DTYPE) for name in names}
    settings = {field.name: _or_null(_COUNT) for field in fields(EngineSettings)}
    settings |= {"memory_fraction": _or_null({"type": "number", "exclusiveMinimum": 0, "maximum": 1})}
    settings |= {"eager": {"type": "boolean"}}
    split |= {
        "system": _or_null({"type": "string"}),
        "sequence_parallel": {"type": "boolean"},
        "all_reduce": {"enum": list(ALL_REDUCE)},
        "dispatch": _or_null(_DTYPE),
        "redundant_experts": {"type": "integer", "minimum": 0},
        "skew": {"type": "number", "minimum": 0},
        "power_cap": positive,
    }
    version = {"engine_version": _or_null({"type": "string"})}
    load = {"concurrency": positive, "rate": positive}
    return _object({**workload, **load, **split, **version, **settings, "gpus": _COUNT})


def _interval() -> _Schema:
    ends = {"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 2, "maxItems": 2}
    return _or_null(_object({"ttft_ms": _or_null(ends), "tpot_ms": ends}))


def _load() -> _Schema:
    times = _object({f"p{q}": _or_null({"type": "number", "minimum": 0}) for q in (50, 90, 99)})
    goals = _object({key: _or_null({"type": "number", "exclusiveMinimum": 0}) for key in ("ttft_ms", "tpot_ms")})
    return {"percentiles": _object(dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms"), times)), "slo": goals}


# Fields whose annotation says less than is known about them.
_SPECIAL: dict[str, dict[str, _Schema]] = {
    "Estimate": {
        "engine": {"enum": list(ENGINES)},
        "level": {"enum": ["expected", "bound"]},
        "calibration": _or_null(_object({"name": {"type": "string"}, "hash": {"type": "string"}})),
        "inputs": _inputs(),
        "interval": _interval(),
        "bound": _numbers("ttft_ms", "tpot_ms"),
    },
    "LoadResult": _load(),
    "StepResult": {"bound": _REGIME, "shares": _numbers(*_REGIME["enum"])},
    "KernelResult": {"bound": _REGIME, "dtype": _DTYPE, "family": {"enum": [*FAMILIES, "host"]}, "count": _COUNT},
}


def _main(out: str) -> None:
    Path(out).write_text(json.dumps(estimate_schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _main(sys.argv[1])

"""The JSON Schema of `rooflinekit estimate --format json`, made from the types of the result."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

from rooflinekit.estimation.results import Estimate
from rooflinekit.model.types.deployment import ALL_REDUCE, ENGINES, Deployment
from rooflinekit.model.types.engine import EngineSettings
from rooflinekit.model.types.kernel import FAMILIES
from rooflinekit.model.types.kv_policy import KVPolicy
from rooflinekit.report.schema_types import COUNT, DTYPE, POSITIVE, TEXT, Schema, Types, numbers, object_, or_null

__all__ = ["CALIBRATION", "ENGINE", "LEVEL", "estimate_inputs", "estimate_schema"]

REGIMES = ("compute", "memory", "network", "overhead")
_REGIME: Schema = {"enum": list(REGIMES)}
ENGINE: Schema = {"enum": list(ENGINES)}
LEVEL: Schema = {"enum": ["expected", "bound"]}
CALIBRATION: Schema = or_null(object_({"name": TEXT, "hash": TEXT}))


def estimate_schema() -> Schema:
    """JSON Schema (draft 2020-12) of `Estimate.to_dict()`: every key required, none besides them.

    >>> estimate_schema()["properties"]["tpot_ms"]
    {'type': 'number', 'minimum': 0}
    """
    types = Types(_special())
    whole = object_(types.fields_of(Estimate))
    description = (
        "Times in ms and us, sizes in bytes, work in FLOP, shares as fractions; work and memory are per accelerator "
        "(the busiest). Every key is explained in docs/nomenclature.md."
    )
    return types.document("estimate", description, whole)


def estimate_inputs() -> Schema:
    """What `inputs` holds: the workload, the deployment, and the number of accelerators."""
    hints = get_type_hints(Deployment)
    by_type: dict[Any, Schema] = {int: COUNT, str: ENGINE, KVPolicy: TEXT}
    workload: dict[str, Schema] = {"batch": COUNT, "isl": COUNT, "osl": COUNT}
    workload |= {"cached": {"type": "integer", "minimum": 0}, "context": {"type": "number", "minimum": 1}}
    names = [field.name for field in fields(Deployment) if field.name not in ("settings", "engine_version")]
    split = {name: by_type.get(hints[name], DTYPE) for name in names}
    settings = {field.name: or_null(COUNT) for field in fields(EngineSettings)}
    settings |= {"memory_fraction": or_null({**POSITIVE, "maximum": 1})}
    settings |= {"eager": {"type": "boolean"}}
    split |= {
        "system": or_null(TEXT),
        "sequence_parallel": {"type": "boolean"},
        "all_reduce": {"enum": list(ALL_REDUCE)},
        "dispatch": or_null(DTYPE),
        "redundant_experts": {"type": "integer", "minimum": 0},
        "skew": {"type": "number", "minimum": 0},
        "power_cap": or_null(POSITIVE),
    }
    load = {"concurrency": or_null(POSITIVE), "rate": or_null(POSITIVE)}
    return object_({**workload, **load, **split, "engine_version": or_null(TEXT), **settings, "gpus": COUNT})


def _interval() -> Schema:
    ends = {"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 2, "maxItems": 2}
    return or_null(object_({"ttft_ms": or_null(ends), "tpot_ms": ends}))


def _load() -> dict[str, Schema]:
    times = object_({f"p{q}": or_null({"type": "number", "minimum": 0}) for q in (50, 90, 99)})
    goals = object_({key: or_null(POSITIVE) for key in ("ttft_ms", "tpot_ms")})
    return {"percentiles": object_(dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms"), times)), "slo": goals}


def _special() -> dict[str, dict[str, Schema]]:
    """Fields whose annotation says less than is known about them."""
    return {
        "Estimate": {
            "engine": ENGINE,
            "level": LEVEL,
            "calibration": CALIBRATION,
            "inputs": estimate_inputs(),
            "interval": _interval(),
            "bound": numbers("ttft_ms", "tpot_ms"),
        },
        "LoadResult": _load(),
        "StepResult": {"bound": _REGIME, "shares": numbers(*REGIMES)},
        "KernelResult": {"bound": _REGIME, "dtype": DTYPE, "family": {"enum": [*FAMILIES, "host"]}, "count": COUNT},
    }

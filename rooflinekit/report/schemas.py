"""The published JSON Schemas: one for each command whose JSON other programs read, made from the types of its answer.

python -m rooflinekit.report.schemas docs/schema
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypeAlias, get_type_hints

from pydantic import Field, TypeAdapter, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict  # typing's own cannot be read back before Python 3.12

from rooflinekit.decision.economics.cost import Cost
from rooflinekit.decision.planning.autoscale import ColdStart
from rooflinekit.decision.planning.plan import Candidate, Fleet, PlanAnswer
from rooflinekit.decision.planning.rollout import RolloutPlan, RolloutStep
from rooflinekit.decision.sensitivity.elasticity import Elasticity
from rooflinekit.decision.sensitivity.levers import Balance, Levers, MoveResult
from rooflinekit.decision.sensitivity.moves import ADVISED, Advice
from rooflinekit.estimation.loaded import TOKEN_PARTS
from rooflinekit.estimation.results import Estimate, KernelResult, LoadResult, StepResult
from rooflinekit.explanation.walk.result import Phase, Stop, Walk, WalkSection, Work
from rooflinekit.load.played import PERCENTILES, FirstParts
from rooflinekit.load.policies import POLICIES
from rooflinekit.model.graph.tree import Node
from rooflinekit.model.roofline import TIME_PARTS
from rooflinekit.model.types.deployment import ALL_REDUCE, ALL_TO_ALL, ENGINES, Deployment
from rooflinekit.model.types.dtype import BITS_A_WEIGHT, Dtype
from rooflinekit.model.types.engine import EngineSettings
from rooflinekit.model.types.kernel import FAMILIES
from rooflinekit.model.types.kv_policy import KVPolicy
from rooflinekit.simulation.outcome import Outcome
from rooflinekit.specs.calibration.evidence import EVIDENCE

Schema: TypeAlias = dict[str, Any]

_EXPLAINED = "Every key is explained in docs/nomenclature.md."
_REGIMES = ("compute", "memory", "network", "overhead")
_OF_ANY_SIGN = ("value", "headroom", "growth")
_FELT = ("ttft_ms", "tpot_ms", "e2e_ms")
_LEVERS = ("ttft", "tpot", "throughput", "cost")


def _one_of(values: Any) -> Any:
    return Annotated[str, WithJsonSchema({"enum": list(values)})]


def _object(title: str, /, **entries: Any) -> Any:
    """A type of objects with exactly these keys."""
    return TypedDict(title, entries)  # type: ignore[operator]


_Size = Annotated[float, Field(ge=0)]
_Positive = Annotated[float, Field(gt=0)]
_Count = Annotated[int, Field(ge=1)]
_Natural = Annotated[int, Field(ge=0)]
Signed = Annotated[float, Field()]
Ends = Annotated[list[_Size | None], Field(min_length=2, max_length=2)]
_Span = Annotated[list[_Size], Field(min_length=2, max_length=2)]
_BITS = {"type": "string", "pattern": f"^{BITS_A_WEIGHT}$"}
_Dtype = Annotated[str, WithJsonSchema({"anyOf": [{"enum": [dtype.value for dtype in Dtype]}, _BITS]})]
_Level = Literal["expected", "bound"]
_Engine = _one_of(ENGINES)
CalibrationName = _object("Calibration", name=str, hash=str) | None
_Plain = Annotated[Any, WithJsonSchema({"type": ["string", "number", "boolean", "array", "null"]})]


def _asked() -> Any:
    """Type of `inputs` of an estimate: the workload, the deployment, the engine's settings."""
    by_type: dict[Any, Any] = {int: _Count, str: _Engine, KVPolicy: str}
    hints = get_type_hints(Deployment)
    split = {f.name: by_type.get(hints[f.name], _Dtype) for f in fields(Deployment) if f.name != "settings"}
    work = dict.fromkeys(("batch", "isl", "osl"), _Count) | {
        "cached": _Natural,
        "context": Annotated[float, Field(ge=1)],
    }
    load = dict.fromkeys(("concurrency", "rate"), _Positive | None)
    settings = {f.name: _Count | None for f in fields(EngineSettings)}
    share = Annotated[float, Field(gt=0, le=1)] | None
    special = {
        "system": str | None, "sequence_parallel": bool, "all_reduce": _one_of(ALL_REDUCE),
        "all_to_all": _one_of(ALL_TO_ALL), "two_batch": bool, "dispatch": _Dtype | None,
        "redundant_experts": _Natural, "skew": _Size, "power_cap": _Positive | None, "clock": _Positive | None,
        "engine_version": str | None, "offload_layers": _Natural, "offload_experts": bool, "n_cpu_moe": _Natural,
        "host_bandwidth": _Positive | None,
        "memory_fraction": share, "eager": bool, "gpus": _Count,
        "lora_rank": _Natural, "lora_adapters": _Count, "ffn_gpus": _Natural, "encoder_gpus": _Natural,
        "images": _Natural, "image_size": str | None, "image_tokens": _Natural,
        "policy": _one_of(POLICIES) | None, "graph_tokens": _Natural | None, "batch_wait": _Natural,
        "front_end": _one_of(("http", "token-ids")), "api_servers": _Count | None, "stream_interval": _Count,
        "scheduler_recv_interval": _Count, "host": str | None, "prefix_caching": _one_of(("on", "off")) | None,
    }  # fmt: skip
    return _object("Inputs", **(work | load | split | settings | special))


_Asked = _asked()
_LeverInputs = _object(
    "LeverInputs",
    **dict.fromkeys(("batch", "concurrency"), _Count | None),
    rate=_Positive | None,
    **{name: _Asked.__annotations__[name]
       for name in ("isl", "images", "image_size", "image_tokens", "osl", "cached", "context",
                    "tp", "pp", "ep", "dp", "cp", "weights", "kv")},
)  # fmt: skip
_WalkInputs = _object(
    "WalkInputs",
    tokens=list[_Count],
    **dict.fromkeys(("cached", "redundant_experts"), _Natural),
    **dict.fromkeys(("batch", "padded_tokens", "tp", "pp", "ep", "dp", "cp"), _Count),
    **dict.fromkeys(("weights", "activations", "kv"), _Dtype),
    sequence_parallel=bool,
    skew=_Size,
    kv_policy=str,
)
_Quantiles = _object("Quantiles", **dict.fromkeys(PERCENTILES, _Size))
_Shares = _object("Shares", **dict.fromkeys(_REGIMES, _Size))
_TimeParts = _object("TimeParts", **dict.fromkeys(TIME_PARTS, _Size))
_Price = _object("Price", usd_per_gpu_hour=_Size, source=str)
_QuotedPrice: Any = _object(
    "QuotedPrice", usd_per_gpu_hour=_Size, source=str, low=_Size | None, high=_Size | None, term=str
)
_Traffic = _object(
    "Traffic",
    **dict.fromkeys(("rate", "users"), _Size | None),
    **dict.fromkeys(("isl_mean", "isl_cv", "osl_mean", "osl_cv", "arrival_cv", "cached", "peak", "peak_load"), _Size),
    trace=str | None,
    span_s=_Size | None,
)
_DoubtOf = _object("Doubt", cause=str, one_run=Ends | None)
_Doubts = _object("Doubts", ttft_ms=_DoubtOf, tpot_ms=_DoubtOf)
_Bound = _object("Bound", ttft_ms=_Size, tpot_ms=_Size)
_Two = _object("Interval", ttft_ms=_Span, tpot_ms=_Span)
_Million = _object("Million", **dict.fromkeys(("cached_input", "input", "output", "all"), _Size | None))
_About = {"engine": _Engine, "level": _Level, "calibration": CalibrationName, "evidence": _one_of(EVIDENCE)}
_Derivation = _object(
    "Derivation",
    **dict.fromkeys(("version", "model", "gpu"), str),
    **_About,
    inputs=_Asked,
    metric=str,
    value=Signed,
    unit=str,
    interval=Ends | None,
    bound=_Size | None,
    scale=Signed,
    derivation=Node,
    formulas=_Natural,
    largest_gap=_Size,
    warnings=list[str],
)
_Inputs = dict[str, _Plain]
_ModelRow: Any = _object(
    "ModelRow",
    **dict.fromkeys(("name", "mixers", "weights"), str),
    **dict.fromkeys(("params_total", "params_active", "layers"), _Count),
    kv_bytes_per_token=_Size,
    max_context=_Count | None,
)
_AcceleratorRow: Any = _object(
    "AcceleratorRow",
    name=str,
    **dict.fromkeys(("bf16_tflops", "fp16_tflops", "fp8_tflops", "link_gb_s", "usd_per_hour"), _Size | None),
    **dict.fromkeys(("memory_gb", "bandwidth_gb_s"), _Positive),
    domain_size=_Count,
    price_date=str | None,
)

#: What the JSON has in place of a field or beside it, by class; None: it lacks the field.
_SPECIAL: Mapping[type, Mapping[str, Any]] = {
    Estimate: {
        **_About,
        "inputs": _Asked,
        "interval": _Two | None, "interval80": _Two | None, "doubt": _Doubts | None,
        "interval_tested": str | None,
        "bound": _Bound,
    },
    Outcome: {
        **_About, "inputs": _Inputs, "timeline": None, "interval": _Two | None, "interval80": _Two | None,
        "doubt": _Doubts | None, "bound": _Bound | None,
    },
    Cost: {**_About, "inputs": _Inputs},
    Levers: {**_About, "inputs": _LeverInputs, "by": _one_of((*_LEVERS, "energy")), "price": _Price | None},
    Balance: {"causes": _Shares, "weight_share": _Size, "kv_share": _Size},
    Walk: {"inputs": _WalkInputs},
    Phase: {"name": Literal["prefill", "decode"], "total": Work},
    WalkSection: {"count": _Count, "stops": None, "total_once": Work, "steps": list[Stop]},
    Stop: {"work": None, **dict.fromkeys((*(f.name for f in fields(Work)), "bytes"), _Size)},
    Work: {"bytes": _Size},
    Node: {"formula": str | None},
    Fleet: {"gpus": _Count},
    ColdStart: {"seconds": _Size},
    PlanAnswer: {
        "question": None, "traffic": _Traffic, "prices": dict[str, _QuotedPrice | None], "best": Candidate,
        **dict.fromkeys(("slo", "stand_ins"), list[str]),
    },
    Candidate: {
        "fleets": None, "cost": None, **dict.fromkeys(("gpus", "replicas"), _Count),
        **dict.fromkeys(("usd_per_hour", "usd_per_month", "joules_per_output_token"), _Size | None),
        **dict.fromkeys(("watts", "peak_watts", "output_tok_s"), _Size | None),
        "usd_per_million_tokens": _Million, "evidence": _one_of(EVIDENCE),
    },
    RolloutPlan: {"engine": _Engine, "scenario": _Inputs},
    RolloutStep: {"gpus": _Count},
    LoadResult: {
        "percentiles": _object("Percentiles", **dict.fromkeys(_FELT, _Quantiles)),
        "errors": _object("Errors", **dict.fromkeys(
            _FELT, _object("Error", **dict.fromkeys(("mean", *PERCENTILES), NotRequired[_Size])))),
        "ttft_parts_ms": _object("FirstParts", **dict.fromkeys(FirstParts._fields, _Size)),
        "tpot_parts_ms": _object("TokenParts", **dict.fromkeys(TOKEN_PARTS, _Size)),
        "slo": _object("Objectives", ttft_ms=_Positive | None, tpot_ms=_Positive | None),
    },
    StepResult: {"bound": _one_of(_REGIMES), "shares": _Shares, "time_parts_ms": _TimeParts},
    KernelResult: {
        "bound": _one_of(_REGIMES), "dtype": _Dtype, "family": _one_of((*FAMILIES, "host")), "count": _Count,
    },
    Elasticity: dict.fromkeys(_LEVERS, Signed),
    Advice: {
        "evidence": _one_of(EVIDENCE), "metric": _one_of(ADVISED), "change": Signed, "price": list[str],
        "changes": dict[str, Any],
        "ratio": _object("AdviceRatio", **dict.fromkeys((*_LEVERS, "energy"), NotRequired[_Size | None])),
    },
    MoveResult: {
        "evidence": _one_of(EVIDENCE) | None, "changes": dict[str, Any],
        "ratio": _object("Ratio", **dict.fromkeys((*_LEVERS, "energy"), NotRequired[_Size | None])),
    },
}  # fmt: skip
#: What a candidate of a plan has besides, by its kind; an aggregated one has the keys of its only fleet.
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "aggregated": {each.name: get_type_hints(Fleet)[each.name] for each in fields(Fleet)} | {**_SPECIAL[Fleet]},
    "disaggregated": {"prefill": Fleet, "decode": Fleet},
    "mixed": {"fleet": list[Fleet]},
}


class Answers(GenerateJsonSchema):
    """Every key required, none besides them; no time, size or share is negative, the value of a fact may be."""

    special: ClassVar = _SPECIAL

    def dataclass_schema(self, schema: Any) -> Schema:
        """A class of answers, with what its JSON has in place of some fields."""
        kind = schema["cls"]
        special = self.special.get(kind, {})
        made = super().dataclass_schema(schema)["properties"]
        plain = {key: _not_negative(key, entry) for key, entry in made.items() if key not in special}
        whole = plain | {key: self._of(kind) for key, kind in special.items() if kind is not None}
        if kind is not Candidate:
            return _closed(whole)
        besides = {
            name: {key: _not_negative(key, self._of(kind)) for key, kind in keys.items()}
            for name, keys in _KINDS.items()
        }
        return {"oneOf": [_closed(keys | whole | {"kind": {"const": name}}) for name, keys in besides.items()]}

    def typed_dict_schema(self, schema: Any) -> Schema:
        """An object with exactly these keys."""
        made = super().typed_dict_schema(schema)
        return _closed(made["properties"], made.get("required", ()))

    def default_schema(self, schema: Any) -> Schema:
        """An answer states what it has, be it the default."""
        return self.generate_inner(schema["schema"])

    def _of(self, kind: Any) -> Schema:
        return self.generate_inner(TypeAdapter(kind).core_schema)

    def field_title_should_be_set(self, schema: Any) -> bool:
        """No titles: they would repeat the keys."""
        return False


def _closed(properties: Schema, required: Iterable[str] | None = None) -> Schema:
    names = list(properties if required is None else required)
    made = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    return made if names else {key: value for key, value in made.items() if key != "required"}


def _not_negative(name: str, schema: Schema) -> Schema:
    if "anyOf" in schema:
        first, *others = schema["anyOf"]
        return {**schema, "anyOf": [_not_negative(name, first), *others]}
    numeric = schema.get("type") in ("number", "integer") and name not in _OF_ANY_SIGN
    return {**schema, "minimum": 0} if numeric else schema


def served(tool: str, kind: Any = None, generator: type[Answers] = Answers) -> Schema:
    """The JSON Schema of what a tool of the service answers: one of the core's types, or another `kind`.

    An estimate is without the origins of its facts, and a derivation is cut: a node says how many parts it had.
    """
    answer = _object(f"{tool.title()}Served", tool=Literal[tool], answer=kind or _SERVED[tool], basis=_Basis)
    made = schema_of(answer, generator)
    if tool == "estimate":
        del made["$defs"]["Estimate"]["properties"]["provenance"]
        made["$defs"]["Estimate"]["required"].remove("provenance")
    if tool == "explain":
        made["$defs"]["Node"]["properties"]["parts"] = {"type": "integer", "minimum": 1}
    return made


def _schema(command: str, kind: Any, description: str) -> Schema:
    """The schema of a command's JSON (draft 2020-12).

    >>> SCHEMAS["estimate"]()["properties"]["tpot_ms"]
    {'minimum': 0, 'type': 'number'}
    """
    made = schema_of(kind)
    title = f"rooflinekit {command.replace('-', ' --')} --format json"
    return {"$schema": GenerateJsonSchema.schema_dialect, "title": title, "description": description} | made


_Basis = _object(
    "Basis",
    level=_Level | None,
    interval=dict[str, Ends | None] | Ends | None,
    evidence=_one_of(EVIDENCE) | None,
    sources=list[str],
)
ERROR = _object("Error", error=str)
"""A refusal of the service."""
HEALTH = _object("Health", version=str)
"""Answer of the service about itself."""
_SERVED: Mapping[str, Any] = {
    "estimate": Estimate, "plan": PlanAnswer, "levers": Levers, "explain": _Derivation, "simulate": Outcome,
    "models": _object("Models", models=list[_ModelRow]),
    "gpus": _object("Accelerators", accelerators=list[_AcceleratorRow]),
}  # fmt: skip
"""By tool."""


def schema_of(kind: Any, generator: type[Answers] = Answers) -> Schema:
    """The JSON Schema of a type of answers."""
    return TypeAdapter(kind).json_schema(mode="serialization", schema_generator=generator)


_PER_ACCELERATOR = (
    "Times in ms and us, sizes in bytes, work in FLOP, shares as fractions; work and memory are per accelerator "
    "(the busiest). "
)
SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    command: partial(_schema, command, kind, about + _EXPLAINED)
    for command, kind, about in (
        ("cost", Cost, ""),
        ("estimate", Estimate, _PER_ACCELERATOR),
        ("explain", _Derivation, "Numbers of the tree are in SI. "),
        ("levers", Levers, ""),
        ("plan", PlanAnswer, ""),
        ("plan-rollout", RolloutPlan, ""),
        ("shapes", Walk, "Work is of one accelerator. "),
        ("simulate", Outcome, ""),
    )
}
"""By command."""


def _main(folder: str) -> None:
    for command, made in SCHEMAS.items():
        text = json.dumps(made(), indent=2) + "\n"
        (Path(folder) / f"{command}.schema.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _main(sys.argv[1])

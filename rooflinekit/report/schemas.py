"""The published JSON Schemas: one for each command whose JSON other programs read, made from the types of its answer.

python -m rooflinekit.report.schemas docs/schema
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired, TypeAlias, get_type_hints

from pydantic import Field, TypeAdapter, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict  # typing's own cannot be read back before Python 3.12

from rooflinekit.decision.economics.cost import Cost
from rooflinekit.decision.planning.over_time import ColdStart
from rooflinekit.decision.planning.plan import Candidate, Fleet, PlanAnswer
from rooflinekit.decision.planning.rollout import RolloutPlan, RolloutStep
from rooflinekit.decision.sensitivity.levers import Balance, Elasticity, Levers
from rooflinekit.decision.sensitivity.moves import ADVISED, Advice, MoveResult
from rooflinekit.estimation.loaded import TOKEN_PARTS
from rooflinekit.estimation.results import Estimate, KernelResult, LoadResult, StepResult
from rooflinekit.explanation.walk.result import Phase, Stop, Walk, WalkSection, Work
from rooflinekit.load.played import PERCENTILES, FirstParts
from rooflinekit.load.policies import POLICIES
from rooflinekit.model.graph.tree import Node
from rooflinekit.model.roofline import TIME_PARTS
from rooflinekit.model.types.answer import Json
from rooflinekit.model.types.deployment import ALL_REDUCE, ALL_TO_ALL, ENGINES, Deployment
from rooflinekit.model.types.dtype import BITS_A_WEIGHT, Dtype
from rooflinekit.model.types.engine import EngineSettings
from rooflinekit.model.types.kernel import FAMILIES
from rooflinekit.model.types.kv_policy import KVPolicy
from rooflinekit.simulation.outcome import Outcome
from rooflinekit.specs.calibration.evidence import EVIDENCE
from rooflinekit.specs.files import table_of

if TYPE_CHECKING:
    from pydantic_core import core_schema

Schema: TypeAlias = dict[str, Any]

_EXPLAINED = "Every key is explained in docs/nomenclature.md."
_OF_ANY_SIGN = ("value", "headroom", "growth")


def _one_of(values: Any) -> object:
    return Annotated[str, WithJsonSchema({"enum": list(values)})]


_Size = Annotated[float, Field(ge=0)]
Signed = Annotated[float, Field()]
Ends = Annotated[list[_Size | None], Field(min_length=2, max_length=2)]
_BITS = {"type": "string", "pattern": f"^{BITS_A_WEIGHT}$"}
_WORDS: dict[str, Any] = {
    "any": Any, "text": str, "flag": bool, "number": Signed, "size": _Size, "ends": Ends,
    "positive": Annotated[float, Field(gt=0)], "length": Annotated[float, Field(ge=1)],
    "share": Annotated[float, Field(gt=0, le=1)], "count": Annotated[int, Field(ge=1)],
    "natural": Annotated[int, Field(ge=0)], "span": Annotated[list[_Size], Field(min_length=2, max_length=2)],
    "spans": dict[str, Ends | None] | Ends | None,
    "plain": Annotated[Any, WithJsonSchema({"type": ["string", "number", "boolean", "array", "null"]})],
    "dtype": Annotated[str, WithJsonSchema({"anyOf": [{"enum": [dtype.value for dtype in Dtype]}, _BITS]})],
    "level": Literal["expected", "bound"], "phase": Literal["prefill", "decode"], "engine": _one_of(ENGINES),
    "evidence": _one_of(EVIDENCE), "policy": _one_of(POLICIES), "family": _one_of((*FAMILIES, "host")),
    "advised": _one_of(ADVISED), "all_reduce": _one_of(ALL_REDUCE), "all_to_all": _one_of(ALL_TO_ALL),
}  # fmt: skip
_KEYS = {
    "percentiles": PERCENTILES,
    "time parts": TIME_PARTS,
    "first parts": FirstParts._fields,
    "token parts": TOKEN_PARTS,
    "fields of work": [f.name for f in fields(Work)],
}
_CLASSES: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        Estimate, Outcome, Cost, Levers, Balance, Walk, Phase, WalkSection, Stop, Work, Node, Fleet, ColdStart,
        PlanAnswer, Candidate, RolloutPlan, RolloutStep, LoadResult, StepResult, KernelResult, Elasticity, Advice,
        MoveResult,
    )
}  # fmt: skip
_TABLE = table_of(__file__)


@cache
def _type(said: str) -> Any:
    """The type that schemas.yaml means by a word, a class, a type of its own, or words with | between them."""
    if said.endswith("?"):
        return _type(said[:-1]) | None
    if said.endswith(" by name"):
        return dict[str, _type(said.removesuffix(" by name"))]  # type: ignore[misc]
    if "|" in said:
        return _one_of(said.split("|"))
    found = _WORDS.get(said, _CLASSES.get(said))
    return found or TypedDict(said, _entries(_rows(said)))  # type: ignore[operator]


def _rows(name: str) -> Json:
    """The row of a type; `inputs` of an estimate are also the workload, the deployment and the engine's settings."""
    row: dict[str, Any] = _TABLE["types"][name]
    if name != "Inputs":
        return row
    hints, words = get_type_hints(Deployment), {int: "count", str: "engine", KVPolicy: "text"}
    split = {f.name: words.get(hints[f.name], "dtype") for f in fields(Deployment) if f.name != "settings"}
    return {**_TABLE["types"]["Asked"], **split, **{f.name: "count?" for f in fields(EngineSettings)}, **row}


def _entries(row: Mapping[str, object]) -> dict[str, Any]:
    """The types of the keys of a row."""
    found: dict[str, Any] = {}
    for keys, said in row.items():
        kind = said and (list[_type(said[0])] if isinstance(said, list) else _type(said))  # type: ignore[misc]
        for part in re.findall(r"<[^>]*>\??|\S+", keys):
            name, optional = part.removesuffix("?"), part.endswith("?")
            for key in _KEYS[name[1:-1]] if name[0] == "<" else [name]:
                found[key] = NotRequired[kind] if optional else kind
    return found


CalibrationName = _type("Calibration?")
#: What the JSON has in place of a field or beside it, by class; None: it lacks the field.
_SPECIAL: Mapping[type, Mapping[str, Any]] = {_CLASSES[name]: _entries(row) for name, row in _TABLE["special"].items()}
#: What a candidate of a plan has besides, by its kind; an aggregated one has the keys of its only fleet.
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "aggregated": {each.name: get_type_hints(Fleet)[each.name] for each in fields(Fleet)} | {**_SPECIAL[Fleet]},
    "disaggregated": {"prefill": Fleet, "decode": Fleet},
    "mixed": {"fleet": list[Fleet]},
}


class Answers(GenerateJsonSchema):
    """Every key required, none besides them; no time, size or share is negative, the value of a fact may be."""

    special: ClassVar = _SPECIAL

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> Schema:
        """A class of answers, with what its JSON has in place of some fields."""
        kind = schema["cls"]
        special = self.special.get(kind, {})
        made = super().dataclass_schema(schema)["properties"]
        plain = {key: _not_negative(key, entry) for key, entry in made.items() if key not in special}
        whole = plain | {key: self._of(kind) for key, kind in special.items() if kind is not None}
        if kind is not Candidate:
            return _closed(whole)
        found = []
        for name, keys in _KINDS.items():
            besides = {key: _not_negative(key, self._of(kind)) for key, kind in keys.items()}
            found.append(_closed(besides | whole | {"kind": {"const": name}}))
        return {"oneOf": found}

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> Schema:
        """An object with exactly these keys."""
        made = super().typed_dict_schema(schema)
        return _closed(made["properties"], made.get("required", ()))

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Schema:
        """An answer states what it has, be it the default."""
        return self.generate_inner(schema["schema"])

    def _of(self, kind: Any) -> Schema:
        return self.generate_inner(TypeAdapter(kind).core_schema)

    def field_title_should_be_set(self, schema: object) -> bool:
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
    entries = {"tool": Literal[tool], "answer": kind or _type(_TABLE["served"][tool]), "basis": _type("Basis")}
    made = schema_of(TypedDict(f"{tool.title()}Served", entries), generator)  # type: ignore[operator]
    if tool == "estimate":
        del made["$defs"]["Estimate"]["properties"]["provenance"]
        made["$defs"]["Estimate"]["required"].remove("provenance")
    if tool == "explain":
        made["$defs"]["Node"]["properties"]["parts"] = {"type": "integer", "minimum": 1}
    return made


def _schema(command: str, kind: object, description: str) -> Schema:
    """The schema of a command's JSON (draft 2020-12).

    >>> SCHEMAS["estimate"]()["properties"]["tpot_ms"]
    {'minimum': 0, 'type': 'number'}
    """
    made = schema_of(kind)
    title = f"rooflinekit {command.replace('-', ' --')} --format json"
    return {"$schema": GenerateJsonSchema.schema_dialect, "title": title, "description": description} | made


ERROR = _type("Refusal")
"""A refusal of the service."""
HEALTH = _type("Health")
"""Answer of the service about itself."""


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
        ("explain", _type("Derivation"), "Numbers of the tree are in SI. "),
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

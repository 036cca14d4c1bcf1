"""JSON Schema made from annotated dataclasses: every key required, none besides them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from rooflinekit.model.types.dtype import Dtype

__all__ = ["COUNT", "DTYPE", "NUMBER", "POSITIVE", "TEXT", "Schema", "Types", "array", "mapping", "numbers", "object_",
           "or_null"]  # fmt: skip

Schema: TypeAlias = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
POSITIVE: Schema = {"type": "number", "exclusiveMinimum": 0}
COUNT: Schema = {"type": "integer", "minimum": 1}
DTYPE: Schema = {"enum": [dtype.value for dtype in Dtype]}
_PLAIN: dict[Any, Schema] = {str: TEXT, bool: {"type": "boolean"}, int: {"type": "integer"}, float: NUMBER, Any: {}}


def object_(properties: Mapping[str, Schema]) -> Schema:
    """An object with exactly these keys."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def mapping(values: Schema) -> Schema:
    """An object whose keys are names."""
    return {"type": "object", "additionalProperties": values}


def array(items: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    """The same, or nothing."""
    return {"anyOf": [schema, {"type": "null"}]}


def numbers(*names: str) -> Schema:
    """Numbers of at least 0 by name."""
    return object_({name: {"type": "number", "minimum": 0} for name in names})


class Types:
    """Schemas of types; dataclasses become definitions, which are referred to by their names.

    special: fields whose annotation says less than is known about them, by class.
    """

    def __init__(self, special: Mapping[str, Mapping[str, Schema]]) -> None:
        self._special = special
        self.definitions: dict[str, Schema] = {}

    def document(self, command: str, description: str, whole: Schema) -> Schema:
        """The schema of a command's JSON (draft 2020-12)."""
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"rooflinekit {command} --format json",
            "description": description,
            **whole,
            "$defs": dict(sorted(self.definitions.items())),
        }

    def define(self, name: str, schema: Schema) -> Schema:
        """A definition, as what refers to it."""
        self.definitions[name] = schema
        return {"$ref": f"#/$defs/{name}"}

    def fields_of(self, kind: type, *leave: str) -> dict[str, Schema]:
        """The fields of a dataclass, but those to leave out."""
        hints, special = get_type_hints(kind), self._special.get(kind.__name__, {})
        names = [field.name for field in fields(kind) if field.name not in leave]
        return {name: special.get(name) or _number(name, self.of(hints[name])) for name in names}

    def of(self, hint: Any) -> Schema:
        """The schema of one annotated type."""
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
        if isinstance(hint, UnionType):
            choices = [arg for arg in get_args(hint) if arg is not NoneType]
            return or_null(self.of(choices[0]))
        if get_origin(hint) in (tuple, list):
            return array(self.of(get_args(hint)[0]))
        if get_origin(hint) is dict:
            return mapping(self.of(get_args(hint)[1]))
        if get_origin(hint) is Literal:
            return {"enum": list(get_args(hint))}
        if isinstance(hint, type) and is_dataclass(hint):
            if hint.__name__ not in self.definitions:
                self.definitions[hint.__name__] = {}  # it may hold itself
                self.definitions[hint.__name__] = object_(self.fields_of(hint))
            return {"$ref": f"#/$defs/{hint.__name__}"}
        raise TypeError(f"no schema for {hint!r}; add it to the special ones")


def _number(name: str, schema: Schema) -> Schema:
    """No time, size or share is negative; the value of a cited fact may be anything."""
    if "anyOf" in schema:
        first, *others = schema["anyOf"]
        return {**schema, "anyOf": [_number(name, first), *others]}
    numeric = schema.get("type") in ("number", "integer") and name != "value"
    return {**schema, "minimum": 0} if numeric else schema

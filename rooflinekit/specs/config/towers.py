"""Weights of vision and audio parts whose images and sounds are not costed, by the formulas of towers.yaml."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from functools import partial
from typing import Any

from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs.config.keys import shown, usual_keys
from rooflinekit.specs.files import table_of

_MOST = 10**6  # no size of a tower comes near
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}

_table = partial(table_of, __file__)


def tower_weights(config: Mapping[str, Any], text: int, keys: list[str], origin: str) -> tuple[int, list[str]]:
    """The weights of the parts under `keys` of a whole config whose language model is `text` wide, and whose count.

    The second are the keys whose weights are counted: parts of a kind that is known, and what joins them to the
    language model if the model is known. Raises SpecError for a size that cannot be.

    >>> config = {"model_type": "qwen2_audio", "audio_config": {"model_type": "qwen2_audio_encoder"}}
    >>> tower_weights(config, 4096, ["audio_config"], "config.json")
    (642215936, ['audio_config'])
    """
    if not keys:
        return 0, []
    kind = config.get("model_type")
    row = _table()["models"].get(kind, {}) if isinstance(kind, str) else {}
    sizes, total, counted = {"text": text}, 0, []
    for key in keys:
        part = config.get(key)
        stated = part.get("model_type") if isinstance(part, Mapping) else None
        found = _table()["parts"].get(stated if isinstance(stated, str) else None) or _table()["parts"].get(
            row.get(key)
        )
        if found is None or not isinstance(part, Mapping):
            continue
        sizes |= {name: _size(part, config, said, f"{origin}: {key}") for name, said in found["sizes"].items()}
        total += _value(found["weights"], sizes)
        counted.append(key)
    if counted and "joins" in row:
        sizes |= {name: _size(config, config, said, origin) for name, said in row.get("sizes", {}).items()}
        total += _value(row["joins"], sizes)
    return total, counted


def _size(part: Mapping[str, Any], whole: Mapping[str, Any], said: int | str, where: str) -> int:
    """A size as towers.yaml says it: of a list (one side each) its first, or that behind a dot; a yes is 1.

    Of a part that lacks it, what stands beside the part, unless that is a size of the language model.
    """
    if isinstance(said, int):
        return said
    stated, _, other = said.partition("=")
    key, _, place = stated.partition(".")
    nested = whole.get("text_config")
    beside = {**(nested if isinstance(nested, Mapping) else {}), **whole}
    own = part if part is whole or key not in usual_keys() else {key: None, **part}  # a width beside it is the text's
    value = own.get(key, beside.get(key))
    if place and isinstance(value, list):
        value = value[int(place)] if int(place) < len(value) else None
    if value is None and other:
        return int(other) if other.isdigit() else _size(part, whole, other, where)
    value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, int) or not 0 <= value <= _MOST:
        raise SpecError(f"{where}.{key} = {shown(value)} is no size of a tower")
    return int(value)


def _value(formula: str, sizes: Mapping[str, int]) -> int:
    """A sum of products of sizes."""

    def of(node: ast.expr) -> int:
        match node:
            case ast.BinOp(left, op, right):
                found: int = _OPERATORS[type(op)](of(left), of(right))
                return found
            case ast.Name(name):
                return sizes[name]
            case ast.Constant(int(value)):
                return value
        raise ValueError(formula)

    return of(ast.parse(formula.strip(), mode="eval").body)

"""Weights of vision and audio parts whose images and sounds are not costed, by the formulas of towers.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from rooflinekit.model.graph.tree import evaluate
from rooflinekit.model.types.errors import SpecError
from rooflinekit.specs.config.keys import shown
from rooflinekit.specs.files import table_of

#: Keys of a config that hold parts of a multimodal model; a few models have others.
TOWER = r".*(?:vision|visual|audio|speech|image|vit|vq).*_config|(?:img|audio)_processor|mm_vision_tower|visual"
_MOST = 10**6  # no size of a tower comes near

_table = partial(table_of, __file__)


def tower_weights(config: Mapping[str, object], text: int, keys: list[str], origin: str) -> tuple[int, list[str]]:
    """The weights of the parts under `keys` of a whole config whose language model is `text` wide, and whose count.

    The second are the keys whose weights are counted: parts of a kind that is known, and what joins them to the
    language model if the model is known. Raises SpecError for a size that cannot be.

    >>> config = {"model_type": "qwen2_audio", "audio_config": {"model_type": "qwen2_audio_encoder"}}
    >>> tower_weights(config, 4096, ["audio_config"], "config.json")
    (642215936, ['audio_config'])
    """
    if not keys and not any(key.endswith("encoder_config") for key in config):
        return 0, []
    kind = config.get("model_type")
    row = _table()["models"].get(kind, {}) if isinstance(kind, str) else {}
    keys = [*keys, *(key for key in row if key in config and not re.fullmatch(TOWER, key))]
    sizes, total, counted = {"text": text}, 0, []
    for key in keys:
        part = config.get(key)
        stated = part.get("model_type") if isinstance(part, Mapping) else None
        found = _table()["parts"].get(stated if isinstance(stated, str) else None) or _table()["parts"].get(
            row.get(key)
        )
        if found is None or not isinstance(part, Mapping):
            continue
        sizes |= {name: _size(part, said, f"{origin}: {key}") for name, said in found["sizes"].items()}
        total += _value(found["weights"], sizes, f"{origin}: {key}")
        counted.append(key)
    if counted and "joins" in row:
        nested = config.get("text_config")
        whole = {**nested, **config} if isinstance(nested, Mapping) else config
        sizes |= {name: _size(whole, said, origin) for name, said in row.get("sizes", {}).items()}
        total += _value(row["joins"], sizes, origin)
    return total, counted


def _size(config: Mapping[str, object], said: int | str, where: str) -> int:
    """A size as towers.yaml says it: of a list (one side each) its first; a yes is 1.

    What stands beside a part is the language model's.
    """
    if isinstance(said, int):
        return said
    path, _, other = said.partition("=")
    value: Any = config
    for step in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.startswith("#"):
            value = value.count(step[1:]) if step[1:] else len(value)
        elif isinstance(value, list):
            value = value[int(step) :]
    if value is None and other:
        return int(other) if other.isdigit() else _size(config, other, where)
    value = value[0] if isinstance(value, list) and value else value
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not whole or not 0 <= value <= _MOST:
        raise SpecError(f"{where}.{path} = {shown(value)} is no size of a tower")
    return int(value)


def _value(formula: str, sizes: Mapping[str, int], where: str) -> int:
    """A sum of products of sizes."""
    try:
        return int(evaluate(formula.strip(), sizes))
    except ZeroDivisionError:
        raise SpecError(f"{where}: a size that divides others is 0") from None
    except NameError as error:
        raise SpecError(f"{where}: a part whose size is {error.name} does not say its model_type") from None

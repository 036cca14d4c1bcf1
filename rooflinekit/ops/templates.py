"""Documents as templates in YAML: each $name stands for a value, of whatever kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Template
from typing import Any

_WHOLE = re.compile(r"\$\w+")
_ABSENT = object()


def filled(table: Mapping[str, Any], name: str, values: Mapping[str, Any]) -> Any:
    """One of a table's `templates` with these values; None where its `$when` names none.

    What has no value is left out, and so is a mapping whose `$when` names one that is absent or false.

    >>> filled({"templates": {"a": {"b": ["$c", "$d"], "e": "x$c", "f": {"$when": "d"}}}}, "a", {"c": 1})
    {'b': [1], 'e': 'x1'}
    """
    found = _with(table["templates"][name], values)
    return None if found is _ABSENT else found


def _with(template: object, values: Mapping[str, object]) -> object:
    if isinstance(template, str):
        whole = _WHOLE.fullmatch(template)
        return values.get(template[1:], _ABSENT) if whole else Template(template).safe_substitute(values)
    if isinstance(template, list):
        return [each for each in (_with(each, values) for each in template) if each is not _ABSENT]
    if not isinstance(template, dict):
        return template
    if "$when" in template and not values.get(template["$when"]):
        return _ABSENT
    pairs = ((_with(key, values), _with(each, values)) for key, each in template.items() if key != "$when")
    return {key: each for key, each in pairs if each is not _ABSENT}

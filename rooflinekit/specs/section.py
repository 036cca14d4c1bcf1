"""One mapping of a spec file, read strictly: every key known, every number with its unit and its source."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rooflinekit.model.types.errors import SpecError, nearest
from rooflinekit.model.types.units import parse_quantity

__all__ = ["Section"]

_MOST = 10**9


@dataclass(frozen=True)
class Section:
    """The keys under `key` in `file`; every reader raises SpecError: `file: key: value: what is wrong; the fix`."""

    file: Path
    key: str
    data: Mapping[str, Any]

    def path(self, key: str) -> str:
        """The full name of `key`, such as `memory.bandwidth`."""
        return f"{self.key}.{key}" if self.key else key

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise the SpecError that names file and key."""
        raise SpecError(f"{self.file}: {self.path(key)}: {problem}")

    def expect(self, required: Collection[str], optional: Collection[str] = ()) -> None:
        """Refuse an unknown key (with the nearest known one) and a missing one."""
        known = [*required, *optional]
        for key in self.data:
            if key not in known:
                near = nearest(str(key), known) or known
                self.refuse(str(key), f"unknown key; nearest: {', '.join(near)}")
        for key in required:
            if self.data.get(key) is None:
                self.refuse(key, "is missing; add it (`rooflinekit show --template gpu` prints an example)")

    def has(self, key: str) -> bool:
        """Whether `key` is there with a value."""
        return self.data.get(key) is not None

    def section(self, key: str) -> Section:
        """The mapping under `key`, empty if there is none."""
        value = self.data.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.refuse(key, f"value {value!r} is not a section; put keys with values under it")
        return Section(self.file, self.path(key), value)

    def text(self, key: str, default: str = "") -> str:
        """A text; a number that should be one is refused, because YAML has changed it already (9.0, 1e3)."""
        value = self.data.get(key, default)
        if not isinstance(value, str):
            self.refuse(key, f"value {value!r} is not a text; put it in quotes")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, empty if there is none."""
        value = self.data.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            self.refuse(key, f"value {value!r} is not a list of texts; write it like [a, b]")
        return tuple(value)

    def flag(self, key: str) -> bool:
        """True or false, and nothing else."""
        value = self.data.get(key)
        if not isinstance(value, bool):
            self.refuse(key, f"value {value!r} is not true or false")
        return value

    def count(self, key: str) -> int:
        """A whole number above 0."""
        value = self.data.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(key, f"value {value!r} is not a whole number above 0")
        if value > _MOST:
            self.refuse(key, f"value is above {_MOST:,}, more than any device has of anything")
        return value

    def quantity(self, key: str, dimension: str) -> float:
        """A positive finite number in SI; the file must give its unit."""
        text = self.data.get(key)
        try:
            value = parse_quantity(text, dimension)
        except (ValueError, OverflowError) as error:
            self.refuse(key, str(error))
        if not math.isfinite(value) or value <= 0:
            self.refuse(key, f"value {text!r} is not above 0 and finite; leave the key out if it is unknown")
        return value

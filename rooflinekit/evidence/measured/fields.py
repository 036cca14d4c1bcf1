"""Numbers out of files that others wrote: absent is None, nonsense is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from rooflinekit.evidence.measured.measurement import NOTHING, Spread
from rooflinekit.model.types.errors import SpecError

__all__ = ["Fields"]

_MOST = 1e15  # no latency in ms, count or rate is larger


class Fields:
    """A mapping from a file, with the name by which errors call it."""

    def __init__(self, source: str, data: Mapping[str, Any]) -> None:
        self.source, self.data = source, data

    def inside(self, *path: str) -> Fields:
        """The mapping under some keys; empty if there is none."""
        data: Any = self.data
        for key in path:
            data = data.get(key) if isinstance(data, Mapping) else None
        return Fields(f"{self.source}: {'.'.join(path)}", data if isinstance(data, Mapping) else {})

    def text(self, *names: str) -> str | None:
        """The first of these keys that holds text."""
        found = (self.data.get(name) for name in names)
        return next((value for value in found if isinstance(value, str) and value.strip()), None)

    def number(self, *names: str, scale: float = 1.0) -> float | None:
        """The first of these keys that is there, scaled; None if none is.

        Raises SpecError for what is negative, not finite or no number.
        """
        for name in names:
            value = self.data.get(name)
            if value is not None:
                return self._checked(name, value) * scale
        return None

    def count(self, *names: str) -> int | None:
        """The same as a whole number of at least 1; 0 is None."""
        value = self.number(*names)
        return int(value) if value else None

    def spread(self, template: str, scale: float = 1.0, **names: str) -> Spread:
        """The figures of one latency; `template` has `{}` where mean, p50, p90, p99 and low have their words.

        A mean of 0 means that the client could not measure it.
        """
        words = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99", "low": "min"} | names
        found = {part: self.number(template.format(word), scale=scale) for part, word in words.items()}
        return Spread(**found) if found["mean"] or found["p50"] else NOTHING

    def _checked(self, name: str, value: Any) -> float:
        try:
            number = float(value) if isinstance(value, (Real, str)) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not 0 <= number <= _MOST:
            raise SpecError(f"{self.source}: {name} is {str(value)[:24]!r}, not a number of at least 0")
        return number

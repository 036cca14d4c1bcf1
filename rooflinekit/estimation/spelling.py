"""What a user types to say a distribution or an arrival process: `name:key=value,key=value`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from rooflinekit.model.types.errors import WorkloadError, nearest

__all__ = ["Phrase", "at_least", "read_phrase"]


class Phrase:
    """A name and its numbers, taken one by one; `done` refuses what nobody took."""

    def __init__(self, text: str, name: str, values: Mapping[str, str]) -> None:
        self.text, self.name = text, name
        self._values = dict(values)
        self._asked: list[str] = []

    def number(self, key: str, default: float | None = None) -> float:
        """The number of a key.

        Raises WorkloadError if it is absent (and has no default) or is no finite number.
        """
        self._asked.append(key)
        if key not in self._values:
            if default is None:
                raise WorkloadError(f"{self.text!r} lacks {key}; write it like '{self.name}:{key}=…'")
            return default
        word = self._values.pop(key)
        value = _float(word)
        if value is None:
            raise WorkloadError(f"{self.text!r}: {key} must be a number, not {word!r}")
        return value

    def positive(self, key: str) -> float:
        """The number of a key, above 0."""
        return at_least(self.number(key), 0, key)

    def count(self, key: str, default: int | None = None) -> int:
        """The whole number of a key: at least 1, or its default."""
        value = self.number(key, default)
        return int(value) if value == default else int(at_least(value, 1, key, whole=True))

    def done(self) -> None:
        """Refuse keys that mean nothing here."""
        for key in self._values:
            hint = ", ".join(nearest(key, self._asked) or self._asked)
            raise WorkloadError(f"{self.text!r}: {self.name} takes no {key!r}; nearest: {hint}")


def read_phrase(text: str, kind: str, names: Collection[str]) -> Phrase:
    """Split `name:key=value,…`.

    >>> phrase = read_phrase("gamma:rate=4,cv=2", "arrival process", ("poisson", "gamma"))
    >>> phrase.name, phrase.number("rate"), phrase.number("cv")
    ('gamma', 4.0, 2.0)

    Raises WorkloadError for a name that is not in `names`, a part without '=', or a repeated key.
    """
    name, _, rest = text.strip().partition(":")
    name = name.strip().lower()
    if name not in names:
        raise WorkloadError(f"unknown {kind} {name!r}; nearest: {', '.join(nearest(name, names) or sorted(names))}")
    values: dict[str, str] = {}
    for part in filter(None, map(str.strip, rest.split(","))):
        key, sign, value = (word.strip() for word in part.partition("="))
        if not sign or key in values:
            raise WorkloadError(f"{text!r}: {part!r} is not a new key=value")
        values[key] = value
    return Phrase(text, name, values)


def at_least(value: float, least: float, name: str, whole: bool = False) -> float:
    """The value, if it is finite and at least `least` (above 0 where `least` is 0).

    Raises WorkloadError.
    """
    good = math.isfinite(value) and (value >= least if least else value > 0) and (not whole or value == int(value))
    if not good:
        number = "a whole number of" if whole else "a number of"
        bound = f"{number} at least {least:g}" if least else "a number above 0"
        raise WorkloadError(f"{name} must be {bound}, not {value:g}")
    return value


def _float(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None

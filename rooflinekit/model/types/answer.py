"""Abilities of every answer, whichever module makes it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from rooflinekit.model.types.frozen import dataclass, fields

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Json: TypeAlias = dict[str, Any]
"""An answer, or a part of one, as JSON has it: `rooflinekit schema` says of which type each entry is."""


class Later(Sequence[T]):
    """A long part of an answer, made when somebody first looks at it; a copy or a pickle of it is a tuple.

    >>> Later(lambda: [1, 2]) == (1, 2), len(Later(lambda: "abc")), Later(lambda: [1, 2])[0]
    (True, 3, 1)
    """

    def __init__(self, make: Callable[[], Iterable[T]]) -> None:
        self._make = make

    @cached_property
    def _values(self) -> tuple[T, ...]:
        return tuple(self._make())

    def __getitem__(self, place: Any) -> Any:
        return self._values[place]

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, Later)) and self._values == tuple(other)

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def __reduce__(self) -> tuple[type[tuple[T, ...]], tuple[tuple[T, ...]]]:
        return tuple, (self._values,)


def plain(value: Any) -> Any:
    """A result as values that JSON knows: its fields by name, or what its own `to_dict` says; tuples as lists.

    >>> from rooflinekit.model.types.time import Time
    >>> plain({"time": (Time(2.0, 1.0, 1.5, 3.0),)})["time"][0]["expected"]
    2.0
    """
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple, Later)) else value


def plain_fields(value: Any) -> Json:
    """The fields of a dataclass, and the properties that it names, as such values."""
    names = (*(each.name for each in fields(value)), *getattr(value, "derived", ()))
    return {name: plain(getattr(value, name)) for name in names}


class Plain:
    """A dataclass that programs read: an answer, or a part of one."""

    __slots__ = ()

    derived: ClassVar[tuple[str, ...]] = ()
    """Properties that stand in the JSON beside the fields."""

    def to_dict(self) -> Json:
        """Plain Python values, ready for JSON."""
        return plain_fields(self)


class Answer(Plain):
    """A result that a user gets back; a notebook shows it as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Ask the package, which knows the report; no module down here imports it."""
        return str(sys.modules["rooflinekit"]._html_of(self))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """The text that IPython shows beside the HTML: that of `print`."""
        return {"text/plain": str(self)}

    def __str__(self) -> str:
        """Text that the command line prints."""
        return str(sys.modules["rooflinekit"]._text_of(self))


class Tabled(Answer):
    """An answer that is also a table."""

    __slots__ = ()

    def to_rows(self) -> list[Json]:
        """Rows of a table."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """The rows as a table."""
        import pandas as pd  # noqa: PLC0415 - only where it is asked for

        return pd.DataFrame(self.to_rows())


@dataclass(frozen=True)
class DeploymentAnswer(Tabled):
    """An answer about one deployment, and what it rests on.

    level: `expected` with a calibration (its name and hash), `bound` without; evidence: what its times rest on,
    `measured`, `stand-in` or `datasheet`; inputs: all as they were understood.
    """

    version: str
    model: str
    gpu: str
    engine: str
    level: str
    calibration: dict[str, str] | None
    evidence: str
    inputs: Json

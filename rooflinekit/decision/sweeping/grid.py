"""Every combination of some values, spelled `1,2,4:64*2` and made piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.decision.sweeping.answer import Rows
from rooflinekit.estimation.options import Option
from rooflinekit.model.types.errors import InputError

_MOST_VALUES = 1_000_000
_SLACK = 1e-9  # of a step: the end of a range is in it, whatever decimals lose

_MOST = 10**9


def parse_axis(text: str, name: str, option: Option | None = None) -> list[Any]:
    """Read the values of one input.

    `1,2,8` lists; `1:4` is 1, 2, 3, 4; `0:100:25` has steps of 25; `4:64*2` doubles. Both ends are in a range if its
    steps meet them. `default` leaves the input to its default. Numbers take the units of their option; what is none is
    text.

    >>> parse_axis("1,2,4:64*2", "batch")
    [1, 2, 4, 8, 16, 32, 64]
    >>> parse_axis("bf16,fp8", "kv"), parse_axis("0.5:1.5:0.5", "rate"), parse_axis("default,8000", "context")
    (['bf16', 'fp8'], [0.5, 1.0, 1.5], [None, 8000])

    Raises InputError for an empty place, and a range that does not end.
    """
    values: list[Any] = []

    def read(word: str) -> Any:
        plain = _value(word)
        if not isinstance(plain, str) or option is None or option.kind not in ("count", "number", "length"):
            return plain
        try:
            return option.parse(word)
        except ValueError:
            return word

    for word in (part.strip() for part in text.split(",")):
        if not word:
            raise InputError(f"{name} has an empty place in {text!r}; write values like 1,2,4:64*2")
        start, colon, _ = word.partition(":")  # a range begins with a number; others are names, such as window:4096
        is_range = colon and isinstance(read(start), (int, float))
        values += _range(word, name, read) if is_range else [read(word)]
    return values


def _value(word: str) -> Any:
    if word.lower() == "default":
        return None
    for kind in (int, float):
        try:
            if math.isfinite(value := kind(word)):
                return value
        except (ValueError, OverflowError):  # no number, or one of four hundred digits
            continue
    return word


def _range(word: str, name: str, read: Callable[[str], Any]) -> list[int | float]:
    start_text, _, rest = word.partition(":")
    geometric = "*" in rest
    end_text, _, step_text = rest.partition("*" if geometric else ":")
    numbers = [read(part) for part in (start_text, end_text, step_text or "1")]
    if any(isinstance(number, str) or number is None for number in numbers) or (geometric and not step_text):
        raise InputError(f"{name}: {word!r} is no range; write 1:8, 1:9:2 (steps of 2) or 4:64*2 (doubling)")
    start, end, step = numbers
    if end < start:
        raise InputError(f"{name}: the range {word!r} ends before it starts")
    if geometric and (step <= 1 or start <= 0):
        raise InputError(f"{name}: {word!r} does not end; a factor is above 1 and the start above 0, as in 4:64*2")
    if not geometric and (step <= 0 or (end - start) / step >= _MOST_VALUES):
        raise InputError(f"{name}: {word!r} does not end or has more than {_MOST_VALUES:,} values")
    if geometric:
        count = math.floor(math.log(end / start) / math.log(step) + _SLACK) + 1
        return [_plain(start * step**place) for place in range(count)]
    return [_plain(start + place * step) for place in range(math.floor((end - start) / step + _SLACK) + 1)]


def _plain(value: float) -> int | float:
    """A whole number as one, and decimals without what binary adds to them."""
    rounded = float(f"{value:.12g}")
    return int(rounded) if rounded == int(rounded) and isinstance(value, int) else rounded


@dataclass(frozen=True)
class Grid:
    """The Cartesian product of named values; the last name varies fastest.

    >>> Grid.of({"model": "gpt2", "batch": [1, 2], "isl": (64, 128)}).frame(1, 3).to_dict("list")
    {'model': ['gpt2', 'gpt2'], 'batch': [1, 2], 'isl': [128, 64]}
    """

    axes: tuple[tuple[str, tuple[Any, ...]], ...]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Grid:
        """Read keywords: a list, tuple, range, array or Series is an axis, anything else one value.

        Raises InputError for an axis without values, and for more than 10^9 combinations.
        """
        grid = cls(tuple((name, _values(name, value)) for name, value in given.items()))
        if grid.rows > _MOST:
            raise InputError(f"the grid has {grid.rows:,} combinations; at most {_MOST:,} are answered")
        return grid

    @property
    def rows(self) -> int:
        """Combinations in all."""
        return math.prod(len(values) for _, values in self.axes)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names."""
        return tuple(name for name, _ in self.axes)

    def frame(self, start: int, stop: int) -> pd.DataFrame:
        """Some of the combinations, by number."""
        place = np.arange(start, stop)
        columns: dict[str, Any] = {}
        for name, values in reversed(self.axes):
            place, index = np.divmod(place, len(values))
            columns[name] = _column(values).take(index)
        return pd.DataFrame({name: columns[name] for name in self.columns}, index=pd.RangeIndex(start, stop))

    def pieces(self, size: int, start: int, stop: int) -> Iterator[Rows]:
        """Rows start to stop in pieces; each is made where it is needed."""
        return (partial(self.frame, first, min(first + size, stop)) for first in range(start, stop, size))


def _values(name: str, given: Any) -> tuple[Any, ...]:
    several = isinstance(given, Iterable) and not isinstance(given, (str, bytes, PathLike, Mapping))
    values = tuple(given) if several else (given,)
    if not values:
        raise InputError(f"{name} has no values; give at least one")
    return tuple(_cell(value) for value in values)


def _cell(value: Any) -> Any:
    """A path as text; a list within a list (acceptance by place) as the text that tables have."""
    if isinstance(value, PathLike):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _column(values: tuple[Any, ...]) -> Any:
    """Values of one kind; numbers beside texts become texts, which are read as numbers again."""
    mixed = len({isinstance(value, str) for value in values if value is not None}) > 1
    return pd.Series([None if value is None else str(value) for value in values] if mixed else list(values)).array

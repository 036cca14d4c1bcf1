"""Every combination of some values, made piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.model.types.errors import InputError

__all__ = ["Grid", "GridRows"]

_MOST = 10**9


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

    def pieces(self, size: int, start: int, stop: int) -> Iterator[GridRows]:
        """Rows start to stop in pieces; each is made where it is needed."""
        for first in range(start, stop, size):
            yield GridRows(self, first, min(first + size, stop))


@dataclass(frozen=True)
class GridRows:
    """A piece of a grid."""

    grid: Grid
    start: int
    stop: int

    def frame(self) -> pd.DataFrame:
        """Its rows."""
        return self.grid.frame(self.start, self.stop)


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

"""Interpolation in a table: at one place or at arrays of places, with the same bits, or with some of its axes fixed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rooflinekit.model.types.frozen import dataclass, field

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class NodeTable:
    """Values at the nodes of a grid, the last axis fastest; positions along each axis ascend."""

    axes: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]
    _slices: dict[tuple[float | None, ...], NodeTable] = field(default_factory=dict, repr=False)
    _arrays: list[Array] = field(default_factory=list, repr=False)

    def at(self, *places: float) -> float:
        """Multilinear interpolation, constant beyond the ends.

        >>> NodeTable(((0.0, 1.0), (0.0, 2.0)), (0.0, 2.0, 10.0, 12.0)).at(0.5, 1.0)
        6.0
        """
        if len(places) == 1:
            index, share = locate(self.axes[0], places[0])
            near = self.values[index]
            return near + share * (self.values[index + 1] - near) if share else near
        spots = [locate(nodes, place) for nodes, place in zip(self.axes, places, strict=True)]
        value: float = _multilinear([*map(len, self.axes)], spots, self.values.__getitem__)
        return value

    @property
    def array(self) -> Array:
        """The values as a NumPy array with an axis for each of the table's."""
        if not self._arrays:
            import numpy as np  # noqa: PLC0415

            self._arrays.append(np.array(self.values).reshape([len(nodes) for nodes in self.axes]))
        return self._arrays[0]

    def sliced(self, places: tuple[float | None, ...]) -> NodeTable:
        """The table of the axes whose place is None, at the given places of the others.

        >>> NodeTable(((0.0, 1.0), (0.0, 2.0)), (0.0, 2.0, 10.0, 12.0)).sliced((None, 1.0)).values
        (1.0, 11.0)
        """
        known = self._slices.get(places)
        if known is None:
            values, inner = list(self.values), 1  # from the last axis on: those behind an axis vary fastest
            for nodes, place in zip(reversed(self.axes), reversed(places), strict=True):
                if place is None:
                    inner *= len(nodes)
                    continue
                index, share = locate(nodes, place)
                after = min(index + 1, len(nodes) - 1)
                blocks = range(0, len(values), inner * len(nodes))
                ends = [(start + index * inner, start + after * inner) for start in blocks]
                values = [
                    values[near + i] + share * (values[far + i] - values[near + i]) if share else values[near + i]
                    for near, far in ends
                    for i in range(inner)
                ]
            kept = tuple(nodes for nodes, place in zip(self.axes, places, strict=True) if place is None)
            known = self._slices[places] = NodeTable(kept, tuple(values))
        return known


def locate(nodes: Sequence[float], place: float) -> tuple[int, float]:
    """The node at or below `place`, and the share of the way to the next (0 to 1).

    >>> locate((0.0, 1.0, 3.0), 2.0), locate((0.0, 1.0, 3.0), 9.0)
    ((1, 0.5), (1, 1.0))
    """
    if place <= nodes[0] or len(nodes) == 1:
        return 0, 0.0
    last = len(nodes) - 2
    if place >= nodes[-1]:
        return last, 1.0
    index = bisect_right(nodes, place) - 1
    steps = 1.0 / (nodes[index + 1] - nodes[index]) * (place - nodes[index]) + index  # as NumPy's interp has it
    index = min(int(steps), last)
    return index, steps - index


def located(nodes: Sequence[float], places: Array) -> tuple[NDArray[np.intp], Array]:
    """The node at or below each position, and the share of the way to the next (0 to 1)."""
    import numpy as np  # noqa: PLC0415

    if len(nodes) == 1:
        return np.zeros(places.shape, np.intp), np.zeros(places.shape)
    steps = np.interp(places, nodes, np.arange(float(len(nodes))))
    index = np.minimum(steps.astype(np.intp), len(nodes) - 2)
    return index, steps - index


def interpolated(table: Array, places: Sequence[tuple[NDArray[np.intp], Array]]) -> Array:
    """Multilinear interpolation in a table at places along its axes."""
    values: Array = _multilinear(table.shape, places, table.ravel().take)
    return values


def _multilinear(sizes: Sequence[int], places: Sequence[tuple[Any, Any]], take: Callable[[Any], Any]) -> Any:
    """Interpolate at one place or at many, axis by axis from the last; `take` gives values by their flat number."""
    base, corners = 0, [0]
    for axis, (size, (index, _)) in enumerate(zip(sizes, places, strict=True)):
        base = index if axis == 0 else base * size + index
        corners = [corner * size + step for corner in corners for step in range(min(size, 2))]
    found = [take(base + corner if corner else base) for corner in corners]
    for size, (_, share) in zip(reversed(sizes), reversed(places), strict=True):
        if size > 1:
            found = [near + share * (far - near) for near, far in zip(found[::2], found[1::2], strict=True)]
    return found[0]

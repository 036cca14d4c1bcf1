"""A correction on top of a time form: a coarse table over a few shapes, 1 wherever there are no measurements.

Engines dispatch to different kernels; no formula knows where. The table holds the ratio measured / formula at coarse
nodes, spread evenly on a logarithmic scale in between, and fades to 1 beyond its outermost nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, cast

from rooflinekit.model.types.kernel import AttentionShape, CollectiveShape, ExpertsShape, GemmShape, Kernel, S
from rooflinekit.model.types.numeric import Array, Numeric, log2

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["AXES", "Axis", "Surface", "corners"]


@dataclass(frozen=True)
class Axis:
    """One shape that a correction depends on: positions of the nodes in doublings, the first and last with ratio 1."""

    name: str
    nodes: tuple[float, ...]

    @property
    def open_low(self) -> bool:
        """Whether the first node holds data, because the shape has no smaller value (a batch of 1 = 2^0)."""
        return self.nodes[0] == 0.0

    def locate(self, position: float) -> tuple[int, float]:
        """The node at or below `position`, and how far it is to the next (0 to 1).

        >>> Axis("m", (0.0, 1.0, 3.0)).locate(2.0), Axis("m", (0.0, 1.0, 3.0)).locate(9.0)
        ((1, 0.5), (1, 1.0))
        """
        nodes = self.nodes
        if len(nodes) == 1:
            return 0, 0.0
        index = 0
        while index < len(nodes) - 2 and position >= nodes[index + 1]:
            index += 1
        share = (position - nodes[index]) / (nodes[index + 1] - nodes[index])
        return index, min(max(share, 0.0), 1.0)

    def locate_all(self, positions: Array) -> tuple[NDArray[np.intp], Array]:
        """The same for an array."""
        import numpy as np  # noqa: PLC0415

        if len(self.nodes) == 1:
            return np.zeros(positions.shape, np.intp), np.zeros(positions.shape)
        place = np.interp(positions, self.nodes, np.arange(len(self.nodes)))
        index = np.minimum(place.astype(np.intp), len(self.nodes) - 2)
        return index, place - index


def _of(kind: type[S], size: Callable[[S], Numeric]) -> Callable[[Kernel], Numeric]:
    return lambda kernel: size(kernel.shaped(kind))


AXES: Mapping[str, Callable[[Kernel], Numeric]] = {
    "m": _of(GemmShape, lambda shape: shape.tiled_rows),
    "n": _of(GemmShape, lambda shape: shape.n),
    "k": _of(GemmShape, lambda shape: shape.k),
    "head_dim": _of(AttentionShape, lambda shape: shape.head_dim),
    "group": _of(AttentionShape, lambda shape: shape.heads / shape.kv_heads),
    "heads": _of(AttentionShape, lambda shape: shape.heads),
    "batch": _of(AttentionShape, lambda shape: shape.batch),
    "batch_kv_heads": _of(AttentionShape, lambda shape: shape.batch * shape.kv_heads),
    "batch_heads": _of(AttentionShape, lambda shape: shape.batch * shape.heads),
    "keys": _of(AttentionShape, lambda shape: shape.keys),
    "length": _of(AttentionShape, lambda shape: shape.causal_length),
    "cached": _of(AttentionShape, lambda shape: shape.cached),
    "queries": _of(AttentionShape, lambda shape: shape.rows),
    "hidden": _of(ExpertsShape, lambda shape: shape.hidden),
    "width": _of(ExpertsShape, lambda shape: shape.width),
    "local": _of(ExpertsShape, lambda shape: shape.local),
    "ranks": _of(ExpertsShape, lambda shape: shape.ranks),
    "tokens": _of(ExpertsShape, lambda shape: shape.tokens),
    "bytes": _of(CollectiveShape, lambda shape: shape.payload),
    "gpus": lambda kernel: float(kernel.gpus),
    "traffic": lambda kernel: kernel.bytes,
}
"""Shapes that a correction may depend on, from the kernel."""


@dataclass(frozen=True)
class Surface:
    """log(measured / formula) at the nodes of a grid, in whole percent.

    `percent` is the text of a file: one line for every combination of the leading axes, one number for every node of
    the last; nodes where the correction has faded are left out. It is read when it is first needed.
    """

    axes: tuple[Axis, ...]
    percent: str

    def ratio(self, kernel: Kernel) -> Numeric:
        """What to multiply the formula's time by.

        >>> from rooflinekit.model.types.dtype import Dtype
        >>> surface, shape = Surface((Axis("k", (0.0, 2.0, 4.0)),), "20 10"), GemmShape(1.0, 1.0, 2.0)
        >>> surface.ratio(Kernel("a", "gemm", 1, Dtype.BF16, shape=shape))  # (e^0.2 + e^0.1) / 2
        1.163
        """
        places = [log2(AXES[axis.name](kernel)) for axis in self.axes]
        numbers = [place for place in places if isinstance(place, (int, float))]
        return self._point(numbers) if len(numbers) == len(places) else self._array(places)

    @cached_property
    def values(self) -> tuple[float, ...]:
        """Ratios at all nodes, the last axis fastest."""
        factors = [math.exp(int(word) / 100.0) for word in self.percent.split()]
        first, shape = [0 if axis.open_low else 1 for axis in self.axes], [len(axis.nodes) for axis in self.axes]
        inner = [range(low, size - 1) for low, size in zip(first, shape, strict=True)]
        width, ratios = len(inner[-1]), [1.0] * math.prod(shape)
        for row, place in enumerate(product(*inner[:-1])):
            start = 0
            for index, size in zip((*place, first[-1]), shape, strict=True):
                start = start * size + index
            ratios[start : start + width] = factors[row * width : (row + 1) * width]
        return tuple(ratios)

    def _point(self, places: list[float]) -> float:
        corners = [(0, 1.0)]
        for axis, place in zip(self.axes, places, strict=True):
            index, share = axis.locate(place)
            size = len(axis.nodes)
            near = [(at * size + index, weight * (1.0 - share)) for at, weight in corners]
            far = [(at * size + index + 1, weight * share) for at, weight in corners] if share else []
            corners = near + far
        return sum(self.values[at] * weight for at, weight in corners)

    def _array(self, places: list[Numeric]) -> Array:
        """Fixed shapes first, so that only those that vary cost an operation an element."""
        table = self._table
        varying: list[tuple[Axis, Array]] = []
        for axis, place in zip(self.axes, places, strict=True):
            if not isinstance(place, (int, float)):
                varying.append((axis, place))
                continue
            index, share = axis.locate(place)
            near: Array = table.take([index], len(varying)).squeeze(len(varying))
            far = table.take([index + 1], len(varying)).squeeze(len(varying)) if share else near
            table = near + share * (far - near)
        return _interpolate(table, varying)

    @cached_property
    def _table(self) -> Array:
        import numpy as np  # noqa: PLC0415

        return np.array(self.values).reshape([len(axis.nodes) for axis in self.axes])


def corners(varying: Sequence[tuple[Axis, Array]]) -> list[tuple[NDArray[np.intp], Array]]:
    """Flat indices of the nodes around each position, and their weights (multilinear interpolation)."""
    import numpy as np  # noqa: PLC0415

    found: list[tuple[NDArray[np.intp], Array]] = [(np.zeros(1, np.intp), np.ones(1))]
    for axis, place in varying:
        index, share = axis.locate_all(place)
        size = len(axis.nodes)
        near = [(at * size + index, weight * (1.0 - share)) for at, weight in found]
        far = [(at * size + index + 1, weight * share) for at, weight in found] if size > 1 else []
        found = near + far
    return found


def _interpolate(table: Array, varying: list[tuple[Axis, Array]]) -> Array:
    if len(varying) == 1:
        import numpy as np  # noqa: PLC0415

        axis, place = varying[0]
        return cast("Array", np.interp(place, axis.nodes, table))
    flat = table.ravel()
    return cast("Array", sum(flat[at] * weight for at, weight in corners(varying)))

"""A correction on top of a time form: a coarse table over a few shapes, 1 wherever there are no measurements.

Engines dispatch to different kernels; no formula knows where. The table holds the ratio measured / formula at coarse
nodes, spread evenly on a logarithmic scale in between, and fades to 1 beyond its outermost nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from rooflinekit.model.graph.table import Table
from rooflinekit.model.types.kernel import AttentionShape, CollectiveShape, ExpertsShape, GemmShape, Kernel, S
from rooflinekit.model.types.numeric import Numeric, lattice, log2

__all__ = ["AXES", "Axis", "Surface"]


@dataclass(frozen=True)
class Axis:
    """One shape that a correction depends on: positions of the nodes in doublings, the first and last with ratio 1."""

    name: str
    nodes: tuple[float, ...]

    @property
    def open_low(self) -> bool:
        """Whether the first node holds data, because the shape has no smaller value (a batch of 1 = 2^0)."""
        return self.nodes[0] == 0.0


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

_FIXED = frozenset({"n", "k", "head_dim", "group", "heads", "hidden", "width", "local", "ranks", "gpus"})
"""Shapes that the model and its deployment fix, whatever the step: a correction at these is worked out once."""


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
        fixed = tuple(
            place if axis.name in _FIXED and isinstance(place, (int, float)) else None
            for axis, place in zip(self.axes, places, strict=True)
        )
        table = self.table if fixed.count(None) == len(fixed) else self.table.sliced(fixed)
        return lattice(table, [place for place, known in zip(places, fixed, strict=True) if known is None])

    @cached_property
    def table(self) -> Table:
        """Ratios at all nodes."""
        return Table(tuple(axis.nodes for axis in self.axes), self.values)

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

"""Corrections and intervals of one kernel: what is left of a calibration's tables once the kernel's shape is fixed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rooflinekit.model.coefficients.state import Feature, Features
from rooflinekit.model.graph.table import locate
from rooflinekit.model.timing.surface import Surface
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.kernel import Kernel

__all__ = ["Position", "SurfaceSlice", "Widths", "axis_size", "slice_surface"]


@dataclass(frozen=True)
class Position:
    """A size of the step that varies: `scale` times a feature."""

    feature: Feature
    scale: float

    def at(self, features: Features) -> float:
        """Its value."""
        return self.scale * features.size(self.feature)


@dataclass(frozen=True)
class SurfaceSlice:
    """A correction over the one or two sizes that vary: nodes at powers of 2, ratios at them, the last axis fastest."""

    positions: tuple[Position, ...]
    nodes: tuple[tuple[float, ...], ...]
    ratios: tuple[float, ...]

    def at(self, features: Features) -> float:
        """Bilinear in the logarithms, constant beyond the outermost nodes."""
        corners = [(0, 1.0)]
        for position, nodes in zip(self.positions, self.nodes, strict=True):
            index, share = locate(nodes, math.log2(position.at(features)))
            corners = [(at * len(nodes) + index + step, weight * part)
                       for at, weight in corners for step, part in ((0, 1.0 - share), (1, share)) if part]  # fmt: skip
        return sum(self.ratios[at] * weight for at, weight in corners)


@dataclass(frozen=True)
class Widths:
    """Factor of a kernel's 90 % interval: `factors[i]` up to `edges[i]` of a size, the last one above all."""

    position: Position | None = None
    edges: tuple[float, ...] = ()
    factors: tuple[float, ...] = field(default=(1.0,))

    def at(self, features: Features) -> float:
        """The factor."""
        if self.position is None:
            return self.factors[-1]
        size = self.position.at(features)
        return self.factors[sum(edge < size for edge in self.edges)]


_FEATURES: dict[str, tuple[Feature, str]] = {
    "m": ("padded_rows", ""),
    "batch": ("sequences", ""),
    "batch_kv_heads": ("sequences", "kv_heads"),
    "batch_heads": ("sequences", "heads"),
    "keys": ("keys", ""),
    "length": ("length", ""),
    "cached": ("cached", "kv_heads"),
    "queries": ("tokens", "heads"),
    "tokens": ("tokens", ""),
}
"""Axes of calibrations that vary with the step: the feature, and the dimension that it is multiplied by."""

_FIXED = ("n", "k", "head_dim", "group", "heads", "hidden", "width", "local", "ranks", "gpus")


def axis_size(name: str, kernel: Kernel, payload: float) -> Position | None:
    """What an axis is for this kernel; None where the kernel's own shape fixes it.

    `payload`: bytes of one row of a collective.

    Raises InputError for an axis that nobody has worked out.
    """
    if name in _FIXED:
        return None
    if name == "bytes":
        return Position("rows", payload)
    if name not in _FEATURES:
        raise InputError(f"the calibration corrects {kernel.family} by {name}, which cannot be exported")
    feature, dimension = _FEATURES[name]
    return Position(feature, float(getattr(kernel.shape, dimension, 1.0)) if dimension else 1.0)


def slice_surface(surface: Surface, sizes: dict[str, Position | float]) -> SurfaceSlice | float:
    """The surface at the fixed sizes, or one ratio if all are."""
    values, shape = list(surface.values), [len(axis.nodes) for axis in surface.axes]
    positions: list[Position] = []
    nodes: list[tuple[float, ...]] = []
    inner = 1
    for axis, count in zip(reversed(surface.axes), reversed(shape), strict=True):
        size = sizes[axis.name]
        if isinstance(size, Position):
            positions.insert(0, size)
            nodes.insert(0, axis.nodes)
            inner *= count
            continue
        index, share = locate(axis.nodes, math.log2(size))
        blocks = [values[at : at + inner] for at in range(0, len(values), inner)]
        groups = [blocks[at : at + count] for at in range(0, len(blocks), count)]
        values = [value for group in groups for value in _between(group, index, share)]
    return SurfaceSlice(tuple(positions), tuple(nodes), tuple(values)) if positions else values[0]


def _between(blocks: list[list[float]], index: int, share: float) -> list[float]:
    near = blocks[index]
    return near if not share else [(1.0 - share) * a + share * b for a, b in zip(near, blocks[index + 1], strict=True)]

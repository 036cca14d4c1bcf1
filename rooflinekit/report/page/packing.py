"""Exported coefficients as compact JSON: equal kernels and corrections stand once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rooflinekit.model.coefficients import (
    KernelCoefficients,
    Linear,
    PlanCoefficients,
    Position,
    SurfaceSlice,
    TimeCoefficients,
)

__all__ = ["Pool", "pack_kernel"]

_SUMS = ("flops", "streamed", "weights", "activations", "links", "nics")
_ROOFS = ("name", "family", "count", "peak", "bandwidth", "cache")
_TIME_SUMS = ("launch", "compute", "memory", "beside")


@dataclass
class Pool:
    """Kernels and corrections in the order in which they first came."""

    kernels: dict[KernelCoefficients, int] = field(default_factory=dict)
    surfaces: dict[SurfaceSlice, int] = field(default_factory=dict)

    def place(self, exported: PlanCoefficients) -> dict[str, Any]:
        """A plan whose kernels are numbers of their places."""
        groups = {"prefill": exported.prefill, "decode": exported.decode, "growing": exported.growing}
        places = {name: [self._kernel(kernel) for kernel in group] for name, group in groups.items()}
        host, memory = asdict(exported.host), exported.memory.to_dict()
        return {**places, "host": host, "memory": memory, "gpus": exported.gpus}

    def to_dict(self) -> dict[str, Any]:
        """Both lists."""
        kernels = [pack_kernel(kernel, self.surfaces) for kernel in self.kernels]
        surfaces = [{"positions": [_position(place) for place in surface.positions], "nodes": surface.nodes,
                     "ratios": surface.ratios} for surface in self.surfaces]  # fmt: skip
        return {"kernels": kernels, "surfaces": surfaces}

    def _kernel(self, kernel: KernelCoefficients) -> int:
        timing = kernel.timing
        if timing is not None and isinstance(timing.ratio, SurfaceSlice):
            self.surfaces.setdefault(timing.ratio, len(self.surfaces))
        return self.kernels.setdefault(kernel, len(self.kernels))


def pack_kernel(kernel: KernelCoefficients, surfaces: dict[SurfaceSlice, int]) -> dict[str, Any]:
    """One kernel; a correction is {"surface": place}."""
    packed: dict[str, Any] = {name: getattr(kernel, name) for name in _ROOFS}
    packed |= {name: _terms(getattr(kernel, name)) for name in _SUMS}
    packed |= {"shape": asdict(kernel.shape)}
    return packed | {"timing": None if kernel.timing is None else _timing(kernel.timing, surfaces)}


def _timing(timing: TimeCoefficients, surfaces: dict[SurfaceSlice, int]) -> dict[str, Any]:
    packed: dict[str, Any] = {name: _terms(getattr(timing, name)) for name in _TIME_SUMS}
    for name in TimeCoefficients.__dataclass_fields__:
        if name not in (*_TIME_SUMS, "ratio", "widths"):
            packed[name] = getattr(timing, name)
    ratio, widths = timing.ratio, timing.widths
    packed["ratio"] = {"surface": surfaces[ratio]} if isinstance(ratio, SurfaceSlice) else ratio
    place = None if widths.position is None else _position(widths.position)
    return packed | {"widths": {"position": place, "edges": widths.edges, "factors": widths.factors}}


def _terms(terms: Linear) -> list[float]:
    values = list(terms.values)
    while values and values[-1] == 0.0:
        values.pop()
    return values


def _position(position: Position) -> list[Any]:
    return [position.feature, position.scale]

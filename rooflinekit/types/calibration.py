"""How far real kernels stay from the datasheet: few parameters a kernel family, each with a meaning and a spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooflinekit.types.kernel import Kernel

__all__ = ["Calibration", "FamilyFit", "Parameter"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A fitted value with its spread (one standard error), or a named assumption (spread 0)."""

    value: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class FamilyFit:
    """time = launch + max(FLOP / (compute · peak), bytes / (memory · bandwidth)), per launch.

    launch: floor of one launch [s]; compute, memory: realised shares of the datasheet rates (0..1];
    network: realised share of the link bandwidth; hop: latency that each further GPU adds to a collective [s];
    low, high: 5 % and 95 % quantiles of measured / predicted on the rows that were fitted.
    """

    launch: Parameter
    compute: Parameter
    memory: Parameter
    network: Parameter
    hop: Parameter
    low: float
    high: float
    rows: int
    source: str


@dataclass(frozen=True)
class Calibration:
    """Parameters for every kernel family, and where they came from."""

    name: str
    hash: str
    accelerator: str
    engine: str
    families: Mapping[str, FamilyFit]  #: by "family/dtype", or "family" for every other dtype
    source: str
    date: str = ""
    transfer: tuple[float, float] = (1.0, 1.0)  #: widening of the interval on another accelerator or engine

    def fit(self, kernel: Kernel) -> FamilyFit:
        """The parameters for this kernel's family and number format."""
        return self.families.get(f"{kernel.family}/{kernel.dtype.value}") or self.families[kernel.family]

"""Time of families without measurements."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.timing.parameter import EFFICIENCY, Duration, parameter
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import maximum

__all__ = ["PlainTime"]


@dataclass(frozen=True)
class PlainTime:
    """launch + tr·rows + max(FLOP/(ec·P), bytes/(em·W)): the roofline with a floor and two realised shares.

    Williams et al. 2009, doi:10.1145/1498765.1498785. tr is what a row costs besides its bytes, where rows are
    gathered, scattered or reduced one by one (on a CPU).
    """

    launch: float = parameter("floor of one launch, or of several in a row", "us", 0.0, 2000.0, 2.5)
    compute: float = parameter("realised share of the peak", "share", 0.01, EFFICIENCY, 0.7)
    memory: float = parameter("realised share of the bandwidth", "share", 0.0005, EFFICIENCY, 0.8)
    row: float = parameter("cost of each row", "us", 0.0, 50.0, 0.0)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        compute = kernel.flops / (self.compute * system.accelerator.peak(kernel.dtype))
        memory = kernel.bytes / (self.memory * system.accelerator.memory_bandwidth)
        launch = self.launch + self.row * kernel.dims.get("rows", 0.0)
        return Duration(launch, compute, memory, 0.0, launch + maximum(compute, memory))

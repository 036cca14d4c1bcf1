"""Time of a collective."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.timing.parameter import EFFICIENCY, Duration, parameter
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import sqrt

__all__ = ["CollectiveTime"]


@dataclass(frozen=True)
class CollectiveTime:
    """launch + hop·(n − 1)·phases + sent/(en·link) + ramp·√(sent/1 MB): latency, bandwidth, and protocols between.

    phases: an all-reduce that is asked to take two steps waits for all others twice; as measured, it counts once.
    Hockney's model (latency + bytes/bandwidth, Parallel Computing 20, 1994) with a square root for the region in which
    the library trades protocols and channels.
    """

    launch: float = parameter("floor of one launch", "us", 0.0, 100.0, 4.0)
    hop: float = parameter("latency that each further accelerator adds", "us", 0.0, 30.0, 0.5)
    network: float = parameter("realised share of the link bandwidth", "share", 0.02, EFFICIENCY, 0.8)
    ramp: float = parameter("protocol change, at 1 MB", "us", 0.0, 100.0, 4.0)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        if kernel.gpus == 1:
            return Duration(0.0, 0.0, 0.0, 0.0, 0.0)
        network = system.transfer_time(kernel) / self.network + self.ramp * sqrt(kernel.network_bytes / 1e6)
        launch = self.launch + self.hop * (kernel.gpus - 1) * kernel.dims.get("phases", 1.0)
        return Duration(launch, 0.0, 0.0, network, launch + network)

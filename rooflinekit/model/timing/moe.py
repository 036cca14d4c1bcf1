"""Time of the routed experts of one layer."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.timing.parameter import EFFICIENCY, Duration, choice, parameter
from rooflinekit.model.timing.residency import streamed
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import log2, smooth_maximum

__all__ = ["ExpertsTime"]


@dataclass(frozen=True)
class ExpertsTime:
    """launch + ta·touched + lt·log2(1 + A) + pn(FLOP·(1 + pad·touched/A)/(ec·P), (weights + passes·act.)/(em·W)).

    A: (token, expert) pairs that come to this accelerator; each touched expert pads its rows to a tile (`rows`); the
    logarithm is sorting and gathering. `foreign`: under expert parallelism vLLM's and SGLang's fused kernels also move
    the rows of pairs that belong to other accelerators (slots − A of them).
    """

    launch: float = parameter("floor: routing, two grouped GEMMs, activation, combination", "us", 0.0, 300.0, 30.0)
    expert: float = parameter("cost of each expert that is touched", "us", 0.0, 10.0, 0.1)
    sort: float = parameter("sorting, per doubling of the pairs", "us", 0.0, 30.0, 1.0)
    compute: float = parameter("realised share of the peak", "share", 0.01, EFFICIENCY, 0.5)
    memory: float = parameter("realised share of the bandwidth", "share", 0.05, EFFICIENCY, 0.85)
    rows: float = parameter("rows that each touched expert is padded by", "elements", 0.0, 256.0, 16.0)
    passes: float = parameter("times activations cross the memory, over the least", "factor", 0.0, 30.0, 1.0)
    foreign: float = parameter("share of the other accelerators' rows that is moved too", "share", 0.0, 4.0, 0.1)
    cache_share: float = parameter("share of the L2 that a benchmark loop keeps", "share", 0.01, 2.0, 0.3)
    cache_speed: float = parameter("L2 rate over memory rate", "factor", 1.0, 10.0, 1.0)
    sharpness: int = choice("overlap of compute and memory", 2)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        accelerator, dims = system.accelerator, kernel.dims
        routed, touched = dims["routed"], dims["touched"]
        rate = self.compute * accelerator.peak(kernel.dtype)
        compute = kernel.flops * (1.0 + self.rows * (touched / routed)) / rate
        weights = kernel.weight_bytes
        if warm:
            weights = streamed(weights, self.cache_share * accelerator.l2_bytes, self.cache_speed)
        others = (dims["slots"] - routed) / routed
        moved = weights + kernel.activation_bytes * (self.passes + self.foreign * others)
        memory = moved / (self.memory * accelerator.memory_bandwidth)
        launch = self.launch + self.expert * touched + self.sort * log2(1.0 + routed)
        return Duration(launch, compute, memory, 0.0, launch + smooth_maximum(compute, memory, self.sharpness))

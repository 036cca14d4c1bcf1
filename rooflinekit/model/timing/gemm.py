"""Time of a matrix multiplication."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.timing.parameter import EFFICIENCY, Duration, choice, parameter
from rooflinekit.model.timing.residency import streamed
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric, ceil, ceil_div, smooth_maximum, sqrt, where

__all__ = ["GemmTime", "idle_tiles"]

_TILE = 128
"""The usual output tile (CUTLASS default 128 x 128)."""


def idle_tiles(m: Numeric, n: Numeric, cores: int) -> Numeric:
    """Tiles that the last wave leaves idle when 128 x 128 output tiles go round `cores` cores; 0 below one wave.

    Below one wave kernels split k instead (NVIDIA, Matrix Multiplication Background User's Guide, section 4).

    >>> idle_tiles(1024.0, 4096.0, 132), idle_tiles(64.0, 4096.0, 132)  # 256 tiles on 132 SMs: 2 waves of 132
    (8.0, 0.0)
    """
    waves = ceil_div(m, _TILE) * ceil_div(n, _TILE) / cores
    return where(waves >= 1.0, ceil(waves) - waves, 0.0 * waves) * cores


@dataclass(frozen=True)
class GemmTime:
    """launch + kl·√(k/1024) + ks·k/1024 + pn(2·⌈m⌉r·n·(k + k0)/(ec·P), bytes/(em·W)) + (2 + b)·m·k/(eq·W).

    Rows come in r (64 on tensor cores, 1 on a CPU); each tile has a fixed cost worth k0 of its depth (prologue,
    epilogue); the k loop has a latency that no parallelism hides (√k where k is split, k where it is not); the last
    term is the kernel that quantises 16-bit activations for narrower arithmetic. Found on the tables of H100, H200,
    B200, A100 and L40S.

    >>> from rooflinekit.specs import load_accelerator
    >>> from rooflinekit.model.types.dtype import Dtype
    >>> system = System.of(load_accelerator("h100-sxm").value)
    >>> work = Kernel("w", "gemm", 1, Dtype.BF16, 2.0 * 4096**3, 2.0 * 4096**2, 0.0, 0.0, 4.0 * 4096**2,
    ...               dims={"m": 4096.0, "n": 4096.0, "k": 4096.0})
    >>> GemmTime().time(work, system).total * 1e6  # 2·4096³ / (0.8 · 989e12) s = 173.6 µs, + 2 % for k0, + 4.5 µs
    182.4
    """

    launch: float = parameter("floor of one launch", "us", 0.0, 60.0, 2.3)
    depth_root: float = parameter("latency of the k loop where k is split, at k = 1024", "us", 0.0, 10.0, 1.1)
    depth: float = parameter("latency of the k loop where it is not, at k = 1024", "us", 0.0, 5.0, 0.0)
    compute: float = parameter("realised share of the peak", "share", 0.05, EFFICIENCY, 0.8)
    memory: float = parameter("realised share of the bandwidth", "share", 0.1, EFFICIENCY, 0.88)
    tile: float = parameter("fixed cost of a tile, as depth k0", "elements", 0.0, 2000.0, 100.0)
    tail: float = parameter("share of the last wave's idle tiles that is paid", "share", 0.0, 0.8, 0.0)
    quantise: float = parameter("realised bandwidth of quantising activations", "share", 0.03, EFFICIENCY, 0.4)
    cache_share: float = parameter("share of the L2 that a benchmark loop keeps", "share", 0.01, 1.5, 0.12)
    cache_speed: float = parameter("L2 rate over memory rate", "factor", 1.0, 10.0, 1.0)
    sharpness: int = choice("overlap of compute and memory", 4)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        accelerator = system.accelerator
        m, n, k = kernel.dims["m"], kernel.dims["n"], kernel.dims["k"]
        rate, bandwidth = self.compute * accelerator.peak(kernel.dtype), accelerator.memory_bandwidth
        rows = accelerator.tile_rows
        compute = kernel.flops * (ceil_div(m, rows) * (rows / m) * ((1.0 + self.tile / k) / rate))
        if self.tail:
            extra = idle_tiles(m, n, accelerator.cores) * (2.0 * _TILE * _TILE) * (k + self.tile)
            compute = compute + extra * (self.tail / rate)
        moved = kernel.bytes
        if warm:
            moved = streamed(moved, self.cache_share * accelerator.l2_bytes, self.cache_speed)
        memory = moved / (self.memory * bandwidth)
        busy = smooth_maximum(compute, memory, self.sharpness)
        launch = self.launch + self.depth_root * sqrt(k / 1024.0) + self.depth * (k / 1024.0)
        if not kernel.dtype.is_wide:
            busy = busy + m * k * ((2.0 + kernel.dtype.bytes) / (self.quantise * bandwidth))
        return Duration(launch, compute, memory, 0.0, launch + busy)

"""Time of multi-head latent attention: absorbed decode, up-projected prefill."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.timing.attention import farthest, key_padding
from rooflinekit.model.timing.parameter import EFFICIENCY, Duration, choice, parameter
from rooflinekit.model.timing.residency import streamed
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import ceil_div, log2, maximum, smooth_maximum

__all__ = ["LatentDecodeTime", "LatentPrefillTime"]

_ROWS, _HEADS, _TILE, _WIDTH = 16, 64, 128, 320
"""Least rows of a tensor-core tile; heads of a decode tile; rows of a prefill tile; 192 + 128 columns of QK and PV."""


@dataclass(frozen=True)
class LatentDecodeTime:
    """launch + kl·log2(1 + S/256) + pn(cache/(em·W), tc·B·⌈H/64⌉/SM + FLOP·max(H, 16)/H/(ec·P)) + cv·cache/W.

    All heads share one latent, read once (DeepSeek-V2, arXiv:2405.04434, 2.1); fewer than 16 heads fill a tile of 16.
    cv counts further passes over the cache: engines that convert a narrow cache to 16 bit before they use it.
    """

    launch: float = parameter("floor of one launch", "us", 0.0, 60.0, 11.5)
    split: float = parameter("combining the parts of a split context, per doubling", "us", 0.0, 20.0, 1.5)
    memory: float = parameter("realised share of the bandwidth", "share", 0.1, EFFICIENCY, 0.92)
    tile: float = parameter("cost of one sequence's tile of heads on one core", "us", 0.0, 100.0, 5.0)
    compute: float = parameter("realised share of the peak", "share", 0.02, EFFICIENCY, 0.7)
    passes: float = parameter("further passes over the cache", "factor", 0.0, 50.0, 0.0)
    cache_share: float = parameter("share of the L2 that a benchmark loop keeps", "share", 0.1, 2.0, 0.7)
    cache_speed: float = parameter("L2 rate over memory rate", "factor", 1.0, 10.0, 3.0)
    sharpness: int = choice("overlap of compute and memory", 2)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        accelerator, dims = system.accelerator, kernel.dims
        heads, rows = dims["heads"], dims["heads"] * dims["new"]
        rate = self.compute * accelerator.peak(kernel.dtype)
        compute = kernel.flops * (maximum(rows, _ROWS) / rows) / rate
        compute = compute + dims["batch"] * ceil_div(heads * dims["new"], _HEADS) * (self.tile / accelerator.cores)
        cache = kernel.kv_read_bytes
        if warm:
            cache = streamed(cache, self.cache_share * accelerator.l2_bytes, self.cache_speed)
        memory = (cache + kernel.activation_bytes) / (self.memory * accelerator.memory_bandwidth)
        besides = kernel.kv_read_bytes * (self.passes / accelerator.memory_bandwidth)
        launch = self.launch + self.split * log2(1.0 + dims["keys"] / 256.0)
        total = launch + smooth_maximum(compute, memory, self.sharpness) + besides
        return Duration(launch, compute, memory + besides, 0.0, total)


@dataclass(frozen=True)
class LatentPrefillTime:
    """launch + λ·log2(1 + keys/128) + pn(avg + ρ·longest, moved/(em·W)) + cache·cv/W + tt·B·H·⌈S/128⌉/SM.

    As PrefillTime, over 192 + 128 columns a head; the cache is the shared latent.
    """

    launch: float = parameter("floor of one launch", "us", 0.0, 90.0, 13.0)
    length: float = parameter("latency per doubling of the keys", "us", 0.0, 20.0, 1.0)
    compute: float = parameter("realised share of the peak", "share", 0.02, EFFICIENCY, 0.6)
    longest: float = parameter("share of the longest tile row that nothing hides", "share", 0.0, 3.0, 0.4)
    memory: float = parameter("realised share of the bandwidth", "share", 0.03, EFFICIENCY, 0.6)
    passes: float = parameter("further passes over the cache", "factor", 0.0, 50.0, 2.0)
    tile: float = parameter("cost of one tile row on one core", "us", 0.0, 20.0, 2.0)
    sharpness: int = choice("overlap of compute and memory", 1)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        accelerator, dims = system.accelerator, kernel.dims
        new, pairs = dims["new"], dims["pairs"]
        rate = self.compute * accelerator.peak(kernel.dtype)
        last = farthest(new, pairs, dims["keys"]) * (2.0 * _TILE * _WIDTH * accelerator.cores)
        compute = (kernel.flops * key_padding(new, pairs) + self.longest * last) / rate
        memory = kernel.activation_bytes / (self.memory * accelerator.memory_bandwidth)
        besides = kernel.kv_read_bytes * (self.passes / accelerator.memory_bandwidth)
        tiles = dims["batch"] * dims["heads"] * ceil_div(new, _TILE)
        launch = self.launch + self.length * log2(1.0 + dims["keys"] / _TILE)
        launch = launch + tiles * (self.tile / accelerator.cores)
        total = launch + smooth_maximum(compute, memory, self.sharpness) + besides
        return Duration(launch, compute, memory + besides, 0.0, total)

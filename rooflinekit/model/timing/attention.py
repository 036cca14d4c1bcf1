"""Time of softmax attention over grouped-query heads: decode and prefill."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.timing.parameter import EFFICIENCY, Duration, choice, parameter
from rooflinekit.model.timing.residency import streamed
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric, ceil_div, log2, minimum, smooth_maximum

__all__ = ["DecodeTime", "PrefillTime", "farthest", "key_padding"]

_QUERIES, _KEYS = 64, 128
"""Queries of one KV head that a decode tile takes at once; rows of a prefill tile (FlashAttention-2 and -3)."""


def farthest(new: Numeric, pairs: Numeric, keys: Numeric) -> Numeric:
    """Keys that the last query of a sequence sees: mean keys a query + new/2, and no more than there are.

    >>> farthest(4.0, 18.0, 6.0), farthest(1.0, 9.0, 9.0)  # 4 new tokens after 2; decode at 9
    (6.0, 9.0)
    """
    return minimum(pairs / new + new / 2.0, keys)


def key_padding(new: Numeric, pairs: Numeric) -> Numeric:
    """Work of a causal tiled kernel over exact work: tiles on the diagonal are computed whole, 1 + (tile/2)/mean keys.

    >>> key_padding(1024.0, 1024 * 1025 / 2)
    1.12
    """
    return 1.0 + (_KEYS / 2.0) * new / pairs


@dataclass(frozen=True)
class DecodeTime:
    """launch + kl·log2(1 + S/256) + pn(KV/(em·W) + q,o/(em·W), tc·B·K·⌈H/K·new/64⌉/SM + FLOP/(ec·P)).

    The logarithm is the combination of partial results of a split context; tc the fixed cost of one (sequence, KV
    head) tile. FlashDecoding (Dao et al. 2023) splits the context over the cores, which is why only rates remain.
    """

    launch: float = parameter("floor of one launch", "us", 0.0, 300.0, 10.0)
    split: float = parameter("combining the parts of a split context, per doubling", "us", 0.0, 20.0, 0.9)
    memory: float = parameter("realised share of the bandwidth", "share", 0.1, EFFICIENCY, 0.92)
    tile: float = parameter("cost of one sequence's KV head on one core", "us", 0.0, 60.0, 3.0)
    compute: float = parameter("realised share of the peak", "share", 0.005, EFFICIENCY, 0.4)
    cache_share: float = parameter("share of the L2 that a benchmark loop keeps", "share", 0.1, 2.0, 0.8)
    cache_speed: float = parameter("L2 rate over memory rate", "factor", 1.0, 10.0, 3.0)
    sharpness: int = choice("overlap of tiles and memory", 2)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        accelerator, dims = system.accelerator, kernel.dims
        group = dims["heads"] / dims["kv_heads"]
        tiles = dims["batch"] * dims["kv_heads"] * ceil_div(group * dims["new"], _QUERIES)
        compute = tiles * (self.tile / accelerator.cores)
        compute = compute + kernel.flops / (self.compute * accelerator.peak(kernel.dtype))
        cache = kernel.kv_read_bytes
        if warm:
            cache = streamed(cache, self.cache_share * accelerator.l2_bytes, self.cache_speed)
        memory = (cache + kernel.activation_bytes) / (self.memory * accelerator.memory_bandwidth)
        launch = self.launch + self.split * log2(1.0 + dims["keys"] / 256.0)
        return Duration(launch, compute, memory, 0.0, launch + smooth_maximum(compute, memory, self.sharpness))


@dataclass(frozen=True)
class PrefillTime:
    """launch + λ·log2(1 + keys/128) + pn(avg + ρ·longest, moved/(em·W)) + KV·ew/W + tt·B·H·⌈S/128⌉/SM.

    avg: FLOP with whole diagonal tiles at the realised rate e·P·d/(d + d0) (short heads leave the softmax exposed);
    longest: the tile row that sees the most keys, alone on its core; tt the fixed cost of a tile row. KV·ew/W is the
    traffic of the cache that the attention of some engines moves besides (write, conversion).
    """

    launch: float = parameter("floor of one launch", "us", 0.0, 60.0, 12.0)
    length: float = parameter("latency per doubling of the keys", "us", 0.0, 20.0, 0.8)
    compute: float = parameter("realised share of the peak, long heads", "share", 0.03, EFFICIENCY, 0.75)
    head: float = parameter("head dimension at which that rate halves", "elements", 0.0, 500.0, 30.0)
    longest: float = parameter("share of the longest tile row that nothing hides", "share", 0.0, 3.0, 0.4)
    memory: float = parameter("realised share of the bandwidth", "share", 0.05, EFFICIENCY, 0.7)
    cache: float = parameter("times the cache crosses the memory besides", "factor", 0.0, 20.0, 1.0)
    tile: float = parameter("cost of one tile row on one core", "us", 0.0, 20.0, 1.0)
    sharpness: int = choice("overlap of compute and memory", 1)

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]."""
        accelerator, dims = system.accelerator, kernel.dims
        batch, new, pairs, depth = dims["batch"], dims["new"], dims["pairs"], dims["head_dim"]
        rate = self.compute * accelerator.peak(kernel.dtype) * (depth / (depth + self.head))
        last = farthest(new, pairs, dims["keys"]) * (4.0 * _KEYS * accelerator.cores) * depth
        compute = (kernel.flops * key_padding(new, pairs) + self.longest * last) / rate
        moved = kernel.activation_bytes + kernel.kv_read_bytes
        memory = moved / (self.memory * accelerator.memory_bandwidth)
        tiles = batch * dims["heads"] * ceil_div(new, _KEYS)
        launch = self.launch + self.length * log2(1.0 + dims["keys"] / _KEYS)
        launch = launch + tiles * (self.tile / accelerator.cores)
        besides = kernel.kv_read_bytes * (self.cache / accelerator.memory_bandwidth)
        total = launch + smooth_maximum(compute, memory, self.sharpness) + besides
        return Duration(launch, compute, memory + besides, 0.0, total)

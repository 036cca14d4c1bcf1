"""The work of one kernel, and the time that work takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from rooflinekit.model.graph import named
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.numeric import Numeric

__all__ = ["FAMILIES", "Family", "Kernel", "KernelTime"]

Family: TypeAlias = Literal[
    "gemm",
    "attention_prefill",
    "attention_decode",
    "mla_prefill",
    "mla_decode",
    "linear_attention",
    "moe",
    "elementwise",
    "kv_append",
    "embedding",
    "sampling",
    "collective",
    "host",
]
FAMILIES: tuple[Family, ...] = tuple(family for family in Family.__args__ if family != "host")  # type: ignore[attr-defined]
"""Families of kernels, each with a time form; "host" is what an engine adds between them."""


@dataclass(frozen=True)
class Kernel:
    """Work of one launch on one accelerator; the step runs `count` of them.

    flops [FLOP]; bytes by class [B]: weights streamed, KV cache read and written, activations read and written,
    sent over the network. `dims` are the shapes that a calibrated time form may ask for.
    """

    name: str
    family: Family
    count: int
    dtype: Dtype  #: format of the arithmetic
    flops: Numeric = 0.0
    weight_bytes: Numeric = 0.0
    kv_read_bytes: Numeric = 0.0
    kv_write_bytes: Numeric = 0.0
    activation_bytes: Numeric = 0.0
    network_bytes: Numeric = 0.0
    gpus: int = 1  #: accelerators that a collective joins
    variant: str = ""  #: what else picks an engine's kernel: format of the cache, collective, routing of the experts
    nic_bytes: Numeric = 0.0  #: the part of network_bytes that leaves the scale-up domain
    dims: Mapping[str, Numeric] = field(default_factory=dict)

    @property
    def bytes(self) -> Numeric:
        """Memory traffic of one launch [B]."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes

    @property
    def intensity(self) -> Numeric:
        """FLOP per byte of memory traffic."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class KernelTime:
    """Time of all launches of one kernel in a step [s].

    `bound` is the datasheet roofline. `compute`, `memory`, `network` are what each resource alone would need at the
    calibrated efficiencies, `overhead` the launch floor; `time` is their combination; `low` to `high` is the 90 %
    interval. At level "bound", time == bound == low == high and overhead is 0.
    """

    kernel: Kernel
    bound: Numeric
    compute: Numeric
    memory: Numeric
    network: Numeric
    overhead: Numeric
    time: Numeric
    low: Numeric
    high: Numeric

    def named(self) -> KernelTime:
        """The same; while it is traced, its time is a line of explanations under the kernel's name."""
        kernel = self.kernel
        time = named(self.time, kernel.name, f"{kernel.family}, {kernel.dtype.value}", "s")
        return self if time is self.time else replace(self, time=time)

"""What an accelerator file states, and what may be wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.hardware import Accelerator

__all__ = ["Facts", "Finding", "finding"]


@dataclass(frozen=True)
class Facts:
    """An accelerator, and what its file says beyond it."""

    accelerator: Accelerator
    label_bytes: float  #: the marketing number [B]
    memory_type: str
    label_is_binary: bool = False  #: the marketing number is written in GiB
    flops_per_clock: Mapping[Dtype, float] = field(default_factory=dict)  #: dense, per core [FLOP]
    tensor_clock_hz: float = 0.0  #: the clock that the peaks are defined at [Hz]; 0: the maximum clock
    pcie_generation: int = 0
    unusual: Mapping[Dtype, str] = field(default_factory=dict)  #: why a ratio of peaks is right though odd


@dataclass(frozen=True)
class Finding:
    """One number that contradicts physics or a published limit (`refused`), or only looks wrong."""

    origin: str
    key: str
    value: str
    problem: str
    refused: bool = False

    def __str__(self) -> str:
        return f"{self.origin}: {self.key}: value {self.value} {self.problem}"


def finding(facts: Facts, key: str, value: str, problem: str, refused: bool = False) -> Finding:
    """A finding about `key` of the file that the facts come from."""
    return Finding(facts.accelerator.origin, key, value, problem, refused)

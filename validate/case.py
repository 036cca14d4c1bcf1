"""One kernel at one shape: what its row says, and what to run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rooflinekit.validate.device import Device

__all__ = ["TORCH", "Call", "Case", "Work", "cases_of", "fused", "normal"]

Call: TypeAlias = Callable[..., Any]

TORCH: dict[str, torch.dtype] = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """A call run(*hot, *cold).

    hot: what the kernel before has just written; cold: makes what comes from memory (weights, cache), anew for every
    call, so that no call finds it in a cache.
    """

    run: Callable[..., object]
    hot: tuple[Tensor, ...]
    cold: Callable[[], tuple[Tensor, ...]] = tuple


@dataclass(frozen=True)
class Case:
    """A row to measure. `shape` are the columns of the kernel table; `bytes` is what one call's inputs take [B]."""

    op: str
    backend: str
    shape: Mapping[str, Any]
    bytes: float
    build: Callable[[], Work]

    @property
    def key(self) -> str:
        """The same for the same kernel at the same shape, in whichever run."""
        return json.dumps([self.op, self.backend, dict(self.shape)], sort_keys=True)


def cases_of(made: Iterator[Case]) -> list[Case]:
    """Cases without repetitions, in order."""
    return list({case.key: case for case in made}.values())


def fused(call: Call, device: Device) -> Call:
    """One kernel for the whole expression where there is a compiler for the GPU, for any number of tokens."""
    return torch.compile(call, dynamic=True) if device.is_cuda else call


def normal(*size: int, dtype: str, device: torch.device) -> Tensor:
    """Fresh random numbers: zeros would be faster than real data, because they switch no transistors."""
    if dtype == "int8":
        return torch.randint(-127, 128, size, dtype=torch.int8, device=device)
    wide = torch.randn(size, dtype=torch.float32 if dtype == "fp32" else torch.bfloat16, device=device)
    return wide.to(TORCH[dtype])

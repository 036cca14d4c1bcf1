"""One kernel at one shape: what its row says, and what to run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rooflinekit.model.types.errors import ArchitectureError
from rooflinekit.validate.device import Device, version_of

Call: TypeAlias = Callable[..., Any]
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
VLLM = f"vllm {version_of('vllm')}".strip()


@dataclass(frozen=True)
class TimedWork:
    """A call run(*hot, *cold).

    hot: what the kernel before has just written; cold: makes what comes from memory (weights, cache), anew for every
    call, so that no call finds it in a cache.
    """

    run: Callable[..., object]
    hot: tuple[Tensor, ...]
    cold: Callable[[], tuple[Tensor, ...]] = tuple


@dataclass(frozen=True)
class TimedCase:
    """A row to measure. `shape` are the columns of the kernel table; `bytes` is what one call's inputs take [B]."""

    op: str
    backend: str
    shape: Mapping[str, Any]
    bytes: float
    build: Callable[[], TimedWork]
    engine: str = "gpt-fast"  #: whose kernel it is; "gpt-fast+vllm" where both run this very one
    source: str = "torch"  #: the library that the kernel comes from

    def by_vllm(self, kernel: str, source: str, build: Callable[[], TimedWork]) -> TimedCase:
        """The same by a kernel of vLLM's."""
        name = f"{VLLM}, {kernel}" if kernel else VLLM
        return replace(self, backend=name, build=build, engine="vllm", source=source)

    @property
    def named(self) -> dict[str, str]:
        """What a row says of it besides the shape; vLLM's kernels are of its release, others of the file's PyTorch."""
        release = {"engine_version": version_of("vllm")} if self.engine == "vllm" else {}
        return {"op": self.op, "backend": self.backend, "engine": self.engine, "kernel_source": self.source, **release}

    @property
    def kernel(self) -> str:
        """The operation and the library that runs it, at any shape."""
        return f"{self.op}, {self.backend}"

    @property
    def key(self) -> str:
        """The same for the same kernel at the same shape, in whichever run."""
        return json.dumps([self.op, self.backend, dict(self.shape)], sort_keys=True)


def fused(call: Call, device: Device) -> Call:
    """One kernel for the whole expression where there is a compiler for the GPU, for any number of tokens."""
    return _compiled(call) if device.is_cuda else call


@cache
def _compiled(call: Call) -> Call:
    return torch.compile(call, dynamic=True)


_MISSING = (ImportError, AttributeError, NotImplementedError, ArchitectureError)
_ABSENT = ("not available", "no available kernel", "not implemented", "could not run", "not compiled", "unsupported",
           "only supported on", "no kernel image", "not installed")  # fmt: skip
"""How libraries say that a kernel does not exist here."""


def why_not(error: Exception) -> dict[str, str]:
    """The status of what raised this ("oom", "missing" or "failed"), and one line of detail that says why."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return {"status": "oom", "detail": "out of memory"}
    detail = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    absent = isinstance(error, _MISSING) or any(word in detail.lower() for word in _ABSENT)
    return {"status": "missing" if absent else "failed", "detail": detail}


_DRAWN: ContextVar[torch.Generator | None] = ContextVar("drawn", default=None)


@contextmanager
def drawn_by(generator: torch.Generator) -> Iterator[None]:
    """Draw inputs on the CPU by this generator: checks compare the same numbers on every device."""
    token = _DRAWN.set(generator)
    try:
        yield
    finally:
        _DRAWN.reset(token)


def normal(*size: int, dtype: str, device: torch.device) -> Tensor:
    """Fresh random numbers: zeros would be faster than real data, because they switch no transistors."""
    drawn = _DRAWN.get()
    place = device if drawn is None else torch.device("cpu")
    wide = torch.float32 if dtype == "fp32" or drawn is not None else torch.bfloat16
    return torch.randn(size, dtype=wide, device=place, generator=drawn).to(device, TORCH[dtype])


def nibbles(k: int, n: int, device: torch.device) -> Tensor:
    """Random numbers of four bits [k, n], eight rows in one: int32 [k/8, n], the first in the lowest bits."""
    drawn = _DRAWN.get()
    place = device if drawn is None else torch.device("cpu")
    low, high = torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max
    return torch.randint(low, high, (k // 8, n), dtype=torch.int32, device=place, generator=drawn).to(device)


def shuffled(count: int, device: torch.device) -> Tensor:
    """The numbers below `count` in random order."""
    drawn = _DRAWN.get()
    return torch.randperm(count, device=device if drawn is None else "cpu", generator=drawn).to(device)

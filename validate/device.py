"""The device at hand: what it says about itself, never what a datasheet says about it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from rooflinekit.model.types.errors import InputError
from rooflinekit.validate.board import Board, open_board
from rooflinekit.validate.closed_loop import processor

__all__ = ["Device", "open_device", "version_of"]

_TOOLS = ("torch", "triton", "flashinfer-python")
_SMI = ("driver_version", "clocks.max.sm", "clocks.max.mem", "clocks.sm", "power.limit", "temperature.gpu")


@dataclass(frozen=True)
class Device:
    """Where kernels run. `cache_bytes` is the last cache in front of memory, which cold inputs must not be in."""

    torch: torch.device
    name: str
    cores: int  #: SMs, or threads that PyTorch uses
    memory_bytes: int
    cache_bytes: int
    facts: dict[str, Any]  #: everything else, for the head of the measurement file
    board: Board | None = None  #: of a GPU, where NVML is there

    @property
    def is_cuda(self) -> bool:
        """Whether it is a CUDA GPU."""
        return self.torch.type == "cuda"

    @property
    def dtype(self) -> str:
        """The format that models run in here: BF16 on a GPU; FP32 on a CPU, which often emulates 16 bit."""
        return "bf16" if self.is_cuda else "fp32"

    @property
    def free_bytes(self) -> int:
        """Memory that an allocation may take now [B]."""
        if self.is_cuda:
            kept = torch.cuda.memory_reserved(self.torch) - torch.cuda.memory_allocated(self.torch)
            return int(torch.cuda.mem_get_info(self.torch)[0]) + kept
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @contextmanager
    def watched(self) -> Iterator[dict[str, Any]]:
        """Columns of power, clocks and temperature over the block; none without a board to ask."""
        if self.board is None:
            yield {}
            return
        with self.board.watched() as columns:
            yield columns

    def synchronize(self) -> None:
        """Wait until everything launched has run."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)


def open_device(name: str | None) -> Device:
    """The device called "cpu", "cuda" or "cuda:1"; by default the first GPU, else the CPU.

    Raises InputError for a device that PyTorch does not see, naming those that it does.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = [f"cuda:{index}" for index in range(count)] + ["cpu"]
    wanted = {None: known[0], "cuda": "cuda:0"}.get(name, name)
    if wanted not in known:
        raise InputError(f"no device {name!r} here; PyTorch {torch.__version__} sees: {', '.join(known)}")
    return _cpu() if wanted == "cpu" else _cuda(torch.device(str(wanted)))


def version_of(package: str) -> str:
    """The installed version of a package, empty if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _software() -> dict[str, Any]:
    versions = {name: version_of(name) for name in _TOOLS}
    return {"versions": versions, "python": platform.python_version(), "system": platform.platform()}


def _cuda(device: torch.device) -> Device:
    torch.cuda.set_device(device)
    _make_compiler_strict()
    properties = torch.cuda.get_device_properties(device)
    facts = {
        "kind": "cuda",
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda or "",
        "visible": torch.cuda.device_count(),
        **_smi(str(getattr(properties, "uuid", "")) or str(device.index)),
        **_software(),
    }
    cache = int(getattr(properties, "L2_cache_size", 0))
    board = open_board(str(getattr(properties, "uuid", "")))
    memory = int(properties.total_memory)
    return Device(device, properties.name, properties.multi_processor_count, memory, cache, facts, board)


def _make_compiler_strict() -> None:
    """Many shapes compile a kernel many times; past its limit the compiler would return to eager without a word."""
    config: Any = torch._dynamo.config
    for name, value in (("recompile_limit", 128), ("fail_on_recompile_limit_hit", True)):
        if hasattr(config, name):
            setattr(config, name, value)


def _smi(identity: str) -> dict[str, str]:
    """Driver, clocks, power and temperature as nvidia-smi shows them; nothing if there is no nvidia-smi."""
    place = identity if identity.isdigit() else f"GPU-{identity.removeprefix('GPU-')}"
    command = ["nvidia-smi", f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader", "-i", place]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in shown.strip().splitlines()[0].split(",")] if shown.strip() else []
    return dict(zip(_SMI, values, strict=False))


def _cpu() -> Device:
    """One thread unless OMP_NUM_THREADS says more: threads that wait for each other measure whoever else is running."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
    torch.set_num_threads(threads)
    facts = {"kind": "cpu", "all_cores": cores, "instructions": torch.backends.cpu.get_cpu_capability(), **_software()}
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Device(torch.device("cpu"), processor(), threads, memory, _cpu_cache(), facts)


def _cpu_cache() -> int:
    """The largest cache that the kernel lists for the first core [B]; 0 if it lists none."""
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [path.read_text(encoding="ascii").strip() for path in folder.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1] in units), default=0)

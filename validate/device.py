"""The device at hand: what it says about itself, never what a datasheet says about it.

A GPU's board says power, clocks and temperature while kernels run, through NVML, which comes with the driver
(docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from rooflinekit.model.types.errors import InputError
from rooflinekit.validate.closed_loop import processor

_REASONS = {0x4: "power", 0x8: "hardware", 0x20: "temperature", 0x40: "temperature", 0x80: "power brake"}
"""Bits of the reasons why a clock is below what was asked for; idleness and a chosen clock are none of them."""
_EVERY = 0.05
"""Seconds between readings. The board's power is an average over up to a second, so short kernels read too low."""
_COLUMNS = (
    ("power_w", 1e-3, "nvmlDeviceGetPowerUsage", ()),
    ("power_limit_w", 1e-3, "nvmlDeviceGetEnforcedPowerLimit", ()),
    ("sm_mhz", 1.0, "nvmlDeviceGetClockInfo", (1,)),
    ("memory_mhz", 1.0, "nvmlDeviceGetClockInfo", (2,)),
    ("temperature_c", 1.0, "nvmlDeviceGetTemperature", (0,)),
    ("reasons", 1.0, "nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    ("joules", 1e-3, "nvmlDeviceGetTotalEnergyConsumption", ()),
)
"""Column, its unit over NVML's, the function that reads it, and that function's arguments; energy counts from the
driver's start, from Volta on."""
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
    board: Callable[[], dict[str, float]] | None = None  #: what a GPU's says now, where NVML is there

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
        """Fill the yielded columns with means of the board's readings when the block ends; none without a board.

        Power is the board's energy over the time where the block takes a second, because readings lag behind.
        """
        columns: dict[str, Any] = {}
        if self.board is None:
            yield columns
            return
        over, readings, start = threading.Event(), [self.board()], time.perf_counter()

        def read(now: Callable[[], dict[str, float]]) -> None:
            while not over.wait(_EVERY):
                readings.append(now())

        thread = threading.Thread(target=read, args=(self.board,), daemon=True)
        thread.start()
        try:
            yield columns
        finally:
            over.set()
            thread.join()
            last, seconds = self.board(), time.perf_counter() - start
            columns |= _summed(readings)
            if "joules" in last and seconds >= 1.0:
                columns["power_w"] = round((last["joules"] - readings[0]["joules"]) / seconds, 1)

    def synchronize(self) -> None:
        """Wait until everything launched has run."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)


def _summed(readings: list[dict[str, float]]) -> dict[str, Any]:
    """Means of readings, how many there were, and every reason for which a clock was held back."""
    names = {name: None for each in readings for name in each if name not in ("reasons", "joules")}
    columns: dict[str, Any] = {name: round(fmean(each[name] for each in readings if name in each), 1) for name in names}
    why = {word for bit, word in _REASONS.items() for each in readings if bit & int(each.get("reasons", 0.0))}
    return {**columns, "readings": len(readings), **({"throttled": sorted(why)} if why else {})}


def open_board(identity: str) -> Callable[[], dict[str, float]] | None:
    """What reads the board of the GPU with this UUID; None where there is no NVML, or it does not know the GPU."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle, uuid = ctypes.c_void_p(), f"GPU-{identity}" if identity[:4] not in ("GPU-", "MIG-") else identity
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return None
    return partial(readings, library, handle)


def readings(library: Any, handle: Any) -> dict[str, float]:
    """Power and its limit [W], clocks [MHz], temperature [°C], bits of what throttles, energy so far [J].

    What the driver does not have is left out.
    """
    found = {}
    for column, unit, name, arguments in _COLUMNS:
        value = ctypes.c_ulonglong(0)  # functions of 32 bits write the lower half
        if not getattr(library, name)(handle, *arguments, ctypes.byref(value)):
            found[column] = unit * value.value
    return found


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
    uuid = str(getattr(properties, "uuid", ""))
    facts = {
        "kind": "cuda",
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda or "",
        "visible": torch.cuda.device_count(),
        **_smi(uuid or str(device.index)),
        **_software(),
    }
    cache, memory = int(getattr(properties, "L2_cache_size", 0)), int(properties.total_memory)
    return Device(device, properties.name, properties.multi_processor_count, memory, cache, facts, open_board(uuid))


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

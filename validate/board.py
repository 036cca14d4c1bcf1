"""What a GPU's board says while kernels run: power, clocks, temperature, and what holds the clock back.

NVML comes with the driver, so nothing has to be installed (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Any

__all__ = ["Board", "open_board"]

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


class Board:
    """Readings of one GPU; each is left out where the driver does not have it."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def now(self) -> dict[str, float]:
        """Power and its limit [W], clocks [MHz], temperature [°C], bits of what throttles, energy so far [J]."""
        found = {}
        for column, unit, name, arguments in _COLUMNS:
            value = ctypes.c_ulonglong(0)  # functions of 32 bits write the lower half
            if not getattr(self._library, name)(self._handle, *arguments, ctypes.byref(value)):
                found[column] = unit * value.value
        return found

    @contextmanager
    def watched(self) -> Iterator[dict[str, Any]]:
        """Fill the yielded columns when the block ends: means of the readings taken meanwhile.

        Power is the board's energy over the time where the block takes a second, because readings lag behind.
        """
        columns: dict[str, Any] = {}
        over = threading.Event()
        start, readings = time.perf_counter(), [self.now()]

        def read() -> None:
            while not over.wait(_EVERY):
                readings.append(self.now())

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            yield columns
        finally:
            over.set()
            thread.join()
            last, seconds = self.now(), time.perf_counter() - start
            columns |= _summed(readings)
            if "joules" in last and seconds >= 1.0:
                columns["power_w"] = round((last["joules"] - readings[0]["joules"]) / seconds, 1)


def _summed(readings: list[dict[str, float]]) -> dict[str, Any]:
    """Means of readings, how many there were, and every reason for which a clock was held back."""
    names = {name: None for each in readings for name in each if name not in ("reasons", "joules")}
    columns: dict[str, Any] = {name: round(fmean(each[name] for each in readings if name in each), 1) for name in names}
    why = {word for bit, word in _REASONS.items() for each in readings if bit & int(each.get("reasons", 0.0))}
    return {**columns, "readings": len(readings), **({"throttled": sorted(why)} if why else {})}


def open_board(identity: str) -> Board | None:
    """The board of the GPU with this UUID; None where there is no NVML, or it does not know the GPU."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle = ctypes.c_void_p()
    uuid = identity if identity.startswith(("GPU-", "MIG-")) else f"GPU-{identity}"
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return None
    return Board(library, handle)

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
_SM, _MEMORY = 1, 2


class Board:
    """Readings of one GPU; each is left out where the driver does not have it."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def _read(self, name: str, *arguments: int, kind: type[Any] = ctypes.c_uint) -> int | None:
        value = kind()
        code = getattr(self._library, name)(self._handle, *arguments, ctypes.byref(value))
        return None if code else int(value.value)

    def now(self) -> dict[str, float]:
        """Power and its limit [W], clocks [MHz], temperature [°C], and the bits of what throttles."""
        milliwatts = {
            "power_w": self._read("nvmlDeviceGetPowerUsage"),
            "power_limit_w": self._read("nvmlDeviceGetEnforcedPowerLimit"),
        }
        others = {
            "sm_mhz": self._read("nvmlDeviceGetClockInfo", _SM),
            "memory_mhz": self._read("nvmlDeviceGetClockInfo", _MEMORY),
            "temperature_c": self._read("nvmlDeviceGetTemperature", 0),
            "reasons": self._read("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong),
        }
        found = {name: value / 1e3 for name, value in milliwatts.items() if value is not None}
        return found | {name: float(value) for name, value in others.items() if value is not None}

    def joules(self) -> float | None:
        """Energy since the driver was loaded, from Volta on."""
        spent = self._read("nvmlDeviceGetTotalEnergyConsumption", kind=ctypes.c_ulonglong)
        return None if spent is None else spent / 1e3

    @contextmanager
    def watched(self) -> Iterator[dict[str, Any]]:
        """Fill the yielded columns when the block ends: means of the readings taken meanwhile.

        Power is the board's energy over the time where the block takes a second, because readings lag behind.
        """
        columns: dict[str, Any] = {}
        readings, over = [self.now()], threading.Event()

        def read() -> None:
            while not over.wait(_EVERY):
                readings.append(self.now())

        thread = threading.Thread(target=read, daemon=True)
        start, before = time.perf_counter(), self.joules()
        thread.start()
        try:
            yield columns
        finally:
            over.set()
            thread.join()
            after, seconds = self.joules(), time.perf_counter() - start
            columns |= _summed(readings)
            if before is not None and after is not None and seconds >= 1.0:
                columns["power_w"] = round((after - before) / seconds, 1)


def _summed(readings: list[dict[str, float]]) -> dict[str, Any]:
    """Means of readings, how many there were, and every reason for which a clock was held back."""
    names = {name: None for each in readings for name in each if name != "reasons"}
    columns: dict[str, Any] = {name: round(fmean(each[name] for each in readings if name in each), 1) for name in names}
    bits = 0
    for each in readings:
        bits |= int(each.get("reasons", 0.0))
    why = sorted({word for bit, word in _REASONS.items() if bits & bit})
    return {**columns, "readings": len(readings), **({"throttled": why} if why else {})}


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

"""What the device reaches at best: memory bandwidth over sizes, matrix rate by format, the cost of a launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.validate.case import Work, normal
from rooflinekit.validate.device import Device
from rooflinekit.validate.matrix_kernels import gemm_cases
from rooflinekit.validate.timing import Timing, capture, summary, time_work

__all__ = ["Ceiling", "bandwidth", "ceilings", "launch_cost", "rate"]

Ceiling = tuple[dict[str, Any], Callable[[float], dict[str, Any]]]
"""The columns of a row, and what measures the rest of it within some seconds."""
LARGEST = {"cuda": 30, "cpu": 28}
"""Largest buffer whose bandwidth is measured [log2 of bytes]."""
_LAUNCHES = 200


def ceilings(device: Device, quick: bool) -> Iterator[Ceiling]:
    """Every ceiling of one device; `quick` takes fewer sizes."""
    for exponent in range(16, LARGEST[device.torch.type] + 1, 2 if quick else 1):
        for kind in ("copy", "read"):
            size = 2**exponent
            yield {"kind": kind, "bytes": size, "unit": "B/s"}, partial(bandwidth, kind, size, device)
    for dtype in ("fp32", "bf16", "fp8") if device.is_cuda else (device.dtype,):
        for size in _gemm_sizes(device, quick):
            yield {"kind": "gemm", "dtype": dtype, "size": size, "unit": "FLOP/s"}, partial(rate, dtype, size, device)
    for launch in ("eager", "graph") if device.is_cuda else ("eager",):
        yield {"kind": "launch", "launch": launch, "unit": "s"}, partial(_launch, launch, device)


def _gemm_sizes(device: Device, quick: bool) -> Sequence[int]:
    sizes = (1024, 2048, 4096, 8192, 16384) if device.is_cuda else (256, 512, 1024, 1536)
    return sizes[1:-1] if quick else sizes


def _row(timing: Timing, value: float) -> dict[str, Any]:
    return {"launch": timing.launch, "value": float(f"{value:.5g}"), **summary(timing.samples)}


def bandwidth(kind: str, size: int, device: Device, seconds: float) -> dict[str, Any]:
    """Copy: half of the bytes read, half written; read: a maximum over all. Small ones show caches."""
    draw = partial(normal, dtype=device.dtype, device=device.torch)
    count = int(size / parse_dtype(device.dtype).bytes)
    if kind == "copy":
        work = Work(lambda x, y: y.copy_(x), (draw(count // 2), draw(count // 2)))
    else:
        work = Work(lambda x: x.amax(), (draw(count),))
    timing = time_work(work, device, seconds)
    return _row(timing, size / min(timing.samples))


def rate(dtype: str, size: int, device: Device, seconds: float) -> dict[str, Any]:
    """A square product by PyTorch; the FLOP/s of its best pass."""
    *_, case = gemm_cases(size, size, size, dtype, device)
    timing = time_work(case.build(), device, seconds)
    flops: Numeric = 2.0 * float(size) ** 3
    return _row(timing, flops / min(timing.samples))


def _launch(launch: str, device: Device, seconds: float) -> dict[str, Any]:
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < 5 or time.perf_counter() < end:
        samples.append(launch_cost(launch, device))
    timing = Timing(tuple(samples), launch)
    return _row(timing, summary(timing.samples)["latency_us"] * 1e-6)


def launch_cost(launch: str, device: Device) -> float:
    """Seconds of one launch of many that do next to nothing: of the host if eager, of the GPU in a graph."""
    x = normal(1, dtype="fp32", device=device.torch)

    def add() -> None:
        for _ in range(_LAUNCHES):
            x.add_(1.0)

    call: Callable[[], object] = capture(add).replay if launch == "graph" else add
    call()
    device.synchronize()
    start = time.perf_counter()
    call()
    device.synchronize()
    return (time.perf_counter() - start) / _LAUNCHES

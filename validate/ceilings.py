"""What the device reaches at best: memory bandwidth over sizes, matrix rate by format, the cost of a launch.

Collectives run over 2, 4 ... and all of the visible GPUs (NCCL), eager and in a graph; over two CPU processes (gloo).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.validate.case import TimedWork, normal
from rooflinekit.validate.device import Device
from rooflinekit.validate.matrix_kernels import gemm_cases
from rooflinekit.validate.timing import Timing, capture, summary, time_work

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
        work = TimedWork(lambda x, y: y.copy_(x), (draw(count // 2), draw(count // 2)))
    else:
        work = TimedWork(lambda x: x.amax(), (draw(count),))
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


_REPEATS, _CALLS = 15, 10
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
"""As kernel tables name them; `bytes` is what one accelerator holds before or after, whichever is more."""


def collective_rows(device: Device, quick: bool) -> Iterator[dict[str, Any]]:
    """Rows over counts, kinds, modes and sizes; nothing for a single GPU.

    On the CPU those of two processes, as ceilings; on GPUs kernels of the table `comm`.
    """
    if not device.is_cuda:
        yield from _together(device, 2, KINDS, [2**exponent for exponent in range(10, 23, 6)])
        return
    whole, sizes = torch.cuda.device_count(), [2**exponent for exponent in range(10, 29, 3 if quick else 2)]
    for gpus in sorted({whole, *(2**exponent for exponent in range(1, whole.bit_length()))} - {1}):
        yield from _together(device, gpus, KINDS, sizes)


def _together(device: Device, gpus: int, kinds: tuple[str, ...], sizes: list[int]) -> Iterator[dict[str, Any]]:
    """One group of processes: all kinds, modes and sizes in turn."""
    backend, table = ("nccl", "comm") if device.is_cuda else ("gloo", "ceiling")
    row = {"op": table, "backend": backend, "gpus": gpus, "dtype": device.dtype}
    name = "collective" if device.is_cuda else "kind"
    with tempfile.TemporaryDirectory() as folder:
        try:
            mp.spawn(_worker, (device.torch.type, gpus, kinds, sizes, folder), nprocs=gpus, join=True)
            measured = json.loads(Path(folder, "samples.json").read_text(encoding="ascii"))
        except Exception as error:
            detail = f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
            yield {**row, name: kinds[0], "bytes": 0, "status": "failed", "detail": detail}
            return
    for kind, mode, size, samples in measured:
        timed = summary(tuple(samples))
        own = {"mode": mode} if device.is_cuda else {"value": float(f"{size / timed['latency_us'] * 1e6:.5g}"),
                                                     "unit": "B/s"}  # fmt: skip
        yield {**row, name: kind, "bytes": size, **own, "launch": mode, **timed}


def _worker(  # noqa: PLR0913, PLR0917 - as spawn passes them
    rank: int, device: str, world: int, kinds: tuple[str, ...], sizes: list[int], folder: str
) -> None:
    """One rank: every kind, mode and size; ranks meet in the folder, and the first writes all samples down [s]."""
    place = torch.device(device, rank if device == "cuda" else None)
    if device == "cuda":
        torch.cuda.set_device(place)
    else:
        torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=meet, rank=rank, world_size=world)
    modes = ("graph", "eager") if device == "cuda" else ("eager",)
    measured = [(kind, mode, n, measure(kind, mode, n, place)) for kind in kinds for mode in modes for n in sizes]
    if rank == 0:
        Path(folder, "samples.json").write_text(json.dumps(measured), encoding="ascii")
    dist.destroy_process_group()


def measure(kind: str, mode: str, size: int, place: torch.device) -> list[float]:
    """Seconds of one collective of `size` bytes, a sample every ten."""
    dtype = torch.float32 if place.type == "cpu" else torch.bfloat16
    call = collective(kind, torch.randn(size // dtype.itemsize, dtype=dtype, device=place))

    def ten() -> None:
        for _ in range(_CALLS):
            call()

    def wait() -> None:
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    passes: Callable[[], object] = capture(ten).replay if mode == "graph" else ten  # all ranks capture at once
    samples = []
    for _ in range(_REPEATS + 2):
        dist.barrier()
        wait()
        start = time.perf_counter()
        passes()
        wait()
        samples.append((time.perf_counter() - start) / _CALLS)
    return samples[2:]


def collective(kind: str, data: Tensor) -> Callable[[], object]:
    """A call that moves `data`; a maximum stays finite however often it is taken."""
    world = dist.get_world_size()
    part = data[: len(data) // world].clone()
    whole, most = data[: len(part) * world], dist.ReduceOp.MAX
    return {
        "all_reduce": partial(dist.all_reduce, data, op=most),
        "all_gather": partial(dist.all_gather_into_tensor, whole, part),
        "reduce_scatter": partial(dist.reduce_scatter_tensor, part, whole, op=most),
        "alltoall": partial(dist.all_to_all_single, torch.empty_like(whole), whole),
    }[kind]

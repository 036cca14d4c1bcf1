"""Collectives over 2, 4 ... of the visible GPUs (NCCL), eager and inside a graph; over two CPU processes with gloo."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from rooflinekit.validate.device import Device
from rooflinekit.validate.timing import capture, summary

__all__ = ["KINDS", "collective_rows"]

_REPEATS, _CALLS = 15, 10
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
"""As kernel tables name them; `bytes` is what one accelerator holds before or after, whichever is more."""


def collective_rows(device: Device, quick: bool) -> Iterator[dict[str, Any]]:
    """Rows over counts, kinds, modes and sizes; nothing for a single GPU.

    On the CPU an all-reduce of two processes, as a ceiling; on GPUs kernels of the table `comm`.
    """
    if not device.is_cuda:
        yield from _together(device, 2, KINDS[:1], [2**exponent for exponent in range(10, 23, 6)])
        return
    gpus = 2
    while gpus <= torch.cuda.device_count():
        yield from _together(device, gpus, KINDS, [2**exponent for exponent in range(10, 29, 3 if quick else 2)])
        gpus *= 2


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

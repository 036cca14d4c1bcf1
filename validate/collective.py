"""Collectives over 2, 4 ... of the visible GPUs (NCCL), eager and inside a graph; over two CPU processes with gloo."""

from __future__ import annotations

import json
import os
import socket
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
from rooflinekit.validate.timing import summary

__all__ = ["KINDS", "collective_rows"]

_REPEATS, _CALLS = 15, 10
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
"""As kernel tables name them; `bytes` is what one accelerator holds before or after, whichever is more."""


def collective_rows(device: Device, quick: bool) -> Iterator[dict[str, Any]]:
    """Rows over counts, kinds, modes and sizes; nothing for a single GPU.

    On the CPU an all-reduce of two processes, as a ceiling; on GPUs kernels of the table `comm`.
    """
    if not device.is_cuda:
        yield from _together(device, 2, ("all_reduce",), [2**exponent for exponent in range(10, 23, 6)])
        return
    sizes = [2**exponent for exponent in range(10, 29, 3 if quick else 2)]
    gpus = 2
    while gpus <= torch.cuda.device_count():
        yield from _together(device, gpus, KINDS, sizes)
        gpus *= 2


def _together(device: Device, gpus: int, kinds: tuple[str, ...], sizes: list[int]) -> Iterator[dict[str, Any]]:
    """One group of processes: all kinds, modes and sizes in turn."""
    backend, dtype = ("nccl", "bf16") if device.is_cuda else ("gloo", "fp32")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "samples.json"
        try:
            mp.spawn(
                _worker, ((device.torch.type, gpus), (kinds, sizes), str(out), _free_port()), nprocs=gpus, join=True
            )
            measured = json.loads(out.read_text(encoding="ascii"))
        except Exception as error:
            detail = f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
            failed = _columns(device, gpus, (kinds[0], "eager", 0), dtype)
            yield {**failed, "backend": backend, "status": "failed", "detail": detail}
            return
    for kind, mode, size, samples in measured:
        row = summary(tuple(samples))
        value = {} if device.is_cuda else {"value": float(f"{size / row['latency_us'] * 1e6:.5g}"), "unit": "B/s"}
        yield {**_columns(device, gpus, (kind, mode, size), dtype), **value, "backend": backend, "launch": mode, **row}


def _columns(device: Device, gpus: int, what: tuple[str, str, int], dtype: str) -> dict[str, Any]:
    kind, mode, size = what
    shape = {"gpus": gpus, "bytes": size, "dtype": dtype}
    if device.is_cuda:
        return {"op": "comm", "collective": kind, "mode": mode, **shape}
    return {"op": "ceiling", "kind": kind, **shape}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _worker(rank: int, group: tuple[str, int], work: tuple[tuple[str, ...], list[int]], out: str, port: int) -> None:
    """One rank: every kind, mode and size; the first rank writes all samples down [s]."""
    (device, world), (kinds, sizes) = group, work
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place = torch.device(device, rank if device == "cuda" else None)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", rank=rank, world_size=world)
    modes = ("graph", "eager") if place.type == "cuda" else ("eager",)
    measured = [
        (kind, mode, size, measure(kind, mode, size, place)) for kind in kinds for mode in modes for size in sizes
    ]
    if rank == 0:
        Path(out).write_text(json.dumps(measured), encoding="ascii")
    dist.destroy_process_group()


def measure(kind: str, mode: str, size: int, place: torch.device) -> list[float]:
    """Seconds of one collective of `size` bytes, a sample every ten."""
    wide = place.type == "cpu"
    count = size // (4 if wide else 2)
    data = torch.randn(count, dtype=torch.float32 if wide else torch.bfloat16, device=place)
    call = collective(kind, data)
    passes: Callable[[], object] = partial(_ten, call)
    if mode == "graph":
        passes = _captured(call)
    samples = []
    for _ in range(_REPEATS + 2):
        dist.barrier()
        _wait(place)
        start = time.perf_counter()
        passes()
        _wait(place)
        samples.append((time.perf_counter() - start) / _CALLS)
    return samples[2:]


def collective(kind: str, data: Tensor) -> Callable[[], object]:
    """A call that moves `data`; a maximum stays finite however often it is taken."""
    world = dist.get_world_size()
    part = data[: len(data) // world].clone()
    if kind == "all_reduce":
        return partial(dist.all_reduce, data, op=dist.ReduceOp.MAX)
    if kind == "all_gather":
        return partial(dist.all_gather_into_tensor, data[: len(part) * world], part)
    if kind == "reduce_scatter":
        return partial(dist.reduce_scatter_tensor, part, data[: len(part) * world], op=dist.ReduceOp.MAX)
    return partial(dist.all_to_all_single, torch.empty_like(data[: len(part) * world]), data[: len(part) * world])


def _ten(call: Callable[[], object]) -> None:
    for _ in range(_CALLS):
        call()


def _captured(call: Callable[[], object]) -> Callable[[], object]:
    """Ten calls in a CUDA graph; all ranks capture at once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _ten(call)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _ten(call)
    return graph.replay


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)

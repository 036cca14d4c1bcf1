"""All-reduce over the GPUs that are visible (NCCL), or over two processes on the CPU (gloo)."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rooflinekit.validate.device import Device
from rooflinekit.validate.timing import summary

__all__ = ["all_reduce_rows"]

_REPEATS, _CALLS = 15, 10


def all_reduce_rows(device: Device, quick: bool) -> Iterator[dict[str, Any]]:
    """Rows over message sizes; nothing for a single GPU. On the CPU a ceiling, on GPUs a kernel of the table `comm`."""
    gpus = torch.cuda.device_count() if device.is_cuda else 2
    if gpus < 2:
        return
    sizes = [2**exponent for exponent in (range(10, 23, 6) if not device.is_cuda else range(10, 29, 3 if quick else 1))]
    backend = "nccl" if device.is_cuda else "gloo"
    dtype = "bf16" if device.is_cuda else "fp32"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "samples.json"
        try:
            mp.spawn(_worker, ((device.torch.type, gpus), sizes, str(out), _free_port()), nprocs=gpus, join=True)
            measured = json.loads(out.read_text(encoding="ascii"))
        except Exception as error:
            detail = f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
            yield {**_columns(device, gpus, 0, dtype), "backend": backend, "status": "failed", "detail": detail}
            return
    for size, samples in zip(sizes, measured, strict=True):
        row = summary(tuple(samples))
        rate = {} if device.is_cuda else {"value": float(f"{size / row['latency_us'] * 1e6:.5g}"), "unit": "B/s"}
        yield {**_columns(device, gpus, size, dtype), **rate, "backend": backend, "launch": "eager", **row}


def _columns(device: Device, gpus: int, size: int, dtype: str) -> dict[str, Any]:
    shape = {"gpus": gpus, "bytes": size, "dtype": dtype}
    if device.is_cuda:
        return {"op": "comm", "collective": "all_reduce", "mode": "eager", **shape}
    return {"op": "ceiling", "kind": "all_reduce", **shape}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _worker(rank: int, group: tuple[str, int], sizes: list[int], out: str, port: int) -> None:
    """One rank: every size in turn; the first rank writes the samples of all sizes down [s]."""
    kind, world = group
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place = torch.device(kind, rank if kind == "cuda" else None)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", rank=rank, world_size=world)
    measured = [_measure(size, place) for size in sizes]
    if rank == 0:
        Path(out).write_text(json.dumps(measured), encoding="ascii")
    dist.destroy_process_group()


def _measure(size: int, place: torch.device) -> list[float]:
    """Seconds of one all-reduce of `size` bytes, a sample every ten."""
    wide = place.type == "cpu"
    data = torch.randn(size // (4 if wide else 2), dtype=torch.float32 if wide else torch.bfloat16, device=place)
    samples = []
    for _ in range(_REPEATS + 2):
        dist.barrier()
        _wait(place)
        start = time.perf_counter()
        for _ in range(_CALLS):
            dist.all_reduce(data, op=dist.ReduceOp.MAX)  # a maximum stays finite however often it is taken
        _wait(place)
        samples.append((time.perf_counter() - start) / _CALLS)
    return samples[2:]


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)

"""How long a call takes: cold weights and cache, warm activations, many repeats, the median and its spread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch

from rooflinekit.validate.case import Work
from rooflinekit.validate.device import Device

__all__ = ["Timing", "UncapturableError", "summary", "time_work"]

_PASS, _MOST_CALLS = 1e-3, 32
"""Least duration of one timed pass [s], which hides the clock's own cost; calls that a pass has at most."""
_REPEATS = (5, 40)
_POOL = 0.25
"""Share of the free memory that copies of cold inputs may take."""
_FAR = 5.0
"""Median absolute deviations beyond which a sample is called an outlier; it stays in the file and in the median."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, one sample a pass; `launch` is "graph" (a replay, no host time) or "eager"."""

    samples: tuple[float, ...]
    launch: str


def summary(samples: tuple[float, ...]) -> dict[str, Any]:
    """Median, spread, repeats, outliers and raw samples as a row has them [us].

    >>> row = summary((1e-6, 2e-6, 3e-6, 4e-6, 90e-6))
    >>> row["latency_us"], row["repeats"], row["outliers"]
    (3.0, 5, 1)
    """
    us = [sample * 1e6 for sample in samples]
    centre = median(us)
    apart = median(abs(each - centre) for each in us)
    tenths = quantiles(us, n=10, method="inclusive") if len(us) > 1 else [centre] * 9
    return {
        "latency_us": _round(centre),
        "p10_us": _round(tenths[0]),
        "p90_us": _round(tenths[-1]),
        "repeats": len(us),
        "outliers": sum(abs(each - centre) > _FAR * apart for each in us) if apart else 0,
        "samples_us": [_round(each) for each in us],
    }


def _round(value: float) -> float:
    return float(f"{value:.6g}")


class UncapturableError(RuntimeError):
    """A kernel cannot be in a CUDA graph; the process that tried has a damaged allocator and must end."""


def time_work(work: Work, device: Device, seconds: float, *, eager: bool = False) -> Timing:
    """Repeat passes over distinct cold inputs for `seconds`, at least five times; on a GPU in a graph unless `eager`.

    Raises UncapturableError where the call cannot be captured.
    """
    first = work.cold()
    work.run(*work.hot, *first)  # compiles, allocates workspaces
    device.synchronize()
    once = _clock(lambda: work.run(*work.hot, *first), device)
    size = sum(tensor.nbytes for tensor in first)
    calls = max(1, min(math.ceil(_PASS / once), _MOST_CALLS, int(_POOL * device.free_bytes / max(size, 1))))
    sets = [first] + [work.cold() for _ in range(calls - 1)] if first else [()] * calls
    return _time_cuda(work, sets, device, seconds, eager) if device.is_cuda else _time_cpu(work, sets, device, seconds)


def _clock(call: Callable[[], object], device: Device) -> float:
    """Seconds until a call has run."""
    start = time.perf_counter()
    call()
    device.synchronize()
    return time.perf_counter() - start


def _sample(take: Callable[[], float], seconds: float) -> tuple[float, ...]:
    """Two passes to warm up, then samples until the time is over."""
    take()
    take()
    least, most = _REPEATS
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < least or (len(samples) < most and time.perf_counter() < end):
        samples.append(take())
    return tuple(samples)


def _flusher(work: Work, device: Device) -> Callable[[], None]:
    """Push everything out of the last cache, then bring the activations back."""
    buffer = torch.empty(max(2 * device.cache_bytes, 1), dtype=torch.int8, device=device.torch)

    def flush() -> None:
        buffer.fill_(1)
        for tensor in work.hot:
            tensor.view(torch.int8).amax() if tensor.is_contiguous() and tensor.dim() else tensor.clone()

    return flush


def _time_cpu(work: Work, sets: list[tuple[Any, ...]], device: Device, seconds: float) -> Timing:
    flush = _flusher(work, device)

    def take() -> float:
        flush()
        start = time.perf_counter()
        for cold in sets:
            work.run(*work.hot, *cold)
        return (time.perf_counter() - start) / len(sets)

    return Timing(_sample(take, seconds), "eager")


def _time_cuda(work: Work, sets: list[tuple[Any, ...]], device: Device, seconds: float, eager: bool) -> Timing:
    """Events around the replay of a graph of all calls; around the calls themselves where they cannot be captured.

    The flush keeps the GPU busy while the host enqueues what is timed, so no launch latency is seen.
    """
    graph = None if eager else _capture(work, sets)
    flush = _flusher(work, device)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def take() -> float:
        flush()
        start.record()
        if graph is not None:
            graph.replay()
        else:
            _run_all(work, sets)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / len(sets)  # elapsed_time is in ms

    return Timing(_sample(take, seconds), "eager" if graph is None else "graph")


def _run_all(work: Work, sets: list[tuple[Any, ...]]) -> None:
    for cold in sets:
        work.run(*work.hot, *cold)


def _capture(work: Work, sets: list[tuple[Any, ...]]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of all calls (docs.pytorch.org, CUDA graphs)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _run_all(work, sets[:3])
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            _run_all(work, sets)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UncapturableError(str(error)) from None
    return graph

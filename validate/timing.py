"""How long a call takes: cold weights and cache, warm activations, repeats until the median is known, and its spread.

A burst of passes is what a kernel takes in a step; a sustained pass of over a second shows what is left of it when the
board reaches its power limit, and the warm time what a benchmark in a loop would show.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any

import torch

from rooflinekit.validate.case import TimedWork
from rooflinekit.validate.device import Device

_PASS, _MOST_CALLS = 1e-3, 32
"""Least duration of one timed pass [s], which hides the clock's own cost; calls that a pass has at most."""
_REPEATS = (8, 200)
_SURE = 0.02
"""Half width of the median's 95 % interval, over the median, at which no more passes are taken."""
_LONGER = 2.0
"""Times the usual seconds that an unsure median may take."""
_BLOCK, _CLOCK = (1e-4, 2e-2), 2e9
"""Least and most time for which the GPU is kept from starting while the host enqueues a pass [s], and the cycles a
second of `torch.cuda._sleep`: at a lower clock it blocks longer, which does no harm."""
SUSTAINED, LONG = 1.2, 1e-4
"""Duration of a sustained pass [s], and of the calls that are given one: shorter ones never fill a GPU. A board's
counter of energy is read at both ends of a pass, so it needs no longer one."""
_POOL = 0.25
"""Share of the free memory that copies of cold inputs may take."""
_FAR = 5.0
"""Median absolute deviations beyond which a sample is called an outlier; it stays in the file and in the median."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, one sample a pass; `launch` is "graph" (a replay, no host time) or "eager"."""

    samples: tuple[float, ...]
    launch: str
    warm: float = 0.0  #: the same call again and again on the same inputs
    again: Callable[[], object] | None = None  #: one pass more on a GPU, and how many calls it has
    calls: int = 1


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
    far = sum(abs(each - centre) > _FAR * apart for each in us) if apart else 0
    return {
        "latency_us": _round(centre), "p10_us": _round(tenths[0]), "p90_us": _round(tenths[-1]), "repeats": len(us),
        "sure": _round(unsure(us)), "outliers": far, "samples_us": [_round(each) for each in us],
    }  # fmt: skip


def unsure(samples: Sequence[float]) -> float:
    """Half width of the median's 95 % interval over the median, from order statistics (Hollander and Wolfe, 3.6).

    >>> round(unsure([10.0, 11.0, 9.0, 10.0, 10.0, 10.0, 12.0, 10.0, 10.0]), 3)
    0.1
    """
    ordered, n = sorted(samples), len(samples)
    reach = math.ceil(0.98 * math.sqrt(n))  # 1.96·√n/2 ranks either way
    low, high = max((n - 1) // 2 - reach, 0), min(n // 2 + reach, n - 1)
    return (ordered[high] - ordered[low]) / 2.0 / median(ordered)


def sustained(timing: Timing, device: Device, seconds: float = SUSTAINED) -> dict[str, Any]:
    """Time of one call [us] when passes follow each other without a pause, and what the board says meanwhile."""
    assert timing.again is not None
    with device.watched() as columns:
        passes, start = 0, time.perf_counter()
        while not passes or time.perf_counter() - start < seconds:
            timing.again()
            passes += 1
            if passes % 8 == 0:
                device.synchronize()
        device.synchronize()
        now = time.perf_counter() - start
    return {"sustained_us": _round(1e6 * now / (passes * timing.calls)), **columns}


def _round(value: float) -> float:
    return float(f"{value:.6g}")


class UncapturableError(RuntimeError):
    """A kernel cannot be in a CUDA graph; the process that tried has a damaged allocator and must end."""


def time_work(work: TimedWork, device: Device, seconds: float, *, eager: bool = False) -> Timing:
    """Repeat passes over distinct cold inputs for `seconds`, at least eight times; on a GPU in a graph unless `eager`.

    Raises UncapturableError where the call cannot be captured.
    """
    first = work.cold()
    work.run(*work.hot, *first)  # compiles, allocates workspaces
    device.synchronize()
    once = _clock(lambda: work.run(*work.hot, *first), device)
    size = sum(tensor.nbytes for tensor in first)
    calls = max(1, min(math.ceil(_PASS / once), _MOST_CALLS, int(_POOL * device.free_bytes / max(size, 1))))
    sets = [first] + [work.cold() for _ in range(calls - 1)] if first else [()] * calls

    def run(sets: list[tuple[Any, ...]]) -> None:
        for cold in sets:
            work.run(*work.hot, *cold)

    graphed = device.is_cuda and not eager

    def over(sets: list[tuple[Any, ...]]) -> Callable[[], object]:
        return capture(partial(run, sets), partial(run, sets[:3])).replay if graphed else partial(run, sets)

    again, flush = over(sets), _flusher(work, device)
    take = _on_gpu(again, once * calls) if device.is_cuda else lambda: _clock(again, device)

    def sample() -> float:
        flush()
        return take() / calls

    samples = _sample(sample, seconds)
    warm = _warm(over([first] * calls), device, seconds) / calls
    return Timing(samples, "graph" if graphed else "eager", warm, again if device.is_cuda else None, calls)


def _clock(call: Callable[[], object], device: Device) -> float:
    """Seconds until a call has run."""
    start = time.perf_counter()
    call()
    device.synchronize()
    return time.perf_counter() - start


def _on_gpu(again: Callable[[], object], enqueued: float) -> Callable[[], float]:
    """Seconds of a pass between two events; the host needs at most `enqueued` seconds to enqueue it.

    A kernel that only waits keeps the GPU from starting until the host has enqueued everything: without it a kernel of
    a few microseconds would seem as slow as the launch.
    """
    cycles = int(_CLOCK * min(max(enqueued, _BLOCK[0]), _BLOCK[1]))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def take() -> float:
        torch.cuda._sleep(cycles)
        start.record()
        again()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3  # elapsed_time is in ms

    return take


def _sample(take: Callable[[], float], seconds: float) -> tuple[float, ...]:
    """Two passes to warm up, then samples until the median is sure, or twice the time is over."""
    take()
    take()
    least, most = _REPEATS
    samples: list[float] = []
    end = time.perf_counter() + _LONGER * seconds
    while len(samples) < least or (len(samples) < most and time.perf_counter() < end and unsure(samples) > _SURE):
        samples.append(take())
    return tuple(samples)


def _flusher(work: TimedWork, device: Device) -> Callable[[], None]:
    """Push everything out of the last cache, then bring the activations back."""
    buffer = torch.empty(max(2 * device.cache_bytes, 1), dtype=torch.int8, device=device.torch)

    def flush() -> None:
        buffer.fill_(1)
        for tensor in work.hot:
            tensor.view(torch.int8).amax() if tensor.is_contiguous() and tensor.dim() else tensor.clone()

    return flush


def _warm(once: Callable[[], object], device: Device, seconds: float) -> float:
    """Seconds of one pass of many on the same inputs."""
    count = max(1, min(int(seconds / 4.0 / max(_clock(once, device), 1e-7)), 1000))
    return _clock(lambda: [once() for _ in range(count)], device) / count


def capture(call: Callable[[], object], warm_up: Callable[[], object] | None = None) -> torch.cuda.CUDAGraph:
    """A CUDA graph of a call that has been warmed up on a stream of its own (docs.pytorch.org, CUDA graphs).

    Raises UncapturableError where the call cannot be captured.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (warm_up or call)()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UncapturableError(str(error)) from None
    return graph

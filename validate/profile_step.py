"""One step under PyTorch's profiler, as the events that `attribution` splits."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile

from rooflinekit.validate.attribution import Event

__all__ = ["profile_step", "read_trace"]

_KINDS: dict[str, Literal["kernel", "launch", "operator"]] = {
    "kernel": "kernel", "gpu_memcpy": "kernel", "gpu_memset": "kernel",
    "cuda_runtime": "launch", "cuda_driver": "launch", "cpu_op": "operator",
}  # fmt: skip
"""Categories of the Chrome trace that Kineto writes."""


def profile_step(step: Callable[[], object], device: torch.device) -> list[Event]:
    """Run the step once to warm up and once under the profiler."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes to stderr, across any progress bar
    step()
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return list(read_trace(path))


def read_trace(path: Path) -> Iterator[Event]:
    """The complete events of a Chrome trace; a kernel and its launch share their correlation number."""
    trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for event in trace["traceEvents"]:
        kind = _KINDS.get(event.get("cat", ""))
        if event.get("ph") != "X" or kind is None or _waits(event["name"]):
            continue
        start, number = float(event["ts"]), event.get("args", {}).get("correlation", -1)
        yield Event(event["name"], start, start + float(event["dur"]), kind, int(number))


def _waits(name: str) -> bool:
    """The synchronisation that ends the profile is no part of the step."""
    return "Synchronize" in name

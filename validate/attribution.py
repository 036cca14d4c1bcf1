"""Where the time of a measured step went, from the profiler's own events, beside where the prediction puts it.

A step is covered by what runs (kernels on a GPU, operators on a CPU) and by gaps. Work on the network counts where
nothing else hides it. A gap before a kernel is the *host*'s as long as its launch has not even begun, then it is a
*launch* gap: the GPU takes that long to start the next kernel although it was told in time.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from rooflinekit.estimation.results import shares_by_cause
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.types.kernel import Family, Kernel

CLASSES = ("matrix", "attention", "elementwise", "network")
"""What an event's name tells about it; the families of the prediction are coarsened to the same."""
CAUSES = ("compute", "memory", "network", "launch", "host")

_NAMES = (
    ("network", r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|c10d|gloo"),
    ("attention", r"attention|attn|flash|fmha|sdpa|splitkv|split_kv"),
    (
        "matrix",
        r"gemm|gemv|matmul|grouped_mm|aten::(linear|addmm|b?mm|baddbmm|einsum)|nvjet|cutlass|splitk|_scaled_mm"
        r"|fused_moe_kernel",
    ),
)
_CLASS: dict[Family, str] = {
    "gemm": "matrix", "moe": "matrix", "attention_prefill": "attention", "attention_decode": "attention",
    "mla_prefill": "attention", "mla_decode": "attention", "linear_attention": "attention", "collective": "network",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the profiler saw, from `start` to `end` [us].

    kind: "kernel" ran on a GPU, "launch" is the host's call that started it (same `id`), "operator" ran on the host.
    """

    name: str
    start: float
    end: float
    kind: Literal["kernel", "launch", "operator"]
    id: int = -1


@dataclass(frozen=True, slots=True)
class StepShares:
    """A step's time [us]: busy by class, network where nothing hides it, and the two kinds of gaps; they add up."""

    busy: Mapping[str, float]
    launch: float
    host: float

    @property
    def total(self) -> float:
        """Wall time of the step."""
        return sum(self.busy.values()) + self.launch + self.host


_KINDS: dict[str, Literal["kernel", "launch", "operator"]] = {
    "kernel": "kernel", "gpu_memcpy": "kernel", "gpu_memset": "kernel",
    "cuda_runtime": "launch", "cuda_driver": "launch", "cpu_op": "operator",
}  # fmt: skip
"""Categories of the Chrome trace that Kineto writes."""


def profile_step(step: Callable[[], object], device: Any) -> list[Event]:
    """Run the step once to warm up and once under PyTorch's profiler."""
    import torch  # noqa: PLC0415 - rows are read where there is none
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    def run() -> None:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes to stderr, across any progress bar
    run()
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    ) as seen:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        seen.export_chrome_trace(str(path))
        return list(read_trace(path))


def read_trace(path: Path) -> Iterator[Event]:
    """The complete events of a Chrome trace; a kernel and its launch share their correlation number.

    The synchronisation that ends the profile is no part of the step.
    """
    for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
        kind = _KINDS.get(event.get("cat", ""))
        if event.get("ph") == "X" and kind is not None and "Synchronize" not in event["name"]:
            start, number = float(event["ts"]), event.get("args", {}).get("correlation", -1)
            yield Event(event["name"], start, start + float(event["dur"]), kind, int(number))


def class_of(name: str) -> str:
    """The class of a kernel or operator; what nothing matches moves data element by element.

    >>> class_of("aten::linear"), class_of("ncclDevKernel_AllReduce_Sum_bf16"), class_of("aten::silu")
    ('matrix', 'network', 'elementwise')
    >>> class_of("fused_moe_kernel"), class_of("triton_red_fused_fused_add_rms_norm_moe_forward_0")
    ('matrix', 'elementwise')
    """
    folded = name.lower()
    return next((kind for kind, pattern in _NAMES if re.search(pattern, folded)), "elementwise")


def attribute(events: Iterable[Event]) -> StepShares:
    """Split the time from the first event's start to the end of the last work.

    Work is kernels if there are any, else the outermost operators. Where two overlap, the time is the first one's.

    >>> step = [Event("launch", 0, 2, "launch", 1), Event("gemm", 5, 9, "kernel", 1)]
    >>> attribute(step)
    StepShares(busy={'matrix': 4.0}, launch=5.0, host=0.0)
    """
    seen = sorted(events, key=lambda event: (event.start, -event.end))
    kind = "kernel" if any(event.kind == "kernel" for event in seen) else "operator"
    work = [event for event in seen if event.kind == kind]
    if not work:
        return StepShares({}, 0.0, 0.0)
    launches = {event.id: event.start for event in seen if event.kind == "launch"}
    busy: dict[str, float] = {}
    host = launch = 0.0
    for start, end, event, after in _pieces(seen[0].start, work):
        if event is not None:
            busy[class_of(event.name)] = busy.get(class_of(event.name), 0.0) + end - start
            continue
        told = launches.get(after.id, start) if kind == "kernel" else end
        late = min(max(told - start, 0.0), end - start)
        host, launch = host + late, launch + end - start - late
    return StepShares(busy, launch, host)


def _pieces(first: float, work: Sequence[Event]) -> Iterator[tuple[float, float, Event | None, Event]]:
    """Time cut at every start and end: from, to, the event it belongs to (None in a gap), and the next to start.

    A piece belongs to what began first of what is running, and to the network only if nothing else is.
    """
    times = sorted({first, *(event.start for event in work), *(event.end for event in work)})
    waiting, running = deque(work), list[Event]()
    for start, end in pairwise(times):
        running = [event for event in running if event.end > start]
        while waiting and waiting[0].start <= start:
            running.append(waiting.popleft())
        owner = min(running, key=lambda event: (class_of(event.name) == "network", event.start), default=None)
        yield start, end, owner, waiting[0] if waiting else work[-1]


@dataclass(frozen=True, slots=True)
class Line:
    """One cause or class of a step [us]."""

    what: str
    measured_us: float
    predicted_us: float

    @property
    def missed_us(self) -> float:
        """What the prediction lacks; negative where it has too much."""
        return self.measured_us - self.predicted_us


def classes(spent: StepShares, step: StepTime) -> list[Line]:
    """Measured and predicted time by class of work, and the gaps.

    Launch floors are part of the predicted kernels, so a gap may be time that a kernel of the prediction has.
    """
    measured = {**spent.busy, "launch": spent.launch, "host": spent.host}
    predicted = dict.fromkeys((*CLASSES, "launch", "host"), 0.0)
    for timed in step.kernels:
        predicted[_predicted_class(timed.kernel)] += 1e6 * float(timed.expected)
    return [Line(name, measured.get(name, 0.0), time) for name, time in predicted.items()]


def _predicted_class(kernel: Kernel) -> str:
    """The class of a kernel of the prediction, or the gap that an entry of family "host" stands for."""
    if kernel.family == "host":
        return "host" if kernel.name == "host" else "launch"
    return _CLASS.get(kernel.family, "elementwise")


def causes(spent: StepShares, step: StepTime) -> list[Line]:
    """Measured and predicted time by cause.

    Events do not say what a kernel waits for: each class is split between compute and memory as the prediction splits
    it, and a class that the prediction lacks is memory's. Predicted overhead that is not the host's is launches'.
    """
    measured = {"compute": 0.0, "memory": 0.0, "network": 0.0, "launch": spent.launch, "host": spent.host}
    for name, time in spent.busy.items():
        share = _compute_share(name, step)
        split = {"network": time} if name == "network" else {"compute": time * share, "memory": time * (1.0 - share)}
        for cause, part in split.items():
            measured[cause] += part
    whole, shares = 1e6 * float(step.expected), shares_by_cause(step)
    host = sum(1e6 * float(timed.expected) for timed in step.kernels if _predicted_class(timed.kernel) == "host")
    predicted = {"launch": shares["overhead"] * whole - host, "host": host}
    predicted |= {cause: shares[cause] * whole for cause in ("compute", "memory", "network")}
    return [Line(cause, measured[cause], predicted[cause]) for cause in CAUSES]


def _compute_share(name: str, step: StepTime) -> float:
    """Share of the class's predicted time in kernels that need longer for their arithmetic than for their bytes."""
    ours = [timed for timed in step.kernels if _predicted_class(timed.kernel) == name]
    whole = sum(float(timed.expected) for timed in ours)
    bound = sum(float(timed.expected) for timed in ours if float(timed.compute) > float(timed.memory))
    return bound / whole if whole else 0.0

"""Which steps of a model are measured, and which of its layers run where not all fit; known without PyTorch."""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from dataclasses import replace

from rooflinekit.evidence.steps import StepPoint
from rooflinekit.model.types.model import Model

_GRID = {
    "cpu": (
        ("decode", 1, 128), ("prefill", 1, 128), ("decode", 1, 512), ("decode", 4, 128), ("prefill", 1, 512),
        ("decode", 8, 512), ("prefill", 4, 128),
    ),
    "cuda": (
        ("decode", 1, 1024), ("prefill", 1, 1024), ("decode", 32, 1024), ("prefill", 4, 2048), ("decode", 8, 4096),
        ("prefill", 1, 4096), ("decode", 128, 1024), ("decode", 1, 16384), ("decode", 32, 4096), ("prefill", 1, 256),
    ),
}  # fmt: skip
GRID = {kind: tuple(StepPoint(*point) for point in points) for kind, points in _GRID.items()}
"""By kind of device, in an order in which the first ones already cover both phases."""
MODES = {
    ("cpu", "prefill"): ("eager",), ("cpu", "decode"): ("eager",),
    ("cuda", "prefill"): ("compiled", "eager"), ("cuda", "decode"): ("compiled", "graph", "eager"),
}  # fmt: skip
"""eager: kernel by kernel; graph: a CUDA graph of the same; compiled: fused by torch.compile, and a graph in decode."""


def key_of(model: str, point: StepPoint, mode: str) -> str:
    """What tells a row of op "model" from all others of a file."""
    return f"model {model} {mode} {point.phase} {point.batch} {point.context}"


def remaining(model: str, kind: str, done: Container[str], most: int | None = None) -> list[tuple[StepPoint, str]]:
    """Points and modes of a kind of device ("cpu", "cuda"), the first `most` points, whose rows are not done."""
    return [
        (point, mode) for point in GRID[kind][:most] for mode in MODES[kind, point.phase]
        if key_of(model, point, mode) not in done
    ]  # fmt: skip


def spread_layers(model: Model, n: int) -> Model:
    """The model with n of its layers, each kind in its proportion."""
    return replace(model, layers=tuple(model.layers[i] for i in chosen(model.layers, n)))


def chosen(kinds: Sequence[Hashable], n: int) -> list[int]:
    """Which n of the layers, in order: each kind by largest remainder, and within a kind evenly.

    >>> chosen("wwwgwwwg", 4)  # every second one would be windows only
    [0, 2, 3, 5]
    """
    L = len(kinds)
    places = {kind: [i for i in range(L) if kinds[i] == kind] for kind in dict.fromkeys(kinds)}
    counts = {kind: len(each) * n // L for kind, each in places.items()}
    left = sorted(places, key=lambda kind: counts[kind] - len(places[kind]) * n / L)  # largest remainder first
    for kind in left[: n - sum(counts.values())]:
        counts[kind] += 1
    return sorted(each[i * len(each) // counts[kind]] for kind, each in places.items() for i in range(counts[kind]))

"""A whole model, or as many of its layers as fit: measured TTFT and TPOT, beside what `estimate` says.

Letters: B sequences, T tokens of the prompt or keys of the cache, L layers, n of them that run.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from rooflinekit.parameter_count import count_parameters
from rooflinekit.specs import load_model
from rooflinekit.types.dtype import parse_dtype
from rooflinekit.types.errors import ArchitectureError
from rooflinekit.types.model import Model
from rooflinekit.validate.attribution import attribute
from rooflinekit.validate.cache import ContiguousCache, Room
from rooflinekit.validate.case import TORCH
from rooflinekit.validate.decoder import Decoder, build, refuse_unsupported
from rooflinekit.validate.device import Device, open_device
from rooflinekit.validate.graphed import GraphedStep
from rooflinekit.validate.profile_step import profile_step
from rooflinekit.validate.timing import summary

__all__ = ["GRID", "Bench", "Point", "compiled", "measure_model", "remaining", "spread_layers", "thinned"]


class Point(NamedTuple):
    """B sequences: prompts of T tokens, or one more token each at T keys."""

    phase: str
    batch: int
    context: int


GRID = {
    "cpu": (
        Point("decode", 1, 128), Point("prefill", 1, 128), Point("decode", 1, 512), Point("decode", 4, 128),
        Point("prefill", 1, 512), Point("decode", 8, 512), Point("prefill", 4, 128),
    ),
    "cuda": (
        Point("decode", 1, 1024), Point("prefill", 1, 1024), Point("decode", 32, 1024), Point("prefill", 4, 2048),
        Point("decode", 8, 4096), Point("prefill", 1, 4096), Point("decode", 128, 1024), Point("decode", 1, 16384),
        Point("decode", 32, 4096), Point("prefill", 1, 256),
    ),
}  # fmt: skip
"""By kind of device, in an order in which the first ones already cover both phases."""
_MODES = {
    ("cpu", "prefill"): ("eager",), ("cpu", "decode"): ("eager",),
    ("cuda", "prefill"): ("compiled", "eager"), ("cuda", "decode"): ("compiled", "graph", "eager"),
}  # fmt: skip
"""eager: kernel by kernel; graph: a CUDA graph of the same; compiled: fused by torch.compile, and a graph in decode."""
_WEIGHTS = 0.6  # share of the free memory that weights may take; the rest is for cache and activations
_SECONDS, _WARM, _LEAST, _MOST = 1.0, 2, 3, 50  # of one point; steps to warm up, fewest and most that are timed


def measure_model(
    model: str,
    device: str,
    writer: Callable[[Mapping[str, Any]], None],
    deadline: float,
    grid: Sequence[Point] | None = None,
) -> None:
    """Measure every point of the grid until `deadline` (time.monotonic()), a row each; what fails is a row too.

    Depth beyond the memory is left out, and each row has the time of all layers by the slope between two depths.
    """
    here, spec = open_device(device), load_model(model).value
    try:
        refuse_unsupported(spec)
        runs = spread_layers(spec, _depth_that_fits(spec, here))
        decoder = build(runs, here.torch, TORCH[here.dtype])
    except (ArchitectureError, torch.OutOfMemoryError) as error:
        status = "missing" if isinstance(error, ArchitectureError) else "oom"
        writer({"op": "model", "backend": "torch", "model": model, "status": status, "detail": str(error)})
        return
    bench = Bench(model, spec.depth, decoder, here)
    with torch.inference_mode():
        for point in GRID[here.torch.type] if grid is None else grid:
            for mode in _MODES[here.torch.type, point.phase]:
                if time.monotonic() > deadline:
                    return
                writer(bench.row(point, mode))


def remaining(model: str, kind: str, done: Container[str]) -> list[Point]:
    """The points of a kind of device ("cpu", "cuda") of which some row is not among the keys that are done."""
    return [
        point for point in GRID[kind]
        if not all(_key(model, mode, point) in done for mode in _MODES[kind, point.phase])
    ]  # fmt: skip


def _key(model: str, mode: str, point: Point) -> str:
    return f"model {model} {mode} {point.phase} {point.batch} {point.context}"


def spread_layers(model: Model, n: int) -> Model:
    """The model with n of its layers, each kind in its proportion."""
    return replace(model, layers=tuple(model.layers[i] for i in _chosen(model.layers, n)))


def _chosen(kinds: Sequence[Hashable], n: int) -> list[int]:
    """Which n of the layers, in order: each kind by largest remainder, and within a kind evenly.

    >>> _chosen("wwwgwwwg", 4)  # every second one would be windows only
    [0, 2, 3, 5]
    """
    L = len(kinds)
    places = {kind: [i for i in range(L) if kinds[i] == kind] for kind in dict.fromkeys(kinds)}
    counts = {kind: len(each) * n // L for kind, each in places.items()}
    left = sorted(places, key=lambda kind: counts[kind] - len(places[kind]) * n / L)  # largest remainder first
    for kind in left[: n - sum(counts.values())]:
        counts[kind] += 1
    return sorted(each[i * len(each) // counts[kind]] for kind, each in places.items() for i in range(counts[kind]))


def _depth_that_fits(model: Model, device: Device) -> int:
    """The most layers whose weights leave room for the rest."""
    size = parse_dtype(device.dtype).bytes
    room = _WEIGHTS * device.free_bytes / size
    return next((n for n in range(model.depth, 1, -1) if count_parameters(spread_layers(model, n)).total <= room), 1)


def thinned(decoder: Decoder, n: int) -> Decoder:
    """The same weights with n of the decoder's layers, each kind in its proportion; nothing is copied."""
    return _with_layers(decoder, [decoder.layers[i] for i in _chosen(decoder.model.layers, n)])


def compiled(decoder: Decoder) -> Decoder:
    """The same with every layer compiled by itself, so that equal layers share one compilation (as gpt-fast's do)."""
    torch._dynamo.reset()  # shapes of earlier points would make it compile for any shape
    return _with_layers(decoder, [torch.compile(layer, dynamic=False) for layer in decoder.layers])


def _with_layers(decoder: Decoder, layers: Sequence[Any]) -> Decoder:
    other = copy.copy(decoder)
    other._modules = dict(decoder._modules)
    other.layers = nn.ModuleList(layers)
    return other


@dataclass(frozen=True)
class Bench:
    """A decoder on a device, with some or all of the `depth` layers of the model that goes by `name`."""

    name: str
    depth: int
    decoder: Decoder
    device: Device

    def row(self, point: Point, mode: str) -> dict[str, Any]:
        """What was measured at one point, or why nothing was."""
        n, L = len(self.decoder.layers), self.depth
        row = {
            "op": "model", "backend": "torch, decoder of validate", "model": self.name, "mode": mode,
            "dtype": self.device.dtype, **point._asdict(), "layers_run": n, "layers": L,
            "key": _key(self.name, mode, point),
        }  # fmt: skip
        try:
            samples = self._samples(self.decoder, point, mode)
            row |= summary(samples)
            row["whole_us"] = row["latency_us"]
            if n < L:
                row["whole_us"] += (L - n) * self._slope(median(samples), point, mode)
            return row | self._spent(point, mode)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return row | {"status": "oom", "detail": "out of memory"}
        except RuntimeError as error:
            return row | {"status": "failed", "detail": str(error).splitlines()[0]}

    def _slope(self, seconds: float, point: Point, mode: str) -> float:
        """Time of one more layer [us], from a run with half of them."""
        n = len(self.decoder.layers)
        if n == 1:
            return 1e6 * seconds  # one layer and the vocabulary: an upper bound
        half = n // 2
        return 1e6 * (seconds - median(self._samples(thinned(self.decoder, half), point, mode))) / (n - half)

    def _samples(self, decoder: Decoder, point: Point, mode: str) -> tuple[float, ...]:
        """Seconds of single steps as a user waits for them: from the call until the token is known to the host."""
        step = self._step(decoder, point, mode)
        for _ in range(_WARM):
            step()
        samples: list[float] = []
        end = time.monotonic() + _SECONDS
        while len(samples) < _LEAST or (len(samples) < _MOST and time.monotonic() < end):
            self.device.synchronize()
            start = time.perf_counter()
            step()
            samples.append(time.perf_counter() - start)
        return tuple(samples)

    def _step(self, decoder: Decoder, point: Point, mode: str) -> Callable[[], Any]:
        """One prefill or decode step with greedy sampling; `tolist` waits for the tokens."""
        B, T = point.batch, point.context
        decoder = compiled(decoder) if mode == "compiled" else decoder
        place, vocab = self.device.torch, decoder.model.vocab
        room = Room(B, T, decoder.embedding.weight.dtype, place)
        cache = decoder.caches(room)
        if point.phase == "prefill":
            prompt = torch.randint(vocab, (B, T), device=place)
            return lambda: decoder(prompt, cache, 0, last=True).argmax(dim=-1).tolist()
        _fill(cache)
        token = torch.randint(vocab, (B, 1), device=place)
        if mode != "eager":
            graphed = GraphedStep(decoder, token, cache, T - 1)
            return lambda: graphed.replay().argmax(dim=-1).tolist()
        return lambda: decoder(token, cache, T - 1).argmax(dim=-1).tolist()

    def _spent(self, point: Point, mode: str) -> dict[str, Any]:
        """Where one step's time went, by the profiler; it slows the host down, so the sum exceeds the time measured."""
        spent = attribute(profile_step(self._step(self.decoder, point, mode), self.device.torch))
        return {"busy_us": dict(spent.busy), "launch_us": spent.launch, "host_us": spent.host}


def _fill(caches: Sequence[Any]) -> None:
    """Random keys and values in place of a prompt: zeros would be faster than real data."""
    for cache in caches:
        assert isinstance(cache, ContiguousCache)
        for buffer in cache.buffers:
            buffer.normal_()

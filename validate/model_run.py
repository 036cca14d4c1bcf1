"""A whole model, or as many of its layers as fit: measured TTFT and TPOT.

Letters: B sequences, T tokens of the prompt or keys of the cache, L layers, n of them that run.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.model import Model
from rooflinekit.specs import load_model
from rooflinekit.validate.attention import Room
from rooflinekit.validate.attribution import attribute, profile_step
from rooflinekit.validate.case import TORCH
from rooflinekit.validate.ceilings import launch_cost
from rooflinekit.validate.decoder import Decoder, GraphedStep, build, refuse_unsupported
from rooflinekit.validate.device import Device
from rooflinekit.validate.points import StepPoint, chosen, key_of, spread_layers
from rooflinekit.validate.timing import summary

_WEIGHTS = 0.6  # share of the free memory that weights may take; the rest is for cache and activations
_SECONDS, _WARM, _LEAST, _MOST = 1.0, 2, 3, 50  # of one point; steps to warm up, fewest and most that are timed


def open_bench(name: str, device: Device) -> Bench:
    """A model with as many layers as fit, ready to be timed; the time of the others follows from the slope of depth.

    Raises ArchitectureError for layers that the decoder does not run, OutOfMemoryError where not even one fits.
    """
    spec = load_model(name).value
    refuse_unsupported(spec)
    runs = spread_layers(spec, _depth_that_fits(spec, device))
    return Bench(name, spec.depth, build(runs, device.torch, TORCH[device.dtype]), device)


def _depth_that_fits(model: Model, device: Device) -> int:
    """The most layers whose weights leave room for the rest."""
    room = _WEIGHTS * device.free_bytes / parse_dtype(device.dtype).bytes
    return next((n for n in range(model.depth, 1, -1) if count_parameters(spread_layers(model, n)).total <= room), 1)


def thinned(decoder: Decoder, n: int) -> Decoder:
    """The same weights with n of the decoder's layers, each kind in its proportion; nothing is copied."""
    return _with_layers(decoder, [decoder.layers[i] for i in chosen(decoder.model.layers, n)])


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

    def label(self, point: StepPoint, mode: str) -> dict[str, Any]:
        """What is measured at one point."""
        return {
            "op": "model", "backend": "torch, decoder of validate", "model": self.name, "mode": mode,
            "dtype": self.device.dtype, **point._asdict(), "layers_run": len(self.decoder.layers),
            "layers": self.depth, "key": key_of(self.name, point, mode),
        }  # fmt: skip

    def measure(self, point: StepPoint, mode: str) -> dict[str, Any]:
        """Times of one point, of the layers that ran and of all, and where the time of a step went.

        The slope of one more layer is from a run with half of them; of one layer and the vocabulary it is a bound.
        """
        n, step = len(self.decoder.layers), self._step(self.decoder, point, mode)
        samples = self._samples(step)
        timed, spent, slope = summary(samples), self._spent(step, point, mode), 0.0
        if n < self.depth:
            fewer = median(self._samples(self._step(thinned(self.decoder, n // 2), point, mode))) if n > 1 else 0.0
            slope = max(1e6 * (median(samples) - fewer) / (n - n // 2), 0.0)  # no layer takes less than nothing
        return {**timed, "whole_us": timed["latency_us"] + (self.depth - n) * slope, **spent}

    def _samples(self, step: Callable[[], Any]) -> tuple[float, ...]:
        """Seconds of single steps as a user waits for them: from the call until the token is known to the host."""
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

    def _step(self, decoder: Decoder, point: StepPoint, mode: str) -> Callable[[], Any]:
        """One prefill or decode step with greedy sampling; `tolist` waits for the tokens."""
        (phase, B, T), place, vocab = point, self.device.torch, decoder.model.vocab
        decoder = compiled(decoder) if mode == "compiled" else decoder
        cache = decoder.caches(Room(B, T, decoder.embedding.weight.dtype, place))
        if phase == "prefill":
            prompt = torch.randint(vocab, (B, T), device=place)
            return lambda: decoder(prompt, cache, 0, last=True).argmax(dim=-1).tolist()
        for layer in cache:  # random keys and values in place of a prompt: zeros would be faster than real data
            for buffer in layer.buffers:
                buffer.normal_()
        token = torch.randint(vocab, (B, 1), device=place)
        if mode != "eager":
            graphed = GraphedStep(decoder, token, cache, T - 1)
            return lambda: graphed.replay().argmax(dim=-1).tolist()
        return lambda: decoder(token, cache, T - 1).argmax(dim=-1).tolist()

    def _spent(self, step: Callable[[], Any], point: StepPoint, mode: str) -> dict[str, Any]:
        """Where one step's time went, by the profiler; it slows the host down, so the sum exceeds the time measured."""
        events = profile_step(step, self.device.torch)
        spent = attribute(events)
        row = {"busy_us": dict(spent.busy), "launch_us": spent.launch, "host_us": spent.host}
        if not self.device.is_cuda:
            return row
        replayed = point.phase == "decode" and mode != "eager"
        return {
            **row, "kernels": sum(event.kind == "kernel" for event in events),
            "floor_us": 1e6 * launch_cost("graph", self.device),
            "enqueue_us": 0.0 if replayed else 1e6 * launch_cost("eager", self.device),
        }  # fmt: skip

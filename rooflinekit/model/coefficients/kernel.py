"""One kernel as coefficients: its bound exactly, and its calibrated time with the interval."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from rooflinekit.model.coefficients.linear import Linear
from rooflinekit.model.coefficients.state import Features, Shape, State
from rooflinekit.model.coefficients.surface import SurfaceSlice, Widths

__all__ = ["KernelCoefficients", "KernelSpan", "TimeCoefficients"]

_TILE = 128.0  # rows of a prefill tile, and of an output tile (timing/attention.py, timing/gemm.py)


_NOTHING = Linear()


@dataclass(frozen=True)
class TimeCoefficients:
    """launch + log·log2(1 + lk·K + lt·t) + tiles·b·⌈S/128⌉ + pn(compute, memory; p) + beside + root·√rows.

    lk, lt: `log_keys`, `log_tokens`; compute = its sum + rows·⌈rows⌉tile + tail·(idle share of the last wave) +
    farthest·(keys of the last query). p is `sharpness`, 0 for the plain maximum. These are the time forms
    (`rooflinekit.model.timing`) with everything but the step filled in.
    Then: times `ratio` (a number or a table), times `repeats`, plus `late` − `hidden` x launch for each launch.
    """

    launch: Linear = _NOTHING
    log: float = 0.0
    log_keys: float = 0.0
    log_tokens: float = 0.0
    tiles: float = 0.0
    compute: Linear = _NOTHING
    rows: float = 0.0
    tail: float = 0.0
    columns: float = 0.0  #: tiles of 128 over the output width
    cores: float = 1.0
    farthest: float = 0.0
    memory: Linear = _NOTHING
    beside: Linear = _NOTHING
    of_memory: bool = False  #: `beside` is memory traffic
    of_links: bool = False  #: `beside` and `root` are what the links take
    root: float = 0.0
    sharpness: int = 0
    ratio: SurfaceSlice | float = 1.0
    widths: Widths = field(default_factory=Widths)
    repeats: float = 1.0
    late: float = 0.0
    hidden: float = 0.0

    def launched(self, features: Features) -> float:
        """Floor of one launch [s]."""
        state = features.state
        latency = self.launch.at(*features.basis)
        latency += self.log * math.log2(1.0 + self.log_keys * features.keys + self.log_tokens * state.tokens)
        return latency + self.tiles * state.sequences * math.ceil(state.new / _TILE)

    def computed(self, features: Features, tile: float) -> float:
        """What arithmetic of one launch takes at realised rates [s]."""
        compute = self.compute.at(*features.basis) + self.rows * math.ceil(features.rows / tile) * tile
        if self.tail:
            waves = math.ceil(features.rows / _TILE) * self.columns / self.cores
            compute += self.tail * (math.ceil(waves) - waves if waves >= 1.0 else 0.0)
        if self.farthest:
            new = features.state.new
            compute += self.farthest * min(features.pairs / new + new / 2.0, features.keys)
        return compute

    def besides(self, features: Features) -> float:
        """What comes on top of arithmetic and memory [s]."""
        return self.beside.at(*features.basis) + self.root * math.sqrt(features.rows)

    def one(self, features: Features, tile: float) -> float:
        """One launch, corrected [s]."""
        busy = _joined(self.computed(features, tile), self.memory.at(*features.basis), self.sharpness)
        busy += self.besides(features)
        ratio = self.ratio.at(features) if isinstance(self.ratio, SurfaceSlice) else self.ratio
        return (self.launched(features) + busy) * ratio


def _joined(first: float, second: float, sharpness: int) -> float:
    if sharpness == 0:
        return max(first, second)
    return float((first**sharpness + second**sharpness) ** (1.0 / sharpness))


@dataclass(frozen=True)
class KernelSpan:
    """All launches of a kernel in a step [s]: bound, time, ends of the 90 % interval."""

    bound: float
    time: float
    low: float
    high: float


@dataclass(frozen=True)
class KernelCoefficients:
    """One kernel of a step on one accelerator, launched `count` times.

    flops [FLOP], streamed (weights and cache) and activations [B] of one launch, and of streamed the weights alone;
    links, nics: seconds on either tier; peak [FLOP/s], bandwidth [B/s], cache [B]: the roofs. `timing` is None without
    a calibration.
    """

    name: str
    family: str
    count: int
    shape: Shape
    flops: Linear
    streamed: Linear
    activations: Linear
    links: Linear
    nics: Linear
    peak: float
    bandwidth: float
    cache: float
    weights: Linear = _NOTHING
    timing: TimeCoefficients | None = None

    def bound(self, state: State) -> float:
        """Datasheet bound of all launches [s]: the slowest of arithmetic, memory and the two network tiers."""
        basis = self.shape.at(state).basis
        return self.count * max(self.needed(*basis))

    def needed(self, sequences: float, tokens: float, pairs: float, experts: float) -> tuple[float, float, float]:
        """What arithmetic, memory and network of one launch take at datasheet rates [s]."""
        basis = sequences, tokens, pairs, experts
        moved = self.streamed.at(*basis) + max(self.activations.at(*basis) - self.cache, 0.0)
        network = max(self.links.at(*basis), self.nics.at(*basis))
        return self.flops.at(*basis) / self.peak, moved / self.bandwidth, network

    def at(self, state: State) -> KernelSpan:
        """Bound, expected time and interval in a step."""
        bound, timing = self.bound(state), self.timing
        if timing is None:
            return KernelSpan(bound, bound, bound, bound)
        features = self.shape.at(state)
        time = max(self.count * timing.one(features, self.shape.tile), bound)
        factor = timing.widths.at(features)
        shift = self.count * (timing.late - timing.hidden * timing.launched(features))
        ends = (time, max(time / factor, bound), time * factor)
        time, low, high = (max(end * timing.repeats + shift, bound) for end in ends)
        return KernelSpan(bound, time, low, high)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)

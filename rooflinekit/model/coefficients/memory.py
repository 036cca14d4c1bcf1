"""The memory of one accelerator as coefficients: `rooflinekit.model.memory.capacity` for one pipeline stage."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rooflinekit.model.memory.capacity import MemoryModel
from rooflinekit.model.types.errors import InputError

__all__ = ["MOST_SLOPES", "MemoryCoefficients", "MemorySpan", "memory_coefficients"]

MOST_SLOPES = 3
"""Kinds of layers with a cap of their own that are exported."""


@dataclass(frozen=True)
class MemorySpan:
    """What `batch` sequences take on one accelerator [B]; they fit where needed is at most available."""

    kv: float
    activations: float
    total: float
    pool: float
    needed: float
    available: float
    max_batch: float

    @property
    def fits(self) -> bool:
        """Whether the engine starts and its pool holds the batch."""
        return self.needed <= self.available


@dataclass(frozen=True)
class MemoryCoefficients:
    """Sizes in bytes on one accelerator.

    `allowance` is the pool if there were no activations, `charge` how much of their peak it pays for; the peak is the
    larger of a layer's and the sampler's. One sequence takes `state` + Σ slope·min(context, cap), its context in whole
    blocks. `profiled`: the engine runs a step with all `tokens` and `rows` to measure the peak.
    """

    capacity: float
    weights: float
    outside: float
    slack: float
    allowance: float
    charge: float
    layer_token: float
    layer_base: float
    sampler_token: float
    sampler_row: float
    sampler_base: float
    tokens: float
    rows: float
    profiled: bool
    state: float
    block: float
    caps: tuple[float, ...]  #: tokens, ascending; infinite for layers that keep all
    slopes: tuple[float, ...]

    def sequence(self, context: float) -> float:
        """Cache of one sequence."""
        held = math.ceil(context / self.block) * self.block
        return self.state + sum(slope * min(held, cap) for cap, slope in zip(self.caps, self.slopes, strict=True))

    def activations(self, batch: float, new: float) -> float:
        """Peak while `batch` prompts of `new` tokens are computed."""
        tokens = self.tokens if self.profiled else min(batch * new, self.tokens)
        rows = max(batch, self.rows) if self.profiled else batch
        layer = self.layer_base + tokens * self.layer_token
        return max(layer, self.sampler_base + tokens * self.sampler_token + rows * self.sampler_row)

    def at(self, batch: float, context: float, new: float) -> MemorySpan:
        """Memory of `batch` sequences of `context` tokens, of which `new` are prompts."""
        activations, kv = self.activations(batch, new), batch * self.sequence(context)
        pool = self.allowance - self.charge * activations
        needed, available = self._need(kv, activations)
        total = self.weights + kv + activations + self.outside
        return MemorySpan(kv, activations, total, max(pool, 0.0), needed, available, self.max_batch(context, new))

    def max_batch(self, context: float, new: float) -> float:
        """Most sequences that fit."""
        needed, available = self._need(0.0, self.activations(0.0, new))
        if needed > available:
            return 0.0
        each = self.sequence(context)
        parts = ((self.layer_base, self.layer_token, 0.0), (self.sampler_base, self.sampler_token, self.sampler_row))
        most = (self._most(self.allowance - self.charge * base, self.charge * token, self.charge * row, (each, new))
                for base, token, row in parts)  # fmt: skip
        return max(float(math.floor(min(most) + 1e-9)), 0.0)

    def _most(self, allowance: float, token: float, row: float, sequence: tuple[float, float]) -> float:
        each, new = sequence
        if self.profiled:
            left = allowance - token * self.tokens
            return min((left - row * self.rows) / each, left / (each + row))
        above = (allowance - self.tokens * token) / (each + row)
        return above if above * new >= self.tokens else min(allowance / (each + row + new * token), self.tokens / new)

    def _need(self, kv: float, activations: float) -> tuple[float, float]:
        pool = self.allowance - self.charge * activations
        fixed = self.weights + activations + self.outside
        reserved, there = fixed + max(pool, 0.0) + self.slack, self.capacity * (1.0 + 1e-12)
        return (fixed + kv, fixed + pool) if kv > pool or reserved <= there else (reserved, there)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON; an infinite cap is None."""
        return asdict(self) | {"caps": [cap if cap < math.inf else None for cap in self.caps]}


def memory_coefficients(memory: MemoryModel) -> MemoryCoefficients:
    """The memory of a plan with one pipeline stage and one replica.

    Raises InputError for one that cannot be written so.
    """
    if len(memory.stages) != 1 or memory.replicas * memory.ranks != 1 or memory.longest is not None:
        raise InputError("memory is exported for one stage and one replica, without a longest sequence to admit")
    (stage,), peak = memory.stages, memory.peak
    law = stage.layout.law
    if not 0 < len(law.slopes) <= MOST_SLOPES:
        raise InputError(f"a cache with {len(law.slopes)} kinds of growing layers is not exported")
    allowance = memory.pool(stage, 0.0)
    return MemoryCoefficients(
        float(memory.capacity_bytes), stage.weight_bytes, memory.outside.total, memory.rule.slack,
        float(allowance), memory.charge,
        peak.layer_token, peak.layer_base, peak.sampler_token, peak.sampler_row, peak.sampler_base,
        memory.tokens, memory.rows, memory.rule.profiled, law.state_bytes, float(law.block),
        tuple(cap for cap, _ in law.slopes), tuple(slope for _, slope in law.slopes),
    )  # fmt: skip

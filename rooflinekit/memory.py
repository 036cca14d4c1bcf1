"""Does it fit: weights, cache, activation peak and the engine's overheads on the busiest accelerator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from rooflinekit.cache import CacheLaw, cache_law
from rooflinekit.layers import stage_operations
from rooflinekit.step import Plan
from rooflinekit.types.model import DenseFFN, MixtureOfExperts
from rooflinekit.types.numeric import Numeric, ceil_div, floor_div, maximum, minimum, where
from rooflinekit.types.units import GIB

__all__ = ["TOKEN_BUDGET", "Memory", "MemoryModel", "make_memory_model"]

TOKEN_BUDGET = 8192
"""Tokens an engine computes in one prefill step at most: vLLM's max_num_batched_tokens on an 80 GB GPU (0.19 logs)."""

CONTEXT_BYTES = {False: 0.51 * GIB, True: 1.53 * GIB}
"""CUDA context and first NCCL buffers, on one GPU and on several: medians of 20 and 7 vLLM 0.19 start-up logs."""

NON_TORCH_BYTES = {False: 0.25 * GIB, True: 2.105 * GIB}
"""Growth outside the allocator while loading (NCCL, workspaces): medians of 22 and 8 vLLM >= 0.17 start-ups on H100."""

GRAPH_BYTES = 0.87 * GIB
"""CUDA graphs: median of 25 vLLM >= 0.17 start-ups on one H100 (0.52 to 1.84)."""

SAMPLER_COPIES = 3.72
"""fp32 copies of the logits that vLLM's sampler holds at its peak (0.17 to 0.19 logs)."""


@dataclass(frozen=True)
class Memory:
    """Memory of the busiest accelerator [B], and what would still fit."""

    capacity_bytes: Numeric
    weight_bytes: Numeric
    kv_bytes: Numeric
    activation_bytes: Numeric
    overhead_bytes: Numeric
    max_batch: Numeric  #: sequences of this length over the whole deployment
    max_context: Numeric  #: tokens per sequence at this batch; infinite if nothing limits it
    kv_bytes_per_token: float  #: one sequence, all accelerators, each key and value once

    @property
    def total_bytes(self) -> Numeric:
        """Everything together."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes + self.overhead_bytes

    @property
    def fits(self) -> Numeric:
        """1 where the total is within the capacity, else 0."""
        return where(self.total_bytes <= self.capacity_bytes, 1.0, 0.0)


@dataclass(frozen=True)
class MemoryModel:
    """Memory of a plan as a function of batch and context; built once, evaluated for any number of scenarios."""

    capacity_bytes: Numeric
    weight_bytes: float
    overhead_bytes: float
    bytes_per_token: float  #: activation peak of one token in a prefill step
    bytes_per_row: float  #: sampler peak of one sequence
    stages: tuple[CacheLaw, ...]
    replicas: int
    limit: int | None  #: the model's own maximum context
    kv_bytes_per_token: float

    def evaluate(self, batch: Numeric, context: Numeric, new: Numeric) -> Memory:
        """Memory for `batch` sequences of `context` tokens whose prompts add `new` tokens each."""
        local = ceil_div(batch, float(self.replicas))
        sequence = self._sequence(context)
        return Memory(
            self.capacity_bytes,
            self.weight_bytes,
            local * sequence,
            minimum(local * new, float(TOKEN_BUDGET)) * self.bytes_per_token + local * self.bytes_per_row,
            self.overhead_bytes,
            self.max_batch(sequence, new),
            self.max_context(local, new),
            self.kv_bytes_per_token,
        )

    def max_batch(self, sequence: Numeric, new: Numeric) -> Numeric:
        """Most sequences that fit: total(b) = fixed + b·(kv + row) + peak·min(b·new, budget), solved for b."""
        left = self.capacity_bytes - self.weight_bytes - self.overhead_bytes
        each = sequence + self.bytes_per_row
        below = left / (each + new * self.bytes_per_token)
        above = (left - TOKEN_BUDGET * self.bytes_per_token) / each
        local = where(above * new >= TOKEN_BUDGET, above, minimum(below, TOKEN_BUDGET / new))
        return maximum(floor_div(local + 1e-9, 1.0), 0.0) * self.replicas

    def max_context(self, local: Numeric, new: Numeric) -> Numeric:
        """Longest context at which `local` sequences a replica fit, at most the model's own maximum."""
        activation = minimum(local * new, float(TOKEN_BUDGET)) * self.bytes_per_token + local * self.bytes_per_row
        budget = (self.capacity_bytes - self.weight_bytes - self.overhead_bytes - activation) / local
        longest: Numeric = math.inf if self.limit is None else float(self.limit)
        for law in self.stages:
            longest = minimum(longest, law.longest(budget))
        return longest

    def _sequence(self, context: Numeric) -> Numeric:
        sizes = [law.bytes(context) for law in self.stages]
        largest = sizes[0]
        for size in sizes[1:]:
            largest = maximum(largest, size)
        return largest


def make_memory_model(plan: Plan) -> MemoryModel:
    """The memory of a plan: the heaviest pipeline stage sets the weights, and the largest cache the sequences."""
    model, deployment, precision = plan.model, plan.deployment, plan.precision
    stages = range(deployment.pp)
    weights = [
        sum(w.bytes * n for op, n in stage_operations(model, deployment, precision, stage).items() for w in op.weights)
        for stage in stages
    ]
    cuts = [stage * model.depth // deployment.pp for stage in (*stages, deployment.pp)]
    laws = [cache_law(model.layers[a:b], precision.kv, deployment.tp) for a, b in pairwise(cuts)]
    ideal, several = deployment.engine == "ideal", deployment.gpus > 1
    return MemoryModel(
        capacity_bytes=plan.system.accelerator.memory_bytes,
        weight_bytes=max(weights),
        overhead_bytes=0.0 if ideal else CONTEXT_BYTES[several] + NON_TORCH_BYTES[several] + GRAPH_BYTES,
        bytes_per_token=_activation_elements(plan) * precision.stream.bytes,
        bytes_per_row=model.vocab * 4.0 * (1.0 if ideal else SAMPLER_COPIES),
        stages=tuple(laws),
        replicas=deployment.dp,
        limit=model.max_context,
        kv_bytes_per_token=cache_law(model.layers, precision.kv).bytes_per_token,
    )


def _activation_elements(plan: Plan) -> float:
    """Elements alive at once per token in the widest block: residual, its norm, and a gated FFN's gate, up, product."""
    tp = plan.deployment.tp
    widest = 0.0
    for layer in plan.model.layer_counts:
        match layer.ffn:
            case DenseFFN(width=width, gated=gated):
                widest = max(widest, width / tp * (3 if gated else 2))
            case MixtureOfExperts() as moe:
                routed = moe.top_k * moe.width / plan.deployment.expert_tp / plan.deployment.ep * plan.deployment.dp
                widest = max(widest, (routed + moe.shared_width / tp) * (3 if moe.gated else 2))
    return 2.0 * plan.model.hidden + widest

"""Does it fit: weights, cache, activation peak and the engine's overheads on the busiest accelerator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from rooflinekit.cache import CacheLaw, cache_law
from rooflinekit.layers import stage_operations
from rooflinekit.layers.feedforward import group_share
from rooflinekit.step import Plan
from rooflinekit.types.deployment import Deployment
from rooflinekit.types.model import DenseFFN, MixtureOfExperts
from rooflinekit.types.numeric import Numeric, ceil_div, floor_div, maximum, minimum, where
from rooflinekit.types.units import GIB

__all__ = ["TOKEN_BUDGET", "Memory", "MemoryModel", "Stage", "make_memory_model"]

TOKEN_BUDGET = 8192
"""Tokens an engine computes in one prefill step at most: vLLM's max_num_batched_tokens on an 80 GB GPU (0.19 logs)."""

MOE_CHUNK = 16_384
"""Tokens that vLLM's fused_moe works on at once at most (VLLM_FUSED_MOE_CHUNK_SIZE, its default)."""

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
class Stage:
    """One pipeline stage on one accelerator: weights [B] and the cache law of its layers."""

    weight_bytes: float
    cache: CacheLaw


@dataclass(frozen=True)
class MemoryModel:
    """Memory of a plan as a function of batch and context; built once, evaluated for any number of scenarios."""

    capacity_bytes: Numeric
    overhead_bytes: float
    bytes_per_token: float  #: activation peak of one token in a prefill step
    bytes_per_row: float  #: sampler peak of one sequence
    stages: tuple[Stage, ...]
    replicas: int
    limit: int | None  #: the model's own maximum context
    kv_bytes_per_token: float

    def evaluate(self, batch: Numeric, context: Numeric, new: Numeric) -> Memory:
        """Memory of the fullest stage for `batch` sequences of `context` tokens whose prompts add `new` each."""
        local = ceil_div(batch, float(self.replicas))
        weights, kv = self._fullest(local, context)
        return Memory(
            self.capacity_bytes,
            weights,
            kv,
            self._activations(local, new),
            self.overhead_bytes,
            self.max_batch(context, new),
            self.max_context(local, new),
            self.kv_bytes_per_token,
        )

    def max_batch(self, context: Numeric, new: Numeric) -> Numeric:
        """Most sequences that fit: total(b) = fixed + b·(kv + row) + peak·min(b·new, budget), solved for b."""
        most: Numeric = math.inf
        for stage in self.stages:
            left = self.capacity_bytes - stage.weight_bytes - self.overhead_bytes
            each = stage.cache.bytes(context) + self.bytes_per_row
            below = left / (each + new * self.bytes_per_token)
            above = (left - TOKEN_BUDGET * self.bytes_per_token) / each
            local = where(above * new >= TOKEN_BUDGET, above, minimum(below, TOKEN_BUDGET / new))
            most = minimum(most, maximum(floor_div(local + 1e-9, 1.0), 0.0))
        return most * self.replicas

    def max_context(self, local: Numeric, new: Numeric) -> Numeric:
        """Longest context at which `local` sequences a replica fit, at most the model's own maximum."""
        longest: Numeric = math.inf if self.limit is None else float(self.limit)
        for stage in self.stages:
            taken = stage.weight_bytes + self.overhead_bytes + self._activations(local, new)
            longest = minimum(longest, stage.cache.longest((self.capacity_bytes - taken) / local))
        return longest

    def _activations(self, local: Numeric, new: Numeric) -> Numeric:
        return minimum(local * new, float(TOKEN_BUDGET)) * self.bytes_per_token + local * self.bytes_per_row

    def _fullest(self, local: Numeric, context: Numeric) -> tuple[Numeric, Numeric]:
        """Weights and cache of the stage where they are largest together."""
        weights: Numeric = self.stages[0].weight_bytes
        kv = local * self.stages[0].cache.bytes(context)
        for stage in self.stages[1:]:
            more = local * stage.cache.bytes(context)
            fuller = stage.weight_bytes + more > weights + kv
            weights, kv = where(fuller, stage.weight_bytes, weights), where(fuller, more, kv)
        return weights, kv


def make_memory_model(plan: Plan) -> MemoryModel:
    """The memory of a plan, stage by stage."""
    model, deployment, precision = plan.model, plan.deployment, plan.precision
    cuts = [stage * model.depth // deployment.pp for stage in range(deployment.pp + 1)]
    stages, index = [], precision.index
    for number, (first, last) in enumerate(pairwise(cuts)):
        held = stage_operations(model, deployment, precision, number)
        weights = sum(w.bytes * count for op, count in held.items() for w in op.weights)
        stages.append(Stage(weights, cache_law(model.layers[first:last], precision.kv, deployment.tp, index=index)))
    ideal, several = deployment.engine == "ideal", deployment.gpus > 1
    return MemoryModel(
        capacity_bytes=plan.system.accelerator.memory_bytes,
        overhead_bytes=0.0 if ideal else CONTEXT_BYTES[several] + NON_TORCH_BYTES[several] + GRAPH_BYTES,
        bytes_per_token=_activation_elements(plan) * precision.stream.bytes,
        bytes_per_row=model.vocab * 4.0 * (1.0 if ideal else SAMPLER_COPIES),
        stages=tuple(stages),
        replicas=deployment.dp,
        limit=model.max_context,
        kv_bytes_per_token=cache_law(model.layers, precision.kv, index=index).bytes_per_token,
    )


def _activation_elements(plan: Plan) -> float:
    """Elements alive at once per token in the widest block: residual, its norm, and what the feed-forward block holds.

    A dense block holds gate, up and their product; see `_routed_elements` for experts.
    """
    widest = 0.0
    for layer in plan.model.layer_counts:
        match layer.ffn:
            case DenseFFN(width=width, gated=gated):
                widest = max(widest, width / plan.deployment.tp * (3 if gated else 2))
            case MixtureOfExperts() as moe:
                widest = max(widest, _routed_elements(moe, plan.model.hidden, plan.deployment))
    return 2.0 * plan.model.hidden + widest


def _routed_elements(block: MixtureOfExperts, hidden: int, deployment: Deployment) -> float:
    """Elements that a mixture of experts holds at once, for each token of one attention replica.

    vLLM's fused_moe has one row for each of the top_k copies of a token, whether the rank holds that expert or not:
    the output of gate and up and, in the same memory once that is used up, that of the down projection (caches 1 and 3:
    the wider of the two), and their product (cache 2). Beside them stand the output of the shared experts, which run
    first, and, with attention replicas, the tokens that arrived from all of them; of many, a full step takes a chunk
    at a time.
    """
    replicas = deployment.dp > 1
    arrived = deployment.dp * (group_share(block, deployment.ep) if replicas and deployment.ep > 1 else 1.0)
    inner, wide = block.width / deployment.expert_tp, block.latent or hidden
    row = max((2 if block.gated else 1) * inner, wide) + inner
    at_once = min(arrived, MOE_CHUNK / TOKEN_BUDGET)
    routed = at_once * block.top_k * row + (arrived * wide if replicas else 0.0)
    if not block.shared_width:
        return routed
    shared = block.shared_width / deployment.tp * (3 if block.gated else 2)
    return max(routed + hidden, shared)

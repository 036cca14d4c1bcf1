"""The cache in blocks: how an engine lays out layers of different kinds, and what its log prints of the pool."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rooflinekit.model.memory.cache import CacheLaw, cache_law, layer_cache
from rooflinekit.model.step import Plan
from rooflinekit.model.types.engine import MemoryRule
from rooflinekit.model.types.model import LatentAttention, Layer
from rooflinekit.model.types.numeric import Numeric, ceil_div, floor_div, maximum, minimum

__all__ = ["Layout", "cache_layout"]

_NEARLY = 1.5  # kinds with up to this many times the layers of the rarest are padded to the commonest one


@dataclass(frozen=True)
class Layout:
    """How one sequence takes blocks, and how the pool is counted.

    law: bytes of one sequence, padding included; block_bytes: one block of the pool; groups: how many of them hold the
    same `block` tokens, one for each group of layers.
    """

    law: CacheLaw
    block: int
    block_bytes: float
    groups: int

    def blocks(self, pool: Numeric) -> Numeric:
        """Whole blocks in a pool of so many bytes."""
        return maximum(floor_div(pool, self.block_bytes), 0.0) if self.block_bytes else 0.0 * pool

    def tokens(self, pool: Numeric) -> Numeric:
        """Tokens that vLLM's log prints: blocks // groups x block ("GPU KV cache size")."""
        return floor_div(self.blocks(pool), float(self.groups)) * self.block

    def admitted_bytes(self, longest: Numeric, step: float) -> Numeric:
        """What vLLM reckons for one sequence of `longest` tokens when a step has at most `step` of them [B].

        A window counts with a whole step beside it, and one block more.
        """
        total: Numeric = self.law.state_bytes
        for cap, slope in self.law.slopes:
            tokens = longest if cap == math.inf else minimum(cap - 1.0 + step, longest)
            blocks = ceil_div(tokens, float(self.block)) + (cap < math.inf)
            total = total + blocks * (self.block * slope)
        return total


def cache_layout(plan: Plan, layers: Iterable[Layer]) -> Layout:
    """The layout of the layers of one pipeline stage on one of its accelerators."""
    rule, precision, tp = plan.engine.memory, plan.precision, plan.deployment.tp
    kept = [layer for layer in layers if layer.mixer is not None]
    if not kept:
        return Layout(CacheLaw((), 0.0), 1, 0.0, 1)
    kept = [_padded_latent(layer, rule) for layer in kept]
    block = plan.deployment.settings.block_size or _block(kept, rule)
    law = cache_law(kept, precision.kv, tp, block, precision.index, plan.deployment.kv_policy)
    if plan.engine.memory.budget == "none":
        return Layout(law, block, law.bytes_per_token * block, 1)
    kinds = _kinds(kept, plan)
    if len(kinds) == 1 or not rule.hybrid:
        whole = law.bytes_per_token
        return Layout(_unwindowed(law, rule, kinds), block, whole * block, 1)
    return _grouped(kinds, law, block)


def _padded_latent(layer: Layer, rule: MemoryRule) -> Layer:
    """Some versions pad a latent to a multiple of 128 elements."""
    if not isinstance(mixer := layer.mixer, LatentAttention) or rule.latent_multiple == 1:
        return layer
    padded = int(-(-mixer.latent_dim // rule.latent_multiple) * rule.latent_multiple)
    return replace(layer, mixer=replace(mixer, rope_dim=padded - mixer.kv_rank))


def _block(layers: list[Layer], rule: MemoryRule) -> int:
    latent = any(isinstance(layer.mixer, LatentAttention) for layer in layers)
    return int(rule.latent_block or rule.block) if latent else int(rule.block)


@dataclass(frozen=True)
class _Kind:
    """Layers that are cached alike: bytes a token each up to a cap, or a fixed state."""

    layers: int
    token: float
    cap: float
    state: float


def _kinds(layers: list[Layer], plan: Plan) -> list[_Kind]:
    precision, found = plan.precision, []
    counted: Counter[tuple[float, float, float]] = Counter()
    for layer in layers:
        cache = layer_cache(layer.mixer, plan.deployment.tp, precision.index, plan.deployment.kv_policy)
        token = cache.elements * precision.kv.bytes * (1.0 + cache.summaries) + cache.fixed_bytes
        counted[token, float(cache.cap or math.inf), cache.state_bytes] += 1
    for (token, cap, state), count in counted.items():
        found.append(_Kind(count, token, cap, state))
    return found


def _unwindowed(law: CacheLaw, rule: MemoryRule, kinds: list[_Kind]) -> CacheLaw:
    """Without groups, a layer with a window has blocks for the whole context like any other, if any is unlimited."""
    if rule.hybrid or all(kind.cap < math.inf for kind in kinds if kind.token):
        return law
    return replace(law, slopes=((math.inf, law.bytes_per_token),))


def _grouped(kinds: list[_Kind], law: CacheLaw, block: int) -> Layout:
    """Groups of equally many layers share the pool's blocks (vLLM, kv_cache_utils).

    A group has as many layers as the rarest kind, or as the commonest where that has less than 1.5 times as many;
    kinds are padded to whole groups. Recurrent states take one block a layer, so a block has enough tokens to hold
    one.
    """
    growing = [kind for kind in kinds if kind.token]
    fixed = [kind for kind in kinds if not kind.token]
    if not growing:
        return Layout(law, block, 0.0, 1)
    token = max(kind.token for kind in growing)
    if fixed:
        block = int(-(-max(kind.state for kind in fixed) // (token * block)) * block)
    fewest, most = min(k.layers for k in kinds), max(k.layers for k in kinds)
    size = most if most < _NEARLY * fewest else fewest
    groups = {kind: -(-kind.layers // size) for kind in kinds}
    slopes = tuple(sorted((kind.cap, groups[kind] * size * token) for kind in growing))
    state = sum(groups[kind] * size * token * block for kind in fixed)
    return Layout(CacheLaw(slopes, state, block), block, size * token * block, sum(groups.values()))

"""Cache of a sequence on the accelerators between steps, and the blocks in which an engine lays it out.

The law differs by kind of layer: full attention grows with the context, a sliding window or chunk stops growing,
MLA keeps one latent that tensor parallelism replicates, linear attention and state-space layers keep a fixed state.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from rooflinekit.model.graph.symbol import fact
from rooflinekit.model.kernels.attention import index_key_bytes, kv_cache_bytes_per_token
from rooflinekit.model.kernels.recurrent import STATE_DTYPE
from rooflinekit.model.step import Plan
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import MemoryRule
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.kv_policy import FULL, KVPolicy
from rooflinekit.model.types.model import (
    Attention,
    CompressedAttention,
    CrossAttention,
    GatedConvolution,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    LightningAttention,
    Mamba,
    Mamba2,
    Mixer,
    Model,
    Rwkv7,
)
from rooflinekit.model.types.numeric import Numeric, ceil_div, maximum, minimum, where


class LayerCache(NamedTuple):
    """One layer's share on one accelerator: what each token adds up to `cap` tokens, and a fixed state [B]."""

    token_bytes: float = 0.0
    cap: float = math.inf
    state_bytes: float = 0.0


@dataclass(frozen=True)
class CacheLaw:
    """Bytes that one sequence takes as a function of its context.

    slopes: (cap in tokens or infinity, bytes a token) for layers that stop growing at that cap, caps ascending;
    state_bytes: what it takes whatever the context; block: tokens are allocated in multiples of this (paging).
    """

    slopes: tuple[tuple[float, float], ...]
    state_bytes: float
    block: int = 1

    @property
    def bytes_per_token(self) -> float:
        """Bytes that each token adds before any cap is reached [B]."""
        return sum(slope for _, slope in self.slopes)

    def bytes(self, context: Numeric) -> Numeric:
        """Size of one sequence at `context` tokens [B].

        >>> CacheLaw(((4096.0, 10.0), (math.inf, 1.0)), 5.0).bytes(5000.0)
        45965.0
        """
        block = fact(self.block, "block", "tokens of one block of the cache", source="the engine's block size")
        allocated = context if self.block == 1 else ceil_div(context, block) * block
        total: Numeric = self.state_bytes
        for cap, slope in self.slopes:
            total = total + slope * (allocated if cap == math.inf else minimum(allocated, cap))
        return total

    def plus(self, other: CacheLaw) -> CacheLaw:
        """Two caches side by side, such as a model's and its draft's; allocated in the blocks of this one.

        >>> CacheLaw(((math.inf, 10.0),), 5.0).plus(CacheLaw(((64.0, 2.0), (math.inf, 1.0)), 0.0)).slopes
        ((64.0, 2.0), (inf, 11.0))
        """
        slopes: defaultdict[float, float] = defaultdict(float)
        for cap, slope in (*self.slopes, *other.slopes):
            slopes[cap] += slope
        return replace(self, slopes=tuple(sorted(slopes.items())), state_bytes=self.state_bytes + other.state_bytes)

    def longest(self, budget: Numeric) -> Numeric:
        """Longest context whose cache fits in `budget` bytes; infinite if it stops growing below that [tokens].

        >>> CacheLaw(((4096.0, 10.0), (math.inf, 1.0)), 5.0).longest(45965.0)
        5000.0
        """
        left: Numeric = budget - self.state_bytes
        context: Numeric = 0.0
        reached = 0.0
        for index, (cap, _) in enumerate(self.slopes):
            slope = sum(later for _, later in self.slopes[index:])
            step = minimum(maximum(left, 0.0) / slope, cap if cap == math.inf else cap - reached)
            context, left, reached = context + step, left - step * slope, cap
        whole = context // float(self.block) * self.block
        whole = where(self.bytes(whole + self.block) <= budget, whole + self.block, whole)  # lost to rounding
        whole = where(self.bytes(whole) > budget, maximum(whole - self.block, 0.0), whole)  # won by rounding
        if not self.slopes or self.slopes[-1][0] < math.inf:  # nothing grows without end: it fits for ever, or never
            forever = self.bytes(self.slopes[-1][0]) if self.slopes else self.state_bytes
            whole = where(budget >= forever, math.inf, whole)
        return where(budget >= self.state_bytes, whole, 0.0)


def layer_cache(
    mixer: Mixer | None, tp: int = 1, index: Dtype = Dtype.FP8, policy: KVPolicy = FULL, kv: Dtype = Dtype.BF16
) -> LayerCache:
    """Cache of one layer on one of `tp` accelerators, its cache in the format `kv`.

    `index` is the format of a sparse attention's index keys. Summaries of pages are a share of the keys and values. A
    mixer of a kind that is not known here says itself what it keeps, by a method `cache(tp, kv)`.

    >>> layer_cache(Attention(32, 8, 128, 128), tp=2).token_bytes
    2048.0
    """
    if (kept_by := getattr(mixer, "cache", None)) is not None:
        said: LayerCache = kept_by(tp, kv)
        return said
    keys = 0.0  # of the indexer
    match mixer:
        case Attention(shared=True) | None:
            return LayerCache()
        case Attention(window=window, indexer=chosen):
            heads = mixer.kv_heads if tp == 1 else max(1, mixer.kv_heads // tp)
            token = kv_cache_bytes_per_token(heads, mixer.head_dim, mixer.v_head_dim, kv)
            if mixer.chunk is not None:
                return LayerCache(token, window or mixer.chunk)
            if chosen is not None:
                keys = index_key_bytes(chosen.head_dim, Dtype.BF16 if chosen.wide else index)
            return LayerCache(token * (1.0 + policy.summaries(window)) + keys, policy.stored(window) or math.inf)
        case CrossAttention(kv_heads=own, head_dim=dim, length=length):
            return LayerCache(state_bytes=length * max(1, own // tp) * 2 * dim * kv.bytes)
        case CompressedAttention(ratio=ratio, indexer=chosen):
            if chosen is not None:
                keys = index_key_bytes(chosen.head_dim, index) / ratio
            kept = mixer.window * mixer.head_dim * Dtype.BF16.bytes  # the window's keys, whatever the context
            return LayerCache((mixer.head_dim // ratio if ratio else 0) * kv.bytes + keys, state_bytes=kept)
        case LatentAttention(indexer=chosen):
            if chosen is not None and not chosen.shared:
                keys = index_key_bytes(chosen.head_dim, index) / chosen.pool
            shares = policy.summaries(None if chosen is None else chosen.top_k, vectors=1)
            token = mixer.latent_dim * kv.bytes * (1.0 + shares) + keys
            return LayerCache(token, policy.stored(None) or math.inf)
        case _:
            return LayerCache(state_bytes=_state_bytes(mixer, tp))


_Recurrent: TypeAlias = GatedDeltaNet | Rwkv7 | LightningAttention | Mamba | Mamba2 | GatedConvolution


def _state_bytes(mixer: _Recurrent, tp: int) -> float:
    """Recurrent state in fp32, and the last inputs of the short convolution in 16 bit, on one of `tp` ranks [B].

    Mamba-2's groups (its B and C) are replicated once there are more ranks than groups, as KV heads are.
    """
    state: float
    channels: float
    match mixer:
        case GatedDeltaNet(key_heads=keys, value_heads=values, key_dim=k, value_dim=v):
            state, channels, taps = values * k * v / tp, (2 * keys * k + values * v) / tp, mixer.conv_width
        case LightningAttention(heads=heads, head_dim=dim):
            state, channels, taps = heads * dim * dim / tp, 0, 1
        case Rwkv7(heads=heads, head_dim=dim):  # and the last input of each of two blocks, whole on every rank
            state, channels, taps = heads * dim * dim / tp, 2 * heads * dim, 2
        case GatedConvolution(channels=width):
            state, channels, taps = 0.0, width / tp, mixer.conv_width
        case Mamba():
            state, channels, taps = mixer.inner * mixer.state / tp, mixer.inner / tp, mixer.conv_width
        case Mamba2():
            channels = mixer.inner / tp + 2 * max(1, mixer.groups // tp) * mixer.state
            state, taps = mixer.inner * mixer.state / tp, mixer.conv_width
    return state * STATE_DTYPE.bytes + channels * (taps - 1) * Dtype.BF16.bytes


def cache_law(  # noqa: PLR0913, PLR0917 - what is cached, its formats, its split, and what is kept of it
    layers: Iterable[Layer],
    kv: Dtype,
    tp: int = 1,
    block: int = 1,
    index: Dtype = Dtype.FP8,
    policy: KVPolicy = FULL,
) -> CacheLaw:
    """The law of a whole model, or of one pipeline stage, on one of `tp` accelerators.

    `kv` is the format of keys, values and latents, `index` that of a sparse attention's index keys; `policy` says how
    many tokens are kept.
    """
    if block < 1:
        raise WorkloadError(f"block must be at least 1 token, not {block}")
    slopes: defaultdict[float, float] = defaultdict(float)
    state = 0.0
    for layer, count in Counter(layers).items():
        cache = layer_cache(layer.mixer, tp, index, policy, kv)
        if cache.token_bytes:
            slopes[float(cache.cap)] += fact(count, "L", "layers of this kind") * cache.token_bytes
        state += count * cache.state_bytes
    return CacheLaw(tuple(sorted(slopes.items())), state, block)


def model_cache_law(model: Model, kv: Dtype | None = None, tp: int = 1, block: int = 1) -> CacheLaw:
    """The law of a model in its own cache format unless told otherwise; index keys are in FP8, as published."""
    return cache_law(model.layers, kv or model.kv_dtype or model.dtype, tp, block)


_NEARLY = 1.5  # kinds with up to this many times the layers of the rarest are padded to the commonest one


@dataclass(frozen=True)
class Layout:
    """Layout of one sequence in blocks, and the count of the pool.

    law: bytes of one sequence, padding included; block_bytes: one block of the pool; groups: how many of them hold the
    same `block` tokens, one for each group of layers. states: blocks that admission reckons for each one that a running
    sequence keeps recurrent states in; 0 without any. windows: share of the pool's tokens that windows have room for,
    and tokens of a prompt's last chunk that stay there at most; none where windows share the pool with all else.
    """

    law: CacheLaw
    block: int
    block_bytes: float
    groups: int
    states: float = 0.0
    windows: tuple[float, float] | None = None

    def blocks(self, pool: Numeric) -> Numeric:
        """Whole blocks in a pool of so many bytes."""
        return maximum(pool // self.block_bytes, 0.0) if self.block_bytes else 0.0 * pool

    def tokens(self, pool: Numeric) -> Numeric:
        """Tokens that vLLM's log prints: blocks // groups x block ("GPU KV cache size")."""
        return self.blocks(pool) // float(self.groups) * self.block

    def admitted_bytes(self, longest: Numeric, step: float) -> Numeric:
        """Bytes that vLLM reckons for one sequence of `longest` tokens when a step has at most `step` of them [B].

        A window counts with a whole step beside it, and one block more. A recurrent state that the prefix cache keeps
        has a block to be read from and one to be written to.
        """
        total: Numeric = (self.states or 1.0) * self.law.state_bytes
        for cap, slope in self.law.slopes:
            tokens = longest if cap == math.inf else minimum(cap - 1.0 + step, longest)
            blocks = ceil_div(tokens, float(self.block)) + (cap < math.inf)
            total = total + blocks * (self.block * slope)
        return total


def cache_layout(plan: Plan, layers: Iterable[Layer], head: Iterable[Layer] = (), drafted: int = 0) -> Layout:
    """The layout of the layers of one pipeline stage on one of its accelerators.

    `head` has layers of a draft that share the pool; of `drafted` tokens in a row vLLM keeps each recurrent state, and
    the inputs of the short convolution (v1/kv_cache_interface.py, MambaSpec; mamba_utils.py, num_spec).
    """
    rule, precision, deployment = plan.engine.memory, plan.precision, plan.deployment
    drafted = drafted if rule.state_blocks else 0
    kept = [
        _padded_latent(_drafting(layer, drafted), rule)
        for layer in (*layers, *head)
        if layer.mixer and not getattr(layer.mixer, "shared", False)
    ]
    if not kept:
        return Layout(CacheLaw((), 0.0), 1, 0.0, 1)
    latent = any(isinstance(layer.mixer, LatentAttention) for layer in kept)
    block = deployment.settings.block_size or int((latent and rule.latent_block) or rule.block)
    law = cache_law(kept, precision.kv, deployment.tp, block, precision.index, deployment.kv_policy)
    whole = law.bytes_per_token
    kept_as = deployment.tp, precision.index, deployment.kv_policy, precision.kv
    alike = Counter(layer_cache(layer.mixer, *kept_as) for layer in kept)
    if rule.window_share and any(isinstance(layer.mixer, CompressedAttention) for layer in kept):
        return _with_windows(law, block, kept, plan)
    if rule.budget != "none":
        crossing = any(isinstance(layer.mixer, CrossAttention) for layer in kept)  # blocks of their own, as small
        unlike = len({kind.cap for kind in alike}) > 1 or any(kind.state_bytes for kind in alike)
        if len(alike) > 1 and unlike and rule.hybrid and not crossing:
            grouped = _grouped(alike, law, block)
            own = 1.0 if deployment.settings.prefix_caching == "off" else rule.state_blocks
            states = (own + drafted) / (1 + drafted) if law.state_bytes and rule.state_blocks else 0.0
            law = replace(grouped.law, state_bytes=grouped.law.state_bytes * (1 + drafted))
            return replace(grouped, law=law, states=states)
        if not rule.hybrid and any(kind.token_bytes and kind.cap == math.inf for kind in alike):
            law = replace(law, slopes=((math.inf, whole),))  # without groups a window has blocks for the whole context
    return Layout(law, block, whole * block, 1)


_FP32, _RING = 4, 8  # bytes; groups of which the keys and weights are kept


def _with_windows(law: CacheLaw, block: int, kept: Iterable[Layer], plan: Plan) -> Layout:
    """The cache of DeepSeek-V4 in SGLang, which divides the pool once and for all.

    Windows have room for a share of the tokens (--swa-full-tokens-ratio), and so has what compression reads of them:
    fp32 keys and weights of two groups, a ring of 8 for each window (pool_configurator.py, DSV4PoolConfigurator). A
    prompt's last chunk is one node of the prefix tree, all of which stays there as long as its request runs
    (swa_radix_cache.py, inc_lock_ref; SGLANG_OPT_SWA_SPLIT_LEAF_ON_INSERT is off); a window without prefix caching.
    """
    windows, window = 0.0, 0.0
    for layer in kept:
        if isinstance(mixer := layer.mixer, CompressedAttention):
            windows, window = windows + mixer.head_dim * plan.precision.kv.bytes, float(mixer.window)
            if mixer.indexer is not None:
                windows += 2 * mixer.overlap * (mixer.head_dim + mixer.indexer.head_dim) * _FP32 * _RING / mixer.window
    share = plan.engine.memory.window_share
    token = law.bytes_per_token + share * windows
    stays = window if plan.deployment.settings.prefix_caching == "off" else math.inf
    law = replace(law, slopes=((math.inf, token),), state_bytes=0.0)
    return Layout(law, block, token * block, 1, windows=(share, stays))


def _drafting(layer: Layer, drafted: int) -> Layer:
    """A layer whose short convolution keeps its inputs of so many drafted tokens too."""
    mixer = layer.mixer
    if not drafted or not isinstance(mixer, GatedDeltaNet | Mamba | Mamba2 | GatedConvolution):
        return layer
    return replace(layer, mixer=replace(mixer, conv_width=mixer.conv_width + drafted))


def _padded_latent(layer: Layer, rule: MemoryRule) -> Layer:
    """Some versions pad a latent to a multiple of 128 elements."""
    if not isinstance(mixer := layer.mixer, LatentAttention) or rule.latent_multiple == 1:
        return layer
    padded = int(-(-mixer.latent_dim // rule.latent_multiple) * rule.latent_multiple)
    return replace(layer, mixer=replace(mixer, rope_dim=padded - mixer.kv_rank))


def _grouped(kinds: Counter[LayerCache], law: CacheLaw, block: int) -> Layout:
    """Groups of equally many layers share the pool's blocks (vLLM, kv_cache_utils).

    Layers that need equally many slots (UniformTypeKVCacheSpecs) are one group whatever their sizes, and come not here.
    A group has as many layers as the rarest kind, or as the commonest where that has less than 1.5 times as many;
    kinds are padded to whole groups. Recurrent states take one block a layer, so a block has enough tokens to hold
    one.
    """
    token = max(kind.token_bytes for kind in kinds)
    if not token:
        return Layout(law, block, 0.0, 1)
    if fixed := [kind.state_bytes for kind in kinds if not kind.token_bytes]:
        block = int(-(-max(fixed) // (token * block)) * block)
    fewest, most = min(kinds.values()), max(kinds.values())
    size = most if most < _NEARLY * fewest else fewest
    groups = {kind: -(-layers // size) for kind, layers in kinds.items()}
    slopes = tuple(sorted((float(kind.cap), groups[kind] * size * token) for kind in kinds if kind.token_bytes))
    state = sum(groups[kind] * size * token * block for kind in kinds if not kind.token_bytes)
    return Layout(CacheLaw(slopes, state, block), block, size * token * block, sum(groups.values()))

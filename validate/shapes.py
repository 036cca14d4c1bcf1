"""Which shapes to measure: those of a model's own layers, and a grid that is even in roofline time.

Letters: m, n, k rows, outputs and depth of a GEMM; B sequences, S new tokens, T keys, H, K, d heads and their width.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import TypeVar

from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import AttentionShape, GemmShape, Kernel
from rooflinekit.model.types.model import DenseFFN, MixtureOfExperts
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.validate.prefill import Heads

__all__ = ["EXPERTS", "HEADS", "Extent", "Rates", "Shapes", "model_kernels", "plan_shapes", "stratified"]

T = TypeVar("T")
_HALF_DECADE = math.log(10.0) / 2.0


@dataclass(frozen=True)
class Rates:
    """What the ceilings showed: peak rate [FLOP/s] and memory bandwidth [B/s]."""

    flops: float
    bandwidth: float

    def seconds(self, flops: float, moved: float) -> float:
        """Roofline time [s] (Williams et al. 2009, doi:10.1145/1498765.1498785).

        >>> Rates(1e12, 1e9).seconds(1e9, 1e6)
        0.001
        """
        return max(flops / self.flops, moved / self.bandwidth)


@dataclass(frozen=True)
class Extent:
    """How much to measure."""

    tokens: tuple[int, ...]  #: of a step
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    each: int  #: shapes of every half-decade of roofline time
    span: tuple[float, float]  #: roofline time of a shape [s]
    width: int  #: largest n and k of a GEMM in the grid


HEADS = {
    "mha": (Heads(12, 12, 64), Heads(32, 32, 128)),  # gpt2, llama-2-7b
    "gqa": (Heads(9, 3, 64), Heads(14, 2, 64), Heads(16, 8, 128), Heads(32, 8, 128), Heads(64, 8, 128)),
    "mqa": (Heads(16, 1, 128), Heads(8, 1, 256)),  # starcoder-like, gemma-2b
}
"""Layouts of published models: smollm2-135m, qwen2.5-0.5b, qwen3-0.6b, llama-3-8b, llama-3-70b among the grouped."""

EXPERTS = ((2048, 768, 128, 8), (4096, 14336, 8, 2), (2048, 1408, 64, 6), (4096, 1536, 128, 8), (2880, 2880, 32, 4))
"""Width, inner width, experts, experts a token: qwen3-30b-a3b, mixtral-8x7b, deepseek-v2-lite, qwen3-235b-a22b,
gpt-oss-20b."""


@dataclass(frozen=True)
class Shapes:
    """Shapes by kernel, as the modules of the kernels take them."""

    gemm: list[tuple[int, int, int]]
    prefill: list[tuple[Heads, int, int]]
    decode: list[tuple[Heads, int, int]]
    latent_prefill: list[tuple[int, int, int]]
    latent_decode: list[tuple[int, int, int]]
    experts: list[tuple[int, int, int, int, int]]
    norm_kind: str
    norm: list[tuple[int, int]]
    rope: list[tuple[int, int, int, int]]
    swiglu: list[tuple[int, int]]
    embedding: list[tuple[int, int, int]]
    append: list[tuple[int, int, int]]
    sampling: list[tuple[int, int]]


def model_kernels(name: str, dtype: str, batch: Batch) -> list[Kernel]:
    """The kernels of one step of a model, all in one format; no accelerator decides about shapes."""
    chosen = parse_dtype(dtype)
    deployment = Deployment(weights=chosen, activations=chosen, kv=chosen)
    plan: Plan = make_plan(load_model(name).value, deployment, System.of(load_accelerator("h100-sxm").value), None)
    return plan.kernels(batch)


def stratified(candidates: Iterable[T], seconds: Callable[[T], float], each: int, span: tuple[float, float]) -> list[T]:
    """`each` candidates from every half-decade of roofline time within the span; seeded.

    >>> stratified(range(1, 1000), lambda n: n * 1e-6, 1, (1e-6, 1e-3))  # of 1 to 3, of 4 to 9, ...
    [2, 7, 11, 65, 230, 814]
    """
    low, high = span
    strata: dict[int, list[T]] = {}
    for candidate in candidates:
        time = seconds(candidate)
        if low <= time < high:
            strata.setdefault(int(math.log(time / low) / _HALF_DECADE), []).append(candidate)
    chance = random.Random(0)
    return [one for _, held in sorted(strata.items()) for one in chance.sample(held, min(each, len(held)))]


def plan_shapes(model: str, dtype: str, rates: Rates, extent: Extent) -> Shapes:
    """A model's own shapes over the tokens and contexts of the extent, then the grid."""
    own, spec = model_kernels(model, dtype, Batch.decode(1.0, 2.0)), load_model(model).value
    roof = _Roof(rates, parse_dtype(dtype).bytes)
    heads = _own_heads(own)
    layouts = [*heads, *(each for kind in HEADS.values() for each in kind)]
    blocks = [layer.ffn for layer in spec.layers if isinstance(layer.ffn, (DenseFFN, MixtureOfExperts))]
    tokens, contexts, batches = extent.tokens, extent.contexts, extent.batches
    widths = (spec.hidden, 768, 1024, 1536, 2048, 3072, 4096, 8192)

    def even(candidates: Iterable[T], seconds: Callable[[T], float], times: int = 1) -> list[T]:
        return stratified(candidates, seconds, times * extent.each, extent.span)

    return Shapes(
        gemm=_gemms(own, roof, extent),
        prefill=[(h, 1, S) for h in heads for S in tokens if S > 1]
        + even(product(layouts, batches, contexts), roof.prefill),
        decode=[(h, B, T) for h in heads for B in batches[:2] for T in contexts]
        + even(product(layouts, batches, contexts), roof.decode, times=2),
        latent_prefill=even(product((16, 32, 128), batches[:2], contexts), roof.latent_prefill, times=2),
        latent_decode=even(product((16, 32, 128), batches, contexts), roof.latent_decode),
        experts=_experts(extent),
        norm_kind=spec.final_norm,
        norm=list(product(tokens, widths)),
        rope=[(n, *h) for n in tokens for h in layouts[::2]],
        swiglu=list(product(tokens, (blocks[0].width if blocks else 4 * spec.hidden, 2048, 4096, 14336))),
        embedding=list(product(tokens, widths[:7], (min(spec.vocab, 32000),))),
        append=[(n, h.K, h.d) for n in tokens for h in layouts],
        sampling=list(product(batches, (spec.vocab, 8000, 32000, 64000, 128256))),
    )


@dataclass(frozen=True)
class _Roof:
    """Roofline times of shapes [s], to place them evenly; `size` bytes an element."""

    rates: Rates
    size: float

    def gemm(self, shape: tuple[int, int, int]) -> float:
        m, n, k = shape
        return self.rates.seconds(2.0 * m * n * k, self.size * (m * (n + k) + n * k))

    def prefill(self, shape: tuple[Heads, int, int]) -> float:
        (H, K, d), B, S = shape
        return self.rates.seconds(2.0 * B * H * d * S * S, self.size * 2.0 * B * S * d * (H + K))

    def decode(self, shape: tuple[Heads, int, int]) -> float:
        (H, K, d), B, keys = shape
        return self.rates.seconds(4.0 * B * H * d * keys, self.size * 2.0 * B * keys * d * K)

    def latent_prefill(self, shape: tuple[int, int, int]) -> float:
        H, B, S = shape
        return self.rates.seconds(B * H * 320.0 * S * S, self.size * B * S * H * 640.0)

    def latent_decode(self, shape: tuple[int, int, int]) -> float:
        H, B, keys = shape
        return self.rates.seconds(2.0 * B * H * 1088.0 * keys, self.size * B * keys * 576.0)


def _own_heads(own: Sequence[Kernel]) -> list[Heads]:
    decode = [k for k in own if k.family == "attention_decode" and k.name != "index_scores"]
    found = [k.shaped(AttentionShape) for k in decode]
    return list(dict.fromkeys(Heads(int(s.heads), int(s.kv_heads), int(s.head_dim)) for s in found))


def _gemms(own: Sequence[Kernel], roof: _Roof, extent: Extent) -> list[tuple[int, int, int]]:
    """The model's matrices over the tokens of a step; matrices of any size between 256 and the extent's width."""
    products = [k.shaped(GemmShape) for k in own if k.family == "gemm"]
    matrices = dict.fromkeys((int(s.n), int(s.k)) for s in products)
    rows = [(m, n, k) for n, k in matrices for m in extent.tokens]
    steps = range(int(2 * math.log2(extent.width / 256)) + 1)
    sides = [64 * round(256 * 2 ** (step / 2) / 64) for step in steps]
    chance = random.Random(0)
    grid = [(m, chance.choice(sides), chance.choice(sides)) for m in extent.tokens for _ in range(200)]
    return rows + stratified(grid, roof.gemm, 2 * extent.each, extent.span)


def _experts(extent: Extent) -> list[tuple[int, int, int, int, int]]:
    """Published blocks; a slow device gets them at a quarter of the width, with 16 experts at most."""
    slow = extent.width < EXPERTS[1][1]
    blocks = [(D // 4, F // 4, min(E, 16), min(k, 4)) for D, F, E, k in EXPERTS] if slow else EXPERTS
    return [(n, *block) for block in blocks for n in extent.tokens]

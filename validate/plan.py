"""Which kernels a run measures, at which shapes, and in which order: a part of them is already a sample of all.

Shapes are those of a model's own layers, and a grid that is even in roofline time. Letters: m, n, k rows, outputs and
depth of a GEMM; B sequences, S new tokens, T keys, H, K, d heads and their width; N tokens, D and F widths, E experts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import product, zip_longest
from typing import Any

from rooflinekit.model.step import make_plan
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import AttentionShape, GemmShape
from rooflinekit.model.types.model import DenseFFN, MixtureOfExperts
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.validate import attention_kernels, elementwise, matrix_kernels
from rooflinekit.validate.attention_kernels import Heads
from rooflinekit.validate.case import TimedCase
from rooflinekit.validate.device import Device
from rooflinekit.validate.vllm_ops import TILE

_HALF_DECADE = math.log(10.0) / 2.0


@dataclass(frozen=True)
class CeilingRates:
    """What the ceilings showed: peak rate [FLOP/s] and memory bandwidth [B/s]."""

    flops: float
    bandwidth: float

    def seconds(self, flops: float, moved: float) -> float:
        """Roofline time [s] (Williams et al. 2009, doi:10.1145/1498765.1498785).

        >>> CeilingRates(1e12, 1e9).seconds(1e9, 1e6)
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


_GPU_TOKENS = (1, 4, 16, 64, 128, 256, 1024, 4096)
EXTENTS = {
    ("cpu", "quick"): Extent((1, 4, 32, 128, 512), (128, 256, 512, 1024), (1, 4, 8), 3, (3e-6, 2e-2), 2048),
    ("cpu", "full"): Extent((1, 4, 16, 64, 128, 512), (64, 128, 512, 1024, 4096), (1, 2, 8, 32), 4, (3e-6, 0.2), 4096),
    ("cuda", "quick"): Extent((*_GPU_TOKENS[::2], 4096), (512, 2048, 8192), (1, 8, 64), 3, (5e-7, 5e-3), 16384),
    ("cuda", "full"): Extent(
        (*_GPU_TOKENS, 8192), (128, 512, 1024, 4096, 16384, 65536), (1, 4, 16, 64, 256), 8, (5e-7, 3e-2), 16384
    ),
}
"""By kind of device and suite."""

_HEADS = (Heads(12, 12, 64), Heads(32, 32, 128), Heads(9, 3, 64), Heads(14, 2, 64), Heads(16, 8, 128),
          Heads(32, 8, 128), Heads(64, 8, 128), Heads(16, 1, 128), Heads(8, 1, 256))  # fmt: skip
"""Published models: gpt2, llama-2-7b; smollm2-135m, qwen2.5-0.5b, qwen3-0.6b, llama-3-8b and 70b; two with one KV head,
like starcoder and gemma-2b."""
_EXPERTS = ((2048, 768, 128, 8), (4096, 14336, 8, 2), (2048, 1408, 64, 6), (4096, 1536, 128, 8), (2880, 2880, 32, 4))
"""Width, inner width, experts, experts a token: qwen3-30b-a3b, mixtral-8x7b, deepseek-v2-lite, qwen3-235b-a22b,
gpt-oss-20b."""
_PACKED = Heads(16, 8, 128)

Shape = tuple[Any, ...]


def stratified(
    candidates: Iterable[Shape], seconds: Callable[..., float], each: int, span: tuple[float, float]
) -> list[Shape]:
    """`each` candidates from every half-decade of roofline time within the span; seeded.

    >>> stratified(zip(range(1, 1000)), lambda n: n * 1e-6, 1, (1e-6, 1e-3))  # of 1 to 3, of 4 to 9, ...
    [(2,), (7,), (11,), (65,), (230,), (814,)]
    """
    low, high = span
    strata: dict[int, list[Shape]] = {}
    for candidate in candidates:
        time = seconds(*candidate)
        if low <= time < high:
            strata.setdefault(int(math.log(time / low) / _HALF_DECADE), []).append(candidate)
    chance = random.Random(0)
    return [one for _, held in sorted(strata.items()) for one in chance.sample(held, min(each, len(held)))]


def plan_shapes(model: str, dtype: str, rates: CeilingRates, extent: Extent) -> dict[str, list[Shape]]:
    """By kernel, as its cases take them: a model's own shapes over tokens and contexts of the extent, then the grid."""
    spec, anywhere = load_model(model).value, System.of(load_accelerator("h100-sxm").value)  # it decides no shape
    chosen = parse_dtype(dtype)
    deployment = Deployment(weights=chosen, activations=chosen, kv=chosen)
    own = make_plan(spec, deployment, anywhere, None).kernels(Batch.decode(1.0, 2.0))
    size, seconds = chosen.bytes, rates.seconds
    tokens, contexts, batches = extent.tokens, extent.contexts, extent.batches
    attention = [k.shaped(AttentionShape) for k in own if k.family == "attention_decode" and k.name != "index_scores"]
    heads = list(dict.fromkeys(Heads(int(s.heads), int(s.kv_heads), int(s.head_dim)) for s in attention))
    layouts = [*heads, *_HEADS]
    products = [k.shaped(GemmShape) for k in own if k.family == "gemm"]
    matrices = dict.fromkeys((int(s.n), int(s.k)) for s in products)
    blocks = [layer.ffn for layer in spec.layers if isinstance(layer.ffn, (DenseFFN, MixtureOfExperts))]
    widths = (spec.hidden, 768, 1024, 1536, 2048, 3072, 4096, 8192)
    longest = contexts[-1]
    ragged = (longest, longest // 2, longest // 4, longest // 8)
    small = extent.width < _EXPERTS[1][1]  # a slow device gets a quarter of the width, with 16 experts at most
    mixtures = [(D // 4, F // 4, min(E, 16), min(k, 4)) for D, F, E, k in _EXPERTS] if small else _EXPERTS

    def even(candidates: Iterable[Shape], time: Callable[..., float], times: int = 1) -> list[Shape]:
        return stratified(candidates, time, times * extent.each, extent.span)

    return {
        "gemm": [(m, n, k) for n, k in matrices for m in tokens]
        + even(_products(extent), lambda m, n, k: seconds(2.0 * m * n * k, size * (m * (n + k) + n * k)), times=2),
        "experts": [(n, *block) for block in mixtures for n in tokens],
        "prefill": [(h, 1, S) for h in heads for S in tokens if S > 1]
        + even(product(layouts, batches, contexts), lambda h, B, S: seconds(
            2.0 * B * h.H * h.d * S * S, size * 2.0 * B * S * h.d * (h.H + h.K))),
        "chunk": [(h, 1, S, S + T) for h in heads for S in tokens[-3:] if S > 1 for T in contexts[-3:]],
        "decode": [(h, B, T) for h in heads for B in batches[:2] for T in contexts]
        + even(product(layouts, batches, contexts), lambda h, B, T: seconds(
            4.0 * B * h.H * h.d * T, size * 2.0 * B * T * h.d * h.K), times=2),
        "varlen": [(_PACKED, ragged), (_PACKED, (longest // 4,) * 4)],
        "latent_prefill": even(product((16, 32, 128), batches[:2], contexts), lambda H, B, S: seconds(
            B * H * 320.0 * S * S, size * B * S * H * 640.0), times=2),
        "latent_decode": even(product((16, 32, 128), batches, contexts), lambda H, B, T: seconds(
            2.0 * B * H * 1088.0 * T, size * B * T * 576.0)),
        "norm": list(product(tokens, widths, (spec.final_norm,))),
        "rope": [(n, *h) for n in tokens for h in layouts[::2]],
        "swiglu": list(product(tokens, (blocks[0].width if blocks else 4 * spec.hidden, 2048, 4096, 14336))),
        "embedding": list(product(tokens, widths[:7], (min(spec.vocab, 32000),))),
        "append": [(n, h.K, h.d, dtype) for n in tokens for h in layouts],
        "sampling": list(product(batches, (spec.vocab, 8000, 32000, 64000, 128256))),
    }  # fmt: skip


def _products(extent: Extent) -> Sequence[Shape]:
    """Matrices of any size between 256 and the extent's width."""
    steps = range(int(2 * math.log2(extent.width / 256)) + 1)
    sides = [64 * round(256 * 2 ** (step / 2) / 64) for step in steps]
    chance = random.Random(0)
    return [(m, chance.choice(sides), chance.choice(sides)) for m in extent.tokens for _ in range(200)]


_CASES: dict[str, Callable[..., Iterable[TimedCase]]] = {
    "gemm": matrix_kernels.gemm_cases, "experts": matrix_kernels.expert_cases,
    "prefill": attention_kernels.prefill_cases, "chunk": attention_kernels.chunk_cases,
    "decode": attention_kernels.decode_cases,
    "varlen": attention_kernels.varlen_cases, "latent_prefill": attention_kernels.latent_prefill_cases,
    "latent_decode": attention_kernels.latent_decode_cases, "norm": elementwise.norm_cases,
    "rope": elementwise.rope_cases, "swiglu": elementwise.swiglu_cases, "embedding": elementwise.embedding_cases,
    "append": elementwise.append_cases, "sampling": elementwise.sampling_cases,
}  # fmt: skip


def kernel_cases(model: str, device: Device, rates: CeilingRates, extent: Extent) -> list[TimedCase]:
    """Every kernel at its shapes without repetitions, the families in turn; GEMMs have two turns.

    The model's format in full, narrower ones where the device has units for them.
    """
    dtype, shapes = device.dtype, plan_shapes(model, device.dtype, rates, extent)
    gemm, *others = ((_CASES[name], [(*shape, dtype) for shape in each]) for name, each in shapes.items())
    families = [(gemm[0], gemm[1][::2]), (gemm[0], gemm[1][1::2]), *others]
    if device.is_cuda:
        # FP8 products take multiples of 16: a router with 8 experts runs in 16 bit.
        families += [(gemm[0], [(m, n, k, "fp8") for m, n, k in shapes["gemm"] if n % 16 == k % 16 == 0])]
        tiled = [(m, n, k) for m, n, k in shapes["gemm"] if n % TILE == k % TILE == 0]
        families += [(gemm[0], [(*shape, dtype) for shape in tiled[::2]]) for dtype in ("fp8_block", "int4_a16")]
        families += [(elementwise.append_cases, [(*shape[:-1], "fp8", dtype) for shape in shapes["append"]])]
    turns = [[case for shape in each for case in call(*shape, device)] for call, each in families]
    for family in turns:
        random.Random(0).shuffle(family)  # warming up and drifting clocks would else look like an effect of the size
    return list({case.key: case for turn in zip_longest(*turns) for case in turn if case is not None}.values())

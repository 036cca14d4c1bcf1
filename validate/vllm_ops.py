"""The kernels that vLLM runs, by its own shared objects beside the PyTorch that is here, without starting vLLM.

Signatures are those of the wheel of vLLM 0.24.0 (`_C_stable_libtorch`, `_vllm_fa3_C`). FlashAttention 3 runs on compute
capability 9.0. Letters: B sequences, T keys, S new tokens, H query heads, K KV heads, d head width, P tokens of a page.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rooflinekit.validate.case import TORCH, TimedWork, nibbles, normal, shuffled
from rooflinekit.validate.device import Device, version_of
from rooflinekit.validate.feedforward import route

PAGE, _LATENT_PAGE = 16, 64
"""Tokens of a page: vLLM's default, and that of its latent cache."""
RANK, ROPE, _LATENT_SCALE = 512, 64, 192**-0.5
"""Columns of MLA's latent and of its rotary part."""
_EPS = 1e-6
_FILES = {"_C": "_C_stable_libtorch.abi3.so", "_vllm_fa3_C": "vllm_flash_attn/_vllm_fa3_C.abi3.so"}
TILE = 128
"""Columns with one scale, of activations in block FP8 and of weights in INT4; FP8 weights have one for 128 rows too."""
_UINT4B8 = 4 << 8 | 8 << 17 | 1 << 50
"""vLLM's number (scalar_type.py) of a format: four bits of mantissa, a bias of 8, NaN as in IEEE 754."""


@cache
def ops(namespace: str) -> Any:
    """The operators of one of vLLM's shared objects.

    Raises ImportError where there is none, or it was built for another PyTorch.
    """
    found = getattr(torch.ops, namespace)
    if _has(found):
        return found
    spec = importlib.util.find_spec("vllm")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / _FILES[namespace]
        if path.is_file():
            try:
                torch.ops.load_library(str(path))
            except OSError as error:
                raise ImportError(f"{path.name} does not load beside PyTorch {torch.__version__}: {error}") from None
            return found
    raise ImportError(f"no {_FILES[namespace]} of vLLM is on the path")


def _has(found: Any) -> bool:
    return any(hasattr(found, name) for name in ("fwd", "cutlass_scaled_mm"))


def _forward(B: int, S: int, T: int, scale: float, device: torch.device) -> Any:
    """FlashAttention 3 over pages, causal: call(q [B·S, H, d], keys, values, table, q_v) -> [B·S, H, e]."""
    fwd, no = ops("_vllm_fa3_C").fwd, None
    starts = torch.arange(B + 1, dtype=torch.int32, device=device) * S  # where each sequence begins
    used = torch.full((B,), T, dtype=torch.int32, device=device)  # keys of each sequence

    def call(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, q_v: Tensor | None = None) -> Tensor:
        return fwd(
            q, keys, values, no, no, q_v, no, starts, no, no, no, used, S, T, table, no, no, no, no, no, no, no, no,
            scale, True, -1, -1, 0.0, True, no, 0, no, 0, no, 1, 0, no,
        )[0]  # fmt: skip

    return call


def page_table(B: int, T: int, page: int, device: torch.device) -> Tensor:
    """Which page holds which tokens [B, ⌈T/page⌉] int32; pages in random order, as after long serving."""
    each = -(-T // page)
    return shuffled(B * each, device).view(B, each).to(torch.int32)


def attention(heads: tuple[int, int, int], B: int, S: int, T: int, dtype: str, device: Device) -> TimedWork:
    """S new tokens a sequence: their keys and values are written into pages, then attention reads all T from there."""
    (H, K, d), place = heads, device.torch
    draw, forward = partial(normal, dtype=dtype, device=place), _forward(B, S, T, d**-0.5, place)
    ops("_C")
    write, one = torch.ops._C_cache_ops.reshape_and_cache_flash, torch.ones((), device=place)

    def cold() -> tuple[Tensor, ...]:
        table, token = page_table(B, T, PAGE, place), torch.arange(T - S, T, device=place)
        slots = table[:, token // PAGE].long() * PAGE + token % PAGE  # of the new tokens, counted over all pages [B, S]
        return slots.flatten(), *(draw(table.numel(), PAGE, K, d) for _ in "kv"), table

    def run(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, keys: Tensor, values: Tensor, table: Tensor) -> Tensor:
        write(k, v, keys, values, slots, "auto", one, one)
        return forward(q, keys, values, table)

    return TimedWork(run, tuple(draw(B * S, n, d) for n in (H, K, K)), cold)


def latent_decode(H: int, B: int, T: int, dtype: str, device: Device) -> TimedWork:
    """MLA's decode on Hopper: rotary parts as queries and keys, latents as values and second queries."""
    place = device.torch
    draw, forward = partial(normal, dtype=dtype, device=place), _forward(B, 1, T, _LATENT_SCALE, place)

    def cold() -> tuple[Tensor, ...]:
        table = page_table(B, T, _LATENT_PAGE, place)
        return draw(table.numel(), _LATENT_PAGE, 1, RANK + ROPE), table

    def run(q: Tensor, pool: Tensor, table: Tensor) -> Tensor:
        latent, rotary = pool.split([RANK, ROPE], dim=-1)
        return forward(q[..., RANK:], rotary, latent, table, q[..., :RANK])

    return TimedWork(run, (draw(B, H, RANK + ROPE),), cold)


def fp8_gemm(m: int, n: int, k: int, device: Device) -> TimedWork:
    """Activations quantised token by token, then CUTLASS with fast accumulation: x [m, k] bf16, W [n, k] fp8."""
    own, place = ops("_C"), device.torch
    scales = torch.ones(n, 1, device=place)

    def run(x: Tensor, weight: Tensor) -> Tensor:
        narrow, rows = torch.empty(m, k, dtype=torch.float8_e4m3fn, device=place), torch.empty(m, 1, device=place)
        own.dynamic_per_token_scaled_fp8_quant(narrow, x, rows, None)
        out = torch.empty(m, n, dtype=x.dtype, device=place)
        own.cutlass_scaled_mm(out, narrow, weight.t(), rows, scales, None)
        return out

    return TimedWork(
        run, (normal(m, k, dtype="bf16", device=place),), lambda: (normal(n, k, dtype="fp8", device=place),)
    )


def block_gemm(m: int, n: int, k: int, device: Device) -> TimedWork:
    """Activations quantised in groups of 128 columns, then CUTLASS: weight [n, k] fp8, scales [n/128, k/128]."""
    own, place = ops("_C"), device.torch
    draw = partial(normal, device=place)

    def run(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        narrow = torch.empty(m, k, dtype=torch.float8_e4m3fn, device=place)
        groups = torch.empty(k // TILE, m, device=place).t()  # column by column, as the product reads them
        own.per_token_group_fp8_quant(x, narrow, groups, TILE, 1e-10, -448.0, 448.0, False, True, False)
        out = torch.empty(m, n, dtype=x.dtype, device=place)
        own.cutlass_scaled_mm(out, narrow, weight.t(), groups, scales.t(), None)
        return out

    return TimedWork(run, (draw(m, k, dtype="bf16"),), lambda: (
        draw(n, k, dtype="fp8"), draw(n // TILE, k // TILE, dtype="fp32").abs()))  # fmt: skip


def int4_gemm(m: int, n: int, k: int, device: Device) -> TimedWork:
    """Machete: x [m, k] bf16, weights of four bits in its own order, scales [k/128, n]; the plain weights come last."""
    own, place = ops("_C"), device.torch

    def cold() -> tuple[Tensor, ...]:
        plain, scales = nibbles(k, n, place), normal(k // TILE, n, dtype="bf16", device=place)
        ordered = own.machete_prepack_B(plain.t().contiguous().t(), torch.bfloat16, _UINT4B8, torch.bfloat16)
        return ordered, scales, plain

    def run(x: Tensor, weight: Tensor, scales: Tensor, plain: Tensor) -> Tensor:
        return own.machete_mm(x, weight, _UINT4B8, None, scales, None, TILE, None, None, None)

    return TimedWork(run, (normal(m, k, dtype="bf16", device=place),), cold)


def rope(N: int, heads: tuple[int, int, int], dtype: str, device: Device) -> TimedWork:
    """Queries [N, H, d] and keys [N, K, d] turned in place, with cosines and sines from a table."""
    (H, K, d), place, own = heads, device.torch, ops("_C")
    where = torch.arange(N, device=place)
    angles = where[:, None] * 10_000.0 ** (-torch.arange(0, d, 2, device=place) / d)
    table = torch.cat([angles.cos(), angles.sin()], dim=-1).to(TORCH[dtype])

    def run(q: Tensor, k: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        own.rotary_embedding(where, q.flatten(1), k.flatten(1), d, table, True)
        return q, k

    return TimedWork(run, (*(normal(N, n, d, dtype=dtype, device=place) for n in (H, K)), where))


def without_flashinfer() -> None:
    """Let vLLM sample by its own kernels where FlashInfer is not installed: else it ends with an ImportError."""
    if not version_of("flashinfer-python"):
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"


def sampler(logits: Tensor, k: int | None = None, p: float | None = None) -> TimedWork:
    """The sampler of vLLM's Python, so vLLM itself is imported; it takes FlashInfer's kernels where they are."""
    without_flashinfer()
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler  # noqa: PLC0415

    call, rows = TopKTopPSampler(), (len(logits),)
    most = None if k is None else torch.full(rows, k, dtype=torch.int32, device=logits.device)
    share = None if p is None else torch.full(rows, p, device=logits.device)
    return TimedWork(lambda x: call(x.to(torch.float32, copy=True), {}, most, share)[0], (logits,))


def norm(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """The residual added to x [N, D] and the sum normalised, both in place."""
    ops("_C").fused_add_rms_norm(x, residual, weight, _EPS)
    return x


def swiglu(x: Tensor) -> Tensor:
    """Halves [gate, up] of [N, 2F] -> [N, F]."""
    out = torch.empty(len(x), x.shape[1] // 2, dtype=x.dtype, device=x.device)
    ops("_C").silu_and_mul(out, x)
    return out


def append(new: Tensor, keys: Tensor, values: Tensor, slots: Tensor, *, scale: Tensor) -> None:
    """Keys and values, new [2, N, K, d], written into pools [slots, K, d], as pages of one token."""
    kind, raw = ("fp8", torch.uint8) if keys.dtype == torch.float8_e4m3fn else ("auto", keys.dtype)
    ops("_C")
    pools = (pool.view(raw).unsqueeze(1) for pool in (keys, values))
    torch.ops._C_cache_ops.reshape_and_cache_flash(*new, *pools, slots, kind, scale, scale)


def experts(
    tokens: tuple[Tensor, Tensor], sizes: tuple[int, int, int], k: int, dtype: str, device: Device
) -> TimedWork:
    """Fused experts (Triton, so vLLM itself is imported): tokens x [N, D] and a router [D, E]; (E, D, F)."""
    from vllm.model_executor.layers.fused_moe import fused_experts  # noqa: PLC0415

    (E, D, width), draw = sizes, partial(normal, dtype=dtype, device=device.torch)

    def run(x: Tensor, router: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
        share, chosen = route(x @ router, k)
        return fused_experts(x, inner, outer, share, chosen.to(torch.int32))

    return TimedWork(run, tokens, lambda: (draw(E, 2 * width, D), draw(E, D, width)))

"""The kernels that vLLM runs, by its own shared objects beside the PyTorch that is here, without starting vLLM.

Signatures are those of the wheel of vLLM 0.24.0 (`_C_stable_libtorch`, `_vllm_fa3_C`). FlashAttention 3 runs on compute
capability 9.0. Letters: B sequences, T keys, S new tokens, H query heads, K KV heads, d head width, P tokens of a page.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rooflinekit.validate.case import Work, normal, shuffled
from rooflinekit.validate.device import Device, version_of
from rooflinekit.validate.feedforward import route

__all__ = ["NAME", "decode", "experts", "fp8_gemm", "latent_decode", "norm", "prefill", "swiglu"]

NAME = f"vllm {version_of('vllm')}".strip()
_PAGE, _LATENT_PAGE = 16, 64
"""Tokens of a page: vLLM's default, and that of its latent cache."""
_RANK, _ROPE, _LATENT_SCALE = 512, 64, 192**-0.5
_EPS = 1e-6
_FILES = {"_C": "_C_stable_libtorch.abi3.so", "_vllm_fa3_C": "vllm_flash_attn/_vllm_fa3_C.abi3.so"}


@cache
def ops(namespace: str) -> Any:
    """The operators of one of vLLM's shared objects.

    Raises ImportError where there is none, or it was built for another PyTorch.
    """
    found = getattr(torch.ops, namespace)
    if _has(found):
        return found
    spec = importlib.util.find_spec("vllm")
    places = [Path(place) / _FILES[namespace] for place in (spec.submodule_search_locations or [])] if spec else []
    for path in places:
        if path.is_file():
            try:
                torch.ops.load_library(str(path))
            except OSError as error:
                raise ImportError(f"{path.name} does not load beside PyTorch {torch.__version__}: {error}") from None
            return found
    raise ImportError(f"no {_FILES[namespace]} of vLLM is on the path")


def _has(found: Any) -> bool:
    return any(hasattr(found, name) for name in ("fwd", "cutlass_scaled_mm"))


def _append(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """New keys and values [N, K, d] into their slots of the pages [pages, P, K, d]."""
    one = _one(str(k.device))
    _ops_of_cache().reshape_and_cache_flash(k, v, keys, values, slots, "auto", one, one)


@cache
def _one(device: str) -> Tensor:
    return torch.ones((), device=device)


def _ops_of_cache() -> Any:
    ops("_C")
    return torch.ops._C_cache_ops


def _forward(  # noqa: PLR0913 - a kernel takes what it takes
    q: Tensor, k: Tensor, v: Tensor, *, table: Tensor, starts: Tensor, used: Tensor, new: int, most: int,
    scale: float, q_v: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """FlashAttention 3 over pages, causal: q [N, H, d] of sequences that begin at `starts` [B + 1] -> [N, H, e].

    `used` [B] int32: keys of each sequence; `new`, `most`: the most queries and keys that one has.
    """
    none = None
    out: Tensor = ops("_vllm_fa3_C").fwd(
        q, k, v, none, none, q_v, none, starts, none, none, none, used, new, most, table, none, none, none, none, none,
        none, none, none, scale, True, -1, -1, 0.0, True, none, 0, none, 0, none, 1, 0, none,
    )[0]  # fmt: skip
    return out


def _table(B: int, T: int, page: int, device: torch.device) -> Tensor:
    each = -(-T // page)
    return shuffled(B * each, device).view(B, each).to(torch.int32)


def _slots(table: Tensor, first: int, T: int, page: int) -> Tensor:
    """Where tokens first to T - 1 of each sequence lie, counted over all pages [B·(T - first)]."""
    token = torch.arange(first, T, device=table.device)
    return (table[:, token // page].long() * page + token % page).flatten()


def _starts(B: int, S: int, device: torch.device) -> Tensor:
    return torch.arange(B + 1, dtype=torch.int32, device=device) * S


def decode(heads: tuple[int, int, int], B: int, T: int, dtype: str, device: Device) -> Work:
    """One new token a sequence: its key and value are written into the cache, then attention reads the pages."""
    ops("_vllm_fa3_C")
    (H, K, d), place = heads, device.torch
    k, v = (normal(B, K, d, dtype=dtype, device=place) for _ in "kv")
    starts, used = _starts(B, 1, place), torch.full((B,), T, dtype=torch.int32, device=place)

    def cold() -> tuple[Tensor, ...]:
        table = _table(B, T, _PAGE, place)
        pools = [normal(table.numel(), _PAGE, K, d, dtype=dtype, device=place) for _ in "kv"]
        return (*pools, table, _slots(table, T - 1, T, _PAGE))

    def run(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, slots: Tensor) -> Tensor:
        _append(k, v, keys, values, slots)
        return _forward(q, keys, values, table=table, starts=starts, used=used, new=1, most=T, scale=d**-0.5)

    return Work(run, (normal(B, H, d, dtype=dtype, device=place),), cold)


def prefill(heads: tuple[int, int, int], B: int, S: int, dtype: str, device: Device) -> Work:
    """B prompts of S tokens: keys and values are written into pages, from which attention reads them."""
    ops("_vllm_fa3_C")
    (H, K, d), place = heads, device.torch
    q, k, v = (normal(B * S, n, d, dtype=dtype, device=place) for n in (H, K, K))
    table = _table(B, S, _PAGE, place)
    pools = [torch.empty(table.numel(), _PAGE, K, d, dtype=q.dtype, device=place) for _ in "kv"]
    slots, used = _slots(table, 0, S, _PAGE), torch.full((B,), S, dtype=torch.int32, device=place)
    starts = _starts(B, S, place)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        _append(k, v, pools[0], pools[1], slots)
        return _forward(q, *pools, table=table, starts=starts, used=used, new=S, most=S, scale=d**-0.5)

    return Work(run, (q, k, v))


def latent_decode(H: int, B: int, T: int, dtype: str, device: Device) -> Work:
    """MLA's decode on Hopper: rotary parts as queries and keys, latents as values and second queries."""
    ops("_vllm_fa3_C")
    place = device.torch
    starts, used = _starts(B, 1, place), torch.full((B,), T, dtype=torch.int32, device=place)

    def cold() -> tuple[Tensor, ...]:
        table = _table(B, T, _LATENT_PAGE, place)
        return normal(table.numel(), _LATENT_PAGE, 1, _RANK + _ROPE, dtype=dtype, device=place), table

    def run(q: Tensor, pool: Tensor, table: Tensor) -> Tensor:
        latent, rotary = pool.split([_RANK, _ROPE], dim=-1)
        return _forward(q[..., _RANK:], rotary, latent, table=table, starts=starts, used=used, new=1, most=T,
                        scale=_LATENT_SCALE, q_v=q[..., :_RANK])  # fmt: skip

    return Work(run, (normal(B, H, _RANK + _ROPE, dtype=dtype, device=place),), cold)


def fp8_gemm(shape: tuple[int, int, int], device: Device) -> Work:
    """Activations quantised token by token, then CUTLASS with fast accumulation: x [m, k] bf16, W [n, k] fp8."""
    (m, n, k), own = shape, ops("_C")
    scales = torch.ones(n, 1, device=device.torch)

    def run(x: Tensor, weight: Tensor) -> Tensor:
        narrow = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
        rows = torch.empty(len(x), 1, device=x.device)
        own.dynamic_per_token_scaled_fp8_quant(narrow, x, rows, None)
        out = torch.empty(len(x), n, dtype=x.dtype, device=x.device)
        own.cutlass_scaled_mm(out, narrow, weight.t(), rows, scales, None)
        return out

    return Work(run, (normal(m, k, dtype="bf16", device=device.torch),),
                lambda: (normal(n, k, dtype="fp8", device=device.torch),))  # fmt: skip


def norm(shape: tuple[int, int], dtype: str, device: Device) -> Work:
    """The residual added and the sum normalised, both in place."""
    own = ops("_C")

    def run(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        own.fused_add_rms_norm(x, residual, weight, _EPS)
        return x

    x, residual = (normal(*shape, dtype=dtype, device=device.torch) for _ in range(2))
    return Work(run, (x, residual, normal(shape[1], dtype=dtype, device=device.torch)))


def swiglu(shape: tuple[int, int], dtype: str, device: Device) -> Work:
    """Halves [gate, up] of [N, 2F] -> [N, F]."""
    own = ops("_C")

    def run(x: Tensor) -> Tensor:
        out = torch.empty(shape, dtype=x.dtype, device=x.device)
        own.silu_and_mul(out, x)
        return out

    return Work(run, (normal(shape[0], 2 * shape[1], dtype=dtype, device=device.torch),))


def experts(tokens: tuple[Tensor, Tensor], sizes: tuple[int, int, int], k: int, dtype: str, device: Device) -> Work:
    """Fused experts (Triton, so vLLM itself is imported): tokens x [N, D] and a router [D, E]; (E, D, F)."""
    from vllm.model_executor.layers.fused_moe import fused_experts  # noqa: PLC0415

    E, D, width = sizes

    def cold() -> tuple[Tensor, ...]:
        inner = normal(E, 2 * width, D, dtype=dtype, device=device.torch)
        return inner, normal(E, D, width, dtype=dtype, device=device.torch)

    def run(x: Tensor, router: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
        share, chosen = route(x @ router, k)
        out: Tensor = fused_experts(x, inner, outer, share, chosen.to(torch.int32))
        return out

    return Work(run, tokens, cold)

"""Prefill attention: whole prompts, and packed ones (cu_seqlens).

Letters: B sequences, S tokens of each, H query heads, K KV heads, d head width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.validate import vllm_ops
from rooflinekit.validate.case import Call, Case, Work, normal
from rooflinekit.validate.device import Device

__all__ = ["Heads", "packed", "prefill_cases", "sdpa", "varlen_cases"]


class Heads(NamedTuple):
    """Query heads, KV heads, head width."""

    H: int
    K: int
    d: int


def prefill_cases(shapes: Iterable[tuple[Heads, int, int]], dtype: str, device: Device) -> Iterator[Case]:
    """Causal attention of B prompts of S tokens, by every backend that the device has."""
    for heads, B, S in shapes:
        shape = _columns(heads, B, S, dtype)
        if device.is_cuda:
            yield Case("attention_prefill", f"{vllm_ops.NAME}, FlashAttention 3, pages", shape,
                       _bytes(heads, B * S, dtype), partial(vllm_ops.prefill, heads, B, S, dtype, device), "vllm",
                       "_vllm_fa3_C")  # fmt: skip
        for name, call in _backends(device).items():
            yield Case("attention_prefill", name, shape, _bytes(heads, B * S, dtype),
                       partial(_build, call, (heads, B, S), dtype, device))  # fmt: skip


def _columns(heads: Heads, B: int, S: int, dtype: str) -> dict[str, Any]:
    named = {"heads": heads.H, "kv_heads": heads.K, "head_dim": heads.d}
    return {"dtype": dtype, "kv_dtype": dtype, "batch": B, "seq_len": S, **named}


def _bytes(heads: Heads, tokens: int, dtype: str) -> float:
    return tokens * heads.d * 2.0 * (heads.H + heads.K) * parse_dtype(dtype).bytes


def _build(call: Call, shape: tuple[Heads, int, int], dtype: str, device: Device) -> Work:
    (H, K, d), B, S = shape
    q, k, v = (normal(B, n, S, d, dtype=dtype, device=device.torch) for n in (H, K, K))
    return Work(call, (q, k, v))  # the projection has just written all three


def _backends(device: Device) -> dict[str, Call]:
    """On a GPU the kernels by name, on the CPU the one that PyTorch has."""
    if not device.is_cuda:
        return {"torch sdpa": sdpa}
    from torch.nn.attention import SDPBackend  # noqa: PLC0415

    return {
        "torch sdpa flash": partial(sdpa, backend=SDPBackend.FLASH_ATTENTION),
        "torch sdpa cudnn": partial(sdpa, backend=SDPBackend.CUDNN_ATTENTION),
    }


def sdpa(q: Tensor, k: Tensor, v: Tensor, backend: Any = None) -> Tensor:
    """Causal attention [B, H, S, d] by one backend, or by the one that PyTorch chooses."""
    with _only(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def _only(backend: Any) -> AbstractContextManager[Any]:
    if backend is None:
        return nullcontext()
    from torch.nn.attention import sdpa_kernel  # noqa: PLC0415

    return sdpa_kernel(backend)


def varlen_cases(lengths: Iterable[tuple[Heads, tuple[int, ...]]], dtype: str, device: Device) -> Iterator[Case]:
    """Prompts of different lengths packed without padding; equal ones are rows of the prefill table as well."""
    for heads, each in lengths:
        equal = len(set(each)) == 1
        shape = _columns(heads, len(each), each[0], dtype)
        shape = shape if equal else {**shape, "seq_len": max(each), "lengths": list(each)}
        name = "torch flash varlen" if device.is_cuda else "torch sdpa, one sequence after the other"
        yield Case("attention_prefill" if equal else "attention_varlen", name, shape, _bytes(heads, sum(each), dtype),
                   partial(_build_packed, heads, each, dtype, device))  # fmt: skip


def _build_packed(heads: Heads, lengths: tuple[int, ...], dtype: str, device: Device) -> Work:
    H, K, d = heads
    q, k, v = (normal(sum(lengths), n, d, dtype=dtype, device=device.torch) for n in (H, K, K))
    starts = torch.tensor([0, *lengths], device=device.torch).cumsum(0).to(torch.int32)
    call = (
        partial(_flash_packed, starts=starts, most=max(lengths)) if device.is_cuda else partial(packed, lengths=lengths)
    )
    return Work(call, (q, k, v))


def _flash_packed(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, most: int) -> Tensor:
    """FlashAttention's varlen kernel: q [N, H, d], k and v [N, K, d], starts [B + 1] int32 -> [N, H, d]."""
    flash = torch.ops.aten._flash_attention_forward
    out: Tensor = flash(q, k, v, starts, starts, most, most, 0.0, True, False)[0]  # no dropout, causal, no debug mask
    return out


def packed(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """The same, one sequence after the other: [N, H, d]."""
    parts = (x.split(list(lengths)) for x in (q, k, v))
    outs = [sdpa(*(x.transpose(0, 1)[None] for x in each)) for each in zip(*parts, strict=True)]
    return torch.cat([out[0].transpose(0, 1) for out in outs])

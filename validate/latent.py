"""Multi-head latent attention in DeepSeek's widths: up-projected prefill, absorbed decode.

Letters: B sequences, S new tokens, T keys, H heads. A latent has 512 columns and 64 rotary ones; a prefill head 192 for
queries and keys, 128 for values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.validate import vllm_ops
from rooflinekit.validate.case import Case, Work, normal
from rooflinekit.validate.device import Device

__all__ = ["absorbed", "latent_decode_cases", "latent_prefill_cases", "up_projected"]

_RANK, _ROPE, _NOPE, _VALUE = 512, 64, 128, 128
_SCALE = 1.0 / math.sqrt(_NOPE + _ROPE)


def latent_prefill_cases(shapes: Iterable[tuple[int, int, int]], dtype: str, device: Device) -> Iterator[Case]:
    """(H, B, S): keys and values are spelt out, as the up-projection has just written them."""
    for H, B, S in shapes:
        size = B * S * H * (2.0 * (_NOPE + _ROPE) + 2.0 * _VALUE) * parse_dtype(dtype).bytes
        yield Case("mla_prefill", "torch sdpa, values padded", _columns(H, B, S, dtype), size,
                   partial(_prefill, H, B, S, dtype, device))  # fmt: skip


def latent_decode_cases(shapes: Iterable[tuple[int, int, int]], dtype: str, device: Device) -> Iterator[Case]:
    """(H, B, T): one new token a sequence against the latents themselves."""
    for H, B, T in shapes:
        size = B * (T + 2.0 * H) * (_RANK + _ROPE) * parse_dtype(dtype).bytes
        if device.is_cuda:
            yield Case("mla_decode", f"{vllm_ops.NAME}, FlashAttention 3, pages", _columns(H, B, T, dtype), size,
                       partial(vllm_ops.latent_decode, H, B, T, dtype, device), "vllm", "_vllm_fa3_C")  # fmt: skip
        yield Case("mla_decode", "torch batched matmul", _columns(H, B, T, dtype), size,
                   partial(_decode, H, B, T, dtype, device))  # fmt: skip


def _columns(H: int, B: int, length: int, dtype: str) -> dict[str, object]:
    return {"dtype": dtype, "kv_dtype": dtype, "batch": B, "seq_len": length, "heads": H}


def _prefill(H: int, B: int, S: int, dtype: str, device: Device) -> Work:
    widths = (_NOPE + _ROPE, _NOPE + _ROPE, _VALUE)
    return Work(up_projected, tuple(normal(B, H, S, width, dtype=dtype, device=device.torch) for width in widths))


def up_projected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries and keys [B, H, S, 192], v [B, H, S, 128] -> as v; padded values let the flash kernels take it."""
    padded = F.pad(v, (0, q.shape[-1] - v.shape[-1]))
    return F.scaled_dot_product_attention(q, k, padded, is_causal=True)[..., : v.shape[-1]]


def _decode(H: int, B: int, T: int, dtype: str, device: Device) -> Work:
    q = normal(B, H, _RANK + _ROPE, dtype=dtype, device=device.torch)
    return Work(absorbed, (q,), lambda: (normal(B, T, _RANK + _ROPE, dtype=dtype, device=device.torch),))


def absorbed(q: Tensor, latent: Tensor) -> Tensor:
    """Queries [B, H, 576], latent [B, T, 576] -> [B, H, 512]: all heads share the keys, and their first 512 columns."""
    weights = torch.softmax(_logits(q, latent) * _SCALE, dim=-1)  # [B, H, T]
    return weights.to(q.dtype) @ latent[..., :_RANK]


def _logits(q: Tensor, latent: Tensor) -> Tensor:
    """Queries times latents [B, H, T] in fp32, as attention kernels keep them: in bf16 a logit of ten is 0.03 off."""
    if q.is_cuda and q.dtype != torch.float32:
        return torch.bmm(q, latent.mT, out_dtype=torch.float32)
    return q.float() @ latent.mT.float()

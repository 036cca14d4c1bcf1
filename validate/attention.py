"""Softmax attention of one layer: which keys a query sees, rotary positions, PyTorch's fused kernels, and the cache.

Letters: B sequences, S new tokens, T keys, H query heads, K KV heads, G = H/K, d and e widths of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor


@dataclass(frozen=True)
class Pattern:
    """Which keys a query sees: all up to its own, the last of a window, or those of its own chunk."""

    window: int | None = None
    chunk: int | None = None

    def first_key(self, last: int) -> int:
        """The first key that the query at position `last` sees.

        >>> Pattern(window=4).first_key(9), Pattern(chunk=4).first_key(9)
        (6, 8)
        """
        if self.window is not None:
            return max(0, last - self.window + 1)
        return 0 if self.chunk is None else last // self.chunk * self.chunk


FULL = Pattern()


def visible(query: Tensor, key: Tensor, pattern: Pattern = FULL) -> Tensor:
    """Which keys at positions key[T] the queries at query[S] see: [S, T].

    >>> visible(torch.tensor([2]), torch.arange(4), Pattern(window=2)).tolist()
    [[False, True, True, False]]
    """
    q, k = query[:, None], key[None, :]
    seen = k <= q
    if pattern.window is not None:
        seen = seen & (q - k < pattern.window)
    if pattern.chunk is not None:
        seen = seen & (q // pattern.chunk == k // pattern.chunk)
    return seen


def positions(past: int, new: int, device: torch.device) -> Tensor:
    """Positions of `new` tokens after `past` cached ones.

    >>> positions(5, 3, torch.device("cpu")).tolist()
    [5, 6, 7]
    """
    return torch.arange(past, past + new, device=device)


def rotate(x: Tensor, where: Tensor, base: float = 10_000.0) -> Tensor:
    """Turn each pair (i, i + d/2) of x [..., S, d] by where[S]·base^(-2i/d) (RoPE, arXiv:2104.09864, eq. 34).

    Angles are in fp32 at least: in bf16, position 257 would equal 256.

    >>> rotate(torch.tensor([[1.0, 0.0]]), torch.tensor([1])).tolist()  # cos 1, sin 1
    [[0.5403, 0.8415]]
    """
    d, wide = x.shape[-1], torch.promote_types(x.dtype, torch.float32)
    rates = base ** (-torch.arange(0, d, 2, device=x.device, dtype=wide) / d)  # [d/2]
    angles = where.to(wide)[:, None] * rates  # [S, d/2]
    cos, sin = angles.cos(), angles.sin()
    a, b = x.to(wide).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern = FULL, scale: float | None = None) -> Tensor:
    """softmax(q k^T · scale) v for the last S of T tokens, through PyTorch's fused kernels: [B, H, S, e].

    q [B, H, S, d], k [B, K, T, d], v [B, K, T, e]; query head h reads KV head h // G. The scale is 1/sqrt(d) unless
    given. A whole causal prompt and a decode step need no mask, so the flash kernels take them.
    """
    (B, H, S, d), (K, T) = q.shape, k.shape[1:3]
    scale = d**-0.5 if scale is None else scale
    if S == 1:  # keys out of reach are not even read; the G heads of a KV head are the rows of one matrix
        first = pattern.first_key(T - 1)
        rows = q.reshape(B, K, H // K, d)
        return F.scaled_dot_product_attention(rows, k[:, :, first:], v[:, :, first:], scale=scale).reshape(B, H, 1, -1)
    if pattern == FULL and S == T:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    seen = visible(positions(T - S, S, q.device), positions(0, T, q.device), pattern)
    k, v = (x.repeat_interleave(H // K, dim=1) for x in (k, v))  # the kernels that take a mask know no groups
    return F.scaled_dot_product_attention(q, k, v, seen, scale=scale)


Streams: TypeAlias = tuple[tuple[int, int], ...]
"""Heads and width of each stream of a cache: ((K, d), (K, e)) for keys and values, ((1, R + r),) for MLA's latent."""


@dataclass(frozen=True)
class Room:
    """What a cache has room for, where, and in which format."""

    batch: int
    length: int
    dtype: torch.dtype
    device: torch.device
    store: Callable[[Tensor], Tensor] = lambda x: x  #: what storing does to a tensor: a rounding to a narrow format


class Cache:
    """One layer's buffers [B, heads, T, width], one a stream.

    Tokens behind `past` are overwritten, so a rejected draft needs no clean-up.
    """

    def __init__(self, streams: Streams, room: Room) -> None:
        sizes = [(room.batch, heads, room.length, width) for heads, width in streams]
        self.store, self.buffers = room.store, [torch.zeros(s, dtype=room.dtype, device=room.device) for s in sizes]

    def append(self, past: int, *new: Tensor) -> tuple[Tensor, ...]:
        """Put new tokens [B, heads, S, width] of each stream behind `past` ones; views of all, [B, heads, T, width]."""
        end = past + new[0].shape[2]
        for buffer, x in zip(self.buffers, new, strict=True):
            buffer[:, :, past:end] = self.store(x)
        return tuple(buffer[:, :, :end] for buffer in self.buffers)

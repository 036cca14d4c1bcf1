"""Where a token stands: rotary angles, ALiBi slopes, and which keys a query sees."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FULL", "Pattern", "alibi_slopes", "positions", "rotate", "visible"]


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
    d = x.shape[-1]
    wide = torch.promote_types(x.dtype, torch.float32)
    rates = base ** (-torch.arange(0, d, 2, device=x.device, dtype=wide) / d)  # [d/2]
    angles = where.to(wide)[:, None] * rates  # [S, d/2]
    cos, sin = angles.cos(), angles.sin()
    a, b = x.to(wide).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


def alibi_slopes(heads: int, device: torch.device) -> Tensor:
    """Slope of the distance penalty of each head [H], fp32 (ALiBi, arXiv:2108.12409, section 3).

    A geometric series for a power of two; other counts take every second slope of the next power to fill up.

    >>> alibi_slopes(8, torch.device("cpu"))[:2].tolist(), len(alibi_slopes(12, torch.device("cpu")))
    ([0.5, 0.25], 12)
    """
    near = 2 ** math.floor(math.log2(heads))
    first, rest = (torch.arange(count, device=device) for count in (near, heads - near))
    return torch.exp2(torch.cat([-8.0 * (first + 1) / near, -4.0 * (2 * rest + 1) / near]))


def visible(query: Tensor, key: Tensor, window: int | None = None, chunk: int | None = None) -> Tensor:
    """Which keys at positions key[T] the queries at query[S] see [S, T]: causal, in a window, or in their own chunk.

    >>> visible(torch.tensor([2]), torch.arange(4), window=2).tolist()
    [[False, True, True, False]]
    """
    q, k = query[:, None], key[None, :]
    seen = k <= q
    if window is not None:
        seen = seen & (q - k < window)
    if chunk is not None:
        seen = seen & (q // chunk == k // chunk)
    return seen


@dataclass(frozen=True)
class Pattern:
    """Which keys a query sees, and what is added to the logits."""

    window: int | None = None
    chunk: int | None = None
    slopes: Tensor | None = None  #: ALiBi, [H]
    sinks: Tensor | None = None  #: one learned logit a head, [H]

    @property
    def plain(self) -> bool:
        """Causal and nothing else."""
        return self.window is None and self.chunk is None and self.slopes is None and self.sinks is None

    def first_key(self, last: int) -> int:
        """The first key that the query at position `last` sees.

        >>> Pattern(window=4).first_key(9), Pattern(chunk=4).first_key(9)
        (6, 8)
        """
        if self.window is not None:
            return max(0, last - self.window + 1)
        return 0 if self.chunk is None else last // self.chunk * self.chunk

    def bias(self, query: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
        """What is added to the logits of queries [S] and keys [T]: [H or 1, S, T], with -inf where a key is hidden."""
        hidden = ~visible(query, key, self.window, self.chunk)
        if self.slopes is None:
            return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, -math.inf)[None]
        distance = (query[:, None] - key[None, :]).to(self.slopes.dtype)
        return (-self.slopes[:, None, None] * distance).masked_fill(hidden, -math.inf).to(dtype)


FULL = Pattern()

"""The KV cache of one layer: contiguous, or in pages. Both hold any set of streams (keys and values, or MLA's latent).

Letters: B sequences, K heads of a stream, T tokens, w its width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

__all__ = ["Cache", "ContiguousCache", "PagedCache", "Room", "Streams"]

Streams: TypeAlias = tuple[tuple[int, int], ...]
"""Heads and width of each stream: ((K, d), (K, e)) for keys and values, ((1, R + r),) for MLA's latent."""


@dataclass(frozen=True)
class Room:
    """What a cache has room for, where, and in which format."""

    batch: int
    length: int
    dtype: torch.dtype
    device: torch.device
    store: Callable[[Tensor], Tensor] = lambda x: x  #: what storing does to a tensor: a rounding to a narrow format


class Cache(Protocol):
    """One layer's cache. Tokens behind `past` are overwritten, so a rejected draft needs no clean-up."""

    def append(self, past: int, *new: Tensor) -> tuple[Tensor, ...]:
        """Put new tokens [B, K, S, w] of each stream behind `past` ones; return all of them, [B, K, past + S, w]."""
        ...


class ContiguousCache:
    """One buffer [B, K, T, w] a stream."""

    def __init__(self, streams: Streams, room: Room) -> None:
        self.room = room
        self.buffers = [
            torch.zeros(room.batch, heads, room.length, width, dtype=room.dtype, device=room.device)
            for heads, width in streams
        ]

    def append(self, past: int, *new: Tensor) -> tuple[Tensor, ...]:
        """Write in place; what is returned are views."""
        end = past + new[0].shape[2]
        for buffer, x in zip(self.buffers, new, strict=True):
            buffer[:, :, past:end] = self.room.store(x)
        return tuple(buffer[:, :, :end] for buffer in self.buffers)


class PagedCache:
    """Pages of 16 tokens in a common pool, a table of pages for each sequence (PagedAttention, arXiv:2309.06180).

    Pages are handed out in random order, as after long serving; reading gathers them.
    """

    page = 16

    def __init__(self, streams: Streams, room: Room) -> None:
        self.room = room
        each = -(-room.length // self.page)  # pages a sequence
        order = torch.randperm(room.batch * each, generator=torch.Generator().manual_seed(0))
        self.table = order.view(room.batch, each).to(room.device)
        self.pools = [
            torch.zeros(room.batch * each, self.page, heads, width, dtype=room.dtype, device=room.device)
            for heads, width in streams
        ]

    def append(self, past: int, *new: Tensor) -> tuple[Tensor, ...]:
        """Scatter the new tokens into their pages, gather all."""
        end = past + new[0].shape[2]
        token = torch.arange(past, end, device=self.table.device)
        pages = self.table[:, token // self.page]  # [B, S]
        for pool, x in zip(self.pools, new, strict=True):
            pool[pages, token % self.page] = self.room.store(x).transpose(1, 2)  # [B, S, K, w]
        return tuple(self._gather(pool, end) for pool in self.pools)

    def _gather(self, pool: Tensor, end: int) -> Tensor:
        pages = pool[self.table[:, : -(-end // self.page)]]  # [B, pages, 16, K, w]
        return pages.flatten(1, 2)[:, :end].transpose(1, 2)  # [B, K, T, w]

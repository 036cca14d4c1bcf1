"""Split-KV decode attention over pages, in Triton: the context is cut into parts that run on different cores.

FlashDecoding (Dao et al. 2023): each part leaves softmax(q k^T) v over its own keys and the log of its denominator;
a second kernel weighs the parts. Letters: B sequences, H query heads, K KV heads, G = H/K, d head width, P tokens of a
page, N parts. All query heads of a KV head are rows of one tile, so that each key is read once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["split_kv"]

_ROWS = 16
"""Least rows of `tl.dot`; fewer query heads a KV head are padded."""


@triton.jit
def _part(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - a kernel takes what it takes
    q, keys, values, table, lengths,  # [B, H, d], twice [pages, P, K, d], [B, pages of one], [B]
    outs, lses,  # [N, B, H, d], [N, B, H]
    scale, batch, heads, per_sequence, part,
    K: tl.constexpr, G: tl.constexpr, D: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b, kv, n = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + b)
    first, last = n * part, tl.minimum((n + 1) * part, length)
    row, col = tl.arange(0, ROWS), tl.arange(0, D)
    head = kv * G + row
    real = (row < G)[:, None]
    query = tl.load(q + (b * heads + head)[:, None] * D + col[None, :], mask=real, other=0.0)  # [ROWS, D]
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, D], tl.float32)
    for start in range(first, last, BLOCK):
        token = start + tl.arange(0, BLOCK)
        seen = token < last
        page = tl.load(table + b * per_sequence + token // P, mask=seen, other=0).to(tl.int64)
        place = ((page * P + token % P) * K + kv)[:, None] * D + col[None, :]  # [BLOCK, D]
        k = tl.load(keys + place, mask=seen[:, None], other=0.0)
        v = tl.load(values + place, mask=seen[:, None], other=0.0)
        logits = tl.where(seen[None, :], tl.dot(query, tl.trans(k)) * scale, float("-inf"))  # [ROWS, BLOCK]
        top = tl.maximum(best, tl.max(logits, axis=1))
        weight = tl.exp(logits - top[:, None])
        fade = tl.exp(best - top)
        total = total * fade + tl.sum(weight, axis=1)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(v.dtype), v)
        best = top
    empty = total == 0.0  # a part beyond the end of this sequence
    place = (n * batch + b) * heads + head
    tl.store(outs + place[:, None] * D + col[None, :], mixed / tl.where(empty, 1.0, total)[:, None], mask=real)
    tl.store(lses + place, tl.where(empty, float("-inf"), best + tl.log(tl.where(empty, 1.0, total))), mask=row < G)


@triton.jit
def _join(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    outs, lses, out, rows, N: tl.constexpr, PARTS: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)  # one of B·H
    n, col = tl.arange(0, PARTS), tl.arange(0, D)
    lse = tl.load(lses + n * rows + row, mask=n < N, other=float("-inf"))
    weight = tl.exp(lse - tl.max(lse, axis=0))
    part = tl.load(outs + (n * rows + row)[:, None] * D + col[None, :], mask=(n < N)[:, None], other=0.0)  # [PARTS, D]
    mixed = tl.sum(part * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    tl.store(out + row * D + col, mixed.to(out.dtype.element_ty))


def split_kv(  # noqa: PLR0913 - as `gathered` takes them, and the lengths
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, *, lengths: Tensor, part: int
) -> Tensor:
    """Queries q [B, H, d], keys and values [pages, P, K, d], table [B, pages of one], lengths [B] int32 -> [B, H, d].

    d is a power of two of at least 16; `part` is how many keys one part takes. Nothing waits for the host: the number
    of parts comes from the size of the table, and parts beyond a sequence's end find nothing to do.
    """
    B, H, d = q.shape
    P, K = keys.shape[1], keys.shape[2]
    N = -(-table.shape[1] * P // part)
    outs = torch.empty(N, B, H, d, dtype=torch.float32, device=q.device)
    lses = torch.empty(N, B, H, dtype=torch.float32, device=q.device)
    rows = max(_ROWS, triton.next_power_of_2(H // K))
    _part[(B, K, N)](
        q, keys, values, table, lengths, outs, lses, d**-0.5, B, H, table.shape[1], part,
        K=K, G=H // K, D=d, P=P, ROWS=rows, BLOCK=64, num_warps=4, num_stages=2,
    )  # fmt: skip
    out = torch.empty_like(q)
    _join[(B * H,)](outs, lses, out, B * H, N=N, PARTS=triton.next_power_of_2(N), D=d, num_warps=4)
    return out

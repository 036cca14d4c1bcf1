"""From logits to the next token: greedy, top-k, top-p and min-p.

Letters: B rows of logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.validate.case import Case, Work, normal
from rooflinekit.validate.device import Device

__all__ = ["METHODS", "draw", "greedy", "min_p", "sampling_cases", "top_k", "top_p"]


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row [B]."""
    return logits.argmax(dim=-1)


def draw(p: Tensor) -> Tensor:
    """A token of each row [B] with probability p [B, V], unnormalised: the largest p/e, e exponential (Gumbel's trick).

    It waits for nothing, unlike torch.multinomial, so that a graph can hold it.
    """
    return (p / torch.empty_like(p).exponential_(1.0).clamp_min(1e-20)).argmax(dim=-1)


def top_k(logits: Tensor, k: int = 50) -> Tensor:
    """Draw from the k likeliest tokens."""
    best, token = logits.float().topk(min(k, logits.shape[-1]), dim=-1)  # [B, k]
    return token.gather(-1, draw(best.softmax(dim=-1))[:, None])[:, 0]


def top_p(logits: Tensor, share: float = 0.9) -> Tensor:
    """Draw from the fewest tokens that hold `share` of the probability (nucleus, arXiv:1904.09751)."""
    p, token = logits.float().softmax(dim=-1).sort(dim=-1, descending=True)
    before = p.cumsum(dim=-1) - p
    return token.gather(-1, draw(p.masked_fill(before >= share, 0.0))[:, None])[:, 0]


def min_p(logits: Tensor, least: float = 0.05) -> Tensor:
    """Draw from the tokens that are at least `least` times as likely as the likeliest (arXiv:2407.01082)."""
    p = logits.float().softmax(dim=-1)
    return draw(p.masked_fill(p < least * p.amax(dim=-1, keepdim=True), 0.0))


METHODS: dict[str, Callable[[Tensor], Tensor]] = {"greedy": greedy, "top_k": top_k, "top_p": top_p, "min_p": min_p}


def sampling_cases(shapes: Iterable[tuple[int, int]], dtype: str, device: Device) -> Iterator[Case]:
    """(B, V) by every method."""
    for B, V in shapes:
        for kind, method in METHODS.items():
            shape = {"dtype": dtype, "kind": kind, "rows": B, "vocab": V}
            yield Case("sampling", "torch, eager", shape, B * V * parse_dtype(dtype).bytes,
                       partial(_build, method, B, V, dtype, device))  # fmt: skip


def _build(method: Callable[[Tensor], Tensor], B: int, V: int, dtype: str, device: Device) -> Work:
    return Work(method, (normal(B, V, dtype=dtype, device=device.torch),))

"""Independent formulations in float64, written for the eye: loops, one query and one token at a time.

Nothing here is shared with what it checks, so an error in a mask, a scale or a head mapping cannot cancel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def dense_attention(q: Tensor, k: Tensor, v: Tensor, window: int | None = None, chunk: int | None = None) -> Tensor:
    """Causal attention of the last S of T tokens, by definition: q [B, H, S, d], k [B, K, T, d], v [B, K, T, e]."""
    B, H, S, d = q.shape
    T, G = k.shape[2], H // k.shape[1]
    out = torch.zeros(B, H, S, v.shape[-1], dtype=torch.float64, device=q.device)
    for h in range(H):
        for s in range(S):
            at = T - S + s
            first = at - at % chunk if chunk else max(at + 1 - window, 0) if window else 0
            keys = k[:, h // G, first : at + 1].double()  # [B, seen, d]
            logits = torch.einsum("btd,bd->bt", keys, q[:, h, s].double()) / math.sqrt(d)
            weights = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
            out[:, h, s] = torch.einsum("bt,bte->be", weights, v[:, h // G, first : at + 1].double())
    return out


def rotated(x: Tensor, at: int, base: float = 10_000.0) -> Tensor:
    """RoPE of one vector x [d] at a position, as a multiplication of complex numbers (arXiv:2104.09864, eq. 12)."""
    half = len(x) // 2
    turns = torch.tensor([at * base ** (-2 * i / len(x)) for i in range(half)], dtype=torch.float64, device=x.device)
    turned = torch.complex(x[:half].double(), x[half:].double()) * torch.polar(torch.ones_like(turns), turns)
    return torch.cat([turned.real, turned.imag])


def mixture_loop(x: Tensor, router: Tensor, inner: Tensor, outer: Tensor, k: int) -> Tensor:
    """A mixture of experts token by token: x [N, D], router [D, E], inner [E, D, 2F], outer [E, F, D] -> [N, D]."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for n, token in enumerate(x.double()):
        scores = (token @ router.double()).tolist()
        best = sorted(range(len(scores)), key=lambda expert: -scores[expert])[:k]
        total = sum(math.exp(scores[expert]) for expert in best)
        for expert in best:
            gate, up = (token @ inner[expert].double()).chunk(2)
            out[n] += math.exp(scores[expert]) / total * ((gate / (1 + (-gate).exp()) * up) @ outer[expert].double())
    return out

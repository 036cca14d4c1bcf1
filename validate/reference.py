"""Independent formulations in float64, written for the eye: loops, one query and one token at a time.

Nothing here is shared with what it checks, so an error in a mask, a scale or a head mapping cannot cancel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rooflinekit.validate.feedforward import ExpertBlock

__all__ = ["biased_attention", "dense_attention", "expert_loop", "mixture_loop", "rotated", "swiglu_block"]


def dense_attention(q: Tensor, k: Tensor, v: Tensor, window: int | None = None, chunk: int | None = None) -> Tensor:
    """Causal attention of the last S of T tokens, by definition: q [B, H, S, d], k [B, K, T, d], v [B, K, T, e]."""
    B, H, S, d = q.shape
    T, G = k.shape[2], H // k.shape[1]
    out = torch.zeros(B, H, S, v.shape[-1], dtype=torch.float64, device=q.device)
    for h in range(H):
        for s in range(S):
            at = T - S + s
            first = 0
            if window is not None:
                first = max(at + 1 - window, 0)
            if chunk is not None:
                first = at - at % chunk
            keys = k[:, h // G, first : at + 1].double()  # [B, seen, d]
            logits = torch.einsum("btd,bd->bt", keys, q[:, h, s].double()) / math.sqrt(d)
            weights = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
            out[:, h, s] = torch.einsum("bt,bte->be", weights, v[:, h // G, first : at + 1].double())
    return out


def biased_attention(q: Tensor, k: Tensor, v: Tensor, slopes: list[float], sinks: list[float]) -> Tensor:
    """The same with ALiBi's penalty slope·distance, and with a sink of exp(logit) in the softmax's denominator."""
    B, H, S, d = q.shape
    T, G = k.shape[2], H // k.shape[1]
    out = torch.zeros(B, H, S, v.shape[-1], dtype=torch.float64, device=q.device)
    for h in range(H):
        for s in range(S):
            at = T - S + s
            seen = torch.arange(at + 1, device=q.device).double()
            logits = torch.einsum("btd,bd->bt", k[:, h // G, : at + 1].double(), q[:, h, s].double()) / math.sqrt(d)
            weights = (logits - slopes[h] * (at - seen)).exp()
            weights = weights / (weights.sum(dim=1, keepdim=True) + math.exp(sinks[h]))
            out[:, h, s] = torch.einsum("bt,bte->be", weights, v[:, h // G, : at + 1].double())
    return out


def rotated(x: Tensor, at: int, base: float = 10_000.0) -> Tensor:
    """RoPE of one vector x [d] at a position, as a multiplication of complex numbers (arXiv:2104.09864, eq. 12)."""
    half = len(x) // 2
    turns = torch.tensor([at * base ** (-2 * i / len(x)) for i in range(half)], dtype=torch.float64, device=x.device)
    pairs = torch.complex(x[:half].double(), x[half:].double())
    turned = pairs * torch.polar(torch.ones_like(turns), turns)
    return torch.cat([turned.real, turned.imag])


def mixture_loop(x: Tensor, router: Tensor, inner: Tensor, outer: Tensor, k: int) -> Tensor:
    """A mixture of experts token by token: x [N, D], router [D, E], inner [E, D, 2F], outer [E, F, D] -> [N, D]."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for n, token in enumerate(x.double()):
        scores = (token @ router.double()).tolist()
        best = sorted(range(len(scores)), key=lambda expert: -scores[expert])[:k]
        total = sum(math.exp(scores[expert]) for expert in best)
        for expert in best:
            out[n] += math.exp(scores[expert]) / total * swiglu_block(token, inner[expert], outer[expert])
    return out


def swiglu_block(token: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """One token [D] through inner [D, 2F] = [gate, up] and outer [F, D]."""
    gate, up = (token.double() @ inner.double()).chunk(2)
    return (gate / (1 + (-gate).exp()) * up) @ outer.double()


def expert_loop(block: ExpertBlock, x: Tensor) -> Tensor:
    """A block with one shared expert, token by token: x [N, D] -> [N, D]."""
    weights = dict(block.named_parameters())
    routed = mixture_loop(
        x, weights["router.weight"].T, weights["experts.inner"], weights["experts.outer"], block.spec.top_k
    )
    inner, outer = weights["shared.gate_up_proj.weight"].T, weights["shared.down_proj.weight"].T
    return routed + torch.stack([swiglu_block(token, inner, outer) for token in x])

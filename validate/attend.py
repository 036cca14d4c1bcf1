"""Softmax attention in the forms that servers use: one pass, split over the keys, and packed sequences.

Letters: B sequences, S new tokens, T keys, H query heads, K KV heads, G = H/K, d and e widths of keys and values.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rooflinekit.validate.positions import FULL, Pattern, positions, visible

__all__ = ["attend", "attend_split", "attend_varlen", "merge"]


def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern = FULL, scale: float | None = None) -> Tensor:
    """softmax(q k^T · scale + bias) v for the last S of T tokens, through PyTorch's fused kernels: [B, H, S, e].

    q [B, H, S, d], k [B, K, T, d], v [B, K, T, e]; query head h reads KV head h // G. The scale is 1/sqrt(d) unless
    given. A whole causal prompt and a decode step need no mask, so the flash kernels take them.
    """
    S, T = q.shape[2], k.shape[2]
    scale = _scale(q.shape[-1]) if scale is None else scale
    if pattern.plain and S == T:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    first = pattern.first_key(T - 1) if S == 1 else 0  # one query: the keys out of reach are not even read
    k, v = k[:, :, first:], v[:, :, first:]
    bias = None
    if pattern.slopes is not None or pattern.sinks is not None or S > 1:
        bias = pattern.bias(positions(T - S, S, q.device), positions(first, T - first, q.device), q.dtype)
    if pattern.sinks is not None:
        k, v, bias = _with_sinks(k, v, bias, pattern.sinks)
    if S == 1:
        return _decode(q, k, v, bias, scale)
    G = q.shape[1] // k.shape[1]  # the kernels that take a mask know no groups
    k, v = k.repeat_interleave(G, dim=1), v.repeat_interleave(G, dim=1)
    return F.scaled_dot_product_attention(q, k, v, bias, scale=scale)


def _scale(d: int) -> float:
    return 1.0 / math.sqrt(d)


def _with_sinks(k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A sink takes part in the softmax and brings no value: a key and a value of zeros, with its logit as bias."""
    assert bias is not None
    column = sinks.to(bias.dtype)[:, None, None].expand(-1, bias.shape[1], 1)  # [H, S, 1]
    return F.pad(k, (0, 0, 1, 0)), F.pad(v, (0, 0, 1, 0)), torch.cat([column, bias.expand(len(sinks), -1, -1)], dim=-1)


def _decode(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """One query a head: the G heads of a KV head become the rows of one matrix, so each key is read once."""
    B, H, _, d = q.shape
    K = k.shape[1]
    if bias is not None and bias.shape[0] == H:
        bias = bias.view(K, H // K, -1)  # [H, 1, T] -> [K, G, T]
    out = F.scaled_dot_product_attention(q.reshape(B, K, H // K, d), k, v, bias, scale=scale)  # [B, K, G, e]
    return out.reshape(B, H, 1, -1)


def attend_split(q: Tensor, k: Tensor, v: Tensor, splits: int) -> Tensor:
    """A decode step with the keys cut into `splits` parts that run side by side (FlashDecoding): [B, H, 1, e]."""
    parts = [_partial(q, *part) for part in zip(k.chunk(splits, dim=2), v.chunk(splits, dim=2), strict=True)]
    return merge(torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts])).to(q.dtype)


def _partial(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over some of the keys [B, H, 1, e], and the log of its softmax's denominator [B, H, 1, 1], in fp32.

    Parts wait for each other in fp32, as in FlashDecoding's kernels: rounded to 16 bit they would be twice as far off.
    """
    G = q.shape[1] // k.shape[1]
    q, k, v = (x.float() if x.dtype != torch.float64 else x for x in (q, k, v))
    k, v = k.repeat_interleave(G, dim=1), v.repeat_interleave(G, dim=1)
    logits = q @ k.mT * _scale(q.shape[-1])
    return logits.softmax(dim=-1) @ v, logits.logsumexp(dim=-1, keepdim=True)


def merge(outs: Tensor, lses: Tensor) -> Tensor:
    """Join parts over keys: sum over i of out_i·exp(lse_i) / sum over i of exp(lse_i); parts along the first axis.

    The log-sum-exp of a part is all that the others need to know of it (arXiv:2307.08691, section 3.1).
    """
    return (lses.softmax(dim=0) * outs).sum(dim=0)


def attend_varlen(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    """Causal attention of sequences packed without padding: q [N, H, d], k and v [N, K, d] -> [N, H, d].

    `starts` [B + 1] are the cumulative lengths, as servers pass them (cu_seqlens). The mask is block-diagonal.
    """
    token = torch.arange(len(q), device=q.device)
    sequence = torch.bucketize(token, starts[1:], right=True)
    seen = visible(token, token) & _same(sequence)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # [1, heads, N, d]
    out = F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
    return out[0].transpose(0, 1)


def _same(sequence: Tensor) -> Tensor:
    """Pairs of tokens of one sequence [N, N]."""
    return sequence[:, None] == sequence[None, :]

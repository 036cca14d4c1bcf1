"""Attention against its definition in float64: heads, masks, positions, packing, splitting."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rooflinekit.validate import attend, positions, reference
from rooflinekit.validate.positions import Pattern
from rooflinekit.validate.tolerance import CheckResult, Trial, compare, rounding

__all__ = ["ATTENTION_CHECKS"]

B, H, T, d, e = 2, 8, 40, 16, 24  # sequences, query heads, keys, widths of keys and values
_HEADS = {"mha": 8, "gqa": 2, "mqa": 1}
_STEPS = {"prefill": T, "chunk": 7, "decode": 1}


def _random(trial: Trial, *shape: int, number: int = 0) -> Tensor:
    return torch.randn(*shape, generator=trial.generator(number)).to(trial.device, trial.dtype)


def _qkv(trial: Trial, K: int, S: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random q [B, H, S, d], k [B, K, T, d], v [B, K, T, e]; equal widths where flash kernels want them."""
    width = d if trial.device.type == "cuda" else e
    return _random(trial, B, H, S, d), _random(trial, B, K, T, d, number=1), _random(trial, B, K, T, width, number=2)


def dense(trial: Trial) -> Iterator[CheckResult]:
    """The fused kernels are softmax(q k^T/sqrt(d)) v: MHA, GQA, MQA, for a prompt, a chunk and one token."""
    for kind, K in _HEADS.items():
        for step, S in _STEPS.items():
            q, k, v = _qkv(trial, K, S)
            want = reference.dense_attention(q, k, v)
            name = f"attention {kind} {step} = dense float64"
            yield compare(
                name, attend.attend(q, k, v), want, rounding(q.dtype, d, T), f"{S} of {T} tokens, {H}/{K} heads"
            )


def limited(trial: Trial) -> Iterator[CheckResult]:
    """A window of w is the token and w - 1 before it; a chunk is the token's own; neither depends on the cache."""
    for what, pattern in (("window", Pattern(window=9)), ("chunk", Pattern(chunk=9))):
        for step, S in _STEPS.items():
            q, k, v = _qkv(trial, 2, S)
            want = reference.dense_attention(q, k, v, pattern.window, pattern.chunk)
            got = attend.attend(q, k, v, pattern)
            yield compare(f"{what} {step} = dense float64", got, want, rounding(q.dtype, d, T), f"9 of {T} tokens")


def biased(trial: Trial) -> Iterator[CheckResult]:
    """ALiBi's penalty is slope·distance with slopes 2^-1 .. 2^-8 for eight heads; a sink adds exp(logit) to the sum."""
    slopes, sinks = [2.0 ** -(h + 1) for h in range(H)], [0.25 * h - 1.0 for h in range(H)]
    none, nowhere = [0.0] * H, [-1e30] * H
    alibi = Pattern(slopes=positions.alibi_slopes(H, trial.device))
    learned = Pattern(sinks=torch.tensor(sinks, device=trial.device))
    for step, S in _STEPS.items():
        q, k, v = _qkv(trial, 2, S)
        limit = rounding(q.dtype, d, T)
        want = reference.biased_attention(q, k, v, slopes, nowhere)
        yield compare(f"ALiBi {step} = dense float64", attend.attend(q, k, v, alibi), want, limit, f"{H} slopes")
        want = reference.biased_attention(q, k, v, none, sinks)
        yield compare(f"sinks {step} = dense float64", attend.attend(q, k, v, learned), want, limit, f"{H} sinks")


def rotary(trial: Trial) -> Iterator[CheckResult]:
    """RoPE is a multiplication of complex numbers, and only the distance of two tokens enters their product."""
    x = _random(trial, 4, d).double()
    where = positions.positions(1000, 4, trial.device)
    want = torch.stack([reference.rotated(row, 1000 + i) for i, row in enumerate(x)])
    limit = rounding(torch.float64, d) * 1000  # an angle of 1000 is only known to 1000 eps
    yield compare("RoPE = complex product", positions.rotate(x, where), want, limit, "positions 1000 .. 1003, float64")
    near, far = (positions.rotate(x, where - shift) for shift in (1000, 0))
    yield compare("RoPE depends on distance alone", near @ near.mT, far @ far.mT, limit, "shifted by 1000")


def packed(trial: Trial) -> Iterator[CheckResult]:
    """Sequences packed without padding do not see each other."""
    lengths = [5, 1, 17, 9]
    N = sum(lengths)
    q, k, v = _random(trial, N, H, d), _random(trial, N, 2, d, number=1), _random(trial, N, 2, d, number=2)
    starts = torch.tensor([0, *lengths], device=trial.device).cumsum(0)
    alone = zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
    want = [reference.dense_attention(*(x.transpose(0, 1)[None] for x in one))[0].transpose(0, 1) for one in alone]
    got = attend.attend_varlen(q, k, v, starts)
    yield compare("varlen = each sequence alone", got, torch.cat(want), rounding(q.dtype, d, 17), f"lengths {lengths}")


def split(trial: Trial) -> Iterator[CheckResult]:
    """A decode step is the same however many parts its keys are cut into, equal or not."""
    q, k, v = _qkv(trial, 2, 1)
    want = reference.dense_attention(q, k, v)
    for splits in (1, 3, 8):
        got = attend.attend_split(q, k, v, splits)
        name = f"split-KV in {splits} = single pass"
        yield compare(name, got, want, rounding(q.dtype, d, T), f"{T} keys in {splits} parts")


ATTENTION_CHECKS = (dense, limited, biased, rotary, packed, split)

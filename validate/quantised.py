"""Narrow formats: each stored number within half a step of the original, and what that does to a model's output.

Scales are those of `Dtype`: a row's for fp8 and int8, a group's of 128 for int4. Arithmetic stays wide, as in kernels
that dequantise in registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.model import Attention, DenseFFN
from rooflinekit.validate.attention import Room
from rooflinekit.validate.checks_model import built, tiny
from rooflinekit.validate.decoder import Decoder
from rooflinekit.validate.tolerance import CheckResult, Trial

FORMATS = {Dtype.FP8: (448.0, None), Dtype.INT8: (127.0, None), Dtype.INT4: (7.0, 128)}
"""Largest number of each, and the elements of a row that share a scale (None: all of them)."""


def round_trip(x: Tensor, to: Dtype) -> Tensor:
    """What x [..., n] is after it was stored in the format.

    >>> round_trip(torch.tensor([[1.0, 0.3, -0.06, 0.0]]), Dtype.INT8)  # in steps of 1/127
    tensor([[ 1.0000,  0.2992, -0.0630,  0.0000]])
    """
    most, size = FORMATS[to]
    groups = x.float().unflatten(-1, (-1, min(size or x.shape[-1], x.shape[-1])))
    top = groups.abs().amax(dim=-1, keepdim=True)
    scale = torch.where(top > 0, top / most, 1.0)
    return (_nearest((groups / scale).clamp(-most, most), to) * scale).flatten(-2).to(x.dtype)


def _nearest(x: Tensor, to: Dtype) -> Tensor:
    return x.to(torch.float8_e4m3fn).float() if to is Dtype.FP8 else x.round()


def half_steps(x: Tensor, to: Dtype) -> Tensor:
    """The most that rounding may move each element of x [rows, n]: half the distance of the format's neighbours there.

    Restated from the formats' definitions. fp8 has 3 mantissa bits, and steps of 2^-9 near zero.
    """
    groups = x.abs().unflatten(-1, (-1, 128 if to is Dtype.INT4 else x.shape[-1]))
    top = groups.amax(dim=-1, keepdim=True).expand_as(groups).flatten(-2)
    if to is not Dtype.FP8:
        return top / (127 if to is Dtype.INT8 else 7) / 2
    binade = (x / (top / 448)).abs().clamp_min(2.0**-6).log2().floor()
    return torch.exp2(binade - 4) * top / 448


def step_noise(x: Tensor, to: Dtype) -> float:
    """Relative error that rounding of x should make: an error is uniform within its half step, so RMS half/sqrt(3)."""
    return float(half_steps(x, to).square().mean().sqrt() / math.sqrt(3) / x.square().mean().sqrt())


def elements(trial: Trial) -> Iterator[CheckResult]:
    """No element moves by more than half a step, and together they move by as much as steps of that size do."""
    x = torch.randn(96, 256, generator=trial.generator()).to(trial.device)
    for to in FORMATS:
        error = (round_trip(x, to) - x).abs()
        ratio = float((error / half_steps(x, to)).max())
        limit = 1.0 + 1e-3  # where a number lies half-way, fp32 decides: a few eps over a step of 1/127
        yield CheckResult(f"{to}: within half a step", ratio <= limit, ratio, limit, "largest |error| / half step")
        spread = float(error.square().mean().sqrt() / x.square().mean().sqrt())
        off = abs(math.log2(spread / step_noise(x, to)))
        detail = f"RMS error {spread:.2%}; log2 of the ratio"
        yield CheckResult(f"{to}: noise of that step", off <= 0.5, off, 0.5, detail)


B, T = 4, 48  # sequences and tokens
_PEAK = 6.0  # logits are some 10^4 to 10^5 nearly normal numbers: the largest is at 4.4, and 6 never


def _logits(trial: Trial, decoder: Decoder, to: Dtype | None = None) -> Tensor:
    """Logits [B, T, V] of a prompt of half the tokens and the rest one by one, through a 16-bit or narrower cache."""
    store = partial(round_trip, to=to) if to else lambda x: x.bfloat16().float()
    tokens = torch.randint(512, (B, T), generator=trial.generator(1)).to(trial.device)
    cache, half = decoder.caches(Room(B, T, torch.float32, trial.device, store)), T // 2
    rows = [decoder(tokens[:, :half], cache)]
    rows += [decoder(tokens[:, at : at + 1], cache, at) for at in range(half, T)]
    return torch.cat(rows, dim=1)


def _decoder(trial: Trial) -> Decoder:
    """Wide enough for groups of 128; weights of 16 bit, computed in fp32 so that only storage differs."""
    wide = replace(tiny("quantised", Attention(4, 2, 32, 32), DenseFFN(width=256)), hidden=128, vocab=512)
    return built(wide, trial, torch.bfloat16).float()


def _judge(what: str, logits: tuple[Tensor, Tensor], noise: float, layers: int, factors: int) -> Iterator[CheckResult]:
    """Compare logits, got and wanted, with what a rounding of this relative error must do.

    Independent errors add as squares. A layer multiplies `factors` rounded numbers into the stream, and the error that
    it receives from the layers before passes through as many again: together sqrt(factors·L(L + 1)/2). To second order
    KL is half the variance of the logits' error under the distribution (Fisher information), and the largest error of
    many is some six standard deviations. Less than a tenth of that KL, and it was another format.
    """
    got, want = logits
    noise *= math.sqrt(factors * layers * (layers + 1) / 2)
    sigma = noise * float(want.double().std())
    p, q = (x.double().log_softmax(dim=-1) for x in (want, got))
    kl = float(nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(dim=-1).mean())
    limit, largest, peak = sigma**2 / 2, float((got.double() - want.double()).abs().max()), _PEAK * sigma
    detail = f"nat a token; noise {noise:.2%} of the logits"
    yield CheckResult(f"{what}: KL divergence", limit / 10 <= kl <= limit, kl, limit, detail)
    yield CheckResult(f"{what}: largest logit error", largest <= peak, largest, peak, "against 16-bit storage")


def weights(trial: Trial) -> Iterator[CheckResult]:
    """Each layer's four matrices in the format, the rest in 16 bit.

    Seven rounded factors reach the stream in a layer: q, k, v, o, gate, up and down.
    """
    for to in FORMATS:
        decoder = _decoder(trial)
        want, layers = _logits(trial, decoder), decoder.layers
        noise = step_noise(decoder.get_parameter("layers.0.ffn.gate_up_proj.weight"), to)
        for part in layers.modules():
            if isinstance(part, nn.Linear):
                part.weight.copy_(round_trip(part.weight, to))
        yield from _judge(f"weights in {to}", (_logits(trial, decoder), want), noise, len(layers), 7)


def cache(trial: Trial) -> Iterator[CheckResult]:
    """Keys and values in the format, a scale for each token and head: two rounded factors a layer.

    Attention's logits are of unit size here, so a key with relative error r changes its weight by a share r.
    """
    decoder = _decoder(trial)
    want, sample = _logits(trial, decoder), torch.randn(4096, 32, generator=trial.generator(2))
    for to in (Dtype.FP8, Dtype.INT8):
        logits = _logits(trial, decoder, to), want
        yield from _judge(f"KV cache in {to}", logits, step_noise(sample, to), len(decoder.layers), 2)


QUANTISED_CHECKS = (elements, weights, cache)

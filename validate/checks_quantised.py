"""Narrow formats: each stored number within half a step of the original, and what that does to a model's output."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.model import Attention, DenseFFN, Model
from rooflinekit.validate import quantise
from rooflinekit.validate.cache import Room
from rooflinekit.validate.checks_decoder import built, tiny
from rooflinekit.validate.decoder import Decoder
from rooflinekit.validate.tolerance import CheckResult, Trial

__all__ = ["QUANTISED_CHECKS", "divergence", "half_steps", "step_noise"]

B, T = 4, 48  # sequences and tokens
_KV_FORMATS = (Dtype.FP8, Dtype.INT8)
_PEAK = 6.0  # logits are some 10^4 to 10^5 nearly normal numbers: the largest is at 4.4, and 6 never


def _model() -> Model:
    """Wide enough for groups of 128."""
    wide = tiny("quantised", Attention(4, 2, 32, 32), DenseFFN(width=256))
    return replace(wide, hidden=128, vocab=512)


def half_steps(x: Tensor, to: Dtype) -> Tensor:
    """The most that rounding may move each element of x [rows, n]: half the distance of the format's neighbours there.

    Restated from the formats' definitions. fp8 has 3 mantissa bits, and steps of 2^-9 near zero.
    """
    match to:
        case Dtype.INT8:
            return _top(x, x.shape[-1]) / 127 / 2
        case Dtype.FP8:
            return _e4m3_half(x, _top(x, x.shape[-1]) / 448)
        case _:
            return _top(x, 128) / 7 / 2


def _top(x: Tensor, group: int) -> Tensor:
    """The largest magnitude of each element's group, in the shape of x."""
    groups: Tensor = x.abs().unflatten(-1, (-1, min(group, x.shape[-1])))
    return groups.amax(dim=-1, keepdim=True).expand_as(groups).flatten(-2)


def _e4m3_half(x: Tensor, scale: Tensor) -> Tensor:
    binade = (x / scale).abs().clamp_min(2.0**-6).log2().floor()
    return torch.exp2(binade - 4) * scale


def step_noise(x: Tensor, to: Dtype) -> float:
    """Relative error that rounding of x should make: an error is uniform within its half step, so RMS half/sqrt(3)."""
    return float(half_steps(x, to).square().mean().sqrt() / math.sqrt(3) / x.square().mean().sqrt())


def elements(trial: Trial) -> Iterator[CheckResult]:
    """No element moves by more than half a step, and together they move by as much as steps of that size do."""
    x = torch.randn(96, 256, generator=trial.generator()).to(trial.device)
    for to in quantise.FORMATS:
        error = (quantise.round_trip(x, to) - x).abs()
        ratio = float((error / half_steps(x, to)).max())
        limit = 1.0 + 1e-3  # where a number lies half-way, fp32 decides: a few eps over a step of 1/127
        yield CheckResult(f"{to}: within half a step", ratio <= limit, ratio, limit, "largest |error| / half step")
        spread = float(error.square().mean().sqrt() / x.square().mean().sqrt())
        off = abs(math.log2(spread / step_noise(x, to)))
        yield CheckResult(
            f"{to}: noise of that step", off <= 0.5, off, 0.5, f"RMS error {spread:.2%}; log2 of the ratio"
        )


def divergence(got: Tensor, want: Tensor) -> tuple[float, float]:
    """KL divergence [nat] of the tokens' distributions from the wide model's, mean over tokens; largest logit error."""
    p, q = want.double().log_softmax(dim=-1), got.double().log_softmax(dim=-1)
    kl = nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(dim=-1).mean()
    return float(kl), float((got.double() - want.double()).abs().max())


def _judge(what: str, logits: tuple[Tensor, Tensor], noise: float) -> Iterator[CheckResult]:
    """Compare with what noise of this size, relative to the logits, must do.

    To second order KL is half the variance of the logits' error under the distribution (Fisher information), and the
    largest error of many is some six standard deviations. Less than a tenth of that KL, and it was another format.
    """
    got, want = logits
    sigma = noise * float(want.double().std())
    kl, largest = divergence(got, want)
    limit = sigma**2 / 2
    right = limit / 10 <= kl <= limit
    yield CheckResult(f"{what}: KL divergence", right, kl, limit, f"nat a token; noise {noise:.2%} of the logits")
    peak = _PEAK * sigma
    yield CheckResult(f"{what}: largest logit error", largest <= peak, largest, peak, "against 16-bit storage")


def _logits(trial: Trial, decoder: Decoder, room: Room) -> Tensor:
    """Logits [B, T, V] of a prompt of half the tokens and the rest one by one, through a cache with this storage."""
    tokens = torch.randint(512, (B, T), generator=trial.generator(1)).to(trial.device)
    cache, half = decoder.caches(room), T // 2
    rows = [decoder(tokens[:, :half], cache)]
    rows += [decoder(tokens[:, at : at + 1], cache, at) for at in range(half, T)]
    return torch.cat(rows, dim=1)


def _rounded(trial: Trial) -> tuple[Decoder, Room, Tensor]:
    """A model with 16-bit weights and cache, computed in fp32 so that only storage differs, and its logits."""
    decoder = built(_model(), trial, torch.bfloat16).float()
    room = Room(B, T, torch.float32, trial.device, lambda x: x.bfloat16().float())
    return decoder, room, _logits(trial, decoder, room)


def _through(layers: int, factors: int) -> float:
    """Growth of a rounding's relative error through the model: sqrt(factors·L(L + 1)/2).

    Independent errors add as squares. A layer multiplies `factors` rounded numbers into the stream, and the error that
    it receives from the layers before passes through as many again.
    """
    return math.sqrt(factors * layers * (layers + 1) / 2)


def weights(trial: Trial) -> Iterator[CheckResult]:
    """Each layer's four matrices in the format, the rest in 16 bit.

    Seven rounded factors reach the stream in a layer: q, k, v, o, gate, up and down.
    """
    for to in quantise.FORMATS:
        decoder, room, want = _rounded(trial)
        sample = decoder.get_parameter("layers.0.ffn.gate_up_proj.weight")
        noise = step_noise(sample, to) * _through(len(decoder.layers), 7)
        quantise.quantise_matrices(decoder.layers, to)
        yield from _judge(f"weights in {to}", (_logits(trial, decoder, room), want), noise)


def cache(trial: Trial) -> Iterator[CheckResult]:
    """Keys and values in the format, a scale for each token and head: two rounded factors a layer.

    Attention's logits are of unit size here, so a key with relative error r changes its weight by a share r.
    """
    decoder, room, want = _rounded(trial)
    sample = torch.randn(4096, 32, generator=trial.generator(2))
    for to in _KV_FORMATS:
        narrow = replace(room, store=partial(quantise.round_trip, to=to))
        noise = step_noise(sample, to) * _through(len(decoder.layers), 2)
        yield from _judge(f"KV cache in {to}", (_logits(trial, decoder, narrow), want), noise)


QUANTISED_CHECKS = (elements, weights, cache)

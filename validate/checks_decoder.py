"""The decoder against itself: what it computes must not depend on how the work is cut, cached or arranged.

The reference is the same weights in float64 without any cache; the attention inside is checked on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.model import (
    Attention,
    DenseFFN,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    MixtureOfExperts,
    Model,
    WeightFormats,
)
from rooflinekit.validate import reference
from rooflinekit.validate.cache import Cache, ContiguousCache, PagedCache, Room, Streams
from rooflinekit.validate.decoder import Decoder, LatentMixer, build
from rooflinekit.validate.feedforward import ExpertBlock
from rooflinekit.validate.graphed import GraphedStep
from rooflinekit.validate.tolerance import CheckResult, Trial, compare, rounding

__all__ = ["DECODER_CHECKS", "TINY", "built", "recompute", "tiny"]

D, B, P, S = 64, 2, 21, 12  # residual width; sequences, prompt and new tokens
_GQA = Attention(heads=8, kv_heads=2, head_dim=16, v_head_dim=16)
_FFN = DenseFFN(width=96)


def tiny(name: str, mixer: Mixer, ffn: FeedForward = _FFN, position_rows: int = 0, **layer: object) -> Model:
    """Two layers, 128 tokens of vocabulary."""
    one = Layer(mixer, ffn, **layer)  # type: ignore[arg-type]
    formats = WeightFormats.uniform(Dtype.FP32)
    return Model(name, D, 128, (one, one), Dtype.FP32, formats, None, position_rows=position_rows)


TINY = (
    tiny("MHA, rotary", Attention(heads=4, kv_heads=4, head_dim=16, v_head_dim=16)),
    tiny("GQA, rotary", _GQA),
    tiny("MQA, parallel block", Attention(4, 1, 16, 16), parallel=True, norms=1, norm="layernorm"),
    tiny("window of 8", Attention(8, 2, 16, 16, window=8)),
    tiny("chunks of 8", Attention(8, 2, 16, 16, chunk=8)),
    tiny("ALiBi", Attention(8, 8, 16, 16, rotary=False)),
    tiny("learned positions", Attention(4, 4, 16, 16, qkv_bias=True, rotary=False), position_rows=64, norm="layernorm"),
    tiny("sinks, norms, gate", Attention(8, 2, 16, 16, sinks=True, gated=True, q_norm=16, k_norm=16), norms=4),
    tiny("MLA", LatentAttention(heads=4, q_rank=32, kv_rank=24, nope_dim=16, rope_dim=8, v_dim=12)),
    tiny("experts", _GQA, MixtureOfExperts(experts=8, top_k=2, width=48, shared_width=32)),
)  # fmt: skip


def built(model: Model, trial: Trial, dtype: torch.dtype = torch.float32, number: int = 0) -> Decoder:
    """The decoder of a trial: the same weights on every device."""
    return build(model, trial.device, dtype, trial.number(number), torch.device("cpu"))


def _tokens(trial: Trial, count: int) -> Tensor:
    return torch.randint(128, (B, count), generator=trial.generator(1)).to(trial.device)


def _tolerance(model: Model) -> float:
    """Every layer multiplies along D, the FFN width, the heads and the keys; four times D covers the projections."""
    return rounding(torch.float32, model.depth * (4 * D + 96 + 2 * (P + S)))


def recompute(model: Model, trial: Trial, tokens: Tensor) -> Tensor:
    """Logits [B, T, V] of the whole sequence at once, in float64 and without a cache."""
    logits: Tensor = built(model, trial).double()(tokens)
    return logits


def _in_steps(
    decoder: Decoder, tokens: Tensor, steps: list[int], kind: Callable[[Streams, Room], Cache] = ContiguousCache
) -> Tensor:
    """Logits [B, T, V] computed through the cache, in steps of these lengths."""
    weight = decoder.embedding.weight
    cache = decoder.caches(Room(B, tokens.shape[1], weight.dtype, weight.device), kind)
    past, logits = 0, []
    for new in tokens.split(steps, dim=1):
        logits.append(decoder(new, cache, past))
        past += new.shape[1]
    return torch.cat(logits, dim=1)


def cached(trial: Trial) -> Iterator[CheckResult]:
    """A prompt and then one token at a time through the cache give the logits of full recomputation."""
    tokens = _tokens(trial, P + S)
    for model in TINY:
        got = _in_steps(built(model, trial), tokens, [P, *[1] * S])
        want = recompute(model, trial, tokens)
        name = f"cached decode = recomputation: {model.name}"
        yield compare(name, got, want, _tolerance(model), f"{P} tokens, then {S} one by one; float64 without cache")


def chunked(trial: Trial) -> Iterator[CheckResult]:
    """A prompt in pieces gives the logits of the whole prompt."""
    tokens = _tokens(trial, P + S)
    for model in TINY:
        got = _in_steps(built(model, trial), tokens, [10, 3, P + S - 13])
        want = recompute(model, trial, tokens)
        name = f"chunked prefill = whole: {model.name}"
        yield compare(name, got, want, _tolerance(model), f"pieces of 10, 3 and {P + S - 13} tokens")


def paged(trial: Trial) -> Iterator[CheckResult]:
    """Pages in random order hold what one buffer holds."""
    tokens = _tokens(trial, P + S)
    for model in (TINY[1], TINY[8]):
        decoder = built(model, trial)
        steps = [P, *[1] * S]
        got, want = (_in_steps(decoder, tokens, steps, kind) for kind in (PagedCache, ContiguousCache))
        name = f"paged = contiguous: {model.name}"
        yield compare(name, got, want, _tolerance(model), f"pages of {PagedCache.page} tokens")


def absorbed(trial: Trial) -> Iterator[CheckResult]:
    """MLA in the latent space is MLA with every key and value spelt out."""
    decoder = built(TINY[8], trial)
    mixer, spec = decoder.layers[0].mixer, decoder.model.layers[0].mixer
    assert isinstance(mixer, LatentMixer)
    assert isinstance(spec, LatentAttention)
    random = trial.generator(2)
    for new in (1, 5):
        q = torch.randn(B, spec.heads, new, spec.qk_dim, generator=random).to(trial.device)
        kept = torch.randn(B, 1, P, spec.latent_dim, generator=random).to(trial.device)
        got = mixer.absorbed(q, kept)
        want = mixer.double().unabsorbed(q.double(), kept.double())
        mixer.float()
        limit = rounding(torch.float32, spec.nope_dim, spec.latent_dim, P, spec.kv_rank)
        yield compare(f"absorbed MLA = unabsorbed, {new} new", got, want, limit, f"{P} latents of {spec.latent_dim}")


def grouped(trial: Trial) -> Iterator[CheckResult]:
    """Tokens sorted by expert give what a loop over tokens gives."""
    for dtype in (torch.float32, torch.bfloat16):
        block = built(TINY[9], trial, dtype).layers[0].ffn
        assert isinstance(block, ExpertBlock)
        x = torch.randn(37, D, generator=trial.generator(3)).to(trial.device, dtype)
        limit = rounding(dtype, D, 48) * (1 if dtype == torch.float32 else 3)  # three roundings in a row in 16 bit
        name = f"grouped experts = loop over tokens, {str(dtype).removeprefix('torch.')}"
        sure = _sure(block, x, limit)  # where two experts are all but equal, rounding chooses
        detail = f"{int(sure.sum())} of 37 tokens, 2 of 8 experts"
        yield compare(name, block(x)[sure], reference.expert_loop(block, x)[sure], limit, detail)


def _sure(block: ExpertBlock, x: Tensor, limit: float) -> Tensor:
    """Tokens [N] whose last chosen expert is ahead of the next one by more than rounding moves scores of unit size."""
    scores = (x.double() @ block.router.weight.double().T).sort(dim=-1, descending=True).values
    return scores[:, block.spec.top_k - 1] - scores[:, block.spec.top_k] > 2 * limit


def graphed(trial: Trial) -> Iterator[CheckResult]:
    """A captured decode step gives the logits of full recomputation, with a token that it was not captured with."""
    if trial.device.type != "cuda":
        return
    tokens = _tokens(trial, P + 1)
    for model in (TINY[1], TINY[3], TINY[5], TINY[8]):
        decoder = built(model, trial)
        cache = decoder.caches(Room(B, P + 1, torch.float32, trial.device))
        decoder(tokens[:, :P], cache)
        step = GraphedStep(decoder, torch.zeros_like(tokens[:, P:]), cache, P)
        step.tokens.copy_(tokens[:, P:])  # a replay reads what is there now, and overwrites the cache with it
        got = step.replay().clone()
        want = recompute(model, trial, tokens)[:, P:]
        yield compare(f"graph = recomputation: {model.name}", got, want, _tolerance(model), f"{P} cached tokens")


DECODER_CHECKS = (cached, chunked, paged, absorbed, grouped, graphed)

"""Attention against its definition in float64, and the decoder against itself: cutting and caching change nothing.

The decoder's reference is the same weights in float64 without any cache; the attention inside is checked on its own.
Then speculative decoding (Leviathan et al. 2023, arXiv:2211.17192), for g drafted tokens: a draft proposes, and the
target keeps its distribution; q and p are the draft's and the target's probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
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
from rooflinekit.validate import attention, reference
from rooflinekit.validate.attention import FULL, Pattern, Room
from rooflinekit.validate.decoder import Decoder, GraphedStep, build
from rooflinekit.validate.tolerance import CheckResult, Trial, compare, follows, rounding

B, H, T, d, e = 2, 8, 40, 16, 24  # sequences, query heads, keys, widths of keys and values
_HEADS = {"mha": 8, "gqa": 2, "mqa": 1}
_STEPS = {"prefill": T, "chunk": 7, "decode": 1}
_PATTERNS = {"": FULL, ", window of 9": Pattern(window=9), ", chunks of 9": Pattern(chunk=9)}


def _random(trial: Trial, number: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=trial.generator(number)).to(trial.device, trial.dtype)


def _qkv(trial: Trial, K: int, S: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random q [B, H, S, d], k [B, K, T, d], v [B, K, T, e]; equal widths where flash kernels want them."""
    width = d if trial.device.type == "cuda" else e
    return _random(trial, 0, B, H, S, d), _random(trial, 1, B, K, T, d), _random(trial, 2, B, K, T, width)


def dense(trial: Trial) -> Iterator[CheckResult]:
    """The fused kernels are softmax(q k^T/sqrt(d)) v: MHA, GQA, MQA, for a prompt, a chunk and one token.

    A window of w is the token and w - 1 before it; a chunk is the token's own; neither depends on the cache.
    """
    for what, pattern in _PATTERNS.items():
        for kind, K in (_HEADS if pattern == FULL else {"gqa": 2}).items():
            for step, S in _STEPS.items():
                q, k, v = _qkv(trial, K, S)
                want = reference.dense_attention(q, k, v, pattern.window, pattern.chunk)
                name = f"attention {kind} {step}{what} = dense float64"
                got, limit = attention.attend(q, k, v, pattern), rounding(q.dtype, d, T)
                yield compare(name, got, want, limit, f"{S} of {T} tokens, {H}/{K} heads")


def merge(outs: Tensor, lses: Tensor) -> Tensor:
    """Join parts over keys: sum over i of out_i·exp(lse_i) / sum over i of exp(lse_i); parts along the first axis.

    The log-sum-exp of a part is all that the others need to know of it (FlashAttention-2, arXiv:2307.08691, section
    3.1); FlashAttention does so block by block, FlashDecoding for blocks that run side by side.
    """
    return (lses.softmax(dim=0) * outs).sum(dim=0)


def flash(trial: Trial) -> Iterator[CheckResult]:
    """Attention is exact however many blocks its keys are cut into, equal or not: each keeps its log-sum-exp alone."""
    q, k, v = _qkv(trial, H, 1)
    logits = q.float() @ k.float().mT / d**0.5  # [B, H, 1, T]
    for count in (1, 3, 8):
        blocks = zip(logits.chunk(count, dim=-1), v.float().chunk(count, dim=2), strict=True)
        parts = [(x.softmax(-1) @ values, x.logsumexp(-1, keepdim=True)) for x, values in blocks]
        got = merge(*(torch.stack(each) for each in zip(*parts, strict=True)))
        want, limit = reference.dense_attention(q, k, v), rounding(torch.float32, d, T)
        yield compare(f"flash attention in {count} blocks = dense float64", got, want, limit, f"{T} keys")


def rotary(trial: Trial) -> Iterator[CheckResult]:
    """RoPE is a multiplication of complex numbers, and only the distance of two tokens enters their product."""
    x = _random(trial, 0, 4, d).double()
    where = attention.positions(1000, 4, trial.device)
    want = torch.stack([reference.rotated(row, 1000 + i) for i, row in enumerate(x)])
    limit = rounding(torch.float64, d) * 1000  # an angle of 1000 is only known to 1000 eps
    yield compare("RoPE = complex product", attention.rotate(x, where), want, limit, "positions 1000 .. 1003, float64")
    near, far = (attention.rotate(x, where - shift) for shift in (1000, 0))
    yield compare("RoPE depends on distance alone", near @ near.mT, far @ far.mT, limit, "shifted by 1000")


D, P, S = 64, 21, 12  # residual width, prompt and new tokens of the decoders
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
    tiny("learned positions", Attention(4, 4, 16, 16, qkv_bias=True, rotary=False), position_rows=64, norm="layernorm"),
    tiny("four norms, gate", Attention(8, 2, 16, 16, gated=True, q_norm=16, k_norm=16), norms=4),
    tiny("MLA", LatentAttention(heads=4, q_rank=32, kv_rank=24, nope_dim=16, rope_dim=8, v_dim=12)),
    tiny("experts", _GQA, MixtureOfExperts(experts=8, top_k=2, width=48, shared_width=32)),
)  # fmt: skip


def built(model: Model, trial: Trial, dtype: torch.dtype = torch.float32) -> Decoder:
    """The decoder of a trial: the same weights on every device."""
    return build(model, trial.device, dtype, trial.number(), torch.device("cpu"))


def _judged(how: str, model: Model, got: Tensor, trial: Trial, tokens: Tensor) -> CheckResult:
    """The last logits of `got` beside those of the whole sequence at once, in float64 and without a cache.

    Every layer multiplies along D, the FFN width, the heads and the keys; four times D covers the projections.
    """
    want = built(model, trial).double()(tokens)[:, -got.shape[1] :]
    limit = rounding(torch.float32, model.depth * (4 * D + 96 + 2 * (P + S)))
    return compare(f"{how} = recomputation: {model.name}", got, want, limit, "float64 without cache")


def cached(trial: Trial) -> Iterator[CheckResult]:
    """A prompt and then one token at a time through the cache, or a prompt in pieces, give the logits of the whole."""
    tokens = torch.randint(128, (B, P + S), generator=trial.generator(1)).to(trial.device)
    for model in TINY:
        decoder = built(model, trial)
        for how, steps in (("cached decode", [P, *[1] * S]), ("chunked prefill", [10, 3, P + S - 13])):
            cache, past, logits = decoder.caches(Room(B, P + S, torch.float32, trial.device)), 0, []
            for new in tokens.split(steps, dim=1):
                logits.append(decoder(new, cache, past))
                past += new.shape[1]
            yield _judged(how, model, torch.cat(logits, dim=1), trial, tokens)


def graphed(trial: Trial) -> Iterator[CheckResult]:
    """A captured decode step gives the logits of full recomputation, with a token that it was not captured with."""
    if trial.device.type != "cuda":
        return
    tokens = torch.randint(128, (B, P + 1), generator=trial.generator(1)).to(trial.device)
    for model in (TINY[1], TINY[3], TINY[7]):
        decoder = built(model, trial)
        cache = decoder.caches(Room(B, P + 1, torch.float32, trial.device))
        decoder(tokens[:, :P], cache)
        step = GraphedStep(decoder, torch.zeros_like(tokens[:, P:]), cache, P)
        step.tokens.copy_(tokens[:, P:])  # a replay reads what is there now, and overwrites the cache with it
        yield _judged("graph", model, step.replay().clone(), trial, tokens)


N, V = 20_000, 6  # independent trials, vocabulary: 20,000 over 36 pairs is some 500 a cell


def accepted(draft: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> Tensor:
    """Whether each drafted token [N, g] is kept: with probability min(1, p/q). q [N, g, V], p [N, g + 1, V]."""
    there = draft[..., None]
    ratio = p[:, :-1].gather(-1, there) / q.gather(-1, there)  # [N, g, 1]
    return torch.rand(draft.shape, generator=generator, device=draft.device) < ratio[..., 0]


def residual(q: Tensor, p: Tensor) -> Tensor:
    """What to sample from after a rejection: max(p - q, 0), normalised; the rows of multinomial need not add up to 1.

    Where p equals q nothing is ever rejected, and p stands in.
    """
    rest = (p - q).clamp_min(0.0)
    return torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, p)


def verify(draft: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens [N, g + 1] and how many of them count [N]: the drafted ones up to the first rejection, and one more.

    The last comes from the residual where a token was rejected, else from the target, for which q counts as zero.
    """
    kept = accepted(draft, q, p, generator).long().cumprod(dim=1).sum(dim=1)  # [N], 0 .. g
    row = kept[:, None, None].expand(-1, 1, p.shape[-1])
    q_all = F.pad(q, (0, 0, 0, 1))  # [N, g + 1, V]
    last = torch.multinomial(residual(q_all.gather(1, row), p.gather(1, row))[:, 0], 1, generator=generator)  # [N, 1]
    return F.pad(draft, (0, 1)).scatter(1, kept[:, None], last), kept + 1


def sampled(trial: Trial) -> Iterator[CheckResult]:
    """First and second token of many trials follow the target, though the draft differs: g = 2.

    Each model is a table of V conditional distributions [previous, next], so that the second token tests what
    happens after an acceptance.
    """
    device, random = trial.device, trial.generator()
    start, draft_table, target_table = (torch.rand(V, V, generator=random).to(device) + 0.1 for _ in range(3))
    q_first, p_first = start[0] / start[0].sum(), start[1] / start[1].sum()
    q_next, p_next = (table / table.sum(dim=1, keepdim=True) for table in (draft_table, target_table))
    run = torch.Generator(device).manual_seed(trial.number(1))
    first = torch.multinomial(q_first, N, replacement=True, generator=run)  # [N]
    second = torch.multinomial(q_next[first], 1, generator=run)[:, 0]
    q = torch.stack([q_first.expand(N, V), q_next[first]], dim=1)  # [N, g, V]
    p = torch.stack([p_first.expand(N, V), p_next[first], p_next[second]], dim=1)  # [N, g + 1, V]
    tokens, count = verify(torch.stack([first, second], dim=1), q, p, run)
    yield follows("speculative sampling, first token", tokens[:, 0], p_first)
    pair = (tokens[:, 0] * V + tokens[:, 1])[count >= 2]
    both = (torch.minimum(q_first, p_first)[:, None] * p_next).flatten()  # accepted first, then any second
    yield follows("speculative sampling, second token", pair, both / both.sum())


MODEL_CHECKS = (dense, flash, rotary, cached, graphed, sampled)

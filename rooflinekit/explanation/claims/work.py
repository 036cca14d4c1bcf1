"""Claims about FLOP, parameters and arithmetic intensity."""

from __future__ import annotations

from rooflinekit.explanation.claims.claim import Case, Claim
from rooflinekit.explanation.claims.quantities import count, decode, gpu, kernel, prefill
from rooflinekit.model.kernels import gemm_activation_bytes, gemm_flops
from rooflinekit.model.types.dtype import Dtype

__all__ = ["WORK"]

_CHNG = "https://peterchng.com/blog/2024/05/01/why-do-llm-input-tokens-cost-less-than-output-tokens/"
_ZUBNET = "https://zubnet.ai/wiki/en/FLOPs"
_FINN = "https://fergusfinn.com/talks/inference-arithmetic"
_CALWOO = "https://calwoo.github.io/notes/concepts/deep-learning-engineering/memory-bound-inference/"
_REGANTIH = "https://regantih.github.io/reports-lab/tokens-to-embodied-minds/chapters/13-h100-b200.html"
_LLAMA = "llama-3-8b"


def _ffn_share(model: str) -> float:
    return count(model).ffn / (count(model).ffn + count(model).attention)


def _attention_share(isl: int) -> float:
    step = prefill("llama-3-70b", isl=isl, tp=8)
    return kernel(step, "attention").flops / step.flops


def _scores(tokens: int) -> float:
    """QK^T of all layers, causal [FLOP]."""
    return kernel(prefill(_LLAMA, isl=tokens), "attention").flops / 2.0


def _all_pairs(tokens: int) -> float:
    """How many times more pairs there are without the causal mask."""
    return tokens**2 / (tokens * (tokens + 1) / 2)


def _full_prefill(tokens: int) -> float:
    step = prefill(_LLAMA, isl=tokens)
    return step.flops + (_all_pairs(tokens) - 1.0) * kernel(step, "attention").flops


WORK = (
    Claim("A forward pass takes 2P FLOP a token (Llama-3-8B)", 2.0 * 8.03e9, "FLOP",
          Case("the context is short (1 token)", lambda: decode(_LLAMA, context=1).flops),
          "attention adds 4·L·H·d FLOP for each cached token, and the embedding is a lookup",
          "explain llama-3-8b decode.flops --context 8192", _CHNG, 0.1,
          other=Case("the context has 8,192 tokens", lambda: decode(_LLAMA, context=8192).flops)),
    Claim("A 70B model takes 140 GFLOP a token", 140e9, "FLOP",
          Case("Llama-3-70B at a short context", lambda: decode("llama-3-70b", context=1).flops),
          "2P less the embedding", "explain llama-3-70b decode.flops --context 1 --allow-oom", _ZUBNET),
    Claim("Prefill of 1,024 tokens with Llama-3-70B is 2 · 1,024 · 69.35B = 142.0 TFLOP", 142.0e12, "FLOP",
          Case("exact", lambda: prefill("llama-3-70b", isl=1024).flops),
          "attention adds 1.4 TFLOP, and the LM head sees one token only",
          "explain llama-3-70b prefill.flops --isl 1024 --allow-oom", _FINN),
    Claim("The scores QK^T of six prompt tokens take 9.4 MFLOP (Llama-3-8B, all layers)", 9.4e6, "FLOP",
          Case("causal, as every decoder is", lambda: _scores(6)),
          "21 of the 36 pairs are left by the causal mask",
          "explain llama-3-8b prefill.attention.flops --isl 6", tolerance=0.01,
          other=Case("all 36 pairs are scored, the masked ones too", lambda: _scores(6) * _all_pairs(6)),
          reading="a/2"),
    Claim("Prefill of 2,048 tokens with Llama-3-8B takes 31 TFLOP", 31e12, "FLOP",
          Case("causal, LM head on the last token", lambda: prefill(_LLAMA, isl=2048).flops),
          "half of the query-key pairs are masked: 29.7 TFLOP, against 30.8 without the mask",
          "explain llama-3-8b prefill.flops --isl 2048", tolerance=0.01,
          other=Case("masked pairs are computed too", lambda: _full_prefill(2048))),
    Claim("The score matrix has B·T²·H elements (one layer of Llama-3-8B, T = 2,048)", 32 * 2048.0**2, "",
          Case("counting pairs that a causal kernel computes", lambda: _scores(2048) / 32 / 2 / 128),
          "the causal half is never computed, and FlashAttention never stores the rest",
          "explain llama-3-8b prefill.attention.flops --isl 2048", tolerance=0.01,
          other=Case("the whole square is computed and stored",
                     lambda: _scores(2048) / 32 / 2 / 128 * _all_pairs(2048)),
          reading="a/(32*4*128)"),
    Claim("Attention is a small part of the FLOP of a prefill (at most 10 %)", 0.1, "",
          Case("the prompt has 1,024 tokens (Llama-3-70B)", lambda: _attention_share(1024)),
          "it grows with the square of the prompt, the matrices only with the prompt",
          "explain llama-3-70b prefill.attention.flops --tp 8 --isl 131072 --allow-oom", _FINN, relation="≤",
          other=Case("it has 131,072 tokens", lambda: _attention_share(131_072)),
          second="explain llama-3-70b prefill.flops --tp 8 --isl 131072 --allow-oom", reading="a/b"),
    Claim("Six prompt tokens make a prefill compute-bound (FLOP/B of at least the ridge, 295 on H100)", 295.0, "FLOP/B",
          Case("Llama-3-8B, 6 tokens", lambda: prefill(_LLAMA, isl=6).intensity),
          "two FLOP for each two-byte weight and token: about 6 FLOP/B",
          "explain llama-3-8b prefill.intensity --isl 6", relation="≥"),
    Claim("A matrix-vector product in BF16 has 1 FLOP/B", 1.0, "FLOP/B",
          Case("the QKV projection of a decode step", lambda: kernel(decode(_LLAMA), "qkv_proj").intensity or 0.0),
          "two FLOP for two bytes", "explain llama-3-8b decode.qkv_proj.intensity", _CALWOO),
    Claim("Decode at batch 1 has an intensity of 2 FLOP/B (Llama-3-8B)", 2.0, "FLOP/B",
          Case("weights have two bytes", lambda: decode(_LLAMA).intensity),
          "one multiply and one add for each weight, over the bytes of a weight",
          "explain llama-3-8b decode.intensity", _REGANTIH, 0.15,
          other=Case("weights have one byte (FP8)", lambda: decode(_LLAMA, weights="fp8").intensity)),
    Claim("A square GEMM in BF16 has an intensity of d/3 (d = 4,096)", 4096 / 3, "FLOP/B",
          Case("three matrices moved once",
               lambda: gemm_flops(4096, 4096, 4096)
               / (2.0 * 4096**2 + float(gemm_activation_bytes(4096, 4096, 4096, 2.0, 2.0)))),
          "2d³ FLOP over 3·2d² bytes", "explain llama-3-8b prefill.o_proj.intensity --isl 4096", _CALWOO),
    Claim("Prefill of 4,096-token prompts has an intensity of thousands", 1000.0, "FLOP/B",
          Case("Llama-3-8B, 8 prompts", lambda: prefill(_LLAMA, isl=4096, batch=8).intensity),
          "weights are read once for all tokens; what is left is activations",
          "explain llama-3-8b prefill.intensity --isl 4096 --batch 8", _REGANTIH, relation="≥"),
    Claim("A transformer has 12·L·D² parameters (over the true count)", 1.0, "",
          Case("GPT-3 (attention over all heads, feed-forward of 4D)",
               lambda: 12 * 96 * 12_288**2 / count("gpt-3-175b").total),
          "the vocabulary, grouped heads and gated feed-forward blocks of another width change it",
          "explain gpt-3-175b params", tolerance=0.03,
          other=Case("Llama-3-8B", lambda: 12 * 32 * 4096**2 / count(_LLAMA).total),
          reading="12*96*12288*12288/a"),
    Claim("Feed-forward blocks hold two thirds of a layer's weights", 2 / 3, "",
          Case("Llama-2-7B", lambda: _ffn_share("llama-2-7b")),
          "grouped-query attention and a wider block leave attention less",
          "show llama-3-8b --format json # params_by_module.ffn", tolerance=0.05,
          other=Case("Llama-3-8B", lambda: _ffn_share(_LLAMA)),
          second="show llama-3-8b --format json # params_by_module.attention", reading="a/(a + b)"),
    Claim("The feed-forward width is four times the hidden size", 4.0, "",
          Case("GPT-3", lambda: count("gpt-3-175b").ffn / 96 / 2 / 12_288**2),
          "Llama-3-8B has 14,336 = 3.5·4,096, in three matrices",
          "show llama-3-8b --format json # params_by_module.ffn", tolerance=0.01,
          other=Case("Llama-3-8B", lambda: count(_LLAMA).ffn / 32 / 3 / 4096**2),
          reading="a/(32*3*4096*4096)"),
    Claim("The LM head takes 2·V·D FLOP for each of the 2,048 tokens of a prompt (share of that)", 1.0, "",
          Case("engines, which compute the last token only",
               lambda: kernel(prefill(_LLAMA, isl=2048), "lm_head").flops / (2.0 * 128_256 * 4096 * 2048)),
          "only the last token of a prompt is sampled", "explain llama-3-8b prefill.lm_head.flops --isl 2048",
          other=Case("logits of all prompt tokens are asked for",
                     lambda: 2048 * kernel(prefill(_LLAMA, isl=2048),
                          "lm_head").flops / (2.0 * 128_256 * 4096 * 2048)),
          reading="a/(2*128256*4096*2048)"),
    Claim("An H100 does 1,000 TFLOP/s in BF16", 1000e12, "FLOP/s",
          Case("dense", lambda: gpu().peak(Dtype.BF16)), "the datasheet has 989.4 dense",
          "show h100-sxm --format json # peaks_flop_s.bf16", _ZUBNET),
)  # fmt: skip
"""Statements about work."""

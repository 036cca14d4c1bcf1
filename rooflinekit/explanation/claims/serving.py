"""Claims about mixtures of experts, speculation and memory management."""

from __future__ import annotations

from typing import Any

from rooflinekit.explanation.claims.claim import Case, Claim
from rooflinekit.explanation.claims.quantities import bound, cached, count, kernel, tpot
from rooflinekit.model.kernels import distinct_experts
from rooflinekit.model.types.speculation import expected_tokens

__all__ = ["SERVING"]

_AJKDRAG = "https://ajkdrag.in/2-Zettels/56B-or-47B-in-Mixtral-8x7B-MoE"
_MOE = "https://www.chaitanyaprabuddha.com/blog/mixture-of-experts-inference"
_REWIRE = "https://rewire.it/blog/mixture-of-experts-the-efficiency-trick-behind-modern-ai"
_SPECULATION = "https://torchedup.dev/problems/spec-decoding-effective-speedup"
_MITRA = "https://subhadipmitra.com/instruments/speculative-decoding/"
_VLLM_DOCS = "https://www.mintlify.com/vllm-project/vllm/concepts/paged-attention"
_OVERFLOW = (
    "https://www.systemoverflow.com/learn/ml-model-serving/inference-latency-optimization/"
    "what-is-kv-cache-and-why-does-it-dominate-memory-in-llm-inference"
)
_FARADAY = "https://fridayswithfaraday.com/posts/frontier-arch-chinese-models-deepseek-qwen-yi"
_MIXTRAL = "mixtral-8x7b"
_DRAFT = (
    "estimate llama-3-70b --tp 8 --draft llama-3-8b --draft-tokens 4 --acceptance 0.8 --calibration none --format json"
)


def _read_over_active(batch: int) -> float:
    """Expert weights that a step reads over those that one token visits."""
    step = bound(_MIXTRAL, tp=2, batch=batch).decode
    one = bound(_MIXTRAL, tp=2, batch=1).decode
    return kernel(step, "experts").weight_bytes / kernel(one, "experts").weight_bytes


def _against_llama(batch: int) -> float:
    return tpot("llama-2-70b", tp=8, batch=batch) / tpot(_MIXTRAL, tp=8, batch=batch)


def _speedup(batch: int) -> float:
    draft: dict[str, Any] = {"draft": "llama-3-8b", "draft_tokens": 4, "acceptance": 0.8}
    found = bound("llama-3-70b", tp=8, batch=batch, **draft).speculation
    return found.speedup if found else 0.0


def _reserved(tokens: int, length: int = 2048) -> float:
    """Share of a static reservation that stays empty."""
    return 1.0 - cached("llama-2-13b", tokens) / cached("llama-2-13b", length)


def _paged(tokens: int) -> float:
    """Share of blocks of 16 tokens that stays empty."""
    return 1.0 - cached("llama-2-13b", tokens) / cached("llama-2-13b", tokens, block=16)


SERVING = (
    Claim("Mixtral-8x7B has 46.7 billion parameters", 46.7e9, "", Case("counted", lambda: count(_MIXTRAL).total),
          "attention and embeddings exist once", "explain mixtral-8x7b params", _AJKDRAG, 0.005),
    Claim("Mixtral-8x7B has 8 · 7 = 56 billion parameters", 56e9, "", Case("counted", lambda: count(_MIXTRAL).total),
          "only the feed-forward blocks exist eight times", "explain mixtral-8x7b params"),
    Claim("Mixtral-8x7B uses 12.9 billion parameters a token", 12.9e9, "", Case("two of eight experts",
         lambda: count(_MIXTRAL).active),
          "two experts, attention, embedding and head", "explain mixtral-8x7b params_active", _AJKDRAG, 0.005),
    Claim("Mixtral-8x7B needs more than 90 GB", 90e9, "B", Case("16 bit", lambda: 2.0 * count(_MIXTRAL).total),
          "all experts have to be resident", "explain mixtral-8x7b params", _MOE, relation="≥",
          reading="2*a"),
    Claim("DeepSeek-V3 has 671 billion parameters", 671e9, "", Case("without its MTP layer",
         lambda: count("deepseek-v3").total),
          "256 routed experts in 58 layers", "explain deepseek-v3 params --gpu h200-sxm --tp 8", _FARADAY, 0.005),
    Claim("DeepSeek-V3 uses 37 billion parameters a token", 37e9, "",
          Case("embedding left out", lambda: count("deepseek-v3").active_without_embedding),
          "the input embedding is a lookup",
          "show deepseek-v3 --format json # params_active_without_embedding", _FARADAY),
    Claim("A mixture of experts reads only the active experts", 1.0, "",
          Case("one sequence (Mixtral)", lambda: _read_over_active(1)),
          "each token of the batch picks its own", "explain mixtral-8x7b decode.experts.bytes --tp 2 --batch 32",
          other=Case("32 sequences", lambda: _read_over_active(32)),
          second="explain mixtral-8x7b decode.experts.bytes --tp 2", reading="a/b"),
    Claim("32 tokens that each visit 8 of 256 experts touch 8 of them", 8.0, "",
          Case("uniform routing", lambda: float(distinct_experts(32.0, 256, 8))), "256·(1 − (1 − 8/256)^32)",
          "explain deepseek-v3 decode.experts.bytes --gpu h200-sxm --tp 8 --batch 32",
          second="explain deepseek-v3 decode.experts.bytes --gpu h200-sxm --tp 8", reading="8*a/b"),
    Claim("32 tokens that each visit 8 of 256 experts touch all of them", 256.0, "",
          Case("uniform routing", lambda: float(distinct_experts(32.0, 256, 8))), "256·(1 − (1 − 8/256)^32)",
          "explain deepseek-v3 decode.experts.bytes --gpu h200-sxm --tp 8 --batch 32",
          second="explain deepseek-v3 decode.experts.bytes --gpu h200-sxm --tp 8", reading="8*a/b"),
    Claim("Mixtral-8x7B is six times as fast as Llama-2-70B", 6.0, "",
          Case("batch 1", lambda: _against_llama(1)), "12.9 against 69 billion parameters; a batch touches all experts",
          "explain llama-2-70b tpot --tp 8 --batch 32 --calibration none", _REWIRE, 0.15,
          other=Case("batch 32", lambda: _against_llama(32)),
          second="explain mixtral-8x7b tpot --tp 8 --batch 32 --calibration none", reading="a/b"),
    Claim("Four drafted tokens at an acceptance of 0.8 yield 3.36 tokens a pass", 3.36, "",
          Case("(1 − α^5)/(1 − α)", lambda: expected_tokens((0.8,), 4)),
          "the pass itself gives one token more than it accepts",
          f"{_DRAFT} # speculation.tokens_per_pass", _MITRA),
    Claim("At acceptance 0.8, k = 4 and a draft of a tenth of the cost, speculation gains 1.687 times", 1.687, "",
          Case("the pass's own token counted", lambda: expected_tokens((0.8,), 4) / 1.4),
          "the formula there counts accepted drafts only, and leaves out the token that the pass adds",
          f"{_DRAFT} # speculation.tokens_per_pass", _SPECULATION, 0.05,
          other=Case("only accepted drafts are counted", lambda: (expected_tokens((0.8,), 4) - 1.0) / 1.4),
          reading="a/(4*0.1 + 1)"),
    Claim("Speculation makes decode two to three times as fast", 2.5, "",
          Case("one sequence, 8B drafting for 70B at 0.8", lambda: _speedup(1)),
          "verification stops being free when arithmetic binds; launches and host time, which the bound leaves out, "
          "take part of the gain",
          f"{_DRAFT} --batch 256 # speculation.speedup",
          _MITRA, 0.2, other=Case("256 sequences", lambda: _speedup(256))),
    Claim("Reserving the longest length wastes 60 % of the cache", 0.6, "",
          Case("768 tokens of 2,048", lambda: _reserved(768)),
          "what is wasted is what is not reached", "explain llama-2-13b kv --isl 512 --osl 256", _VLLM_DOCS, 0.1,
          other=Case("1,900 tokens of 2,048", lambda: _reserved(1900)),
          second="explain llama-2-13b kv --isl 2047 --osl 1", reading="1 - a/b"),
    Claim("Paging wastes less than 4 %", 0.04, "",
          Case("sequences of 760 tokens in blocks of 16", lambda: _paged(760)),
          "half a block a sequence on average", "explain llama-2-13b kv --isl 504 --osl 256", relation="≤",
          other=Case("sequences of 40 tokens", lambda: _paged(40)),
          second="explain llama-2-13b kv_per_token", reading="1 - 760*b/a"),
    Claim("A 24 GB GPU holds 3 to 4 sequences of 2,000 tokens beside a 7B model", 3.5, "",
          Case("RTX 4090, Llama-2-7B, no engine", lambda: float(bound("llama-2-7b", "rtx-4090", engine="ideal",
          isl=1744, osl=256).memory.max_batch)),
          "about 10 GB are left, and a sequence takes 1.05 GB",
          "explain llama-2-7b max_batch --gpu rtx-4090 --engine ideal --isl 1744 --osl 256", _OVERFLOW, 0.15),
    Claim("A window of 4,096 tokens makes the time of a token independent of the context", 1.0, "",
          Case("Mistral-7B-v0.1, 8K to 32K", lambda: tpot("mistral-7b", context=32_768) / tpot("mistral-7b",
          context=8192)),
          "every layer must have the window", "explain mistral-7b tpot --isl 32000 --context 32768 --calibration none",
          other=Case("Gemma-3-27B, where one layer in six sees everything", lambda: tpot("gemma-3-27b", batch=32,
          context=32_768) / tpot("gemma-3-27b", batch=32, context=8192)),
          second="explain mistral-7b tpot --isl 8000 --context 8192 --calibration none", reading="a/b"),
)  # fmt: skip
"""Statements about serving."""

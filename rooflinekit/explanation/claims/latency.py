"""Claims about weights, latency and throughput, at datasheet rates unless said."""

from __future__ import annotations

from rooflinekit.explanation.claims.claim import Case, Claim
from rooflinekit.explanation.claims.quantities import bound, count, decode, expected, kernel, tpot, ttft

__all__ = ["LATENCY"]

_ZUBNET = "https://zubnet.ai/wiki/en/FLOPs"
_AVIK = "https://dev.to/avik12345678/the-real-cost-of-llm-inference-memory-bandwidth-not-flops-3855"
_PEAKINFER = "https://www.peakinfer.com/blog/why-output-tokens-cost-4x-more-than-input"
_ESTIMATOR = "https://ai-cost-estimator.com/blog/why-input-tokens-cheaper-than-output"
_LLAMA, _LARGE = "llama-3-8b", "llama-3-70b"


def _cache_share(batch: int, context: int) -> float:
    step = decode(_LLAMA, batch=batch, context=context)
    return kernel(step, "attention").kv_read_bytes / step.bytes


def _dearer(batch: int) -> float:
    """GPU time of an output token over that of an input token."""
    return (tpot(_LLAMA, batch=batch) / batch) / (ttft(_LLAMA, batch=1) / 1024)


def _grown(batch: int, context: int) -> float:
    """A decode step at twice the context over one at this."""
    return tpot(_LLAMA, batch=batch, context=2 * context) / tpot(_LLAMA, batch=batch, context=context)


LATENCY = (
    Claim("A 7B model in FP16 has 14 GB", 14e9, "B", Case("Llama-2-7B", lambda: 2.0 * count("llama-2-7b").total),
          "names round: Qwen2.5-7B has 7.6 billion parameters", "explain qwen2.5-7b params", tolerance=0.05,
          other=Case("Qwen2.5-7B", lambda: 2.0 * count("qwen2.5-7b").total),
          reading="2*a"),
    Claim("Llama-3-70B in FP16 has 140 GB", 140e9, "B", Case("all weights", lambda: 2.0 * count(_LARGE).total),
          "70.55 billion parameters", "explain llama-3-70b weights", _AVIK),
    Claim("Llama-3-70B in 4 bit has 38 GB", 38e9, "B",
          Case("groups of 128, embedding and head in 16 bit", lambda: bound(_LARGE, engine="ideal",
          weights="int4").memory.weight_bytes),
          "0.516 bytes a weight, and 4.2 GB that stay wide",
          "explain llama-3-70b weights --weights int4 --engine ideal", _AVIK, 0.05),
    Claim("A 70B model takes 47 ms a token on an H100", 47e-3, "s",
          Case("3.35 TB/s, an H100 SXM", lambda: tpot(_LARGE, batch=1)),
          "139 GB are read; 47 ms is 140 GB over 3.0 TB/s",
          "explain llama-3-70b decode.bound --allow-oom", _ZUBNET, 0.05,
          other=Case("the memory delivers 3.0 TB/s", lambda: tpot(_LARGE, batch=1) * 3.35 / 3.0)),
    Claim("TPOT is the bytes of the weights over the bandwidth (Llama-3-8B)", 2 * 8.03e9 / 3.35e12, "s",
          Case("batch 1 at 1,152 tokens", lambda: tpot(_LLAMA)),
          "caches are read too, one for each sequence",
          "explain llama-3-8b tpot --batch 64 --isl 8192 --allow-oom --calibration none",
          tolerance=0.1,
          other=Case("64 sequences of 8,192 tokens", lambda: tpot(_LLAMA, batch=64, isl=8192))),
    Claim("A 70B model decodes 30 to 50 tokens a second on an H100", 40.0, "1/s",
          Case("BF16, which does not fit", lambda: 1.0 / tpot(_LARGE)),
          "3.35 TB/s read 139 GB 24 times a second",
          "explain llama-3-70b tpot --weights fp8 --calibration none --allow-oom",
          _PEAKINFER, 0.25, other=Case("the weights are in FP8", lambda: 1.0 / tpot(_LARGE, weights="fp8")),
          reading="1/a"),
    Claim("A 70B model prefills at 5,000 tokens a second or more on an H100", 5000.0, "1/s",
          Case("as engines run it, if BF16 fitted", lambda: 2048e3 / (expected(_LARGE, isl=2048).ttft_ms or 0.0)),
          "at most 989 TFLOP/s over 2P; real kernels reach some 0.8 of it",
          "explain llama-3-70b ttft --isl 2048 --allow-oom", _PEAKINFER, relation="≥",
          reading="2048/a"),
    Claim("Decode is memory-bound because it reads the whole cache (cache at least half of the bytes)", 0.5, "",
          Case("batch 1 at 1,152 tokens", lambda: _cache_share(1, 1152)),
          "at small batches nearly all bytes are weights",
          "explain llama-3-8b decode.attention.bytes --batch 64 --context 8192 --allow-oom",
          _PEAKINFER, relation="≥", other=Case("64 sequences of 8,192 tokens", lambda: _cache_share(64, 8192)),
          second="explain llama-3-8b decode.bytes --batch 64 --context 8192 --allow-oom", reading="a/b"),
    Claim("Prefill is at least 100 times as fast as decode, in tokens a second", 100.0, "",
          Case("one sequence of Llama-3-8B", lambda: (1024 / ttft(_LLAMA)) * tpot(_LLAMA)),
          "at batch 1 the ratio is close to the ridge; a batch divides it",
          "explain llama-3-8b ttft --calibration none",
          _PEAKINFER, relation="≥", other=Case("64 sequences", lambda: (1024 / ttft(_LLAMA)) * tpot(_LLAMA,
               batch=64) / 64),
          second="explain llama-3-8b tpot --batch 64 --calibration none", reading="1024/a*b/64"),
    Claim("Output tokens cost 3 to 5 times as much as input tokens", 4.0, "",
          Case("a batch of 256 (Llama-3-8B, 1,024 in)", lambda: _dearer(256)),
          "GPU time of a token: TPOT over the batch, against TTFT over the prompt",
          "explain llama-3-8b tpot --batch 256 --calibration none", _ESTIMATOR, 0.25,
          other=Case("a batch of 8", lambda: _dearer(8)),
          second="explain llama-3-8b ttft --calibration none", reading="a/256/(b/1024)"),
    Claim("A prompt of 1,000 tokens takes less than 1,000 times as long as one of 1", 1000.0, "",
          Case("Llama-3-8B", lambda: ttft(_LLAMA, isl=1000) / ttft(_LLAMA, isl=1)),
          "one token reads all weights already", "explain llama-3-8b ttft --isl 1000 --calibration none", _PEAKINFER,
          relation="≤",
          second="explain llama-3-8b ttft --isl 1 --calibration none", reading="a/b"),
    Claim("FP8 weights halve TPOT", 0.5, "", Case("batch 1", lambda: tpot(_LLAMA, weights="fp8") / tpot(_LLAMA)),
          "embedding, head and cache stay as they are",
          "explain llama-3-8b tpot --weights fp8 --batch 64 --isl 4096 --calibration none", tolerance=0.15,
          other=Case("64 sequences of 4,096 tokens", lambda: tpot(_LLAMA, weights="fp8", batch=64,
          isl=4096) / tpot(_LLAMA, batch=64, isl=4096)),
          second="explain llama-3-8b tpot --batch 64 --isl 4096 --calibration none", reading="a/b"),
    Claim("Four-bit weights make decode four times as fast", 4.0, "",
          Case("batch 1", lambda: tpot(_LLAMA) / tpot(_LLAMA, weights="int4")),
          "0.516 bytes with scales, and the head stays in 16 bit", "explain llama-3-8b tpot --calibration none",
          tolerance=0.1,
          second="explain llama-3-8b tpot --weights int4 --calibration none", reading="a/b"),
    Claim("Eight GPUs decode eight times as fast as one", 8.0, "",
          Case("no launch, no wait: the datasheet (Llama-3-70B)", lambda: tpot(_LARGE) / tpot(_LARGE, tp=8)),
          "160 all-reduces a token have latencies that more GPUs do not divide",
          "explain llama-3-70b tpot --allow-oom", tolerance=0.1,
          other=Case("as engines run it", lambda: expected(_LARGE).tpot_ms / expected(_LARGE, tp=8).tpot_ms),
          second="explain llama-3-70b tpot --tp 8", reading="a/b"),
    Claim("Twice the context is twice the time of a token", 2.0, "",
          Case("batch 1, 4,096 to 8,192 tokens", lambda: _grown(1, 4096)),
          "weights are read in any case",
          "explain llama-3-8b tpot --context 8192 --isl 7936 --calibration none", tolerance=0.1,
          other=Case("512 sequences of 32,768 tokens, whose caches dwarf the weights", lambda: _grown(512, 32_768)),
          second="explain llama-3-8b tpot --context 4096 --isl 4000 --calibration none", reading="a/b"),
    Claim("Attention is quadratic, so twice the prompt takes four times as long", 4.0, "",
          Case("4,096 to 8,192 tokens", lambda: ttft(_LLAMA, isl=8192) / ttft(_LLAMA, isl=4096)),
          "matrices are linear in the prompt, and most of the work",
          "explain llama-3-8b ttft --isl 8192 --calibration none",
          tolerance=0.1,
          other=Case("512K to 1M tokens", lambda: ttft(_LLAMA, isl=2**20) / ttft(_LLAMA, isl=2**19)),
          second="explain llama-3-8b ttft --isl 4096 --calibration none", reading="a/b"),
    Claim("Up to a batch of 32, more sequences cost nothing (TPOT as at batch 1)", 1.0, "",
          Case("contexts of 128 tokens", lambda: tpot(_LLAMA, batch=32, context=128) / tpot(_LLAMA, context=128)),
          "weights are shared, caches are not",
          "explain llama-3-8b tpot --batch 32 --context 8192 --isl 7936 --allow-oom --calibration none",
          tolerance=0.1,
          other=Case("contexts of 8,192 tokens", lambda: tpot(_LLAMA, batch=32, context=8192) / tpot(_LLAMA,
          context=8192)),
          second="explain llama-3-8b tpot --context 8192 --isl 7936 --calibration none", reading="a/b"),
    Claim("A cached prefix of 90 % makes the first token ten times as fast", 10.0, "",
          Case("a prompt of 8,192 tokens", lambda: ttft(_LLAMA, isl=8192) / ttft(_LLAMA, isl=8192, cached=7373)),
          "what is left of a short prompt still reads all weights",
          "explain llama-3-8b ttft --isl 512 --calibration none", tolerance=0.2,
          other=Case("512 tokens", lambda: ttft(_LLAMA, isl=512) / ttft(_LLAMA, isl=512, cached=461)),
          second="explain llama-3-8b ttft --isl 512 --cached 461 --calibration none", reading="a/b"),
)  # fmt: skip
"""Statements about latency."""

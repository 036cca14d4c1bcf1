"""Claims about the KV cache."""

from __future__ import annotations

from rooflinekit.explanation.claims.claim import Case, Claim
from rooflinekit.explanation.claims.quantities import bound, cached, decode, kernel
from rooflinekit.model.kernels import kv_cache_bytes_per_token
from rooflinekit.model.types.dtype import Dtype

__all__ = ["CACHE"]

_OVERFLOW = (
    "https://www.systemoverflow.com/learn/ml-model-serving/inference-latency-optimization/"
    "what-is-kv-cache-and-why-does-it-dominate-memory-in-llm-inference"
)
_TORCHEDUP = "https://torchedup.dev/problems/kv-cache-size"
_VLLM_DOCS = "https://www.mintlify.com/vllm-project/vllm/concepts/paged-attention"
_JAGMARQUES = "https://dev.to/jagmarques/kv-cache-memory-calculator-how-much-does-your-llm-actually-use-85n"
_HEJI = "https://heji-study-blog.web.app/posts/mla-attention/"
_BRAV = "https://blog.www2.ro/deepseek-r1-kv-cache-reduction"
_FARADAY = "https://fridayswithfaraday.com/posts/frontier-arch-chinese-models-deepseek-qwen-yi"
_GEMMA = "https://hn.masterscheme.cn/item?id=41288514"
_GIB = 2.0**30 / 1e9
_MHA = 61 * kv_cache_bytes_per_token(128, 128, 128, Dtype.BF16)  # DeepSeek-V3 if it cached every head


def _read_by_attention(**scenario: object) -> float:
    return kernel(decode("llama-3-70b", **scenario), "attention").kv_read_bytes


CACHE = (
    Claim("Llama-2-7B caches 0.5 MB a token", 524_288.0, "B", Case("FP16", lambda: cached("llama-2-7b")),
          "2·32·32·128·2 bytes", "explain llama-2-7b kv_per_token", _OVERFLOW),
    Claim("2,048 tokens of Llama-2-7B take 1.07 GB", 1.07e9, "B", Case("FP16", lambda: cached("llama-2-7b", 2048)),
          "0.524 MB a token", "explain llama-2-7b kv --isl 2047 --osl 1", _TORCHEDUP),
    Claim("4,096 tokens of Llama-2-7B take 2.1 GB", 2.1e9, "B", Case("FP16", lambda: cached("llama-2-7b", 4096)),
          "0.524 MB a token", "explain llama-2-7b kv --isl 4095 --osl 1", tolerance=0.03),
    Claim("8,000 tokens of a 7B model take about 4 GB", 4e9, "B", Case("Llama-2-7B", lambda: cached("llama-2-7b",
         8000)),
          "every head is cached in Llama-2-7B; grouped heads take a quarter (Llama-3-8B)",
          "explain llama-2-7b kv --isl 7999 --osl 1", _OVERFLOW, 0.06,
          other=Case("Llama-3-8B", lambda: cached("llama-3-8b", 8000))),
    Claim("BLOOM-176B caches 4 MB a token", 4e6, "B", Case("BF16", lambda: cached("bloom-176b")),
          "2·70·112·128·2 bytes", "explain bloom-176b kv_per_token --tp 8", _OVERFLOW),
    Claim("4,000 tokens of BLOOM-176B take 16 GB", 16e9, "B", Case("BF16", lambda: cached("bloom-176b", 4000)),
          "4.01 MB a token", "explain bloom-176b kv_per_token --tp 8", _OVERFLOW,
          reading="4000*a"),
    Claim("Llama-13B caches 1.5 MB a token", 1.5e6, "B", Case("FP16", lambda: cached("llama-13b")),
          "2·40·40·128·2 bytes", "explain llama-13b kv_per_token", _VLLM_DOCS, 0.05),
    Claim("2,048 tokens of Llama-13B take 3 GB", 3e9, "B", Case("FP16", lambda: cached("llama-13b", 2048)),
          "0.819 MB a token", "explain llama-13b kv --isl 2047 --osl 1", _VLLM_DOCS, 0.05),
    Claim("Llama-2-13B caches about 1 MB a token", 1e6, "B", Case("FP16", lambda: cached("llama-2-13b")),
          "0.819 MB, and 0.781 MiB", "explain llama-2-13b kv_per_token",
          "https://www.rohan-paul.com/p/kv-caching-in-llm-inference-a-comprehensive", 0.1),
    Claim("Llama-3-8B caches 128 KB a token", 128 * 1024.0, "B", Case("BF16", lambda: cached("llama-3-8b")),
          "2·32·8·128·2 bytes", "explain llama-3-8b kv_per_token"),
    Claim("Llama-3-70B caches 320 KB a token", 320 * 1024.0, "B", Case("BF16", lambda: cached("llama-3-70b")),
          "2·80·8·128·2 bytes", "explain llama-3-70b kv_per_token"),
    Claim("Llama-3.1-405B caches 516 KB a token", 516e3, "B", Case("BF16", lambda: cached("llama-3.1-405b")),
          "2·126·8·128·2 bytes", "explain llama-3.1-405b kv_per_token --tp 8"),
    Claim("Mixtral-8x7B caches as much as Mistral-7B", 1.0, "",
          Case("a token", lambda: cached("mixtral-8x7b") / cached("mistral-7b")),
          "experts change the feed-forward block only", "explain mixtral-8x7b kv_per_token", _JAGMARQUES,
          second="explain mistral-7b kv_per_token", reading="a/b"),
    Claim("320 KB a token times 8K context is 2.56 MB", 2.56e6, "B", Case("Llama-3-70B", lambda: cached("llama-3-70b",
         8192)),
          "327,680 · 8,192 bytes: a thousand times more", "explain llama-3-70b kv --isl 8191 --osl 1"),
    Claim("1,024 users of 8K context on Llama-3-70B need 2.56 GB", 2.56e9, "B",
          Case("all at full length", lambda: 1024 * cached("llama-3-70b", 8192)),
          "2.68 GB each", "explain llama-3-70b kv --isl 8191 --osl 1 --batch 1024"),
    Claim("4K tokens of Llama-3-8B take 0.5 GB", 0.5e9, "B", Case("in GB, 1e9", lambda: cached("llama-3-8b", 4096)),
          "131,072 · 4,096 bytes are 0.5 GiB", "explain llama-3-8b kv --isl 4095 --osl 1", _JAGMARQUES,
          other=Case("GB means GiB", lambda: cached("llama-3-8b", 4096) / _GIB)),
    Claim("128K tokens of Llama-3-8B take 16 GB", 16e9, "B", Case("in GB, 1e9", lambda: cached("llama-3.1-8b",
         131_072)),
          "131,072 · 131,072 bytes are 16 GiB", "explain llama-3.1-8b kv --isl 131071 --osl 1", _JAGMARQUES,
          other=Case("GB means GiB", lambda: cached("llama-3.1-8b", 131_072) / _GIB)),
    Claim("4K tokens of Llama-3-70B take 5 GB", 5e9, "B", Case("BF16", lambda: cached("llama-3-70b", 4096)),
          "80 layers of 8 KV heads", "explain llama-3-70b kv --isl 4095 --osl 1", _JAGMARQUES, 0.1),
    Claim("128K tokens of Llama-3-70B take 160 GB", 160e9, "B", Case("BF16", lambda: cached("llama-3.1-70b", 131_072)),
          "327,680 bytes a token: 42.9 GB, or 40 GiB", "explain llama-3.1-70b kv --isl 131071 --osl 1", _JAGMARQUES,
          0.1),
    Claim("A million tokens of Gemma-2-27B take 200 GB in 8 bit", 200e9, "B",
          Case("with its windows", lambda: cached("gemma-2-27b", 1e6, Dtype.FP8)),
          "every other layer keeps 4,096 tokens, and heads are 128 wide, not 144",
          "explain gemma-2-27b kv_per_token --kv fp8", _GEMMA, 0.1,
          reading="a/2*(1000000 + 4096)"),
    Claim("A window of 4,096 tokens caps the cache of Mistral-7B", 4096.0, "",
          Case("Mistral-7B-v0.1", lambda: cached("mistral-7b", 32_768) / cached("mistral-7b")),
          "later versions dropped the window", "explain mistral-7b kv --isl 32767 --osl 1", _OVERFLOW,
          other=Case("Mistral-7B-v0.3", lambda: cached("mistral-7b-v0.3", 32_768) / cached("mistral-7b-v0.3")),
          second="explain mistral-7b kv_per_token", reading="a/b"),
    Claim("Grouped-query attention cuts the cache eight times", 8.0, "",
          Case("Llama-3-70B, 64 query and 8 KV heads", lambda: 80 * kv_cache_bytes_per_token(64, 128, 128,
          Dtype.BF16) / cached("llama-3-70b")),
          "the factor is H/K", "explain llama-3-70b kv_per_token", _BRAV,
          other=Case("Llama-3-8B, 32 and 8", lambda: 32 * kv_cache_bytes_per_token(32, 128, 128,
          Dtype.BF16) / cached("llama-3-8b")),
          reading="80*2*64*128*2/a"),
    Claim("DeepSeek-V3 caches 70 KB a token", 70e3, "B", Case("BF16", lambda: cached("deepseek-v3")),
          "61·(512 + 64)·2 bytes", "explain deepseek-v3 kv_per_token --gpu h200-sxm --tp 8", _BRAV),
    Claim("MLA cuts DeepSeek-V3's cache 57 times, from 4 MB a token", 57.0, "",
          Case("against caching all 128 heads", lambda: _MHA / cached("deepseek-v3")),
          "2·128·128 elements a layer against 576; no model of this size caches all heads",
          "explain deepseek-v3 kv_per_token --gpu h200-sxm --tp 8", _BRAV,
          other=Case("against 8 KV heads, as Llama has", lambda: _MHA / 16 / cached("deepseek-v3")),
          reading="61*2*128*128*2/a"),
    Claim("MLA cuts the cache by 93 % against 8 KV heads of width 128", 0.93, "",
          Case("61 layers", lambda: 1.0 - cached("deepseek-v3") / (_MHA / 16)),
          "1,152 bytes against 4,096 a layer", "explain deepseek-v3 kv_per_token --gpu h200-sxm --tp 8", _FARADAY,
          reading="1 - a/(61*2*8*128*2)"),
    Claim("MLA needs a few hundred bytes a token and layer", 999.0, "B", Case("BF16",
         lambda: cached("deepseek-v3") / 61),
          "576 elements of two bytes", "explain deepseek-v3 kv_per_token --gpu h200-sxm --tp 8", relation="≤",
          tolerance=0.0,
          other=Case("the cache is in FP8", lambda: cached("deepseek-v3", 1, Dtype.FP8) / 61),
          reading="a/61"),
    Claim("A model of 100 layers that caches 128 heads of width 128 needs 838 GB for 128K tokens", 838e9, "B",
          Case("128,000 tokens", lambda: 100 * 128_000 * kv_cache_bytes_per_token(128, 128, 128, Dtype.BF16)),
          "32,768 elements of two bytes a token and layer", "explain gpt-3-175b kv_per_token --tp 8",
          _HEJI,
          reading="a/(96*96)*100*128*128000"),
    Claim("With MLA, 128K tokens of 100 layers take 55 GB", 55e9, "B",
          Case("576 elements a layer", lambda: 100 * 128_000 * cached("deepseek-v3") / 61),
          "the same page says 57 times less, which is 14.7 GB",
          "explain deepseek-v3 kv_per_token --gpu h200-sxm --tp 8", _HEJI, 0.1,
          reading="a/61*100*128000"),
    Claim("An FP8 cache is half a BF16 cache", 0.5, "", Case("Llama-3-8B", lambda: cached("llama-3-8b", 1,
         Dtype.FP8) / cached("llama-3-8b")),
          "one byte an element; scales are one number a tensor", "explain llama-3-8b kv_per_token --kv fp8",
          second="explain llama-3-8b kv_per_token", reading="a/b"),
    Claim("Llama-3-70B on TP8 reads 6.7 GB of cache a step and GPU (32 sequences of 4,096)", 6.7e9, "B",
          Case("one KV head on each rank", lambda: _read_by_attention(tp=8, batch=32, context=4096)),
          "80·32·4,096·2·128·2 bytes", "explain llama-3-70b decode.attention.bytes --tp 8 --batch 32 --context 4096"),
    Claim("Decode attention reads 2·B·K·T·d bytes a layer (Llama-3-70B, B = 1, T = 4,096)", 2.0 * 8 * 4096 * 128, "B",
          Case("the cache has two bytes an element", lambda: _read_by_attention(context=4096) / 80),
          "keys and values: 2·B·K·T·d elements",
          "explain llama-3-70b decode.attention.bytes --context 4096 --allow-oom",
          other=Case("it has one byte", lambda: _read_by_attention(context=4096, kv="fp8") / 80),
          reading="a/80"),
    Claim("TP8 leaves an eighth of the cache on each GPU", 1 / 8, "",
          Case("Llama-3-70B, 8 KV heads", lambda: bound("llama-3-70b", tp=8,
          engine="ideal").memory.kv_bytes / bound("llama-3-70b", engine="ideal").memory.kv_bytes),
          "every rank holds MLA's whole latent",
          "explain llama-3-70b kv --tp 8",
          other=Case("DeepSeek-V3", lambda: bound("deepseek-v3", "h200-sxm", tp=8, engine="ideal").memory.kv_bytes
                     / bound("deepseek-v3", "h200-sxm", engine="ideal").memory.kv_bytes),
          second="explain llama-3-70b kv", reading="a/b"),
)  # fmt: skip
"""Statements about the cache."""

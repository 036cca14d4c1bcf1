"""Claims about accelerators, ridges and what binds a step."""

from __future__ import annotations

from rooflinekit.explanation.claims.claim import Case, Claim
from rooflinekit.explanation.claims.quantities import decode, gpu, kernel, prefill, tpot, ttft
from rooflinekit.model.types.dtype import Dtype

__all__ = ["HARDWARE"]

_JARED = "https://jared-hpc.com/posts/roofline-model-llm-inference/"
_PRABUDDHA = "https://chaitanyaprabuddha.com/blog/memory-bandwidth-is-all-you-need"
_REGANTIH = "https://regantih.github.io/reports-lab/tokens-to-embodied-minds/chapters/13-h100-b200.html"
_AVIK = "https://dev.to/avik12345678/the-real-cost-of-llm-inference-memory-bandwidth-not-flops-3855"
_LLAMA = "llama-3-8b"


def _ridge(name: str = "h100-sxm", dtype: Dtype = Dtype.BF16) -> float:
    return float(gpu(name).ridge(dtype))


def _over_ridge(batch: int, context: int) -> float:
    """Intensity of a decode step over the ridge."""
    return decode(_LLAMA, batch=batch, context=context).intensity / _ridge()


def _first_compute_bound(**scenario: str) -> float:
    """Smallest batch whose largest matrix takes as long to compute as to read, at datasheet rates."""
    low, high = 1, 4096
    while low < high:
        middle = (low + high) // 2
        found = kernel(decode(_LLAMA, batch=middle, context=16, **scenario), "gate_up_proj")
        low, high = (low, middle) if found.bound == "compute" else (middle + 1, high)
    return float(low)


def _attention(batch: int) -> float:
    return kernel(decode(_LLAMA, batch=batch, context=2048), "attention").intensity or 0.0


HARDWARE = (
    Claim("The ridge of an H100 is 295 FLOP/B in BF16", 295.0, "FLOP/B", Case("989.4 TFLOP/s over 3.35 TB/s", _ridge),
          "dense peak over bandwidth", "explain llama-3-8b ridge", _JARED),
    Claim("The ridge of an A100 is 153 FLOP/B", 153.0, "FLOP/B", Case("SXM, 80 GB", lambda: _ridge("a100-sxm-80gb")),
          "312 TFLOP/s over 2.04 TB/s", "explain llama-3-8b ridge --gpu a100-sxm-80gb", _JARED,
          other=Case("40 GB", lambda: _ridge("a100-sxm-40gb"))),
    Claim("The knee of an H100 is at 330 FLOP/B", 330.0, "FLOP/B", Case("3.35 TB/s", _ridge),
          "330 is 989 over 3.0 TB/s, which no H100 SXM has", "explain llama-3-8b ridge", tolerance=0.05),
    Claim("An H100 does 3,958 TFLOP/s in FP8", 3958e12, "FLOP/s", Case("dense", lambda: gpu().peak(Dtype.FP8)),
          "the larger number counts the zeros of 2:4 sparse matrices",
          "show h100-sxm --format json # peaks_flop_s.fp8", _PRABUDDHA,
          other=Case("half of the weights are zero in the 2:4 pattern", lambda: 2.0 * gpu().peak(Dtype.FP8))),
    Claim("FP8 doubles the ridge", 2.0, "", Case("FP8 over BF16 peak", lambda: _ridge(dtype=Dtype.FP8) / _ridge()),
          "twice the FLOP/s at the same bandwidth", "explain llama-3-8b ridge --weights fp8",
          second="explain llama-3-8b ridge", reading="a/b"),
    Claim("Batch 32 is back in the compute-bound region (FLOP/B of at least the ridge)", 1.0, "",
          Case("Llama-3-8B at 1,152 tokens", lambda: _over_ridge(32, 1152)),
          "32 sequences are 25 to 32 FLOP/B against 295", "explain llama-3-8b decode.intensity --batch 32",
          relation="≥",
          second="explain llama-3-8b ridge", reading="a/b"),
    Claim("Weights stop binding at a batch of about 295 on H100 in BF16", 295.0, "",
          Case("the largest matrix of Llama-3-8B", _first_compute_bound),
          "2·m FLOP over two bytes of a weight meets P/W",
          "explain llama-3-8b decode.gate_up_proj.bound",
          second="explain llama-3-8b decode.gate_up_proj.bound --batch 1024 --allow-oom", reading="1024*a/b"),
    Claim("FP8 doubles the batch at which weights stop binding", 2.0, "",
          Case("weights and arithmetic in FP8", lambda: _first_compute_bound(weights="fp8") / _first_compute_bound()),
          "peak and bytes change together, and the batch stays",
          "explain llama-3-8b decode.gate_up_proj.bound --weights fp8",
          second="explain llama-3-8b decode.gate_up_proj.bound --weights fp8 --batch 1024 --allow-oom",
          reading="1024*a/b/295"),
    Claim("Decode is memory-bound (intensity at most the ridge)", 1.0, "",
          Case("batch 1", lambda: _over_ridge(1, 1152)),
          "many short sequences share every weight",
          "explain llama-3-8b decode.intensity --batch 2048 --context 16 --allow-oom",
          relation="≤", tolerance=0.0, other=Case("2,048 sequences of 16 tokens", lambda: _over_ridge(2048, 16)),
          second="explain llama-3-8b ridge", reading="a/b"),
    Claim("Prefill is compute-bound (intensity at least the ridge)", 1.0, "",
          Case("a prompt of 2,048 tokens", lambda: prefill(_LLAMA, isl=2048).intensity / _ridge()),
          "a short prompt reads all weights for few tokens", "explain llama-3-8b prefill.intensity --isl 128",
          relation="≥", tolerance=0.0,
          other=Case("128 tokens", lambda: prefill(_LLAMA, isl=128).intensity / _ridge()),
          second="explain llama-3-8b ridge", reading="a/b"),
    Claim("Batching raises the intensity of decode attention", 2.0, "",
          Case("batch 256 over batch 1", lambda: _attention(256) / _attention(1)),
          "each sequence reads a cache of its own",
          "explain llama-3-8b decode.attention.intensity --batch 256 --context 2048 --allow-oom",
          relation="≥",
          second="explain llama-3-8b decode.attention.intensity --context 2048", reading="a/b"),
    Claim("Decode attention with grouped queries has H/K FLOP/B in BF16", 4.0, "FLOP/B",
          Case("Llama-3-8B, 32 over 8 heads", lambda: _attention(1)),
          "all query heads of a group use the keys that were read",
          "explain llama-3-8b decode.attention.intensity --context 2048"),
    Claim("An A100 has 2 TB/s", 2e12, "B/s", Case("80 GB", lambda: float(gpu("a100-sxm-80gb").memory_bandwidth)),
          "the 40 GB card has 1.555", "show a100-sxm-80gb --format json # bandwidth_gb_s", _AVIK, 0.05,
          other=Case("40 GB", lambda: float(gpu("a100-sxm-40gb").memory_bandwidth)),
          reading="1e9*a"),
    Claim("An RTX 4090 has 1 TB/s", 1e12, "B/s", Case("datasheet", lambda: float(gpu("rtx-4090").memory_bandwidth)),
          "21 Gbit/s on 384 bits", "show rtx-4090 --format json # bandwidth_gb_s", _AVIK, 0.05,
          reading="1e9*a"),
    Claim("An H100 has 80 GB", 80e9, "B", Case("in GB, 1e9, as the driver shows it", lambda: float(gpu().memory_bytes)),
          "the label is in GiB, less what the driver keeps",
          "show h100-sxm --format json # memory_bytes", tolerance=0.01,
          other=Case("GB means GiB", lambda: float(gpu().memory_bytes) / 2**30 * 1e9)),
    Claim("NVLink gives an H100 900 GB/s", 900e9, "B/s",
          Case("one direction, which is what a collective can send", lambda: float(gpu().link_bandwidth)),
          "the datasheet adds both directions", "show h100-sxm --format json # link_gb_s", _REGANTIH,
          other=Case("both directions are added", lambda: 2.0 * float(gpu().link_bandwidth)),
          reading="1e9*a"),
    Claim("NVLink is 14 times as fast as PCIe 5", 14.0, "",
          Case("one direction of both", lambda: float(gpu().link_bandwidth) / gpu().pcie_bandwidth),
          "64 GB/s is one direction of PCIe, 900 GB/s two of NVLink",
          "show h100-sxm --format json # link_gb_s", tolerance=0.05,
          other=Case("two directions of one are held against one of the other",
               lambda: 2.0 * float(gpu().link_bandwidth) / gpu().pcie_bandwidth),
          reading="a/63"),
    Claim("An H100 is three times as fast as an A100", 3.0, "",
          Case("prefill", lambda: ttft(_LLAMA, "a100-sxm-80gb", isl=4096) / ttft(_LLAMA, isl=4096)),
          "arithmetic grew 3.2 times, bandwidth 1.6 times",
          "explain llama-3-8b tpot --gpu a100-sxm-80gb --calibration none",
          tolerance=0.1,
          other=Case("decode", lambda: tpot(_LLAMA, "a100-sxm-80gb") / tpot(_LLAMA)),
          second="explain llama-3-8b tpot --calibration none", reading="a/b"),
    Claim("An H200 decodes 1.4 times as fast as an H100", 1.4, "",
          Case("batch 1", lambda: tpot(_LLAMA) / tpot(_LLAMA, "h200-sxm")),
          "4.8 over 3.35 TB/s; arithmetic is the same", "explain llama-3-8b tpot --calibration none",
          tolerance=0.03,
          second="explain llama-3-8b tpot --gpu h200-sxm --calibration none", reading="a/b"),
    Claim("A B200 doubles an H100", 2.0, "",
          Case("dense BF16", lambda: gpu("b200-sxm").peak(Dtype.BF16) / gpu().peak(Dtype.BF16)),
          "2.3 times the arithmetic and the bandwidth",
          "show b200-sxm --format json # peaks_flop_s.bf16", _REGANTIH, 0.2,
          second="show h100-sxm --format json # peaks_flop_s.bf16", reading="a/b"),
)  # fmt: skip
"""Statements about hardware and the roofline."""

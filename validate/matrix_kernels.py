"""Matrix products as servers launch them, in 32 and 16 bit and FP8, and mixtures of experts with their router.

Letters: y[m, n] = x[m, k] W[n, k]^T; N tokens, D width, F inner width, E experts, k experts a token visits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.errors import ArchitectureError
from rooflinekit.validate import vllm_ops
from rooflinekit.validate.case import Call, TimedCase, TimedWork, fused, normal
from rooflinekit.validate.device import Device
from rooflinekit.validate.feedforward import route, run_experts

_FP8_MOST = 448.0
"""Largest number of float8_e4m3fn (OCP 8-bit floating point specification, table 1)."""


_STORED: dict[str, tuple[str, Callable[..., TimedWork]]] = {
    "fp8_block": ("CUTLASS, block scales", vllm_ops.block_gemm),
    "int4_a16": ("Machete, groups of 128", vllm_ops.int4_gemm),
}
"""Formats that PyTorch has no kernel for: the name of vLLM's, and what makes its work."""


def gemm_cases(m: int, n: int, k: int, dtype: str, device: Device) -> Iterator[TimedCase]:
    """One product in one format; FP8 quantises the 16-bit activations in the same call."""
    shape = {"dtype": dtype, "m": m, "n": n, "k": k}
    if dtype in _STORED:
        kernel, made = _STORED[dtype][0], partial(_STORED[dtype][1], m, n, k, device)
        yield TimedCase("gemm", "", shape, 2.0 * (m * k + n * k + m * n), made).by_vllm(kernel, "_C", made)
        return
    narrow, draw = dtype == "fp8", partial(normal, device=device.torch)

    def build() -> TimedWork:
        if not narrow:
            return TimedWork(F.linear, (draw(m, k, dtype=dtype),), lambda: (draw(n, k, dtype=dtype),))
        call = partial(fp8_linear, narrow=fused(quantise, device))
        hot = draw(m, k, dtype="bf16"), torch.full((), 0.01, device=device.torch)
        return TimedWork(call, hot, lambda: (draw(n, k, dtype="fp8"),))

    name = "torch _scaled_mm, tensor scales, fast accumulation" if narrow else "torch linear"
    size = parse_dtype(dtype).bytes * (m * k + n * k) + 2.0 * m * n
    case = TimedCase("gemm", name, shape, size, build)
    if narrow and device.is_cuda:
        yield case.by_vllm("CUTLASS, row scales", "_C", partial(vllm_ops.fp8_gemm, m, n, k, device))
    yield replace(case, engine="gpt-fast+vllm") if device.is_cuda and not narrow else case


def quantise(x: Tensor, scale: Tensor) -> Tensor:
    """Numbers x / scale in FP8, clamped: beyond the largest number a cast gives NaN."""
    return (x / scale).clamp(-_FP8_MOST, _FP8_MOST).to(torch.float8_e4m3fn)


def fp8_linear(x: Tensor, scale: Tensor, weight: Tensor, narrow: Call = quantise) -> Tensor:
    """Rows x [m, k] bf16, weight [n, k] fp8 of scale 1 -> [m, n] bf16; the scale of x is static, as in checkpoints."""
    said: dict[str, Any] = {"scale_a": scale, "scale_b": torch.ones_like(scale), "out_dtype": torch.bfloat16}
    return torch._scaled_mm(narrow(x, scale), weight.t(), use_fast_accum=True, **said)  # as servers do


_CHOSEN = 6.0
"""Score of a chosen expert, give or take 2; the others have between -2 and 2."""


def expert_cases(N: int, D: int, width: int, E: int, k: int, dtype: str, device: Device) -> Iterator[TimedCase]:
    """The experts taken in turn so that each has as many tokens as any other; all are here."""
    draw = partial(normal, dtype=dtype, device=device.torch)

    def build() -> TimedWork:
        hot = balanced(draw(N, D), E, k)
        return TimedWork(partial(mixture, k=k), hot, lambda: (draw(E, D, 2 * width), draw(E, width, D)))

    def by_vllm() -> TimedWork:
        return vllm_ops.experts(balanced(draw(N, D), E, k), (E, D, width), k, dtype, device)

    shape = {
        "dtype": dtype, "routing": "balanced", "ffn_matrices": 3, "tokens": N, "hidden": D,
        "expert_intermediate": width, "top_k": k, "experts": E, "touched": min(E, N * k), "tp": 1, "ep": 1,
    }  # fmt: skip
    one_launch = device.is_cuda and dtype == "bf16" and hasattr(F, "grouped_mm")
    size = (3.0 * E * D * width + N * (2.0 * D + 3.0 * k * width)) * parse_dtype(dtype).bytes
    name = "torch grouped_mm" if one_launch else "torch linear, one expert after the other"
    case = TimedCase("moe", name, shape, size, build)
    if device.is_cuda:
        yield case.by_vllm("fused_experts", "vllm, Triton", by_vllm)
    yield case


def balanced(x: Tensor, E: int, k: int) -> tuple[Tensor, Tensor]:
    """Tokens x [N, D], marked, and a router [D, E] that sends token n to experts n·k to n·k + k - 1, counted round.

    The first E columns of a token say which experts it visits and the router reads them alone; the others are random.
    A random router would leave experts out: 16 tokens with 8 of 128 experts each visit 81 of them.
    """
    N, D = x.shape
    if D < E:
        raise ArchitectureError(f"{E} experts cannot be told apart by {D} columns")
    expert = (torch.arange(N * k, device=x.device) % E).view(N, k)
    scores = x[:, :E].clamp(-2, 2)
    marked = torch.cat([scores.scatter(1, expert, _CHOSEN + scores[:, :k]), x[:, E:]], dim=1)
    return marked, torch.eye(D, E, dtype=x.dtype, device=x.device)


def mixture(x: Tensor, router: Tensor, inner: Tensor, outer: Tensor, k: int) -> Tensor:
    """Tokens x [N, D], router [D, E], inner [E, D, 2F] (gate, up), outer [E, F, D] -> [N, D]."""
    return run_experts(x, *route(x @ router, k), inner, outer)

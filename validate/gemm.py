"""Matrix multiplications y[m, n] = x[m, k] W[n, k]^T as servers launch them: 32 and 16 bit, and FP8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.validate import vllm_ops
from rooflinekit.validate.case import Call, Case, Work, fused, normal
from rooflinekit.validate.device import Device

__all__ = ["fp8_linear", "gemm_cases", "quantise"]

_FP8_MOST = 448.0
"""Largest number of float8_e4m3fn (OCP 8-bit floating point specification, table 1)."""


def gemm_cases(shapes: Iterable[tuple[int, int, int]], dtype: str, device: Device) -> Iterator[Case]:
    """One case for every (m, n, k) in one format; narrow formats quantise the 16-bit activations in the same call."""
    size = parse_dtype(dtype).bytes
    for m, n, k in shapes:
        shape = {"dtype": dtype, "m": m, "n": n, "k": k}
        build, moved = partial(_build, (m, n, k), dtype, device), size * (m * k + n * k) + 2.0 * m * n
        if dtype == "fp8" and device.is_cuda:
            own = partial(vllm_ops.fp8_gemm, (m, n, k), device)
            yield Case("gemm", f"{vllm_ops.NAME}, CUTLASS, row scales", shape, moved, own, "vllm", "_C")
        yield Case("gemm", _BACKEND[dtype], shape, moved, build, "gpt-fast" if dtype == "fp8" else "gpt-fast+vllm")


_BACKEND = {"fp32": "torch linear", "bf16": "torch linear", "fp8": "torch _scaled_mm, tensor scales"}


def _build(shape: tuple[int, int, int], dtype: str, device: Device) -> Work:
    m, n, k = shape

    def make(*size: int, dtype: str) -> Tensor:
        return normal(*size, dtype=dtype, device=device.torch)

    if dtype == "fp8":
        scale = torch.full((), 0.01, device=device.torch)
        call = partial(fp8_linear, narrow=fused(quantise, device))
        return Work(call, (make(m, k, dtype="bf16"), scale), lambda: (make(n, k, dtype="fp8"),))
    return Work(F.linear, (make(m, k, dtype=dtype),), lambda: (make(n, k, dtype=dtype),))


def quantise(x: Tensor, scale: Tensor) -> Tensor:
    """Numbers x / scale in FP8, clamped: beyond the largest number a cast gives NaN."""
    return (x / scale).clamp(-_FP8_MOST, _FP8_MOST).to(torch.float8_e4m3fn)


def fp8_linear(x: Tensor, scale: Tensor, weight: Tensor, narrow: Call = quantise) -> Tensor:
    """Rows x [m, k] bf16, weight [n, k] fp8 of scale 1 -> [m, n] bf16; the scale of x is static, as in checkpoints."""
    one = torch.ones_like(scale)
    return torch._scaled_mm(narrow(x, scale), weight.t(), scale_a=scale, scale_b=one, out_dtype=torch.bfloat16)

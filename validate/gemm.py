"""Matrix multiplications y[m, n] = x[m, k] W[n, k]^T as servers launch them: 32 and 16 bit, FP8 and INT8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.validate.case import Call, Case, Work, fused, normal
from rooflinekit.validate.device import Device

__all__ = ["fp8_linear", "gemm_cases", "int8_linear", "quantise"]

_FP8_MOST = 448.0
"""Largest number of float8_e4m3fn (OCP 8-bit floating point specification, table 1)."""
_INT8_ROWS = 17
"""Least rows of `torch._int_mm` on CUDA; a server pads a smaller batch."""


def gemm_cases(shapes: Iterable[tuple[int, int, int]], dtype: str, device: Device) -> Iterator[Case]:
    """One case for every (m, n, k) in one format; narrow formats quantise the 16-bit activations in the same call."""
    size = parse_dtype(dtype).bytes
    for m, n, k in shapes:
        shape = {"dtype": dtype, "m": m, "n": n, "k": k}
        build = partial(_build, (m, n, k), dtype, device)
        yield Case("gemm", _BACKEND[dtype], shape, size * (m * k + n * k) + 2.0 * m * n, build)


_BACKEND = {
    "fp32": "torch linear", "bf16": "torch linear", "fp16": "torch linear", "fp8": "torch _scaled_mm, tensor scales",
    "int8": "torch _int_mm, row scales",
}  # fmt: skip


def _build(shape: tuple[int, int, int], dtype: str, device: Device) -> Work:
    m, n, k = shape

    def make(*size: int, dtype: str) -> Tensor:
        return normal(*size, dtype=dtype, device=device.torch)

    if dtype == "fp8":
        scale = torch.full((), 0.01, device=device.torch)
        call = partial(fp8_linear, narrow=fused(quantise, device))
        return Work(call, (make(m, k, dtype="bf16"), scale), lambda: (make(n, k, dtype="fp8"),))
    if dtype == "int8":
        scale = torch.full((n,), 0.01, device=device.torch)
        return Work(int8_linear, (make(m, k, dtype="bf16"), scale), lambda: (make(n, k, dtype="int8"),))
    return Work(F.linear, (make(m, k, dtype=dtype),), lambda: (make(n, k, dtype=dtype),))


def quantise(x: Tensor, scale: Tensor) -> Tensor:
    """Numbers x / scale in FP8, clamped: beyond the largest number a cast gives NaN."""
    return (x / scale).clamp(-_FP8_MOST, _FP8_MOST).to(torch.float8_e4m3fn)


def fp8_linear(x: Tensor, scale: Tensor, weight: Tensor, narrow: Call = quantise) -> Tensor:
    """Rows x [m, k] bf16, weight [n, k] fp8 of scale 1 -> [m, n] bf16; the scale of x is static, as in checkpoints."""
    one = torch.ones_like(scale)
    return torch._scaled_mm(narrow(x, scale), weight.t(), scale_a=scale, scale_b=one, out_dtype=torch.bfloat16)


def int8_linear(x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """Rows x [m, k] bf16, weight [n, k] int8 with a scale a column [n] -> [m, n] bf16; x is quantised row by row."""
    m = len(x)
    if m < _INT8_ROWS:
        x = F.pad(x, (0, 0, 0, _INT8_ROWS - m))
    row = x.abs().amax(dim=1, keepdim=True).float().clamp_min(1e-6) / 127.0  # [m, 1]
    product: Tensor = torch._int_mm((x / row).round().to(torch.int8), weight.t())  # int32, exact
    return (product[:m] * (row[:m] * scale)).to(torch.bfloat16)

"""Rounding to narrow formats and back: what a weight or a cached key is after it was stored in one.

Scales are those of `Dtype`: a row's for fp8 and int8, a group's of 128 for int4. Arithmetic stays wide, as in kernels
that dequantise in registers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DtypeError

__all__ = ["FORMATS", "quantise_matrices", "round_trip"]

_E4M3_MAX = 448.0


def round_trip(x: Tensor, to: Dtype) -> Tensor:
    """What x [..., n] is after it was stored in the format.

    >>> round_trip(torch.tensor([[1.0, 0.3, -0.06, 0.0]]), Dtype.INT8)  # in steps of 1/127
    tensor([[ 1.0000,  0.2992, -0.0630,  0.0000]])

    Raises DtypeError for a format that is not emulated.
    """
    if to not in FORMATS:
        raise DtypeError(f"{to} is not emulated; one of {', '.join(map(str, FORMATS))}")
    return FORMATS[to](x.float()).to(x.dtype)


def _e4m3(x: Tensor) -> Tensor:
    return x.clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn).float()


def _scale(x: Tensor, largest: float) -> Tensor:
    """The scale that brings the largest magnitude of each row to the format's largest number; 1 for a row of zeros."""
    top = x.abs().amax(dim=-1, keepdim=True)
    return torch.where(top > 0, top / largest, 1.0)


def _fp8(x: Tensor) -> Tensor:
    scale = _scale(x, _E4M3_MAX)
    return _e4m3(x / scale) * scale


def _integer(bits: int) -> Callable[[Tensor], Tensor]:
    """Symmetric, from -(2^(bits-1) - 1) to its opposite."""
    top = 2.0 ** (bits - 1) - 1

    def rounded(x: Tensor) -> Tensor:
        scale = _scale(x, top)
        return (x / scale).round().clamp(-top, top) * scale

    return rounded


def _grouped(size: int, rounded: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same on each group of `size` elements of a row; a row shorter than that is one group."""

    def by_group(x: Tensor) -> Tensor:
        return rounded(x.unflatten(-1, (-1, min(size, x.shape[-1])))).flatten(-2)

    return by_group


FORMATS: dict[Dtype, Callable[[Tensor], Tensor]] = {
    Dtype.FP8: _fp8,
    Dtype.INT8: _integer(8),
    Dtype.INT4: _grouped(128, _integer(4)),
}


def quantise_matrices(module: nn.Module, to: Dtype) -> None:
    """Round every matrix of the module's linear layers in place, along its inputs; norms and biases stay."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear):
                part.weight.copy_(round_trip(part.weight, to))

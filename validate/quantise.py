"""Rounding to narrow formats and back: what a weight or a cached key is after it was stored in one.

Blocks and scales are those of `Dtype`: a row's for fp8 and int8, a 128 x 128 tile's for fp8_block, a group's for the
4-bit formats. Arithmetic stays wide, as in kernels that dequantise in registers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import DtypeError

__all__ = ["E2M1", "FORMATS", "quantise_matrices", "round_trip"]

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of a 4-bit float (OCP Microscaling v1.0, table 5)."""
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


def _fp8_block(x: Tensor, tile: int = 128) -> Tensor:
    """One scale a tile of tile x tile; the tiles at the edges are smaller."""
    rows, columns = x.shape[-2:]
    padded = nn.functional.pad(x, (0, -columns % tile, 0, -rows % tile))
    tiles = padded.unflatten(-1, (-1, tile)).unflatten(-3, (-1, tile)).transpose(-3, -2)  # [.., r, c, tile, tile]
    done = _fp8(tiles.flatten(-2)).view_as(tiles).transpose(-3, -2).flatten(-4, -3).flatten(-2)
    return done[..., :rows, :columns]


def _integer(bits: int) -> Callable[[Tensor], Tensor]:
    """Symmetric, from -(2^(bits-1) - 1) to its opposite."""
    top = 2.0 ** (bits - 1) - 1

    def rounded(x: Tensor) -> Tensor:
        scale = _scale(x, top)
        return (x / scale).round().clamp(-top, top) * scale

    return rounded


def _e2m1(x: Tensor) -> Tensor:
    """The nearest 4-bit float; beyond the largest, the largest."""
    levels = torch.tensor(E2M1, device=x.device)
    middles = (levels[1:] + levels[:-1]) / 2
    return levels[torch.bucketize(x.abs(), middles)].copysign(x)


def _mxfp4(x: Tensor) -> Tensor:
    """A power of two as scale: that of the largest magnitude, over the largest power in E2M1, 4 (OCP v1.0, 6.3)."""
    exponent = x.abs().amax(dim=-1, keepdim=True).clamp_min(2.0**-126).log2().floor()
    scale = torch.exp2(exponent - 2)
    return _e2m1(x / scale) * scale


def _nvfp4(x: Tensor) -> Tensor:
    """An E4M3 scale a group, and one fp32 scale that brings the largest of those to 448."""
    top = x.abs().amax()
    whole = torch.where(top > 0, top / (6.0 * _E4M3_MAX), 1.0)
    scale = _e4m3(_scale(x, 6.0) / whole) * whole
    return _e2m1(x / scale.clamp_min(torch.finfo(torch.float32).tiny)) * scale


def _grouped(size: int, rounded: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same on each group of `size` elements of a row; a row shorter than that is one group."""

    def by_group(x: Tensor) -> Tensor:
        return rounded(x.unflatten(-1, (-1, min(size, x.shape[-1])))).flatten(-2)

    return by_group


FORMATS: dict[Dtype, Callable[[Tensor], Tensor]] = {
    Dtype.FP8: _fp8,
    Dtype.FP8_BLOCK: _fp8_block,
    Dtype.INT8: _integer(8),
    Dtype.INT4: _grouped(128, _integer(4)),
    Dtype.INT4_G64: _grouped(64, _integer(4)),
    Dtype.INT4_G32: _grouped(32, _integer(4)),
    Dtype.MXFP4: _grouped(32, _mxfp4),
    Dtype.NVFP4: _grouped(16, _nvfp4),
}


def quantise_matrices(module: nn.Module, to: Dtype) -> None:
    """Round every matrix of the module's linear layers in place, along its inputs; norms and biases stay."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear):
                part.weight.copy_(round_trip(part.weight, to))

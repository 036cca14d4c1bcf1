"""The cases of a run, in an order in which a part of them is already a sample of all."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rooflinekit.validate.case import Case, cases_of
from rooflinekit.validate.decode import decode_cases
from rooflinekit.validate.device import Device
from rooflinekit.validate.elementwise import append_cases, embedding_cases, norm_cases, rope_cases, swiglu_cases
from rooflinekit.validate.experts import expert_cases
from rooflinekit.validate.gemm import gemm_cases
from rooflinekit.validate.latent import latent_decode_cases, latent_prefill_cases
from rooflinekit.validate.prefill import Heads, prefill_cases, varlen_cases
from rooflinekit.validate.sampling import sampling_cases
from rooflinekit.validate.shapes import Extent, Rates, Shapes, plan_shapes

__all__ = ["EXTENTS", "kernel_cases"]

_GPU_TOKENS = (1, 4, 16, 64, 128, 256, 1024, 4096)
EXTENTS = {
    ("cpu", "quick"): Extent((1, 4, 32, 128, 512), (128, 256, 512, 1024), (1, 4, 8), 3, (3e-6, 2e-2), 2048),
    ("cpu", "full"): Extent((1, 4, 16, 64, 128, 512), (64, 128, 512, 1024, 4096), (1, 2, 8, 32), 4, (3e-6, 0.2), 4096),
    ("cuda", "quick"): Extent((*_GPU_TOKENS[::2], 4096), (512, 2048, 8192), (1, 8, 64), 3, (5e-7, 5e-3), 16384),
    ("cuda", "full"): Extent(
        (*_GPU_TOKENS, 8192), (128, 512, 1024, 4096, 16384, 65536), (1, 4, 16, 64, 256), 8, (5e-7, 3e-2), 16384
    ),
}
"""By kind of device and suite."""


def kernel_cases(model: str, device: Device, rates: Rates, extent: Extent) -> list[Case]:
    """Every kernel at its shapes, the families in turn."""
    shapes = plan_shapes(model, device.dtype, rates, extent)
    families = [*_matrices(shapes, device), *_attention(shapes, device, extent), *_others(shapes, device)]
    for family in families:
        random.Random(0).shuffle(family)  # warming up and drifting clocks would else look like an effect of the size
    return cases_of(case for turn in zip_longest(*families) for case in turn if case is not None)


def _matrices(shapes: Shapes, device: Device) -> list[list[Case]]:
    """The model's format in full, narrower ones where the device has units for them."""
    narrow = ("fp8",) if device.is_cuda else ()
    formats = [list(gemm_cases(shapes.gemm, dtype, device)) for dtype in (device.dtype, *narrow)]
    return [*_halves(formats[0]), *formats[1:], list(expert_cases(shapes.experts, device.dtype, device))]


def _halves(cases: Sequence[Case]) -> list[list[Case]]:
    """A long family takes two turns."""
    return [list(cases[::2]), list(cases[1::2])]


def _attention(shapes: Shapes, device: Device, extent: Extent) -> Iterator[list[Case]]:
    dtype = device.dtype
    heads, longest = Heads(16, 8, 128), extent.contexts[-1]
    ragged = (longest, longest // 2, longest // 4, longest // 8)
    yield list(prefill_cases(shapes.prefill, dtype, device))
    yield list(decode_cases(shapes.decode, dtype, device))
    yield list(varlen_cases([(heads, ragged), (heads, (longest // 4,) * 4)], dtype, device))
    yield list(latent_prefill_cases(shapes.latent_prefill, dtype, device))
    yield list(latent_decode_cases(shapes.latent_decode, dtype, device))


def _others(shapes: Shapes, device: Device) -> Iterator[list[Case]]:
    dtype = device.dtype
    kinds = (dtype, "fp8") if device.is_cuda else (dtype,)
    yield list(norm_cases(shapes.norm, dtype, device, shapes.norm_kind))
    yield list(rope_cases(shapes.rope, dtype, device))
    yield list(swiglu_cases(shapes.swiglu, dtype, device))
    yield list(embedding_cases(shapes.embedding, dtype, device))
    yield list(append_cases([(*shape, kv) for kv in kinds for shape in shapes.append], dtype, device))
    yield list(sampling_cases(shapes.sampling, dtype, device))

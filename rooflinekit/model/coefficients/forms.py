"""The time forms with a kernel's shape and an accelerator's rates filled in: what is left varies with the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rooflinekit.model.coefficients.kernel import TimeCoefficients
from rooflinekit.model.coefficients.linear import Linear
from rooflinekit.model.timing import (
    CollectiveTime,
    DecodeTime,
    ExpertsTime,
    GemmTime,
    LatentDecodeTime,
    LatentPrefillTime,
    PlainTime,
    PrefillTime,
    TimeForm,
)
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel

__all__ = ["Work", "time_coefficients"]

_TILE, _QUERIES, _LEAST_ROWS, _LATENT_WIDTH = 128.0, 64.0, 16.0, 320.0  # as in timing/
_KEYS = 256.0


@dataclass(frozen=True)
class Work:
    """A kernel at one small step, and its work as coefficients [FLOP, B, s]."""

    kernel: Kernel
    system: System
    flops: Linear
    weights: Linear
    cache: Linear  #: read
    activations: Linear
    bytes: Linear  #: all memory traffic
    sent: float  #: bytes that a row sends
    transfer: float  #: seconds that they take at datasheet rates

    @property
    def peak(self) -> float:
        """Rate of its arithmetic [FLOP/s]."""
        return float(self.system.accelerator.peak(self.kernel.dtype))

    @property
    def bandwidth(self) -> float:
        """Of the memory [B/s]."""
        return float(self.system.accelerator.memory_bandwidth)

    @property
    def cores(self) -> float:
        """Of the accelerator."""
        return float(self.system.accelerator.cores)

    def dim(self, name: str) -> float:
        """A dimension that is fixed."""
        return float(getattr(self.kernel.shape, name))


def time_coefficients(form: TimeForm, work: Work) -> TimeCoefficients:
    """The form for this kernel.

    Raises InputError for a form that cannot be exported.
    """
    if type(form) not in _FORMS:
        raise InputError(f"{type(form).__name__} of {work.kernel.family} cannot be exported")
    return _FORMS[type(form)](form, work)


def _gemm(form: GemmTime, work: Work) -> TimeCoefficients:
    n, k = work.dim("n"), work.dim("k")
    rate = form.compute * work.peak
    quantise = 0.0 if work.kernel.dtype.is_wide else k * (2.0 + work.kernel.dtype.bytes) / form.quantise
    rows = work.flops * (1.0 / work.flops.each)
    return TimeCoefficients(
        launch=Linear(form.launch + form.depth_root * math.sqrt(k / 1024.0) + form.depth * (k / 1024.0)),
        rows=work.flops.each * (1.0 + form.tile / k) / rate,
        tail=form.tail * work.cores * (2.0 * _TILE * _TILE) * (k + form.tile) / rate,
        columns=float(math.ceil(n / _TILE)),
        cores=work.cores,
        memory=work.bytes / (form.memory * work.bandwidth),
        beside=rows * (quantise / work.bandwidth),
        sharpness=form.sharpness,
    )


def _decode(form: DecodeTime, work: Work) -> TimeCoefficients:
    tiles = work.dim("kv_heads") * math.ceil(work.dim("heads") / work.dim("kv_heads") / _QUERIES)
    tile = Linear(tokens=tiles * (form.tile / work.cores))
    return TimeCoefficients(
        launch=Linear(form.launch),
        log=form.split,
        log_keys=1.0 / _KEYS,
        compute=work.flops / (form.compute * work.peak) + tile,
        memory=(work.cache + work.activations) / (form.memory * work.bandwidth),
        sharpness=form.sharpness,
    )


def _prefill(form: PrefillTime, work: Work) -> TimeCoefficients:
    depth = work.dim("head_dim")
    rate = form.compute * work.peak * (depth / (depth + form.head))
    return TimeCoefficients(
        launch=Linear(form.launch),
        log=form.length,
        log_keys=1.0 / _TILE,
        tiles=work.dim("heads") * (form.tile / work.cores),
        compute=_padded(work.flops) / rate,
        farthest=form.longest * (4.0 * _TILE * work.cores) * depth / rate,
        memory=(work.activations + work.cache) / (form.memory * work.bandwidth),
        beside=work.cache * (form.cache / work.bandwidth),
        of_memory=True,
        sharpness=form.sharpness,
    )


def _padded(flops: Linear) -> Linear:
    """Tiles on the diagonal are computed whole: half a tile more for each query."""
    return Linear(pairs=flops.pairs, tokens=flops.pairs * (_TILE / 2.0))


def _latent_decode(form: LatentDecodeTime, work: Work) -> TimeCoefficients:
    heads = work.dim("heads")
    tile = Linear(tokens=math.ceil(heads / _QUERIES) * (form.tile / work.cores))
    return TimeCoefficients(
        launch=Linear(form.launch),
        log=form.split,
        log_keys=1.0 / _KEYS,
        compute=work.flops * (max(heads, _LEAST_ROWS) / heads / (form.compute * work.peak)) + tile,
        memory=(work.cache + work.activations) / (form.memory * work.bandwidth),
        beside=work.cache * (form.passes / work.bandwidth),
        of_memory=True,
        sharpness=form.sharpness,
    )


def _latent_prefill(form: LatentPrefillTime, work: Work) -> TimeCoefficients:
    rate = form.compute * work.peak
    return TimeCoefficients(
        launch=Linear(form.launch),
        log=form.length,
        log_keys=1.0 / _TILE,
        tiles=work.dim("heads") * (form.tile / work.cores),
        compute=_padded(work.flops) / rate,
        farthest=form.longest * (2.0 * _TILE * _LATENT_WIDTH * work.cores) / rate,
        memory=work.activations / (form.memory * work.bandwidth),
        beside=work.cache * (form.passes / work.bandwidth),
        of_memory=True,
        sharpness=form.sharpness,
    )


def _experts(form: ExpertsTime, work: Work) -> TimeCoefficients:
    rate, bandwidth = form.compute * work.peak, form.memory * work.bandwidth
    chosen = work.dim("routed") / work.dim("tokens")
    return TimeCoefficients(
        launch=Linear(form.launch, experts=form.expert),
        log=form.sort,
        log_tokens=chosen,
        compute=work.flops / rate + Linear(experts=work.flops.each / chosen * form.rows / rate),
        memory=(work.weights + work.activations * form.passes) / bandwidth,
        sharpness=form.sharpness,
    )


def _collective(form: CollectiveTime, work: Work) -> TimeCoefficients:
    rows = work.activations * (1.0 / work.activations.each)
    hops = form.hop * (work.kernel.gpus - 1) * float(getattr(work.kernel.shape, "phases", 1.0))
    return TimeCoefficients(
        launch=Linear(form.launch + hops),
        beside=rows * (work.transfer / form.network),
        of_links=True,
        root=form.ramp * math.sqrt(work.sent / 1e6),
        sharpness=0,
    )


def _plain(form: PlainTime, work: Work) -> TimeCoefficients:
    row = form.row if getattr(work.kernel.shape, "rows", 0.0) else 0.0
    return TimeCoefficients(
        launch=Linear(form.launch, tokens=row),
        compute=work.flops / (form.compute * work.peak),
        memory=work.bytes / (form.memory * work.bandwidth),
        sharpness=0,
    )


_FORMS: dict[type, Callable[[Any, Work], TimeCoefficients]] = {
    GemmTime: _gemm,
    DecodeTime: _decode,
    PrefillTime: _prefill,
    LatentDecodeTime: _latent_decode,
    LatentPrefillTime: _latent_prefill,
    ExpertsTime: _experts,
    CollectiveTime: _collective,
    PlainTime: _plain,
}

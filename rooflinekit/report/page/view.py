"""A deployment that no sliders reach, as the page draws it: steps by kernel, memory, sweeps over batch and context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rooflinekit.model.operating_point import OperatingPoint, Predictor
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.time import KernelTime, Time
from rooflinekit.model.types.workload import Workload

__all__ = ["BATCHES", "CONTEXTS", "fixed_view"]

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Points of the two sweeps; contexts are prompts."""


def fixed_view(predictor: Predictor, work: Workload) -> dict[str, Any]:
    """What JavaScript would have computed from coefficients, in the same form [s, B]."""
    batches, contexts = _sweep(predictor, work, "batch", BATCHES), _sweep(predictor, work, "isl", CONTEXTS)
    point = predictor.evaluate(work)
    found = _point(predictor, work, point)
    steps = {"prefill": _parts(predictor, point.prefill), "decode": _parts(predictor, point.decode)}
    return found | steps | {"sweeps": {"batch": batches, "context": contexts}}


def _sweep(predictor: Predictor, work: Workload, name: str, values: Sequence[int]) -> list[dict[str, Any]]:
    rows = []
    for value in values:
        if name == "isl" and value <= float(work.cached):
            continue
        own: dict[str, Any] = {name: float(value)}
        there = replace(work, **own, context=None)
        try:
            rows.append(_row(predictor, there, predictor.evaluate(there)))
        except RooflinekitError:  # beyond what the model or the split admits
            continue
    return rows


def _row(predictor: Predictor, work: Workload, point: OperatingPoint) -> dict[str, Any]:
    """One point of a sweep, with the bytes that its decode step reads."""
    found = _point(predictor, work, point)
    kernels = [timed.kernel for timed in point.decode.kernels]
    bytes_read = {"weights": sum(float(k.weight_bytes) * k.count for k in kernels),
                  "cache": sum(float(k.kv_read_bytes + k.kv_write_bytes) * k.count for k in kernels)}  # fmt: skip
    return found | {"bytes": bytes_read}


def _point(predictor: Predictor, work: Workload, point: OperatingPoint) -> dict[str, Any]:
    gpus, memory = predictor.plan.deployment.gpus, point.memory
    rate = float(point.output_rate(work.batch, work.osl))
    told = {"capacity": memory.capacity_bytes, "weights": memory.weight_bytes, "kv": memory.kv_bytes,
            "activations": memory.activation_bytes, "outside": memory.overhead_bytes, "total": memory.total_bytes,
            "pool": memory.kv_pool_bytes, "needed": memory.needed_bytes, "available": memory.available_bytes,
            "room": memory.max_batch}  # fmt: skip
    return {
        "at": {"batch": float(work.batch), "isl": float(work.isl), "osl": float(work.osl), "speed": 1.0},
        "ttft": _span(point.ttft), "tpot": _span(point.tpot), "gpus": gpus,
        "memory": {name: float(value) for name, value in told.items()} | {"fits": bool(memory.fits)},
        "e2e": float(point.e2e(work.osl)), "rate": rate, "rateEach": rate / gpus,
        "rateUser": 1.0 / float(point.tpot.expected),
    }  # fmt: skip


def _span(interval: Time) -> dict[str, float]:
    return {"time": float(interval.expected)} | {end: float(getattr(interval, end)) for end in ("bound", "low", "high")}


def _parts(predictor: Predictor, step: StepTime) -> list[dict[str, Any]]:
    return [_part(predictor, timed) for timed in step.kernels]


def _part(predictor: Predictor, timed: KernelTime) -> dict[str, Any]:
    kernel, n = timed.kernel, timed.kernel.count
    host = kernel.family == "host"
    return {
        "name": kernel.name, "family": kernel.family, "count": n,
        "peak": 0.0 if host else predictor.plan.system.accelerator.peak(kernel.dtype),
        "flops": n * float(kernel.flops), "weights": n * float(kernel.weight_bytes),
        "cache": n * float(kernel.kv_read_bytes + kernel.kv_write_bytes),
        "activations": n * float(kernel.activation_bytes),
        **_span(timed),
        "needs": [float(getattr(timed, cause)) for cause in ("compute", "memory", "network", "overhead")],
    }  # fmt: skip

"""The numbers of a row, by the names of their columns."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.estimation.frames.columns import MEMORY
from rooflinekit.model.memory.capacity import Memory
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.time import Time

__all__ = ["Times", "values_of"]


@dataclass(frozen=True)
class Times:
    """Times of rows [s], and the output tokens a second of all their requests."""

    ttft: Time
    tpot: Time
    e2e: Numeric
    rate: Numeric


def values_of(times: Times, memory: Memory, gpus: int) -> dict[str, Numeric]:
    """Milliseconds, bytes, and tokens a second."""
    values: dict[str, Numeric] = {"gpus": float(gpus)}
    for name, time in (("ttft", times.ttft), ("tpot", times.tpot)):
        values |= {f"{name}_ms": time.expected * 1e3, f"{name}_low_ms": time.low * 1e3}
        values |= {f"{name}_high_ms": time.high * 1e3, f"{name}_bound_ms": time.bound * 1e3}
    values |= {"e2e_ms": times.e2e * 1e3, "output_tok_s": times.rate}
    values |= {"output_tok_s_per_gpu": times.rate / gpus, "output_tok_s_per_user": 1.0 / times.tpot.expected}
    return values | {name: getattr(memory, name) for name in (*MEMORY, "max_batch", "max_context")}

"""Kernel tables (measured latencies by shape) as what each resource would need at datasheet rates.

A kernel table is a frame with the columns of one operation and `latency_us`; the work of each row is computed by the
same formulas that cost a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rooflinekit.calibration.fit import Measured
from rooflinekit.kernels import attention_flops, gemm_activation_bytes, gemm_flops, sent_bytes
from rooflinekit.types.dtype import parse_dtype
from rooflinekit.types.errors import SpecError
from rooflinekit.types.hardware import System
from rooflinekit.types.numeric import Array

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["OPERATIONS", "measured_rows"]

_COLD, _LAUNCH = 1.5, 0.05


def measured_rows(table: pd.DataFrame, operation: str, system: System) -> Measured:
    """Rows of one accelerator, engine and number format as a fit needs them.

    Decode rows whose cache lies in the L2 of the accelerator are left out, unless they are so small that the launch
    is all they show: serving finds the cache cold, and a roofline of three parameters cannot be both.

    Raises SpecError for an operation that is not a kernel table.
    """
    if operation not in OPERATIONS:
        raise SpecError(f"{operation!r} is not a kernel table; known: {', '.join(OPERATIONS)}")
    flops, traffic, sent, hops, keys = OPERATIONS[operation](table)
    compute = np.zeros(len(table))
    for dtype in table["dtype"].unique() if flops.any() else []:
        rows = (table["dtype"] == dtype).to_numpy()
        compute[rows] = flops[rows] / system.accelerator.peak(parse_dtype(dtype))
    measured = Measured(
        compute=compute,
        memory=traffic / np.asarray(system.accelerator.memory_bandwidth),
        network=sent / np.asarray(system.accelerator.link_bandwidth),
        hops=hops,
        time=table["latency_us"].to_numpy(float) * 1e-6,
        group=np.asarray(table.groupby(keys).ngroup(), dtype=float),
    )
    if operation not in ("attention_decode", "mla_decode"):
        return measured
    cold = (traffic > _COLD * system.accelerator.l2_bytes) | (traffic < _LAUNCH * system.accelerator.l2_bytes)
    return measured.subset(cold)


_Work = tuple[Array, Array, Array, Array, list[str]]


def _columns(table: pd.DataFrame, *names: str) -> list[Array]:
    return [table[name].to_numpy(float) for name in names]


def _widths(table: pd.DataFrame, column: str) -> Array:
    sizes = {name: parse_dtype(name).bytes for name in table[column].unique()}
    return table[column].map(sizes).to_numpy(float)


def _gemm(table: pd.DataFrame) -> _Work:
    m, n, k = _columns(table, "m", "n", "k")
    width = _widths(table, "dtype")
    traffic = n * k * width + np.asarray(gemm_activation_bytes(m, n, k, 1.0, 0.0)) * width + m * n * 2.0
    return np.asarray(gemm_flops(m, n, k)), traffic, 0 * m, 0 * m, ["n", "k"]


def _attention(table: pd.DataFrame, pairs: Array, new: Array) -> _Work:
    batch, length, heads, kv_heads, dim = _columns(table, "batch", "seq_len", "heads", "kv_heads", "head_dim")
    flops = np.asarray(attention_flops(batch * pairs, 1, 1, 1)) * heads * dim
    traffic = batch * (length * kv_heads * 2 * dim * _widths(table, "kv_dtype") + new * heads * 2 * dim * 2.0)
    return flops, traffic, 0 * batch, 0 * batch, ["heads", "kv_heads", "head_dim"]


def _decode(table: pd.DataFrame) -> _Work:
    length = table["seq_len"].to_numpy(float)
    return _attention(table, length, np.ones_like(length))


def _prefill(table: pd.DataFrame) -> _Work:
    length = table["seq_len"].to_numpy(float)
    return _attention(table, length * (length + 1) / 2, length)


def _mla_decode(table: pd.DataFrame) -> _Work:
    batch, length, heads = _columns(table, "batch", "seq_len", "heads")
    traffic = batch * (length * 576 * _widths(table, "kv_dtype") + heads * (576 + 512) * 2.0)
    return 2.0 * batch * length * heads * (576 + 512), traffic, 0 * batch, 0 * batch, ["heads"]


def _mla_prefill(table: pd.DataFrame) -> _Work:
    batch, length, heads = _columns(table, "batch", "seq_len", "heads")
    flops = 2.0 * batch * length * (length + 1) / 2 * heads * (192 + 128)
    return flops, 2.0 * batch * length * heads * (192 + 128) * 2.0, 0 * batch, 0 * batch, ["heads"]


def _moe(table: pd.DataFrame) -> _Work:
    tokens, hidden, inner, top_k = _columns(table, "tokens", "hidden", "expert_intermediate", "top_k")
    experts, tp, ep, matrices = _columns(table, "experts", "tp", "ep", "ffn_matrices")
    width, each = inner / tp, hidden * inner / tp * matrices
    routed = tokens * top_k / ep
    touched = np.minimum(experts / ep, routed)  # the balanced rows spread tokens evenly
    traffic = touched * each * _widths(table, "dtype") + routed * (3 * hidden + matrices * width) * 2.0
    return (
        2.0 * routed * each,
        traffic,
        0 * tokens,
        0 * tokens,
        ["hidden", "expert_intermediate", "experts", "tp", "ep"],
    )


def _comm(table: pd.DataFrame) -> _Work:
    payload, gpus = _columns(table, "bytes", "gpus")
    each = [float(sent_bytes("all_reduce", b, int(n))) for b, n in zip(payload, gpus, strict=True)]
    return 0 * payload, 0 * payload, np.array(each), gpus - 1, ["gpus"]


OPERATIONS: dict[str, Callable[[pd.DataFrame], _Work]] = {
    "gemm": _gemm,
    "attention_decode": _decode,
    "attention_prefill": _prefill,
    "mla_decode": _mla_decode,
    "mla_prefill": _mla_prefill,
    "moe": _moe,
    "comm": _comm,
}

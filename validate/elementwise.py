"""Kernels between the matrices: norms with the residual, rotary positions, SwiGLU, embedding, cache writes.

On a GPU each is compiled into one kernel, as servers fuse them; on the CPU they are PyTorch's own, one after the other.
Letters: N tokens, D width, H heads, K KV heads, d head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.validate import vllm_ops
from rooflinekit.validate.attention import positions, rotate
from rooflinekit.validate.case import Call, Case, Work, fused, normal, shuffled
from rooflinekit.validate.device import Device
from rooflinekit.validate.feedforward import activate
from rooflinekit.validate.gemm import quantise

__all__ = [
    "append", "append_cases", "embedding_cases", "layer_norm", "norm_cases", "rms_norm", "rope", "rope_cases",
    "swiglu", "swiglu_cases",
]  # fmt: skip


def _case(kind: str, sizes: tuple[int, int, int], dtype: str, device: Device, build: Callable[[], Work]) -> Case:
    tokens, read, written = sizes  # elements a token
    name = "torch, compiled" if device.is_cuda else "torch, eager"
    shape = {"dtype": dtype, "kind": kind, "tokens": tokens, "read": read, "written": written}
    return Case("elementwise", name, shape, tokens * (read + written) * parse_dtype(dtype).bytes, build)


def _both(one: Case, own: Callable[[], Work] | None, device: Device) -> Iterator[Case]:
    """The case, and on a GPU before it the same by vLLM's kernel."""
    if own is not None and device.is_cuda:
        yield replace(one, backend=vllm_ops.NAME, build=own, engine="vllm", source="_C")
    yield one


def rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The residual stream with x added, and its normalised copy: [N, D] each."""
    stream = x + residual
    return stream, F.rms_norm(stream, weight.shape, weight)


def layer_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The same with LayerNorm, without a bias."""
    stream = x + residual
    return stream, F.layer_norm(stream, weight.shape, weight)


def norm_cases(shapes: Iterable[tuple[int, int]], dtype: str, device: Device, kind: str = "rmsnorm") -> Iterator[Case]:
    """(N, D), "rmsnorm" or "layernorm"."""
    call = fused(rms_norm if kind == "rmsnorm" else layer_norm, device)
    for N, D in shapes:
        one = _case("norm", (N, 2 * D, 2 * D), dtype, device, partial(_norm, call, (N, D), dtype, device))
        yield from _both(one, partial(vllm_ops.norm, (N, D), dtype, device) if kind == "rmsnorm" else None, device)


def _norm(call: Call, shape: tuple[int, int], dtype: str, device: Device) -> Work:
    x, residual = (normal(*shape, dtype=dtype, device=device.torch) for _ in range(2))
    return Work(call, (x, residual, normal(shape[1], dtype=dtype, device=device.torch)))


def rope_cases(shapes: Iterable[tuple[int, int, int, int]], dtype: str, device: Device) -> Iterator[Case]:
    """(N, H, K, d): queries and keys of one sequence turned by their positions."""
    call = fused(rope, device)
    for N, H, K, d in shapes:
        width = (H + K) * d
        yield _case("rope", (N, width, width), dtype, device, partial(_rope, call, (N, H, K, d), dtype, device))


def _rope(call: Call, shape: tuple[int, int, int, int], dtype: str, device: Device) -> Work:
    N, H, K, d = shape
    q, k = (normal(1, heads, N, d, dtype=dtype, device=device.torch) for heads in (H, K))
    return Work(call, (q, k, positions(0, N, device.torch)))


def rope(q: Tensor, k: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """Queries [1, H, N, d] and keys [1, K, N, d], turned by the positions where [N]."""
    return rotate(q, where), rotate(k, where)


def swiglu_cases(shapes: Iterable[tuple[int, int]], dtype: str, device: Device) -> Iterator[Case]:
    """(N, F): silu(gate)·up of the two halves of [N, 2F]."""
    call = fused(swiglu, device)
    for N, width in shapes:
        build = partial(_swiglu, call, (N, width), dtype, device)
        one = _case("activation", (N, 2 * width, width), dtype, device, build)
        yield from _both(one, partial(vllm_ops.swiglu, (N, width), dtype, device), device)


def _swiglu(call: Call, shape: tuple[int, int], dtype: str, device: Device) -> Work:
    return Work(call, (normal(shape[0], 2 * shape[1], dtype=dtype, device=device.torch),))


def swiglu(x: Tensor) -> Tensor:
    """Halves [gate, up] of x [N, 2F] -> [N, F]."""
    return activate(x, gated=True)


def embedding_cases(shapes: Iterable[tuple[int, int, int]], dtype: str, device: Device) -> Iterator[Case]:
    """(N, D, V): the rows of N random tokens from a table of V."""
    for N, D, V in shapes:
        shape = {"dtype": dtype, "tokens": N, "width": D, "vocab": V}
        build = partial(_embedding, (N, D, V), dtype, device)
        yield Case("embedding", "torch", shape, (V + N) * D * parse_dtype(dtype).bytes, build)


def _embedding(shape: tuple[int, int, int], dtype: str, device: Device) -> Work:
    N, D, V = shape
    table = normal(V, D, dtype=dtype, device=device.torch)

    def cold() -> tuple[Tensor, ...]:  # other tokens of the same table: their rows come from memory
        return (torch.randint(V, (N,), device=device.torch),)

    return Work(lambda tokens: F.embedding(tokens, table), (), cold)


def append_cases(shapes: Iterable[tuple[int, int, int, str]], dtype: str, device: Device) -> Iterator[Case]:
    """(N, K, d, format of the cache): keys and values of N tokens written into their slots, narrowed where it is."""
    call = fused(append, device)
    for N, K, d, kv in shapes:
        shape = {"dtype": dtype, "kv_dtype": kv, "tokens": N, "elements": 2 * K * d}
        size = N * 2.0 * K * d * (parse_dtype(dtype).bytes + 4.0 * parse_dtype(kv).bytes)
        build = partial(_append, call, (N, K, d, kv), dtype, device)
        yield Case("kv_append", "torch, compiled" if device.is_cuda else "torch, eager", shape, size, build)


def _append(call: Call, shape: tuple[int, int, int, str], dtype: str, device: Device) -> Work:
    N, K, d, kv = shape
    new = normal(2, N, K, d, dtype=dtype, device=device.torch)
    scale = torch.full((), 0.05, device=device.torch)

    def cold() -> tuple[Tensor, ...]:  # slots anywhere in a pool of four times as many
        pools = (normal(4 * N, K, d, dtype=kv, device=device.torch) for _ in "kv")
        return (*pools, shuffled(4 * N, device.torch)[:N])

    return Work(partial(call, scale=scale), (new,), cold)


def append(new: Tensor, keys: Tensor, values: Tensor, slots: Tensor, *, scale: Tensor) -> None:
    """Write k and v, new [2, N, K, d], into keys and values [slots, K, d], divided by the scale where those are FP8."""
    for x, pool in zip(new, (keys, values), strict=True):
        if pool.dtype == torch.float8_e4m3fn:
            raw = torch.uint8  # index_copy_ knows no FP8
            pool.view(raw).index_copy_(0, slots, quantise(x, scale).view(raw))
        else:
            pool.index_copy_(0, slots, x)

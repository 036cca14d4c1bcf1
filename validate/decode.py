"""Decode attention: one new token a sequence over a cache that comes from memory, contiguous or in pages.

Letters: B sequences, T keys, H query heads, K KV heads, d head width, P tokens of a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.validate import vllm_ops
from rooflinekit.validate.attention import attend
from rooflinekit.validate.case import Case, Work, normal, shuffled
from rooflinekit.validate.device import Device, version_of
from rooflinekit.validate.prefill import Heads

__all__ = ["PAGE", "decode_cases", "gathered", "page_table"]

PAGE = 16
"""Tokens of a page: vLLM's default block size."""
_TENSOR_CORES = 4
"""Query heads a KV head from which FlashInfer is told to use tensor cores: "faster for large group size" say its
documents; where large begins is an assumption."""
_SELDOM = 8
"""Every eighth shape suffices for gathering pages, which copies the cache."""


def decode_cases(shapes: Iterable[tuple[Heads, int, int]], dtype: str, device: Device) -> Iterator[Case]:
    """B sequences at T keys, by every backend that is here; FlashInfer is recorded as missing where it is not."""
    for number, (heads, B, T) in enumerate(shapes):
        H, K, d = heads
        shape = {"dtype": dtype, "kv_dtype": dtype, "batch": B, "seq_len": T, "heads": H, "kv_heads": K, "head_dim": d}
        size = B * d * 2.0 * (H + T * K) * parse_dtype(dtype).bytes
        for name, build in _backends(device).items():
            if build is not _gathered or number % _SELDOM == 0:
                engine, source = _WHOSE.get(build, ("gpt-fast", name))
                yield Case("attention_decode", name, shape, size, partial(build, heads, B, T, dtype, device), engine,
                           source)  # fmt: skip


def _backends(device: Device) -> dict[str, Callable[..., Work]]:
    if not device.is_cuda:
        return {"torch sdpa": _contiguous, "torch sdpa, gathered pages": _gathered}
    return {
        f"{vllm_ops.NAME}, FlashAttention 3, pages": vllm_ops.decode,
        f"flashinfer {version_of('flashinfer-python')}, pages": _flashinfer,
        "torch sdpa": _contiguous,
    }


def _queries(heads: Heads, B: int, dtype: str, device: Device) -> Tensor:
    return normal(B, heads.H, 1, heads.d, dtype=dtype, device=device.torch)


def _contiguous(heads: Heads, B: int, T: int, dtype: str, device: Device) -> Work:
    """Keys and values [B, K, T, d] as they lie in a cache with room for more."""

    def cold() -> tuple[Tensor, ...]:
        return tuple(normal(B, heads.K, T, heads.d, dtype=dtype, device=device.torch) for _ in "kv")

    return Work(attend, (_queries(heads, B, dtype, device),), cold)


def page_table(B: int, T: int, device: torch.device) -> Tensor:
    """Which page holds which tokens [B, ⌈T/P⌉] int32; pages in random order, as after long serving."""
    each = -(-T // PAGE)
    return shuffled(B * each, device).view(B, each).to(torch.int32)


def _pages(heads: Heads, B: int, T: int, dtype: str, device: Device) -> tuple[Tensor, ...]:
    """Keys and values [pages, P, K, d], and the table of pages."""
    count = B * -(-T // PAGE)
    pools = [normal(count, PAGE, heads.K, heads.d, dtype=dtype, device=device.torch) for _ in "kv"]
    return (*pools, page_table(B, T, device.torch))


def _gathered(heads: Heads, B: int, T: int, dtype: str, device: Device) -> Work:
    return Work(
        partial(gathered, T=T), (_queries(heads, B, dtype, device),), partial(_pages, heads, B, T, dtype, device)
    )


def gathered(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, T: int) -> Tensor:
    """Copy the pages together, then attend: what an engine without a paged kernel does. [B, H, 1, d]."""
    k, v = (pool[table].flatten(1, 2)[:, :T].transpose(1, 2) for pool in (keys, values))  # [B, K, T, d]
    return attend(q, k, v)


def _flashinfer(heads: Heads, B: int, T: int, dtype: str, device: Device) -> Work:
    """BatchDecodeWithPagedKVCacheWrapper (docs.flashinfer.ai, api/attention); the plan is made once, as for a graph."""
    import flashinfer  # noqa: PLC0415

    H, K, d = heads
    table = page_table(B, T, device.torch)
    starts = torch.arange(B + 1, dtype=torch.int32, device=device.torch) * table.shape[1]
    last = torch.full((B,), (T - 1) % PAGE + 1, dtype=torch.int32, device=device.torch)
    workspace = torch.empty(128 * 2**20, dtype=torch.uint8, device=device.torch)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=H // K >= _TENSOR_CORES)
    q = normal(B, H, d, dtype=dtype, device=device.torch)
    wrapper.plan(starts, table.flatten(), last, H, K, d, PAGE, q_data_type=q.dtype, kv_data_type=q.dtype)

    def cold() -> tuple[Tensor, ...]:
        return (*(normal(table.numel(), PAGE, K, d, dtype=dtype, device=device.torch) for _ in "kv"), table)

    return Work(lambda q, k, v, table: wrapper.run(q, (k, v)), (q,), cold)  # the plan has read the table


_WHOSE: dict[Callable[..., Work], tuple[str, str]] = {vllm_ops.decode: ("vllm", "_vllm_fa3_C")}
"""Engine and library of the kernels that are not PyTorch's."""

"""Attention as it is timed: whole and packed prompts, one new token over a cache, and MLA in DeepSeek's widths.

Letters: B sequences, S new tokens of each, T keys, H query heads, K KV heads, d head width. A latent of MLA has 512
columns and 64 rotary ones; a head of its prefill 192 for queries and keys, 128 for values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.validate import vllm_ops
from rooflinekit.validate.attention import attend
from rooflinekit.validate.case import Call, TimedCase, TimedWork, normal
from rooflinekit.validate.device import Device, version_of
from rooflinekit.validate.vllm_ops import RANK, ROPE

_FA3 = ("FlashAttention 3, pages", "_vllm_fa3_C")
_TENSOR_CORES = 4
"""Query heads a KV head from which FlashInfer is told to use tensor cores: "faster for large group size" say its
documents; where large begins is an assumption."""


class Heads(NamedTuple):
    """Query heads, KV heads, head width."""

    H: int
    K: int
    d: int


def _case(
    names: tuple[str, str], heads: Heads, lengths: tuple[int, int], dtype: str, elements: float,
    build: Callable[[], TimedWork],
) -> TimedCase:  # fmt: skip
    """Names are op and backend, `lengths` B and S or T, `elements` those of one call's inputs."""
    H, K, d = heads
    shape = {"dtype": dtype, "kv_dtype": dtype, "batch": lengths[0], "seq_len": lengths[1], "heads": H}
    shape |= {"kv_heads": K, "head_dim": d} if d else {}
    return TimedCase(*names, shape, elements * parse_dtype(dtype).bytes, build)


def prefill_cases(heads: Heads, B: int, S: int, dtype: str, device: Device) -> Iterator[TimedCase]:
    """Causal attention of B prompts of S tokens, by every backend that the device has."""
    H, K, d = heads
    draw = partial(normal, dtype=dtype, device=device.torch)

    def build(backend: Any = None) -> TimedWork:  # the projection has just written all three
        return TimedWork(partial(sdpa, backend=backend), tuple(draw(B, n, S, d) for n in (H, K, K)))

    case = _case(("attention_prefill", "torch sdpa"), heads, (B, S), dtype, B * S * d * 2.0 * (H + K), build)
    if not device.is_cuda:
        yield case
        return
    yield case.by_vllm(*_FA3, partial(vllm_ops.attention, heads, B, S, S, dtype, device))
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        yield replace(case, backend=f"torch sdpa {name}", build=partial(build, backend))


def chunk_cases(heads: Heads, B: int, S: int, T: int, dtype: str, device: Device) -> Iterator[TimedCase]:
    """A chunk of a prompt: S new tokens of B sequences, the others of T keys are in the cache already."""
    H, K, d = heads
    draw = partial(normal, dtype=dtype, device=device.torch)
    size = B * d * 2.0 * (S * H + T * K)

    def build() -> TimedWork:
        return TimedWork(attend, (draw(B, H, S, d),), lambda: tuple(draw(B, K, T, d) for _ in "kv"))

    case = _case(("attention_prefill", "torch sdpa, masked"), heads, (B, S), dtype, size, build)
    case = replace(case, shape={**case.shape, "prefix": T - S})
    if device.is_cuda:  # PyTorch's flash kernels take no causal chunk, and a mask is nothing that servers run
        case = case.by_vllm(*_FA3, partial(vllm_ops.attention, heads, B, S, T, dtype, device))
    yield case


def sdpa(q: Tensor, k: Tensor, v: Tensor, backend: Any = None) -> Tensor:
    """Causal attention [B, H, S, d] by one backend, or by the one that PyTorch chooses."""
    with nullcontext() if backend is None else sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def varlen_cases(heads: Heads, lengths: tuple[int, ...], dtype: str, device: Device) -> Iterator[TimedCase]:
    """Prompts of different lengths packed without padding; equal ones are rows of the prefill table as well."""
    H, K, d = heads
    N, most, equal, on_gpu = sum(lengths), max(lengths), len(set(lengths)) == 1, device.is_cuda

    def build() -> TimedWork:
        starts = torch.tensor([0, *lengths], device=device.torch).cumsum(0).to(torch.int32)
        call: Call = partial(_flash_packed, starts=starts, most=most) if on_gpu else partial(packed, lengths=lengths)
        return TimedWork(call, tuple(normal(N, n, d, dtype=dtype, device=device.torch) for n in (H, K, K)))

    op = "attention_prefill" if equal else "attention_varlen"
    name = "torch flash varlen" if on_gpu else "torch sdpa, one sequence after the other"
    case = _case((op, name), heads, (len(lengths), most), dtype, N * d * 2.0 * (H + K), build)
    yield case if equal else replace(case, shape={**case.shape, "lengths": list(lengths)})


def _flash_packed(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, most: int) -> Tensor:
    """FlashAttention's varlen kernel: q [N, H, d], k and v [N, K, d], starts [B + 1] int32 -> [N, H, d]."""
    flash = torch.ops.aten._flash_attention_forward
    return flash(q, k, v, starts, starts, most, most, 0.0, True, False)[0]  # no dropout, causal, no debug mask


def packed(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """The same, one sequence after the other: [N, H, d]."""
    parts = (x.split(list(lengths)) for x in (q, k, v))
    outs = [sdpa(*(x.transpose(0, 1)[None] for x in each)) for each in zip(*parts, strict=True)]
    return torch.cat([out[0].transpose(0, 1) for out in outs])


def decode_cases(heads: Heads, B: int, T: int, dtype: str, device: Device) -> Iterator[TimedCase]:
    """One new token of B sequences at T keys; FlashInfer is recorded as missing where it is not."""
    H, K, d = heads
    draw = partial(normal, dtype=dtype, device=device.torch)

    def build() -> TimedWork:  # keys and values [B, K, T, d] as they lie in a cache with room for more
        return TimedWork(attend, (draw(B, H, 1, d),), lambda: tuple(draw(B, K, T, d) for _ in "kv"))

    case = _case(("attention_decode", "torch sdpa"), heads, (B, T), dtype, B * d * 2.0 * (H + T * K), build)
    if device.is_cuda:
        yield case.by_vllm(*_FA3, partial(vllm_ops.attention, heads, B, 1, T, dtype, device))
        name = f"flashinfer {version_of('flashinfer-python')}, pages"
        yield replace(case, backend=name, source=name, build=partial(_flashinfer, heads, B, T, draw, device))
    yield case


def _flashinfer(heads: Heads, B: int, T: int, draw: Call, device: Device) -> TimedWork:
    """BatchDecodeWithPagedKVCacheWrapper (docs.flashinfer.ai, api/attention); the plan is made once, as for a graph."""
    import flashinfer  # noqa: PLC0415

    (H, K, d), page = heads, vllm_ops.PAGE
    table = vllm_ops.page_table(B, T, page, device.torch)
    starts = torch.arange(B + 1, dtype=torch.int32, device=device.torch) * table.shape[1]
    last = torch.full((B,), (T - 1) % page + 1, dtype=torch.int32, device=device.torch)
    workspace = torch.empty(128 * 2**20, dtype=torch.uint8, device=device.torch)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=H // K >= _TENSOR_CORES)
    q = draw(B, H, d)
    wrapper.plan(starts, table.flatten(), last, H, K, d, page, q_data_type=q.dtype, kv_data_type=q.dtype)

    def cold() -> tuple[Tensor, ...]:
        return (*(draw(table.numel(), page, K, d) for _ in "kv"), table)

    return TimedWork(lambda q, k, v, table: wrapper.run(q, (k, v)), (q,), cold)  # the plan has read the table


_NOPE, _VALUE = 128, 128
_SCALE = (_NOPE + ROPE) ** -0.5


def latent_prefill_cases(H: int, B: int, S: int, dtype: str, device: Device) -> Iterator[TimedCase]:
    """Keys and values are spelt out, as the up-projection has just written them."""
    widths = (_NOPE + ROPE, _NOPE + ROPE, _VALUE)
    size = B * S * H * (sum(widths) + float(_VALUE))

    def build() -> TimedWork:
        return TimedWork(
            up_projected, tuple(normal(B, H, S, each, dtype=dtype, device=device.torch) for each in widths)
        )

    yield _case(("mla_prefill", "torch sdpa, values padded"), Heads(H, 0, 0), (B, S), dtype, size, build)


def up_projected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries and keys [B, H, S, 192], v [B, H, S, 128] -> as v; padded values let the flash kernels take it."""
    wide = F.pad(v, (0, q.shape[-1] - v.shape[-1]))
    return F.scaled_dot_product_attention(q, k, wide, is_causal=True)[..., : v.shape[-1]]


def latent_decode_cases(H: int, B: int, T: int, dtype: str, device: Device) -> Iterator[TimedCase]:
    """One new token a sequence against the latents themselves."""
    draw, width = partial(normal, dtype=dtype, device=device.torch), RANK + ROPE
    case = _case(("mla_decode", "torch batched matmul"), Heads(H, 0, 0), (B, T), dtype, B * (T + 2.0 * H) * width,
                 lambda: TimedWork(absorbed, (draw(B, H, width),), lambda: (draw(B, T, width),)))  # fmt: skip
    if device.is_cuda:
        yield case.by_vllm(*_FA3, partial(vllm_ops.latent_decode, H, B, T, dtype, device))
    yield case


def absorbed(q: Tensor, latent: Tensor) -> Tensor:
    """Queries [B, H, 576], latent [B, T, 576] -> [B, H, 512]: all heads share the keys, and their first 512 columns.

    Logits stay in fp32, as attention kernels keep them: in bf16 a logit of ten is 0.03 off.
    """
    if q.is_cuda and q.dtype != torch.float32:
        logits = torch.bmm(q, latent.mT, out_dtype=torch.float32)
    else:
        logits = q.float() @ latent.mT.float()
    return torch.softmax(logits * _SCALE, dim=-1).to(q.dtype) @ latent[..., :RANK]

"""What runs between the matrices and after them: norms, rotary positions, SwiGLU, embedding, cache writes, sampling.

On a GPU most are compiled into one kernel, as servers fuse them; on the CPU they are PyTorch's own, one by one.
Letters: N tokens, D width, F inner width, H heads, K KV heads, d head width; B rows of logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.validate import vllm_ops
from rooflinekit.validate.attention import positions, rotate
from rooflinekit.validate.case import Call, TimedCase, TimedWork, fused, normal, shuffled
from rooflinekit.validate.device import Device
from rooflinekit.validate.feedforward import activate
from rooflinekit.validate.matrix_kernels import quantise


def _name(device: Device) -> str:
    return "torch, compiled" if device.is_cuda else "torch, eager"


def _cases(
    kind: str, sizes: tuple[int, int, int], dtype: str, device: Device, draw: Callable[[], tuple[Tensor, ...]],
    ours: Call, theirs: Callable[[], TimedWork] | None = None,
) -> Iterator[TimedCase]:  # fmt: skip
    """PyTorch's kernel on the inputs that are drawn, and before it vLLM's on a GPU; sizes are tokens and elements."""
    tokens, read, written = sizes  # elements a token
    shape = {"dtype": dtype, "kind": kind, "tokens": tokens, "read": read, "written": written}
    size = tokens * (read + written) * parse_dtype(dtype).bytes
    case = TimedCase("elementwise", _name(device), shape, size, lambda: TimedWork(fused(ours, device), draw()))
    if theirs is not None and device.is_cuda:
        yield case.by_vllm("", "_C", theirs)
    yield case


def norm_cases(N: int, D: int, kind: str, dtype: str, device: Device) -> Iterator[TimedCase]:
    """A norm with the residual added first: "rmsnorm" or "layernorm"."""
    size, drawn = (N, 2 * D, 2 * D), partial(normal, dtype=dtype, device=device.torch)

    def draw() -> tuple[Tensor, ...]:
        return drawn(N, D), drawn(N, D), drawn(D)

    if kind == "rmsnorm":
        yield from _cases("norm", size, dtype, device, draw, rms_norm, lambda: TimedWork(vllm_ops.norm, draw()))
    else:
        yield from _cases("norm", size, dtype, device, draw, layer_norm)


def rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The residual stream with x added, and its normalised copy: [N, D] each."""
    stream = x + residual
    return stream, F.rms_norm(stream, weight.shape, weight)


def layer_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The same with LayerNorm, without a bias."""
    stream = x + residual
    return stream, F.layer_norm(stream, weight.shape, weight)


def rope_cases(N: int, H: int, K: int, d: int, dtype: str, device: Device) -> Iterator[TimedCase]:
    """Queries and keys of one sequence turned by their positions."""

    def draw() -> tuple[Tensor, ...]:
        q, k = (normal(1, heads, N, d, dtype=dtype, device=device.torch) for heads in (H, K))
        return q, k, positions(0, N, device.torch)

    size, theirs = (N, (H + K) * d, (H + K) * d), partial(vllm_ops.rope, N, (H, K, d), dtype, device)
    yield from _cases("rope", size, dtype, device, draw, rope, theirs)


def rope(q: Tensor, k: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """Queries [1, H, N, d] and keys [1, K, N, d], turned by the positions where [N]."""
    return rotate(q, where), rotate(k, where)


def swiglu_cases(N: int, width: int, dtype: str, device: Device) -> Iterator[TimedCase]:
    """SwiGLU of the two halves of [N, 2F]."""

    def draw() -> tuple[Tensor, ...]:
        return (normal(N, 2 * width, dtype=dtype, device=device.torch),)

    size = (N, 2 * width, width)
    yield from _cases("activation", size, dtype, device, draw, activate, lambda: TimedWork(vllm_ops.swiglu, draw()))


def embedding_cases(N: int, D: int, V: int, dtype: str, device: Device) -> Iterator[TimedCase]:
    """The rows of N random tokens from a table of V, always other tokens: their rows come from memory."""

    def build() -> TimedWork:
        table = normal(V, D, dtype=dtype, device=device.torch)
        return TimedWork(lambda t: F.embedding(t, table), (), lambda: (torch.randint(V, (N,), device=device.torch),))

    shape = {"dtype": dtype, "tokens": N, "width": D, "vocab": V}
    yield TimedCase("embedding", "torch", shape, (V + N) * D * parse_dtype(dtype).bytes, build)


def append_cases(N: int, K: int, d: int, kv: str, dtype: str, device: Device) -> Iterator[TimedCase]:
    """Keys and values of N tokens written into their slots of a cache in the format `kv`, narrowed where it is FP8."""
    place = device.torch

    def build(call: Call) -> TimedWork:
        def cold() -> tuple[Tensor, ...]:  # slots anywhere in a pool of four times as many
            return (*(normal(4 * N, K, d, dtype=kv, device=place) for _ in "kv"), shuffled(4 * N, place)[:N])

        hot = normal(2, N, K, d, dtype=dtype, device=place)
        return TimedWork(partial(call, scale=torch.full((), 0.05, device=place)), (hot,), cold)

    shape = {"dtype": dtype, "kv_dtype": kv, "tokens": N, "elements": 2 * K * d}
    size = N * 2.0 * K * d * (parse_dtype(dtype).bytes + 4.0 * parse_dtype(kv).bytes)
    case = TimedCase("kv_append", _name(device), shape, size, lambda: build(fused(append, device)))
    if device.is_cuda:
        yield case.by_vllm("", "_C", lambda: build(vllm_ops.append))
    yield case


def append(new: Tensor, keys: Tensor, values: Tensor, slots: Tensor, *, scale: Tensor) -> None:
    """Write k and v, new [2, N, K, d], into keys and values [slots, K, d], divided by the scale where those are FP8."""
    for x, pool in zip(new, (keys, values), strict=True):
        if pool.dtype == torch.float8_e4m3fn:
            raw = torch.uint8  # index_copy_ knows no FP8
            pool.view(raw).index_copy_(0, slots, quantise(x, scale).view(raw))
        else:
            pool.index_copy_(0, slots, x)


def sampling_cases(B: int, V: int, dtype: str, device: Device) -> Iterator[TimedCase]:
    """B rows of V logits by every method, and by vLLM's sampler those that it has."""
    draw = partial(normal, B, V, dtype=dtype, device=device.torch)
    theirs: dict[str, Callable[[], TimedWork]] = {
        "greedy": lambda: TimedWork(lambda x: x.float().argmax(dim=-1), (draw(),)),  # which vLLM takes in fp32
        "top_k": lambda: vllm_ops.sampler(draw(), k=_MOST), "top_p": lambda: vllm_ops.sampler(draw(), p=_SHARE),
    }  # fmt: skip
    for kind, method in METHODS.items():
        shape = {"dtype": dtype, "kind": kind, "rows": B, "vocab": V}
        case = TimedCase("sampling", "torch, eager", shape, B * V * parse_dtype(dtype).bytes,
                    lambda method=method: TimedWork(method, (draw(),)))  # fmt: skip
        if device.is_cuda and kind in theirs:
            yield case.by_vllm("its sampler", "vllm", theirs[kind])
        yield case


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row [B]."""
    return logits.argmax(dim=-1)


def draw(p: Tensor) -> Tensor:
    """A token of each row [B] with probability p [B, V], unnormalised: the largest p/e, e exponential (Gumbel's trick).

    It waits for nothing, unlike torch.multinomial, so that a graph can hold it.
    """
    return (p / torch.empty_like(p).exponential_(1.0).clamp_min(1e-20)).argmax(dim=-1)


_MOST, _SHARE = 50, 0.9


def top_k(logits: Tensor, k: int = _MOST) -> Tensor:
    """Draw from the k likeliest tokens."""
    best, token = logits.float().topk(min(k, logits.shape[-1]), dim=-1)  # [B, k]
    return token.gather(-1, draw(best.softmax(dim=-1))[:, None])[:, 0]


def top_p(logits: Tensor, share: float = _SHARE) -> Tensor:
    """Draw from the fewest tokens that hold `share` of the probability (nucleus, arXiv:1904.09751)."""
    p, token = logits.float().softmax(dim=-1).sort(dim=-1, descending=True)
    before = p.cumsum(dim=-1) - p
    return token.gather(-1, draw(p.masked_fill(before >= share, 0.0))[:, None])[:, 0]


def min_p(logits: Tensor, least: float = 0.05) -> Tensor:
    """Draw from the tokens that are at least `least` times as likely as the likeliest (arXiv:2407.01082)."""
    p = logits.float().softmax(dim=-1)
    return draw(p.masked_fill(p < least * p.amax(dim=-1, keepdim=True), 0.0))


METHODS: dict[str, Call] = {"greedy": greedy, "top_k": top_k, "top_p": top_p, "min_p": min_p}

"""The kernels that are timed, exactly as they are timed, against their definitions in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from rooflinekit.model.types.dtype import Dtype
from rooflinekit.validate import elementwise, vllm_ops
from rooflinekit.validate.attention_kernels import (
    Heads,
    chunk_cases,
    decode_cases,
    latent_decode_cases,
    latent_prefill_cases,
    prefill_cases,
    varlen_cases,
)
from rooflinekit.validate.case import TORCH, VLLM, TimedCase, drawn_by
from rooflinekit.validate.device import Device
from rooflinekit.validate.elementwise import append_cases, norm_cases, rope_cases, swiglu_cases
from rooflinekit.validate.matrix_kernels import expert_cases, gemm_cases
from rooflinekit.validate.quantised import step_noise
from rooflinekit.validate.reference import dense_attention, mixture_loop, rotated
from rooflinekit.validate.tolerance import CheckResult, Trial, compare, follows, not_run, peak, rounding
from rooflinekit.validate.vllm_ops import TILE

_HEADS = Heads(8, 2, 64)
_NAMES = {dtype: name for name, dtype in TORCH.items()}
_LATENT_SCALE = math.sqrt(576 / 192)  # MLA's logits are scaled by the width of a head that is spelt out


def _here(trial: Trial) -> tuple[str, Device]:
    """What cases ask for: the format, and of a device its kind; sizes and names do not matter here."""
    return _NAMES[trial.dtype], Device(trial.device, str(trial.device), 1, 0, 0, {})


def attention(trial: Trial) -> Iterator[CheckResult]:
    """Every timed attention kernel, in the format that models run in."""
    here = _here(trial)
    yield from _checked(trial, prefill_cases(_HEADS, 2, 24, *here), _attended)
    yield from _checked(trial, chunk_cases(_HEADS, 2, 9, 24, *here), _attended)
    yield from _checked(trial, varlen_cases(_HEADS, (5, 9, 17), *here), _each_alone)
    yield from _checked(trial, decode_cases(_HEADS, 2, 40, *here), _attended)
    yield from _checked(trial, latent_prefill_cases(2, 1, 24, *here), _attended)
    yield from _checked(trial, latent_decode_cases(4, 2, 40, *here), _latent)


def _attended(case: TimedCase, q: Tensor, *rest: Tensor) -> Tensor:
    """With k and v [B, K, T, d]; or q [B·S, H, d], and pages [pages, P, K, d] as the call left them."""
    if q.dim() == 4:
        return dense_attention(q, *rest)
    *_, keys, values, table = rest
    k, v = (_gathered(pool, table, case).transpose(1, 2) for pool in (keys, values))
    return dense_attention(q.unflatten(0, (len(table), -1)).transpose(1, 2), k, v).transpose(1, 2).flatten(0, 1)


def _gathered(pool: Tensor, table: Tensor, case: TimedCase) -> Tensor:
    """What the pages of each sequence hold [B, T, ...]."""
    T = case.shape["seq_len"] + case.shape.get("prefix", 0)
    return torch.stack([pool[row.long()].flatten(0, 1) for row in table])[:, :T]


def _each_alone(case: TimedCase, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Packed sequences [N, heads, d], one by one."""
    alone = zip(*(x.split(case.shape["lengths"]) for x in (q, k, v)), strict=True)
    outs = [dense_attention(*(x.transpose(0, 1)[None] for x in one))[0] for one in alone]
    return torch.cat(outs, dim=1).transpose(0, 1)


def _latent(case: TimedCase, q: Tensor, latent: Tensor, table: Tensor | None = None) -> Tensor:
    """All heads share one key of 576 columns, the first 512 of which are the value; [B, T, 576], or pages of them."""
    kept = latent[:, None] if table is None else _gathered(latent, table, case).transpose(1, 2)
    return dense_attention(q[:, :, None].double() * _LATENT_SCALE, kept, kept[..., :512])[:, :, 0]


def matrices(trial: Trial) -> Iterator[CheckResult]:
    """GEMMs of every format that the device has, at decode and prefill shapes, and the mixture of experts."""
    own, device = _here(trial)
    for dtype in ("bf16", "fp8") if device.is_cuda else dict.fromkeys((own, "bf16")):
        for m in (3, 40):
            yield from _checked(trial, gemm_cases(m, 64, 128, dtype, device), _product)
    for dtype in ("fp8_block", "int4_a16") if device.is_cuda else ():
        for m in (3, 40):
            yield from _checked(trial, gemm_cases(m, 256, 384, dtype, device), _product)
    yield from _checked(trial, expert_cases(13, 64, 32, 8, 2, own, device), _mixture)


def _product(case: TimedCase, x: Tensor, *rest: Tensor) -> Tensor:
    """The product x W^T; in fp8 the scale of x is between the two. Scales of tiles, and of groups of INT4, follow W."""
    if case.shape["dtype"] == "int4_a16":
        _, scales, plain = rest
        bits = torch.arange(0, 32, 4, device=plain.device)[:, None]
        weight = ((plain[:, None] >> bits & 15).flatten(0, 1) - 8).double()  # [k, n]
        return x.double() @ (weight * scales.double().repeat_interleave(TILE, dim=0))
    if case.shape["dtype"] == "fp8_block":
        weight, scales = rest
        tiles = scales.double().repeat_interleave(TILE, dim=0).repeat_interleave(TILE, dim=1)
        return x.double() @ (weight.double() * tiles).T
    return x.double() @ rest[-1].double().T


def _mixture(case: TimedCase, x: Tensor, router: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """Matrices [E, inputs, outputs]; vLLM's lie the other way."""
    inner, outer = (inner.mT, outer.mT) if case.engine == "vllm" else (inner, outer)
    return mixture_loop(x, router, inner, outer, case.shape["top_k"])


def between(trial: Trial) -> Iterator[CheckResult]:
    """Norm with residual, rotary positions, SwiGLU, and what is written into a cache."""
    here = _here(trial)
    yield from _checked(trial, norm_cases(5, 64, "rmsnorm", *here), _normed)
    yield from _checked(trial, norm_cases(6, 64, "layernorm", *here), partial(_normed, centred=True))
    yield from _checked(trial, rope_cases(7, 4, 2, 16, *here), _turned)
    yield from _checked(trial, swiglu_cases(5, 32, *here), _gated)
    yield from _checked(trial, append_cases(5, 2, 64, here[0], *here), _appended)


def _normed(case: TimedCase, x: Tensor, residual: Tensor, weight: Tensor, centred: bool = False) -> Tensor:
    """Of the sum; LayerNorm centres it before."""
    stream = x.double() + residual.double()
    stream = stream - stream.mean(dim=-1, keepdim=True) if centred else stream
    eps = 1e-5 if centred else 0.0  # as PyTorch adds by default
    return stream / (stream.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


def _turned(case: TimedCase, q: Tensor, k: Tensor, where: Tensor) -> Tensor:
    """The keys, which come last: [1, K, N, d], or vLLM's [N, K, d]."""
    heads = k[0] if k.dim() == 4 else k.transpose(0, 1)
    rows = [[rotated(row, int(at)) for row, at in zip(head, where, strict=True)] for head in heads]
    turned = torch.stack([torch.stack(each) for each in rows])
    return turned[None] if k.dim() == 4 else turned.transpose(0, 1)


def _gated(case: TimedCase, x: Tensor) -> Tensor:
    gate, up = x.double().chunk(2, dim=-1)
    return gate / (1 + (-gate).exp()) * up


def _appended(case: TimedCase, new: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> Tensor:
    """The pool of values, with those of token n in slot n of the slots."""
    want = values.double()
    for slot, value in zip(slots.tolist(), new[1].double(), strict=True):
        want[slot] = value
    return want


def _checked(trial: Trial, cases: Iterable[TimedCase], reference: Callable[..., Tensor]) -> Iterator[CheckResult]:
    """Run each case once on inputs drawn for this trial; a kernel that is not here is missing, not wrong."""
    for number, case in enumerate(cases):
        kind = case.shape.get("kind", case.op)
        name = f"{kind} {case.shape['dtype']}, {case.backend} = float64"
        shown = ", ".join(f"{column} {value}" for column, value in case.shape.items() if isinstance(value, int))
        try:
            with drawn_by(trial.generator(number)):
                work = case.build()
                cold = work.cold()
            hot, before = ([x.clone() for x in each] for each in (work.hot, cold))  # some kernels write in place
            got = work.run(*work.hot, *cold)
            if got is None:  # values were written into the second of them
                got, cold = cold[1], tuple(before)
            want = reference(case, *hot, *cold)
            limit = _tolerance(case, hot[0], peak(want))
            result, lost = compare(name, got[-1] if isinstance(got, tuple) else got, want, limit, shown), False
        except Exception as error:
            result, lost = not_run(name, error), trial.device.type == "cuda"
        yield replace(result, kernel=case.kernel)
        if lost:
            torch.cuda.synchronize(trial.device)  # raises after a fault, of which the other kernels are innocent


def _tolerance(case: TimedCase, first: Tensor, largest: float) -> float:
    """Rounding along the widths and keys at hand; GEMMs of narrow formats also round their activations."""
    shape = case.shape
    wide = TORCH[shape["dtype"]] if shape["dtype"] in ("fp32", "bf16") else torch.bfloat16
    if case.op == "elementwise":
        return 2 * rounding(wide, 64)
    lengths = [
        int(shape[key])
        for key in ("head_dim", "seq_len", "prefix", "k", "hidden", "expert_intermediate")
        if key in shape
    ]
    limit = rounding(wide, *lengths, *([576] if case.op.startswith("mla") else []), peak=largest)
    limit *= 4 if case.op == "moe" else 1  # few rows, which hardly average
    return limit + (4.0 * step_noise(first.float(), Dtype.FP8) if shape["dtype"].startswith("fp8") else 0.0)


def samplers(trial: Trial) -> Iterator[CheckResult]:
    """20,000 draws follow the distribution cut as the method's definition says."""
    logits = torch.linspace(2.0, -3.0, 12, device=trial.device)
    p = logits.double().softmax(dim=0)  # the likeliest first
    before = p.cumsum(dim=0) - p
    rows = logits.expand(20_000, -1).contiguous()
    torch.manual_seed(trial.number())
    theirs = {"top_k": partial(vllm_ops.sampler, k=5), "top_p": partial(vllm_ops.sampler, p=0.9)}
    for name, call, kept in (
        ("top_k", lambda x: elementwise.top_k(x, 5), torch.arange(12, device=p.device) < 5),
        ("top_p", elementwise.top_p, before < 0.9),  # the fewest likeliest tokens that hold the share together
        ("min_p", elementwise.min_p, p >= 0.05 * p[0]),
    ):
        yield follows(f"sampling {name}", call(rows), p * kept)
        if trial.device.type == "cuda" and name in theirs:
            try:
                result = follows(f"sampling {name}, vLLM's", theirs[name](rows).run(rows), p * kept)
            except Exception as error:
                result = not_run(f"sampling {name}, vLLM's", error)
            yield replace(result, kernel=f"sampling, {VLLM}, its sampler")


KERNEL_CHECKS = (attention, matrices, between, samplers)

"""The kernels that are timed, exactly as they are timed, against their definitions in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.validate import sampling
from rooflinekit.validate.case import TORCH, Case, drawn_by
from rooflinekit.validate.decode import decode_cases
from rooflinekit.validate.device import Device
from rooflinekit.validate.elementwise import norm_cases, rope_cases, swiglu_cases
from rooflinekit.validate.experts import expert_cases
from rooflinekit.validate.gemm import gemm_cases
from rooflinekit.validate.latent import latent_decode_cases, latent_prefill_cases
from rooflinekit.validate.prefill import Heads, prefill_cases, varlen_cases
from rooflinekit.validate.quantised import step_noise
from rooflinekit.validate.reference import dense_attention, mixture_loop, rotated
from rooflinekit.validate.tolerance import (
    CheckResult,
    Trial,
    compare,
    follows,
    not_run,
    peak,
    rounding,
)

__all__ = ["KERNEL_CHECKS"]

_HEADS = Heads(8, 2, 64)
_NAMES = {dtype: name for name, dtype in TORCH.items()}
_LATENT_SCALE = math.sqrt(576 / 192)  # MLA's logits are scaled by the width of a head that is spelt out


def _device(trial: Trial) -> Device:
    """What the cases ask of a device: its kind; sizes and names do not matter here."""
    return Device(trial.device, str(trial.device), 1, 0, 0, {})


def attention(trial: Trial) -> Iterator[CheckResult]:
    """Every timed attention kernel, in the format that models run in."""
    here, dtype = _device(trial), _NAMES[trial.dtype]
    yield from _checked(trial, prefill_cases([(_HEADS, 2, 24)], dtype, here), _prompts)
    yield from _checked(trial, varlen_cases([(_HEADS, (5, 9, 17))], dtype, here), _each_alone)
    yield from _checked(trial, decode_cases([(_HEADS, 2, 40)], dtype, here), _decode)
    yield from _checked(
        trial, latent_prefill_cases([(2, 1, 24)], dtype, here), lambda case, q, k, v: dense_attention(q, k, v)
    )
    yield from _checked(trial, latent_decode_cases([(4, 2, 40)], dtype, here), _latent)


def _prompts(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Prompts [B, heads, S, d], or packed one after the other [B·S, heads, d]."""
    if q.dim() == 4:
        return dense_attention(q, k, v)
    apart = (x.unflatten(0, (case.shape["batch"], -1)).transpose(1, 2) for x in (q, k, v))
    return dense_attention(*apart).transpose(1, 2).flatten(0, 1)


def _each_alone(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Packed sequences [N, heads, d], one by one."""
    alone = zip(*(x.split(case.shape["lengths"]) for x in (q, k, v)), strict=True)
    outs = [dense_attention(*(x.transpose(0, 1)[None] for x in one))[0] for one in alone]
    return torch.cat(outs, dim=1).transpose(0, 1)


def _decode(case: Case, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None = None, *_: Tensor) -> Tensor:
    """With k and v [B, K, T, d], or pages [pages, P, K, d] as the call left them and a table [B, pages of one]."""
    if table is not None:
        k, v = (torch.stack([pool[row.long()].flatten(0, 1) for row in table]).transpose(1, 2) for pool in (k, v))
        k, v = k[:, :, : case.shape["seq_len"]], v[:, :, : case.shape["seq_len"]]
    return dense_attention(q.reshape(len(q), -1, 1, q.shape[-1]), k, v).view(q.shape)


def _latent(case: Case, q: Tensor, latent: Tensor, table: Tensor | None = None) -> Tensor:
    """All heads share one key of 576 columns, the first 512 of which are the value; [B, T, 576], or pages of them."""
    if table is not None:
        latent = torch.stack([latent[row.long()].flatten(0, 2) for row in table])[:, : case.shape["seq_len"]]
    kept = latent[:, None]
    return dense_attention(q[:, :, None].double() * _LATENT_SCALE, kept, kept[..., :512])[:, :, 0]


def _checked(trial: Trial, cases: Iterable[Case], reference: Callable[..., Tensor]) -> Iterator[CheckResult]:
    """Run each case once on inputs drawn for this trial; a kernel that is not here is missing, not wrong."""
    for number, case in enumerate(cases):
        name = f"{case.op} {case.shape['dtype']}, {case.backend} = float64"
        try:
            result = compare(name, *_both(trial, number, case, reference), _shown(case))
            lost = False
        except Exception as error:
            result, lost = not_run(name, error), trial.device.type == "cuda"
        yield replace(result, kernel=case.kernel)
        if lost:
            torch.cuda.synchronize(trial.device)  # raises after a fault, of which the other kernels are innocent


def _both(trial: Trial, number: int, case: Case, reference: Callable[..., Tensor]) -> tuple[Tensor, Tensor, float]:
    """What the kernel gives, what the reference gives, and how far they may be apart."""
    with drawn_by(trial.generator(number)):
        work = case.build()
        inputs = (*work.hot, *work.cold())
    got = work.run(*inputs)
    assert isinstance(got, Tensor)
    want = reference(case, *inputs)
    return got, want, _tolerance(case, inputs, peak(want))


def _shown(case: Case) -> str:
    return ", ".join(f"{name} {value}" for name, value in case.shape.items() if isinstance(value, int))


def _tolerance(case: Case, inputs: tuple[Tensor, ...], largest: float) -> float:
    """Rounding along the widths and keys at hand; GEMMs of narrow formats also round their activations."""
    shape = case.shape
    wide = TORCH[shape["dtype"]] if parse_dtype(shape["dtype"]).is_wide else torch.bfloat16
    lengths = [int(shape[key]) for key in ("head_dim", "seq_len", "k", "hidden", "expert_intermediate") if key in shape]
    lengths += [576] if case.op.startswith("mla") else []
    limit = rounding(wide, *lengths, peak=largest)
    limit *= 4 if case.op == "moe" else 1  # few rows, which hardly average
    if case.op == "gemm" and shape["dtype"] == "fp8":
        limit += 4.0 * step_noise(inputs[0].float(), Dtype.FP8)
    return limit


def matrices(trial: Trial) -> Iterator[CheckResult]:
    """GEMMs of every format that the device has, at decode and prefill shapes, and the mixture of experts."""
    here, own = _device(trial), _NAMES[trial.dtype]
    for dtype in ("bf16", "fp8") if here.is_cuda else dict.fromkeys((own, "bf16")):
        yield from _checked(trial, gemm_cases([(3, 64, 128), (40, 64, 128)], dtype, here), _product)
    yield from _checked(
        trial,
        expert_cases([(13, 64, 32, 8, 2)], own, here),
        _mixture,
    )


def _mixture(case: Case, x: Tensor, router: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """Matrices [E, inputs, outputs]; vLLM's lie the other way."""
    if case.engine == "vllm":
        inner, outer = inner.mT, outer.mT
    return mixture_loop(x, router, inner, outer, case.shape["top_k"])


def _product(case: Case, x: Tensor, *rest: Tensor) -> Tensor:
    """The product x W^T; in fp8 the scale of x is between the two."""
    return x.double() @ rest[-1].double().T


def between(trial: Trial) -> Iterator[CheckResult]:
    """Norm with residual, rotary positions, SwiGLU."""
    here, own = _device(trial), _NAMES[trial.dtype]
    for case, parts in (
        (next(norm_cases([(5, 64)], own, here)), _norm),
        (next(rope_cases([(7, 4, 2, 16)], own, here)), _turned),
        (next(swiglu_cases([(5, 32)], own, here)), _swiglu),
    ):
        with drawn_by(trial.generator()):
            work = case.build()
        got = work.run(*work.hot)
        first = got[-1] if isinstance(got, tuple) else got
        name, limit = f"{case.shape['kind']} = float64", 2 * rounding(trial.dtype, 64)
        yield compare(name, first, parts(*work.hot), limit, case.backend)


def _norm(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    stream = x.double() + residual.double()
    return stream / (stream.square().mean(dim=-1, keepdim=True)).sqrt() * weight.double()


def _turned(q: Tensor, k: Tensor, where: Tensor) -> Tensor:
    return torch.stack(
        [torch.stack([rotated(row, int(at)) for row, at in zip(head, where, strict=True)]) for head in k[0]]
    )[None]


def _swiglu(x: Tensor) -> Tensor:
    gate, up = x.double().chunk(2, dim=-1)
    return gate / (1 + (-gate).exp()) * up


def samplers(trial: Trial) -> Iterator[CheckResult]:
    """20,000 draws follow the distribution cut as the method's definition says."""
    logits = torch.linspace(2.0, -3.0, 12, device=trial.device)
    p = logits.double().softmax(dim=0).tolist()
    kept = {"top_k": _best(p, 5), "top_p": _nucleus(p, 0.9), "min_p": [x if x >= 0.05 * max(p) else 0.0 for x in p]}
    calls = {"top_k": lambda x: sampling.top_k(x, 5), "top_p": sampling.top_p, "min_p": sampling.min_p}
    torch.manual_seed(trial.number())
    rows = logits.expand(20_000, -1).contiguous()
    for name, want in kept.items():
        yield follows(f"sampling {name}", calls[name](rows), torch.tensor(want))


def _best(p: list[float], k: int) -> list[float]:
    least = sorted(p)[-k]
    return [x if x >= least else 0.0 for x in p]


def _nucleus(p: list[float], share: float) -> list[float]:
    """The fewest likeliest tokens that hold the share together."""
    order, held = sorted(range(len(p)), key=lambda i: -p[i]), 0.0
    kept = [0.0] * len(p)
    for i in order:
        if held >= share:
            break
        kept[i], held = p[i], held + p[i]
    return kept


KERNEL_CHECKS = (attention, matrices, between, samplers)

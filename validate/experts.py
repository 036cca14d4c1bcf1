"""A mixture of experts as servers run it: router, rows sorted by expert, two grouped GEMMs, weighted sum.

Letters: N tokens, D width, F inner width, E experts, k experts a token visits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor

from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.errors import ArchitectureError
from rooflinekit.validate import vllm_ops
from rooflinekit.validate.case import Case, Work, normal
from rooflinekit.validate.device import Device
from rooflinekit.validate.feedforward import route, run_experts

__all__ = ["balanced", "expert_cases", "mixture"]

_CHOSEN = 6.0
"""Score of a chosen expert, give or take 2; the others have between -2 and 2."""


def expert_cases(shapes: Iterable[tuple[int, int, int, int, int]], dtype: str, device: Device) -> Iterator[Case]:
    """(N, D, F, E, k), the experts taken in turn so that each has as many tokens as any other; all are here."""
    for N, D, width, E, k in shapes:
        shape = {
            "dtype": dtype, "routing": "balanced", "ffn_matrices": 3, "tokens": N, "hidden": D,
            "expert_intermediate": width, "top_k": k, "experts": E, "touched": min(E, N * k), "tp": 1, "ep": 1,
        }  # fmt: skip
        fused = device.is_cuda and dtype == "bf16" and hasattr(F, "grouped_mm")
        name = "torch grouped_mm" if fused else "torch linear, one expert after the other"
        size = (3.0 * E * D * width + N * (2.0 * D + 3.0 * k * width)) * parse_dtype(dtype).bytes
        if device.is_cuda:
            own = partial(_build_vllm, (N, D, width, E, k), dtype, device)
            yield Case("moe", f"{vllm_ops.NAME}, fused_experts", shape, size, own, "vllm", "vllm, Triton")
        yield Case("moe", name, shape, size, partial(_build, (N, D, width, E, k), dtype, device))


def _build(shape: tuple[int, int, int, int, int], dtype: str, device: Device) -> Work:
    N, D, width, E, k = shape
    x, router = balanced(normal(N, D, dtype=dtype, device=device.torch), E, k)

    def cold() -> tuple[Tensor, ...]:
        inner = normal(E, D, 2 * width, dtype=dtype, device=device.torch)
        return inner, normal(E, width, D, dtype=dtype, device=device.torch)

    return Work(partial(mixture, k=k), (x, router), cold)


def _build_vllm(shape: tuple[int, int, int, int, int], dtype: str, device: Device) -> Work:
    N, D, width, E, k = shape
    tokens = balanced(normal(N, D, dtype=dtype, device=device.torch), E, k)
    return vllm_ops.experts(tokens, (E, D, width), k, dtype, device)


def balanced(x: Tensor, E: int, k: int) -> tuple[Tensor, Tensor]:
    """Tokens x [N, D], marked, and a router [D, E] that sends token n to experts n·k to n·k + k - 1, counted round.

    The first E columns of a token say which experts it visits and the router reads them alone; the others are random.
    A random router would leave experts out: 16 tokens with 8 of 128 experts each visit 81 of them.
    """
    N, D = x.shape
    if D < E:
        raise ArchitectureError(f"{E} experts cannot be told apart by {D} columns")
    expert = (torch.arange(N * k, device=x.device) % E).view(N, k)
    scores = x[:, :E].clamp(-2, 2)
    marked = torch.cat([scores.scatter(1, expert, _CHOSEN + scores[:, :k]), x[:, E:]], dim=1)
    return marked, torch.eye(D, E, dtype=x.dtype, device=x.device)


def mixture(x: Tensor, router: Tensor, inner: Tensor, outer: Tensor, k: int) -> Tensor:
    """Tokens x [N, D], router [D, E], inner [E, D, 2F] (gate, up), outer [E, F, D] -> [N, D]."""
    shares, chosen = route(x @ router, k)  # both [N, k]
    return run_experts(x, shares, chosen, inner, outer)

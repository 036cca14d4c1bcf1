"""Feed-forward blocks: dense, and a mixture of experts whose tokens are grouped by expert.

Letters: N tokens, D width, F inner width, E experts, k experts a token visits, m = 2 inner matrices if gated, else 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor, nn

from rooflinekit.model.types.model import DenseFFN, MixtureOfExperts


def activate(x: Tensor, gated: bool = True) -> Tensor:
    """SwiGLU of the halves [gate, up] of x, or GELU of x."""
    if not gated:
        return F.gelu(x)
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def route(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best experts of each token and their shares, which add up to 1: both [N, k]."""
    best, chosen = scores.float().softmax(dim=-1).topk(k, dim=-1)
    return best / best.sum(dim=-1, keepdim=True), chosen


def grouped_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows of x [n, D], sorted by expert, times that expert's weight [E, D, F]; expert i has rows ends[i-1] to ends[i].

    One launch where PyTorch has one (16-bit on CUDA, and without a host synchronisation), else one product an expert.
    """
    if x.is_cuda and x.dtype == torch.bfloat16 and hasattr(F, "grouped_mm"):
        return F.grouped_mm(x, weight, offs=ends.to(torch.int32))
    groups = x.tensor_split(ends[:-1].cpu())
    return torch.cat([rows @ matrix for rows, matrix in zip(groups, weight, strict=True)])


def run_experts(
    x: Tensor, shares: Tensor, chosen: Tensor, inner: Tensor, outer: Tensor, gated: bool = True,
    biases: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Sort the (token, expert) pairs by expert, run each expert on its rows, add up per token: x [N, D] -> [N, D].

    Shares and chosen experts [N, k]; inner [E, D, m·F] ([gate, up] if gated), outer [E, F, D], biases [E, ...].
    """
    expert, order = chosen.flatten().sort(stable=True)  # rows by expert, [N·k]
    ends = torch.searchsorted(expert, torch.arange(len(inner), device=x.device), right=True)  # [E]
    token = order // chosen.shape[1]
    hidden = grouped_matmul(x[token], inner, ends)
    rows = grouped_matmul(activate(hidden if biases is None else hidden + biases[0][expert], gated), outer, ends)
    rows = rows if biases is None else rows + biases[1][expert]
    return torch.zeros_like(x).index_add_(0, token, rows * shares.flatten()[order, None].to(x.dtype))


class DenseBlock(nn.Module):
    """down(activation(up x)), with a gate where the model has one."""

    def __init__(self, spec: DenseFFN, D: int) -> None:
        super().__init__()
        self.gated, self.inner = spec.gated, "gate_up_proj" if spec.gated else "up_proj"
        self.add_module(self.inner, nn.Linear(D, (2 if spec.gated else 1) * spec.width, bias=spec.bias))
        self.down_proj = nn.Linear(spec.width, D, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return self.down_proj(activate(self.get_submodule(self.inner)(x), self.gated))


class ExpertBlock(nn.Module):
    """A router sends each token to k of E experts; shared experts see every token."""

    def __init__(self, spec: MixtureOfExperts, D: int) -> None:
        super().__init__()
        self.spec, inner = spec, spec.latent or D
        self.router = nn.Linear(D, spec.experts, bias=spec.router_bias)
        if spec.latent:
            self.expert_down_latent = nn.Linear(D, inner, bias=False)
            self.expert_up_latent = nn.Linear(inner, D, bias=False)
        self.experts = ExpertWeights(spec, inner)
        if spec.shared_width:
            self.shared = DenseBlock(DenseFFN(spec.shared_width, spec.gated), D)
        if spec.shared_gate:
            self.shared_gate = nn.Linear(D, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        tokens = x.flatten(0, -2)  # [N, D]
        shares, chosen = route(self.router(tokens), self.spec.top_k)
        narrow = self.expert_down_latent(tokens) if self.spec.latent else tokens
        out = self.experts(narrow, shares, chosen)
        out = self.expert_up_latent(out) if self.spec.latent else out
        if self.spec.shared_width:
            shared = self.shared(tokens)
            out = out + (shared * self.shared_gate(tokens).sigmoid() if self.spec.shared_gate else shared)
        return out.view_as(x)


class ExpertWeights(nn.Module):
    """The routed experts, each weight one tensor over all of them."""

    def __init__(self, spec: MixtureOfExperts, D: int) -> None:
        super().__init__()
        E, W, m = spec.experts, spec.width, 2 if spec.gated else 1
        self.gated = spec.gated
        self.inner, self.outer = nn.Parameter(torch.empty(E, D, m * W)), nn.Parameter(torch.empty(E, W, D))
        self.inner_bias = nn.Parameter(torch.empty(E, m * W)) if spec.bias else None
        self.outer_bias = nn.Parameter(torch.empty(E, D)) if spec.bias else None

    def forward(self, x: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        """Tokens x [N, D] through the chosen experts [N, k]: [N, D]."""
        biases = None if self.inner_bias is None else (self.inner_bias, self.outer_bias)
        return run_experts(x, shares, chosen, self.inner, self.outer, self.gated, biases)

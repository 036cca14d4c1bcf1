"""Recurrent mixers of the walk against real tensors: each written out in a few lines from its paper or its code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `gpu` (torch)")

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everyone writes it

from rooflinekit.explanation.walk.front import walk
from rooflinekit.explanation.walk.prompts import Prompts
from rooflinekit.explanation.walk.result import WalkSection
from rooflinekit.model.step import make_plan
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.model import GatedConvolution, GatedDeltaNet, LightningAttention, Mamba, Mamba2
from rooflinekit.specs import load_accelerator
from rooflinekit.validate.checks_model import tiny

SYSTEM = System.of(load_accelerator("h100-sxm").value)
B, S, D = 2, 7, 64
DELTA = GatedDeltaNet(key_heads=2, value_heads=4, key_dim=16, value_dim=24, conv_width=4)
LIGHTNING = LightningAttention(heads=4, head_dim=24)
MAMBA = Mamba(inner=96, state=8, conv_width=4, dt_rank=5)
MAMBA2 = Mamba2(heads=6, head_dim=20, groups=2, state=12, conv_width=4)
CONVOLUTION = GatedConvolution(channels=48, conv_width=3)


class Mixer(nn.Module):
    """Keeps every tensor that it makes under the walk's name for it, and its state from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[str, str], Tensor] = {}
        self.held: dict[str, list[Tensor]] = {}
        self.state: dict[str, Tensor] = {}

    def note(self, step: str, **tensors: Tensor) -> None:
        for name, tensor in tensors.items():
            self.seen[step, name] = tensor

    def linear(self, step: str, name: str, x: Tensor, n: int, bias: bool = False) -> Tensor:
        """A matrix of its own for each step, made when it is first used."""
        if step not in self._modules:
            self.add_module(step, nn.Linear(x.shape[-1], n, bias=bias))
        module = self.get_submodule(step)
        self.held[step] = [weight for weight in (module.weight, module.bias) if weight is not None]
        self.note(step, **{name: (out := module(x))})
        return out

    def parameter(self, step: str, *shapes: tuple[int, ...]) -> list[Tensor]:
        if step not in self.held:
            self.held[step] = [torch.rand(shape) for shape in shapes]
        return self.held[step]

    def convolve(self, x: Tensor, taps: int, bias: bool, activation: Callable[[Tensor], Tensor] = F.silu) -> Tensor:
        """Depthwise and causal; the last taps - 1 inputs stay."""
        step, channels = "short convolution", x.shape[-1]
        weight, *shift = self.parameter(step, (channels, taps), *([(channels,)] if bias else []))
        before = self.state.get(step, torch.zeros(B, channels, taps - 1))
        whole = torch.cat([before, x.mT], dim=-1)
        out = activation(F.conv1d(whole, weight[:, None], *shift, groups=channels)).mT
        self.state[step] = whole[..., 1 - taps :]
        self.note(step, x=out, state=self.state[step])
        return out

    def recur(self, step: str, state: Tensor, each: Callable[[Tensor, int], tuple[Tensor, Tensor]], n: int) -> Tensor:
        """Token by token: state -> state, output."""
        state, outs = self.state.get(step, state), []
        for token in range(n):
            state, out = each(state, token)
            outs.append(out)
        self.state[step] = state
        self.note(step, state=state, x=(whole := torch.stack(outs, dim=1)))
        return whole


class Delta(Mixer):
    """Gated DeltaNet (arXiv:2412.06464), as Qwen3-Next lays it out."""

    def forward(self, x: Tensor) -> Tensor:
        b, n = DELTA, x.shape[1]
        keys, values = b.key_heads * b.key_dim, b.value_heads * b.value_dim
        q, k, v, z = self.linear("QKV, gate projection", "qkvz", x, 2 * keys + 2 * values).split(
            [keys, keys, values, values], dim=-1
        )
        heads = {"Q": (q, b.key_dim), "K": (k, b.key_dim), "V": (v, b.value_dim), "gate": (z, b.value_dim)}
        self.note("split heads", **{name: part.unflatten(-1, (-1, d)) for name, (part, d) in heads.items()})
        rate, decay = self.linear("decay and rate", "β, a", x, 2 * b.value_heads).chunk(2, dim=-1)
        mixed = self.convolve(torch.cat([q, k, v], dim=-1), b.conv_width, False)
        q, k, v = mixed.split([keys, keys, values], dim=-1)
        spread = b.value_heads // b.key_heads
        q, k = (
            F.normalize(part.unflatten(-1, (b.key_heads, -1)), dim=-1).repeat_interleave(spread, dim=2)
            for part in (q, k)
        )
        v = v.unflatten(-1, (b.value_heads, -1))
        log, shift = self.parameter("delta rule", (b.value_heads,), (b.value_heads,))
        gain = torch.exp(-log.exp() * F.softplus(decay + shift))

        def each(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            state = state * gain[:, t, :, None, None]
            error = v[:, t] - (state * k[:, t, ..., None, :]).sum(-1)
            state = state + (rate.sigmoid()[:, t, :, None] * error)[..., None] * k[:, t, ..., None, :]
            return state, (state * q[:, t, ..., None, :]).sum(-1)

        zeros = torch.zeros(B, b.value_heads, b.value_dim, b.key_dim)
        out = self.recur("delta rule", zeros, each, n)
        (scale,) = self.parameter("gated norm", (b.value_dim,))
        out = F.rms_norm(out, (b.value_dim,), scale).flatten(-2) * F.silu(z)
        self.note("gated norm", x=out)
        return self.linear("output projection", "x", out, D)


class Lightning(Mixer):
    """Lightning attention (MiniMax-01, arXiv:2501.08313, section 2.2.1)."""

    def forward(self, x: Tensor) -> Tensor:
        b, n = LIGHTNING, x.shape[1]
        qkv = self.linear("QKV projection", "qkv", x, 3 * b.heads * b.head_dim)
        q, k, v = (part.unflatten(-1, (b.heads, -1)) for part in qkv.chunk(3, dim=-1))
        self.note("split heads", Q=q, K=k, V=v)
        decay = torch.exp(-torch.arange(1, b.heads + 1) / b.heads)[:, None, None]

        def each(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
            state = decay * state + k[:, t, ..., None] * v[:, t, :, None]
            return state, (q[:, t, :, None] @ state)[..., 0, :]

        out = self.recur("lightning", torch.zeros(B, b.heads, b.head_dim, b.head_dim), each, n).flatten(-2)
        gate = self.linear("gate projection", "gate", x, b.heads * b.head_dim)
        (scale,) = self.parameter("gated norm", (b.heads * b.head_dim,))
        out = F.rms_norm(out, (out.shape[-1],), scale) * gate.sigmoid()
        self.note("gated norm", x=out)
        return self.linear("output projection", "x", out, D)


class Selective(Mixer):
    """Mamba (arXiv:2312.00752, algorithm 2), with Jamba's norms."""

    def forward(self, x: Tensor) -> Tensor:
        b, n = MAMBA, x.shape[1]
        inner, gate = self.linear("input projection", "x, gate", x, 2 * b.inner).chunk(2, dim=-1)
        u = self.convolve(inner, b.conv_width, True)
        widths = [b.dt_rank, b.state, b.state]
        low = self.linear("dt, B, C projection", "dt, B, C", u, sum(widths)).split(widths, dim=-1)
        (scale,) = self.parameter("norm of dt, B, C", (sum(widths),))
        normed = [F.rms_norm(part, (w,), s) for part, w, s in zip(low, widths, scale.split(widths), strict=True)]
        self.note("norm of dt, B, C", **{"dt, B, C": torch.cat(normed, dim=-1)})
        dt = F.softplus(self.linear("dt projection", "dt", normed[0], b.inner, bias=True))
        A, skip = self.parameter("selective scan", (b.inner, b.state), (b.inner,))

        def each(h: Tensor, t: int) -> tuple[Tensor, Tensor]:
            h = torch.exp(-dt[:, t, :, None] * A) * h + dt[:, t, :, None] * normed[1][:, t, None] * u[:, t, :, None]
            return h, ((h * normed[2][:, t, None]).sum(-1) + skip * u[:, t]) * F.silu(gate[:, t])

        out = self.recur("selective scan", torch.zeros(B, b.inner, b.state), each, n)
        return self.linear("output projection", "x", out, D)


class Duality(Mixer):
    """Mamba-2 (arXiv:2405.21060, section 7)."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, shared = MAMBA2, x.shape[1], MAMBA2.groups * MAMBA2.state
        widths = [b.inner, b.inner, shared, shared, b.heads]
        z, u, Bm, Cm, dt = self.linear("input projection", "gate, x, B, C, dt", x, sum(widths)).split(widths, dim=-1)
        mixed = self.convolve(torch.cat([u, Bm, Cm], dim=-1), b.conv_width, True)
        u, Bm, Cm = mixed.split([b.inner, shared, shared], dim=-1)
        u = u.unflatten(-1, (b.heads, -1))
        Bm, Cm = (part.unflatten(-1, (b.groups, -1)).repeat_interleave(b.heads // b.groups, dim=2) for part in (Bm, Cm))
        A, skip, shift = self.parameter("ssd", (b.heads,), (b.heads,), (b.heads,))
        dt = F.softplus(dt + shift)

        def each(h: Tensor, t: int) -> tuple[Tensor, Tensor]:
            h = torch.exp(-dt[:, t] * A)[..., None, None] * h
            h = h + (dt[:, t, :, None] * u[:, t])[..., None] * Bm[:, t, :, None]
            return h, (h * Cm[:, t, :, None]).sum(-1) + skip[:, None] * u[:, t]

        out = self.recur("ssd", torch.zeros(B, b.heads, b.head_dim, b.state), each, n).flatten(-2)
        (scale,) = self.parameter("gated norm", (b.inner,))
        out = F.rms_norm(out * F.silu(z), (b.inner,), scale)
        self.note("gated norm", x=out)
        return self.linear("output projection", "x", out, D)


class Gated(Mixer):
    """The short convolution of LFM2 (arXiv:2511.23404), as transformers' Lfm2ShortConv writes it."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, u = self.linear("input projection", "B, C, x", x, 3 * CONVOLUTION.channels).chunk(3, dim=-1)
        self.note("input gate", x=b * u)
        out = c * self.convolve(b * u, CONVOLUTION.conv_width, False, lambda mixed: mixed)
        self.note("output gate", x=out)
        return self.linear("output projection", "x", out, D)


KINDS: dict[str, tuple[Any, type[Mixer]]] = {
    "delta net": (DELTA, Delta), "lightning": (LIGHTNING, Lightning), "mamba": (MAMBA, Selective),
    "mamba-2": (MAMBA2, Duality), "gated convolution": (CONVOLUTION, Gated),
}  # fmt: skip


def check(section: WalkSection, mixer: Mixer) -> None:
    """Every tensor of the mixer's steps, in the order in which they are made, and every weight."""
    names = [stop.name for stop in section.stops]
    inside = section.stops[2 : names.index("residual", 1)]  # behind the first addition and norm
    assert list(dict.fromkeys(stop for stop, _ in mixer.seen)) == [stop.name for stop in inside]
    for stop in inside:
        assert {t.name: t.shape for t in stop.outputs} == {
            name: tuple(x.shape) for (step, name), x in mixer.seen.items() if step == stop.name
        }, stop.name
        ours, theirs = ([math.prod(shape) for shape in shapes] for shapes in (
            [w.shape for w in stop.weights], [w.shape for w in mixer.held.get(stop.name, [])]))  # fmt: skip
        assert sum(ours) == sum(theirs), stop.name
        if stop.name not in ("delta rule", "ssd", "selective scan"):  # decays, skips and shifts, shown as one
            assert [w.shape for w in stop.weights] == [tuple(w.shape) for w in mixer.held.get(stop.name, [])]


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_of_a_recurrent_mixer_is_real(kind: str) -> None:
    """Two prompts of 7 tokens, then one token more: what the state carries is all that decode needs of them."""
    torch.manual_seed(0)
    block, made = KINDS[kind]
    prefill, decode = walk(make_plan(tiny(kind, block), Deployment(), SYSTEM, None), Prompts((S,), B)).phases
    assert prefill.sections[1].stops[2].weights[0].shape[-1] == D
    with torch.no_grad():
        mixer, x = made(), torch.randn(B, S + 1, D)
        mixer(x[:, :S])
        check(prefill.sections[1], mixer)
        mixer.seen.clear()
        last = mixer(x[:, S:])
        check(decode.sections[1], mixer)
        mixer.state.clear()
        assert torch.allclose(mixer(x)[:, S:], last, atol=1e-5)


def test_another_width_is_seen() -> None:
    """The comparison can fail."""
    torch.manual_seed(0)
    other = Mamba(inner=96, state=16, conv_width=4, dt_rank=5)
    section = walk(make_plan(tiny("other", other), Deployment(), SYSTEM, None), Prompts((S,), B)).phases[0].sections[1]
    mixer = Selective()
    mixer(torch.randn(B, S, D))
    with pytest.raises(AssertionError):
        check(section, mixer)

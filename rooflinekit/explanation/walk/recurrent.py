"""Stops of mixers with a fixed state instead of a growing cache: linear attention and state-space layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooflinekit.explanation.walk.formula import wrapped
from rooflinekit.explanation.walk.parts import Matrix, Pass, collective, matrix, pass_over, reshape
from rooflinekit.explanation.walk.result import Stop, Symbol
from rooflinekit.explanation.walk.scene import Scene, View
from rooflinekit.model.kernels import STATE_DTYPE, Collective, Elementwise, Linear
from rooflinekit.model.kernels.recurrent import ShortConvolution, StateUpdate
from rooflinekit.model.types.model import GatedDeltaNet, LightningAttention, Mamba, Mamba2

__all__ = ["DELTA_NET", "LIGHTNING", "MAMBA", "MAMBA2", "recurrent_letters"]

_TAPS = "taps of the short convolution"


def recurrent_letters(block: GatedDeltaNet | LightningAttention | Mamba | Mamba2) -> list[Symbol]:
    """Heads, widths and the state."""
    letters: dict[str, tuple[int, str]]
    match block:
        case GatedDeltaNet():
            letters = {
                "Hk": (block.key_heads, "key heads"), "Hv": (block.value_heads, "value heads"),
                "dk": (block.key_dim, "width of a key head"), "dv": (block.value_dim, "width of a value head"),
                "t": (block.conv_width, _TAPS),
            }  # fmt: skip
        case LightningAttention():
            letters = {"H": (block.heads, "heads"), "d": (block.head_dim, "width of a head")}
        case Mamba():
            letters = {
                "I": (block.inner, "channels"), "Ds": (block.state, "state of a channel"),
                "Rt": (block.dt_rank, "rank of the time steps"), "t": (block.conv_width, _TAPS),
            }  # fmt: skip
        case Mamba2():
            letters = {
                "H": (block.heads, "heads"), "d": (block.head_dim, "width of a head"),
                "G": (block.groups, "groups that share B and C"), "Ds": (block.state, "state of a channel"),
                "t": (block.conv_width, _TAPS),
            }  # fmt: skip
    return [Symbol(name, value, meaning) for name, (value, meaning) in letters.items()]


@dataclass(frozen=True)
class _State:
    """Letters of a recurrence: its state of one sequence by axes, what a token moves, and what it makes."""

    does: str
    axes: tuple[str, ...]
    width: str
    out: tuple[str, ...]
    scales: str = ""


def _update(on: Scene, op: StateUpdate, letters: _State) -> Stop:
    """S <- decay(S) + v·kᵀ, o = S·q; the state is read and written once a step, however many tokens."""
    state, size = "·".join(map(wrapped, letters.axes)), on.size(STATE_DTYPE)
    outputs = on.tensor("state", ("B", *letters.axes), STATE_DTYPE), on.tensor("x", (*on.tokens, *letters.out))
    note = "a state of fixed size takes the place of the cache"
    view = View(op.name.replace("_", " "), op.name, letters.does, outputs, note)
    weights = [on.tensor("parameters", (letters.scales,), op.dtype)] if letters.scales else []
    held = {"weight": f"{wrapped(letters.scales)}·{on.size(op.dtype)}"} if letters.scales else {}
    moved = f"B·{state}·{size}"
    return on.stop(view, weights, flops=f"{op.flops_per_element:g}·N·{state}", kv_read=moved, kv_write=moved,
                   activation=f"N·{wrapped(letters.width)}·b", **held)  # fmt: skip


def _convolve(on: Scene, op: ShortConvolution, channels: str) -> Stop:
    """A depthwise causal convolution over t tokens."""
    wide, state = wrapped(channels), f"B·{wrapped(channels)}·(t-1)·b"
    view = View("short convolution", "short_conv", "t tokens of each channel",
                (on.tensor("x", (*on.tokens, channels)), on.tensor("state", ("B", channels, "t-1"))),
                "keeps the last t-1 inputs")  # fmt: skip
    weights = [on.tensor("taps", (channels, "t"), op.dtype)]
    weights += [on.tensor("bias", (channels,), op.dtype)] if op.bias else []
    taps = "(t+1)" if op.bias else "t"
    return on.stop(view, weights, flops=f"2·N·{wide}·t", weight=f"{wide}·{taps}·{on.size(op.dtype)}",
                   kv_read=state, kv_write=state, activation=f"2·N·{wide}·b")  # fmt: skip


def _plain(name: str, k: Callable[[Scene], str], n: Callable[[Scene], str], out: str = "x") -> Any:
    """A linear layer by the letters of its sides."""

    def stops(block: object, on: Scene, op: Linear) -> list[Stop]:
        return [matrix(on, op, Matrix(name, k(on), n(on), out))]

    return stops


def _hidden(on: Scene) -> str:
    return "D"


def _keys(on: Scene) -> str:
    return f"{on.cut('Hk')}·dk"


def _values(on: Scene) -> str:
    return f"{on.cut('Hv')}·dv"


def _mixed(on: Scene) -> str:
    return f"2·{_keys(on)}+{_values(on)}"


def _delta_project(block: GatedDeltaNet, on: Scene, op: Linear) -> list[Stop]:
    hk, hv = on.cut("Hk"), on.cut("Hv")
    heads = [on.tensor(name, (*on.tokens, hk, "dk")) for name in ("Q", "K")]
    heads += [on.tensor(name, (*on.tokens, hv, "dv")) for name in ("V", "gate")]
    return [
        matrix(on, op, Matrix("QKV, gate projection", "D", f"2·{_keys(on)}+2·{_values(on)}", "qkvz")),
        reshape("split heads", "cut the last axis into heads", heads),
    ]


def _delta_rule(block: GatedDeltaNet, on: Scene, op: StateUpdate) -> list[Stop]:
    hv = on.cut("Hv")
    width = f"{_mixed(on)}+{_values(on)}"
    return [_update(on, op, _State("S <- a·S + β·(v - S·k)·kᵀ", (hv, "dk", "dv"), width, (hv, "dv"), f"2·{hv}"))]


def _lightning_width(on: Scene) -> str:
    return f"{on.cut('H')}·d"


def _lightning_project(block: LightningAttention, on: Scene, op: Linear) -> list[Stop]:
    h = on.cut("H")
    heads = [on.tensor(name, (*on.tokens, h, "d")) for name in ("Q", "K", "V")]
    return [
        matrix(on, op, Matrix("QKV projection", "D", f"3·{h}·d", "qkv")),
        reshape("split heads", "cut the last axis into heads", heads),
    ]


def _lightning_update(block: LightningAttention, on: Scene, op: StateUpdate) -> list[Stop]:
    h = on.cut("H")
    return [_update(on, op, _State("S <- λ·S + k·vᵀ, o = q·S", (h, "d", "d"), f"4·{h}·d", (h, "d")))]


def _channels(on: Scene) -> str:
    return on.cut("I")


def _ssm_reduce(block: Mamba, on: Scene, op: Collective) -> list[Stop]:
    return [collective(on, op, "Rt+2·Ds", "dt, B, C", "channels are cut, and these need all of them")]


def _ssm_norm(block: Mamba, on: Scene, op: Elementwise) -> list[Stop]:
    width = "(Rt+2·Ds)"
    view = View("norm of dt, B, C", op.name, "normalised", (on.tensor("dt, B, C", (*on.tokens, "Rt+2·Ds")),))
    return [pass_over(on, op, view, Pass(f"4·{width}", f"2·{width}", "Rt+2·Ds"))]


def _scan(block: Mamba, on: Scene, op: StateUpdate) -> list[Stop]:
    inner = _channels(on)
    does = "h <- exp(dt·A)·h + dt·B·x, y = (C·h + D·x)·act(gate)"
    return [_update(on, op, _State(does, (inner, "Ds"), f"4·{inner}+2·Ds", (inner,), f"{inner}·(Ds+1)"))]


def _inner(on: Scene) -> str:
    return f"{on.cut('H')}·d"


def _with_groups(on: Scene) -> str:
    return f"{_inner(on)}+2·{on.cut('G')}·Ds"


def _mamba2_project(block: Mamba2, on: Scene, op: Linear) -> list[Stop]:
    h, groups = on.cut("H"), f"{on.cut('G')}·Ds"
    parts = [on.tensor(name, (*on.tokens, width)) for name, width in
             (("gate", _inner(on)), ("x", _inner(on)), ("B", groups), ("C", groups), ("dt", h))]  # fmt: skip
    return [
        matrix(on, op, Matrix("input projection", "D", f"2·{_inner(on)}+2·{groups}+{h}", "zxbcdt")),
        reshape("split", "cut the last axis", parts),
    ]


def _ssd(block: Mamba2, on: Scene, op: StateUpdate) -> list[Stop]:
    h = on.cut("H")
    does, width = "h <- a·h + dt·x·Bᵀ, y = h·C + D·x", f"{_with_groups(on)}+{_inner(on)}"
    return [_update(on, op, _State(does, (h, "d", "Ds"), width, (h, "d"), f"3·{h}"))]


def _convolution(channels: Callable[[Scene], str]) -> Any:
    def stops(block: object, on: Scene, op: ShortConvolution) -> list[Stop]:
        return [_convolve(on, op, channels(on))]

    return stops


def _gated_norm(does: str, width: Callable[[Scene], str], scales: str = "") -> Any:
    """`scales`: letters of the norm's own weights, if not one for each element."""

    def stops(block: object, on: Scene, op: Elementwise) -> list[Stop]:
        wide = width(on)
        view = View("gated norm", op.name, does, (on.tensor("x", (*on.tokens, wide)),))
        return [pass_over(on, op, view, Pass(f"8·{wide}", f"3·{wide}", scales or wide))]

    return stops


Table = Mapping[str, Callable[[Any, Scene, Any], Sequence[Stop]]]

DELTA_NET: Table = {
    "linear_qkvz_proj": _delta_project,
    "linear_ba_proj": _plain("decay and rate", _hidden, lambda on: f"2·{on.cut('Hv')}", "β, a"),
    "ShortConvolution": _convolution(_mixed),
    "delta_rule": _delta_rule,
    "gated_norm": _gated_norm("norm(x)·act(gate)", _values, "dv"),
    "o_proj": _plain("output projection", _values, _hidden),
}
LIGHTNING: Table = {
    "qkv_proj": _lightning_project,
    "lightning": _lightning_update,
    "gate_proj": _plain("gate projection", _hidden, _lightning_width, "gate"),
    "gated_norm": _gated_norm("norm(x)·act(gate)", _lightning_width),
    "o_proj": _plain("output projection", _lightning_width, _hidden),
}
MAMBA: Table = {
    "in_proj": _plain("input projection", _hidden, lambda on: f"2·{_channels(on)}", "x, gate"),
    "ShortConvolution": _convolution(_channels),
    "x_proj": _plain("dt, B, C projection", _channels, lambda on: "Rt+2·Ds", "dt, B, C"),
    "ssm_reduce": _ssm_reduce,
    "ssm_norm": _ssm_norm,
    "dt_proj": _plain("dt projection", lambda on: "Rt", _channels, "dt"),
    "selective_scan": _scan,
    "out_proj": _plain("output projection", _channels, _hidden),
}
MAMBA2: Table = {
    "in_proj": _mamba2_project,
    "ShortConvolution": _convolution(_with_groups),
    "ssd": _ssd,
    "gated_norm": _gated_norm("norm(x·act(gate))", _inner),
    "out_proj": _plain("output projection", _inner, _hidden),
}

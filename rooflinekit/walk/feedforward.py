"""Stops of feed-forward blocks: dense, and a mixture of experts with its router and shared experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooflinekit.kernels import Elementwise, Experts, Linear, distinct_experts
from rooflinekit.types.dtype import Dtype
from rooflinekit.types.model import DenseFFN, MixtureOfExperts
from rooflinekit.walk.parts import Matrix, Pass, matrix, pass_over, reshape
from rooflinekit.walk.result import Stop, Symbol, Tensor
from rooflinekit.walk.scene import Scene, View

__all__ = ["DENSE", "EXPERTS", "dense_letters", "expert_letters"]


def dense_letters(block: DenseFFN) -> list[Symbol]:
    """The inner width."""
    return [Symbol("F", block.width, "inner width of the feed-forward block")]


def expert_letters(block: MixtureOfExperts, on: Scene) -> list[Symbol]:
    """Experts, their widths, and how many of them the tokens of this step touch."""
    touched = float(distinct_experts(on.values["N"], block.experts, block.top_k))
    symbols = [
        Symbol("E", block.experts, "experts"),
        Symbol("k", block.top_k, "experts that a token visits"),
        Symbol("Fe", block.width, "inner width of an expert"),
        Symbol("touched", touched, "experts that any token visits, expected: E(1-(1-k/E)^N)"),
    ]
    if block.shared_width:
        symbols.append(Symbol("Fs", block.shared_width, "inner width of the shared experts"))
    if block.latent:
        symbols.append(Symbol("Dl", block.latent, "width at which experts work"))
    return symbols


def _up(block: DenseFFN, on: Scene, op: Linear) -> list[Stop]:
    return [_first(on, op, block.gated, "F", "")]


def _activation(block: DenseFFN, on: Scene, op: Elementwise) -> list[Stop]:
    return [_activated(on, op, block.gated, "F", "")]


def _down(block: DenseFFN, on: Scene, op: Linear) -> list[Stop]:
    return [matrix(on, op, Matrix("down projection", on.cut("F"), "D", "x"))]


def _first(on: Scene, op: Linear, gated: bool, letter: str, of: str) -> Stop:
    inner = on.cut(letter)
    if gated:
        return matrix(on, op, Matrix(f"{of}gate and up", "D", f"2·{inner}", "gate, up", "two matrices in one launch"))
    return matrix(on, op, Matrix(f"{of}up projection", "D", inner, "up"))


def _activated(on: Scene, op: Elementwise, gated: bool, letter: str, of: str) -> Stop:
    inner = on.cut(letter)
    does = "act(gate)·up" if gated else "act(up)"
    view = View(f"{of}activation", op.name, does, (on.tensor("inner", (*on.tokens, inner)),))
    return pass_over(on, op, view, Pass(f"5·{inner}", f"{3 if gated else 2}·{inner}"))


def _shared_up(block: MixtureOfExperts, on: Scene, op: Linear) -> list[Stop]:
    return [_first(on, op, block.gated, "Fs", "shared ")]


def _shared_activation(block: MixtureOfExperts, on: Scene, op: Elementwise) -> list[Stop]:
    return [_activated(on, op, block.gated, "Fs", "shared ")]


def _shared_down(block: MixtureOfExperts, on: Scene, op: Linear) -> list[Stop]:
    note = "added to what the routed experts return" + (", behind a learned gate" if block.shared_gate else "")
    return [matrix(on, op, Matrix("shared down", on.cut("Fs"), "D", "x", note))]


def _router(block: MixtureOfExperts, on: Scene, op: Linear) -> list[Stop]:
    return [matrix(on, op, Matrix("router", "D", "E", "router scores"))]


def _select(block: MixtureOfExperts, on: Scene, op: Elementwise) -> list[Stop]:
    outputs = on.tensor("shares", (*on.tokens, "k")), on.tensor("chosen", (*on.tokens, "k"), "int32")
    view = View("pick experts", op.name, f"the {block.top_k} best of each token", outputs)
    return [pass_over(on, op, view, Pass("5·E", "(E+2·k)"))]


def _to_latent(block: MixtureOfExperts, on: Scene, op: Linear) -> list[Stop]:
    return [matrix(on, op, Matrix("down to the experts", "D", "Dl", "x"))]


def _from_latent(block: MixtureOfExperts, on: Scene, op: Linear) -> list[Stop]:
    return [matrix(on, op, Matrix("up from the experts", "Dl", "D", "x"))]


def _experts(block: MixtureOfExperts, on: Scene, op: Experts) -> list[Stop]:
    """One grouped launch: rows sorted by expert, two matrices each, results weighted and added up."""
    wide, inner, held = "Dl" if block.latent else "D", on.cut("Fe"), on.size(op.weight)
    first = f"2·{inner}" if block.gated else inner
    biases = tuple(f"+{width}·{Dtype.BF16.bytes:g}" if block.bias else "" for width in (first, wide))
    up = View("expert gate and up" if block.gated else "expert up", "experts", "rows·Wᵀ of their expert",
              (on.tensor("gate, up" if block.gated else "up", ("N·k", first)),), _touched(on))  # fmt: skip
    active = View("expert activation", "experts", "act(gate)·up" if block.gated else "act(up)",
                  (on.tensor("inner", ("N·k", inner)),), "inside the launch: nothing counted")  # fmt: skip
    down = View("expert down", "experts", "rows·Wᵀ of their expert", (on.tensor("rows", ("N·k", wide)),))
    sum_ = View("combine", "experts", "sum of k rows by their shares", (on.tensor("x", (*on.tokens, wide)),))
    matrices = [_held(on, op, block.bias, sides) for sides in ((first, wide), (wide, inner))]
    return [
        reshape("sort by expert", "a row for each token and expert", [on.tensor("rows", ("N·k", wide))]),
        on.stop(up, matrices[0], flops=f"2·N·k·{first}·{wide}",
                weight=f"touched·({first}·{wide}·{held}{biases[0]})", activation=f"N·k·({wide}+{first})·b"),
        on.stop(active),
        on.stop(down, matrices[1], flops=f"2·N·k·{inner}·{wide}",
                weight=f"touched·({inner}·{wide}·{held}{biases[1]})", activation=f"N·k·({inner}+{wide})·b"),
        on.stop(sum_, activation=f"N·k·{wide}·b"),
    ]  # fmt: skip


def _held(on: Scene, op: Experts, bias: bool, sides: tuple[str, str]) -> list[Tensor]:
    """The matrices of all experts here, and their biases."""
    matrix = on.tensor("W", ("E", *sides), op.weight)
    return [matrix, on.tensor("bias", ("E", sides[0]), Dtype.BF16)] if bias else [matrix]


def _touched(on: Scene) -> str:
    touched, experts = on.values["touched"], round(on.values["E"])
    return f"weights of the {touched:.4g} of {experts} experts that are touched (uniform routing)"


DENSE: Mapping[str, Callable[[Any, Scene, Any], list[Stop]]] = {
    "gate_up_proj": _up,
    "up_proj": _up,
    "activation": _activation,
    "down_proj": _down,
}
"""Operations of a dense block, by name."""

EXPERTS: Mapping[str, Callable[[Any, Scene, Any], list[Stop]]] = {
    "router": _router,
    "expert_select": _select,
    "expert_down_latent": _to_latent,
    "Experts": _experts,
    "expert_up_latent": _from_latent,
    "shared_gate_up_proj": _shared_up,
    "shared_up_proj": _shared_up,
    "shared_activation": _shared_activation,
    "shared_down_proj": _shared_down,
}
"""Operations of a mixture of experts, by name or kind."""

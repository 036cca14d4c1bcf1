"""Stops of a dense feed-forward block, which a shared expert is too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooflinekit.explanation.walk.parts import Matrix, Pass, matrix, pass_over
from rooflinekit.explanation.walk.result import Stop, Symbol
from rooflinekit.explanation.walk.scene import Scene, View
from rooflinekit.model.kernels import Elementwise, Linear
from rooflinekit.model.types.model import DenseFFN

__all__ = ["DENSE", "activated", "dense_letters", "first_matrix"]


def dense_letters(block: DenseFFN) -> list[Symbol]:
    """The inner width."""
    return [Symbol("F", block.width, "inner width of the feed-forward block")]


def _up(block: DenseFFN, on: Scene, op: Linear) -> list[Stop]:
    return [first_matrix(on, op, block.gated, "F", "")]


def _activation(block: DenseFFN, on: Scene, op: Elementwise) -> list[Stop]:
    return [activated(on, op, block.gated, "F", "")]


def _down(block: DenseFFN, on: Scene, op: Linear) -> list[Stop]:
    return [matrix(on, op, Matrix("down projection", on.cut("F"), "D", "x"))]


def first_matrix(on: Scene, op: Linear, gated: bool, letter: str, of: str) -> Stop:
    """From the residual width to the inner one, twice where a gate is computed beside."""
    inner = on.cut(letter)
    if gated:
        return matrix(on, op, Matrix(f"{of}gate and up", "D", f"2·{inner}", "gate, up", "two matrices in one launch"))
    return matrix(on, op, Matrix(f"{of}up projection", "D", inner, "up"))


def activated(on: Scene, op: Elementwise, gated: bool, letter: str, of: str) -> Stop:
    """The activation, and the product with the gate."""
    inner = on.cut(letter)
    does = "act(gate)·up" if gated else "act(up)"
    view = View(f"{of}activation", op.name, does, (on.tensor("inner", (*on.tokens, inner)),))
    return pass_over(on, op, view, Pass(f"5·{inner}", f"{3 if gated else 2}·{inner}"))


DENSE: Mapping[str, Callable[[Any, Scene, Any], list[Stop]]] = {
    "gate_up_proj": _up,
    "up_proj": _up,
    "activation": _activation,
    "down_proj": _down,
}
"""Operations of a dense block, by name."""

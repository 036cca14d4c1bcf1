"""Stops that blocks of every kind are made of: a matrix, a pass over the tokens, a collective, a change of view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from rooflinekit.explanation.walk.formula import wrapped
from rooflinekit.explanation.walk.result import Stop, Tensor, Work
from rooflinekit.explanation.walk.scene import Scene, View
from rooflinekit.model.kernels import Collective, Elementwise, Linear
from rooflinekit.model.types.dtype import Dtype

__all__ = ["Addition", "Matrix", "Pass", "collective", "matrix", "norm", "pass_over", "reshape"]


@dataclass(frozen=True)
class Matrix:
    """Letters of a linear layer y = x·Wᵀ, W [n, k]."""

    name: str
    k: str
    n: str
    out: str = "y"
    note: str = ""


def matrix(on: Scene, op: Linear, letters: Matrix) -> Stop:
    """A linear layer over all new tokens, or over the rows that are sampled: 2·m·n·k FLOP."""
    sampled = op.rows == "sampled"
    m, axes = ("B", ("B",)) if sampled else ("N", on.tokens)
    n, k, held = wrapped(letters.n), wrapped(letters.k), on.size(op.weight)
    out = on.tensor(letters.out, (*axes, letters.n))
    weights = [on.tensor("W", (letters.n, letters.k), op.weight)]
    streamed = f"{n}·{k}·{held}"
    if op.bias:
        wide = op.weight if op.weight.is_wide else Dtype.BF16
        weights.append(on.tensor("bias", (letters.n,), wide))
        streamed += f" + {n}·{on.size(wide)}"
    view = View(letters.name, op.name, "x·Wᵀ + bias" if op.bias else "x·Wᵀ", (out,), letters.note)
    moved = f"{m}·{_moved(on, op, letters)}"
    return on.stop(view, weights, flops=f"2·{m}·{n}·{k}", weight=streamed, activation=moved)


def _moved(on: Scene, op: Linear, letters: Matrix) -> str:
    """Bytes of a row: read in the format of the arithmetic if that is narrow, written in the stream's."""
    stream = on.plan.precision.stream
    read = on.size(stream if op.compute.is_wide else op.compute)
    if read == "b":
        return f"({letters.k}+{letters.n})·b"
    return f"({wrapped(letters.k)}·{read}+{wrapped(letters.n)}·b)"


@dataclass(frozen=True)
class Pass:
    """Letters of a pass over the tokens: operations and elements moved of a token, and the pass's own weights."""

    flops: str
    moved: str
    scales: str = ""


def pass_over(on: Scene, op: Elementwise, view: View, letters: Pass) -> Stop:
    """A pass that reads, computes a little, and writes."""
    each, width = letters.flops.split("·", 1)
    work, moved = f"{each}·N·{width}", f"N·{letters.moved}·b"
    if not op.parameters:
        return on.stop(view, flops=work, activation=moved)
    held = f"{wrapped(letters.scales)}·{on.size(op.dtype)}"
    return on.stop(view, _scales(on, op, letters.scales), flops=work, weight=held, activation=moved)


def _scales(on: Scene, op: Elementwise, scales: str) -> list[Tensor]:
    twice = scales.startswith("2·")
    names = ("scale", "bias") if twice else ("scale",)
    return [on.tensor(name, (scales.removeprefix("2·"),), op.dtype) for name in names]


class Addition(Enum):
    """Where the stream takes up what a block returned: every norm is costed as one launch with such an addition."""

    BEFORE = "before the norm"
    BEHIND = "behind the norm"  #: a norm over what the block returned (Gemma-2)
    NONE = "elsewhere"


def norm(on: Scene, op: Elementwise, name: str, addition: Addition) -> list[Stop]:
    """A norm over the residual width, and the addition to the stream that it is fused with: 4 + 1 operations."""
    scales = "2·D" if op.parameters == 2 * int(on.values["D"]) else "D"
    view = View(name, op.name, "normalised", (on.tensor("x", (*on.tokens, "D")),))
    if addition is Addition.NONE:
        view = replace(view, note="counted with an addition, as every norm is")
        return [pass_over(on, op, view, Pass("5·D", "4·D", scales))]
    alone = pass_over(on, op, view, Pass("4·D", "D", scales))
    before = addition is Addition.BEFORE
    return [_residual(on, op, _FIRST), alone] if before else [alone, _residual(on, op, "")]


_FIRST = "goes past the block, which reads a normalised copy; the first layer has nothing to add yet"


def _residual(on: Scene, op: Elementwise, note: str) -> Stop:
    """The addition: two tensors read, their sum written."""
    view = View(
        "residual", op.name, "stream + what the block returned", (on.tensor("stream", (*on.tokens, "D")),), note
    )
    return on.stop(view, flops="N·D", activation="3·N·D·b")


def reshape(name: str, does: str, outputs: Sequence[Tensor], note: str = "") -> Stop:
    """Another view of what is there: nothing moves."""
    return Stop(name, "", does, tuple(outputs), (), Work(), "", "", "", {}, note)


def collective(on: Scene, op: Collective, width: str, out: str, note: str = "") -> Stop:
    """A collective over the ranks: the payload is read and written once here, and sent as the algorithm needs."""
    rows, axes = ("B", ("B",)) if op.sampled else ("N", on.tokens)
    payload = f"{rows}·{wrapped(width)}·b"
    factor = {"all_reduce": "2·(tp-1)/tp", "all_gather": "(tp-1)/tp", "reduce_scatter": "(tp-1)/tp"}[op.kind]
    view = View(op.name.replace("_", " "), op.name, op.kind.replace("_", "-") + " over tp ranks",
                (on.tensor(out, (*axes, width)),), note)  # fmt: skip
    return on.stop(view, activation=f"2·{payload}", network=f"{factor}·{payload}")

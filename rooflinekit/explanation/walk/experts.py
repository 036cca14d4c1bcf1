"""Stops of a mixture of experts: the router, the experts of this rank, and the shared ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooflinekit.explanation.walk.exchange import combine, dispatch, exchange_letters, gather, scatter
from rooflinekit.explanation.walk.feedforward import activated, first_matrix
from rooflinekit.explanation.walk.parts import Matrix, Pass, matrix, pass_over, reshape
from rooflinekit.explanation.walk.result import Stop, Symbol
from rooflinekit.explanation.walk.scene import Scene, View
from rooflinekit.model.kernels import Elementwise, Experts, Linear
from rooflinekit.model.kernels.routing import Routing
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.model import MixtureOfExperts

__all__ = ["EXPERTS", "expert_letters"]


def expert_letters(block: MixtureOfExperts, on: Scene) -> list[Symbol]:
    """Experts, their widths, how many of them the tokens of this step touch, and how many rows come to them."""
    ranks, tokens = on.plan.deployment.ep, on.values["Na"]
    rows, touched = Routing(block.experts, block.top_k, ranks).fullest(tokens)
    where = f"E(1-(1-k/E)^{_tokens(on)})" if ranks == 1 else "those of the fullest rank"
    mean = f"{tokens * block.top_k / ranks:.6g}"
    symbols = [
        Symbol("E", block.experts, "experts"),
        Symbol("k", block.top_k, "experts that a token visits"),
        Symbol("Fe", block.width, "inner width of an expert"),
        Symbol("touched", float(touched), f"experts that any token visits, expected: {where}"),
        Symbol("A", float(rows), f"rows that come to the fullest rank, expected; to the mean rank {mean}"),
        *exchange_letters(block, on),
    ]
    if block.shared_width:
        symbols.append(Symbol("Fs", block.shared_width, "inner width of the shared experts"))
    if block.latent:
        symbols.append(Symbol("Dl", block.latent, "width at which experts work"))
    return symbols


def _tokens(on: Scene) -> str:
    """The letter for the tokens that experts see: those of all replicas."""
    return "N" if on.plan.deployment.dp == 1 else "Na"


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
    wide, inner = _sides(block, on)
    first = f"2·{inner}" if block.gated else inner
    axis, rows = _rows(on)
    up = View("expert gate and up" if block.gated else "expert up", "experts", "rows·Wᵀ of their expert",
              (on.tensor("gate, up" if block.gated else "up", (axis, first)),), _touched(on, op))  # fmt: skip
    active = View("expert activation", "experts", "act(gate)·up" if block.gated else "act(up)",
                  (on.tensor("inner", (axis, inner)),), "inside the launch: nothing counted")  # fmt: skip
    down = View("expert down", "experts", "rows·Wᵀ of their expert", (on.tensor("rows", (axis, wide)),))
    return [
        reshape("sort by expert", "a row for each token and expert", [on.tensor("rows", (axis, wide))]),
        _product(on, op, up, (first, wide)),
        on.stop(active),
        _product(on, op, down, (wide, inner)),
        on.stop(_sum(on, wide), activation=f"{rows}·{wide}·b"),
    ]


def _sides(block: MixtureOfExperts, on: Scene) -> tuple[str, str]:
    """Letters of an expert's outer and inner width here."""
    ranks = "tp" if on.values["te"] == on.values["tp"] else "te"
    return "Dl" if block.latent else "D", on.cut("Fe", ranks)


def _rows(on: Scene) -> tuple[str, str]:
    """Pairs of a token and an expert here: as an axis, and in formulas."""
    return ("ceil(A)", "A") if on.plan.deployment.ep > 1 else (f"{_tokens(on)}·k",) * 2


def _product(on: Scene, op: Experts, view: View, sides: tuple[str, str]) -> Stop:
    """Each row with the matrix [n, k] of its expert; weights of the experts that are touched."""
    (n, k), (_, rows) = sides, _rows(on)
    weights = [on.tensor("W", (on.cut("E", "ep"), n, k), op.weight)]
    if op.bias:
        weights.append(on.tensor("bias", (on.cut("E", "ep"), n), Dtype.BF16))
    each = f"{n}·{k}·{on.size(op.weight)}" + (f"+{n}·{Dtype.BF16.bytes:g}" if op.bias else "")
    return on.stop(view, weights, flops=f"2·{rows}·{n}·{k}",
                   weight=f"touched·({each})", activation=f"{rows}·({n}+{k})·b")  # fmt: skip


def _sum(on: Scene, wide: str) -> View:
    """What a rank has of the results: of its own tokens, of those of all replicas, or of those that came here."""
    split = on.plan.deployment
    if split.dp == 1:
        note = "its experts' part; the all-reduce adds the others" if split.ep > 1 else ""
        return View("combine", "experts", "sum of k rows by their shares", (on.tensor("x", (*on.tokens, wide)),), note)
    axes = ("Na",) if split.ep == 1 else ("ceil(A)",)
    note = "" if split.ep == 1 else "at most so many rows: those of one token become one"
    return View("combine", "experts", "sum of rows by their shares", (on.tensor("x", (*axes, wide)),), note)


def _touched(on: Scene, op: Experts) -> str:
    here = "" if on.plan.deployment.ep == 1 else " here"
    return f"weights of the {on.values['touched']:.4g} of {op.local} experts{here} that are touched (uniform routing)"


def _shared_up(block: MixtureOfExperts, on: Scene, op: Linear) -> list[Stop]:
    return [first_matrix(on, op, block.gated, "Fs", "shared ")]


def _shared_activation(block: MixtureOfExperts, on: Scene, op: Elementwise) -> list[Stop]:
    return [activated(on, op, block.gated, "Fs", "shared ")]


def _shared_down(block: MixtureOfExperts, on: Scene, op: Linear) -> list[Stop]:
    note = "added to what the routed experts return" + (", behind a learned gate" if block.shared_gate else "")
    return [matrix(on, op, Matrix("shared down", on.cut("Fs"), "D", "x", note))]


EXPERTS: Mapping[str, Callable[[Any, Scene, Any], list[Stop]]] = {
    "router": _router,
    "expert_select": _select,
    "expert_down_latent": _to_latent,
    "expert_gather": gather,
    "expert_dispatch": dispatch,
    "Experts": _experts,
    "expert_combine": combine,
    "expert_scatter": scatter,
    "expert_up_latent": _from_latent,
    "shared_gate_up_proj": _shared_up,
    "shared_up_proj": _shared_up,
    "shared_activation": _shared_activation,
    "shared_down_proj": _shared_down,
}
"""Operations of a mixture of experts, by name or kind."""

"""Stops before the first layer and behind the last: from tokens to the residual stream, and to the next token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rooflinekit.explanation.walk.parts import Addition, Matrix, collective, matrix, norm, reshape
from rooflinekit.explanation.walk.result import Stop
from rooflinekit.explanation.walk.scene import Scene, View
from rooflinekit.model.kernels import Collective, Elementwise, Embedding, Linear, Sampling
from rooflinekit.model.types.model import Layer

__all__ = ["ENTRY", "EXIT", "normed_behind"]


def normed_behind(layer: Layer) -> bool:
    """Whether what a block returns is normalised before it joins the stream (Gemma-2)."""
    blocks = (layer.mixer is not None) + (layer.ffn is not None)
    return not layer.parallel and layer.norms > blocks


def _wide(on: Scene) -> str:
    """The embedding's width: D but for a few models."""
    return "D" if on.values["De"] == on.values["D"] else "De"


def _columns(on: Scene) -> str:
    """A rank's share of the vocabulary, rounded up."""
    tp, vocab = on.plan.deployment.tp, on.plan.model.vocab
    return "V" if tp == 1 else "V/tp" if vocab % tp == 0 else "ceil(V/tp)"


def _embed(block: None, on: Scene, op: Embedding) -> list[Stop]:
    """A row of the table for each token; learned positions are a table too."""
    if op.module == "embedding":
        wide, rows, name, does = _wide(on), _columns(on), "embedding", "a row of the table for each token"
    else:
        wide, rows, name, does = "D", "positions", "positions", "a row for each position, added"
    view = View(name, "embedding", does, (on.tensor("x", (*on.tokens, wide)),), "only these rows are read")
    table = on.tensor("table", (rows, wide), op.dtype)
    held = on.size(op.dtype)
    moved = f"2·N·{wide}·b" if held == "b" else f"N·{wide}·({held}+b)"
    return [on.stop(view, [table], activation=moved)]


def _embedding_project(block: None, on: Scene, op: Linear) -> list[Stop]:
    return [matrix(on, op, Matrix("embedding projection", "De", "D", "x"))]


def _embedding_norm(block: None, on: Scene, op: Elementwise) -> list[Stop]:
    return norm(on, op, "embedding norm", Addition.NONE)


def _embedding_reduce(block: None, on: Scene, op: Collective) -> list[Stop]:
    return [collective(on, op, _wide(on), "x", "each rank found the rows of its share of the vocabulary")]


def _final_norm(block: None, on: Scene, op: Elementwise) -> list[Stop]:
    last = reshape("last token", "the last row of each sequence", [on.tensor("x", ("B", "D"))],
                   "only it says what comes next")  # fmt: skip
    addition = Addition.NONE if normed_behind(on.plan.model.layers[-1]) else Addition.BEFORE
    return [*norm(on, op, "final norm", addition), last]


def _head_project(block: None, on: Scene, op: Linear) -> list[Stop]:
    return [matrix(on, op, Matrix("head projection", "D", "De", "x"))]


def _lm_head(block: None, on: Scene, op: Linear) -> list[Stop]:
    note = "W is the embedding table" if on.plan.model.tied else ""
    return [matrix(on, op, Matrix("LM head", _wide(on), _columns(on), "logits", note))]


def _gather(block: None, on: Scene, op: Collective) -> list[Stop]:
    return [collective(on, op, "V", "logits")]


def _sample(block: None, on: Scene, op: Sampling) -> list[Stop]:
    view = View("sampling", "sampling", "one token from each row", (on.tensor("token", ("B",), "int64"),))
    return [on.stop(view, flops="B·V", activation="B·V·b")]


ENTRY: Mapping[str, Callable[[Any, Scene, Any], list[Stop]]] = {
    "Embedding": _embed,
    "embedding_proj": _embedding_project,
    "embedding_norm": _embedding_norm,
    "embedding_reduce": _embedding_reduce,
}
EXIT: Mapping[str, Callable[[Any, Scene, Any], list[Stop]]] = {
    "final_norm": _final_norm,
    "head_proj": _head_project,
    "lm_head": _lm_head,
    "logits_gather": _gather,
    "Sampling": _sample,
}

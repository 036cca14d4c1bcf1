"""Stops at which tensors travel: to the experts of other ranks and back, and to the next pipeline stage."""

from __future__ import annotations

from rooflinekit.explanation.walk.result import Stop, Symbol
from rooflinekit.explanation.walk.scene import Scene, View
from rooflinekit.model.kernels import Collective
from rooflinekit.model.layers.feedforward import expert_operations
from rooflinekit.model.types.model import MixtureOfExperts

__all__ = ["combine", "dispatch", "exchange_letters", "gather", "hand_over", "scatter"]

_BACK = ("expert_combine", "expert_scatter")


def exchange_letters(block: MixtureOfExperts, on: Scene) -> list[Symbol]:
    """How often a token is sent, where attention replicas share the experts; none where they do not."""
    wide = block.latent or on.plan.model.hidden
    for op in expert_operations(block, on.plan.shard):
        if not isinstance(op, Collective) or op.name not in _BACK:
            continue
        sent = op.width * (op.sent.links + op.sent.nic) / wide
        if op.kind == "all_to_all":
            return [Symbol("copies", sent, "ranks that a token is sent to from this one, expected, uniform routing")]
        return [Symbol("share", sent, "of the tokens of all replicas that this rank sends; (dp-1)/dp in one domain")]
    return []


def _wide(block: MixtureOfExperts) -> str:
    return "Dl" if block.latent else "D"


def gather(block: MixtureOfExperts, on: Scene, op: Collective) -> list[Stop]:
    """Every rank holds a part of every expert, and so needs the tokens of all replicas."""
    rows = on.tensor("x", ("Na", _wide(block)))
    view = View("gather tokens", op.name, "all-gather over dp replicas", (rows,), "every rank cuts every expert")
    return [_between_replicas(block, on, view)]


def scatter(block: MixtureOfExperts, on: Scene, op: Collective) -> list[Stop]:
    """Parts of the results are added up, each replica gets its own tokens."""
    rows = on.tensor("x", (*on.tokens, _wide(block)))
    return [_between_replicas(block, on, View("return tokens", op.name, "reduce-scatter over dp replicas", (rows,)))]


def _between_replicas(block: MixtureOfExperts, on: Scene, view: View) -> Stop:
    payload = f"Na·{_wide(block)}·b"
    return on.stop(view, activation=f"2·{payload}", network=f"share·{payload}")


def dispatch(block: MixtureOfExperts, on: Scene, op: Collective) -> list[Stop]:
    """Each token goes once to each rank that holds any of its experts."""
    rows = on.tensor("sent", ("ceil(N·copies)", _wide(block)))
    view = View("dispatch", op.name, "tokens to the ranks of their experts, all-to-all", (rows,))
    return [_all_to_all(block, on, view)]


def combine(block: MixtureOfExperts, on: Scene, op: Collective) -> list[Stop]:
    """The way back carries as much: a rank adds up what its experts made of a token before it returns it."""
    rows = on.tensor("x", (*on.tokens, _wide(block)))
    return [_all_to_all(block, on, View("return tokens", op.name, "all-to-all back, and the sum", (rows,)))]


def _all_to_all(block: MixtureOfExperts, on: Scene, view: View) -> Stop:
    """Over all tp·dp ranks; what is read and written counts the share that stays too."""
    payload = f"N·copies·{_wide(block)}·b"
    return on.stop(view, activation=f"2·{payload}·tp·dp/(tp·dp-1)", network=payload)


def hand_over(on: Scene, op: Collective) -> list[Stop]:
    """The residual stream to the next stage; each of the tp ranks sends its share of the columns."""
    wide = on.cut("D")
    view = View("to the next stage", op.name, "send and receive", (on.tensor("stream", (*on.tokens, wide)),))
    return [on.stop(view, activation=f"2·N·{wide}·b", network=f"N·{wide}·b")]

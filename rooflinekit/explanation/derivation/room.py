"""What would still fit: the largest batch and the longest context (docs/engines.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rooflinekit.explanation.derivation.memory import ENGINE, MemoryCase
from rooflinekit.explanation.derivation.node import Node, branch, given, reckoned
from rooflinekit.model.memory.capacity import Stage

__all__ = ["max_batch", "max_context"]

_PEAK = ("charged for activations whatever the step", "charged for a token of a step", "charged for a row of logits")


def max_batch(case: MemoryCase) -> Node:
    """Most sequences that fit: the smallest room over stages and both parts of the activation peak."""
    value = float(case.model.max_batch(case.context, case.new))
    room = min(_rooms(case), key=lambda node: node.value)
    if value == 0.0 and room.value >= 1.0:
        return given("max_batch", "the engine does not start", 0.0, "", ENGINE)
    replicas = case.scene.asked("dp", "attention replicas", case.model.replicas)
    formula = "max(floor(room + 0.000000001), 0)*dp"
    return branch("max_batch", "sequences of this length that fit", value, "", (formula, [room, replicas]))


def _rooms(case: MemoryCase) -> Iterator[Node]:
    model, peak = case.model, case.model.peak
    charge = {"static": 0.0, "free": model.fraction}.get(model.rule.budget, 1.0)
    pieces = ((peak.layer_base, peak.layer_token, 0.0), (peak.sampler_base, peak.sampler_token, peak.sampler_row))
    for stage in model.stages:
        formula, parts = case.allowance(stage)
        allow = reckoned("allow", "pool if there were no activations", "B", (formula, parts))
        each = case.sequence(stage, case.context)
        for title, piece in zip(("while a layer runs", "while tokens are sampled"), pieces, strict=True):
            sizes = [
                given(s, t, charge * v, "B", ENGINE)
                for s, t, v in zip(("base", "token", "row"), _PEAK, piece, strict=True)
            ]
            yield _room(case, f"room for sequences, {title}", [allow, each, *sizes])


def _room(case: MemoryCase, title: str, parts: list[Node]) -> Node:
    tokens, new = case.model.tokens, case.scene.asked("new", "tokens of a prompt", case.new)
    m = given("m", "tokens of a step at most", tokens, "", ENGINE)
    rows = given("rows", "sequences that the engine is set up for", case.model.rows, "", ENGINE)
    if case.model.rule.profiled:
        left = "(allow - base - m*token"
        formula = f"min({left} - row*rows)/each, {left})/(each + row))"
    else:
        above = branch("room", "", 0.0, "", ("(allow - base - m*token)/(each + row)", [*parts, m]))
        few = "min((allow - base)/(each + row + new*token), m/new)"
        formula = above.formula if above.recomputed() * case.new >= tokens else few
    return reckoned("room", title, "", (formula, [*parts, m, new, rows]))


def max_context(case: MemoryCase) -> Node:
    """Longest context at which the batch fits, at most the model's own [tokens]."""
    value, limit = float(case.model.max_context(case.local.value, case.new)), case.model.limit
    rooms = [_longest(case, stage) for stage in case.model.stages]
    room = min(rooms, key=lambda node: node.value)
    formula, parts = "room*cp", [room, case.scene.asked("cp", "ranks that share a context", case.model.ranks)]
    if limit is not None:
        formula, parts = (
            "min(limit, room*cp)",
            [*parts, case.scene.model("limit", "longest context of the model", limit)],
        )
    if math.isinf(room.value):
        title = "the cache stops growing before it is full: only the model limits the context"
        return given("max_context", title, value, "", "max_context of the model")
    node = branch("max_context", "longest context at this batch", value, "", (formula, parts))
    if node.gap > 1e-12:
        return given("max_context", "the engine does not start" if value == 0 else node.title, value, "", ENGINE)
    return node


def _longest(case: MemoryCase, stage: Stage) -> Node:
    law, pool = stage.layout.law, case.pool(stage)
    value = float(law.longest(case.model.pool(stage, case.activations().value) / case.local.value))
    title, source = "tokens of each sequence that the pool holds", "rooflinekit.model.memory.cache.CacheLaw.longest"
    if len(law.slopes) != 1 or law.slopes[0][0] < math.inf:
        return given("room", title, value, "", source)
    parts = [
        pool,
        case.local,
        case.slope(stage, 0, "kv"),
        given("block", "tokens of a block", law.block, "", ENGINE),
        given("state", "state of fixed size", law.state_bytes, "B", "docs/method.md, section 5"),
    ]
    node = branch("room", title, value, "", ("max(floor((pool/B - state)/kv/block), 0)*block", parts))
    return node if node.gap <= 1e-12 else given("room", title, value, "", source)

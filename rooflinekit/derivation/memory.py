"""Memory of the busiest accelerator, what it is divided into, and what would still fit (docs/engines.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rooflinekit.derivation.counting import MODULES, cache_per_token, operation_name
from rooflinekit.derivation.node import Node, branch, given, joined, reckoned
from rooflinekit.derivation.scene import Scene, element
from rooflinekit.kernels import Weights
from rooflinekit.layers import stage_operations
from rooflinekit.memory import MemoryModel, Stage
from rooflinekit.operating_point import Predictor
from rooflinekit.types.model import Layer
from rooflinekit.types.workload import Workload

__all__ = ["MemoryCase"]

_ENGINE = "docs/engines.md, memory"


@dataclass(frozen=True)
class MemoryCase:
    """A predictor's memory at one batch and context, on the stage that is fullest."""

    predictor: Predictor
    batch: float
    context: float
    new: float

    @classmethod
    def of(cls, predictor: Predictor, work: Workload) -> MemoryCase:
        """What `estimate` evaluates for a static batch."""
        return cls(predictor, float(work.batch), float(work.longest_context), float(work.isl - work.cached))

    @property
    def model(self) -> MemoryModel:
        """The rule that it follows."""
        return self.predictor.memory

    @property
    def place(self) -> int:
        """Number of the fullest stage."""

        def excess(number: int) -> float:
            alone = replace(self.model, stages=(self.model.stages[number],)).evaluate(
                self.batch, self.context, self.new
            )
            return float(alone.needed_bytes - alone.available_bytes)

        return max(range(len(self.model.stages)), key=excess)

    @property
    def scene(self) -> Scene:
        """For the facts of the plan."""
        return Scene.facts(self.predictor.plan)

    @property
    def local(self) -> Node:
        """Sequences of one attention replica."""
        batch = self.scene.asked("batch", "sequences", self.batch)
        replicas = self.scene.asked("dp", "attention replicas", self.model.replicas)
        return branch(
            "B",
            "sequences of one replica",
            math.ceil(self.batch / self.model.replicas),
            "",
            ("ceil(batch/dp)", [batch, replicas]),
        )

    def total(self) -> Node:
        """Everything together [B]."""
        parts = [self.weights(), self.cache(), self.activations(), self.overhead()]
        return joined("total", "memory of the busiest accelerator", sum(p.value for p in parts), "B", parts)

    def weights(self) -> Node:
        """Resident weights by module, and what storing them takes besides [B]."""
        plan, place = self.predictor.plan, self.place
        held = stage_operations(plan.model, plan.deployment, plan.precision, place, plan.system.domain_size)
        modules = []
        for module in MODULES:
            parts = [
                _stored(operation_name(op), weights, times)
                for op, times in held.items()
                for weights in op.weights
                if weights.module == module
            ]
            if parts:
                modules.append(
                    joined(
                        module,
                        f"{module.replace('_', ' ')} on this accelerator",
                        sum(p.value for p in parts),
                        "B",
                        parts,
                    )
                )
        value = self.model.stages[place].weight_bytes
        rest = value - sum(part.value for part in modules)
        title = "besides: padding, allocator blocks, tables, scales, a draft"
        modules.append(given("storage", title, rest, "B", "rooflinekit.footprint.resident_bytes; " + _ENGINE))
        return joined("weights", "resident weights", value, "B", modules)

    def cache(self) -> Node:
        """Keys, values and states of the batch [B]."""
        each = self.sequence(self.stage, self.context)
        return branch("kv", "cache of the batch", self.local.value * each.value, "B", ("B*each", [self.local, each]))

    @property
    def stage(self) -> Stage:
        """The fullest stage."""
        return self.model.stages[self.place]

    def sequence(self, stage: Stage, context: float) -> Node:
        """Cache of one sequence on this accelerator [B]."""
        law, ranks = stage.layout.law, self.model.ranks
        held = math.ceil(context / ranks)
        tokens = self.scene.asked("T", "tokens of a sequence", context)
        parts = [
            tokens,
            self.scene.asked("cp", "ranks that share a context", ranks),
            given("block", "tokens of a block", law.block, "", _ENGINE),
        ]
        terms, whole = [], "ceil(ceil(T/cp)/block)*block" if law.block > 1 else "ceil(T/cp)"
        for number, (cap, _) in enumerate(law.slopes):
            mark = "" if len(law.slopes) == 1 else f"_{number + 1}"
            parts.append(self._slope(stage, number, f"kv{mark}"))
            if cap < math.inf:
                parts.append(self.scene.model(f"cap{mark}", "tokens at which it stops growing", cap))
            terms.append(f"kv{mark}*{whole}" if cap == math.inf else f"kv{mark}*min({whole}, cap{mark})")
        if law.state_bytes or not terms:
            parts.append(given("state", "state of fixed size", law.state_bytes, "B", "docs/method.md, section 5"))
            terms.append("state")
        return branch(
            "each", "cache of one sequence here", float(law.bytes(float(held))), "B", (" + ".join(terms), parts)
        )

    def _slope(self, stage: Stage, number: int, symbol: str) -> Node:
        law, plan = stage.layout.law, self.predictor.plan
        slope = law.slopes[number][1]
        if len(law.slopes) == 1:
            node = cache_per_token(plan, self._layers(stage), plan.deployment.tp, plan.deployment.kv_policy)
            if abs(node.value - slope) <= 1e-9 * slope:
                return replace(node, symbol=symbol, value=slope)
        title = "bytes a token of these layers here, as the engine lays them out in blocks"
        return given(symbol, title, slope, "B", "rooflinekit.footprint.cache_layout; " + _ENGINE)

    def _layers(self, stage: Stage) -> tuple[Layer, ...]:
        depth, pp = self.predictor.plan.model.depth, self.predictor.plan.deployment.pp
        place = self.model.stages.index(stage)
        return self.predictor.plan.model.layers[place * depth // pp : (place + 1) * depth // pp]

    def activations(self) -> Node:
        """Peak of activations: the widest block over a step's tokens, or the sampler [B]."""
        peak, profiled, local = self.model.peak, self.model.rule.profiled, self.local.value
        tokens = self.model.tokens if profiled else min(local * self.new, self.model.tokens)
        rows = max(local, self.model.rows) if profiled else local
        m = given("m", "tokens of a step", tokens, "", "the token budget of the engine" if profiled else "the question")
        B = given(
            "B", "sequences that are sampled", rows, "", "the limit of the engine" if profiled else "the question"
        )
        layer = self._peak(
            "layer", "while a layer runs", "base + m*token", (peak.layer_base, peak.layer_token, 0.0), [m]
        )
        sampler = self._peak("sampler", "while tokens are sampled", "base + m*token + B*row",
                             (peak.sampler_base, peak.sampler_token, peak.sampler_row), [m, B])  # fmt: skip
        value = float(peak.bytes(tokens, rows))
        return branch("activations", "peak of activations", value, "B", ("max(layer, sampler)", [layer, sampler]))

    def _peak(
        self, symbol: str, title: str, formula: str, numbers: tuple[float, float, float], sizes: list[Node]
    ) -> Node:  # noqa: PLR0913, PLR0917
        titles = ("held whatever the step", "bytes a token", "bytes a row of logits")
        source = "rooflinekit.footprint.activation_peak; " + _ENGINE
        parts = [given(s, t, v, "B", source) for s, t, v in zip(("base", "token", "row"), titles, numbers, strict=True)]
        return reckoned(symbol, title, "B", (formula, [*sizes, *parts]))

    def overhead(self) -> Node:
        """What the engine takes besides [B]."""
        out, scene = self.model.outside, self.scene
        several = "several" if self.predictor.plan.deployment.gpus > 1 else "one"
        parts = [
            scene.engine("context", "CUDA context and first buffers", out.context, f"memory.context.{several}", "B"),
            scene.engine("non_torch", "outside the allocator", out.non_torch, f"memory.non_torch.{several}", "B"),
            scene.engine("graphs", "CUDA graphs", out.graphs, "memory.graphs", "B"),
        ]
        return joined("engine", "what the engine takes besides", out.total, "B", parts)

    def pool(self, stage: Stage | None = None) -> Node:
        """What the engine sets aside for the cache [B]."""
        stage = stage or self.stage
        formula, parts = self._allowance(stage)
        charge = {"static": 0.0, "free": self.model.fraction}.get(self.model.rule.budget, 1.0)
        if charge:
            parts = [*parts, self.activations(), given("charge", "share of them that it pays for", charge, "", _ENGINE)]
            formula = f"{formula} - charge*activations"
        value = max(float(self.model.pool(stage, self.activations().value)), 0.0)
        return branch("pool", "what the engine sets aside for the cache", value, "B", (f"max({formula}, 0)", parts))

    def _allowance(self, stage: Stage) -> tuple[str, list[Node]]:
        """The pool before activations, by what the memory fraction is a share of."""
        rule, out = self.model.rule, self.model.outside
        u = self.scene.engine("u", "memory fraction", self.model.fraction, "memory.fraction", "")
        w = given("weights", "resident weights", stage.weight_bytes, "B", "explain MODEL weights")
        context, graphs = rule.context_counts * out.context, rule.graphs_count * out.graphs
        parts = [u, self.scene.capacity, w, given("non_torch", "outside the allocator", out.non_torch, "B", _ENGINE)]
        if rule.budget == "static":
            return "u*(capacity - context) - weights - non_torch", [
                *parts,
                given("context", "CUDA context", out.context, "B", _ENGINE),
            ]
        if rule.budget == "free":
            return "u*(capacity - weights - context - non_torch - graphs)", [*parts, *_two(out.context, graphs)]
        if rule.budget == "total":
            return "u*capacity - weights - non_torch - context - graphs", [*parts, *_two(context, graphs)]
        return "capacity - weights - context - non_torch - graphs", [*parts, *_two(out.context, out.graphs)]

    def max_batch(self) -> Node:
        """Most sequences that fit: the smallest room over stages and both parts of the activation peak."""
        value = float(self.model.max_batch(self.context, self.new))
        room = min(self._rooms(), key=lambda node: node.value)
        if value == 0.0 and room.value >= 1.0:
            return given("max_batch", "the engine does not start", 0.0, "", _ENGINE)
        replicas = self.scene.asked("dp", "attention replicas", self.model.replicas)
        formula = "max(floor(room + 0.000000001), 0)*dp"
        return branch("max_batch", "sequences of this length that fit", value, "", (formula, [room, replicas]))

    def _rooms(self) -> Iterator[Node]:
        model, peak = self.model, self.model.peak
        charge = {"static": 0.0, "free": model.fraction}.get(model.rule.budget, 1.0)
        pieces = ((peak.layer_base, peak.layer_token, 0.0), (peak.sampler_base, peak.sampler_token, peak.sampler_row))
        for stage in model.stages:
            formula, parts = self._allowance(stage)
            allow = reckoned("allow", "pool if there were no activations", "B", (formula, parts))
            each = self.sequence(stage, self.context)
            for title, piece in zip(("while a layer runs", "while tokens are sampled"), pieces, strict=True):
                sizes = [
                    given(s, t, charge * v, "B", _ENGINE)
                    for s, t, v in zip(("base", "token", "row"), _PEAK, piece, strict=True)
                ]
                yield self._room(f"room for sequences, {title}", [allow, each, *sizes])

    def _room(self, title: str, parts: list[Node]) -> Node:
        tokens, new = self.model.tokens, self.scene.asked("new", "tokens of a prompt", self.new)
        m = given("m", "tokens of a step at most", tokens, "", _ENGINE)
        rows = given("rows", "sequences that the engine is set up for", self.model.rows, "", _ENGINE)
        if self.model.rule.profiled:
            left = "(allow - base - m*token"
            formula = f"min({left} - row*rows)/each, {left})/(each + row))"
        else:
            above = branch("room", "", 0.0, "", ("(allow - base - m*token)/(each + row)", [*parts, m]))
            few = "min((allow - base)/(each + row + new*token), m/new)"
            formula = above.formula if above.recomputed() * self.new >= tokens else few
        return reckoned("room", title, "", (formula, [*parts, m, new, rows]))

    def max_context(self) -> Node:
        """Longest context at which the batch fits, at most the model's own [tokens]."""
        value, limit = float(self.model.max_context(self.local.value, self.new)), self.model.limit
        rooms = [self._longest(stage) for stage in self.model.stages]
        room = min(rooms, key=lambda node: node.value)
        formula, parts = "room*cp", [room, self.scene.asked("cp", "ranks that share a context", self.model.ranks)]
        if limit is not None:
            formula, parts = (
                "min(limit, room*cp)",
                [*parts, self.scene.model("limit", "longest context of the model", limit)],
            )
        if math.isinf(room.value):
            title = "the cache stops growing before it is full: only the model limits the context"
            return given("max_context", title, value, "", "max_context of the model")
        node = branch("max_context", "longest context at this batch", value, "", (formula, parts))
        if node.gap > 1e-12:
            return given("max_context", "the engine does not start" if value == 0 else node.title, value, "", _ENGINE)
        return node

    def _longest(self, stage: Stage) -> Node:
        law, pool = stage.layout.law, self.pool(stage)
        value = float(law.longest(self.model.pool(stage, self.activations().value) / self.local.value))
        title, source = "tokens of each sequence that the pool holds", "rooflinekit.cache.CacheLaw.longest"
        if len(law.slopes) != 1 or law.slopes[0][0] < math.inf:
            return given("room", title, value, "", source)
        parts = [pool, self.local, self._slope(stage, 0, "kv"), given("block", "tokens of a block", law.block, "", _ENGINE),
                 given("state", "state of fixed size", law.state_bytes, "B", "docs/method.md, section 5")]  # fmt: skip
        node = branch("room", title, value, "", ("max(floor((pool/B - state)/kv/block), 0)*block", parts))
        return node if node.gap <= 1e-12 else given("room", title, value, "", source)


_PEAK = ("charged for activations whatever the step", "charged for a token of a step", "charged for a row of logits")


def _two(context: float, graphs: float) -> list[Node]:
    return [given("context", "CUDA context, where the budget pays for it", context, "B", _ENGINE),
            given("graphs", "CUDA graphs, where the budget pays for them", graphs, "B", _ENGINE)]  # fmt: skip


def _stored(name: str, weights: Weights, times: int) -> Node:
    parts = [
        given("n", "times on this accelerator", times),
        given("elements", "elements", weights.count),
        element("b_w", weights.dtype, "the weights"),
    ]
    return branch(name, f"{name} in {weights.dtype.value}", times * weights.bytes, "B", ("n*elements*b_w", parts))

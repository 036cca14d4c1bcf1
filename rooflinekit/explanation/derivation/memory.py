"""Memory of the busiest accelerator, what it is divided into, and what would still fit (docs/engines.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rooflinekit.explanation.derivation.counting import MODULES, cache_per_token, operation_name
from rooflinekit.explanation.derivation.node import Node, branch, given, joined, reckoned
from rooflinekit.explanation.derivation.scene import Scene, element
from rooflinekit.model.kernels import Weights
from rooflinekit.model.layers import stage_operations
from rooflinekit.model.memory.capacity import MemoryModel, Stage
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.model import Layer
from rooflinekit.model.types.workload import Workload

__all__ = ["ENGINE", "MemoryCase"]

ENGINE = "docs/engines.md, memory"


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
        modules.append(given("storage", title, rest, "B", "rooflinekit.model.memory.resident_bytes; " + ENGINE))
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
            given("block", "tokens of a block", law.block, "", ENGINE),
        ]
        terms, whole = [], "ceil(ceil(T/cp)/block)*block" if law.block > 1 else "ceil(T/cp)"
        for number, (cap, _) in enumerate(law.slopes):
            mark = "" if len(law.slopes) == 1 else f"_{number + 1}"
            parts.append(self.slope(stage, number, f"kv{mark}"))
            if cap < math.inf:
                parts.append(self.scene.model(f"cap{mark}", "tokens at which it stops growing", cap))
            terms.append(f"kv{mark}*{whole}" if cap == math.inf else f"kv{mark}*min({whole}, cap{mark})")
        if law.state_bytes or not terms:
            parts.append(given("state", "state of fixed size", law.state_bytes, "B", "docs/method.md, section 5"))
            terms.append("state")
        return branch(
            "each", "cache of one sequence here", float(law.bytes(float(held))), "B", (" + ".join(terms), parts)
        )

    def slope(self, stage: Stage, number: int, symbol: str) -> Node:
        """Bytes that a token adds in the layers with one cap [B]."""
        law, plan = stage.layout.law, self.predictor.plan
        slope = law.slopes[number][1]
        if len(law.slopes) == 1:
            node = cache_per_token(plan, self._layers(stage), plan.deployment.tp, plan.deployment.kv_policy)
            if abs(node.value - slope) <= 1e-9 * slope:
                return replace(node, symbol=symbol, value=slope)
        title = "bytes a token of these layers here, as the engine lays them out in blocks"
        return given(symbol, title, slope, "B", "rooflinekit.model.memory.cache_layout; " + ENGINE)

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
        sampler = self._peak(
            "sampler",
            "while tokens are sampled",
            "base + m*token + B*row",
            (peak.sampler_base, peak.sampler_token, peak.sampler_row),
            [m, B],
        )
        value = float(peak.bytes(tokens, rows))
        return branch("activations", "peak of activations", value, "B", ("max(layer, sampler)", [layer, sampler]))

    def _peak(
        self, symbol: str, title: str, formula: str, numbers: tuple[float, float, float], sizes: list[Node]
    ) -> Node:
        titles = ("held whatever the step", "bytes a token", "bytes a row of logits")
        source = "rooflinekit.model.memory.activation_peak; " + ENGINE
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
        formula, parts = self.allowance(stage)
        charge = {"static": 0.0, "free": self.model.fraction}.get(self.model.rule.budget, 1.0)
        if charge:
            parts = [*parts, self.activations(), given("charge", "share of them that it pays for", charge, "", ENGINE)]
            formula = f"{formula} - charge*activations"
        value = max(float(self.model.pool(stage, self.activations().value)), 0.0)
        return branch("pool", "what the engine sets aside for the cache", value, "B", (f"max({formula}, 0)", parts))

    def allowance(self, stage: Stage) -> tuple[str, list[Node]]:
        """The pool before activations, by what the memory fraction is a share of."""
        rule, out = self.model.rule, self.model.outside
        u = self.scene.engine("u", "memory fraction", self.model.fraction, "memory.fraction", "")
        w = given("weights", "resident weights", stage.weight_bytes, "B", "explain MODEL weights")
        context, graphs = rule.context_counts * out.context, rule.graphs_count * out.graphs
        parts = [u, self.scene.capacity, w, given("non_torch", "outside the allocator", out.non_torch, "B", ENGINE)]
        if rule.budget == "static":
            return "u*(capacity - context) - weights - non_torch", [
                *parts,
                given("context", "CUDA context", out.context, "B", ENGINE),
            ]
        if rule.budget == "free":
            return "u*(capacity - weights - context - non_torch - graphs)", [*parts, *_two(out.context, graphs)]
        if rule.budget == "total":
            return "u*capacity - weights - non_torch - context - graphs", [*parts, *_two(context, graphs)]
        return "capacity - weights - context - non_torch - graphs", [*parts, *_two(out.context, out.graphs)]


def _two(context: float, graphs: float) -> list[Node]:
    return [
        given("context", "CUDA context, where the budget pays for it", context, "B", ENGINE),
        given("graphs", "CUDA graphs, where the budget pays for them", graphs, "B", ENGINE),
    ]


def _stored(name: str, weights: Weights, times: int) -> Node:
    parts = [
        given("n", "times on this accelerator", times),
        given("elements", "elements", weights.count),
        element("b_w", weights.dtype, "the weights"),
    ]
    return branch(name, f"{name} in {weights.dtype.value}", times * weights.bytes, "B", ("n*elements*b_w", parts))

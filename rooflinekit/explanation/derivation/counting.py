"""Numbers that need no time: parameters, cache a token, work and traffic of a step, the ridge point."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

from rooflinekit.explanation.derivation.kernels import bytes_node, flops_node
from rooflinekit.explanation.derivation.node import Node, branch, given, joined
from rooflinekit.explanation.derivation.scene import Launched, Scene, element
from rooflinekit.model.kernels import Operation
from rooflinekit.model.layers import Precision, model_operations
from rooflinekit.model.memory.cache import layer_cache
from rooflinekit.model.parameter_count import ParameterCount
from rooflinekit.model.step import Plan
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.kv_policy import FULL, KVPolicy
from rooflinekit.model.types.model import Attention, LatentAttention, Layer, Mixer

__all__ = [
    "cache_per_token",
    "layers_dtype",
    "operation_name",
    "parameters_node",
    "ridge_node",
    "step_intensity",
    "step_work",
]

MODULES = ("embedding", "attention", "ffn", "experts", "shared_experts", "lm_head", "other")


def operation_name(op: Operation) -> str:
    """A name for an operation that can stand in a formula."""
    name = getattr(op, "name", None) or re.sub(r"(?<!^)(?=[A-Z])", "_", type(op).__name__).lower()
    return str(name)


def parameters_node(plan: Plan, count: ParameterCount) -> Node:
    """All weights of the model, module by module."""
    model = plan.model
    precision = Precision(model.dtype, model.dtype, model.formats)
    operations = model_operations(model, Deployment(), precision)
    modules = []
    for module in MODULES:
        parts = [
            _held(op, times, weights.count)
            for op, times in operations.items()
            for weights in op.weights
            if weights.module == module
        ]
        if parts:
            modules.append(joined(module, f"weights of {module.replace('_', ' ')}", getattr(count, module), "", parts))
    return joined("P", f"parameters of {model.name}", count.total, "", modules)


def _held(op: Operation, times: int, count: int) -> Node:
    name = operation_name(op)
    parts = [given("n", "times in the model", times), *_shape(op, count)]
    formula = "n*" + "*".join(part.symbol for part in parts[1:])
    return branch(name, f"weights of {name}", times * count, "", (formula, parts))


def _shape(op: Operation, count: int) -> list[Node]:
    k = getattr(op, "k", None)
    if k and count % int(k) == 0 and count > int(k):
        return [given("rows", "outputs", count // int(k)), given("columns", "inputs", k)]
    return [given("each", "elements", count)]


def cache_per_token(plan: Plan, layers: Iterable[Layer], tp: int = 1, policy: KVPolicy = FULL) -> Node:
    """What one token adds to the cache of these layers, on one of `tp` accelerators [B]."""
    kinds = [
        _cached(plan, mixer, count, tp, policy) for mixer, count in Counter(layer.mixer for layer in layers).items()
    ]
    parts = [kind for kind in kinds if kind is not None]
    title = "bytes that one token adds to the cache"
    if not parts:
        return given("kv", f"{title}: no layer has one", 0.0, "B")
    return joined("kv", title, sum(part.value for part in parts), "B", parts)


def _cached(plan: Plan, mixer: Mixer | None, count: int, tp: int, policy: KVPolicy) -> Node | None:
    """Layers of one kind: keys and values of the KV heads, or one latent for all heads."""
    scene = Scene.facts(plan)
    cache, format = (
        layer_cache(mixer, tp, plan.precision.index, policy),
        element("b_kv", plan.precision.kv, "the cache"),
    )
    if not cache.elements:
        return None
    value = count * (cache.elements * plan.precision.kv.bytes * (1.0 + cache.summaries) + cache.fixed_bytes)
    layers = scene.model("L", "layers of this kind", count)
    formula, parts = "L*e*b_kv", [layers, format]
    match mixer:
        case Attention():
            heads = scene.model("K", "KV heads here (never query heads)", max(1, mixer.kv_heads // tp))
            parts += [
                heads,
                scene.model("d_k", "width of a key", mixer.head_dim),
                scene.model("d_v", "width of a value", mixer.v_head_dim),
            ]
            formula = "L*K*(d_k + d_v)*b_kv"
        case LatentAttention():
            parts += [
                scene.model("R", "width of the latent", mixer.kv_rank),
                scene.model("d_rope", "rotary width", mixer.rope_dim),
            ]
            formula = "L*(R + d_rope)*b_kv"
    if cache.summaries:
        formula, parts = (
            f"{formula}*(1 + pages)",
            [*parts, given("pages", "summaries of pages, as a share", cache.summaries)],
        )
    if cache.fixed_bytes:
        formula = f"{formula} + L*index"
        parts.append(
            given("index", "an index key with its scales", cache.fixed_bytes, "B", "docs/method.md, section 1")
        )
    name = "layers" if mixer is None else mixer.kind
    limit = "" if cache.cap is None else f", up to {cache.cap} tokens"
    return branch(name, f"{count} layers{limit}", value, "B", (formula, parts))


def step_work(symbol: str, title: str, scenes: list[Scene], one: str) -> Node:
    """FLOP or bytes of a step: the sum over its kernels; `one` is "FLOP" or "bytes"."""
    build: Callable[[Scene, Launched], Node] = flops_node if one == "FLOP" else bytes_node
    parts = [build(scene, launched) for scene in scenes for launched in scene.launched if launched.op is not None]
    parts = [part for part in parts if part.value]
    return joined(symbol, title, sum(part.value for part in parts), "FLOP" if one == "FLOP" else "B", parts)


def step_intensity(title: str, scenes: list[Scene]) -> Node:
    """FLOP for each byte of a step."""
    flops, moved = (
        step_work("FLOP", "work of the step", scenes, "FLOP"),
        step_work("bytes", "traffic of the step", scenes, "bytes"),
    )
    return branch("intensity", title, flops.value / moved.value, "FLOP/B", ("FLOP/bytes", [flops, moved]))


def layers_dtype(plan: Plan) -> Dtype:
    """Format in which most of the layers' matrices are multiplied."""
    return plan.precision.compute(getattr(plan.precision.formats, plan.model.matrices[-1]))


def ridge_node(plan: Plan) -> Node:
    """Intensity at which arithmetic takes as long as memory [FLOP/B]."""
    scene, dtype = Scene.facts(plan), layers_dtype(plan)
    value = float(plan.system.accelerator.ridge(dtype))
    title = f"ridge point in {dtype.unit.value}: below it memory limits, above it arithmetic"
    return branch("ridge", title, value, "FLOP/B", ("P/W", [scene.peak(dtype), scene.bandwidth]))

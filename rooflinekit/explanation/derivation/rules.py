"""Mental arithmetic beside the exact value: the rule that people use, and what lies between, piece by piece."""

from __future__ import annotations

from collections.abc import Callable

from rooflinekit.explanation.derivation.case import Case
from rooflinekit.explanation.derivation.memory import MemoryCase
from rooflinekit.explanation.derivation.node import Node, branch, given, reckoned
from rooflinekit.explanation.derivation.rule import Rule, ruled, weights
from rooflinekit.explanation.derivation.rule_times import e2e_rule, output_rule, tpot_rule, ttft_rule
from rooflinekit.explanation.derivation.scene import Scene, element
from rooflinekit.explanation.derivation.step_metrics import kernel_scenes
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.types.model import Attention, LatentAttention

__all__ = ["mental_rule"]


def mental_rule(case: Case, metric: str, root: Node) -> Rule | None:
    """The rule for a metric, None where there is none."""
    build = _RULES.get(metric)
    if build is not None:
        return build(case, root)
    step, _, rest = metric.partition(".")
    if rest and "." not in rest and rest not in ("flops", "bytes", "intensity", "bound"):
        return _kernel(case, step, rest, root)
    return None


def _cache(case: Case, root: Node) -> Rule | None:
    """2·L·K·d·b, with what the first attention layer has."""
    plan = case.predictor.plan
    mixers = [layer.mixer for layer in plan.model.layers if isinstance(layer.mixer, (Attention, LatentAttention))]
    if not mixers:
        return None
    scene, first = Scene.facts(plan), mixers[0]
    heads, width = (first.kv_heads, first.head_dim) if isinstance(first, Attention) else (first.heads, first.v_dim)
    parts = [
        scene.model("L", "layers", plan.model.depth),
        scene.model("K", "KV heads" if isinstance(first, Attention) else "heads", heads),
        scene.model("d", "width of a head", width),
        element("b", plan.precision.kv, "the cache"),
    ]
    node = branch(
        "rule",
        "keys and values of every layer",
        2.0 * plan.model.depth * heads * width * plan.precision.kv.bytes,
        "B",
        ("2*L*K*d*b", parts),
    )
    rest = (
        "one latent for all heads in place of keys and values"
        if isinstance(first, LatentAttention)
        else "layers without a growing cache, or of another width"
    )
    return ruled("KV bytes a token = 2·L·K·d·b", node, root, [], rest)


def _memory(case: Case, root: Node) -> Rule | None:
    plan = case.predictor.plan
    each = {child.symbol: child for child in root.children}
    stages = Scene.facts(plan).asked("pp", "stages", plan.deployment.pp)
    parts = [*weights(case), stages, given("kv", "cache of the batch", each["kv"].value, "B", "explain MODEL kv")]
    node = reckoned("rule", "weights and cache", "B", ("P*b/(tp*pp) + kv", parts))
    pieces = [
        ("weights in other formats, replicas, padding", each["weights"].value - (node.value - each["kv"].value)),
        ("activations", each["activations"].value),
        ("the engine: context, libraries, graphs", each["engine"].value),
    ]
    return ruled("memory ~ weights + cache", node, root, pieces, "rounding")


def _max_batch(case: Case, root: Node) -> Rule | None:
    work = case.work
    held = (
        MemoryCase.of(case.predictor, work)
        if case.load is None
        else MemoryCase(case.predictor, float(work.batch), float(work.isl + work.osl / 2), float(work.isl))
    )
    sequence = held.sequence(held.stage, held.context)
    if not sequence.value:
        return None
    parts = [
        held.scene.capacity,
        given("weights", "resident weights", held.stage.weight_bytes, "B", "explain MODEL weights"),
        sequence,
        held.scene.asked("dp", "attention replicas", held.model.replicas),
    ]
    node = reckoned(
        "rule", "what the weights leave, in caches of one sequence", "", ("(capacity - weights)/each*dp", parts)
    )
    return ruled(
        "batch ~ (memory − weights) / cache of a sequence",
        node,
        root,
        [],
        "activations, the engine and its memory fraction, whole sequences",
    )


def _flops(step: str) -> Callable[[Case, Node], Rule | None]:
    def build(case: Case, root: Node) -> Rule | None:
        plan, scenes = case.predictor.plan, kernel_scenes(case, step)
        tokens = float(scenes[-1].batch.tokens)
        active = given(
            "P",
            "parameters that a token visits",
            count_parameters(plan.model).active,
            "",
            "explain MODEL params_active",
        )
        parts = [
            active,
            given("T", "tokens of the step", tokens, "", "the question"),
            Scene.facts(plan).asked("tp", "ranks that share each layer", plan.deployment.tp),
        ]
        node = branch(
            "rule",
            "two FLOP a parameter and token",
            2.0 * active.value * tokens / plan.deployment.tp,
            "FLOP",
            ("2*P*T/tp", parts),
        )
        attention = sum(child.value for child in root.children if "attention" in child.symbol)
        return ruled(
            "FLOP ~ 2·P·tokens",
            node,
            root,
            [("attention over the context", attention)],
            "norms and the like; less: embedding, and an LM head on the last tokens only; experts of other ranks",
        )

    return build


def _bytes(case: Case, root: Node) -> Rule | None:
    node = reckoned("rule", "every weight once", "B", ("P*b/tp", weights(case)))
    sums = {"kv": 0.0, "weight": 0.0, "activation": 0.0}
    for scene in kernel_scenes(case, "decode"):
        for one in scene.launched:
            n = one.kernel.count * scene.times
            sums["kv"] += n * float(one.kernel.kv_read_bytes + one.kernel.kv_write_bytes)
            sums["weight"] += n * float(one.kernel.weight_bytes)
            sums["activation"] += n * float(one.kernel.activation_bytes)
    pieces = [
        ("weights that are not read, or on several ranks", sums["weight"] - node.value),
        ("keys and values", sums["kv"]),
        ("activations", sums["activation"]),
    ]
    return ruled("bytes of a step ~ weights", node, root, pieces, "rounding")


def _intensity(case: Case, root: Node) -> Rule | None:
    scenes, (_, width, _) = kernel_scenes(case, "decode"), weights(case)
    m = given("m", "tokens of the step", float(scenes[-1].batch.tokens), "", "the question")
    node = branch(
        "rule", "two FLOP for each weight and token", 2.0 * m.value / width.value, "FLOP/B", ("2*m/b", [m, width])
    )
    return ruled(
        "FLOP/B ~ 2·batch / bytes of a weight",
        node,
        root,
        [],
        "cache and activations, which more sequences do not share",
    )


def _kernel(case: Case, step: str, name: str, root: Node) -> Rule | None:
    found = [
        one for scene in kernel_scenes(case, step) for one in scene.launched if scene.prefix + one.kernel.name == name
    ]
    if not found or any(one.op is None for one in found) or case.predictor.plan.calibration is None:
        return None
    bound = sum(float(one.timed.bound) for one in found)
    node = given(
        "rule",
        "max(FLOP/peak, bytes/bandwidth, sent/links) of all launches",
        bound,
        "s",
        f"explain MODEL {step}.{name}.bound",
    )
    launch = sum(float(one.timed.overhead) for one in found)
    pieces = [("launch floors and latencies", min(launch, root.value - bound))]
    return ruled(
        "time ~ the datasheet roofline", node, root, pieces, "what the kernel realises of the datasheet's rates"
    )


_RULES: dict[str, Callable[[Case, Node], Rule | None]] = {
    "tpot": tpot_rule,
    "ttft": ttft_rule,
    "e2e": e2e_rule,
    "output_tok_s": output_rule,
    "kv_per_token": _cache,
    "memory": _memory,
    "max_batch": _max_batch,
    "prefill.flops": _flops("prefill"),
    "decode.flops": _flops("decode"),
    "decode.bytes": _bytes,
    "decode.intensity": _intensity,
}

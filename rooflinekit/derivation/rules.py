"""Mental arithmetic beside the exact value: the rule that people use, and what lies between, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rooflinekit.derivation.case import Case, decode_scenes, growing_shares
from rooflinekit.derivation.counting import layers_dtype
from rooflinekit.derivation.memory import MemoryCase
from rooflinekit.derivation.metrics import kernel_scenes
from rooflinekit.derivation.node import Node, branch, given, reckoned
from rooflinekit.derivation.scene import Scene, element
from rooflinekit.parameter_count import count_parameters
from rooflinekit.types.model import Attention, LatentAttention

__all__ = ["Rule", "mental_rule"]

_NOTHING = 1e-9  # relative: pieces smaller than this are rounding


@dataclass(frozen=True)
class Rule:
    """A rule of thumb, and the pieces that add up from it to the exact value (all in SI)."""

    text: str
    node: Node
    pieces: tuple[tuple[str, float], ...]

    @property
    def value(self) -> float:
        """What the rule says."""
        return self.node.value

    @property
    def exact(self) -> float:
        """What the pieces lead to."""
        return self.value + sum(amount for _, amount in self.pieces)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        pieces = [{"what": what, "value": amount} for what, amount in self.pieces]
        return {"text": self.text, "value": self.value, "derivation": self.node.to_dict(), "difference": pieces}


def mental_rule(case: Case, metric: str, root: Node) -> Rule | None:
    """The rule for a metric, None where there is none."""
    build = _RULES.get(metric)
    if build is not None:
        return build(case, root)
    step, _, rest = metric.partition(".")
    if rest and "." not in rest and rest not in ("flops", "bytes", "intensity", "bound"):
        return _kernel(case, step, rest, root)
    return None


def _ruled(text: str, node: Node, root: Node, pieces: list[tuple[str, float]], rest: str) -> Rule:
    """Close the sum with what is left over, and drop what is nothing."""
    left = root.value - node.value - sum(amount for _, amount in pieces)
    scale = _NOTHING * max(abs(root.value), abs(node.value))
    return Rule(text, node, tuple((what, amount) for what, amount in [*pieces, (rest, left)] if abs(amount) > scale))


@dataclass(frozen=True)
class _Ledger:
    """What some steps cost, by cause [s]."""

    weights: float = 0.0  #: bytes of weights over the bandwidth
    cache: float = 0.0
    peak: float = 0.0  #: FLOP over the peak of their format
    attention: float = 0.0  #: the part of it that scores query-key pairs
    bound: float = 0.0
    kernels: float = 0.0
    engine: float = 0.0

    def plus(self, scene: Scene, share: float = 1.0) -> _Ledger:
        """With the kernels of another step."""
        gpu, share = scene.plan.system.accelerator, share * scene.times
        sums = dict.fromkeys(("weights", "cache", "peak", "attention", "bound", "kernels", "engine"), 0.0)
        for one in scene.launched:
            kernel, n = one.kernel, share * one.kernel.count
            if one.op is None:
                sums["engine"] += share * float(one.timed.time)
                continue
            sums["weights"] += n * float(kernel.weight_bytes) / float(gpu.memory_bandwidth)
            sums["cache"] += n * float(kernel.kv_read_bytes + kernel.kv_write_bytes) / float(gpu.memory_bandwidth)
            ideal = n * float(kernel.flops) / gpu.peak(kernel.dtype)
            sums["peak"] += ideal
            sums["attention"] += ideal if kernel.family.startswith(("attention", "mla")) else 0.0
            sums["bound"] += share * float(one.timed.bound)
            sums["kernels"] += share * float(one.timed.time)
        return _Ledger(**{name: getattr(self, name) + value for name, value in sums.items()})


def _mean_steps(case: Case) -> _Ledger:
    """The mean decode step: what grows with the context in its parts, all else once."""
    predictor, work = case.predictor, case.work
    shares = list(growing_shares(predictor, work)) if work.context is None else []
    ledger = _Ledger()
    for scene in decode_scenes(
        predictor, work, float(work.decode_context), None if work.context is not None else False
    ):
        ledger = ledger.plus(scene)
    for share, scenes in shares:
        for scene in scenes:
            ledger = ledger.plus(scene, share)
    return ledger


def _weights(case: Case) -> list[Node]:
    plan = case.predictor.plan
    main = getattr(plan.precision.formats, plan.model.matrices[-1])
    parameters = given("P", "parameters", count_parameters(plan.model).total, "", "explain MODEL params")
    return [
        parameters,
        element("b", main, "the layers' weights"),
        Scene.facts(plan).asked("tp", "ranks that share each layer", plan.deployment.tp),
    ]


def _tpot(case: Case, root: Node) -> Rule | None:
    if case.load is not None:
        step = next(child for child in root.children if child.symbol == "step")
        node = given("rule", "a step of a static batch as large as what runs", step.value, "s", "the tree above")
        return _ruled(
            "a decode step of the sequences that run", node, root, [], "prompts of others, computed in between"
        )
    node = reckoned(
        "rule",
        "every weight read once",
        "s",
        ("P*b/(tp*W)", [*_weights(case), Scene.facts(case.predictor.plan).bandwidth]),
    )
    ledger = _mean_steps(case)
    pieces = [
        (
            "weights that a step does not read (embedding, idle experts) or reads on several ranks",
            ledger.weights - node.value,
        ),
        ("keys and values", ledger.cache),
        (
            "arithmetic, activations and links beyond that, at datasheet rates",
            ledger.bound - ledger.weights - ledger.cache,
        ),
        ("what kernels realise of the datasheet's rates, and launches", ledger.kernels - ledger.bound),
        ("host work and gaps of the engine", ledger.engine),
    ]
    return _ruled(
        "TPOT ~ bytes of all weights / bandwidth",
        node,
        root,
        pieces,
        "tokens that a draft saves, or microbatches that wait",
    )


def _ttft(case: Case, root: Node) -> Rule | None:
    plan, scenes = case.predictor.plan, kernel_scenes(case, "prefill")
    scene, dtype = Scene.facts(plan), layers_dtype(plan)
    active = given(
        "P", "parameters that a token visits", count_parameters(plan.model).active, "", "explain MODEL params_active"
    )
    tokens = float(scenes[0].batch.tokens) * (plan.deployment.dp if case.load is None else 1)
    sizes = [
        scene.asked("T", "tokens of all prompts", tokens),
        scene.asked(
            "ranks",
            "accelerators that share the work",
            plan.deployment.stage if case.load is None else plan.deployment.tp,
        ),
    ]
    node = reckoned(
        "rule",
        "two FLOP a parameter and token at the peak",
        "s",
        ("2*P*T/(ranks*P_peak)", [active, *sizes, _named(scene.peak(dtype))]),
    )
    ledger = _Ledger()
    for each in scenes:
        ledger = ledger.plus(each)
    pieces = [
        ("attention: scores and weighted sums", ledger.attention),
        (
            "less: the embedding is a lookup, and the LM head sees only the last tokens",
            ledger.peak - ledger.attention - node.value,
        ),
        ("kernels that bytes or links bind, not arithmetic", ledger.bound - ledger.peak),
        ("what kernels realise of the datasheet's rates, and launches", ledger.kernels - ledger.bound),
        ("host work and gaps of the engine", ledger.engine),
    ]
    rest = (
        "the queue, the step under way, the front end"
        if case.load is not None
        else "microbatches, or the draft's prefill"
    )
    return _ruled("TTFT ~ 2·P·tokens / peak", node, root, pieces, rest)


def _named(peak: Node) -> Node:
    return Node("P_peak", peak.title, peak.value, peak.unit, source=peak.source)


def _e2e(case: Case, root: Node) -> Rule | None:
    parts = {child.symbol: child for child in root.children}
    N, tpot = parts["N"], parts["TPOT"]
    value = N.value * tpot.value
    node = branch(
        "rule",
        "all output tokens at TPOT",
        value,
        "s",
        ("N*TPOT", [N, given("TPOT", tpot.title, tpot.value, "s", "the tree above")]),
    )
    pieces = [("the prompt: TTFT", parts["TTFT"].value), ("the first token comes with it", -tpot.value)]
    return _ruled("a request ~ output tokens x TPOT", node, root, pieces, "rounding")


def _output(case: Case, root: Node) -> Rule | None:
    if case.load is not None:
        return None
    tpot = given("TPOT", "mean time of an output token", case.answer.tpot_ms / 1e3, "s", "explain MODEL tpot")
    B = given("B", "sequences", float(case.work.batch), "", "the question")
    node = branch("rule", "batch over TPOT", B.value / tpot.value, "token/s", ("B/TPOT", [B, tpot]))
    return _ruled("throughput ~ batch / TPOT", node, root, [], "the time that prompts take")


def _cache(case: Case, root: Node) -> Rule | None:
    """2·L·K·d·b, with what the first attention layer has."""
    plan = case.predictor.plan
    mixers = [layer.mixer for layer in plan.model.layers if isinstance(layer.mixer, (Attention, LatentAttention))]
    if not mixers:
        return None
    scene, first = Scene.facts(plan), mixers[0]
    heads, width = (first.kv_heads, first.head_dim) if isinstance(first, Attention) else (first.heads, first.v_dim)
    parts = [scene.model("L", "layers", plan.model.depth), scene.model("K", "KV heads" if isinstance(first, Attention) else "heads", heads),
             scene.model("d", "width of a head", width), element("b", plan.precision.kv, "the cache")]  # fmt: skip
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
    return _ruled("KV bytes a token = 2·L·K·d·b", node, root, [], rest)


def _memory(case: Case, root: Node) -> Rule | None:
    plan = case.predictor.plan
    each = {child.symbol: child for child in root.children}
    stages = Scene.facts(plan).asked("pp", "stages", plan.deployment.pp)
    parts = [*_weights(case), stages, given("kv", "cache of the batch", each["kv"].value, "B", "explain MODEL kv")]
    node = reckoned("rule", "weights and cache", "B", ("P*b/(tp*pp) + kv", parts))
    pieces = [("weights in other formats, replicas, padding", each["weights"].value - (node.value - each["kv"].value)),
              ("activations", each["activations"].value), ("the engine: context, libraries, graphs", each["engine"].value)]  # fmt: skip
    return _ruled("memory ~ weights + cache", node, root, pieces, "rounding")


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
    parts = [held.scene.capacity, given("weights", "resident weights", held.stage.weight_bytes, "B", "explain MODEL weights"), sequence,
             held.scene.asked("dp", "attention replicas", held.model.replicas)]  # fmt: skip
    node = reckoned(
        "rule", "what the weights leave, in caches of one sequence", "", ("(capacity - weights)/each*dp", parts)
    )
    return _ruled(
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
        return _ruled("FLOP ~ 2·P·tokens", node, root, [("attention over the context", attention)],
                      "norms and the like; less: embedding, and an LM head on the last tokens only; experts of other ranks")  # fmt: skip

    return build


def _bytes(case: Case, root: Node) -> Rule | None:
    node = reckoned("rule", "every weight once", "B", ("P*b/tp", _weights(case)))
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
    return _ruled("bytes of a step ~ weights", node, root, pieces, "rounding")


def _intensity(case: Case, root: Node) -> Rule | None:
    scenes, (_, width, _) = kernel_scenes(case, "decode"), _weights(case)
    m = given("m", "tokens of the step", float(scenes[-1].batch.tokens), "", "the question")
    node = branch(
        "rule", "two FLOP for each weight and token", 2.0 * m.value / width.value, "FLOP/B", ("2*m/b", [m, width])
    )
    return _ruled(
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
    return _ruled(
        "time ~ the datasheet roofline", node, root, pieces, "what the kernel realises of the datasheet's rates"
    )


_RULES: dict[str, Callable[[Case, Node], Rule | None]] = {
    "tpot": _tpot, "ttft": _ttft, "e2e": _e2e, "output_tok_s": _output, "kv_per_token": _cache, "memory": _memory,
    "max_batch": _max_batch, "prefill.flops": _flops("prefill"), "decode.flops": _flops("decode"), "decode.bytes": _bytes,
    "decode.intensity": _intensity,
}  # fmt: skip

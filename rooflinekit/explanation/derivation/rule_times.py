"""Rules of thumb for times, and what lies between them and the exact value."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.explanation.derivation.case import Case, decode_scenes, growing_shares
from rooflinekit.explanation.derivation.counting import layers_dtype
from rooflinekit.explanation.derivation.node import Node, branch, given, reckoned
from rooflinekit.explanation.derivation.rule import Rule, ruled, weights
from rooflinekit.explanation.derivation.scene import Scene
from rooflinekit.explanation.derivation.step_metrics import kernel_scenes
from rooflinekit.model.parameter_count import count_parameters

__all__ = ["e2e_rule", "output_rule", "tpot_rule", "ttft_rule"]


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


def tpot_rule(case: Case, root: Node) -> Rule | None:
    """All weights over the bandwidth; under load, a step of what runs."""
    if case.load is not None:
        step = next(child for child in root.children if child.symbol == "step")
        node = given("rule", "a step of a static batch as large as what runs", step.value, "s", "the tree above")
        return ruled(
            "a decode step of the sequences that run", node, root, [], "prompts of others, computed in between"
        )
    node = reckoned(
        "rule",
        "every weight read once",
        "s",
        ("P*b/(tp*W)", [*weights(case), Scene.facts(case.predictor.plan).bandwidth]),
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
    return ruled(
        "TPOT ~ bytes of all weights / bandwidth",
        node,
        root,
        pieces,
        "tokens that a draft saves, or microbatches that wait",
    )


def ttft_rule(case: Case, root: Node) -> Rule | None:
    """Two FLOP a parameter and token, at the peak."""
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
    return ruled("TTFT ~ 2·P·tokens / peak", node, root, pieces, rest)


def _named(peak: Node) -> Node:
    return Node("P_peak", peak.title, peak.value, peak.unit, source=peak.source)


def e2e_rule(case: Case, root: Node) -> Rule | None:
    """Output tokens times TPOT."""
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
    return ruled("a request ~ output tokens x TPOT", node, root, pieces, "rounding")


def output_rule(case: Case, root: Node) -> Rule | None:
    """The batch over TPOT."""
    if case.load is not None:
        return None
    tpot = given("TPOT", "mean time of an output token", case.answer.tpot_ms / 1e3, "s", "explain MODEL tpot")
    B = given("B", "sequences", float(case.work.batch), "", "the question")
    node = branch("rule", "batch over TPOT", B.value / tpot.value, "token/s", ("B/TPOT", [B, tpot]))
    return ruled("throughput ~ batch / TPOT", node, root, [], "the time that prompts take")

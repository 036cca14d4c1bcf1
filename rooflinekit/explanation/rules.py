"""Mental arithmetic beside an exact value: the rule that people use, and what lies between, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rooflinekit.explanation.metrics import Case, layers_dtype
from rooflinekit.model.graph.symbol import Pool, Quantity, named
from rooflinekit.model.graph.tree import Node, tree
from rooflinekit.model.operating_point import parts_of
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.model import Attention, LatentAttention
from rooflinekit.model.types.numeric import maximum
from rooflinekit.model.types.time import KernelTime

_PLAYED = ("ttft", "tpot", "e2e", "output_tok_s")
_NOTHING = 1e-9  # relative: pieces smaller than this are rounding
_ASKED, _SHEET = "your input", "datasheet"
_REALISED = "what kernels realise of the datasheet's rates, and launches"
_HOST = "host work and gaps of the engine"


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


class _Rules:
    """The rules of one case: `rule_tpot` is that of `tpot`, `rule_decode_bytes` that of `decode.bytes`."""

    def __init__(self, case: Case, root: Node) -> None:
        self.case, self.root, self.plan, self.work = case, root, case.predictor.plan, case.work
        self._pool = Pool()
        count, matrices = count_parameters(self.plan.model), self.plan.model.matrices[-1]
        stored, gpu = getattr(self.plan.precision.formats, matrices), self.plan.system.accelerator
        self.all = self.leaf("P", "parameters", count.total, "", "explain MODEL params")
        self.active = self.leaf("P", "parameters that a token visits", count.active, "", "explain MODEL params_active")
        self.width = self.leaf("b", f"bytes of an element of the layers' weights ({stored})", stored.bytes, "B")
        self.tp = self.leaf("tp", "ranks that share each layer", self.plan.deployment.tp)
        self.bandwidth = self.leaf("W", f"memory bandwidth of {gpu.name}", float(gpu.memory_bandwidth), "B/s", _SHEET)
        self.tpot = self.leaf(
            "TPOT", "mean time of an output token", case.answer.tpot_ms / 1e3, "s", "explain MODEL tpot"
        )

    def leaf(self, symbol: str, meaning: str, value: float, unit: str = "", source: str = _ASKED) -> Any:
        return self._pool.fact(float(value), Quantity(symbol, meaning, unit, source))

    def ruled(self, text: str, value: Any, unit: str, pieces: Iterable[tuple[str, float]], rest: str) -> Rule:
        node, parts = tree(named(value, "rule", text, unit)), list(pieces)
        parts.append((rest, self.root.value - node.value - sum(amount for _, amount in parts)))
        least = _NOTHING * max(abs(self.root.value), abs(node.value))
        return Rule(text, node, tuple((what, amount) for what, amount in parts if abs(amount) > least))

    def batch(self, step: str) -> Batch:
        predictor, work = self.case.predictor, self.work
        if step == "prefill":
            return predictor.prefill_batch(work) if self.case.played is None else Batch.prefill(1.0, work.isl)
        if isinstance(predictor, SpeculativePredictor):
            return predictor.verify_batch(work, work.decode_context)
        return predictor.decode_batch(work, work.decode_context)

    def kernels(self, step: str) -> tuple[KernelTime, ...]:
        if step == "decode":
            return self.case.predictor.decode_step(self.work).kernels
        return self.plan.time(self.batch(step)).kernels

    def mean_step(self) -> Iterable[tuple[float, KernelTime]]:
        plan, work, batch = self.plan, self.work, self.batch("decode")
        if work.context is not None or isinstance(self.case.predictor, SpeculativePredictor) or not batch.decoding:
            yield from ((1.0, timed) for timed in self.kernels("decode"))
            return
        yield from ((1.0, timed) for timed in plan.time(batch, grows=False).kernels)
        for part in parts_of(work):
            mean = Batch.mean_decode(batch.decoding.count, part.first, maximum(part.steps, 1.0))
            yield from ((float(part.share), timed) for timed in plan.time(mean, grows=True).kernels)

    def spent(self, kernels: Iterable[tuple[float, KernelTime]]) -> dict[str, float]:
        gpu = self.plan.system.accelerator
        sums = dict.fromkeys(("weights", "cache", "peak", "attention", "bound", "kernels", "engine"), 0.0)
        for share, timed in kernels:
            kernel, launches = timed.kernel, share * timed.kernel.count
            if kernel.family == "host":
                sums["engine"] += share * float(timed.expected)
                continue
            ideal = launches * float(kernel.flops) / gpu.peak(kernel.dtype)
            cached = float(kernel.cache_bytes)
            sums["weights"] += launches * float(kernel.weight_bytes) / float(gpu.memory_bandwidth)
            sums["cache"] += launches * cached / float(gpu.memory_bandwidth)
            sums["peak"] += ideal
            sums["attention"] += ideal if kernel.family.startswith(("attention", "mla")) else 0.0
            sums["bound"] += share * float(timed.bound)
            sums["kernels"] += share * float(timed.expected)
        return sums

    def rule_tpot(self) -> Rule:
        value, sums = self.all * self.width / (self.tp * self.bandwidth), self.spent(self.mean_step())
        read = "weights that a step does not read (embedding, idle experts) or reads on several ranks"
        beyond = sums["bound"] - sums["weights"] - sums["cache"]
        pieces = [(read, sums["weights"] - float(value)), ("keys and values", sums["cache"]),
                  ("arithmetic, activations and links beyond that, at datasheet rates", beyond),
                  (_REALISED, sums["kernels"] - sums["bound"]), (_HOST, sums["engine"])]  # fmt: skip
        rest = "tokens that a draft saves, or microbatches that wait"
        return self.ruled("TPOT ~ bytes of all weights / bandwidth", value, "s", pieces, rest)

    def rule_ttft(self) -> Rule:
        deployment, dtype = self.plan.deployment, layers_dtype(self.plan)
        many = float(self.batch("prefill").tokens) * deployment.dp
        tokens = self.leaf("T", "tokens of all prompts", many)
        ranks = self.leaf("ranks", "accelerators that share the work", deployment.stage)
        rate = self.plan.system.accelerator.peak(dtype)
        peak = self.leaf("P_peak", f"dense {dtype.unit} peak", rate, "FLOP/s", _SHEET)
        value = 2.0 * self.active * tokens / (ranks * peak)
        sums = self.spent((1.0, timed) for timed in self.kernels("prefill"))
        less = "less: the embedding is a lookup, and the LM head sees only the last tokens"
        pieces = [("attention: scores and weighted sums", sums["attention"]),
                  (less, sums["peak"] - sums["attention"] - float(value)),
                  ("kernels that bytes or links bind, not arithmetic", sums["bound"] - sums["peak"]),
                  (_REALISED, sums["kernels"] - sums["bound"]), (_HOST, sums["engine"])]  # fmt: skip
        rest = "microbatches, or the draft's prefill"
        return self.ruled("TTFT ~ 2·P·tokens / peak", value, "s", pieces, rest)

    def rule_e2e(self) -> Rule:
        value = self.leaf("osl", "output tokens", float(self.work.osl)) * self.tpot
        first = float(self.case.answer.ttft_ms or 0.0) / 1e3
        pieces = [("the prompt: TTFT", first), ("the first token comes with it", -float(self.tpot))]
        return self.ruled("a request ~ output tokens x TPOT", value, "s", pieces, "rounding")

    def rule_output_tok_s(self) -> Rule:
        value = self.leaf("batch", "sequences", float(self.work.batch)) / self.tpot
        rest = "the time that prompts take"
        return self.ruled("throughput ~ batch / TPOT", value, "token/s", [], rest)

    def rule_kv_per_token(self) -> Rule | None:
        model, kv = self.plan.model, self.plan.precision.kv
        heads, width, rest = 0, 0, "layers without a growing cache, or of another width"
        for mixer in (layer.mixer for layer in reversed(model.layers)):
            if isinstance(mixer, Attention):
                heads, width = mixer.kv_heads, mixer.head_dim
            elif isinstance(mixer, LatentAttention):
                heads, width, rest = mixer.heads, mixer.v_dim, "one latent for all heads in place of keys and values"
        source = f"config of {model.name}"
        value = 2.0 * self.leaf("L", "layers", model.depth, "", source) * self.leaf("K", "KV heads", heads, "", source)
        value = value * self.leaf("d", "width of a head", width, "", source)
        value = value * self.leaf("b", f"bytes of an element of the cache ({kv})", kv.bytes, "B")
        return self.ruled("KV bytes a token = 2·L·K·d·b", value, "B", [], rest) if heads else None

    def rule_memory(self) -> Rule:
        memory = self.case.answer.memory
        shared = self.tp * self.leaf("pp", "stages", self.plan.deployment.pp)
        weights = self.all * self.width / shared
        value = weights + self.leaf("kv", "cache of the batch", memory.kv_bytes, "B", "explain MODEL kv")
        pieces = [("weights in other formats, replicas, padding", memory.weight_bytes - float(weights)),
                  ("activations", memory.activation_bytes),
                  ("the engine: context, libraries, graphs", memory.overhead_bytes)]  # fmt: skip
        return self.ruled("memory ~ weights + cache", value, "B", pieces, "rounding")

    def rule_max_batch(self) -> Rule | None:
        memory, dp = self.case.answer.memory, self.plan.deployment.dp
        cache = memory.kv_bytes / -(-self.case.held[0] // dp)
        if not cache:
            return None
        left = self.leaf("capacity", "what programs see", memory.capacity_bytes, "B", _SHEET)
        left = left - self.leaf("weights", "resident weights", memory.weight_bytes, "B", "explain MODEL weights")
        value = left / self.leaf("each", "cache of one sequence", cache, "B", "explain MODEL kv")
        value = value * self.leaf("dp", "attention replicas", dp)
        rest = "activations, the engine and its memory fraction, whole sequences"
        return self.ruled("batch ~ (memory − weights) / cache of a sequence", value, "", [], rest)

    def rule_flops(self, step: str) -> Rule:
        tokens = self.leaf("T", "tokens of the step", float(self.batch(step).tokens))
        named_so = [each.kernel for each in self.kernels(step) if "attention" in each.kernel.name]
        pieces = [("attention over the context", sum(kernel.count * float(kernel.flops) for kernel in named_so))]
        rest = "norms and the like; less: embedding, and an LM head on the last tokens only; experts of other ranks"
        return self.ruled("FLOP ~ 2·P·tokens", 2.0 * self.active * tokens / self.tp, "FLOP", pieces, rest)

    def rule_decode_bytes(self) -> Rule:
        value, kernels = self.all * self.width / self.tp, [each.kernel for each in self.kernels("decode")]
        read = sum(kernel.count * float(kernel.weight_bytes) for kernel in kernels)
        cached = sum(kernel.count * float(kernel.cache_bytes) for kernel in kernels)
        passed = sum(kernel.count * float(kernel.activation_bytes) for kernel in kernels)
        pieces = [("weights that are not read, or on several ranks", read - float(value)),
                  ("keys and values", cached), ("activations", passed)]  # fmt: skip
        return self.ruled("bytes of a step ~ weights", value, "B", pieces, "rounding")

    def rule_decode_intensity(self) -> Rule:
        value = 2.0 * self.leaf("m", "tokens of the step", float(self.batch("decode").tokens)) / self.width
        rest = "cache and activations, which more sequences do not share"
        return self.ruled("FLOP/B ~ 2·batch / bytes of a weight", value, "FLOP/B", [], rest)

    def rule_kernel(self, step: str, name: str) -> Rule | None:
        timed = [each for each in self.kernels(step) if each.kernel.name == name and each.kernel.family != "host"]
        if not timed or self.plan.calibration is None:
            return None
        bound = sum(float(each.bound) for each in timed)
        title, source = (
            "max(FLOP/peak, bytes/bandwidth, sent/links) of all launches",
            f"explain MODEL {step}.{name}.bound",
        )
        launch = min(sum(float(each.overhead) for each in timed), self.root.value - bound)
        pieces, rest = [("launch floors and latencies", launch)], "what the kernel realises of the datasheet's rates"
        return self.ruled(
            "time ~ the datasheet roofline", self.leaf("bound", title, bound, "s", source), "s", pieces, rest
        )


def mental_rule(case: Case, metric: str, root: Node) -> Rule | None:
    """The rule for a metric, None where there is none: of times under load the parts that were played say more."""
    if case.played is not None and metric in _PLAYED:
        return None
    rules, (step, _, rest) = _Rules(case, root), metric.partition(".")
    if rest == "flops":
        return rules.rule_flops(step)
    if rest and "." not in rest and rest not in ("bytes", "intensity", "bound", "mfu", "mbu"):
        return rules.rule_kernel(step, rest)
    build = getattr(rules, f"rule_{metric.replace('.', '_')}", None)
    found: Rule | None = build() if build else None
    return found

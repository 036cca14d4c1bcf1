"""Speculative decoding on a plan: rounds of drafting and verification instead of steps of one token.

A round at context T drafts k tokens and verifies them, with the token that is certain, in one pass of the target over
k + 1 tokens; it yields E = `expected_tokens` of them. So TPOT = (verification + drafting)/E.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeGuard

from rooflinekit.model.blocks import stage_operations
from rooflinekit.model.cache import CacheLaw, Layout, cache_law, cache_layout
from rooflinekit.model.capacity import MemoryModel, Stage, cached_layers, outside_of
from rooflinekit.model.graph.symbol import fact
from rooflinekit.model.kernels.elementwise import Elementwise, Sampling
from rooflinekit.model.kernels.gemm import Linear
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.operating_point import STEADY, OperatingPoint, Predictor, parts_of
from rooflinekit.model.precision import Precision
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.shard import Shard
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.errors import DeploymentError, InputError
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.model import (
    Attention,
    CompressedAttention,
    DenseFFN,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    Model,
    WeightFormats,
)
from rooflinekit.model.types.numeric import Numeric, maximum, minimum
from rooflinekit.model.types.speculation import MEASURED, MTP_ACCEPTANCE, Speculation, break_even_acceptance
from rooflinekit.model.types.time import NOTHING, KernelTime, Time
from rooflinekit.model.types.workload import Workload

EAGLE3_VOCAB = 32_000
"""Tokens that EAGLE-3's own LM head knows: `draft_vocab_size` of the published heads (arXiv:2503.01840)."""

_FEATURES = {"mtp": 2, "eagle": 2, "eagle3": 3}  # vectors of width D that are joined and projected to one


@dataclass(frozen=True)
class Head:
    """Work of a draft on the target in its first step and in each later one, and what it keeps [B].

    Embedding and LM head of an MTP or EAGLE layer are the target's own, so they cost time but no memory; EAGLE-3 has a
    smaller LM head of its own.
    """

    layers: tuple[Layer, ...]  #: those with a cache
    first: Counter[Operation]
    later: Counter[Operation]
    weight_bytes: float


def attached_head(method: str, model: Model, deployment: Deployment, precision: Precision, heads: int) -> Head:
    """Lay out the draft that `method` adds to `model`; `heads` counts Medusa's heads, one a drafted token.

    Published heads are in 16 bit, whatever the target's layers are stored in; the LM head stays the target's.
    """
    deployment = replace(deployment, pp=1, images=None, encoder_gpus=0, lora_rank=0)
    if method != "mtp":
        formats = replace(WeightFormats.uniform(precision.stream), lm_head=precision.formats.lm_head)
        precision = replace(precision, formats=formats, inputs=None)
    elif not model.mtp_layers:
        raise InputError(f"{model.name} has no multi-token-prediction layer; use --draft eagle, ngram or a model")
    shard = Shard(model.hidden, precision, deployment)
    return _medusa(model, shard, heads) if method == "medusa" else _layered(method, model, shard)


def _layered(method: str, model: Model, shard: Shard) -> Head:
    """One layer of the target's shape over the joined embedding and hidden state, then the LM head.

    What is joined is normed, and projected to the residual width, whole on every rank. EAGLE-3 feeds attention with the
    embedding beside the fused feature: twice the width.
    """
    layer, eagle3 = _copied_layer(method, model), method == "eagle3"
    alone = replace(model, layers=(layer,), vocab=min(model.vocab, EAGLE3_VOCAB) if eagle3 else model.vocab, tied=False)
    later = stage_operations(alone, shard.deployment, shard.precision, 0)
    if eagle3:
        later = Counter({replace(op, k=2 * op.k) if _is_input(op) else op: n for op, n in later.items()})
    joined, other = _FEATURES[method] * shard.hidden, shard.other
    projection = (("hidden", shard.hidden),), other, shard.precision.compute(other), "other"
    fuse = Elementwise("fuse_norm", joined, joined, 4.0 * joined, joined, other)
    first = Counter[Operation]({fuse: 1, Linear("fuse_proj", joined, *projection): 1}) + later
    shared = ("embedding",) if eagle3 else ("embedding", "lm_head")
    kept = sum(w.bytes * n for op, n in first.items() for w in op.weights if w.module not in shared)
    copies = model.mtp_layers if method == "mtp" else 1  # all are loaded, whether drafting goes that far or not
    return Head((layer,) * copies, first, later if eagle3 else first, copies * kept)


def _is_input(op: Operation) -> TypeGuard[Linear]:
    return isinstance(op, Linear) and op.name in ("qkv_proj", "qkv_a_proj", "q_proj", "kv_a_proj")


def _copied_layer(method: str, model: Model) -> Layer:
    """The target's last layer with softmax attention; EAGLE's has a dense block as wide as what a token visits.

    DeepSeek-V4's sees the window alone: the entries of `compress_ratios` behind those of the layers are 0.
    """
    layers = [
        replace(layer, mixer=replace(mixer, ratio=0, indexer=None)) if isinstance(mixer, CompressedAttention) else layer
        for layer in model.layers
        if isinstance(mixer := layer.mixer, (Attention, LatentAttention, CompressedAttention))
    ]
    if not layers:
        raise InputError(f"{model.name} has no attention layer for {method} to copy; use --draft ngram or a model")
    last = layers[-1]
    if method == "mtp" or not isinstance(moe := last.ffn, MixtureOfExperts):
        return last
    return replace(last, ffn=DenseFFN(moe.top_k * moe.width + moe.shared_width, moe.gated))


def _medusa(model: Model, shard: Shard, heads: int) -> Head:
    """For each drafted token a residual block and an LM head of its own (Medusa, arXiv:2401.10774, section 2.1.1)."""
    width, columns, other = model.hidden, -(-model.vocab // shard.tp), shard.precision.formats.lm_head
    compute = shard.precision.compute(other)
    ops: list[Operation] = [
        Linear("medusa_block", width, (("hidden", width),), other, compute, "other", width),
        Elementwise("medusa_silu", 2 * width, width, 5.0 * width),
        Linear("medusa_head", width, (("logits", columns),), other, compute, "other", rows="sampled"),
    ]
    if shard.tp > 1:
        ops.append(shard.joined("logits_gather", "all_gather", model.vocab, sampled=True))
    ops.append(Sampling(model.vocab))
    return Head(
        (), Counter(dict.fromkeys(ops, heads)), Counter(), heads * sum(w.bytes for op in ops for w in op.weights)
    )


_LONGEST = 8  # drafted tokens that are tried for the best number of them


@dataclass(frozen=True)
class Draft:
    """Costs of drafting: the plans of its first step and of each later one, and what it keeps in memory.

    catch_up: tokens of a sequence that the first step computes; several where the draft reads hidden states of the
    target, which are only known once it has verified.
    """

    choice: Speculation
    model: Model | None  #: where the draft is a model of its own
    first: Plan | None
    later: Plan | None
    catch_up: int
    weight_bytes: float
    cache: CacheLaw
    layers: tuple[Layer, ...] = ()  #: that share the target's pool as its own layers do

    @property
    def steps(self) -> int:
        """Steps after the first."""
        return self.choice.draft_tokens - 1 if self.later is not None else 0

    def batches(self, local: Numeric, context: Numeric) -> list[tuple[Plan, Batch, int]]:
        """Every step of one round as (plan, batch, times), the later ones at their mean context."""
        if self.first is None or not self.choice.draft_tokens:
            return []
        past = maximum(context - self.catch_up, 0.0)
        rounds = [(self.first, Batch(decoding=Sequences(local, float(self.catch_up), past)), 1)]
        if self.later is not None and self.steps:
            width = float(-(-self.choice.verified // self.choice.draft_tokens))  # candidates at each place of a tree
            mean = context + self.choice.draft_tokens / 2.0
            rounds.append((self.later, Batch(decoding=Sequences(local, width, mean - width, width)), self.steps))
        return rounds

    def prefill(self, batch: Batch) -> Time:
        """Time of its own pass over the prompt, if it keeps a cache."""
        keeps = self.cache.slopes or self.cache.state_bytes
        return self.first.time(batch).total if self.first is not None and keeps else NOTHING


def make_draft(plan: Plan, choice: Speculation, model: Model | None = None) -> Draft:
    """Lay out the draft; `model` is the draft model where the method is one."""
    if choice.method == "ngram":
        return Draft(choice, None, None, None, 1, 0.0, CacheLaw((), 0.0))
    if model is not None:
        return _model_draft(plan, choice, model)
    deployment, precision = plan.deployment, plan.precision
    head = attached_head(choice.method, plan.model, deployment, precision, choice.draft_tokens)
    law = cache_law(head.layers, precision.kv, deployment.tp, index=precision.index, policy=deployment.kv_policy)
    shape = replace(plan.model, layers=head.layers[:1])
    own = _within_step(replace(plan, model=shape, deployment=replace(deployment, pp=1)))
    later = replace(own, operations=head.later) if head.later else None
    catch_up = choice.draft_tokens + 1 if head.layers else 1
    return Draft(
        choice, None, replace(own, operations=head.first), later, catch_up, head.weight_bytes, law, head.layers
    )


def _model_draft(plan: Plan, choice: Speculation, model: Model) -> Draft:
    """A model of its own on the target's accelerators, in its own formats, with the target's cache format."""
    target = plan.deployment
    tp = choice.tp or target.tp
    if tp > target.tp:
        raise DeploymentError(f"draft_tp={tp} is more than the target's tp={target.tp}; use at most {target.tp}")
    split = replace(target, tp=tp, pp=1, ep=1, weights=None, activations=None, images=None, encoder_gpus=0, lora_rank=0)
    try:
        own = _within_step(make_plan(model, split, plan.system, plan.calibration, plan.engine))
    except DeploymentError as error:
        raise DeploymentError(f"the draft does not split as the target does: {error} (--draft-tp)") from None
    weights = sum(w.bytes * count for op, count in own.operations.items() for w in op.weights)
    law = cache_law(model.layers, own.precision.kv, tp, index=own.precision.index, policy=target.kv_policy)
    return Draft(choice, model, own, own, 1, weights, law)


def _within_step(plan: Plan) -> Plan:
    """Drafting is part of the step that verifies: the engine schedules and hands out tokens once for both."""
    return replace(plan, engine=replace(plan.engine, costs=plan.engine.costs.hostless))


@dataclass(frozen=True)
class SpeculativePredictor(Predictor):
    """A predictor whose decode is speculative; `plain` is the same without a draft."""

    plain: Predictor
    draft: Draft

    def on(self, plan: Plan) -> SpeculativePredictor:
        """The draft beside another plan."""
        return speculate(Predictor.of(plan), self.draft.choice, self.draft.model)

    def evaluate(self, work: Workload) -> OperatingPoint:
        """TTFT with the draft's own prefill; TPOT = mean round over its tokens; memory with the draft."""
        point = super().evaluate(work)
        prompt = self.draft.prefill(self.prefill_batch(work)).named("draft", "the draft's own pass over the prompts")
        whole = point.ttft.named("prefill", "prefill and first sample").plus(prompt)
        return replace(point, ttft=whole.named("TTFT", "time to the first token, the draft's pass included"))

    def verify_batch(self, work: Workload, context: Numeric) -> Batch:
        """The pass over the drafted tokens and the certain one, which is at `context` keys."""
        extra = self.draft.choice.verified
        return Batch.decode(self._local(work), context + extra, extra + 1.0)

    def round(self, work: Workload, context: Numeric) -> tuple[StepTime, StepTime]:
        """Verification and drafting of one round; the draft's kernels are named after it."""
        verify, drafted = self.plan.time(self.verify_batch(work, context)), []
        for plan, batch, times in self.draft.batches(self._local(work), context):
            drafted += [_drafted(timed, times) for timed in plan.time(batch).kernels]
        return verify, replace(verify, kernels=tuple(drafted))

    def draft_time(self, work: Workload, context: Numeric) -> Numeric:
        """Time that drafting adds to the verification of one round [s]."""
        rounds = self.draft.batches(self._local(work), context)
        return sum((times * plan.time(batch).expected for plan, batch, times in rounds), 0.0)

    def decode_step(self, work: Workload) -> StepTime:
        """One round at the reported context."""
        verify, drafted = self.round(work, work.decode_context)
        return replace(verify, kernels=(*drafted.kernels, *verify.kernels))

    def speedup(self, work: Workload) -> float:
        """TPOT without the draft over TPOT with it."""
        return float(self.plain.evaluate(work).tpot.expected / self.evaluate(work).tpot.expected)

    def break_even(self, work: Workload) -> float | None:
        """Acceptance of every token at which a round at the reported context is as fast as plain steps."""
        context = work.decode_context
        verify, draft = self.round(work, context)
        plain = self.plan.time(self.plain.decode_batch(work, context)).expected
        return break_even_acceptance(float((verify.expected + draft.expected) / plain), self.draft.choice.draft_tokens)

    def best_draft_tokens(self, work: Workload) -> int:
        """Number of drafted tokens with the shortest TPOT at the reported context, at most 8; 0 if none helps."""
        at = replace(work, context=work.decode_context)
        times = [float(self.plain.evaluate(at).tpot.expected)]
        for tokens in range(1, _LONGEST + 1):
            choice = replace(self.draft.choice, draft_tokens=tokens, tree=None)
            other = replace(self, draft=make_draft(self.plan, choice, self.draft.model))
            times.append(float(other.tpot(at).expected))
        return min(range(len(times)), key=times.__getitem__)

    def notes(self) -> Iterator[str]:
        """Notes for the reader of its answers."""
        choice, target = self.draft.choice, self.plan.model
        if choice.assumed and choice.acceptance != (MTP_ACCEPTANCE,):
            low, high = MEASURED[choice.method][1][choice.draft_tokens - 1]
            yield (
                f"acceptance is the median of measured {choice.method} drafts on coding prompts. It gives "
                f"{choice.tokens_per_pass:.3g} tokens a pass, {low:g} to {high:g} by run (InferenceX 843c6254). Chat "
                "is accepted less often; give your own measurement"
            )
        elif choice.assumed:
            yield (
                f"acceptance {choice.acceptance[0]} is the low end in DeepSeek-V3's report on its own MTP layer "
                "(arXiv:2412.19437, 5.4.3); give your own measurement"
            )
        if choice.method == "ngram":
            yield "n-gram drafting runs on the host; its time there is not modelled"
        if choice.method in ("eagle", "eagle3") and isinstance(target.layers[-1].ffn, MixtureOfExperts):
            yield f"the dense block of the {choice.method} layer is assumed as wide as the experts of a token"
        if self.draft.model is not None and self.draft.model.vocab != target.vocab:
            yield (
                f"{self.draft.model.name} has {self.draft.model.vocab} tokens and {target.name} {target.vocab}: "
                "the draft only works if both number their tokens alike"
            )
        if self.plan.deployment.pp > 1:
            yield "the draft's weights and cache are charged to every pipeline stage, though one holds them"

    def decoding(self, work: Workload) -> tuple[Time, StepTime]:
        """Mean over rounds, split as plain decode is; the last round yields no more tokens than are asked for."""
        tokens: Numeric = fact(self.draft.choice.tokens_per_pass, "E", "tokens that a round yields", source=_YIELD)
        mean = self._round_time(work, work.decode_context, None if work.context is not None else False)
        if work.context is None:
            mean = mean.named(*STEADY)
            for part in parts_of(work):
                middle = part.first + (maximum(part.steps, 1.0) - 1.0) / 2
                mean = mean.plus(self._round_time(work, middle, grows=True).named(*part.attention), part.share)
            tokens = minimum(tokens, work.decode_steps)
        mean = mean.widened(self.plan.costs.interval).named("round", "drafting and verification")
        tpot = NOTHING.plus(mean, 1.0 / tokens).named("TPOT", "mean time of an output token after the first")
        return tpot, self.decode_step(work)

    def _round_time(self, work: Workload, context: Numeric, grows: bool | None) -> Time:
        time = self.plan.time(self.verify_batch(work, context), grows).sums
        time = time.named("verify", "the pass that verifies the drafted tokens")
        for plan, batch, times in self.draft.batches(self._local(work), context):
            time = time.plus(plan.time(batch, grows).sums.named("draft", "one step of the draft"), fact(times, *_STEPS))
        return time


_STEPS = "n_draft", "steps of the draft like this one", "", "your input"
_YIELD = "1 + α1 + α1·α2 + …, arXiv:2211.17192, equation 1"


def _drafted(timed: KernelTime, times: int) -> KernelTime:
    """Repeat the kernel in each of `times` equal steps of the draft."""
    name, count = f"draft_{timed.kernel.name}", timed.kernel.count * times
    return timed.repeated(fact(times, *_STEPS), replace(timed.kernel, name=name, count=count)).labelled()


def speculate(plain: Predictor, choice: Speculation, model: Model | None = None) -> SpeculativePredictor:
    """Put a draft beside a predictor's plan: its weights and cache are added to every stage's memory."""
    if plain.plan.deployment.ffn_gpus:
        raise DeploymentError("a draft is not known beside ffn_gpus; leave one of them out")
    draft = make_draft(plain.plan, choice, model)
    return SpeculativePredictor(plain.plan, _with_draft(plain.plan, plain.memory, draft), plain, draft)


def _with_draft(plan: Plan, memory: MemoryModel, draft: Draft) -> MemoryModel:
    stages, drafted = list[Stage](), draft.choice.verified
    for number, stage in enumerate(memory.stages):
        if stage.beside:
            stages.append(stage)
            continue
        layout = cache_layout(plan, cached_layers(plan, number), draft.layers, drafted)
        layout = _beside(layout, draft.cache) if draft.model else layout
        stages.append(Stage(stage.weight_bytes + draft.weight_bytes, layout))
    return replace(memory, stages=tuple(stages), outside=outside_of(plan, drafted))


def _beside(layout: Layout, cache: CacheLaw) -> Layout:
    """A draft model takes blocks of the same pool: wider ones, or, where kinds are grouped, further groups."""
    more = cache.bytes_per_token * layout.block
    law = layout.law.plus(cache)
    if layout.groups == 1 or not layout.block_bytes:
        return replace(layout, law=law, block_bytes=layout.block_bytes + more)
    return replace(layout, law=law, groups=layout.groups + int(-(-more // layout.block_bytes)))

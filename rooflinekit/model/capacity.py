"""Does it fit, by the engine's own rule: weights, activation peak, what lies outside, and the pool for the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING

from rooflinekit.model.cache import Layout, cache_law, cache_layout
from rooflinekit.model.footprint import Peak, activation_peak, resident_bytes
from rooflinekit.model.graph.symbol import about, fact, named
from rooflinekit.model.step import Plan
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import MemoryRule
from rooflinekit.model.types.frozen import dataclass, field, replace
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.model import Attention, Layer
from rooflinekit.model.types.numeric import Numeric, ceil_div, is_zero, maximum, minimum, where

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_UNCHUNKED = 32_768  # tokens; vLLM V0 profiles in chunks where longer sequences are admitted (arg_utils, 0.4 to 0.8)
_ENDLESS = 1e15  # sequences; more are not counted
_ROUNDING = 1e-12  # of a sum that is the capacity by definition
_WINDOW_PAGE = 256.0  # tokens of a page of SGLang's cache of DeepSeek-V4 (deepseek_v4_hook.py)
_LEAST_PROMPT = 2048  # tokens of the profiled prompt at the least (the same)
_SPLITTING = "9.0"  # compute capability for which vLLM takes FlashAttention 3


@dataclass(frozen=True)
class Memory:
    """Memory of the busiest accelerator [B], and what would still fit."""

    capacity_bytes: Numeric
    weight_bytes: Numeric = field(metadata=about("weights", "resident weights", "B"))
    kv_bytes: Numeric = field(metadata=about("kv", "cache of the batch", "B"))
    activation_bytes: Numeric = field(metadata=about("activations", "peak of activations", "B"))
    context_bytes: float  #: CUDA context and first buffers of the communicator
    non_torch_bytes: float  #: what grows outside the allocator
    graph_bytes: float
    kv_pool_bytes: Numeric = field(metadata=about("pool", "memory that the engine sets aside for the cache", "B"))
    kv_pool_tokens: Numeric
    kv_blocks: Numeric
    max_concurrency: Numeric  #: sequences of the longest admitted length that the pool holds
    max_batch: Numeric = field(metadata=about("max_batch", "sequences of this length over the whole deployment"))
    max_context: Numeric = field(metadata=about("max_context", "tokens of each sequence, infinite if nothing limits"))
    kv_bytes_per_token: float  #: one sequence, all accelerators, each key and value once
    needed_bytes: Numeric  #: to run the batch; or, where that is more than there is, what the engine reserves to start
    available_bytes: Numeric  #: of that: what the engine may use in all, or the whole memory

    @property
    def overhead_bytes(self) -> float:
        """Memory of the engine besides weights, activations and cache."""
        whole = self.context_bytes + self.non_torch_bytes + self.graph_bytes
        return named(whole, "engine", "other memory of the engine", "B")

    @property
    def total_bytes(self) -> Numeric:
        """Memory of the batch, everything together."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes + self.overhead_bytes

    @property
    def fits(self) -> Numeric:
        """1 where the pool holds the cache of the batch and the engine starts, else 0."""
        return where(self.needed_bytes <= self.available_bytes, 1.0, 0.0)


@dataclass(frozen=True)
class Outside:
    """Memory of an engine besides weights, activations and cache [B]."""

    context: float = field(metadata=about("context", "CUDA context and first buffers", "B"))
    non_torch: float = field(metadata=about("non_torch", "memory that grows outside the allocator", "B"))
    graphs: float = field(metadata=about("graphs", "CUDA graphs", "B"))

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return self.context + self.non_torch + self.graphs


@dataclass(frozen=True)
class Stage:
    """One pipeline stage on one accelerator, or a group beside it: weights [B] and the layout of its cache."""

    weight_bytes: float
    layout: Layout
    beside: bool = False  #: a group that holds no cache, and is told of where it is too small


@dataclass(frozen=True)
class MemoryModel:
    """Memory of a plan as a function of batch and context; built once, evaluated for any number of scenarios."""

    capacity_bytes: Numeric = field(metadata=about("capacity", "memory that programs see", "B"))
    rule: MemoryRule
    fraction: float = field(metadata=about("u", "memory fraction"))
    outside: Outside
    peak: Peak
    tokens: float = field(metadata=about("most", "tokens of a step at most"))
    rows: float = field(metadata=about("rows", "sequences that the engine is set up for"))
    longest: float | None  #: tokens of the longest sequence that it was told to admit
    stages: tuple[Stage, ...]
    replicas: int
    ranks: int  #: that share the context of one sequence
    limit: int | None  #: the model's own maximum context
    kv_bytes_per_token: float

    def evaluate(self, batch: Numeric, context: Numeric, new: Numeric) -> Memory:
        """Memory of the fullest stage for `batch` sequences of `context` tokens whose prompts add `new` each."""
        local = named(ceil_div(batch, fact(self.replicas, *REPLICAS)), "B", "sequences of one attention replica")
        activations = self._activations(local, new)
        pieces = [self._stage(stage, local, context, activations) for stage in self.stages]
        chosen = pieces[0]
        for stage, piece in zip(self.stages[1:], pieces[1:], strict=True):
            fuller = piece[6] > piece[7] if stage.beside else piece[1] - piece[2] > chosen[1] - chosen[2]
            chosen = tuple(where(fuller, ours, others) for ours, others in zip(piece, chosen, strict=True))
        weights, kv, pool, blocks, tokens, concurrency, needed, available = chosen
        return Memory(
            self.capacity_bytes, weights, kv, activations,
            self.outside.context, self.outside.non_torch, self.outside.graphs,
            pool, tokens, blocks, concurrency,
            self.max_batch(context, new), self.max_context(local, new), self.kv_bytes_per_token, needed, available,
        )  # fmt: skip

    def pool(self, stage: Stage, activations: Numeric) -> Numeric:
        """Pool for the cache of one stage [B]; negative if the rest is too large."""
        pool = self._allowance(stage) - self.charge * activations
        return named(pool, "pool", "memory left for the cache by the engine's rule", "B", RULE)

    @property
    def state_blocks(self) -> tuple[float, float]:
        """Blocks that sequences keep recurrent states in, and sequences for which there is one of each group of layers.

        An engine that replays graphs starts only with as many blocks as sequences may run. Infinite if none is needed.
        """
        activations = self._activations(1.0, 1.0)
        found = [
            (float(stage.layout.blocks(self.pool(stage, activations))), stage.layout)
            for stage in self.stages
            if stage.layout.states
        ]
        held = [(blocks, blocks * layout.block_bytes // layout.law.bytes(1.0)) for blocks, layout in found]
        return min(((blocks, float(whole)) for blocks, whole in held), default=(math.inf, math.inf))

    @property
    def window_tokens(self) -> tuple[float, float]:
        """Tokens that windows have room for in a part of the pool of their own, and those of a prompt that stay there.

        Infinite where windows share the pool with all else.
        """
        activations = self._activations(1.0, 1.0)
        found = [
            (layout.windows[0] * float(layout.tokens(self.pool(stage, activations))), layout.windows[1])
            for stage in self.stages
            if (layout := stage.layout).windows
        ]
        return min(found, default=(math.inf, math.inf))

    def window_places(self, prompt: Numeric) -> Numeric:
        """Requests of one replica that windows have room for, with prompts of so many tokens; infinite as above.

        Of each a prompt's last chunk stays, and a page of what it decodes.
        """
        room, stays = self.window_tokens
        if room == math.inf:
            return math.inf
        chunk = prompt - self.tokens * (ceil_div(prompt, self.tokens) - 1.0)
        kept = chunk if stays == math.inf else minimum(chunk, stays)
        places = room / (kept + _WINDOW_PAGE) // 1.0
        return named(places, "windows", "requests of a replica that windows have room for")

    @property
    def charge(self) -> float:
        """Share of the activation peak that the pool pays for."""
        return {"static": 0.0, "free": self.fraction}.get(self.rule.budget, 1.0)

    def max_batch(self, context: Numeric, new: Numeric) -> Numeric:
        """Most sequences that fit: one more than this does not, and this many do, as `evaluate` says."""
        room, held, peak = list[Numeric](), self._held(context), self.peak
        parts_of_peak = (
            (peak.layer_base, peak.layer_token, 0.0),
            (peak.sampler_base, peak.sampler_token, peak.sampler_row),
            *([(peak.encoder, 0.0, 0.0)] if peak.encoder else []),
        )
        for stage in self.stages:
            parts = list[Numeric]()
            each = named(stage.layout.law.bytes(held), *_EACH)
            allowed, spared = self._allowance(stage), 1.0 - self.charge
            for base, token, row in parts_of_peak:
                fits = self._most(allowed - self.charge * base, each, (self.charge * token, self.charge * row), new)
                if self.rule.budget in ("static", "free"):  # the pool does not pay for all activations
                    there = self.capacity_bytes * (1.0 + _ROUNDING) - stage.weight_bytes - self.outside.total
                    left = there - self.rule.slack - spared * base - allowed
                    fits = minimum(fits, self._most(left, 0.0, (spared * token, spared * row if row else 0.0), new))
                parts.append(named(fits, "fits", "sequences, of the pool and one part of the peak"))
            room.append(where(self._fits(stage, 0.0, self._activations(0.0, new)), reduce(minimum, parts), 0.0))
        most = named(reduce(minimum, room), "room", "sequences that fit in one replica")
        whole = maximum(most // 1.0, 0.0)
        for rounding in (1.0, 0.0):  # up where one more fits, then down where these do not
            more = whole + rounding
            whole = where(self._holds(more, held, new), more, maximum(more - 1.0, 0.0))
        return whole * fact(self.replicas, *REPLICAS)

    def fractions(self, batch: Numeric, context: Numeric, new: Numeric) -> Iterator[float]:
        """Memory fractions, in whole percent, under which so many sequences fit; those nearest to the present first."""
        shares = sorted((percent / 100 for percent in range(5, 100)), key=lambda share: abs(share - self.fraction))
        if self.rule.budget != "none":
            yield from (share for share in shares if replace(self, fraction=share).evaluate(batch, context, new).fits)

    def _holds(self, local: Numeric, held: Numeric, new: Numeric) -> bool | NDArray[np.bool_]:
        """True if every stage holds so many sequences in a replica."""
        activations = self._activations(local, new)
        all_hold: Numeric = 1.0
        for stage in self.stages:
            all_hold = where(self._fits(stage, local * stage.layout.law.bytes(held), activations), all_hold, 0.0)
        return all_hold > 0.0

    def max_context(self, local: Numeric, new: Numeric) -> Numeric:
        """Longest context at which `local` sequences a replica fit, at most the model's own maximum."""
        longest: Numeric = math.inf if self.limit is None else float(self.limit)
        activations = self._activations(local, new)
        for stage in self.stages:
            if stage.beside:
                longest = where(self._fits(stage, 0.0, activations), longest, 0.0)
                continue
            share = named(self.pool(stage, activations) / local, "share", "of the pool, for each sequence", "B")
            held = named(stage.layout.law.longest(share), "fitting", "tokens that such a share holds", source=LONGEST)
            held = held * fact(self.ranks, *RANKS)
            longest = minimum(longest, where(self._fits(stage, 0.0, activations), held, 0.0))
        return longest

    def _most(self, allowance: Numeric, each: Numeric, peak: tuple[float, float], new: Numeric) -> Numeric:
        """Largest b with b·each + token·tokens(b) + row·rows(b) within the allowance."""
        token, row = peak
        if self.rule.profiled:
            left = allowance - token * self.tokens
            return minimum(_quotient(left - row * self.rows, each), _quotient(left, each + row))
        below = _quotient(allowance, each + row + new * token)
        above = _quotient(allowance - self.tokens * token, each + row)
        return where(above * new >= self.tokens, above, minimum(below, self.tokens / new))

    def _allowance(self, stage: Stage) -> Numeric:
        """The pool if there were no activations [B]."""
        capacity, out, rule = self.capacity_bytes, self.outside, self.rule
        graphs, weights, u = rule.graphs_count * out.graphs, stage.weight_bytes, self.fraction
        match rule.budget:
            case "total":
                allowed = u * capacity - weights - (out.non_torch + rule.context_counts * out.context + graphs)
            case "static":
                allowed = u * (capacity - out.context) - weights - out.non_torch
            case "free":
                allowed = u * (capacity - (weights + out.context + out.non_torch + graphs))
            case _:
                allowed = capacity - weights - out.total
        return named(allowed, "allow", "the pool if there were no activations", "B", RULE)

    def _activations(self, local: Numeric, new: Numeric) -> Numeric:
        if self.rule.profiled:
            return named(self.peak.bytes(self.tokens, maximum(local, self.rows)), *_ACTIVATIONS)
        tokens = named(minimum(local * new, self.tokens), "m", "tokens of a step")
        return named(self.peak.bytes(tokens, local), *_ACTIVATIONS)

    def _held(self, context: Numeric) -> Numeric:
        if self.ranks == 1:
            return context
        return named(ceil_div(context, fact(self.ranks, *RANKS)), "T_here", "tokens of a sequence on this rank")

    def _fits(self, stage: Stage, kv: Numeric, activations: Numeric) -> bool | NDArray[np.bool_]:
        """True if the stage holds so many bytes of cache; with none, if the engine starts at all."""
        needed, available = self._need(stage, kv, activations)
        return needed <= available

    def _need(self, stage: Stage, kv: Numeric, activations: Numeric) -> tuple[Numeric, Numeric]:
        """Memory for `kv` bytes of cache together with all else, and the memory for it [B].

        An engine that refuses to start without room for one longest sequence needs that much. Where the pool is large
        enough, what counts is whether the memory holds the pool and all else.
        """
        if self.longest is not None and self.rule.refuses:
            kv = maximum(kv, stage.layout.admitted_bytes(self._held(self.longest), self.tokens))
        pool = self.pool(stage, activations)
        fixed = stage.weight_bytes + activations + self.outside.total
        reserved, there = fixed + maximum(pool, 0.0) + self.rule.slack, self.capacity_bytes * (1.0 + _ROUNDING)
        counts = where(kv > pool, 1.0, where(reserved <= there, 1.0, 0.0)) > 0  # the pool, not the whole memory
        return where(counts, fixed + kv, reserved), where(counts, fixed + pool, there)

    def _stage(self, stage: Stage, local: Numeric, context: Numeric, activations: Numeric) -> tuple[Numeric, ...]:
        layout, longest = stage.layout, self._held(context if self.longest is None else self.longest)
        pool = self.pool(stage, activations)
        room = maximum(pool, 0.0)
        each = layout.admitted_bytes(longest, self.tokens)
        cached = layout.law.slopes or layout.law.state_bytes  # no layer is left where the host keeps them all
        held = layout.blocks(room) * layout.block_bytes / each if cached else _ENDLESS
        kv = local * named(layout.law.bytes(self._held(context)), *_EACH)
        by_concurrency = self.rule.tokens_by_concurrency and layout.groups > 1
        tokens = held * longest // 1.0 if by_concurrency else layout.tokens(room)
        need = self._need(stage, kv, activations)
        return stage.weight_bytes, kv, room, layout.blocks(room), tokens, held, *need


def _quotient(left: Numeric, each: Numeric) -> Numeric:
    """Quotient of two sizes; infinite where the divisor is 0."""
    if is_zero(each):
        return where(left >= 0.0, _ENDLESS, 0.0)
    return left / each


RULE = "docs/engines.md, memory"
LONGEST = "rooflinekit.model.cache.CacheLaw.longest"
REPLICAS = "dp", "attention replicas", "", "your input"
RANKS = "cp", "ranks that share a context", "", "your input"
_ACTIVATIONS = "activations", "peak of activations", "B"
_EACH = "each", "cache of one sequence here", "B"


def make_memory_model(plan: Plan) -> MemoryModel:
    """The memory of a plan, stage by stage."""
    model, deployment, precision = plan.model, plan.deployment, plan.precision
    rule, settings, accelerator = plan.engine.memory, deployment.settings, plan.system.accelerator
    stages = tuple(
        Stage(resident_bytes(plan, stage), cache_layout(plan, cached_layers(plan, stage)))
        for stage in range(deployment.pp)
    )
    groups = [place for place in ("ffn", "encoder") if deployment.boards(place)]
    stages += tuple(Stage(resident_bytes(plan, 0, place), cache_layout(plan, ()), beside=True) for place in groups)
    tokens = _step_tokens(plan)
    return MemoryModel(
        capacity_bytes=accelerator.visible_bytes,
        rule=rule,
        fraction=settings.memory_fraction or rule.fraction,
        outside=outside_of(plan),
        peak=activation_peak(plan, tokens),
        tokens=tokens,
        rows=plan.most_sequences,
        longest=settings.max_model_len,
        stages=stages,
        replicas=deployment.dp,
        ranks=deployment.cp,
        limit=model.max_context,
        kv_bytes_per_token=cache_law(model.layers, precision.kv, index=precision.index).bytes_per_token,
    )


def cached_layers(plan: Plan, stage: int) -> tuple[Layer, ...]:
    """The layers of a stage whose cache the accelerator holds."""
    layers = plan.model.stage_layers(stage, plan.deployment.pp)
    return layers[plan.deployment.offload_layers :] if stage == 0 else layers


def _step_tokens(plan: Plan) -> float:
    """Tokens of one prefill step at most: the budget, or a whole prompt where the engine does not cut prompts."""
    rule, settings = plan.engine.memory, plan.deployment.settings
    longest = settings.max_model_len or plan.model.max_context
    if rule.chunked or settings.token_budget or longest is None or longest > _UNCHUNKED:
        return plan.token_budget
    return float(max(longest, _LEAST_PROMPT))


def outside_of(plan: Plan, drafted: int = 0) -> Outside:
    """Memory of the engine besides weights, activations and cache; a sequence has `drafted` tokens beside its own."""
    rule, deployment, gpu = plan.engine.memory, plan.deployment, plan.system.accelerator
    non_torch = rule.non_torch[0]
    if deployment.joined > deployment.pp:
        bus = gpu.link_kind in ("pcie", "none")
        slow = rule.non_torch_bus or rule.non_torch[not bus]
        non_torch = slow if bus or gpu.link_kind.endswith("bridge") else rule.non_torch[1]
    count, held = captured_graphs(plan, drafted)
    graphs = rule.graphs + rule.graphs_per_layer * count * plan.model.depth / deployment.pp + held
    return Outside(context_bytes(rule, gpu, deployment.joined), non_torch, 0.0 if deployment.settings.eager else graphs)


def captured_graphs(plan: Plan, drafted: int = 0) -> tuple[int, float]:
    """Number of CUDA graphs that an engine captures, and the memory of their largest steps [B].

    vLLM has a graph for each size of a mixed step, in which attention runs outside, and one for each size of a decode
    step. Graphs share memory, so the largest step counts: the activations of a layer, and in a decode step the fp32
    results of the parts that FlashAttention 3 (compute capability 9.0) cuts keys into.
    """
    rule, deployment = plan.engine.memory, plan.deployment
    times, most = rule.graph_sizes
    if not most:
        return 0, 0.0
    decoded = plan.most_sequences * (1 + drafted)
    mixed = min(max(min(times * decoded, most), deployment.settings.graph_tokens or 0), plan.token_budget)
    own = min(decoded, mixed) if rule.graph_decode else 0.0
    splits = plan.system.accelerator.compute_capability == _SPLITTING and plan.precision.stream is not Dtype.FP32
    parts = rule.graph_splits * splits
    softmax = (layer.mixer for layer in plan.model.layer_counts if isinstance(layer.mixer, Attention))
    values = max((mixer.heads * mixer.v_head_dim for mixer in softmax), default=0) / deployment.tp
    held = mixed * activation_peak(plan, plan.token_budget).layer_token + parts * own * values * Dtype.FP32.bytes
    return sum(captured_sizes(most, rule.graph_step) for most in (mixed, own)), held


def captured_sizes(most: float, step: float = 256.0) -> int:
    """Number of captured batch sizes up to `most` tokens: 1, 2, 4, each 8th, and from `step` on each 16th.

    vLLM, config/vllm.py `_set_cudagraph_sizes`; before 0.11 each 8th to the end.

    >>> [captured_sizes(most) for most in (4, 16, 32, 512)]  # logs: 5 (largest=16), 7 (largest=32), 51 (largest=512)
    [3, 5, 7, 51]
    """
    return sum(size <= most for size in (1, 2, 4, *range(8, int(step), 8), *range(int(step), int(most) + 1, 16)))


def context_bytes(rule: MemoryRule, gpu: Accelerator, ranks: int) -> float:
    """CUDA context and first buffers of the communicator [B], scaled to accelerators smaller than the measured one.

    A context has code, and local memory for each core: base + (one - base)·cores/measured. NCCL has buffers for each
    channel, and fewer channels over fewer links: in proportion to them (an assumption). Over PCI Express it grows with
    the ranks as measured, from 4 to 8 of them.

    >>> from rooflinekit.specs import load_accelerator
    >>> from rooflinekit.specs.engines import load_engine
    >>> rule = load_engine("vllm").memory
    >>> [context_bytes(rule, load_accelerator(name).value, ranks=4) / 2**30 for name in ("h100-sxm", "t4")]
    [1.53, 0.37]
    """
    one, both = rule.context
    if not rule.context_cores:
        return both if ranks > 1 else one
    alone = rule.context_base + (one - rule.context_base) * min(float(gpu.cores) / rule.context_cores, 1.0)
    if ranks == 1:
        return alone
    if gpu.link_kind == "pcie":
        few, many = rule.communicator_pcie
        return alone + min(few + (many - few) * min(max((ranks - 4) / 4, 0.0), 1.0), both - one)
    return alone + (both - one) * min(float(gpu.link_bandwidth) / rule.communicator_links, 1.0)

"""A serving engine: how it divides the memory of an accelerator, what a step costs it, which settings it takes."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from functools import cached_property
from typing import Literal, cast

from rooflinekit.model.graph.symbol import quantity
from rooflinekit.model.types.frozen import dataclass, field, replace
from rooflinekit.model.types.hardware import Accelerator, Provenance
from rooflinekit.model.types.late import np

Budget = Literal["total", "static", "free", "none"]
"""What the memory fraction is a share of: all memory (vLLM), what is free before the weights (SGLang), what is free
after them (TensorRT-LLM), or nothing: the cache takes what it needs (all others)."""

Pair = tuple[float, float]
"""A number for one accelerator and for several; or, for defaults, on small and on large accelerators."""

Quantiles = tuple[float, float, float, float, float]
"""10, 25, 50, 75 and 90 % of something."""

DEVIATIONS: Quantiles = (-1.2816, -0.6745, 0.0, 0.6745, 1.2816)
"""Those of a standard normal distribution."""

NORMAL: Quantiles = (-0.7791, -0.41, 0.0, 0.41, 0.7791)
"""The same over `SIGMAS`: of a normal distribution, 90 % of which lie within 1."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of a user for the engine; None leaves one to the engine's default."""

    memory_fraction: float | None = None  #: gpu_memory_utilization, mem_fraction_static, free_gpu_memory_fraction
    token_budget: int | None = None  #: tokens of one prefill step (max_num_batched_tokens, chunked_prefill_size)
    max_num_seqs: int | None = None  #: sequences that run at once
    max_model_len: int | None = None  #: longest sequence that the engine admits
    block_size: int | None = None  #: tokens of one block of the cache
    eager: bool = False  #: no CUDA graphs
    policy: str | None = None  #: how steps are formed, one of `rooflinekit.load.policies.POLICIES`
    graph_tokens: int | None = None  #: tokens of the largest step with prompts that replays CUDA graphs
    scheduler_recv_interval: int = 1  #: decode steps from one look at new requests to the next
    batch_wait: int = 0  #: decode steps for which prompts are held back, so that several are computed together
    async_scheduling: str | None = None  #: "on" or "off": whether the next step is made up while one is under way
    prefix_caching: str | None = None  #: "on" or "off": whether a prompt that was sent before is found in the cache
    front_end: str = "http"  #: http, or token-ids: prompts come as token ids to the engine's own interface
    api_servers: int | None = None  #: processes that read requests and stream answers
    stream_interval: int = 1  #: tokens that are sent together
    host: str | None = None  #: class of the host (specs/hosts.yaml), or its time of a kernel's launch in microseconds


@dataclass(frozen=True)
class MemoryRule:
    """The rule by which an engine divides an accelerator; sizes in bytes.

    A pair is a number for one accelerator and for several, or, for the defaults that depend on the accelerator, for
    small and for large ones.
    """

    budget: Budget
    fraction: float = 1.0  #: default of the memory fraction
    large: float = 0.0  #: memory from which an accelerator counts as large
    exclude: str = ""  #: accelerators whose name starts so never count as large
    token_budget: Pair = (8192.0, 8192.0)  #: default, on small and large accelerators
    largest: float = 0.0  #: memory from which `largest_budget` is the default; 0: on no accelerator
    largest_budget: float = 0.0
    shared_budget: bool = False  #: attention replicas share that default out among them
    max_num_seqs: Pair = (256.0, 256.0)  #: default, likewise
    compressed_sequences: float = 0.0  #: the same of all attention replicas together, of DeepSeek-V4's attention
    compressed_kv: str = ""  #: format of its cache unless told; "": as of other models
    indexed_kv: str = ""  #: the same of latent attention with an indexer, from compute capability 10 on
    window_share: float = 0.0  #: tokens of the pool that windows of such attention have room for, as a share of all
    drafted_sequences: float = 0.0  #: and of other models whose tokens are drafted; both are 0 where it is as usual
    profiled: bool = False  #: a dummy step with the full token budget and all sequences sizes the pool
    chunked: bool = True  #: False: that step has a whole prompt of the longest length
    context: Pair = (0.0, 0.0)  #: CUDA context and first buffers of the communicator
    context_counts: bool = True  #: whether the budget pays for them
    context_base: float = 0.0  #: of the context, what it takes whatever the cores
    context_cores: float = 0.0  #: of the accelerator that `context` was measured on; 0: the same on every one
    communicator_links: float = 0.0  #: bandwidth of its links [B/s]
    communicator_pcie: Pair = (0.0, 0.0)  #: what its buffers take over PCI Express with 4 accelerators, and with 8
    non_torch: Pair = (0.0, 0.0)  #: growth outside the allocator while the model loads and runs
    non_torch_bus: float = 0.0  #: of several joined by PCI Express or bridges; 0: as one, or as several over a bridge
    loading: float = 0.0  #: what loading takes besides the tensors, in what the engine calls weights
    graphs: float = 0.0  #: CUDA graphs: a fixed part
    graphs_per_layer: float = 0.0  #: and what each layer adds to each captured graph
    graph_sizes: Pair = (0.0, 0.0)  #: captured sizes end at so many times the tokens of a decode step, and here at most
    graph_step: float = 512.0  #: size from which captured ones are 16 apart, not 8
    graph_decode: bool = False  #: decode steps have whole graphs of their own, beside those of the mixed steps
    graph_splits: float = 0.0  #: parts that FlashAttention 3 cuts keys into in those, with results of each in fp32
    graphs_count: bool = True  #: whether the budget pays for them
    sampler_copies: float = 0.0  #: fp32 copies of the logits that the sampler holds beside the logits themselves
    sampler_scratch: bool = False  #: it uses a row of fp32 logits for each multiprocessor
    step_buffer: bool = False  #: fp32 room for the widest part of a whole step, kept from the start (ggml)
    kept_scores: bool = False  #: and for all its attention scores, without flash attention
    head_place: bool = False  #: the head counts as one more layer where pipeline stages split the depth
    layer_base: float = 0.0  #: what the allocator holds besides, while a layer runs
    sampler_base: float = 0.0  #: the same while the sampler runs
    state_base: float = 0.0  #: and what layers with a recurrent state add to it, for each value head of a rank
    index_rows: float = 0.0  #: keys of an indexer that prompts gather, for each token of the longest sequence
    latent_rows: float = 0.0  #: and latents that sparse attention gathers in 16 bit, in the same buffer
    expert_workspace: bool = False  #: the buffers of the fused experts stay while the sampler runs
    torch_allocator: bool = False  #: tensors take the blocks of PyTorch's caching allocator
    vocabulary_multiple: float = 1.0  #: rows of embedding and head are padded to this
    rotary_table: bool = False  #: cosines and sines of all positions are kept
    scaled_tables: bool = False  #: the tables of a model with linear scaling grow with it, and local layers have one
    latent_absorbed: bool = False  #: the absorbed products of MLA projections are kept in 16 bit
    latent_copies: bool = False  #: quantised MLA up-projections are kept a second time in 16 bit
    mxfp4_multiple: Pair = (1.0, 1.0)  #: MXFP4 expert matrices are padded to these: input, and width of gate and up
    block: float = 1.0  #: tokens of one block of the cache
    latent_block: float = 0.0  #: of one block of an MLA cache, where it differs
    latent_multiple: float = 1.0  #: elements of a latent are padded to this
    hybrid: bool = False  #: layers of different kinds share the pool in groups; else each has blocks for all tokens
    reserves: bool = False  #: a request is admitted where its whole answer has room too, and never preempted
    state_blocks: float = 0.0  #: blocks of a recurrent state that admission reckons, and one each that may run to start
    refuses: bool = False  #: it does not start unless the pool holds one longest sequence
    host_embedding: bool = False  #: the table of embeddings stays in the host's memory, unless it is the head too
    slack: float = 0.0  #: free memory without which it does not start
    tokens_by_concurrency: bool = False  #: of a hybrid model the log prints concurrency x longest sequence

    def usual_budget(self, accelerator: Accelerator, replicas: int) -> float:
        """Default of the tokens of a step of each of so many attention replicas."""
        largest = self.largest and float(accelerator.memory_bytes) >= self.largest
        budget = self.largest_budget if largest else self.default(self.token_budget, accelerator)
        return max(budget // replicas, 1.0) if self.shared_budget else budget

    def default(self, pair: Pair, accelerator: Accelerator) -> float:
        """The one of a pair of defaults that counts for an accelerator: of small or of large ones."""
        named = bool(self.exclude) and accelerator.name.startswith(self.exclude)
        return pair[not named and float(accelerator.memory_bytes) >= self.large]


HOST_WORK = ("step", "serial", "ranks", "sequence", "sequence_ranks")
"""Costs of a step that are the host's work; `serial` counts where no step is made up beside another."""


@dataclass(frozen=True)
class StepCosts:
    """Costs of an engine's step beside its kernels; times in seconds, everything at least 0.

    Fitted to published end-to-end times with the kernel times fixed (benchmarks/fit_engines.py), or on from there to
    one deployment's benchmark files (docs/fit-back.md); `spread` holds one standard error of each (of the logarithm of
    `memory` and `compute`).
    """

    step: float = quantity("step", "host work of a step: schedule, sample, detokenise", "s", default=0.0)
    ranks: float = quantity("ranks", "more of it with several accelerators", "s", default=0.0)
    sequence: float = quantity("each", "host work for a sequence", "s", default=0.0)
    sequence_ranks: float = quantity("more", "more for a sequence with several accelerators", "s", default=0.0)
    layer: float = quantity("gap", "gaps between the kernels of a layer", "s", default=0.0)
    collective: float = quantity("wait", "ranks wait for each other, in a step over a benchmark loop", "s", default=0.0)
    hidden: float = quantity("hidden", "share of the launch that neighbours hide", default=0.0)
    grouped: float = quantity("again", "decode attention takes 1 + again·(1 − K/H) times as long", default=0.0)
    dequantised: float = quantity(
        "widen", "arithmetic of experts whose weights are dequantised takes 1 + widen times as long", default=0.0
    )
    unbiased: float = quantity("widen_u", "`widen` of experts without biases, all but those of gpt-oss", default=0.0)
    routed: float = quantity("route", "more time of a layer whose experts are dequantised", "s", default=0.0)
    routed_launches: int = 0  #: more launches of such experts, without a graph
    memory: float = quantity("s_m", "how much slower a memory-bound kernel runs in this deployment", default=1.0)
    compute: float = quantity("s_c", "how much slower a compute-bound one runs", default=1.0)
    launch: float = quantity("issue", "host time of one launch without a CUDA graph", "s", default=0.0)
    prompt: float = quantity("prompt", "host time of a launch in a step with prompts, over one without", default=1.0)
    expert_launches: int = 1  #: launches of the experts of a layer, without a graph
    block_launches: int = 1  #: of a product whose inputs are scaled by blocks
    latent_launches: int = 1  #: of the attention of a prompt with latent keys
    graph_tokens: float = 0.0  #: of the largest step with prompts that replays CUDA graphs, around its attention
    request: float = quantity("request", "front end of a request", "s", default=0.0)
    token: float = quantity("token", "more of it for each token of the prompt: the tokeniser", "s", default=0.0)
    chunk: float = quantity("send", "front end of what it sends at a time", "s", default=0.0)
    detokenised: float = quantity("write", "front end of each token: the detokeniser", "s", default=0.0)
    hop: float = quantity("hop", "from the front end to the scheduler, and back", "s", default=0.0)
    hand_over: float = 0.0  #: front end of a request that comes as token ids, without HTTP [s]
    servers_by_replica: bool = False  #: each attention replica has a front end of its own
    tokenises_beside: bool = False  #: a thread of the front end tokenises prompts while another sends answers
    serial: float = quantity(
        "serial", "more of it where no step is made up beside another: `overlap` is 0", "s", default=0.0
    )
    overlap: float = 0.0  #: steps made up before the one under way has ended: a prompt joins the one after them
    graphs: bool = True  #: decode steps replay CUDA graphs; of prompts those of up to `graph_tokens` do
    padded: tuple[float, ...] = ()  #: rising sizes of CUDA graphs; a decode step is padded to the next
    mixes: bool = True  #: prompts are computed in the same steps as decoding sequences; False: in steps of their own
    tiles_apart: bool = False  #: decoding sequences share no tiles of attention beside prompts, where that is FA2's
    splits: bool = True  #: the last prompt of a step is cut to fill it; False: it waits for a step that holds it whole
    vectors: bool = False  #: few rows are multiplied by a matrix without tensor cores
    beyond_one: bool = False  #: a decode step takes `step` and `sequence` for others than the first sequence
    interval: float = 1.0  #: 90 % of the measured step times lie within this factor, either way
    whole: str = ""  #: models ("dense" in 16 bit, "experts") whose decode steps were measured whole on this accelerator
    spread: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def hostless(self) -> StepCosts:
        """The costs without the host's work for a step and its sequences.

        >>> costs = StepCosts(step=1e-3, serial=1e-3, launch=1e-6).hostless
        >>> costs.step, costs.serial, costs.launch
        (0.0, 0.0, 1e-06)
        """
        return replace(self, **dict.fromkeys(HOST_WORK, 0.0))

    @property
    def free(self) -> StepCosts:
        """The ways of the engine without its times."""
        return StepCosts().working_as(self)

    def working_as(self, other: StepCosts) -> StepCosts:
        """The costs of an engine that works as another does: graphs, mixed steps, whole prompts, few rows."""
        return replace(
            self,
            graphs=other.graphs,
            mixes=other.mixes,
            tiles_apart=other.tiles_apart,
            splits=other.splits,
            vectors=other.vectors,
            servers_by_replica=other.servers_by_replica,
            tokenises_beside=other.tokenises_beside,
        )


Places = tuple[float, float, float, float, float, float, float]
"""5, 10, 25, 50, 75, 90 and 95 % of something."""

NORMAL_PLACES: Places = (-1.645, *DEVIATIONS, 1.645)
"""Those of a standard normal distribution."""

Variances = tuple[float, float, float, float, float]
"""What the squared scale of an error is made of: a multiple of the steps' own, then added for all loads, for kernels
that stand in, for few users (up to 8) and for many (over 64)."""

FEW_USERS, MANY_USERS = 8, 64

CAUSES = ("steps", "loads", "stand_in", "few_users", "many_users", "version", "full")
"""What an error under load is made of: the terms of `Variances`, the engine's version, and waits for a place."""

ROOM = "room"
"""The cause of an interval that holds both sides of whether all users have a place."""


@dataclass(frozen=True)
class OwnLoad:
    """A load that was measured on this very deployment: log(measured / predicted) of its times; None: not measured."""

    users: float
    prompt: float  #: tokens
    ttft: float | None = None
    tpot: float | None = None


@dataclass(frozen=True)
class OwnLoads:
    """Measured loads of one deployment, for its other loads: Gaussian-process regression (Rasmussen and Williams 2006).

    ttft, tpot: share of the variance between deployments that all loads of one have in common, and share that loads
    near each other have; the rest is of each load. With d² = ln²(users/users') + ln²(prompt/prompt') the correlation of
    two loads is level + near·exp(−d²/2).
    """

    ttft: Pair = (0.0, 0.0)
    tpot: Pair = (0.0, 0.0)
    loads: tuple[OwnLoad, ...] = ()

    def alike(self, metric: str, one: OwnLoad, other: OwnLoad) -> float:
        """Correlation of the errors of two loads."""
        level, near = getattr(self, metric)
        apart = math.log(one.users / other.users) ** 2 + math.log(one.prompt / other.prompt) ** 2
        return float(level + near * math.exp(-apart / 2.0))

    def left(self, metric: str, users: float, prompt: float) -> tuple[float, float]:
        """Share of the variance that is left for another load, and the error that is expected of it.

        >>> own = OwnLoads(tpot=(0.5, 0.3), loads=(OwnLoad(16.0, 1024.0, tpot=0.2),))
        >>> [round(each, 3) for each in own.left("tpot", 16.0, 1024.0)], OwnLoads().left("tpot", 1.0, 1.0)
        ([0.36, 0.16], (1.0, 0.0))
        """
        loads, inverse, weights = self.solved[metric]
        if not loads:
            return 1.0, 0.0
        near = [self.alike(metric, each, OwnLoad(users, prompt)) for each in loads]
        known = sum(a * row[j] * b for a, row in zip(near, inverse, strict=True) for j, b in enumerate(near))
        return max(1.0 - known, _CERTAIN), sum(a * weight for a, weight in zip(near, weights, strict=True))

    @cached_property
    def solved(self) -> dict[str, tuple[list[OwnLoad], list[list[float]], list[float]]]:
        """By metric: the loads that have it, the inverse of their correlations, and their weights."""
        found: dict[str, tuple[list[OwnLoad], list[list[float]], list[float]]] = {}
        for metric in ("ttft", "tpot"):
            loads = [each for each in self.loads if getattr(each, metric) is not None]
            if not loads:
                found[metric] = loads, [], []
                continue
            matrix = [
                [1.0 if i == j else self.alike(metric, a, b) for j, b in enumerate(loads)] for i, a in enumerate(loads)
            ]
            inverse = np.linalg.inv(matrix).tolist()
            weights = [
                sum(part * getattr(load, metric) for part, load in zip(row, loads, strict=True)) for row in inverse
            ]
            found[metric] = loads, inverse, weights
        return found

    def after_one(self, metric: str) -> float:
        """Share of the variance that one load more would leave, of a quarter of the users: a typical distance."""
        one = replace(self, loads=(OwnLoad(1.0, 1.0, 0.0, 0.0),))
        return one.left(metric, 4.0, 1.0)[0]


_CERTAIN = 0.01  # of the variance: no load says everything of another


@dataclass(frozen=True)
class LoadErrors:
    """Distances of measured times under load from the predicted ones, as logarithms of measured / predicted.

    log(measured / predicted) is z·s where requests find a place, with s² = variances · (σ², 1, stand-in, few, many)
    and σ = log(high / low)/3.29 of the times as they are played at both ends of the steps' interval. The quantiles of z
    are an engine's own, drawn towards those of all. Where every request waits for a place, the quantiles are of the
    logarithm itself. Both are of published loads whose model the prediction had not seen
    (benchmarks/fit_load_errors.py).
    """

    ttft: Variances = (1.0, 0.0, 0.0, 0.0, 0.0)
    ttft_places: Places = NORMAL_PLACES  #: quantiles of z
    tpot: Variances = (1.0, 0.0, 0.0, 0.0, 0.0)
    tpot_places: Places = NORMAL_PLACES
    full_places: Places | None = None  #: of both times where every request waits for a place; None: as above
    version: Pair = (0.0, 0.0)  #: variances of TTFT and TPOT by the distance of the engine's version from measured ones
    own: OwnLoads = OwnLoads()  #: measured loads of this very deployment

    def slower(self, deviations: float) -> bool:
        """Whether every time is at least as long as predicted so many standard deviations up its interval.

        >>> LoadErrors().slower(1.28), LoadErrors().slower(-0.1)
        (True, False)
        """
        upper = bisect(DEVIATIONS, deviations) + 1
        known = self.ttft_places, self.tpot_places, *((self.full_places,) if self.full_places else ())
        return not self.own.loads and all(min(places[upper - 1 : upper + 1]) >= 0.0 for places in known)

    def reach(  # noqa: PLR0913, PLR0917 - what an error under load depends on
        self, metric: str, steps: float, users: float, stand_in: bool, waiting: float, prompt: float = 1.0
    ) -> Reach:
        """The quantiles of log(measured / predicted) of `ttft` or `tpot`.

        steps: log(high / low) at both ends of the steps' interval; users: that are in the system; waiting: share of
        their time that requests wait for a place, along which both kinds of quantiles are mixed; prompt: mean tokens,
        for what own loads say.

        >>> LoadErrors().reach("tpot", 0.329, 16, False, 0.0).ends
        (-0.1645, 0.1645)
        """
        own, places = getattr(self, metric), getattr(self, f"{metric}_places")
        terms = (min(steps / 3.29, 1.0) ** 2, 1.0, stand_in, users <= FEW_USERS, users > MANY_USERS)
        parts = [each * term for each, term in zip(own, terms, strict=True)] + [self.version[metric == "tpot"]]
        scale = math.sqrt(sum(parts))
        near = [scale * place for place in places]
        mixed = [log + waiting * (other - log) for log, other in zip(near, self.full_places or near, strict=True)]
        shares = [(1.0 - waiting) * part / (scale * scale or 1.0) for part in parts]
        causes = dict(zip(CAUSES, (*shares, waiting), strict=True))
        return Reach(tuple(mixed), causes).knowing(*self.own.left(metric, users, prompt))


@dataclass(frozen=True)
class Reach:
    """Quantiles of log(measured / predicted) of one time; causes: shares of its variance by their `CAUSES`."""

    logs: tuple[float, ...]
    causes: Mapping[str, float] = field(default_factory=dict, hash=False)

    def knowing(self, left: float, error: float) -> Reach:
        """The reach where own loads leave this share of the variance, and this error is expected.

        The engine's median gives way to that of the deployment.

        >>> Reach((-0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8)).knowing(0.25, 0.25).logs[3]
        0.3
        """
        if left == 1.0:
            return self
        middle, narrow = self.logs[len(self.logs) // 2], math.sqrt(left)
        return replace(self, logs=tuple(narrow * (log - middle) + left * middle + error for log in self.logs))

    def or_as(self, other: Reach, cause: str) -> Reach:
        """Both ends of this and of another reach: it is not known which of them holds; `cause` is then the widest."""
        middle = len(self.logs) // 2
        both = [
            *map(min, self.logs[:middle], other.logs[:middle]),
            self.logs[middle],
            *map(max, self.logs[middle + 1 :], other.logs[middle + 1 :]),
        ]
        return Reach(tuple(both), {cause: 1.0} if tuple(both) != self.logs else self.causes)

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the 90 % interval, each on its side of the prediction."""
        return min(self.logs[0], 0.0), max(self.logs[-1], 0.0)

    def factors(self, within: float = 0.9) -> tuple[float, float]:
        """Low and high end of the 90 % interval, or of the 80 % one, over the predicted time."""
        place = {0.9: 0, 0.8: 1}[within]
        return math.exp(min(self.logs[place], 0.0)), math.exp(max(self.logs[-1 - place], 0.0))

    @property
    def inner(self) -> Quantiles:
        """10, 25, 50, 75 and 90 % where -1 is the low end of the interval, 0 the prediction, and 1 the high end.

        >>> LoadErrors().reach("tpot", 0.329, 16, False, 0.0).inner
        (-0.779, -0.41, 0.0, 0.41, 0.779)
        """
        low, high = self.ends
        found = (round(log / (high if log > 0.0 else -low), 3) if log else 0.0 for log in self.logs[1:-1])
        return cast(Quantiles, tuple(found))


@dataclass(frozen=True)
class ServedCosts:
    """Step costs of one deployment, from benchmark files; they hold for this accelerator and range of versions alone.

    since: first version of that range. errors: one standard error of each cost after the fit, which the files' next fit
    starts from; the spread in `costs`, for intervals, is never more than the shipped one. shipped: the kernels' fits
    are those of a shipped calibration. hashes: of the files that have been used; loads: that they held, by model and
    number of accelerators.
    """

    accelerator: str
    engine: str
    since: str
    costs: StepCosts
    errors: Mapping[str, float]
    provenance: tuple[Provenance, ...]
    shipped: bool
    hashes: tuple[str, ...]
    loads: Mapping[tuple[str, int], tuple[OwnLoad, ...]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Engine:
    """One engine in one range of versions; every number has its source in `provenance`."""

    name: str
    title: str
    since: str  #: first version that this describes; "" if it has none
    until: str  #: first version that it no longer describes; "" if it describes the newest
    memory: MemoryRule
    costs: StepCosts = StepCosts()
    loaded: LoadErrors = LoadErrors()
    tested: Mapping[str, str] = field(default_factory=dict, hash=False)
    """How much of what was not seen lay inside 90 % intervals, in words: of `static` batches, and under `load`."""

    serial_states: bool = False  #: models with recurrent states run without its overlap scheduler, as long as it caches
    vendors: tuple[str, ...] = ()  #: whose accelerators it runs on; () where no vendor is left out
    provenance: tuple[Provenance, ...] = ()


DEFAULTS = EngineSettings()
"""Nothing said to the engine."""

IDEAL = Engine("ideal", "no engine", "", "", MemoryRule("none"))
"""The physical bound: weights, cache and activations, and nothing for an engine."""

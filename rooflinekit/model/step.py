"""One engine step: a model on a deployment is a list of operations; a batch turns them into kernels and time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, reduce
from typing import Any

from rooflinekit.model.apart import of_encoders
from rooflinekit.model.blocks import model_operations, stage_operations
from rooflinekit.model.graph.symbol import fact, formula, named
from rooflinekit.model.kernels.operation import Operation, Step
from rooflinekit.model.power import Energy, kernel_energy, sustained
from rooflinekit.model.precision import Precision, resolve_precision
from rooflinekit.model.roofline import StepTime, time_kernel
from rooflinekit.model.shard import Shard
from rooflinekit.model.splits import check_deployment
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.timing.overlap import UNDIVIDED, Spent, two_batches
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import IDEAL, Engine, LoadErrors, StepCosts
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import AttentionShape, Kernel, VectorGemmShape
from rooflinekit.model.types.model import Model
from rooflinekit.model.types.numeric import Numeric, ceil_div, is_zero, logistic_above, maximum, minimum, where
from rooflinekit.model.types.time import SIGMAS, KernelTime


@dataclass(frozen=True)
class Iteration:
    """The size of what an engine runs: how often its loop turns, and over what.

    passes: engine steps (prompts beyond the token budget take several); sequences: that take part in all of them;
    layers: that each pass runs; gpus: accelerators that take part; eager: kernels are launched one by one;
    prompts: some are computed; parts: that a pass is launched in; graphed: share of such steps whose tokens are few
    enough for CUDA graphs between their attention.
    """

    passes: Numeric
    sequences: Numeric
    layers: int
    gpus: int
    eager: bool
    prompts: bool = False
    parts: Numeric = 1.0
    graphed: Numeric = 0.0


@formula("host", "host work of a step that the accelerator waits for", "s")
def host_work(passes: Numeric, step: Numeric, sequences: Numeric, each: Numeric) -> Numeric:
    """passes·step + sequences·each: schedule, inputs, sampling, detokenising [s].

    >>> host_work(1.0, 0.5e-3, 32.0, 5e-6) * 1e3
    0.66
    """
    return passes * step + sequences * each


@formula("layer_gaps", "gaps between the kernels of all layers", "s")
def gap_time(passes: Numeric, layers: int, gap: Numeric) -> Numeric:
    """passes·L·gap [s].

    >>> gap_time(1.0, 32, 3e-6) * 1e6
    96.0
    """
    return passes * (fact(layers, "L", "layers") * gap)


@formula("launch_gaps", "launches that the kernels do not hide", "s")
def launch_gap(passes: Numeric, launches: Numeric, launch: Numeric, busy: Numeric) -> Numeric:
    """max(passes·launches·t_launch − Σ kernels, 0): without a CUDA graph the host launches kernel by kernel [s].

    >>> launch_gap(1.0, 420, 5e-6, 1.6e-3) * 1e3
    0.5
    """
    return maximum(passes * (launches * launch) - busy, 0.0)


@formula("slow", "how much slower this kernel runs")
def beside_factor(memory: Numeric, compute: Numeric, share: Numeric) -> Numeric:
    """s_m^share · s_c^(1 − share), share memory's part of the two times.

    >>> beside_factor(1.21, 1.0, 0.5)
    1.1
    """
    return memory**share * compute ** (1.0 - share)


@formula("repeats", "times that decode attention reads the keys of a group")
def group_repeats(grouped: Numeric, heads: Numeric, kv_heads: Numeric) -> Numeric:
    """1 + again·(1 − K/H): keys are read again for the query heads of a group.

    >>> group_repeats(0.4, 32, 8)
    1.3
    """
    return 1.0 + grouped * (1.0 - kv_heads / heads)


def host_entries(costs: StepCosts, iteration: Iteration, kernels: Sequence[KernelTime]) -> list[KernelTime]:
    """Engine's work beside the kernels of a step, as entries of family "host".

    t = max(Σ kernels + gaps, launches·t_launch) + host: the gaps between kernels that are launched one by one are what
    the launches take beyond the kernels. Each end of a step is made of the same end of both: those of this entry are
    what it adds to the ends of the kernels, and need not lie around its time.
    """
    dtype, entries = kernels[0].kernel.dtype, []
    spread: dict[str, Any] = {name: costs.spread.get(name, 0.0) for name in _HOST} | {"beyond_one": costs.beyond_one}
    (host, gap), doubts = host_times(costs, iteration), host_times(StepCosts(**spread), iteration)
    works = bool(costs.step or costs.ranks or costs.sequence or costs.sequence_ranks)
    for name, count, there, time, doubt in (
        ("host", 1, works, host, doubts[0]),
        ("layer_gaps", iteration.layers, bool(costs.layer), gap, doubts[1]),
    ):
        if there:
            ends = maximum(time - SIGMAS * doubt, 0.0), time + SIGMAS * doubt
            entries.append(_entry(name, dtype, count, time, ends))
    if iteration.eager and costs.launch:
        count, between = (launches_of((timed.kernel for timed in kernels), costs, graphed) for graphed in (False, True))
        kinds = (count, 1.0 - iteration.graphed), (between, iteration.graphed)
        shares = [kind for kind in kinds if not is_zero(kind[1])]
        busy = named(sum((timed.expected for timed in kernels), 0.0), "busy", "time of all kernels", "s")
        sums = busy, *(sum((getattr(timed, end) for timed in kernels), 0.0) for end in ("low", "high"))
        passes = iteration.passes * iteration.parts
        ends_of = zip(_launches(costs, iteration), sums, strict=True)
        gaps, low, high = (
            _mean([(launch_gap(passes, launches, launch, time), share) for launches, share in shares])
            for launch, time in ends_of
        )
        count = shares[0][0]
        if any(not isinstance(end, float) or end > 0.0 for end in (gaps, low, high)):
            entries.append(_entry("launch_gaps", dtype, count, gaps, (low, high)))
    return entries


def _mean(parts: Sequence[tuple[Numeric, Numeric]]) -> Numeric:
    """Gaps of both kinds of steps, each times its share; one alone has all of it [s]."""
    if len(parts) == 1:
        return parts[0][0]
    return named(sum((share * value for value, share in parts), 0.0), "launch_gaps", "gaps in the mean of steps", "s")


def launches_of(kernels: Iterable[Kernel], costs: StepCosts, graphed: bool = False) -> int:
    """Launches of a step; `graphed`: of its attention alone, between CUDA graphs of all else."""
    return sum(_launches_of(kernel, costs) for kernel in kernels if not graphed or kernel.family in _BETWEEN_GRAPHS)


def _launches_of(kernel: Kernel, costs: StepCosts) -> int:
    """Launches of `count` kernels: experts are routed, sorted and joined by kernels of their own."""
    if kernel.family == "moe":
        return kernel.count * (costs.expert_launches + costs.routed_launches * kernel.dequantised)
    if kernel.family == "mla_prefill":
        return kernel.count * costs.latent_launches
    if kernel.family == "sparse_attention":  # with its indexer as many as latent attention: an assumption
        return kernel.count * max(costs.latent_launches // 2, 1)
    blocks = kernel.family == "gemm" and kernel.dtype in _BLOCKS
    return kernel.count * (costs.block_launches if blocks else kernel.launches)


def _launches(costs: StepCosts, iteration: Iteration) -> tuple[float, float, float]:
    """Host time of a launch, and the ends of its 90 % interval [s]."""
    longer = costs.prompt if iteration.prompts else 1.0
    of_longer = costs.spread.get("prompt", 0.0) if iteration.prompts else 0.0
    doubt = SIGMAS * math.hypot(longer * costs.spread.get("launch", 0.0), of_longer * costs.launch)
    launch = longer * costs.launch
    return launch, max(launch - doubt, 0.0), launch + doubt


def changed(timed: KernelTime, costs: StepCosts) -> KernelTime:
    """One kernel among its neighbours: its launch partly hidden, a collective later, grouped heads read again.

    No time falls below its bound.
    """
    kernel = timed.kernel
    if (costs.memory != 1.0 or costs.compute != 1.0) and kernel.gpus == 1:
        timed = _slower(timed, costs)
    shift = (kernel.count * costs.collective if kernel.gpus > 1 else 0.0) - costs.hidden * timed.overhead
    if costs.dequantised and kernel.dequantised and kernel.family == "moe":
        wider = (1.0 + costs.dequantised) * timed.compute
        longer = maximum(timed.overhead + wider - timed.expected, 0.0) + kernel.count * costs.routed
        timed = timed.changed(lambda end: end + longer, compute=wider)
    if costs.grouped and kernel.family == "attention_decode":
        shape = kernel.shaped(AttentionShape)
        repeats = group_repeats(costs.grouped, shape.heads, shape.kv_heads)
        timed = timed.changed(lambda end: repeats * end, memory=repeats * timed.memory)
    return timed if is_zero(shift) else timed.changed(lambda end: end + shift, overhead=timed.overhead + shift)


def _slower(timed: KernelTime, costs: StepCosts) -> KernelTime:
    """Kernel that is slower beside others beyond its launch; collectives stay: `collective` is theirs."""
    share = timed.memory / maximum(timed.memory + timed.compute, 1e-30)
    factor = beside_factor(costs.memory, costs.compute, named(share, "share", "memory's part of the two times"))
    beyond = maximum(timed.expected - timed.overhead, 0.0) / maximum(timed.expected, 1e-30)
    ratio = 1.0 + (factor - 1.0) * beyond
    return timed.changed(
        lambda end: ratio * end, memory=timed.memory * costs.memory, compute=timed.compute * costs.compute
    )


def host_times(costs: StepCosts, iteration: Iteration) -> tuple[Numeric, Numeric]:
    """Host work of an iteration, and the gaps between the kernels of its layers [s].

    >>> ggml = StepCosts(step=3e-3, sequence=1e-3, beyond_one=True)
    >>> [host_times(ggml, Iteration(1.0, count, 8, 1, False))[0] for count in (1.0, 2.0, 4.0)]
    [0.0, 0.004, 0.006]
    """
    once: Numeric = costs.step
    each, sequences = costs.sequence, iteration.sequences
    if iteration.gpus > 1:
        once, each = once + costs.ranks, each + costs.sequence_ranks
    if costs.beyond_one and not iteration.prompts:
        sequences = named(maximum(sequences - 1.0, 0.0), "others", "sequences beside the first")
        once = once * minimum(sequences, 1.0)
    gaps = gap_time(iteration.passes, iteration.layers, costs.layer)
    return host_work(iteration.passes, once, sequences, each), gaps


_HOST = ("step", "ranks", "sequence", "sequence_ranks", "layer")


def _entry(name: str, dtype: Dtype, count: int, time: Numeric, ends: tuple[Numeric, Numeric]) -> KernelTime:
    """Time in which no kernel runs; nothing of it is in the bound."""
    return KernelTime(time, 0.0 * time, *ends, Kernel(name, "host", count, dtype), 0.0, 0.0, 0.0, time)


@dataclass(frozen=True)
class Plan:
    """A model on a deployment on a system, ready to cost any number of batches. Build it once with `make_plan`.

    encoders: operations on accelerators of their own that work beside the steps under load, and are in none of them.
    """

    model: Model
    deployment: Deployment
    system: System
    precision: Precision
    calibration: Calibration | None
    operations: Mapping[Operation, int]
    engine: Engine = IDEAL
    encoders: Mapping[Operation, int] = field(default_factory=dict)

    @property
    def shard(self) -> Shard:
        """Shard of the model for one accelerator, as the operations were laid out."""
        deployment = _as_run(self.deployment, self.system)
        return Shard(self.model.hidden, self.precision, deployment, self.system.domain_size)

    @property
    def token_budget(self) -> float:
        """Tokens that one engine step computes at most."""
        rule = self.engine.memory
        given = self.deployment.settings.token_budget
        return float(given or rule.default(rule.token_budget, self.system.accelerator))

    @property
    def graph_tokens(self) -> float:
        """Tokens of the largest step with prompts that replays CUDA graphs between its attention; 0 for none.

        Unless told, vLLM captures up to twice the sequences that may run, and 512 or the token budget at most
        (`_set_cudagraph_sizes`, config/vllm.py).
        """
        told = self.deployment.settings.graph_tokens
        usual = min(self.costs.graph_tokens, 2.0 * self.most_sequences)
        most = min(usual if told is None or not self.costs.graph_tokens else float(told), self.token_budget)
        return 0.0 if self.deployment.settings.eager else most

    @property
    def most_sequences(self) -> float:
        """Sequences that one engine runs at most; by default never more than vLLM's steps have tokens."""
        rule, told = self.engine.memory, self.deployment.settings.max_num_seqs
        if told:
            return float(told)
        usual = rule.default(rule.max_num_seqs, self.system.accelerator)
        return float(min(usual, self.token_budget) if rule.profiled and rule.chunked else usual)

    @property
    def image_tokens(self) -> int:
        """Tokens that images put into every prompt."""
        images = self.deployment.images
        return self.model.seeing(images).tokens(images) if images else 0

    def prompt(self, text: Numeric) -> Numeric:
        """Tokens of a prompt of so many tokens of text, and of its images."""
        if not self.image_tokens:
            return text
        each = fact(self.image_tokens, "image_tokens", "tokens of the images of a prompt", "", _PREPROCESSED)
        return named(text + each, "prompt", "tokens of a prompt: text and images")

    @property
    def costs(self) -> StepCosts:
        """Engine's costs beside kernels: nothing to the bound; how it works (graphs, mixed steps) stays."""
        return self.engine.costs if self.calibration else self.engine.costs.free

    @property
    def load_errors(self) -> LoadErrors:
        """Errors of times under load; fitted on GPUs, elsewhere those of the steps."""
        fitted = self.calibration is not None and not self.system.accelerator.is_cpu
        return self.engine.loaded if fitted else LoadErrors()

    @cached_property
    def under_load(self) -> Plan:
        """The plan with `encoders` beside the steps, where they are accelerators of their own; else itself."""
        if not self.deployment.encoder_gpus or self.encoders:
            return self
        away = {op: count for op, count in self.operations.items() if of_encoders(op)}
        own = {op: count for op, count in self.operations.items() if op not in away}
        return replace(self, operations=own, encoders=away)

    def tested(self, kind: str) -> str | None:
        """Share of unseen measurements inside 90 % intervals of `static` batches, or under `load`."""
        return self.engine.tested.get(kind) if self.calibration is not None else None

    def seen(self, batch: Batch) -> Step:
        """A step as one accelerator of the fullest attention replica sees it."""
        dp, cp = self.deployment.dp, self.deployment.cp
        return Step(batch, self.precision.stream, self.precision.kv, dp * cp * batch.filled, cp, self.token_budget)

    def kernels(self, batch: Batch, grows: bool | None = None) -> list[Kernel]:
        """The launches of one step on one accelerator; `batch` is the sequences of one attention replica.

        `grows` picks the operations whose decode work depends on the context, or those whose work does not.
        """
        step = self.seen(self._captured(batch))
        chosen = [(op, n) for op, n in self.operations.items() if grows is None or op.grows is grows]
        kernels = [kernel for op, count in chosen for kernel in op.kernels(step, count)]
        return [kernel.tiled(VectorGemmShape) for kernel in kernels] if self.engine.costs.vectors else kernels

    def time(self, batch: Batch, grows: bool | None = None) -> StepTime:
        """Time the step as the engine runs it. Fields are scalars or arrays, as the batch is.

        The work that does not depend on the context carries what the engine adds to a step.
        """
        costs = self.costs
        timed = self.run(batch, costs, grows)
        if grows or not timed:
            return StepTime(timed, costs.interval)
        iteration = self.iteration(batch)
        whole = timed if grows is None or not iteration.eager else self.run(batch, costs)
        return StepTime((*timed, *host_entries(costs, iteration, whole)), costs.interval)

    def run(self, batch: Batch, costs: StepCosts | None, grows: bool | None = None) -> tuple[KernelTime, ...]:
        """The kernels of a step with their times; with `costs`, as they run among their neighbours."""
        timed = self.apart(batch, costs, grows)
        if self.deployment.two_batch:
            half, step = self.apart(batch.half, costs, grows), self.apart(batch.half, costs)
            whole, halves = ([Spent.of(each, self.energy(each)) for each in part] for part in (timed, half))
            timed = two_batches(whole, halves, step, self._parts(batch) > 1.0, float(self.system.accelerator.cores))
        return tuple(timed)

    def apart(self, batch: Batch, costs: StepCosts | None, grows: bool | None = None) -> list[KernelTime]:
        """Times of the kernels one after the other, whatever overlaps."""
        timed = (time_kernel(kernel, self.system, self.calibration) for kernel in self.kernels(batch, grows))
        accelerator = self.system.accelerator
        found = (each if costs is None else changed(each, costs) for each in timed)
        if self.calibration is None:
            return [each.labelled() for each in found]
        return [sustained(each, accelerator).labelled() for each in found]

    def _parts(self, batch: Batch) -> Numeric:
        """Parts in which a step is computed."""
        most = fact(UNDIVIDED[batch.prefilling is not None], "undivided", "tokens of a step that stays whole", *_DBO)
        return where(batch.tokens > most, 2.0, 1.0) if self.deployment.two_batch else 1.0

    def energy(self, timed: KernelTime) -> Energy:
        """Energy of all launches of one kernel on one board [J]; none where the board's power is not known."""
        if isinstance(timed, Spent):
            return timed.energy
        accelerator = self.system.accelerator
        return Energy() if accelerator.power is None else kernel_energy(timed, accelerator, accelerator.power)

    def busiest_share(self, batch: Batch) -> tuple[Numeric, Numeric]:
        """Shares of a step's time and of its bound that the busiest pipeline stage, group or link takes.

        What an engine adds is shared as the kernels are.
        """
        if self.deployment.ffn_gpus:
            places: dict[str, list[KernelTime]] = {}
            for each in self.run(batch, None):
                places.setdefault(each.kernel.place, []).append(each)
            return _shares([(StepTime(tuple(each)), 1) for each in places.values()])
        return _shares([(stage._bare(batch), count) for stage, count in self.stages])

    @property
    def lanes(self) -> int:
        """Parts of the sequences that pipeline stages compute at once, each with steps and a token budget of its own.

        A part has as many sequences as an even division gives it, rounded up.
        """
        return 1 if self.deployment.ffn_gpus else self.deployment.in_flight

    @property
    def stages(self) -> list[tuple[Plan, int]]:
        """The pipeline stages, each kind once, with their number."""
        cut = self.model, self.deployment, self.precision
        held = (stage_operations(*cut, stage, self.system.domain_size) for stage in range(self.deployment.pp))
        kinds = Counter(frozenset(operations.items()) for operations in held)
        return [(replace(self, operations=dict(held)), count) for held, count in kinds.items()]

    def _bare(self, batch: Batch) -> StepTime:
        return StepTime(self.run(batch, None))

    @property
    def _together(self) -> int:
        """Accelerators that one engine step has to bring together: attention replicas only where they share experts."""
        deployment = self.deployment
        together = deployment.ep > 1 or deployment.ffn_gpus
        return deployment.joined if together else deployment.joined // deployment.dp

    def iteration(self, batch: Batch) -> Iteration:
        """Iteration of the engine's loop in this step."""
        new = batch.prefilling.tokens if batch.prefilling else 0.0
        return Iteration(
            passes=named(maximum(ceil_div(new, fact(self.token_budget, *_BUDGET)), 1.0), *_PASSES),
            sequences=batch.sequences,
            layers=self.model.depth,
            gpus=self._together,
            eager=batch.prefilling is not None or not self.costs.graphs or self.deployment.settings.eager,
            prompts=batch.prefilling is not None,
            parts=self._parts(batch),
            graphed=self._graphed(batch),
        )

    def _captured(self, batch: Batch) -> Batch:
        """A decode step as its CUDA graph computes it: padded to the next size, on every attention replica."""
        own = batch.decoding
        if not self.costs.padded or own is None or batch.prefilling is not None or self.deployment.settings.eager:
            return batch
        size = own.sequences
        for most in reversed(self.costs.padded):
            size = where(own.sequences <= most, most, size)
        return replace(batch, filled=1.0, padding=(size - own.sequences) * own.new)

    def _graphed(self, batch: Batch) -> Numeric:
        """Share of the steps with prompts that have few enough tokens for CUDA graphs: 0 or 1 of a single one.

        Longer prompts come in steps of the token budget. The mean step of a load counts the sequence whose prompt it is
        as one that decodes: one token more is allowed. The tokens of its steps vary as by the logistic distribution.
        """
        if not self.graph_tokens or batch.prefilling is None:
            return 0.0
        step = minimum(batch.tokens, fact(self.token_budget, *_BUDGET))
        most = fact(self.graph_tokens, *_GRAPHED) + (0.5 if batch.decoding is None else 1.5)
        if is_zero(batch.varying):
            return where(step < most, 1.0, 0.0)
        within = logistic_above((step - most) / maximum(batch.varying, _SURE))
        return named(within, "graphed", "share of such steps in CUDA graphs")


def _shares(timed: Sequence[tuple[StepTime, int]]) -> tuple[Numeric, Numeric]:
    """The busiest stage's share of the time of all stages, and of their bound."""
    shares = []
    for kind in ("expected", "bound"):
        times: list[Numeric] = [getattr(step, kind) for step, _ in timed]
        times = [named(time, "stage", "kernels of one stage", "s") for time in times]
        whole = sum((n * time for time, (_, n) in zip(times, timed, strict=True)), 0.0)
        share = reduce(maximum, times) / whole
        shares.append(named(share, "share", "of a step, that the busiest stage takes", source=_PARALLEL))
    return shares[0], shares[1]


def make_plan(
    model: Model, deployment: Deployment, system: System, calibration: Calibration | None, engine: Engine = IDEAL
) -> Plan:
    """Check the split and the formats, and lay out the operations.

    Raises DeploymentError for a split that does not exist, DtypeError for a format the accelerator lacks.
    """
    check_deployment(model, deployment, system)
    model = model.beside(deployment.images) if deployment.images else model
    if engine.memory.head_place and deployment.pp > 1:
        model = replace(model, head_place=True)
    precision = resolve_precision(model, deployment, system.accelerator)
    operations = model_operations(model, _as_run(deployment, system), precision, system.domain_size)
    fitted = _as_fitted(engine, system, calibration, precision)
    return Plan(model, deployment, system, precision, calibration, operations, fitted)


def _unpacking(precision: Precision) -> str:
    """The key of experts that unpack their weights, whose measured times hold what that takes."""
    weight = precision.formats.experts
    return f"moe/{precision.compute(weight).value}/{weight.unit.value}"


def _as_fitted(engine: Engine, system: System, calibration: Calibration | None, precision: Precision) -> Engine:
    """The engine without costs that were fitted on GPUs, on a CPU: it has those that files of this CPU showed.

    An accelerator that computes with 4-bit weights dequantises none, and where such experts were measured their times
    hold it already. Tensor cores that take operands from registers (compute capability 8) hardly wait for the
    unpacking: served runs of gpt-oss on A100 had none of it (docs/accuracy.md), a table of L40S 27 %.

    ggml multiplies a single row there by a kernel of its own (llamafile/sgemm.cpp leaves out n < 2), as fast as the
    weights are read: what a fit finds beside the kernels is of more rows.
    """
    accelerator, served, own = system.accelerator, calibration.served if calibration else None, engine.costs
    if accelerator.supports(Dtype.NVFP4) and own.dequantised:
        own = replace(own, dequantised=0.0, routed=0.0, routed_launches=0)
        engine = replace(engine, costs=own)
    elif own.dequantised and (accelerator.compute_capability.startswith(_FROM_REGISTERS)
                              or (calibration and _unpacking(precision) in calibration.families)):  # fmt: skip
        own = replace(own, dequantised=0.0, routed=0.0)
        engine = replace(engine, costs=own)
    if not accelerator.is_cpu:
        return engine
    if not served or (served.accelerator, served.engine) != (accelerator.name, engine.name):
        own = replace(own.free, interval=own.interval)
    return replace(engine, costs=replace(own, beyond_one=own.vectors))


def _as_run(deployment: Deployment, system: System) -> Deployment:
    """The all-reduce that engines take where none is named.

    Over PCI Express alone, vLLM and SGLang switch their custom kernel off for more than two accelerators, and NCCL's
    ring is left (custom_all_reduce.py in both).
    """
    if deployment.all_reduce != "auto" or deployment.tp <= PAIR or not system.over_pcie:
        return deployment
    return deployment if deployment.sequence_parallel else replace(deployment, all_reduce="ring")


PAIR = 2
"""Accelerators up to which engines' own all-reduce runs over PCI Express."""
_FROM_REGISTERS = "8."  # mma.sync; Hopper's wgmma reads its operands from shared memory
_BLOCKS = (Dtype.FP8_BLOCK, Dtype.NVFP4, Dtype.MXFP4)
"""Formats whose inputs are scaled by blocks, which a kernel before the product works out."""
_DBO = "tokens", "dbo_decode_token_threshold and dbo_prefill_token_threshold of vLLM"
_PREPROCESSED = "its preprocessor (specs/config/vision.yaml)"
_PARALLEL = "docs/parallelism.md"
_SURE = 1e-6  # tokens that steps vary by at least, where they do
_GRAPHED = "graph_tokens", "tokens of the largest CUDA graph", "", "the sizes that the engine captures"
_BETWEEN_GRAPHS = {
    "attention_prefill", "attention_decode", "mla_prefill", "mla_decode", "sparse_attention", "linear_attention",
    "kv_append",
}  # fmt: skip
"""Families of vLLM's `splitting_ops` (config/compilation.py)."""
_BUDGET = "budget", "tokens of a step at most", "", "the engine's token budget"
_PASSES = "passes", "engine steps: prompts beyond the token budget take several"

"""One engine step: a model on a deployment is a list of operations; a batch turns them into kernels and time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any

from rooflinekit.model.apart import of_encoders
from rooflinekit.model.blocks import model_operations, stage_operations
from rooflinekit.model.graph.symbol import fact, formula, named
from rooflinekit.model.kernels.operation import Operation, Step
from rooflinekit.model.kernels.recurrent import ShortConvolution, StateUpdate
from rooflinekit.model.power import Energy, kernel_energy, sustained
from rooflinekit.model.precision import Precision, resolve_precision
from rooflinekit.model.roofline import StepTime, time_kernel
from rooflinekit.model.shard import Shard
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.timing.overlap import UNDIVIDED, Spent, two_batches
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import ALL_REDUCE, ALL_TO_ALL, Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import HOST_WORK, IDEAL, Engine, LoadErrors, StepCosts
from rooflinekit.model.types.errors import DeploymentError
from rooflinekit.model.types.frozen import dataclass, field, replace
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import AttentionShape, Kernel, VectorGemmShape
from rooflinekit.model.types.model import Attention, LatentAttention, MixtureOfExperts, Model
from rooflinekit.model.types.numeric import Numeric, ceil_div, is_zero, logistic_above, maximum, minimum, where
from rooflinekit.model.types.time import SIGMAS, KernelTime


def check_deployment(model: Model, deployment: Deployment, system: System) -> None:
    """Refuse a split that the model or the system does not allow, naming those it does."""
    if deployment.images:
        model.seeing(deployment.images)
    for message in _refusals(model, deployment, system):
        raise DeploymentError(message)


def _refusals(model: Model, deployment: Deployment, system: System) -> Iterator[str]:
    """Refusals of a split, the plainest first."""
    tp, domain, pp = deployment.tp, system.domain_size, deployment.pp
    if tp > domain and not system.spans:
        link = system.accelerator.link_kind or "a link"
        named = " or ".join(f"--system {name}" for name in system.boxes)
        hint = "" if system.name else f", or {named}" if named else "; no system of several nodes is known of it"
        joined = f"the {domain} accelerators that {link} joins in a {system.title}"
        yield f"tp={tp} exceeds {joined}; use {_tp_choices(model, system)}{hint}"
    if tp > domain and tp % domain:
        yield f"tp={tp} fills no whole domains of {domain}; use {_tp_choices(model, system)}"
    for what, size in _divided_by_tp(model):
        if not _splits(what, size, tp):
            yield f"tp={tp} does not divide {model.name}'s {size} {what}; use {_tp_choices(model, system)}"
    if deployment.sequence_parallel and tp == 1:
        yield "sequence_parallel splits tokens over the ranks of tp; use tp > 1, or leave it out"
    if pp > model.depth:
        yield f"pp={pp} exceeds {model.name}'s {model.depth} layers; use pp <= {model.depth}"
    yield from _of_kind(model, deployment)
    if deployment.lora_adapters > 1 and not deployment.lora_rank:
        yield f"lora_adapters={deployment.lora_adapters}, but lora_rank=0 loads none; give lora_rank, or leave it out"
    if deployment.microbatches > 1 and pp == 1 and not deployment.ffn_gpus:
        yield f"microbatches={deployment.microbatches} need stages; use pp > 1 or microbatches=1"
    for layer in model.layer_counts if deployment.cp > 1 else ():  # a recurrent state cannot be split, and which keys
        sparse = getattr(layer.mixer, "indexer", None) is not None  # are picked is not known
        if sparse or not isinstance(layer.mixer, (Attention, LatentAttention, type(None))):
            what = "sparse attention" if sparse else f"{getattr(layer.mixer, 'kind', '')} layers"
            yield f"cp={deployment.cp} cannot split the context of {model.name}'s {what}; use cp=1"
    yield from _offload_refusals(model, deployment, system)
    yield from _of_groups(model, deployment)
    if deployment.gpus > system.max_gpus:
        beside = " + ffn_gpus + encoder_gpus" if deployment.ffn_gpus or deployment.encoder_gpus else ""
        whole = f"tp·pp·dp·cp{beside} = {deployment.gpus} accelerators"
        yield f"{whole}, but a {system.title} joins {system.max_gpus}; use fewer"
    if deployment.all_reduce != "auto":
        yield from _of_all_reduce(deployment, system)
    yield from _of_experts(model, deployment)


def _of_kind(model: Model, deployment: Deployment) -> Iterator[str]:
    """Refusals for encoder-decoders, and for layers that share weights."""
    if model.encoder is not None:
        asked = {"lora_rank": deployment.lora_rank, "offload_layers": deployment.offload_layers}
        yield from (f"{k}={v}, but {model.name} is an encoder-decoder; leave {k} out" for k, v in asked.items() if v)
    if deployment.pp > 1 and any(layer.repeated for layer in model.layer_counts):
        yield f"pp={deployment.pp}, but layers of {model.name} share weights, which stages cannot; use pp=1"


def _of_all_reduce(deployment: Deployment, system: System) -> Iterator[str]:
    asked = deployment.all_reduce
    if deployment.tp == 1 or deployment.sequence_parallel:
        why = "sequence_parallel replaces it" if deployment.sequence_parallel else "tp=1 has none"
        yield f"all_reduce={asked}, but {why}; use all_reduce=auto"
    valid = [name for name in ALL_REDUCE if name != "in_switch" or system.in_switch]
    if deployment.tp > system.domain_size:
        valid.remove("one_shot")
    if asked not in valid:
        hint = "" if system.name else " (or name a system whose switch adds up, such as --system hgx-h100)"
        yield f"all_reduce={asked} does not exist in a {system.title}; use {', '.join(valid)}{hint}"


def _of_all_to_all(deployment: Deployment) -> Iterator[str]:
    asked, group = deployment.all_to_all, deployment.stage
    if asked not in ALL_TO_ALL:
        yield f"all_to_all={asked} is not known; use {' or '.join(ALL_TO_ALL)}"
    elif deployment.two_batch and asked != "deepep":
        yield "two_batch overlaps what DeepEP's kernels send with computing; use all_to_all=deepep"
    elif asked != "auto" and (deployment.ep != group or group == deployment.tp):
        yield f"all_to_all={asked} needs replicas, and whole experts on every rank; use dp or cp > 1 and ep = tp·cp·dp"


def _of_experts(model: Model, deployment: Deployment) -> Iterator[str]:
    blocks = {layer.ffn for layer in model.layers if isinstance(layer.ffn, MixtureOfExperts)}
    group, copies, ep = deployment.ffn_gpus or deployment.stage, deployment.redundant_experts, deployment.ep
    ranks = "ffn_gpus" if deployment.ffn_gpus else "tp·cp·dp"
    if not blocks:
        if ep > 1:
            yield f"ep={ep}, but {model.name} has no experts; use ep=1"
        asked = {"skew": deployment.skew, "redundant_experts": copies, "dispatch": deployment.dispatch}
        yield from (f"{k}={v}, but {model.name} has no experts; leave {k} out" for k, v in asked.items() if v)
    if copies and ep == 1:
        yield f"redundant_experts={copies}, but with ep=1 every rank holds all experts; use ep > 1"
    if deployment.dispatch and not deployment.ffn_gpus and (ep == 1 or group == deployment.tp):
        yield f"dispatch={deployment.dispatch}, but no token travels to its experts; use ep > 1 with dp or cp > 1"
    yield from _of_all_to_all(deployment)
    for block in blocks:
        held = block.experts + copies
        possible = [n for n in range(1, group + 1) if group % n == 0 and block.width % (group // n) == 0]
        if copies and ep in possible and held % ep:
            uneven = f"redundant_experts={copies} leaves {model.name}'s {held} experts uneven over ep={ep} ranks"
            yield f"{uneven}; use {-held % ep + copies}"
        valid = [n for n in possible if held % n == 0]
        if ep not in valid:
            experts = f"{model.name}'s {block.experts} experts of width {block.width} over {ranks} = {group} ranks"
            more = f"redundant_experts={-held % ep + copies}" if ep in possible and held % ep and not copies else ""
            chosen = " or ".join(filter(None, (more, _choices("ep", valid) or "another tp, cp or dp")))
            yield f"ep={ep} does not split {experts}; use {chosen}"


def _of_groups(model: Model, deployment: Deployment) -> Iterator[str]:
    """Refusals for feed-forward blocks, or an encoder, on accelerators of their own."""
    ffn, encoder, tp = deployment.ffn_gpus, deployment.encoder_gpus, deployment.ffn_tp
    beside = {"pp": deployment.pp > 1}
    if ffn:
        whole = ("sequence_parallel", "lora_rank", "offload_layers", "offload_experts", "n_cpu_moe")
        beside |= {"cp": deployment.cp > 1, "all_to_all": deployment.all_to_all != "auto"}
        beside |= {key: bool(getattr(deployment, key)) for key in whole}
    for name, number in (("ffn_gpus", ffn), ("encoder_gpus", encoder)):
        given = [key for key, there in beside.items() if there and number]
        yield from (f"{name}={number} does not go with {key}; leave one of them out" for key in given)
    if encoder and not deployment.images:
        yield f"encoder_gpus={encoder}, but no images come; add images=N, or leave encoder_gpus out"
    if not ffn:
        return
    if model.encoder is not None or any(layer.repeated for layer in model.layer_counts):
        kind = "is an encoder-decoder" if model.encoder is not None else "has layers that share weights"
        yield f"ffn_gpus={ffn}, but {model.name} {kind}; leave ffn_gpus out"
    for layer in model.layer_counts:
        widths = [getattr(layer.ffn, field) for field, _ in layer.ffn.cut] if layer.ffn else []
        if ffn % deployment.ep == 0 and any(width % tp for width in widths):
            yield f"ffn_gpus={ffn} over ep={deployment.ep} does not divide {model.name}'s {widths[0]} FFN columns"


def _divided_by_tp(model: Model) -> Iterator[tuple[str, int]]:
    """Every size that tensor parallelism divides, with its name."""
    encoder = () if model.encoder is None else model.encoder.layers[:1]
    for layer in (*encoder, *model.layer_counts):
        for block in (layer.mixer, layer.ffn):
            for size_of, what in block.cut if block else ():
                if size := getattr(block, size_of):
                    yield what, size


def _splits(what: str, size: int, tp: int) -> bool:
    return size % tp == 0 or (what == "KV heads" and tp % size == 0)


def _tp_choices(model: Model, system: System) -> str:
    sizes = set(_divided_by_tp(model))
    domain = system.domain_size
    several = [domain * nodes for nodes in range(2, 128 // domain + 1)] if system.spans else []
    candidates = [*range(1, min(domain, 128) + 1), *several]
    return _choices("tp", [tp for tp in candidates if all(_splits(what, size, tp) for what, size in sizes)])


def _choices(name: str, values: list[int]) -> str:
    if len(values) > 1:
        return f"{name} = {', '.join(map(str, values[:-1]))} or {values[-1]}"
    return f"{name}={values[0]}" if values else ""


def _offload_refusals(model: Model, deployment: Deployment, system: System) -> Iterator[str]:
    """Refusals of offloading: layers that the host cannot keep, or need not."""
    layers, experts = deployment.offload_layers, deployment.offload_experts or deployment.n_cpu_moe
    if not layers and not experts:
        if deployment.host_bandwidth is not None:
            yield "host_bandwidth needs weights on the host; add offload_layers=N, offload_experts=cpu or n_cpu_moe=N"
        return
    if deployment.engine not in _OFFLOADING:
        yield f"weights on the host are known of {' and '.join(_OFFLOADING)}, not of {deployment.engine}"
    if deployment.gpus > 1:
        yield f"weights on the host are known beside one accelerator, not {deployment.gpus}; use tp=1, pp=1, dp=1, cp=1"
    if not system.accelerator.pcie_bandwidth:
        yield f"{system.accelerator.name} shares its memory with the host, or its PCI Express is unknown"
    if layers > model.depth:
        yield f"offload_layers={layers} exceeds {model.name}'s {model.depth} layers; use at most {model.depth}"
    if deployment.n_cpu_moe > model.depth:
        yield f"n_cpu_moe={deployment.n_cpu_moe} exceeds {model.name}'s {model.depth} layers; use offload_experts=cpu"
    if experts and not any(isinstance(layer.ffn, MixtureOfExperts) for layer in model.layer_counts):
        asked = "offload_experts" if deployment.offload_experts else "n_cpu_moe"
        yield f"{asked}: {model.name} has no experts; use offload_layers=N"


_OFFLOADING = ("llama.cpp", "ideal")


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
    spread: dict[str, Any] = {name: costs.spread.get(name, 0.0) for name in (*HOST_WORK, "layer")}
    spread |= {"beyond_one": costs.beyond_one, "overlap": costs.overlap}
    (host, gap), doubts = host_times(costs, iteration), host_times(StepCosts(**spread), iteration)
    works = any(getattr(costs, name) for name in HOST_WORK)
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
    if kernel.family == "moe":  # both products' inputs are scaled by blocks
        scaled = 2 * (costs.block_launches - 1) * (kernel.dtype in _BLOCKS)
        return kernel.count * (costs.expert_launches + scaled + costs.routed_launches * kernel.dequantised)
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
    waits = kernel.gpus > 1 and kernel.name != "qk_norm_reduce"  # ranks met a product ago
    shift = (kernel.count * costs.collective if waits else 0.0) - costs.hidden * timed.overhead
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
    once: Numeric = costs.step if costs.overlap else costs.step + costs.serial
    each, sequences = costs.sequence, iteration.sequences
    if iteration.gpus > 1:
        once, each = once + costs.ranks, each + costs.sequence_ranks
    if costs.beyond_one and not iteration.prompts:
        sequences = named(maximum(sequences - 1.0, 0.0), "others", "sequences beside the first")
        once = once * minimum(sequences, 1.0)
    gaps = gap_time(iteration.passes, iteration.layers, costs.layer)
    return host_work(iteration.passes, once, sequences, each), gaps


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
        return float(given or rule.usual_budget(self.system.accelerator, self.deployment.dp))

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
    def tile_rows(self) -> int:
        """Rows that attention computes for each query head of a decoding sequence beside prompts; 0: as without them.

        vLLM gives both to one call of FlashAttention. Version 2 takes the heads of a KV head as rows of one tile only
        where nobody has more than one new token (flash_api.cpp, `seqlenq_ngroups_swapped`), and tiles of a paged cache
        have 64 rows (flash_fwd_launch_template.h, `kBlockM`). Caches in 8 bit and sinks take other kernels.
        """
        mixers = [layer.mixer for layer in self.model.layer_counts if isinstance(layer.mixer, Attention)]
        latent = any(isinstance(layer.mixer, LatentAttention) for layer in self.model.layer_counts)
        second = self.system.accelerator.compute_capability.startswith(("8.", "12.")) and self.precision.kv.is_wide
        asked = self.costs.tiles_apart and second and not latent
        return _ROWS if asked and not any(mixer.sinks for mixer in mixers) else 0

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

    @cached_property
    def measured_whole(self) -> bool:
        """True if whole decode steps of such a model were measured here: `costs.interval` is all of their doubt."""
        experts = any(isinstance(layer.ffn, MixtureOfExperts) for layer in self.model.layer_counts)
        latent = any(isinstance(layer.mixer, LatentAttention) for layer in self.model.layer_counts)
        wide = all(self.precision.weights_of(kind).is_wide for kind in self.model.matrices)
        return experts if self.costs.whole == "experts" else bool(self.costs.whole) and wide and not (experts or latent)

    def stands_in(self, metric: str) -> bool:
        """True if kernels of others stand in for `ttft` or `tpot`, and no whole steps that decode were measured."""
        kernels = self.calibration is not None and bool(self.calibration.widening)
        return kernels and not (self.measured_whole and metric == "tpot")

    @property
    def load_errors(self) -> LoadErrors:
        """Errors of times under load; fitted on GPUs, elsewhere those of the steps."""
        fitted = self.calibration is not None and not self.system.accelerator.is_cpu
        if fitted and self.measured_whole:  # a load is not surer than its steps
            return replace(self.engine.loaded, tpot=(1.0, *self.engine.loaded.tpot[1:]))
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
        if costs is not None and self.measured_whole and batch.prefilling is None:
            found = (replace(each, low=each.expected, high=each.expected) for each in found)
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
        held = [stage_operations(*cut, stage, self.system.domain_size) for stage in range(self.deployment.pp)]
        kinds = [frozenset(operations.items()) for operations in held]
        return [(replace(self, operations=held[kinds.index(kind)]), n) for kind, n in Counter(kinds).items()]

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
    """Check the split and the formats, and lay out the operations."""
    check_deployment(model, deployment, system)
    model = model.beside(deployment.images) if deployment.images else model
    if engine.memory.head_place and deployment.pp > 1:
        model = replace(model, head_place=True)
    precision = resolve_precision(model, deployment, system.accelerator)
    operations = model_operations(model, _as_run(deployment, system), precision, system.domain_size)
    fitted = _as_fitted(engine, model, system, calibration, precision)
    overlap = fitted.costs.overlap
    if told := deployment.settings.async_scheduling:
        if not (overlap or fitted.costs.serial):
            version = f" {deployment.engine_version}" if deployment.engine_version else ""
            reason = f"{engine.title}{version} never prepares a step while one runs; leave async_scheduling out"
            raise DeploymentError(reason)
        overlap = float(told == "on")
    elif runs_serially(fitted, deployment, operations):
        overlap = 0.0
    fitted = replace(fitted, costs=replace(fitted.costs, overlap=overlap))
    return Plan(model, deployment, system, precision, calibration, operations, fitted)


def runs_serially(engine: Engine, deployment: Deployment, operations: Iterable[Operation]) -> bool:
    """True if the host prepares no step beside another because the prefix cache holds recurrent states.

    An engine that was told how to schedule does what it was told.
    """
    states = any(isinstance(operation, StateUpdate | ShortConvolution) for operation in operations)
    cached, settings = engine.serial_states and states, deployment.settings
    return cached and settings.prefix_caching != "off" and settings.async_scheduling is None


def _as_fitted(
    engine: Engine, model: Model, system: System, calibration: Calibration | None, precision: Precision
) -> Engine:
    """The engine without costs that were fitted on GPUs, on a CPU: it has those that files of this CPU showed.

    An accelerator that computes with 4-bit weights dequantises none, and experts in MXFP4 are one call there, behind
    that which quantises their inputs. Where such experts were measured their times hold the unpacking already. Tensor
    cores that take operands from registers (compute capability 8) hardly wait for it: served runs of gpt-oss on A100
    had none of it (docs/accuracy.md), a table of L40S 27 %. Triton multiplies the experts of gpt-oss, which have
    biases; Marlin and CUTLASS multiply others, and are faster.

    ggml multiplies a single row there by a kernel of its own (llamafile/sgemm.cpp leaves out n < 2), as fast as the
    weights are read: what a fit finds beside the kernels is of more rows.
    """
    accelerator, served, own = system.accelerator, calibration.served if calibration else None, engine.costs
    if accelerator.supports(Dtype.NVFP4) and own.dequantised:
        own = replace(own, dequantised=0.0, routed=0.0, routed_launches=0)
        if precision.formats.experts is Dtype.MXFP4:
            own = replace(own, expert_launches=min(own.expert_launches, _AS_ONE))
        engine = replace(engine, costs=own)
    elif own.dequantised:
        weight = precision.formats.experts
        unpacking = f"moe/{precision.compute(weight).value}/{weight.unit.value}"
        measured = calibration is not None and unpacking in calibration.families
        if measured or not accelerator.unpacks_first:
            own = replace(own, dequantised=0.0, routed=0.0)
        elif not any(isinstance(layer.ffn, MixtureOfExperts) and layer.ffn.bias for layer in model.layer_counts):
            own = replace(own, dequantised=own.unbiased)
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
_ROWS = 64  # of a tile of FlashAttention 2 for a paged cache
_AS_ONE = 2
"""Calls for such experts: TRT-LLM's kernels for Blackwell, which SGLang 0.5.6 (server_args.py: flashinfer_mxfp4) and
vLLM take by default for gpt-oss too (trtllm_fp4_block_scale_moe of flashinfer)."""
_BLOCKS = (Dtype.FP8_BLOCK, Dtype.NVFP4, Dtype.MXFP4)
"""Formats whose inputs are scaled by blocks, which a kernel before the product works out."""
_DBO = "tokens", "dbo_decode_token_threshold and dbo_prefill_token_threshold of vLLM"
_PREPROCESSED = "its preprocessor (specs/config/vision.yaml)"
_PARALLEL = "docs/parallelism.md"
_SURE = 1e-6  # tokens that steps vary by at least, where they do
_GRAPHED = "graph_tokens", "tokens of the largest CUDA graph", "", "the sizes that the engine captures"
_BETWEEN_GRAPHS = {
    "attention_prefill",
    "attention_decode",
    "mla_prefill",
    "mla_decode",
    "sparse_attention",
    "linear_attention",
    "kv_append",
}
"""Families of vLLM's `splitting_ops` (config/compilation.py)."""
_BUDGET = "budget", "tokens of a step at most", "", "the engine's token budget"
_PASSES = "passes", "engine steps: prompts beyond the token budget take several"

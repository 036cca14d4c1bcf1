"""Notes beside the numbers: formats, limits, loads, and changes that make a deployment fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from rooflinekit.model.footprint import resident_bytes
from rooflinekit.model.kernels.operation import OnHost
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.roofline import time_step
from rooflinekit.model.step import PAIR, Plan, make_plan, runs_serially
from rooflinekit.model.timing.calibrated import BORROWED, Calibration, odd_heads
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import MIXED_AS, Dtype, parse_dtype
from rooflinekit.model.types.errors import DoesNotFitError, RooflinekitError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import ASSUMED, LORA, AttentionShape, Kernel
from rooflinekit.model.types.model import DenseFFN, MixtureOfExperts
from rooflinekit.model.types.numeric import Numeric, where
from rooflinekit.model.types.units import GB, format_bytes
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator, names
from rooflinekit.specs.calibration import calibration_names
from rooflinekit.specs.engines import newest_before

_BLOCK, _WHOLE_BLOCKS = 128, ("vllm", "sglang")  # rows and columns that share a scale; engines that do not cut them
_SAMPLE, _KEYS = 64.0, 4096.0  # batch and context at which number formats are compared
_SLOW = 1.5  # the ratio that is worth a note
_MEASURABLE = ("attention_prefill", "mla_prefill", "mla_decode", "moe", "collective")  # that a file may lack rows of


def format_notes(plan: Plan) -> list[str]:
    """Say where weights are multiplied in another format, and where another format's measurements stand in."""
    precision = plan.precision
    stored = {precision.weights_of(kind) for kind in plan.model.matrices}
    pairs = {(weight, precision.compute(weight)) for weight in stored if not weight.is_wide}
    pairs = {(weight, compute) for weight, compute in pairs if compute.unit is not weight.unit}
    notes = [
        f"{weight} weights are dequantised and multiplied in {compute}" for weight, compute in sorted(pairs, key=str)
    ]
    asked, wide = plan.deployment.activations, precision.stream
    if plan.deployment.kv is None and asked is not None and not asked.is_wide and precision.kv is asked:
        notes.append(f"the cache is {asked}, as the activations; engines keep {wide} unless told so: --kv {wide}")
    weights = plan.deployment.weights
    if weights is not None and weights in MIXED_AS:
        name = str(weights).replace("_", "-", 1)
        notes.append(
            f"{name} is costed as {MIXED_AS[weights]}: Unsloth chooses formats by tensor; the .gguf file has them"
        )
    vendor, vendors = plan.system.accelerator.vendor, plan.engine.vendors
    if vendors and vendor not in vendors:
        notes.append(f"{plan.engine.title} runs on accelerators of {' and '.join(vendors)}, not of {vendor}")
    notes += _version(plan.deployment)
    notes += [*_cut_blocks(plan), *_host_weights(plan), *_beside(plan), *_groups(plan), *_over_pcie(plan)]
    if plan.calibration is None:
        return notes
    kernels = plan.kernels(Batch.prefill(1.0, 8.0)) + plan.kernels(Batch.decode(1.0, 8.0))
    untuned = plan.calibration.untuned
    if any(kernel.variant == LORA for kernel in kernels):
        notes.append("LoRA's launches take the time of plain products, an assumption that nobody measured here")
    if names := dict.fromkeys(kernel.name for kernel in kernels if kernel.variant == ASSUMED):
        notes.append(f"{', '.join(names)}: one pass each, an assumption that nobody measured here; intervals widened")
    if any(kernel.family == "exchange" and not plan.calibration.fit(kernel).rows for kernel in kernels):
        notes.append("expert exchanges take usual times of measured ones, an assumption within a factor of 3")
    guessed = [k.family for k in kernels if k.family in _MEASURABLE and not plan.calibration.fit(k).rows]
    if families := dict.fromkeys(guessed):
        notes.append(f"no measurements of {', '.join(families)}: an assumption, its interval at least a factor of 2")
    strangers = [k for k in kernels if k.variant not in (LORA, ASSUMED) and not plan.calibration.measured(k)]
    keys = dict.fromkeys((k.family, k.dtype.value) for k in strangers if f"{k.family}/{k.dtype.value}" in untuned)
    notes += [
        f"the measured {dtype} {family} kernels ran without tuned settings; those of "
        f"{untuned[f'{family}/{dtype}'].split('/')[1]} are used, the interval widened"
        for family, dtype in keys
    ]
    if odd := next(filter(odd_heads, kernels), None):
        heads = f"{odd.shaped(AttentionShape).heads:.0f}"
        notes.append(
            f"latent attention was measured with 1 to 128 heads, powers of two. {heads} run padded, or on another "
            "backend: its interval is widened"
        )
    others = [k for k in strangers if (k.family, k.dtype.value) not in keys and not odd_heads(k)]
    absent = dict.fromkeys((kernel.family, _arithmetic(kernel)) for kernel in others)
    notes += [
        f"no measured {family} kernels in {formats}: the efficiency of another format is used, its interval widened"
        for family, formats in absent
    ]
    return [*notes, *_borrowed(plan, plan.calibration, kernels), *_slow_formats(plan, plan.calibration)]


def _version(deployment: Deployment) -> Iterator[str]:
    """Say that nothing is known of an engine's version, and whose memory and costs stand in."""
    engine, version = deployment.engine, deployment.engine_version
    if newest := newest_before(engine, version):
        yield f"{engine} {version} is not known: memory and costs are those of {newest}, the newest version known"


def _over_pcie(plan: Plan) -> Iterator[str]:
    """Say which all-reduce is taken where accelerators have no links of their own, and how to name another."""
    deployment, system = plan.deployment, plan.system
    if deployment.tp > 1 and deployment.all_reduce == "auto" and system.over_pcie:
        if deployment.tp > PAIR:
            yield "all-reduce over PCI Express: NCCL's ring, as engines take it for more than two accelerators"
        elif system.link_bandwidth == system.accelerator.pcie_bandwidth:
            yield "all-reduce over PCI Express: the engine's own; without peer-to-peer: --system pcie-box-staged"


def state_notes(predictor: Predictor) -> Iterator[str]:
    """Say where recurrent states stop the engine from starting, for want of a block each, or its overlap scheduler."""
    plan = predictor.plan
    if runs_serially(plan.engine, plan.deployment, plan.operations):
        yield (
            f"{plan.engine.title} before {plan.engine.until} prepares no step beside another where it caches recurrent "
            "states: --prefix-caching off, or its own --mamba-scheduler-strategy extra_buffer, avoids that"
        )
    rows, (blocks, whole) = predictor.memory.rows, predictor.memory.state_blocks
    if 1.0 <= blocks < rows and not predictor.plan.deployment.settings.eager:
        yield (
            f"{predictor.plan.deployment.engine} refuses to start with max_num_seqs {rows:.0f}: each sequence keeps "
            f"its state in a block, and the pool has {blocks:.0f}. At most {whole:.0f} run: --max-num-seqs {whole:.0f}"
        )


def _borrowed(plan: Plan, calibration: Calibration, kernels: Sequence[Kernel]) -> Iterator[str]:
    """Say for which kernels the calibration took measurements of another accelerator, and of which."""
    own, found = plan.system.accelerator.name, dict[str, dict[str, None]]()
    for kernel in kernels:
        source = calibration.fit(kernel).source
        rows = source.removeprefix(BORROWED)
        if rows != source and f" of {own} " not in rows:
            found.setdefault(rows.partition(" rows of ")[2] or rows, {})[kernel.family] = None
    if found:
        told = ", ".join(f"{' and '.join(families)} of {where}" for where, families in found.items())
        wider = "intervals of prompts" if plan.measured_whole else "intervals"  # whole decode steps were measured
        yield f"no measurements of some kernels on {own}: {told} are used, {wider} widened"


def _arithmetic(kernel: Kernel) -> str:
    """The format of the arithmetic, and of the cache or the weights where that is another one."""
    if kernel.dequantised and kernel.family == "gemm":
        return f"{kernel.dtype} with weights in {kernel.variant}"
    cache = kernel.variant if kernel.family.startswith(("attention", "mla")) else ""
    return f"{kernel.dtype} with a cache in {cache}" if cache not in ("", kernel.dtype.value) else f"{kernel.dtype}"


def _host_weights(plan: Plan) -> Iterable[str]:
    """Say what the host has to hold, and what its times rest on."""
    held = [(op.held, count) for op, count in plan.operations.items() if isinstance(op, OnHost)]
    if held:
        size = sum(count * weights.bytes for op, count in held for weights in op.weights)
        rate = format_bytes(float(plan.system.host.bandwidth))
        yield (
            f"the host's memory holds {format_bytes(size)} of weights and is read at {rate}/s at most. The host's time "
            "is assumed within a factor of 1.5"
        )


def _beside(plan: Plan) -> Iterator[str]:
    """Say how many positions of images some layers keep."""
    images = plan.deployment.images
    if images and (positions := plan.model.seeing(images).positions(images)):
        yield f"images stay beside the prompt: layers that attend to them keep keys of {positions:,} positions"


def _groups(plan: Plan) -> Iterator[str]:
    """Say what accelerators of a group beside hold, and what is assumed of them."""
    deployment = plan.deployment
    for place, what in (("ffn", "feed-forward blocks"), ("encoder", "encoder")):
        if number := deployment.boards(place):
            size = format_bytes(resident_bytes(plan, 0, place))
            yield f"{number} of {deployment.gpus} GPUs hold the {what}, {size} of weights each"
    if not deployment.ffn_gpus:
        return
    if deployment.microbatches == 1:
        yield f"ffn_gpus={deployment.ffn_gpus} with one microbatch: while one group computes, the other waits"
    else:
        yield "that attention, experts and links overlap fully is an assumption; the interval's high end has no overlap"


def _cut_blocks(plan: Plan) -> Iterable[str]:
    """Say where a split cuts the tiles that share one scale, which engines refuse.

    vLLM's `validate_fp8_block_shape` and `Fp8MoEMethod`, and SGLang's copies of them, raise a ValueError.
    """
    deployment, formats = plan.deployment, plan.precision.formats
    if deployment.engine not in _WHOLE_BLOCKS:
        return
    for ffn in dict.fromkeys(layer.ffn for layer in plan.model.layers):
        if isinstance(ffn, MixtureOfExperts):
            what, dtype, ranks, remedy = "an expert", formats.experts, deployment.expert_tp, "raise ep or lower tp"
        elif isinstance(ffn, DenseFFN):
            what, dtype, ranks, remedy = "the FFN", formats.ffn, deployment.ffn_tp, "lower tp"
        else:
            continue
        if dtype is Dtype.FP8_BLOCK and ranks > 1 and ffn.width // ranks % _BLOCK:
            yield (
                f"{deployment.engine} refuses this split: {ffn.width} columns of {what} over {ranks} ranks are no "
                f"multiple of fp8_block's {_BLOCK}; {remedy}"
            )


def _slow_formats(plan: Plan, calibration: Calibration) -> Iterator[str]:
    """Say where the measured kernels of a narrow format are slower than 16-bit ones would be: an untuned kernel.

    Of decode attention, where they are slower on a narrow cache than on a 16-bit one, which holds more bytes.
    """
    stream = plan.precision.stream

    def slowdown(own: list[Kernel], wide: list[Kernel]) -> float:
        slow, fast = (time_step(kernels, plan.system, calibration).expected for kernels in (own, wide))
        return float(slow / fast)

    kernels = [k for k in plan.kernels(Batch.decode(_SAMPLE, 8.0)) if not k.dtype.is_wide]
    for family, dtype in dict.fromkeys((k.family, k.dtype) for k in kernels):
        more = stream.bytes / dtype.bytes
        own = [k for k in kernels if (k.family, k.dtype) == (family, dtype)]
        times = slowdown(own, [replace(k, dtype=stream, weight_bytes=more * k.weight_bytes) for k in own])
        if times > _SLOW:
            yield (
                f"the measured {dtype} {family} kernels of {plan.deployment.engine} take {times:.1f}x as long as "
                f"{stream} ones at batch {_SAMPLE:.0f}. Probably nobody tuned them"
            )
    kernels = [k for k in plan.kernels(Batch.decode(_SAMPLE, _KEYS)) if k.family in ("attention_decode", "mla_decode")]
    for family, cache in dict.fromkeys((k.family, k.variant) for k in kernels):
        more = stream.bytes / parse_dtype(cache).bytes
        own = [k for k in kernels if (k.family, k.variant) == (family, cache)]
        wide = [replace(k, variant=stream.value, kv_read_bytes=more * k.kv_read_bytes) for k in own]
        times = 0.0 if parse_dtype(cache).is_wide else slowdown(own, wide)
        if times > _SLOW:
            yield (
                f"measured {family} with a cache in {cache} takes {times:.1f}x as long as in {stream} (batch "
                f"{_SAMPLE:.0f}, {_KEYS:.0f} keys; {calibration.fit(own[0]).source}). A newer engine may be faster"
            )


@dataclass(frozen=True)
class Remark:
    """A remark on a workload where it holds, made of a few of its numbers; of rows at once, they are arrays."""

    holds: Any
    say: Callable[..., str]
    facts: tuple[Any, ...] = ()


def said(remarks: Iterable[Remark]) -> Iterator[str]:
    """The remarks that hold of one workload, as sentences."""
    return (remark.say(*map(float, remark.facts)) for remark in remarks if remark.holds)


WORDS = {
    "longest": "{longest} tokens exceed {model}'s maximum context of {most}",
    "admitted": "{longest} tokens exceed max_model_len {most}: the engine would refuse them",
    "single": "osl 1 has no second token: TPOT is the step that would follow",
    "turns": "max_num_seqs {most} would run a batch of {batch} in turns",
}
"""Remarks on a workload, with places to fill; a report's page fills them as its controls move."""


def limit_remarks(plan: Plan, work: Workload) -> Iterator[Remark]:
    """Remarks on limits that the sequences exceed."""
    model, settings, longest = plan.model, plan.deployment.settings, work.longest_context
    for name, most in (("longest", model.max_context), ("admitted", settings.max_model_len)):
        if most is not None:
            say = partial(WORDS[name].format, model=model.name, most=most)
            yield Remark(longest > most, lambda tokens, say=say: say(longest=int(tokens)), (longest,))
    yield Remark(work.osl == 1.0, lambda: WORDS["single"])
    if (seqs := settings.max_num_seqs) is not None:
        turns = partial(WORDS["turns"].format, most=seqs)
        yield Remark(work.batch > seqs * plan.deployment.dp, lambda batch: turns(batch=int(batch)), (work.batch,))


def memory_remarks(need: Numeric, have: Numeric) -> Iterator[Remark]:
    """By how much it does not fit [B]."""

    def words(need: float, have: float, more: float) -> str:
        return f"does not fit: needs {need:,.1f} GB per accelerator and has {have:,.1f} GB, {more:,.1f} GB too little"

    yield Remark(need > have, words, (_tenths(need / GB), _tenths(have / GB), _tenths((need - have) / GB)))


def _tenths(value: Any) -> object:
    """One digit behind the point, so that like rows share a sentence; what is too large for one keeps them all."""
    if isinstance(value, float):
        return round(value, 1)
    return where(value < 1e12, value.round(1), value)


def misfit(predictor: Predictor, work: Workload) -> str:
    """The sentence that refuses a deployment, with what would make it fit."""
    memory, plan = predictor.evaluate(work).memory, predictor.plan
    reason = "".join(said(memory_remarks(memory.needed_bytes, memory.available_bytes)))
    name, remedies = f"{plan.model.name} on {plan.system.accelerator.name}", fitting(predictor, work, memory.max_batch)
    return f"{name} {reason}; {remedies} (--allow-oom prints the numbers anyway)"


def fitting(predictor: Predictor, work: Workload, batch: Numeric = 0) -> str:
    """The changes that would make it fit, in words; batch: sequences that do."""
    remedies = [*_remedies(predictor, work, int(batch))] or [*_larger_changes(predictor, work)]
    if remedies:
        return f"would fit: {', or '.join(remedies)}"
    return "no tp, format or larger accelerator alone would fit; `rooflinekit plan` searches further"


@contextmanager
def room_for_one(predictor: Predictor, isl: float, osl: float) -> Iterator[None]:
    """Say what would make it fit where the cache has no room for one request of such lengths."""
    try:
        yield
    except DoesNotFitError as error:
        raise DoesNotFitError(f"{error}; {fitting(predictor, Workload(1.0, isl, osl))}") from None


def _remedies(predictor: Predictor, work: Workload, batch: int) -> Iterator[str]:
    """Changes of one thing that would make it fit, each checked: the least of each kind."""
    plan, deployment, memory = predictor.plan, predictor.plan.deployment, predictor.memory
    if batch >= 1:
        yield f"--batch {batch}"
    shares = memory.fractions(work.batch, work.longest_context, work.isl - work.cached)
    yield from (f"--memory-fraction {share:g}" for share in islice(shares, 1))
    narrower = ("fp8", "int8", "int4") if plan.precision.formats.ffn.is_wide else ()
    depth = plan.model.depth
    changes: dict[str, tuple[str, Iterable[Any]]] = {
        "offload_experts": ("--offload-experts cpu", (True,)),
        "offload_layers": ("--offload-layers {}", range(deployment.offload_layers + 1, depth + 1)),
        "tp": ("--tp {}", range(deployment.tp + 1, plan.system.domain_size + 1)),
        "weights": ("--weights {}", map(parse_dtype, narrower)),
    }
    for key, (option, values) in changes.items():
        fitting = (value for value in values if _fits(predictor, replace(deployment, **{key: value}), work))
        yield from map(option.format, islice(fitting, 1))


def _larger_changes(predictor: Predictor, work: Workload) -> Iterator[str]:
    """Changes of two things that would make it fit: tp with narrow weights here, and tp on a larger accelerator."""
    plan, deployment = predictor.plan, predictor.plan.deployment
    whole = [1 << power for power in range(deployment.tp.bit_length(), plan.system.domain_size.bit_length())]
    narrow = [(tp, name) for tp in whole for name in ("fp8", "int4", "nvfp4")]
    here = (
        f"--tp {tp} --weights {name}"
        for tp, name in narrow
        if _fits(predictor, replace(deployment, tp=tp, weights=parse_dtype(name)), work)
    )
    yield from islice(here, 1)
    own = plan.system.accelerator
    measured = {name.partition("--")[0] for name in calibration_names()}
    known = (load_accelerator(name).value for name in names("accelerator") if name in measured)
    larger = [each for each in known if each.memory_bytes > own.memory_bytes and each.vendor == own.vendor]
    for other in sorted(larger, key=lambda each: (each.price is None, float(each.memory_bytes), each.name)):
        system = System.of(other)
        sizes = (1 << power for power in range(min(system.domain_size, _ONE_HOST).bit_length()))
        found = (tp for tp in sizes if _fits(predictor, replace(deployment, tp=tp, system=None), work, system))
        if (tp := next(found, None)) is not None:
            yield f"--gpu {other.name}" + (f" --tp {tp}" if tp > 1 else "")
            return


_ONE_HOST = 8  # accelerators


def _fits(predictor: Predictor, deployment: Deployment, work: Workload, system: System | None = None) -> bool:
    plan = predictor.plan
    try:
        other = predictor.on(make_plan(plan.model, deployment, system or plan.system, plan.calibration, plan.engine))
    except RooflinekitError:
        return False
    return bool(other.memory.evaluate(work.batch, work.longest_context, work.isl - work.cached).fits)

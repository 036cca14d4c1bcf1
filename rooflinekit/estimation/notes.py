"""What a user should hear beside the numbers: formats, limits, loads, and what would make a deployment fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rooflinekit.estimation.results import Estimate
from rooflinekit.model.memory.capacity import Memory
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.roofline import time_step
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.traffic.question import LoadQuestion, LoadResult
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.model import DenseFFN, MixtureOfExperts
from rooflinekit.model.types.units import GB
from rooflinekit.model.types.workload import Workload

__all__ = ["context_notes", "format_notes", "load_notes", "memory_notes", "misfit", "unstable_note", "waiting_note"]

_BLOCK, _WHOLE_BLOCKS = 128, ("vllm", "sglang")  # rows and columns that share a scale; engines that do not cut them
_SAMPLE, _KEYS = 64.0, 4096.0  # batch and context at which number formats are compared
_SLOW = 1.5  # the ratio that is worth a note


def format_notes(plan: Plan) -> list[str]:
    """Say where weights are multiplied in another format, and where another format's measurements stand in."""
    precision = plan.precision
    stored = {getattr(precision.formats, kind) for kind in plan.model.matrices}
    pairs = {(weight, precision.compute(weight)) for weight in stored if not weight.is_wide}
    pairs = {(weight, compute) for weight, compute in pairs if compute.unit is not weight.unit}
    notes = [
        f"{weight} weights are dequantised and multiplied in {compute}" for weight, compute in sorted(pairs, key=str)
    ]
    notes += _cut_blocks(plan)
    if plan.calibration is None:
        return notes
    kernels = plan.kernels(Batch.prefill(1.0, 8.0)) + plan.kernels(Batch.decode(1.0, 8.0))
    untuned = plan.calibration.untuned
    strangers = [kernel for kernel in kernels if not plan.calibration.measured(kernel)]
    keys = dict.fromkeys((k.family, k.dtype.value) for k in strangers if f"{k.family}/{k.dtype.value}" in untuned)
    notes += [
        f"the measured {dtype} {family} kernels ran without tuned settings; those of "
        f"{untuned[f'{family}/{dtype}'].split('/')[1]} stand in, the interval widened"
        for family, dtype in keys
    ]
    others = [kernel for kernel in strangers if (kernel.family, kernel.dtype.value) not in keys]
    absent = dict.fromkeys((kernel.family, _arithmetic(kernel)) for kernel in others)
    notes += [
        f"no measured {family} kernels in {formats}: the efficiency of another format stands in, its interval widened"
        for family, formats in absent
    ]
    return [*notes, *_slow_formats(plan), *_slow_caches(plan, plan.calibration)]


def _arithmetic(kernel: Kernel) -> str:
    """The format of the arithmetic, and of the cache where it is another one."""
    cache = kernel.variant if kernel.family.startswith(("attention", "mla")) else ""
    return f"{kernel.dtype} with a cache in {cache}" if cache not in ("", kernel.dtype.value) else f"{kernel.dtype}"


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
            what, dtype, ranks, remedy = "the FFN", formats.ffn, deployment.tp, "lower tp"
        else:
            continue
        if dtype is Dtype.FP8_BLOCK and ranks > 1 and ffn.width // ranks % _BLOCK:
            yield (
                f"{deployment.engine} refuses this split: {ffn.width} columns of {what} over {ranks} ranks are no "
                f"multiple of fp8_block's {_BLOCK}; {remedy}"
            )


def _slow_formats(plan: Plan) -> Iterable[str]:
    """Say where the measured kernels of a narrow format are slower than 16-bit ones would be: an untuned kernel."""
    narrow = [k for k in plan.kernels(Batch.decode(_SAMPLE, 8.0)) if not k.dtype.is_wide]
    for family, dtype in dict.fromkeys((kernel.family, kernel.dtype) for kernel in narrow):
        own = [kernel for kernel in narrow if (kernel.family, kernel.dtype) == (family, dtype)]
        stream = plan.precision.stream
        wide = [replace(k, dtype=stream, weight_bytes=k.weight_bytes * stream.bytes / dtype.bytes) for k in own]
        slow, fast = (time_step(kernels, plan.system, plan.calibration).expected for kernels in (own, wide))
        if slow > _SLOW * fast:
            yield (
                f"the measured {dtype} {family} kernels of {plan.deployment.engine} are slower than {stream} ones "
                f"({float(slow / fast):.1f}x at batch {_SAMPLE:.0f}): probably a kernel without tuned settings"
            )


def _slow_caches(plan: Plan, calibration: Calibration) -> Iterable[str]:
    """Say where measured decode attention is slower on a narrow cache than on a 16-bit one, which holds more bytes."""
    stream = plan.precision.stream
    kernels = [k for k in plan.kernels(Batch.decode(_SAMPLE, _KEYS)) if k.family in ("attention_decode", "mla_decode")]
    for family, cache in dict.fromkeys((k.family, k.variant) for k in kernels):
        own = [kernel for kernel in kernels if (kernel.family, kernel.variant) == (family, cache)]
        narrow = parse_dtype(cache)
        if narrow.is_wide:
            continue
        more = stream.bytes / narrow.bytes
        wide = [replace(k, variant=stream.value, kv_read_bytes=k.kv_read_bytes * more) for k in own]
        slow, fast = (time_step(timed, plan.system, calibration).expected for timed in (own, wide))
        if slow > _SLOW * fast:
            yield (
                f"{family} with a cache in {cache} takes {float(slow / fast):.1f}x as long as in {stream} (batch "
                f"{_SAMPLE:.0f}, {_KEYS:.0f} keys), as measured ({calibration.fit(own[0]).source}); a newer engine "
                "may have a better kernel"
            )


def load_notes(load: LoadResult, question: LoadQuestion) -> Iterable[str]:
    """Say that the load cannot be sustained, or that users wait for a slot."""
    if not load.stable:
        yield unstable_note(load.rate, load.knee_rate)
    if question.users is not None and question.users > load.slots:
        yield waiting_note(load.slots, float(question.users))


def unstable_note(rate: float, knee: float) -> str:
    """More requests arrive than are served [1/s]."""
    return (
        f"UNSTABLE: {rate:g} requests/s arrive and at most {knee:.3g} can be served; the queue "
        "grows without end, and TPOT is that of the full deployment"
    )


def waiting_note(slots: float, users: float) -> str:
    """More users than run at once."""
    return f"{slots:.0f} of {users:.0f} requests run at a time; the others wait for a slot"


def context_notes(plan: Plan, work: Workload) -> Iterable[str]:
    """Say which limits the sequences exceed."""
    model, settings, longest = plan.model, plan.deployment.settings, int(float(work.longest_context))
    if model.max_context is not None and longest > model.max_context:
        yield f"{longest} tokens exceed {model.name}'s maximum context of {model.max_context}"
    if work.osl == 1:
        yield "osl 1 has no second token: TPOT is the step that would follow"
    if settings.max_model_len is not None and longest > settings.max_model_len:
        yield f"{longest} tokens exceed max_model_len {settings.max_model_len}: the engine would refuse them"
    if settings.max_num_seqs is not None and float(work.batch) > settings.max_num_seqs * plan.deployment.dp:
        yield f"max_num_seqs {settings.max_num_seqs} would run a batch of {int(float(work.batch))} in turns"


def memory_notes(memory: Memory) -> Iterable[str]:
    """Say by how much it does not fit."""
    if not memory.fits:
        yield f"does not fit: {_over(memory)}"


def _over(memory: Memory) -> str:
    need, have = float(memory.needed_bytes), float(memory.available_bytes)
    return (
        f"needs {need / GB:.1f} GB per accelerator and has {have / GB:.1f} GB, {(need - have) / GB:.1f} GB too little"
    )


def misfit(predictor: Predictor, work: Workload, answer: Estimate) -> str:
    """The sentence that refuses a deployment, with what would make it fit."""
    memory = predictor.evaluate(work).memory
    remedies = list(_remedies(predictor, work, answer))
    advice = (
        f"; would fit: {', or '.join(remedies)}"
        if remedies
        else "; no memory fraction, tp, smaller batch or 8-bit weights would fit"
    )
    return (
        f"{answer.model} on {answer.gpu} does not fit: {_over(memory)}{advice} (--allow-oom prints the numbers anyway)"
    )


def _remedies(predictor: Predictor, work: Workload, answer: Estimate) -> Iterable[str]:
    """Changes of one thing that would make it fit, each checked."""
    if answer.memory.max_batch >= 1:
        yield f"--batch {answer.memory.max_batch}"
    plan, rule = predictor.plan, predictor.memory
    shares = sorted((percent / 100 for percent in range(5, 100)), key=lambda share: abs(share - rule.fraction))
    for share in shares if rule.rule.budget != "none" else ():
        shared = replace(rule, fraction=share)
        if shared.evaluate(work.batch, work.longest_context, work.isl - work.cached).fits:
            yield f"--memory-fraction {share:g}"
            break
    changes = [("tp", tp) for tp in range(plan.deployment.tp + 1, plan.system.domain_size + 1)]
    fitting = [
        f"--{key} {value}" for key, value in changes if _fits(predictor, replace(plan.deployment, tp=value), work)
    ]
    yield from fitting[:1]
    if plan.precision.formats.ffn.is_wide:
        for name in ("fp8", "int8", "int4"):
            if _fits(predictor, replace(plan.deployment, weights=parse_dtype(name)), work):
                yield f"--weights {name}"
                return


def _fits(predictor: Predictor, deployment: Deployment, work: Workload) -> bool:
    plan = predictor.plan
    try:
        other = predictor.on(make_plan(plan.model, deployment, plan.system, plan.calibration, plan.engine))
    except RooflinekitError:
        return False
    return bool(other.evaluate(work).memory.fits)

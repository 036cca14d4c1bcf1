"""The front door: one operating point by names and keywords, answered as an `Estimate`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any

from rooflinekit import __version__
from rooflinekit.calibration import choose_calibration, load_calibration, stand_in
from rooflinekit.memory import Memory
from rooflinekit.operating_point import Predictor
from rooflinekit.results import Estimate, MemoryResult, StepResult
from rooflinekit.roofline import StepTime, time_step
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.step import Plan, make_plan
from rooflinekit.timing import parameters
from rooflinekit.timing.calibrated import Calibration
from rooflinekit.types.batch import Batch, whole_number
from rooflinekit.types.deployment import ENGINES, Deployment
from rooflinekit.types.dtype import Dtype, parse_dtype
from rooflinekit.types.errors import DoesNotFitError, InputError, RooflinekitError, UnknownNameError, nearest
from rooflinekit.types.hardware import Accelerator, Provenance, System
from rooflinekit.types.model import Model
from rooflinekit.types.units import GB
from rooflinekit.types.workload import Workload

__all__ = [
    "DEGREES",
    "DEPLOYMENT_KEYS",
    "WORKLOAD_KEYS",
    "Resolved",
    "estimate",
    "predict_step",
    "read_deployment",
    "resolve",
]

WORKLOAD_KEYS = {"batch": 1, "isl": 1024, "osl": 256, "cached": 0, "context": None}
DEPLOYMENT_KEYS = tuple(field.name for field in fields(Deployment))
_SAMPLE, _SLOW = 64.0, 1.5  # batch at which number formats are compared, and the ratio that is worth a note
DEGREES = ("tp", "pp", "ep", "dp")
_FORMATS = ("weights", "activations", "kv")


@dataclass(frozen=True)
class Resolved:
    """Names turned into a predictor, with everything the user should hear about it."""

    predictor: Predictor
    warnings: tuple[str, ...]

    @property
    def plan(self) -> Plan:
        """The plan inside."""
        return self.predictor.plan


def estimate(model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: Any) -> Estimate:
    """Predict TTFT, TPOT, throughput and memory for a static batch on one deployment.

    Args:
        model: a name (`llama3-8b`), a Hugging Face id, or a path to a config.json or the folder that holds it.
        gpu: an accelerator's name or a path to its file.
        **scenario: batch, isl, osl, cached, context [tokens]; tp, pp, ep, dp; weights, activations, kv (number
            formats); engine; calibration (a name, a path, or "none" for the datasheet bound); allow_oom.

    Returns:
        An `Estimate`; times in ms, sizes in bytes, per accelerator.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if it needs more memory than
            there is, unless allow_oom is True.

    >>> e = estimate("llama-3-8b", "h100-sxm", batch=32, context=2048, calibration="none")
    >>> e.level, round(e.tpot_ms, 2)  # 15.0 GB of weights and 8.6 GB of cache over 3.35 TB/s
    ('bound', 7.05)
    """
    allow_oom = bool(scenario.pop("allow_oom", False))
    calibration = scenario.pop("calibration", None)
    split = {key: scenario.pop(key) for key in list(scenario) if key in WORKLOAD_KEYS}
    resolved = resolve(model, gpu, read_deployment(scenario), calibration)
    work = Workload.checked(**(WORKLOAD_KEYS | split))
    answer = _answer(resolved, work)
    if not answer.memory.fits and not allow_oom:
        raise DoesNotFitError(_misfit(resolved.predictor, work, answer))
    return answer


def predict_step(
    model: str | PathLike[str],
    gpu: str | PathLike[str],
    deployment: Deployment,
    batch: Batch,
    *,
    calibration: str | None = None,
) -> StepTime:
    """Time of one engine step, for simulators.

    Args:
        model: a model's name or path.
        gpu: an accelerator's name or path.
        deployment: the split and formats.
        batch: the sequences of one attention replica.
        calibration: a name, a path, or "none" for the datasheet bound; by default as `estimate` chooses.

    Returns:
        A `StepTime`: `time`, `bound`, `low`, `high` [s] and the kernels.

    Raises:
        InputError: (and its kinds) as `estimate` does.

    >>> step = predict_step("llama-3-8b", "h100-sxm", Deployment(), Batch.decode(32.0, 2048.0))
    >>> 0.007 < step.bound < step.time < 0.012
    True
    """
    return resolve(model, gpu, deployment, calibration).plan.time(batch)


def read_deployment(scenario: dict[str, Any]) -> Deployment:
    """Build a deployment from keywords.

    Raises InputError for an unknown keyword, WorkloadError for a degree that is not a whole number of at least 1,
    DtypeError and UnknownNameError for formats and engines nobody knows.
    """
    known = [*WORKLOAD_KEYS, *DEPLOYMENT_KEYS, "calibration", "allow_oom"]
    for key in scenario:
        if key not in DEPLOYMENT_KEYS:
            raise InputError(f"unknown option {key!r}; nearest: {', '.join(nearest(key, known)) or ', '.join(known)}")
    chosen: dict[str, Any] = {key: whole_number(scenario.get(key, 1), key) for key in DEGREES}
    chosen |= {key: parse_dtype(scenario[key]) for key in _FORMATS if scenario.get(key) is not None}
    engine = str(scenario.get("engine", "vllm")).lower()
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    return Deployment(**chosen, engine=engine)


def resolve(
    model: str | PathLike[str], gpu: str | PathLike[str], deployment: Deployment, calibration: str | None
) -> Resolved:
    """Load model, accelerator and calibration, and lay out the plan."""
    for kind, name in (("model", model), ("gpu", gpu)):
        if not isinstance(name, (str, PathLike)):
            raise InputError(f"{kind} must be a name or a path, not {name!r}")
    loaded_model, loaded_gpu = load_model(model), load_accelerator(gpu)
    chosen, notes = _calibration(loaded_gpu.value, deployment.engine, calibration)
    plan = make_plan(loaded_model.value, deployment, System.of(loaded_gpu.value), chosen)
    notes += _format_notes(plan)
    if deployment.pp > 1:
        notes.append(
            f"pp={deployment.pp}: the batch passes the stages in turn as one microbatch; overlap is not modelled"
        )
    return Resolved(Predictor.of(plan), (*loaded_model.warnings, *loaded_gpu.warnings, *notes))


def _calibration(gpu: Accelerator, engine: str, asked: str | None) -> tuple[Calibration | None, list[str]]:
    if asked == "none" or (engine == "ideal" and asked is None):
        return None, []
    if asked is None:
        chosen, note = choose_calibration(gpu, engine)
        return chosen, [note] if note else []
    chosen, note = stand_in(load_calibration(asked), gpu, engine)
    return chosen, [note] if note else []


def _format_notes(plan: Plan) -> list[str]:
    """Say where weights are multiplied in another format, and where another format's measurements stand in."""
    precision = plan.precision
    stored = {getattr(precision.formats, kind) for kind in plan.model.matrices}
    pairs = {(weight, precision.compute(weight)) for weight in stored if not weight.is_wide}
    pairs = {(weight, compute) for weight, compute in pairs if compute.unit is not weight.unit}
    notes = [
        f"{weight} weights are dequantised and multiplied in {compute}" for weight, compute in sorted(pairs, key=str)
    ]
    if plan.calibration is None:
        return notes
    kernels = plan.kernels(Batch.prefill(1.0, 8.0)) + plan.kernels(Batch.decode(1.0, 8.0))
    absent = dict.fromkeys((k.family, k.dtype.value) for k in kernels if not plan.calibration.measured(k))
    notes += [
        f"no measured {family} kernels in {dtype}: the efficiency of another format stands in, its interval widened"
        for family, dtype in absent
    ]
    return [*notes, *_slow_formats(plan)]


def _slow_formats(plan: Plan) -> Iterable[str]:
    """Say where the measured kernels of a narrow format are slower than 16-bit ones would be: an untuned kernel."""
    narrow = [k for k in plan.kernels(Batch.decode(_SAMPLE, 8.0)) if not k.dtype.is_wide]
    for family, dtype in dict.fromkeys((kernel.family, kernel.dtype) for kernel in narrow):
        own = [kernel for kernel in narrow if (kernel.family, kernel.dtype) == (family, dtype)]
        stream = plan.precision.stream
        wide = [replace(k, dtype=stream, weight_bytes=k.weight_bytes * stream.bytes / dtype.bytes) for k in own]
        slow, fast = (time_step(kernels, plan.system, plan.calibration).time for kernels in (own, wide))
        if slow > _SLOW * fast:
            yield (
                f"the measured {dtype} {family} kernels of {plan.deployment.engine} are slower than {stream} ones "
                f"({float(slow / fast):.1f}x at batch {_SAMPLE:.0f}): probably a kernel without tuned settings"
            )


def _answer(resolved: Resolved, work: Workload) -> Estimate:
    predictor, plan = resolved.predictor, resolved.plan
    point = predictor.evaluate(work)
    accelerator, calibration = plan.system.accelerator, plan.calibration
    ttft, tpot = point.ttft, point.tpot
    rate = float(point.output_rate(work.batch, work.osl))
    times = {"ttft_ms": ttft, "tpot_ms": tpot}
    return Estimate(
        version=__version__,
        model=plan.model.name,
        gpu=accelerator.name,
        engine=plan.deployment.engine,
        level="expected" if calibration else "bound",
        calibration={"name": calibration.name, "hash": calibration.hash} if calibration else None,
        inputs=_inputs(plan, work),
        ttft_ms=float(ttft.time) * 1e3,
        tpot_ms=float(tpot.time) * 1e3,
        e2e_ms=float(point.e2e(work.osl)) * 1e3,
        output_tok_s=rate,
        output_tok_s_per_gpu=rate / plan.deployment.gpus,
        output_tok_s_per_user=1.0 / float(tpot.time),
        interval={key: [float(t.low) * 1e3, float(t.high) * 1e3] for key, t in times.items()} if calibration else None,
        bound={key: float(t.bound) * 1e3 for key, t in times.items()},
        memory=MemoryResult.of(point.memory),
        prefill=StepResult.of(plan.time(predictor.prefill_batch(work)), accelerator),
        decode=StepResult.of(plan.time(predictor.decode_batch(work, work.decode_context)), accelerator),
        provenance=_provenance(plan),
        warnings=(*resolved.warnings, *_context_notes(plan.model, work), *_memory_notes(point.memory)),
    )


def _inputs(plan: Plan, work: Workload) -> dict[str, Any]:
    """Every input as it was understood: counts, degrees, and the formats after defaults."""
    precision, deployment = plan.precision, plan.deployment
    counts = {"batch": work.batch, "isl": work.isl, "osl": work.osl, "cached": work.cached}
    blocks: Dtype = getattr(precision.formats, plan.model.matrices[-1])
    return {
        **{key: int(float(value)) for key, value in counts.items()},
        "context": float(work.decode_context) if work.context is None else int(float(work.context)),
        **{key: getattr(deployment, key) for key in DEGREES},
        "gpus": deployment.gpus,
        "weights": blocks.value,
        "activations": (precision.inputs or precision.stream).value,
        "kv": precision.kv.value,
        "engine": deployment.engine,
    }


def _context_notes(model: Model, work: Workload) -> Iterable[str]:
    longest = int(float(work.longest_context))
    if model.max_context is not None and longest > model.max_context:
        yield f"{longest} tokens exceed {model.name}'s maximum context of {model.max_context}"
    if work.osl == 1:
        yield "osl 1 has no second token: TPOT is the step that would follow"


def _memory_notes(memory: Memory) -> Iterable[str]:
    if not memory.fits:
        yield f"does not fit: {_over(memory)}"


def _over(memory: Memory) -> str:
    need, have = float(memory.total_bytes), float(memory.capacity_bytes)
    return (
        f"needs {need / GB:.1f} GB per accelerator and has {have / GB:.1f} GB, {(need - have) / GB:.1f} GB too little"
    )


def _misfit(predictor: Predictor, work: Workload, answer: Estimate) -> str:
    memory = predictor.evaluate(work).memory
    remedies = list(_remedies(predictor, work, answer))
    advice = (
        f"; would fit: {', or '.join(remedies)}" if remedies else "; no tp, smaller batch or 8-bit weights would fit"
    )
    return (
        f"{answer.model} on {answer.gpu} does not fit: {_over(memory)}{advice} (--allow-oom prints the numbers anyway)"
    )


def _remedies(predictor: Predictor, work: Workload, answer: Estimate) -> Iterable[str]:
    """Changes of one thing that would make it fit, each checked."""
    if answer.memory.max_batch >= 1:
        yield f"--batch {answer.memory.max_batch}"
    plan = predictor.plan
    changes = [("tp", tp) for tp in range(plan.deployment.tp + 1, plan.system.domain_size + 1)]
    fitting = [f"--{key} {value}" for key, value in changes if _fits(plan, replace(plan.deployment, tp=value), work)]
    yield from fitting[:1]
    if plan.precision.formats.ffn.is_wide:
        for name in ("fp8", "int8", "int4"):
            if _fits(plan, replace(plan.deployment, weights=parse_dtype(name)), work):
                yield f"--weights {name}"
                return


def _fits(plan: Plan, deployment: Deployment, work: Workload) -> bool:
    try:
        other = make_plan(plan.model, deployment, plan.system, plan.calibration)
    except RooflinekitError:
        return False
    return bool(Predictor.of(other).evaluate(work).memory.fits)


def _provenance(plan: Plan) -> tuple[Provenance, ...]:
    """Where the numbers behind the answer came from."""
    model, calibration = plan.model, plan.calibration
    entries = [Provenance("model architecture", float(model.depth), "layers", model.source or model.origin)]
    entries += plan.system.accelerator.provenance
    if calibration:
        for name, fit in calibration.families.items():
            source = f"{fit.source}; {calibration.source}"
            for part, bounds in parameters(fit.form).items():
                label = f"calibration.{name}.{part}" + (f" ± {fit.spread[part]:.2g}" if fit.spread.get(part) else "")
                unit = "s" if bounds.unit == "us" else bounds.unit
                entries.append(Provenance(label, getattr(fit.form, part), unit, source))
            entries.append(Provenance(f"calibration.{name}.error", fit.error, "mean on unseen shapes", source))
    return tuple(entries)

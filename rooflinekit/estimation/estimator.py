"""The front door: one operating point by names and keywords, answered as an `Estimate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from os import PathLike
from typing import Any

from rooflinekit.estimation.notes import context_notes, format_notes, load_notes, memory_notes, misfit
from rooflinekit.estimation.results import Estimate, MemoryResult, SpeculationResult, StepResult
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.speculation import speculate
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.timing import parameters
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.traffic.question import LOAD_KEYS, LoadQuestion, LoadResult, answer_load, read_load
from rooflinekit.model.types.batch import Batch, whole_number
from rooflinekit.model.types.deployment import ALL_REDUCE, ENGINES, Deployment
from rooflinekit.model.types.dtype import Dtype, parse_dtype
from rooflinekit.model.types.engine import Engine, EngineSettings
from rooflinekit.model.types.errors import (
    DoesNotFitError,
    InputError,
    UnknownNameError,
    WorkloadError,
    nearest,
)
from rooflinekit.model.types.hardware import Accelerator, Provenance, System
from rooflinekit.model.types.kv_policy import FULL, parse_kv_policy
from rooflinekit.model.types.power import capped
from rooflinekit.model.types.speculation import METHODS, SPECULATION_KEYS, Speculation
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import Loaded, load_accelerator, load_model, load_system
from rooflinekit.specs.calibration import choose_calibration, for_serving, load_calibration, stand_in
from rooflinekit.specs.calibration.last_cache import last_cache
from rooflinekit.specs.engines import load_engine, split_version, step_range
from rooflinekit.version import __version__

__all__ = [
    "DEGREES",
    "DEPLOYMENT_KEYS",
    "SETTING_KEYS",
    "WORKLOAD_KEYS",
    "Question",
    "Resolved",
    "answer",
    "ask",
    "estimate",
    "read_deployment",
    "refuse_static",
    "resolve",
    "under_load",
]

WORKLOAD_KEYS = {"batch": 1, "isl": 1024, "osl": 256, "cached": 0, "context": None}
SETTING_KEYS = tuple(field.name for field in fields(EngineSettings))
DEPLOYMENT_KEYS = (*(f.name for f in fields(Deployment) if f.name != "settings"), *SETTING_KEYS)
_MOST_SKEWED = 4.0  # weights n^-4: nearly all tokens visit the same experts
DEGREES = ("tp", "pp", "ep", "dp", "cp", "microbatches")
_FORMATS = ("weights", "attention_weights", "lm_head", "activations", "kv", "dispatch")


@dataclass(frozen=True)
class Resolved:
    """Names turned into a predictor, with everything the user should hear about it."""

    predictor: Predictor
    warnings: tuple[str, ...]

    @property
    def plan(self) -> Plan:
        """The plan inside."""
        return self.predictor.plan


@dataclass(frozen=True)
class Question:
    """What was asked: a predictor, a workload, and the load where there is one."""

    resolved: Resolved
    work: Workload
    load: LoadQuestion | None


def estimate(model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: Any) -> Estimate:
    """Predict TTFT, TPOT, throughput and memory for a static batch on one deployment.

    Args:
        model: a name (`llama3-8b`), a Hugging Face id, or a path to a config.json or the folder that holds it.
        gpu: an accelerator's name or a path to its file.
        **scenario: batch, isl, osl, cached, context [tokens]; tp, pp, ep, dp, cp, microbatches; system,
            sequence_parallel, all_reduce, dispatch, redundant_experts, skew; weights, attention_weights, lm_head,
            activations, kv (number formats);
            engine (`vllm`, or a version of it, `vllm@0.8.5`) and its settings memory_fraction, token_budget,
            max_num_seqs, max_model_len; power_cap [W]; concurrency or rate (under load, with requests, burstiness,
            isl_cv, osl_cv and objectives ttft, tpot [ms]); kv_policy (`window:4096`, `sink:4+2044`, `topk:2048`,
            `evict:2048`); draft (a
            model, medusa, eagle, eagle3, mtp, ngram), draft_tokens, acceptance, draft_tree, draft_tp; calibration (a
            name, a path, or "none" for the datasheet bound); allow_oom.

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
    return answer(ask(model, gpu, scenario), allow_oom)


def ask(model: str | PathLike[str], gpu: str | PathLike[str], scenario: dict[str, Any]) -> Question:
    """Read names and keywords as `estimate` does, all but allow_oom; raises what it raises for them."""
    calibration = scenario.pop("calibration", None)
    split = {key: scenario.pop(key) for key in list(scenario) if key in WORKLOAD_KEYS}
    traffic = {key: scenario.pop(key) for key in list(scenario) if key in LOAD_KEYS}
    choice = Speculation.read({key: scenario.pop(key) for key in list(scenario) if key in SPECULATION_KEYS})
    resolved = resolve(model, gpu, read_deployment(scenario), calibration, choice)
    work = Workload.checked(**(WORKLOAD_KEYS | split))
    load = read_load(traffic, float(work.isl), float(work.osl))
    if load is not None:
        refuse_static(split)
    return Question(resolved, work, load)


def answer(question: Question, allow_oom: bool = False) -> Estimate:
    """Answer what was asked; raises DoesNotFitError as `estimate` does."""
    resolved, work = question.resolved, question.work
    if question.load is not None:
        return under_load(resolved, work, question.load)
    found = _answer(resolved, work)
    if not found.memory.fits and not allow_oom:
        raise DoesNotFitError(misfit(resolved.predictor, work, found))
    return found


def read_deployment(scenario: dict[str, Any]) -> Deployment:
    """Build a deployment from keywords.

    Raises InputError for an unknown keyword, WorkloadError for a degree that is not a whole number of at least 1,
    DtypeError and UnknownNameError for formats and engines nobody knows.
    """
    known = [*WORKLOAD_KEYS, *DEPLOYMENT_KEYS, *SPECULATION_KEYS, *LOAD_KEYS, "calibration", "allow_oom"]
    for key in scenario:
        if key not in DEPLOYMENT_KEYS:
            raise InputError(f"unknown option {key!r}; nearest: {', '.join(nearest(key, known)) or ', '.join(known)}")
    chosen: dict[str, Any] = {key: whole_number(scenario.get(key, 1), key) for key in DEGREES}
    chosen |= {key: parse_dtype(scenario[key]) for key in _FORMATS if scenario.get(key) is not None}
    engine, version = split_version(str(scenario.get("engine", "vllm")))
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    chosen |= _split(scenario)
    chosen["kv_policy"] = parse_kv_policy(scenario.get("kv_policy") or FULL)
    version = version or scenario.get("engine_version")
    return Deployment(**chosen, engine=engine, engine_version=version, settings=EngineSettings.read(scenario))


def _split(scenario: dict[str, Any]) -> dict[str, Any]:
    """What a split has besides its degrees; raises WorkloadError or UnknownNameError for what cannot be."""
    skew, flag = scenario.get("skew") or 0.0, scenario.get("sequence_parallel") or False
    if isinstance(skew, bool) or not isinstance(skew, Real) or not 0 <= float(skew) <= _MOST_SKEWED:
        raise WorkloadError(f"skew must be from 0 (uniform) to {_MOST_SKEWED:g}, not {skew!r}")
    if flag not in (True, False):
        raise WorkloadError(f"sequence_parallel must be True or False, not {flag!r}")
    algorithm = str(scenario.get("all_reduce") or "auto").lower().replace("-", "_")
    if algorithm not in ALL_REDUCE:
        raise UnknownNameError("all_reduce", algorithm, ALL_REDUCE)
    copies = whole_number(scenario.get("redundant_experts") or 0, "redundant_experts", 0)
    system, cap = scenario.get("system"), scenario.get("power_cap")
    if cap is not None and (isinstance(cap, bool) or not isinstance(cap, Real) or not float(cap) > 0):
        raise WorkloadError(f"power_cap must be a number of watts above 0, not {cap!r}")
    return {"power_cap": None if cap is None else float(cap), "skew": float(skew),
            "sequence_parallel": bool(flag), "all_reduce": algorithm, "redundant_experts": copies,
            "system": None if system is None else str(system)}  # fmt: skip


def resolve(
    model: str | PathLike[str],
    gpu: str | PathLike[str],
    deployment: Deployment,
    calibration: str | None,
    choice: Speculation | None = None,
) -> Resolved:
    """Load model, accelerator, calibration and draft, and lay out the plan."""
    for kind, name in (("model", model), ("gpu", gpu)):
        if not isinstance(name, (str, PathLike)):
            raise InputError(f"{kind} must be a name or a path, not {name!r}")
    loaded_model, loaded_gpu = load_model(model), load_accelerator(gpu)
    chosen, notes = _calibration(loaded_gpu.value, deployment.engine, calibration)
    accelerator = loaded_gpu.value
    engine, served_notes = _engine(deployment, accelerator, chosen)
    notes += served_notes
    if deployment.power_cap is not None:
        accelerator, note = capped(accelerator, deployment.power_cap)
        notes.append(note)
    system = _system(accelerator, deployment.system)
    notes += system.warnings
    plan = make_plan(loaded_model.value, deployment, system.value, chosen, engine)
    notes += format_notes(plan)
    if deployment.pp > 1 and deployment.microbatches == 1:
        notes.append(f"pp={deployment.pp} with one microbatch: while one stage computes, the others wait")
    if deployment.kv_policy.caveat:
        notes.append(deployment.kv_policy.caveat)
    resolved = Resolved(Predictor.of(plan), (*loaded_model.warnings, *loaded_gpu.warnings, *notes))
    return resolved if choice is None else _with_draft(resolved, choice)


def _with_draft(resolved: Resolved, choice: Speculation) -> Resolved:
    """Put the draft beside the plan; raises UnknownNameError where its name is neither a method nor a model."""
    if choice.method != "draft":
        predictor = speculate(resolved.predictor, choice)
        return Resolved(predictor, (*resolved.warnings, *predictor.notes()))
    try:
        loaded = load_model(choice.draft)
    except UnknownNameError as error:
        raise UnknownNameError("draft", choice.draft, [*METHODS, *error.suggestions]) from None
    predictor = speculate(resolved.predictor, choice, loaded.value)
    return Resolved(predictor, (*resolved.warnings, *loaded.warnings, *predictor.notes()))


def _system(gpu: Accelerator, name: str | None) -> Loaded[System]:
    return Loaded(System.of(gpu)) if name is None else load_system(name, gpu)


def _calibration(gpu: Accelerator, engine: str, asked: str | None) -> tuple[Calibration | None, list[str]]:
    if asked == "none" or (engine == "ideal" and asked is None):
        return None, []
    if asked is None:
        chosen, note = choose_calibration(gpu, engine)
        return for_serving(chosen), [note] if note else []
    chosen, note = stand_in(load_calibration(asked), gpu, engine)
    shipped = chosen.served is not None and chosen.served.shipped
    return for_serving(chosen) if shipped else chosen, [note] if note else []


def _engine(deployment: Deployment, gpu: Accelerator, calibration: Calibration | None) -> tuple[Engine, list[str]]:
    """The engine, with the costs that benchmark files of this accelerator and engine showed, if there are such."""
    engine = load_engine(deployment.engine, deployment.engine_version)
    served = calibration.served if calibration else None
    if served is None or calibration is None:
        return engine, []
    here = (gpu.name, deployment.engine, step_range(deployment.engine, deployment.engine_version))
    if here != (served.accelerator, served.engine, served.since):
        where = f"{served.engine} {served.since}".strip()
        return engine, [f"engine costs of {calibration.name} are of {where} on {served.accelerator} and are not used"]
    own = engine.costs
    costs = replace(served.costs, graphs=own.graphs, mixes=own.mixes)
    memory = tuple(entry for entry in engine.provenance if entry.quantity.startswith("engine.memory."))
    return replace(engine, costs=costs, provenance=(*memory, *served.provenance)), []


def refuse_static(given: Mapping[str, Any]) -> None:
    """Raise InputError if keywords beside a load describe a static batch."""
    for key in ("batch", "context", "cached"):
        if given.get(key) not in (None, WORKLOAD_KEYS[key]):
            raise InputError(f"{key} describes a static batch and excludes concurrency and rate; leave it out")


def under_load(resolved: Resolved, work: Workload, question: LoadQuestion) -> Estimate:
    """The static answer at the batch that the load keeps running, with the times that users feel in their place.

    Raises DoesNotFitError if not one request fits.
    """
    predictor, plan = resolved.predictor, resolved.plan
    found = answer_load(predictor, question)
    loaded, load = found.loaded, LoadResult.of(predictor, found)
    running = max(float(round(float(loaded.running))), 1.0)
    static = _answer(resolved, replace(work, batch=running))
    times = {"ttft_ms": loaded.ttft, "tpot_ms": loaded.tpot}
    held = predictor.memory.evaluate(running, work.isl + work.osl / 2.0, work.isl)
    spans: dict[str, list[float] | None] = {
        key: [float(t.low) * 1e3, float(t.high) * 1e3] for key, t in times.items() if load.stable or t is loaded.tpot
    }
    rate = min(load.rate, load.knee_rate) * float(work.osl)
    return replace(
        static,
        ttft_ms=float(loaded.ttft.expected) * 1e3 if load.stable else None,
        tpot_ms=float(loaded.tpot.expected) * 1e3,
        e2e_ms=float(loaded.e2e) * 1e3 if load.stable else None,
        output_tok_s=rate,
        output_tok_s_per_gpu=rate / plan.deployment.gpus,
        output_tok_s_per_user=1.0 / float(loaded.tpot.expected),
        interval={key: spans.get(key) for key in times} if plan.calibration else None,
        bound={key: float(t.bound) * 1e3 for key, t in times.items()},
        prefill=StepResult.of(plan.time(Batch.prefill(1.0, work.isl)), plan.system.accelerator),
        memory=MemoryResult.of(held),
        load=load,
        inputs=static.inputs | {"concurrency": question.users, "rate": question.rate},
        warnings=(*load_notes(load, question), *resolved.warnings, *context_notes(plan, work)),
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
        ttft_ms=float(ttft.expected) * 1e3,
        tpot_ms=float(tpot.expected) * 1e3,
        e2e_ms=float(point.e2e(work.osl)) * 1e3,
        output_tok_s=rate,
        output_tok_s_per_gpu=rate / plan.deployment.gpus,
        output_tok_s_per_user=1.0 / float(tpot.expected),
        interval={key: [float(t.low) * 1e3, float(t.high) * 1e3] for key, t in times.items()} if calibration else None,
        bound={key: float(t.bound) * 1e3 for key, t in times.items()},
        memory=MemoryResult.of(point.memory),
        prefill=StepResult.of(point.prefill, accelerator),
        decode=StepResult.of(point.decode, accelerator),
        speculation=SpeculationResult.of(predictor, work),
        load=None,
        provenance=_provenance(plan),
        warnings=(*resolved.warnings, *context_notes(plan, work), *memory_notes(point.memory)),
    )


def _inputs(plan: Plan, work: Workload) -> dict[str, Any]:
    """Every input as it was understood: counts, degrees, and the formats after defaults."""
    precision, deployment = plan.precision, plan.deployment
    counts = {"batch": work.batch, "isl": work.isl, "osl": work.osl, "cached": work.cached}
    blocks: Dtype = getattr(precision.formats, plan.model.matrices[-1])
    return {
        **{key: int(float(value)) for key, value in counts.items()},
        "context": float(work.decode_context) if work.context is None else int(float(work.context)),
        "concurrency": None,
        "rate": None,
        **{key: getattr(deployment, key) for key in DEGREES},
        "gpus": deployment.gpus,
        "system": deployment.system,
        "sequence_parallel": deployment.sequence_parallel,
        "all_reduce": deployment.all_reduce,
        "dispatch": None if deployment.dispatch is None else deployment.dispatch.value,
        "redundant_experts": deployment.redundant_experts,
        "skew": deployment.skew,
        "power_cap": deployment.power_cap,
        "weights": blocks.value,
        "attention_weights": precision.formats.attention.value,
        "lm_head": precision.formats.lm_head.value,
        "activations": (precision.inputs or precision.stream).value,
        "kv": precision.kv.value,
        "kv_policy": str(deployment.kv_policy),
        "engine": deployment.engine,
        "engine_version": deployment.engine_version,
        **{key: getattr(deployment.settings, key) for key in SETTING_KEYS},
    }


def _provenance(plan: Plan) -> tuple[Provenance, ...]:
    """Where the numbers behind the answer came from."""
    model, calibration = plan.model, plan.calibration
    entries = [Provenance("model architecture", float(model.depth), "layers", model.source or model.origin)]
    entries += (*plan.system.accelerator.provenance, *plan.engine.provenance)
    cache = last_cache(plan)
    entries += [cache.entry()] if cache else []
    if calibration:
        for name, fit in calibration.families.items():
            source = f"{fit.source}; {calibration.source}"
            for part, bounds in parameters(fit.form).items():
                label = f"calibration.{name}.{part}" + (f" ± {fit.spread[part]:.2g}" if fit.spread.get(part) else "")
                unit = "s" if bounds.unit == "us" else bounds.unit
                entries.append(Provenance(label, getattr(fit.form, part), unit, source))
            entries.append(Provenance(f"calibration.{name}.error", fit.error, "mean on unseen shapes", source))
    return tuple(entries)

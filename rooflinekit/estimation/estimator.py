"""The front door: one operating point by names and keywords, answered as an `Estimate`."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from rooflinekit.estimation.doubts import load_doubts, static_doubts
from rooflinekit.estimation.measuring import benchmark_commands
from rooflinekit.estimation.notes import (
    format_notes,
    limit_remarks,
    memory_remarks,
    misfit,
    room_for_one,
    said,
    state_notes,
)
from rooflinekit.estimation.options import Keywords, OwnKeywords, keywords, options_of, part_of, read
from rooflinekit.estimation.results import EnergyResult, Estimate, MemoryResult, SpeculationResult, StepResult, about
from rooflinekit.estimation.scenario import (
    DEGREES,
    DEPLOYMENT_KEYS,
    IMAGE_SIZE,
    SETTING_KEYS,
    SPECULATION_KEYS,
    WORKLOAD_KEYS,
    FormatsOptions,
    Placed,
    Scenario,
)
from rooflinekit.estimation.traffic import read_load
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.energy import static_energy, static_power
from rooflinekit.model.speculation import speculate
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.timing.forms import parameters
from rooflinekit.model.types.answer import Later
from rooflinekit.model.types.deployment import ENGINES, Deployment, unknown_engine
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.engine import Engine, EngineSettings
from rooflinekit.model.types.errors import DoesNotFitError, InputError, UnknownNameError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.hardware import Accelerator, Provenance, System, capped, clocked
from rooflinekit.model.types.kv_policy import FULL, parse_kv_policy
from rooflinekit.model.types.model import LatentAttention, Model
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.speculation import METHODS, Speculation
from rooflinekit.model.types.time import Time
from rooflinekit.model.types.units import format_bytes
from rooflinekit.model.types.vision import Images
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator, load_model, load_system, systems_of
from rooflinekit.specs.calibration import choose_calibration, for_serving, load_calibration, stand_in
from rooflinekit.specs.calibration.evidence import evidence
from rooflinekit.specs.calibration.last_cache import last_cache
from rooflinekit.specs.engines import load_engine, split_version, step_range
from rooflinekit.specs.files import once
from rooflinekit.specs.hosts import host_of
from rooflinekit.specs.power import power_provenance

if TYPE_CHECKING:
    from rooflinekit.load.answer import Load, LoadPlay


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
    """A question: names as they were given, a predictor, a workload, and the load where there is one."""

    model: str | PathLike[str]
    gpu: str | PathLike[str]
    calibration: str | None
    resolved: Resolved
    work: Workload
    asked: Load | None = None  #: the load to be played


@keywords(Scenario)
def estimate(
    model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: Unpack[Scenario]
) -> Estimate:
    """Predict TTFT, TPOT, throughput and memory for a static batch, or under load, on one deployment.

    Args:
        model: a name (`llama3-8b`), a Hugging Face id, or a path to a config.json or the folder that holds it.
        gpu: an accelerator's name or a path to its file.
        **scenario: the options of `Scenario`, which docs/cli.md lists; None leaves one to its default.

    Returns:
        An `Estimate`; times in ms, sizes in bytes, per accelerator.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if it needs more memory than
            there is, unless allow_oom is True.

    >>> e = estimate("llama-3-8b", "h100-sxm", batch=32, context=2048, calibration="none")
    >>> e.level, round(e.tpot_ms, 2)  # 15.0 GB of weights and 8.6 GB of cache over 3.35 TB/s
    ('bound', 7.05)
    """
    return answer(ask(model, gpu, scenario), bool(scenario.get("allow_oom")))


def ask(model: str | PathLike[str], gpu: str | PathLike[str], scenario: Mapping[str, object]) -> Question:
    """Read names and keywords as `estimate` does, all but allow_oom; raises what it raises for them."""
    given = read(Scenario, scenario)
    resolved = deploy(model, gpu, given)
    load = read_load(given, resolved.plan.image_tokens)
    if load is not None:
        refuse_static(given, resolved.plan.deployment)
    calibration = None if given.get("calibration") is None else str(given["calibration"])
    return Question(model, gpu, calibration, resolved, read_workload(given, resolved.plan, load), load)


def read_workload(given: Keywords, plan: Plan | None = None, load: Load | None = None) -> Workload:
    """The batch that keywords describe; a distribution of lengths is its mean, of the load that was read if there is.

    Of a plan with images, their tokens come to those of each prompt's text.

    >>> float(read_workload({"isl": "lognormal:mean=900,cv=1", "rate": 4.0}).isl)
    900.0
    """
    counts = WORKLOAD_KEYS | part_of(given, WORKLOAD_KEYS)
    for key in ("isl", "osl"):
        if isinstance(counts[key], str):
            from rooflinekit.load.lengths import parse_length, shorter  # noqa: PLC0415 - statistics take a while

            length = shorter(getattr(load, key)) if load else parse_length(counts[key])
            counts[key] = max(round(length.mean), 1)
    work = Workload.checked(**counts)
    return work if plan is None else replace(work, isl=plan.prompt(work.isl))


def answer(question: Question, allow_oom: bool = False) -> Estimate:
    """Answer what was asked; raises DoesNotFitError as `estimate` does."""
    resolved, work = question.resolved, question.work
    if question.asked is not None:
        return played(question, play(question))
    found = _answer(resolved, work)
    if not found.memory.fits and not allow_oom:
        raise DoesNotFitError(misfit(resolved.predictor, work))
    return _of(question, found)


def _of(question: Question, found: Estimate) -> Estimate:
    """The answer, which remembers its question outside its fields: no JSON, comparison or pickle has it."""
    vars(found)["question"] = question
    return found


def question_of(answer: Estimate) -> Question | None:
    """The question of an answer that was made in this process; None of one that was read back."""
    return vars(answer).get("question")


def read_deployment(scenario: Keywords) -> Deployment:
    """Build a deployment from keywords."""
    given = read(Placed, scenario)
    chosen = part_of(given, Deployment.__dataclass_fields__)
    chosen |= {
        key: parse_dtype(each) for key, each in part_of(given, (*options_of(FormatsOptions), "dispatch")).items()
    }
    engine, version = split_version(str(given.get("engine", "vllm")))
    if engine not in ENGINES:
        raise unknown_engine(engine)
    chosen |= {
        "engine": engine,
        "engine_version": version or given.get("engine_version"),
        "offload_experts": "offload_experts" in given,
        "system": str(given["system"]) if "system" in given else None,
        "kv_policy": parse_kv_policy(given.get("kv_policy", FULL)),
        "images": Images.read(given.get("images", 0), given.get("image_size", IMAGE_SIZE)),
        "settings": EngineSettings(**part_of(given, SETTING_KEYS)),
    }
    return Deployment(**chosen)


def deploy(model: str | PathLike[str], gpu: str | PathLike[str], given: Keywords) -> Resolved:
    """The deployment that options describe, with its draft and calibration; other options are left alone."""
    choice = Speculation.read(part_of(given, SPECULATION_KEYS))
    deployment = read_deployment(part_of(given, DEPLOYMENT_KEYS))
    return resolve(model, gpu, deployment, given.get("calibration"), choice)


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
            raise InputError(f"{kind} must be a name or a path, not {reprlib.repr(name)}")
    loaded_model, loaded_gpu = load_model(model), load_accelerator(gpu)
    chosen, stands_in = _calibration(loaded_gpu.value, deployment.engine, calibration)
    engine = load_engine(deployment.engine, deployment.engine_version, loaded_gpu.value.name)
    if choice is not None and engine.serial_states:  # with a draft prompts are not cached, and steps overlap
        engine = replace(engine, serial_states=False)
    if most := _usual_sequences(engine, loaded_model.value, choice):
        engine = _running(engine, max(most // deployment.dp, 1.0))
    if deployment.kv is None and (usual := usual_kv(engine, loaded_model.value, loaded_gpu.value)):
        deployment = replace(deployment, kv=parse_dtype(usual))
    system = None if deployment.system is None else load_system(deployment.system, loaded_gpu.value)
    predictor, notes = _lay_out(
        loaded_model.value, loaded_gpu.value, _same(deployment), chosen, engine, system.value if system else None
    )
    warnings = (*loaded_model.warnings, *loaded_gpu.warnings, *stands_in, *(system.warnings if system else ()), *notes)
    resolved = Resolved(predictor, warnings)
    return resolved if choice is None else _with_draft(resolved, choice)


def _usual_sequences(engine: Engine, model: Model, choice: Speculation | None) -> float:
    """Sequences that an engine runs by default, of all replicas, for a model or with a draft; 0: its usual ones."""
    rule = engine.memory
    drafted = 0.0 if choice is None else rule.drafted_sequences
    return (rule.compressed_sequences if model.compressed else 0.0) or drafted


_BLACKWELL = 10  # compute capability


def usual_kv(engine: Engine, model: Model, gpu: Accelerator) -> str:
    """Format in which an engine keeps the cache of this model unless told; empty where it is as the activations are."""
    if model.compressed:
        return engine.memory.compressed_kv
    major, dot, _ = gpu.compute_capability.partition(".")
    indexed = any(isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer for layer in model.layer_counts)
    return engine.memory.indexed_kv if indexed and dot and int(major) >= _BLACKWELL else ""


@once
def _running(engine: Engine, most: float) -> Engine:
    """The engine where each attention replica runs so many sequences by default."""
    return replace(engine, memory=replace(engine.memory, max_num_seqs=(most, most)))


@lru_cache(maxsize=1024)
def _same(deployment: Deployment) -> Deployment:
    """The first deployment that was equal to this one, so that a plan is found by it."""
    return deployment


@once
def _lay_out(  # noqa: PLR0913, PLR0917 - what a plan is made of
    model: Model,
    gpu: Accelerator,
    deployment: Deployment,
    calibration: Calibration | None,
    engine: Engine,
    system: System | None,
) -> tuple[Predictor, tuple[str, ...]]:
    """The plan of a deployment, and what to say about it; made once of the same objects."""
    engine, notes = _with_served_costs(_on_host(engine, deployment, gpu), deployment, model, gpu, calibration)
    gpu = _powered(gpu, calibration)
    if deployment.power_cap is not None:
        gpu, note = capped(gpu, deployment.power_cap)
        notes.append(note)
    if deployment.clock is not None:
        gpu, note = clocked(gpu, deployment.clock * 1e6)
        notes.append(note)
    whole = _usual(gpu, deployment, notes) if system is None else replace(system, accelerator=gpu)
    if deployment.host_bandwidth is not None:
        whole = replace(whole, host=replace(whole.host, bandwidth=deployment.host_bandwidth * 1e9, given=True))
    if budget := deployment.settings.token_budget:
        whole = replace(whole, host=replace(whole.host, budget=float(budget)))
    plan = make_plan(model, deployment, whole, calibration, engine)
    notes += format_notes(plan)
    if deployment.pp > 1 and deployment.microbatches == 1:
        notes.append(f"pp={deployment.pp} with one microbatch: while one stage computes, the others wait")
    if deployment.kv_policy.caveat:
        notes.append(deployment.kv_policy.caveat)
    predictor = Predictor.of(plan)
    return predictor, (*notes, *state_notes(predictor))


@once
def _powered(gpu: Accelerator, calibration: Calibration | None) -> Accelerator:
    """The accelerator with the power of a calibration, where that has any."""
    if gpu.power is None or calibration is None or calibration.power is None:
        return gpu
    return replace(gpu, power=gpu.power.scaled(*calibration.power, f"{gpu.power.source}; {calibration.name}"))


_PCIE_BOX = "pcie-box"
_system_of = once(System.of)


def _usual(gpu: Accelerator, deployment: Deployment, notes: list[str]) -> System:
    """The usual system of an accelerator, and in `notes` what joins more of them than its links do.

    Cards with bridges are joined by PCI Express beyond them, machines of one accelerator by their network cards.
    """
    whole, tp = _system_of(gpu), deployment.tp
    beyond = tp > whole.domain_size or deployment.gpus > whole.max_gpus
    if beyond and gpu.link_kind.endswith("bridge"):
        box = load_system(_PCIE_BOX, gpu).value
        rate = format_bytes(float(box.link_bandwidth))
        notes.append(
            f"bridges join {whole.domain_size} cards; {deployment.gpus} are joined by PCI Express, {rate}/s each way. "
            f"Without peer-to-peer: --system {_PCIE_BOX}-staged"
        )
        return box
    if tp <= whole.domain_size:
        if tp > 1 and gpu.link_kind.endswith("bridge"):
            rate = format_bytes(float(whole.link_bandwidth))
            notes.append(
                f"a bridge joins the cards, {rate}/s each way; without one: --system {_PCIE_BOX}, or {_PCIE_BOX}-staged"
                " without peer-to-peer"
            )
        return whole
    if whole.spans:
        notes.append(f"tp={tp} is joined by network cards, {format_bytes(float(gpu.nic_bandwidth))}/s each way")
        return whole
    return replace(whole, boxes=tuple(systems_of(gpu, several=True)))


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


def _calibration(gpu: Accelerator, engine: str, asked: str | None) -> tuple[Calibration | None, list[str]]:
    if asked == "none" or (engine == "ideal" and asked is None):
        return None, []
    if asked is None:
        chosen, note = choose_calibration(gpu, engine)
        return for_serving(chosen), [note] if note else []
    chosen, note = stand_in(load_calibration(asked), gpu, engine)
    shipped = chosen.served is not None and chosen.served.shipped
    return for_serving(chosen) if shipped else chosen, [note] if note else []


def _on_host(engine: Engine, deployment: Deployment, gpu: Accelerator) -> Engine:
    """The engine with the time of a launch of its host, the one that is named or the accelerator's usual one."""
    host = host_of(deployment.settings.host, gpu.name) if engine.costs.launch else None
    if host is None:
        return engine
    host = host.of(engine.costs.launch)
    spread = {**engine.costs.spread, "launch": host.spread}
    costs = replace(engine.costs, launch=host.launch, spread=spread)
    kept = tuple(each for each in engine.provenance if not each.quantity.startswith("engine.launch"))
    return replace(engine, costs=costs, provenance=(*kept, host.provenance))


def _with_served_costs(
    engine: Engine, deployment: Deployment, model: Model, gpu: Accelerator, calibration: Calibration | None
) -> tuple[Engine, list[str]]:
    """The engine, with the costs that benchmark files of this accelerator and engine showed, if there are such.

    The loads among them narrow the intervals of this model on as many accelerators.
    """
    served = calibration.served if calibration else None
    if served is None or calibration is None:
        return engine, []
    here = (gpu.name, deployment.engine, step_range(deployment.engine, deployment.engine_version))
    if here != (served.accelerator, served.engine, served.since):
        where = f"{served.engine} {served.since}".strip()
        return engine, [f"engine costs of {calibration.name} are of {where} on {served.accelerator} and are not used"]
    costs = served.costs.working_as(engine.costs)
    memory = tuple(entry for entry in engine.provenance if entry.quantity.startswith("engine.memory."))
    own = replace(engine.loaded.own, loads=served.loads.get((model.name, deployment.gpus), ()))
    loaded = replace(engine.loaded, own=own)
    return replace(engine, costs=costs, loaded=loaded, provenance=(*memory, *served.provenance)), []


def refuse_static(given: Mapping[str, object], deployment: Deployment) -> None:
    """Raise InputError if keywords beside a load describe a static batch, or what is known of one alone."""
    refuse_groups(deployment, "a static batch, not under load", "ffn_gpus")
    for key in ("batch", "context"):
        if given.get(key) not in (None, WORKLOAD_KEYS[key]):
            raise InputError(f"{key} describes a static batch and excludes concurrency and rate; leave it out")


def refuse_groups(deployment: Deployment, known: str, *groups: str) -> None:
    """Raise InputError where any of `groups` is on accelerators of its own, and the answer is `known` of others."""
    for key in groups:
        if getattr(deployment, key):
            raise InputError(f"{key} is known of {known}; leave {key} out")


def play(question: Question) -> LoadPlay:
    """Play the load that is asked for; raises DoesNotFitError if not one request fits."""
    from rooflinekit.load.answer import play_load  # noqa: PLC0415 - as above

    assert question.asked is not None
    predictor, load = question.resolved.predictor, question.asked
    with room_for_one(predictor, load.isl.mean, load.osl.mean):
        return play_load(predictor, load)


def played(question: Question, found: LoadPlay) -> Estimate:
    """The static answer at the batch that the load keeps running, with the times that were played in their place."""
    resolved, work = question.resolved, question.work
    from rooflinekit.estimation.loaded import load_memory, load_notes, load_result  # noqa: PLC0415 - as above

    asked, plan = found.asked, resolved.plan
    ttft, tpot, e2e = found.times()
    load = load_result(found)
    static = _answer(resolved, replace(work, batch=float(max(round(found.sequences), 1))))
    energy, power = found.token_energy, found.power
    fitted = plan.calibration is not None
    answered = replace(
        static,
        **_felt(plan, (ttft, tpot), e2e, found.output_rate),
        interval80=ends(found.times(0.8)[:2]) if fitted else None,
        doubt=load_doubts(found, found.reaches) if fitted else None,
        interval_tested=_tested(plan, "load"),
        prefill=StepResult.of(found.prompt, plan.system.accelerator),
        memory=MemoryResult.of(load_memory(found)),
        load=load,
        energy=None if energy is None or power is None else EnergyResult.of(energy, work, power),
        measure=benchmark_commands(plan, work, asked),
        inputs=static.inputs | {"concurrency": asked.users, "rate": asked.rate},
        warnings=(*load_notes(found), *resolved.warnings, *said(limit_remarks(plan, work))),
    )
    return _of(question, answered)


def _answer(resolved: Resolved, work: Workload) -> Estimate:
    predictor, plan = resolved.predictor, resolved.plan
    point = predictor.evaluate(work)
    accelerator, power = plan.system.accelerator, static_power(predictor, work, point)
    need, have = point.memory.needed_bytes, point.memory.available_bytes
    rate = float(point.output_rate(work.batch, work.osl))
    fitted = plan.calibration is not None
    return Estimate(
        **about(plan),
        inputs=inputs(plan, work),
        **_felt(plan, (point.ttft, point.tpot), point.e2e(work.osl), rate),
        interval80=ends((point.ttft.nearer(), point.tpot.nearer())) if fitted else None,
        doubt=static_doubts(point.prefill, point.decode) if fitted else None,
        interval_tested=_tested(plan, "static"),
        memory=MemoryResult.of(point.memory),
        prefill=StepResult.of(point.prefill, accelerator),
        decode=StepResult.of(point.decode, accelerator),
        speculation=SpeculationResult.of(predictor, work),
        load=None,
        energy=None if power is None else EnergyResult.of(static_energy(predictor, work, point), work, power),
        measure=benchmark_commands(plan, work),
        provenance=_provenance(plan),
        warnings=(*resolved.warnings, *said(limit_remarks(plan, work)), *said(memory_remarks(need, have))),
    )


def _tested(plan: Plan, kind: str) -> str | None:
    """Share of such intervals that held; None where fits of another accelerator, engine or format are used."""
    return plan.tested(kind) if evidence(plan) == "measured" else None


def _felt(plan: Plan, times: tuple[Time, Time], e2e: Numeric, rate: float) -> dict[str, Any]:
    """TTFT, TPOT and rates as an `Estimate` has them."""
    ttft, tpot = times
    return {
        "ttft_ms": float(ttft.expected) * 1e3,
        "tpot_ms": float(tpot.expected) * 1e3,
        "e2e_ms": float(e2e) * 1e3,
        "output_tok_s": rate,
        "output_tok_s_per_gpu": rate / plan.deployment.gpus,
        "output_tok_s_per_user": 1.0 / float(tpot.expected),
        "interval": ends(times) if plan.calibration else None,
        "bound": bounds(times),
    }


def bounds(times: tuple[Time, Time]) -> dict[str, float]:
    """Bounds of TTFT and TPOT [ms]."""
    return {key: 1e3 * float(time.bound) for key, time in zip(("ttft_ms", "tpot_ms"), times, strict=True)}


def ends(times: tuple[Time, Time]) -> dict[str, list[float]]:
    """Ends of the intervals of TTFT and TPOT [ms]."""
    return {
        key: [1e3 * float(time.low), 1e3 * float(time.high)]
        for key, time in zip(("ttft_ms", "tpot_ms"), times, strict=True)
    }


def inputs(plan: Plan, work: Workload) -> OwnKeywords:
    """Every input as it was understood: counts, degrees, and the formats after defaults."""
    precision, deployment, settings = plan.precision, plan.deployment, plan.deployment.settings

    def asked(*keys: str) -> OwnKeywords:
        return {key: getattr(deployment, key) for key in keys}

    return {
        **{key: int(float(getattr(work, key))) for key in ("batch", "isl", "osl", "cached")},
        "isl": int(float(work.isl)) - plan.image_tokens,
        **image_inputs(plan),
        "context": float(work.decode_context) if work.context is None else int(float(work.context)),
        **dict.fromkeys(("concurrency", "rate")),
        **asked(*DEGREES, "gpus", "ffn_gpus", "encoder_gpus", "system"),
        **asked("sequence_parallel", "all_reduce", "all_to_all", "two_batch"),
        "dispatch": None if deployment.dispatch is None else deployment.dispatch.value,
        **asked("redundant_experts", "skew", "power_cap", "clock", "lora_rank", "lora_adapters"),
        "weights": precision.weights_of(plan.model.matrices[-1]).value,
        "attention_weights": precision.weights_of("attention").value,
        "lm_head": precision.formats.lm_head.value,
        "activations": precision.activations_of(plan.model.matrices[-1]).value,
        "kv": precision.kv.value,
        "kv_policy": str(deployment.kv_policy),
        **asked("engine", "engine_version", "offload_layers", "offload_experts", "n_cpu_moe", "host_bandwidth"),
        **{key: getattr(settings, key) for key in SETTING_KEYS},
    }


def shown(plan: Plan, **counts: Any) -> OwnKeywords:
    """Counts that were asked for, and of the deployment what tells it from others: its split and formats."""
    degrees = {name: getattr(plan.deployment, name) for name in ("tp", "pp", "ep", "dp", "cp")}
    weights = getattr(plan.precision.formats, plan.model.matrices[-1]).value
    return {**counts, **degrees, "weights": weights, "kv": plan.precision.kv.value}


def image_inputs(plan: Plan) -> OwnKeywords:
    """The images of each prompt as they were understood."""
    images = plan.deployment.images
    size = f"{images.width}x{images.height}" if images else None
    return {"images": images.count if images else 0, "image_size": size, "image_tokens": plan.image_tokens}


@once
def _provenance(plan: Plan) -> Later[Provenance]:
    """Origins of the numbers behind the answer: a thousand, which few look at."""
    return Later(partial(_origins, plan))


def _origins(plan: Plan) -> list[Provenance]:
    model, calibration = plan.model, plan.calibration
    entries = [Provenance("model architecture", float(model.depth), "layers", model.source or model.origin)]
    accelerator = plan.system.accelerator
    entries += (*accelerator.provenance, *plan.engine.provenance)
    entries += power_provenance(accelerator.power) if accelerator.power else []
    if plan.deployment.offload_layers or plan.deployment.offload_experts or plan.deployment.n_cpu_moe:
        entries += plan.system.host.provenance
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
    return entries

"""Deployments that the sliders of a page reach: combinations of models, accelerators, degrees and formats."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from rooflinekit.decision.sensitivity.moves import MoveQuestion, Setting, changes_of
from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.estimation.options import Keywords, OwnKeywords
from rooflinekit.estimation.scenario import DEGREES
from rooflinekit.load.answer import Load
from rooflinekit.load.lengths import Fixed
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.power import plug_power
from rooflinekit.model.roofline import time_kernel
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.step import Plan
from rooflinekit.model.types.deployment import ENGINES, Deployment
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.errors import RooflinekitError, UnknownNameError
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.model import MixtureOfExperts, Model
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.workload import Workload
from rooflinekit.report.document import degrees
from rooflinekit.report.page.program import Program, Written
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.calibration import calibration_names
from rooflinekit.specs.calibration.evidence import evidence
from rooflinekit.specs.calibration.last_cache import last_cache
from rooflinekit.specs.engines import split_version

OWN = "own"
"""The checkpoint's format, and the cache format that goes with it."""

OTHER_GPUS = ("h100-sxm", "h200-sxm", "b200-sxm")
OTHER_MODELS = ("llama-3.1-8b", "qwen3-30b-a3b")
OTHER_ENGINES = ("vllm", "sglang", "trtllm")
"""Engines on offer beside that of the deployment.

These models are offered in their own formats alone; these engines with the model, the formats and the accelerator that
were asked for, where they have a calibration of it.
"""

APART = "\0"
"""Between the words of a combination: no name of a file has it."""

_PLAIN = (1, 2, 4, 8)
_SPLIT = (*DEGREES, "dispatch", "redundant_experts")
"""Options that a deployment with other degrees than those of tensor parallelism leaves out."""

_PROBE = (64.0, 32.0)  # context and prompt of the request that a deployment must hold to be offered


def split_of(deployment: Deployment) -> int | str:
    """Split of a deployment: tensor parallelism, or the degrees in words.

    >>> split_of(Deployment(tp=4)), split_of(Deployment(dp=8, ep=8))
    (4, 'ep8 dp8')
    """
    if deployment.gpus == deployment.tp and deployment.ep == 1:
        return deployment.tp
    return " ".join(degrees({name: getattr(deployment, name) for name in DEGREES}, DEGREES))


def _degrees(split: int | str) -> dict[str, int]:
    """The degrees that a split names."""
    if isinstance(split, int):
        return {"tp": split}
    return {name: int(count) for name, count in re.findall(r"([a-z]+)(\d+)", split)}


@dataclass(frozen=True)
class Asked:
    """A deployment by the words in which it was asked for, and what they came to."""

    model: str
    gpu: str
    scenario: Keywords  #: of the deployment, without workload
    calibration: str | None
    predictor: Predictor
    work: Workload
    load: Load | None

    @property
    def loads(self) -> tuple[str, ...]:
        """The kind of load that was asked for, `rate` or `users`; of a static batch at no fixed context, both."""
        if self.load is not None:
            return ("rate" if self.load.users is None else "users",)
        return () if self.work.context is not None else ("rate", "users")

    @property
    def process(self) -> dict[str, str]:
        """Arrivals of each kind of load, in words behind its number."""
        load = self.load or Load(Fixed(1), Fixed(1), rate=1.0)
        words = load.arrivals.split(", ", 2)
        means = f", {words[2]}" if len(words) > 2 else ""
        return {kind: means if kind == "users" else f", {words[1]}{means}" for kind in self.loads}

    @property
    def draft(self) -> Speculation | None:
        """Draft of the deployment."""
        return self.predictor.draft.choice if isinstance(self.predictor, SpeculativePredictor) else None

    @property
    def split(self) -> int | str:
        """Split of the model."""
        return split_of(self.plan.deployment)

    @property
    def plan(self) -> Plan:
        """The plan inside."""
        return self.predictor.plan

    @property
    def key(self) -> dict[str, Any]:
        """First values of the sliders."""
        plan, formats = self.plan, {name: self.scenario.get(name) for name in ("weights", "kv")}
        told = {name: OWN if text is None else parse_dtype(text).value for name, text in formats.items()}
        gpu, engine = plan.system.accelerator.name, plan.deployment.engine
        return {"model": plan.model.name, "gpu": gpu, "tp": self.split, **told, "engine": engine}


@dataclass(frozen=True)
class Offer:
    """A deployment to choose: its functions, its formats (weights, activations, cache), and places of its notes."""

    written: Written
    formats: tuple[str, ...]
    notes: tuple[int, ...]
    evidence: str
    l2: tuple[float, str] | None  #: rate of the last cache [B/s], told apart from the memory's by fits of these kernels
    seqs: tuple[int, int] | None  #: max_num_seqs as given, and those of all attention replicas
    reserves: bool  #: the engine admits a request where its whole answer has room
    moves: tuple[tuple[str, str, dict[str, Any]], ...]  #: name, caveat and changes of what advice tries


@dataclass
class Offers:
    """Deployments by combination (model, gpu, split, weights, kv, engine), what they share, why others are missing."""

    program: Program = field(default_factory=Program)
    plans: dict[str, Offer] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)  #: what `estimate` remarks, each once
    missing: dict[str, str] = field(default_factory=dict)
    models: dict[str, int | None] = field(default_factory=dict)  #: longest context by name
    gpus: dict[str, Plan] = field(default_factory=dict)  #: a plan on each, for its roofs
    formats: dict[str, dict[str, str]] = field(default_factory=dict)  #: what "own" is, by model


def make_offers(
    asked: Asked, models: Iterable[str] | None, gpus: Iterable[str] | None, engines: Iterable[str] | None = None
) -> Offers:
    """Write the deployment that was asked for and its neighbours.

    Raises InputError for unknown names.
    """
    offers, key = Offers(), asked.key
    offers.gpus[key["gpu"]] = asked.plan
    found = {asked.plan.model.name: (asked.model, asked.plan.model)}
    for name in OTHER_MODELS if models is None else models:
        model = load_model(name).value
        found.setdefault(model.name, (name, model))
    chips = {key["gpu"]: asked.gpu}
    for name in OTHER_GPUS if gpus is None else gpus:
        chips.setdefault(load_accelerator(name).value.name, name)
    others = [name for name in read_engines(engines) if name != key["engine"]]
    offers.models = {name: model.max_context for name, (_, model) in found.items()}
    weights, kv = [key["weights"], OWN, "fp8", "int4"], [key["kv"], OWN, "fp8"]
    if asked.plan.precision.kv.bytes <= 1:
        kv.append(asked.plan.precision.stream.value)
    for label, (given, model) in found.items():
        every = label == key["model"] or models is not None
        formats = [dict.fromkeys(some if every else (OWN,)) for some in (weights, kv)]
        for chip, *chosen in product(chips, _splits(asked, model), *formats, (key["engine"], *others)):
            combination = dict(zip(key, (label, chip, *chosen), strict=True))
            if chosen[-1] == key["engine"] or engines is not None or _beside(asked, combination):
                _offer(offers, asked, (given, chips[chip]), combination, kv)
    return offers


def _splits(asked: Asked, model: Model) -> list[int | str]:
    """Tensor parallelism, and the split that was asked for; of the model that was asked for also what advice tries."""
    own, deployment = asked.split, asked.plan.deployment
    changed = (replace(deployment, tp=tp) for tp in (2 * deployment.tp, deployment.tp // 2) if tp)
    near = [split_of(each) for each in changed if each.ep <= each.stage]
    most = max(_PLAIN[-1], own if isinstance(own, int) else 0)  # beyond, links between hosts take what others gain
    plain = sorted({*_PLAIN, *(split for split in (own, *near) if isinstance(split, int) and split <= most)})
    if model.name != asked.plan.model.name:
        return [*dict.fromkeys((*plain, own))]
    routed = any(isinstance(layer.ffn, MixtureOfExperts) for layer in model.layers)
    whole = [split_of(Deployment(dp=tp, ep=tp)) for tp in plain if tp > 1 and routed]
    return [*dict.fromkeys((*plain, own, *(split for split in near if isinstance(split, str)), *whole))]


def read_engines(engines: Iterable[str] | None) -> list[str]:
    """The engines to offer by their names; raises UnknownNameError for one that nobody knows."""
    found = [split_version(name)[0] for name in (OTHER_ENGINES if engines is None else engines)]
    for name in found:
        if name not in ENGINES:
            raise UnknownNameError("engine", name, ENGINES)
    return found


def _beside(asked: Asked, combination: Mapping[str, object]) -> bool:
    """True if another engine is offered unasked: it has a calibration there, and all but the split is as asked for."""
    same = all(combination[name] == asked.key[name] for name in ("model", "gpu", *_FORMATS))
    return same and f"{combination['gpu']}--{combination['engine']}" in calibration_names()


def _offer(offers: Offers, asked: Asked, names: tuple[str, str], chosen: OwnKeywords, caches: Collection[str]) -> None:
    """Write one combination, or say why it is missing; `names`: of model and accelerator, as they were asked for."""
    label = APART.join(map(str, chosen.values()))
    try:
        resolved = _resolved(asked, names, chosen)
        plan, predictor = resolved.plan, resolved.predictor
        offers.gpus.setdefault(chosen["gpu"], plan)
        stored = getattr(plan.precision.formats, plan.model.matrices[-1])
        formats = {"weights": stored.value, "kv": plan.precision.kv.value}
        if chosen["weights"] == chosen["kv"] == OWN:
            offers.formats.setdefault(chosen["model"], formats)
        if chosen != asked.key and float(predictor.memory.max_batch(*_PROBE)) < 1.0:
            weights = predictor.memory.stages[0].weight_bytes
            offers.missing[label] = f"does not fit: {weights / 1e9:.3g} GB of weights on each accelerator"
            return
        same = all(chosen[name] == asked.key[name] for name in _FORMATS)
        loads = asked.loads if same or asked.load is not None else ()
        written = offers.program.write(predictor, loads, asked.work.context is not None)
    except RooflinekitError as error:
        offers.missing[label] = str(error)
    else:
        activations = (plan.precision.inputs or plan.precision.stream).value
        stored_in = (formats["weights"], activations, formats["kv"])
        notes = tuple(offers.notes.setdefault(note, len(offers.notes)) for note in resolved.warnings)
        cache, most, reserves = last_cache(plan), plan.deployment.settings.max_num_seqs, plan.engine.memory.reserves
        l2 = None if cache is None else (cache.rate, cache.fitted_to)
        seqs = None if most is None else (most, most * plan.deployment.dp)
        moves = tuple(_moves(asked, names, plan, caches))
        offers.plans[label] = Offer(written, stored_in, notes, evidence(plan), l2, seqs, reserves, moves)


def _moves(
    asked: Asked, names: tuple[str, str], plan: Plan, caches: Collection[str]
) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Moves of advice on a deployment, in the words of the page's choices; `caches`: formats of the cache there."""
    setting = Setting(*names, plan.deployment, None, MoveQuestion(asked.work), asked.draft)
    for made, settings in changes_of(setting, plan):
        if settings:
            there = split_of(settings[0].deployment)
            formats = {key: value for key, value in made.changes.items() if key in _FORMATS}
            if formats.get("kv", OWN) not in caches:
                formats["kv"] = OWN
            yield made.move, made.caveat, formats or {"tp": there}


def _resolved(asked: Asked, names: tuple[str, str], chosen: OwnKeywords) -> Resolved:
    """A deployment as `estimate` understands it."""
    there, own = _degrees(chosen["tp"]), _degrees(asked.split)
    alike = there | {"tp": 1} == own | {"tp": 1}
    split = {} if there == own else there
    here = chosen["engine"] == asked.key["engine"]
    dropped = (() if there == own else ("tp",)) if alike else _SPLIT
    left = (*_FORMATS, *dropped, *(() if here else ("engine", "engine_version")))
    rest = {key: value for key, value in asked.scenario.items() if key not in left}
    formats = {key: chosen[key] for key in _FORMATS if chosen[key] != OWN}
    deployment = read_deployment({"engine": chosen["engine"], **rest, **split, **formats})
    same = here and chosen["gpu"] == asked.key["gpu"]  # others take the calibration that `estimate` would
    calibration = asked.calibration if same or asked.calibration == "none" else None
    return resolve(*names, deployment, calibration, asked.draft)


_FORMATS = ("weights", "kv")


def roofs(plan: Plan) -> dict[str, Any]:
    """An accelerator's roofs [FLOP/s, B/s], and what is said of it."""
    gpu: Accelerator = plan.system.accelerator
    price, law = gpu.price, gpu.power
    return {
        "title": gpu.title,
        "noun": gpu.noun,
        "bandwidth": float(gpu.memory_bandwidth),
        "peaks": {dtype.value: float(peak) for dtype, peak in gpu.peaks.items()},
        "link": float(plan.system.link_bandwidth) if plan.system.domain_size > 1 else 0.0,
        "link_kind": gpu.link_kind,
        "cache_bytes": float(gpu.l2_bytes),
        "power": law and [law.idle, law.limit, law.measured, float(plug_power(1.0, law.host))],
        "energy": energy_roof(plan),
        "price": price and [price.usd_per_hour, price.date, price.source],
    }


def energy_roof(plan: Plan) -> list[list[float]]:
    """FLOP per byte, and the least energy of a FLOP [J] at the datasheet's rates, memory and board included.

    The arch line of Choi et al. (IPDPS 2013); empty where the board's power is not known.
    """
    found = []
    for place in range(_ROOF_POINTS):
        intensity = 10.0 ** (-1.0 + 5.0 * place / (_ROOF_POINTS - 1))
        kernel = Kernel("roof", "gemm", 1, plan.precision.stream, intensity * _ROOF_BYTES, _ROOF_BYTES)
        joules = plan.energy(time_kernel(kernel, plan.system, None)).total
        found.append([float(f"{value:.4g}") for value in (intensity, joules / kernel.flops)])  # as a line is drawn
    return found if plan.system.accelerator.power else []


_ROOF_POINTS, _ROOF_BYTES = 26, 1e12  # five decades; so many bytes that a launch is nothing

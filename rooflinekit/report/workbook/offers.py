"""What the drop-downs of a workbook offer: every combination of models, accelerators, degrees and formats."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.estimation.notes import format_notes
from rooflinekit.model.coefficients import PlanCoefficients, plan_coefficients
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.step import Plan, make_plan
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.specs import load_accelerator, load_model

__all__ = ["OWN", "Choices", "Offer", "Offers", "Planned", "make_offers"]

OWN = "own"
"""In a drop-down of formats: what the checkpoint stores, and the cache format that goes with it."""


Combination: TypeAlias = tuple[str, str, int, str, str]
"""Model, accelerator, tensor parallel degree, formats of weights and cache."""


@dataclass(frozen=True)
class Choices:
    """What to offer: names of models and accelerators, degrees, formats (`own`: the checkpoint's)."""

    models: tuple[str, ...] = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3")
    gpus: tuple[str, ...] = ("h100-sxm", "h200-sxm", "b200-sxm")
    tp: tuple[int, ...] = (1, 2, 4, 8)
    weights: tuple[str, ...] = (OWN, "fp8")
    kv: tuple[str, ...] = (OWN, "fp8")
    engine: str = "vllm"
    calibration: str | None = None
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  #: that the batch sweep starts with
    contexts: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)  #: input lengths


@dataclass(frozen=True)
class Planned:
    """Values that the yellow cells start with; USD, tokens, ms, W."""

    batch: int = 32
    isl: int = 1024
    osl: int = 256
    users: int = 1000
    requests_per_hour: float = 12.0
    rate: float | None = None
    peak: float = 2.0
    headroom: float = 0.2
    ttft_ms: float = 1000.0
    tpot_ms: float = 50.0
    price: float | None = None
    capex: float = 35_000.0
    years: float = 4.0
    kwh_price: float = 0.10
    pue: float = 1.3


@dataclass(frozen=True)
class Offer:
    """One combination: its coefficients, or why there are none."""

    key: str
    exported: PlanCoefficients | None
    reason: str = ""


@dataclass(frozen=True)
class Offers:
    """All combinations, with names as resolved."""

    models: tuple[str, ...]
    gpus: tuple[Accelerator, ...]
    tp: tuple[int, ...]
    weights: tuple[str, ...]
    kv: tuple[str, ...]
    entries: tuple[Offer, ...]
    start: Combination  #: what the drop-downs start with
    contexts: dict[str, int | None] = field(default_factory=dict)  #: longest context by model
    calibrations: dict[str, str] = field(default_factory=dict)  #: name and hash by accelerator
    notes: tuple[str, ...] = ()


def make_offers(choices: Choices) -> Offers:
    """Export every combination.

    Raises InputError where a list is empty, a name or a format is unknown, or no combination can be run at all.
    """
    for name in ("models", "gpus", "tp", "weights", "kv"):
        if not getattr(choices, name):
            raise InputError(f"the workbook needs at least one of {name}")
    models = {found.value.name: (name, found) for name in choices.models for found in (load_model(name),)}
    gpus = {found.name: (name, found) for name in choices.gpus for found in (load_accelerator(name).value,)}
    degrees = tuple(dict.fromkeys(whole_number(tp, "tp") for tp in choices.tp))
    weight_formats, kv_formats = (
        tuple(dict.fromkeys(_format(text) for text in given)) for given in (choices.weights, choices.kv)
    )
    entries: list[Offer] = []
    runs: dict[Combination, Predictor] = {}
    around: dict[str, Plan] = {}
    notes = dict.fromkeys(text for _, found in models.values() for text in found.warnings)
    for combination in product(models, gpus, degrees, weight_formats, kv_formats):
        model, gpu, tp, weights, kv = combination
        key = "|".join(str(part) for part in combination)
        try:
            deployment = read_deployment({"tp": tp, "engine": choices.engine, **_formats(weights, kv)})
            if gpu not in around:
                first = resolve(models[model][0], gpus[gpu][0], deployment, choices.calibration)
                around[gpu] = first.plan
                notes.update(dict.fromkeys(first.warnings))
            near = around[gpu]
            plan = make_plan(models[model][1].value, deployment, near.system, near.calibration, near.engine)
            notes.update(dict.fromkeys(format_notes(plan)))
            runs[combination] = Predictor.of(plan)
            entries.append(Offer(key, plan_coefficients(runs[combination])))
        except RooflinekitError as error:
            entries.append(Offer(key, None, str(error)))
    if not runs:
        raise InputError(f"no combination can be run; the first: {entries[0].key}: {entries[0].reason}")
    contexts = {model: found.value.max_context for model, (_, found) in models.items()}
    calibrations = {gpu: _named(plan.calibration) for gpu, plan in around.items()}
    return Offers(tuple(models), tuple(found for _, found in gpus.values()), degrees, weight_formats, kv_formats,
                  tuple(entries), _start(runs), contexts, calibrations, tuple(notes))  # fmt: skip


def _start(runs: dict[Combination, Predictor]) -> Combination:
    """The first combination that holds one short request; else the first."""
    for combination, found in runs.items():
        if float(found.memory.max_batch(2048.0, 1024.0)) >= 1.0:
            return combination
    return next(iter(runs))


def _named(calibration: Calibration | None) -> str:
    return f"{calibration.name}, hash {calibration.hash}" if calibration else "none: the datasheet bound"


def _formats(weights: str, kv: str) -> dict[str, str]:
    return {name: text for name, text in (("weights", weights), ("kv", kv)) if text != OWN}


def _format(text: str) -> str:
    return OWN if text.strip().lower() == OWN else parse_dtype(text).value

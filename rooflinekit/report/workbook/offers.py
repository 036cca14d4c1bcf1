"""Offers of a workbook's drop-downs: deployments by model, accelerator, degrees and formats, traced as one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.objective import Objective
from rooflinekit.estimation.estimator import Resolved, ask
from rooflinekit.estimation.options import Keywords, OwnKeywords
from rooflinekit.estimation.traffic import read_load
from rooflinekit.load.answer import Load
from rooflinekit.model.graph.merge import Merge
from rooflinekit.model.graph.symbol import Pool, Symbol
from rooflinekit.model.graph.trace import flat
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan
from rooflinekit.model.types.batch import Batch, whole_number
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.time import ENDS, KernelTime
from rooflinekit.model.types.workload import Workload
from rooflinekit.report.workbook.loads import P95, Ladder, LoadPiece, play_ladders
from rooflinekit.specs import load_accelerator, load_model
from rooflinekit.specs.calibration.evidence import evidence


@dataclass(frozen=True)
class _Labelled(Plan):
    """A plan that tells which nodes are the times of which kernel."""

    labels: dict[Symbol, tuple[str, ...]] = field(kw_only=True, compare=False, repr=False)

    def time(self, batch: Batch, grows: bool | None = None) -> StepTime:
        return self._labelled(batch, super().time(batch, grows))

    def _bare(self, batch: Batch) -> StepTime:
        return self._labelled(batch, super()._bare(batch))

    def _labelled(self, batch: Batch, timed: StepTime) -> StepTime:
        step = "prefill" if batch.decoding is None else "decode" if batch.prefilling is None else "mixed step"
        for name, kernel in _kernels(timed):
            for part in ENDS:
                if isinstance(node := getattr(kernel, part), Symbol):
                    self.labels.setdefault(node, (step, name, part))
        return timed


def _kernels(step: StepTime) -> Iterable[tuple[str, KernelTime]]:
    """The kernels of a step by name; a second of the same name has a number."""
    seen: Counter[str] = Counter()
    for kernel in step.kernels:
        name = kernel.kernel.name
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name} {seen[name]}"), kernel


class WorkbookTracing:
    """Traces deployments, and remembers which nodes are the times of which kernel."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.labels: dict[Symbol, tuple[str, ...]] = {}

    def outputs(self, bare: Predictor) -> dict[str, Any]:
        """A static batch, by name."""
        plan = _Labelled(**{entry.name: getattr(bare.plan, entry.name) for entry in fields(Plan)}, labels=self.labels)
        predictor = replace(bare, plan=plan)
        given: OwnKeywords = {name: self.pool.variable(name) for name in ("isl", "osl", "cached", "batch")}
        work = Workload(**given | {"isl": plan.prompt(given["isl"])})
        found: dict[str, Any] = {"gpus": float(plan.deployment.gpus)}
        point = predictor.evaluate(work)
        for step, timed in {"prefill": point.prefill, "decode": point.decode}.items():
            for name, kernel in _kernels(timed):
                found |= {f"kernel.{step}.{name}.{key}": value for key, value in _work(kernel).items()}
        found |= dict(flat({"ttft": point.ttft, "tpot": point.tpot, "memory": point.memory}))
        found |= {f"memory.{name}": getattr(point.memory, name) for name in ("overhead_bytes", "total_bytes", "fits")}
        return found


def _work(kernel: KernelTime) -> dict[str, object]:
    """All launches of a kernel: work, bytes and times."""
    done, count = kernel.kernel, kernel.kernel.count
    streamed = done.weight_bytes + done.cache_bytes
    work = {"flops": count * done.flops, "streamed": count * streamed, "activations": count * done.activation_bytes}
    return {"count": float(count), **work, **{part: getattr(kernel, part) for part in ENDS}}


OWN = "own"
"""In a drop-down of formats: what the checkpoint stores, and the cache format that goes with it."""

DEGREES = ("tp", "pp", "ep", "dp", "cp", "microbatches")


@dataclass(frozen=True)
class Choices:
    """Choices on offer: names of models and accelerators, degrees, formats (`own`: the checkpoint's).

    scenario: what all deployments have in common, by the keywords of `estimate` (kv_policy, skew, draft ...).
    """

    models: tuple[str, ...] = ("llama-3.1-8b", "llama-3.3-70b", "gpt-oss-120b")
    gpus: tuple[str, ...] = ("h100-sxm", "h200-sxm", "b200-sxm")
    tp: tuple[int, ...] = (1, 2, 4, 8)
    weights: tuple[str, ...] = (OWN, "fp8")
    kv: tuple[str, ...] = (OWN,)
    engine: str = "vllm"
    calibration: str | None = None
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  #: that the batch sweep starts with
    contexts: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)  #: input lengths
    headrooms: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7)  #: that the table of fleets starts with
    pp: tuple[int, ...] = (1,)
    ep: tuple[int, ...] = (1,)
    dp: tuple[int, ...] = (1,)
    cp: tuple[int, ...] = (1,)
    microbatches: tuple[int, ...] = (1,)
    scenario: Keywords = field(default_factory=dict)


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
    prices: Mapping[str, float] = field(default_factory=dict)  #: an hour, by accelerator
    capex: float = 35_000.0
    years: float = 4.0
    kwh_price: float = 0.10
    pue: float = 1.3
    cached: int = 0
    burstiness: float = 1.0
    isl_cv: float = 0.0
    osl_cv: float = 0.0
    seed: int = 0
    confidence: float = 0.9  #: with which objectives hold, as of a plan

    @property
    def peak_rate(self) -> float:
        """Requests a second in the busiest hour."""
        own = self.users * self.requests_per_hour / 3600.0
        return (own if self.rate is None else self.rate) * self.peak

    def load(self, found: Resolved) -> Load:
        """Load of a deployment, to be played at its rates."""
        lengths = {key: getattr(self, key) for key in ("isl", "osl", "burstiness", "seed")}
        varied = {key: value for key in ("isl_cv", "osl_cv") if (value := getattr(self, key))}
        load = read_load(lengths | varied | {"rate": 1.0}, found.plan.image_tokens)
        assert load is not None
        return load

    def demand(self, found: Resolved) -> Demand:
        """The traffic of all replicas of a deployment, as `plan` has it."""
        load, rate = self.load(found), self.peak_rate / self.peak
        return Demand(rate, None, self.peak, load.isl, load.osl, load.burstiness, cached=float(self.cached))

    @property
    def slo(self) -> tuple[Objective, ...]:
        """Objectives of the yellow cells."""
        return Objective("ttft", P95, self.ttft_ms / 1e3), Objective("tpot", P95, self.tpot_ms / 1e3)

    def piece(self, found: Resolved, model: str, gpu: str, scenario: Keywords) -> LoadPiece:
        """A deployment that serves it."""
        return LoadPiece(model, gpu, scenario, self.demand(found), self.slo, self.headroom, self.confidence)


@dataclass(frozen=True)
class WorkbookOffer:
    """One combination: what its formulas give as nodes of the common graph, or why it cannot be run."""

    key: str
    traced: Mapping[str, Any] | None
    reason: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class Rival:
    """Start of an accelerator in the comparison: on the split that serves the peak with the fewest."""

    gpu: Accelerator
    tp: int
    usd: float | None  #: of an accelerator and hour, where the planner gave it


@dataclass(frozen=True)
class WorkbookOffers:
    """All combinations, with names as resolved, and their graphs as one.

    lists: what each drop-down offers, in the order in which their choices make the key of an offer; start: what they
    start with. outputs: by name. asked: names and scenario of those that can be run. ladders: their loads, once played.
    """

    lists: Mapping[str, tuple[str | int, ...]]
    start: tuple[str | int, ...]
    rivals: tuple[Rival, ...]
    entries: tuple[WorkbookOffer, ...]
    outputs: Mapping[str, Any]
    merge: Merge
    contexts: Mapping[str, int | None]  #: longest by model
    calibrations: Mapping[str, str]  #: name and hash by accelerator
    notes: tuple[str, ...]
    runs: Mapping[tuple[str | int, ...], Resolved]
    asked: Mapping[tuple[str | int, ...], tuple[str, str, Keywords]]
    ladders: Mapping[str, Ladder] = field(default_factory=dict)

    def played(self, planned: Planned, workers: int = 1) -> WorkbookOffers:
        """The offers with all loads played, each accelerator on the split that serves the peak on the fewest."""
        Workload.checked(planned.batch, planned.isl, planned.osl, planned.cached)
        pieces = [planned.piece(found, *self.asked[key]) for key, found in self.runs.items()]
        found = replace(self, ladders=dict(zip(map(_key, self.runs), play_ladders(pieces, workers), strict=True)))
        return replace(found, rivals=tuple(map(found._rival, self.rivals)))

    def _rival(self, rival: Rival) -> Rival:
        """All but the split is as at the start."""
        own, tp, best = 1, 2, (math.inf, rival.tp)
        for key, found in self.runs.items():
            if key != tuple({own: rival.gpu.name, tp: key[tp]}.get(at, word) for at, word in enumerate(self.start)):
                continue
            replicas = self.ladders[_key(key)].working or math.inf
            best = min(best, (replicas * found.plan.deployment.gpus, int(key[tp])), key=lambda each: each[0])
        return replace(rival, tp=best[1])

    def ladder(self, entry: WorkbookOffer) -> Ladder:
        """Played loads of a combination; nothing of one that cannot be run."""
        return self.ladders.get(entry.key, Ladder())

    @property
    def gpus(self) -> tuple[Accelerator, ...]:
        """The accelerators."""
        return tuple(rival.gpu for rival in self.rivals)

    @property
    def run(self) -> list[WorkbookOffer]:
        """Offers that can be run: the parameters of the graph have a value for each."""
        return [entry for entry in self.entries if entry.traced is not None]


def make_offers(choices: Choices, planned: Planned) -> WorkbookOffers:
    """Trace every combination, and make one graph of all; it starts with one that holds what is planned."""
    for name in ("models", "gpus", *DEGREES, "weights", "kv"):
        if not getattr(choices, name):
            raise InputError(f"the workbook needs at least one of {name}")
    models = {found.value.name: (name, found) for name in choices.models for found in (load_model(name),)}
    gpus = {found.name: (name, found) for name in choices.gpus for found in (load_accelerator(name).value,)}
    degrees = {name: tuple(dict.fromkeys(whole_number(n, name) for n in getattr(choices, name))) for name in DEGREES}
    lists: dict[str, tuple[str | int, ...]] = {"model": tuple(models), "gpu": tuple(gpus)}
    lists |= {name: values for name, values in degrees.items() if name == "tp" or values != (1,)}
    lists |= {name: tuple(dict.fromkeys(map(_format, getattr(choices, name)))) for name in ("weights", "kv")}
    common = {**choices.scenario, "engine": choices.engine, "calibration": choices.calibration}
    tracing, entries = WorkbookTracing(), list[WorkbookOffer]()
    runs: dict[tuple[str | int, ...], Resolved] = {}
    names: dict[tuple[str | int, ...], tuple[str, str, Mapping[str, Any]]] = {}
    notes = dict.fromkeys(text for _, found in models.values() for text in found.warnings)
    for combination in product(*lists.values()):
        key = _key(combination)
        named = dict(zip(lists, combination, strict=True))
        model, gpu = models[str(named.pop("model"))][0], gpus[str(named.pop("gpu"))][0]
        try:
            scenario = {**common, **{name: value for name, value in named.items() if value != OWN}}
            resolved = ask(model, gpu, scenario).resolved
            entries.append(WorkbookOffer(key, tracing.outputs(resolved.predictor), evidence=evidence(resolved.plan)))
        except RooflinekitError as error:
            entries.append(WorkbookOffer(key, None, str(error)))
            continue
        notes.update(dict.fromkeys(resolved.warnings))
        runs[combination], names[combination] = resolved, (model, gpu, scenario)
    if not runs:
        raise InputError(f"no combination can be run; the first: {entries[0].key}: {entries[0].reason}")
    merge = Merge(tracing.pool, tracing.labels)
    graphs = [entry.traced for entry in entries if entry.traced is not None]
    fitted = {found.plan.system.accelerator.name: found.plan.calibration for found in runs.values()}
    start = _start(runs, planned)
    return WorkbookOffers(
        lists=lists,
        start=start,
        rivals=tuple(Rival(found, int(start[2]), planned.prices.get(name)) for name, (_, found) in gpus.items()),
        runs=runs,
        asked=names,
        entries=tuple(entries),
        outputs={
            name: merge.merged(tuple(graph.get(name, 0.0 if name.endswith(".count") else None) for graph in graphs))
            for name in dict.fromkeys(name for graph in graphs for name in graph)
        },
        merge=merge,
        contexts={model: found.value.max_context for model, (_, found) in models.items()},
        calibrations={
            gpu: f"{each.name}, hash {each.hash}" if each else "none: the datasheet bound"
            for gpu, each in fitted.items()
        },
        notes=tuple(notes),
    )


def _start(runs: Mapping[tuple[str | int, ...], Resolved], planned: Planned) -> tuple[str | int, ...]:
    """The first combination that holds the batch; else that which holds the most."""

    def room_of(found: Resolved) -> float:
        isl = planned.isl + found.plan.image_tokens
        return float(found.predictor.memory.max_batch(float(isl + planned.osl), float(isl - planned.cached)))

    room = {key: room_of(found) for key, found in runs.items()}
    return next((key for key, most in room.items() if most >= planned.batch), max(room, key=lambda key: room[key]))


def _key(combination: tuple[str | int, ...]) -> str:
    return "|".join(map(str, combination))


def _format(text: str) -> str:
    return OWN if text.strip().lower() == OWN else parse_dtype(text).value

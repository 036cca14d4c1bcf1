"""What the drop-downs of a workbook offer: deployments by model, accelerator, degrees and formats, traced as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

from rooflinekit.estimation.estimator import Resolved, ask
from rooflinekit.model.graph.merge import Merge
from rooflinekit.model.graph.symbol import Pool, Symbol
from rooflinekit.model.graph.trace import flat
from rooflinekit.model.operating_point import Interval, Predictor
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan
from rooflinekit.model.timing.calibrated import Calibration
from rooflinekit.model.traffic.closed_form import Traffic, open_loop
from rooflinekit.model.traffic.mixing import InFlight, Shared, shared_times, slots
from rooflinekit.model.types.batch import Batch, whole_number
from rooflinekit.model.types.dtype import parse_dtype
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.model.types.hardware import Accelerator
from rooflinekit.model.types.numeric import Numeric, maximum
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator, load_model

__all__ = ["DEGREES", "OWN", "Choices", "Offer", "Offers", "Planned", "make_offers"]

OWN = "own"
"""In a drop-down of formats: what the checkpoint stores, and the cache format that goes with it."""

DEGREES = {
    "tp": "Tensor parallel degree", "pp": "Pipeline parallel degree", "ep": "Expert parallel degree",
    "dp": "Attention data parallel degree", "cp": "Context parallel degree", "microbatches": "Microbatches",
}  # fmt: skip


@dataclass(frozen=True)
class Choices:
    """What to offer: names of models and accelerators, degrees, formats (`own`: the checkpoint's).

    scenario: what all deployments have in common, by the keywords of `estimate` (kv_policy, skew, draft ...).
    """

    models: tuple[str, ...] = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3")
    gpus: tuple[str, ...] = ("h100-sxm", "h200-sxm", "b200-sxm")
    tp: tuple[int, ...] = (1, 2, 4, 8)
    pp: tuple[int, ...] = (1,)
    ep: tuple[int, ...] = (1,)
    dp: tuple[int, ...] = (1,)
    cp: tuple[int, ...] = (1,)
    microbatches: tuple[int, ...] = (1,)
    weights: tuple[str, ...] = (OWN, "fp8")
    kv: tuple[str, ...] = (OWN, "fp8")
    engine: str = "vllm"
    calibration: str | None = None
    scenario: Mapping[str, Any] = field(default_factory=dict)
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
    cached: int = 0
    burstiness: float = 1.0
    isl_cv: float = 0.0
    osl_cv: float = 0.0


@dataclass(frozen=True)
class Offer:
    """One combination: what its formulas give as nodes of the common graph, or why it cannot be run."""

    key: str
    traced: Mapping[str, Any] | None
    reason: str = ""


@dataclass(frozen=True)
class Offers:
    """All combinations, with names as resolved, and their graphs as one.

    lists: what each drop-down offers, in the order in which their choices make the key of an offer; start: what they
    start with. outputs: by name, of which those of a load stand on `call` nodes for the times that requests share.
    """

    lists: Mapping[str, tuple[str | int, ...]]
    start: tuple[str | int, ...]
    gpus: tuple[Accelerator, ...]
    entries: tuple[Offer, ...]
    outputs: Mapping[str, Any]
    merge: Merge
    contexts: Mapping[str, int | None]  #: longest by model
    calibrations: Mapping[str, str]  #: name and hash by accelerator
    notes: tuple[str, ...]

    @property
    def run(self) -> list[Offer]:
        """Those that can be run: the parameters of the graph have a value for each."""
        return [entry for entry in self.entries if entry.traced is not None]


def make_offers(choices: Choices) -> Offers:
    """Trace every combination, and make one graph of all.

    Raises InputError where a list is empty, a name or a format is unknown, or no combination can be run at all.
    """
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
    tracing, entries, starts, calibrations = _Tracing(Pool()), [], {}, {}
    notes = dict.fromkeys(text for _, found in models.values() for text in found.warnings)
    for combination in product(*lists.values()):
        key = "|".join(map(str, combination))
        named = dict(zip(lists, combination, strict=True))
        model, gpu = models[str(named.pop("model"))][0], gpus[str(named.pop("gpu"))][0]
        try:
            asked = {name: value for name, value in named.items() if value != OWN}
            resolved = ask(model, gpu, {**common, **asked}).resolved
            entries.append(Offer(key, tracing.outputs(resolved.predictor)))
        except RooflinekitError as error:
            entries.append(Offer(key, None, str(error)))
            continue
        notes.update(dict.fromkeys(resolved.warnings))
        calibrations[resolved.plan.system.accelerator.name] = _named(resolved.plan.calibration)
        starts.setdefault(combination, resolved)
    if not starts:
        raise InputError(f"no combination can be run; the first: {entries[0].key}: {entries[0].reason}")
    merge = Merge(tracing.pool, tracing.labels)
    graphs = [entry.traced for entry in entries if entry.traced is not None]
    return Offers(
        lists, _start(starts), tuple(found for _, found in gpus.values()), tuple(entries), _merged(merge, graphs), merge,
        {model: found.value.max_context for model, (_, found) in models.items()}, calibrations, tuple(notes),
    )  # fmt: skip


def _merged(merge: Merge, graphs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for graph in graphs for name in graph)
    absent = {name: 0.0 if name.endswith(".count") else None for name in names}
    return {name: merge.merged(tuple(graph.get(name, absent[name]) for graph in graphs)) for name in names}


def _start(runs: Mapping[tuple[str | int, ...], Resolved]) -> tuple[str | int, ...]:
    """The first combination that holds one short request; else the first."""
    for combination, found in runs.items():
        if float(found.predictor.memory.max_batch(2048.0, 1024.0)) >= 1.0:
            return combination
    return next(iter(runs))


def _named(calibration: Calibration | None) -> str:
    return f"{calibration.name}, hash {calibration.hash}" if calibration else "none: the datasheet bound"


def _format(text: str) -> str:
    return OWN if text.strip().lower() == OWN else parse_dtype(text).value


class _Labelled(Plan):
    """A plan that tells which nodes are the times of which kernel."""

    labels: dict[Symbol, tuple[str, ...]] | None = None

    def time(self, batch: Batch, grows: bool | None = None) -> StepTime:
        """Time a step, and label its kernels."""
        found = super().time(batch, grows)
        step = "prefill" if batch.decoding is None else "decode" if batch.prefilling is None else "mixed step"
        for name, kernel in _kernels(found):
            for part in ("time", "bound", "low", "high"):
                node = getattr(kernel, part)
                if isinstance(node, Symbol) and self.labels is not None:
                    self.labels.setdefault(node, (step, name, part))
        return found


def _kernels(step: StepTime) -> Iterable[tuple[str, Any]]:
    """The kernels of a step by name; a second of the same name has a number."""
    seen: Counter[str] = Counter()
    for kernel in step.kernels:
        name = kernel.kernel.name
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name} {seen[name]}"), kernel


class _Tracing:
    """One pool for the graphs of all deployments."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.labels: dict[Symbol, tuple[str, ...]] = {}

    def _labelled(self, predictor: Predictor) -> Predictor:
        plan = _Labelled(**{entry.name: getattr(predictor.plan, entry.name) for entry in fields(Plan)})
        object.__setattr__(plan, "labels", self.labels)
        return replace(predictor, plan=plan)

    def outputs(self, bare: Predictor) -> dict[str, Any]:
        """A static batch, the times that requests share, and the deployment under load."""
        predictor = self._labelled(bare)
        batch, isl, osl, cached, users = (
            self.pool.variable(name) for name in ("batch", "isl", "osl", "cached", "users")
        )
        work = Workload(batch, isl, osl, cached)
        steps = {"prefill": predictor.plan.time(predictor.prefill_batch(work)), "decode": predictor.decode_step(work)}
        found: dict[str, Any] = {"gpus": float(predictor.plan.deployment.gpus)}
        for step, timed in steps.items():
            for name, kernel in _kernels(timed):
                count = kernel.kernel.count
                streamed = kernel.kernel.weight_bytes + kernel.kernel.kv_read_bytes + kernel.kernel.kv_write_bytes
                values = {"count": float(count), "flops": count * kernel.kernel.flops, "streamed": count * streamed,
                          "activations": count * kernel.kernel.activation_bytes}  # fmt: skip
                values |= {part: getattr(kernel, part) for part in ("bound", "time", "low", "high")}
                found |= {f"kernel.{step}.{name}.{key}": value for key, value in values.items()}
        point = predictor.evaluate(work)
        found |= dict(flat(point))
        found |= {f"memory.{name}": getattr(point.memory, name) for name in ("overhead_bytes", "total_bytes", "fits")}
        shared = shared_times(predictor, InFlight(users, isl, osl, cached))
        found |= {f"shared.{name}": value for name, value in flat(shared)}
        return found | self._load(predictor, shared)

    def _load(self, predictor: Predictor, shared: Shared) -> dict[str, Any]:
        """The open loop of the command line, in which the shared times stand for themselves."""
        rate, isl, osl, cached, most, isl_cv, osl_cv, burstiness = (
            self.pool.variable(name)
            for name in ("rate", "isl", "osl", "cached", "most", "isl_cv", "osl_cv", "burstiness")
        )
        traffic = Traffic(isl, osl, isl_cv, osl_cv, burstiness, most=most, cached=cached)

        def known(running: Numeric) -> Shared:
            users = self.pool.lifted(maximum(running, 1.0))
            times = {
                name: Interval(
                    *(self.pool.node("call", f"shared.{name}.{part.name}", users) for part in fields(Interval))
                )
                for name in ("step", "share", "first")
            }
            return replace(shared, **times)

        room = slots(predictor, isl, osl, most)
        if not isinstance(room, Symbol) and room < 1.0:
            return {"slots": room}
        loaded = open_loop(predictor, rate, traffic, known)
        return {"slots": room, **{f"load.{name}": value for name, value in flat(loaded)}}

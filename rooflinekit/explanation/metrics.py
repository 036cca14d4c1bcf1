"""Metrics of an answer, traced from the question down to the datasheet.

The numbers that a deployment is made of are leaves of the explanation, each with its source and its spread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple, TypeVar, cast

from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.estimation.results import Estimate
from rooflinekit.explanation.played import PlayedLoad
from rooflinekit.load.answer import LoadPlay
from rooflinekit.load.played import PERCENTILES
from rooflinekit.load.scene import kv_capacity_tokens
from rooflinekit.model.blocks import model_operations
from rooflinekit.model.cache import cache_law
from rooflinekit.model.capacity import RULE, Memory, MemoryModel, Stage
from rooflinekit.model.footprint import placed_operations
from rooflinekit.model.graph import Pool, Quantity, Symbol, fact, named
from rooflinekit.model.kernels.operation import Operation, Weights
from rooflinekit.model.operating_point import OperatingPoint, Predictor
from rooflinekit.model.parameter_count import MODULES, count_parameters
from rooflinekit.model.precision import Precision
from rooflinekit.model.roofline import StepTime, peak_time, stream_time
from rooflinekit.model.serving.energy import LoadPower, load_power, run_power, static_energy, token_energy
from rooflinekit.model.serving.flight import InFlight, prefill_share
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.step import Plan
from rooflinekit.model.timing.calibrated import FamilyFit
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.errors import InputError, UnknownNameError, nearest
from rooflinekit.model.types.hardware import Accelerator, Provenance, System
from rooflinekit.model.types.kv_policy import FULL, KVPolicy
from rooflinekit.model.types.model import Layer
from rooflinekit.model.types.numeric import Numeric, maximum
from rooflinekit.model.types.time import KernelTime
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs.files import table_of

D = TypeVar("D")
_NAMES: dict[str, dict[str, str]] = table_of(__file__)
_RESIDENT = "rooflinekit.model.footprint.resident_bytes; " + RULE
_PEAK = "rooflinekit.model.footprint.activation_peak; " + RULE
_PLACE = "layers that have it, over the stages"
_STATE = Quantity("state", "elements of state of a sequence here")


@dataclass(frozen=True)
class Leaves:
    """Puts leaves of one graph in place of numbers."""

    pool: Pool

    def told(self, thing: D, source: Callable[[str], str], spread: Mapping[str, float] | None = None) -> D:
        """Make a leaf for every number whose field has a name; a 0 is no leaf."""
        changed: dict[str, object] = {}
        for entry in fields(thing):  # type: ignore[arg-type]
            value, quantity = getattr(thing, entry.name), entry.metadata.get("quantity")
            if isinstance(value, (int, float)) and quantity and value:
                std = (spread or {}).get(entry.name)
                changed[entry.name] = self._fact(value, replace(quantity, source=source(entry.name), spread=std))
            elif is_dataclass(value) and any("quantity" in inner.metadata for inner in fields(value)):
                changed[entry.name] = self.told(value, source)
            elif entry.name == "parts":
                changed["parts"] = tuple((name, self._columns(name, prod(axes), source)) for name, *axes in value)
            elif entry.name == "axes":
                changed["axes"] = (self._fact(prod(value), replace(_STATE, source=source("axes"))),)
        return replace(thing, **changed)  # type: ignore[type-var]

    def _columns(self, name: str, size: float, source: Callable[[str], str]) -> Numeric:
        words = re.findall(r"[^\W_]+", name.lower())  # a symbol is one word
        called = Quantity("_".join(words), f"columns of {' '.join(words)}", "", source("parts"))
        return size and self._fact(size, called)

    def _fact(self, value: float, quantity: Quantity) -> Any:
        return self.pool.fact(value, quantity)

    def predictor(self, predictor: Predictor, memory: MemoryModel) -> Predictor:
        """The predictor's plans with leaves, and this memory model."""
        plan = self.plan(predictor.plan)
        if not isinstance(predictor, SpeculativePredictor):
            return replace(predictor, plan=plan, memory=memory)
        plain, draft = replace(predictor.plain, plan=plan, memory=memory), predictor.draft
        first, later = (each and self.plan(each) for each in (draft.first, draft.later))
        return replace(predictor, plan=plan, memory=memory, plain=plain, draft=replace(draft, first=first, later=later))

    def plan(self, plan: Plan) -> Plan:
        """Rates, fitted parameters, costs of the engine, and the sizes of every operation."""
        engine, calibration = plan.engine, plan.calibration

        def source(name: str) -> str:
            return _cited(engine.provenance, f"engine.{name}", f"profile of {engine.title}")

        if calibration is not None:
            families = {name: self._fit(fit, calibration.name) for name, fit in calibration.families.items()}
            calibration = replace(calibration, families=families)
        return replace(
            plan,
            system=self.system(plan.system),
            calibration=calibration,
            engine=replace(engine, costs=self.told(engine.costs, source, engine.costs.spread)),
            operations=self.operations(plan, plan.operations),
        )

    def system(self, system: System) -> System:
        """Datasheet rates of the accelerator and of its links."""
        gpu, entries = system.accelerator, (*system.provenance, *system.accelerator.provenance)

        def source(name: str) -> str:
            return _cited(entries, _NAMES["datasheet"].get(name, name), f"file of {gpu.name}")

        peaks = {
            dtype: self._fact(
                rate, Quantity("P", f"dense {dtype} peak of {gpu.name}", "FLOP/s", source(f"compute.dense.{dtype}"))
            )
            for dtype, rate in gpu.peaks.items()
        }
        told = replace(self.told(gpu, source), peaks=peaks)
        if (law := gpu.power) is not None:  # watts and joules of a board, each from the law's own source
            flop = {
                dtype: self._fact(each, Quantity("e_f", f"energy of a FLOP in {dtype}", "J/FLOP", law.source))
                for dtype, each in law.flop.items()
            }
            told = replace(told, power=replace(self.told(law, lambda _: law.source), flop=flop))
        return replace(self.told(system, source), accelerator=told)

    def _fit(self, fit: FamilyFit, run: str) -> FamilyFit:
        def source(name: str) -> str:
            held = "; held: the data could not pin it" if name in fit.frozen else ""
            return f"{fit.source}; calibration {run}{held}"

        beyond = None if fit.beyond is None else replace(fit.beyond, fit=self._fit(fit.beyond.fit, run))
        return replace(fit, form=self.told(fit.form, source, fit.spread), beyond=beyond)

    def operations(self, plan: Plan, counts: Mapping[Operation, int]) -> dict[Operation, int]:
        """Operations with the sizes of the model as leaves, and how often each is launched."""
        launches = Quantity("n", "launches in the step", "", _PLACE)

        def source(name: str) -> str:
            return "your input" if name == "budget" else _config(plan)

        return {self.told(op, source): self._fact(n, launches) for op, n in counts.items()}

    # --- memory ------------------------------------------------------------------------------------------------------

    def memory(self, plan: Plan, memory: MemoryModel, place: int) -> MemoryModel:
        """Leaves of the engine's memory rule; weights and cache of stage `place` down to the shapes."""

        def source(name: str) -> str:
            several = "several" if plan.deployment.gpus > 1 else "one"
            keys = {
                "context": f"memory.context.{several}",
                "non_torch": f"memory.non_torch.{several}",
                "graphs": "memory.graphs",
                "fraction": "memory.fraction",
            }
            return _cited(plan.engine.provenance, f"engine.{keys.get(name, name)}", RULE)

        capacity = _cited(plan.system.accelerator.provenance, "memory.capacity", RULE)
        told = self.told(replace(memory, peak=self.told(memory.peak, lambda _: _PEAK)), source)
        shown: Any = told.capacity_bytes
        return replace(
            told,
            capacity_bytes=self._fact(float(shown), replace(shown.arguments[1], source=capacity)),
            stages=tuple(
                self._stage(plan, stage, n, n == place and not stage.beside) for n, stage in enumerate(memory.stages)
            ),
        )

    def _stage(self, plan: Plan, stage: Stage, number: int, whole: bool) -> Stage:
        if not whole:
            other = Quantity("weights", f"resident weights of stage {number + 1}", "B", _RESIDENT)
            return replace(stage, weight_bytes=self._fact(stage.weight_bytes, other))
        deployment, model = plan.deployment, plan.model
        held = placed_operations(plan, number)
        modules = list(self.modules(plan, held, lambda weights: weights.bytes, "B"))
        rest = stage.weight_bytes - float(sum(modules, 0.0))
        storage = Quantity("storage", "besides: padding, allocator blocks, tables, scales, a draft", "B", _RESIDENT)
        weights = named(sum(modules, 0.0) + self._fact(rest, storage), "weights", "resident weights", "B")
        layers = model.stage_layers(number, deployment.pp)
        slopes: list[Any] = []
        for cap, slope in stage.layout.law.slopes:
            counted = self.cache_per_token(plan, layers, deployment.tp, deployment.kv_policy)
            same = len(stage.layout.law.slopes) == 1 and abs(float(counted) - slope) <= 1e-12 * slope
            laid = Quantity("kv", "bytes that a token adds here, as the engine lays them out in blocks", "B", _LAID)
            kept = cap if cap == math.inf else self._fact(cap, Quantity("cap", _KEPT, "", _config(plan)))
            slopes.append((kept, counted if same else self._fact(slope, laid)))
        law = replace(stage.layout.law, slopes=tuple(slopes))
        return replace(stage, weight_bytes=weights, layout=replace(stage.layout, law=law))

    def modules(
        self, plan: Plan, counts: Mapping[Operation, int], size: Callable[[Weights], Numeric], unit: str
    ) -> Iterable[Numeric]:
        """Weights of each module as a line: elements or bytes, over its operations."""
        found: dict[str, list[Numeric]] = {module: [] for module in MODULES}
        times = Quantity("n", "times on this accelerator" if unit else "times in the model")
        for op, count in counts.items():
            told = self.told(op, lambda _: _config(plan))
            name = str(getattr(op, "name", None) or re.sub(r"(?<!^)(?=[A-Z])", "_", type(op).__name__).lower())
            for weights in told.weights:
                amount = self._fact(count, times) * size(weights)
                found[weights.module].append(named(amount, name, f"{name} in {weights.dtype.value}", unit))
        for module, parts in found.items():
            if parts:
                yield named(sum(parts, 0.0), module, f"weights of {module.replace('_', ' ')}", unit)

    def cache_per_token(self, plan: Plan, layers: Iterable[Layer], tp: int = 1, policy: KVPolicy = FULL) -> Numeric:
        """Bytes that one token adds to the cache of these layers on one of `tp` accelerators [B]."""
        told: dict[Layer, Layer] = {}
        for layer in layers:
            if layer not in told:
                told[layer] = replace(layer, mixer=layer.mixer and self.told(layer.mixer, lambda _: _config(plan)))
        law = cache_law([told[layer] for layer in layers], plan.precision.kv, tp, 1, plan.precision.index, policy)
        return named(law.bytes_per_token, "kv", "bytes that one token adds to the cache", "B")


_KEPT = "tokens that layers with a window or chunks keep at most"
_LAID = "rooflinekit.model.cache.cache_layout; " + RULE


def _config(plan: Plan) -> str:
    return f"config of {plan.model.name}: {plan.model.source or plan.model.origin}"


def _cited(entries: Iterable[Provenance], quantity: str, otherwise: str) -> str:
    for entry in entries:
        if entry.quantity.split(" ")[0] == quantity:
            return f"{entry.source} [{entry.confidence}]" if entry.confidence else entry.source
    return otherwise


_ASKED = "your input"


@dataclass(frozen=True)
class Case:
    """A case to explain: what `estimate` answered, the predictor behind it, and the load as it was played."""

    predictor: Predictor
    work: Workload
    answer: Estimate
    played: LoadPlay | None = None

    @property
    def held(self) -> tuple[Numeric, Numeric, Numeric]:
        """Sequences, tokens of each and new tokens of a prompt, as the memory of the answer has them."""
        if self.played is not None:
            isl = self.played.asked.isl.mean
            return self.played.held, isl + self.played.asked.osl.mean / 2.0, isl
        work = self.work
        return work.batch, work.longest_context, work.isl - work.cached


class Traced:
    """A case whose numbers are symbols with values; a 0 stays a number, so that what is absent is not explained."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.plan: Plan = case.predictor.plan
        self._pool = Pool()
        self.leaves = Leaves(self._pool)

    def inputs(self, of: object, *names: str) -> OwnKeywords:
        """Numbers of the question, as variables."""
        found = {name: getattr(of, name) for name in names}
        for name, value in found.items():
            if value is not None and value != 0.0 and not math.isinf(value):
                self._pool.values[name] = float(value)
                quantity = Quantity(name, _NAMES["inputs"][name], "1/s" if name == "rate" else "", _ASKED)
                found[name] = self._pool.variable(name, quantity)
        return found

    def line(self, output: Numeric, symbol: str, unit: str) -> Symbol:
        """The traced symbol; a 0 that nothing leads to is a line of its own."""
        if isinstance(output, Symbol):
            return output
        return self._pool.fact(float(output), Quantity(symbol, "nothing of this kind", unit, "no kernel, no number"))

    @cached_property
    def predictor(self) -> Predictor:
        """With leaves."""
        return self.leaves.predictor(self.case.predictor, self.memory_model)

    @cached_property
    def work(self) -> Workload:
        """The workload; under load, as many sequences as decode together."""
        together = Quantity("batch", "sequences that decode in a step, in the mean", "", self.loop)
        work = self.case.work
        batch: Any = self._pool.fact(float(work.batch), together)
        if self.case.played is None:
            batch = self.inputs(work, "batch")["batch"]
        return Workload(batch, **self.inputs(work, "isl", "osl", "cached", "context"))

    @cached_property
    def point(self) -> OperatingPoint:
        """The static batch."""
        return self.predictor.evaluate(self.work)

    # --- a load that was played --------------------------------------------------------------------------------------

    @cached_property
    def load(self) -> PlayedLoad:
        """The load as it was played; raises InputError where none is asked for."""
        if self.case.played is None:
            raise InputError("not a load; add --concurrency or --rate")
        return PlayedLoad(self, self.case.played)

    @property
    def loop(self) -> str:
        """Origin of a number that was played."""
        if self.case.played is None:
            return ""
        asked = self.case.played.asked
        first = f", the first {asked.filling:,} not counted" if asked.filling else ""
        return f"{asked.count:,} requests played{first}; docs/under-load.md"

    def told(self, value: float, symbol: str, meaning: str, unit: str = "s", source: str | None = None) -> Numeric:
        """A number of the loop, or of another source, as a leaf; a 0 stays a number."""
        quantity = Quantity(symbol, meaning, unit, self.loop if source is None else source)
        return cast("Numeric", self._pool.fact(value, quantity)) if value else 0.0

    def stated(self, value: float, formula: Numeric, symbol: str, meaning: str, unit: str = "s") -> Numeric:
        """The number that `estimate` states, to its last digit, and the formula that gives it."""
        quantity = Quantity(symbol, meaning, unit)
        if not isinstance(formula, Symbol):
            return cast("Numeric", self._pool.fact(value, replace(quantity, source=self.loop)))
        return cast("Numeric", self._pool.node("named", formula, quantity, value=value))

    @cached_property
    def memory_model(self) -> MemoryModel:
        """The memory, whose fullest stage is explained down to the shapes."""
        model = self.case.predictor.memory

        def excess(number: int) -> float:
            alone = replace(model, stages=(model.stages[number],)).evaluate(*self.case.held)
            return float(alone.needed_bytes - alone.available_bytes)

        return self.leaves.memory(self.plan, model, max(range(len(model.stages)), key=excess))

    @cached_property
    def memory(self) -> Memory:
        """Memory of the batch, every number under the name that its field declares."""
        held = replace(self.case, work=self.work).held
        if self.case.played is not None:
            isl, osl = self.load.lengths
            running = self.told(float(held[0]), "running", "sequences in steps, in the mean, as a whole number", "")
            held = running, isl + osl / 2.0, isl
        found = self.memory_model.evaluate(*held)
        told = {each.name: each.metadata["quantity"] for each in fields(found) if each.metadata}
        values = {name: named(getattr(found, name), q.symbol, q.meaning, q.unit) for name, q in told.items()}
        return replace(found, **values)

    def step(self, name: str) -> StepTime:
        """The step whose kernels `estimate` lists under `prefill` or `decode`."""
        if name == "decode":
            return self.predictor.decode_step(self.work)
        if self.case.played is not None:
            cached = self.load.cached
            new = maximum(self.load.lengths[0], cached + 1.0)
            return self.predictor.plan.time(Batch.prefill(1.0, new, cached))
        return self.predictor.plan.time(self.predictor.prefill_batch(self.work))


class Metric(NamedTuple):
    """A number of an answer: unit shown, scale from SI, how it is traced, and whether it takes a load."""

    unit: str
    scale: float
    of: Callable[[Traced], Numeric]
    loaded: bool = False


def _of_static(name: str, static: Callable[[Traced], Numeric], t: Traced) -> Numeric:
    """The number of the played load, or of the static batch."""
    return static(t) if t.case.played is None else getattr(t.load, name)


def _output(t: Traced) -> Numeric:
    if t.case.played is None:
        title = "output tokens a second, prefill included"
        return named(t.point.output_rate(t.work.batch, t.work.osl), "output", title, "token/s")
    return t.load.output


def _output_per_gpu(t: Traced) -> Numeric:
    gpus = fact(t.plan.deployment.gpus, "gpus", "accelerators", "", _ASKED)
    return named(_output(t) / gpus, "per_gpu", "output tokens a second and accelerator", "token/s")


def _output_per_user(t: Traced) -> Numeric:
    title = "output tokens a second of one user, while decoding"
    tpot = _of_static("tpot", lambda t: t.point.tpot.expected, t)
    return named(1.0 / tpot, "per_user", title, "token/s")


def _power(t: Traced) -> LoadPower:
    """Power and energy of the case; raises InputError where the accelerator's power limit is not known."""
    if t.case.answer.energy is None:
        raise InputError(f"{t.plan.system.accelerator.name} has no rated power (power.tdp) in its file")
    if t.case.played is None:
        return load_power(static_energy(t.predictor, t.work, t.point), t.work.osl, None, 1.0)
    together = t.told(t.load.found.sequences, "C", "sequences that decode in a step, in the mean", "")
    return run_power(token_energy(t.predictor, InFlight(together, *t.load.lengths, t.load.cached)), t.load.run)


def _joules(t: Traced) -> Numeric:
    title = "all energy of all boards over all output tokens"
    return named(_power(t).joules_per_output_token, "e_out", title, "J", _ENERGY)


_ENERGY = "docs/method.md, section 11"


def _keep(t: Traced) -> Numeric:
    """The five-minute rule on the accelerators: a token's place costs what computing it again does, at any price."""
    half = named(t.work.isl // 2.0, "c", "tokens of a prefix, half the prompt")
    new, beside, alone = (
        prefill_share(t.predictor, InFlight(t.work.batch, isl, t.work.osl, cached)).expected
        for isl, cached in ((t.work.isl, 0.0), (t.work.isl, half), (t.work.isl - half, 0.0))
    )
    computed = named(new / t.work.isl, "input", "time of the replica that a computed token takes", "s")
    read = named(maximum(beside - alone, 0.0) / maximum(half, 1.0), "cached", "the same of a token of the prefix", "s")
    tokens = kv_capacity_tokens(t.case.predictor, float(t.work.isl) + float(t.work.osl), 1)
    pool = fact(tokens, "pool", "tokens that the cache holds", "", "the memory of the deployment: explain kv_pool")
    saved = named(computed - read, "saved", "time that a kept token saves when it comes again", "s")
    rule = "the five-minute rule: Gray and Putzolu 1987, doi:10.1145/38713.38755"
    return named(saved * pool, "keep", "time between two uses up to which a prefix is worth its place", "s", rule)


def _max_context(t: Traced) -> Numeric:
    longest = t.memory.max_context
    if math.isinf(float(longest)):
        raise InputError(f"nothing limits the context of {t.plan.model.name}: its cache does not grow")
    return longest


def _params(t: Traced) -> Numeric:
    model = t.plan.model
    counts = model_operations(model, Deployment(), Precision(model.dtype, model.dtype, model.formats))
    total = sum(t.leaves.modules(t.plan, counts, lambda weights: weights.count, ""), 0.0)
    return named(total, "params", f"parameters of {model.name}")


def _params_active(t: Traced) -> Numeric:
    idle = count_parameters(t.plan.model).inactive_experts
    unvisited = fact(idle, "idle", "weights of routed experts that one token does not visit")
    return named(_params(t) - (unvisited if idle else 0.0), "P_active", "parameters that one token visits")


def _ridge(t: Traced) -> Numeric:
    precision = t.plan.precision
    dtype = precision.compute(getattr(precision.formats, t.plan.model.matrices[-1]))  # of most of the layers' matrices
    title = f"ridge point in {dtype.unit.value}: below it memory limits, above it arithmetic"
    return named(t.leaves.system(t.plan.system).accelerator.ridge(dtype), "ridge", title, "FLOP/B")


METRICS: Mapping[str, Metric] = {
    "ttft": Metric("ms", 1e3, partial(_of_static, "ttft", lambda t: t.point.ttft.expected)),
    "tpot": Metric("ms", 1e3, partial(_of_static, "tpot", lambda t: t.point.tpot.expected)),
    "e2e": Metric("ms", 1e3, partial(_of_static, "e2e", lambda t: t.point.e2e(t.work.osl))),
    "queue": Metric("ms", 1e3, lambda t: t.load.queue, True),
    **{
        f"{time}_{name}": Metric(
            "ms", 1e3, partial(lambda time, share, t: t.load.percentile(time, share), time, share), True
        )
        for time in ("ttft", "tpot", "e2e")
        for name, share in PERCENTILES.items()
    },
    "output_tok_s": Metric("token/s", 1.0, _output),
    "output_tok_s_per_gpu": Metric("token/s", 1.0, _output_per_gpu),
    "output_tok_s_per_user": Metric("token/s", 1.0, _output_per_user),
    "knee_rate": Metric("1/s", 1.0, lambda t: t.load.knee, True),
    "rate": Metric("1/s", 1.0, lambda t: t.load.rate, True),
    "running": Metric("", 1.0, lambda t: t.load.running, True),
    "memory": Metric(
        "B", 1.0, lambda t: named(t.memory.total_bytes, "total", "memory of the busiest accelerator", "B")
    ),
    "weights": Metric("B", 1.0, lambda t: t.memory.weight_bytes),
    "kv": Metric("B", 1.0, lambda t: t.memory.kv_bytes),
    "activations": Metric("B", 1.0, lambda t: t.memory.activation_bytes),
    "overhead": Metric("B", 1.0, lambda t: t.memory.overhead_bytes),
    "kv_pool": Metric("B", 1.0, lambda t: t.memory.kv_pool_bytes),
    "kv_per_token": Metric("B", 1.0, lambda t: t.leaves.cache_per_token(t.plan, t.plan.model.layers)),
    "max_batch": Metric("sequences", 1.0, lambda t: t.memory.max_batch),
    "max_context": Metric("tokens", 1.0, _max_context),
    "params": Metric("", 1.0, _params),
    "params_active": Metric("", 1.0, _params_active),
    "ridge": Metric("FLOP/B", 1.0, _ridge),
    "keep": Metric("s", 1.0, _keep),
    "energy_per_output_token_j": Metric("J", 1.0, _joules),
    "power_w_per_gpu": Metric(
        "W", 1.0, lambda t: named(_power(t).watts, "power", "mean power of a board", "W", _ENERGY)
    ),
}
"""Metrics that do not name a step."""

COUNTED = ("params", "params_active", "kv_per_token", "ridge")
"""Metrics of a model or an accelerator, whatever is deployed."""

TIMELESS = (*COUNTED, "memory", "weights", "kv", "activations", "overhead", "kv_pool", "max_batch", "max_context")
"""Metrics that no step has a part in; they are explained whether the deployment fits or not."""

ALIASES = _NAMES["aliases"] | {k: f"decode.{k}" for k in ("flops", "bytes", "intensity", "bound", "mfu", "mbu")}
"""Other names: those of the JSON, and short ones."""


def full_name(name: str) -> str:
    """A metric as METRICS calls it.

    >>> full_name("KV-bytes-per-token"), full_name("ttft_p99_ms")
    ('kv_per_token', 'ttft_p99')
    """
    folded = name.strip().lower().replace("-", "_")
    return ALIASES.get(folded.removesuffix("_ms"), folded.removesuffix("_ms"))


@dataclass(frozen=True)
class NamedMetric:
    """A metric by its full name: unit shown, scale from SI, and the traced number."""

    name: str
    unit: str
    scale: float
    output: Symbol


def find_metric(case: Case, name: str) -> NamedMetric:
    """A metric, traced: a name of METRICS, or `decode`, `decode.flops`, `decode.attention.bytes` and the like.

    Raises UnknownNameError with the nearest names.
    """
    folded, traced = full_name(name), Traced(case)
    if metric := METRICS.get(folded):
        if metric.loaded and case.played is None:
            raise InputError(f"{folded} is a metric under load; add --concurrency or --rate")
        return NamedMetric(folded, metric.unit, metric.scale, traced.line(metric.of(traced), folded, metric.unit))
    found = _of_step(traced, folded)
    if found is None:
        kernels = [f"{step}.{kernel}" for step in _STEPS for kernel in _kernel_names(case, step)]
        wholes = [f"{step}.{kind}" for step in _STEPS for kind in _KINDS]
        parts = [f"{name}.{kind}" for name in kernels for kind in _KINDS if kind not in _OF_STEPS]
        known = [*METRICS, *ALIASES, *_STEPS, *kernels, *wholes, *parts]
        raise UnknownNameError("metric", name, known if nearest(name, known) else _FIRST)
    return found


_FIRST = ("tpot", "ttft", "memory", "max_batch", "kv_per_token", "params", "decode", "decode.attention")

_STEPS = ("prefill", "decode")
_SIZES: dict[str, tuple[str, str, Callable[[KernelTime, Accelerator], Numeric]]] = {
    "time": ("s", "", lambda t, gpu: t.expected),
    "bound": ("s", "datasheet bound", lambda t, gpu: t.bound),
    "flops": ("FLOP", "work", lambda t, gpu: t.kernel.count * t.kernel.flops),
    "bytes": ("B", "traffic", lambda t, gpu: t.kernel.count * named(t.kernel.bytes, "bytes", "of one launch", "B")),
    "ideal": ("s", "arithmetic at the peak", lambda t, gpu: peak_time(t.kernel, gpu)),
    "streams": ("s", "weights and cache at the bandwidth", lambda t, gpu: stream_time(t.kernel, gpu)),
}
"""Numbers of all launches of a kernel: unit, what they are, and how they follow from its time and work."""

_RATIOS = {
    "intensity": ("flops", "bytes", "FLOP for each byte"),
    "mfu": ("ideal", "time", "share of the time, for arithmetic,"),
    "mbu": ("streams", "time", "share of the time, for weights and cache,"),
}
_KINDS = ("bound", "flops", "bytes", *_RATIOS)
_OF_STEPS = ("mfu", "mbu")
"""Metrics that only a whole step has."""


def _of_step(traced: Traced, folded: str) -> NamedMetric | None:
    """A step, or one kernel of it; None where no kernel has this name."""
    step, _, rest = folded.partition(".")
    kernel, _, kind = rest.rpartition(".")
    if kind not in ("time", *_KINDS):
        kernel, kind = rest, "time"
    strange = kernel and (kernel not in _kernel_names(traced.case, step) or kind in _OF_STEPS)
    if step not in _STEPS or strange or "" in folded.split("."):
        return None
    timed = [each for each in traced.step(step).kernels if kernel in ("", each.kernel.name)]
    what = f"all kernels named {kernel}" if kernel else f"one {step} step"
    gpu = traced.predictor.plan.system.accelerator

    def total(kind: str, symbol: str) -> Numeric:
        unit, title, size = _SIZES[kind]
        sizes = [(each.kernel.name, size(each, gpu)) for each in timed]
        parts = [named(part, name, f"{title} of all launches", unit) if title else part for name, part in sizes]
        whole = sum(parts, 0.0)
        return named(whole, symbol, f"{title} of {what}" if title else what, unit) if parts[1:] else whole

    if kind in _RATIOS:
        above, below, title = _RATIOS[kind]
        unit, scale, lower = "FLOP/B" if kind == "intensity" else "", 1.0, total(below, below)
        output = named(total(above, above) / lower, kind, f"{title} of {what}", unit) if float(lower) else 0.0
    else:
        si, output = _SIZES[kind][0], total(kind, kernel or step)
        unit, scale = (("µs", 1e6) if kernel else ("ms", 1e3)) if si == "s" else (si, 1.0)
    name = ".".join(part for part in (step, kernel, "" if kind == "time" else kind) if part)
    return NamedMetric(name, unit, scale, traced.line(output, kernel or step, {"ms": "s", "µs": "s"}.get(unit, unit)))


def _kernel_names(case: Case, step: str) -> list[str]:
    found = getattr(case.answer, step, None) if step in _STEPS else None
    return [] if found is None else list(dict.fromkeys(kernel.name for kernel in found.kernels))

"""The numbers that a deployment is made of, each as a leaf of explanations with its source and its spread."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from rooflinekit.model.graph import Pool, Quantity, named
from rooflinekit.model.kernels.operation import Operation, Weights
from rooflinekit.model.memory.cache import cache_law
from rooflinekit.model.memory.capacity import RULE, MemoryModel, Stage
from rooflinekit.model.memory.footprint import placed_operations
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.parameter_count import MODULES
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.step import Plan
from rooflinekit.model.timing.calibrated import FamilyFit
from rooflinekit.model.types.hardware import Provenance, System
from rooflinekit.model.types.kv_policy import FULL, KVPolicy
from rooflinekit.model.types.model import Layer
from rooflinekit.model.types.numeric import Numeric

D = TypeVar("D")
_DATASHEET = {
    "memory_bytes": "memory.capacity",
    "reserved_bytes": "memory.visible",
    "memory_bandwidth": "memory.bandwidth",
    "l2_bytes": "cores.l2",
    "cores": "cores.count",
    "link_bandwidth": "links.bandwidth",
    "nic_bandwidth": "links.nic",
}
"""What the files of accelerators and systems call a number."""

_RESIDENT = "rooflinekit.model.memory.footprint.resident_bytes; " + RULE
_PEAK = "rooflinekit.model.memory.footprint.activation_peak; " + RULE
_PLACE = "layers that have it, over the stages"


@dataclass(frozen=True)
class Leaves:
    """Puts leaves of one graph in place of numbers."""

    pool: Pool

    def told(self, thing: D, source: Callable[[str], str], spread: Mapping[str, float] | None = None) -> D:
        """The same with a leaf for every number whose field says what it is called; a 0 is no leaf."""
        changed: dict[str, Any] = {}
        for entry in fields(thing):  # type: ignore[arg-type]
            value, quantity = getattr(thing, entry.name), entry.metadata.get("quantity")
            if isinstance(value, (int, float)) and quantity and value:
                std = (spread or {}).get(entry.name)
                changed[entry.name] = self._fact(value, replace(quantity, source=source(entry.name), spread=std))
            elif is_dataclass(value) and any("quantity" in inner.metadata for inner in fields(value)):
                changed[entry.name] = self.told(value, source)
            elif entry.name == "parts":
                columns = {name: f"columns of {name.replace('_', ' ')}" for name, _ in value}
                changed["parts"] = tuple(
                    (name, size and self._fact(size, Quantity(name, columns[name], "", source("parts"))))
                    for name, size in value
                )
        return replace(thing, **changed)  # type: ignore[type-var]

    def _fact(self, value: float, quantity: Quantity) -> Any:
        return self.pool.fact(value, quantity)

    def predictor(self, predictor: Predictor, memory: MemoryModel) -> Predictor:
        """Its plans with leaves, and this memory model."""
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
            return _cited(entries, _DATASHEET.get(name, name), f"file of {gpu.name}")

        peaks = {
            dtype: self._fact(
                rate, Quantity("P", f"dense {dtype} peak of {gpu.name}", "FLOP/s", source(f"compute.dense.{dtype}"))
            )
            for dtype, rate in gpu.peaks.items()
        }
        told = replace(self.told(gpu, source), peaks=peaks)
        if (law := gpu.power) is not None:  # watts and joules of a board, each from the law's own source
            flop = {dtype: self._fact(each, Quantity("e_f", f"energy of a FLOP in {dtype}", "J/FLOP", law.source))
                    for dtype, each in law.flop.items()}  # fmt: skip
            told = replace(told, power=replace(self.told(law, lambda _: law.source), flop=flop))
        return replace(self.told(system, source), accelerator=told)

    def _fit(self, fit: FamilyFit, run: str) -> FamilyFit:
        def source(name: str) -> str:
            held = "; held: the data could not pin it" if name in fit.frozen else ""
            return f"{fit.source}; calibration {run}{held}"

        beyond = None if fit.beyond is None else replace(fit.beyond, fit=self._fit(fit.beyond.fit, run))
        return replace(fit, form=self.told(fit.form, source, fit.spread), beyond=beyond)

    def operations(self, plan: Plan, counts: Mapping[Operation, int]) -> dict[Operation, Any]:
        """Operations with the sizes of the model as leaves, and how often each is launched."""
        launches = Quantity("n", "launches in the step", "", _PLACE)

        def source(name: str) -> str:
            return "the question" if name == "budget" else _config(plan)

        return {self.told(op, source): self._fact(n, launches) for op, n in counts.items()}

    # --- memory ------------------------------------------------------------------------------------------------------

    def memory(self, plan: Plan, memory: MemoryModel, place: int) -> MemoryModel:
        """What the rule of the engine is made of; weights and cache of stage `place` down to the shapes."""

        def source(name: str) -> str:
            several = "several" if plan.deployment.gpus > 1 else "one"
            keys = {"context": f"memory.context.{several}", "non_torch": f"memory.non_torch.{several}",
                    "graphs": "memory.graphs", "fraction": "memory.fraction"}  # fmt: skip
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
            kept: Any = cap if cap == math.inf else self._fact(cap, Quantity("cap", _KEPT, "", _config(plan)))
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
        """What one token adds to the cache of these layers on one of `tp` accelerators [B]."""
        told: dict[Layer, Layer] = {}
        for layer in layers:
            if layer not in told:
                told[layer] = replace(layer, mixer=layer.mixer and self.told(layer.mixer, lambda _: _config(plan)))
        law = cache_law([told[layer] for layer in layers], plan.precision.kv, tp, 1, plan.precision.index, policy)
        return named(law.bytes_per_token, "kv", "bytes that one token adds to the cache", "B")


_KEPT = "tokens that layers with a window or chunks keep at most"
_LAID = "rooflinekit.model.memory.cache.cache_layout; " + RULE


def _config(plan: Plan) -> str:
    return f"config of {plan.model.name}: {plan.model.source or plan.model.origin}"


def _cited(entries: Iterable[Provenance], quantity: str, otherwise: str) -> str:
    for entry in entries:
        if entry.quantity.split(" ")[0] == quantity:
            return f"{entry.source} [{entry.confidence}]" if entry.confidence else entry.source
    return otherwise

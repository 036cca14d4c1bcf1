"""The functions behind a page: each deployment is traced once, and its kernels call functions that equal ones share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from typing import Any, TypeVar

from rooflinekit.model.graph import Pool, Symbol, trace
from rooflinekit.model.graph.templates import Instance, Library, Printed, array, call
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.step import Plan
from rooflinekit.model.traffic.mixing import slots
from rooflinekit.model.traffic.question import LoadQuestion, answer_load
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.time import KernelTime, Time
from rooflinekit.model.types.workload import Workload

__all__ = ["ENDS", "INPUTS", "LOADED", "MEMORY", "Program", "Written", "values"]

INPUTS = ("batch", "isl", "osl", "cached", "context", "speed")
"""What a static batch is a function of; `speed` multiplies the bandwidth of the memory."""

_TIMES = ("bound", "expected", "low", "high", "compute", "memory", "network", "overhead")
_WORK = ("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "activation_bytes")
_WIDTH = len(_TIMES) + len(_WORK)
ENDS = ("bound", "expected", "low", "high")
MEMORY = ("capacity_bytes", "weight_bytes", "kv_bytes", "activation_bytes", "overhead_bytes", "total_bytes",
           "kv_pool_bytes", "needed_bytes", "available_bytes", "max_batch", "fits")  # fmt: skip
LOADED = ("e2e", "running", "rate", "knee", "stable", "busy", "queue")
P = TypeVar("P", bound=Predictor)


@dataclass(frozen=True)
class Written:
    """One deployment as the page calls it: its functions, and what its kernels are."""

    static: Instance
    load: Instance | None
    gpus: int
    prefill: int  #: place of the kernels of a step among all such lists
    decode: int


class Program:
    """The deployments of one page."""

    def __init__(self) -> None:
        self.library = Library()
        self.steps: dict[tuple[tuple[Any, ...], ...], int] = {}
        self.pool = Pool(names=False)
        self.numbers: dict[tuple[Operation, int], int] = {}
        self._known: dict[tuple[Any, ...], _Known] = {}
        self._kernels: dict[tuple[Any, ...], _Known] = {}
        self._kept: list[Any] = []  # what keys name by its identity

    def write(self, predictor: Predictor, question: LoadQuestion | None = None, fixed: bool = False) -> Written:
        """Trace a deployment; its second function answers `question`, and `fixed` says that the context is given."""
        steps: list[tuple[KernelTime, ...]] = []

        def static(batch: Any, isl: Any, osl: Any, speed: Any, **more: Any) -> dict[str, Any]:
            outlined = self._outlined(predictor, speed)
            work = Workload(batch, isl, osl, more["cached"], more["context"] if fixed else None)
            point = outlined.evaluate(work)
            steps[:] = point.prefill.kernels, point.decode.kernels
            pool, memory = speed.pool, [getattr(point.memory, name) for name in MEMORY]
            return {
                "ttft": _ends(point.ttft, pool), "tpot": _ends(point.tpot, pool), "memory": array(memory, pool),
                "e2e": point.e2e(osl), "rate": point.output_rate(batch, osl),
                "prefill": _rows(steps[0], pool), "decode": _rows(steps[1], pool),
            }  # fmt: skip

        def loaded(load: Any, isl: Any, osl: Any, speed: Any) -> dict[str, Any]:
            outlined = self._outlined(predictor, speed)
            assert question is not None
            traffic = replace(question.traffic, isl=isl, osl=osl)
            asked = {"rate": load} if question.users is None else {"users": load}
            answer = answer_load(outlined, replace(question, traffic=traffic, **asked))
            found, held = answer.loaded, answer.memory(outlined)
            room = slots(outlined, isl, osl)
            return {
                "ttft": _ends(found.ttft, speed.pool), "tpot": _ends(found.tpot, speed.pool),
                "loaded": array([*(getattr(found, name) for name in LOADED), room], speed.pool),
                "memory": array([getattr(held, name) for name in MEMORY], speed.pool),
            }  # fmt: skip

        instance = self.library.add(trace(static, INPUTS, pool=self.pool))
        under = (
            None
            if question is None
            else self.library.add(trace(loaded, ("load", "isl", "osl", "speed"), pool=self.pool))
        )
        kinds = [self.steps.setdefault(self._kinds(predictor.plan, step), len(self.steps)) for step in steps]
        return Written(instance, under, predictor.plan.deployment.gpus, *kinds)

    def printed(self) -> Printed:
        """All of it as JavaScript."""
        return self.library.printed()

    def _kinds(self, plan: Plan, step: Sequence[KernelTime]) -> tuple[tuple[Any, ...], ...]:
        """Name, family, launches and peak of each kernel of a step."""
        gpu = plan.system.accelerator
        peaks = (0.0 if timed.kernel.family == "host" else gpu.peak(timed.kernel.dtype) for timed in step)
        return tuple(
            (timed.kernel.name, timed.kernel.family, timed.kernel.count, peak)
            for timed, peak in zip(step, peaks, strict=True)
        )

    def _outlined(self, predictor: P, speed: Symbol) -> P:
        plan = self._plan(predictor.plan, speed)
        if not isinstance(predictor, SpeculativePredictor):
            return replace(predictor, plan=plan)
        draft = predictor.draft
        first, later = (None if part is None else self._plan(part, speed) for part in (draft.first, draft.later))
        return replace(predictor, plan=plan, draft=replace(draft, first=first, later=later))

    def _plan(self, plan: Plan, speed: Symbol) -> Plan:
        own = {entry.name: getattr(plan, entry.name) for entry in fields(Plan)}
        return _Outlined(**own, program=self, speed=speed)

    def kernels(
        self, plan: _Outlined, operation: tuple[int, tuple[Operation, int]], step: _Step, costs: StepCosts | None
    ) -> list[KernelTime]:
        """The kernels of one operation as calls of functions of the batch."""
        number, pair = operation
        key = number, step.pattern, costs is None, plan.key, plan.precision.kv
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._functions(plan, pair, step, costs)
        if step.given not in known.calls:
            known.calls[step.given] = [_called(function, step.values) for function in known.functions]
        return known.calls[step.given]

    def _functions(
        self, plan: _Outlined, operation: tuple[Operation, int], step: _Step, costs: StepCosts | None
    ) -> _Known:
        """The kernels of one operation as functions of a batch.

        Kernels that ask neither for the phase of the sequences nor for the cache are traced once for both phases and
        all formats of the cache.
        """
        key, kv = (operation, costs is None, plan.key), plan.precision.kv
        phases = [_Unphased(phase, step.pattern.filled) for phase in step.pattern.phases]
        patterns: list[Batch | _Unphased] = [*phases, step.pattern] if len(phases) == 1 else [step.pattern]
        for place in product(patterns, (kv, None)):
            if (key, *place) in self._kernels:
                return self._kernels[key, *place]
        self._kept.append(plan)
        for pattern in patterns:
            try:
                known, cached = self._traced(plan, operation, (pattern, list(step.values)), costs)
            except _PhaseError:
                continue
            break
        self._kernels[key, pattern, kv if cached else None] = known
        return known

    def _traced(
        self,
        plan: _Outlined,
        operation: tuple[Operation, int],
        at: tuple[Batch | _Unphased, list[str]],
        costs: StepCosts | None,
    ) -> tuple[_Known, bool]:
        """The kernels as functions of the names in a pattern, and whether they touch the cache."""
        (pattern, names), timed = at, list[KernelTime]()

        def run(speed: Any, **given: Any) -> list[list[Any]]:
            gpu = plan.system.accelerator
            system = replace(plan.system, accelerator=replace(gpu, memory_bandwidth=gpu.memory_bandwidth * speed))
            alone = replace(plan, system=system, operations=dict([operation]))
            batch = _mapped(pattern, lambda _, value: given[value] if isinstance(value, str) else value)
            timed[:] = Plan.run(alone, batch, costs)
            return [values(each) for each in timed]

        graph = trace(run, names, pool=Pool(names=False))
        outputs = list(graph.outputs)
        parts = [graph.only(outputs[place : place + _WIDTH]) for place in range(0, len(outputs), _WIDTH)]
        kernels = [each.kernel for each in timed]
        cached = any(type(size) is not float for each in kernels for size in (each.kv_read_bytes, each.kv_write_bytes))
        functions = [(kernel, self.library.add(part, trim=True)) for kernel, part in zip(kernels, parts, strict=True)]
        return _Known(functions), cached


@dataclass
class _Known:
    """The kernels of an operation as functions of a batch, and what they gave for batches so far."""

    functions: list[tuple[Kernel, Instance]]
    calls: dict[tuple[Any, ...], list[KernelTime]] = field(default_factory=dict)


def _called(function: tuple[Kernel, Instance], values: dict[str, Any]) -> KernelTime:
    kernel, instance = function
    found = call(instance, [values[name] for name in instance.inputs] or [values["speed"]], _WIDTH)
    times: dict[str, Any] = dict(zip(_TIMES, found, strict=False))
    work: dict[str, Any] = dict(zip(_WORK, found[len(_TIMES) :], strict=True))
    return KernelTime(kernel=replace(kernel, **work), **times)


@dataclass(frozen=True)
class _Outlined(Plan):
    """A plan whose kernels are calls."""

    program: Program = field(kw_only=True, compare=False, repr=False)
    speed: Symbol = field(kw_only=True, compare=False, repr=False)

    @cached_property
    def numbered(self) -> list[tuple[int, tuple[Operation, int]]]:
        """The operations with a number for each that is the same in all plans of the program."""
        numbers = self.program.numbers
        return [(numbers.setdefault(pair, len(numbers)), pair) for pair in self.operations.items()]

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """What the kernels of an operation depend on besides the batch and the format of the cache."""
        precision, deployment = self.precision, self.deployment
        parts = id(self.system), id(self.calibration), id(self.engine)
        return *parts, precision.stream, deployment.dp, deployment.cp

    def run(self, batch: Batch, costs: StepCosts | None, grows: bool | None = None) -> tuple[KernelTime, ...]:
        """The kernels of a step with their times, as calls."""
        step = _Step.of(batch, self.speed)
        chosen = [each for each in self.numbered if grows is None or each[1][0].grows is grows]
        return tuple(timed for each in chosen for timed in self.program.kernels(self, each, step, costs))


_LETTERS = {"count": "n", "new": "s", "past": "p", "sampled": "r", "span": "w", "filled": "f"}
_ALWAYS = ("new", "past", "sampled")
"""Numbers of a batch that are arguments even where they are known, so that one function serves more steps."""


@dataclass(frozen=True)
class _Step:
    """A batch with names in place of its symbols, and what the names stand for; `given` tells these values apart."""

    pattern: Batch
    values: dict[str, Any]
    given: tuple[Any, ...]

    @classmethod
    def of(cls, batch: Batch, speed: Symbol) -> _Step:
        """Read a batch."""
        values: dict[str, Any] = {"speed": speed}

        def name(own: str, value: Any) -> Any:
            if not isinstance(value, Symbol) and own not in _ALWAYS:
                return value
            letter = _LETTERS[own].upper() if _LETTERS[own] in values else _LETTERS[own]  # capitals: the second phase
            values[letter] = value
            return letter

        pattern = _mapped(batch, name)
        given = tuple(value.index if isinstance(value, Symbol) else (value,) for value in values.values())
        return cls(pattern, values, given)


def _mapped(batch: Any, change: Callable[[str, Any], Any]) -> Any:
    """The same batch with other numbers."""
    values = {entry.name: getattr(batch, entry.name) for entry in fields(batch)}
    for name, value in values.items():
        if value is not None:
            values[name] = _mapped(value, change) if isinstance(value, Sequences) else change(name, value)
    return type(batch)(**values)


class _PhaseError(AttributeError):
    """Somebody asked whether sequences are prompts or answers."""


@dataclass(frozen=True)
class _Unphased:
    """The sequences of a step in one phase, which does not say which."""

    only: Sequences
    filled: Any

    @property
    def tokens(self) -> Any:
        return self.only.tokens

    @property
    def sequences(self) -> Any:
        return self.only.sequences

    @property
    def sampled_rows(self) -> Any:
        return self.only.sampled_rows

    def __getattr__(self, name: str) -> Any:
        raise _PhaseError(name)


def values(timed: KernelTime) -> list[Any]:
    """What the page is told of a kernel: its times [s] and its work."""
    return [*(getattr(timed, name) for name in _TIMES), *(getattr(timed.kernel, name) for name in _WORK)]


def _ends(time: Time, pool: Pool) -> Symbol:
    return array([getattr(time, end) for end in ENDS], pool)


def _rows(step: Sequence[KernelTime], pool: Pool) -> Symbol:
    return array([array(values(timed), pool) for timed in step], pool)

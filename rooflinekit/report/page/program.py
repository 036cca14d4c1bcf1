"""The functions behind a page: each deployment is traced once, and its kernels call functions that equal ones share.

What is left of a deployment asks for kernels and for a few numbers of its accelerator. Deployments that are alike in
all else share it: it is traced for the first of them, and calls the kernels of each (`Program._shared`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, is_dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from rooflinekit.estimation.results import time_by_cause
from rooflinekit.load.table import one_step
from rooflinekit.model.capacity import Memory, MemoryModel
from rooflinekit.model.graph import Pool, Symbol, trace
from rooflinekit.model.graph.javascript import Instance, Library, array, call
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.power import PARTS, Energy
from rooflinekit.model.roofline import TIME_PARTS, Rates, StepTime, time_parts
from rooflinekit.model.serving import energy as energies
from rooflinekit.model.serving.energy import LoadPower, Run, TokenEnergy
from rooflinekit.model.serving.flight import InFlight
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.step import Plan
from rooflinekit.model.timing.overlap import Spent
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.engine import IDEAL, Engine, StepCosts
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.hardware import Accelerator, HostPower, PowerLaw, System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.time import ENDS, KernelTime, Time
from rooflinekit.model.types.workload import Workload
from rooflinekit.report.page.plays import Split, decode_step, draft_work, prompt_step, scene_data, tables_of

INPUTS = ("batch", "isl", "osl", "cached", "context", "speed")
"""What a static batch is a function of; `speed` multiplies the bandwidth of the memory."""

_TIMES = (*ENDS, "compute", "memory", "network", "overhead")
"""Of a kernel: its ends, and its expected time by cause."""
_WORK = ("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "activation_bytes")
_WIDTH = len(_TIMES) + len(_WORK) + len(PARTS)
_LENGTHS = ("isl", "osl", "speed")
_RUN = tuple(entry.name for entry in fields(Run))
MEMORY = ("capacity_bytes", "weight_bytes", "kv_bytes", "activation_bytes", "overhead_bytes", "total_bytes",
           "kv_pool_bytes", "needed_bytes", "available_bytes", "max_batch", "fits")  # fmt: skip
P = TypeVar("P", bound=Predictor)
R = TypeVar("R")


@dataclass(frozen=True)
class Written:
    """One deployment as the page calls it: its functions, and what its kernels are."""

    static: Instance
    loads: tuple[str, ...]  #: kinds of load that are answered: `rate`, `users`
    plays: Plays | None  #: what loads are played with
    gpus: int
    prefill: int  #: place of the kernels of a step among all such lists
    decode: int


@dataclass(frozen=True)
class Plays:
    """The functions that answer a played load, those that fill its step tables, and what is known of the engine."""

    functions: dict[str, Instance]
    tables: list[dict[str, Instance]]
    scene: dict[str, object]


_Ask: TypeAlias = tuple[tuple[int, tuple[Operation, int]], "_Step", bool]
_Asked: TypeAlias = tuple[_Ask, ...]
"""Kernels that were asked for: an operation, the step, and whether as they run among their neighbours."""

_Calls: TypeAlias = tuple[tuple[object, Instance], ...]
"""Functions that a function calls, each with what must be equal where others stand in their place."""

Outputs: TypeAlias = Sequence[object]
"""What a function of a page gives: numbers or symbols, and lists of them."""

_Named: TypeAlias = tuple[Any, int, dict[str, Numeric], tuple[object, ...]]
"""A step with names in place of numbers, the number of that pattern, what names stand for, and a key of these."""


@dataclass(frozen=True, eq=False)
class _Part:
    """A function of a deployment, and what it gives, with symbols where its outputs stand; what it calls."""

    instance: Instance
    whole: Any
    calls: _Calls
    asked: _Asked = ()


class Program:
    """The deployments of one page."""

    def __init__(self) -> None:
        self.library = Library()
        self.steps: dict[tuple[tuple[object, ...], ...], int] = {}
        self.pool = Pool(names=False)
        self.numbers: dict[tuple[Operation, int], int] = {}
        self._functions: dict[tuple[object, ...], list[tuple[Kernel, Instance]]] = {}
        self._calls: dict[tuple[object, ...], list[KernelTime]] = {}
        self._alike: dict[object, list[_Part]] = {}  #: what deployments share that differ in what it calls alone
        self._likes: dict[tuple[object, ...], int] = {}  #: numbers for what deployments agree in
        self._made: dict[int, tuple[object, Any]] = {}  #: by the place of what it was made of, which is kept with it
        self._phased: set[Operation] = set()  #: that ask which sequences are prompts and which answers
        self._kept: list[object] = []  # what keys name by its place
        self._splits: dict[int, list[tuple[Plan, Split]]] = {}  #: of deployments that are alike
        self.patterns: dict[object, int] = {}  #: of steps, each with its number

    def write(self, predictor: Predictor, loads: Iterable[str] = (), fixed: bool = False) -> Written:
        """Trace a deployment; others play `loads`, and `fixed` says that the context is given."""
        plan, gpu = predictor.plan, predictor.plan.system.accelerator

        def answered(told: Predictor, **at: Numeric) -> tuple[Outputs, list[list[Kernel]]]:
            """The results of kernels, and the kernels."""
            work = _work(plan, at, fixed)
            point = told.evaluate(work)
            rate = point.output_rate(work.batch, work.osl)
            rates = [rate, rate / plan.deployment.gpus, 1.0 / point.tpot.expected]  # of all, of a GPU, of a user
            both, chip = (point.prefill, point.decode), told.plan.system.accelerator
            rows = [[_row(each, told.plan.energy(each)) for each in step.kernels] for step in both]
            faster = Rates(chip.memory_bandwidth * at["speed"], chip.l2_bytes, chip.peak)
            parts = [list(time_parts(step, faster).values()) for step in both]
            energy: Any = 0.0
            if chip.power:
                tokens = energies.static_energy(told, work, point)
                energy = _energy(tokens, work.isl - work.cached, energies.load_power(tokens, work.osl, lone=1.0))
            kernels = [[each.kernel for each in step.kernels] for step in both]
            return [_ends(point.ttft), _ends(point.tpot), point.e2e(work.osl), rates, energy, *rows, parts], kernels

        steps = self._stepped(("static", fixed), answered, predictor, INPUTS)

        def static(**at: Numeric) -> Outputs:
            work = _work(plan, at, fixed)
            memory = predictor.memory.evaluate(work.batch, work.longest_context, work.isl - work.cached)
            ttft, tpot, *rest = _call(steps, at | _numbers(gpu), 8)
            return [ttft, tpot, _memory(memory), *rest]

        instance = self._added(static, INPUTS)
        asked, plays = tuple(loads), None
        if asked:
            with suppress(WorkloadError):
                plays = self._plays(predictor)
        under = asked if plays else ()
        named = (  # name, family, launches and peak of each kernel
            tuple((k.name, k.family, k.count, 0.0 if k.family == "host" else gpu.peak(k.dtype)) for k in step)
            for step in steps.whole
        )
        kinds = [self.steps.setdefault(each, len(self.steps)) for each in named]
        return Written(instance, under, plays, plan.deployment.gpus, *kinds)

    def _plays(self, predictor: Predictor) -> Plays:
        """Functions that a page plays loads with; raises WorkloadError where the engine has no room for prompts."""
        plan, gpu = predictor.plan, predictor.plan.system.accelerator
        likeness, plain = self._likeness(plan), Predictor(plan, predictor.memory)
        drafts = isinstance(predictor, SpeculativePredictor)
        width = predictor.draft.choice.verified + 1 if isinstance(predictor, SpeculativePredictor) else 1
        splits = self._splits.get(likeness) if plan.lanes == 1 and not drafts else None
        if splits is None:
            splits = tables_of(plan, width)
        if not drafts:
            self._splits[likeness] = splits
        scene = scene_data(predictor, [split for _, split in splits])

        def traced(
            of: Predictor, kind: tuple[object, ...], made: Callable[..., object], inputs: Sequence[str], outputs: int
        ) -> Instance:
            """A function of these inputs and the speed."""
            part = self._stepped(kind, made, of, (*inputs, "speed"))
            return self._direct(part, (*inputs, "speed"), gpu, outputs)

        def piece(of: Predictor, name: str, inputs: Sequence[str], function: Callable[..., Outputs]) -> Instance:
            def entry(own: Predictor, speed: Numeric, **at: Numeric) -> tuple[Outputs, None]:
                return function(own.plan, **{each: at[each] for each in inputs}), None

            return traced(of, ("piece", name, width), entry, inputs, 2)

        tables = []
        for of, split in splits:
            one = replace(plain, plan=one_step(plan if plan.lanes == 1 else of))
            tables.append({name: piece(one, name, *each) for name, each in split.pieces.items()})

        def step(
            own: Predictor, function: Callable[..., StepTime], speed: Numeric, **at: Numeric
        ) -> tuple[Outputs, None]:
            found, chip = function(own.plan, **at), own.plan.system.accelerator
            faster = Rates(chip.memory_bandwidth * speed, chip.l2_bytes, chip.peak)
            return [*_ends(found.total), *time_parts(found, faster).values()], None

        functions, timed = dict[str, Instance](), len(ENDS) + len(TIME_PARTS)
        steps: Any = ("prompt", ("isl",), prompt_step), ("token", ("count", "context"), decode_step)
        for name, inputs, function in steps:

            def ends(own: Predictor, told: Any = (function, inputs), **at: Numeric) -> tuple[Outputs, None]:
                return step(own, told[0], at["speed"], **{each: at[each] for each in told[1]})

            functions[name] = traced(predictor, ("ends", name), ends, inputs, timed)
        if drafts:

            def drafting(own: SpeculativePredictor, speed: Numeric, **at: Numeric) -> tuple[Outputs, None]:
                return draft_work(own, at["count"], at["isl"], at["osl"]), None

            def first(own: SpeculativePredictor, speed: Numeric, isl: Numeric, **_: Numeric) -> tuple[Outputs, None]:
                found = own.draft.prefill(Batch.prefill(1.0, isl))
                return [found.expected, found.bound], None

            def round_of(own: SpeculativePredictor, speed: Numeric, **at: Numeric) -> tuple[Outputs, None]:
                asked = Workload(at["count"] * plan.deployment.dp, at["isl"], 2.0, 0.0, at["context"])
                return step(own, lambda _: own.decode_step(asked), speed)

            functions["drafting"] = traced(predictor, ("drafting",), drafting, ("count", "isl", "osl"), 2)
            functions["draft_prompt"] = traced(predictor, ("draft_prompt",), first, ("isl",), 2)
            functions["round"] = traced(predictor, ("round",), round_of, ("count", "isl", "context"), timed)
        functions["room"] = self._added(lambda **at: [predictor.memory.max_batch(*at.values())], ("context", "isl"))
        if predictor.memory.window_tokens[0] < math.inf:
            functions["windows"] = self._added(lambda isl: [predictor.memory.window_places(isl)], ("isl",))
        held = "count", "context", "isl"
        functions["held"] = self._added(lambda **at: _memory(predictor.memory.evaluate(*at.values())), held)
        if gpu.power:

            def served(own: Predictor, users: Numeric, isl: Numeric, osl: Numeric, **_: Numeric) -> TokenEnergy:
                return energies.token_energy(own, InFlight(users, isl, osl))

            part = self._stepped(("energy",), served, predictor, ("users", *_LENGTHS))

            def spent(**at: Numeric) -> Outputs:
                symbols = _call(part, at | _numbers(gpu), len(_symbols(part.whole)))
                tokens = replace(_rebuilt(part.whole, iter(symbols)), law=gpu.power)
                return _energy(tokens, at["isl"], energies.run_power(tokens, Run(*(at[name] for name in _RUN))))

            functions["energy"] = self._added(spent, ("users", *_LENGTHS, *_RUN))
        return Plays(functions, tables, scene)

    def _direct(self, part: _Part, inputs: Sequence[str], gpu: Accelerator, outputs: int) -> Instance:
        """A function of these inputs: the part itself where it takes just these."""
        if part.instance.inputs == tuple(inputs):
            return part.instance
        numbers = _numbers(gpu)

        def passed(**at: Numeric) -> Outputs:
            given = [(at | numbers)[name] for name in part.instance.inputs] or [at["speed"]]
            return call(part.instance, given, outputs)

        return self._added(passed, inputs)

    def _shared(self, key: object, calls: Callable[[_Asked], _Calls]) -> _Part | None:
        """The function of the first deployment that is alike, with other functions called; None where there is none.

        calls: what those of another deployment are called for, here.
        """
        for part in self._alike.get(key, ()):
            others: dict[Instance, Instance] = {}
            here = calls(part.asked)
            if [what for what, _ in here] == [what for what, _ in part.calls] and all(
                others.setdefault(old, new) is new for (_, old), (_, new) in zip(part.calls, here, strict=True)
            ):
                return _Part(self.library.changed(part.instance, others), part.whole, here, part.asked)
        return None

    def _stepped(
        self, kind: tuple[object, ...], function: Callable[..., object], predictor: Predictor, inputs: Sequence[str]
    ) -> _Part:
        """A function of a predictor and of inputs, `speed` among them: of its numbers, or of a list and what is beside.

        It asks for no numbers of an accelerator but those that are inputs too. What tells deployments of a model apart
        besides are the functions of their kernels: those that are alike share what was traced for the first of them.
        """
        plan, made = predictor.plan, list[Any]()
        plain = type(predictor) is Predictor and not plan.deployment.two_batch and plan.deployment.microbatches == 1
        key = (kind, self._likeness(plan)) if plain else None

        def calls(asked: _Asked) -> _Calls:
            own: Any = self._outlined(predictor, None).plan
            costs = {True: own.costs, False: None}
            keys = [self.function(own, each, step, costs[among])[0] for each, step, among in asked]
            return tuple(
                ((key[3], function.inputs, *_signature(kernel)), function)
                for key in keys
                for kernel, function in self._functions[key]
            )

        found = self._shared(key, calls)
        if found is not None:
            return found
        asked: dict[object, _Ask] = {}

        def run(**at: Numeric) -> Outputs:
            own = self._outlined(predictor, at["speed"])
            if plain:
                outlined: Any = own.plan
                own = replace(own, plan=outlined.without_numbers(at, asked), memory=_NO_MEMORY)
            made[:] = [function(own, **at)]
            return made[0][0] if isinstance(made[0], tuple) else _symbols(made[0])

        instance = self._added(run, (*inputs, *_numbers(plan.system.accelerator)), True)
        whole, told = made[0][1] if isinstance(made[0], tuple) else made[0], tuple(asked.values())
        part = _Part(instance, whole, calls(told), told)
        if key is not None:
            self._alike.setdefault(key, []).append(part)
        return part

    def _likeness(self, plan: Plan) -> int:
        """A key of deployments whose steps differ in functions of kernels and numbers of accelerators alone."""

        def number() -> int:
            gpu, operations = plan.system.accelerator, tuple(number for number, _ in self.numbered(plan))
            run = self.place(plan.model), _deployment(plan), operations, plan.precision, plan.calibration is None
            agreed = (*run, _engine(plan), gpu.power and gpu.power.host, gpu.is_cpu)
            return self._likes.setdefault(agreed, len(self._likes))

        return self._once(plan, number)

    def numbered(self, plan: Plan) -> list[tuple[int, tuple[Operation, int]]]:
        """The operations with a number for each that is the same in all plans of the program."""
        numbers = self.numbers
        pairs = plan.operations.items()
        return self._once(plan.operations, lambda: [(numbers.setdefault(pair, len(numbers)), pair) for pair in pairs])

    def _once(self, part: object, make: Callable[[], R]) -> R:
        """The result for a part, made once for each."""
        if id(part) not in self._made:
            self._made[id(part)] = part, make()  # holds the part, so that no id is reused
        found: R = self._made[id(part)][1]
        return found

    def _added(self, function: Callable[..., Outputs], inputs: Sequence[str], trim: bool = False) -> Instance:
        """A function whose outputs are numbers, and lists of them; with `trim`, of no more than it depends on."""

        def nested(value: object) -> object:
            return array(list(map(nested, value)), self.pool) if isinstance(value, list) else value

        return self.library.add(trace(lambda **at: list(map(nested, function(**at))), inputs, pool=self.pool), trim)

    def _outlined(self, predictor: P, speed: Numeric | None) -> P:
        """The plan whose kernels are calls."""

        def outlined(plan: Plan) -> Plan:
            own = {entry.name: getattr(plan, entry.name) for entry in fields(Plan)}
            return _Outlined(**own, program=self, speed=speed)

        plan = outlined(predictor.plan)
        if not isinstance(predictor, SpeculativePredictor):
            return replace(predictor, plan=plan)
        first, later = (part and outlined(part) for part in (predictor.draft.first, predictor.draft.later))
        return replace(predictor, plan=plan, draft=replace(predictor.draft, first=first, later=later))

    def kernels(
        self, plan: _Outlined, operation: tuple[int, tuple[Operation, int]], step: _Step, costs: StepCosts | None
    ) -> list[KernelTime]:
        """The kernels of one operation as calls of functions of the batch."""
        key, values, places = self.function(plan.own or plan, operation, step, costs)
        plan.asked[key] = operation, step, costs is not None
        if (key, places) not in self._calls:
            self._calls[key, places] = [_called(function, values) for function in self._functions[key]]
        return self._calls[key, places]

    def function(
        self, plan: _Outlined, operation: tuple[int, tuple[Operation, int]], step: _Step, costs: StepCosts | None
    ) -> tuple[tuple[object, ...], dict[str, Numeric], tuple[object, ...]]:
        """The key of an operation's functions; what their inputs stand for, and its places.

        Those that ask for no more than counts are traced once for prompts, answers and steps that hold both; those
        that leave the cache alone, once for all its formats.
        """
        number, pair = operation
        phased = pair[0] in self._phased
        pattern, kind, values, places = step.whole if phased else step.counts
        keys = [(number, costs is None, plan.key, kind, kv) for kv in (None, plan.precision.kv)]
        key = next((key for key in keys if key in self._functions), None)
        if key is None:
            try:
                functions, cached = self._traced(plan, pair, pattern, list(values), costs)
            except AttributeError:
                if phased:
                    raise
                self._phased.add(pair[0])
                return self.function(plan, operation, step, costs)
            key = keys[cached]
            self._functions[key] = functions
        return key, values, places

    def place(self, part: object) -> int:
        """The place of the first that is equal to it."""
        for place, known in enumerate(self._kept):
            if known is part or (type(known) is type(part) and known == part):
                return place
        self._kept.append(part)
        return len(self._kept) - 1

    def _traced(
        self, plan: _Outlined, operation: tuple[Operation, int], pattern: Any, names: list[str], costs: StepCosts | None
    ) -> tuple[list[tuple[Kernel, Instance]], bool]:
        """The kernels as functions of the names in a pattern, and whether they touch the cache."""
        timed = list[KernelTime]()

        def run(speed: Numeric, **given: Numeric) -> list[list[Numeric]]:
            gpu = plan.system.accelerator
            system = replace(plan.system, accelerator=replace(gpu, memory_bandwidth=gpu.memory_bandwidth * speed))
            alone = replace(plan, system=system, operations=dict([operation]))
            batch = _mapped(pattern, lambda _, value: given[value] if isinstance(value, str) else value)
            timed[:] = Plan.apart(alone, batch, costs)
            return [values(each, alone.energy(each)) for each in timed]

        graph = trace(run, names, pool=Pool(names=False))
        outputs = list(graph.outputs)
        parts = [graph.only(outputs[place : place + _WIDTH]) for place in range(0, len(outputs), _WIDTH)]
        kernels = [each.kernel for each in timed]
        cached = any(type(size) is not float for each in kernels for size in (each.kv_read_bytes, each.kv_write_bytes))
        return [(each, self.library.add(part, trim=True)) for each, part in zip(kernels, parts, strict=True)], cached


def _work(plan: Plan, at: Mapping[str, Numeric], fixed: bool) -> Workload:
    """A static batch of the inputs of a page."""
    return Workload(at["batch"], plan.prompt(at["isl"]), at["osl"], at["cached"], at["context"] if fixed else None)


def _call(part: _Part, values: Mapping[str, Numeric], outputs: int) -> list[Symbol]:
    return call(part.instance, [values[name] for name in part.instance.inputs], outputs)


_FACTS = attrgetter("name", "family", "count", "dtype", "gpus", "variant", "on_host", "dequantised", "place")


def _signature(kernel: Kernel) -> tuple[object, ...]:
    """Facts of a kernel that steps read besides its numbers."""
    return *_FACTS(kernel), type(kernel.shape)


class _Law(NamedTuple):
    """Fields of a power law that energies of steps read: inputs, but for the watts of the host."""

    idle: Numeric
    waiting: Numeric
    limit: Numeric
    held: Numeric
    host: HostPower


class _Chip(NamedTuple):
    """Fields of an accelerator that steps read besides their kernels: inputs in place of numbers."""

    memory_bandwidth: Numeric
    l2_bytes: Numeric
    rates: Mapping[str, Numeric]
    is_cpu: bool
    power: _Law | None

    @classmethod
    def of(cls, at: Mapping[str, Numeric], is_cpu: bool, law: PowerLaw | None) -> _Chip:
        """The accelerator with these inputs."""
        known = None if law is None else _Law(at["idle"], at["waiting"], at["limit"], at["held"], law.host)
        return cls(at["bandwidth"], at["l2"], at, is_cpu, known)

    def peak(self, dtype: Dtype) -> Numeric:
        """Dense peak rate [FLOP/s]."""
        return self.rates[dtype.unit.name]


class _Machine(NamedTuple):
    """The one field of a system that steps read: its accelerator."""

    accelerator: _Chip


class _NoMemory:
    """A stand-in for a memory model where only steps are traced."""

    def evaluate(self, *_: object) -> None:
        """Nothing."""


def _numbers(gpu: Accelerator) -> dict[str, float]:
    """Rates of an accelerator; 0 for arithmetic that it lacks, which none of its kernels uses."""
    law = gpu.power
    own = {"bandwidth": float(gpu.memory_bandwidth), "l2": float(gpu.l2_bytes)}
    peaks = {dtype.name: float(gpu.peaks.get(dtype, 0.0)) for dtype in Dtype}
    return own | peaks | {name: float(getattr(law, name)) if law else 0.0 for name in _POWER}


_POWER = "idle", "waiting", "limit", "held"


def _engine(plan: Plan) -> Engine:
    """The fields of an engine that steps and loads read."""
    own = plan.engine
    memory = replace(IDEAL.memory, reserves=own.memory.reserves)
    return replace(IDEAL, memory=memory, costs=own.costs, loaded=own.loaded)


def _deployment(plan: Plan) -> Deployment:
    """The deployment with the tokens of a step and the sequences that the engine takes."""
    most = {"token_budget": int(plan.token_budget), "max_num_seqs": int(plan.most_sequences)}
    return replace(plan.deployment, settings=replace(plan.deployment.settings, **most))


_FITTED: object = "fitted"  # stands for a calibration where only that there is one matters
_NO_MEMORY = cast("MemoryModel", _NoMemory())


def _symbols(whole: object) -> list[Symbol]:
    """The symbols in the fields of dataclasses."""
    if is_dataclass(whole):
        return [symbol for entry in fields(whole) for symbol in _symbols(getattr(whole, entry.name))]
    return [whole] if isinstance(whole, Symbol) else []


def _rebuilt(whole: Any, symbols: Iterator[Symbol]) -> Any:
    """A copy with other symbols in their places."""
    if is_dataclass(whole) and not isinstance(whole, type):
        return replace(whole, **{each.name: _rebuilt(getattr(whole, each.name), symbols) for each in fields(whole)})
    return next(symbols) if isinstance(whole, Symbol) else whole


def _called(function: tuple[Kernel, Instance], values: Mapping[str, Numeric]) -> KernelTime:
    kernel, instance = function
    found = call(instance, [values[name] for name in instance.inputs] or [values["speed"]], _WIDTH)
    times: dict[str, Any] = dict(zip(_TIMES, found, strict=False))
    work: dict[str, Any] = dict(zip(_WORK, found[len(_TIMES) :], strict=False))
    spent: list[Any] = list(found[-len(PARTS) :])
    return Spent(kernel=replace(kernel, **work, network_bytes=0.0, nic_bytes=0.0), **times, energy=Energy(*spent))


@dataclass(frozen=True)
class _Outlined(Plan):
    """A plan whose kernels are calls."""

    program: Program = field(kw_only=True, compare=False, repr=False)
    speed: Numeric | None = field(kw_only=True, compare=False, repr=False)
    own: _Outlined | None = field(default=None, kw_only=True, compare=False, repr=False)  #: whose kernels it has
    asked: dict[object, _Ask] = field(default_factory=dict, kw_only=True, compare=False, repr=False)

    def without_numbers(self, at: Mapping[str, Numeric], asked: dict[object, _Ask]) -> _Outlined:
        """The plan whose accelerator has inputs in place of numbers; `asked` receives its kernels."""
        gpu = self.system.accelerator
        told = cast("System", _Machine(_Chip.of(at, gpu.is_cpu, gpu.power)))
        like = {"deployment": _deployment(self), "engine": _engine(self), "calibration": self.calibration and _FITTED}
        return replace(self, system=told, **like, own=self, asked=asked)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Facts that an operation's kernels depend on besides the batch and the format of the cache."""
        places = map(self.program.place, (self.system, self.calibration, self.engine))
        return *places, self.precision.stream, self.deployment.dp, self.deployment.cp, self.token_budget

    def apart(self, batch: Batch, costs: StepCosts | None, grows: bool | None = None) -> list[KernelTime]:
        """The kernels of a step with their times, as calls."""
        chosen = [each for each in self.program.numbered(self) if grows is None or each[1][0].grows is grows]
        step = _Step(batch, self.speed, self.program.patterns)
        return [timed for each in chosen for timed in self.program.kernels(self, each, step, costs)]


@dataclass(frozen=True)
class _Counts:
    """Counts of a step that most operations read."""

    tokens: Numeric
    sequences: Numeric
    sampled_rows: Numeric
    filled: Numeric

    @classmethod
    def of(cls, batch: Batch) -> _Counts:
        return cls(batch.tokens, batch.sequences, batch.sampled_rows, batch.filled)


_FORMS = ("span", "filled", "ragged")
"""Numbers of a step that are arguments only where they are symbols: formulas differ where they are 1."""


class _Step:
    """A step, and its counts alone: the pattern, names in place of numbers; its number; what names stand for; a key."""

    def __init__(self, batch: Batch, speed: Numeric | None, patterns: dict[object, int]) -> None:
        self.batch, self.speed, self.patterns = batch, speed, patterns

    @cached_property
    def whole(self) -> _Named:
        """The step with all its kernels."""
        return self._named(self.batch)

    @cached_property
    def counts(self) -> _Named:
        """The counts that most operations read."""
        return self._named(_Counts.of(self.batch))

    def _named(self, batch: Batch | _Counts) -> _Named:
        values: dict[str, Any] = {"speed": self.speed}

        def name(own: str, value: Any) -> object:
            if own in _FORMS and not isinstance(value, Symbol):
                return value
            values[f"a{len(values)}"] = value
            return f"a{len(values) - 1}"

        pattern = _mapped(batch, name)
        places = tuple(each.index if isinstance(each, Symbol) else (each,) for each in values.values())
        return pattern, self.patterns.setdefault(pattern, len(self.patterns)), values, places


def _mapped(batch: Any, change: Callable[[str, object], object]) -> Any:
    """A copy of the step with other numbers."""
    found = {entry.name: getattr(batch, entry.name) for entry in fields(batch)}
    for name, value in found.items():
        if value is not None:
            found[name] = _mapped(value, change) if isinstance(value, Sequences) else change(name, value)
    return type(batch)(**found)


def values(timed: KernelTime, energy: Energy) -> list[Numeric]:
    """Values of a kernel on the page: its times, the expected one by cause [s], its work and its energy [J]."""
    split: dict[str, Any] = time_by_cause(timed)
    return _row(replace(timed, **split), energy)


def _row(timed: KernelTime, energy: Energy) -> list[Numeric]:
    """Values with the split by cause in place of what each resource alone would need."""
    spent = [getattr(energy, name) for name in PARTS]
    return [*(getattr(timed, name) for name in _TIMES), *(getattr(timed.kernel, name) for name in _WORK), *spent]


def _energy(tokens: TokenEnergy, computed: Numeric, found: LoadPower) -> Outputs:
    """Power of a board [W], share of busy time, joules of an output token, and three lists by part.

    Of an output token, prompt and waiting included; of its share of a decode step; of a prompt token. computed: tokens
    of a prompt that are computed.
    """
    each = tokens.prompt.times(1.0 / computed)
    parts = [[getattr(energy, name) for name in PARTS] for energy in (found.energy, tokens.step, each)]
    return [[found.watts, found.busy, found.joules_per_output_token], *parts]


def _ends(time: Time) -> list[Numeric]:
    return [getattr(time, end) for end in ENDS]


def _memory(memory: Memory) -> list[Numeric]:
    return [getattr(memory, name) for name in MEMORY]

"""The functions behind a page: each deployment is traced once, and its kernels call functions that equal ones share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, fields, is_dataclass
from functools import cached_property
from typing import Any, TypeVar

from rooflinekit.estimation.results import time_by_cause
from rooflinekit.model.graph import Pool, Symbol, trace
from rooflinekit.model.graph.javascript import Instance, Library, Printed, array, call
from rooflinekit.model.kernels.operation import Operation
from rooflinekit.model.memory.capacity import Memory
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.power import PARTS, Energy
from rooflinekit.model.roofline import time_parts
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.step import Plan
from rooflinekit.model.timing.overlap import Spent
from rooflinekit.model.traffic.closed_form import Loaded, OpenLoop, closed_loop
from rooflinekit.model.traffic.energy import TokenEnergy, load_power, served_energy, static_energy
from rooflinekit.model.traffic.mixing import Shared, follows, shared_times, slots
from rooflinekit.model.traffic.percentiles import spread
from rooflinekit.model.traffic.question import LoadAnswer, LoadQuestion
from rooflinekit.model.types.batch import Batch, Sequences
from rooflinekit.model.types.engine import StepCosts
from rooflinekit.model.types.frozen import dataclass, replace
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric, minimum
from rooflinekit.model.types.time import ENDS, KernelTime, Time
from rooflinekit.model.types.workload import Workload

INPUTS = ("batch", "isl", "osl", "cached", "context", "speed")
"""What a static batch is a function of; `speed` multiplies the bandwidth of the memory."""

_TIMES = (*ENDS, "compute", "memory", "network", "overhead")
"""Of a kernel: its ends, and its expected time by cause."""
_WORK = ("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "activation_bytes")
_WIDTH = len(_TIMES) + len(_WORK) + len(PARTS)
_LENGTHS = ("isl", "osl", "speed")
MEMORY = ("capacity_bytes", "weight_bytes", "kv_bytes", "activation_bytes", "overhead_bytes", "total_bytes",
           "kv_pool_bytes", "needed_bytes", "available_bytes", "max_batch", "fits")  # fmt: skip
LOADED = ("e2e", "running", "rate", "knee", "stable", "busy", "queue")
P = TypeVar("P", bound=Predictor)


@dataclass(frozen=True)
class Written:
    """One deployment as the page calls it: its functions, and what its kernels are."""

    static: Instance
    loads: dict[str, Instance]  #: what users feel at a `rate` of arrivals, or as so many `users`
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
        self._functions: dict[tuple[Any, ...], list[tuple[Kernel, Instance]]] = {}
        self._calls: dict[tuple[Any, ...], list[KernelTime]] = {}
        self._phased: set[Operation] = set()  #: that ask which sequences are prompts and which answers
        self._kept: list[Any] = []  # what keys name by its place
        self.patterns: dict[Any, int] = {}  #: of steps, each with its number

    def write(self, predictor: Predictor, questions: Iterable[LoadQuestion] = (), fixed: bool = False) -> Written:
        """Trace a deployment; further functions answer `questions`, and `fixed` says that the context is given."""
        steps: list[tuple[KernelTime, ...]] = []

        def static(batch: Any, isl: Any, osl: Any, speed: Any, **more: Any) -> list[Any]:
            outlined = self._outlined(predictor, speed)
            prompt = outlined.plan.prompt(isl)
            work = Workload(batch, prompt, osl, more["cached"], more["context"] if fixed else None)
            point = outlined.evaluate(work)
            steps[:] = point.prefill.kernels, point.decode.kernels
            rates = _rates(point.output_rate(batch, osl), predictor, point.tpot)
            rows = [[_row(each, outlined.plan.energy(each)) for each in step] for step in steps]
            gpu = predictor.plan.system.accelerator
            faster = replace(gpu, memory_bandwidth=gpu.memory_bandwidth * speed)
            parts = [list(time_parts(step, faster).values()) for step in (point.prefill, point.decode)]
            energy = _energy(static_energy(outlined, work, point), work) if gpu.power else 0.0
            ends = _ends(point.ttft), _ends(point.tpot)
            return [*ends, _memory(point.memory), point.e2e(osl), rates, energy, *rows, parts]

        instance = self._added(static, INPUTS)
        parts: dict[str, tuple[Instance, Any]] = {}
        under = {load_kind(question): self._loaded(predictor, question, parts) for question in questions}
        gpu = predictor.plan.system.accelerator
        named = (  # name, family, launches and peak of each kernel
            tuple((k.name, k.family, k.count, 0.0 if k.family == "host" else gpu.peak(k.dtype))
                  for k in (timed.kernel for timed in step))
            for step in steps
        )  # fmt: skip
        kinds = [self.steps.setdefault(each, len(self.steps)) for each in named]
        return Written(instance, under, predictor.plan.deployment.gpus, *kinds)

    def _loaded(self, predictor: Predictor, question: LoadQuestion, parts: dict[str, tuple[Instance, Any]]) -> Instance:
        """What users feel.

        What is asked for more than once is a function of its own among the `parts` of a deployment: the times that
        requests share, a closed loop of users, an open loop at a rate, and the energy of requests in flight. Questions
        differ in the load.
        """
        follow = question.users is not None and follows(predictor.plan)

        def loaded(load: Any, isl: Any, osl: Any, speed: Any) -> list[Any]:
            outlined, lengths = self._outlined(predictor, speed), [isl, osl, speed]
            traffic = replace(question.traffic, isl=predictor.plan.prompt(isl), osl=osl)

            def part(name: str, function: Callable[..., Any], **given: Any) -> Any:
                """What a function of these symbols gives, as a call."""
                if name not in parts:
                    made: list[Any] = []

                    def run(**at: Any) -> list[Any]:
                        made[:] = [function(*(at[each] for each in given))]
                        return _symbols(made[0])

                    parts[name] = self._added(run, (*given, *_LENGTHS)), made[0]
                instance, whole = parts[name]
                return _rebuilt(whole, iter(call(instance, [*given.values(), *lengths], len(_symbols(whole)))))

            def shared(users: Any) -> Shared:
                return replace(shared_times(outlined, traffic.of(users, follow)), turning=None)

            def known(users: Any) -> Shared:
                times: Shared = part("times in step" if follow else "times", shared, users=users)
                return times

            def closed(users: Any) -> Loaded:
                loop: Loaded = part("closed", lambda users: closed_loop(outlined, users, traffic, known), users=users)
                return loop

            def served(running: Any) -> TokenEnergy | None:
                return served_energy(outlined, traffic, replace(answer.loaded, running=running))

            asked = replace(question, traffic=traffic, **{load_kind(question): load})
            if question.users is None:
                alike = OpenLoop.of(outlined, traffic, known, closed=None if follows(predictor.plan) else closed)
                loop = _OpenLoop(**{entry.name: getattr(alike, entry.name) for entry in fields(alike)}, part=part)
                found = loop.within(load)
                answer = LoadAnswer(found, spread(found, traffic, False), asked)
            else:
                found = closed(load)
                answer = LoadAnswer(found, spread(found, traffic, True), asked)
            felt = [
                *(getattr(found, name) for name in LOADED),
                slots(predictor, traffic.isl, osl, osl_cv=traffic.osl_cv),
            ]
            made = minimum(found.rate, found.knee) * osl
            energy: Any = part("energy", served, running=found.running)
            if energy is not None:
                energy = _energy(energy, Workload(1.0, traffic.isl, osl, traffic.cached), made)
            rates = _rates(made, predictor, found.tpot)
            return [_ends(found.ttft), _ends(found.tpot), felt, _memory(answer.memory(predictor)), rates, energy or 0.0]

        return self._added(loaded, ("load", *_LENGTHS))

    def _added(self, function: Callable[..., list[Any]], inputs: Sequence[str]) -> Instance:
        """A function whose outputs are numbers, and lists of them."""

        def nested(value: Any) -> Any:
            return array(list(map(nested, value)), self.pool) if isinstance(value, list) else value

        return self.library.add(trace(lambda **at: list(map(nested, function(**at))), inputs, pool=self.pool))

    def printed(self) -> Printed:
        """All of it as JavaScript."""
        return self.library.printed()

    def _outlined(self, predictor: P, speed: Symbol) -> P:
        """The same, its kernels calls."""

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
        """The kernels of one operation as calls of functions of the batch.

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
                return self.kernels(plan, operation, step, costs)
            key = keys[cached]
            self._functions[key] = functions
        place = key, places
        if place not in self._calls:
            self._calls[place] = [_called(function, values) for function in self._functions[key]]
        return self._calls[place]

    def place(self, part: Any) -> int:
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

        def run(speed: Any, **given: Any) -> list[list[Any]]:
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


@dataclass(frozen=True)
class _OpenLoop(OpenLoop):
    """An open loop whose operating points are calls of one function; with the datasheet's rates they are worked out."""

    part: Callable[..., Any] = field(kw_only=True)

    def at(self, rate: Numeric) -> Loaded:
        """What users feel at a rate."""
        whole = {name: getattr(self, name) for name in ("places", "most", "knee")}
        given = {f"{name}{n}": each for name, part in whole.items() for n, each in enumerate(_symbols(part))}

        def run(rate: Any, *symbols: Any) -> Loaded:
            left = iter(symbols)
            return OpenLoop(self.flow, **{name: _rebuilt(part, left) for name, part in whole.items()}).at(rate)

        found: Loaded = self.part("loop", run, rate=rate, **given)
        return found


def _symbols(whole: Any) -> list[Any]:
    """The symbols in the fields of dataclasses."""
    if is_dataclass(whole):
        return [symbol for entry in fields(whole) for symbol in _symbols(getattr(whole, entry.name))]
    return [whole] if isinstance(whole, Symbol) else []


def _rebuilt(whole: Any, symbols: Iterator[Any]) -> Any:
    """The same with others in their places."""
    if is_dataclass(whole) and not isinstance(whole, type):
        return replace(whole, **{each.name: _rebuilt(getattr(whole, each.name), symbols) for each in fields(whole)})
    return next(symbols) if isinstance(whole, Symbol) else whole


def _called(function: tuple[Kernel, Instance], values: dict[str, Any]) -> KernelTime:
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
        return (
            *map(self.program.place, (self.system, self.calibration, self.engine)),
            precision.stream,
            deployment.dp,
            deployment.cp,
        )

    def apart(self, batch: Batch, costs: StepCosts | None, grows: bool | None = None) -> list[KernelTime]:
        """The kernels of a step with their times, as calls."""
        chosen = [each for each in self.numbered if grows is None or each[1][0].grows is grows]
        step = _Step(batch, self.speed, self.program.patterns)
        return [timed for each in chosen for timed in self.program.kernels(self, each, step, costs)]


@dataclass(frozen=True)
class _Counts:
    """What most operations ask of a step."""

    tokens: Any
    sequences: Any
    sampled_rows: Any
    filled: Any

    @classmethod
    def of(cls, batch: Batch) -> _Counts:
        return cls(batch.tokens, batch.sequences, batch.sampled_rows, batch.filled)


_FORMS = ("span", "filled", "ragged")
"""Numbers of a step that are arguments only where they are symbols: formulas differ where they are 1."""


class _Step:
    """A step, and its counts alone: the pattern, names in place of numbers; its number; what names stand for; a key."""

    def __init__(self, batch: Batch, speed: Symbol, patterns: dict[Any, int]) -> None:
        self.batch, self.speed, self.patterns = batch, speed, patterns

    @cached_property
    def whole(self) -> tuple[Any, int, dict[str, Any], tuple[Any, ...]]:
        """All of it."""
        return self._named(self.batch)

    @cached_property
    def counts(self) -> tuple[Any, int, dict[str, Any], tuple[Any, ...]]:
        """What most operations ask."""
        return self._named(_Counts.of(self.batch))

    def _named(self, batch: Any) -> tuple[Any, int, dict[str, Any], tuple[Any, ...]]:
        values: dict[str, Any] = {"speed": self.speed}

        def name(own: str, value: Any) -> Any:
            if own in _FORMS and not isinstance(value, Symbol):
                return value
            values[f"a{len(values)}"] = value
            return f"a{len(values) - 1}"

        pattern = _mapped(batch, name)
        places = tuple(each.index if isinstance(each, Symbol) else (each,) for each in values.values())
        return pattern, self.patterns.setdefault(pattern, len(self.patterns)), values, places


def _mapped(batch: Any, change: Callable[[str, Any], Any]) -> Any:
    """The same step with other numbers."""
    found = {entry.name: getattr(batch, entry.name) for entry in fields(batch)}
    for name, value in found.items():
        if value is not None:
            found[name] = _mapped(value, change) if isinstance(value, Sequences) else change(name, value)
    return type(batch)(**found)


def load_kind(question: LoadQuestion) -> str:
    """What the slider of a load counts."""
    return "rate" if question.users is None else "users"


def values(timed: KernelTime, energy: Energy) -> list[Any]:
    """What the page is told of a kernel: its times, the expected one by cause [s], its work and its energy [J]."""
    split: dict[str, Any] = time_by_cause(timed)
    return _row(replace(timed, **split), energy)


def _row(timed: KernelTime, energy: Energy) -> list[Any]:
    """The same where the split by cause stands in place of what each resource alone would need."""
    spent = [getattr(energy, name) for name in PARTS]
    return [*(getattr(timed, name) for name in _TIMES), *(getattr(timed.kernel, name) for name in _WORK), *spent]


def _energy(tokens: TokenEnergy, work: Workload, rate: Any = None) -> list[Any]:
    """Power of a board [W], share of busy time, joules of an output token, and three lists by part.

    Of an output token, prompt and waiting included; of its share of a decode step; of a prompt token. `rate`: output
    tokens a second under load; None of a static batch.
    """
    found = load_power(tokens, work.osl, rate, lone=1.0 if rate is None else 0.0)
    each = tokens.prompt.times(1.0 / (work.isl - work.cached))
    parts = [[getattr(energy, name) for name in PARTS] for energy in (found.energy, tokens.step, each)]
    return [[found.watts, found.busy, found.joules_per_output_token], *parts]


def _ends(time: Time) -> list[Any]:
    return [getattr(time, end) for end in ENDS]


def _memory(memory: Memory) -> list[Any]:
    return [getattr(memory, name) for name in MEMORY]


def _rates(rate: Any, predictor: Predictor, tpot: Time) -> list[Any]:
    """Output tokens a second: of all, of one accelerator, of one user."""
    return [rate, rate / predictor.plan.deployment.gpus, 1.0 / tpot.expected]

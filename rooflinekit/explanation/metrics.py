"""Which number of an answer a metric is, traced from the question down to the datasheet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rooflinekit.estimation.results import Estimate
from rooflinekit.explanation.leaves import Leaves
from rooflinekit.model.graph import Pool, Quantity, Symbol, fact, named
from rooflinekit.model.layers import Precision, model_operations
from rooflinekit.model.memory.capacity import Memory, MemoryModel
from rooflinekit.model.operating_point import OperatingPoint, Predictor
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.roofline import StepTime
from rooflinekit.model.step import Plan
from rooflinekit.model.traffic.closed_form import FORM, LITTLE, Loaded, closed_loop, largest_rate, steady
from rooflinekit.model.traffic.mixing import InFlight, shared_times, slots
from rooflinekit.model.traffic.percentiles import QUANTILES, spread
from rooflinekit.model.traffic.question import LoadQuestion
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import InputError, UnknownNameError, WorkloadError, nearest
from rooflinekit.model.types.time import KernelTime
from rooflinekit.model.types.workload import Workload

__all__ = ["METRICS", "TIMELESS", "Case", "Found", "find_metric", "full_name", "layers_dtype"]

_ASKED = "the question"
_INPUTS = {
    "batch": Quantity("batch", "sequences", "", _ASKED),
    "isl": Quantity("isl", "tokens of a prompt", "", _ASKED),
    "osl": Quantity("osl", "output tokens", "", _ASKED),
    "cached": Quantity("cached", "tokens of a prompt that are in the cache", "", _ASKED),
    "context": Quantity("context", "keys of the decode step", "", _ASKED),
    "users": Quantity("users", "users of the closed loop", "", _ASKED),
    "rate": Quantity("rate", "requests a second that arrive", "1/s", _ASKED),
    "isl_cv": Quantity("isl_cv", "variation of the prompt lengths", "", _ASKED),
    "osl_cv": Quantity("osl_cv", "variation of the output lengths", "", _ASKED),
    "arrival_cv": Quantity("arrival_cv", "variation of the gaps between arrivals", "", _ASKED),
    "requests": Quantity("requests", "requests that each user sends", "", _ASKED),
}


@dataclass(frozen=True)
class Case:
    """What was asked, what `estimate` answered, and the predictor behind it."""

    predictor: Predictor
    work: Workload
    load: LoadQuestion | None
    answer: Estimate

    @property
    def held(self) -> tuple[float, float, float]:
        """Sequences, tokens of each and new tokens of a prompt, as the memory of the answer has them."""
        work = self.work
        if self.load is None:
            return float(work.batch), float(work.longest_context), float(work.isl - work.cached)
        return float(work.batch), float(work.isl) + float(work.osl) / 2.0, float(work.isl)


class Traced:
    """A case whose numbers are symbols with values; a 0 stays a number, so that what is absent is not explained."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._pool = Pool()
        self.leaves = Leaves(self._pool)

    def _input(self, name: str, value: Any) -> Any:
        if value is None or value == 0.0 or math.isinf(value):
            return value
        self._pool.values[name] = float(value)
        return self._pool.variable(name, _INPUTS[name])

    def line(self, output: Any, symbol: str, unit: str) -> Symbol:
        """What was traced; a 0 that nothing leads to is a line of its own."""
        if isinstance(output, Symbol):
            return output
        return self._pool.fact(float(output), Quantity(symbol, "nothing of this kind", unit, "no kernel, no number"))

    @cached_property
    def plan(self) -> Plan:
        """The plan of the target model as it was resolved."""
        return self.case.predictor.plan

    @cached_property
    def predictor(self) -> Predictor:
        """With leaves."""
        return self.leaves.predictor(self.case.predictor, self.memory_model)

    @cached_property
    def work(self) -> Workload:
        """The workload; under load, as many sequences as run."""
        work, load = self.case.work, self.case.load
        sizes = {name: self._input(name, getattr(work, name)) for name in ("isl", "osl", "cached", "context")}
        running = Quantity("running", "sequences that run, as a whole number", "", FORM)
        batch: Any = self._input("batch", work.batch)
        if load is not None:
            batch = self._pool.fact(float(work.batch), running)
        return Workload(batch, **sizes)

    @cached_property
    def point(self) -> OperatingPoint:
        """The static batch."""
        return self.predictor.evaluate(self.work)

    # --- memory ------------------------------------------------------------------------------------------------------

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
        """What the batch needs."""
        work = self.work
        if self.case.load is None:
            sizes = work.batch, work.longest_context, work.isl - work.cached
        else:
            sizes = work.batch, work.isl + work.osl / 2.0, work.isl
        return _named(self.memory_model.evaluate(*sizes))

    # --- load --------------------------------------------------------------------------------------------------------

    @property
    def question(self) -> LoadQuestion:
        """The load; raises InputError where none is asked for."""
        load = self.case.load
        if load is None:
            raise InputError("not a load")
        return load

    @cached_property
    def asked(self) -> LoadQuestion:
        """The load in symbols."""
        load, traffic = self.question, self.question.traffic
        told = {name: self._input(name, getattr(traffic, name)) for name in ("isl_cv", "osl_cv", "requests")}
        gaps = self._input("arrival_cv", traffic.arrival_cv) if load.rate is not None else traffic.arrival_cv
        lengths = {"isl": self.work.isl, "osl": self.work.osl}
        users, rate = self._input("users", load.users), self._input("rate", load.rate)
        return replace(load, users=users, rate=rate, traffic=replace(traffic, arrival_cv=gaps, **told, **lengths))

    @cached_property
    def loaded(self) -> Loaded:
        """The closed form; of an open loop with the sequences that the answer found to run."""
        asked, predictor = self.asked, self.predictor
        if asked.rate is None:
            return closed_loop(predictor, asked.users or 0.0, asked.traffic)
        answered = self.case.answer.load
        if answered is None or not answered.stable:
            return replace(closed_loop(predictor, self.room, asked.traffic), knee=self.knee)
        running: Any = self._pool.fact(answered.running, Quantity(*LITTLE, source=FORM))
        return steady(self._times, running, asked.rate, asked.traffic, self.room, self.knee)

    def _times(self, running: Any) -> Any:
        traffic = self.asked.traffic
        return shared_times(self.predictor, InFlight(running, traffic.isl, traffic.osl, traffic.cached))

    @cached_property
    def room(self) -> Any:
        """Sequences that can run at once."""
        traffic = self.asked.traffic
        return slots(self.predictor, traffic.isl, traffic.osl, traffic.most)

    @cached_property
    def knee(self) -> Any:
        """The largest rate."""
        return largest_rate(self.predictor, self.asked.traffic, self.room, self._times)

    def endless(self, what: str) -> None:
        """Raise WorkloadError where the queue has no end."""
        answered, rate = self.case.answer.load, self.question.rate
        if answered is not None and not answered.stable:
            raise WorkloadError(
                f"{what} has no limit at {rate:g} requests/s: the knee is {answered.knee_rate:.4g}; "
                "explain knee_rate or tpot, or ask for a lower --rate"
            )
        if answered is not None and (answered.queue_ms is None or math.isinf(answered.queue_ms)):
            raise WorkloadError(f"{what} has no limit")

    # --- steps -------------------------------------------------------------------------------------------------------

    def step(self, name: str) -> StepTime:
        """The step whose kernels `estimate` lists under `prefill` or `decode`."""
        if name == "decode":
            return self.predictor.decode_step(self.work)
        if self.case.load is not None:
            return self.predictor.plan.time(Batch.prefill(1.0, self.work.isl))
        return self.predictor.plan.time(self.predictor.prefill_batch(self.work))


def _named(memory: Memory) -> Memory:
    """Every number under the name that its field declares."""
    told = {name: entry.metadata["quantity"] for name, entry in Memory.__dataclass_fields__.items() if entry.metadata}
    changed = {name: named(getattr(memory, name), q.symbol, q.meaning, q.unit) for name, q in told.items()}
    return replace(memory, **changed)


@dataclass(frozen=True)
class Found:
    """A metric by its full name: unit shown, scale from SI, and the traced number."""

    name: str
    unit: str
    scale: float
    output: Any


Metric = tuple[str, float, Callable[[Traced], Any]]


def _latency(name: str) -> Callable[[Traced], Any]:
    def build(traced: Traced) -> Any:
        if traced.case.load is not None:
            if name != "tpot":
                traced.endless(name.upper())
            found = getattr(traced.loaded, name)
            return found if name == "e2e" else found.expected
        point = traced.point
        return point.e2e(traced.work.osl) if name == "e2e" else getattr(point, name).expected

    return build


def _output(traced: Traced) -> Any:
    if traced.case.load is None:
        rate = traced.point.output_rate(traced.work.batch, traced.work.osl)
        return named(rate, "output", "output tokens a second, prefill included", "token/s")
    return named(_served(traced) * traced.asked.traffic.osl, "output", "output tokens a second", "token/s")


def _served(traced: Traced) -> Any:
    """Requests a second: those that arrive, at most the knee; of a closed loop its own rate."""
    asked = traced.asked.rate
    if asked is None:
        return traced.loaded.rate
    stable = traced.case.answer.load is not None and traced.case.answer.load.stable
    return named(asked if stable else traced.knee, "served", "requests a second that are served", "1/s")


def _of_load(build: Callable[[Traced], Any], name: str) -> Callable[[Traced], Any]:
    def asked(traced: Traced) -> Any:
        if traced.case.load is None:
            raise InputError(f"{name} is a metric under load; add --concurrency or --rate")
        return build(traced)

    return asked


def _queue(traced: Traced) -> Any:
    traced.endless("a wait")
    return traced.loaded.queue


def _knee(traced: Traced) -> Any:
    return traced.loaded.rate if traced.question.rate is None else traced.knee


def _percentile(time: str, share: float) -> Callable[[Traced], Any]:
    def build(traced: Traced) -> Any:
        if time != "tpot":
            traced.endless(time.upper())
        times = spread(traced.loaded, traced.asked.traffic, traced.question.rate is None)
        title = f"{100 * share:.0f} % of the requests have at most this {time.upper()}"
        found = getattr(times, time)(share)
        return named(found, f"{time}_p{100 * share:.0f}", title, "s", "docs/serving.md, percentiles")

    return build


def _per_gpu(traced: Traced) -> Any:
    gpus = fact(traced.plan.deployment.gpus, "gpus", "accelerators", "", _ASKED)
    return named(_output(traced) / gpus, "per_gpu", "output tokens a second and accelerator", "token/s")


def _per_user(traced: Traced) -> Any:
    rate = 1.0 / _latency("tpot")(traced)
    return named(rate, "per_user", "output tokens a second of one user, while decoding", "token/s")


def _max_context(traced: Traced) -> Any:
    longest = traced.memory.max_context
    if math.isinf(float(longest)):
        raise InputError(f"nothing limits the context of {traced.plan.model.name}: its cache does not grow")
    return longest


def _parameters(traced: Traced) -> Any:
    plan = traced.plan
    precision = Precision(plan.model.dtype, plan.model.dtype, plan.model.formats)
    counts = model_operations(plan.model, Deployment(), precision)
    total = sum(traced.leaves.modules(plan, counts, lambda weights: weights.count, ""), 0.0)
    return named(total, "P", f"parameters of {plan.model.name}")


def _active(traced: Traced) -> Any:
    idle = count_parameters(traced.plan.model).inactive_experts
    unvisited = fact(idle, "idle", "weights of routed experts that one token does not visit", "", _COUNT)
    active = _parameters(traced) - (unvisited if idle else 0.0)
    return named(active, "P_active", "parameters that one token visits")


_COUNT = "rooflinekit.model.parameter_count"


def layers_dtype(plan: Plan) -> Dtype:
    """Format in which most of the layers' matrices are multiplied."""
    return plan.precision.compute(getattr(plan.precision.formats, plan.model.matrices[-1]))


def _ridge(traced: Traced) -> Any:
    dtype = layers_dtype(traced.plan)
    title = f"ridge point in {dtype.unit.value}: below it memory limits, above it arithmetic"
    return named(traced.leaves.system(traced.plan.system).accelerator.ridge(dtype), "ridge", title, "FLOP/B")


def _total(traced: Traced) -> Any:
    return named(traced.memory.total_bytes, "total", "memory of the busiest accelerator", "B")


METRICS: dict[str, Metric] = {
    **{name: ("ms", 1e3, _latency(name)) for name in ("ttft", "tpot", "e2e")},
    "output_tok_s": ("token/s", 1.0, _output),
    "queue": ("ms", 1e3, _of_load(_queue, "queue")),
    "knee_rate": ("1/s", 1.0, _of_load(_knee, "knee_rate")),
    "rate": ("1/s", 1.0, _of_load(_served, "rate")),
    **{
        f"{time}_p{100 * q:.0f}": ("ms", 1e3, _of_load(_percentile(time, q), f"{time}_p{100 * q:.0f}"))
        for time in ("ttft", "tpot", "e2e")
        for q in QUANTILES
    },
    "output_tok_s_per_gpu": ("token/s", 1.0, _per_gpu),
    "output_tok_s_per_user": ("token/s", 1.0, _per_user),
    "memory": ("B", 1.0, _total),
    "weights": ("B", 1.0, lambda traced: traced.memory.weight_bytes),
    "kv": ("B", 1.0, lambda traced: traced.memory.kv_bytes),
    "activations": ("B", 1.0, lambda traced: traced.memory.activation_bytes),
    "overhead": ("B", 1.0, lambda traced: traced.memory.overhead_bytes),
    "kv_pool": ("B", 1.0, lambda traced: traced.memory.kv_pool_bytes),
    "max_batch": ("sequences", 1.0, lambda traced: traced.memory.max_batch),
    "max_context": ("tokens", 1.0, _max_context),
    "kv_per_token": ("B", 1.0, lambda traced: traced.leaves.cache_per_token(traced.plan, traced.plan.model.layers)),
    "params": ("", 1.0, _parameters),
    "params_active": ("", 1.0, _active),
    "ridge": ("FLOP/B", 1.0, _ridge),
}
"""Metrics that do not name a step: unit shown, its scale, and how the number is traced."""

COUNTED = ("params", "params_active", "kv_per_token", "ridge")
"""Of a model or an accelerator, whatever is deployed."""

TIMELESS = (*COUNTED, "memory", "weights", "kv", "activations", "overhead", "kv_pool", "max_batch", "max_context")
"""Metrics that no step has a part in; they are explained whether the deployment fits or not."""

ALIASES = {
    "total_bytes": "memory",
    "weight_bytes": "weights",
    "kv_bytes": "kv",
    "activation_bytes": "activations",
    "overhead_bytes": "overhead",
    "kv_pool_bytes": "kv_pool",
    "kv_bytes_per_token": "kv_per_token",
    "parameters": "params",
    "params_total": "params",
    "ridge_point": "ridge",
    "knee": "knee_rate",
    "total": "memory",
    "throughput": "output_tok_s",
    **{kind: f"decode.{kind}" for kind in ("flops", "bytes", "intensity", "bound", "mfu", "mbu")},
}
"""Other names: those of the JSON, and short ones."""


def full_name(name: str) -> str:
    """A metric as METRICS calls it.

    >>> full_name("KV-bytes-per-token"), full_name("ttft_p99_ms")
    ('kv_per_token', 'ttft_p99')
    """
    folded = name.strip().lower().replace("-", "_")
    return ALIASES.get(folded.removesuffix("_ms"), folded.removesuffix("_ms"))


def find_metric(case: Case, name: str) -> Found:
    """A metric, traced: a name of METRICS, or `decode`, `decode.flops`, `decode.attention.bytes` and the like.

    Raises UnknownNameError with the nearest names.
    """
    folded, traced = full_name(name), Traced(case)
    if folded in METRICS:
        unit, scale, build = METRICS[folded]
        return Found(folded, unit, scale, traced.line(build(traced), folded, unit))
    found = _of_step(traced, folded)
    if found is None:
        known = [*METRICS, *ALIASES, *_names_of_steps(case)]
        raise UnknownNameError("metric", name, known if nearest(name, known) else _FIRST)
    return found


_FIRST = ("tpot", "ttft", "memory", "max_batch", "kv_per_token", "params", "decode", "decode.attention")

# --- steps and their kernels -----------------------------------------------------------------------------------------


def _work(what: str, unit: str, size: Callable[[Any], Any]) -> Callable[[KernelTime], Any]:
    return lambda timed: named(
        timed.kernel.count * size(timed.kernel), timed.kernel.name, f"{what} of all launches", unit
    )


_KINDS: dict[str, tuple[str, float, Callable[[KernelTime], Any]]] = {
    "time": ("ms", 1e3, lambda timed: timed.expected),
    "bound": ("ms", 1e3, lambda timed: named(timed.bound, timed.kernel.name, "datasheet bound of all launches", "s")),
    "flops": ("FLOP", 1.0, _work("work", "FLOP", lambda kernel: kernel.flops)),
    "bytes": ("B", 1.0, _work("traffic", "B", lambda kernel: named(kernel.bytes, "bytes", "of one launch", "B"))),
}
_TITLES = {"time": "one {} step", "bound": "datasheet bound of one {} step", "flops": "work of one {} step",
           "bytes": "traffic of one {} step"}  # fmt: skip
_SHARES = ("intensity", "mfu", "mbu")


def _of_step(traced: Traced, folded: str) -> Found | None:
    """A step, or one kernel of it; None where no kernel has this name."""
    step, _, rest = folded.partition(".")
    kernel, _, kind = rest.rpartition(".")
    if kind not in (*_KINDS, *_SHARES):
        kernel, kind = rest, "time"
    names = _kernel_names(traced.case, step)
    if step not in _STEPS or "" in folded.split(".") or (kernel and (kernel not in names or kind in _SHARES[1:])):
        return None
    timed = [each for each in traced.step(step).kernels if kernel in ("", each.kernel.name)]
    parts = (step, kernel, "" if kind == "time" else kind)
    name = ".".join(part for part in parts if part)
    if kind in _SHARES:
        unit = "FLOP/B" if kind == "intensity" else ""
        return Found(name, unit, 1.0, traced.line(_share(kind, traced, step, timed), kind, unit))
    unit, scale, size = _KINDS[kind]
    title = f"all kernels named {kernel}" if kernel else _TITLES[kind].format(step)
    total = sum((size(each) for each in timed), 0.0)
    if len(timed) > 1 or not kernel:
        total = named(total, kernel or step, title, {"ms": "s"}.get(unit, unit))
    total = traced.line(total, kernel or step, {"ms": "s"}.get(unit, unit))
    unit, scale = ("µs", 1e6) if kernel and unit == "ms" else (unit, scale)
    return Found(name, unit, scale, total)


_STEPS = ("prefill", "decode")


def _share(kind: str, traced: Traced, step: str, timed: list[KernelTime]) -> Any:
    """FLOP for each byte; the share of the time that the arithmetic, or weights and cache, would need at the peak."""
    flops, moved = (sum((_KINDS[each][2](one) for one in timed), 0.0) for each in ("flops", "bytes"))
    flops, moved = named(flops, "FLOP", "work of all", "FLOP"), named(moved, "bytes", "traffic of all", "B")
    if kind == "intensity":
        ratio = flops / moved if float(moved) else 0.0
        return named(ratio, "intensity", f"FLOP for each byte of {step}", "FLOP/B")
    gpu = traced.predictor.plan.system.accelerator
    time = named(sum((each.expected for each in timed), 0.0), step, f"one {step} step", "s")
    if kind == "mfu":
        needed = [named(n.kernel.count * n.kernel.flops / gpu.peak(n.kernel.dtype), n.kernel.name, "at the peak", "s")
                  for n in timed]  # fmt: skip
        ideal = named(sum(needed, 0.0), "ideal", "what the arithmetic takes at the peak", "s")
        return named(ideal / time, "mfu", "of the time, that the arithmetic would take at the peak")
    streamed = [
        named(k.count * (k.weight_bytes + k.kv_read_bytes + k.kv_write_bytes), k.name, "weights and cache", "B")
        for k in (each.kernel for each in timed)
    ]
    streams = named(sum(streamed, 0.0), "streamed", "bytes of weights and cache", "B")
    return named(streams / gpu.memory_bandwidth / time, "mbu", "of the time, that weights and cache take at the peak")


def _kernel_names(case: Case, step: str) -> list[str]:
    found = getattr(case.answer, step, None) if step in _STEPS else None
    return [] if found is None else list(dict.fromkeys(kernel.name for kernel in found.kernels))


def _names_of_steps(case: Case) -> list[str]:
    """All metrics of the two steps."""
    names = []
    kinds = [f".{kind}" for kind in (*_KINDS, *_SHARES) if kind != "time"]
    for step in _STEPS:
        whole = [step, *(f"{step}.{kernel}" for kernel in _kernel_names(case, step))]
        names += [f"{name}{kind}" for name in whole for kind in ("", *kinds)]
    return names

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
from rooflinekit.model.layers.build import model_operations
from rooflinekit.model.layers.precision import Precision
from rooflinekit.model.memory.capacity import Memory, MemoryModel
from rooflinekit.model.operating_point import OperatingPoint, Predictor
from rooflinekit.model.parameter_count import count_parameters
from rooflinekit.model.roofline import StepTime, peak_time, stream_time
from rooflinekit.model.step import Plan
from rooflinekit.model.traffic.closed_form import FORM, SHARING, Loaded, closed_loop, open_loop
from rooflinekit.model.traffic.percentiles import QUANTILES, spread
from rooflinekit.model.traffic.question import LoadQuestion
from rooflinekit.model.traffic.root import root
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.deployment import Deployment
from rooflinekit.model.types.dtype import Dtype
from rooflinekit.model.types.errors import InputError, UnknownNameError, WorkloadError, nearest
from rooflinekit.model.types.hardware import Accelerator
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

    @cached_property
    def asked(self) -> LoadQuestion:
        """The load in symbols; raises InputError where none is asked for."""
        load = self.case.load
        if load is None:
            raise InputError("not a load; add --concurrency or --rate")
        traffic = load.traffic
        told = {name: self._input(name, getattr(traffic, name)) for name in ("isl_cv", "osl_cv", "requests")}
        gaps = self._input("arrival_cv", traffic.arrival_cv) if load.rate is not None else traffic.arrival_cv
        lengths = {"isl": self.work.isl, "osl": self.work.osl}
        users, rate = self._input("users", load.users), self._input("rate", load.rate)
        return replace(load, users=users, rate=rate, traffic=replace(traffic, arrival_cv=gaps, **told, **lengths))

    @cached_property
    def loaded(self) -> Loaded:
        """The closed form, with the roots that the numbers have."""
        found: list[Any] = []

        def recorded(*what: Any) -> Any:
            found.append(root(*what))
            return found[-1]

        def again(*what: Any) -> Any:
            return self._pool.fact(float(found.pop(0)), Quantity(*SHARING, source=FORM))

        asked, told = self.asked, self.case.load
        assert told is not None
        if told.rate is None:
            closed_loop(self.case.predictor, told.users or 0.0, told.traffic, find=recorded)
            return closed_loop(self.predictor, asked.users or 0.0, asked.traffic, find=again)
        open_loop(self.case.predictor, told.rate, told.traffic, find=recorded)
        return open_loop(self.predictor, asked.rate or 0.0, asked.traffic, find=again)

    def endless(self, what: str) -> None:
        """Raise WorkloadError where the queue has no end."""
        answered, load = self.case.answer.load, self.case.load
        if load is not None and answered is not None and not answered.stable:
            raise WorkloadError(
                f"{what} has no limit at {load.rate:g} requests/s: the knee is {answered.knee_rate:.4g}; "
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


class _Metrics(Traced):
    """A method for each metric that does not name a step."""

    def ttft(self) -> Any:
        self.endless("TTFT")
        return (self.point if self.case.load is None else self.loaded).ttft.expected

    def tpot(self) -> Any:
        return (self.point if self.case.load is None else self.loaded).tpot.expected

    def e2e(self) -> Any:
        self.endless("E2E")
        return self.point.e2e(self.work.osl) if self.case.load is None else self.loaded.e2e

    def output_tok_s(self) -> Any:
        if self.case.load is None:
            rate = self.point.output_rate(self.work.batch, self.work.osl)
            return named(rate, "output", "output tokens a second, prefill included", "token/s")
        return named(self.rate() * self.work.osl, "output", "output tokens a second", "token/s")

    def output_tok_s_per_gpu(self) -> Any:
        gpus = fact(self.plan.deployment.gpus, "gpus", "accelerators", "", _ASKED)
        return named(self.output_tok_s() / gpus, "per_gpu", "output tokens a second and accelerator", "token/s")

    def output_tok_s_per_user(self) -> Any:
        return named(1.0 / self.tpot(), "per_user", "output tokens a second of one user, while decoding", "token/s")

    def queue(self) -> Any:
        self.endless("a wait")
        return self.loaded.queue

    def knee_rate(self) -> Any:
        return self.loaded.knee

    def rate(self) -> Any:
        """Requests a second: those that arrive, at most the knee; of a closed loop its own rate."""
        rate, answered = self.asked.rate, self.case.answer.load
        if rate is None:
            return self.loaded.rate
        served = rate if answered is not None and answered.stable else self.loaded.knee
        return named(served, "served", "requests a second that are served", "1/s")

    def percentile(self, time: str, share: float) -> Any:
        if time != "tpot":
            self.endless(time.upper())
        times = spread(self.loaded, self.asked.traffic, self.asked.rate is None)
        title = f"{100 * share:.0f} % of the requests have at most this {time.upper()}"
        found = getattr(times, time)(share)
        return named(found, f"{time}_p{100 * share:.0f}", title, "s", "docs/serving.md, percentiles")

    def total(self) -> Any:
        return named(self.memory.total_bytes, "total", "memory of the busiest accelerator", "B")

    def max_context(self) -> Any:
        longest = self.memory.max_context
        if math.isinf(float(longest)):
            raise InputError(f"nothing limits the context of {self.plan.model.name}: its cache does not grow")
        return longest

    def kv_per_token(self) -> Any:
        return self.leaves.cache_per_token(self.plan, self.plan.model.layers)

    def params(self) -> Any:
        model = self.plan.model
        counts = model_operations(model, Deployment(), Precision(model.dtype, model.dtype, model.formats))
        total = sum(self.leaves.modules(self.plan, counts, lambda weights: weights.count, ""), 0.0)
        return named(total, "P", f"parameters of {model.name}")

    def params_active(self) -> Any:
        idle = count_parameters(self.plan.model).inactive_experts
        unvisited = fact(idle, "idle", "weights of routed experts that one token does not visit")
        return named(self.params() - (unvisited if idle else 0.0), "P_active", "parameters that one token visits")

    def ridge(self) -> Any:
        dtype = layers_dtype(self.plan)
        title = f"ridge point in {dtype.unit.value}: below it memory limits, above it arithmetic"
        return named(self.leaves.system(self.plan.system).accelerator.ridge(dtype), "ridge", title, "FLOP/B")


def layers_dtype(plan: Plan) -> Dtype:
    """Format in which most of the layers' matrices are multiplied."""
    return plan.precision.compute(getattr(plan.precision.formats, plan.model.matrices[-1]))


_TIMES, _RATES = ("ttft", "tpot", "e2e"), ("output_tok_s", "output_tok_s_per_gpu", "output_tok_s_per_user")
_PERCENTILES = {f"{time}_p{100 * share:.0f}": (time, share) for time in _TIMES for share in QUANTILES}
_MEMORY = {"weights": "weight_bytes", "kv": "kv_bytes", "activations": "activation_bytes",
           "overhead": "overhead_bytes", "kv_pool": "kv_pool_bytes", "max_batch": "max_batch"}  # fmt: skip
_LOADED = ("queue", "knee_rate", "rate", *_PERCENTILES)

METRICS: dict[str, tuple[str, float]] = {
    **dict.fromkeys((*_TIMES, "queue", *_PERCENTILES), ("ms", 1e3)),
    **dict.fromkeys(_RATES, ("token/s", 1.0)),
    **dict.fromkeys(("knee_rate", "rate"), ("1/s", 1.0)),
    **dict.fromkeys(("memory", "weights", "kv", "activations", "overhead", "kv_pool", "kv_per_token"), ("B", 1.0)),
    "max_batch": ("sequences", 1.0),
    "max_context": ("tokens", 1.0),
    **dict.fromkeys(("params", "params_active"), ("", 1.0)),
    "ridge": ("FLOP/B", 1.0),
}
"""Metrics that do not name a step: unit shown, and its scale."""

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
    folded, traced = full_name(name), _Metrics(case)
    if folded in METRICS:
        if folded in _LOADED and case.load is None:
            raise InputError(f"{folded} is a metric under load; add --concurrency or --rate")
        unit, scale = METRICS[folded]
        if folded in _PERCENTILES:
            output = traced.percentile(*_PERCENTILES[folded])
        elif folded in _MEMORY:
            output = getattr(traced.memory, _MEMORY[folded])
        else:
            output = getattr(traced, "total" if folded == "memory" else folded)()
        return Found(folded, unit, scale, traced.line(output, folded, unit))
    found = _of_step(traced, folded)
    if found is None:
        known = [*METRICS, *ALIASES, *_names_of_steps(case)]
        raise UnknownNameError("metric", name, known if nearest(name, known) else _FIRST)
    return found


_FIRST = ("tpot", "ttft", "memory", "max_batch", "kv_per_token", "params", "decode", "decode.attention")

# --- steps and their kernels -----------------------------------------------------------------------------------------

_STEPS = ("prefill", "decode")
_SIZES: dict[str, tuple[str, str, Callable[[KernelTime, Accelerator], Any]]] = {
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
"""What only a whole step has."""


def _of_step(traced: Traced, folded: str) -> Found | None:
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

    def total(kind: str, symbol: str) -> Any:
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
    return Found(name, unit, scale, traced.line(output, kernel or step, {"ms": "s", "µs": "s"}.get(unit, unit)))


def _kernel_names(case: Case, step: str) -> list[str]:
    found = getattr(case.answer, step, None) if step in _STEPS else None
    return [] if found is None else list(dict.fromkeys(kernel.name for kernel in found.kernels))


def _names_of_steps(case: Case) -> list[str]:
    """All metrics of the two steps."""
    kernels = [f"{step}.{kernel}" for step in _STEPS for kernel in _kernel_names(case, step)]
    wholes = [f"{step}.{kind}" for step in _STEPS for kind in _KINDS]
    parts = [f"{name}.{kind}" for name in kernels for kind in _KINDS if kind not in _OF_STEPS]
    return [*_STEPS, *kernels, *wholes, *parts]

"""The front door of levers: every move tried and ranked; names and keywords in, `Levers` out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Unpack

from rooflinekit.decision.economics.cost import refuse_misfit
from rooflinekit.decision.economics.price import (
    PRICE_KEYS,
    HourlyPrice,
    co2_per_million,
    priced_names,
    quotes_of,
    read_carbon,
    read_price,
)
from rooflinekit.decision.sensitivity.moves import (
    METRICS,
    Advice,
    MoveAnswer,
    MoveQuestion,
    MoveResult,
    Operating,
    Setting,
    Tried,
    best,
    candidates,
    move,
    moves,
    operate,
    overload,
    said_best,
    try_move,
    weaker,
)
from rooflinekit.estimation.estimator import (
    image_inputs,
    read_deployment,
    read_workload,
    refuse_static,
    resolve,
    shown,
)
from rooflinekit.estimation.options import keywords, part_of, quantity, read
from rooflinekit.estimation.results import about, shares_by_cause
from rooflinekit.estimation.scenario import DEPLOYMENT_KEYS, SPECULATION_KEYS, LeversOptions
from rooflinekit.estimation.traffic import read_load
from rooflinekit.load.answer import Load
from rooflinekit.load.lengths import LogNormal
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.serving.energy import static_power
from rooflinekit.model.timing.calibrated import BORROWED, FamilyFit, Fits
from rooflinekit.model.timing.forms import parameters
from rooflinekit.model.types.answer import DeploymentAnswer, Json
from rooflinekit.model.types.batch import Batch, positive
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.speculation import Speculation
from rooflinekit.model.types.workload import Workload
from rooflinekit.specs import load_accelerator, load_model, names
from rooflinekit.specs.calibration.choose import for_serving
from rooflinekit.specs.calibration.evidence import measured_here
from rooflinekit.specs.calibration.load import calibration_names, kernel_entry, load_calibration
from rooflinekit.specs.files import table_of

RESOURCES = ("bandwidth", "flops", "network", "power", "launch", "host")
"""Rates of memory, arithmetic and links; the board's power limit; latencies of kernels; time of the engine's host."""

_HOST = ("step", "ranks", "sequence", "sequence_ranks", "layer", "launch", "request", "token")
_LINKS = ("link_bandwidth", "nic_bandwidth")
_MANY, _FIFTH = 2000, 0.2  # requests of an elasticity at least, and how much equal lengths vary
_STEP = 1.1  # ratio of both ends of a step of a load or a count; counts change by one at least
_FINE = 1.00001  # ratio of both ends of a step of a static batch


@dataclass(frozen=True)
class Elasticity:
    """One parameter, and the elasticity of each metric to it."""

    parameter: str
    ttft: float
    tpot: float
    throughput: float
    cost: float


def elasticities(predictor: Predictor, question: MoveQuestion) -> tuple[Elasticity, ...]:
    """Elasticity of TTFT, TPOT, throughput and cost to every parameter: ε = d ln(metric)/d ln(parameter).

    Times are homogeneous of degree 1 in what things take, so that by Euler's theorem every time has
    −ε(bandwidth) − ε(flops) − ε(network) − ε(power) + ε(launch) + ε(host) = 1.

    Args:
        predictor: the deployment.
        question: the static batch, or the load.

    Returns:
        One entry a parameter: the six resources of `scaled`; `batch`, `users` or `rate`; and `context` (prompt length,
        or the context of the decode step where one is given). Throughput is output tokens a second, cost accelerator
        seconds of an output token: one is minus the other. A load is played with the same requests at both ends of a
        step of 10 %; equal lengths vary by a fifth there, because first tokens of users in step jump.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> from rooflinekit.model.types.workload import Workload
    >>> bound = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> bandwidth = elasticities(bound, MoveQuestion(Workload(1.0, 128.0, 16.0)))[0]
    >>> bandwidth.parameter, round(bandwidth.tpot, 6)  # one sequence: 1 % more bandwidth, 1 % less time
    ('bandwidth', -1.0)
    """
    ratio = _FINE
    if question.load is not None:
        question, ratio = replace(question, load=_smooth(question.load)), _STEP
    ends = math.sqrt(1.0 / ratio), math.sqrt(ratio)  # a resource a little scarcer and a little more plentiful
    asked = ((name, [question.ask(scaled(predictor, name, end)) for end in ends]) for name in RESOURCES)
    return (*(_between(name, ratio, *answers) for name, answers in asked), *_counts(predictor, question))


def _smooth(load: Load) -> Load:
    """The load with lengths that vary and enough requests, unless these are told."""
    if load.requests is None:
        load = load if load.rate is None else replace(load, least=max(load.least, _MANY))
        load = load if load.users is None else replace(load, requests=max(load.counted, _MANY), warmup=load.filling)
    isl, osl = (LogNormal(each.mean, _FIFTH) for each in (load.isl, load.osl))
    return replace(load, isl=isl, osl=osl) if load.equal else load


def _between(name: str, ratio: float, below: MoveAnswer, above: MoveAnswer) -> Elasticity:
    """From answers where a parameter differs by a ratio."""
    low, high, run = below.metrics(), above.metrics(), math.log(ratio)
    return Elasticity(name, *(math.log(high[metric] / low[metric]) / run for metric in METRICS))


def _counts(predictor: Predictor, question: MoveQuestion) -> Iterator[Elasticity]:
    """Whole numbers: a tenth down and up, at least one; a batch of one only up. A rate need not be whole."""
    value = question.parallel
    ends = (value / _STEP, value * _STEP) if question.parameter == "rate" else _beside(value, 1.0)
    asked = [question.times(end) for end in ends]
    yield _between(question.parameter, ends[1] / ends[0], *(each.ask(predictor) for each in asked))
    field = "context" if question.work.context is not None else "isl"
    least = float(question.work.cached) + 1.0 if field == "isl" else 1.0
    ends = _beside(float(getattr(question.work, field)), least)
    asked = [question.scaled(**{field: end}) for end in ends]
    yield _between("context", ends[1] / ends[0], *(each.ask(predictor) for each in asked))


def _beside(value: float, least: float) -> tuple[float, float]:
    """Whole numbers below and above."""
    low = max(min(float(round(value / _STEP)), value - 1.0), least)
    return low, max(float(round(value * _STEP)), value + 1.0)


def scaled(predictor: Predictor, resource: str, factor: float) -> Predictor:
    """The predictor on hardware with one resource multiplied: a rate (higher is faster) or a latency (lower is).

    bandwidth: of the memory; flops: every peak, at the same joules a FLOP; network: links inside and between domains;
    power: the board's limit, what it draws besides its work, and how fast it settles; launch: every latency that a
    calibration found (launches, tiles, hops, and a collective's wait); host: what the engine adds. Capacity stays.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> from rooflinekit.model.types.workload import Workload
    >>> plain = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> twice = scaled(plain, "bandwidth", 2.0)
    >>> one = Workload(1.0, 128.0, 2.0)
    >>> round(plain.tpot(one).expected / twice.tpot(one).expected, 6)  # one sequence: the memory and nothing else
    2.0
    """
    plan = predictor.plan
    system, gpu, law, links = plan.system, plan.system.accelerator, plan.system.accelerator.power, _LINKS

    def times(of: Any, *names: str) -> dict[str, Any]:
        return {name: getattr(of, name) * factor for name in names}

    match resource:
        case "bandwidth":
            system = replace(system, accelerator=replace(gpu, **times(gpu, "memory_bandwidth")))
        case "flops":
            peaks = {dtype: peak * factor for dtype, peak in gpu.peaks.items()}
            system = replace(system, accelerator=replace(gpu, peaks=peaks))
        case "power" if law is not None and law.ask:  # elsewhere no kernel is known to reach the limit
            drawn = times(law, "idle", "active") | {"settled": law.settled / factor}
            capped = replace(gpu, **times(gpu, "tdp_w"), power=replace(law, **drawn))
            system = replace(system, accelerator=capped)
        case "network":
            faster = replace(gpu, **times(gpu, *links, "pcie_bandwidth"))
            system = replace(system, accelerator=faster, **times(system, *links))
        case "launch" | "host":
            costs, calibration = plan.engine.costs, plan.calibration
            costs = replace(costs, **times(costs, *(_HOST if resource == "host" else ("collective",))))
            if resource == "launch" and calibration is not None:
                families = Fits.of(calibration.families).changed(lambda fit: _latencies(fit, factor))
                calibration = replace(calibration, families=families)
            return predictor.on(replace(plan, engine=replace(plan.engine, costs=costs), calibration=calibration))
        case _ if resource not in RESOURCES:
            raise KeyError(resource)
    return predictor.on(replace(plan, system=system))


def _latencies(fit: FamilyFit, factor: float) -> FamilyFit:
    """Every parameter in microseconds, multiplied."""
    form: Any = fit.form
    times = {name: getattr(form, name) * factor for name, bounds in parameters(form).items() if bounds.unit == "us"}
    beyond = fit.beyond and replace(fit.beyond, fit=_latencies(fit.beyond.fit, factor))
    return replace(fit, form=replace(form, **times), beyond=beyond)


_ROLES = {
    "gemm": "matrix products",
    "moe": "experts",
    "attention_prefill": "prompt attention",
    "attention_decode": "decode attention",
    "mla_prefill": "latent prefill",
    "mla_decode": "latent decode",
    "collective": "collectives",
}
_STAND_IN = "its own, which nobody measured here"
_LEAST = 0.03  # share of a step: what takes less is not worth a choice


@dataclass(frozen=True)
class Backend:
    """A measured kernel for one role: whose, what it is called, and its time over that of the present one.

    key: of the calibration; faster: whether the 90 % intervals of both times are apart; served: whether its engine
    picks it; flag: what chooses kernels of that role under the present engine, "" where nothing does.
    """

    role: str
    key: str
    engine: str
    kernel: str
    present: str
    fit: FamilyFit
    ratio: float
    faster: bool
    served: bool
    flag: str
    slow: str  #: why the present one is known to be slow; "" where nobody says

    @property
    def name(self) -> str:
        """Name of its move."""
        return f"{self.engine}'s {self.role}" if self.served else f"other {self.role}"

    def __str__(self) -> str:
        """The backend beside the present one, in words."""
        why = f" ({self.slow})" if self.slow else ""
        how = f"; chosen by {self.flag}, where the engine has it" if self.flag else ""
        pick = "" if self.served else ", which the engine does not pick"
        return f"{self.name}: {self.kernel}{pick}, at {self.ratio:.2g} of the time of {self.present}{why}{how}"


def backends(predictor: Predictor, work: Workload) -> tuple[list[Backend], list[str]]:
    """Kernels that are clearly faster than the present ones, and those of the present engine that it does not pick.

    And the roles for which no measured kernel of another engine is clearly faster.
    """
    plan, found, best = predictor.plan, list[Backend](), dict[str, None]()
    chip, engine, calibration = plan.system.accelerator.name, plan.deployment.engine, plan.calibration
    if calibration is None or calibration.widening or calibration.accelerator != chip:
        return [], []
    for kernels in _worth(predictor, work):
        first = kernels[0]
        family, key = first.family, f"{first.family}/{first.dtype.value}/{first.variant}"
        own = calibration.fit(first)
        now, near, _ = _time(kernels, own, predictor)
        present = _STAND_IN if own.source.startswith(BORROWED) else _named(engine, chip, key)
        others = list(_others(chip, engine, first, own))
        for other, fit, served in others:
            time, _, far = _time(kernels, fit, predictor)
            better = far < near
            if better or (other == engine and not served):
                flag = table_of(__file__).get(engine, {}).get(family, "")
                named = _named(other, chip, key)
                slow = str((kernel_entry(engine, chip, key) or {}).get("slow", "")) if present is not _STAND_IN else ""
                found.append(Backend(
                    _ROLES[family], key, other, named, present, fit, time / now, better, served, flag, slow,
                ))  # fmt: skip
        if others and not any(each.faster and each.key == key for each in found):
            best.setdefault(_ROLES[family])
    return found, [role for role in best if not any(each.faster and each.role == role for each in found)]


def _worth(predictor: Predictor, work: Workload) -> Iterator[Sequence[Kernel]]:
    """Kernels of one kind, of a prompt or of a decode step, where they take their share of its time."""
    plan, context = predictor.plan, float(work.decode_context)
    for batch in (Batch.prefill(1.0, float(work.isl), float(work.cached)), predictor.decode_batch(work, context)):
        kinds: dict[tuple[str, ...], list[Kernel]] = {}
        for kernel in plan.kernels(batch):
            if kernel.family in _ROLES:
                kinds.setdefault((kernel.family, kernel.dtype.value, kernel.variant), []).append(kernel)
        whole = float(plan.time(batch).expected)
        assert plan.calibration is not None
        for kernels in kinds.values():
            if _time(kernels, plan.calibration.fit(kernels[0]), predictor)[0] >= _LEAST * whole:
                yield kernels


def _others(chip: str, engine: str, kernel: Kernel, own: FamilyFit) -> Iterator[tuple[str, FamilyFit, bool]]:
    """Measured kernels of the same kind on this accelerator: whose, its fit, and whether that engine picks it."""
    for name in calibration_names():
        if name.partition("--")[0] != chip:
            continue
        whose, measured = name.partition("--")[2], load_calibration(name)
        served = for_serving(measured)
        if measured_here(measured, kernel):
            fit = measured.fit(kernel)
            picked = fit is served.fit(kernel)
            if fit is not own and (picked or whose == engine):
                yield whose, fit, picked


def _time(kernels: Sequence[Kernel], fit: FamilyFit, predictor: Predictor) -> tuple[float, float, float]:
    """Time of the kernels by one fit, and the ends of its 90 % interval [s]."""
    total = low = high = 0.0
    for kernel in kernels:
        each = kernel.count * float(fit.time(kernel, predictor.plan.system).total)
        above, below = fit.regimes.factors(kernel)
        total, low, high = total + each, low + each / float(below), high + each * float(above)
    return total, low, high


def _named(engine: str, chip: str, key: str) -> str:
    """Name of the kernel behind a fit."""
    entry: Mapping[str, Any] = kernel_entry(engine, chip, key) or {}
    return str(entry.get("kernel", f"{engine}'s own"))


_MOST = 1e9  # sequences or tokens beyond which no crossing is looked for
_ROUNDS = 100

_NAMED = {
    "bandwidth": "memory bandwidth",
    "flops": "FLOP/s",
    "network": "network bandwidth",
    "power": "the power limit",
    "launch": "the latencies of kernels",
    "host": "the engine's host time",
}


@dataclass(frozen=True)
class Balance:
    """Bytes of one decode step on one accelerator [B], their shares, and the crossing of weights and cache.

    crossing_batch: sequences at which the cache's bytes are those of the weights, at this context; crossing_context:
    tokens, at this batch (None: nowhere below 10^9). causes: shares of the step's time.
    """

    batch: float
    context: float
    weight_bytes: float
    kv_bytes: float
    activation_bytes: float
    crossing_batch: float | None
    crossing_context: float | None
    causes: dict[str, float]

    derived = ("weight_share", "kv_share")

    @property
    def total_bytes(self) -> float:
        """All of them."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    @property
    def weight_share(self) -> float:
        """Share of weights in the step's bytes."""
        return self.weight_bytes / self.total_bytes

    @property
    def kv_share(self) -> float:
        """Share of keys and values in the step's bytes."""
        return self.kv_bytes / self.total_bytes


def balance(predictor: Predictor, work: Workload) -> Balance:
    """Divide the bytes of a decode step, and find where cache and weights are equal.

    A dense model reads W whatever the batch, and κ(T) for each sequence: they are equal at B = W/κ(T). Experts that
    further sequences touch make W grow, so the crossing is found on the kernels of the step.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> bound = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> b = balance(bound, Workload(32.0, 2048.0, 256.0, context=2048.0))
    >>> round(b.weight_bytes / 1e9, 2), round(b.kv_bytes / 1e9, 2)
    (15.01, 8.59)
    >>> round(b.crossing_batch), round(b.crossing_context)  # 15.01 GB over 131 kB a token
    (56, 3578)
    """
    context = float(work.decode_context)
    weights, kv, other = _bytes(predictor, work, float(work.batch), context)
    return Balance(
        float(work.batch),
        context,
        weights,
        kv,
        other,
        _crossing(lambda batch: _bytes(predictor, work, batch, context)),
        _crossing(lambda tokens: _bytes(predictor, work, float(work.batch), tokens)),
        shares_by_cause(predictor.decode_step(work)),
    )


def _bytes(predictor: Predictor, work: Workload, batch: float, context: float) -> tuple[float, float, float]:
    """Bytes of weights, of keys and values (read and written), and of activations."""
    kernels = predictor.plan.kernels(predictor.decode_batch(replace(work, batch=batch), context))
    weights = sum(k.count * float(k.weight_bytes) for k in kernels)
    kv = sum(k.count * float(k.cache_bytes) for k in kernels)
    return weights, kv, sum(k.count * float(k.activation_bytes) for k in kernels)


def _crossing(reads: Callable[[float], tuple[float, float, float]]) -> float | None:
    """Crossing at which the cache first has as many bytes as the weights; None if nowhere."""

    def heavier(value: float) -> bool:
        weights, kv, _ = reads(value)
        return kv >= weights

    low, high = 1.0, 2.0
    if heavier(low):
        return low
    while not heavier(high):
        low, high = high, 2.0 * high
        if high > _MOST:
            return None
    for _ in range(_ROUNDS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if heavier(middle) else (middle, high)
    return high


def in_words(
    found: Balance,
    slopes: Sequence[Elasticity],
    best_moves: str,
    shared: bool = False,
    longest: int | None = None,
) -> str:
    """Say which moves are best (`best_moves`), what a decode step reads, and what TPOT follows most.

    shared: steps hold prompts too, as under load; longest: context that the model admits.

    >>> b = Balance(8.0, 100.0, 90.0, 9.0, 1.0, 80.0, 1000.0, {"memory": 0.9, "compute": 0.1})
    >>> in_words(b, [Elasticity("bandwidth", -0.1, -0.8, 0.7, -0.7)], "No move.")[:25]
    'No move. Weights are 90 %'
    """
    reads = (
        f"Weights are {found.weight_share * 100:.0f} % of the bytes of a decode step, keys and values "
        f"{found.kv_share * 100:.0f} % (batch {found.batch:.0f}, context {found.context:.0f})."
    )
    where = [] if found.crossing_batch is None else [f"batch {found.crossing_batch:,.0f} (at this context)"]
    if (context := found.crossing_context) is not None:
        beyond = f"; the model ends at {longest:,}" if longest is not None and context > longest else ""
        where.append(f"context {context:,.0f} (at this batch{beyond})")
    crossings = "The cache never has as many bytes as the weights."
    if where:
        crossings = f"Cache and weights are equal at {', or at '.join(where)}. Beyond that the cache weighs more."
    most = max((entry for entry in slopes if entry.parameter in RESOURCES), key=lambda entry: abs(entry.tpot))
    whose = "TPOT, with the prompts in its steps," if shared else "TPOT"
    last = f"{whose} follows {_NAMED[most.parameter]} most: 1 % more makes it {abs(most.tpot):.2f} % "
    return " ".join([best_moves, reads, crossings, last + ("less." if most.tpot < 0 else "more.")])


def _backend(setting: Setting, backend: Backend) -> Tried:
    """Another measured kernel in one role."""
    caveat = f"none for quality; {backend.kernel} in place of {backend.present}"
    how = backend.flag or f"--engine {backend.engine}"
    return move(backend.name, {}, caveat, replace(setting, kernel=(backend.key, backend.fit)), option=how)


@dataclass(frozen=True)
class Levers(DeploymentAnswer):
    """Elasticities of a deployment's answers, what its decode steps read, and moves ranked by gain."""

    by: str  #: metric that ranks the moves
    price: dict[str, Any] | None
    answer: Operating
    elasticities: tuple[Elasticity, ...]
    balance: Balance
    sentence: str
    advice: tuple[Advice, ...]  #: the best moves on this accelerator with this engine
    moves: tuple[MoveResult, ...]  #: possible ones, best first, and then the others
    warnings: tuple[str, ...]

    def weaker(self, made: MoveResult) -> bool:
        """True if its times rest on weaker evidence than the present ones."""
        return weaker(made.evidence, self.evidence)

    def to_rows(self) -> list[Json]:
        """The moves, one flat row each."""
        return [each.to_row() for each in self.moves]


def _accelerators(given: object) -> dict[str, float | None]:
    """Names, or names with their price an hour: a mapping, a list, or text such as `h200-sxm=3.5,l40s`."""
    if given is None:
        known = (load_accelerator(name).value for name in names("accelerator"))
        return {gpu.name: None for gpu in known if gpu.price is not None}
    pairs = (
        given.items() if isinstance(given, Mapping) else (each.partition("=")[::2] for each in _listed(given, "gpus"))
    )
    found: dict[str, float | None] = {}
    for name, price in ((str(name).strip(), price) for name, price in pairs):
        load_accelerator(name)
        try:
            usd = quantity(price, "USD/h") if isinstance(price, str) and price.strip() else price or None
        except ValueError:
            usd = price  # and is refused
        found[name] = None if usd is None else positive(usd, f"price of {name}")
    return found


def _listed(given: object, name: str) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str):
        return tuple(entry.strip() for entry in given.split(",") if entry.strip())
    if isinstance(given, (list, tuple)):
        return tuple(str(entry) for entry in given)
    raise InputError(f"{name} must be names, such as 'a,b', not {given!r}")


def _priced(
    predictor: Predictor, given: dict[str, object], work: Workload
) -> tuple[HourlyPrice | None, dict[str, float | None], list[str]]:
    """The present hour and that of every accelerator to try, like for like, and what to say about them."""
    own, asked = predictor.plan.system.accelerator, _accelerators(given.get("gpus"))
    others = {name: load_accelerator(name).value for name in asked}
    if given.get("gpus") is None:
        others.pop(own.name, None)
    price = priced_names(given.get("price"))
    if not isinstance(price, Mapping):  # a bare number is that of the present accelerator
        price = {} if price is None else {own.name: price}
    told = {others[name].name: usd for name, usd in asked.items() if usd is not None}
    named = given["price"] if str(given.get("price")).endswith(".csv") and not told else {**price, **told}
    quotes = quotes_of([own, *others.values()], named)
    priced = ((name, quotes.hourly[gpu.name]) for name, gpu in others.items())
    hours = {name: None if quote is None else float(quote.usd_per_gpu_hour) for name, quote in priced}
    notes = list(quotes.notes)
    known = any(key in given for key in PRICE_KEYS) or quotes.hourly[own.name] is not None
    power = static_power(predictor, work)
    present = read_price(own, given, None if power is None else float(power.plug))[0] if known else None
    if present is None:
        notes.append(
            f"{own.name} has no price in its file: costs are ratios of {own.noun} hours; give price "
            f"(USD per {own.noun} hour)"
        )
    else:
        notes.append(f"price ${float(present.usd_per_gpu_hour):.2f} a {own.noun}-hour: {present.source}")
    if given.get("gpus") is not None and (unknown := [name for name, hour in hours.items() if hour is None]):
        notes.append(f"no price is known for {', '.join(unknown)}: their cost is not compared")
    return present, hours, notes


def rank(made: MoveResult, by: str, present: str) -> tuple[int, float]:
    """Possible moves by their gain; then those on weaker evidence than the present, without a price, and no moves."""
    ratio = made.ratio.get(by)
    if not made.possible or ratio is None or made.reason:
        return 4 if not made.possible else 3 if made.reason else 2, 0.0
    return int(weaker(made.evidence, present)), -ratio if by == "throughput" else ratio


@keywords(LeversOptions)
def levers(
    model: str | PathLike[str], gpu: str | PathLike[str] = "h100-sxm", **scenario: Unpack[LeversOptions]
) -> Levers:
    """Rank the changes that would help a deployment most.

    Args:
        model: a name, a Hugging Face id, or a path, as `estimate` takes it.
        gpu: an accelerator's name or a path to its file.
        **scenario: the options of `Levers` in docs/cli.md: work, deployment, prices, what to try; None is the default.

    Returns:
        `Levers`: the answer now, elasticities of TTFT, TPOT, throughput and cost, what a decode step reads, and moves
        ranked by what they gain; those that are not possible say why.

    Raises:
        InputError: (and its kinds) for anything that makes no sense; DoesNotFitError if the deployment does not fit.

    >>> found = levers("llama-3-8b", batch=1, isl=128, osl=128, calibration="none", gpus=["h200-sxm"])
    >>> first = found.advice[0]
    >>> first.metric, first.option, round(first.ratio["tpot"], 2)  # 4 bits and a scale for 16, but for the LM head
    ('tpot', '--weights int4', 0.31)
    """
    given = read(LeversOptions, scenario)
    deployment = read_deployment(part_of(given, DEPLOYMENT_KEYS))
    seen = resolve(model, gpu, deployment, None).plan if deployment.images else None
    load = read_load(given, seen.image_tokens if seen else 0)
    work = read_workload(given, seen)
    if load is not None:
        refuse_static(given, deployment)
        load, work = replace(load, cached=float(work.cached)), replace(work, batch=float(load.users or 1))
    question = MoveQuestion(work, load)
    draft, models = Speculation.read(part_of(given, SPECULATION_KEYS)), _listed(given.get("models"), "models")
    for name in models:
        load_model(name)
    calibration = None if "calibration" not in given else str(given["calibration"])
    setting = Setting(model, gpu, deployment, calibration, question)
    predictor, warnings = setting.resolved()
    if misfit := question.misfit(predictor):  # say what `estimate` says
        asked = given if load is None else given | {"batch": 1}
        refuse_misfit(model, gpu, asked, f"{predictor.plan.model.name}: {misfit}")
    plan, by = predictor.plan, given.get("by", "cost")
    hour, hours, notes = _priced(predictor, given, question.work)
    power, carbon = static_power(predictor, question.work), read_carbon(given.get("carbon"))
    if power is not None and carbon is not None:
        joules = float(power.joules_per_output_token * power.plug / power.watts)
        kg = co2_per_million(joules * float(given.get("pue", 1.0)), carbon[0])
        notes.append(f"CO2: {kg:.3g} kg a million output tokens at {carbon[0]:g} g/kWh ({carbon[1]})")
    setting = replace(setting, usd_per_gpu_hour=None if hour is None else float(hour.usd_per_gpu_hour))
    answer, made, images = operate(setting, predictor), about(plan), image_inputs(plan)
    if load is not None and load.users is None:
        question = replace(question, work=replace(work, batch=float(max(round(answer.running), 1))))
        setting = replace(setting, question=question)
    kernels, fastest = backends(predictor, replace(question.work, batch=answer.running))
    notes += map(str, kernels)
    if fastest:
        notes.append(f"no measured kernel is clearly faster than {plan.deployment.engine}'s own: {', '.join(fastest)}")
    changes = moves(
        setting, plan, given.get("prefix"), draft, hours, models, [_backend(setting, each) for each in kernels]
    )
    tried = [try_move(each, setting, answer, warnings) for each in changes]
    first = {each.move for each, _ in candidates(setting, predictor, made["evidence"], answer.running)}
    advised = best(
        (each for each in tried if each.move in first), made["evidence"], answer.gpus, load is not None, made["gpu"]
    )
    shares = balance(predictor, replace(question.work, batch=answer.running))
    slopes = elasticities(predictor, question)
    return Levers(
        **made,
        inputs=shown(
            plan,
            batch=None if load else int(work.batch),
            concurrency=load.users if load else None,
            rate=load.rate if load else None,
            isl=int(work.isl) - images["image_tokens"],
            **images,
            osl=int(work.osl),
            cached=float(work.cached),
            context=float(question.work.decode_context),
        ),
        by=by,
        price=None if hour is None else {"usd_per_gpu_hour": float(hour.usd_per_gpu_hour), "source": hour.source},
        answer=answer,
        elasticities=slopes,
        balance=shares,
        sentence=in_words(shares, slopes, said_best(advised, answer.stable), load is not None, plan.model.max_context),
        advice=advised,
        moves=tuple(sorted(tried, key=lambda each: rank(each, by, made["evidence"]))),
        warnings=(*overload(answer), *warnings, *notes),
    )

"""Elasticities: by how many percent an answer changes with a parameter.

    ε = d ln(metric)/d ln(parameter), by central differences

Times are homogeneous of degree 1 in what things take: with every rate and the power doubled and every latency halved,
all is twice as fast. So by Euler's theorem −ε(bandwidth) − ε(flops) − ε(network) − ε(power) + ε(launch) + ε(host) = 1
for every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rooflinekit.decision.sensitivity.moves import METRICS, MoveAnswer, MoveQuestion
from rooflinekit.load.answer import AskedLoad
from rooflinekit.load.lengths import LogNormal
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.timing.calibrated import FamilyFit, Fits
from rooflinekit.model.timing.forms import parameters
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.model import Attention, LatentAttention, Model

_RANK, _ROTARY = 4, 2  # DeepSeek-V2 (arXiv:2405.04434), 2.1: a latent of 4 heads, and a rotary part of half a head


def latent_variant(model: Model) -> Model:
    """The model with multi-head latent attention in place of full softmax attention, its width and heads kept.

    A latent of 4 head dimensions and a rotary part of half a one, as DeepSeek-V2 has (arXiv:2405.04434, section 2.1).

    >>> from rooflinekit.model.cache import model_cache_law
    >>> from rooflinekit.specs import load_model
    >>> gqa = load_model("llama-3-8b").value
    >>> model_cache_law(gqa).bytes_per_token, model_cache_law(latent_variant(gqa)).bytes_per_token  # 32 · 576 · 2 B
    (131072.0, 36864.0)
    """
    layers = []
    for layer in model.layers:
        mixer = layer.mixer
        if isinstance(mixer, Attention) and mixer.window is None and mixer.chunk is None:
            d = mixer.head_dim
            latent = LatentAttention(mixer.heads, None, _RANK * d, d, d // _ROTARY, mixer.v_head_dim)
            layers.append(replace(layer, mixer=latent))
        else:
            layers.append(layer)
    return replace(model, name=f"{model.name} with MLA", layers=tuple(layers))


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
    """Elasticity of TTFT, TPOT, throughput and cost to every parameter.

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
    return (*_resources(predictor, question, ratio), *_counts(predictor, question))


def _smooth(load: AskedLoad) -> AskedLoad:
    """The load with lengths that vary and enough requests, unless these are told."""
    if load.requests is None:
        load = load if load.rate is None else replace(load, least=max(load.least, _MANY))
        load = load if load.users is None else replace(load, requests=max(load.counted, _MANY), warmup=load.filling)
    isl, osl = (LogNormal(each.mean, _FIFTH) for each in (load.isl, load.osl))
    return replace(load, isl=isl, osl=osl) if load.equal else load


def _resources(predictor: Predictor, question: MoveQuestion, ratio: float) -> Iterator[Elasticity]:
    """Each from two answers, with a resource a little scarcer and a little more plentiful."""
    for name in RESOURCES:
        ends = math.sqrt(1.0 / ratio), math.sqrt(ratio)
        yield _between(name, ratio, *(question.ask(scaled(predictor, name, end)) for end in ends))


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

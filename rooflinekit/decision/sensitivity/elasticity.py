"""Elasticities: by how many percent an answer changes when a parameter changes by one.

    ε = d ln(metric)/d ln(parameter): slopes of the traced answer; of whole numbers, central differences

Times are homogeneous of degree 1 in what things take: with every rate and the power doubled and every latency halved,
all is twice as fast. So by Euler's theorem −ε(bandwidth) − ε(flops) − ε(network) − ε(power) + ε(launch) + ε(host) = 1
for every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rooflinekit.decision.sensitivity.question import METRICS, Question
from rooflinekit.model.graph.slope import slopes
from rooflinekit.model.graph.symbol import Pool
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.timing.calibrated import FamilyFit
from rooflinekit.model.timing.forms import parameters
from rooflinekit.model.traffic.root import Roots
from rooflinekit.model.types.hardware import Accelerator, System

RESOURCES = ("bandwidth", "flops", "network", "power", "launch", "host")
"""Rates of memory, arithmetic and links; the board's power limit; latencies of kernels; time of the engine's host."""

_HOST = ("step", "ranks", "sequence", "sequence_ranks", "layer", "launch", "request", "token")
_COUNT = 1.1  # factor by which whole numbers are changed, at least by one


@dataclass(frozen=True)
class Elasticity:
    """One parameter, and the elasticity of each metric to it."""

    parameter: str
    ttft: float
    tpot: float
    throughput: float
    cost: float


def elasticities(predictor: Predictor, question: Question) -> tuple[Elasticity, ...]:
    """Elasticity of TTFT, TPOT, throughput and cost to every parameter.

    Args:
        predictor: the deployment.
        question: the static batch, or the users of a closed loop.

    Returns:
        One entry a parameter: the six resources of `scaled`, `batch` (sequences, or users) and `context` (prompt
        length, or the context of the decode step where one is given). Throughput is output tokens a second, cost
        accelerator seconds of an output token: one is minus the other.

    >>> from rooflinekit.estimation.estimator import read_deployment, resolve
    >>> from rooflinekit.model.types.workload import Workload
    >>> bound = resolve("llama-3-8b", "h100-sxm", read_deployment({}), "none").predictor
    >>> bandwidth = elasticities(bound, Question(Workload(1.0, 128.0, 16.0)))[0]
    >>> bandwidth.parameter, round(bandwidth.tpot, 6)  # one sequence: 1 % more bandwidth, 1 % less time
    ('bandwidth', -1.0)
    """
    return (*_resources(predictor, question), *_counts(predictor, question))


def _resources(predictor: Predictor, question: Question) -> Iterator[Elasticity]:
    """All from one answer, whose resources are symbols of value 1."""
    pool, roots = Pool(dict.fromkeys(RESOURCES, 1.0)), Roots()
    question.ask(predictor, roots.record)
    for name in RESOURCES:
        predictor = scaled(predictor, name, pool.variable(name))
    traced = question.ask(predictor, roots.again).metrics()
    found = {key: (slopes(value), float(value)) for key, value in traced.items()}
    for name in RESOURCES:
        factor = pool.variable(name)
        yield Elasticity(name, *(slope.get(factor, 0.0) / value for slope, value in found.values()))


def _counts(predictor: Predictor, question: Question) -> Iterator[Elasticity]:
    """Whole numbers: a tenth down and up, at least one; a batch of one only up."""
    field = "context" if question.work.context is not None else "isl"
    for name, key in (("batch", "batch"), ("context", field)):
        value = float(getattr(question.work, key))
        least = float(question.work.cached) + 1.0 if key == "isl" else 1.0
        low = max(min(float(round(value / _COUNT)), value - 1.0), least)
        high = max(float(round(value * _COUNT)), value + 1.0)
        below, above = (question.scaled(**{key: end}).ask(predictor).metrics() for end in (low, high))
        run = math.log(high / low)
        yield Elasticity(name, *(math.log(above[metric] / below[metric]) / run for metric in METRICS))


def scaled(predictor: Predictor, resource: str, factor: Any) -> Predictor:
    """The predictor on hardware with one resource multiplied: a rate (higher is faster) or a latency (lower is).

    factor: a number, or a symbol whose slope is asked for.

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

    Raises KeyError for another resource.
    """
    plan = predictor.plan
    if resource in ("bandwidth", "flops", "network", "power"):
        return predictor.on(replace(plan, system=_system(plan.system, resource, factor)))
    costs, calibration = plan.engine.costs, plan.calibration
    names = {"launch": ("collective",), "host": _HOST}[resource]
    costs = replace(costs, **{name: getattr(costs, name) * factor for name in names})
    if resource == "launch" and calibration is not None:
        families = {name: _latencies(fit, factor) for name, fit in calibration.families.items()}
        calibration = replace(calibration, families=families)
    return predictor.on(replace(plan, engine=replace(plan.engine, costs=costs), calibration=calibration))


def _system(system: System, resource: str, factor: Any) -> System:
    gpu, links = system.accelerator, ("link_bandwidth", "nic_bandwidth")
    if resource == "bandwidth":
        return replace(system, accelerator=replace(gpu, memory_bandwidth=gpu.memory_bandwidth * factor))
    if resource == "flops":
        peaks = {dtype: peak * factor for dtype, peak in gpu.peaks.items()}
        return replace(system, accelerator=replace(gpu, peaks=peaks))
    if resource == "power":
        return replace(system, accelerator=_powered(gpu, factor))
    faster: Any = {name: getattr(gpu, name) * factor for name in (*links, "pcie_bandwidth")}
    rates: Any = {name: getattr(system, name) * factor for name in links}
    return replace(system, accelerator=replace(gpu, **faster), **rates)


def _powered(gpu: Accelerator, factor: Any) -> Accelerator:
    """With so many times the power limit; the same where no kernel is known to reach it."""
    law = gpu.power
    if law is None or not law.ask:
        return gpu
    drawn: Any = {"idle": law.idle * factor, "active": law.active * factor, "settled": law.settled / factor}
    return replace(gpu, tdp_w=gpu.tdp_w * factor, power=replace(law, **drawn))


def _latencies(fit: FamilyFit, factor: Any) -> FamilyFit:
    """Every parameter in microseconds, multiplied."""
    form: Any = fit.form
    times = {name: getattr(form, name) * factor for name, bounds in parameters(form).items() if bounds.unit == "us"}
    beyond = fit.beyond and replace(fit.beyond, fit=_latencies(fit.beyond.fit, factor))
    return replace(fit, form=replace(form, **times), beyond=beyond)

"""Elasticities: by how many percent an answer changes when a parameter changes by one.

    ε = d ln(metric)/d ln(parameter): slopes of the traced answer; of whole numbers, central differences

Times are homogeneous of degree 1 in what things take: with every rate and the power doubled and every latency halved,
all is twice as fast. So by Euler's theorem −ε(bandwidth) − ε(flops) − ε(network) − ε(power) + ε(launch) + ε(host) = 1
for every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rooflinekit.decision.sensitivity.question import METRICS, Question
from rooflinekit.decision.sensitivity.scaled import RESOURCES, scaled
from rooflinekit.model.graph.slope import slopes
from rooflinekit.model.graph.symbol import Pool
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.root import Roots

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

"""What benchmark files may change: the engine's costs and two factors on its kernels, with what is believed before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import pstdev

from rooflinekit.evidence.engine_fit.cases import Case
from rooflinekit.model.roofline import time_step
from rooflinekit.model.types.batch import Batch
from rooflinekit.model.types.engine import ServedCosts, StepCosts
from rooflinekit.model.types.time import SIGMAS
from rooflinekit.specs.engines import engine_names, load_engine, step_ranges

__all__ = ["FACTORS", "MOST", "REACH", "Parameter", "costs_at", "priors"]

MOST = {
    "step": 2e-2, "ranks": 1e-2, "sequence": 1e-3, "sequence_ranks": 1e-3, "layer": 1e-3, "collective": 1e-3,
    "hidden": 1.0, "grouped": 5.0, "launch": 1e-3, "request": 1.0, "memory": 2.0, "compute": 2.0,
}  # fmt: skip
"""The most that each may become [s, or a factor]; the least is 0, and 1/2 for a factor. Assumptions."""

FACTORS = ("memory", "compute")
REACH = 4.0
"""Prior spreads that a value may move at most, either way: an assumption. Beyond it a wrong fact is likelier."""

_NOTHING = 1e-9  # prior spreads: rounding beside 0


@dataclass(frozen=True)
class Parameter:
    """One number and its prior: normal around `value` with the standard error `spread` (log-normal for a factor)."""

    name: str
    value: float
    spread: float

    @property
    def factor(self) -> bool:
        """Whether it multiplies, and its spread is one of its logarithm."""
        return self.name in FACTORS

    def at(self, place: float) -> float:
        """The value `place` prior spreads from the prior's.

        >>> Parameter("step", 2e-4, 1e-4).at(1.0)
        0.0003
        """
        if self.factor:
            return self.value * math.exp(self.spread * place)
        value = self.value + self.spread * place
        return value if value > _NOTHING * self.spread else 0.0

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest place."""
        most = MOST[self.name]
        if self.factor:
            low, high = -math.log(most * self.value) / self.spread, math.log(most / self.value) / self.spread
        else:
            low, high = -self.value / self.spread, (most - self.value) / self.spread
        return min(max(low, -REACH), 0.0), max(min(high, REACH), 0.0)


def costs_at(costs: StepCosts, parameters: Sequence[Parameter], places: Sequence[float]) -> StepCosts:
    """The costs with these parameters moved."""
    moved = {each.name: each.at(float(place)) for each, place in zip(parameters, places, strict=True)}
    return replace(costs, **moved)  # type: ignore[arg-type]


def priors(own: StepCosts, served: ServedCosts | None, cases: Sequence[Case]) -> tuple[Parameter, ...]:
    """The prior of every parameter that the engine has.

    Costs: the shipped value, with its standard error, or with the standard deviation of that cost over all engines
    where this is larger: the standard error is that of a mean over published deployments, and one deployment differs
    from the mean (an assumption). Factors: 1, with the error of the kernels that the runs are made of. Where files
    were used before, their posterior.
    """
    if served is not None:
        return tuple(Parameter(name, getattr(served.costs, name), error) for name, error in served.errors.items())
    found = [Parameter(name, getattr(own, name), max(own.spread[name], _between(name))) for name in MOST
             if name in own.spread]  # fmt: skip
    found += [Parameter(name, 1.0, spread) for name, spread in kernel_errors(cases).items()]
    return tuple(each for each in found if each.spread > 0.0)


def _between(name: str) -> float:
    """Standard deviation of a cost over the engines and ranges of versions that are described."""
    known = [load_engine(engine, since or None).costs for engine in engine_names() for since in step_ranges(engine)]
    values: list[float] = [getattr(costs, name) for costs in known if name in costs.spread]
    return pstdev(values)


def kernel_errors(cases: Sequence[Case]) -> Mapping[str, float]:
    """Standard error of the log of kernel times in the steps of the runs, by what the kernels wait for.

    ln(high / time) / 1.645 of each kernel, weighed by its time: the errors of one model's kernels go together, so they
    add up as they do in an interval.
    """
    weights, errors = dict.fromkeys(FACTORS, 0.0), dict.fromkeys(FACTORS, 0.0)
    for case in cases:
        plan, load = case.posed.resolved.plan, case.posed.load
        users = math.ceil(case.running / plan.deployment.dp)
        for batch in (Batch.decode(float(users), load.isl + load.osl / 2.0), Batch.prefill(1.0, load.isl)):
            step = time_step(plan.kernels(batch), plan.system, plan.calibration)
            for timed in step.kernels:
                memory = float(timed.memory / max(timed.memory + timed.compute, 1e-30))
                for name, share in zip(FACTORS, (memory, 1.0 - memory), strict=True):
                    weight = share * float(timed.expected / step.expected)
                    weights[name] += weight
                    errors[name] += weight * math.log(float(timed.high / timed.expected)) / SIGMAS
    return {name: errors[name] / weights[name] for name in FACTORS if weights[name] > 0.0}

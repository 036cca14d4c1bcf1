"""Replicas for a rate: the sizing of `plan`, asked again for every hour and month."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.fleet import Option
from rooflinekit.decision.planning.search import PlanQuestion

_IDLE = 1e-9  # requests/s of an interval in which nothing comes


@dataclass(frozen=True)
class Capacity:
    """A deployment, and how many replicas of it carry a rate."""

    question: PlanQuestion
    option: Option
    _fleets: dict[float, Option] = field(default_factory=dict, repr=False)

    def demand(self, rate: float) -> Demand:
        """The demand at another rate, none busier than it."""
        return replace(self.question.demand, rate=max(rate, _IDLE), peak=1.0, trace=None)

    def fleet(self, rate: float) -> Option:
        """The replicas that carry a rate [1/s]; at the peak of the question those of the plan."""
        if rate not in self._fleets:
            question, demand = self.question, self.demand(rate)
            peak = math.isclose(rate, question.demand.peak_load, rel_tol=1e-9)
            self._fleets[rate] = self.option if peak else self.option.sized(
                demand, question.slo, question.reserve
            )  # fmt: skip
        return self._fleets[rate]

    def gpus(self, rate: float) -> int:
        """Accelerators that carry a rate."""
        return self.fleet(rate).gpus

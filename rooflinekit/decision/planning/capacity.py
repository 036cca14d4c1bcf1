"""How many replicas a rate takes: the sizing of `plan`, asked again for every hour and month.

    n(λ) = ⌈λ/(c(λ)·(1 − headroom)·u)⌉ + redundancy

c is what one replica bears within the objectives at the confidence asked for (`fleet.ability`), with Poisson arrivals
one number. u ≤ 1 is the share of it with which the simulation agrees in the interval whose replicas have most to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from rooflinekit.decision.planning.confirm import Ranked, play, stressed
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.fleet import Ability, Option, Part, ability
from rooflinekit.decision.planning.search import PlanQuestion

_HALVINGS = 3  # simulations between what the formula allows and what the peak was simulated with
_IDLE = 1e-9  # requests/s of an interval in which nothing comes


@dataclass(frozen=True)
class Capacity:
    """A deployment, and how many replicas of it carry a rate; `used`: u of each part.

    interrupted: while u was looked for.
    """

    question: PlanQuestion
    option: Option
    used: tuple[float, ...]
    interrupted: bool = False
    _able: dict[tuple[int, float], Ability] = field(default_factory=dict, repr=False)
    _fleets: dict[float, Option] = field(default_factory=dict, repr=False)

    def demand(self, rate: float) -> Demand:
        """The same requests at another rate, none busier than it."""
        return replace(self.question.demand, rate=max(rate, _IDLE), peak=1.0, trace=None)

    def fleet(self, rate: float) -> Option:
        """The replicas that carry a rate [1/s]."""
        if rate not in self._fleets:
            demand = self.demand(rate)
            parts = []
            for place, (part, bearer) in enumerate(zip(self.option.parts, self.option.bearers(demand), strict=True)):
                fewest = 0.0 if demand.arrival_cv == 1.0 else demand.peak_load // bearer.knee(demand)
                if (place, fewest) not in self._able:
                    able = ability(bearer, demand, self.question.slo, self.question.deviations)
                    self._able[place, fewest] = able
                able = self._able[place, fewest]
                given = replace(able, load=able.load * self.used[place])
                sized = Part.of(part.role, part.replica, given, demand, self.question.reserve)
                parts.append(replace(sized, ability=able))
            self._fleets[rate] = replace(self.option, parts=tuple(parts))
        return self._fleets[rate]

    def gpus(self, rate: float) -> int:
        """Accelerators that carry a rate."""
        return self.fleet(rate).gpus

    def busy(self, rate: float) -> float:
        """What a replica has to do over what it bears: the largest of the parts."""
        demand, option = self.demand(rate), self.fleet(rate)
        return max(part.load(demand) / part.ability.load for part in option.parts)


def formula_capacity(question: PlanQuestion, option: Option) -> Capacity:
    """The capacity of an option as the formula has it."""
    return Capacity(question, option, (1.0,) * len(option.parts))


def capacity_of(question: PlanQuestion, entry: Ranked, rates: Iterable[float]) -> Capacity:
    """The capacity of a candidate: that of the formula, or where it was simulated, with which that agrees at all rates.

    The candidate agrees at its peak, so that u lies between what its replicas have to do there and 1.
    """
    option, demand = entry.option, question.demand
    if not question.confirm or entry.played is None or not entry.played.agrees:
        return formula_capacity(question, option)
    room = 1.0 - question.reserve.headroom
    least = tuple(min(part.load(demand) / (part.ability.load * room), 1.0) for part in option.parts)
    several = sorted(set(rates))
    return agreed_capacity(question, option, least, lambda _: several)


def agreed_capacity(
    question: PlanQuestion, option: Option, least: tuple[float, ...], rates: Callable[[Capacity], Iterable[float]]
) -> Capacity:
    """The largest u from `least` up with which a simulation of the rate whose replicas have most to do agrees.

    Bisection, each simulation as that of a peak, which keeps its fleet; an interrupt leaves what agreed by then.
    """

    def at(share: float) -> Capacity:
        return Capacity(question, option, tuple(low + share * (1.0 - low) for low in least))

    def agrees(share: float) -> bool:
        trial = at(share)
        peak = zip(trial.fleet(question.demand.peak_load).parts, option.parts, strict=True)
        if any(mine.working < agreed.working for mine, agreed in peak):
            return False
        busiest = max(rates(trial), key=trial.busy)
        fleet, asked = trial.fleet(busiest), replace(question, demand=trial.demand(busiest))
        question.progress(f"simulate {busiest:.3g} requests/s", 0, 1)
        played = play(fleet, asked)
        return played.agrees and not stressed(fleet, asked, played)

    low, high = 0.0, 1.0
    try:
        if question.demand.trace is None and agrees(1.0):
            return at(1.0)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if agrees(middle) else (low, middle)
    except KeyboardInterrupt:
        return replace(at(low), interrupted=True)
    return at(low)

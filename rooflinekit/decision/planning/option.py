"""A way to serve the traffic: replicas of one kind, pools of two, or a fleet of two kinds of replica."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.objective import Felt, slowest
from rooflinekit.decision.planning.pools import DecodePool, PrefillPool, joined, link_seconds
from rooflinekit.decision.planning.replica import Ability, Replica, feel
from rooflinekit.model.types.errors import WorkloadError

__all__ = ["Option", "Part", "Reserve", "shared_out", "working_replicas"]

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Reserve:
    """What is kept free: `headroom` of what a replica bears (0 to below 1), and `redundancy` replicas that may fail.

    limits: how many of an accelerator there are to be had, by name.
    """

    headroom: float = 0.0
    redundancy: int = 0
    limits: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.headroom < 1.0:
            raise WorkloadError(f"headroom is a share of what a replica bears, from 0 to below 1, not {self.headroom}")

    def limit(self, gpu: str) -> float:
        """Accelerators of this name that there are."""
        return dict(self.limits).get(gpu, math.inf)


@dataclass(frozen=True)
class Part:
    """`working` replicas of one kind that carry `share` of the traffic at its peak, and `spare` ones beside them."""

    role: str  #: serve, prefill or decode
    replica: Replica
    ability: Ability
    working: int
    spare: int
    share: float = 1.0

    @property
    def replicas(self) -> int:
        """All of them."""
        return self.working + self.spare

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return self.replicas * self.replica.gpus

    def seen(self, demand: Demand) -> Demand:
        """The traffic as one working replica sees it."""
        return demand.thinned(self.working / self.share)

    def load(self, demand: Demand) -> float:
        """On each working replica at the peak, those in reserve being down; whole users."""
        each = demand.peak_load * self.share / self.working
        return float(math.ceil(each - _ROUNDING)) if demand.closed else each

    def mean_load(self, demand: Demand) -> float:
        """On each replica in the mean, all of them up; at least one user."""
        each = demand.mean_load * self.share / self.replicas
        return max(each, 1.0) if demand.closed else each


@dataclass(frozen=True)
class Option:
    """One plan, not yet priced: its parts, and what users feel at the peak."""

    kind: str  #: aggregated, disaggregated or mixed
    parts: tuple[Part, ...]

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return sum(part.gpus for part in self.parts)

    def feel(self, demand: Demand) -> Felt:
        """Latencies at the peak; of a mixed fleet those of the slower kind."""
        if self.kind == "disaggregated":
            first, after = self.parts
            prefill = PrefillPool.of(first.replica, demand).feel(first.seen(demand), first.load(demand))
            decode = DecodePool(after.replica, link_seconds(first.replica, demand))
            return joined(prefill, decode.feel(after.seen(demand), after.load(demand)))
        return slowest([feel(part.replica.answer(part.seen(demand), part.load(demand))) for part in self.parts])

    def grown(self, more: int = 1) -> Option:
        """With more working replicas: of the part that the objectives load most."""
        fullest = max(self.parts, key=lambda part: part.share / (part.working * max(part.ability.load, 1e-30)))
        grown = [replace(part, working=part.working + more) if part is fullest else part for part in self.parts]
        if self.kind != "mixed":
            return replace(self, parts=tuple(grown))
        return replace(self, parts=shared_out(grown))


def shared_out(parts: list[Part]) -> tuple[Part, ...]:
    """Traffic in proportion to what the working replicas of each part bear."""
    whole = sum(part.working * part.ability.load for part in parts)
    return tuple(replace(part, share=part.working * part.ability.load / whole) for part in parts)


def working_replicas(ability: Ability, demand: Demand, reserve: Reserve) -> int:
    """Replicas that carry the peak: ⌈peak/(load·(1 − headroom))⌉; for users whole ones each.

    >>> from rooflinekit.decision.planning.demand import read_demand
    >>> working_replicas(Ability(5.3, ()), read_demand({"rate": 50}), Reserve())
    10
    >>> working_replicas(Ability(5.3, ()), read_demand({"rate": 50}), Reserve(headroom=0.2))
    12
    """
    each = ability.load * (1.0 - reserve.headroom)
    if demand.closed:
        each = max(float(math.floor(each + _ROUNDING)), 1.0)
    return max(math.ceil(demand.peak_load / each - _ROUNDING), 1)

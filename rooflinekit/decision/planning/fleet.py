"""Replicas, pools and fleets: how much of the traffic each bears within the objectives, and what users feel.

    prefill   TTFT = request + wait + s₁         s₁: one prompt by itself; wait: Kingman's formula with ρ = λ·s₁
    link      t_x = S·κ/(w·g)                    κ: cache bytes of a token; w: NIC of each of the g accelerators
    decode    TPOT = t_d(C) + (t_x + t_d/2 + wait for a slot)/(N − 1),  C = 1 + λ·(N − 1)·t_d(C)

In pools the first token comes from the prefill replica, so the transfer delays the second one and counts in the TPOT,
as in the simulator. No prompt disturbs a decode step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rooflinekit.decision.planning.curve import tabulate
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.objective import Felt, Objective, slowest
from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Loaded, Times
from rooflinekit.model.traffic.mixing import InFlight, Shared, lone_prompt, slots
from rooflinekit.model.traffic.percentiles import Spread, spread
from rooflinekit.model.traffic.question import LoadAnswer, answer_load
from rooflinekit.model.types.errors import DoesNotFitError, WorkloadError
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.time import NOTHING, Time

__all__ = [
    "Ability",
    "DecodePool",
    "Option",
    "Part",
    "PrefillPool",
    "Replica",
    "Reserve",
    "ability",
    "bears",
    "feel",
    "lay_out",
    "link_seconds",
    "pool_ability",
    "retuned",
    "shared_out",
    "working_replicas",
]

_GRID = 16  # loads between which the first violation is looked for
_CLOSE = 1e-4  # relative: a bisection of a rate ends
_REACH = 1.05  # of the room: lower limits of sequences leave a little more of it
_LIGHT = 1e-3  # of the knee: a load at which nobody waits

_FULL = 1.0 - 1e-4  # of the knee
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Replica:
    """A deployment, as keywords and resolved, with its shared times tabulated.

    room: sequences that run at once; reach: of the table, a little more.
    """

    scenario: dict[str, Any]
    resolved: Resolved
    times: Times
    room: float
    reach: float

    @property
    def predictor(self) -> Predictor:
        """The plan with its memory."""
        return self.resolved.predictor

    @property
    def gpus(self) -> int:
        """Accelerators."""
        return self.resolved.plan.deployment.gpus

    @property
    def gpu(self) -> str:
        """Name of the accelerator."""
        return self.resolved.plan.system.accelerator.name

    def answer(self, demand: Demand, load: float) -> LoadAnswer:
        """The closed form at this load, from the table."""
        return answer_load(self.predictor, demand.question(load), self.times)


def lay_out(model: str, gpu: str, scenario: dict[str, Any], demand: Demand, calibration: str | None) -> Replica:
    """Resolve a deployment and tabulate its times.

    Raises InputError (and its kinds) for a deployment that does not exist, DoesNotFitError for one without room.
    """
    resolved = resolve(model, gpu, read_deployment(scenario), calibration)
    known = resolved.plan.system.accelerator.name
    named = {"model": model, "gpu": gpu if Path(gpu).suffix else known, **scenario}
    return _tabulated(named, resolved, demand)


def retuned(replica: Replica, setting: dict[str, Any], demand: Demand) -> Replica:
    """The same split with another token budget or limit of sequences; its operations stay as they are.

    Raises DoesNotFitError where the cache then has no room.
    """
    plan = replica.resolved.plan
    chosen = replace(plan.deployment.settings, **setting)
    plan = replace(plan, deployment=replace(plan.deployment, settings=chosen))
    predictor = Predictor.of(plan)
    resolved = replace(replica.resolved, predictor=predictor)
    same = plan.token_budget == replica.resolved.plan.token_budget
    room = _room(predictor, demand)
    if same and room <= replica.reach:
        return replace(replica, scenario=replica.scenario | setting, resolved=resolved, room=room)
    return _tabulated(replica.scenario | setting, resolved, demand)


def _tabulated(scenario: dict[str, Any], resolved: Resolved, demand: Demand) -> Replica:
    room = _room(resolved.predictor, demand)
    reach = math.ceil(_REACH * room)
    curve = tabulate(resolved.predictor, demand.isl.mean, demand.osl.mean, reach)
    return Replica(scenario, resolved, curve, room, reach)


def _room(predictor: Predictor, demand: Demand) -> float:
    traffic, memory = demand.traffic, predictor.memory
    room = float(slots(predictor, traffic.isl, traffic.osl))
    longest = min(demand.longest, float(predictor.plan.model.max_context or math.inf))
    if room < 1.0 or float(memory.max_batch(longest, longest)) < 1.0:
        held = memory.evaluate(1.0, longest, longest)
        raise DoesNotFitError(
            f"weights take {float(held.weight_bytes) / 1e9:.1f} of {float(held.capacity_bytes) / 1e9:.1f} GB a GPU, "
            f"and no request of {longest:,.0f} tokens fits beside them"
        )
    return room


def feel(answer: LoadAnswer) -> Felt:
    """The latencies of an answer, as objectives read them."""
    loaded: Loaded = answer.loaded
    means = {"ttft": float(loaded.ttft.expected), "tpot": float(loaded.tpot.expected), "e2el": float(loaded.e2e)}
    return Felt(means, answer.times, bool(loaded.stable))


@dataclass(frozen=True)
class Ability:
    """What a replica bears within the objectives.

    load: requests/s or users; 0 if the objectives fail even without waiting. binds: objectives that fail just above, or
    the knee. regained: a heavier load would meet them again, which nobody should plan for.
    """

    load: float
    binds: tuple[str, ...]
    regained: bool = False


def ability(replica: Replica, demand: Demand, slo: tuple[Objective, ...]) -> Ability:
    """The largest load within every objective, below the first violation."""

    def feels(load: float) -> Felt:
        return feel(replica.answer(demand, load))

    if demand.closed:
        return _users(feels, demand, slo)
    knee = float(replica.answer(demand, 1e-9).loaded.knee)
    demand = demand.thinned(demand.peak_load // knee)  # no fewer replicas than that
    return first_violation(feels, knee * (1.0 - _CLOSE), slo, "knee")


def first_violation(feels: Callable[[float], Felt], most: float, slo: tuple[Objective, ...], ceiling: str) -> Ability:
    """The largest rate up to `most` below which no objective fails, on a grid and then by bisection.

    Latencies grow with the rate, so there is one such rate; where jumps of the step times break that within a cell of
    the grid, the answer is still a rate that meets the objectives.
    """

    def broken(load: float) -> list[str]:
        return _broken(feels(load), slo)

    grid = [most * max(step / _GRID, _LIGHT) for step in range(_GRID + 1)]
    failing = [bool(broken(load)) for load in grid]
    if not any(failing):
        return Ability(most, (ceiling,))
    at = failing.index(True)
    if at == 0:
        return Ability(0.0, tuple(broken(grid[0])))
    low, high = grid[at - 1], grid[at]
    while high - low > _CLOSE * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if broken(middle) else (middle, high)
    return Ability(low, tuple(broken(high)), regained=not all(failing[at:]))


def _broken(felt: Felt, slo: tuple[Objective, ...]) -> list[str]:
    return [str(each) for each in slo if not each.met(felt)]


def bears(replica: Replica, load: float, demand: Demand, slo: tuple[Objective, ...]) -> bool:
    """Whether a replica meets every objective at this load: if not, its ability is below."""
    return not _broken(feel(replica.answer(demand.thinned(demand.peak_load // max(load, 1e-9)), load)), slo)


def _users(feels: Callable[[float], Felt], demand: Demand, slo: tuple[Objective, ...]) -> Ability:
    """The same for whole users, of whom there are no more than the traffic has."""

    def broken(users: int) -> list[str]:
        return _broken(feels(float(users)), slo)

    most = int(demand.peak_load)
    grid = sorted({min(round(1.25**step), most) for step in range(90) if 1.25 ** (step - 1) <= most})
    at = next((place for place, users in enumerate(grid) if broken(users)), None)
    if at is None:
        return Ability(float(most), ("users",))
    if at == 0:
        return Ability(0.0, tuple(broken(1)))
    low, high = grid[at - 1], grid[at]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if broken(middle) else (middle, high)
    return Ability(float(low), tuple(broken(high)))


@dataclass(frozen=True)
class PrefillPool:
    """Replicas that compute prompts and give out the first token.

    prompt: time of one by itself; together: of one on each of the `lanes` attention replicas, which start together [s].
    """

    replica: Replica
    prompt: Time
    together: float
    lanes: int = 1

    @classmethod
    def of(cls, replica: Replica, demand: Demand) -> PrefillPool:
        """Time the mean prompt."""
        plan, load = replica.predictor.plan, InFlight(1.0, demand.isl.mean, demand.osl.mean)
        lanes = plan.deployment.dp
        alone, full = (plan.time(lone_prompt(load, filled)).total for filled in (1.0 / lanes, 1.0))
        return cls(replica, alone, float(full.expected), lanes)

    def knee(self, demand: Demand) -> float:
        """Prompts a second at most: one after the other on each attention replica."""
        return self.lanes / self.together

    def feel(self, demand: Demand, rate: float) -> Felt:
        """Latencies up to the first token, at this rate on each replica; TPOT is 0."""
        alone, traffic = self.prompt, demand.traffic
        request = self.replica.predictor.plan.costs.request
        busy = rate / self.knee(demand)
        if busy >= 1.0:
            return Felt({}, Spread(_never, _never, _never), stable=False)
        variation = float(traffic.arrival_cv**2 + traffic.isl_cv**2) / 2.0
        wait = busy / (1.0 - busy) * variation / self.knee(demand)
        wait += (1.0 - 1.0 / self.lanes) * min(rate * self.together, 1.0) * self.together / 2.0  # the pass under way
        own = float(alone.expected) + busy * (self.together - float(alone.expected))
        ttft = own + request + wait
        loaded = Loaded(
            ttft=replace(alone, expected=ttft), tpot=NOTHING, e2e=ttft, running=rate * (ttft - request), sharing=1.0,
            rate=rate, knee=self.knee(demand), queue=wait, ahead=wait, late=0.0, first=alone, busy=busy, stable=1.0,
            together=0.0, shared=Shared(NOTHING, alone, alone, request, mixes=False),
        )  # fmt: skip
        return Felt({"ttft": ttft, "tpot": 0.0, "e2el": ttft}, spread(loaded, traffic, closed=False))


def _never(share: float) -> float:
    return math.inf


@dataclass(frozen=True)
class DecodePool:
    """Replicas that go on from the first token; `transfer` is what its keys and values take to come [s]."""

    replica: Replica
    transfer: float

    def times(self, running: Numeric) -> Shared:
        """Shared times without prompts."""
        shared = self.replica.times(running)
        return Shared(shared.step, NOTHING, NOTHING, 0.0, shared.mixes)

    def answer(self, demand: Demand, rate: float) -> LoadAnswer:
        """The closed form without prompts."""
        return answer_load(self.replica.predictor, demand.question(rate), self.times)

    def knee(self, demand: Demand) -> float:
        """Requests a second of a full batch."""
        return float(self.answer(demand, 1e-9).loaded.knee)

    def feel(self, demand: Demand, rate: float) -> Felt:
        """Latencies after the first token, at this rate on each replica; TTFT is 0."""
        felt = feel(self.answer(demand, rate))
        if not felt.stable:
            return felt
        steps = max(demand.osl.mean - 1.0, 1.0)
        late = felt.means["ttft"] + self.transfer
        tpot = felt.means["tpot"] + late / steps
        inner = felt.times

        def later(share: float) -> Numeric:
            return inner.tpot(share) + (inner.ttft(share) + self.transfer) / steps

        after = felt.means["e2el"] + self.transfer
        times = Spread(lambda share: 0.0, later, lambda share: inner.e2e(share) + self.transfer)
        return Felt({"ttft": 0.0, "tpot": tpot, "e2el": after}, times)


def link_seconds(prefill: Replica, demand: Demand) -> float:
    """Time that the cache of a mean prompt takes from a prefill to a decode replica [s]; infinite without a link.

    A NIC for each accelerator of the prefill replica, or its PCIe link where no NIC is known.
    """
    accelerator = prefill.resolved.plan.system.accelerator
    bandwidth = float(accelerator.nic_bandwidth or accelerator.pcie_bandwidth) * prefill.gpus
    each = prefill.predictor.memory.kv_bytes_per_token
    return demand.isl.mean * each / bandwidth if bandwidth else math.inf


def pool_ability(pool: PrefillPool | DecodePool, demand: Demand, slo: tuple[Objective, ...]) -> Ability:
    """The largest rate of one replica of a pool within the objectives that it has a part in."""
    own = "ttft" if isinstance(pool, PrefillPool) else "tpot"
    mine = tuple(each for each in slo if each.metric in (own, "e2el"))
    knee = pool.knee(demand)
    seen = demand.thinned(demand.peak_load // knee)
    feels: Callable[[float], Felt] = lambda rate: pool.feel(seen, rate)  # noqa: E731
    return first_violation(feels, knee * _FULL, mine, "knee")


def joined(first: Felt, after: Felt) -> Felt:
    """Both parts of a request together; deviations of the end-to-end time add as squares."""
    if not (first.stable and after.stable):
        return Felt({}, Spread(_never, _never, _never), stable=False)
    mean = first.means["ttft"] + after.means["e2el"]

    def whole(share: float) -> float:
        parts = (first.times.ttft(share) - first.means["ttft"], after.times.e2e(share) - after.means["e2el"])
        square = sum(math.copysign(part * part, part) for part in parts)
        return mean + math.copysign(math.sqrt(abs(square)), square)

    means = {"ttft": first.means["ttft"], "tpot": after.means["tpot"], "e2el": mean}
    return Felt(means, Spread(first.times.ttft, after.times.tpot, whole))


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

"""One replica of a deployment: how much of the traffic it bears within the objectives, and what stops it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rooflinekit.decision.planning.curve import tabulate
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.objective import Felt, Objective
from rooflinekit.estimation.estimator import Resolved, read_deployment, resolve
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Loaded, Times
from rooflinekit.model.traffic.mixing import slots
from rooflinekit.model.traffic.question import LoadAnswer, answer_load
from rooflinekit.model.types.errors import DoesNotFitError

__all__ = ["Ability", "Replica", "ability", "bears", "feel", "first_violation", "lay_out", "retuned"]

_GRID = 16  # loads between which the first violation is looked for
_CLOSE = 1e-4  # relative: a bisection of a rate ends
_REACH = 1.05  # of the room: lower limits of sequences leave a little more of it
_LIGHT = 1e-3  # of the knee: a load at which nobody waits


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

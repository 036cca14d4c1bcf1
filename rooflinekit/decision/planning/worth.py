"""The measurements that would pay: which load points on which deployment take most dollars of doubt off a plan.

A fleet is sized for the place d of the interval of the times that end its capacity, whose logarithm errs by s. A run
of a load errs by σ itself, so that after it the error is

    s' = (1/s² + 1/σ²)^(−1/2)

and the same confidence stands at d·s'/s. What the cheapest fleet costs less then is what the run is worth. Lindley
(1956), Annals of Mathematical Statistics 27(4): information is worth what the decision gains by it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflinekit.decision.economics.price import MONTH_HOURS
from rooflinekit.decision.planning.fleet import Option, Part
from rooflinekit.decision.planning.rank import Ranked
from rooflinekit.decision.planning.search import PlanQuestion
from rooflinekit.estimation.measuring import benchmark_commands
from rooflinekit.load.answer import PER_USER, AskedLoad
from rooflinekit.load.lengths import Fixed
from rooflinekit.model.types.answer import Plain
from rooflinekit.model.types.workload import Workload

NOISE = {"ttft": 0.4, "tpot": 0.05}
"""Standard deviation of the logarithm of what one run says: what `calibrate` believes before it has seen any."""
MOST = 5
"""Load points that are named at most."""
_DEPLOYMENTS = 3  # that are looked at, one for each accelerator
_RESULT = re.compile(r"\bresult\.jsonl?$")
_FEWER = 8  # users of the second load point over those of the first: small and large batches tell costs apart


@dataclass(frozen=True)
class Measurement(Plain):
    """Load points on one deployment that would take most doubt off a plan.

    users: of closed loops, one a run; minutes: that they take together; gpus: accelerators that are needed;
    gpus_after: those of the fleet that is bought then; usd_per_month: what it costs less (None without a price, or
    where no fleet is known to hold before); commands: to start the server, to measure, to calibrate, to plan again.
    """

    gpu: str
    scenario: dict[str, Any]
    users: tuple[int, ...]
    minutes: float
    gpus: int
    gpus_after: int
    usd_per_month: float | None
    commands: tuple[str, ...]

    def __str__(self) -> str:
        less = f"a fleet of {self.gpus_after:,} GPU{'s' * (self.gpus_after > 1)} that is known to hold"
        worth = less if self.usd_per_month is None else f"${self.usd_per_month:,.0f} a month less"
        *most, last = map(str, self.users)
        users = f"{', '.join(most)} and {last}" if most else last
        users += " user" if self.users == (1,) else " users"
        return f"{worth}: {users} on {self.gpus} {self.gpu}, {max(math.ceil(self.minutes), 2)} minutes"


def measurements(question: PlanQuestion, order: Sequence[Ranked]) -> list[Measurement]:
    """Measurements that would make the plan cheaper, of the cheapest deployment of each accelerator, the best first."""
    demand, rank, best = question.demand, question.tariff.rank, order[0].option
    if question.deviations <= 0.0 or demand.closed or demand.prefixes is not None or demand.trace is not None:
        return []
    if not order[0].known:  # which is bought at expected times: sureness would take this today
        best = best.sized(demand, question.slo, question.reserve, question.deviations)
    firsts: dict[tuple[str, ...], Option] = {}
    for entry in order:
        if entry.option.kind != "mixed":
            firsts.setdefault(entry.option.names, entry.option)
    found = list[tuple[Option, list[Part]]]()
    for option in [*firsts.values()][:_DEPLOYMENTS]:
        question.progress("size fleets as after a measurement", len(found), len(firsts))
        for parts in _deployments(option):
            if _run(question, parts[0], 1, "") is None:
                continue
            after = _after(question, option, parts)
            dearer = not all(each.working for each in best.parts) or rank(after) < rank(best)
            if all(each.working for each in after.parts) and dearer:
                found.append((after, parts))
    named: list[Measurement] = []
    for after, parts in sorted(found, key=lambda each: rank(each[0])):
        if sum(len(each.users) for each in named) < MOST - 1:
            named.append(_measurement(question, parts, after, best, len(named) + 1))
    return named


def _deployments(option: Option) -> list[list[Part]]:
    """The parts by what is deployed: a run of one deployment says nothing of another, and tells of all pools of it."""
    found: list[list[Part]] = []
    for part in option.parts:
        same = next((each for each in found if each[0].replica.scenario == part.replica.scenario), None)
        if same is None:
            found.append([part])
        else:
            same.append(part)
    return found


def _after(question: PlanQuestion, option: Option, measured: Sequence[Part]) -> Option:
    """The fleet as it is sized after runs of some of its parts."""
    left = (_left(question, part) if part in measured else 1.0 for part in option.parts)
    parts = (replace(part, deviations=question.deviations * share)
             for part, share in zip(option.parts, left, strict=True))  # fmt: skip
    return replace(option, parts=tuple(parts)).sized(question.demand, question.slo, question.reserve)


def _left(question: PlanQuestion, part: Part) -> float:
    """Share of its standard deviation that the error of what ends the capacity has left after a run."""
    shares = []
    felt = part.bearer.feel(part.seen(question.demand), part.load(question.demand), known=True)
    for each in question.slo:
        if each.metric in NOISE and str(each) in part.ability.binds:
            own = math.log(math.prod(felt.factors(each.metric, question.deviations))) / question.deviations
            shares.append(NOISE[each.metric] / math.hypot(own, NOISE[each.metric]) if own > 0.0 else 1.0)
    return max(shares, default=1.0)


def _points(question: PlanQuestion, part: Part) -> tuple[int, ...]:
    """Users at the load of a part, and fewer; of prompts alone one."""
    load = part.bearer.in_flight(part.seen(question.demand), part.load(question.demand))
    users = max(round(float(load.users)), 1)
    return users, max(users // _FEWER, 1)


def _measurement(
    question: PlanQuestion, parts: Sequence[Part], after: Option, best: Option, number: int
) -> Measurement:  # fmt: skip
    demand, replica = question.demand, parts[0].replica
    points = tuple(sorted({users for part in parts for users in _points(question, part)}, reverse=True))
    felts = [part.bearer.feel(part.seen(demand), part.load(demand), known=True) for part in parts]
    sure = all(each.working for each in best.parts)
    hours = [question.tariff.per_hour(each) if sure else None for each in (best, after)]
    saved = None if hours[0] is None or hours[1] is None else (hours[0] - hours[1]) * MONTH_HOURS
    return Measurement(
        gpu=replica.gpu,
        scenario=replica.scenario,
        users=points,
        minutes=len(points) * PER_USER * max(felt.value("e2el", None) for felt in felts) / 60.0,
        gpus=replica.gpus,
        gpus_after=after.gpus,
        usd_per_month=saved,
        commands=tuple(_commands(question, parts[0], points, number)),
    )


def _commands(question: PlanQuestion, part: Part, points: Sequence[int], number: int) -> Iterator[str]:
    """Commands to start the server, measure each load, and take the files back into the prediction."""
    scenario = part.replica.scenario
    told = {key: each for key, each in scenario.items() if key not in ("model", "cached") and each not in (1, False)}
    flags = " ".join(
        f"--{key.replace('_', '-')}" if each is True else f"--{key.replace('_', '-')} {shlex.quote(str(each))}"
        for key, each in told.items()
    )  # fmt: skip
    model, made = shlex.quote(question.model), f"{part.replica.gpu}-{number}"
    yield f"rooflinekit launch {model} {flags}"
    files = [f"run-{number}-{users}.json" for users in points]
    for users, file in zip(points, files, strict=True):
        yield _run(question, part, users, file) or ""
    yield f"rooflinekit calibrate {' '.join(files)} --model {model} {flags} --out {made}.yaml"
    yield f"rooflinekit plan {model} --gpu {scenario['gpu']} --calibration {made}.yaml  # and the rest of the question"


def _run(question: PlanQuestion, part: Part, users: int, file: str) -> str | None:
    """The command that measures so many users into a file; None where no client of the engine writes one."""
    plan, demand = part.replica.predictor.plan, question.demand
    isl, osl, cached = (round(each) for each in (demand.isl.mean, demand.osl.mean, demand.cached))
    load = AskedLoad(Fixed(isl), Fixed(osl), users=users, cached=float(cached))
    each = (run["command"] for run in benchmark_commands(plan, Workload(users, isl, osl), load))
    return next((_RESULT.sub(file, run) for run in each if _RESULT.search(run)), None)

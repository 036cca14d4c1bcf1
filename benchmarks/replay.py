"""Whether objectives hold as often as plans state: 40 plans played again with kernels drawn from their intervals.

python benchmarks/replay.py [--draws N] [--plans N] [--sets N] [reports/replay.md]

Every plan is of one model, one traffic and one pair of objectives, sized for one of four confidences. Its fleet is then
played with seeds that the planner has not seen: at the expected times with ten of them (a trace: one, all of it), and
with times drawn from the calibrated intervals in two ways. `together`: one factor on all steps of a deployment, as the
plan takes it, each draw from a part of its distribution of its own. `by family`: one factor for each family of kernels,
drawn by itself, so that errors partly cancel.
Each further set asks the same at another rate; of it only the expected times are played.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import field, replace
from itertools import pairwise, product
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean
from typing import Any

from rooflinekit.decision.planning import replay as requests_one_by_one
from rooflinekit.decision.planning.fleet import Option, Part, joined
from rooflinekit.decision.planning.objective import Felt, Objective, chance, missed, slowest
from rooflinekit.decision.planning.plan import read_question
from rooflinekit.decision.planning.rank import ranked
from rooflinekit.decision.planning.search import Found, PlanQuestion, search
from rooflinekit.model.timing.calibrated import Calibration, FamilyFit
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.time import SIGMAS

MODELS = {  # with a rate that takes so many replicas that a fleet can be nearly as large as is needed
    "llama-3-8b": 300.0, "llama-3.3-70b": 60.0, "mixtral-8x7b": 150.0, "qwen3-32b": 75.0, "gpt-oss-20b": 300.0,
}  # fmt: skip
_TRACED = 0.2  # of that rate, at the peak of a trace
TRAFFIC: dict[str, dict[str, Any]] = {
    "steady": {"isl": 1000, "osl": 200},
    "lengths vary": {"isl": "lognormal:mean=1200,cv=0.8", "osl": "lognormal:mean=250,cv=0.6"},
    "bursts": {"isl": 800, "osl": 150, "cv": 2.0},
    "trace": {},
}
OBJECTIVES = ("p95 ttft<1s, p95 tpot<40ms", "p90 ttft<2s, mean tpot<30ms")
CONFIDENCES = (0.5, 0.7, 0.9, 0.95)
EDGES = (0.0, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 1.0)
SEED = 20_000  # the planner's is 0
_SEEDS = 10  # of the plays at the expected times
_RATES = (1.0, 0.6, 1.7)  # of the sets, over those above


@dataclass(frozen=True)
class Drawn(Calibration):
    """A calibration whose families of kernels take longer or shorter, by standard deviations of their intervals."""

    deviations: dict[str, float] = field(default_factory=dict)

    def fit(self, kernel: Kernel) -> FamilyFit:
        """The fit, with a form whose total is multiplied."""
        own, power = super().fit(kernel), self.deviations.get(kernel.family, 0.0) / SIGMAS
        return _Longer(**{name: getattr(own, name) for name in FamilyFit.__dataclass_fields__}, drawn=self, power=power)


@dataclass(frozen=True)
class _Longer(FamilyFit):
    drawn: Calibration | None = None
    power: float = 0.0

    def time(self, kernel: Kernel, system: Any, warm: bool = False, corrected: bool = True) -> Any:
        """Time of one launch, multiplied by its interval's factor to a power."""
        duration = super().time(kernel, system, warm, corrected)
        assert self.drawn is not None
        upper, lower = self.drawn.factors(kernel, self)
        return replace(duration, total=duration.total * (upper if self.power > 0.0 else lower) ** self.power)


def by_family(option: Option, draw: Random) -> Option:
    """The option on kernels of which each family has an error of its own."""
    parts = []
    for part in option.parts:
        predictor = part.replica.predictor
        calibration = predictor.plan.calibration
        assert calibration is not None
        families = sorted({name.split("/")[0] for name in calibration.families})
        own: dict[str, Any] = {name: getattr(calibration, name) for name in calibration.__dataclass_fields__}
        drawn = Drawn(**own, deviations={family: draw.gauss(0.0, 1.0) for family in families})
        resolved = replace(part.replica.resolved, predictor=predictor.on(replace(predictor.plan, calibration=drawn)))
        replica = replace(part.replica, resolved=resolved, _curves={}, _samples={})
        parts.append(replace(part, bearer=replace(part.bearer, replica=replica)))
    return replace(option, parts=tuple(parts))


def played(option: Option, question: PlanQuestion, seed: int, factor: float = 1.0) -> Felt:
    """Latencies at the peak with requests of another seed, where all steps take a factor times as long."""
    demand = question.demand

    def of(part: Part) -> Felt:
        bearer = replace(part.bearer, seed=seed)
        return bearer.feel(part.seen(demand), part.load(demand) * factor, exact=True).stretched(factor)

    felts = [of(part) for part in option.parts]
    return joined(*felts) if option.kind == "disaggregated" else slowest(felts)


def failed(option: Option, question: PlanQuestion, seed: int, deviations: float) -> set[Objective]:
    """Objectives that do not hold with another seed, where steps stand so many deviations up their interval."""
    if question.demand.trace is not None:
        asked = replace(question, seed=seed, confidence=NormalDist().cdf(deviations))
        again = requests_one_by_one.replay(option, asked)
        return set(question.slo) if again.diverges else {*again.failed}
    return {*missed(lambda factor: played(option, question, seed, factor), question.slo, deviations)}


def late(option: Option, question: PlanQuestion) -> tuple[str, ...]:
    """Objectives that fail at the expected times, in the mean of other seeds; of a trace, on all of it."""
    if question.demand.trace is not None:
        asked = replace(question, seed=SEED - 1, confidence=0.5)
        again = requests_one_by_one.replay(option, asked, whole=True)
        return (*map(str, again.failed), *(("the queue grows",) if again.diverges else ()))
    felts = [played(option, question, SEED - 1 - number) for number in range(_SEEDS)]
    return tuple(str(each) for each in question.slo if fmean(each.value(felt) for felt in felts) > each.limit)


@dataclass(frozen=True)
class Replayed:
    """One plan: what it states, and how often each objective held."""

    name: str
    gpus: int
    confidence: float
    stated: dict[Objective, float]
    held: dict[str, dict[Objective, int]]
    draws: int
    missed: tuple[str, ...]  #: objectives that fail at the expected times over many requests


def _trace(folder: Path, rate: float) -> Path:
    """Half an hour with a busy five minutes, at this rate there."""
    draw, time, lines = Random(7), 0.0, ["time_s,isl,osl"]
    while time < 1800.0:
        time += draw.expovariate(rate if 900.0 < time < 1200.0 else rate / 4.0)
        lines.append(f"{time:.4f},{draw.randrange(300, 1700)},{draw.randrange(50, 350)}")
    path = folder / f"trace-{rate:g}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def questions(folder: Path, sets: int) -> Iterator[tuple[str, PlanQuestion, bool]]:
    """The fixed sets, and whether a question is of the first, whose times are drawn too."""
    for number, (times, (model, usual), kind, slo) in enumerate(
        product(_RATES[:sets], MODELS.items(), TRAFFIC, OBJECTIVES)
    ):
        rate = usual * times
        confidence = CONFIDENCES[(number + number // 8) % len(CONFIDENCES)]
        load = {"trace": _trace(folder, _TRACED * rate)} if kind == "trace" else {"rate": rate, **TRAFFIC[kind]}
        asked = {**load, "confidence": confidence, "disaggregated": kind == "steady", "mixed": False}
        name = f"{model}, {kind}, {slo}" + (f", rate x {times:g}" if times != 1.0 else "")
        yield name, read_question(model, "h100-sxm", slo, asked), times == 1.0


def replay(name: str, question: PlanQuestion, draws: int) -> Replayed | None:
    """Plan, and play the plan again; None where no fleet meets the objectives."""
    found = Found()
    order = ranked(question, search(question, found))
    if not order or not order[0].known:
        return None
    option = order[0].option
    feels = option.feels(question.demand)
    chances = {each: chance(feels, each) for each in question.slo}
    stated = {each: value for each, value in chances.items() if value is not None}
    held: dict[str, dict[Objective, int]] = {how: dict.fromkeys(stated, 0) for how in ("together", "by family")}
    draw = Random(name)
    for number in range(draws):
        seed, deviations = SEED + number, NormalDist().inv_cdf((number + draw.uniform(0.001, 0.999)) / draws)
        misses = {
            "together": failed(option, question, seed, deviations),
            "by family": failed(by_family(option, draw), question, seed, 0.0),
        }
        for how, missing in misses.items():
            for each in stated:
                held[how][each] += each not in missing
    return Replayed(name, option.gpus, question.confidence, stated, held, draws, late(option, question))


def _reliability(plans: list[Replayed]) -> list[str]:
    """How often objectives held, by the probability stated and by the confidence asked for."""
    lines = [
        "",
        "| stated probability | objectives | stated, mean | held, together | held, by family |",
        "|---|--:|--:|--:|--:|",
    ]  # fmt: skip
    cells = [(each.stated[o], *(each.held[how][o] / each.draws for how in ("together", "by family")))
             for each in plans for o in each.stated]  # fmt: skip
    for low, high in pairwise(EDGES):
        own = [cell for cell in cells if low <= cell[0] < high or (high == 1.0 and cell[0] == 1.0)]
        if own:
            means = [sum(column) / len(own) for column in zip(*own, strict=True)]
            lines.append(f"| {low:g} to {high:g} | {len(own)} | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")
    means = [sum(column) / len(cells) for column in zip(*cells, strict=True)]
    lines.append(f"| all | {len(cells)} | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")
    risks: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for each in plans:
        worst = min(each.stated, key=lambda o: each.stated[o])
        risks[each.confidence].append((each.stated[worst], each.held["together"][worst] / each.draws))
    lines += ["", "The objective most at risk of each plan, by the confidence that was asked:", "",
              "| confidence | plans | stated, mean | held, together |", "|--:|--:|--:|--:|"]  # fmt: skip
    for confidence, pairs in sorted(risks.items()):
        stated, held = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        lines.append(f"| {confidence:g} | {len(pairs)} | {stated:.2f} | {held:.2f} |")
    return lines


def report(plans: list[Replayed], unmet: list[str]) -> str:
    """The table of reliability, what misses, and the plans."""
    drawn = [each for each in plans if each.draws]
    draws = max(each.draws for each in plans)
    lines = [
        "# Plans played again", "",
        f"{len(plans)} plans ({len(unmet)} more questions that no fleet meets) of {len(MODELS)} models, {len(TRAFFIC)} "
        f"kinds of traffic and {len(OBJECTIVES)} pairs of objectives on h100-sxm. They are sized for a confidence of "
        "0.5, 0.7, 0.9 or 0.95. `benchmarks/replay.py` plays each fleet with seeds that the planner has not seen. "
        f"It also plays {len(drawn)} of them {draws} times with times drawn from the calibrated intervals. `together` "
        "draws one factor for all steps, as a plan assumes; `by family` one for each family of kernels.",
        *(_reliability(drawn) if drawn else []),
    ]  # fmt: skip
    missed = [each for each in plans if each.missed]
    lines += ["", f"At the expected times, in the mean of {_SEEDS} seeds, {len(missed)} of {len(plans)} plans miss an "
              "objective" + (":" if missed else "."), *([""] if missed else [])]  # fmt: skip
    lines += [f"- {each.name} (confidence {each.confidence:g}): {', '.join(each.missed)}" for each in missed]
    lines += [
        "",
        "| plan | confidence | GPUs | stated | held, together | held, by family |",
        "|---|--:|--:|---|---|---|",
    ]
    for each in drawn:
        columns = [[each.stated[o] for o in each.stated],
                   *([each.held[how][o] / each.draws for o in each.stated] for how in each.held)]  # fmt: skip
        words = " | ".join(", ".join(f"{math.floor(value * 100) / 100:.2f}" for value in column) for column in columns)
        lines.append(f"| {each.name} | {each.confidence:g} | {each.gpus} | {words} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Plan, play, write; what is finished is written each time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("out", type=Path, nargs="?", default=Path("reports/replay.md"))
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--plans", type=int, default=120)
    parser.add_argument("--sets", type=int, default=3, choices=range(1, len(_RATES) + 1))
    parser.add_argument("--workers", type=int, default=2)
    told = parser.parse_args()
    plans, unmet = [], []
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(told.workers) as pool:
        every = list(questions(Path(folder), told.sets))
        Random(0).shuffle(every)  # so that what is finished is a fair sample
        asked = {
            pool.submit(replay, name, question, told.draws if drawn else 0): name
            for name, question, drawn in every[: told.plans]
        }
        for done in as_completed(asked):
            if (found := done.result()) is None:
                unmet.append(asked[done])
            else:
                plans.append(found)
                plans.sort(key=lambda each: each.name)
                told.out.write_text(report(plans, unmet), encoding="utf-8")
            sys.stderr.write(f"{len(plans) + len(unmet)}: {asked[done]}\n")


if __name__ == "__main__":
    main()

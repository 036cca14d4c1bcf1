"""Reasons why a run and its prediction differ: the smallest changes of assumptions that reconcile them, found by trial.

Each change is predicted anew. Its score is a negative log probability: the misfit of the figures within their
intervals, and a price for the change, which is higher for what the file states than for what nobody said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from operator import attrgetter
from typing import Any

from rooflinekit.estimation.options import Keywords, OwnKeywords
from rooflinekit.evidence.benchmark_runs import Given, Posed, pose
from rooflinekit.evidence.measurement import PREDICTED, MeasuredRun, RunFacts
from rooflinekit.load.answer import play_load
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.model import MixtureOfExperts
from rooflinekit.specs import load_accelerator, names
from rooflinekit.specs.engines import step_ranges

#: Price by who says what is to change, as -ln of odds that it is wrong; assumptions.
_OTHERWISE = "the file, otherwise"
_PRICES = {"nobody": 1.0, "you": 2.0, "the file": 4.0, _OTHERWISE: 0.2}
_RARE = {"gpu": 1.0, "engine": 1.0, "power_cap": 1.0, "pp": 1.0, "skew": 1.0, "token_budget": 1.0}
_DOUBLING = 0.2  # price of each factor of two of a length, of users or of a rate
_DEVIATIONS = 2.0 * 1.645  # between the ends of a 90 % interval
_IDENTITY, _ROUNDED = 0.02, 0.02  # deviations of Little's law and E2EL = TTFT + (n - 1) TPOT; the least of a time
_UNKNOWN = 0.1  # deviation of a time without an interval: an assumption
_PAIRED, _SHOWN = 6, 5  # changes that are tried in pairs; that are shown
_FITS = 1.0  # misfit of a figure, on average, at which no second change is looked for
_FACTORS = (0.25, 0.5, 2.0, 4.0)
_DEGREES = (1, 2, 4, 8)
_FIGURES = ("ttft_ms", "tpot_ms", "e2e_ms", "output_tok_s")
_NUMBERS = ("isl", "osl", "concurrency", "rate")
_OF_FILE = ("hits", "cv", "requests", "warmup")  # facts that users have no option for


@dataclass(frozen=True)
class Change:
    """One assumption, by the name of its option, with another value; `said_by`: who says what it was."""

    option: str
    was: Any
    value: Any
    said_by: str
    price: float


@dataclass(frozen=True)
class ChangeSet:
    """Changes that explain a run: half the sum of squared deviations that they leave, and that with their price."""

    changes: tuple[Change, ...]
    misfit: float
    score: float
    predicted: Mapping[str, float]


@dataclass(frozen=True)
class Why:
    """The best explanations of a run, best first; none where no change is worth its price. misfit: without any."""

    misfit: float
    reasons: tuple[ChangeSet, ...]
    tried: int


def told(run: MeasuredRun) -> OwnKeywords:
    """Options that the file of a run states."""
    facts = {name: value for name in RunFacts.__dataclass_fields__ if (value := getattr(run.facts, name)) is not None}
    return facts | dict(run.deployment)


def explain(run: MeasuredRun, given: Given, room: int | None = None, own: Keywords | None = None) -> Why:
    """Find the smallest changes of a run's assumptions with which the prediction fits it.

    own: what its file says, where that is not what is assumed.
    """
    posed = pose(run, given, room)
    case = _RunCase(run, given, room, _deviations(posed))
    base = case.misfit(posed, _means(posed))
    changes = [*_changes(posed, given, told(run) if own is None else own)]
    single = list(filter(None, (case.tried((change,)) for change in changes)))
    single += list(filter(None, map(case.refined, _best_of_each(single)[:_PAIRED])))
    best = _best_of_each(single)[:_PAIRED]
    pairs: list[ChangeSet] = []
    measured = posed.run.ttft.middle[1], posed.run.tpot.middle[1], posed.run.e2e.mean, posed.run.output_tok_s
    if not best or best[0].misfit > _FITS * sum(map(bool, measured)) / 2.0:
        both = ((*one.changes, *other.changes) for one, other in combinations(best, 2))
        pairs = list(filter(None, map(case.tried, both)))
    pairs += case.fewest(tuple(change for change in changes if change.said_by == _OTHERWISE))
    found = {frozenset(reason.changes): reason for reason in (*best, *pairs)}
    worth = [reason for reason in sorted(found.values(), key=_score) if reason.score < base]
    return Why(base, tuple(worth[:_SHOWN]), len(single) + len(pairs))


def _means(posed: Posed) -> dict[str, float]:
    """Predicted means, without intervals, which take plays of their own [ms, tok/s]."""
    if posed.work is not None:
        found = posed.predict()
        return {name: getattr(found, name) for name in _FIGURES}
    played = play_load(posed.resolved.predictor, posed.load, posed.scheduler)
    ttft, tpot, e2e = played.means()
    times = (float(ttft.expected), float(tpot.expected), e2e)
    return dict(zip(_FIGURES, (*(1e3 * time for time in times), played.output_rate), strict=True))


def _deviations(posed: Posed) -> dict[str, float]:
    """Deviations of the logarithms of TTFT and TPOT: of the 90 % interval; between predictions, of rounding."""
    if posed.run.tool == PREDICTED:
        return dict.fromkeys(_FIGURES, _ROUNDED)
    found: dict[str, float] = {}
    for name, (low, high) in posed.predict().ends.items():
        sure = math.log(high / low) / _DEVIATIONS if 0.0 < low < high < math.inf else _UNKNOWN
        found[name] = max(sure, _ROUNDED)
    return found


@dataclass(frozen=True)
class _RunCase:
    """A run, what is known of it, and the deviations of its predictions."""

    run: MeasuredRun
    given: Given
    room: int | None
    deviations: Mapping[str, float]

    def misfit(self, posed: Posed, predicted: Mapping[str, float]) -> float:
        """Half the sum of squared deviations of a run from a prediction: -ln of its likelihood, but for a constant.

        First and later tokens by their intervals. The others follow from them and the load, so that they tell of
        lengths and of the load alone: E2EL = TTFT + (n - 1) TPOT, and output times E2EL = requests in flight times n.
        """
        run, more, total = posed.run, posed.load.osl.mean - 1.0, 0.0
        for name, spread in (("ttft_ms", run.ttft), ("tpot_ms", run.tpot)):
            if measured := spread.middle[1]:
                total += (math.log(measured / predicted[name]) / self.deviations[name]) ** 2
        e2e = run.e2e.mean
        if run.ttft.mean and run.tpot.mean and e2e:
            measured = e2e / (run.ttft.mean + more * run.tpot.mean)
            own = predicted["e2e_ms"] / (predicted["ttft_ms"] + more * predicted["tpot_ms"])
            total += (math.log(measured / own) / _IDENTITY) ** 2
        if run.output_tok_s:
            ratio = run.output_tok_s / predicted["output_tok_s"]
            ratio *= e2e / predicted["e2e_ms"] if posed.load.rate is None and e2e else 1.0
            total += (math.log(ratio) / _IDENTITY) ** 2
        return total / 2.0

    def tried(self, changes: tuple[Change, ...]) -> ChangeSet | None:
        """Result of changes; None where they are refused, or do not fit in memory."""
        run, given = self.run, self.given
        for change in changes:
            run, given = _changed(run, given, change.option, change.value)
        try:
            posed = pose(run, given, self.room)
            predicted = _means(posed)
        except RooflinekitError:
            return None
        left = self.misfit(posed, predicted)
        return ChangeSet(changes, left, left + sum(change.price for change in changes), predicted)

    def fewest(self, changes: tuple[Change, ...]) -> list[ChangeSet]:
        """All of these changes, without those that are not worth their price."""
        best = self.tried(changes) if len(changes) > 1 else None
        while best is not None and len(best.changes) > 1:
            fewer = (self.tried(tuple(each for each in best.changes if each != change)) for change in best.changes)
            less = min((reason for reason in fewer if reason), key=_score, default=best)
            if less.score >= best.score:
                break
            best = less
        return [best] if best else []

    def refined(self, reason: ChangeSet) -> ChangeSet | None:
        """The number fitted better: between its neighbours on a scale of ratios, in ever smaller steps."""
        (change,), best, step = reason.changes, reason, 2.0**0.5
        if change.option not in _NUMBERS or reason.misfit < _FITS:
            return None
        for _ in range(3):
            centre = float(best.changes[0].value)
            for value in (centre / step, centre * step):
                to = value if change.option == "rate" else max(round(value), 1)
                moved = replace(change, value=to, price=_price(change.option, change.was, to, change.said_by))
                if (found := self.tried((moved,))) and found.score < best.score:
                    best = found
            step **= 0.5
        return best


_score = attrgetter("score")


def _best_of_each(reasons: Iterable[ChangeSet]) -> list[ChangeSet]:
    best: dict[str, ChangeSet] = {}
    for reason in sorted(reasons, key=_score):
        best.setdefault(reason.changes[0].option, reason)
    return list(best.values())


def _changed(run: MeasuredRun, given: Given, option: str, value: Any) -> tuple[MeasuredRun, Given]:
    if option in _OF_FILE:
        return replace(run, facts=replace(run.facts, **{option: value})), given
    if option == "replicas":
        return run, replace(given, replicas=value)
    if option in RunFacts.__dataclass_fields__:
        facts = replace(given.facts, **{option: value})
        if option == "concurrency" and run.facts.requests:  # a closed loop of so many turns each
            turns = run.facts.requests / (given.facts.concurrency or run.facts.concurrency or run.facts.requests)
            run = replace(run, facts=replace(run.facts, requests=max(round(turns * value), 1)))
        return run, replace(given, facts=facts)
    return run, replace(given, deployment={**given.deployment, option: value})


def _changes(posed: Posed, given: Given, own: Mapping[str, object]) -> Iterator[Change]:
    stated, known = dict(posed.run.deployment), dict[str, Any]()
    for option, was, values in _alternatives(posed, given):
        known[option] = was
        said = _said_by(option, posed.run.facts, given, stated)
        for value in dict.fromkeys(values):
            if value != was and value != own.get(option):
                yield Change(option, was, value, said, _price(option, was, value, said))
    for option, value in own.items():  # the file itself says something else
        assumed = given.deployment.get(option, stated.get(option, getattr(posed.facts, option, None)))
        was = known.get(option, assumed)
        burst = ("requests", "warmup", "rate") if posed.run.static else ()
        if option not in ("model", *burst, *(("cv",) if posed.facts.rate is None else ())) and not _alike(was, value):
            yield Change(option, was, value, _OTHERWISE, _PRICES[_OTHERWISE])


def _alike(was: Any, value: Any) -> bool:
    """True if two values are one; means of tokens are rounded, and engines need no version."""
    if isinstance(was, int | float) and isinstance(value, int | float):
        return abs(was - value) < 1.0 if max(was, value) > 1.0 else was == value
    return str(was) == str(value) or (not was and not value)


def _price(option: str, was: Any, value: Any, said: str) -> float:
    doublings = 0.0
    if option in _NUMBERS and min(was, value) > 0:
        doublings = abs(math.log2(value / was))
    return _PRICES[said] + _RARE.get(option, 0.0) + _DOUBLING * doublings


def _said_by(option: str, facts: RunFacts, given: Given, stated: Mapping[str, object]) -> str:
    if getattr(given.facts, option, None) is not None and option != "cv":
        return "you"
    if option in given.deployment or (option == "replicas" and given.replicas):
        return "you"
    told = option in stated or (option != "cv" and getattr(facts, option, None) is not None)
    return "the file" if told else "nobody"


def _alternatives(posed: Posed, given: Given) -> Iterator[tuple[str, object, Sequence[object]]]:
    facts, plan = posed.facts, posed.resolved.plan
    deployment, gpu = plan.deployment, plan.system.accelerator
    isl, osl = (max(round(length or 1.0), 1) for length in (facts.isl, facts.osl))
    for name, number in (("isl", isl), ("osl", osl)):
        yield name, number, _multiples(number)
    run = posed.run
    if run.e2e.mean and run.ttft.mean and run.tpot.mean:
        yield "osl", osl, [max(round(1.0 + (run.e2e.mean - run.ttft.mean) / run.tpot.mean), 1)]
    if run.static:
        yield "concurrency", facts.concurrency, _multiples(facts.concurrency or 1)
    else:
        yield from _of_the_load(posed, given)
    tp, pp, dp, ep = deployment.tp, deployment.pp, deployment.dp, deployment.ep
    yield "tp", tp, _DEGREES
    yield "pp", pp, (1, 2)
    if any(isinstance(layer.ffn, MixtureOfExperts) for layer in plan.model.layers):
        yield "dp", dp, _DEGREES  # of a dense model these are replicas
        yield "ep", ep, (1, deployment.stage)
        yield "skew", deployment.skew, (0.0, 0.6, 1.2)
        if ep > 1:
            yield "all_to_all", deployment.all_to_all, ("auto", "deepep")
    yield "weights", plan.precision.weights_of(plan.model.matrices[-1]).value, ("bf16", "fp8", "int4", "nvfp4")
    yield "kv", plan.precision.kv.value, ("bf16", "fp8")
    yield "eager", deployment.settings.eager, (True, False)
    yield "token_budget", deployment.settings.token_budget, (512, 2048, 8192, 16384)
    since = [f"{deployment.engine}@{start}" for start, only in step_ranges(deployment.engine) if start and not only]
    yield "engine", facts.engine, ("vllm", "sglang", "trtllm", *since)
    kin = [name for name in names("accelerator") if load_accelerator(name).value.architecture == gpu.architecture]
    yield "gpu", gpu.name, kin
    if gpu.tdp_w:
        yield "power_cap", deployment.power_cap, [round(share * gpu.tdp_w) for share in (0.5, 0.7)]


def _multiples(number: int) -> list[int]:
    return [max(round(factor * number), 1) for factor in _FACTORS]


def _of_the_load(posed: Posed, given: Given) -> Iterator[tuple[str, object, Sequence[object]]]:
    facts, users = posed.facts, posed.facts.concurrency
    yield "hits", facts.hits or 0.0, (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
    for name in ("isl_cv", "osl_cv"):
        yield name, getattr(facts, name) or 0.0, (0.0, 0.2, 0.5, 1.0)
    if users is not None:
        yield "concurrency", users, _multiples(users)
        yield "requests", facts.requests, (users, 10 * users)
        yield "max_num_seqs", facts.max_num_seqs, [most for most in (8, 16, 32, 64, 128, 256) if most < users]
    elif facts.rate is not None:
        yield "rate", facts.rate, [factor * facts.rate for factor in _FACTORS]
        yield "cv", facts.cv, (0.0, 1.0, 3.0)
    yield "warmup", facts.warmup, [2 * users if users else 100]
    yield "replicas", given.copies(posed.run), (1, 2, 4)

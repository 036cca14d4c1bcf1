"""Classes of requests that share replicas: what each brings, and what each feels beside the others.

    p_i = λ_i/λ                           share of the prompts          w_i = p_i·(N_i − 1)/Σ   of what decodes
    step = Σ w_i·step_i                   a decode step: its time grows in proportion to the tokens that are held
    prompts of others, the front end      means over p_i
    TTFT_i = TTFT + a_i + (request_i − request) + (wait_i − wait) + λ·(Σ p_j·s_j² − s²)/2
    TPOT_i = TPOT + ρ/(1 − ρ)·a_i/(N_i − 1)
    E2EL_i = TTFT_i + (N_i − 1)·TPOT_i

a_i is what the own prompt takes by itself beyond the mean one, s_j what a prompt adds to a step. The last term of the
TTFT is what is left of the step under way, as long steps are met more often. What came while the own prompt was
computed delays the next tokens (ρ: the share of the time that goes to prompts).

A queue that serves classes by priority lets each wait (1 − ρ)/((1 − ρ·u_i)(1 − ρ·v_i)) times as long as one in order
of arrival: u_i, v_i are the shares of the work of classes before it, and with its own (Cobham 1954, Operations
Research 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from rooflinekit.decision.planning.curve import SharedCurve, blended, tabulate
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.objective import Felt, Objective, parse_objectives, refuse_undecoded
from rooflinekit.estimation.options import options_of, read
from rooflinekit.estimation.scenario import RequestClass
from rooflinekit.load.arrivals import Arrival, Gamma, Requests, generate
from rooflinekit.load.lengths import Fixed, Length, cv, parse_length, spread_length
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Times, Traffic
from rooflinekit.model.traffic.percentiles import spread
from rooflinekit.model.traffic.question import LoadAnswer
from rooflinekit.model.types.errors import InputError, SpecError, WorkloadError
from rooflinekit.specs.delimited import text_rows
from rooflinekit.specs.files import read_yaml

if TYPE_CHECKING:
    from numpy.random import Generator

HASH_TOKENS = 16
"""Tokens of a block of a class's shared beginning, by which simulated caches know it."""
_DRAWN = 1024  # lengths of a class that are drawn at a time
_HOUR = 3600.0
_BUSY = 0.9  # share of the time at which what came meanwhile is taken to stop growing
_STREAMS = 16  # of random numbers before those of the classes' lengths


@dataclass(frozen=True)
class TrafficClass:
    """Requests of one sort.

    rate: requests/s in the mean; cached: share of each prompt that a prefix cache finds; slo: objectives, each
    `of` this class; priority: the lowest number is served first; model: "" for that of the question; requests: of a
    batch job, which has to end within `deadline_h` hours, as many as the rate says.
    """

    name: str
    rate: float
    isl: Length
    osl: Length
    cached: float = 0.0
    slo: tuple[Objective, ...] = ()
    priority: int = 0
    model: str = ""
    requests: float | None = None
    deadline_h: float | None = None


@dataclass(frozen=True)
class Mixed(Length):
    """Lengths of several sorts, each with its share of the requests.

    >>> Mixed(((0.5, Fixed(100)), (0.5, Fixed(300)))).mean
    200.0
    """

    parts: tuple[tuple[float, Length], ...]

    @override
    def moment(self, order: int) -> float:
        return sum(share * length.moment(order) for share, length in self.parts)

    @override
    def quantile(self, share: float) -> float:
        """Of the longest sort, an upper limit; exact at 1."""
        return max(length.quantile(share) for _, length in self.parts)

    @override
    def sample(self, rng: Generator, count: int) -> list[int]:
        drawn = [length.sample(rng, count) for _, length in self.parts]
        kinds = rng.choice(len(self.parts), count, p=[share for share, _ in self.parts]).tolist()
        return [drawn[kind][place] for place, kind in enumerate(kinds)]


@dataclass(frozen=True)
class Mix(Demand):
    """Traffic of several classes on replicas that serve all of them, in an open loop."""

    classes: tuple[TrafficClass, ...] = ()
    _tables: dict[Any, SharedCurve] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, classes: Sequence[TrafficClass], peak: float = 1.0, arrival_cv: float = 1.0) -> Mix:
        """All requests of some classes; peak: the busiest hour over the mean, of each."""
        rate = sum(each.rate for each in classes)
        isl = Mixed(tuple((each.rate / rate, each.isl) for each in classes))
        osl = Mixed(tuple((each.rate / rate, each.osl) for each in classes))
        return cls(rate, None, peak, isl, osl, arrival_cv, classes=tuple(classes))

    def at(self, rates: Mapping[str, float]) -> Mix:
        """The classes that have a rate here, at these rates [1/s]."""
        named = [replace(each, rate=rates[each.name]) for each in self.classes if rates.get(each.name, 0.0) > 0.0]
        return replace(Mix.of(named, arrival_cv=self.arrival_cv), _tables=self._tables)

    @property
    def slo(self) -> tuple[Objective, ...]:
        """Those of all classes."""
        return tuple(objective for each in self.classes for objective in each.slo)

    @property
    def by_priority(self) -> bool:
        """Whether the order of the queue matters."""
        return len({each.priority for each in self.classes}) > 1

    @cached_property
    def shares(self) -> list[float]:
        """Of each class in the requests."""
        whole = sum(each.rate for each in self.classes)
        return [each.rate / whole for each in self.classes]

    def mean(self, values: Sequence[float]) -> float:
        """Over requests."""
        return sum(share * value for share, value in zip(self.shares, values, strict=True))

    @cached_property
    def decodes(self) -> list[float]:
        """Share of each class in the sequences that decode."""
        steps = [share * (each.osl.mean - 1.0) for share, each in zip(self.shares, self.classes, strict=True)]
        return [each / sum(steps) for each in steps] if sum(steps) else self.shares

    @property
    @override
    def longest(self) -> float:
        return max(each.isl.quantile(1.0) + each.osl.quantile(1.0) for each in self.classes)

    @cached_property
    def _traffic(self) -> Traffic:
        new = [each.isl.mean * (1.0 - each.cached) for each in self.classes]
        squares = [each.isl.second_moment * (1.0 - each.cached) ** 2 for each in self.classes]
        prompt, osl = self.mean(new), self.osl.mean
        isl = sum(share * each.isl.mean for share, each in zip(self.decodes, self.classes, strict=True))
        varying = math.sqrt(max(self.mean(squares) / prompt**2 - 1.0, 0.0))
        return Traffic(isl, osl, varying, cv(self.osl), self.arrival_cv, cached=isl - prompt)

    @property
    @override
    def traffic(self) -> Traffic:
        """As the closed form takes it: `isl` as what decodes holds it, `isl − cached` as prompts bring it."""
        return replace(self._traffic, arrival_cv=self.arrival_cv)

    @property
    @override
    def lengths(self) -> Traffic:
        cached = self.mean([each.isl.mean * each.cached for each in self.classes])
        return replace(self.traffic, isl=self.isl.mean, cached=cached)

    @override
    def tabulated(self, predictor: Predictor, most: float) -> SharedCurve:
        return blended([self._table(each, predictor, most) for each in self.classes], self.shares, self.decodes)

    def _table(self, each: TrafficClass, predictor: Predictor, most: float) -> SharedCurve:
        """That of one class by itself, kept for other mixes: limits of the memory do not change the time of a step."""
        plan, cached = predictor.plan, each.cached * each.isl.mean
        settings = replace(plan.deployment.settings, max_model_len=None, max_num_seqs=None, memory_fraction=None)
        most = float(1 << math.ceil(math.log2(most)))
        timed = replace(plan.deployment, settings=replace(settings, token_budget=int(plan.token_budget)))
        key = (plan.system.accelerator.name, timed, most, each.isl.mean, each.osl.mean, cv(each.osl), cached)
        if key not in self._tables:
            self._tables[key] = tabulate(
                predictor, Traffic(each.isl.mean, each.osl.mean, cached=cached, osl_cv=cv(each.osl)), most
            )
        return self._tables[key]

    @override
    def told_apart(self, felt: Felt, answer: LoadAnswer, times: Times) -> Felt:
        loaded, mix = answer.loaded, self.traffic
        if not felt.stable:
            return replace(felt, classes={each.name: felt for each in self.classes})
        assert isinstance(times, SharedCurve)  # that of this mix
        shared, tpot = times(loaded.sharing), float(loaded.tpot.expected)
        queue, ahead, busy = float(loaded.queue), float(loaded.ahead), min(float(loaded.busy), _BUSY)
        alone = [curve(loaded.sharing) for curve in times.classes]
        stays = [float(one.own.expected) + each.osl.mean * tpot for one, each in zip(alone, self.classes, strict=True)]
        adds = [float(one.share.expected) for one in alone]
        met = float(loaded.rate) * max(self.mean([each**2 for each in adds]) - self.mean(adds) ** 2, 0.0) / 2.0
        prompts = self._waits(float(loaded.busy), adds)
        slots = self._waits(float(loaded.rate / loaded.knee), stays)
        found = {}
        for each, one, behind, slot in zip(self.classes, alone, prompts, slots, strict=True):
            own = float(one.alone.expected - shared.alone.expected)
            waited = ahead * behind + (queue - ahead) * slot
            later = own + met + float(one.request - shared.request) + waited - queue
            pace = tpot + busy / (1.0 - busy) * own / max(each.osl.mean - 1.0, 1.0)
            whole = float(loaded.ttft.expected) + later + (each.osl.mean - 1.0) * pace
            mine = replace(
                loaded, ttft=loaded.ttft.later(later), tpot=loaded.tpot.later(pace - tpot), queue=waited, e2e=whole,
                first=loaded.first.later(own), ahead=ahead * behind,
            )  # fmt: skip
            traffic = Traffic(
                each.isl.mean, max(each.osl.mean, 1.0), cv(each.isl), cv(each.osl), self.arrival_cv,
                isl_law=each.isl.over_mean, osl_law=each.osl.over_mean,
            )  # fmt: skip
            means = {"ttft": float(mine.ttft.expected), "tpot": pace, "e2el": float(whole)}
            found[each.name] = Felt(
                means, spread(mine, traffic, False, mix), True, felt.spans, beyond=felt.beyond, inner=felt.inner
            )
        return replace(felt, classes=found)

    def _waits(self, busy: float, work: Sequence[float]) -> list[float]:
        """How long each class waits over a queue in order of arrival; work: of a request of each [s]."""
        if not self.by_priority:
            return [1.0] * len(self.classes)
        loads = [share * each for share, each in zip(self.shares, work, strict=True)]
        of = [(each.priority, load / sum(loads)) for each, load in zip(self.classes, loads, strict=True)]
        busy = min(busy, 1.0 - 1e-6)

        def left(last: int) -> float:
            return 1.0 - busy * sum(share for priority, share in of if priority <= last)

        return [(1.0 - busy) / (left(each.priority - 1) * left(each.priority)) for each in self.classes]

    @override
    def arrivals(self, rate: float, seed: int) -> Iterator[Arrival]:
        """Requests of all classes in their shares, each `kind` that of its class."""
        sorts = Requests(Fixed(1), Fixed(1), tuple(self.shares))
        drawn = [_lengths(each, (seed, _STREAMS + place)) for place, each in enumerate(self.classes)]
        blocks = [tuple(range(place << 24, (place << 24) + int(each.cached * each.isl.quantile(1.0)) // HASH_TOKENS))
                  for place, each in enumerate(self.classes)]  # fmt: skip
        for arrival in generate(Gamma(rate, self.arrival_cv), sorts, 1 << 40, seed):
            kind = arrival.priority
            each, (isl, osl) = self.classes[kind], next(drawn[kind])
            known = blocks[kind][: int(each.cached * isl) // HASH_TOKENS]
            yield Arrival(arrival.time, isl, osl, known, each.priority, kind=kind)


def _lengths(each: TrafficClass, seed: tuple[int, int]) -> Iterator[tuple[int, int]]:
    import numpy as np  # noqa: PLC0415 - only where requests are drawn

    rng = np.random.default_rng(seed)
    while True:
        yield from zip(each.isl.sample(rng, _DRAWN), each.osl.sample(rng, _DRAWN), strict=True)


def read_classes(path: str | PathLike[str], usual: str | Sequence[str]) -> tuple[TrafficClass, ...]:
    """Read a YAML of classes by name, or a CSV with a column `name`; `usual`: objectives of a class that says none.

    Raises SpecError naming file and class for what makes no sense.
    """
    file = Path(path)
    rows = _csv_rows(file) if file.suffix.lower() in (".csv", ".tsv") else _yaml_rows(file)
    if not rows:
        raise SpecError(f"{path}: names no class")
    found = []
    for name, row in rows.items():
        try:
            found.append(_class(name, row, usual))
        except InputError as error:
            raise SpecError(f"{path}: class {name}: {error}") from None
    last = max((each.priority for each in found if each.deadline_h is None), default=-1) + 1
    said = {name for name, row in rows.items() if row.get("priority") not in (None, "")}
    return tuple(each if each.deadline_h is None or each.name in said else replace(each, priority=last)
                 for each in found)  # fmt: skip


def _yaml_rows(path: Path) -> dict[str, dict[str, Any]]:
    rows = read_yaml(path)
    for name, row in rows.items():
        if not isinstance(row, dict):
            raise SpecError(f"{path}: class {name}: is {row!r}, not keys such as rate, isl and slo")
    return {str(name): {str(key): value for key, value in row.items()} for name, row in rows.items()}


def _csv_rows(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    names, rows = text_rows(path)
    if rows and "name" not in names:
        raise SpecError(f"{path}: needs a column name; it has {', '.join(names)}")
    for line, cells in rows:
        name = cells.pop("name", "")
        if not name or name in found:
            raise SpecError(f"{path}, line {line}: needs a name of its own in the column name")
        found[name] = {key: value for key, value in cells.items() if value}
    return found


def _class(name: str, row: Mapping[str, Any], usual: str | Sequence[str]) -> TrafficClass:
    known = options_of(RequestClass)
    said = read(RequestClass, {key: known[key].of_cell(value) if key in known else value for key, value in row.items()})
    isl, osl = (parse_length(spread_length(key, said.get(key, known[key].default), said.get(f"{key}_cv")))
                for key in ("isl", "osl"))  # fmt: skip
    job = said.get("requests"), said.get("deadline")
    if (job[0] is None) != (job[1] is None):
        raise InputError("a batch job has requests and a deadline; one of them is missing")
    if (said.get("rate") is None) == (job[0] is None):
        raise InputError("give rate (requests/s), or requests and deadline of a batch job")
    deadline = None if job[1] is None else job[1] / _HOUR
    slo = parse_objectives(said["slo"]) if "slo" in said else () if job[0] is not None else parse_objectives(usual)
    refuse_undecoded(slo, osl.mean)
    if deadline is not None and "slo" in said:
        raise WorkloadError("a batch job has a deadline in place of objectives; leave slo out")
    return TrafficClass(
        name, said["rate"] if job[0] is None or job[1] is None else job[0] / job[1], isl, osl, said.get("cached", 0.0),
        tuple(replace(each, of=name) for each in slo), said.get("priority", 0), said.get("model", ""),
        None if job[0] is None else float(job[0]), deadline,
    )  # fmt: skip

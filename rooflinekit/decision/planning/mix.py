"""Classes of requests that share replicas: what each brings, drawn together, and in which order they are served."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.objective import Objective, parse_objectives, refuse_undecoded
from rooflinekit.estimation.options import options_of, read
from rooflinekit.estimation.scenario import RequestClass
from rooflinekit.load.answer import CROWD, STEADY, AskedLoad
from rooflinekit.load.arrivals import Arrival, Drawn, Gamma, Process, Requests, generate
from rooflinekit.load.lengths import Fixed, Length, parse_length, spread_length
from rooflinekit.model.types.errors import InputError, SpecError, WorkloadError
from rooflinekit.specs.delimited import text_rows
from rooflinekit.specs.files import read_yaml

if TYPE_CHECKING:
    from numpy.random import Generator

HASH_TOKENS = 16
"""Tokens of a block of a class's shared beginning, by which simulated caches know it."""
_OF_EACH = 200  # requests of each class that are played, as far as no answer has too many
_DRAWN = 1024  # lengths of a class that are drawn at a time
_HOUR = 3600.0
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
        """Quantile of the longest sort, an upper limit; exact at 1."""
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
        return Mix.of(named, arrival_cv=self.arrival_cv)

    @property
    def slo(self) -> tuple[Objective, ...]:
        """Objectives of all classes."""
        return tuple(objective for each in self.classes for objective in each.slo)

    @property
    def by_priority(self) -> bool:
        """True if the order of the queue matters."""
        return len({each.priority for each in self.classes}) > 1

    @cached_property
    def shares(self) -> list[float]:
        """Share of each class in the requests."""
        whole = sum(each.rate for each in self.classes)
        return [each.rate / whole for each in self.classes]

    @property
    @override
    def longest(self) -> float:
        return max(each.isl.quantile(1.0) + each.osl.quantile(1.0) for each in self.classes)

    @property
    @override
    def cached(self) -> float:
        return sum(share * each.cached * each.isl.mean for share, each in zip(self.shares, self.classes, strict=True))

    @override
    def asked(self, seed: int) -> AskedLoad:
        """The load with as many requests as the rarest class needs to be known."""
        count = min(max(float(STEADY), _OF_EACH / min(self.shares)), float(CROWD))
        return AskedLoad(
            self.isl, self.osl, rate=1.0, burstiness=self.arrival_cv, seed=seed, cached=self.cached, source=self.drawn,
            least=math.ceil(count),
        )  # fmt: skip

    def drawn(self, process: Process, count: int, seed: int) -> Drawn:
        """Draw so many requests of all classes in their shares, with the class of each and what the cache has of it."""
        rows = list(islice(self._drawn(process, seed), count))
        cached = [min(round(self.classes[row.kind].cached * row.isl), row.isl - 1) for row in rows]
        return Drawn(
            [row.time for row in rows], [row.isl for row in rows], [row.osl for row in rows],
            [row.priority for row in rows], cached, [row.kind for row in rows],
        )  # fmt: skip

    @override
    def arrivals(self, rate: float, seed: int) -> Iterator[Arrival]:
        """Requests of all classes in their shares, each `kind` that of its class."""
        return self._drawn(Gamma(rate, self.arrival_cv), seed)

    def _drawn(self, process: Process, seed: int) -> Iterator[Arrival]:
        sorts = Requests(Fixed(1), Fixed(1), tuple(self.shares))
        drawn = [_lengths(each, (seed, _STREAMS + place)) for place, each in enumerate(self.classes)]
        blocks = [tuple(range(place << 24, (place << 24) + int(each.cached * each.isl.quantile(1.0)) // HASH_TOKENS))
                  for place, each in enumerate(self.classes)]  # fmt: skip
        for arrival in generate(process, sorts, 1 << 40, seed):
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

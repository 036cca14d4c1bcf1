"""When requests come: closed loop, Poisson, gamma, constant rate and bursts; seeded, one request at a time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from rooflinekit.estimation.lengths import Length
from rooflinekit.estimation.spelling import at_least, read_phrase
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.simulation.request import Arrival

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["Burst", "ClosedLoop", "Constant", "Gamma", "Poisson", "Process", "Requests", "generate", "parse_process"]

_CHUNK = 4096  # requests drawn at a time: fast, and memory stays flat
_STREAMS = 4  # gaps, prompts, outputs, priorities: changing one leaves the others as they are


@dataclass(frozen=True)
class ClosedLoop:
    """`users` requests in flight; whoever gets an answer sends the next of the `prompts` at once.

    The first `users` come together. `warmup` requests run and finish before them, and are not counted.
    """

    users: int
    prompts: int
    warmup: int = 0

    def gaps(self, rng: Generator, first: int, count: int) -> list[float]:
        """No request waits for the clock."""
        return [0.0] * count

    @property
    def in_flight(self) -> int | None:
        """Most requests that the client has under way."""
        return self.users


@dataclass(frozen=True)
class Gamma:
    """Independent gaps, gamma-distributed with mean 1/`rate` and coefficient of variation `cv`.

    `cv` 1 is Poisson, above it bursts, below it regular. Benchmark clients call the shape 1/cv² "burstiness".
    """

    rate: float
    cv: float

    def gaps(self, rng: Generator, first: int, count: int) -> list[float]:
        """Seconds before each arrival."""
        drawn: list[float] = rng.gamma(self.cv**-2, self.cv**2 / self.rate, count).tolist()
        return drawn

    @property
    def in_flight(self) -> int | None:
        """An open loop has no limit."""
        return None


@dataclass(frozen=True)
class Poisson:
    """Independent arrivals at `rate` requests a second: exponential gaps."""

    rate: float

    @property
    def cv(self) -> float:
        """Coefficient of variation of the gaps."""
        return 1.0

    def gaps(self, rng: Generator, first: int, count: int) -> list[float]:
        """Seconds before each arrival."""
        drawn: list[float] = rng.exponential(1.0 / self.rate, count).tolist()
        return drawn

    @property
    def in_flight(self) -> int | None:
        """An open loop has no limit."""
        return None


@dataclass(frozen=True)
class Constant:
    """One request every 1/`rate` seconds."""

    rate: float

    @property
    def cv(self) -> float:
        """Coefficient of variation of the gaps."""
        return 0.0

    def gaps(self, rng: Generator, first: int, count: int) -> list[float]:
        """Seconds before each arrival."""
        return [1.0 / self.rate] * count

    @property
    def in_flight(self) -> int | None:
        """An open loop has no limit."""
        return None


@dataclass(frozen=True)
class Burst:
    """`size` requests at once, and again every `period_s` seconds; without a period all come at time 0."""

    size: int
    period_s: float = 0.0

    def gaps(self, rng: Generator, first: int, count: int) -> list[float]:
        """Seconds before each arrival: only the first of a burst waits."""
        return [self.period_s if index and index % self.size == 0 else 0.0 for index in range(first, first + count)]

    @property
    def in_flight(self) -> int | None:
        """An open loop has no limit."""
        return None


Process = ClosedLoop | Gamma | Poisson | Constant | Burst
_PROCESSES = ("closed", "poisson", "gamma", "constant", "burst")


def parse_process(text: str) -> Process:
    """Read what a user types for an arrival process.

    >>> parse_process("gamma:rate=4,cv=2")
    Gamma(rate=4.0, cv=2.0)
    >>> parse_process("closed:users=32,prompts=320,warmup=64")
    ClosedLoop(users=32, prompts=320, warmup=64)

    Raises WorkloadError for a process that nobody knows, and for a rate, count or cv that makes no sense.
    """
    phrase = read_phrase(text, "arrival process", _PROCESSES)

    process: Process
    match phrase.name:
        case "closed":
            users = phrase.count("users")
            process = ClosedLoop(users, phrase.count("prompts", 10 * users), phrase.count("warmup", 0))
        case "poisson":
            process = Poisson(phrase.positive("rate"))
        case "gamma":
            process = Gamma(phrase.positive("rate"), phrase.positive("cv"))
        case "constant":
            process = Constant(phrase.positive("rate"))
        case _:
            process = Burst(phrase.count("size"), _period(phrase.number("period", 0.0)))
    phrase.done()
    return process


def _period(seconds: float) -> float:
    return at_least(seconds, 0, "period") if seconds else 0.0


@dataclass(frozen=True)
class Requests:
    """What requests look like, whenever they come.

    classes: shares of the priority classes 0, 1, …; empty for one class.
    """

    isl: Length
    osl: Length
    classes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.classes and (min(self.classes) < 0 or not 0 < sum(self.classes) < math.inf):
            raise WorkloadError(f"shares of priority classes must be at least 0 and not all 0, not {self.classes}")

    def draw(self, rngs: Sequence[Generator], count: int) -> Iterator[tuple[int, int, int]]:
        """Prompt length, output length and class of `count` requests."""
        classes = [0] * count
        if self.classes:
            upto = list(accumulate(self.classes))
            classes = [bisect_right(upto, mark) for mark in (rngs[2].random(count) * upto[-1]).tolist()]
        return zip(self.isl.sample(rngs[0], count), self.osl.sample(rngs[1], count), classes, strict=True)


def generate(process: Process, requests: Requests, count: int, seed: int = 0) -> Iterator[Arrival]:
    """Yield `count` arrivals in order of time; the same seed gives the same arrivals.

    Gaps, prompts, outputs and classes come from streams of their own, so that another law for one leaves the others
    as they were. A closed loop has no clock: its arrivals are all at 0, and `process.in_flight` says how many a client
    has under way.

    >>> from rooflinekit.estimation.lengths import Fixed
    >>> [arrival.time for arrival in generate(Constant(4.0), Requests(Fixed(8), Fixed(2)), 3)]
    [0.25, 0.5, 0.75]
    """
    import numpy as np  # noqa: PLC0415 - parsing a process needs none

    gaps, *rngs = (np.random.default_rng((seed, stream)) for stream in range(_STREAMS))
    clock, first = 0.0, 0
    while first < count:
        size = min(_CHUNK, count - first)
        waits = process.gaps(gaps, first, size)
        for wait, (isl, osl, priority) in zip(waits, requests.draw(rngs, size), strict=True):
            clock += wait
            yield Arrival(clock, isl, osl, (), priority)
        first += size

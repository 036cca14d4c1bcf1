"""Arrivals of requests: closed loop, Poisson, gamma, constant rate and bursts; seeded, one request at a time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from rooflinekit.load.lengths import Length
from rooflinekit.load.phrases import read_phrase
from rooflinekit.model.types.batch import positive, whole_number
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.late import np

if TYPE_CHECKING:
    from numpy.random import Generator

_CHUNK = 4096  # requests drawn at a time: fast, and memory stays flat
_LATEST_S = 1e10  # some 300 years, where a clock of 64 bits tells 2 us apart; far beyond it a step moves none
_EVEN = 1e-6  # variation of gaps below which they are even: 1/cv² has to stay finite
_STREAMS = 4  # gaps, prompts, outputs, priorities: changing one leaves the others as they are
_PROCESSES: Mapping[str, Mapping[str, float | None]] = {
    "closed": {"users": None, "prompts": math.inf, "warmup": 0.0},
    "poisson": {"rate": None},
    "gamma": {"rate": None, "cv": None},
    "constant": {"rate": None},
    "burst": {"size": None, "period": 0.0},
}
_COUNTED = ("users", "prompts", "warmup", "size")


class Arrival(NamedTuple):
    """One request as a client sends it.

    time: when it is sent, from the start of the run [s]; isl, osl: tokens of the prompt and of each output.
    hashes: the prompt's leading blocks by content, one number a block, so that prompts that begin with the same numbers
    begin with the same text; how many tokens a block has is one number a run. priority: lower is served first, where
    the order of the queue is by class. samples: outputs drawn from the one prompt (`n`). session: which one it is a
    turn of; then the hashes go on with those of the answer. kind: of several sorts of request, which one it is.
    """

    time: float
    isl: int
    osl: int
    hashes: tuple[int, ...] = ()
    priority: int = 0
    samples: int = 1
    session: int = -1
    kind: int = 0


@dataclass(frozen=True)
class ClosedLoop:
    """`users` requests in flight; whoever gets an answer sends the next of the `prompts` at once.

    The first `users` come together. `warmup` requests run and finish before them, and are not counted. pace: requests
    a second that are offered at most, as by a Poisson process: none is sent before its time (0: as soon as a user has
    an answer). Clients have both, as --request-rate and --max-concurrency.
    """

    users: int
    prompts: int
    warmup: int = 0
    pace: float = 0.0

    def gaps(self, rng: Generator, first: int, count: int) -> list[float]:
        """Seconds before the time of each: without a pace no request waits for the clock."""
        return Gamma(self.pace).gaps(rng, first, count) if self.pace else [0.0] * count


@dataclass(frozen=True)
class Gamma:
    """Independent gaps, gamma-distributed with mean 1/`rate` and coefficient of variation `cv`.

    `cv` 1 is Poisson, above it bursts, below it regular, below 1e-6 a request every 1/`rate` seconds. Benchmark clients
    call the shape 1/cv² "burstiness".
    """

    rate: float
    cv: float = 1.0

    def gaps(self, rng: Generator, first: int, count: int) -> list[float]:
        """Seconds before each arrival."""
        if self.cv < _EVEN:
            return [1.0 / self.rate] * count
        if self.cv == 1.0:
            drawn = rng.exponential(1.0 / self.rate, count)
        else:
            drawn = rng.gamma(self.cv**-2, self.cv**2 / self.rate, count)
        gaps: list[float] = drawn.tolist()
        return gaps


def open_arrivals(rate: float, cv: float) -> str:
    """Requests of an open loop in words, by the variation of the gaps between them.

    >>> open_arrivals(4.0, 1.0), open_arrivals(4.0, 0.0)
    ('4 requests/s, Poisson', '4 requests/s, evenly spaced')
    """
    process = "Poisson" if cv == 1.0 else "evenly spaced" if cv == 0.0 else f"gamma, cv {cv:g}"
    return f"{rate:g} requests/s, {process}"


@dataclass(frozen=True)
class Burst:
    """`size` requests at once, and again every `period_s` seconds; without a period all come at time 0."""

    size: int
    period_s: float = 0.0

    def gaps(self, rng: Generator, first: int, count: int) -> list[float]:
        """Seconds before each arrival: only the first of a burst waits."""
        return [self.period_s if index and index % self.size == 0 else 0.0 for index in range(first, first + count)]


Process = ClosedLoop | Gamma | Burst


def parse_process(text: str, prompts: int | None = None) -> Process:
    """Read what a user types for an arrival process; `prompts` are those of a closed loop that names none (10 a user).

    >>> parse_process("gamma:rate=4,cv=2")
    Gamma(rate=4.0, cv=2.0)
    >>> parse_process("closed:users=32,prompts=320,warmup=64")
    ClosedLoop(users=32, prompts=320, warmup=64, pace=0.0)

    Raises WorkloadError for a process that nobody knows, and for a rate, count or cv that makes no sense.
    """
    name, given = read_phrase(text, "arrival process", _PROCESSES)
    for key, value in given.items():
        if value != _PROCESSES[name][key]:
            (whole_number if key in _COUNTED else positive)(value, key)
    match name:
        case "closed":
            users = int(given["users"])
            named = prompts or 10 * users if math.isinf(given["prompts"]) else int(given["prompts"])
            return ClosedLoop(users, named, int(given["warmup"]))
        case "gamma":
            return Gamma(given["rate"], given["cv"])
        case "poisson" | "constant":
            return Gamma(given["rate"], float(name == "poisson"))
    return Burst(int(given["size"]), given["period"])


@dataclass(frozen=True)
class Requests:
    """Shape of requests, whenever they come.

    classes: shares of the priority classes 0, 1, …; empty for one class. prompts: different ones, which are sent again
    in turn (0: no two are equal).
    """

    isl: Length
    osl: Length
    classes: tuple[float, ...] = ()
    prompts: int = 0

    def __post_init__(self) -> None:
        if self.classes and (min(self.classes) < 0 or not 0 < sum(self.classes) < math.inf):
            raise WorkloadError(f"shares of priority classes must be at least 0 and not all 0, not {self.classes}")

    def draw(self, rngs: Sequence[Generator], count: int) -> tuple[list[int], list[int], list[int]]:
        """Prompt lengths, output lengths and classes of `count` requests."""
        classes = [0] * count
        if self.classes:
            upto = list(accumulate(self.classes))
            classes = [bisect_right(upto, mark) for mark in (rngs[2].random(count) * upto[-1]).tolist()]
        return self.isl.sample(rngs[0], count), self.osl.sample(rngs[1], count), classes


def generate(process: Process, requests: Requests, count: int, seed: int = 0) -> Iterator[Arrival]:
    """Yield `count` arrivals in order of time; the same seed gives the same arrivals.

    Gaps, prompts, outputs and classes come from streams of their own, so that another law for one leaves the others
    as they were. A closed loop without a pace has no clock: its arrivals are all at 0.

    >>> from rooflinekit.load.lengths import Fixed
    >>> [arrival.time for arrival in generate(Gamma(4.0, 0.0), Requests(Fixed(8), Fixed(2)), 3)]
    [0.25, 0.5, 0.75]
    """
    for part in _drawn(process, requests, count, seed):
        for time, isl, osl, priority in zip(*part, strict=True):
            yield Arrival(time, isl, osl, (), priority)


def _drawn(process: Process, requests: Requests, count: int, seed: int) -> Iterator[Columns]:
    """Columns of `count` requests, so many at a time that memory stays flat."""
    gaps, *rngs = (np.random.default_rng((seed, stream)) for stream in range(_STREAMS))
    clock, different, known = 0.0, requests.prompts, list[int]()
    for first in range(0, count, _CHUNK):
        size = min(_CHUNK, count - first)
        times = list(accumulate(process.gaps(gaps, first, size), initial=clock))[1:]
        isl, osl, classes = requests.draw(rngs, size)
        if different:
            known += isl[: different - len(known)]
            isl = [known[number % different] for number in range(first, first + size)]
        yield times, isl, osl, classes
        clock = times[-1]


def checked(arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
    """Pass arrivals on, in order and sensible.

    Raises WorkloadError with the number of the first that is not, or comes later than a clock can tell steps apart.
    """
    before = 0.0
    for number, arrival in enumerate(arrivals, 1):
        if not before <= arrival.time < math.inf:
            raise WorkloadError(f"request {number} arrives at {arrival.time} s, after one at {before} s")
        if arrival.time > _LATEST_S:
            raise WorkloadError(
                f"request {number} arrives after {_LATEST_S:,.0f} s, the longest load that is played; take a higher "
                "rate or fewer requests"
            )
        if min(arrival.isl, arrival.osl, arrival.samples) < 1:
            raise WorkloadError(
                f"request {number} has isl={arrival.isl}, osl={arrival.osl}, samples={arrival.samples}; each must be "
                "at least 1"
            )
        before = arrival.time
        yield arrival


Columns: TypeAlias = tuple[list[float], list[int], list[int], list[int]]
"""Times [s], prompt and output lengths, and priorities."""


@dataclass(eq=False)
class Drawn:
    """Requests that were drawn: times [s], lengths and priorities as lists.

    cached: tokens of each prompt that the cache has already, None where nobody says; kind: the class of each, empty
    where there are none.
    """

    time: list[float]
    isl: list[int]
    osl: list[int]
    priority: list[int]
    cached: list[int] | None = None
    kind: Sequence[int] = ()

    @classmethod
    def of(cls, process: Process, requests: Requests, count: int, seed: int = 0) -> Drawn:
        """Draw the requests of `generate` all at once.

        >>> from rooflinekit.load.lengths import Fixed
        >>> Drawn.of(Gamma(4.0, 0.0), Requests(Fixed(8), Fixed(2)), 3).time
        [0.25, 0.5, 0.75]
        """
        drawn = cls([], [], [], [])
        for time, isl, osl, priority in _drawn(process, requests, count, seed):
            drawn.time += time
            drawn.isl += isl
            drawn.osl += osl
            drawn.priority += priority
        if count and not (drawn.time[-1] <= _LATEST_S and all(min(each) >= 1 for each in (drawn.isl, drawn.osl))):
            return cls.read(generate(process, requests, count, seed))  # which says which of them is wrong
        return drawn

    @classmethod
    def read(cls, arrivals: Iterable[Arrival]) -> Drawn:
        """Read the requests of arrivals without blocks and samples; raises WorkloadError as `checked`."""
        rows = [(each.time, each.isl, each.osl, each.priority) for each in checked(iter(arrivals))]
        time, isl, osl, priority = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
        return cls(time, isl, osl, priority)

    def first(self, count: int) -> Drawn:
        """The first so many of them."""
        cached = None if self.cached is None else self.cached[:count]
        return Drawn(
            self.time[:count], self.isl[:count], self.osl[:count], self.priority[:count], cached, self.kind[:count]
        )

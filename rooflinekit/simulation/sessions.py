"""Conversations and agents' runs: turns that wait for the answer and grow with it, drawn from published figures."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from heapq import heapify, heappop, heappush
from itertools import accumulate, count, pairwise
from random import Random
from typing import Any

from rooflinekit.estimation.options import OwnKeywords
from rooflinekit.load.arrivals import Arrival
from rooflinekit.load.lengths import Length
from rooflinekit.load.phrases import read_phrase
from rooflinekit.model.types.batch import positive, whole_number
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.simulation.requests import Job
from rooflinekit.simulation.traces import Trace
from rooflinekit.specs.files import table_of

BLOCK = 64
"""Tokens of one hash of a session's prompts."""

_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_GRID = 1000  # sessions, evenly over their law, that means are taken over
_ANSWER_S = 0.02  # of a token: how long an answer takes where nobody serves it


@dataclass(frozen=True)
class Quantiles:
    """A law known by its least and largest value and the quantiles of 25, 50, 75, 90 and 99 %.

    Between them the logarithm is straight.

    >>> waits = Quantiles((0.1, 0.65, 3.8, 11.5, 28.9, 334.0, 1000.0))
    >>> waits.at(0.5), round(waits.at(0.375), 3), round(waits.mean, 1)
    (3.8, 1.572, 22.4)
    """

    values: tuple[float, ...]
    scale: float = 1.0

    @cached_property
    def _parts(self) -> list[float]:
        """First moments of the stretches between the values; of one from a to b it is (b − a)/ln(b/a)."""
        stretches = zip(pairwise(self.values), pairwise(_SHARES), strict=True)
        return [(high - low) * (a if a == b else (b - a) / math.log(b / a)) for (a, b), (low, high) in stretches]

    @cached_property
    def mean(self) -> float:
        """First moment."""
        return self.scale * sum(self._parts)

    def left(self, draw: Random) -> float:
        """Rest, at any moment, of a time that is under way then.

        A time w is under way with density w·f(w)/mean, which is even between two of the values, and any share of it is
        over (Cox 1962, Renewal Theory, section 5.2).
        """
        ((a, b),) = draw.choices(list(pairwise(self.values)), self._parts)
        return self.scale * draw.uniform(a, b) * draw.random()

    def at(self, share: float) -> float:
        """The value that `share` of all do not exceed."""
        at = min(bisect_right(_SHARES, share), len(_SHARES) - 1)
        low, high = self.values[at - 1 : at + 1]
        part = (share - _SHARES[at - 1]) / (_SHARES[at] - _SHARES[at - 1])
        return self.scale * low * math.exp(part * math.log(high / low))

    def scaled(self, mean: float) -> Quantiles:
        """The shape with another mean."""
        return replace(self, scale=self.scale * mean / self.mean)


@dataclass(frozen=True)
class SessionLaw:
    """Law of sessions.

    turns: requests of one; wait: from an answer to the next prompt [s]; first: tokens of the first prompt beside the
    `system` ones that all sessions begin with; asked: tokens that a turn adds beside the answer before; answer: mean
    tokens out; most: tokens of prompt and answer with which a session begins anew (None: the model's context);
    patience: for how long users wait for a first token in the mean, exponentially (Palm 1957, as in Erlang-A); who
    had to wait longer does not ask again [s].
    """

    turns: Quantiles
    wait: Quantiles
    first: Quantiles
    asked: Quantiles
    system: int
    answer: int
    most: int | None = None
    patience: float = math.inf

    @cached_property
    def counts(self) -> list[int]:
        """Turns of a thousand sessions."""
        return [max(round(self.turns.at((at + 0.5) / _GRID)), 1) for at in range(_GRID)]

    def cut(self, most: int, answer: float) -> tuple[str, ...]:
        """Note where most first prompts are longer than a context of `most` tokens has room for."""
        first = self.system + self.first.at(0.5)
        if first + answer <= most:
            return ()
        return (f"first prompts of {first:,.0f} tokens in the median are cut to {most:,} with their answers",)

    @property
    def mean_turns(self) -> float:
        """Requests of a session."""
        return sum(self.counts) / _GRID


_KEYS = ("turns", "wait", "first", "asked")


@cache
def session_laws() -> Mapping[str, SessionLaw]:
    """The kinds of sessions by name, of `sessions.yaml`, which says where each law is from."""
    found = {}
    for name, law in table_of(__file__).items():
        spreads: dict[str, Any] = {key: Quantiles(tuple(map(float, law[key]))) for key in _KEYS}
        found[name] = SessionLaw(**spreads, system=law["system"], answer=law["answer"])
    return found


def parse_sessions(text: str) -> SessionLaw:
    """Read what a user types for sessions: a name, and other means if they are told.

    >>> round(parse_sessions("chat").wait.mean), round(parse_sessions("chat:turns=6,wait=30").wait.mean, 6)
    (230, 30.0)
    """
    known = dict.fromkeys(session_laws(), dict.fromkeys((*_KEYS, "most", "patience", "system"), math.nan))
    name, values = read_phrase(text, "kind of sessions", known)
    law, given = session_laws()[name], {key: value for key, value in values.items() if not math.isnan(value)}
    if given.get("turns", 1.0) < 1.0:
        raise WorkloadError(f"{text!r}: turns must be at least 1, not {given['turns']:g}")
    told: OwnKeywords = {key: getattr(law, key).scaled(positive(given[key], key)) for key in _KEYS if key in given}
    told |= {"patience": positive(given["patience"], "patience")} if "patience" in given else {}
    told |= {key: whole_number(given[key], key, least) for key, least in (("most", 1), ("system", 0)) if key in given}
    return replace(law, **told)


class _Session:
    """One under way: its prompt so far, and the turns that are left."""

    def __init__(self, number: int, law: SessionLaw, osl: Length, most: int, seed: int) -> None:
        self.number, self.law, self.osl, self.most = number, law, osl, most
        self.draw = Random(f"{seed} {number}")
        self.left = max(round(law.turns.at(self.draw.random())), 1)
        self.epoch, self.isl, self.answer = 0, 0, 0
        self.before = 0  #: tokens of the prompt that were there before it
        self._open()

    def _open(self) -> None:
        """Begin a context: instructions and a first question."""
        self.before = 0
        self.isl = self.law.system + max(round(self.law.first.at(self.draw.random())), 1)
        self.answer = max(round(self.osl.quantile(self.draw.random())), 1)
        self.isl = min(self.isl, max(self.most - self.answer, 1))

    def go_on(self) -> None:
        """The next turn: everything so far, the answer, and what is asked."""
        self.left -= 1
        self.before = self.isl + self.answer
        self.isl = self.before + max(round(self.law.asked.at(self.draw.random())), 1)
        self.answer = max(round(self.osl.quantile(self.draw.random())), 1)
        if self.isl + self.answer > self.most:
            self.epoch += 1
            self._open()

    def arrival(self, time: float) -> Arrival:
        """The request as the client sends it: blocks of the prompt, and of the answer that will follow it."""
        shared = min(self.law.system, self.isl) // BLOCK
        base = (1 + self.number) << 36 | (self.epoch & 0xFFFF) << 20
        own = range(base + shared, base + (self.isl + self.answer) // BLOCK)
        return Arrival(time, self.isl, self.answer, (*range(shared), *own), session=self.number)

    def wait(self) -> float:
        """Seconds to the next prompt."""
        return self.law.wait.at(self.draw.random())

    def stays(self, ttft: float) -> bool:
        """True if a user who waited so long for the first token asks again."""
        return self.law.patience == math.inf or self.draw.expovariate(1.0 / self.law.patience) > ttft


class SessionSource:
    """Sessions that begin at a rate, or as many at any time as there are `users`; a source as `arrivals.Source` is one.

    An open stream begins with sessions under way: as many as are so in the mean, the longer ones more often, anywhere
    in their turns; it sends for as long as `requests` of them take in the mean. The first `warmup` are not counted. Who
    is refused does not come back.
    """

    def __init__(  # noqa: PLR0913 - who, how often, how long, how many
        self,
        law: SessionLaw,
        osl: Length,
        most: int,
        *,
        rate: float | None = None,
        users: int | None = None,
        requests: int = 1000,
        warmup: int = 0,
        seed: int = 0,
    ) -> None:
        self.law, self.osl, self.most = law, osl, most
        self.begins = None if rate is None else rate / law.mean_turns  # sessions a second
        self.users, self.left, self.warmup, self.seed = users, requests, warmup, seed
        self.until = math.inf if rate is None else requests / rate
        self.draw, self.numbers = Random(seed), count()
        self.live: dict[int, _Session] = {}
        self.gave_up, self.unasked = 0, 0  #: sessions that users left, and the turns that did not come
        self.clock, self.latest = 0.0, -1  # begin of the latest session, and which it is
        self.under_way = list(self._under_way()) if self.begins is not None else []

    def start(self) -> Iterator[tuple[Arrival, bool]]:
        """Sessions under way, and the first that begins."""
        if self.begins is None:
            for _ in range(self.users or 0):
                yield from self._send(self._new(), 0.0)
            return
        for session in self.under_way:
            yield from self._send(session, self.law.wait.left(self.draw))
        yield from self._begin()

    def before(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Blocks that sessions under way have had computed."""
        for session in self.under_way:
            yield session.number, session.arrival(0.0).hashes[: session.before // BLOCK]

    def _under_way(self) -> Iterator[_Session]:
        """Sessions that began earlier, by what they have left."""
        assert self.begins is not None
        upto = list(accumulate(turns - 1.0 for turns in self.law.counts))
        for _ in range(round(self.begins * self.law.wait.mean * upto[-1] / _GRID)):
            session = self._new()
            session.left = self.law.counts[bisect_right(upto, self.draw.random() * upto[-1])]
            for _ in range(self.draw.randrange(1, session.left)):
                session.go_on()
            yield session

    def after_arrival(self, job: Job) -> tuple[Arrival, bool] | None:
        """The next session, when the latest has begun."""
        return next(self._begin(), None) if job.session == self.latest else None

    def after_end(self, now: float, job: Job) -> Iterator[tuple[Arrival, bool]]:
        """The next turn of the session; where it has ended and users wait, another one."""
        session = self.live.get(job.session)
        if session is None:
            return
        goes_on = session.left > 1 and job.made >= job.osl
        if goes_on and session.stays(job.first - job.arrived):
            session.go_on()
            yield from self._send(session, now + session.wait())
        else:
            self.gave_up, self.unasked = self.gave_up + goes_on, self.unasked + goes_on * (session.left - 1)
            del self.live[session.number]
            if self.begins is None:
                yield from self._send(self._new(), now)

    def _begin(self) -> Iterator[tuple[Arrival, bool]]:
        assert self.begins is not None
        self.clock += self.draw.expovariate(self.begins)
        session = self._new()
        self.latest = session.number
        yield from self._send(session, self.clock)

    def _new(self) -> _Session:
        session = _Session(next(self.numbers), self.law, self.osl, self.most, self.seed)
        self.live[session.number] = session
        return session

    def _send(self, session: _Session, time: float) -> Iterator[tuple[Arrival, bool]]:
        if time <= self.until and (self.left > 0 or self.begins is not None):
            self.left -= 1
            self.warmup -= 1
            yield session.arrival(time), self.warmup < 0


def session_trace(source: SessionSource) -> Trace:
    """Trace of sessions where an answer takes 20 ms a token, as a trace with block ids; first what was said before."""
    queue = [(arrival.time, arrival.session, arrival) for arrival, _ in source.start()]
    heapify(queue)
    found = [Arrival(0.0, max(len(hashes) * BLOCK, 1), 1, tuple(hashes)) for _, hashes in source.before()]
    former = len(found)
    while queue:
        now, _, arrival = heappop(queue)
        found.append(arrival)
        job = Job(0, arrival)
        job.made = job.osl
        more = [] if (begun := source.after_arrival(job)) is None else [begun]
        for after, _ in (*more, *source.after_end(now + _ANSWER_S * arrival.osl, job)):
            heappush(queue, (after.time, after.session, after))
    return replace(Trace.of("sessions", "sessions", found, BLOCK), former=former)

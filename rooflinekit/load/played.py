"""Record of a played load: times of every request, sums of every replica, and statistics of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import stdev
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rooflinekit.load import compiled, loop
from rooflinekit.load.arrays import Clients, Rules, State, Table
from rooflinekit.load.loop import ENCODER_WAIT, ENCODING, NEXT, NOW, PREEMPTED
from rooflinekit.load.state import new_state, numpy_arrays, quick
from rooflinekit.model.types.late import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[Any]

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Names of the percentiles that answers state, and the share of the requests that each is for."""

_PIECES = 20  # of a run, whose means tell the standard error of the whole
_FEWEST = 8  # marks from which a trend is told
_COMING = 25  # requests that come between two marks at least
_SURE = 4.0  # standard errors of a slope from which it is a trend
_TOUCHING = 1e-3  # of a request: spans that are nearer stand together
_LOST = 0.01  # share of the requests that stay in the system, from which a run diverges


class FirstParts(NamedTuple):
    """Parts of the mean time to first token [s].

    front_end: HTTP, tokeniser and hand-over, and encoders apart; under_way: until the step under way has ended; behind:
    prompts that came before; place: waiting for a place in the batch or for blocks of the cache; prompt: the steps that
    hold the own prompt.
    """

    front_end: float
    under_way: float
    behind: float
    place: float
    prompt: float


class Sample:
    """Values that were played, with exact quantiles.

    >>> Sample([3.0, 1.0, 2.0]).quantile(0.5)
    2.0
    """

    def __init__(self, values: Sequence[float] | Numbers) -> None:
        self.values = np.sort(np.asarray(values, float))

    @property
    def count(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean of the values; not a number if there is none."""
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def largest(self) -> float:
        """The longest; 0 if there is none."""
        return float(self.values[-1]) if len(self.values) else 0.0

    def upto(self, value: float) -> int:
        """Number of values that are at most as large."""
        return int(np.searchsorted(self.values, value, "right"))

    def quantile(self, share: float) -> float:
        """The least value that this share of the sample does not exceed; not a number if there is none."""
        return float(self.values[self.rank(share) - 1]) if len(self.values) else math.nan

    def rank(self, share: float) -> int:
        """The place of that value among the sorted ones, from 1."""
        return max(math.ceil(share * len(self.values) - 1e-9), 1)


@dataclass(frozen=True)
class Played:
    """A load as it was played.

    sent, queued, begun, first, end, under_way, place_wait, delayed: by request, as `rooflinekit.load.arrays.State` says
    [s]; home: its replica; isl, osl: tokens; finished, refused: whether it ended, or nobody took it; counted: finished
    and not of the warm-up; replicas: sums of each replica by name; now: when the run ended [s]; arrived: requests
    that were sent; preempted: how often one lost its place; encoding: seconds of accelerators that encode images;
    encoder_wait: sum over the requests of their waits for one [s].
    """

    clients: Clients
    rules: Rules
    sent: Numbers
    queued: Numbers
    begun: Numbers
    first: Numbers
    end: Numbers
    under_way: Numbers
    place_wait: Numbers
    delayed: Numbers
    home: Numbers
    isl: Numbers
    osl: Numbers
    finished: Numbers
    refused: Numbers
    counted: Numbers
    replicas: dict[str, Numbers]
    now: float
    arrived: int
    preempted: int
    encoding: float
    encoder_wait: float

    @classmethod
    def of(cls, clients: Clients, rules: Rules, state: State, warmup: int) -> Played:
        """Read the state of a load that has been played; the first `warmup` requests count in no statistic."""
        times = ("sent", "queued", "begun", "first", "end", "under_way", "place_wait", "delayed")
        read = {name: np.asarray(getattr(state, name), float) for name in times}
        refused = np.asarray(state.refused, bool)
        finished = (read["end"] >= 0.0) & ~refused
        return cls(
            clients=clients,
            rules=rules,
            isl=np.asarray(clients.isl),
            osl=np.asarray(clients.osl),
            home=np.asarray(state.home) // max(rules.lanes, 1),
            finished=finished,
            refused=refused,
            counted=finished & (np.arange(state.requests) >= warmup),
            replicas={name: np.asarray(getattr(state, name), float) for name in _SUMS},
            now=float(state.times[NOW]),
            arrived=int(state.counts[NEXT]),
            preempted=int(state.counts[PREEMPTED]),
            encoding=float(state.times[ENCODING]),
            encoder_wait=float(state.times[ENCODER_WAIT]),
            **read,
        )

    @cached_property
    def ttft(self) -> Numbers:
        """Times to first token of the requests that count [s]."""
        return (self.first - self.sent)[self.counted]

    @cached_property
    def e2e(self) -> Numbers:
        """Requests that count from end to end [s]."""
        return (self.end - self.sent)[self.counted]

    @cached_property
    def tpot(self) -> Numbers:
        """Mean times of a token after the first [s], of the requests that count and have such tokens."""
        several = self.counted & (self.osl > 1)
        each: Numbers = (self.end - self.first)[several] / (self.osl[several] - 1)
        return each

    @cached_property
    def first_parts(self) -> FirstParts:
        """Means over the requests that count."""
        which = self.counted
        waited = (self.begun - self.queued)[which]
        under_way = np.minimum(self.under_way[which], waited)
        place = np.minimum(self.place_wait[which], waited - under_way)
        parts = (self.queued - self.sent)[which], under_way, waited - under_way - place, place
        return FirstParts(*(float(part.mean()) for part in (*parts, (self.first - self.begun)[which])))

    @cached_property
    def prompts_of_others(self) -> float:
        """Time that prompts of others add to the mean time of a token [s]."""
        several = self.counted & (self.osl > 1)
        return float((self.delayed[several] / (self.osl[several] - 1)).mean()) if several.any() else 0.0

    @cached_property
    def others_spans(self) -> list[list[float]]:
        """The spans in which prompts of others were computed while the request nearest to the mean got its tokens.

        As shares of the time from its first token to its last, in order; spans that touch, or nearly, are one. Of a
        request that ended while others still came, if there is one.
        """
        several = self.counted & (self.osl > 1)
        if not several.any():
            return []
        among = several & (self.end <= self.sent[self.sent < math.inf].max())
        far = np.abs(self.end - self.sent - self.e2e.mean())
        near = np.where(among if among.any() else several, far, math.inf)
        own = int((near <= near.min() + 1e-9 * self.e2e.mean()).argmax())  # but for rounding, the first of equals
        start, stop = self.first[own], self.end[own]
        met = (self.home == self.home[own]) & (self.first > start) & (self.begun < stop)
        since, until = ((each[met].clip(start, stop) - start) / (stop - start) for each in (self.begun, self.first))
        found: list[list[float]] = []
        for begin, end in sorted(zip(since.tolist(), until.tolist(), strict=True)):
            if found and begin - found[-1][1] <= _TOUCHING:
                found[-1][1] = max(found[-1][1], end)
            else:
                found.append([begin, end])
        return found

    @cached_property
    def makespan(self) -> float:
        """From the first sending that counts to the last end [s]; not a number where none counts."""
        if not self.counted.any():
            return math.nan
        return float(self.end[self.counted].max() - self.sent[self.counted].min())

    @cached_property
    def served(self) -> float:
        """Requests a second, of those that count the middle half: an engine that fills or empties is left out [1/s].

        Of those that all end together, by the makespan.
        """
        ends = np.sort(self.end[self.counted])
        early, late = len(ends) // 4, 3 * len(ends) // 4
        span = float(ends[late] - ends[early])
        return (late - early) / span if span > 0.0 else len(ends) / self.makespan

    @property
    def running(self) -> float:
        """Sequences in steps, in the mean over the run and all replicas together."""
        return float(self.replicas["sequence_time"].sum()) / self.now if self.now else 0.0

    @property
    def most_at_once(self) -> int:
        """Requests that had a place at once at most, over all replicas together."""
        came, went = np.sort(self.begun[self.finished]), np.sort(self.end[self.finished])
        return int((np.arange(1, len(came) + 1) - np.searchsorted(went, came, "right")).max(initial=0))

    def pieces(self, values: Numbers, which: Numbers) -> list[Sample]:
        """The values of the requests `which`, by the order in which these ended, in pieces of equal number."""
        if not len(values):
            return []
        order = np.argsort(self.end[which], kind="stable")
        return [Sample(part) for part in np.array_split(values[order], min(_PIECES, len(values))) if len(part)]

    def good(self, ttft: float | None, tpot: float | None) -> int:
        """Requests that count and meet both objectives [s]; one that has no second token has no wait for it."""
        each = (self.end - self.first)[self.counted] / np.maximum(self.osl[self.counted] - 1, 1)
        met = np.ones(len(each), bool)
        if ttft is not None:
            met &= self.ttft <= ttft
        if tpot is not None:
            met &= each <= tpot
        return int(met.sum())

    @cached_property
    def growth(self) -> tuple[bool, bool]:
        """Growth of the requests in the system, and of those without a first token."""
        last = float(self.sent[self.sent < math.inf].max()) if len(self.sent) else 0.0
        pieces = min(len(self.sent) // _COMING, 2 * _PIECES)
        if last <= 0.0 or pieces < _FEWEST:
            return False, False
        marks = np.linspace(last / 4.0, last, pieces)  # before that the engine fills
        sent = np.sort(self.sent)
        areas = [_area(marks, sent, np.sort(ends)) for ends in (self.end, np.where(self.refused, self.end, self.first))]
        arrived = np.searchsorted(sent, marks, "right")
        return grows(marks, areas, float(arrived[-1] - arrived[0]))


_SUMS = ("steps_made", "decode_steps", "busy", "sequence_time", "block_time", "tokens_out", "prompt_tokens", "delays")


def _area(marks: Numbers, begins: Numbers, ends: Numbers) -> Numbers:
    """∫ of those that have begun and not ended, up to each mark; both sorted."""

    def since(times: Numbers) -> Numbers:
        count = np.searchsorted(times, marks, "right")
        return count * marks - np.concatenate(([0.0], np.cumsum(times)))[count]

    area: Numbers = since(begins) - since(ends)
    return area


def grows(times: Numbers, areas: Sequence[Numbers], arrived: float) -> tuple[bool, bool]:
    """Growth of the requests in the system, and of those without a first token.

    times: marks [s]; areas: ∫ of both numbers up to each [s]; arrived: requests between the first and the last mark. A
    number grows where its slope in time, by least squares, is above four standard errors of its residuals, and adds
    more than one in a hundred of those who come.
    """
    at = (times[1:] + times[:-1]) / 2.0
    at -= at.mean()
    numbers = np.diff(np.array(areas)) / np.diff(times)
    slopes = numbers @ at / (at @ at)
    left = numbers - numbers.mean(axis=1, keepdims=True) - np.outer(slopes, at)
    errors = np.sqrt((left * left).sum(axis=1) / (len(at) - 2) / (at @ at))
    grown = slopes * (times[-1] - times[0]) > _LOST * arrived
    present, waiting = grown & (slopes > _SURE * errors)
    return bool(present), bool(waiting)


class _Summary(Protocol):
    """Durations of which the mean and quantiles can be told [s]."""

    @property
    def mean(self) -> float: ...
    def quantile(self, share: float, /) -> float: ...


def marks(sample: _Summary) -> dict[str, float]:
    """Mean and percentiles [ms]."""
    return {"mean": 1e3 * sample.mean} | {name: 1e3 * sample.quantile(share) for name, share in PERCENTILES.items()}


def standard_errors(pieces: Sequence[_Summary]) -> dict[str, float]:
    """Standard errors of mean and percentiles from those of pieces of a run [ms]; empty for fewer than two.

    >>> standard_errors([Sample([0.001]), Sample([0.003])])["mean"]
    1.0
    """
    found = [marks(piece) for piece in pieces]
    if len(found) < 2:
        return {}
    return {name: stdev([each[name] for each in found]) / math.sqrt(len(found)) for name in found[0]}


def play(  # noqa: PLR0913 - a load, and who reads what is written down
    clients: Clients,
    rules: Rules,
    tables: tuple[Table, Table],
    *,
    seed: int = 0,
    encoders: int = 0,
    warmup: int = 0,
    room: int = 0,
    drained: Callable[[State], None] = lambda state: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Played:
    """Play a load from an empty engine until its last request has ended, or the horizon.

    Args:
        clients: what comes.
        rules: what the engine does.
        tables: how long its steps take, and those whose halves take turns.
        seed: of the numbers that drafts are drawn with.
        encoders: accelerators that encode images.
        warmup: requests that come first and count in no statistic.
        room: steps that are written down before `drained` sees them; 0 writes down nothing.
        drained: reads what is written down; it is called whenever `room` is used up, and at the end.
        stopped: whether to go no further, asked whenever `room` is used up.

    >>> from rooflinekit.load.policies import POLICIES, Limits, rules_of
    >>> from rooflinekit.load.table import constant_table
    >>> rules = rules_of(Limits(POLICIES["chunked"]), blocks=100, block=16)
    >>> played = play(Clients.closed(1, isl=[8, 8], osl=[3, 3]), rules, constant_table(0.5).arrays)
    >>> played.first.tolist(), played.end.tolist()
    ([0.5, 2.0], [1.5, 3.0])
    """
    requests = len(clients.isl)
    if compiled.worth_it(requests, all(id(each.decode) in _tables for each in tables)):
        state = new_state(rules, requests, seed, encoders, room, numpy_arrays())
        own, half = map(_as_compiled, tables)
        play_on = compiled.begun(compiled.as_arrays(clients), compiled.as_arrays(rules), own, half, state)
    else:
        state = new_state(rules, requests, seed, encoders, room)
        c, k, s = quick(clients), quick(rules), quick(state)
        own, half = (quick(each) for each in tables)
        loop.start(c, k, s)
        play_on = partial(loop.play, c, k, own, half, s)
    while not play_on():
        drained(state)
        loop.forget(state)
        if stopped():
            break
    drained(state)
    return Played.of(clients, rules, state, warmup)


_KEPT = 32  # tables of which compiled code keeps the arrays
_tables: dict[int, tuple[Table, Table]] = {}
"""Latest tables with their arrays, by the identity of their rows, which several tables may have in common."""


def _as_compiled(table: Table) -> Table:
    """The table as compiled code reads it; what it shares with one of the latest few is not worked out again."""
    known = _tables.pop(id(table.decode), None)
    if known is None or known[0] is not table:
        known = table, compiled.as_arrays(table, known)
    _tables[id(table.decode)] = known
    if len(_tables) > _KEPT:
        del _tables[next(iter(_tables))]
    return known[1]

"""A deployment's answers along its loads: played at the rungs of a ladder, on straight lines between.

    λ_k = s_k·λ_full        rungs of an open loop: shares of the rate of a full engine (`rooflinekit.load.law`)
    n_k = ⌈5/4·n_(k−1)⌉     rungs of a closed loop: users

Every rung is played with the same draws, so that its neighbours differ by their load and not by chance; it is played
when something first asks for it. Where all steps take F times as long, a rate λ feels as F·λ does with steps of the
expected length, on a clock that runs F times as slowly: one ladder answers for every place of an interval.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property

from rooflinekit.load.answer import Load, LoadPlay, largest_rate, play_load, scene_for
from rooflinekit.load.scene import Scene, Scheduler
from rooflinekit.model.operating_point import Predictor

SHARES = (
    0.02, 0.15, 0.3, 0.42, 0.52, 0.61, 0.68, 0.74, 0.79, 0.83, 0.87, 0.9, 0.93, 0.95, 0.97,
)  # fmt: skip
"""Of the rate of a full engine: the rungs of an open loop."""

_GROWS = 1.25  # users of a closed loop from one rung to the next


@dataclass(frozen=True)
class Crossing:
    """The last load at which something holds, and the rung above at which it fails (None: it holds at the last).

    rung: place in the ladder of the last rung at which it holds, -1 where it holds at none.
    """

    load: float
    fails: float | None
    rung: int = -1


@dataclass(frozen=True)
class LoadCurve:
    """Loads of one deployment, or of several replicas behind their router, by the load of one replica.

    asked: the load, of which the rate or the users vary; most: users of a closed loop at most; scheduler: replicas and
    their router, which the rate is multiplied with; settled: requests of each user that come before those that count;
    longest: tokens of requests of other curves, with which this one shares its step table; scenes: those of curves of
    this deployment, which share one where only the arrivals are others.
    """

    predictor: Predictor
    asked: Load
    scheduler: Scheduler = field(default_factory=Scheduler)
    most: int = 1
    settled: int = 0
    longest: int = 0
    scenes: dict[Hashable, Scene] = field(default_factory=dict, repr=False, compare=False)
    _plays: dict[float, LoadPlay] = field(default_factory=dict, repr=False, compare=False)

    @property
    def closed(self) -> bool:
        """True if users wait for their answers."""
        return self.asked.users is not None

    @cached_property
    def full(self) -> float:
        """Requests a second of a full engine, by the law: what one replica can sustain at most [1/s]."""
        return largest_rate(self.scene, self.asked) / self.scheduler.replicas

    @cached_property
    def scene(self) -> Scene:
        """The scene on which all loads are played."""
        asked = self.asked
        key = self.scheduler, self.longest, asked.typical, asked.longest, asked.isl.mean
        if key not in self.scenes:
            self.scenes[key] = scene_for(self.predictor, asked, self.scheduler, self.longest)
        return self.scenes[key]

    @cached_property
    def loads(self) -> tuple[float, ...]:
        """Requests a second, or users, of one replica at each rung."""
        if not self.closed:
            return tuple(share * self.full for share in SHARES)
        rungs = [1]
        while rungs[-1] < self.most:
            rungs.append(min(math.ceil(_GROWS * rungs[-1]), self.most))
        return tuple(map(float, rungs))

    def play(self, load: float) -> LoadPlay:
        """The load itself, as `estimate` plays it; it is kept.

        Raises WorkloadError for more requests than are played.
        """
        if load not in self._plays:
            users, rate = (int(load), None) if self.closed else (None, load * self.scheduler.replicas)
            asked = replace(self.asked, users=users, rate=rate)
            asked = replace(asked, warmup=self.settled * users) if users is not None and self.settled else asked
            self._plays[load] = play_load(self.predictor, asked, self.scheduler, self.scene)
        return self._plays[load]

    @property
    def played(self) -> dict[float, LoadPlay]:
        """The plays so far, by their load."""
        return dict(sorted(self._plays.items()))

    def played_near(self, load: float) -> float:
        """The load that was played nearest to this one."""
        return min(self._plays, key=lambda each: abs(each - load))

    def between(self, load: float, known: bool = False) -> tuple[LoadPlay, LoadPlay, float]:
        """The rungs around a load, and how far it stands from the first to the second; beyond the ends the end.

        known: the loads around it that have been played, in place of the nearest rungs.
        """
        if load in self._plays:
            return self._plays[load], self._plays[load], 0.0
        inside = known and len(self._plays) > 1 and load <= max(self._plays)
        rungs = tuple(self.played) if inside else self.loads
        at = bisect_right(rungs, load)
        below, above = max(at - 1, 0), min(at, len(rungs) - 1)
        low, high = rungs[below], rungs[above]
        share = min(max((load - low) / (high - low), 0.0), 1.0) if high > low else 0.0
        return self.play(low), self.play(high) if share else self.play(low), share

    def last(self, left: Callable[[float], float], most: float = math.inf, near: int | None = None) -> Crossing:
        """The last load at which at least 1 is `left`, where that falls with the load; 0 if there is less at the first.

        The rung is found by steps that double from the one that is near, then by bisection; between it and the next
        stands a straight line. Of two functions of which one is nowhere less, that one never crosses at a smaller load.
        most: the load beyond which nobody looks; near: place of the rung where it may end (None: the middle of an open
        loop, the first of a closed one, whose play is the shortest).

        >>> from rooflinekit.estimation.estimator import resolve
        >>> from rooflinekit.load.lengths import Fixed
        >>> from rooflinekit.model.types.deployment import Deployment
        >>> predictor = resolve("llama-3-8b", "h100-sxm", Deployment(), "none").predictor
        >>> curve = LoadCurve(predictor, Load(Fixed(1000), Fixed(100), rate=1.0))
        >>> round(curve.last(lambda rate: 3.0 / rate).load, 4)
        3.0
        """
        rungs = self.loads
        last = min(bisect_left(rungs, most) + 1, len(rungs))  # one beyond the first rung that is as much
        low, high, step = -1, last, 1
        near = 0 if near is None and self.closed else near
        at = (low + high) // 2 if near is None else min(max(near, 0), last - 1)
        while high - low > 1:
            if left(rungs[at]) >= 1.0:
                low = at
            else:
                high = at
            if near is not None and (low < 0 or high == last):  # one end is not known
                at, step = (max(high - step, 0), 2 * step) if low < 0 else (min(low + step, last - 1), 2 * step)
            else:
                at = (low + high) // 2
        if low < 0:
            return Crossing(0.0, rungs[0])
        if high == last:
            return Crossing(rungs[high - 1], None, low)
        share = _share(left(rungs[low]), left(rungs[high]))
        load = rungs[low] + share * (rungs[high] - rungs[low])
        return Crossing(float(math.floor(load + 1e-9)) if self.closed else load, rungs[high], low)


def _share(left: float, over: float) -> float:
    """Share of the way between two rungs at which a limit is reached; 1/left and 1/over of it are taken there."""
    taken, beyond = 1.0 / left, 1.0 / over if over > 0.0 else math.inf
    return (1.0 - taken) / (beyond - taken) if math.isfinite(beyond) else 0.0

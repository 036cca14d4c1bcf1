"""What prefix caches find of a traffic with block ids or sessions, on replicas of a deployment and the tiers behind it.

A cache that keeps conversations on their replica finds with n replicas what one of n times the size finds alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, cached_property, partial

from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.simulation.kv_blocks import kv_capacity_tokens
from rooflinekit.simulation.reuse import Reuse, conversations, reuse_of
from rooflinekit.simulation.sessions import SessionLaw
from rooflinekit.simulation.simulate import pcie_bandwidth
from rooflinekit.simulation.tiers import CacheTier, fill
from rooflinekit.simulation.traces import Trace


@dataclass(frozen=True)
class Kept:
    """What a replica's cache finds of a mean prompt: tokens, seconds in which tiers load them, their rent [USD/h].

    computed_cv: deviation over mean of what is left of each prompt to compute. A first turn has all of its prompt left.
    """

    cached: float
    late: float
    usd_hour: float
    computed_cv: float
    tiers: tuple[CacheTier, ...] = ()


@dataclass(frozen=True)
class Prefixes:
    """Prompts by their blocks, who gets them (as in `simulation.reuse`), and the tiers that there may be."""

    trace: Trace
    router: str
    tiers: tuple[CacheTier, ...] = ()
    law: SessionLaw | None = None  #: of the sessions that the trace is a sample of

    @cached_property
    def whole(self) -> Reuse:
        """Of one cache that gets all requests."""
        return reuse_of(self.trace)

    @cached_property
    def conversations(self) -> Sequence[int]:
        """Of each request."""
        return conversations(self.trace)

    @cached_property
    def _drawn(self) -> dict[int, Reuse]:
        return {}

    def reuse(self, replicas: float) -> Reuse:
        """Of what reaches caches that stand apart; with affinity that is as of one cache for all."""
        if self.router != "random":
            return self.whole
        count = 1 << round(math.log2(max(replicas, 1.0)))  # one pass for each doubling
        if count not in self._drawn:
            self._drawn[count] = reuse_of(self.trace, count, "random")
        return self._drawn[count]

    def share(self, replicas: float, tokens: float) -> float:
        """Share of the prompt tokens that replicas with caches of so many tokens find."""
        return self.reuse(replicas).share(tokens if self.router == "random" else tokens * replicas)

    def kept(self, predictor: Predictor, tiers: tuple[CacheTier, ...], replicas: float) -> Kept:
        """What one of so many replicas finds, with its whole pool as a cache."""
        counted = len(self.trace) - self.trace.former
        isl = sum(self.trace.isl[self.trace.former :]) / counted
        typical = isl + sum(self.trace.osl[self.trace.former :]) / counted
        each, share = float(predictor.memory.kv_bytes_per_token), cache(partial(self.share, replicas))
        pool = kv_capacity_tokens(predictor, typical, int(predictor.memory.rows))
        filled = list(
            fill(tiers, pool, share, replicas=replicas, prompt_bytes=isl * each, token_bytes=each,
                 own_link=partial(pcie_bandwidth, predictor))
        )  # fmt: skip
        found = filled[-1].share if filled else share(pool)
        late, usd_hour = sum(row.load_s for row in filled), sum(row.usd_hour for row in filled)
        return Kept(min(found * isl, isl - 1.0), late, usd_hour, self.reuse(replicas).computed_cv(found), tiers)

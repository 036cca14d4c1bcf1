"""What a trace is like: lengths, rate, burstiness, and how much of its prompts a prefix cache could hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from rooflinekit.estimation.lengths import Empirical
from rooflinekit.simulation.traces import Trace

__all__ = ["LengthSummary", "TraceSummary", "summarise"]


@dataclass(frozen=True)
class LengthSummary:
    """Lengths of a trace [tokens]."""

    mean: float
    p50: float
    p90: float
    p99: float
    longest: float

    @classmethod
    def of(cls, lengths: Empirical) -> LengthSummary:
        """The figures of a distribution."""
        return cls(lengths.mean, *(lengths.quantile(share) for share in (0.5, 0.9, 0.99, 1.0)))


@dataclass(frozen=True)
class TraceSummary:
    """A trace in a dozen numbers.

    rate_req_s: gaps over duration; None for one moment. gap_cv: standard deviation over mean of the gaps between
    arrivals (1 for Poisson, more for bursts). reusable: share of prompt blocks that an earlier prompt had at the same
    place of the same prefix, the most that a prefix cache without end could save; None without block ids.
    """

    name: str
    format: str
    requests: int
    duration_s: float
    rate_req_s: float | None
    gap_cv: float | None
    isl: LengthSummary
    osl: LengthSummary
    reusable: float | None
    cleaned: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def summarise(trace: Trace) -> TraceSummary:
    """Measure a trace.

    >>> summary = summarise(Trace("t", "plain", [0.0, 1.0, 4.0], [10, 20, 30], [1, 2, 3]))
    >>> summary.rate_req_s, summary.gap_cv, summary.isl.mean  # gaps of 1 s and 3 s: mean 2, deviation 1
    (0.5, 0.5, 20.0)
    """
    duration = trace.time[-1]
    gaps = len(trace) - 1
    isl, osl = trace.lengths()
    return TraceSummary(
        name=trace.name,
        format=trace.format,
        requests=len(trace),
        duration_s=duration,
        rate_req_s=gaps / duration if duration else None,
        gap_cv=_gap_cv(trace, duration / gaps) if duration else None,
        isl=LengthSummary.of(isl),
        osl=LengthSummary.of(osl),
        reusable=_reusable(trace) if trace.ends else None,
        cleaned=dict(trace.cleaned),
    )


def _gap_cv(trace: Trace, mean: float) -> float:
    square = math.fsum((later - earlier - mean) ** 2 for earlier, later in pairwise(trace.time))
    return math.sqrt(square / (len(trace) - 1)) / mean


def _reusable(trace: Trace) -> float:
    """Leading blocks that were seen before, over all blocks."""
    seen: set[int] = set()
    hits = 0
    for index in range(len(trace)):
        blocks = trace.prefix(index)
        fresh = next((place for place, block in enumerate(blocks) if block not in seen), len(blocks))
        hits += fresh
        seen.update(blocks[fresh:])
    return hits / len(trace.blocks) if len(trace.blocks) else 0.0

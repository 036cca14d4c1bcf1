"""What a benchmark run measured, in our definitions, and what its file says about how it was run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOTHING", "Facts", "Measurement", "Spread"]


@dataclass(frozen=True)
class Spread:
    """A latency over requests (or over gaps, for ITL) [ms]; None where the file has no such figure."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    low: float | None = None  #: the smallest

    @property
    def known(self) -> bool:
        """Whether there is any figure."""
        return self.mean is not None or self.p50 is not None

    @property
    def middle(self) -> tuple[str, float | None]:
        """The mean, or else the median, and which of them it is."""
        return ("mean", self.mean) if self.mean else ("median", self.p50)


NOTHING = Spread()


@dataclass(frozen=True)
class Facts:
    """How a run was made, as far as it is known; a user fills in what the file leaves out.

    isl, osl: mean tokens a request; concurrency: most requests that the client kept in flight; rate: requests a second
    that the client offered (None: as fast as `concurrency` allows); requests: how many were counted.
    """

    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    tp: int | None = None
    isl: float | None = None
    osl: float | None = None
    concurrency: int | None = None
    rate: float | None = None
    cv: float = 1.0  #: of the gaps between arrivals
    requests: int | None = None
    osl_cv: float | None = None  #: standard deviation of the output lengths over their mean


@dataclass(frozen=True)
class Measurement:
    """One run.

    ttft: request sent to first token. tpot: mean over tokens 2..n of a request. itl: single gaps between tokens. e2e:
    request sent to last token. output_tok_s: all output tokens over the duration. request_s: requests completed a
    second. notes: what the mapping had to assume.
    """

    source: str
    tool: str
    facts: Facts
    ttft: Spread = NOTHING
    tpot: Spread = NOTHING
    itl: Spread = NOTHING
    e2e: Spread = NOTHING
    output_tok_s: float | None = None
    request_s: float | None = None
    notes: tuple[str, ...] = ()

"""Two-batch overlap: halves of a step take turns, and one computes while the other's tokens travel to their experts.

vLLM's dual batch overlap (docs/design/dbo.md) and SGLang's two-batch overlap, as DeepSeek-V3 does it
(arXiv:2412.19437, 3.4). Weights are read for each half. Nobody measured how much is hidden: that an exchange hides
behind everything the other half computes is an assumption, and the high end of the interval has nothing hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from rooflinekit.model.graph.symbol import formula, named
from rooflinekit.model.power import Energy
from rooflinekit.model.types.frozen import dataclass, fields, replace
from rooflinekit.model.types.kernel import WORK, ExchangeShape, Kernel
from rooflinekit.model.types.numeric import Numeric, choose, maximum, minimum
from rooflinekit.model.types.time import KernelTime

UNDIVIDED = 32.0, 512.0
"""Tokens up to which a step stays whole: of decoding alone, and with prompts. All engines take vLLM's defaults."""


@formula("exposed", "of the exchanges, what no computing hides", "s")
def exposed_time(exchange: Numeric, computing: Numeric, share: Numeric) -> Numeric:
    """max(t_x − t_c, s·t_x): kernels that move data on a share s of the cores slow what computes beside them [s].

    While both run, computing goes on at 1 − s, so that both take max(t_c + s·t_x, t_x).

    >>> exposed_time(3.0, 2.0, 0.0), exposed_time(2.0, 3.0, 0.0), exposed_time(2.0, 3.0, 0.25)
    (1.0, 0.0, 0.5)
    """
    return maximum(exchange - computing, share * exchange)


@dataclass(frozen=True)
class Spent(KernelTime):
    """A time whose energy is known."""

    energy: Energy

    @classmethod
    def of(cls, timed: KernelTime, energy: Energy) -> Spent:
        """Spent time with its energy."""
        return cls(**{entry.name: getattr(timed, entry.name) for entry in fields(timed)} | {"energy": energy})

    def repeated(self, times: Numeric, kernel: Kernel) -> Spent:
        """Repeat the time and the energy."""
        return replace(cast("Spent", super().repeated(times, kernel)), energy=self.energy.times(times))


def two_batches(
    whole: Sequence[Spent], halves: Sequence[Spent], step: Sequence[KernelTime], split: object, cores: float
) -> list[KernelTime]:
    """Kernels of a step that is computed in halves where it is `split`; `step` are all kernels of one half.

    Of the exchanges only what is exposed stays, and of their energy as much. At the datasheet's rates, and at the low
    end, more of them may be exposed than of the expected time; for that remainder the computing waits.
    """
    moving = [timed for timed in step if timed.kernel.family == "exchange"]
    movers = max((float(timed.kernel.shaped(ExchangeShape).movers) for timed in moving), default=0.0)
    shares = {"expected": movers / cores, "low": movers / cores, "bound": 0.0}
    left = _Left({end: _exposed(step, end, share) for end, share in shares.items()}, step)
    return [_twice(one, half, left, split) for one, half in zip(whole, halves, strict=True)]


class _Left:
    """Rest of the exchanges of a half, by one end of their times, and for what share of it others wait.

    seen: seconds over those of the exchanges, at most the expected seconds; waited: the rest of them, over what the
    computing takes beyond that end.
    """

    def __init__(self, exposed: Mapping[str, Numeric], step: Sequence[KernelTime]) -> None:
        self.seen, self.waited = dict(exposed), {}
        for end in ("low", "bound"):
            exchange, computing = _spent(step, end)
            most, longest = _spent(step, "expected")
            rest = maximum(exposed[end] * exchange - exposed["expected"] * most, 0.0)
            self.waited[end] = minimum(rest / maximum(longest - computing, _NOTHING), 1.0)


def _twice(one: Spent, half: Spent, left: _Left, split: object) -> KernelTime:
    """A kernel once, or in both halves."""
    if half.kernel.family == "exchange":
        seen = left.seen["expected"]
        ends = {end: share * getattr(half, end) for end, share in left.seen.items()}
        least = {end: minimum(ends[end], ends["expected"]) for end in ("low", "bound")}
        parts = {part: seen * getattr(half, part) for part in ("compute", "memory", "network", "overhead")}
        half = replace(half, **(ends | least | parts), energy=half.energy.times(seen))
    else:
        waiting = {
            end: getattr(half, end) + share * (half.expected - getattr(half, end)) for end, share in left.waited.items()
        }
        half = replace(half, **waiting)
    kernel = replace(one.kernel, **{name: 2.0 * getattr(half.kernel, name) for name in WORK})
    return choose(split, lambda: half.repeated(2.0, kernel), lambda: one).labelled()


def _exposed(step: Sequence[KernelTime], end: str, share: float) -> Numeric:
    """Share of the exchanges of a half that stays visible, by one end of their times."""
    exchange, computing = _spent(step, end)
    computing = named(computing, "t_c", "all other kernels of a half", "s")
    exchange = named(exchange, "t_x", "exchanges of a half", "s")
    return exposed_time(exchange, computing, share) / maximum(exchange, _NOTHING)


def _spent(step: Sequence[KernelTime], end: str) -> tuple[Numeric, Numeric]:
    """Time of the exchanges of a half, and of all other kernels, by one end."""
    both: tuple[list[Numeric], list[Numeric]] = ([], [])
    for timed in step:
        both[timed.kernel.family == "exchange"].append(getattr(timed, end))
    return sum(both[True], 0.0), sum(both[False], 0.0)


_NOTHING = 1e-30

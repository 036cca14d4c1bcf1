"""One time: what to expect, the datasheet bound, and the 90 % interval. Of a kernel, a step, a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rooflinekit.model.graph.symbol import Symbol, named
from rooflinekit.model.types.frozen import dataclass, fields, replace
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric, maximum, minimum

SIGMAS = 1.645
"""Standard errors of a normal distribution within which 90 % lie."""

_INNER = 1.2816 / SIGMAS  # and 80 %


_NOTHING = 1e-30
"""Seconds that stand for none where a time is divided by: a pool that only decodes has no prompts."""


@dataclass(frozen=True)
class Time:
    """A time with its datasheet bound and its 90 % interval [s]; at level "bound" all four are the same.

    Interval ends add up as if errors went together.
    """

    expected: Numeric
    bound: Numeric  #: datasheet roofline
    low: Numeric
    high: Numeric

    @classmethod
    def sum(cls, times: Iterable[Time]) -> Time:
        """One after the other."""
        parts = tuple(times)
        return Time(*(sum((getattr(part, end) for part in parts), 0.0) for end in ENDS))

    def plus(self, other: Time, weight: Numeric = 1.0) -> Time:
        """Add a share of another time."""
        return Time(
            self.expected + weight * other.expected,
            self.bound + weight * other.bound,
            self.low + weight * other.low,
            self.high + weight * other.high,
        )

    def times(self, factor: Numeric, of_bound: Numeric) -> Time:
        """Another multiple of the time than of its bound, below which the low end does not fall."""
        bound = self.bound * of_bound
        return Time(self.expected * factor, bound, maximum(self.low * factor, bound), self.high * factor)

    def widened(self, factor: float) -> Time:
        """Widen the interval: its ends at least this factor from the time, but never below the bound."""
        if factor == 1.0:
            return self
        low = maximum(minimum(self.low, self.expected / factor), self.bound)
        return Time(self.expected, self.bound, low, maximum(self.high, self.expected * factor))

    def nearer(self) -> Time:
        """The time with its 80 % interval, where errors are normal: 1.2816 standard errors in place of 1.645.

        >>> round(Time(1.0, 0.1, 1.0 / 1.5, 1.5).nearer().high, 3)
        1.371
        """
        low, high = (self.expected * (end / self.expected) ** _INNER for end in (self.low, self.high))
        return Time(self.expected, self.bound, low, high)

    def moved(self, low: Numeric, high: Numeric) -> Time:
        """Divide the low end by `low` and multiply the high end by `high`, each on its side of the time.

        >>> Time(2.0, 0.5, 1.0, 3.0).moved(1.25, 0.5)
        Time(expected=2.0, bound=0.5, low=0.8, high=2.0)
        """
        least = maximum(minimum(self.low / low, self.expected), self.bound)
        return Time(self.expected, self.bound, least, maximum(self.high * high, self.expected))

    def later(self, wait: Numeric) -> Time:
        """After a wait that is made of the same times, and as uncertain; none of it is in the bound.

        A time without an interval stays one, to the last digit.

        >>> Time(2.0, 1.0, 1.5, 3.0).later(2.0)
        Time(expected=4.0, bound=1.0, low=3.0, high=6.0)
        """
        low, high = (end + wait * (end / maximum(self.expected, _NOTHING)) for end in (self.low, self.high))
        return Time(self.expected + wait, self.bound, low, high)

    def named(self, symbol: str, meaning: str, source: str = "") -> Time:
        """Name the time; while it is traced, its expected time is a line of explanations."""
        expected = named(self.expected, symbol, meaning, "s", source)
        return self if expected is self.expected else replace(self, expected=expected)


ENDS = tuple(entry.name for entry in fields(Time))
NOTHING = Time(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class KernelTime(Time):
    """Time of all launches of one kernel in a step [s].

    `compute`, `memory`, `network` are what each resource alone would need at the calibrated efficiencies, `overhead`
    the launch floor (0 at level "bound"); `expected` is their combination.
    """

    kernel: Kernel
    compute: Numeric
    memory: Numeric
    network: Numeric
    overhead: Numeric

    def labelled(self) -> KernelTime:
        """Label the time; while it is traced, what to expect is a line of explanations under the kernel's name."""
        if not isinstance(self.expected, Symbol):
            return self
        title = f"{self.kernel.family}, {self.kernel.dtype.value}"
        return replace(self, expected=named(self.expected, self.kernel.name, title, "s"))

    def changed(self, change: Callable[[Numeric], Numeric], **parts: Any) -> KernelTime:
        """Change the time and interval, but not below the bound."""
        bound, take = self.bound, parts.get
        expected = maximum(change(self.expected), bound)
        low, high = (expected if end is self.expected else maximum(change(end), bound) for end in (self.low, self.high))
        return KernelTime(
            expected,
            bound,
            low,
            high,
            self.kernel,
            take("compute", self.compute),
            take("memory", self.memory),
            take("network", self.network),
            take("overhead", self.overhead),
        )

    def repeated(self, times: Numeric, kernel: Kernel) -> KernelTime:
        """Repeat the time, as launches of `kernel`."""
        parts = (*ENDS, "compute", "memory", "network", "overhead")
        changes: dict[str, Any] = {part: times * getattr(self, part) for part in parts}
        return replace(self, kernel=kernel, **changes)

"""A quantity of a kernel as a sum over what a step consists of."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Linear"]


@dataclass(frozen=True)
class Linear:
    """constant + sequences·b + tokens·t + pairs·(query-key pairs) + experts·(distinct experts touched).

    In a decode step tokens and sequences are the same number, and all stands under tokens.

    >>> (Linear(constant=3.0, tokens=2.0) * 2.0).at(1.0, 10.0, 0.0, 0.0)
    46.0
    """

    constant: float = 0.0
    sequences: float = 0.0
    tokens: float = 0.0
    pairs: float = 0.0
    experts: float = 0.0

    def __add__(self, other: Linear) -> Linear:
        return Linear(*(mine + theirs for mine, theirs in zip(self.values, other.values, strict=True)))

    def __mul__(self, factor: float) -> Linear:
        return Linear(*(value * factor for value in self.values))

    def __truediv__(self, divisor: float) -> Linear:
        return Linear(*(value / divisor for value in self.values))

    @property
    def values(self) -> tuple[float, ...]:
        """The five coefficients in order."""
        return self.constant, self.sequences, self.tokens, self.pairs, self.experts

    @property
    def each(self) -> float:
        """What one row adds, where a kernel's rows are its tokens or its sequences."""
        return self.sequences + self.tokens

    def at(self, sequences: float, tokens: float, pairs: float, experts: float) -> float:
        """The sum."""
        linear = self.constant + self.sequences * sequences + self.tokens * tokens
        return linear + self.pairs * pairs + self.experts * experts

"""One statement, what it comes to when computed, and the verdict that follows from the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Literal

from rooflinekit.model.types.numeric import Numeric

__all__ = ["THUMB", "Case", "Claim", "Verdict"]

THUMB = "common rule of thumb"

Relation = Literal["=", "≥", "≤"]


class Verdict(StrEnum):
    """What the numbers say."""

    holds = "holds"
    conditional = "holds under a condition"
    fails = "does not hold"


@dataclass(frozen=True)
class Case:
    """A situation and the number in it; `when` names it so that it ends a sentence."""

    when: str
    compute: Callable[[], Numeric]

    @cached_property
    def value(self) -> float:
        """The number, computed once."""
        return float(self.compute())


@dataclass(frozen=True)
class Claim:
    """A number that is stated, and the situation in which it is computed; `other` is one in which the verdict may turn.

    said, unit: as stated, in SI; tolerance: relative, what rounding and "about" allow; because: what decides.
    command, second: without the program's name. What they print is a and b, in SI: the value that `explain` derives,
    else the key of the JSON that is named behind a #. reading: how the number of one case follows from them.
    """

    text: str
    said: float
    unit: str
    case: Case
    because: str
    command: str
    where: str = THUMB
    tolerance: float = 0.02
    relation: Relation = "="
    other: Case | None = None
    second: str = ""
    reading: str = "a"

    @property
    def cases(self) -> tuple[Case, ...]:
        """One or two."""
        return (self.case,) if self.other is None else (self.case, self.other)

    @property
    def commands(self) -> tuple[str, ...]:
        """One or two."""
        return (self.command, self.second) if self.second else (self.command,)

    def holds_in(self, case: Case) -> bool:
        """Whether the statement is right there, within its tolerance."""
        if self.relation == "≥":
            return case.value >= self.said * (1.0 - self.tolerance)
        if self.relation == "≤":
            return case.value <= self.said * (1.0 + self.tolerance)
        return abs(case.value - self.said) <= self.tolerance * abs(self.said)

    @property
    def verdict(self) -> Verdict:
        """From the numbers alone: right in every case, in one of two, in none.

        >>> Claim("a tonne is 1,000 kg", 1000.0, "", Case("by definition", lambda: 1000.0), "", "").verdict
        <Verdict.holds: 'holds'>
        """
        found = {self.holds_in(case) for case in self.cases}
        return Verdict.conditional if len(found) == 2 else Verdict.holds if found == {True} else Verdict.fails

"""What a fitted number of a time form means, and between which bounds physics allows it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from rooflinekit.model.graph.symbol import Quantity
from rooflinekit.model.types.hardware import System
from rooflinekit.model.types.kernel import Kernel
from rooflinekit.model.types.numeric import Numeric

__all__ = ["EFFICIENCY", "Bounds", "Duration", "TimeForm", "choice", "parameter", "parameters"]

EFFICIENCY = 1.05
"""Largest share of a datasheet rate that a fit may find: clocks above the one that the datasheet assumes."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """One parameter of a form: meaning, unit ("us", "share", "factor", "elements", "sharpness"), range, usual value."""

    symbol: str
    meaning: str
    unit: str
    low: float
    high: float
    usual: float
    choices: tuple[int, ...] = ()

    @property
    def scale(self) -> float:
        """SI value of one unit, as files write it: microseconds become seconds."""
        return 1e-6 if self.unit == "us" else 1.0


def parameter(symbol: str, meaning: str, unit: str, low: float, high: float, usual: float) -> Any:
    """Declare a fitted number, in the unit of files; the attribute holds it in SI."""
    return _declared(Bounds(symbol, meaning, unit, low, high, usual))


def choice(meaning: str, usual: int, choices: tuple[int, ...] = (1, 2, 4)) -> Any:
    """Declare a number that is one of a few: the p of (x^p + y^p)^(1/p)."""
    return _declared(Bounds("p", meaning, "sharpness", min(choices), max(choices), usual, choices))


def _declared(bounds: Bounds) -> Any:
    unit = "s" if bounds.unit == "us" else ""
    metadata = {"bounds": bounds, "quantity": Quantity(bounds.symbol, bounds.meaning, unit)}
    return field(default=bounds.usual if bounds.choices else bounds.usual * bounds.scale, metadata=metadata)


def parameters(form: type[Any] | object) -> dict[str, Bounds]:
    """The declared parameters of a time form, in order."""
    return {entry.name: entry.metadata["bounds"] for entry in fields(form)}  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Duration:
    """Time of one launch [s]: what each resource alone would take at realised rates, and `total`, their combination."""

    launch: Numeric
    compute: Numeric
    memory: Numeric
    network: Numeric
    total: Numeric


class TimeForm(Protocol):
    """Time of one kernel family from its work, the accelerator's rates and a few parameters."""

    def time(self, kernel: Kernel, system: System, warm: bool = False) -> Duration:
        """Time of one launch [s]; `warm` when the same data were used just before (a benchmark loop)."""
        ...

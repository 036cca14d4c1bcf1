"""What a number of a formula is called, what it means and its unit: declared once, where the number is declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

__all__ = ["Quantity", "formula", "quantity"]

P, R = ParamSpec("P"), TypeVar("R")


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a number is called in formulas, what it means, its unit, and where it comes from."""

    symbol: str
    meaning: str
    unit: str = ""
    source: str = ""


def quantity(symbol: str, meaning: str, unit: str = "", **options: Any) -> Any:
    """Declare a field of a dataclass that is a number of formulas: its symbol, meaning and unit stand here once."""
    return field(**options, metadata={"quantity": Quantity(symbol, meaning, unit)})


def formula(symbol: str, meaning: str, unit: str = "", source: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Name what a formula gives."""

    def naming(function: Callable[P, R]) -> Callable[P, R]:
        function.quantity = Quantity(symbol, meaning, unit, source)  # type: ignore[attr-defined]
        return function

    return naming

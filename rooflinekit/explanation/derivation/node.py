"""One number of a derivation: its value, the formula that gives it, the numbers in that formula, its source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rooflinekit.explanation.derivation.formula import evaluate, symbols

__all__ = ["Node", "Reference", "branch", "given", "joined", "reckoned"]

_COUNTED = "counted from the model's shapes"


@dataclass(frozen=True)
class Reference:
    """Where a number or a formula comes from; `std` is one standard error, where it was fitted."""

    text: str
    std: float | None = None


@dataclass(frozen=True)
class Node:
    """A number in SI units, as `estimate` has it, and the formula over its children that gives the same.

    symbol: what the formula of its parent calls it; formula: "" for a number that is given (a datasheet, a config, a
    fit, a question) or counted by a routine that its source names.
    """

    symbol: str
    title: str
    value: float
    unit: str
    formula: str = ""
    children: tuple[Node, ...] = ()
    source: Reference | None = None

    def recomputed(self) -> float:
        """The formula on the children; a given number is itself."""
        return (
            evaluate(self.formula, {child.symbol: child.value for child in self.children})
            if self.formula
            else self.value
        )

    @property
    def gap(self) -> float:
        """How far the formula's result is from the number, relative to it."""
        scale = max(abs(self.value), 1e-300)
        return abs(self.recomputed() - self.value) / scale

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON: a page can draw the tree and evaluate the formulas."""
        source = self.source and {"text": self.source.text, "std": self.source.std}
        return {
            "symbol": self.symbol,
            "title": self.title,
            "value": self.value,
            "unit": self.unit,
            "formula": self.formula or None,
            "source": source,
            "children": [child.to_dict() for child in self.children],
        }


def given(symbol: str, title: str, value: float, unit: str = "", source: str | Reference = _COUNTED) -> Node:
    """A number that no formula here gives."""
    return Node(symbol, title, float(value), unit, source=Reference(source) if isinstance(source, str) else source)


def branch(symbol: str, title: str, value: float, unit: str, by: tuple[str, Iterable[Node]]) -> Node:
    """A number and the formula that gives it; of `by`, each symbol that the formula asks for is kept once.

    >>> parts = [given("n", "", 2), given("k", "", 4), given("n", "", 2)]
    >>> branch("w", "weights", 8.0, "B", ("n*k", parts)).recomputed()
    8.0
    """
    formula, children = by
    asked = symbols(formula)
    kept: dict[str, Node] = {}
    for child in children:
        if child.symbol in asked:
            kept.setdefault(child.symbol, child)
    return Node(symbol, title, float(value), unit, formula, tuple(kept.values()))


def reckoned(symbol: str, title: str, unit: str, by: tuple[str, Iterable[Node]]) -> Node:
    """The same, with the value that the formula gives."""
    node = branch(symbol, title, 0.0, unit, by)
    return replace(node, value=node.recomputed())


def joined(symbol: str, title: str, value: float, unit: str, parts: list[Node]) -> Node:
    """A sum of parts, whose symbols are made different where they are equal.

    >>> joined("t", "both", 3.0, "s", [given("a", "", 1.0), given("a", "", 2.0)]).formula
    'a + a_2'
    """
    if len(parts) == 1:
        both = title if title == parts[0].title else f"{title}: {parts[0].title}"
        return replace(parts[0], symbol=symbol, title=both, value=float(value))
    seen: dict[str, int] = {}
    named = []
    for part in parts:
        seen[part.symbol] = seen.get(part.symbol, 0) + 1
        name = part.symbol if seen[part.symbol] == 1 else f"{part.symbol}_{seen[part.symbol]}"
        named.append(replace(part, symbol=name))
    return Node(symbol, title, float(value), unit, " + ".join(part.symbol for part in named), tuple(named))

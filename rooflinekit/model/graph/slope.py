"""Derivatives of a traced number by everything that it was made of, in one pass backwards through the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rooflinekit.model.graph.symbol import Symbol
from rooflinekit.model.graph.table import Table
from rooflinekit.model.graph.trace import reachable

_CELL = 1e-6  # step of a difference in a table, which is linear between its nodes

_PARTIAL: Mapping[str, Callable[..., tuple[float, ...]]] = {
    "+": lambda a, b: (1.0, 1.0),
    "-": lambda a, b: (1.0, -1.0),
    "*": lambda a, b: (b, a),
    "/": lambda a, b: (1.0 / b, -a / (b * b)),
    "**": lambda a, b: (b * a ** (b - 1.0) if b else 0.0, a**b * math.log(a) if a > 0.0 else 0.0),
    "max": lambda a, b: (1.0, 0.0) if a > b else (0.0, 1.0),
    "min": lambda a, b: (1.0, 0.0) if a < b else (0.0, 1.0),
    "sqrt": lambda a: (0.5 / math.sqrt(a) if a else 0.0,),
    "log2": lambda a: (1.0 / (a * math.log(2.0)),),
    "log": lambda a: (1.0 / a,),
    "exp": lambda a: (math.exp(a),),
    "neg": lambda a: (-1.0,),
    "abs": lambda a: (math.copysign(1.0, a),),
    "where": lambda condition, yes, no: (0.0, 1.0, 0.0) if condition else (0.0, 0.0, 1.0),
    "named": lambda a, _: (1.0, 0.0),
}
"""Derivatives by each argument; whole numbers and conditions have none."""


def slopes(output: Any) -> dict[Symbol, float]:
    """Derivatives by every symbol that the number depends on; at a kink, of the side that was taken.

    Raises ValueError where the end of a search is part of it.

    >>> from rooflinekit.model.graph.symbol import Pool
    >>> x = Pool({"x": 3.0}).variable("x")
    >>> slopes(x * x + 1.0 / x)[x]
    5.888888888888889
    """
    if not isinstance(output, Symbol):
        return {}
    found = {output: 1.0}
    for node in reversed(reachable([output])):
        upper = found.get(node, 0.0)
        if not upper:
            continue
        if node.op == "result":
            raise ValueError("the end of a search has no slope")
        for argument, partial in zip(node.arguments, _partials(node), strict=False):
            if isinstance(argument, Symbol) and partial:
                found[argument] = found.get(argument, 0.0) + upper * partial
    return found


def _partials(node: Symbol) -> tuple[float, ...]:
    values = [argument.value if isinstance(argument, Symbol) else argument for argument in node.arguments]
    if node.op == "lattice":
        table, *places = values
        return (0.0, *(_across(table, places, axis) for axis in range(len(places))))
    return _PARTIAL[node.op](*values) if node.op in _PARTIAL else ()


def _across(table: Table, places: list[float], axis: int) -> float:
    """Along one axis of a table; 0 beyond its ends."""
    ends = [table.at(*(place + side * (at == axis) for at, place in enumerate(places))) for side in (-_CELL, _CELL)]
    return (ends[1] - ends[0]) / (2.0 * _CELL)

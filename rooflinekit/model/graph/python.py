"""A graph as compiled Python: fifteen times as fast as the formulas themselves on scalars, and the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rooflinekit.model.graph.code import Loop, Printer
from rooflinekit.model.graph.symbol import OPERATORS
from rooflinekit.model.graph.table import Table, locate
from rooflinekit.model.graph.trace import Graph


class _Python(Printer):
    operators: ClassVar[Mapping[str, str]] = {
        "+": "{0} + {1}", "-": "{0} - {1}", "*": "{0} * {1}", "/": "{0} / {1}", "**": "{0} ** {1}",
        "//": "{0} // {1}", "max": "{0} if {0} > {1} else {1}", "min": "{0} if {0} < {1} else {1}",
        "ceil": "ceil({0})", "floor": "floor({0})", "sqrt": "sqrt({0})", "log2": "log2({0})", "log": "log({0})",
        "exp": "exp({0})", "neg": "-{0}", "abs": "abs({0})", "<=": "{0} <= {1}", "<": "{0} < {1}", ">": "{0} > {1}",
        ">=": "{0} >= {1}", "==": "{0} == {1}", "!=": "{0} != {1}", "&": "{0} and {1}", "|": "{0} or {1}",
        "~": "not {0}", "where": "{1} if {0} else {2}", "lattice": "{0}({rest})",
    }  # fmt: skip
    repeated = ("max", "min")
    numbers: ClassVar[Mapping[float, str]] = {math.inf: "inf", -math.inf: "(-inf)"}

    def loop(self, loop: Loop) -> list[str]:
        held = ", ".join(loop.names)
        body = [*loop.before, f"if {loop.end}: break", *loop.after, f"{held}, = {', '.join(loop.following)},"]
        return [
            f"{held}, = {', '.join(loop.first)},",
            f"for _ in range({loop.rounds}):",
            *(f"    {line}" for line in body),
        ]


def compiled(graph: Graph) -> Callable[..., tuple[float, ...]]:
    """A function of the inputs, in their order, that returns the outputs in theirs.

    >>> from rooflinekit.model.graph.trace import trace
    >>> graph = trace(lambda m, k: {"bytes": 2.0 * m * k, "rows": m / k}, ["m", "k"])
    >>> compiled(graph)(3.0, 4.0)
    (24.0, 0.75)
    """
    printer = _Python(graph)
    lines = printer.lines()
    results = "".join(f"{printer.value(output)}, " for output in graph.outputs.values())
    source = "\n".join(
        [f"def answer({', '.join(graph.inputs)}):", *(f"    {line}" for line in lines), f"    return ({results})"]
    )
    tables = {name: _interpolation(table) for table, name in printer.tables.items()}
    functions = {name: OPERATORS[name] for name in ("ceil", "floor", "sqrt", "log2", "log", "exp")}
    names: dict[str, Any] = {"inf": math.inf, **functions, **tables}
    exec(compile(source, "<graph>", "exec"), names)  # the printer writes no names but its own
    function: Callable[..., tuple[float, ...]] = names["answer"]
    return function


def _interpolation(table: Table) -> Callable[..., float]:
    """A table over one axis without the loop over axes."""
    if len(table.axes) > 1 or len(table.values) == 1:
        return table.at
    (nodes,), values = table.axes, table.values

    def at(place: float) -> float:
        index, share = locate(nodes, place)
        return values[index] + share * (values[index + 1] - values[index])

    return at

"""A graph as JavaScript: the same operators in the same order, so that a browser gets the same numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from rooflinekit.model.graph.code import Loop, Printer
from rooflinekit.model.graph.trace import Graph

__all__ = ["RUNTIME", "function"]

RUNTIME = """const lattice = (axes, values) => (...places) => {
  let base = 0, corners = [0];
  const shares = [];
  axes.forEach((nodes, axis) => {
    const place = places[axis], size = nodes.length, last = size - 2;
    let index = 0, share = 0;
    if (size > 1 && place >= nodes[size - 1]) { index = last; share = 1; }
    else if (size > 1 && place > nodes[0]) {
      while (index < last && place >= nodes[index + 1]) index++;
      const steps = 1 / (nodes[index + 1] - nodes[index]) * (place - nodes[index]) + index;
      index = Math.min(Math.floor(steps), last);
      share = steps - index;
    }
    base = base * size + index;
    corners = corners.flatMap((corner) => size > 1 ? [corner * size, corner * size + 1] : [corner]);
    if (size > 1) shares.unshift(share);
  });
  let found = corners.map((corner) => values[base + corner]);
  for (const share of shares) {
    found = found.flatMap((near, at) => at % 2 ? [] : [near + share * (found[at + 1] - near)]);
  }
  return found[0];
};
"""
"""What printed functions call: interpolation in a table."""


class _JavaScript(Printer):
    operators: ClassVar[Mapping[str, str]] = {
        "+": "{0} + {1}", "-": "{0} - {1}", "*": "{0} * {1}", "/": "{0} / {1}", "**": "{0} ** {1}",
        "//": "Math.floor({0} / {1})", "max": "{0} > {1} ? {0} : {1}", "min": "{0} < {1} ? {0} : {1}",
        "ceil": "Math.ceil({0})", "floor": "Math.floor({0})", "sqrt": "Math.sqrt({0})", "log2": "Math.log2({0})",
        "log": "Math.log({0})", "exp": "Math.exp({0})", "neg": "-{0}", "abs": "Math.abs({0})", "<=": "{0} <= {1}",
        "<": "{0} < {1}", ">": "{0} > {1}", ">=": "{0} >= {1}", "==": "{0} === {1}", "!=": "{0} !== {1}",
        "&": "{0} && {1}", "|": "{0} || {1}", "~": "!{0}", "where": "{0} ? {1} : {2}", "lattice": "{0}({rest})",
        "call": "{0}({rest})", "array": "[{0}, {rest}]",
    }  # fmt: skip
    repeated = ("max", "min")
    numbers: ClassVar[Mapping[float, str]] = {math.inf: "Infinity", -math.inf: "(-Infinity)"}
    assignment = "const {name} = {value};"

    def boolean(self, value: bool) -> str:
        return str(value).lower()

    def loop(self, loop: Loop) -> list[str]:
        starts = ", ".join(f"{name} = {value}" for name, value in zip(loop.names, loop.first, strict=True))
        step = f"[{', '.join(loop.names)}] = [{', '.join(loop.following)}];"
        ended = f"if ({loop.end}) break;"
        return [
            f"let {starts};",
            f"for (let i = 0; i < {loop.rounds}; i++) {{",
            *loop.before,
            ended,
            *loop.after,
            step,
            "}",
        ]


def function(graph: Graph, name: str, parameters: str) -> str:
    """A function of these parameters that returns the outputs in their order; RUNTIME stands before it.

    >>> from rooflinekit.model.graph.trace import trace
    >>> print(function(trace(lambda m, k: {"bytes": 2.0 * m * k}, ["m", "k"]), "answer", "m, k"))
    function answer(m, k) {
    const x3 = (2.0 * m) * k;
    return [x3];
    }
    """
    printer = _JavaScript(graph)
    lines = printer.lines()
    results = ", ".join(map(printer.value, graph.outputs.values()))
    return "\n".join([f"function {name}({parameters}) {{", *lines, f"return [{results}];", "}"])

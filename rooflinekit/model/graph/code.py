"""A graph as a JavaScript function: shared nodes are assigned once, loops are loops, constants stand as they are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from rooflinekit.model.graph.symbol import Symbol
from rooflinekit.model.graph.trace import Graph, depends, reachable

Slot: TypeAlias = tuple[Symbol | None, int]
"""An argument of a node, or an output: where a constant stands."""

_OPERATORS: Mapping[str, str] = {
    "+": "{0} + {1}", "-": "{0} - {1}", "*": "{0} * {1}", "/": "{0} / {1}", "**": "{0} ** {1}",
    "//": "Math.floor({0} / {1})", "max": "{0} > {1} ? {0} : {1}", "min": "{0} < {1} ? {0} : {1}",
    "ceil": "Math.ceil({0})", "floor": "Math.floor({0})", "sqrt": "Math.sqrt({0})", "log2": "Math.log2({0})",
    "log": "Math.log({0})", "exp": "Math.exp({0})", "neg": "-{0}", "abs": "Math.abs({0})", "<=": "{0} <= {1}",
    "<": "{0} < {1}", ">": "{0} > {1}", ">=": "{0} >= {1}", "==": "{0} === {1}", "!=": "{0} !== {1}",
    "&": "{0} && {1}", "|": "{0} || {1}", "~": "!{0}", "where": "{0} ? {1} : {2}", "lattice": "{0}({rest})",
    "call": "{0}({rest})", "array": "[{0}, {rest}]",
}  # fmt: skip
_INSIDE = ("+", "-", "*", "/")  # that stand inside the one expression that uses them
_TWICE = ("max", "min", "loop")  # that write an operand twice, or in another place


class Function:
    """One graph as a function of k, its numbers that are told by row, and of its inputs; `x1` is its first node.

    texts: what is written for an argument of a node, or for an output, in place of what stands there.
    """

    def __init__(self, graph: Graph, texts: Mapping[Slot, str]) -> None:
        self._graph, self._texts = graph, texts
        nodes, taken = graph.nodes, Counter[int]()
        self._takers: dict[int, Symbol] = {}
        for node in nodes:
            for operand in node.operands:
                taken[operand.index] += 1
                self._takers[operand.index] = node
        taken.update(output.index for output in graph.outputs.values() if isinstance(output, Symbol))
        self._uses, self._scopes = taken, depends(nodes, lambda node: node.op == "held")
        self._written: dict[int, str] = {}
        self._names = 0

    def source(self, name: str) -> str:
        """The function with its name."""
        lines = self._block(self._graph.nodes, frozenset())
        outputs = enumerate(self._graph.outputs.values())
        results = ", ".join(self._texts.get((None, place)) or self._value(output) for place, output in outputs)
        parameters = ", ".join(("k", *self._graph.inputs))
        return "\n".join([f"function {name}({parameters}) {{", *lines, f"return [{results}];", "}"])

    def _value(self, given: Any) -> str:
        """What stands for a node or a number in an expression."""
        if isinstance(given, Symbol):
            return self._written[given.index]
        if isinstance(given, bool):
            return str(given).lower()
        text = "Infinity" if abs(given) == math.inf else repr(abs(given))
        return f"(-{text})" if given < 0.0 else text

    def _operands(self, node: Symbol, first: int = 0) -> list[str]:
        """What stands for the arguments of a node, from the first on."""
        given = enumerate(node.arguments[first:], first)
        return [self._texts.get((node, place)) or self._value(argument) for place, argument in given]

    def _block(self, nodes: Iterable[Symbol], scope: frozenset[int]) -> list[str]:
        """Statements that give every node of a scope a name or a place in an expression."""
        lines: list[str] = []
        for node in nodes:
            if self._scopes[node] == scope and node.index not in self._written:
                lines += self._statement(node, scope)
        return lines

    def _statement(self, node: Symbol, scope: frozenset[int]) -> list[str]:
        match node.op:
            case "loop":
                return self._loop(node, scope)
            case "held":
                self._name(node)
                return []
            case "var":
                text = str(node.arguments[0])
            case "fact" | "number":
                text = self._texts.get((node, 0)) or self._value(node.arguments[0])
            case "named":
                text = self._value(node.arguments[0])
            case "result":
                text = self._value(node.arguments[0].arguments[1][node.arguments[1]])
            case "pick":
                text = f"{self._value(node.arguments[0])}[{node.arguments[1]}]"
            case _:
                written = self._operands(node)
                text = _OPERATORS[node.op].format(*written, rest=", ".join(written[1:]))
                if not self._inside(node):
                    return [f"const {self._name(node)} = {text};"]
                text = f"({text})"
        self._written[node.index] = text
        return []

    def _inside(self, node: Symbol) -> bool:
        """Whether it stands inside the expression of the one node that takes it, which writes it once."""
        taker = self._takers.get(node.index)
        if taker is None or node.op not in _INSIDE or self._uses[node.index] > 1 or taker.op in _TWICE:
            return False
        return self._scopes[taker] == self._scopes[node]

    def _name(self, node: Symbol) -> str:
        self._names += 1
        self._written[node.index] = f"x{self._names}"
        return f"x{self._names}"

    def _loop(self, node: Symbol, scope: frozenset[int]) -> list[str]:
        rounds, held, body, ends, *_ = node.arguments
        inner = scope | {held[0].arguments[0]}
        names = [self._name(entry) for entry in held]
        starts = (f"{name} = {value}" for name, value in zip(names, self._operands(node, 4), strict=True))
        before, after = (self._block(reachable(nodes), inner) for nodes in ([*held, ends], body))
        ended, following = self._value(ends), ", ".join(map(self._value, body))
        return [
            f"let {', '.join(starts)};",
            f"for (let i = 0; i < {rounds}; i++) {{",
            *before,
            f"if ({ended}) break;",
            *after,
            f"[{', '.join(names)}] = [{following}];",
            "}",
        ]

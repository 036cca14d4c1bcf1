"""A graph as statements of a language: shared nodes are assigned once, loops are loops, constants stand as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rooflinekit.model.graph.symbol import Symbol
from rooflinekit.model.graph.table import Table
from rooflinekit.model.graph.trace import Graph, depends, reachable

_INFIX = ("+", "-", "*", "/")


@dataclass(frozen=True)
class Loop:
    """`names` start at `first` and become `following`, at most `rounds` times, until `end` is true.

    before: statements that `end` needs; after: those that `following` needs besides.
    """

    rounds: int
    names: Sequence[str]
    first: Sequence[str]
    before: Sequence[str]
    end: str
    after: Sequence[str]
    following: Sequence[str]


class Printer:
    """Prints the nodes of a graph as statements; a language says how an operator, a loop and a number are written.

    Names: `x1` is the first node that has one, `t0` the first table.
    """

    operators: ClassVar[Mapping[str, str]] = {}  #: templates over the operands
    numbers: ClassVar[Mapping[float, str]] = {}  #: those that are not written as Python writes them
    repeated: ClassVar[tuple[str, ...]] = ()  #: operators whose template writes an operand twice
    assignment = "{name} = {value}"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tables: dict[Table, str] = {}
        self._nodes = graph.nodes
        uses = Counter(operand.index for node in self._nodes for operand in node.operands)
        uses.update(output.index for output in graph.outputs.values() if isinstance(output, Symbol))
        self._uses, self._scopes = uses, depends(self._nodes, lambda node: node.op == "held")
        self._takers = {operand.index: taker for taker in self._nodes for operand in taker.operands}
        self._written: dict[int, str] = {}
        self._names = 0

    def lines(self) -> list[str]:
        """Statements that give every node a name or a place in an expression; `value` then tells the outputs'."""
        return self._block(self._nodes, frozenset())

    def value(self, output: Any) -> str:
        """What stands for a node or a number in an expression."""
        if isinstance(output, Symbol):
            return self._written[output.index]
        if isinstance(output, Table):
            return self.tables.setdefault(output, f"t{len(self.tables)}")
        if isinstance(output, bool):
            return self.boolean(output)
        return self.numbers.get(output) or (f"({output!r})" if output < 0.0 else repr(output))

    def operand(self, node: Symbol, place: int) -> str:
        """What stands for an argument of a node."""
        return self.value(node.arguments[place])

    def boolean(self, value: bool) -> str:
        """True or false."""
        return str(value)

    def loop(self, loop: Loop) -> list[str]:
        """A loop as statements."""
        raise NotImplementedError

    def _block(self, nodes: Iterable[Symbol], scope: frozenset[int]) -> list[str]:
        lines: list[str] = []
        for node in nodes:
            if self._scopes[node] == scope and node.index not in self._written:
                lines += self._statement(node, scope)
        return lines

    def _statement(self, node: Symbol, scope: frozenset[int]) -> list[str]:
        place = node.index
        match node.op:
            case "var":
                self._written[place] = str(node.arguments[0])
                return []
            case "fact" | "number":
                self._written[place] = self.operand(node, 0)
                return []
            case "named":
                self._written[place] = self._written[node.arguments[0].index]
                return []
            case "held":
                self._name(node)
                return []
            case "result":
                self._written[place] = self._written[node.arguments[0].arguments[1][node.arguments[1]].index]
                return []
            case "pick":
                self._written[place] = f"{self.value(node.arguments[0])}[{node.arguments[1]}]"
                return []
            case "loop":
                return self._loop(node, scope)
        written = [self.operand(node, number) for number in range(len(node.arguments))]
        text = self.operators[node.op].format(*written, rest=", ".join(written[1:]))
        inline = self._uses[place] == 1 and node.op in _INFIX and not self._twice(node)
        if inline:
            self._written[place] = f"({text})"
            return []
        return [self.assignment.format(name=self._name(node), value=text)]

    def _name(self, node: Symbol) -> str:
        self._names += 1
        self._written[node.index] = f"x{self._names}"
        return f"x{self._names}"

    def _twice(self, node: Symbol) -> bool:
        """Whether the one node that takes it writes it twice, or stands in a loop of its own."""
        taker = self._takers.get(node.index)
        return taker is None or taker.op in (*self.repeated, "loop") or self._scopes[taker] != self._scopes[node]

    def _loop(self, node: Symbol, scope: frozenset[int]) -> list[str]:
        rounds, held, body, ends, *_ = node.arguments
        inner = scope | {held[0].arguments[0]}
        names = [self._name(entry) for entry in held]
        starts = [self.operand(node, number) for number in range(4, len(node.arguments))]
        before = self._block(reachable([*held, ends]), inner)
        after = self._block(reachable(body), inner)
        following = [self.value(entry) for entry in body]
        self._written[node.index] = ""
        return self.loop(Loop(rounds, names, starts, before, self.value(ends), after, following))

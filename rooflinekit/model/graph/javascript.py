"""Graphs as JavaScript: those that differ in their numbers alone share one function, and graphs call each other's.

A library turns every graph that it is given into an instance: a template (the graph without its numbers) and the
numbers. Numbers that all instances of a template share go back into the function when it is printed, so that only what
tells instances apart is data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rooflinekit.model.graph.symbol import Pool, Symbol, Term
from rooflinekit.model.graph.table import NodeTable
from rooflinekit.model.graph.trace import Graph, ordered

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
_TWICE = ("max", "min")  # that write an operand twice


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
        self._uses = taken
        self._written: dict[int, str] = {}
        self._names = 0

    def source(self, name: str) -> str:
        """The function with its name."""
        lines = [line for node in self._graph.nodes for line in self._statement(node)]
        outputs = enumerate(self._graph.outputs.values())
        results = ", ".join(self._texts.get((None, place)) or self._value(output) for place, output in outputs)
        parameters = ", ".join(("k", *self._graph.inputs))
        return "\n".join([f"function {name}({parameters}) {{", *lines, f"return [{results}];", "}"])

    def _value(self, given: Term) -> str:
        """Text of a node or a number in an expression."""
        if isinstance(given, Symbol):
            return self._written[given.index]
        if isinstance(given, bool):
            return str(given).lower()
        text = "Infinity" if abs(given) == math.inf else repr(abs(given))
        return f"(-{text})" if given < 0.0 else text

    def _statement(self, node: Symbol) -> list[str]:
        """The statement that names a node; none of one that stands inside an expression."""
        match node.op:
            case "var":
                text = str(node.arguments[0])
            case "fact":
                text = self._texts.get((node, 0)) or self._value(node.arguments[0])
            case "named":
                text = self._value(node.arguments[0])
            case "pick":
                text = f"{self._value(node.arguments[0])}[{node.arguments[1]}]"
            case _:
                written = [self._texts.get((node, n)) or self._value(given) for n, given in enumerate(node.arguments)]
                text = _OPERATORS[node.op].format(*written, rest=", ".join(written[1:]))
                if not self._inside(node):
                    return [f"const {self._name(node)} = {text};"]
                text = f"({text})"
        self._written[node.index] = text
        return []

    def _inside(self, node: Symbol) -> bool:
        """True if it stands inside the expression of the one node that takes it, which writes it once."""
        taker = self._takers.get(node.index)
        return taker is not None and node.op in _INSIDE and self._uses[node.index] == 1 and taker.op not in _TWICE

    def _name(self, node: Symbol) -> str:
        self._names += 1
        self._written[node.index] = f"x{self._names}"
        return f"x{self._names}"


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
"""Functions that printed functions call: interpolation in a table."""


@dataclass(eq=False)
class _Template:
    """A graph, where its numbers stand, and the numbers of all that differ from it in these alone."""

    graph: Graph
    slots: list[Slot]
    instances: dict[tuple[Constant, ...], Instance] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Instance:
    """A template with its numbers: a function of the graph's inputs."""

    template: _Template = field(repr=False)
    constants: tuple[Constant, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Inputs of the function."""
        return self.template.graph.inputs


Constant: TypeAlias = float | NodeTable | Instance


@dataclass(frozen=True)
class Printed:
    """JavaScript that defines `library(data)`, a list of functions; the data; and places in the list by instance."""

    source: str
    data: dict[str, object]
    places: dict[Instance, int]


def call(instance: Instance, arguments: Sequence[object], outputs: int) -> list[Symbol]:
    """The outputs of an instance for these inputs, at least one of them a symbol."""
    pool: Pool = next(argument for argument in arguments if isinstance(argument, Symbol)).pool
    return pool.parts(pool.node("call", instance, *arguments), outputs)


def array(values: Sequence[object], pool: Pool) -> Symbol:
    """Several values as one output; all outputs of one call, in their order, are the call itself."""
    picks = [value.arguments for value in values if isinstance(value, Symbol) and value.op == "pick"]
    calls = {whole for whole, _ in picks}
    if len(calls) == 1 and [place for _, place in picks] == list(range(len(values))):
        whole: Symbol = picks[0][0]
        if len(whole.arguments[0].template.graph.outputs) == len(values):
            return whole
    return pool.node("array", *values)


class Library:
    """Instances by what their graphs have in common."""

    def __init__(self) -> None:
        self._templates: dict[tuple[object, ...], _Template] = {}
        self._tables: dict[tuple[object, ...], NodeTable] = {}

    def add(self, graph: Graph, trim: bool = False) -> Instance:
        """The instance that this graph is; with `trim`, a function of no more inputs than it depends on.

        >>> from rooflinekit.model.graph.trace import trace
        >>> library = Library()
        >>> first, second = (library.add(trace(lambda m, n=n: {"bytes": 2.0 * m * n}, ["m"])) for n in (3.0, 5.0))
        >>> first.template is second.template, first.constants, second.constants
        (True, (2.0, 3.0), (2.0, 5.0))
        """
        structure, constants, slots = self._lifted(graph, trim)
        template = self._templates.get(structure)
        if template is None:
            template = self._templates[structure] = _Template(Graph(structure[0], graph.outputs), slots)
        return template.instances.setdefault(constants, Instance(template, constants))

    def changed(self, instance: Instance, others: dict[Instance, Instance]) -> Instance:
        """Replace instances by others in place of those that it calls, or that these call; `others` grows by both.

        >>> from rooflinekit.model.graph.trace import trace
        >>> library = Library()
        >>> double, triple = (library.add(trace(lambda m, n=n: {"bytes": n * m}, ["m"])) for n in (2.0, 3.0))
        >>> more = library.add(trace(lambda m: {"sum": 1.0 + call(double, [m], 1)[0]}, ["m"]))
        >>> library.changed(more, {double: triple}).constants == (triple, 1.0)
        True
        """
        if instance not in others:
            constants = instance.constants
            calls = any(type(entry) is Instance for entry in constants)
            own = tuple(self.changed(each, others) if type(each) is Instance else each for each in constants)
            same = not calls or own == constants
            instances = instance.template.instances
            others[instance] = instance if same else instances.setdefault(own, Instance(instance.template, own))
        return others[instance]

    def printed(self) -> Printed:
        """All templates as functions, and the numbers of their instances.

        >>> from rooflinekit.model.graph.trace import trace
        >>> library = Library()
        >>> made = [library.add(trace(lambda m, n=n: {"bytes": 2.0 * m * n}, ["m"])) for n in (3.0, 5.0)]
        >>> printed = library.printed()
        >>> print(*printed.source.splitlines()[-11:-7], printed.data["values"], printed.data["numbers"])
        function f0(k, m) { const x1 = (2.0 * m) * k[0]; return [x1]; } [3.0, 5.0] [[2, [0, 1]]]

        Each value stands once: a template has the number of its instances, and places of their values by column.
        """
        templates = list(self._templates.values())
        instances = [instance for template in templates for instance in template.instances.values()]
        places = {instance: place for place, instance in enumerate(instances)}
        layout = _Layout(places)
        functions, numbers, values = [], [], dict[float | str, int]()
        for place, template in enumerate(templates):
            source, rows = layout.function(f"f{place}", template)
            functions.append(source)
            columns = [
                [values.setdefault(entry, len(values)) for entry in column] for column in zip(*rows, strict=True)
            ]
            numbers.append([len(rows), *columns])
        names = ", ".join(f"f{place}" for place in range(len(templates)))
        source = _LIBRARY.replace("FUNCTIONS", "\n".join(functions)).replace("NAMES", names)
        tables = [[[layout.axes[axis] for axis in table.axes], table.values] for table in layout.tables]
        data = {"axes": list(layout.axes), "tables": tables, "values": list(values), "numbers": numbers}
        return Printed(source, data, places)

    def _lifted(self, graph: Graph, trim: bool) -> tuple[tuple[Any, ...], tuple[Constant, ...], list[Slot]]:
        """Common part of all graphs that differ in their constants alone; the constants, and where they stand."""
        places: dict[Symbol, int] = {}
        used: set[str] = set()
        constants: list[Constant] = []
        slots: list[Slot] = []

        def lifted(argument: Term, node: Symbol | None, number: int) -> object:
            kind = type(argument)
            if kind is Symbol:
                return places[argument]
            if kind is not float and kind is not Instance and kind is not NodeTable:
                return kind, argument
            shared = kind is NodeTable and self._tables.setdefault((argument.axes, argument.values), argument)
            constants.append(shared or argument)
            slots.append((node, number))
            return kind

        structure: list[object] = [graph.inputs]
        for node in ordered(graph.outputs.values()):
            op, arguments = node.op, node.arguments
            if op == "named":
                places[node] = places[arguments[0]]
                continue
            if op == "pick":
                entry: tuple[object, ...] = (op, places[arguments[0]], arguments[1])
            else:
                given = arguments[:1] if op in ("var", "fact") else arguments
                entry = (op, *[places[a] if type(a) is Symbol else lifted(a, node, n) for n, a in enumerate(given)])
            if op == "var":
                used.add(arguments[0])
            places[node] = len(structure)
            structure.append(entry)
        if trim:
            structure[0] = tuple(name for name in graph.inputs if name in used)
        structure.append(tuple(lifted(output, None, place) for place, output in enumerate(graph.outputs.values())))
        return tuple(structure), tuple(constants), slots


class _Layout:
    """Numbers, tables and instances as they are written: in a function, or in the rows of what it is called with."""

    def __init__(self, places: dict[Instance, int]) -> None:
        self.places = places
        self.axes: dict[tuple[float, ...], int] = {}
        self.tables: dict[NodeTable, int] = {}

    def function(self, name: str, template: _Template) -> tuple[str, list[list[float | str]]]:
        """A template as a function, and its instances as rows: k of the function is one of them."""
        columns = list(zip(*template.instances, strict=True))
        varying: dict[tuple[Constant, ...], int] = {}
        for column in columns:
            if column.count(column[0]) < len(column):
                varying.setdefault(column, len(varying))
        texts = {}
        for slot, column in zip(template.slots, columns, strict=True):
            place, kind = varying.get(column), {NodeTable: "T", Instance: "I"}.get(type(column[0]))
            if place is not None or kind is not None:
                written = f"k[{place}]" if place is not None else str(self._number(column[0]))
                texts[slot] = written if kind is None else f"{kind}[{written}]"
        rows = [[self._number(entry) for entry in row] for row in zip(*varying, strict=True)]
        return Function(template.graph, texts).source(name), rows or [[] for _ in template.instances]

    def _number(self, entry: Constant) -> float | str:
        """A number as JSON has it; a table or an instance by its place."""
        if isinstance(entry, Instance):
            return self.places[entry]
        if isinstance(entry, NodeTable):
            for axis in entry.axes:
                self.axes.setdefault(axis, len(self.axes))
            return self.tables.setdefault(entry, len(self.tables))
        return entry if abs(entry) < float("inf") else str(entry).replace("inf", "Infinity")


_LIBRARY = f"""{RUNTIME}function library(data) {{
const T = data.tables.map(([axes, values]) => lattice(axes.map((axis) => data.axes[axis]), values)), I = [];
FUNCTIONS
const values = data.values.map(Number);
[NAMES].forEach((each, place) => {{
  const [count, ...columns] = data.numbers[place];
  for (let at = 0; at < count; at++) I.push(each.bind(null, columns.map((column) => values[column[at]])));
}});
return I;
}}
"""

"""Graphs that differ in their numbers alone share one function of these numbers, and graphs call each other's.

A library turns every graph that it is given into an instance: a template (the graph without its numbers) and the
numbers. Numbers that all instances of a template share go back into the function when it is printed, so that only what
tells instances apart is data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rooflinekit.model.graph.javascript import RUNTIME, function
from rooflinekit.model.graph.symbol import Pool, Symbol
from rooflinekit.model.graph.table import Table
from rooflinekit.model.graph.trace import Graph, ordered

__all__ = ["Instance", "Library", "Printed", "array", "call"]


@dataclass(eq=False)
class _Template:
    """A graph, and the numbers of all that differ from it in these alone."""

    graph: Graph
    instances: dict[tuple[Constant, ...], Instance] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Instance:
    """A template with its numbers: a function of the graph's inputs."""

    template: _Template = field(repr=False)
    constants: tuple[Constant, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it is a function of."""
        return self.template.graph.inputs


Constant: TypeAlias = float | Table | Instance


@dataclass(frozen=True)
class Printed:
    """JavaScript that defines `library(data)`, a list of functions; the data; and places in the list by instance."""

    source: str
    data: dict[str, Any]
    places: dict[Instance, int]


def call(instance: Instance, arguments: Sequence[Any], outputs: int) -> list[Symbol]:
    """The outputs of an instance for these inputs, at least one of them a symbol."""
    pool: Pool = next(argument for argument in arguments if isinstance(argument, Symbol)).pool
    whole = pool.node("call", instance, *arguments)
    return [pool.node("pick", whole, place) for place in range(outputs)]


def array(values: Sequence[Any], pool: Pool) -> Symbol:
    """Several values as one output; the first outputs of one call, in their order, are the call itself."""
    picks = [value.arguments for value in values if isinstance(value, Symbol) and value.op == "pick"]
    calls = {whole for whole, _ in picks}
    if len(calls) == 1 and [place for _, place in picks] == list(range(len(values))):
        return picks[0][0]  # type: ignore[no-any-return]
    return pool.node("array", *values)


class Library:
    """Instances by what their graphs have in common."""

    def __init__(self) -> None:
        self._templates: dict[tuple[Any, ...], _Template] = {}
        self._tables: dict[tuple[Any, ...], Table] = {}

    def add(self, graph: Graph, trim: bool = False) -> Instance:
        """The instance that this graph is; with `trim`, a function of no more inputs than it depends on.

        >>> from rooflinekit.model.graph.trace import trace
        >>> library = Library()
        >>> first, second = (library.add(trace(lambda m, n=n: {"bytes": 2.0 * m * n}, ["m"])) for n in (3.0, 5.0))
        >>> first.template is second.template, first.constants, second.constants
        (True, (2.0, 3.0), (2.0, 5.0))
        """
        nodes = ordered(graph.outputs.values())
        if trim:
            used = {node.arguments[0] for node in nodes if node.op == "var"}
            graph = Graph(tuple(name for name in graph.inputs if name in used), graph.outputs)
        structure, constants = self._lifted(graph, nodes)
        template = self._templates.get(structure)
        if template is None:
            template = self._templates[structure] = _Template(graph)
        return template.instances.setdefault(constants, Instance(template, constants))

    def printed(self) -> Printed:
        """All templates as functions, and the numbers of their instances.

        >>> from rooflinekit.model.graph.trace import trace
        >>> library = Library()
        >>> made = [library.add(trace(lambda m, n=n: {"bytes": 2.0 * m * n}, ["m"])) for n in (3.0, 5.0)]
        >>> printed = library.printed()
        >>> print(*printed.source.splitlines()[-9:-5], printed.data["numbers"])
        function f0(k, m) { const x3 = (2.0 * m) * k[0]; return [x3]; } [[[3.0], [5.0]]]
        """
        templates = list(self._templates.values())
        instances = [instance for template in templates for instance in template.instances.values()]
        places = {instance: place for place, instance in enumerate(instances)}
        layout = _Layout(places)
        functions, numbers = [], []
        for place, template in enumerate(templates):
            source, rows = layout.function(f"f{place}", template)
            functions.append(source)
            numbers.append(rows)
        names = ", ".join(f"f{place}" for place in range(len(templates)))
        source = _LIBRARY.replace("FUNCTIONS", "\n".join(functions)).replace("NAMES", names)
        tables = [[[layout.axes[axis] for axis in table.axes], table.values] for table in layout.tables]
        return Printed(source, {"axes": list(layout.axes), "tables": tables, "numbers": numbers}, places)

    def _lifted(self, graph: Graph, nodes: Iterable[Symbol]) -> tuple[tuple[Any, ...], tuple[Constant, ...]]:
        """What is the same for all graphs that differ in their constants alone; and the constants, in order."""
        places: dict[Symbol, int] = {}
        loops: dict[int, int] = {}
        constants: list[Constant] = []

        def lifted(argument: Any) -> Any:
            kind = type(argument)
            if kind is float or kind is Instance:
                constants.append(argument)
                return kind
            if kind is Table:
                constants.append(self._tables.setdefault((argument.axes, argument.values), argument))
                return kind
            if kind is Symbol:
                return places[argument]
            return tuple(map(lifted, argument)) if kind is tuple else (kind, argument)

        structure: list[Any] = [graph.inputs]
        for node in nodes:
            op, arguments = node.op, node.arguments
            if op == "named":
                places[node] = places[arguments[0]]
                continue
            if op == "held":  # by the loop and the place in its state
                entry: tuple[Any, ...] = (op, loops.setdefault(arguments[0], len(loops)), arguments[1])
            elif op in ("var", "fact"):
                entry = (op, lifted(arguments[0]))
            else:
                entry = (op, *[places[each] if type(each) is Symbol else lifted(each) for each in arguments])
            places[node] = len(structure)
            structure.append(entry)
        structure.append(tuple(map(lifted, graph.outputs.values())))
        return tuple(structure), tuple(constants)


def _replaced(graph: Graph, constant: Callable[[Pool, Any], Any]) -> Graph:
    """The same graph without names, each of its constants as `constant` has it, in the order of `_lifted`."""
    pool, moved = Pool(), dict[Symbol, Symbol]()

    def replaced(argument: Any) -> Any:
        if isinstance(argument, Symbol):
            return moved[argument]
        if isinstance(argument, (float, Table, Instance)):
            return constant(pool, argument)
        return tuple(map(replaced, argument)) if isinstance(argument, tuple) else argument

    for node in ordered(graph.outputs.values()):
        if node.op == "named":
            moved[node] = moved[node.arguments[0]]
        elif node.op == "fact":
            moved[node] = pool.node("number", replaced(node.arguments[0]))
        else:
            moved[node] = pool.node(node.op, *map(replaced, node.arguments))
    return Graph(graph.inputs, {name: replaced(output) for name, output in graph.outputs.items()})


class _Layout:
    """Numbers, tables and instances as they are written: in a function, or in the rows of what it is called with."""

    def __init__(self, places: dict[Instance, int]) -> None:
        self.places = places
        self.axes: dict[tuple[float, ...], int] = {}
        self.tables: dict[Table, int] = {}

    def function(self, name: str, template: _Template) -> tuple[str, list[list[float | str]]]:
        """A template as a function, and its instances as rows: k of the function is one of them."""
        columns = list(zip(*template.instances, strict=True))
        varying: dict[tuple[Constant, ...], int] = {}
        for column in columns:
            if column.count(column[0]) < len(column):
                varying.setdefault(column, len(varying))
        left = iter(columns)

        def constant(pool: Pool, _: Constant) -> Any:
            column = next(left)
            place = varying.get(column)
            if place is None and isinstance(column[0], float):
                return column[0]
            written = f"k[{place}]" if place is not None else str(self._number(column[0]))
            kind = {Table: "T", Instance: "I"}.get(type(column[0]))
            return pool.node("var", written if kind is None else f"{kind}[{written}]", None)

        graph = _replaced(template.graph, constant)
        rows = [[self._number(entry) for entry in row] for row in zip(*varying, strict=True)]
        source = function(graph, name, f"k, {', '.join(graph.inputs)}")
        return source, rows or [[] for _ in template.instances]

    def _number(self, entry: Constant) -> float | str:
        """A number as JSON has it; a table or an instance by its place."""
        if isinstance(entry, Instance):
            return self.places[entry]
        if isinstance(entry, Table):
            for axis in entry.axes:
                self.axes.setdefault(axis, len(self.axes))
            return self.tables.setdefault(entry, len(self.tables))
        return entry if abs(entry) < float("inf") else str(entry).replace("inf", "Infinity")


_LIBRARY = f"""{RUNTIME}function library(data) {{
const T = data.tables.map(([axes, values]) => lattice(axes.map((axis) => data.axes[axis]), values)), I = [];
FUNCTIONS
[NAMES].forEach((each, place) => {{
  for (const row of data.numbers[place]) I.push(each.bind(null, row.map(Number)));
}});
return I;
}}
"""

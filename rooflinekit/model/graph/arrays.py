"""A graph over arrays: one pass in pieces that stay in the processor's cache, with no array made inside it.

Nodes that depend on one input alone are worked out once for each of its different values, and looked up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rooflinekit.model.graph.symbol import BranchError, Symbol
from rooflinekit.model.graph.table import interpolated, located
from rooflinekit.model.graph.trace import Graph, depends, reachable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PIECE = 8_192
"""Rows of one piece: a temporary takes 64 KiB, and those that live at a time stay in a core's caches."""

_FEW = 2
_CHEAP = ("+", "-", "*", "neg", "max", "min", "named")
"""So few of such operators take less time than looking up their result."""

_FUNCTIONS = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "//": "floor_divide", "max": "maximum",
    "min": "minimum", "ceil": "ceil", "floor": "floor", "sqrt": "sqrt", "log2": "log2", "log": "log", "exp": "exp",
    "neg": "negative", "abs": "absolute", "<=": "less_equal", "<": "less", ">": "greater", ">=": "greater_equal",
    "==": "equal", "!=": "not_equal", "&": "logical_and", "|": "logical_or", "~": "logical_not", "**": "power",
}  # fmt: skip
_TRUTHS = ("<=", "<", ">", ">=", "==", "!=", "&", "|", "~")


class Vectorised:
    """A graph ready for arrays of its inputs; loops are not printed.

    >>> from rooflinekit.model.graph.trace import trace
    >>> import numpy as np
    >>> rows = Vectorised(trace(lambda m, k: {"bytes": 2.0 * m * k}, ["m", "k"]))
    >>> rows(m=np.arange(3.0), k=np.array([4.0, 5.0, 6.0]))["bytes"]
    array([ 0., 10., 24.])
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        inputs = depends(graph.nodes, lambda node: True)
        shared = {name: _looked_up(graph, inputs, name) for name in graph.inputs}
        self._stages = {name: _Piece(list(nodes), {}) for name, nodes in shared.items()}
        places = {node.index: (name, at) for name, nodes in shared.items() for at, node in enumerate(nodes)}
        self._rest = _Piece(list(graph.outputs.values()), places)

    def __call__(self, out: NDArray[np.float64] | None = None, **inputs: NDArray[np.float64]) -> dict[str, Any]:
        """The outputs by name; `out`, one row an output, is filled where it is given."""
        import numpy as np  # noqa: PLC0415

        rows = len(next(iter(inputs.values())))
        found = np.empty((len(self.graph.outputs), rows)) if out is None else out
        looked, codes = {}, {}
        for name, stage in self._stages.items():
            different, codes[name] = _different(inputs[name])
            looked[name] = np.empty((len(stage.outputs), len(different)))
            given = dict.fromkeys(self.graph.inputs, different)
            for start in range(0, len(different), _PIECE):
                piece = slice(start, start + _PIECE)
                stage.run({other: column[piece] for other, column in given.items()}, {}, looked[name][:, piece])
        for start in range(0, rows, _PIECE):
            piece = slice(start, start + _PIECE)
            taken = {name: (looked[name], codes[name][piece]) for name in looked}
            self._rest.run({name: column[piece] for name, column in inputs.items()}, taken, found[:, piece])
        return dict(zip(self.graph.outputs, found, strict=True))


class _Piece:
    """Statements for one piece of rows: every temporary is a buffer that is used again."""

    def __init__(self, outputs: list[Any], places: Mapping[int, tuple[str, int]]) -> None:
        self.outputs, self._places = outputs, places
        import numpy as np  # noqa: PLC0415

        self._lines: list[str] = []
        self._names: dict[str, Any] = {"np": np, "inf": math.inf, "located": located, "interpolated": interpolated}
        self._constants: dict[tuple[Any, ...], str] = {}
        self._located: dict[tuple[Any, ...], tuple[str, str]] = {}
        self._written: dict[int, str] = {}
        self._kinds: list[str] = []
        self._free: dict[str, list[int]] = {"f8": [], "?": []}
        self._held: dict[int, list[int]] = {}
        self._print()
        names = [f"b{number} = B[{number}]" for number in range(len(self._kinds))]
        lines = [*names, *self._lines] or ["pass"]
        source = "\n".join(["def run(at, taken, out, B):", *(f"    {line}" for line in lines)])
        exec(compile(source, "<graph>", "exec"), self._names)
        self._function: Callable[..., None] = self._names["run"]
        self._buffers: dict[int, Any] = {}

    def run(self, at: Mapping[str, Any], taken: Mapping[str, Any], out: Any) -> None:
        """Fill `out`, one row an output."""
        size = out.shape[1]
        buffers = self._buffers.get(size)
        if buffers is None:
            import numpy as np  # noqa: PLC0415

            buffers = self._buffers[size] = [np.empty(size, kind) for kind in self._kinds]
        self._function(at, taken, out, buffers)

    def _print(self) -> None:
        nodes = _needed(self.outputs, self._places)
        ends = _ends(nodes, self.outputs)
        for order, node in enumerate(nodes):
            self._statement(node, ends)
            for number in self._held.pop(order, []):
                self._free[self._kinds[number]].append(number)
        for row, output in enumerate(self.outputs):
            self._lines.append(f"out[{row}] = {self._text(output)}")

    def _statement(self, node: Symbol, ends: Mapping[int, int]) -> None:
        place = node.index
        given = [] if place in self._places else [self._text(argument) for argument in node.arguments]
        if place in self._places:
            name, row = self._places[place]
            target = self._buffer("f8", ends[place])
            self._lines.append(f"np.take(taken[{name!r}][0][{row}], taken[{name!r}][1], out={target}, mode='clip')")
        elif node.op in ("var", "fact", "number", "named"):
            target = f"at[{node.arguments[0]!r}]" if node.op == "var" else given[0]
        elif node.op == "lattice":
            target = self._lattice(node, given[1:], ends)
        else:
            target = self._buffer("?" if node.op in _TRUTHS else "f8", ends[place])
            self._operator(node.op, given, target)
        self._written[place] = target

    def _operator(self, op: str, given: list[str], target: str) -> None:
        if op == "where":
            self._lines += [f"{target}[...] = {given[2]}", f"np.copyto({target}, {given[1]}, where={given[0]})"]
        elif op == "**" and given[1] == "2.0":
            self._lines.append(f"np.multiply({given[0]}, {given[0]}, out={target})")
        else:
            self._lines.append(f"np.{_FUNCTIONS[op]}({', '.join(given)}, out={target})")

    def _lattice(self, node: Symbol, places: list[str], ends: Mapping[int, int]) -> str:
        """Where a position lies on an axis is worked out once for all tables that share it."""
        table, found = node.arguments[0], list[str]()
        for nodes, place, written in zip(table.axes, node.arguments[1:], places, strict=True):
            key = (nodes, place.index)
            if key not in self._located:
                names = f"i{len(self._located)}", f"s{len(self._located)}"
                axis = self._constant(nodes)
                self._lines.append(f"{names[0]}, {names[1]} = located({axis}, {written})")
                self._located[key] = names
            found.append("({}, {})".format(*self._located[key]))
        target = self._buffer("f8", ends[node.index])
        values = self._constant(table.values, [len(nodes) for nodes in table.axes])
        self._lines.append(f"{target}[...] = interpolated({values}, [{', '.join(found)}])")
        return target

    def _constant(self, values: tuple[float, ...], shape: list[int] | None = None) -> str:
        import numpy as np  # noqa: PLC0415

        name = self._constants.setdefault((values, tuple(shape or ())), f"c{len(self._constants)}")
        self._names[name] = np.array(values).reshape(shape or -1)
        return name

    def _buffer(self, kind: str, end: int) -> str:
        """A buffer that is free again after the statement `end`."""
        if self._free[kind]:
            number = self._free[kind].pop()
        else:
            number = len(self._kinds)
            self._kinds.append(kind)
        self._held.setdefault(end, []).append(number)
        return f"b{number}"

    def _text(self, value: Any) -> str:
        if isinstance(value, Symbol):
            return self._written[value.index]
        return "inf" if value == math.inf else "(-inf)" if value == -math.inf else repr(value)


def _looked_up(graph: Graph, inputs: Mapping[Symbol, frozenset[str]], name: str) -> list[Symbol]:
    """Nodes of one input alone that others need, and that take longer to work out than to look up."""
    only = frozenset({name})
    wanted = {output for output in graph.outputs.values() if isinstance(output, Symbol)}
    for node in graph.nodes:
        if inputs[node] != only:
            wanted.update(operand for operand in node.operands if inputs[operand] == only)
    return [node for node in graph.nodes if node in wanted and inputs[node] == only and _dear(node)]


def _dear(node: Symbol) -> bool:
    parts = [part for part in reachable([node]) if part.op not in ("var", "fact", "number", "named")]
    return len(parts) > _FEW or any(part.op not in _CHEAP for part in parts)


def _needed(outputs: Iterable[Any], places: Mapping[int, Any]) -> list[Symbol]:
    """What outputs are made of, down to what is looked up."""
    found: set[Symbol] = set()
    left = [output for output in outputs if isinstance(output, Symbol)]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            if node.op == "loop":
                raise BranchError("a loop over arrays is not printed")
            left.extend(() if node.index in places else node.operands)
    return sorted(found, key=lambda node: node.index)


def _ends(nodes: list[Symbol], outputs: Iterable[Any]) -> dict[int, int]:
    """The last statement that needs each node; a name needs what it names as long as it is needed."""
    ends = {node.index: order for order, node in enumerate(nodes)}
    ends |= {output.index: len(nodes) for output in outputs if isinstance(output, Symbol)}
    for order in range(len(nodes) - 1, -1, -1):
        node = nodes[order]
        until = ends[node.index] if node.op == "named" else order
        for operand in node.operands:
            if operand.index in ends:  # else behind what is looked up
                ends[operand.index] = max(ends[operand.index], until)
    return ends


def _different(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """The different values, and the place of each element among them."""
    import numpy as np  # noqa: PLC0415

    whole = values.astype(np.intp) if values.min() >= 0.0 and values.max() < len(values) else None
    if whole is not None and (whole == values).all():
        top = int(whole.max())
        seen = np.zeros(top + 1, bool)
        seen[whole] = True
        return np.flatnonzero(seen).astype(float), (np.cumsum(seen) - 1)[whole]
    different, places = np.unique(values, return_inverse=True)
    return different, places

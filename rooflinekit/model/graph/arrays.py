"""A graph over arrays: one pass in pieces that stay in the processor's cache.

Nodes that depend on one input alone are worked out once for each of its different values, and looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rooflinekit.model.graph.symbol import Symbol, Term
from rooflinekit.model.graph.table import interpolated, located
from rooflinekit.model.graph.trace import Graph, depends, reachable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PIECE = 16_384
"""Rows of one piece: a temporary takes 128 KiB, and those that live at a time stay in a core's caches."""

_FEW = 8
_COSTS = dict.fromkeys(("var", "fact", "named"), 0) | dict.fromkeys(("+", "-", "*", "neg", "max", "min"), 1)
_COSTS |= {"/": 2, "sqrt": 3}
"""Times of operators over that of a sum, the rest being dear: up to so many take less than looking up their result."""

_FUNCTIONS = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "//": "floor_divide", "max": "maximum",
    "min": "minimum", "ceil": "ceil", "floor": "floor", "sqrt": "sqrt", "log2": "log2", "log": "log", "exp": "exp",
    "neg": "negative", "abs": "absolute", "<=": "less_equal", "<": "less", ">": "greater", ">=": "greater_equal",
    "==": "equal", "!=": "not_equal", "&": "logical_and", "|": "logical_or", "~": "logical_not", "**": "power",
    "where": "where",
}  # fmt: skip


class Vectorised:
    """A graph ready for arrays of its inputs.

    >>> from rooflinekit.model.graph.trace import trace
    >>> import numpy as np
    >>> rows = Vectorised(trace(lambda m, k: {"bytes": 2.0 * m * k}, ["m", "k"]))
    >>> rows(m=np.arange(3.0), k=np.array([4.0, 5.0, 6.0]))["bytes"]
    array([ 0., 10., 24.])
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        inputs = depends(graph.nodes, lambda node: True)
        costs: dict[Symbol, int] = {}
        for node in graph.nodes:
            below = sum(costs[operand] for operand in node.operands)
            costs[node] = min(_COSTS.get(node.op, 1 + _FEW) + below, 1 + _FEW)
        shared = {name: _looked_up(graph, inputs, name, costs) for name in graph.inputs}
        self._stages = {name: _Pass(nodes) for name, nodes in shared.items()}
        self._places = {node: (name, row) for name, nodes in shared.items() for row, node in enumerate(nodes)}
        self._rest = _Pass(list(graph.outputs.values()), self._places)

    def __call__(
        self, out: NDArray[np.float64] | None = None, **inputs: NDArray[np.float64]
    ) -> dict[str, NDArray[np.float64]]:
        """The outputs by name; `out`, one row an output, is filled where it is given."""
        import numpy as np  # noqa: PLC0415

        rows = len(next(iter(inputs.values())))
        found = np.empty((len(self.graph.outputs), rows)) if out is None else out
        looked, codes = {}, {}
        for name, stage in self._stages.items():
            different, codes[name] = _different(inputs[name])
            looked[name] = np.empty((len(stage.outputs), len(different)))

            def every(node: Symbol, piece: slice, values: NDArray[np.float64] = different) -> NDArray[np.float64]:
                return values[piece]

            stage.run(every, looked[name])

        def given(node: Symbol, piece: slice) -> Any:
            if node.op == "var":
                return inputs[node.arguments[0]][piece]
            name, row = self._places[node]
            return looked[name][row].take(codes[name][piece], mode="clip")

        self._rest.run(given, found)
        return dict(zip(self.graph.outputs, found, strict=True))


class _Pass:
    """The nodes behind some outputs, worked out one after the other, down to variables and those in `places`.

    A result is written where one stood that nobody needs any more, which the processor's cache still holds.
    """

    def __init__(self, outputs: Sequence[Symbol | float], places: Collection[Symbol] = ()) -> None:
        import numpy as np  # noqa: PLC0415

        self.outputs = outputs
        nodes = reachable(outputs, places)
        last = {operand: node for node in nodes if node not in places for operand in node.operands}
        last |= {output: output for output in outputs if isinstance(output, Symbol)}
        shown = {node.arguments[0] for node in nodes if node.op in _NUMBERS}  # stay where they are under a name
        spots: dict[tuple[object, Symbol], Symbol] = {}  # where a place lies on an axis: the same for all tables
        rooms: dict[Symbol, int] = {}
        free: list[int] = []
        self._rooms = 0
        self._wide: dict[float, Symbol] = {}
        self._steps: list[tuple[Symbol, Callable[..., Any] | None, Sequence[Term], list[Symbol], int | None]] = []
        for node in nodes:
            function, arguments, gone = None, node.arguments, list[Symbol]()
            if node not in places and node.op != "var":
                gone = [operand for operand in dict.fromkeys(node.operands) if last[operand] is node]
                function = _function(node, np)
                arguments = node.arguments[: 1 if function is np.square or node.op in _NUMBERS else None]
                if function in (np.maximum, np.minimum):  # a number takes NumPy four times as long as an array of it
                    arguments = tuple(self._as_array(node, each) if type(each) is float else each for each in arguments)
                elif node.op == "lattice":
                    table, *at = arguments
                    for on in zip(table.axes, at, strict=True):
                        if on not in spots:
                            spots[on] = Symbol(node.pool, "located", on, -1, None)
                            self._steps.append((spots[on], located, on, [], None))
                    arguments = (table, *(spots[on] for on in zip(table.axes, at, strict=True)))
            free += [rooms.pop(operand) for operand in gone if operand in rooms]
            if function is not None and node.op in _WRITTEN and node not in shown:
                rooms[node] = free.pop() if free else self._rooms
                self._rooms = max(self._rooms, rooms[node] + 1)
            self._steps.append((node, function, arguments, gone, rooms.get(node)))

    def _as_array(self, node: Symbol, number: float) -> Symbol:
        return self._wide.setdefault(number, Symbol(node.pool, "wide", (), -1, None))

    def run(self, given: Callable[[Symbol, slice], NDArray[np.float64]], out: NDArray[np.float64]) -> None:
        """Fill `out`, one row an output; an array is let go behind the last node that needs it."""
        import numpy as np  # noqa: PLC0415

        rows = out.shape[1]
        length = min(rows, _PIECE)
        room, wide = np.empty((self._rooms, length)), {node: np.full(length, each) for each, node in self._wide.items()}
        for start in range(0, rows, _PIECE):
            first = min(start, rows - length)  # all pieces are of one length: the last begins earlier
            piece, values = slice(first, first + length), dict[Symbol, Any](wide)
            for node, function, arguments, gone, place in self._steps:
                if function is None:
                    values[node] = given(node, piece)
                else:
                    found = [values[a] if type(a) is Symbol else a for a in arguments]
                    values[node] = function(*found) if place is None else function(*found, out=room[place])
                for operand in gone:
                    del values[operand]
            for row, output in enumerate(self.outputs):
                out[row, piece] = values[output] if isinstance(output, Symbol) else output


_NUMBERS = ("fact", "named")
_WRITTEN = ("+", "-", "*", "/", "max", "min", "sqrt", "log2", "log", "exp", "neg", "**")


def _function(node: Symbol, np: Any) -> Callable[..., Any]:
    """Function that gives a node from its arguments."""
    match node.op:
        case "fact" | "named":
            return lambda value: value
        case "lattice":
            return lambda table, *spots: interpolated(table.array, spots)
        case "**" if type(node.arguments[1]) is float and node.arguments[1] == 2.0:
            return np.square  # type: ignore[no-any-return]
    return getattr(np, _FUNCTIONS[node.op])  # type: ignore[no-any-return]


def _looked_up(
    graph: Graph, inputs: Mapping[Symbol, frozenset[str]], name: str, costs: Mapping[Symbol, int]
) -> list[Symbol]:
    """Nodes of one input alone that others need, and that take longer to work out than to look up."""
    only = frozenset({name})
    wanted = {output for output in graph.outputs.values() if isinstance(output, Symbol)}
    for node in graph.nodes:
        if inputs[node] != only:
            wanted.update(operand for operand in node.operands if inputs[operand] == only)
    return [node for node in graph.nodes if node in wanted and inputs[node] == only and costs[node] > _FEW]


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

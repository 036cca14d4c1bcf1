"""A graph as cells of a spreadsheet: a row for each node that several others use, a column for each set of inputs.

Every cell carries the value that Python finds for it. What only one formula uses stands inside that formula, as long as
it stays short.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rooflinekit.model.graph.symbol import OPERATORS, Quantity, Symbol, Term
from rooflinekit.model.graph.table import NodeTable, locate
from rooflinekit.model.graph.trace import bare, depends, ordered, reachable

BEYOND = 1e290
"""Number for infinity, which spreadsheets do not know."""

_ATOM, _UNARY, _POWER, _PRODUCT, _SUM, _JOIN, _COMPARISON, _WHOLE = 7, 6, 5, 4, 3, 2, 1, 0
_INFIX: Mapping[str, tuple[str, int]] = {
    "+": ("+", _SUM),
    "-": ("-", _SUM),
    "*": ("*", _PRODUCT),
    "/": ("/", _PRODUCT),
    "==": ("=", _COMPARISON),
    "!=": ("<>", _COMPARISON),
    "<": ("<", _COMPARISON),
    "<=": ("<=", _COMPARISON),
    ">": (">", _COMPARISON),
    ">=": (">=", _COMPARISON),
    "joined": ("&", _JOIN),
}
_FUNCTIONS: Mapping[str, str] = {
    "max": "MAX({0},{1})", "min": "MIN({0},{1})", "ceil": "ROUNDUP({0},0)", "floor": "INT({0})", "sqrt": "SQRT({0})",
    "log2": "LOG({0},2)", "log": "LN({0})", "exp": "EXP({0})", "abs": "ABS({0})", "where": "IF({0},{1},{2})",
    "&": "AND({0},{1})", "|": "OR({0},{1})", "~": "NOT({0})",
}  # fmt: skip
_HEAVY = 8  # operators of one formula


@dataclass(slots=True, eq=False)
class Cell:
    """Text of a formula or a reference without the leading "=", its value, and how strongly its operator binds.

    >>> price, hours = Cell("B2", 2.5), Cell("B3", 10.0)
    >>> (price * (hours + 1.0)).text, (price * (hours + 1.0)).value
    ('B2*(B3+1)', 27.5)
    """

    text: str
    value: Term  #: a number, a truth value or a text
    level: int = _ATOM

    def beside(self, level: int) -> str:
        """The text as an operand of an operator that binds so strongly."""
        return self.text if self.level >= level else f"({self.text})"

    def __add__(self, other: Given) -> Cell:
        return composed("+", self, literal(other))

    def __sub__(self, other: Given) -> Cell:
        return composed("-", self, literal(other))

    def __rsub__(self, other: Given) -> Cell:
        return composed("-", literal(other), self)

    def __mul__(self, other: Given) -> Cell:
        return composed("*", self, literal(other))

    def __truediv__(self, other: Given) -> Cell:
        return composed("/", self, literal(other))

    def __ge__(self, other: Given) -> Cell:
        return composed(">=", self, literal(other))

    def __gt__(self, other: Given) -> Cell:
        return composed(">", self, literal(other))

    def __le__(self, other: Given) -> Cell:
        return composed("<=", self, literal(other))

    def __and__(self, other: Cell) -> Cell:
        return composed("&", self, other)

    def __or__(self, other: Cell) -> Cell:
        return composed("|", self, other)

    def equals(self, other: Given) -> Cell:
        """True if it is that number or text."""
        return composed("==", self, literal(other))


Given: TypeAlias = "Cell | float | str"


def when(condition: Cell, yes: Given, no: Given) -> Cell:
    """IF."""
    return composed("where", condition, literal(yes), literal(no))


def literal(value: Term) -> Cell:
    """A number, a truth value or a text as it stands in a formula; a cell is one already.

    >>> literal(3.0).text, literal(1e-9).text, literal("fp8").text, literal(True).text
    ('3', '1E-09', '"fp8"', 'TRUE')
    """
    if isinstance(value, Cell):
        return value
    if isinstance(value, str):
        return Cell('"' + value.replace('"', '""') + '"', value)
    if isinstance(value, bool):
        return Cell(str(value).upper(), value)
    number = math.copysign(BEYOND, value) if math.isinf(value) else float(value)
    text = str(int(number)) if number.is_integer() and abs(number) < _BEYOND_DIGITS else repr(number).upper()
    return Cell(text, number, _UNARY if number < 0.0 else _ATOM)


_BEYOND_DIGITS = 1e15


def function(template: str, value: object, *given: Cell) -> Cell:
    """A function of spreadsheets, with the value that it has."""
    return Cell(template.format(*(cell.text for cell in given)), value)


def composed(op: str, *given: Cell) -> Cell:
    """An operator on cells; a value that Python cannot find (in a branch that is not taken) is not a number.

    >>> x, y = Cell("A1", 8.0), Cell("B1", 2.0)
    >>> composed("*", composed("+", x, y), composed("log2", x))
    Cell(text='(A1+B1)*LOG(A1,2)', value=30.0, level=4)
    """
    values = [0.0 if cell.value == "" and op not in ("==", "!=", "where") else cell.value for cell in given]
    try:
        value = "".join(map(_shown, values)) if op == "joined" else OPERATORS[op](*values)
    except (ArithmeticError, TypeError, ValueError):
        value = math.nan
    if op in _INFIX:
        sign, level = _INFIX[op]
        return Cell(f"{given[0].beside(level)}{sign}{given[1].beside(level + 1)}", value, level)
    match op:
        case "neg":
            return Cell(f"-{given[0].beside(_ATOM)}", value, _UNARY)
        case "//":
            return Cell(f"INT({given[0].beside(_PRODUCT)}/{given[1].beside(_PRODUCT + 1)})", value)
        case "**":
            return _power(given[0], given[1], value)
    return Cell(_FUNCTIONS[op].format(*(cell.text for cell in given)), value)


_MANY_DIGITS = 4  # of an exponent to which a share may be too small a number for a spreadsheet


def _power(base: Cell, exponent: Cell, value: object) -> Cell:
    """0 below e^-100, since spreadsheets may call a smaller power an error."""
    power = f"{base.beside(_UNARY)}^{exponent.beside(_UNARY)}"
    if exponent.text.isdecimal() and len(exponent.text) < _MANY_DIGITS:
        return Cell(power, value, _POWER)
    small = f"(1-{base.beside(_PRODUCT)})*{exponent.beside(_PRODUCT + 1)}>100"
    return Cell(f"IF({small},0,{power})", value)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else f"{value:.0f}"


@dataclass
class Tables:
    """Tables that formulas interpolate in, each a row of a sheet.

    A row holds the number of nodes of each axis and the nodes (ranges `count_1`, `nodes_1` ...), and all values.
    """

    rows: dict[NodeTable, int] = field(default_factory=dict)

    def place(self, table: NodeTable) -> int:
        """Row of the table, from 1."""
        return self.rows.setdefault(table, len(self.rows) + 1)

    def interpolated(self, put: Callable[[Cell], Cell], row: Cell, *places: Cell) -> Cell:
        """The value between the nodes; `put` writes the node below each place, and the share of the way to the next."""
        table = list(self.rows)[int(row.value) - 1]
        terms = [("", "")]
        for axis, place in enumerate(places, 1):
            count = f"INDEX(count_{axis},{row.text})"
            nodes = f"INDEX(nodes_{axis},{row.text},{{}})"
            index, share = locate(table.axes[axis - 1], place.value)
            known = f"MATCH(MAX({place.text},{nodes.format(1)}),{nodes.format(0)},1)"
            below = put(Cell(f"MAX(MIN({known},{count}-1),1)", index + 1.0)).text
            near, far = nodes.format(below), nodes.format(f"{below}+1")
            way = f"({place.beside(_SUM)}-{near})/({far}-{near})"
            beyond = put(Cell(f"IF({count}=1,0,MIN(MAX({way},0),1))", share)).text
            terms = [
                (f"({at}-1)*{count}+{below}{more}" if at else f"{below}{more}", f"{weight}*{part}")
                for at, weight in terms
                for more, part in (("", f"(1-{beyond})"), ("+1", beyond))
            ]
        text = "+".join(f"INDEX(table_values,{row.text},{at}){weight}" for at, weight in terms)
        return Cell(text, table.at(*(place.value for place in places)), _SUM)


@dataclass(frozen=True)
class CellPage:
    """Page of cells that a graph is written on.

    parameters: cells of variables that are the same in every column; put: writes a cell at a row and a column, and
    answers with a reference to it.
    """

    parameters: Mapping[Symbol, Cell]
    tables: Tables
    put: Callable[[int, int, Cell], Cell]


class CellBlock:
    """A graph on a sheet: which nodes have rows of their own, from the row `first` on, for all columns alike.

    parameters: variables that are cells of the page.
    """

    def __init__(self, outputs: Iterable[object], first: int, parameters: Collection[Symbol]) -> None:
        self.heads: list[str] = []
        self.quantities: dict[Symbol, Quantity] = {}
        self.places: dict[Symbol, range] = {}
        found = [bare(output) for output in outputs if isinstance(output, Symbol)]
        self.scopes = depends(reachable(found), lambda node: node not in parameters)
        for node in self._apart(found):
            height = 2 * len(node.arguments) - 1 if node.op == "lattice" else 1
            self.places[node] = range(first, first + height)
            first += height
        self._orders: dict[Symbol, list[Symbol]] = {}
        self._without: dict[frozenset[str], frozenset[Symbol]] = {}

    def without(self, inputs: Iterable[str]) -> frozenset[Symbol]:
        """The nodes that depend on none of these."""
        asked = frozenset(inputs)
        if asked not in self._without:
            self._without[asked] = frozenset(node for node, scope in self.scopes.items() if not scope & asked)
        return self._without[asked]

    def order(self, output: Symbol) -> list[Symbol]:
        """The nodes with rows that one is made of, operands first."""
        if output not in self._orders:
            self._orders[output] = [node for node in reachable([output]) if node in self.places]
        return self._orders[output]

    def _apart(self, outputs: Sequence[Symbol]) -> list[Symbol]:
        """Nodes with a cell of their own: used twice, crossing a border, or too long for a formula."""
        nodes, apart = reachable(outputs), set(outputs)
        uses = Counter(bare(operand) for node in nodes if node.op != "named" for operand in node.operands)
        apart |= {node for node, count in uses.items() if count > 1}
        weights: dict[Symbol, int] = {}
        for node in nodes:
            weights[node] = 0
            inner = [bare(operand) for operand in node.operands]
            if node.op == "named":
                self.quantities[inner[0]] = node.arguments[1]
            if node.op in _LEAVES:
                continue
            apart.update(part for part in inner if self.scopes[part] != self.scopes[node])
            weights[node] = 1 + sum(weights[part] for part in inner if part not in apart)
            if weights[node] > _HEAVY or node.op == "lattice":
                apart.add(node)
        return [node for node in ordered(outputs) if node in apart and node.op not in _LEAVES]


_LEAVES = ("named", "var", "fact")


class Column:
    """Cells of one set of inputs; what does not depend on them stands in the column `before`, the first on a page."""

    def __init__(self, block: CellBlock, head: str, inputs: Mapping[str, Cell], before: Column | CellPage) -> None:
        self.block, self.inputs = block, inputs
        self.before = before if isinstance(before, Column) else None
        self.page: CellPage = before.page if isinstance(before, Column) else before
        self.operands: dict[Symbol, list[Cell | Symbol]] = before.operands if isinstance(before, Column) else {}
        self.known: frozenset[str] = frozenset(inputs) | (before.known if isinstance(before, Column) else frozenset())
        self.cells: dict[Symbol, Cell] = {}
        self._earlier = block.without(inputs) if self.before else frozenset[Symbol]()
        self.place = len(block.heads)
        block.heads.append(head)

    def cell(self, output: Term) -> Cell:
        """The cell of a node, after those that it is made of; a number as it is."""
        if isinstance(output, Symbol):
            for node in self.block.order(bare(output)):
                if self.block.scopes[node] <= self.known:
                    self._at(node)
        return self._at(self._fixed(output))

    def _made_of(self, node: Symbol) -> list[Cell | Symbol]:
        """Arguments of a node: cells where they are the same in every column, else nodes without their names."""
        if node not in self.operands:
            self.operands[node] = [self._fixed(argument) for argument in node.arguments]
        return self.operands[node]

    def _fixed(self, given: Term) -> Cell | Symbol:
        """A cell for what is the same in every column, else the node without its name."""
        node = bare(given)
        if isinstance(node, Symbol):
            known = node.op == "fact"
            return literal(node.arguments[0]) if known else self.page.parameters.get(node, node)
        return literal(float(self.page.tables.place(node)) if isinstance(node, NodeTable) else node)

    def _at(self, node: Cell | Symbol) -> Cell:
        if isinstance(node, Cell):
            return node
        found = self.cells.get(node)
        if found is not None:
            return found
        block = self.block
        if self.before is not None and node in self._earlier:
            return self.before._at(node)
        if node.op == "var":
            return self.inputs[node.arguments[0]]
        operands = map(self._at, self._made_of(node))
        if node not in block.places:
            return composed(node.op, *operands)
        rows = block.places[node]
        if node.op == "lattice":
            free = iter(rows)
            formula = self.page.tables.interpolated(lambda cell: self._put(next(free), cell), *operands)
        else:
            formula = composed(node.op, *operands)
        self.cells[node] = self._put(rows[-1], formula)
        return self.cells[node]

    def _put(self, row: int, cell: Cell) -> Cell:
        return self.page.put(row, self.place, cell)

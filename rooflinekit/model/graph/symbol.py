"""A symbol that goes where floats and arrays go: formulas that it passes through become a graph.

Equal nodes are one object, so that the graph shares every common part. Nothing here knows physics or a printer.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from rooflinekit.model.graph.table import NodeTable
from rooflinekit.model.types.frozen import dataclass, field

P = ParamSpec("P")
R = TypeVar("R")
Term: TypeAlias = Any
"""What an operator takes and gives: a number or a `Symbol`, whose operators are set from a table; a name, a table."""


class BranchError(TypeError):
    """A formula asked for the value of a symbol that has none: write `where`, `maximum` or `choose` instead."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """Name, meaning, unit and origin of a number in formulas."""

    symbol: str
    meaning: str
    unit: str = ""
    source: str = ""
    spread: float | None = None  #: one standard error, of a number that was fitted


def _rounded_up(value: float) -> float:
    return float(math.ceil(value)) if math.isfinite(value) else value


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
    "//": operator.floordiv,
    "max": lambda a, b: a if a > b else b,
    "min": lambda a, b: a if a < b else b,
    "ceil": _rounded_up,
    "floor": lambda a: float(math.floor(a)),
    "sqrt": math.sqrt,
    "log2": math.log2,
    "log": math.log,
    "exp": math.exp,
    "neg": operator.neg,
    "abs": abs,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&": lambda a, b: a and b,
    "|": lambda a, b: a or b,
    "~": operator.not_,
    "where": lambda condition, yes, no: yes if condition else no,
    "lattice": lambda table, *places: table.at(*places),
    "named": lambda value, _: value,
}
"""Meaning of each operator for scalars, as the physics does it."""

UNKNOWN = object()
"""The value of a symbol that has none yet."""


class Pool:
    """The nodes of one graph, in the order in which they were made: each stands behind those that it is made of."""

    def __init__(self, values: Mapping[str, float] | None = None, names: bool = True) -> None:
        """`values` of variables, where the graph is traced at one point: branches then follow them.

        Without `names`, formulas leave no lines of an explanation.
        """
        self.values, self.names = dict(values or {}), names
        self.nodes: list[Symbol] = []
        self._known: dict[tuple[object, ...], Symbol] = {}
        self._tables: dict[tuple[object, ...], NodeTable] = {}
        self._parts: dict[int, list[Symbol]] = {}

    def variable(self, name: str, quantity: Quantity | None = None) -> Symbol:
        """An input."""
        return self.node("var", name, quantity, value=self.values.get(name, UNKNOWN))

    def fact(self, value: float, quantity: Quantity) -> Symbol:
        """A number with a name and a source: a leaf of explanations."""
        return self.node("fact", float(value), quantity, value=float(value))

    def node(self, op: str, *arguments: Term, value: Term = UNKNOWN) -> Symbol:
        """The one node of this operator on these arguments."""
        key: tuple[object, ...]
        if len(arguments) == 2:  # most nodes
            a, b = arguments
            if type(a) is Symbol:
                key = (op, a.index, b.index) if type(b) is Symbol else (op, a.index, type(b), b)
            else:
                key = (op, type(a), a, b.index) if type(b) is Symbol else (op, type(a), a, type(b), b)
        else:
            key = op, *[a.index if type(a) is Symbol else (type(a), a) for a in arguments]
        found = self._known.get(key)
        if found is None:
            found = Symbol(self, op, arguments, len(self.nodes), value)
            self._known[key] = found
            self.nodes.append(found)
        return found

    def parts(self, whole: Symbol, count: int) -> list[Symbol]:
        """The outputs of a call."""
        known = self._parts.setdefault(whole.index, [])
        for place in range(len(known), count):
            known.append(Symbol(self, "pick", (whole, place), len(self.nodes), UNKNOWN))
            self.nodes.append(known[-1])
        return known[:count]

    def apply(self, op: str, *given: object) -> Any:
        """The operator on symbols and numbers; what changes no bit is left out."""
        for argument in given:
            if type(argument) is not Symbol and type(argument) is not float:
                given = tuple(map(self._leaf, given))
                break
        if op in _NEUTRAL:
            first, second = given
            number = _NEUTRAL[op]  # x·1, x + 0, x − 0, x/1: the same bits without the operator
            if type(second) is float:
                if second == number:
                    return first
            elif type(first) is float and first == number and op in "+*":
                return second
        elif op == "where" and type(given[0]) is not Symbol:
            return given[1] if given[0] else given[2]
        values = []
        for argument in given:
            value = argument.value if type(argument) is Symbol else argument
            if value is UNKNOWN:
                return self.node(op, *given)
            values.append(value)
        return self.node(op, *given, value=OPERATORS[op](*values))

    def _leaf(self, argument: Term) -> Term:
        named = self.names and isinstance(argument, Fact)
        return self.fact(argument, argument.quantity) if named else _plain(argument)

    def lattice(self, axes: Sequence[tuple[float, ...]], values: Sequence[float], places: Sequence[Term]) -> Symbol:
        """Interpolation in a table, of which equal ones are one."""
        key = (tuple(axes), tuple(values))
        table = self._tables.setdefault(key, NodeTable(*key))
        return cast("Symbol", self.apply("lattice", table, *places))


def _plain(value: Term) -> Term:
    """Python's own numbers in place of NumPy's."""
    if type(value) in (Symbol, bool, float):
        return value
    if isinstance(value, (int, float)):
        return float(value)
    if hasattr(value, "ndim") and hasattr(value, "item"):
        if value.ndim:
            raise BranchError("an array met a symbol; trace scalars")
        return _plain(value.item())
    return value


_NEUTRAL = {"+": 0.0, "-": 0.0, "*": 1.0, "/": 1.0}


class Symbol:
    """One node of a graph. Operators on it make further nodes.

    op: an entry of OPERATORS, or one of var, fact; value: where it is known.
    """

    __slots__ = ("arguments", "index", "op", "pool", "value")
    __array_ufunc__ = None  # so that NumPy's numbers leave operators to it
    ndim = 0
    shape = ()

    def __init__(self, pool: Pool, op: str, arguments: tuple[Term, ...], index: int, value: Term) -> None:
        self.pool, self.op, self.arguments, self.index, self.value = pool, op, arguments, index, value

    @property
    def operands(self) -> list[Symbol]:
        """The nodes that it is made of."""
        return [argument for argument in self.arguments if type(argument) is Symbol]

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        if self.value is UNKNOWN:
            raise BranchError(f"a branch depends on {self!r}")
        return bool(self.value)

    def __float__(self) -> float:
        if self.value is UNKNOWN:
            raise BranchError(f"float() of {self!r}")
        return float(self.value)

    def __int__(self) -> int:
        return int(float(self))

    def __repr__(self) -> str:
        return f"<symbol {self.index}: {self.op}>"

    def __eq__(self, other: object) -> Term:
        return True if other is self else self.pool.apply("==", self, other)

    def __ne__(self, other: object) -> Term:
        return self.pool.apply("!=", self, other)

    def __neg__(self) -> Term:
        return self.pool.apply("neg", self)

    def __abs__(self) -> Term:
        return self.pool.apply("abs", self)

    def __invert__(self) -> Term:
        return self.pool.apply("~", self)


def _binary(op: str) -> Callable[[Symbol, Term], Term]:
    neutral = _NEUTRAL.get(op)

    def applied(self: Symbol, other: object) -> Term:
        if self.value is UNKNOWN and (type(other) is Symbol or (type(other) is float and other != neutral)):
            return self.pool.node(op, self, other)  # most of all
        return self.pool.apply(op, self, other)

    return applied


def _reflected(op: str) -> Callable[[Symbol, Term], Term]:
    neutral = _NEUTRAL.get(op) if op in "+*" else None

    def applied(self: Symbol, other: object) -> Term:
        if self.value is UNKNOWN and type(other) is float and other != neutral:
            return self.pool.node(op, other, self)
        return self.pool.apply(op, other, self)

    return applied


for _name, _op in {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "pow": "**",
    "floordiv": "//",
    "and": "&",
    "or": "|",
}.items():
    setattr(Symbol, f"__{_name}__", _binary(_op))
    setattr(Symbol, f"__r{_name}__", _reflected(_op))
for _name, _op in {"le": "<=", "lt": "<", "ge": ">=", "gt": ">"}.items():
    setattr(Symbol, f"__{_name}__", _binary(_op))


class Fact(float):
    """A number that knows what it is: where it meets a symbol, a leaf of explanations; a plain number elsewhere."""

    __slots__ = ("quantity",)

    def __new__(cls, value: float, quantity: Quantity) -> Fact:
        """The number, named."""
        made = super().__new__(cls, value)
        made.quantity = quantity
        return made

    def __getnewargs__(self) -> tuple[float, Quantity]:  # type: ignore[override]
        return float(self), self.quantity

    quantity: Quantity


def _yielding(op: Callable[[object, object], object]) -> Callable[[Fact, object], object]:
    """Make an operator of a plain number yield to another kind of number on its right."""
    return lambda self, other: NotImplemented if isinstance(other, Symbol) else op(float(self), other)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "pow"):
    setattr(Fact, f"__{_name}__", _yielding(getattr(operator, _name)))


def fact(value: float, symbol: str, meaning: str, unit: str = "", source: str = "") -> float:
    """A number with a name and a source.

    >>> replicas = fact(8.0, "dp", "attention replicas", source="your input")
    >>> 64.0 / replicas, [node.op for node in (Pool().variable("batch") / replicas).operands]
    (8.0, ['var', 'fact'])
    """
    return Fact(value, Quantity(symbol, meaning, unit, source))


def named(value: R, symbol: str, meaning: str, unit: str = "", source: str = "") -> R:
    """A number passes; a symbol becomes a line of the explanation.

    >>> named(3.0, "F", "work of one launch", "FLOP")
    3.0
    """
    if not isinstance(value, Symbol) or not value.pool.names:
        return value
    return cast("R", value.pool.apply("named", value, Quantity(symbol, meaning, unit, source)))


def formula(symbol: str, meaning: str, unit: str = "", source: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Name what a formula gives: its result is a line of explanations, in the words that stand here once.

    >>> @formula("F", "multiply-adds of a matrix product", "FLOP")
    ... def gemm_flops(m: float, n: float, k: float) -> float:
    ...     return 2.0 * m * n * k
    >>> gemm_flops(32.0, 6144.0, 4096.0), gemm_flops.quantity.unit
    (1610612736.0, 'FLOP')
    """
    quantity = Quantity(symbol, meaning, unit, source)

    def naming(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def called(*given: P.args, **options: P.kwargs) -> R:
            value = function(*given, **options)
            if value.__class__ is float:
                return value
            if isinstance(value, Symbol) and value.pool.names:
                return cast("R", value.pool.apply("named", value, quantity))
            return value

        called.quantity = quantity  # type: ignore[attr-defined]
        return called

    return naming


def about(symbol: str, meaning: str, unit: str = "") -> dict[str, Quantity]:
    """Metadata of a dataclass's field that is a number of formulas: what it is called stands here once."""
    return {"quantity": Quantity(symbol, meaning, unit)}


def quantity(symbol: str, meaning: str, unit: str = "", **options: Any) -> Any:
    """Declare such a field, where no field without a default follows."""
    return field(**options, metadata=about(symbol, meaning, unit))

"""A graph as an explanation: every named number with its formula, down to facts and inputs.

A formula is written from the nodes between a number and the named ones below it. It is arithmetic in Python's
notation over the symbols of the lines below, so that a reader, or a program, can check it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from rooflinekit.model.graph.symbol import OPERATORS, Quantity, Symbol, Term

_COUNTED = "counted from the model's shapes"
_LONGEST = 40  # operators of a formula beyond which it is a routine, and only its result is shown
_ENDLESS, _CUT = 10_000, "endless"  # letters of a formula that nobody reads, and what stands in its place
_SUM, _PRODUCT, _ATOM = 1, 2, 4  # how tightly a text binds
_EQUAL = 1e-300
_LOST = 1e-15  # of its terms: what a difference of nearly equal numbers loses
_TINY = 1e-12  # what keeps a divisor from 0
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")


@dataclass(frozen=True)
class Reference:
    """Origin of a number or a formula; `std` is one standard error, where it was fitted."""

    text: str
    std: float | None = None


@dataclass(frozen=True)
class Node:
    """A number in SI units, as `estimate` has it, and the formula over its children that gives the same.

    symbol: what the formula of its parent calls it; formula: "" for a number that is given (a datasheet, a config, a
    fit, a question) or counted by a routine that its source names.
    """

    symbol: str
    title: str
    value: float
    unit: str
    formula: str = ""
    children: tuple[Node, ...] = ()
    source: Reference | None = None

    def recomputed(self) -> float:
        """The formula on the children; a given number is itself."""
        values = {child.symbol: child.value for child in self.children}
        return evaluate(self.formula, values) if self.formula else self.value

    @property
    def gap(self) -> float:
        """Relative difference of the formula's result from the number; digits that a difference cancels are lost.

        >>> a, b = Node("a", "", 1.0 + 2e-16, ""), Node("b", "", 1.0, "")
        >>> Node("c", "", 0.0, "", "a - b", (a, b)).gap, Node("c", "", 1.1, "", "a*b", (a, b)).gap
        (0.0, 0.0909)
        """
        difference = abs(self.recomputed() - self.value)
        if not difference:
            return 0.0
        sizes = {child.symbol: abs(child.value) for child in self.children}
        added = abs(evaluate(self.formula.replace(" - ", " + "), sizes))  # the terms, before any cancels another
        return 0.0 if difference <= _LOST * added else difference / max(abs(self.value), _EQUAL)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it, parents first; what several formulas ask for comes once."""
        return (node for _, node, again in self.places() if not again)

    def places(self, path: str = "", met: set[int] | None = None) -> Iterator[tuple[str, Node, bool]]:
        """Every node with its path of symbols, and whether its formula stands at an earlier place too."""
        met = set() if met is None else met
        again = bool(self.formula) and id(self.children) in met
        met.add(id(self.children))
        path = f"{path}.{self.symbol}" if path else self.symbol
        yield path, self, again
        for child in () if again else self.children:
            yield from child.places(path, met)

    def to_dict(self, met: set[int] | None = None) -> dict[str, object]:
        """Plain values, ready for JSON: a page can draw the tree and evaluate the formulas; each stands there once."""
        met = set() if met is None else met
        again = bool(self.formula) and id(self.children) in met
        met.add(id(self.children))
        source = _ABOVE if again else self.source
        return {
            "symbol": self.symbol,
            "title": self.title,
            "value": self.value,
            "unit": self.unit,
            "formula": None if again else self.formula or None,
            "source": source and {"text": source.text, "std": source.std},
            "children": [] if again else [child.to_dict(met) for child in self.children],
        }


_CONSTANT = Reference("a constant here")
_ABOVE = Reference("its formula stands above")


def tree(output: Symbol) -> Node:
    """The explanation of a traced number, which has a name and, as all below it, a value.

    >>> from rooflinekit.model.graph.symbol import Pool, named
    >>> pool = Pool({"m": 32.0})
    >>> m, k = pool.variable("m", Quantity("m", "tokens")), pool.fact(4096.0, Quantity("k", "inputs"))
    >>> tree(named(2.0 * m * (k + 1.0), "F", "work", "FLOP")).formula
    '2*m*(k + 1)'
    """
    return _Lines().line(output)


class _Lines:
    """The lines of one explanation; what several formulas ask for is written once."""

    def __init__(self) -> None:
        self._known: dict[Symbol, Node] = {}

    def line(self, node: Symbol) -> Node:
        """A named node with all below it."""
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._written(node, _quantity(node))
        return found

    def _written(self, node: Symbol, quantity: Quantity) -> Node:
        value, given, text = float(node.value), _given(quantity), ""
        if node.op == "named" and isinstance(node.arguments[0], Symbol) and not _opaque(node.arguments[0]):
            formula = _Formula(self)
            text = formula.part(node.arguments[0]).text
            asked = set(_NAME.findall(text))  # what is multiplied by 0 is not
            children = tuple(child for child in formula.children.values() if child.symbol in asked)
            if len(children) == 1 and text == children[0].symbol:
                source = given if quantity.source else children[0].source
                same = replace(children[0], symbol=quantity.symbol, title=quantity.meaning, source=source)
                return replace(same, unit=quantity.unit or same.unit)
            if children and _CUT not in text and formula.operators - text.count(" + ") <= _LONGEST:
                source = given if quantity.source else None
                return Node(quantity.symbol, quantity.meaning, value, quantity.unit, text, children, source)
        if text and not _NAME.search(text):
            given = _CONSTANT
        return Node(quantity.symbol, quantity.meaning, value, quantity.unit, source=given)


def _given(quantity: Quantity) -> Reference:
    return Reference(quantity.source or _COUNTED, quantity.spread)


def _quantity(node: Symbol) -> Quantity:
    """Name of a line; a routine that has no name is called what it is."""
    if node.op in ("var", "fact", "named") and isinstance(node.arguments[1], Quantity):
        return node.arguments[1]
    if node.op == "var":
        return Quantity(str(node.arguments[0]), str(node.arguments[0]))
    return _TABLE


_TABLE = Quantity("table", "interpolated in a table")


def _named(node: object) -> bool:
    return isinstance(node, Symbol) and node.op in ("fact", "named")


def _taken(node: Term) -> Term:
    """The side of a branch that was taken."""
    while isinstance(node, Symbol) and node.op == "where":
        node = node.arguments[1 if node.arguments[0].value else 2]
    return node


def _opaque(node: Symbol) -> bool:
    """True if no formula gives it: a table."""
    return node.op == "lattice"


@dataclass(frozen=True)
class _FormulaPart:
    """A piece of a formula: its text and how tightly that binds; its number where it is one."""

    text: str
    binds: int = _ATOM
    number: float | None = None
    under: str = ""  #: of a reciprocal: what 1 is divided by

    def within(self, least: int) -> str:
        """The text as an operand of what binds so tightly."""
        return self.text if self.binds >= least else f"({self.text})"


class _Formula:
    """One formula: its text, and the lines that it asks for by their symbols."""

    def __init__(self, lines: _Lines) -> None:
        self.children: dict[Symbol, Node] = {}
        self.operators = 0
        self._lines = lines
        self._parts: dict[Symbol, tuple[_FormulaPart, int]] = {}

    def part(self, node: Term) -> _FormulaPart:
        """The text of a node, down to the next named ones; what stands in several places is worked out once."""
        if not isinstance(node, Symbol):
            return _constant(float(node))
        if node in self._parts:
            part, operators = self._parts[node]
            self.operators += operators
            return part
        before = self.operators
        part = self._new_part(node)
        if len(part.text) > _ENDLESS:
            part = _FormulaPart(_CUT)
        self._parts[node] = part, self.operators - before
        return part

    def _new_part(self, node: Symbol) -> _FormulaPart:
        if node.op in ("var", "fact", "named") or _opaque(node):
            line = self._lines.line(node)  # a 0 that nothing leads to says nothing
            return (
                _constant(0.0)
                if line.source is _CONSTANT and not line.value
                else _FormulaPart(self._child(node).symbol)
            )
        if node.op == "+":  # nor does a named number that adds nothing here
            added = [each for each in map(_taken, node.arguments) if not (_named(each) and each.value == 0.0)]
            if len(added) < 2:
                return self.part(added[0]) if added else _constant(0.0)
        if node.op == "where":
            return self.part(node.arguments[1 if node.arguments[0].value else 2])
        overlap = _overlap(node)
        if overlap:
            x, y = (self.part(each) for each in overlap[:2])
            return self._called("pn", [x, y, _constant(overlap[2])])
        if node.op == "sqrt" and _square(_root(node)) and _root(node).arguments[0].value >= 0.0:
            return self.part(_root(node).arguments[0])
        return self._operation(node.op, [self.part(argument) for argument in node.arguments], node)

    def _child(self, node: Symbol) -> Node:
        found = self.children.get(node)
        if found is None:
            line = self._lines.line(node)
            taken = {child.symbol for child in self.children.values()}
            symbol, number = line.symbol, 1
            while symbol in taken:
                number += 1
                symbol = f"{line.symbol}_{number}"
            found = self.children[node] = replace(line, symbol=symbol)
        return found

    def _operation(self, op: str, parts: list[_FormulaPart], node: Symbol) -> _FormulaPart:
        numbers = [part.number for part in parts]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            return _constant(float(OPERATORS[op](*known)))
        if len(parts) == 2:
            simple = _simplified(op, parts[0], parts[1], node)
            if simple is not None:
                return simple
        return self._infix(op, parts)

    def _infix(self, op: str, parts: list[_FormulaPart]) -> _FormulaPart:
        self.operators += 1
        first, last = parts[0], parts[-1]
        match op:
            case "+" if last.text.startswith("-"):
                return _FormulaPart(f"{first.text} - {last.text[1:]}", _SUM)
            case "+" if first.text.startswith("-"):
                return _FormulaPart(f"{last.text} - {first.text[1:]}", _SUM)
            case "+":
                return _FormulaPart(f"{first.text} + {last.text}", _SUM)
            case "-":
                return _FormulaPart(f"{first.text} - {last.within(_PRODUCT)}", _SUM)
            case "*" if first.under and not last.under:
                return _FormulaPart(f"{last.within(_PRODUCT)}/{first.under}", _PRODUCT)
            case "*" if last.under:
                return _FormulaPart(f"{first.within(_PRODUCT)}/{last.under}", _PRODUCT)
            case "*":
                return _FormulaPart(f"{first.within(_PRODUCT)}*{last.within(_PRODUCT)}", _PRODUCT)
            case "/":
                under = last.within(_ATOM) if first.number == 1.0 else ""
                return _FormulaPart(f"{first.within(_PRODUCT)}/{last.within(_ATOM)}", _PRODUCT, under=under)
            case "**":
                return _FormulaPart(f"{first.within(_ATOM)}**{last.within(_ATOM)}", _ATOM - 1)
            case "neg":
                return _FormulaPart(f"-{first.within(_PRODUCT)}", _SUM)
            case "//" if last.number == 1.0:
                return _FormulaPart(f"floor({first.text})")
            case "//":
                return _FormulaPart(f"floor({first.within(_PRODUCT)}/{last.within(_ATOM)})")
        return self._called(op, parts)

    def _called(self, name: str, parts: list[_FormulaPart]) -> _FormulaPart:
        self.operators += 1
        texts = [part.text for part in parts]
        if name in ("max", "min"):  # max(max(a, b), c) is max(a, b, c)
            texts = [_inside(text) if text.startswith(f"{name}(") and _whole(text) else text for text in texts]
            texts = list(dict.fromkeys(texts))
            if len(texts) == 1:
                return parts[0]
        return _FormulaPart(f"{name}({', '.join(texts)})")


def _simplified(op: str, first: _FormulaPart, last: _FormulaPart, node: Symbol) -> _FormulaPart | None:
    """Remainder of sums and products with 0 and 1, and of max(x, 0) of what is never less."""
    if op == "+" and 0.0 in (first.number, last.number):
        return last if first.number == 0.0 else first
    if op == "-" and last.number == 0.0:
        return first
    if op == "-" and first.number == 0.0:
        return _FormulaPart(f"-{last.within(_PRODUCT)}", _SUM)
    if (op == "*" and 0.0 in (first.number, last.number)) or (op == "/" and first.number == 0.0):
        return _constant(0.0)
    if op == "*" and 1.0 in (first.number, last.number):
        return last if first.number == 1.0 else first
    if op == "*" and -1.0 in (first.number, last.number):
        return _FormulaPart(f"-{(last if first.number == -1.0 else first).within(_PRODUCT)}", _SUM)
    if op in ("/", "**") and last.number == 1.0:
        return first
    if op == "min" and math.inf in (first.number, last.number):
        return last if first.number == math.inf else first
    if op == "max":
        for part, other, operand in ((first, last, node.arguments[1]), (last, first, node.arguments[0])):
            if part.number is not None and abs(part.number) <= _TINY and _never_negative(operand):
                return other
    return None


def _constant(number: float) -> _FormulaPart:
    text = f"{number:.0f}" if number.is_integer() and abs(number) < 1e15 else repr(number)
    return _FormulaPart(text, _SUM if number < 0.0 else _ATOM, number)


def _never_negative(node: Term) -> bool:
    """True if it is made of lines that are positive here, without a difference."""
    if not isinstance(node, Symbol):
        return float(node) >= 0.0
    if node.op in ("var", "fact", "named"):
        return bool(node.value >= 0.0)
    if node.op == "max":
        return any(map(_never_negative, node.arguments))
    return node.op in ("+", "*", "/", "ceil", "sqrt") and all(map(_never_negative, node.arguments))


def _root(node: Symbol) -> Term:
    """Below a square root, roots of squares taken."""
    inside = node.arguments[0]
    if isinstance(inside, Symbol) and inside.op == "sqrt" and _square(_root(inside)):
        return _root(inside).arguments[0]
    return inside


def _square(node: object) -> bool:
    return isinstance(node, Symbol) and node.op == "*" and node.arguments[0] is node.arguments[1]


def _overlap(node: Symbol) -> tuple[Term, Term, float] | None:
    """The x, y and p of (x^p + y^p)^(1/p), as `smooth_maximum` writes it with roots and squares."""
    if node.op != "sqrt":
        return None
    inside, power = _root(node), 2.0
    if isinstance(inside, Symbol) and inside.op == "sqrt":
        inside, power = inside.arguments[0], 4.0
    if not (isinstance(inside, Symbol) and inside.op == "+" and all(map(_square, inside.arguments))):
        return None
    x, y = (each.arguments[0] for each in inside.arguments)
    if power == 2.0:
        return x, y, power
    return (x.arguments[0], y.arguments[0], power) if _square(x) and _square(y) else None


def _inside(text: str) -> str:
    return text[text.index("(") + 1 : -1]


def _whole(text: str) -> bool:
    """True if the first bracket closes at the end."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter == ")":
            return place == len(text) - 1
    return False


# --- reading a formula back ------------------------------------------------------------------------------------------


FUNCTIONS: Mapping[str, Callable[..., float]] = {
    **{name: OPERATORS[name] for name in ("ceil", "floor", "sqrt", "log2", "log", "exp", "abs")},
    "max": max,
    "min": min,
    "pn": lambda x, y, p: float((x**p + y**p) ** (1.0 / p)),
}
"""Functions in formulas; pn(x, y, p) = (x^p + y^p)^(1/p): resources that overlap not at all (1) or nearly fully (4)."""

_compiled = cache(lambda formula: compile(formula, "<formula>", "eval"))


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula that stands in a tree; it is arithmetic that this module wrote.

    >>> evaluate("2*m*n*k", {"m": 32, "n": 6144, "k": 4096}), evaluate("pn(3, 4, 2)", {})
    (1610612736.0, 5.0)
    """
    return float(eval(_compiled(formula), {"__builtins__": {}, **FUNCTIONS}, dict(values)))

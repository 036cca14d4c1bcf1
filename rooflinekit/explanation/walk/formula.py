"""Formulas as text that can be evaluated, so that what is shown is what was computed."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache

__all__ = ["evaluate", "letters_of", "substitute", "tidy", "wrapped"]

_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"ceil": math.ceil, "min": min, "max": max}
_LETTERS = re.compile(r"[A-Za-z_]\w*")


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula; `·` is a product.

    >>> evaluate("2·N·D·(H+2·K)·d", {"N": 6, "D": 4096, "H": 32, "K": 8, "d": 128})
    301989888.0

    Raises KeyError for a letter without a value.
    """
    return float(_value(_parsed(formula), values))


@cache
def _parsed(formula: str) -> ast.expr:
    return ast.parse(formula.replace("·", "*"), mode="eval").body


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=sign, right=right):
            return _OPERATORS[type(sign)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_value(arg, values) for arg in args))
    raise ValueError(f"not a formula: {ast.unparse(node)}")


def letters_of(formula: str) -> list[str]:
    """The letters of a formula in order of appearance.

    >>> letters_of("2·N·D·ceil(V/tp)·D")
    ['N', 'D', 'V', 'tp']
    """
    return [name for name in dict.fromkeys(_LETTERS.findall(formula)) if name not in _FUNCTIONS]


def substitute(formula: str, values: Mapping[str, float]) -> str:
    """The formula with numbers for its letters.

    >>> substitute("4·H·d·pairs", {"H": 32, "d": 128, "pairs": 21.0})
    '4·32·128·21'

    Raises KeyError for a letter without a value.
    """
    return _LETTERS.sub(lambda hit: hit[0] if hit[0] in _FUNCTIONS else _number(values[hit[0]]), formula)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6g}"


def wrapped(formula: str) -> str:
    """In brackets if it is a sum, so that it can be a factor.

    >>> wrapped("H+2·K"), wrapped("2·(H+K)"), wrapped("(H+K)·d+n")
    ('(H+2·K)', '2·(H+K)', '((H+K)·d+n)')
    """
    depth = 0
    for letter in formula:
        depth += (letter == "(") - (letter == ")")
        if letter in "+-" and depth == 0:
            return f"({formula})"
    return formula


def tidy(formula: str) -> str:
    """The same with the numbers of each product multiplied and in front; terms stand apart by ` + `.

    >>> tidy("N·2·F·D·2 + D·1"), tidy("2·(tp-1)/tp·2·N")
    ('4·N·F·D + D', '4·(tp-1)/tp·N')
    """
    return " + ".join(_product(term) for term in formula.split(" + "))


def _product(term: str) -> str:
    factors = _factors(term)
    letters = [factor for factor in factors if not factor.isdigit()]
    number = math.prod(int(factor) for factor in factors if factor.isdigit())
    return "·".join([str(number), *letters] if number != 1 or not letters else letters)


def _factors(term: str) -> list[str]:
    """The factors of a product; a bracket is one."""
    factors, depth = [""], 0
    for letter in term:
        depth += (letter == "(") - (letter == ")")
        if letter == "·" and depth == 0:
            factors.append("")
        else:
            factors[-1] += letter
    return factors

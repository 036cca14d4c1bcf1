"""Formulas of a derivation: short arithmetic expressions over named numbers, evaluated without `eval`."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache

from rooflinekit.model.types.numeric import smooth_maximum

__all__ = ["evaluate", "substituted", "symbols"]


def _pn(first: float, second: float, sharpness: float) -> float:
    return float(smooth_maximum(first, second, int(sharpness)))


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "max": max,
    "min": min,
    "ceil": math.ceil,
    "floor": math.floor,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "pn": _pn,
}
"""pn(x, y, p) = (x^p + y^p)^(1/p): two resources that overlap not at all (1) or nearly fully (4)."""

_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: pow,
}
_NAME = re.compile(r"[^\W\d]\w*")


@cache
def _parsed(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


@cache
def symbols(formula: str) -> frozenset[str]:
    """The names that a formula asks for.

    >>> sorted(symbols("max(F/P, s/W)"))
    ['F', 'P', 'W', 's']
    """
    return frozenset(node.id for node in ast.walk(_parsed(formula)) if isinstance(node, ast.Name)) - set(_FUNCTIONS)


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula of + - * / ** and max, min, ceil, floor, log2, sqrt, pn.

    Raises KeyError for a symbol without a value, ValueError for anything but arithmetic.

    >>> evaluate("2*m*n*k", {"m": 32, "n": 6144, "k": 4096})
    1610612736.0
    >>> evaluate("pn(3, 4, 2)", {})
    5.0
    """
    return _value(_parsed(formula), values)


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return float(values[name])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return float(_OPERATORS[type(op)](_value(left, values), _value(right, values)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _FUNCTIONS:
            return float(_FUNCTIONS[name](*(_value(argument, values) for argument in arguments)))
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


def substituted(formula: str, texts: Mapping[str, str]) -> str:
    """The formula with every symbol replaced by the text of its value.

    >>> substituted("max(F/P, s/W)", {"F": "1 TFLOP", "P": "989 TFLOP/s", "s": "2 GB", "W": "3.35 TB/s"})
    'max(1 TFLOP/(989 TFLOP/s), 2 GB/(3.35 TB/s))'
    """

    def replaced(hit: re.Match[str]) -> str:
        name = hit[0]
        if name in _FUNCTIONS:
            return name
        text = texts[name]
        return f"({text})" if "/" in text else text

    return _NAME.sub(replaced, formula)

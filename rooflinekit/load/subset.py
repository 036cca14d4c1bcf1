"""The loop as a syntax tree, for those who print it in another language or give it to a compiler."""

from __future__ import annotations

import ast
import inspect
from functools import cache

from rooflinekit.load import arrays, loop

Number = int | float


@cache
def functions() -> dict[str, ast.FunctionDef]:
    """The functions of the loop by name, in the order of its file."""
    tree = ast.parse(inspect.getsource(loop))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


@cache
def constants() -> dict[str, Number]:
    """The numbers with names that the loop and its arrays have.

    >>> constants()["NOBODY"]
    -1
    """
    return {name: value for name, value in vars(loop).items() if name.isupper() and isinstance(value, (int, float))}


@cache
def records() -> dict[str, dict[str, str]]:
    """The named tuples that the loop reads and writes: the fields of each, with what they hold.

    >>> records()["State"]["growing"]
    'Parts[Counts]'
    """
    tree = ast.parse(inspect.getsource(arrays))
    return {
        node.name: {
            each.target.id: ast.unparse(each.annotation)
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "NamedTuple" for base in node.bases)
    }


def records_of(function: ast.FunctionDef) -> dict[str, str]:
    """The parameters of a function that are named tuples, and which each is.

    >>> records_of(functions()["start"])
    {'c': 'Clients', 'k': 'Rules', 's': 'State'}
    """
    kinds = {each.arg: ast.unparse(each.annotation) for each in function.args.args if each.annotation}
    return {name: kind for name, kind in kinds.items() if kind in records()}

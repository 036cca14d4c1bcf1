"""The loop that plays loads, printed for pages from its source, on step tables that are filled as they are read.

A whole table has a million numbers and a play reads a few thousand. So the fields of a table that hold times are
functions on a page: `t.decode[local][at]` is printed as `t.decode(local, at)`.
"""

from __future__ import annotations

import ast
import inspect
from copy import deepcopy
from functools import cache
from pathlib import Path

from rooflinekit.decision.sensitivity import ranking
from rooflinekit.load import loop, table
from rooflinekit.load.javascript import Printer, javascript, literal
from rooflinekit.load.subset import functions

PLACES = {
    **dict.fromkeys(("dense", "pooled_dense", "keyed_dense", "exchanged_dense", "sampled", "sequences"), 1),
    **dict.fromkeys(("encoded", "alone", "alone_floor", "saved_times", "drafting"), 1),
    "decode": 2,
    "prefill": 2,
}
"""Fields of a step table that pages work out as they are read, and how many places each is read at."""

_READING = ("step_time", "run_time", "besides")
"""Functions that give such a field a shorter name of their own."""
_OWN = ("tokens_time", "between")
"""Functions that are handed such a field, or `times` beyond it: `reading.js` has them."""
_GRIDS = ("_DENSE", "_EACH", "_TILE", "_RATIO", "_FINE", "_COARSE", "_CHUNKS", "_SHORT", "_SAME")


@cache
def loop_source() -> str:
    """The loop as one object of JavaScript, with the grids of step tables."""
    printed = javascript(leave_out=(*_OWN, *_READING), asked=tuple(PLACES))
    printer = Printer(inspect.getsourcefile(loop) or "loop.py", set(functions()), tuple(PLACES))
    reading = "".join(printer.function(unnamed(functions()[name])) for name in _READING)
    own = Path(__file__).with_name("reading.js").read_text(encoding="utf-8")
    grids = ", ".join(f"{name.strip('_').lower()}: {_literal(getattr(table, name))}" for name in _GRIDS)
    told = "start, play, new_state, run_time, step_time, saved_time, tokens_time, NOW, NUMBERS"
    return f"const LOOP = (() => {{\n{printed}{reading}{own}return {{ {told}, grids: {{ {grids} }} }};\n}})();\n"


@cache
def ranking_source() -> str:
    """The ranking of advice."""
    tree = ast.parse(inspect.getsource(ranking))
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    printer = Printer(inspect.getsourcefile(ranking) or "ranking.py", {node.name for node in made})
    return f"const rank = (() => {{\n{''.join(map(printer.function, made))}return rank;\n}})();\n"


def _literal(value: float | list[float]) -> str:
    return f"[{', '.join(map(literal, value))}]" if isinstance(value, list) else literal(value)


def unnamed(function: ast.FunctionDef) -> ast.FunctionDef:
    """Replace a name for a field by the field itself where it is read later, place by place.

    Raises ValueError where what the name is made of changes between.
    """
    made = deepcopy(function)
    given: dict[str, ast.expr] = {}
    for node in ast.walk(made):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _left(value) > 0:
                given[name] = value
    changes = [node for node in ast.walk(made) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for name, value in given.items():
        parts = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        if sum(node.id == name for node in changes) > 1 or any(
            node.id in parts and node.lineno > value.lineno for node in changes
        ):
            raise ValueError(f"{function.name} of the loop changes what {name} stands for")

    class Unnaming(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return deepcopy(given[node.id]) if isinstance(node.ctx, ast.Load) and node.id in given else node

        def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
            match node.targets:
                case [ast.Name(id=name)] if name in given:
                    return None
            self.generic_visit(node)
            return node

    changed = Unnaming().visit(made)
    assert isinstance(changed, ast.FunctionDef)
    return ast.fix_missing_locations(changed)


def _left(value: ast.expr) -> int:
    """At how many places more a field of a table has to be read; 0 for anything else."""
    places = 0
    while isinstance(value, ast.Subscript):
        value, places = value.value, places + 1
    field = value.attr if isinstance(value, ast.Attribute) else ""
    return PLACES.get(field, 0) - places if field in PLACES else 0

"""Prints the loop as JavaScript, from the same source, for pages that play a load in the browser.

The subset: whole and floating numbers, arrays and named tuples; assignments, `if`, `while`, `for` over `range`; calls
of functions of the same file and of `len`, `int`, `min`, `max` and `abs`; tuples as results. Whatever is not in it is
refused with its file and line. A named tuple is an object, an array a typed array of doubles.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterable
from pathlib import Path

from rooflinekit.load import loop as the_loop
from rooflinekit.load import state
from rooflinekit.load.subset import constants, functions, records, records_of

RESERVED = frozenset({
    "arguments", "await", "case", "catch", "class", "const", "debugger", "default", "delete", "do", "enum", "eval",
    "export", "extends", "function", "implements", "instanceof", "interface", "let", "mod", "new", "null", "package",
    "private", "protected", "public", "static", "super", "switch", "this", "throw", "try", "typeof", "var", "void",
    "with", "yield",
})  # fmt: skip
"""Words of JavaScript that are names in Python."""

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.LShift: "<<", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">",
    ast.GtE: ">=", ast.Eq: "===", ast.NotEq: "!==", ast.And: "&&", ast.Or: "||", ast.Not: "!", ast.USub: "-",
}  # fmt: skip
_BUILT_IN = {"min": "Math.min", "max": "Math.max", "abs": "Math.abs", "int": "Math.trunc"}
_LARGEST = 1 << 53

_PRELUDE = """\
const mod = (a, b) => { const rest = a % b; return rest !== 0 && (rest < 0) !== (b < 0) ? rest + b : rest + 0; };
const NUMBERS = {
  numbers: (n, value) => new Float64Array(n).fill(value),
  counts: (n, value) => new Float64Array(n).fill(value),
  flags: (n) => new Uint8Array(n),
  rows: (n, length) => Array.from({ length: n }, () => new Float64Array(length)),
  number_rows: (n, length) => Array.from({ length: n }, () => new Float64Array(length)),
  draws: (seed, n) => Float64Array.from({ length: n }, (_, j) => first_draw(seed, j + 1)),
};
"""


class SubsetError(ValueError):
    """A construct that cannot be printed; the message names file, line and construct."""


def javascript(leave_out: Collection[str] = (), asked: Collection[str] = ()) -> str:
    """The loop as declarations of JavaScript: `start`, `play`, `new_state` and what they need.

    Args:
        leave_out: functions that are not printed, because the page has its own, such as `step_time` and `run_time`.
        asked: fields that are functions of the page: `t.prefill[new][past]` becomes `t.prefill(new, past)`.

    Raises:
        SubsetError: for a construct outside the subset.
        ValueError: for a name to leave out, or a field, that is not there.

    >>> "function play(c, k, t, h, s)" in javascript(leave_out=("step_time",))
    True
    """
    known = {*functions(), "new_state"}
    every = {name for fields in records().values() for name in fields}
    for name in (*(set(leave_out) - known), *(set(asked) - every)):
        raise ValueError(f"the loop has no {name}")
    here = Printer(inspect.getsourcefile(the_loop) or "loop.py", known, asked)
    there = Printer(inspect.getsourcefile(state) or "state.py", known, asked)
    new_state = ast.parse(inspect.getsource(state.new_state)).body[0]
    assert isinstance(new_state, ast.FunctionDef)
    parts = [
        _PRELUDE,
        *(f"const {name} = {literal(value)};\n" for name, value in constants().items()),
        *(here.function(node) for name, node in functions().items() if name not in leave_out),
        *([] if "new_state" in leave_out else [there.function(new_state)]),
    ]
    return "".join(parts)


def literal(value: float) -> str:
    """A number as JavaScript has it.

    >>> literal(float("inf")), literal(1e-9), literal(True)
    ('Infinity', '1e-09', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("inf", "Infinity")


class Printer:
    """Prints functions of one file."""

    def __init__(self, path: str | Path, known: Collection[str], asked: Collection[str] = ()) -> None:
        self.path, self.known, self.asked = path, known, asked
        self.records: dict[str, str] = {}

    def refusal(self, node: ast.AST, why: str = "") -> SubsetError:
        """Error for a construct that cannot be printed, and its place."""
        what = why or f"{type(node).__name__} `{ast.unparse(node).splitlines()[0]}` is outside the subset"
        return SubsetError(f"{self.path}:{getattr(node, 'lineno', 0)}: {what}")

    def function(self, node: ast.FunctionDef) -> str:
        """A function with the declarations of its variables."""
        arguments = node.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs or node.decorator_list:
            raise self.refusal(node, f"the arguments of {node.name} are outside the subset")
        self.records = records_of(node)
        names = [self.name(each.arg) for each in arguments.args]
        for place, default in enumerate(reversed(arguments.defaults), 1):
            names[-place] += f" = {self.default(default)}"
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        own = {each.arg for each in arguments.args}
        assigned = dict.fromkeys(self.assigned(body))
        self.check_loops(node)
        lets = [self.name(name) for name in assigned if name not in own]
        declared = f"let {', '.join(lets)};\n" if lets else ""
        return f"function {node.name}({', '.join(names)}) {{\n{declared}{self.block(body)}}}\n"

    def default(self, node: ast.expr) -> str:
        """Default of an argument; for lists typed arrays."""
        return "NUMBERS" if isinstance(node, ast.Name) and node.id == "LISTS" else self.value(node)

    def name(self, name: str) -> str:
        """A name, with an underscore where JavaScript keeps the word for itself."""
        return f"{name}_" if name in RESERVED else name

    def assigned(self, body: Iterable[ast.stmt]) -> Iterable[str]:
        """Names that get a value in some other way than as the variable of a loop."""
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.For):
                    continue
                targets = node.targets if isinstance(node, ast.Assign) else []
                if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
                    targets = [node.target]
                for target in targets:
                    for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                        if isinstance(each, ast.Name):
                            yield each.id

    def check_loops(self, function: ast.FunctionDef) -> None:
        """The variable of a loop is known in the loop alone, and only the loop changes it."""
        others = set(self.assigned(function.body)) | {each.arg for each in function.args.args}
        inside: set[ast.AST] = set()
        variables = set()
        for loop in (node for node in ast.walk(function) if isinstance(node, ast.For)):
            if not isinstance(loop.target, ast.Name):
                raise self.refusal(loop.target)
            variables.add(loop.target.id)
            if loop.target.id in self.assigned(loop.body):
                raise self.refusal(loop, f"the loop over {loop.target.id} changes it")
            inside.update(node for each in loop.body for node in ast.walk(each))
        for node in ast.walk(function):
            reads = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in variables - others
            if reads and node not in inside:
                raise self.refusal(node, f"`{ast.unparse(node)}` is read outside its loop")

    # --- statements ---

    def block(self, body: Iterable[ast.stmt]) -> str:
        """Statements, one a line."""
        return "".join(f"{self.statement(each)}\n" for each in body)

    def statement(self, node: ast.stmt) -> str:  # noqa: PLR0912 - one case a construct
        """A statement."""
        match node:
            case ast.Return(value=None):
                return "return;"
            case ast.Return(value=ast.Tuple(elts=parts)):
                return f"return [{self.values(parts)}];"
            case ast.Return(value=value) if value is not None:
                return f"return {self.value(value)};"
            case ast.Break():
                return "break;"
            case ast.Continue():
                return "continue;"
            case ast.Pass():
                return ""
            case ast.Expr(value=ast.Call() as call):
                return f"{self.value(call)};"
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=parts)):
                return self.together(node, targets, parts)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Call() as call):
                return f"[{self.values(targets)}] = {self.value(call)};"
            case ast.Assign(targets=[target], value=value):
                return f"{self.target(target)} = {self.value(value)};"
            case ast.AnnAssign(target=target, value=value) if value is not None:
                return f"{self.target(target)} = {self.value(value)};"
            case ast.AugAssign(target=target, op=ast.Add() | ast.Sub() | ast.Mult() as operator, value=value):
                return f"{self.target(target)} {_OPERATORS[type(operator)]}= {self.value(value)};"
            case ast.If(test=test, body=body, orelse=others):
                rest = f" else {{\n{self.block(others)}}}" if others else ""
                return f"if ({self.test(test)}) {{\n{self.block(body)}}}{rest}"
            case ast.While(test=test, body=body, orelse=[]):
                return f"while ({self.test(test)}) {{\n{self.block(body)}}}"
            case ast.For(orelse=[]):
                return self.loop(node)
        raise self.refusal(node)

    def together(self, node: ast.Assign, targets: list[ast.expr], parts: list[ast.expr]) -> str:
        """Several names get several values, none of which reads one of the names."""
        names = {ast.unparse(target) for target in targets}
        read = {ast.unparse(each) for part in parts for each in ast.walk(part) if isinstance(each, ast.expr)}
        if len(targets) != len(parts) or names & read:
            raise self.refusal(node)
        pairs = zip(targets, parts, strict=True)
        return " ".join(f"{self.target(target)} = {self.value(part)};" for target, part in pairs)

    def loop(self, node: ast.For) -> str:
        """A loop over a range, whose end is worked out once, or over a few values."""
        assert isinstance(node.target, ast.Name)
        name, body = self.name(node.target.id), f"{{\n{self.block(node.body)}}}"
        match node.iter:
            case ast.Tuple(elts=parts):
                return f"for (const {name} of [{self.values(parts)}]) {body}"
            case ast.Call(func=ast.Name(id="range"), args=[*starts, end], keywords=[]) if len(starts) < 2:
                start = self.value(starts[0]) if starts else "0"
                head = f"let {name} = {start}, stop_{name} = {self.value(end)}; {name} < stop_{name}; {name}++"
                return f"for ({head}) {body}"
        raise self.refusal(node.iter)

    def target(self, node: ast.expr) -> str:
        """Target of an assignment."""
        if not isinstance(node, (ast.Name, ast.Subscript)):
            raise self.refusal(node)
        return self.value(node)

    # --- expressions ---

    def values(self, nodes: Iterable[ast.expr]) -> str:
        """Values with commas between them."""
        return ", ".join(self.value(node) for node in nodes)

    def test(self, node: ast.expr) -> str:
        """A condition; an array is none, since an empty one is true in JavaScript."""
        if isinstance(node, ast.Attribute) and self.kind(node) not in {"int", "float", "bool", ""}:
            raise self.refusal(node, f"`{ast.unparse(node)}` is an array, and no condition")
        text = self.value(node)
        return text[1:-1] if isinstance(node, (ast.BoolOp, ast.Compare)) else text

    def kind(self, node: ast.Attribute) -> str:
        """Type of a field of a named tuple."""
        record = self.records.get(node.value.id, "") if isinstance(node.value, ast.Name) else ""
        return records().get(record, {}).get(node.attr, "")

    def value(self, node: ast.expr) -> str:  # noqa: PLR0912 - one case a construct
        """An expression; one of several parts has brackets."""
        match node:
            case ast.Constant(value=bool() | int() | float() as value) if abs(value) <= _LARGEST or value == value * 2:
                return literal(value)
            case ast.Name(id=name):
                return self.name(name)
            case ast.Attribute(value=ast.Name(id="math"), attr="inf"):
                return "Infinity"
            case ast.Attribute(value=ast.Name(id=name), attr=field):
                return f"{self.name(name)}.{field}"
            case ast.Subscript():
                return self.element(node)
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                return f"Math.floor({self.value(left)} / {self.value(right)})"
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                return f"mod({self.value(left)}, {self.value(right)})"
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                return f"({self.value(left)} {_OPERATORS[type(operator)]} {self.value(right)})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"!{self.condition(operand)}"
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"(-{self.value(operand)})"
            case ast.BoolOp(op=operator, values=parts):
                return f"({f' {_OPERATORS[type(operator)]} '.join(self.condition(part) for part in parts)})"
            case ast.Compare():
                return self.compare(node)
            case ast.IfExp(test=test, body=body, orelse=other):
                return f"({self.condition(test)} ? {self.value(body)} : {self.value(other)})"
            case ast.Call():
                return self.call(node)
        raise self.refusal(node)

    def condition(self, node: ast.expr) -> str:
        """A condition within an expression, with its brackets."""
        self.test(node)
        return self.value(node)

    def element(self, node: ast.Subscript) -> str:
        """An element of an array, or what the page's own function gives for it."""
        places: list[ast.expr] = []
        whole: ast.expr = node
        while isinstance(whole, ast.Subscript):
            places.insert(0, whole.slice)
            whole = whole.value
        for place in places:
            negative = isinstance(place, ast.UnaryOp) and isinstance(place.operand, ast.Constant)
            if isinstance(place, (ast.Slice, ast.Tuple)) or negative:
                raise self.refusal(node)
        if isinstance(whole, ast.Attribute) and whole.attr in self.asked:
            if not isinstance(node.ctx, ast.Load):
                raise self.refusal(node)
            return f"{self.value(whole)}({self.values(places)})"
        called = isinstance(whole, ast.Call) and len(places) == 1  # one of the results of a function
        if not isinstance(whole, (ast.Name, ast.Attribute)) and not called:
            raise self.refusal(node)
        return self.value(whole) + "".join(f"[{self.bare(place)}]" for place in places)

    def bare(self, node: ast.expr) -> str:
        """A value without its outer brackets."""
        text = self.value(node)
        return text[1:-1] if isinstance(node, ast.BinOp) and text.startswith("(") else text

    def compare(self, node: ast.Compare) -> str:
        """A comparison; what stands in the middle of a chain is read twice, and so must be a name or a number."""
        terms = [node.left, *node.comparators]
        if not all(isinstance(each, (ast.Name, ast.Constant)) for each in terms[1:-1]):
            raise self.refusal(node)
        if not all(type(each) in _OPERATORS for each in node.ops):
            raise self.refusal(node)
        pairs = zip(terms, node.ops, terms[1:], strict=False)
        parts = [f"{self.value(a)} {_OPERATORS[type(operator)]} {self.value(b)}" for a, operator, b in pairs]
        return f"({' && '.join(parts)})"

    def call(self, node: ast.Call) -> str:
        """A call: of a function of the loop, of a few of Python's, or of a named tuple, which is an object."""
        match node:
            case ast.Call(func=ast.Name(id="len"), args=[array], keywords=[]):
                return f"{self.value(array)}.length"
            case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in _BUILT_IN:
                return f"{_BUILT_IN[name]}({self.values(parts)})"
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords) if name in records():
                return f"{{ {', '.join(f'{each.arg}: {self.value(each.value)}' for each in keywords)} }}"
            case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in {*self.known, *_MAKERS}:
                return f"{name}({self.values(parts)})"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="make"), attr=name), args=parts, keywords=[]):
                return f"make.{name}({self.values(parts)})"
        raise self.refusal(node)


_MAKERS = ("numbers", "counts", "flags", "rows", "number_rows")
"""Names that `new_state` gives its makers of arrays."""

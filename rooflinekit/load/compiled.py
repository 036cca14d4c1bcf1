"""Plays a load with the loop compiled by numba (extra `fast`): the same source, the same bits, thirty times as fast.

The loop of `rooflinekit.load.loop` is copied to the cache folder with one change: an attribute of a named tuple is read
from its words (`rooflinekit.load.pointers`). numba keeps the machine code beside the copy, whose name holds a hash of
all sources, so that the first play of the second process starts at once. Without a folder to write to, each process
compiles for itself.
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache, partial
from hashlib import sha256
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import repeat
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from rooflinekit.load.arrays import Clients, Rules, State, Table
from rooflinekit.load.subset import constants, functions, records, records_of
from rooflinekit.load.table import Rows
from rooflinekit.model.types.errors import needing
from rooflinekit.model.types.late import np

Record = TypeVar("Record", Clients, Rules, Table, State)

ENTRIES = ("start", "play")
"""Functions that are called from outside."""

_READERS = {
    "float": "number",
    "int": "count",
    "bool": "flag",
    "Numbers": "numbers",
    "Counts": "counts",
    "Flags": "flags",
    "Parts[Counts]": "rows",
    "Parts[Numbers]": "number_rows",
    "Parts[Parts[Numbers]]": "planes",
}
"""Readers of a field, by its type; functions of `rooflinekit.load.pointers`."""
_DIMENSIONS = {"number": 0, "count": 0, "flag": 0, "numbers": 1, "counts": 1, "flags": 1, "rows": 2, "number_rows": 2,
               "planes": 3}  # fmt: skip
_WHOLE = ("count", "counts", "rows")


_INNER = "no_cpython_wrapper=True, no_cfunc_wrapper=True"
"""Options of functions that compiled code alone calls: what would call them from outside takes as long to compile."""

AGAIN, LOADED, KEPT, ANEW = 100, 2_000, 40_000, 1_200_000
"""Requests from which compiled code is sooner done: when this process has it with the step table, when it has it, when
the cache has it, and when not.

CPython takes 18 µs a request, compiled code 0.5; the arrays of a step table cost 30 ms, numba with machine code from
the cache 0.6 s, compiling 20 s (one core, numba 0.68).
"""


def available() -> bool:
    """True if numba is installed."""
    return find_spec("numba") is not None


def worth_it(requests: int, again: bool = False) -> bool:
    """True if compiled code is sooner done with so many requests; again: it has played with this step table before."""
    if requests < AGAIN or not available():
        return False
    if _functions.cache_info().currsize:
        return requests >= (AGAIN if again else LOADED)
    kept = requests >= KEPT and any((cache_folder() / "__pycache__").glob(f"{_name()}.play-*.nbi"))
    return requests >= (KEPT if kept else ANEW)


SHARED = 100_000
"""Requests of one question of many plays from which the loop is compiled, since later processes read it again."""


def prepare(requests: int, compiling: Callable[[], None] = lambda: None) -> None:
    """Have compiled code ready for a question that plays so many requests in all, where that is sooner done.

    compiling: called before the loop is compiled anew, which takes some 20 s, once.
    """
    if requests < KEPT or not available() or _functions.cache_info().currsize:
        return
    kept = any((cache_folder() / "__pycache__").glob(f"{_name()}.play-*.nbi"))
    if not kept and requests < SHARED:
        return
    if not kept:
        compiling()
    _functions()


# --- words of named tuples --------------------------------------------------------------------------------------------


@cache
def _places(record: str) -> dict[str, tuple[int, str]]:
    """The first word of each field, and what reads it."""
    places, at = {}, 0
    for name, kind in records()[record].items():
        reader = _READERS[kind]
        places[name] = at, reader
        at += 1 + _DIMENSIONS[reader]
    return places


def as_arrays(record: Record, known: tuple[Record, Record] | None = None) -> Record:
    """Replace lists by NumPy arrays; rows of a table that are not yet known are worked out.

    known: another record and its arrays, which are taken where both have the same list.
    """
    made: list[Any] = []
    values: Iterable[Any] = record
    pairs: Iterable[tuple[Any, Any]] = zip(*known, strict=True) if known else repeat((None, None), len(record))
    readers = _places(type(record).__name__).values()
    for value, (before, array), (_, reader) in zip(values, pairs, readers, strict=True):
        if value is before or not _DIMENSIONS[reader]:
            made.append(array if _DIMENSIONS[reader] else value)
            continue
        kind = np.bool_ if reader == "flags" else np.int64 if reader in _WHOLE else np.float64
        new = np.ascontiguousarray(value.array if isinstance(value, Rows) else value, kind)
        made.append(new if new.size else np.zeros((0,) * _DIMENSIONS[reader], kind))
    return type(record)(*made)


def _words(record: Clients | Rules | Table | State) -> Any:
    """Named tuple as words for compiled code; it must live as long as that runs."""
    places = _places(type(record).__name__)
    words: list[int] = []
    numbers: list[tuple[int, float]] = []
    values: Iterable[Any] = record
    for name, value in zip(record._fields, values, strict=True):
        at, reader = places[name]
        if _DIMENSIONS[reader] == 0:
            words.append(0 if reader == "number" else int(value))
            if reader == "number":
                numbers.append((at, value))
            continue
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{type(record).__name__}.{name} is no NumPy array; as_arrays makes one")
        layout = value.__array_interface__
        kind = "|b1" if reader == "flags" else "<i8" if reader in _WHOLE else "<f8"
        if layout["typestr"] != kind or layout["strides"] or value.ndim != _DIMENSIONS[reader]:
            shape = f"{_DIMENSIONS[reader]}-dimensional {kind} in C order"
            raise TypeError(f"{type(record).__name__}.{name} is not {shape}")
        words += layout["data"][0], *value.shape
    made = np.array(words, np.int64)
    for at, value in numbers:
        made.view(np.float64)[at] = value
    return made


def _table_words(table: Table) -> Any:
    """Words of a table; kept for the next play on it."""
    known, words = _latest.pop(id(table), (None, None))
    _latest[id(table)] = table, _words(table) if known is None else words
    if len(_latest) > _KEPT:
        del _latest[next(iter(_latest))]
    return _latest[id(table)][1]


_latest: dict[int, tuple[Table, Any]] = {}
_KEPT = 8  # tables

# --- the copy of the loop that numba compiles -------------------------------------------------------------------------


class _Words(ast.NodeTransformer):
    """Has a function read each field of its named tuples from their words; once, if the name stays with its tuple."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.records, self.fields = records_of(function), dict[str, str]()
        names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
        self.moving = {name.id for name in names if isinstance(name.ctx, ast.Store)}

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """A field becomes a variable, or the call of what reads it."""
        assert isinstance(node.value, ast.Name)
        record = node.value.id
        at, reader = _places(self.records[record])[node.attr]
        read, variable = f"_{reader}({record}, {at})", f"{record}_{node.attr}"
        if record in self.moving:
            return ast.parse(read, mode="eval").body
        self.fields[variable] = f"{variable} = {read}"
        return ast.copy_location(ast.Name(variable, node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Types are those of the values."""
        return ast.arg(node.arg)


def source(cached: bool) -> str:
    """The text that numba compiles."""
    lines = [
        '"""Written by rooflinekit.load.compiled from rooflinekit.load.loop; do not edit."""',
        "from math import inf",
        "from numba import njit",
        f"from rooflinekit.load.pointers import {', '.join(f'{name} as _{name}' for name in _DIMENSIONS)}",
        *(f"{name} = {value!r}" for name, value in constants().items()),
    ]
    for name, function in functions().items():
        words = _Words(function)
        made = words.visit(ast.parse(ast.unparse(function)).body[0])
        made.returns = None
        body = made.body[1:] if ast.get_docstring(made) else made.body
        made.body = [*ast.parse("\n".join(words.fields.values())).body, *body]
        called = ("cache=True" if cached else "") if name in ENTRIES else _INNER
        lines += f"@njit({called})", ast.unparse(ast.fix_missing_locations(made))
    return "\n".join(lines) + "\n"


def cache_folder() -> Path:
    """Folder of compiled code; ROOFLINEKIT_CACHE names another folder."""
    if own := os.environ.get("ROOFLINEKIT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rooflinekit"


@cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Functions that are called from outside, ready to be compiled or to be read from the cache.

    Raises MissingExtraError.
    """
    with needing("playing loads with compiled code", "fast"):
        import numba  # noqa: F401, PLC0415 - optional, and it takes half a second

    module = _kept() or _unkept()
    return {name: getattr(module, name) for name in ENTRIES}


def _name() -> str:
    """The name of the copy, which is another one when a source is."""
    sources = (Path(__file__).with_name(f"{each}.py") for each in ("arrays", "compiled", "loop", "pointers", "subset"))
    return f"loop_{sha256(b''.join(each.read_bytes() for each in sources)).hexdigest()[:16]}"


def _kept() -> ModuleType | None:
    """The copy in the cache folder; None where that cannot be written."""
    name = _name()
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.py"
        if not path.exists():
            with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".py", encoding="utf-8", delete=False) as file:
                file.write(source(cached=True))
            Path(file.name).replace(path)
        spec = spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[name] = module  # the cached code refers to it by name
        spec.loader.exec_module(module)
    except (OSError, RuntimeError):  # the latter is numba's, where it finds no folder for its own files
        return None
    return module


def _unkept() -> ModuleType:
    module = ModuleType("rooflinekit_loop")
    exec(compile(source(cached=False), "<the loop of rooflinekit.load>", "exec"), vars(module))
    return module


# --- what others call -------------------------------------------------------------------------------------------------


def begun(c: Clients, k: Rules, t: Table, h: Table, s: State) -> Callable[[], bool]:
    """Do what `loop.start` does; the function that comes back does what `loop.play` does. All arrays are NumPy's.

    Raises MissingExtraError without numba.
    """
    records = c, k, t, h, s
    words = [_words(c), _words(k), *map(_table_words, (t, h)), _words(s)]
    _functions()["start"](*(words[place].ctypes.data for place in (0, 1, 4)))
    return partial(_played_on, words, records)


def _played_on(words: list[Any], records: tuple[Clients, Rules, Table, Table, State]) -> bool:
    """Play on; the arrays of the records, whose addresses the words have, live as long."""
    return bool(_functions()["play"](*(each.ctypes.data for each in words)))

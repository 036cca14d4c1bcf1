"""Break the code one line at a time and see whether the tests of its area notice.

    python benchmarks/mutants.py --seed 1 --count 200 [--only 3,17] [--budget 20] [--out mutants.csv]

A mutant changes one number, comparison, operator, bound or condition of `model`, `load` or `decision`. The files to
change are drawn in proportion to their sites. All that are drawn are compiled in at once, each behind a switch, without
a change to the files on disk. Each test file runs once without a mutant, which shows what tests come by which mutants;
then each mutant alone is switched on in a process of its own, forked after the tests were read, and its tests run, the
quickest first, until one fails. What takes effect when a module is read (defaults, tables) is switched on before that,
in a process that reads all anew. So 200 mutants take minutes and not hours.

The loop of loads is read as text too, by numba and JavaScript; the tests that compare with those do not count for it.
Survivors are printed with the line as it was and as it became. Those that no input tells apart are named, with the
reason, in mutants_equivalent.csv beside this file. One process, so that it runs beside other work.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import csv
import json
import os
import random
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import hypothesis  # noqa: F401 - what is imported here, no mutant has to import
import numpy as np  # noqa: F401
import pandas as pd  # noqa: F401
import pydantic  # noqa: F401
import pytest
import yaml  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
AREAS = {
    "rooflinekit/model/graph": "test_graph.py test_identities.py",
    "rooflinekit/model/serving": (
        "test_worked_rows.py load test_energy.py test_images.py test_groups.py test_traffic.py"
    ),
    "rooflinekit/model": (
        "test_worked_rows.py test_predictions.py test_identities.py test_roofline.py test_timing.py test_memory.py"
        " specs/test_published.py"
        " test_dtype_units.py test_batch.py test_parallel.py test_routing.py test_kv_policy.py test_energy.py"
        " test_power.py test_lora.py test_images.py test_groups.py test_speculation.py test_execution.py"
        " test_engines.py test_estimate.py test_invariants.py walk"
    ),
    "rooflinekit/load": (
        "test_worked_rows.py load/test_seconds.py load/test_loop.py load serving test_traffic.py test_load_intervals.py"
        " test_request.py"
    ),
    "rooflinekit/decision": "test_fits.py",
    "rooflinekit/decision/economics": "economics planning/test_confidence.py serving/test_traces.py",
    "rooflinekit/decision/launching": "launching",
    "rooflinekit/decision/planning": "test_worked_rows.py planning economics",
    "rooflinekit/decision/sensitivity": "sensitivity",
    "rooflinekit/decision/sweeping": "sweeping",
}
"""Test files of each folder, by the longest match; those that do not exist are left out."""
COMPARED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
            ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}  # fmt: skip
COMPUTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*"}
CALLED = {"maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max", "any": "all", "all": "any"}
READ_AS_TEXT = ("load/loop.py", "load/arrays.py", "load/state.py")
BY_TEXT = ("tests/load/test_compiled.py", "tests/load/test_javascript.py")
"""Files that are also translated from their text, in which there is no mutant, and the tests of the translations."""
LIMIT_S = 400
"""Seconds of CPU after which a mutant that does not end is noticed."""
OPTIONS = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "-m", "not slow and not long",
           "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """Text of one file between two places, and what stands there instead."""

    path: str
    line: int
    start: int
    end: int
    new: str

    def applied(self, text: bytes) -> bytes:
        return text[: self.start] + self.new.encode() + text[self.end :]

    def switched(self, text: bytes, number: int) -> bytes:
        """Text with both, of which the switch of that number chooses."""
        both = f"({self.new} if __mutant__({number}) else (".encode(), text[self.start : self.end], b"))"
        return text[: self.start] + b"".join(both) + text[self.end :]

    def shown(self, text: bytes) -> tuple[str, str]:
        """The line as it is, and as it becomes."""
        lines = (text.splitlines()[self.line - 1], self.applied(text).splitlines()[self.line - 1])
        return lines[0].decode().strip(), lines[1].decode().strip()


def mutants(path: Path) -> Iterator[Mutant]:  # noqa: PLR0912 - a branch for each kind of change
    """All mutants of one file, from its syntax tree; annotations, words and metadata stay."""
    text = path.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    name = str(path.relative_to(ROOT))

    def place(node: ast.expr) -> tuple[int, int]:
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return starts[node.lineno - 1] + node.col_offset, end

    def at(node: ast.expr, new: str) -> Mutant:
        return Mutant(name, node.lineno, *place(node), new)

    def source(node: ast.expr) -> str:
        return text[slice(*place(node))].decode()

    for node in _computed(ast.parse(text)):
        match node:
            case ast.Constant(value=bool() as value):
                yield at(node, str(not value))
            case ast.Constant(value=int() | float() as value) if value != float("inf"):
                yield at(node, repr(value + 1 if value in (0, 1) else value * 2))
            case ast.Compare(ops=[op], comparators=[right]) if type(op) in COMPARED:
                yield at(node, f"({source(node.left)}) {COMPARED[type(op)]} ({source(right)})")
            case ast.BinOp(op=op) if type(op) in COMPUTED and not isinstance(node.left, (ast.JoinedStr, ast.List)):
                yield at(node, f"({source(node.left)}) {COMPUTED[type(op)]} ({source(node.right)})")
            case ast.BoolOp(op=op, values=[left, right]):
                yield at(node, f"({source(left)}) {'or' if isinstance(op, ast.And) else 'and'} ({source(right)})")
            case ast.UnaryOp(op=ast.Not()):
                yield at(node, f"({source(node.operand)})")
            case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
                yield at(node, f"({source(node.operand)})")
            case ast.IfExp() if not any(isinstance(each, ast.JoinedStr) or isinstance(getattr(each, "value", 0), str)
                                        for each in (node.body, node.orelse)):  # fmt: skip
                yield at(node, f"({source(node.body)})")
                yield at(node, f"({source(node.orelse)})")
            case ast.Call(func=ast.Name(id=function)) if function in CALLED and len(node.args) > 1:
                if function == "ceil_div":
                    yield at(node, f"(({source(node.args[0])}) / ({source(node.args[1])}))")
                else:
                    yield at(node.func, CALLED[function])


def _computed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of expressions that compute: no annotations, decorators, metadata of fields, types or messages."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, (ast.Raise, ast.JoinedStr)):
                continue
            named = isinstance(node, ast.Call) and getattr(node.func, "id", "")
            if named in ("field", "about", "quantity", "fact", "named", "TypeVar", "Literal", "NewType"):
                continue
            yield node
            yield from _computed(node)


def area_of(path: str) -> list[str]:
    """Quick test files of a file's area."""
    folder = max((each for each in AREAS if path.startswith(each)), key=len)
    named = [ROOT / "tests" / name for name in AREAS[folder].split()]
    found = [file for each in named for file in (sorted(each.glob("test_*.py")) if each.is_dir() else [each])]
    return list(dict.fromkeys(str(file.relative_to(ROOT)) for file in found if file.exists()))


class Switches(MetaPathFinder):
    """Imports the files of mutants with each behind a switch; `on` is the one that is switched on."""

    def __init__(self, drawn: Mapping[int, Mutant]) -> None:
        self.on, self.met, self.apart = -1, set[int](), set[int]()
        self._drawn: defaultdict[str, dict[int, Mutant]] = defaultdict(dict)
        for number, mutant in drawn.items():
            self._drawn[str(ROOT / mutant.path)][number] = mutant
        vars(builtins)["__mutant__"] = self._is_on

    def _is_on(self, number: int) -> bool:
        self.met.add(number)
        return number == self.on

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name.startswith("rooflinekit.") else None
        if spec is None or spec.origin not in self._drawn:
            return None
        spec.loader = _Loader(name, spec.origin, self)
        return spec

    def compiled(self, text: bytes, path: str) -> CodeType:
        """The code with its switches. `apart` are mutants inside others or in patterns, which are put in alone."""
        mutants = self._drawn[path]
        if self.on in self.apart and self.on in mutants:
            return compile(mutants[self.on].applied(text), path, "exec", dont_inherit=True)
        for number, mutant in sorted(mutants.items(), key=lambda each: -each[1].start):
            others = (other for n, other in mutants.items() if n != number and n not in self.apart)
            whole = mutant.switched(text, number)
            if any(other.start < mutant.end and mutant.start < other.end for other in others) or not _compiles(whole):
                self.apart.add(number)
            else:
                text = whole
        return compile(text, path, "exec", dont_inherit=True)


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, switches: Switches) -> None:
        super().__init__(name, path)
        self._switches = switches

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self._switches.compiled(self.get_data(path), path)


def _compiles(text: bytes) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


@dataclass(frozen=True)
class Ran:
    """A test that ran: seconds of CPU, mutants that it came by, and what failed, if anything did."""

    test: str
    seconds: float
    met: tuple[int, ...]
    failed: str


class Judge:
    """A plugin of pytest that runs the tests without a mutant, and then for each mutant those that come by it."""

    def __init__(self, switches: Switches, drawn: Mapping[int, Mutant], budget: float) -> None:
        self.switches, self.drawn, self.budget = switches, drawn, budget
        self.noticed: dict[int, str] = {}
        self.left: set[int] = set()
        self._failed = ""

    def pytest_collection(self) -> None:
        """Before pytest's own, which rewrites the asserts of files that it is given."""
        sys.meta_path.remove(self.switches)
        sys.meta_path.insert(0, self.switches)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or (report.nodeid if report.failed else "")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's: file by file, while there are mutants that nothing noticed."""
        files: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            files[item.nodeid.split("::")[0]].append(item)
        self.left = self.switches.met | self.switches.apart
        areas = {number: {mutant.path, *area_of(mutant.path)} for number, mutant in self.drawn.items()}
        for file, items in files.items():
            if not any(file in area and number not in self.noticed for number, area in areas.items()):
                continue
            base, by_name = self._run(items, -1, LIMIT_S), {item.nodeid: item for item in items}
            for number, mutant in self.drawn.items():
                comes_by = [ran for ran in base if number in ran.met and not ran.failed]
                text = mutant.path.endswith(READ_AS_TEXT) and file in BY_TEXT
                if number in self.noticed or file not in areas[number] or text or not comes_by:
                    continue
                quickest = [by_name[ran.test] for ran in sorted(comes_by, key=lambda ran: ran.seconds)]
                last = self._run(quickest, number, self.budget)[-1]
                if last.failed:
                    self.noticed[number] = last.failed
                    print(f"{number} {mutant.path}:{mutant.line} {last.failed}", flush=True)
        return True

    def _run(self, items: Sequence[pytest.Item], number: int, budget: float) -> list[Ran]:
        """The tests in a process of their own, with a mutant until one fails."""
        source, sink = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.close(source)
                _quiet()
                self.switches.on = number
                self._answer(items, budget, sink)
            finally:
                os._exit(0)
        os.close(sink)
        with os.fdopen(source, "rb") as answer:
            found = [Ran(**json.loads(line)) for line in answer]
        _, status = os.waitpid(child, 0)
        return [*found, Ran("", 0.0, (), f"ends the process ({status})")] if status or not found else found

    def _answer(self, items: Sequence[pytest.Item], budget: float, sink: int) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            self.switches.met.clear()
            self._failed, begun = "", time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds, met = time.process_time() - begun, sorted(self.switches.met)
            line = json.dumps({"test": item.nodeid, "seconds": seconds, "met": met, "failed": self._failed})
            os.write(sink, f"{line}\n".encode())
            budget -= seconds
            if budget < 0.0 or (self._failed and self.switches.on >= 0):
                return


class First:
    """A plugin of pytest: the first test that fails, or the file that cannot be read."""

    def __init__(self, switches: Switches) -> None:
        self.failed, self.switches = "", switches

    def pytest_collection(self) -> None:
        """As for `Judge`."""
        sys.meta_path.remove(self.switches)
        sys.meta_path.insert(0, self.switches)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")


def _quiet() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    spent = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (spent + LIMIT_S, spent + LIMIT_S))


def in_a_fork(work: Any) -> Any:
    """What `work` answers (JSON) in a process of its own; None where that ends."""
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(source)
            os.write(sink, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def judged(switches: Switches, drawn: Mapping[int, Mutant], budget: float, tests: Sequence[str]) -> dict[int, str]:
    """What noticed each mutant; those that take effect when modules are read come last, each with all read anew."""
    files = list(tests) or list(dict.fromkeys(file for mutant in drawn.values() for file in area_of(mutant.path)))
    files += [] if tests else sorted({mutant.path for mutant in drawn.values()})

    def all_of_them() -> tuple[dict[int, str], list[int]]:
        judge = Judge(switches, drawn, budget)
        pytest.main([*OPTIONS, *files], plugins=[judge])
        return judge.noticed, sorted(judge.left - set(judge.noticed))

    noticed, left = in_a_fork(all_of_them) or ({}, [])
    found = {int(number): test for number, test in noticed.items()}
    for number in left:
        mutant = drawn[number]

        def alone(number: int = number, mutant: Mutant = mutant) -> str:
            _quiet()
            switches.on, first = number, First(switches)
            switches.apart.add(number)
            for file in list(tests) or [mutant.path, *area_of(mutant.path)]:
                code = pytest.main([*OPTIONS, "-x", file], plugins=[first])
                if first.failed or code not in (0, 5) or time.process_time() > budget:  # 5: there is no test
                    break
            return first.failed or (f"exit {code}" if code not in (0, 5) else "")

        by = in_a_fork(alone)
        if by is None or by:
            found[number] = by or "ends the process"
            print(f"{number} {mutant.path}:{mutant.line} {found[number]}", flush=True)
    return found


def reasons() -> dict[tuple[str, str, str], str]:
    """Why no input tells a mutant from the code, by file, line and mutated line."""
    with Path(__file__).with_name("mutants_equivalent.csv").open(newline="", encoding="utf-8") as file:
        return {(row["file"], row["old"], row["new"]): row["reason"] for row in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", help="numbers of the drawn mutants, such as 3,17")
    parser.add_argument("--tests", nargs="*", default=[], help="files or tests in place of those of the areas")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of one test file before a mutant survives")
    parser.add_argument("--rooms", nargs="*", default=["model", "load", "decision"])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    paths = sorted(path for room in asked.rooms for path in (ROOT / "rooflinekit" / room).rglob("*.py"))
    every = [mutant for path in paths for mutant in mutants(path)]
    drawn = dict(enumerate(random.Random(asked.seed).sample(every, asked.count)))
    if asked.only:
        drawn = {number: drawn[number] for number in map(int, asked.only.split(","))}
    print(f"{len(every):,} places in {len(paths)} files; {len(drawn)} mutants", flush=True)
    switches, known = Switches(drawn), reasons()
    sys.meta_path.insert(0, switches)
    found, rows = judged(switches, drawn, asked.budget, asked.tests), []
    for number, mutant in drawn.items():
        old, new = mutant.shown((ROOT / mutant.path).read_bytes())
        by, why = found.get(number, ""), known.get((mutant.path, old, new), "")
        rows.append((number, mutant.path, mutant.line, old, new, by, "" if by else why))
        if not by:
            print(f"{number} {mutant.path}:{mutant.line} SURVIVES {why}\n    {old}\n    {new}")
    if asked.out:
        with asked.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("number", "file", "line", "old", "new", "noticed by", "reason"), *rows])
    alike = sum(bool(row[-1]) for row in rows)
    print(f"{len(found)} of {len(rows)} noticed; {alike} of the others are equivalent")


if __name__ == "__main__":
    main()

"""Break the code one line at a time and see whether the tests of its area notice.

    python benchmarks/mutants.py --seed 1 --count 200 [--first 0 --last 50] [--out mutants.csv]

A mutant changes one number, comparison, operator, bound or condition of `model`, `load` or `decision`. The files to
change are drawn in proportion to their sites. Each mutant runs in a copy of the checkout, in a process of its own that
has numpy, pandas and pytest from this one: first the doctests of its file, then the quick tests of its area, file by
file, until one fails. Files that noticed most in the least time come first. A mutant that no test notices is printed
as a survivor, with the line as it was and as it became. Equivalent mutants (no input tells them apart) are judged by
hand. One process, so that it runs beside other work.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import random
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis  # noqa: F401 - what is imported here, no mutant has to import
import numpy as np  # noqa: F401
import pandas as pd  # noqa: F401
import pydantic  # noqa: F401
import pytest
import yaml  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
AREAS = {
    "rooflinekit/model/graph": "test_graph.py test_identities.py",
    "rooflinekit/model/serving": "load test_energy.py test_images.py test_groups.py test_traffic.py",
    "rooflinekit/model": (
        "test_worked_rows.py test_predictions.py test_identities.py test_roofline.py test_timing.py test_memory.py"
        " test_dtype_units.py test_batch.py test_parallel.py test_routing.py test_kv_policy.py test_energy.py"
        " test_power.py test_lora.py test_images.py test_groups.py test_speculation.py test_execution.py"
        " test_engines.py test_estimate.py test_invariants.py walk"
    ),
    "rooflinekit/load": (
        "load/test_seconds.py load/test_loop.py load serving test_traffic.py test_load_intervals.py test_request.py"
    ),
    "rooflinekit/decision/economics": "economics planning/test_confidence.py serving/test_traces.py",
    "rooflinekit/decision/launching": "launching",
    "rooflinekit/decision/planning": "planning economics",
    "rooflinekit/decision/sensitivity": "sensitivity",
    "rooflinekit/decision/sweeping": "sweeping",
}
"""Test files of each folder, by the longest match; those that do not exist are left out."""
COMPARED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
            ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}  # fmt: skip
COMPUTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*"}
CALLED = {"maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max", "any": "all", "all": "any"}
LIMIT_S = 400
"""Seconds of CPU of one mutant, which is more than the dearest area takes."""
WAIT_S = 6 * 3600.0


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


class First:
    """A plugin of pytest: the first test that fails, or the file that cannot be read."""

    failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")


def _judge(copy: Path, files: Sequence[str], budget: float, out: int) -> None:
    """In a process of its own: run one file after the other while the budget lasts, and write a line of each."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "-m", "not slow and not long",
               "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # fmt: skip
    for file in files:
        begun, first = time.process_time(), First()
        code = pytest.main([*options, file], plugins=[first])
        failed = first.failed or (f"exit {code}" if code not in (0, 5) else "")  # 5: there is no test
        line = json.dumps({"file": file, "seconds": time.process_time() - begun, "failed": failed})
        os.write(out, f"{line}\n".encode())
        if failed or time.process_time() > budget:
            return


class Files:
    """Test files, those first that noticed most in the least time."""

    def __init__(self) -> None:
        self.seconds, self.kills = Counter[str](), Counter[str]()

    def ordered(self, files: Sequence[str]) -> list[str]:
        return sorted(files, key=lambda file: -(self.kills[file] + 0.3) / (self.seconds[file] + 3.0))

    def noticed(self, copy: Path, mutant: Mutant, budget: float) -> str:
        """The first test that fails, `hangs` for a mutant that does not end; empty where nothing notices."""
        source, sink = os.pipe()
        files = [mutant.path, *self.ordered(area_of(mutant.path))]
        child = os.fork()
        if not child:
            try:
                _judge(copy, files, budget, sink)
            finally:
                os._exit(0)
        os.close(sink)
        text, ends = b"", time.monotonic() + WAIT_S
        while select.select([source], [], [], max(ends - time.monotonic(), 0.0))[0]:
            part = os.read(source, 1 << 16)
            text += part
            if not part:
                break
        else:
            os.kill(child, 9)
        os.close(source)
        _, status = os.waitpid(child, 0)
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            self.seconds[line["file"]] += line["seconds"]
            self.kills[line["file"]] += bool(line["failed"])
        return "hangs" if status else lines[-1]["failed"] if lines else "ends the process"


def copied(folder: Path) -> Path:
    """The files that git knows, as they are in the working tree."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds of tests before one survives")
    parser.add_argument("--rooms", nargs="*", default=["model", "load", "decision"])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    paths = sorted(path for room in asked.rooms for path in (ROOT / "rooflinekit" / room).rglob("*.py"))
    every = [mutant for path in paths for mutant in mutants(path)]
    drawn = random.Random(asked.seed).sample(every, asked.count)[asked.first : asked.last]
    print(f"{len(every):,} places in {len(paths)} files; {len(drawn)} mutants", flush=True)
    rows, files = [], Files()
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for number, mutant in enumerate(drawn, asked.first):
            path = copy / mutant.path
            whole = path.read_bytes()
            path.write_bytes(mutant.applied(whole))
            by, (old, new) = files.noticed(copy, mutant, asked.budget), mutant.shown(whole)
            path.write_bytes(whole)
            for kept in (path.parent / "__pycache__").glob(f"{path.stem}.*"):  # of the mutant
                kept.unlink()
            print(f"{number} {mutant.path}:{mutant.line} {by or 'SURVIVES'}\n    {old}\n    {new}", flush=True)
            rows.append((number, mutant.path, mutant.line, old, new, by))
            if asked.out:
                with asked.out.open("w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows([("number", "file", "line", "old", "new", "noticed by"), *rows])
    killed = sum(bool(row[-1]) for row in rows)
    slow = sum(row[-1] == "hangs" for row in rows)
    print(f"{killed} of {len(rows)} noticed, {slow} of them by running into the limit")


if __name__ == "__main__":
    main()

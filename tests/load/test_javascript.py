"""The loop as JavaScript: the bits of CPython in node, and what the printer refuses."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess

import numpy as np
import pytest
from random_loads import clients_of, lists, played, random_load, rules_of, state_of, tables_of

from rooflinekit.load.compiled import as_arrays
from rooflinekit.load.javascript import Printer, SubsetError, javascript

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node")

DRIVER = """
const bytes = fs.readFileSync(`${__dirname}/tables`);
const array = (at, shape) => shape.length === 1 ? new Float64Array(bytes.buffer, bytes.byteOffset + 8 * at, shape[0])
  : Array.from({length: shape[0]}, (_, i) => array(at + i * shape.slice(1).reduce((a, b) => a * b), shape.slice(1)));
const table = (fields) => Object.fromEntries(
  Object.entries(fields).map(([name, value]) => [name, value && value.shape ? array(value.at, value.shape) : value]));
const plain = (value) => value === Infinity ? "inf" : value === -Infinity ? "-inf"
  : ArrayBuffer.isView(value) ? Array.from(value, plain) : Array.isArray(value) ? value.map(plain) : value;
const answers = loads.map(([c, k, tables, requests, seed, encoders, room]) => {
  const s = new_state(k, requests, seed, encoders, room), [t, h] = tables.map(table);
  start(c, k, s);
  while (!play(c, k, t, h, s)) { s.counts[ROWS] = 0; s.counts[GAPS] = 0; }
  return Object.fromEntries(Object.entries(s).map(([name, value]) => [name, plain(value)]));
});
process.stdout.write(JSON.stringify(answers));
"""
LONG = 100  # numbers from which an array stands in the file of tables, once


def as_text(record):
    """An object of JavaScript."""
    return {name: lists(value) for name, value in as_arrays(record)._asdict().items()}


class Tables:
    """The arrays of step tables one after the other, as the bytes of their numbers."""

    def __init__(self):
        self.parts, self.length, self.places = [], 0, {}

    def of(self, table):
        """A table as an object of JavaScript that says where its arrays stand."""
        fields = {}
        for name, value in as_arrays(table)._asdict().items():
            numbers = np.asarray(value, float)
            key = numbers.tobytes() if numbers.size > LONG else b""
            if key and key not in self.places:
                self.places[key] = self.length
                self.parts.append(key)
                self.length += numbers.size
            fields[name] = {"at": self.places[key], "shape": numbers.shape} if key else lists(value)
        return fields


def differing(seeds, folder, **options):
    """Loads, with the fields of the state, that are not the same to the last bit."""
    loads, tables = [random_load(seed) for seed in seeds], Tables()
    asked = [
        [
            as_text(clients_of(load)), as_text(rules_of(load)), [tables.of(each) for each in tables_of(load)],
            len(load.arrivals), load.seed, load.encoders[0], load.room,
        ]
        for load in loads
    ]  # fmt: skip
    (folder / "tables").write_bytes(b"".join(tables.parts))
    start = 'const fs = require("fs");\n'
    (folder / "play.js").write_text(f"{start}{javascript(**options)}const loads = {json.dumps(asked)};\n{DRIVER}")
    done = subprocess.run([NODE, folder / "play.js"], capture_output=True, text=True, check=True)
    numbers = {"inf": float("inf"), "-inf": float("-inf")}

    def known(value):
        return [known(each) for each in value] if isinstance(value, list) else numbers.get(value, value)

    wrong = []
    for seed, load, answer in zip(seeds, loads, json.loads(done.stdout), strict=True):
        plain = lists(played(clients_of(load), rules_of(load), *tables_of(load), state_of(load)))
        names = [name for name, value in plain.items() if known(answer[name]) != value]
        wrong += [(seed, names)] if names else []
    return wrong


@needs_node
def test_node_has_the_bits_of_cpython(tmp_path):
    assert differing(range(16), tmp_path) == []


@needs_node
@pytest.mark.long
def test_node_has_the_bits_of_cpython_in_many_loads(tmp_path):
    assert differing(range(60, 260), tmp_path) == []


def test_a_page_may_bring_its_own_step_times():
    text = javascript(leave_out=("step_time", "run_time"))
    assert "function step_time(" not in text
    assert "time = step_time(t, h, " in text
    asked = javascript(asked=("decode", "prefill"))
    assert "t.decode(local)" in asked
    assert "t.prefill((" in asked
    assert "t.decode[" not in asked
    with pytest.raises(ValueError, match="no step_times"):
        javascript(leave_out=("step_times",))


def printed(text):
    return Printer("some.py", {"f", "g"}).function(ast.parse(text).body[0])


@pytest.mark.parametrize(("python", "script"), [
    ("def f(a):\n    return a // 2 + a % 3", "return (Math.floor(a / 2) + mod(a, 3));"),
    ("def f(new):\n    return 0 < new <= 3", "return (0 < new_ && new_ <= 3);"),
    ("def f(a):\n    return a == 1 or not a != 2", "return ((a === 1) || !(a !== 2));"),
    ("def f(a):\n    b, c = g(a)\n    return b, c", "[b, c] = g(a);\nreturn [b, c];"),
    ("def f(a):\n    for i in range(len(a)):\n        a[i] += int(a[i])",
     "for (let i = 0, stop_i = a.length; i < stop_i; i++) {\na[i] += Math.trunc(a[i]);\n}"),
    ("def f(a):\n    return max(a, 1) if a else -1", "return (a ? Math.max(a, 1) : (-1));"),
])  # fmt: skip
def test_what_the_subset_becomes(python, script):
    assert script in printed(python)


@pytest.mark.parametrize(("python", "why"), [
    ("def f(a):\n    return [x for x in a]", r"some\.py:2: ListComp"),
    ("def f(a):\n    return a[-1]", r"some\.py:2: Subscript `a\[-1\]`"),
    ("def f(a):\n    return a[1:]", r"some\.py:2: Subscript"),
    ("def f(a):\n    return h(a)", r"some\.py:2: Call `h\(a\)`"),
    ("def f(a):\n    return a ** 2", r"some\.py:2: BinOp"),
    ("def f(a):\n    return 'text'", r"some\.py:2: Constant"),
    ("def f(a):\n    with a:\n        pass", r"some\.py:2: With"),
    ("def f(a):\n    for i in range(a):\n        i += 1", r"some\.py:2: the loop over i changes it"),
    ("def f(a):\n    for i in range(a):\n        pass\n    return i", r"some\.py:4: `i` is read outside its loop"),
    ("def f(a, *b):\n    return a", "arguments of f"),
    ("def f(a):\n    a //= 2", r"some\.py:2: AugAssign"),
    ("def f(a):\n    while a:\n        a -= 1\n    else:\n        return a", r"some\.py:2: While"),
    ("def f(s: State):\n    if s.sent:\n        return 1", "is an array"),
    ("def f(a):\n    return a < g(a) < 3", r"some\.py:2: Compare"),
    ("def f(a):\n    return a is a", r"some\.py:2: Compare"),
])  # fmt: skip
def test_what_is_not_in_it_is_refused_with_its_line(python, why):
    with pytest.raises(SubsetError, match=why):
        printed(python)

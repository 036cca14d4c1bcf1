"""The traced model: every deployment becomes a graph, and what reads it gives the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflinekit.estimation.estimator import read_deployment, resolve
from rooflinekit.model.graph import BranchError, Graph, Pool, trace
from rooflinekit.model.graph.arrays import Vectorised
from rooflinekit.model.graph.javascript import Library, array, call
from rooflinekit.model.graph.merge import Merge
from rooflinekit.model.graph.symbol import OPERATORS, Symbol, fact
from rooflinekit.model.graph.table import NodeTable
from rooflinekit.model.graph.trace import flat
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.types.numeric import choose, lattice, log2, maximum, sqrt, where
from rooflinekit.model.types.workload import Workload

DEPLOYMENTS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3-8b", "h100-sxm", {}),
    ("llama-3-70b", "h100-sxm", {"tp": 4, "pp": 2, "microbatches": 2}),
    ("mixtral-8x7b", "h100-sxm", {"tp": 2, "ep": 2, "skew": 1.2}),
    ("deepseek-v3", "h200-sxm", {"dp": 8, "ep": 8}),
    ("gpt-oss-120b", "b200-sxm", {"kv": "fp8"}),
    ("llama-3-8b", "a100-sxm-80gb", {"cp": 2, "engine": "sglang"}),
    ("llama-3-8b", "l40s", {"kv_policy": "topk:2048"}),
]


def predictor(model: str, gpu: str, deployment: dict[str, Any]) -> Predictor:
    return resolve(model, gpu, read_deployment(deployment), None).predictor


def answer(deployed: Predictor, batch: Any, isl: Any, osl: Any) -> dict[str, Any]:
    """Sums of the steps: a kernel that takes no time may be missing in a step of plain numbers."""
    point = deployed.evaluate(Workload(batch, isl, osl))
    steps = {"prefill": point.prefill.total, "decode": point.decode.total}
    return steps | {"ttft": point.ttft, "tpot": point.tpot, "memory": point.memory}


def static(deployed: Predictor) -> Graph:
    return trace(lambda **at: answer(deployed, **at), ["batch", "isl", "osl"])


def apart(first: float, second: float) -> float:
    """Relative difference; equal infinities are equal."""
    return 0.0 if first == second else abs(first - second) / max(abs(first), abs(second))


def worked_out(graph: Graph, *inputs: Any) -> list[Any]:
    """The outputs, node by node."""
    given: dict[Symbol, Any] = {}

    def value(node: Any, known: dict[Symbol, Any]) -> Any:
        if not isinstance(node, Symbol):
            return node
        if node not in known:
            known[node] = found(node, known)
        return known[node]

    def found(node: Symbol, known: dict[Symbol, Any]) -> Any:
        match node.op:
            case "var":
                return inputs[graph.inputs.index(node.arguments[0])]
            case "fact":
                return node.arguments[0]
        return OPERATORS[node.op](*(value(argument, known) for argument in node.arguments))

    for node in graph.nodes:  # operands first, so that nothing is nested deeply
        value(node, given)
    return [value(output, given) for output in graph.outputs.values()]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: f"{d[0]} {d[2]}")
def test_a_graph_over_arrays_gives_the_numbers_of_the_formulas(deployment: tuple[str, str, dict[str, Any]]) -> None:
    deployed = predictor(*deployment)
    graph = static(deployed)
    points = [(1.0, 1.0, 2.0), (32.0, 1024.0, 256.0), (7.0, 3001.0, 100.0), (512.0, 128.0, 4096.0)]
    columns = dict(zip(graph.inputs, map(np.array, zip(*points, strict=True)), strict=True))
    found = Vectorised(graph)(**columns)
    for row, at in enumerate(points):
        expected = dict(flat(answer(deployed, *at)))
        assert list(expected) == list(graph.outputs)
        assert max(apart(found[name][row], value) for name, value in expected.items()) < 1e-12, at


def test_pieces_of_any_length_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = static(predictor(*DEPLOYMENTS[0]))
    columns = dict(zip(graph.inputs, (np.arange(1.0, 8.0), np.full(7, 1024.0), np.arange(2.0, 9.0)), strict=True))
    whole = Vectorised(graph)(**columns)
    monkeypatch.setattr("rooflinekit.model.graph.arrays._PIECE", 3)  # the third piece begins within the second
    pieces = Vectorised(graph)(**columns)
    assert all((pieces[name] == whole[name]).all() for name in graph.outputs)


def test_equal_parts_are_one_node() -> None:
    graph = trace(lambda x, y: [(x + y) * (x + y), x + y], ["x", "y"])
    assert [node.op for node in graph.nodes] == ["var", "var", "+", "*"]


def test_a_branch_on_an_input_says_so() -> None:
    with pytest.raises(BranchError, match="a branch depends on"):
        trace(lambda x: 1.0 if x > 2.0 else 0.0, ["x"])
    assert trace(lambda x: 1.0 if x > 2.0 else 0.0, ["x"], Pool({"x": 3.0})).outputs == {"": 1.0}


@given(x=st.floats(-10.0, 10.0), y=st.floats(0.1, 10.0))
@settings(max_examples=50, deadline=None)
def test_every_operator_passes_through(x: float, y: float) -> None:
    def each(x: Any, y: Any) -> list[Any]:
        return [
            -x + y * 2.0 - 1.0 / y, y**x, x // y, abs(x), maximum(x, y), where((x < y) & (y != 1.0), x, 3.0),
            choose(x > 0.0, lambda: x, lambda: y), x == y, x <= 1.0,
        ]  # fmt: skip

    assert worked_out(trace(each, ["x", "y"]), x, y) == [float(value) for value in each(x, y)]


@given(x=st.floats(0.1, 10.0))
@settings(max_examples=20, deadline=None)
def test_many_graphs_are_one_with_parameters(x: float) -> None:
    """Numbers, tables and terms that some lack become parameters; where formulas differ, a parameter chooses."""
    pool = Pool()
    given = pool.variable("x")
    tables = [NodeTable(((0.0, 10.0),), values) for values in ((1.0, 3.0), (2.0, 5.0))]

    def formula(factor: float, table: NodeTable, extra: Any, root: bool) -> Any:
        terms = maximum(factor * given, 3.0) + lattice(table, [given])
        terms = terms if extra is None else terms + extra
        return sqrt(terms) if root else terms / factor

    alone = (
        formula(1.0, tables[0], None, False),
        formula(2.0, tables[0], given * given, False),
        formula(2.5, tables[1], log2(given + 1.0) * 3.0, True),
    )
    merge = Merge(pool)
    one, parameters = merge.merged(alone), merge.parameters.values()
    whole = Graph(("x", *(str(entry.node.arguments[0]) for entry in parameters)), {"": one})
    for place, graph in enumerate(alone):
        values = [entry.values[place] for entry in parameters]
        assert worked_out(whole, x, *values) == pytest.approx(worked_out(Graph(("x",), {"": graph}), x), rel=1e-15)


def test_graphs_of_one_shape_share_a_function_and_call_each_other() -> None:
    """Only what tells them apart is data, whatever other graphs of the pool made first."""
    pool, library = Pool(), Library()
    inner = [library.add(trace(lambda x, n=n: [x * n, x + 1.0], ["x"])) for n in (3.0, 5.0)]
    assert inner[0].template is inner[1].template

    def outer(function: Any) -> Any:
        def body(x: Any, y: Any) -> list[Any]:
            return [call(function, [x], 2)[0] + y, array(call(function, [y], 2), pool)]

        return library.add(trace(body, ["x", "y"], pool=pool))

    first, second = map(outer, inner)
    assert first.template is second.template
    printed = library.printed()
    assert printed.data["values"] == [3.0, 5.0, 0, 1]
    assert printed.data["numbers"] == [[2, [0, 1]], [2, [2, 3]]]  # two instances of each; a column of places of values
    assert "I[k[0]](y)" in printed.source


def test_facts_that_differ_are_data() -> None:
    made, library = Pool(), Library()
    graphs = [trace(lambda x, n=n: [x * fact(n, "n", "a number")], ["x"], pool=made) for n in (3.0, 5.0)]
    first, second = map(library.add, graphs)
    assert first.template is second.template
    printed = library.printed()
    assert printed.data["values"] == [3.0, 5.0]
    assert "3.0" not in printed.source


def test_the_core_knows_no_physics() -> None:
    folder = Path(__file__).parents[1] / "rooflinekit" / "model" / "graph"
    known = ("from rooflinekit.model.graph", "from rooflinekit.model.types.frozen")
    for path in folder.glob("*.py"):
        imports = [
            line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("from rooflinekit")
        ]
        assert all(line.startswith(known) for line in imports), path

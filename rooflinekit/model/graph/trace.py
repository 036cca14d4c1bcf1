"""A formula as a graph: the function runs once on symbols, and what it returns are the outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cached_property
from operator import attrgetter

from rooflinekit.model.graph.symbol import Pool, Symbol, Term
from rooflinekit.model.types.frozen import dataclass, fields


@dataclass(frozen=True)
class Graph:
    """Inputs, and outputs by dotted name (`ttft.expected`, `prefill.kernels.0.bound`).

    Outputs are symbols, or numbers that depend on none.
    """

    inputs: tuple[str, ...]
    outputs: Mapping[str, Symbol | float]

    @cached_property
    def nodes(self) -> list[Symbol]:
        """The nodes that the outputs are made of, each behind its operands."""
        return reachable(self.outputs.values())

    def only(self, outputs: Iterable[str]) -> Graph:
        """The part that gives these outputs."""
        return Graph(self.inputs, {name: self.outputs[name] for name in outputs})


def trace(function: Callable[..., object], inputs: Iterable[str], pool: Pool | None = None) -> Graph:
    """Run `function` on a symbol for each input; graphs of one pool share their nodes.

    A pool may give the inputs values: branches then follow these, and every node knows its own. Without, a branch on a
    value that depends on an input raises BranchError.

    >>> graph = trace(lambda batch, isl: {"tokens": batch * isl}, "batch isl".split())
    >>> graph.outputs["tokens"]
    <symbol 2: *>
    """
    pool = pool or Pool()
    given = {name: pool.variable(name) for name in inputs}
    return Graph(tuple(given), dict(flat(function(**given))))


def reachable(outputs: Iterable[object], ends: Collection[Symbol] = ()) -> list[Symbol]:
    """All nodes that some are made of, operands first; what `ends` are made of is left out."""
    left = [output for output in outputs if isinstance(output, Symbol)]
    found = set(left)
    while left:
        node = left.pop()
        for operand in () if node in ends else node.operands:
            if operand not in found:
                found.add(operand)
                left.append(operand)
    return sorted(found, key=attrgetter("index"))


def ordered(outputs: Iterable[object]) -> list[Symbol]:
    """Order the nodes independently of the graphs that were made first."""
    found: dict[Symbol, None] = {}
    seen: set[Symbol] = set()
    left = [output for output in outputs if isinstance(output, Symbol)][::-1]
    while left:
        node = left[-1]
        if node in seen:
            found.setdefault(left.pop())
        else:
            seen.add(node)
            left += [operand for operand in node.operands[::-1] if operand not in seen]
    return list(found)


def depends(nodes: Iterable[Symbol], leaves: Callable[[Symbol], bool]) -> dict[Symbol, frozenset[str]]:
    """Dependencies of each node, of `leaves`: inputs by name."""
    found: dict[Symbol, frozenset[str]] = {}
    nothing = frozenset[str]()
    for node in nodes:
        below = frozenset((node.arguments[0],)) if node.op == "var" and leaves(node) else nothing
        for operand in node.operands:
            if (own := found[operand]) is not below and own:
                below |= own
        found[node] = below
    return found


def bare(node: Term) -> Term:
    """The node without its name."""
    while isinstance(node, Symbol) and node.op == "named":
        node = node.arguments[0]
    return node


def flat(value: object, name: str = "") -> Iterator[tuple[str, Symbol | float]]:
    """Numbers and symbols of nested dataclasses, mappings and sequences; what is neither is left out."""
    inside = f"{name}." if name else ""
    if isinstance(value, Symbol):
        yield name, value
    elif isinstance(value, (bool, int, float)):
        yield name, float(value)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from flat(part, f"{inside}{key}")
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            yield from flat(part, f"{inside}{place}")
    elif is_dataclass(value):
        for entry in fields(value):
            yield from flat(getattr(value, entry.name), f"{inside}{entry.name}")

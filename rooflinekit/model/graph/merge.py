"""Graphs of many deployments as one: a parameter where their numbers differ, a choice where their formulas do.

A spreadsheet or a page that offers many deployments then holds each calculation once, and looks up the parameters of
the one that is chosen. All graphs are traced in one pool, so that what they share is one node already.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rooflinekit.model.graph.symbol import Pool, Quantity, Symbol, Term
from rooflinekit.model.graph.table import NodeTable
from rooflinekit.model.graph.trace import bare

Members: TypeAlias = tuple[Term, ...]
"""Members at one place in each of the deployments: a node, a number, a table, or None where it does not matter."""


@dataclass(frozen=True)
class Parameter:
    """A number or a table that differs between deployments: its node, and its value in each."""

    node: Symbol
    values: Members
    quantity: Quantity | None = None


@dataclass
class Merge:
    """Merges what stands at the same place in several graphs of one pool.

    labels: of terms of sums, which are aligned by them; other terms are aligned by their shape.
    """

    pool: Pool
    labels: Mapping[Symbol, Hashable] = field(default_factory=dict)
    parameters: dict[Members, Parameter] = field(default_factory=dict)
    named: dict[Symbol, Any] = field(default_factory=dict)  #: labels of merged nodes
    _known: dict[tuple[object, ...], Term] = field(default_factory=dict)

    def merged(self, members: Members) -> Term:
        """The one node, or number, for all of them."""
        key = tuple(m.index if isinstance(m, Symbol) else (type(m), m) for m in members)
        if key not in self._known:
            found = self._known[key] = self._merge(members)
            label = next((self.labels[m] for m in members if isinstance(m, Symbol) and m in self.labels), None)
            if label is not None and isinstance(found, Symbol):
                self.named.setdefault(found, label)
        return self._known[key]

    def parameter(self, values: Members, quantity: Quantity | None = None) -> Term:
        """A node that stands for these numbers or tables; a number where all are equal."""
        first = next(value for value in values if value is not None)
        filled = tuple(first if value is None else value for value in values)
        if not isinstance(first, NodeTable) and all(value == first for value in filled):
            return first
        if filled not in self.parameters:
            node = self.pool.variable(f"p{len(self.parameters) + 1}", quantity)
            self.parameters[filled] = Parameter(node, filled, quantity)
        return self.parameters[filled].node

    def _merge(self, members: Members) -> Term:
        present = [member for member in members if member is not None]
        first = present[0]
        if all(member is first for member in present):
            return first
        kinds: dict[Hashable, list[int]] = {}
        for place, member in enumerate(members):
            if member is not None:
                kinds.setdefault(self._kind(member), []).append(place)
        if len(kinds) == 1:
            return self._alike(next(iter(kinds)), members)
        if "named" in kinds:
            return self.merged(tuple(map(bare, members)))
        if "+" in kinds:
            return self._sum(members)
        choice: list[float | None] = [None] * len(members)
        variants = []
        for number, places in enumerate(kinds.values()):
            for place in places:
                choice[place] = float(number)
            variants.append(self.merged(tuple(m if place in places else None for place, m in enumerate(members))))
        chosen = self.parameter(tuple(choice), Quantity("", "variant"))
        result = variants[-1]
        for number in range(len(variants) - 2, -1, -1):
            result = self.pool.apply("where", self.pool.apply("==", chosen, float(number)), variants[number], result)
        return result

    def _kind(self, member: Term) -> Hashable:
        if not isinstance(member, Symbol):
            return "table" if isinstance(member, NodeTable) else "number"
        match member.op:
            case "fact":
                return "number"
            case "var":
                return ("var", member.arguments[0])
            case "lattice":
                return ("lattice", len(member.arguments))
        return member.op

    def _alike(self, kind: Hashable, members: Members) -> Term:
        """All are made by the same operator."""
        op = str(kind[0] if isinstance(kind, tuple) else kind)
        match op:
            case "number" | "table":
                return self.parameter(tuple(m.value if isinstance(m, Symbol) else m for m in members))
            case "named":
                quantity = next(m.arguments[1] for m in members if m is not None)
                return self.pool.apply("named", self._operand(members, 0), quantity)
            case "+":
                return self._sum(members)
        first = next(m for m in members if m is not None)
        operands = [self._operand(members, place) for place in range(len(first.arguments))]
        if op == "lattice":
            return self.pool.node("lattice", *operands)
        return self.pool.apply(op, *operands)

    def _operand(self, members: Members, place: int) -> Term:
        return self.merged(tuple(None if m is None else m.arguments[place] for m in members))

    def _sum(self, members: Members) -> Term:
        """Terms that stand in the same order are added in it; others are aligned, and absent where they are absent."""
        terms = [None if member is None else self._terms(member) for member in members]
        present = [each for each in terms if each is not None]
        if all([key for key, _ in each] == [key for key, _ in present[0]] for each in present):
            left, right = self._operand(members, 0), self._operand(members, 1)
            return self.pool.apply("+", left, right)
        keys: dict[Hashable, None] = {}
        for each in sorted(present, key=len, reverse=True):
            keys.update(dict.fromkeys(key for key, _ in each))
        tables = [None if each is None else dict(each) for each in terms]
        whole: Term = 0.0
        for key in keys:
            held = tuple(None if table is None else table.get(key) for table in tables)
            term = self.merged(held)
            there = tuple(None if table is None else float(key in table) for table in tables)
            if 0.0 in there:
                term = self.pool.apply("where", self.pool.apply("==", self.parameter(there), 1.0), term, 0.0)
            whole = self.pool.apply("+", whole, term)
        return whole

    def _terms(self, member: object) -> list[tuple[Hashable, Term]]:
        """Terms of a sum with what aligns them: a label, or a shape with its number among equal ones."""
        found: list[Term] = []
        while isinstance(member, Symbol) and member.op == "+" and not (found and member in self.labels):
            found.append(member.arguments[1])
            member = member.arguments[0]
        found.append(member)
        counted: dict[Hashable, int] = {}
        keyed: list[tuple[Hashable, object]] = []
        for term in reversed(found):
            key = self.labels.get(term) if isinstance(term, Symbol) else "number"
            key = self._kind(term) if key is None else key
            counted[key] = counted.get(key, 0) + 1
            keyed.append(((key, counted[key]), term))
        return keyed

"""The sheets that formulas look numbers up in: models, accelerators, deployments, constants, corrections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rooflinekit.model.graph.cells import Cell, Tables, composed, function, literal, when
from rooflinekit.model.graph.symbol import Symbol
from rooflinekit.model.graph.table import NodeTable
from rooflinekit.model.graph.trace import reachable
from rooflinekit.report.workbook.inputs import Inputs
from rooflinekit.report.workbook.loads import Ladder
from rooflinekit.report.workbook.offers import Rival, WorkbookOffers
from rooflinekit.report.workbook.sheet import HEAD, TABLES, Book, Sheet

_FAR = 1e15  # a node beyond any size


@dataclass(frozen=True)
class Constants:
    """The chosen deployment: whether there is one, why it cannot be run, and its numbers.

    load: what was played of it, by the columns of sheet Deployments.
    """

    offered: Cell
    reason: Cell
    cells: Mapping[Symbol, Cell]
    tables: Tables
    evidence: Cell
    load: Mapping[str, Cell]
    ladder: Ladder


LOADED: Mapping[str, str] = TABLES["loaded"]
"""Columns of sheet Deployments on the loads of each."""


def _filled(sheet: Sheet, columns: Sequence[str], rows: Sequence[Sequence[float | str]], style: str = "two") -> None:
    """Heads and rows."""
    sheet.heads(HEAD, columns)
    for number, row in enumerate(rows, HEAD + 1):
        for column, value in enumerate(row):
            sheet.put(number, column, value, "text" if isinstance(value, str) else style)


def write_models(book: Book, offers: WorkbookOffers) -> None:
    """Write the drop-down of models."""
    rows = [(str(name), float(offers.contexts.get(str(name)) or 0)) for name in offers.lists["model"]]
    _filled(book.sheet("Models"), ("model", "longest context [tokens]"), rows, "whole")


_YOURS = 3  # the column of your prices; quotes are in the next


def write_gpus(book: Book, offers: WorkbookOffers) -> None:
    """Write the drop-down of accelerators, with prices and where they are from."""
    sheet, rows = book.sheet("GPUs"), []
    for rival in offers.rivals:
        gpu, price = rival.gpu, rival.gpu.price
        quote = (price.usd_per_hour, price.date, price.source) if price else (0.0, "", "none known: enter your own")
        sizes = (float(gpu.memory_bytes) / 1e9, float(gpu.memory_bandwidth) / 1e9)
        rows.append((gpu.name, *sizes, 0.0, *quote))
    _filled(sheet, TABLES["gpus"], rows)
    for row, rival in enumerate(offers.rivals, HEAD + 1):
        if rival.usd is None:
            sheet.blank(row, _YOURS, "input_number")
        else:
            sheet.put(row, _YOURS, rival.usd, "input_number")


def price_of(offers: WorkbookOffers, inputs: Inputs, row: Cell, rival: Rival) -> Cell:
    """Price of an accelerator in a row of the sheet GPUs: yours for it, yours for all, or the quote; 0: not known."""
    own = Cell(f"INDEX({lists(offers, _YOURS)},{row.text})", "" if rival.usd is None else rival.usd)
    quoted = rival.gpu.price.usd_per_hour if rival.gpu.price else 0.0
    quote = Cell(f"INDEX({lists(offers, _YOURS + 1)},{row.text})", quoted)
    return when(own > 0.0, own, when(inputs["price"].equals(""), quote, inputs["price"]))


def lists(offers: WorkbookOffers, place: int) -> str:
    """The range of a column of the sheet GPUs."""
    letter = "ABCDEFG"[place]
    return f"GPUs!${letter}${HEAD + 2}:${letter}${HEAD + 1 + len(offers.gpus)}"


def write_constants(book: Book, offers: WorkbookOffers, chosen: Mapping[str, Sequence[Cell]]) -> dict[str, Constants]:
    """Every combination with its numbers, and those of the ones that cells name, by the head of their column.

    The first is what all sheets show.
    """
    parameters, tables = list(offers.merge.parameters.values()), Tables()

    def number(value: NodeTable | float) -> float:
        return float(tables.place(value) if isinstance(value, NodeTable) else literal(float(value)).value)

    columns = [list(map(number, each.values)) for each in parameters]
    known, uses = _write_deployments(book, offers, columns), dict[Symbol, str]()  # the first kernel of each constant
    for node, (step, kernel, _) in offers.merge.named.items():
        for part in reachable([node]):
            if part.op == "var":
                uses.setdefault(part, f"{step}, {kernel}")
    sheet = book.sheet("Constants")
    sheet.page.set_column(3, 2 + len(chosen), 24)
    heads = ("combination", "row (0: no such combination)", "why it cannot be run", "can be run", "evidence")
    for row, text in enumerate((*heads, *LOADED.values()), HEAD + 1):
        sheet.put(row, 0, text)
    for place, parameter in enumerate(parameters):
        sheet.put(_CONSTANTS + place, 0, f"p{place + 1}")
        meaning = parameter.quantity.meaning if parameter.quantity else ""
        sheet.put(_CONSTANTS + place, 1, ": ".join(filter(None, (uses.get(parameter.node), meaning))))
    sheet.heads(HEAD, ("", "", *chosen))
    found, nodes = {}, [(entry.node, values) for entry, values in zip(parameters, columns, strict=True)]
    for column, (name, cells) in enumerate(chosen.items(), 2):
        found[name] = _Lookup(sheet, column, known, offers).constants(cells, nodes, tables)
    return found


_CONSTANTS = HEAD + 7 + len(LOADED)  # row of the first parameter


@dataclass(frozen=True)
class _Lookup:
    """A column of the sheet Constants, looked up on the sheet Deployments."""

    sheet: Sheet
    column: int
    known: Sheet
    offers: WorkbookOffers

    def constants(
        self, cells: Sequence[Cell], parameters: Sequence[tuple[Symbol, Sequence[float]]], tables: Tables
    ) -> Constants:
        """The combination that the cells name."""
        offers, key = self.offers, cells[0]
        for cell in cells[1:]:
            key = composed("joined", composed("joined", key, literal("|")), cell)
        key = self._put(1, key)
        keys = [entry.key for entry in offers.entries]
        entry = offers.entries[keys.index(key.value)] if key.value in keys else None
        at = 0.0 if entry is None else keys.index(entry.key) + 1.0
        row = self._put(2, function(f"IFERROR(MATCH({{0}},{self._below(0)},0),0)", at, key))
        place = f"MAX({row.text},1)"
        first = entry or offers.entries[0]
        reason = Cell(f'INDEX({self._below(1)},{place})&""', first.reason)
        reason = self._put(3, when(row >= 1.0, reason, "choose from the drop-downs of Inputs"))
        offered = self._put(4, (row >= 1.0) & reason.equals(""), "general")
        told = self._put(5, Cell(f'INDEX({self._below(2)},{place})&""', first.evidence))
        load = {
            name: self._put(6 + number, Cell(f"INDEX({self._below(3 + number)},{place}){blank}", value), "general")
            for number, (name, value) in enumerate(_loaded(offers)[first.key].items())
            for blank in ('&""' if isinstance(value, str) else "",)
        }
        run = offers.run.index(first) if first.traced is not None else 0
        found = {}
        for number, (node, values) in enumerate(parameters):
            value = Cell(f"INDEX({self._below(_PARAMETERS + number)},{place})", values[run])
            found[node] = self.sheet.put(_CONSTANTS + number, self.column, value, "general")
        return Constants(offered, reason, found, tables, told, load, offers.ladder(first))

    def _put(self, row: int, cell: Cell, style: str = "text") -> Cell:
        return self.sheet.put(HEAD + row, self.column, cell, style)

    def _below(self, column: int) -> str:
        return self.known.area((HEAD + 1, column), (HEAD + len(self.offers.entries), column))


_PARAMETERS = 3 + len(LOADED)  # column of the first parameter of sheet Deployments


def _loaded(offers: WorkbookOffers) -> dict[str, dict[str, float | str]]:
    """Played loads of each combination, by its key."""
    found, row = dict[str, dict[str, float | str]](), 1
    for entry in offers.entries:
        ladder = offers.ladder(entry)
        found[entry.key] = {
            "knee": ladder.knee,
            "places": float(ladder.places),
            "first": float(row),
            "rungs": float(len(ladder.rungs)),
            "together": float(ladder.together),
            "played": ladder.settings if ladder.rungs else "",
            "unplayed": ladder.reason,
        }
        row += len(ladder.rungs)
    return found


def _write_deployments(book: Book, offers: WorkbookOffers, columns: Sequence[Sequence[float]]) -> Sheet:
    """One row a combination; what cannot be run has the numbers of the first that can."""
    sheet = book.sheet("Deployments")
    numbers = (f"p{number}" for number in range(1, len(columns) + 1))
    sheet.heads(HEAD, ("key", "reason", "evidence", *LOADED.values(), *numbers))
    run, loaded = iter(range(len(offers.run))), _loaded(offers)
    for row, entry in enumerate(offers.entries, HEAD + 1):
        sheet.put(row, 0, entry.key)
        sheet.put(row, 1, entry.reason)
        place = next(run) if entry.traced is not None else 0
        rest = (entry.evidence, *loaded[entry.key].values(), *(values[place] for values in columns))
        for column, value in enumerate(rest, 2):
            sheet.put(row, column, value, "general")
    return sheet


def write_tables(book: Book, tables: Tables) -> None:
    """The corrections, a row each, padded to the same width; and the names by which formulas find them."""
    sheet, rows = book.sheet("Surfaces"), list(tables.rows)
    axes = max((len(table.axes) for table in rows), default=1)
    if not rows:
        return
    held = [[*table.axes, *[(0.0,)] * (axes - len(table.axes))] for table in rows]
    widths = [max(len(nodes[axis]) for nodes in held) for axis in range(axes)]
    most, last, start = max(len(table.values) for table in rows), HEAD + len(rows), 0
    for axis in range(axes):
        for label, width in ((f"count_{axis + 1}", 1), (f"nodes_{axis + 1}", widths[axis])):
            book.file.define_name(label, "=" + sheet.area((HEAD + 1, start), (last, start + width - 1)))
            sheet.put(HEAD, start, label, "head")
            start += width
    book.file.define_name("table_values", "=" + sheet.area((HEAD + 1, start), (last, start + most - 1)))
    sheet.put(HEAD, start, "table_values", "head")
    for row, (table, nodes) in enumerate(zip(rows, held, strict=True), HEAD + 1):
        line = [
            value
            for each, width in zip(nodes, widths, strict=True)
            for value in (float(len(each)), *each, *[_FAR] * (width - len(each)))
        ]
        for column, value in enumerate((*line, *table.values)):
            sheet.put(row, column, value, "general")

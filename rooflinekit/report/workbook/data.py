"""The sheets that formulas look numbers up in: models, accelerators, deployments, constants, corrections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooflinekit.model.graph.cells import Cell, Tables, composed, function, literal, when
from rooflinekit.model.graph.symbol import Symbol
from rooflinekit.model.graph.table import Table
from rooflinekit.model.graph.trace import reachable
from rooflinekit.report.workbook.offers import Offers
from rooflinekit.report.workbook.sheet import Book, Sheet

__all__ = ["Constants", "lists", "write_constants", "write_gpus", "write_models", "write_tables"]

_HEAD = 3  # row of the heads
_FAR = 1e15  # a node beyond any size


@dataclass(frozen=True)
class Constants:
    """The chosen deployment: whether there is one, why it cannot be run, and its numbers."""

    offered: Cell
    reason: Cell
    cells: Mapping[Symbol, Cell]
    tables: Tables


def _filled(sheet: Sheet, columns: Sequence[str], rows: Sequence[Sequence[float | str]], style: str = "two") -> None:
    """Heads and rows."""
    sheet.heads(_HEAD, columns)
    for number, row in enumerate(rows, _HEAD + 1):
        for column, value in enumerate(row):
            sheet.put(number, column, value, "text" if isinstance(value, str) else style)
    sheet.page.freeze_panes(_HEAD + 1, 1)


def write_models(book: Book, offers: Offers) -> None:
    """What the drop-down of models offers."""
    sheet = book.sheet("Models", "Models", "Drop-down of Inputs; the longest context that the model was made for.")
    sheet.widths(32, 20)
    rows = [(str(name), float(offers.contexts.get(str(name)) or 0)) for name in offers.lists["model"]]
    _filled(sheet, ("model", "longest context [tokens]"), rows, "whole")


def write_gpus(book: Book, offers: Offers) -> None:
    """What the drop-down of accelerators offers, with prices and where they are from."""
    note = "Datasheet numbers as shipped with rooflinekit; prices are dated quotes, and yours count more."
    sheet = book.sheet("GPUs", "Accelerators", note)
    sheet.widths(22, 15, 15, 15, 15, 15, 70)
    columns = ("gpu", "memory [GB]", "bandwidth [GB/s]", "power [W]", "price [USD/h]", "price dated", "price source")
    rows = []
    for gpu in offers.gpus:
        price = gpu.price
        quote = (price.usd_per_hour, price.date, price.source) if price else (0.0, "", "none known: enter your own")
        sizes = (float(gpu.memory_bytes) / 1e9, float(gpu.memory_bandwidth) / 1e9)
        rows.append((gpu.name, *sizes, float(gpu.tdp_w), *quote))
    _filled(sheet, columns, rows)


def lists(offers: Offers, place: int) -> str:
    """The range of a column of the sheet GPUs."""
    return f"GPUs!${'ABCDEFG'[place]}${_HEAD + 2}:${'ABCDEFG'[place]}${_HEAD + 1 + len(offers.gpus)}"


def write_constants(book: Book, offers: Offers, chosen: Sequence[Cell]) -> Constants:
    """Every combination with its numbers, and those of the one that the cells `chosen` name."""
    parameters, tables = list(offers.merge.parameters.values()), Tables()
    columns = [[_number(value, tables) for value in entry.values] for entry in parameters]
    known, last = _write_deployments(book, offers, columns), _HEAD + len(offers.entries)

    def below(column: int) -> str:
        return known.area((_HEAD + 1, column), (last, column))

    sheet = book.sheet("Constants", "The chosen deployment", "Looked up on sheet Deployments; SI units.")
    sheet.widths(26, 48, 60)
    for number, text in enumerate(
        ("combination", "row (0: no such combination)", "why it cannot be run", "can be run")
    ):
        sheet.put(_HEAD + number, 0, text)
    key = chosen[0]
    for cell in chosen[1:]:
        key = composed("joined", composed("joined", key, literal("|")), cell)
    key = sheet.put(_HEAD, 1, key)
    place = [entry.key for entry in offers.entries].index(key.value)
    entry = offers.entries[place]
    row = function(f"IFERROR(MATCH({{0}},{below(0)},0),0)", place + 1.0, key)
    row = book.name("dep_row", sheet.put(_HEAD + 1, 1, row))
    reason = Cell(f'INDEX({below(1)},MAX(dep_row,1))&""', entry.reason)
    reason = sheet.put(_HEAD + 2, 1, when(row >= 1.0, reason, "choose from the drop-downs of Inputs"))
    offered = sheet.put(_HEAD + 3, 1, (row >= 1.0) & reason.equals(""), "general")
    cells, uses, place = {}, _uses(offers), offers.run.index(entry)
    for number, (parameter, values) in enumerate(zip(parameters, columns, strict=True)):
        at = _HEAD + 5 + number
        sheet.put(at, 0, f"p{number + 1}")
        meaning = parameter.quantity.meaning if parameter.quantity else ""
        sheet.put(at, 2, ": ".join(filter(None, (uses.get(parameter.node), meaning))))
        value = Cell(f"INDEX({below(2 + number)},MAX(dep_row,1))", values[place])
        cells[parameter.node] = sheet.put(at, 1, value, "general")
    return Constants(offered, reason, cells, tables)


def _number(value: Any, tables: Tables) -> float:
    return float(tables.place(value)) if isinstance(value, Table) else float(literal(float(value)).value)


def _write_deployments(book: Book, offers: Offers, columns: Sequence[Sequence[float]]) -> Sheet:
    """One row a combination; what cannot be run has the numbers of the first that can."""
    note = "One row a combination of the drop-downs: why it cannot be run, or its constants (sheet Constants)."
    sheet = book.sheet("Deployments", "Deployments", note)
    sheet.widths(48, 40)
    sheet.heads(_HEAD, ("key", "reason", *(f"p{number}" for number in range(1, len(columns) + 1))))
    run = iter(range(len(offers.run)))
    for row, entry in enumerate(offers.entries, _HEAD + 1):
        sheet.put(row, 0, entry.key)
        sheet.put(row, 1, entry.reason)
        place = next(run) if entry.traced is not None else 0
        for column, values in enumerate(columns, 2):
            sheet.put(row, column, values[place], "general")
    sheet.page.freeze_panes(_HEAD + 1, 1)
    return sheet


def _uses(offers: Offers) -> dict[Symbol, str]:
    """The first kernel that each constant is part of."""
    found: dict[Symbol, str] = {}
    for node, (step, kernel, _) in offers.merge.named.items():
        for part in reachable([node]):
            if part.op == "var":
                found.setdefault(part, f"{step}, {kernel}")
    return found


def write_tables(book: Book, tables: Tables) -> None:
    """The corrections, a row each, padded to the same width; and the names by which formulas find them."""
    note = "Ratio measured / formula at nodes (powers of 2 of sizes), interpolated between them. A row is one table."
    sheet = book.sheet("Surfaces", "Corrections", note)
    rows = list(tables.rows)
    axes = max((len(table.axes) for table in rows), default=1)
    if not rows:
        return
    held = [[*table.axes, *[(0.0,)] * (axes - len(table.axes))] for table in rows]
    widths = [max(len(nodes[axis]) for nodes in held) for axis in range(axes)]
    most, last, start = max(len(table.values) for table in rows), _HEAD + len(rows), 0
    for axis in range(axes):
        for label, width in ((f"count_{axis + 1}", 1), (f"nodes_{axis + 1}", widths[axis])):
            book.file.define_name(label, "=" + sheet.area((_HEAD + 1, start), (last, start + width - 1)))
            sheet.put(_HEAD, start, label, "head")
            start += width
    book.file.define_name("table_values", "=" + sheet.area((_HEAD + 1, start), (last, start + most - 1)))
    sheet.put(_HEAD, start, "table_values", "head")
    for row, (table, nodes) in enumerate(zip(rows, held, strict=True), _HEAD + 1):
        line = [
            value
            for each, width in zip(nodes, widths, strict=True)
            for value in (float(len(each)), *each, *[_FAR] * (width - len(each)))
        ]
        for column, value in enumerate((*line, *table.values)):
            sheet.put(row, column, value, "general")
    sheet.page.freeze_panes(_HEAD + 1, 0)


def _joined(first: Cell, second: Cell | str) -> Cell:
    return composed("joined", first, literal(second))

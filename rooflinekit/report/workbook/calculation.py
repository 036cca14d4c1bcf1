"""The calculation of static batches in cells: a row is a node of the graph of all offered deployments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooflinekit.model.graph.cells import Cell, CellBlock, CellPage, Column, composed
from rooflinekit.model.graph.trace import bare
from rooflinekit.report.workbook.data import Constants
from rooflinekit.report.workbook.inputs import Inputs
from rooflinekit.report.workbook.offers import WorkbookOffers
from rooflinekit.report.workbook.sheet import HEAD, Book, at_least_one, every

_FIRST = 3  # column of values
_NAME = "Points"


@dataclass(frozen=True)
class PointResults:
    """Results of a static batch by name, written when they are asked for; valid: whether its sizes make sense."""

    column: Column
    outputs: Mapping[str, object]
    valid: Cell

    def __getitem__(self, name: str) -> Cell:
        return self.column.cell(self.outputs.get(name, 0.0))


def block_of(book: Book, offers: WorkbookOffers) -> CellBlock:
    """The sheet Points."""
    return CellBlock(offers.outputs.values(), HEAD + 1, {entry.node for entry in offers.merge.parameters.values()})


@dataclass
class Calculation:
    """Writes columns of one deployment to the sheet Points."""

    book: Book
    offers: WorkbookOffers
    constants: Constants
    inputs: Inputs
    block: CellBlock
    of: str = ""  #: whose columns these are, where it is not the chosen one

    def __post_init__(self) -> None:
        sheet, constants = self.book.sheet(_NAME), self.constants
        put = lambda row, column, cell: sheet.put(row, _FIRST + column, cell, "general")  # noqa: E731 - short
        self._fixed = self._column("of the plan", {}, CellPage(constants.cells, constants.tables, put))
        self.gpus = self._fixed.cell(self.offers.outputs["gpus"])

    def point(self, head: str, batch: Cell, isl: Cell, osl: Cell) -> PointResults:
        """A static batch."""
        cached = self.inputs["cached"]
        sizes = {"batch": batch, "isl": isl, "osl": osl, "cached": cached}
        valid = every([*map(at_least_one, (batch, isl, osl)), composed("<", cached, isl)])
        return PointResults(self._column(head, sizes, self._fixed), self.offers.outputs, valid)

    def _column(self, head: str, inputs: Mapping[str, Cell], before: Column | CellPage) -> Column:
        return Column(self.block, f"{self.of} {head}".strip(), inputs, before)


def write_labels(book: Book, offers: WorkbookOffers, block: CellBlock) -> None:
    """Heads of columns, and what each row is: a part of a kernel's time, a result, or a quantity with a name."""
    sheet = book.sheet(_NAME)
    sheet.heads(HEAD, ("step", "kernel", "quantity", *block.heads))
    results = {bare(node): name for name, node in reversed(list(offers.outputs.items()))}
    parts = {bare(node): label for node, label in offers.merge.named.items()}
    step = kernel = ""
    for node, rows in reversed(block.places.items()):
        label, result, quantity = parts.get(node), results.get(node), block.quantities.get(node)
        text = "correction" if node.op == "lattice" else ""
        if quantity:
            text = f"{quantity.symbol}: {quantity.meaning}" + f" [{quantity.unit}]" * bool(quantity.unit)
        if label:
            step, kernel, part = label
            text = f"{part} [s]"
        elif result and not result.startswith("kernel."):
            step, kernel, text = "", "", result
        for row in rows:
            told = text if row == rows[-1] else "share of the way to the next" if (rows[-1] - row) % 2 else "node below"
            for column, value in enumerate((step, kernel, told)):
                if value:
                    sheet.put(row, column, value, "text" if text else "note")

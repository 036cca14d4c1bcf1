"""The calculation in cells: operating points, times that requests share, and the open loop of the command line.

A row is a node of the graph of all offered deployments, a column one set of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rooflinekit.model.graph.cells import Block, Cell, Column, Page
from rooflinekit.model.graph.trace import bare
from rooflinekit.report.workbook.data import Constants
from rooflinekit.report.workbook.inputs import Inputs
from rooflinekit.report.workbook.offers import Offers
from rooflinekit.report.workbook.sheet import Book, Sheet

_HEAD, _FIRST = 3, 3  # row of the heads; first column of values
_TRAFFIC = ("isl", "osl", "cached", "isl_cv", "osl_cv", "burstiness")


@dataclass(frozen=True)
class Found:
    """Results of one column by name, written when they are asked for."""

    column: Column
    outputs: Mapping[str, object]
    before: str = ""

    def __getitem__(self, name: str) -> Cell:
        return self.column.cell(self.outputs.get(self.before + name, 0.0))


_SHEETS = {
    "Points": ("Operating points", "A column each: static batches, all prompts at once."),
    "Times": ("Times that requests share", "A column a number of sequences that run at once."),
    "Load": ("Under load", "Approximate: the steady state of an open loop by formula, a column a round of its root."),
}


def blocks_of(book: Book, offers: Offers) -> dict[str, Block]:
    """The sheets Points, Times and Load, with a row for each node of the graph."""
    found = {}
    for name, (title, note) in _SHEETS.items():
        sheet = book.sheet(name, title, f"{note} SI units; rows of no kernel are parts of the next that has one.")
        sheet.widths(12, 26, 14)
        sheet.page.set_column(_FIRST, 400, 14)
        sheet.page.freeze_panes(_HEAD + 1, _FIRST)
        outputs = [node for key, node in offers.outputs.items() if _sheet_of(key) == name]
        parameters = {entry.node for entry in offers.merge.parameters.values()}
        found[name] = Block(outputs, _HEAD + 1, parameters)
    return found


def _sheet_of(output: str) -> str:
    return "Times" if output.startswith("shared.") else "Load" if output.startswith(("load.", "slots")) else "Points"


def write_labels(book: Book, offers: Offers, blocks: Mapping[str, Block]) -> None:
    """Heads of columns and labels of rows."""
    for name, block in blocks.items():
        sheet = book.sheet(name)
        sheet.heads(_HEAD, ("step", "kernel", "quantity", *block.heads))
        _labels(sheet, block, offers)


@dataclass
class Calculation:
    """Writes columns of one deployment to the sheets Points, Times and Load."""

    book: Book
    offers: Offers
    constants: Constants
    inputs: Inputs
    blocks: Mapping[str, Block]
    of: str = ""  #: whose columns these are, where it is not the chosen one
    _users: dict[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {name: self.inputs[name] for name in ("isl", "osl", "cached", "osl_cv")}
        self._shared = self._column("Times", "any number", lengths)
        traffic = {name: self.inputs[name] for name in _TRAFFIC} | {"most": self.inputs.most}
        self._any = self._column("Load", "any rate", traffic)
        self._fixed = self._column("Points", "of the plan", {})
        self.room = self._any.cell(self.offers.outputs["slots"])
        self.knee = self._any.cell(self.offers.outputs.get("load.knee", 0.0))
        self.gpus = self._fixed.cell(self.offers.outputs["gpus"])

    def point(self, head: str, batch: Cell, isl: Cell, osl: Cell) -> Found:
        """A static batch."""
        sizes = {"batch": batch, "isl": isl, "osl": osl, "cached": self.inputs["cached"]}
        return Found(self._column("Points", head, sizes, self._fixed), self.offers.outputs)

    def load(self, head: str, rate: Cell) -> Found:
        """One replica at a rate of requests."""
        return Found(self._column("Load", head, {"rate": rate}, self._any), self.offers.outputs, "load.")

    def _column(self, name: str, head: str, inputs: Mapping[str, Cell], before: Column | None = None) -> Column:
        sheet, constants = self.book.sheet(name), self.constants
        page = Page(
            constants.cells,
            constants.tables,
            lambda row, column, cell: sheet.put(row, _FIRST + column, cell, "general"),
            self._called,
        )
        return Column(self.blocks[name], f"{self.of} {head}".strip(), inputs, before or page)

    def _called(self, name: str, users: Cell) -> Cell:
        """A time that requests share, on the sheet Times."""
        if users.text not in self._users:
            head = users.text.replace("$", "")
            self._users[users.text] = self._column("Times", head, {"users": users}, self._shared)
        return self._users[users.text].cell(self.offers.outputs[name])


def _labels(sheet: Sheet, block: Block, offers: Offers) -> None:
    """What each row is: a part of a kernel's time, a result, or a quantity with a name."""
    results = {bare(node): name for name, node in reversed(list(offers.outputs.items()))}
    parts = {bare(node): label for node, label in offers.merge.named.items()}
    step = kernel = ""
    for node, rows in reversed(block.places.items()):
        label, result, quantity = parts.get(node), results.get(node), block.quantities.get(node)
        text = _KINDS.get(node.op, "")
        if quantity:
            text = f"{quantity.symbol}: {quantity.meaning}" + f" [{quantity.unit}]" * bool(quantity.unit)
        if label:
            step, kernel, part = label
            text = f"{part} [s]"
        elif result and not result.startswith("kernel."):
            step = kernel = ""
            text = result.removeprefix("load.").removeprefix("shared.")
        for row in rows:
            told = text if row == rows[-1] else "share of the way to the next" if (rows[-1] - row) % 2 else "node below"
            for column, value in enumerate((step, kernel, told)):
                if value:
                    sheet.put(row, column, value, "text" if text else "note")


_KINDS = {"held": "state of the round", "result": "state after the last round", "lattice": "correction"}

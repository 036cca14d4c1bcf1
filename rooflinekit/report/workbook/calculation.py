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

__all__ = ["Calculation", "Found"]

_HEAD, _FIRST = 3, 3  # row of the heads; first column of values
_TRAFFIC = ("isl", "osl", "cached", "most", "isl_cv", "osl_cv", "burstiness")


@dataclass(frozen=True)
class Found:
    """Results of one column by name, written when they are asked for."""

    column: Column
    outputs: Mapping[str, object]
    before: str = ""

    def __getitem__(self, name: str) -> Cell:
        return self.column.cell(self.outputs.get(self.before + name, 0.0))


@dataclass
class Calculation:
    """Writes columns to the sheets Points, Times and Load."""

    book: Book
    offers: Offers
    constants: Constants
    inputs: Inputs
    _users: dict[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        told = {
            "Points": ("Operating points", "A column each: static batches, all prompts at once."),
            "Times": ("Times that requests share", "A column a number of sequences that run at once."),
            "Load": ("Under load", "The open loop of `rooflinekit estimate --rate`: a column a round of its root."),
        }
        for name, (title, note) in told.items():
            sheet = self.book.sheet(
                name, title, f"{note} SI units; rows of no kernel are parts of the next that has one."
            )
            sheet.widths(12, 26, 14)
            sheet.page.set_column(_FIRST, 400, 14)
            sheet.page.freeze_panes(_HEAD + 1, _FIRST)
        named = self.offers.outputs
        self._points = self._block(
            "Points", [key for key in named if not key.startswith(("shared.", "load.", "slots"))]
        )
        self._times = self._block("Times", [key for key in named if key.startswith("shared.")])
        self._load = self._block("Load", [key for key in named if key.startswith(("load.", "slots"))])
        self._shared = Column(self._times, "any number", {name: self.inputs[name] for name in ("isl", "osl", "cached")})
        self._any = Column(self._load, "any rate", {name: self._traffic(name) for name in _TRAFFIC})
        self.room = self._any.cell(named["slots"])
        self.knee = self._any.cell(named.get("load.knee", 0.0))
        self._fixed = Column(self._points, "of the plan", {})

    def point(self, head: str, batch: Cell, isl: Cell, osl: Cell) -> Found:
        """A static batch."""
        sizes = {"batch": batch, "isl": isl, "osl": osl, "cached": self.inputs["cached"]}
        return Found(Column(self._points, head, sizes, self._fixed), self.offers.outputs)

    def load(self, head: str, rate: Cell) -> Found:
        """One replica at a rate of requests."""
        return Found(Column(self._load, head, {"rate": rate}, self._any), self.offers.outputs, "load.")

    def finish(self) -> None:
        """Write heads and labels."""
        for name, block in (("Points", self._points), ("Times", self._times), ("Load", self._load)):
            sheet = self.book.sheet(name)
            sheet.heads(_HEAD, ("step", "kernel", "quantity", *block.heads))
            _labels(sheet, block, self.offers)

    def _traffic(self, name: str) -> Cell:
        return self.inputs.most if name == "most" else self.inputs[name]

    def _block(self, name: str, outputs: list[str]) -> Block:
        sheet = self.book.sheet(name)
        page = Page(
            self.constants.cells,
            self.constants.tables,
            lambda row, column, cell: sheet.put(row, _FIRST + column, cell, "general"),
            self._called,
        )
        return Block([self.offers.outputs[key] for key in outputs], _HEAD + 1, page)

    def _called(self, name: str, users: Cell) -> Cell:
        """A time that requests share, on the sheet Times."""
        if users.text not in self._users:
            self._users[users.text] = Column(self._times, users.text.replace("$", ""), {"users": users}, self._shared)
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

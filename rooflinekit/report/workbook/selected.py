"""The deployment that the drop-downs choose: its numbers, and the kernels in their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooflinekit.report.workbook.columns import COLUMNS, span_of
from rooflinekit.report.workbook.data import DEPLOYMENT, Data
from rooflinekit.report.workbook.formula import Formula, Range, index, joined, match, when
from rooflinekit.report.workbook.inputs import Inputs
from rooflinekit.report.workbook.sheet import Book, Sheet

__all__ = ["Selected", "Slot", "write_selected"]

_HEAD = 3


@dataclass(frozen=True)
class Slot:
    """One place of a kernel: a row of the sheet Slots."""

    sheet: Sheet
    row: int

    def __getitem__(self, name: str) -> Formula:
        return self.sheet.at(self.row, COLUMNS.index(name))

    def terms(self, group: str) -> Range:
        """The five terms of a sum."""
        return self.sheet.across(self.row, *span_of(group))

    def cells(self, first: str, last: str) -> Range:
        """Neighbouring columns."""
        return self.sheet.across(self.row, COLUMNS.index(first), COLUMNS.index(last))


@dataclass(frozen=True)
class Selected:
    """Numbers of the chosen deployment by name, and its kernels by kind of step."""

    numbers: Mapping[str, Formula]
    row: Formula
    reason: Formula
    prefill: tuple[Slot, ...]
    decode: tuple[Slot, ...]
    growing: tuple[Slot, ...]

    def __getitem__(self, name: str) -> Formula:
        return self.numbers[name]


def write_selected(book: Book, inputs: Inputs, data: Data) -> Selected:
    """Look up everything of the chosen combination, once."""
    sheet = book.sheet("Deployment")
    sheet.page.set_column(0, 0, 26)
    sheet.page.set_column(1, 1, 48)
    sheet.put(0, 0, "The chosen deployment", "title")
    sheet.put(1, 0, "Looked up on sheet Deployments; sizes in bytes on one GPU, times in seconds.", "note")
    key = joined(*(part for name in ("model", "gpu", "tp", "weights", "kv") for part in (inputs[name], "|")))
    key = Formula(key.text.removesuffix('&"|")') + ")", str(key.value).removesuffix("|"))
    sheet.put(_HEAD, 0, "combination")
    chosen = sheet.put(_HEAD, 1, key)
    known = data.deployments.column("key")
    sheet.put(_HEAD + 1, 0, "row (0: no such combination)")
    row = book.name("dep_row", sheet.put(_HEAD + 1, 1, match(chosen, known, 0.0)))
    sheet.put(_HEAD + 2, 0, "why it cannot be run")
    told = index(data.deployments.column("reason"), row)
    told = Formula(f'{told.text}&""', "" if told.value == 0.0 else told.value)
    reason = sheet.put(_HEAD + 2, 1, when(row >= 1.0, told, "choose from the drop-downs of Inputs"))
    numbers = {}
    for number, name in enumerate(DEPLOYMENT, _HEAD + 3):
        sheet.put(number, 0, name)
        fallback = 1.0 if name in _DIVISORS else 0.0
        found = when(row >= 1.0, index(data.deployments.column(name), row), fallback)
        numbers[name] = book.name(f"dep_{name}", sheet.put(number, 1, found, "general"))
    slots = _slots(book, row, data)
    counts = data.slots
    parts = (slots[: counts[0]], slots[counts[0] : counts[0] + counts[1]], slots[counts[0] + counts[1] :])
    return Selected(numbers, row, reason, *(tuple(part) for part in parts))


_DIVISORS = ("host_token_budget", "block", "slope_1", "gpus", "host_factor")


def _slots(book: Book, row: Formula, data: Data) -> list[Slot]:
    """The kernels of the chosen deployment, one a row, prefill first."""
    sheet = book.sheet("Slots")
    sheet.put(0, 0, "Kernels of the chosen deployment", "title")
    sheet.put(1, 0, "Rows of Kernel data in their places: prefill, decode, decode with the context. SI units.", "note")
    sheet.heads(_HEAD, (*COLUMNS, "row of Kernel data"))
    places = [f"{kind}_{n}" for kind, most in zip("pdg", data.slots, strict=True) for n in range(1, most + 1)]
    slots = []
    for number, place in enumerate(places, _HEAD + 1):
        at = when(row >= 1.0, index(data.deployments.column(place), row), 1.0)
        kernel = sheet.put(number, len(COLUMNS), at, "general")
        for column, name in enumerate(COLUMNS):
            found = index(data.kernels.column(name), kernel)
            if name in ("name", "family"):
                found = Formula(f'{found.text}&""', "" if found.value == 0.0 else found.value)
            sheet.put(number, column, found, "general")
        slots.append(Slot(sheet, number))
    sheet.page.freeze_panes(_HEAD + 1, 1)
    return slots

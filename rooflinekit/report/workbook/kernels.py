"""The sheet Kernels: what every kernel of the operating point does, and takes."""

from __future__ import annotations

from rooflinekit.report.workbook.calc import KernelCells
from rooflinekit.report.workbook.formula import Formula, Range, maximum, summed, when
from rooflinekit.report.workbook.points import Point
from rooflinekit.report.workbook.selected import Selected, Slot
from rooflinekit.report.workbook.sheet import Book, Sheet

__all__ = ["write_kernels"]

_HEAD = 3


def write_kernels(book: Book, dep: Selected, point: Point) -> None:
    """Every kernel of the operating point, with what limits it."""
    sheet = book.sheet("Kernels")
    sheet.put(0, 0, "Kernels at the operating point of Inputs", "title")
    sheet.put(
        1,
        0,
        "Prefill: one step over all prompts. Decode: one step at the mean context. All launches, on one GPU.",
        "note",
    )
    sheet.page.set_column(0, 0, 10)
    sheet.page.set_column(1, 2, 22)
    sheet.page.set_column(3, 11, 14)
    heads = ("step", "kernel", "family", "launches", "GFLOP", "weights and cache [MB]", "activations [MB]",
             "bound [us]", "expected [us]", "low [us]", "high [us]", "share of step")  # fmt: skip
    sheet.heads(_HEAD, heads, (0, 1, 2))
    sheet.page.set_row(_HEAD, 32)
    counts = len(dep.prefill), len(dep.decode), len(dep.growing)
    mean = point.kernels[len(point.kernels) - counts[2] :]
    row = _HEAD + 1
    for step, slots, cells in (
        ("prefill", dep.prefill, point.kernels[: counts[0]]),
        ("decode", (*dep.growing, *dep.decode), (*mean, *point.kernels[counts[0] : counts[0] + counts[1]])),
    ):
        total = summed(Range("+".join(cell.time.text for cell in cells), [cell.time.value for cell in cells]))
        for slot, cell in zip(slots, cells, strict=True):
            _kernel_line(sheet, row, (step, slot), cell, total)
            row += 1
    sheet.page.freeze_panes(_HEAD + 1, 2)


def _kernel_line(sheet: Sheet, row: int, what: tuple[str, Slot], cell: KernelCells, total: Formula) -> None:
    step, slot = what
    taken = slot["count"] > 0.0

    def cellwise(value: Formula) -> Formula:
        return when(taken, value, "")

    sheet.put(row, 0, when(taken, step, ""))
    sheet.put(row, 1, slot["name"])
    sheet.put(row, 2, slot["family"])
    values = (
        (slot["count"], "whole"), (cell.flops * slot["count"] / 1e9, "two"),
        (cell.streamed * slot["count"] / 1e6, "two"),
        (cell.activations * slot["count"] / 1e6, "two"), (cell.bound * 1e6, "one"), (cell.time * 1e6, "one"),
        (cell.low * 1e6, "one"), (cell.high * 1e6, "one"), (cell.time / maximum(total, 1e-12), "share"),
    )  # fmt: skip
    for column, (value, style) in enumerate(values, 3):
        sheet.put(row, column, cellwise(value), style)

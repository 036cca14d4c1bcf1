"""Operating points, one a row: TTFT, TPOT and memory as `rooflinekit.model.coefficients.plan` adds them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rooflinekit.report.workbook.calc import HEADS, KernelCells, Row, StepCells, write_kernel
from rooflinekit.report.workbook.data import Data
from rooflinekit.report.workbook.formula import (
    Formula,
    Given,
    Range,
    ceil,
    floor,
    maximum,
    minimum,
    summed,
    when,
)
from rooflinekit.report.workbook.memory import memory_cells
from rooflinekit.report.workbook.selected import Selected, Slot
from rooflinekit.report.workbook.sheet import Book, Sheet

__all__ = ["Point", "Points"]

_HEAD = 3
_SIGMAS = 1.645  # as in rooflinekit.model.execution
_ENDS = ("bound", "time", "low", "high")
_BOUND_COLUMN, _TIME_COLUMN = HEADS.index("bound [s]"), HEADS.index("time [s]")


@dataclass(frozen=True)
class Point:
    """Cells of one operating point, by name; and the rows of its kernels."""

    cells: Mapping[str, Formula]
    kernels: tuple[KernelCells, ...]  #: prefill, decode, then decode with the context four times

    def __getitem__(self, name: str) -> Formula:
        return self.cells[name]


@dataclass
class Points:
    """Writes operating points to the sheets Points and Calc."""

    book: Book
    selected: Selected
    data: Data
    count: int = 0
    free: int = _HEAD + 1  #: next row of Calc
    heads: list[str] = field(default_factory=list)

    def add(self, label: str, batch: Formula, isl: Formula, osl: Formula) -> Point:
        """Evaluate one point."""
        sheet, calc = self.book.sheet("Points"), self.book.sheet("Calc")
        if not self.count:
            _titles(sheet, calc)
        line = _Named(sheet, _HEAD + 1 + self.count)
        line.add("point", label)
        size = {"batch": line.add("batch", batch), "isl": line.add("isl", isl), "osl": line.add("osl", osl)}
        parts = _decode_parts(line, size["isl"], size["osl"])
        size["tokens"] = line.add("tokens", size["batch"] * size["isl"])
        self.count += 1
        kernels = self._ttft(line, calc, size)
        kernels += self._tpot(line, calc, size, parts)
        memory_cells(line.add, self.selected, size)
        if not self.heads:
            self.heads = list(line.cells)
            sheet.heads(_HEAD, self.heads)
        return Point(line.cells, tuple(kernels))

    def _ttft(self, line: _Named, calc: Sheet, size: Mapping[str, Formula]) -> list[KernelCells]:
        step = StepCells(size["batch"], size["tokens"], size["isl"])
        kernels = self._kernels(calc, self.selected.prefill, step)
        ends = _columns(calc, kernels)
        time = line.add("prefill kernels", summed(ends["time"]))
        host = self.selected
        passes = line.add("passes", maximum(ceil(size["tokens"] / host["host_token_budget"]), 1.0))
        busy = (host["prefill_launches"], time)
        added = self._added(line, "prefill", (passes, size["batch"]), busy)
        bound = line.add("ttft_bound", summed(ends["bound"]))
        total = [summed(ends[end]) + added[end] for end in ("time", "low", "high")]
        self._widened(line, "ttft", bound, total)
        return kernels

    def _tpot(
        self, line: _Named, calc: Sheet, size: Mapping[str, Formula], parts: Sequence[tuple[Formula, ...]]
    ) -> list[KernelCells]:
        batch, selected = size["batch"], self.selected
        fixed = self._kernels(calc, selected.decode, StepCells(batch, batch, 1.0, line["mean context"], 1.0, False))
        spans = {end: summed(cells) for end, cells in _columns(calc, fixed).items()}
        blocks = [self._kernels(calc, selected.growing, StepCells(batch, batch, 1.0, first, steps))
                  for first, steps, _ in parts]  # fmt: skip
        mean = self._kernels(calc, selected.growing, StepCells(batch, batch, 1.0, line["mean context"]))
        time = line.add("decode kernels", spans["time"] + summed(_columns(calc, mean)["time"]))
        eager = selected["host_eager_decode"] >= 1.0
        launches = when(eager, selected["decode_launches"], 0.0)
        added = self._added(line, "decode", (Formula("1", 1.0), batch), (launches, time))
        for block, (_, _, weight) in zip(blocks, parts, strict=True):
            for end, cells in _columns(calc, block).items():
                spans[end] = spans[end] + weight * summed(cells)
        bound = line.add("tpot_bound", spans["bound"])
        self._widened(line, "tpot", bound, [spans[end] + added[end] for end in ("time", "low", "high")])
        return [*fixed, *(kernel for block in (*blocks, mean) for kernel in block)]

    def _kernels(self, calc: Sheet, slots: Sequence[Slot], step: StepCells) -> list[KernelCells]:
        written = []
        for slot in slots:
            written.append(write_kernel(Row(calc, self.free, self.count), slot, step, self.data.surfaces))
            self.free += 1
        return written

    def _added(
        self, line: _Named, step: str, sizes: tuple[Formula, Formula], busy: tuple[Formula, Formula]
    ) -> dict[str, Formula]:
        """Host work and gaps of a step, with their interval."""
        passes, sequences = sizes
        launches, kernels = busy
        dep = self.selected
        host = line.add(f"{step} host", passes * dep["host_step"] + sequences * dep["host_sequence"])
        doubt = (passes * dep["host_step_error"] + sequences * dep["host_sequence_error"]) * _SIGMAS
        layers = line.add(f"{step} layers", passes * dep["host_layers"])
        layers_doubt = passes * dep["host_layers_error"] * _SIGMAS
        gaps = line.add(f"{step} gaps", maximum(passes * (launches * dep["host_launch"]) - kernels, 0.0))
        gaps_doubt = when(gaps > 0.0, dep["host_launch_error"] * launches * _SIGMAS, 0.0)
        pieces = ((host, doubt), (layers, layers_doubt), (gaps, gaps_doubt))
        lows = [maximum(time - error, 0.0) for time, error in pieces]
        return {
            "time": host + layers + gaps,
            "low": lows[0] + lows[1] + lows[2],
            "high": host + doubt + layers + layers_doubt + gaps + gaps_doubt,
        }

    def _widened(self, line: _Named, name: str, bound: Formula, total: Sequence[Formula]) -> None:
        factor = self.selected["host_factor"]
        time = line.add(f"{name}_time", total[0])
        line.add(f"{name}_low", maximum(minimum(total[1], time / factor), bound))
        line.add(f"{name}_high", maximum(total[2], time * factor))


class _Named:
    """Cells of one row of Points, by name."""

    def __init__(self, sheet: Sheet, row: int) -> None:
        self.sheet, self.row = sheet, row
        self.cells: dict[str, Formula] = {}

    def __getitem__(self, name: str) -> Formula:
        return self.cells[name]

    def add(self, name: str, content: Given) -> Formula:
        self.cells[name] = self.sheet.put(self.row, len(self.cells), content, "general")
        return self.cells[name]


def _decode_parts(line: _Named, isl: Formula, osl: Formula) -> list[tuple[Formula, ...]]:
    """First key, steps and weight of three parts of the output; the context of the mean step."""
    steps = line.add("steps", maximum(osl - 1.0, 1.0))
    outer = line.add("outer", floor((steps + 1.0) / 3.0))
    middle = line.add("middle", steps - 2.0 * outer)
    line.add("mean context", isl + (steps + 1.0) / 2.0)
    parts: list[tuple[Formula, ...]] = []
    before = isl + 1.0
    for number, length in enumerate((outer, middle, outer), 1):
        first = line.add(f"first {number}", before)
        parts.append(
            (first, line.add(f"steps {number}", maximum(length, 1.0)), line.add(f"weight {number}", length / steps))
        )
        before = first + length
    return parts


def _columns(calc: Sheet, kernels: Sequence[KernelCells]) -> dict[str, Range]:
    """Columns of neighbouring rows of Calc: bound, time, low, high."""
    if not kernels:
        return {end: Range("0", [0.0]) for end in _ENDS}
    first, last = kernels[0].row, kernels[-1].row
    places = (_BOUND_COLUMN, _TIME_COLUMN, _TIME_COLUMN + 1, _TIME_COLUMN + 2)
    return {end: calc.down(place, first, last) for end, place in zip(_ENDS, places, strict=True)}


def _titles(points: Sheet, calc: Sheet) -> None:
    points.put(0, 0, "Operating points", "title")
    points.put(
        1, 0, "1: Inputs; 2: one prompt alone; then the sweeps. Times in seconds, sizes in bytes on one GPU.", "note"
    )
    points.page.set_column(0, 0, 18)
    points.page.freeze_panes(_HEAD + 1, 1)
    calc.put(0, 0, "Kernels of every operating point", "title")
    calc.put(
        1,
        0,
        "A row a kernel and step: work, bound, parts of its time, correction, interval (docs/workbook.md).",
        "note",
    )
    calc.page.set_column(1, 1, 20)
    calc.heads(_HEAD, HEADS)
    calc.page.freeze_panes(_HEAD + 1, 2)

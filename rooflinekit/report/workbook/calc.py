"""Time of one kernel in one step, in the cells of one row: `rooflinekit.model.coefficients.kernel` as formulas."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.report.workbook.columns import WORK
from rooflinekit.report.workbook.data import Surfaces
from rooflinekit.report.workbook.formula import (
    Formula,
    Given,
    Range,
    ceil,
    choose,
    floor,
    index,
    log2,
    maximum,
    minimum,
    position,
    sqrt,
    sumproduct,
    when,
)
from rooflinekit.report.workbook.selected import Slot
from rooflinekit.report.workbook.sheet import Sheet

__all__ = ["HEADS", "KernelCells", "Row", "StepCells", "write_kernel"]

_TILE, _PADDING = 128.0, 64.0
HEADS = (
    "point", "kernel", "one", "sequences", "tokens", "pairs", "experts", "keys", "rows", *WORK, "bound [s]", "launch",
    "compute", "memory", "beside", "x", "i", "share x", "y", "j", "share y", "ratio", "first time", "shift", "factor",
    "time [s]", "low [s]", "high [s]",
)  # fmt: skip


@dataclass(frozen=True)
class StepCells:
    """A step: sequences, tokens, new tokens of each; `first` key and number of decode steps (None: a prefill)."""

    sequences: Formula
    tokens: Formula
    new: Formula | float
    first: Formula | None = None
    steps: Formula | float = 1.0
    grows: bool = True  #: False where no kernel asks for the context


@dataclass(frozen=True)
class KernelCells:
    """Where a kernel's answer stands."""

    row: int
    bound: Formula
    time: Formula
    low: Formula
    high: Formula
    flops: Formula
    streamed: Formula
    activations: Formula


class Row:
    """Cells of one row, one after the other; the first is the number of the operating point."""

    def __init__(self, sheet: Sheet, row: int, point: int) -> None:
        self.sheet, self.row, self.column = sheet, row, 0
        self.add(float(point))

    def add(self, content: Given) -> Formula:
        """The next cell."""
        cell = self.sheet.put(self.row, self.column, content, "general")
        self.column += 1
        return cell


def write_kernel(line: Row, slot: Slot, step: StepCells, surfaces: Surfaces) -> KernelCells:
    """Write the row of one kernel in one step."""
    line.add(slot["name"])
    line.add(1.0)
    line.add(step.sequences)
    line.add(step.tokens)
    seen = _pairs(slot, step)
    pairs = line.add(seen * step.sequences)
    touched = line.add(slot["experts"] * (1.0 - _untouched(slot["missed"], step.tokens)))
    basis = line.sheet.across(line.row, 2, 6)
    keys = line.add(pairs / step.sequences if step.first is not None else step.new)
    rows = line.add(when(slot["by_tokens"] >= 1.0, step.tokens, step.sequences))
    work = [line.add(sumproduct(slot.terms(group), basis)) for group in WORK]
    flops, streamed, activations, links, nics = work
    moved = (streamed + maximum(activations - slot["cache"], 0.0)) / slot["bandwidth"]
    bound = line.add(slot["count"] * maximum(flops / slot["peak"], moved, links, nics))
    sizes = _Sizes(step, pairs, keys, rows, touched)
    launch, first = _timed(line, slot, sizes, basis, surfaces)
    first = line.add(maximum(slot["count"] * first, bound))
    shift = line.add(slot["count"] * (slot["late"] - slot["hidden"] * launch))
    factor = line.add(_factor(slot, sizes))
    ends = (first, maximum(first / factor, bound), first * factor)
    time, low, high = (line.add(maximum(end * slot["repeats"] + shift, bound)) for end in ends)
    return KernelCells(line.row, bound, time, low, high, flops, streamed, activations)


def _untouched(missed: Formula, tokens: Formula) -> Formula:
    """Chance that no token picks an expert; 0 below e^-100, since spreadsheets may call a smaller power an error."""
    return when((1.0 - missed) * tokens > 100.0, 0.0, missed**tokens)


@dataclass(frozen=True)
class _Sizes:
    """What corrections and intervals depend on."""

    step: StepCells
    pairs: Formula
    keys: Formula
    rows: Formula
    touched: Formula

    def features(self) -> tuple[Formula, ...]:
        """In the order of `rooflinekit.model.coefficients.state.FEATURES`."""
        padded = when(self.rows <= _PADDING, self.rows, ceil(self.rows / _PADDING) * _PADDING)
        sequences = self.step.sequences
        length = sqrt(self.pairs / sequences * 2.0 + 0.25) - 0.5
        return self.rows, padded, sequences, self.step.tokens, self.keys, sequences * self.keys, length


def _timed(line: Row, slot: Slot, sizes: _Sizes, basis: Range, surfaces: Surfaces) -> tuple[Formula, Formula]:
    """Launch of one kernel, and its whole corrected time."""
    step, rows = sizes.step, sizes.rows
    latency = slot["log"] * log2(1.0 + slot["log_keys"] * sizes.keys + slot["log_tokens"] * step.tokens)
    tiles = slot["tiles"] * step.sequences * (ceil(step.new / _TILE) if isinstance(step.new, Formula) else 1.0)
    launch = line.add(sumproduct(slot.terms("launch"), basis) + latency + tiles)
    waves = ceil(rows / _TILE) * slot["columns"] / slot["cores"]
    tail = when(slot["tail"] > 0.0, slot["tail"] * when(waves >= 1.0, ceil(waves) - waves, 0.0), 0.0)
    padded = slot["rows"] * ceil(rows / slot["tile"]) * slot["tile"]
    compute = sumproduct(slot.terms("compute"), basis) + padded + tail
    if step.first is None:
        last = minimum(sizes.pairs / step.tokens + step.new / 2.0, sizes.keys)
        compute = compute + slot["farthest"] * last
    compute = line.add(compute)
    memory = line.add(sumproduct(slot.terms("memory"), basis))
    beside = line.add(sumproduct(slot.terms("beside"), basis) + slot["root"] * sqrt(rows))
    ratio = _ratio(line, slot, sizes, surfaces)
    return launch, (launch + _overlap(slot["sharpness"], compute, memory) + beside) * ratio


def _overlap(sharpness: Formula, compute: Formula, memory: Formula) -> Formula:
    """(x^p + y^p)^(1/p), the larger for 0: scaled by the larger, so that nothing is lost below 1E-300."""
    power = (compute**sharpness + memory**sharpness) ** (1.0 / sharpness)
    return when(sharpness.equals(0.0), maximum(compute, memory), power)


def _ratio(line: Row, slot: Slot, sizes: _Sizes, surfaces: Surfaces) -> Formula:
    """The correction: bilinear between the nodes around (x, y)."""
    place = slot["surface"]
    first = 2 + surfaces.first
    i, across = _axis(line, slot, "1", sizes, (surfaces, 0, 2, surfaces.first))
    j, along = _axis(line, slot, "2", sizes, (surfaces, 1, first, surfaces.second))
    rows, columns = _looked(surfaces, 0, 1, place, 1.0), _looked(surfaces, 1, 1, place, 1.0)
    start = first + surfaces.second

    def corner(more: float, beyond: float) -> Formula:
        row = minimum(i + more, rows) - 1.0
        return _looked(surfaces, start, surfaces.ratios, place, row * columns + minimum(j + beyond, columns))

    near = corner(0.0, 0.0) * (1.0 - along) + corner(0.0, 1.0) * along
    far = corner(1.0, 0.0) * (1.0 - along) + corner(1.0, 1.0) * along
    return line.add(slot["ratio"] * when(place <= 1.0, 1.0, near * (1.0 - across) + far * across))


def _axis(
    line: Row, slot: Slot, number: str, sizes: _Sizes, where: tuple[Surfaces, int, int, int]
) -> tuple[Formula, Formula]:
    """The node below on one axis, and the share of the way to the next."""
    surfaces, counted, start, width = where
    place, code = slot["surface"], slot[f"feature_{number}"]
    fixed = code.equals(0.0)
    size = slot[f"scale_{number}"] * choose(code, *sizes.features())
    spot = line.add(when(fixed, 0.0, log2(size)))
    count = _looked(surfaces, counted, 1, place, 1.0)
    nodes = _nodes(surfaces, start, width, place)
    below = minimum(position(maximum(spot, _looked(surfaces, start, width, place, 1.0)), nodes), count - 1.0)
    node = line.add(when(fixed, 1.0, maximum(below, 1.0)))
    low, high = (_looked(surfaces, start, width, place, node + more) for more in (0.0, 1.0))
    share = minimum(maximum((spot - low) / (high - low), 0.0), 1.0)
    return node, line.add(when(fixed, 0.0, share))


def _nodes(surfaces: Surfaces, start: int, width: int, place: Formula) -> Range:
    """The nodes of one surface: a whole row of the block."""
    row = _HEAD_ROWS + int(place.number) - 1
    held = surfaces.sheet.across(row, start, start + width - 1)
    return Range(f"INDEX({surfaces.block(start, width)},{place.text},0)", held.values)


def _looked(surfaces: Surfaces, start: int, width: int, place: Formula, column: Given) -> Formula:
    """One cell of a block of the sheet Surfaces."""
    at = column if isinstance(column, Formula) else Formula(f"{column:.0f}", column)
    row = _HEAD_ROWS + int(place.number) - 1
    value = index(surfaces.sheet.across(row, start, start + width - 1), at).value
    return Formula(f"INDEX({surfaces.block(start, width)},{place.text},{at.text})", value)


_HEAD_ROWS = 4  # above the first row of the sheet Surfaces


def _factor(slot: Slot, sizes: _Sizes) -> Formula:
    """Factor of the interval: that of the regime in which the size lies."""
    code = slot["width_feature"]
    size = slot["width_scale"] * choose(code, *sizes.features())
    regime = [when(size > slot[f"edge_{number}"], 1.0, 0.0) for number in (1, 2, 3)]
    chosen = index(slot.cells("factor_1", "factor_4"), 1.0 + regime[0] + regime[1] + regime[2])
    return when(code.equals(0.0), slot["factor_1"], chosen)


def _pairs(slot: Slot, step: StepCells) -> Formula:
    """Query-key pairs of one sequence."""
    window, chunk = slot["window"], slot["chunk"]
    limited = (window + chunk) > 0.0
    if step.first is None:
        new = step.new if isinstance(step.new, Formula) else Formula("1", 1.0)
        return when(limited, _seen(new, window, chunk), new * (new + 1.0) / 2.0)
    if not step.grows:
        return Formula("0", 0.0)
    last = step.first + step.steps - 1.0
    mean = (_seen(last, window, chunk) - _seen(step.first - 1.0, window, chunk)) / step.steps
    return when(limited, maximum(mean, 1.0), step.first + (step.steps - 1.0) / 2.0)


def _seen(tokens: Formula, window: Formula, chunk: Formula) -> Formula:
    """Pairs of the first tokens of a sequence under a window or chunk."""
    chunks = floor(tokens / chunk)
    rest = tokens - chunks * chunk
    by_chunk = chunks * (chunk * (chunk + 1.0) / 2.0) + rest * (rest + 1.0) / 2.0
    inside = minimum(tokens, window)
    by_window = inside * (inside + 1.0) / 2.0 + maximum(tokens - window, 0.0) * window
    return when(chunk > 0.0, by_chunk, by_window)

"""Results, sweeps and kernels: the sheets that people read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.report.workbook.charts import Area, sweep_chart
from rooflinekit.report.workbook.formula import Formula, Given, when
from rooflinekit.report.workbook.inputs import Inputs
from rooflinekit.report.workbook.points import Point
from rooflinekit.report.workbook.selected import Selected
from rooflinekit.report.workbook.sheet import Book, Sheet

__all__ = ["Lines", "shown", "status_colours", "write_results", "write_sweep"]

_GB = 1e9
GREEN, RED, AMBER = ("#C6EFCE", "#006100"), ("#FFC7CE", "#9C0006"), ("#FFEB9C", "#7F6000")


@dataclass
class Lines:
    """Label, value, unit and remark, one below the other; each value has a name."""

    book: Book
    sheet: Sheet
    row: int

    def section(self, title: str) -> None:
        """A head over the next lines."""
        self.row += 1
        for column, text in enumerate((title, "", "", "")):
            self.sheet.put(self.row, column, text, "section")
        self.row += 1

    def add(  # noqa: PLR0913, PLR0917 - the cells of one line
        self, name: str, label: str, value: Given, unit: str, style: str = "two", note: str = ""
    ) -> Formula:
        """One line; the answer is the value by its name, `out_` before it."""
        self.sheet.put(self.row, 0, label)
        cell = self.book.name(f"out_{name}", self.sheet.put(self.row, 1, value, style))
        self.sheet.put(self.row, 2, unit, "unit")
        self.sheet.put(self.row, 3, note, "note")
        self.row += 1
        return cell


def shown(condition: Formula, value: Given) -> Formula:
    """The value, or "n/a"."""
    return when(condition, value, "n/a")


def status_colours(book: Book, sheet: Sheet, cells: tuple[int, int, int, int]) -> None:
    """Green where a cell says FITS or MEETS, red for OOM, MISSES and what cannot be run."""
    colours = {"FITS": GREEN, "MEETS": GREEN, "OOM": RED, "MISSES": RED, "NOT": RED, "BEYOND": AMBER, "n/a": AMBER}
    for text, (background, ink) in colours.items():
        look = book.file.add_format({"bg_color": background, "font_color": ink})
        sheet.page.conditional_format(
            *cells, {"type": "text", "criteria": "begins with", "value": text, "format": look}
        )


def write_results(book: Book, inputs: Inputs, dep: Selected, point: Point) -> None:
    """The answer at the operating point of Inputs, as `rooflinekit estimate` gives it."""
    sheet = book.sheet("Results")
    for column, width in enumerate((34, 18, 14, 78)):
        sheet.page.set_column(column, column, width)
    sheet.put(0, 0, "Results at one operating point", "title")
    sheet.put(1, 0, "A batch in which all prompts come at once; sheet Fleet has the deployment under load.", "note")
    lines = Lines(book, sheet, 2)
    offered = dep["offered"] >= 1.0
    status = when(offered, when(point["fits"] >= 1.0, "FITS", "OOM"), "NOT OFFERED")
    lines.add("status", "Memory", status, "", "status", "OOM: out of memory; times are printed anyway")
    status_colours(book, sheet, (lines.row - 1, 1, lines.row - 1, 1))
    lines.add("reason", "Why not", dep.reason, "", "text")
    _times(lines, offered, point)
    _rates(lines, offered, inputs, dep, point)
    _memory(lines, offered, dep, point)
    _chart_memory(book, sheet, lines)


def _times(lines: Lines, offered: Formula, point: Point) -> None:
    for name, title in (("ttft", "Time to first token (TTFT)"), ("tpot", "Time per output token (TPOT)")):
        lines.section(title)
        kind = "prefill of all prompts and the first sample" if name == "ttft" else "mean over output tokens 2..n"
        lines.add(f"{name}_ms", "Expected", shown(offered, point[f"{name}_time"] * 1000.0), "ms", "three", kind)
        for end, label in (("low", "90 % interval, from"), ("high", "90 % interval, to")):
            lines.add(f"{name}_{end}_ms", label, shown(offered, point[f"{name}_{end}"] * 1000.0), "ms", "three")
        note = "datasheet roofline: nothing can be faster"
        lines.add(f"{name}_bound_ms", "Bound", shown(offered, point[f"{name}_bound"] * 1000.0), "ms", "three", note)


def _rates(lines: Lines, offered: Formula, inputs: Inputs, dep: Selected, point: Point) -> None:
    lines.section("Throughput of one replica")
    e2e = point["ttft_time"] + (inputs["osl"] - 1.0) * point["tpot_time"]
    rate = inputs["batch"] * inputs["osl"] / e2e
    lines.add("e2e_ms", "Whole answer", shown(offered, e2e * 1000.0), "ms", "one", "TTFT + (output length - 1) x TPOT")
    lines.add("output_tok_s", "Output", shown(offered, rate), "token/s", "one")
    lines.add("output_tok_s_per_gpu", "Output of a GPU", shown(offered, rate / dep["gpus"]), "token/s", "one")
    lines.add("output_tok_s_per_user", "Output of a user", shown(offered, 1.0 / point["tpot_time"]), "token/s", "one")


def _memory(lines: Lines, offered: Formula, dep: Selected, point: Point) -> None:
    lines.section("Memory of one GPU (the busiest)")
    parts = (("weight", "Weights", dep["weights"]), ("kv", "KV cache of the batch", point["kv_bytes"]),
             ("activation", "Activation peak", point["activation_bytes"]),
             ("overhead", "CUDA, graphs, NCCL", dep["outside"]),
             ("total", "Together", point["total_bytes"]), ("capacity", "Capacity", dep["capacity"]))  # fmt: skip
    for name, label, value in parts:
        lines.add(
            f"{name}_gb",
            label,
            shown(offered, value / _GB),
            "GB",
            "two",
            "1 GB = 1,000,000,000 bytes" * (name == "weight"),
        )
    pool, needed = point["pool_bytes"] / _GB, point["needed_bytes"] / _GB
    lines.add("pool_gb", "Pool for the cache", shown(offered, pool), "GB", "two", "what the engine sets aside")
    lines.add(
        "needed_gb",
        "Needed",
        shown(offered, needed),
        "GB",
        "two",
        "to run the batch; or what the engine reserves to start",
    )
    lines.add("available_gb", "Available", shown(offered, point["available_bytes"] / _GB), "GB")
    lines.add(
        "max_batch",
        "Largest batch",
        shown(offered, point["max_batch"]),
        "sequences",
        "whole",
        "at this input and output length",
    )


def _chart_memory(book: Book, sheet: Sheet, lines: Lines) -> None:
    chart = book.file.add_chart({"type": "column", "subtype": "stacked"})
    first = next(row for row in range(lines.row) if sheet.held.get((row, 0)) == "Weights")
    for row in range(first, first + 4):
        chart.add_series({"name": ["Results", row, 0], "values": ["Results", row, 1, row, 1], "gap": 60,
                          "categories": ["Results", first + 4, 0, first + 4, 0]})  # fmt: skip
    chart.set_title({"name": "Memory of one GPU [GB]", "name_font": {"size": 12}})
    chart.set_y_axis({"num_format": "#,##0", "major_gridlines": {"visible": True, "line": {"color": "#D9D9D9"}}})
    chart.set_legend({"position": "right"})
    chart.set_size({"width": 560, "height": 300})
    sheet.page.insert_chart(lines.row + 1, 0, chart)


@dataclass(frozen=True)
class _Column:
    """One column of a sweep."""

    title: str
    value: Formula
    style: str


def write_sweep(book: Book, name: str, points: Sequence[Point], varied: str, dep: Selected) -> None:
    """One row a point; the sheet's first column has been filled in with what varies."""
    sheet = book.sheet(name)
    sheet.page.set_column(0, 12, 13)
    offered = dep["offered"] >= 1.0
    first = _SWEEP_HEAD + 1
    for number, point in enumerate(points, first):
        columns = _sweep_columns(point, offered, dep)
        if number == first:
            sheet.heads(_SWEEP_HEAD, [varied, *(column.title for column in columns)], (1,))
        for place, column in enumerate(columns, 1):
            sheet.put(number, place, column.value, column.style)
    last = first + len(points) - 1
    status_colours(book, sheet, (first, 1, last, 1))
    for place, (kind, title, drawn) in enumerate(_CHARTS):
        spot = (last + 2 + 18 * (place // 2), 7 * (place % 2))
        sweep_chart(book, Area(sheet, _SWEEP_HEAD, last, drawn), (title, varied, kind), spot)
    sheet.page.set_row(_SWEEP_HEAD, 32)
    sheet.page.freeze_panes(first, 1)


_SWEEP_HEAD = 3
_CHARTS = (
    ("ms", "Time per output token [ms]", (6, 7, 8, 9)),
    ("ms", "Time to first token [ms]", (2, 3, 4, 5)),
    ("token/s", "Output of one replica [token/s]", (10,)),
    ("GB", "Memory of one GPU [GB]", (12, 13)),
)


def _sweep_columns(point: Point, offered: Formula, dep: Selected) -> list[_Column]:
    status = when(offered, when(point["fits"] >= 1.0, "FITS", "OOM"), "NOT OFFERED")
    columns = [_Column("memory", status, "status")]
    for name in ("ttft", "tpot"):
        for end, title in (("time", ""), ("low", " low"), ("high", " high"), ("bound", " bound")):
            value = shown(offered, point[f"{name}_{end}"] * 1000.0)
            columns.append(_Column(f"{name.upper()}{title} [ms]", value, "two"))
    e2e = point["ttft_time"] + (point["osl"] - 1.0) * point["tpot_time"]
    rate = point["batch"] * point["osl"] / e2e
    columns.append(_Column("output [token/s]", shown(offered, rate), "one"))
    columns.append(_Column("of a user [token/s]", shown(offered, 1.0 / point["tpot_time"]), "one"))
    columns.append(_Column("memory needed [GB]", shown(offered, point["total_bytes"] / _GB), "one"))
    columns.append(_Column("capacity [GB]", shown(offered, dep["capacity"] / _GB), "one"))
    return columns

"""Results, sweeps and kernels: the sheets that people read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.model.graph.cells import Cell, literal, when
from rooflinekit.report.workbook.calculation import Calculation, PointResults
from rooflinekit.report.workbook.sheet import HEAD, TABLES, Book, Lines, Sheet, shown, status_colours

_GRID = TABLES["grid"]
_BLUE, _PALE, _RED = "#1F3864", "#8EA9DB", "#C00000"


@dataclass(frozen=True)
class Area:
    """Rows under a row of heads, and the columns that are drawn over the first."""

    sheet: Sheet
    head: int
    last: int
    columns: Sequence[int]

    def series(self, column: int) -> dict[str, object]:
        """Name, values and categories of one column."""
        name, first = self.sheet.name, self.head + 1
        return {
            "name": [name, self.head, column],
            "values": [name, first, column, self.last, column],
            "categories": [name, first, 0, self.last, 0],
        }


def draw(  # noqa: PLR0913, PLR0917 - what a chart is made of
    book: Book, kind: str, area: Area, title: tuple[str, str, str], place: tuple[int, int], on: Sheet | None = None
) -> None:
    """A chart of a kind: title, names of both axes, a light grid from 0 on; beside its cells, or on another sheet."""
    called, x = TABLES["kinds"][kind]
    chart = book.file.add_chart(called)
    for number, column in enumerate(area.columns):
        chart.add_series(area.series(column) | _look(kind, number, area.sheet.heads_at[area.head, column]))
    chart.set_title({"name": title[0], "name_font": {"size": 12}})
    chart.set_x_axis({"name": title[1], **x})
    chart.set_y_axis({"name": title[2], "num_format": "#,##0", "min": 0, "major_gridlines": _GRID})
    chart.set_legend({"none": True} if kind == "bars" else {"position": "bottom"})
    chart.set_size({"width": 620, "height": 340})
    (on or area.sheet).page.insert_chart(*place, chart)


def _look(kind: str, number: int, head: str) -> dict[str, object]:
    """Look of a sweep's columns: bounds and capacities are red, and ends of intervals pale."""
    if kind == "bars":
        return {"fill": {"color": _BLUE}, "gap": 60, "data_labels": {"value": True}}
    if kind == "lines":
        return {"line": {"color": (_RED, _BLUE)[number], "width": 2}}
    if "low" in head or "high" in head:
        return {"line": {"color": _PALE, "width": 1, "dash_type": "dash"}, "marker": {"type": "none"}}
    if "bound" in head or "capacity" in head:
        return {"line": {"color": _RED, "width": 2, "dash_type": "dash"}, "marker": {"type": "none"}}
    marker = {"type": "circle", "size": 5, "fill": {"color": _BLUE}, "border": {"color": _BLUE}}
    return {"line": {"color": _BLUE, "width": 2}, "marker": marker}


def memory_chart(book: Book, sheet: Sheet, first: int, place: tuple[int, int]) -> None:
    """Four rows of a sheet one on top of the other."""
    chart = book.file.add_chart({"type": "column", "subtype": "stacked"})
    categories = [sheet.name, first + 4, 0, first + 4, 0]
    for row in range(first, first + 4):
        series = {"name": [sheet.name, row, 0], "values": [sheet.name, row, 1, row, 1]}
        chart.add_series(series | {"gap": 60, "categories": categories})
    chart.set_title({"name": "Memory of one GPU [GB]", "name_font": {"size": 12}})
    chart.set_y_axis({"num_format": "#,##0", "major_gridlines": _GRID})
    chart.set_legend({"position": "right"})
    chart.set_size({"width": 560, "height": 300})
    sheet.page.insert_chart(*place, chart)


_GB = 1e9


def status_of(calculation: Calculation, fits: Cell, valid: Cell) -> Cell:
    """FITS, OOM, or NOT OFFERED; n/a for sizes that make no sense."""
    return when(calculation.constants.offered, when(valid, when(fits, "FITS", "OOM"), "n/a"), "NOT OFFERED")


def told(status: Cell) -> Cell:
    """True if there are times beside a status."""
    return status.equals("FITS") | status.equals("OOM")


def _rates(point: PointResults, batch: Cell, osl: Cell) -> tuple[Cell, Cell]:
    """Time of a whole answer, and output tokens a second."""
    whole = point["ttft.expected"] + (osl - 1.0) * point["tpot.expected"]
    return whole, batch * osl / whole


def write_results(book: Book, calculation: Calculation, point: PointResults) -> None:
    """The answer at the operating point of Inputs, as `rooflinekit estimate` gives it."""
    sheet = book.sheet("Results")
    lines, inputs, constants = Lines(book, sheet), calculation.inputs, calculation.constants
    status = status_of(calculation, point["memory.fits"] >= 1.0, point.valid)
    status = lines.add("status", "Memory", status, "", "status", "OOM: out of memory; times are printed anyway")
    offered = told(status)
    lines.add("reason", "Why not", when(constants.offered, inputs["wrong"], constants.reason), "", "text")
    lines.add("evidence", "Evidence of times", calculation.constants.evidence, "", "text")
    for name, title, kind in (
        ("ttft", "Time to first token (TTFT)", "prefill of all prompts and the first sample"),
        ("tpot", "Time per output token (TPOT)", "mean over output tokens 2..n"),
    ):
        lines.section(title)
        lines.add(f"{name}_ms", "Expected", shown(offered, point[f"{name}.expected"] * 1000.0), "ms", "three", kind)
        for end, label, note in TABLES["ends"]:
            lines.add(f"{name}_{end}_ms", label, shown(offered, point[f"{name}.{end}"] * 1000.0), "ms", "three", note)
    lines.section("Throughput of one replica")
    whole, rate = _rates(point, inputs["batch"], inputs["osl"])
    note = "TTFT + (output length - 1) x TPOT"
    whole = lines.add("e2e_ms", "Whole answer", shown(offered, whole * 1000.0), "ms", "one", note)
    rate = lines.add("output_tok_s", "Output", shown(offered, rate), "token/s", "one")
    gpus = point["gpus"]
    lines.add("output_tok_s_per_gpu", "Output of a GPU", shown(offered, rate / gpus), "token/s", "one")
    user = shown(offered, literal(1.0) / point["tpot.expected"])
    lines.add("output_tok_s_per_user", "Output of a user", user, "token/s", "one")
    lines.section("Memory of one GPU (the busiest)")
    first = lines.row
    for name, label, note in TABLES["memory"]:
        size, key = shown(offered, point[f"memory.{name}_bytes"] / _GB), "pool" if name == "kv_pool" else name
        lines.add(f"{key}_gb", label, size, "GB", "two", note)
    note = "at this input and output length"
    lines.add("max_batch", "Largest batch", shown(offered, point["memory.max_batch"]), "sequences", "whole", note)
    memory_chart(book, sheet, first, (lines.row + 1, 0))


def sweep_inputs(book: Book, name: str, values: Sequence[int]) -> list[Cell]:
    """Yellow cells down the first column."""
    sheet = book.sheet(name)
    rule = {"validate": "integer", "criteria": ">=", "value": 1}
    sheet.page.data_validation(HEAD + 1, 0, HEAD + max(len(values), 1), 0, rule)
    return [sheet.put(row, 0, float(value), "input_whole") for row, value in enumerate(values, HEAD + 1)]


def write_sweep(
    book: Book, calculation: Calculation, name: str, points: Sequence[tuple[Cell, Cell, PointResults]]
) -> None:
    """One row a point (batch, output length, results); the first column has been filled in with what varies."""
    sheet = book.sheet(name)
    varied = "batch" if name == "Batch sweep" else "input length [tokens]"
    times = [
        (f"{time}.{end}", f"{time.upper()}{label} [ms]")
        for time in ("ttft", "tpot")
        for end, label in (("expected", ""), ("low", " low"), ("high", " high"), ("bound", " bound"))
    ]
    titles = ("output [token/s]", "of a user [token/s]", "memory needed [GB]", "capacity [GB]")
    sheet.heads(HEAD, (varied, "memory", *(title for _, title in times), *titles), (1,))
    for row, (batch, osl, point) in enumerate(points, HEAD + 1):
        offered = told(sheet.put(row, 1, status_of(calculation, point["memory.fits"] >= 1.0, point.valid), "status"))
        for column, (key, _) in enumerate(times, 2):
            sheet.put(row, column, shown(offered, point[key] * 1000.0), "two")
        memory = [point[f"memory.{key}_bytes"] / _GB for key in ("total", "capacity")]
        rest = (_rates(point, batch, osl)[1], literal(1.0) / point["tpot.expected"], *memory)
        for column, value in enumerate(rest, 10):
            sheet.put(row, column, shown(offered, value), "one")
    last = HEAD + len(points)
    status_colours(book, sheet, (HEAD + 1, 1, last, 1))
    for place, (kind, title, drawn) in enumerate(TABLES["charts"]):
        spot = (last + 2 + 18 * (place // 2), 7 * (place % 2))
        draw(book, "sweep", Area(sheet, HEAD, last, drawn), (title, varied, kind), spot)


_KERNEL = TABLES["kernel"]


def write_kernels(book: Book, calculation: Calculation, point: PointResults) -> None:
    """Every kernel of the operating point; those that the chosen deployment has not are empty."""
    sheet = book.sheet("Kernels")
    sheet.heads(HEAD, ("step", "kernel", *(title for _, title, _, _ in _KERNEL), "share of step"), (0, 1))
    names = [key.removesuffix(".count") for key in calculation.offers.outputs if key.endswith(".count")]
    names.sort(key=lambda name: ".decode." in name)
    first, last = 6, 5 + len(names)
    times: list[tuple[int, str, Cell]] = []
    sums: dict[str, list[float]] = {"prefill": [0.0] * len(_KERNEL), "decode": [0.0] * len(_KERNEL)}
    offered = calculation.constants.offered & calculation.inputs["wrong"].equals("")
    for row, name in enumerate(names, first):
        _, step, kernel = name.split(".", 2)
        runs = when(offered, point[f"{name}.count"] > 0.0, literal(False))
        sheet.put(row, 0, step)
        sheet.put(row, 1, kernel)
        for place, (key, _, scale, style) in enumerate(_KERNEL):
            cell = sheet.put(row, 2 + place, when(runs, point[f"{name}.{key}"] * scale, ""), style)
            sums[step][place] += cell.value or 0.0
            if key == "expected":
                times.append((row, step, cell))
    totals: dict[str, Cell] = {}
    for row, step in enumerate(sums, 4):
        sheet.put(row, 0, step, "head")
        sheet.put(row, 1, "all kernels", "head")
        for place, (key, _, _, style) in enumerate(_KERNEL):
            steps, values = (sheet.area((first, column), (last, column)) for column in (0, 2 + place))
            cell = sheet.put(row, 2 + place, Cell(f'SUMIF({steps},"{step}",{values})', sums[step][place]), style)
            if key == "expected":
                totals[step] = cell
    for row, step, time in times:
        sheet.put(row, 2 + len(_KERNEL), when(time.equals(""), "", time / totals[step]), "share")
    rule = {"type": "formula", "criteria": f'=$C{first + 1}=""', "format": sheet.styles["faint"]}
    sheet.page.conditional_format(first, 0, last, 1, rule)

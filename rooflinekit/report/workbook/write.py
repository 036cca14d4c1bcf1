"""The workbook as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rooflinekit.report.workbook.data import write_data
from rooflinekit.report.workbook.fleet import write_fleet, write_tco
from rooflinekit.report.workbook.formula import Formula
from rooflinekit.report.workbook.inputs import Inputs, write_inputs
from rooflinekit.report.workbook.kernels import write_kernels
from rooflinekit.report.workbook.notes import write_notes
from rooflinekit.report.workbook.offers import Choices, Offers, Planned, make_offers
from rooflinekit.report.workbook.points import Point, Points
from rooflinekit.report.workbook.selected import write_selected
from rooflinekit.report.workbook.sheet import Book
from rooflinekit.report.workbook.views import write_results, write_sweep
from rooflinekit.specs.writing import whole
from rooflinekit.version import __version__

__all__ = ["Built", "write_workbook"]

_READ = ("Inputs", "Results", "Batch sweep", "Context sweep", "Fleet", "TCO", "Kernels", "Notes", "Models", "GPUs")
_BEHIND = ("Lists", "Deployment", "Slots", "Points", "Calc", "Deployments", "Kernel data", "Surfaces")
_COLOURS = {"Inputs": "#FFC000", **dict.fromkeys(_READ[1:7], "#1F3864"), "Notes": "#7F7F7F"}


@dataclass(frozen=True)
class Built:
    """What was written: combinations that can be run, and those that cannot with the reason."""

    offered: int
    refused: tuple[tuple[str, str], ...]
    bytes: int


def write_workbook(path: Path, choices: Choices, planned: Planned) -> Built:
    """Write a workbook with live formulas.

    Args:
        path: of the .xlsx file; overwritten.
        choices: what its drop-downs offer.
        planned: what its yellow cells start with.

    Raises:
        InputError: a name is unknown, or nothing of what is offered can be run.
    """
    from xlsxwriter import Workbook  # noqa: PLC0415 - takes a while

    from rooflinekit.report.workbook.plain import PlainWorksheet  # noqa: PLC0415

    offers = make_offers(choices)
    with whole(path) as partial:
        file = Workbook(str(partial))
        file.set_properties({"title": "Capacity of an LLM deployment", "author": f"rooflinekit {__version__}"})
        _fill(Book.of(file, PlainWorksheet), offers, choices, planned)
        file.close()
    refused = tuple((entry.key, entry.reason) for entry in offers.entries if entry.exported is None)
    return Built(len(offers.entries) - len(refused), refused, path.stat().st_size)


def _fill(book: Book, offers: Offers, choices: Choices, planned: Planned) -> None:
    for name in (*_READ, *_BEHIND):
        sheet = book.sheet(name)
        sheet.page.set_tab_color(_COLOURS.get(name, "#BFBFBF"))
        sheet.page.hide_gridlines(2)
        sheet.page.set_landscape()
        sheet.page.fit_to_pages(1, 1 if name in _READ else 0)
    data = write_data(book, offers)
    inputs = write_inputs(book, offers, planned, data)
    selected = write_selected(book, inputs, data)
    points = Points(book, selected, data)
    main = points.add("inputs", inputs["batch"], inputs["isl"], inputs["osl"])
    single = points.add("one prompt", Formula("1", 1.0), inputs["isl"], inputs["osl"])
    write_results(book, inputs, selected, main)
    write_kernels(book, selected, main)
    batches = _swept(book, points, ("Batch sweep", "batch", choices.batches), inputs)
    contexts = _swept(book, points, ("Context sweep", "input length", choices.contexts), inputs)
    write_sweep(book, "Batch sweep", batches, "batch", selected)
    write_sweep(book, "Context sweep", contexts, "input length [tokens]", selected)
    served = write_fleet(book, inputs, selected, (main, single), batches)
    write_tco(book, inputs, data, served)
    asked = {"choices": asdict(choices), "planned": asdict(planned)}
    write_notes(book, offers, json.dumps(asked, sort_keys=True), choices.engine)
    book.sheets["Inputs"].page.activate()


def _swept(book: Book, points: Points, what: tuple[str, str, Sequence[int]], inputs: Inputs) -> list[Point]:
    """Yellow cells down the first column, and a point for each."""
    name, varied, values = what
    sheet = book.sheet(name)
    by_batch = varied == "batch"
    rest = "input and output length" if by_batch else "batch and output length"
    sheet.put(0, 0, f"{name}: the answer for a range of {'batches' if by_batch else 'prompts'}", "title")
    sheet.put(1, 0, f"Change the yellow cells; {rest} are those of Inputs.", "note")
    found = []
    for row, value in enumerate(values, 4):
        cell = sheet.put(row, 0, float(value), "input_whole")
        sheet.page.data_validation(row, 0, row, 0, {"validate": "integer", "criteria": ">=", "value": 1})
        sizes = (cell, inputs["isl"]) if by_batch else (inputs["batch"], cell)
        found.append(points.add(f"{varied} {value}", *sizes, inputs["osl"]))
    return found

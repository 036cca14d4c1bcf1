"""The workbook as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rooflinekit.model.graph.cells import Cell
from rooflinekit.report.workbook.calculation import Calculation, Found, blocks_of, write_labels
from rooflinekit.report.workbook.compare import compare_inputs, write_comparison
from rooflinekit.report.workbook.data import write_constants, write_gpus, write_models, write_tables
from rooflinekit.report.workbook.fleet import write_fleet, write_tco
from rooflinekit.report.workbook.inputs import read_words, write_inputs
from rooflinekit.report.workbook.offers import Choices, Offers, Planned, make_offers
from rooflinekit.report.workbook.sheet import Book
from rooflinekit.report.workbook.views import sweep_inputs, write_kernels, write_results, write_sweep
from rooflinekit.specs.writing import open_workbook, whole
from rooflinekit.version import __version__

_LINE, _WIDTH = 15, 115  # points of a line of text, and letters that fit into it


def write_notes(book: Book, offers: Offers, asked: str, engine: str) -> None:
    """Version, inputs, calibrations with their hashes, assumptions, sources, what is not offered and why."""
    sheet = book.sheet("Notes", "Notes")
    sheet.widths(40, 120)
    row = 2
    for title, rows in _sections(offers, asked, engine):
        sheet.band(row, title, 2)
        row += 1
        for label, text in rows:
            sheet.put(row, 0, label, "wrap")
            sheet.put(row, 1, text, "wrap")
            sheet.page.set_row(row, _LINE * max(1, -(-len(text) // _WIDTH)))
            row += 1
        row += 1


def _sections(offers: Offers, asked: str, engine: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    yield "Made by", [("rooflinekit", __version__), ("engine", engine), ("inputs when made", asked)]
    yield "Calibrations", list(offers.calibrations.items())
    yield "Assumptions", [("", text) for text in read_words()["assumptions"]]
    if offers.notes:
        yield "What a user should know", [("", text) for text in offers.notes]
    refused = [(entry.key.replace("|", ", "), entry.reason) for entry in offers.entries if entry.traced is None]
    if refused:
        yield "Not offered", refused
    used = {cited for gpu in offers.gpus for entry in gpu.provenance for cited in entry.source.split(", ")}
    sources: dict[str, str] = {}
    for gpu in offers.gpus:
        sources |= {f"{gpu.name}: {source.id}": f"{source.title} {source.url}" for source in gpu.sources}
    if sources:
        yield "Sources of the accelerators", list(sources.items())
    elif used:
        yield "Sources of the accelerators", [("", text) for text in sorted(used)]


_READ = ("Inputs", "Compare", "Results", "Batch sweep", "Context sweep", "Fleet", "TCO", "Kernels", "Notes", "Models",
         "GPUs")  # fmt: skip
_BEHIND = ("Lists", "Constants", "Points", "Load", "Times", "Deployments", "Surfaces")
_CHOSEN = "as on Inputs"
_COLOURS = {"Inputs": "#FFC000", **dict.fromkeys(_READ[1:8], "#1F3864"), "Notes": "#7F7F7F"}


@dataclass(frozen=True)
class Built:
    """What was written: combinations that can be run, and those that cannot with the reason."""

    offered: int
    refused: tuple[tuple[str, str], ...]
    bytes: int


def write_workbook(path: Path, choices: Choices, planned: Planned, force: bool = True) -> Built:
    """Write a workbook with live formulas.

    Args:
        path: of the .xlsx file.
        choices: what its drop-downs offer.
        planned: what its yellow cells start with.
        force: write over a file that somebody else has put there.

    Raises:
        InputError: a name is unknown, nothing of what is offered can be run, or a file is there that is kept.
    """
    offers = make_offers(choices, planned)
    with whole(path, force) as partial, open_workbook(partial, in_memory=True) as file:
        file.set_properties({"title": "Capacity of an LLM deployment", "author": f"rooflinekit {__version__}"})
        _fill(Book.of(file), offers, choices, planned)
    refused = tuple((entry.key, entry.reason) for entry in offers.entries if entry.traced is None)
    return Built(len(offers.entries) - len(refused), refused, path.stat().st_size)


def _fill(book: Book, offers: Offers, choices: Choices, planned: Planned) -> None:
    for name in (*_READ, *_BEHIND):
        sheet = book.sheet(name)
        sheet.page.set_tab_color(_COLOURS.get(name, "#BFBFBF"))
        sheet.page.hide_gridlines(2)
        sheet.page.set_landscape()
        sheet.page.fit_to_pages(1, 1 if name in _READ else 0)
        if name in _BEHIND:
            sheet.page.hide()
    write_models(book, offers)
    inputs = write_inputs(book, offers, planned)
    offers = offers.compared(planned)
    write_gpus(book, offers)
    rivals, blocks = compare_inputs(book, inputs, offers), blocks_of(book, offers)
    constants = write_constants(book, offers, {_CHOSEN: inputs.chosen, **rivals})
    calculation = Calculation(book, offers, constants.pop(_CHOSEN), inputs, blocks)
    main = calculation.point("Inputs", inputs["batch"], inputs["isl"], inputs["osl"])
    write_results(book, calculation, main)
    write_kernels(book, calculation, main)
    osl = inputs["osl"]
    for name, values in (("Batch sweep", choices.batches), ("Context sweep", choices.contexts)):
        points: list[tuple[Cell, Cell, Found]] = []
        for cell in sweep_inputs(book, name, values):
            batch, isl = (cell, inputs["isl"]) if name == "Batch sweep" else (inputs["batch"], cell)
            points.append((batch, osl, calculation.point(f"{name.lower()} {len(points) + 1}", batch, isl, osl)))
        if points:
            write_sweep(book, calculation, name, points)
    write_tco(book, inputs, offers, write_fleet(book, calculation, choices.headrooms))
    compared = {name: Calculation(book, offers, found, inputs, blocks, name) for name, found in constants.items()}
    write_comparison(book, inputs, offers, compared, planned)
    write_labels(book, offers, blocks)
    write_tables(book, calculation.constants.tables)
    asked = {"choices": asdict(choices), "planned": asdict(planned)}
    write_notes(book, offers, json.dumps(asked, sort_keys=True, default=str), choices.engine)
    book.sheets["Inputs"].page.activate()

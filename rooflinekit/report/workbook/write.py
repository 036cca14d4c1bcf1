"""The workbook as a file, and its sheet Compare: what serves the peak on each accelerator, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path

from rooflinekit.model.graph.cells import Cell, composed, function, literal, when
from rooflinekit.report.workbook.calculation import Calculation, Found, blocks_of, write_labels
from rooflinekit.report.workbook.data import price_of, write_constants, write_gpus, write_models, write_tables
from rooflinekit.report.workbook.fleet import Replica, known, write_fleet, write_tco
from rooflinekit.report.workbook.inputs import Inputs, read_words, write_inputs
from rooflinekit.report.workbook.offers import Choices, Offers, Planned, make_offers
from rooflinekit.report.workbook.sheet import Book, Sheet, shown, status_colours
from rooflinekit.report.workbook.views import Area, bar_chart, sweep_inputs, write_kernels, write_results, write_sweep
from rooflinekit.specs.writing import open_workbook, whole
from rooflinekit.version import __version__

_HEAD = 3
_HEADS = ("GPU", "tensor parallel", "memory", "replicas", "GPUs", "price [USD/GPU/h]", "USD/h", "USD a million tokens",
          "least cost", "P95 TTFT [ms]", "P95 TPOT [ms]", "probability", "evidence", "why not")  # fmt: skip
_TEXTS = (0, 2, 8, 12, 13)
_RANKED = 14  # a column that nobody sees: the cost of those measured and sure enough
_SURE = 0.9  # the confidence that a plan asks for by default


def compare_inputs(book: Book, inputs: Inputs, offers: Offers) -> dict[str, list[Cell]]:
    """The deployment of each accelerator: that of Inputs, on a split of its own that may be changed here."""
    note = (
        "Model, formats, demand and headroom are those of Inputs; yellow splits may be changed, prices stand on sheet "
        "GPUs. P95 holds for the inputs that the workbook was made with. So does the probability that mean TTFT and "
        "TPOT keep their objectives."
    )
    sheet = book.sheet("Compare", "Accelerators for the peak", note)
    sheet.widths(20, 11, 10, 11, 11, 13, 13, 13, 10, 12, 12, 12, 18, 60)
    sheet.page.set_column(_RANKED, _RANKED, None, None, {"hidden": True})
    chosen: dict[str, list[Cell]] = {}
    for row, rival in enumerate(offers.rivals, _HEAD + 1):
        gpu, tp = sheet.put(row, 0, rival.gpu.name), sheet.put(row, 1, float(rival.tp), "input_whole")
        sheet.page.data_validation(row, 1, row, 1, {"validate": "list", "source": "=list_tp"})
        own = {"gpu": gpu, "tp": tp}
        chosen[rival.gpu.name] = [own.get(name, cell) for name, cell in zip(offers.lists, inputs.chosen, strict=True)]
    return chosen


def write_comparison(
    book: Book, inputs: Inputs, offers: Offers, calculations: Mapping[str, Calculation], planned: Planned
) -> None:
    """Replicas, cost and evidence of each accelerator, at the peak of sheet Fleet."""
    sheet = book.sheet("Compare")
    sheet.heads(_HEAD, _HEADS, _TEXTS)
    rate = when(inputs["rate"].equals(""), inputs["users"] * inputs["requests"] / 3600.0, inputs["rate"])
    tokens = rate * 3600.0 * (inputs["isl"] + inputs["osl"]) / 1e6
    unchanged, last = _unchanged(inputs, offers, planned), _HEAD + len(offers.rivals)
    promised = inputs["ttft"].equals(planned.ttft_ms) & inputs["tpot"].equals(planned.tpot_ms)
    costs: list[tuple[Cell, Cell, Cell]] = []
    for row, rival in enumerate(offers.rivals, _HEAD + 1):
        calculation = calculations[rival.gpu.name]
        fits, offered = calculation.room >= 1.0, calculation.constants.offered
        runs = offered & fits
        replica = Replica(rate * inputs["peak"], calculation.knee, runs, calculation.gpus)
        status = when(offered, when(fits, "FITS", "OOM"), "NOT OFFERED")
        sheet.put(row, 2, status, "status")
        replicas = sheet.put(row, 3, replica.number(inputs["headroom"]), "whole")
        gpus = sheet.put(row, 4, shown(runs, replicas * calculation.gpus), "whole")
        place = literal(float(row - _HEAD))
        price = price_of(offers, inputs, place, rival)
        sheet.put(row, 5, shown(price > 0.0, price), "two")
        hour = sheet.put(row, 6, shown(runs & (price > 0.0), gpus * price), "two")
        cost = sheet.put(row, 7, shown(known(hour) & (rate > 0.0), hour / tokens), "three")
        same = unchanged & sheet.at(row, 1, float(rival.tp)).equals(float(rival.tp))
        looks = (("two", same), ("two", same), ("share", same & promised))
        *_, chance = (
            sheet.put(row, column, *(("n/a", "words") if value is None else (shown(valid, value), style)))
            for column, (value, (style, valid)) in enumerate(zip(rival.at_peak, looks, strict=True), 9)
        )
        costs.append((cost, sheet.put(row, 12, calculation.constants.evidence), chance))
        sheet.put(row, 13, calculation.constants.reason, "note")
    _rank(sheet, costs)
    status_colours(book, sheet, (_HEAD + 1, 2, last, 2))
    told = (
        f"Only what was measured is ranked, and keeps its objectives with a probability of {_SURE:.0%} at least; more "
        "--headroom makes a fleet surer. Where no probability is shown, cost alone ranks. Fitted elsewhere: kernels of "
        "another accelerator, engine or format stand in, so that the fleet may have to be larger."
    )
    sheet.put(last + 2, 0, told, "note")
    sheet.page.set_row(_HEAD, 32)
    sheet.page.freeze_panes(_HEAD + 1, 1)
    bar_chart(book, Area(sheet, _HEAD, last, (6,)), ("Cost of the fleet for the peak", "GPU", "USD/h"), (last + 4, 0))


def _rank(sheet: Sheet, costs: Sequence[tuple[Cell, Cell, Cell]]) -> None:
    """The least dear of those whose kernels were measured, and whose objectives hold as surely as a plan asks."""
    own = [
        sheet.put(
            row,
            _RANKED,
            when(told.equals("measured") & known(cost), when(known(chance), when(chance >= _SURE, cost, ""), cost), ""),
            "faint",
        )
        for row, (cost, told, chance) in enumerate(costs, _HEAD + 1)
    ]
    numbers = [cell.value for cell in own if not isinstance(cell.value, str)]
    area = sheet.area((_HEAD + 1, _RANKED), (_HEAD + len(costs), _RANKED))
    least = function(f"MIN({area})", min(numbers, default=0.0))
    for row, (cell, (cost, _, _)) in enumerate(zip(own, costs, strict=True), _HEAD + 1):
        rank = when(known(cell), when(cell <= least, "least", ""), when(known(cost), "not ranked", ""))
        sheet.put(row, 8, rank, "words")


def _unchanged(inputs: Inputs, offers: Offers, planned: Planned) -> Cell:
    """Whether the inputs that P95 depends on are those that the workbook was made with."""
    names = ("isl", "osl", "cached", "burstiness", "isl_cv", "osl_cv", "peak", "headroom")
    made: dict[str, float | str] = {name: float(getattr(planned, name)) for name in names}
    made["most"] = ""
    own: dict[str, float | str] = {"users": float(planned.users), "requests": planned.requests_per_hour, "rate": ""}
    made |= own if planned.rate is None else {"rate": planned.rate}
    others = zip(offers.lists, offers.start, inputs.chosen, strict=True)
    same = [cell.equals(value if isinstance(value, str) else float(value))
            for name, value, cell in others if name not in ("gpu", "tp")]  # fmt: skip
    same += [inputs[name].equals(value) for name, value in made.items()]
    return reduce(lambda both, one: composed("&", both, one), same)


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

"""Where the numbers of a workbook come from, and what it assumes."""

from __future__ import annotations

from collections.abc import Iterator

from rooflinekit.report.workbook.offers import Offers
from rooflinekit.report.workbook.sheet import Book
from rooflinekit.version import __version__

_LINE, _WIDTH = 15, 115  # points of a line of text, and letters that fit into it

_ASSUMPTIONS = (
    "Every formula of this workbook is live, and printed from the formulas that `rooflinekit estimate` runs. "
    "Recalculated, results equal its results for the same inputs: nothing is interpolated between operating points.",
    "Expected times are calibrated forms of each kernel times a correction table; the bound is the datasheet roofline.",
    "The interval is the 90 % interval of the calibration; it does not cover a change of engine version.",
    "Results and sweeps are for a static batch, all prompts at once. Sheet Fleet has the open loop: requests come at "
    "random, prompts share steps with decodes, and slots can be short; `rooflinekit simulate` plays it out.",
    "Objectives are compared with means, not percentiles.",
    "Capital, years, power price and PUE are assumptions until you enter your own. GPUs draw the power on sheet GPUs, "
    "predicted as the workbook was made.",
    "A price of 0 means that no quote is known.",
)


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
    yield "Assumptions", [("", text) for text in _ASSUMPTIONS]
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

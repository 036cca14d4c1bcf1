"""The first sheet: what a buyer is told on one page that prints: the fleet, its cost, how sure it is, and on what."""

from __future__ import annotations

from collections.abc import Sequence

from rooflinekit.model.graph.cells import Cell, when
from rooflinekit.report.workbook.sheet import TABLES, Book, Sheet, as_text, joined, known
from rooflinekit.report.workbook.views import Area, draw

NAME = "Summary"


def write_summary(book: Book, compared: Area, confidence: float) -> None:
    """Write the sentence, the answer, the assumptions, and what the fleet costs on each accelerator.

    compared: the costs of sheet Compare; confidence: with which fleets are sized.
    """
    sheet = book.sheet(NAME)
    book.name("out_summary", sheet.put(3, 0, _sentence(book), "sentence"))
    row = _table(book, sheet, 5, "Answer", TABLES["answer"])
    row = _table(book, sheet, row + 1, "Assumptions", TABLES["assumed"])
    played = joined("Loads were played for ", book.named["out_played_for"])
    for text in (
        f"Fleets are sized for {confidence:.0%} confidence, or expected times where intervals are wider than 3x.",
        when(book.named["out_stale"].equals(""), played, book.named["out_stale"]),
    ):
        sheet.put(row, 0, text, "note")
        row += 1
    titles = ("Cost of the fleet for the peak, by accelerator", "", "USD/h")
    draw(book, "bars", compared, titles, (5, 4), sheet)


def _table(book: Book, sheet: Sheet, row: int, title: str, lines: Sequence[Sequence[str]]) -> int:
    """A title and its lines; the answer is the row below."""
    sheet.band(row, title, 3)
    for at, (name, label, unit, style) in enumerate(lines, row + 1):
        sheet.put(at, 0, label)
        sheet.put(at, 1, when(book.named[name].equals(""), "", book.named[name]), style)
        sheet.put(at, 2, unit, "unit")
    return row + 1 + len(lines)


def _sentence(book: Book) -> Cell:
    """The answer in words."""
    names = ("spelled", "peak_rate", "usd_year", "load_ttft_p95_ms", "load_tpot_p95_ms")
    fleet, peak, year, ttft, tpot = (book.named[f"out_{name}"] for name in names)
    cost = when(known(year), joined(", for ", as_text(year), " USD a year"), ", at a price to be entered on sheet GPUs")
    felt = joined(". P95: first token ", as_text(ttft), " ms, then ", as_text(tpot, 1), " ms a token.")
    served = joined(book.named["in_model"], " on ", book.named["in_gpu"], ": ", fleet, " at ", as_text(peak, 2))
    found = joined(served, " requests a second", cost, when(known(ttft), felt, "."))
    return when(known(book.named["out_replicas"]), found, joined("No fleet: ", book.named["out_fleet_reason"]))

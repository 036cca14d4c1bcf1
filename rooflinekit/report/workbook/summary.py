"""The first sheet: what a buyer is told on one page that prints: the fleet, its cost, how sure it is, and on what."""

from __future__ import annotations

from rooflinekit.model.graph.cells import Cell, when
from rooflinekit.report.workbook.sheet import Book, Sheet, as_text, joined, known
from rooflinekit.report.workbook.views import Area, draw

NAME = "Summary"
_ANSWER = (
    ("out_spelled", "Fleet", "", "words"), ("out_usd_year", "Cost of a year", "USD", "whole"),
    ("out_usd_h", "Cost of an hour", "USD", "two"), ("out_usd_million", "A million tokens, in and out", "USD", "three"),
    ("out_usd_million_output", "A million output tokens, all cost on them", "USD", "three"),
    ("out_probability", "Chance that both P95 keep their objectives", "", "share"),
    ("out_load_ttft_p95_ms", "Time to first token, P95 at the peak", "ms", "whole"),
    ("out_load_tpot_p95_ms", "Time per output token, P95 at the peak", "ms", "one"),
    ("out_utilisation", "Utilisation at the peak", "of the knee", "share"),
    ("out_kilowatts", "Power at the meter, average hour", "kW", "one"), ("out_evidence", "Evidence", "", "words"),
)  # fmt: skip
_ASSUMED = (
    ("out_rate", "Requests, average hour", "1/s", "two"), ("out_peak_rate", "Requests, busiest hour", "1/s", "two"),
    ("in_isl", "Prompt, mean", "tokens", "whole"), ("in_osl", "Answer, mean", "tokens", "whole"),
    ("in_ttft", "Objective: P95 time to first token", "ms", "whole"),
    ("in_tpot", "Objective: P95 time per output token", "ms", "one"),
    ("in_headroom", "Share of capacity that stays free", "", "share"), ("in_purchase", "GPUs are", "", "words"),
    ("out_price", "Rent", "USD/GPU/h", "two"), ("in_pue", "PUE", "", "two"),
)  # fmt: skip


def write_summary(book: Book, compared: Area, confidence: float) -> None:
    """Write the sentence, the answer, the assumptions, and what the fleet costs on each accelerator.

    compared: the costs of sheet Compare; confidence: with which fleets are sized.
    """
    told = "Live: every number follows the yellow cells of sheet Inputs. Prints on one page."
    sheet = book.sheet(NAME, "Capacity and cost in one page", told)
    sheet.widths(44, 34, 14)
    book.name("out_summary", sheet.put(3, 0, _sentence(book), "sentence"))
    row = _table(book, sheet, 5, "Answer", _ANSWER)
    row = _table(book, sheet, row + 1, "Assumptions", _ASSUMED)
    played = joined("Loads were played for ", book.named["out_played_for"])
    for text in (
        f"Fleets are sized for {confidence:.0%} confidence, or expected times where intervals are wider than 3x.",
        when(book.named["out_stale"].equals(""), played, book.named["out_stale"]),
    ):
        sheet.put(row, 0, text, "note")
        row += 1
    titles = ("Cost of the fleet for the peak, by accelerator", "", "USD/h")
    draw(book, "bars", compared, titles, (5, 4), sheet)


def _table(book: Book, sheet: Sheet, row: int, title: str, lines: tuple[tuple[str, str, str, str], ...]) -> int:
    """A title and its lines; the answer is the row below."""
    sheet.band(row, title, 3)
    for at, (name, label, unit, style) in enumerate(lines, row + 1):
        sheet.put(at, 0, label)
        sheet.put(at, 1, when(book.named[name].equals(""), "", book.named[name]), style)
        sheet.put(at, 2, unit, "unit")
    return row + 1 + len(lines)


def _sentence(book: Book) -> Cell:
    """The answer in words."""
    fleet, peak, year, ttft, tpot = (
        book.named[f"out_{name}"]
        for name in ("spelled", "peak_rate", "usd_year", "load_ttft_p95_ms", "load_tpot_p95_ms")
    )
    cost = when(known(year), joined(", for ", as_text(year), " USD a year"), ", at a price to be entered on sheet GPUs")
    felt = joined(". P95: first token ", as_text(ttft), " ms, then ", as_text(tpot, 1), " ms a token.")
    served = joined(book.named["in_model"], " on ", book.named["in_gpu"], ": ", fleet, " at ", as_text(peak, 2))
    found = joined(served, " requests a second", cost, when(known(ttft), felt, "."))
    return when(known(book.named["out_replicas"]), found, joined("No fleet: ", book.named["out_fleet_reason"]))

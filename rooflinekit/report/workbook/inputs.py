"""The sheet with the yellow cells: what a planner chooses and types in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rooflinekit.model.graph.cells import Cell, composed, when
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.workbook.offers import Planned, WorkbookOffers
from rooflinekit.report.workbook.sheet import Book, Lines, Sheet, at_least_one, every
from rooflinekit.specs.files import table_of

RENTED, OWNED = "rent", "own"
TEXTS = table_of(__file__)
"""Texts of the sheets Inputs and Notes."""


@dataclass(frozen=True)
class Inputs:
    """References to the yellow cells, by name without `in_`.

    Two more hold words, or are empty: `wrong`, mistakes of the static batch; `stale`, why played loads are of others.
    """

    cells: Mapping[str, Cell]
    chosen: tuple[Cell, ...]  #: the drop-downs of the deployment

    def __getitem__(self, name: str) -> Cell:
        return self.cells[name]

    @property
    def rate(self) -> Cell:
        """Requests a second in the average hour: as typed, or of all users."""
        return when(self["rate"].equals(""), self["users"] * self["requests"] / 3600.0, self["rate"])


@dataclass(frozen=True)
class _Field:
    """One yellow cell: its name, what stands beside it, and what may be typed."""

    name: str
    label: str
    unit: str = ""
    note: str = ""
    value: float | str | None = None
    style: str = "input_number"
    least: float = 0.0
    most: float = 1e9


def write_inputs(book: Book, offers: WorkbookOffers, planned: Planned) -> Inputs:
    """Write the sheet, its drop-downs and its names."""
    sheet, sources = book.sheet("Inputs"), _lists(book, offers)
    row, cells = 3, {}
    for title, section in _sections(offers, planned):
        sheet.band(row, title)
        for number, entry in enumerate(section, row + 1):
            cells[entry.name] = _field(book, sheet, number, entry, sources.get(entry.name))
        row += len(section) + 2
    chosen = tuple(cells[name] for name in offers.lists)
    return Inputs(cells | _checks(Lines(book, sheet, row - 1), cells, offers, planned), chosen)


PLAYED = ("isl", "osl", "cached", "burstiness", "isl_cv", "osl_cv")
"""Yellow cells that loads were played for."""


def _checks(lines: Lines, cells: Mapping[str, Cell], offers: WorkbookOffers, planned: Planned) -> dict[str, Cell]:
    """Cells with mistakes of the inputs, and for which of them loads were played."""
    lines.section("Checks")
    told = when(composed("<", cells["cached"], cells["isl"]), "", "a prompt has more tokens than are cached of it")
    for name, label in {"osl": "output length", "isl": "input length", "batch": "batch"}.items():
        told = when(at_least_one(cells[name]), told, f"the {label} must be a number of 1 or more")
    wrong = lines.add("wrong", "Wrong with the cells above", told, "", "text")
    asked = planned.load(next(iter(offers.runs.values())))
    played = ", ".join(f"{name} {getattr(planned, name):g}" for name in PLAYED)
    more = "more where many are in flight, all but the first fifth of them counted"
    draws = f"seed {asked.seed}, {asked.counted} requests at each rate, {more}"
    lines.add("played_for", "Loads were played for", played, "", "text")
    lines.add("played_with", "as `estimate --rate` does, with", draws, "", "text")
    same = [cells[name].equals(float(getattr(planned, name))) for name in PLAYED]
    why = "lengths, cached tokens, variations or burstiness are not those that were played: make a new workbook"
    stale = lines.add("stale", "Loads are n/a since", when(every(same), "", why), "", "text")
    return {"wrong": wrong, "stale": stale}


def _field(book: Book, sheet: Sheet, row: int, entry: _Field, source: str | None) -> Cell:
    span = f"{entry.least:,.15g} to {entry.most:,.15g}"
    if isinstance(entry.value, float) and not entry.least <= entry.value <= entry.most:
        raise InputError(f"{entry.label} must be from {span}, not {entry.value:,.15g}")
    sheet.put(row, 0, entry.label)
    cell = sheet.blank(row, 1, entry.style) if entry.value is None else sheet.put(row, 1, entry.value, entry.style)
    sheet.put(row, 2, entry.unit, "unit")
    sheet.put(row, 3, entry.note, "note")
    rule: dict[str, Any] = {"error_title": entry.label[:32], "ignore_blank": True}
    if source is not None:
        rule |= {"validate": "list", "source": source, "error_message": "Choose one of the list."}
    else:
        kind = "integer" if entry.style == "input_whole" else "decimal"
        message = f"A{' whole' if kind == 'integer' else ''} number from {span}."
        rule |= {"minimum": entry.least, "maximum": entry.most, "criteria": "between"}
        rule |= {"validate": kind, "error_message": message}
    sheet.page.data_validation(row, 1, row, 1, rule)
    return book.name(f"in_{entry.name}", cell)


def _sections(offers: WorkbookOffers, planned: Planned) -> Iterator[tuple[str, list[_Field]]]:
    told, chosen = TEXTS["deployment"], zip(offers.lists, offers.start, strict=True)
    yield "Deployment", [_Field(name, value=_given(value), style="input", **told[name]) for name, value in chosen]
    for title, section in TEXTS["inputs"].items():
        fields = []
        for name, words in section.items():
            value = words["value"] if "value" in words else getattr(planned, words.get("starts", name))
            rest = {key: text for key, text in words.items() if key not in ("value", "starts")}
            fields.append(_Field(name, value=_given(value), **rest))
        yield title, fields


def _given(value: float | str | None) -> float | str | None:
    return float(value) if isinstance(value, (int, float)) else value


def _lists(book: Book, offers: WorkbookOffers) -> dict[str, str]:
    """Named ranges behind the drop-downs."""
    sheet = book.sheet("Lists")
    for column, (name, values) in enumerate({**offers.lists, "purchase": (RENTED, OWNED)}.items()):
        sheet.put(3, column, name, "head")
        for row, value in enumerate(values, 4):
            sheet.put(row, column, value if isinstance(value, str) else float(value), "general")
        book.file.define_name(f"list_{name}", "=" + sheet.area((4, column), (3 + len(values), column)))
    return {name: f"=list_{name}" for name in (*offers.lists, "purchase")}

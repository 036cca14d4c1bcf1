"""The sheet with the yellow cells: what a planner chooses and types in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rooflinekit.model.graph.cells import BEYOND, Cell, when
from rooflinekit.model.types.errors import InputError
from rooflinekit.report.workbook.offers import DEGREES, Offers, Planned
from rooflinekit.report.workbook.sheet import Book, Sheet

RENTED, OWNED = "rent", "own"


@dataclass(frozen=True)
class Inputs:
    """References to the yellow cells, by name without `in_`."""

    cells: Mapping[str, Cell]
    chosen: tuple[Cell, ...]  #: the drop-downs of the deployment

    def __getitem__(self, name: str) -> Cell:
        return self.cells[name]

    @property
    def most(self) -> Cell:
        """Sequences at once at the most; none is no limit."""
        return when(self["most"].equals(""), BEYOND, self["most"])


@dataclass(frozen=True)
class _Field:
    """One yellow cell: its name, what stands beside it, and what may be typed."""

    name: str
    label: str
    unit: str
    value: float | str | None
    note: str
    style: str = "input_number"
    least: float = 0.0
    most: float = 1e9


def write_inputs(book: Book, offers: Offers, planned: Planned) -> Inputs:
    """Write the sheet, its drop-downs and its names."""
    note = "Change the yellow cells; every other sheet follows. Grey text says what a number means."
    sheet = book.sheet("Inputs", "Capacity of an LLM deployment", note)
    sheet.widths(34, 26, 16, 78)
    sources = _lists(book, offers)
    row, cells = 3, {}
    for title, section in _sections(offers, planned):
        sheet.band(row, title)
        for number, entry in enumerate(section, row + 1):
            cells[entry.name] = _field(book, sheet, number, entry, sources.get(entry.name))
        row += len(section) + 2
    return Inputs(cells, tuple(cells[name] for name in offers.lists))


def _field(book: Book, sheet: Sheet, row: int, entry: _Field, source: str | None) -> Cell:
    if isinstance(entry.value, float) and not entry.least <= entry.value <= entry.most:
        raise InputError(
            f"{entry.label} must be from {entry.least:,.15g} to {entry.most:,.15g}, not {entry.value:,.15g}"
        )
    sheet.put(row, 0, entry.label)
    cell = sheet.blank(row, 1, entry.style) if entry.value is None else sheet.put(row, 1, entry.value, entry.style)
    sheet.put(row, 2, entry.unit, "unit")
    sheet.put(row, 3, entry.note, "note")
    sheet.page.data_validation(row, 1, row, 1, _rule(entry, source))
    return book.name(f"in_{entry.name}", cell)


def _rule(entry: _Field, source: str | None) -> dict[str, Any]:
    told = {"error_title": entry.label[:32], "ignore_blank": True}
    if source is not None:
        return told | {"validate": "list", "source": source, "error_message": "Choose one of the list."}
    kind = "integer" if entry.style == "input_whole" else "decimal"
    message = f"A{' whole' if kind == 'integer' else ''} number from {entry.least:,.15g} to {entry.most:,.15g}."
    limits = {"minimum": entry.least, "maximum": entry.most, "criteria": "between"}
    return told | limits | {"validate": kind, "error_message": message}


def _sections(offers: Offers, planned: Planned) -> Iterator[tuple[str, list[_Field]]]:
    told = {"model": ("Model", "", "Sheet Models"), "gpu": ("GPU", "", "Sheet GPUs")}
    told |= {name: (label, "", "") for name, label in DEGREES.items()}
    told["tp"] = (DEGREES["tp"], "GPUs", "GPUs that share each layer")
    told["weights"] = ("Weights", "format", "own: as the checkpoint stores it")
    told["kv"] = ("KV cache", "format", "own: as the activations, or as the checkpoint says")
    yield "Deployment", [
        _Field(name, told[name][0], told[name][1], value if isinstance(value, str) else float(value), told[name][2],
               "input")
        for name, value in zip(offers.lists, offers.start, strict=True)
    ]  # fmt: skip
    yield "Requests", [
        _Field("batch", "Batch", "sequences", float(planned.batch), "Of sheet Results: sequences that run at once",
               "input_whole", 1, 1e6),
        _Field("isl", "Input length", "tokens", float(planned.isl), "Mean prompt", "input_whole", 1, 1e7),
        _Field("cached", "Cached", "tokens", float(planned.cached), "Of the prompt, already in the cache",
               "input_whole", 0, 1e7),
        _Field("osl", "Output length", "tokens", float(planned.osl), "Mean answer", "input_whole", 1, 1e7),
    ]  # fmt: skip
    yield "Traffic", [
        _Field("users", "Users", "", float(planned.users), "Who send requests then", "input_whole", 0, 1e9),
        _Field("requests", "Requests of a user", "1/h", planned.requests_per_hour, "In an average hour"),
        _Field("rate", "Requests in all", "1/s", planned.rate, "Empty: users x requests"),
        _Field("peak", "Peak factor", "", planned.peak, "Busiest hour over the average one", least=1.0, most=1e4),
        _Field("burstiness", "Burstiness", "", planned.burstiness, "Variation of the gaps between requests: 1 Poisson"),
        _Field("isl_cv", "Variation of input lengths", "", planned.isl_cv, "Standard deviation over mean"),
        _Field("osl_cv", "Variation of output lengths", "", planned.osl_cv, "Standard deviation over mean"),
        _Field("headroom", "Headroom", "share", planned.headroom, "Share of a replica's knee that stays free",
               "input_share", 0.0, 0.95),
        _Field("most", "Sequences at once, at most", "of a replica", None, "Empty: as memory and engine allow",
               "input_whole", 1, 1e6),
    ]  # fmt: skip
    yield (
        "Objectives",
        [
            _Field("ttft", "Time to first token", "ms", planned.ttft_ms, "Mean under load may not exceed this"),
            _Field("tpot", "Time per output token", "ms", planned.tpot_ms, "Mean under load may not exceed this"),
        ],
    )
    yield "Cost", _money(planned)


def _money(planned: Planned) -> list[_Field]:
    yours = "an assumption: enter your own"
    return [
        _Field("purchase", "GPUs are", "", RENTED, "rent: price an hour; own: capital, power and years", "input"),
        _Field(
            "price",
            "Rent",
            "USD/GPU/h",
            planned.price,
            "Of GPUs without a price of their own on sheet GPUs; empty: the quote",
        ),
        _Field("capex", "Capital", "USD/GPU", planned.capex, f"With its share of server, network, building; {yours}"),
        _Field("years", "Years of use", "a", planned.years, f"Straight-line; {yours}", least=0.1, most=100),
        _Field("kwh", "Power price", "USD/kWh", planned.kwh_price, yours),
        _Field("pue", "PUE", "", planned.pue, f"Energy of the site over that of the GPUs; {yours}", least=1.0, most=10),
        _Field("watts", "Power of a GPU", "W", None, "Leave empty to take the predicted mean on sheet GPUs"),
    ]


def _lists(book: Book, offers: Offers) -> dict[str, str]:
    """Named ranges behind the drop-downs."""
    sheet = book.sheet("Lists", "Lists behind the drop-downs")
    for column, (name, values) in enumerate({**offers.lists, "purchase": (RENTED, OWNED)}.items()):
        sheet.put(3, column, name, "head")
        for row, value in enumerate(values, 4):
            sheet.put(row, column, value if isinstance(value, str) else float(value), "general")
        book.file.define_name(f"list_{name}", "=" + sheet.area((4, column), (3 + len(values), column)))
    return {name: f"=list_{name}" for name in (*offers.lists, "purchase")}

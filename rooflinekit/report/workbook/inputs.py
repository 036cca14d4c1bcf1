"""The sheet with the yellow cells: what a planner chooses and types in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rooflinekit.model.types.errors import InputError
from rooflinekit.report.workbook.data import Data
from rooflinekit.report.workbook.formula import Formula, Range
from rooflinekit.report.workbook.offers import Offers, Planned
from rooflinekit.report.workbook.sheet import Book, Sheet

__all__ = ["OWNED", "RENTED", "Inputs", "write_inputs"]

RENTED, OWNED = "rent", "own"


@dataclass(frozen=True)
class Inputs:
    """References to the yellow cells, by name without `in_`."""

    cells: Mapping[str, Formula]

    def __getitem__(self, name: str) -> Formula:
        return self.cells[name]


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


def write_inputs(book: Book, offers: Offers, planned: Planned, data: Data) -> Inputs:
    """Write the sheet, its drop-downs and its names."""
    sheet = book.sheet("Inputs")
    sheet.page.set_column(0, 0, 34)
    sheet.page.set_column(1, 1, 26)
    sheet.page.set_column(2, 2, 16)
    sheet.page.set_column(3, 3, 78)
    sheet.put(0, 0, "Capacity of an LLM deployment", "title")
    sheet.put(1, 0, "Change the yellow cells; every other sheet follows. Grey text says what a number means.", "note")
    lists = _lists(book, offers, data)
    row, cells = 3, {}
    for title, section in _sections(offers, planned):
        sheet.put(row, 0, title, "section")
        for column in (1, 2, 3):
            sheet.put(row, column, "", "section")
        for number, field in enumerate(section, row + 1):
            cells[field.name] = _field(book, sheet, number, field, lists.get(field.name))
        row += len(section) + 2
    return Inputs(cells)


def _field(book: Book, sheet: Sheet, row: int, field: _Field, source: str | None) -> Formula:
    if isinstance(field.value, float) and not field.least <= field.value <= field.most:
        raise InputError(
            f"{field.label} must be from {field.least:,.15g} to {field.most:,.15g}, not {field.value:,.15g}"
        )
    sheet.put(row, 0, field.label)
    cell = sheet.blank(row, 1, field.style) if field.value is None else sheet.put(row, 1, field.value, field.style)
    sheet.put(row, 2, field.unit, "unit")
    sheet.put(row, 3, field.note, "note")
    sheet.page.data_validation(row, 1, row, 1, _rule(field, source))
    return book.name(f"in_{field.name}", cell)


def _rule(field: _Field, source: str | None) -> dict[str, Any]:
    told = {"error_title": field.label, "ignore_blank": True}
    if source is not None:
        return told | {"validate": "list", "source": source, "error_message": "Choose one of the list."}
    kind = "integer" if field.style == "input_whole" else "decimal"
    message = f"A{' whole' if kind == 'integer' else ''} number from {field.least:,.15g} to {field.most:,.15g}."
    limits = {"minimum": field.least, "maximum": field.most, "criteria": "between"}
    return told | limits | {"validate": kind, "error_message": message}


def _sections(offers: Offers, planned: Planned) -> list[tuple[str, list[_Field]]]:
    model, gpu, tp, weights, kv = offers.start
    own = "own: as the checkpoint stores it"
    return [
        ("Deployment", [
            _Field("model", "Model", "", model, "Sheet Models", "input"),
            _Field("gpu", "GPU", "", gpu, "Sheet GPUs", "input"),
            _Field("tp", "Tensor parallel degree", "GPUs a replica", float(tp), "GPUs that share each layer", "input"),
            _Field("weights", "Weights", "format", weights, own, "input"),
            _Field("kv", "KV cache", "format", kv, "own: as the activations, or as the checkpoint says", "input"),
        ]),
        ("Requests", [
            _Field("batch", "Batch", "sequences", float(planned.batch), "Sequences that one replica runs at once",
                   "input_whole", 1, 1e6),
            _Field("isl", "Input length", "tokens", float(planned.isl), "Mean prompt", "input_whole", 1, 1e7),
            _Field("osl", "Output length", "tokens", float(planned.osl), "Mean answer", "input_whole", 1, 1e7),
        ]),
        ("Traffic", _traffic(planned)),
        ("Objectives", [
            _Field("ttft", "Time to first token", "ms", planned.ttft_ms, "Mean under load may not exceed this"),
            _Field("tpot", "Time per output token", "ms", planned.tpot_ms, "Mean under load may not exceed this"),
        ]),
        ("Cost", _money(planned)),
    ]  # fmt: skip


def _traffic(planned: Planned) -> list[_Field]:
    return [
        _Field("users", "Users", "", float(planned.users), "Who send requests then", "input_whole", 0, 1e9),
        _Field("requests", "Requests of a user", "1/h", planned.requests_per_hour, "In an average hour"),
        _Field("rate", "Requests in all", "1/s", planned.rate, "Empty: users x requests"),
        _Field("peak", "Peak factor", "", planned.peak, "Busiest hour over the average one", least=1.0, most=1e4),
        _Field("headroom", "Headroom", "share", planned.headroom, "Share of a replica's knee that stays free",
               "input_share", 0.0, 0.95),
    ]  # fmt: skip


def _money(planned: Planned) -> list[_Field]:
    yours = "an assumption: enter your own"
    return [
        _Field("purchase", "GPUs are", "", RENTED, "rent: price an hour; own: capital, power and years", "input"),
        _Field("price", "Rent", "USD/GPU/h", planned.price, "Leave empty to take the dated quote on sheet GPUs"),
        _Field("capex", "Capital", "USD/GPU", planned.capex, f"With its share of server, network, building; {yours}"),
        _Field("years", "Years of use", "a", planned.years, f"Straight-line; {yours}", least=0.1, most=100),
        _Field("kwh", "Power price", "USD/kWh", planned.kwh_price, yours),
        _Field(
            "pue", "PUE", "", planned.pue, f"Energy of the site over that of the machines; {yours}", least=1.0, most=10
        ),
        _Field("watts", "Power of a GPU", "W", None, "Leave empty to take the rated power on sheet GPUs"),
    ]


def _lists(book: Book, offers: Offers, data: Data) -> dict[str, str]:
    """Named ranges behind the drop-downs."""
    sheet = book.sheet("Lists")
    sheet.put(0, 0, "Lists behind the drop-downs", "title")
    sources: dict[str, Range] = {
        "model": data.models.column("model"),
        "gpu": data.gpus.column("gpu"),
    }
    written: dict[str, tuple[float | str, ...]] = {
        "tp": tuple(float(tp) for tp in offers.tp),
        "weights": offers.weights,
        "kv": offers.kv,
        "purchase": (RENTED, OWNED),
    }
    for column, (name, values) in enumerate(written.items()):
        sheet.put(3, column, name, "head")
        for row, value in enumerate(values, 4):
            sheet.put(row, column, value, "general")
        sources[name] = sheet.down(column, 4, 3 + len(values))
    for name, cells in sources.items():
        book.file.define_name(f"list_{name}", f"={cells.text}")
    return {name: f"=list_{name}" for name in sources}

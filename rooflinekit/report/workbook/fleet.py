"""Sheets Fleet and TCO: `rooflinekit.model.coefficients.fleet` as formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.report.workbook.charts import Area, bar_chart, line_chart
from rooflinekit.report.workbook.data import Data
from rooflinekit.report.workbook.formula import (
    Formula,
    all_of,
    ceil,
    index,
    is_number,
    joined,
    match,
    maximum,
    when,
)
from rooflinekit.report.workbook.inputs import OWNED, RENTED, Inputs
from rooflinekit.report.workbook.points import Point
from rooflinekit.report.workbook.selected import Selected
from rooflinekit.report.workbook.sheet import Book, Sheet
from rooflinekit.report.workbook.views import Lines, shown, status_colours

__all__ = ["Served", "write_fleet", "write_tco"]

_HOURS = 8760.0
_YEARS = 6


@dataclass(frozen=True)
class Served:
    """What the money is spent on: whether anything runs, accelerators, their number, requests a second."""

    runs: Formula
    gpus: Formula
    rate: Formula


def write_fleet(
    book: Book, inputs: Inputs, dep: Selected, points: tuple[Point, Point], sweep: Sequence[Point]
) -> Served:
    """Replicas for the peak, how busy they are, what users meet; and the same for every batch of the sweep."""
    sheet = book.sheet("Fleet")
    for column, width in enumerate((34, 24, 14, 14, *[14] * 6)):
        sheet.page.set_column(column, column, width)
    sheet.put(0, 0, "Fleet: replicas for the peak", "title")
    sheet.put(
        1, 0, "A replica that always runs the batch serves at most its knee; formulas in docs/workbook.md.", "note"
    )
    point, single = points
    runs = all_of(dep["offered"] >= 1.0, point["fits"] >= 1.0)
    lines = Lines(book, sheet, 2)
    lines.section("Demand")
    own = inputs["users"] * inputs["requests"] / 3600.0
    rate = lines.add(
        "rate", "Requests, average hour", when(inputs["rate"].equals(""), own, inputs["rate"]), "1/s", "three"
    )
    peak = lines.add("peak_rate", "Requests, busiest hour", rate * inputs["peak"], "1/s", "three")
    lines.section("One replica")
    status = when(runs, "FITS", when(dep["offered"] >= 1.0, "OOM", "NOT OFFERED"))
    lines.add("fleet_status", "Memory", status, "", "status")
    status_colours(book, sheet, (lines.row - 1, 1, lines.row - 1, 1))
    prompt = single["ttft_time"]
    knee = lines.add("knee", "Knee: largest rate", shown(runs, _knee(inputs, point, prompt)), "1/s", "three",
                     "batch / (output x step + batch x prompt)")  # fmt: skip
    lines.add("step_ms", "Decode step", shown(runs, point["tpot_time"] * 1000.0), "ms")
    lines.add("prompt_ms", "One prompt alone", shown(runs, prompt * 1000.0), "ms")
    lines.section("Fleet")
    found = _Loaded.of(inputs, dep, (peak, knee), (point["tpot_time"], prompt))
    replicas = lines.add("replicas", "Replicas", shown(runs, found.replicas), "", "whole")
    gpus = lines.add("gpus", "GPUs", shown(runs, replicas * dep["gpus"]), "", "whole")
    spelled = joined(gpus, " = ", replicas, " replicas x TP", dep["gpus"])
    lines.add("spelled", "GPUs in words", shown(runs, spelled), "", "words")
    lines.add("utilisation", "Utilisation at the peak", shown(runs, peak / replicas / knee), "of the knee", "share")
    _objectives(lines, runs, found, inputs)
    _by_batch(book, sheet, (lines.row + 2, inputs, dep), (peak, prompt), sweep)
    return Served(runs, gpus, rate)


def _objectives(lines: Lines, runs: Formula, found: _Loaded, inputs: Inputs) -> None:
    for name, label, value in (
        ("ttft", "TTFT under load, mean", found.ttft),
        ("tpot", "TPOT under load, mean", found.tpot),
    ):
        time = lines.add(f"load_{name}_ms", label, shown(runs, value * 1000.0), "ms")
        verdict = when(time <= inputs[name], "MEETS", "MISSES")
        lines.add(f"{name}_objective", "Objective", shown(runs, verdict), "", "status")
        status_colours(lines.book, lines.sheet, (lines.row - 1, 1, lines.row - 1, 1))


def _knee(inputs: Inputs, point: Point, prompt: Formula) -> Formula:
    busy = point["osl"] * point["tpot_time"] + point["batch"] * prompt
    return point["batch"] / busy


@dataclass(frozen=True)
class _Loaded:
    """A fleet at the peak, as formulas."""

    replicas: Formula
    ttft: Formula
    tpot: Formula

    @classmethod
    def of(
        cls, inputs: Inputs, dep: Selected, rates: tuple[Formula, Formula], times: tuple[Formula, Formula]
    ) -> _Loaded:
        """`rates`: peak, knee; `times`: decode step, prompt alone."""
        (peak, knee), (step, prompt) = rates, times
        replicas = maximum(ceil(peak / ((1.0 - inputs["headroom"]) * knee)), 1.0)
        busy = peak / replicas * prompt
        tpot = step / (1.0 - busy)
        wait = busy / (1.0 - busy) * prompt / 2.0
        return cls(replicas, dep["host_request"] + tpot / 2.0 + wait + prompt, tpot)


def _by_batch(
    book: Book, sheet: Sheet, where: tuple[int, Inputs, Selected], load: tuple[Formula, Formula], sweep: Sequence[Point]
) -> None:
    """The same arithmetic for every batch of sheet Batch sweep."""
    row, inputs, dep = where
    peak, prompt = load
    for column, text in enumerate(("The same for the batches of sheet Batch sweep", *[""] * 7)):
        sheet.put(row, column, text, "section")
    heads = ("batch", "memory", "knee [1/s]", "replicas", "GPUs", "TTFT [ms]", "TPOT [ms]", "objectives")
    sheet.heads(row + 1, heads, (1, 7))
    first = row + 2
    for number, point in enumerate(sweep, first):
        runs = all_of(dep["offered"] >= 1.0, point["fits"] >= 1.0)
        sheet.put(number, 0, point["batch"], "whole")
        status = when(runs, "FITS", when(dep["offered"] >= 1.0, "OOM", "NOT OFFERED"))
        sheet.put(number, 1, status, "status")
        knee = sheet.put(number, 2, shown(runs, _knee(inputs, point, prompt)), "three")
        found = _Loaded.of(inputs, dep, (peak, knee), (point["tpot_time"], prompt))
        replicas = sheet.put(number, 3, shown(runs, found.replicas), "whole")
        sheet.put(number, 4, shown(runs, replicas * dep["gpus"]), "whole")
        ttft = sheet.put(number, 5, shown(runs, found.ttft * 1000.0), "one")
        tpot = sheet.put(number, 6, shown(runs, found.tpot * 1000.0), "two")
        kept = all_of(ttft <= inputs["ttft"], tpot <= inputs["tpot"])
        sheet.put(number, 7, shown(runs, when(kept, "MEETS", "MISSES")), "status")
    last = first + len(sweep) - 1
    status_colours(book, sheet, (first, 1, last, 1))
    status_colours(book, sheet, (first, 7, last, 7))
    area = Area(sheet, row + 1, last, (4,))
    bar_chart(book, area, ("GPUs for the peak, by batch", "batch", "GPUs"), (last + 2, 0))


def write_tco(book: Book, inputs: Inputs, data: Data, served: Served) -> None:
    """What the fleet costs, rented and owned."""
    sheet = book.sheet("TCO")
    for column, width in enumerate((34, 18, 14, 60)):
        sheet.page.set_column(column, column, width)
    sheet.put(0, 0, "Total cost of ownership", "title")
    told = "The fleet of sheet Fleet, all year round. Engineers, network transit and software are left out."
    sheet.put(1, 0, told, "note")
    lines = Lines(book, sheet, 2)
    gpus = served.gpus
    lines.section("What counts")
    power, rented = _running(lines, inputs, data, served)
    drawn = is_number(power)
    capital = gpus * inputs["capex"] / (inputs["years"] * _HOURS)
    capital = lines.add("capital_usd_h", "Owned: capital", shown(served.runs, capital), "USD/h", "two", "straight-line")
    energy = lines.add("power_usd_h", "Owned: power", shown(drawn, power * inputs["kwh"]), "USD/h", "two")
    lines.section("Cost of the fleet as chosen on Inputs")
    owned = shown(is_number(energy), capital + energy)
    hour = lines.add("usd_h", "An hour", when(inputs["purchase"].equals(OWNED), owned, rented), "USD/h", "two")
    _unit_costs(lines, inputs, (hour, power), served.rate)
    _by_year(book, sheet, (lines.row + 1, inputs["years"]), (rented, energy, gpus * inputs["capex"]))


def _running(lines: Lines, inputs: Inputs, data: Data, served: Served) -> tuple[Formula, Formula]:
    """Power at the meter, and rent; "n/a" where a price or a power is not known."""
    place = match(inputs["gpu"], data.gpus.column("gpu"), 1.0)

    def looked(own: str, column: str) -> Formula:
        return when(inputs[own].equals(""), index(data.gpus.column(column), place), inputs[own])

    unknown = "0: not known, enter yours on Inputs"
    price = lines.add("price", "Rent", looked("price", "price [USD/h]"), "USD/GPU/h", "two", unknown)
    watts = lines.add("watts", "Power of a GPU", looked("watts", "power [W]"), "W", "whole", unknown)
    kilowatts = served.gpus * watts * inputs["pue"] / 1000.0
    power = shown(all_of(served.runs, watts > 0.0), kilowatts)
    power = lines.add("kilowatts", "Power at the meter", power, "kW", "one", "all GPUs at that power, with PUE")
    lines.add("kwh_per_year", "Energy", shown(is_number(power), power * _HOURS), "kWh/a", "whole")
    rent = shown(all_of(served.runs, price > 0.0), served.gpus * price)
    return power, lines.add("rent_usd_h", "Rented", rent, "USD/h", "two")


def _unit_costs(lines: Lines, inputs: Inputs, costs: tuple[Formula, Formula], rate: Formula) -> None:
    """Cost of a year, of tokens and of requests."""
    hour, power = costs
    lines.add("usd_year", "A year", shown(is_number(hour), hour * _HOURS), "USD/a", "whole")
    asked, note = all_of(is_number(hour), rate > 0.0), "at the average rate of requests"
    millions = rate * 3600.0 / 1e6
    for name, label, count in (
        ("million_output", "A million output tokens", millions * inputs["osl"]),
        ("million", "A million tokens, in and out", millions * (inputs["isl"] + inputs["osl"])),
        ("thousand_requests", "A thousand requests", millions * 1000.0),
    ):
        lines.add(f"usd_{name}", label, shown(asked, hour / count), "USD", "three", note)
    joules = shown(all_of(is_number(power), rate > 0.0), power * 1000.0 / (rate * inputs["osl"]))
    lines.add("joule_token", "Energy of an output token", joules, "J", "one", note)


def _by_year(book: Book, sheet: Sheet, where: tuple[int, Formula], costs: tuple[Formula, Formula, Formula]) -> None:
    """What has been spent after each year."""
    row, years = where
    rented, energy, capital = costs
    title = "Spent after so many years [USD]; owned GPUs are bought again after their years of use"
    for column, text in enumerate((title, "", "", "")):
        sheet.put(row, column, text, "section")
    sheet.heads(row + 1, ("year", RENTED, OWNED), ())
    first = row + 2
    for number in range(_YEARS):
        year = float(number)
        sheet.put(first + number, 0, year, "whole")
        sheet.put(first + number, 1, shown(is_number(rented), rented * _HOURS * year), "whole")
        bought = capital * maximum(ceil(year / years), 1.0)
        sheet.put(first + number, 2, shown(is_number(energy), bought + energy * _HOURS * year), "whole")
    area = Area(sheet, row + 1, first + _YEARS - 1, (1, 2))
    told = ("Spent on the fleet, rented and owned [USD]", "years", "USD")
    line_chart(book, area, told, (first + _YEARS + 1, 0))

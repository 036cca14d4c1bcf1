"""Sheets Fleet and TCO: replicas for the peak, what users meet there, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflinekit.model.graph.cells import Cell, composed, function, literal, when
from rooflinekit.report.workbook.calculation import Calculation
from rooflinekit.report.workbook.data import lists, price_of
from rooflinekit.report.workbook.inputs import OWNED, RENTED, Inputs
from rooflinekit.report.workbook.offers import Offers
from rooflinekit.report.workbook.sheet import Book, Lines, Sheet, shown, status_colours
from rooflinekit.report.workbook.views import Area, bar_chart, line_chart, status_of

_HOURS = 8760.0
_YEARS = 6


@dataclass(frozen=True)
class Served:
    """What the money is spent on: whether anything runs, accelerators, their number, requests a second."""

    runs: Cell
    gpus: Cell
    rate: Cell


def write_fleet(book: Book, calculation: Calculation, headrooms: Sequence[float]) -> Served:
    """Replicas for the peak, how busy they are, what users meet; and the same for other headrooms."""
    note = "The open loop of `rooflinekit estimate --rate`: means over Poisson or bursty arrivals; docs/serving.md."
    sheet = book.sheet("Fleet", "Fleet: replicas for the peak", note)
    sheet.widths(34, 24, 14, 14, *[14] * 6)
    inputs, lines, gpus = calculation.inputs, Lines(book, sheet), calculation.gpus
    fits = calculation.room >= 1.0
    runs = calculation.constants.offered & fits
    lines.section("Demand")
    own = inputs["users"] * inputs["requests"] / 3600.0
    rate = when(inputs["rate"].equals(""), own, inputs["rate"])
    rate = lines.add("rate", "Requests, average hour", rate, "1/s", "three")
    peak = lines.add("peak_rate", "Requests, busiest hour", rate * inputs["peak"], "1/s", "three")
    lines.section("One replica")
    lines.add("fleet_status", "Memory", status_of(calculation, fits), "", "status", "OOM: not one request fits")
    lines.add("slots", "Sequences at once", shown(runs, calculation.room), "", "whole", "room in the cache")
    knee = lines.add("knee", "Knee: largest rate", shown(runs, calculation.knee), "1/s", "three", "with all slots busy")
    lines.section("Fleet")
    replica = Replica(peak, knee, runs, gpus)
    replicas = lines.add("replicas", "Replicas", replica.number(inputs["headroom"]), "", "whole")
    all_gpus = lines.add("gpus", "GPUs", shown(runs, replicas * gpus), "", "whole")
    words = [all_gpus, literal(" = "), replicas, literal(" replicas x "), gpus, literal(" GPUs")]
    spelled = words[0]
    for word in words[1:]:
        spelled = composed("joined", spelled, word)
    lines.add("spelled", "GPUs in words", shown(runs, spelled), "", "words")
    lines.add("utilisation", "Utilisation at the peak", shown(runs, peak / replicas / knee), "of the knee", "share")
    each = when(runs, peak / replicas, 0.0)
    each = lines.add("replica_rate", "Requests of a replica", each, "1/s", "three")
    loaded = calculation.load("the fleet", each)
    stable = when(runs, loaded["stable"] >= 1.0, False)
    lines.section("What users meet at the peak")
    for name, label in (("ttft", "TTFT under load, mean"), ("tpot", "TPOT under load, mean")):
        steady = stable if name == "ttft" else runs
        time = shown(steady, loaded[f"{name}.expected"] * 1000.0)
        time = lines.add(f"load_{name}_ms", label, time, "ms", "two", "n/a: beyond the knee")
        for end, words_of in (("low", "from"), ("high", "to")):
            value = shown(steady, loaded[f"{name}.{end}"] * 1000.0)
            lines.add(f"load_{name}_{end}_ms", f"90 % interval with as many running, {words_of}", value, "ms")
        verdict = when(known(time), when(time <= inputs[name], "MEETS", "MISSES"), "n/a")
        lines.add(f"{name}_objective", "Objective", verdict, "", "status")
    lines.add("running", "Sequences that run at once", shown(stable, loaded["running"]), "", "one")
    lines.add("queue_ms", "Wait before the first step", shown(stable, loaded["queue"] * 1000.0), "ms")
    if headrooms:
        _by_headroom(Lines(book, sheet, lines.row + 2), calculation, replica, headrooms)
    return Served(runs, all_gpus, rate)


@dataclass(frozen=True)
class Replica:
    """What sizes a fleet: requests at the peak, the knee of one replica, whether it runs, its accelerators."""

    peak: Cell
    knee: Cell
    runs: Cell
    gpus: Cell

    def number(self, headroom: Cell) -> Cell:
        """Replicas: ⌈peak/((1 − headroom)·knee)⌉, at least one."""
        least = composed("ceil", self.peak / ((literal(1.0) - headroom) * self.knee))
        return shown(self.runs, composed("max", least, literal(1.0)))


def _by_headroom(lines: Lines, calculation: Calculation, replica: Replica, headrooms: Sequence[float]) -> None:
    """The same for other headrooms, each a root of the open loop of its own."""
    book, sheet, row = lines.book, lines.sheet, lines.row
    inputs, runs = calculation.inputs, replica.runs
    sheet.band(row, "The same with other headrooms", 8)
    heads = ("headroom", "replicas", "GPUs", "utilisation", "requests [1/s]", "TTFT [ms]", "TPOT [ms]", "objectives")
    sheet.heads(row + 1, heads, (7,))
    first = row + 2
    for number, headroom in enumerate(headrooms, first):
        free = sheet.put(number, 0, headroom, "input_share")
        replicas = sheet.put(number, 1, replica.number(free), "whole")
        sheet.put(number, 2, shown(runs, replicas * replica.gpus), "whole")
        sheet.put(number, 3, shown(runs, replica.peak / replicas / replica.knee), "share")
        rate = sheet.put(number, 4, when(runs, replica.peak / replicas, 0.0), "three")
        loaded = calculation.load(f"headroom {number - first + 1}", rate)
        stable = when(runs, loaded["stable"] >= 1.0, False)
        ttft = sheet.put(number, 5, shown(stable, loaded["ttft.expected"] * 1000.0), "one")
        tpot = sheet.put(number, 6, shown(stable, loaded["tpot.expected"] * 1000.0), "two")
        kept = when((ttft <= inputs["ttft"]) & (tpot <= inputs["tpot"]), "MEETS", "MISSES")
        sheet.put(number, 7, shown(stable, kept), "status")
    last = first + len(headrooms) - 1
    rule = {"validate": "decimal", "criteria": "between", "minimum": 0.0, "maximum": 0.95}
    sheet.page.data_validation(first, 0, last, 0, rule)
    status_colours(book, sheet, (first, 7, last, 7))
    bar_chart(book, Area(sheet, row + 1, last, (2,)), ("GPUs for the peak, by headroom", "headroom", "GPUs"),
              (last + 2, 0))  # fmt: skip


def write_tco(book: Book, inputs: Inputs, offers: Offers, served: Served) -> None:
    """What the fleet costs, rented and owned."""
    told = "The fleet of sheet Fleet, all year round. Engineers, network transit and software are left out."
    sheet = book.sheet("TCO", "Total cost of ownership", told)
    sheet.widths(34, 18, 14, 60)
    lines, gpus = Lines(book, sheet), served.gpus
    lines.section("What counts")
    power, rented = _running(lines, inputs, offers, served)
    capital = shown(served.runs, gpus * inputs["capex"] / (inputs["years"] * _HOURS))
    capital = lines.add("capital_usd_h", "Owned: capital", capital, "USD/h", "two", "straight-line")
    energy = shown(known(power), power * inputs["kwh"])
    energy = lines.add("power_usd_h", "Owned: power", energy, "USD/h", "two")
    lines.section("Cost of the fleet as chosen on Inputs")
    owned = shown(known(energy), capital + energy)
    hour = lines.add("usd_h", "An hour", when(inputs["purchase"].equals(OWNED), owned, rented), "USD/h", "two")
    _unit_costs(lines, inputs, (hour, power), served.rate)
    _by_year(book, sheet, lines.row + 1, inputs, (rented, energy, gpus * inputs["capex"]))


def known(value: Cell) -> Cell:
    """Whether it is a number."""
    return function("ISNUMBER({0})", not isinstance(value.value, str), value)


def _running(lines: Lines, inputs: Inputs, offers: Offers, served: Served) -> tuple[Cell, Cell]:
    """Power at the meter, and rent; "n/a" where a price or a power is not known."""
    at = [gpu.name for gpu in offers.gpus].index(inputs["gpu"].value)
    rival, unknown = offers.rivals[at], "0: not known, enter yours on sheet GPUs or Inputs"
    row = Cell(f"IFERROR(MATCH(in_gpu,{lists(offers, 0)},0),1)", at + 1.0)
    price = lines.add("price", "Rent", price_of(offers, inputs, row, rival), "USD/GPU/h", "two", unknown)
    drawn = Cell(f"INDEX({lists(offers, 3)},{row.text})", rival.watts)
    watts = when(inputs["watts"].equals(""), drawn, inputs["watts"])
    watts = lines.add("watts", "Power of a GPU with its host", watts, "W", "whole", unknown)
    power = shown(served.runs & (watts > 0.0), served.gpus * watts * inputs["pue"] / 1000.0)
    power = lines.add("kilowatts", "Power at the meter", power, "kW", "one", "all GPUs at that power, with PUE")
    lines.add("kwh_per_year", "Energy", shown(known(power), power * _HOURS), "kWh/a", "whole")
    rent = shown(served.runs & (price > 0.0), served.gpus * price)
    return power, lines.add("rent_usd_h", "Rented", rent, "USD/h", "two")


def _unit_costs(lines: Lines, inputs: Inputs, costs: tuple[Cell, Cell], rate: Cell) -> None:
    """Cost of a year, of tokens and of requests."""
    hour, power = costs
    lines.add("usd_year", "A year", shown(known(hour), hour * _HOURS), "USD/a", "whole")
    asked, note = known(hour) & (rate > 0.0), "at the average rate of requests"
    millions = rate * 3600.0 / 1e6
    for name, label, count in (
        ("million_output", "A million output tokens", millions * inputs["osl"]),
        ("million", "A million tokens, in and out", millions * (inputs["isl"] + inputs["osl"])),
        ("thousand_requests", "A thousand requests", millions * 1000.0),
    ):
        lines.add(f"usd_{name}", label, shown(asked, hour / count), "USD", "three", note)
    joules = shown(known(power) & (rate > 0.0), power * 1000.0 / (rate * inputs["osl"]))
    lines.add("joule_token", "Energy of an output token", joules, "J", "one", note)


def _by_year(book: Book, sheet: Sheet, row: int, inputs: Inputs, costs: Sequence[Cell]) -> None:
    """What has been spent after each year."""
    rented, energy, capital = costs
    sheet.band(row, "Spent after so many years [USD]; owned GPUs are bought again after their years of use")
    sheet.heads(row + 1, ("year", RENTED, OWNED), ())
    first = row + 2
    for number in range(_YEARS):
        year = float(number)
        sheet.put(first + number, 0, year, "whole")
        sheet.put(first + number, 1, shown(known(rented), rented * _HOURS * year), "whole")
        bought = capital * composed("max", composed("ceil", literal(year) / inputs["years"]), literal(1.0))
        sheet.put(first + number, 2, shown(known(energy), bought + energy * _HOURS * year), "whole")
    told = ("Spent on the fleet, rented and owned [USD]", "years", "USD")
    line_chart(book, Area(sheet, row + 1, first + _YEARS - 1, (1, 2)), told, (first + _YEARS + 1, 0))

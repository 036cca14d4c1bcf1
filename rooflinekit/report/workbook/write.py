"""The workbook as a file, and its sheets Compare, Fleet and TCO.

What serves the peak on each accelerator, what users meet there, and what it costs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rooflinekit.model.graph.cells import Cell, composed, function, literal, when
from rooflinekit.report.workbook import views
from rooflinekit.report.workbook.calculation import Calculation, PointResults, block_of, write_labels
from rooflinekit.report.workbook.curves import Curve, write_curves, write_loads
from rooflinekit.report.workbook.data import lists, price_of, write_constants, write_gpus, write_models, write_tables
from rooflinekit.report.workbook.inputs import OWNED, RENTED, TEXTS, Inputs, write_inputs
from rooflinekit.report.workbook.offers import Choices, Planned, WorkbookOffers, make_offers
from rooflinekit.report.workbook.sheet import HEAD, TABLES, Book, Lines, Sheet, joined, known, shown, status_colours
from rooflinekit.report.workbook.summary import NAME as SUMMARY
from rooflinekit.report.workbook.summary import write_summary
from rooflinekit.specs.writing import open_workbook, whole
from rooflinekit.version import __version__

_HOURS = 8760.0
_ROUNDING = 1e-9
_YEARS = 6


@dataclass(frozen=True)
class ServedCells:
    """Served load behind the costs: whether anything runs, accelerators, requests a second, power of one [W]."""

    runs: Cell
    gpus: Cell
    rate: Cell
    watts: Cell


@dataclass(frozen=True)
class FleetCells:
    """Basis of a fleet's size: requests at the peak, the curve of one replica, its accelerators.

    made: requests at the peak for which it was played; runs: whether a replica keeps the objectives at some load.
    """

    peak: Cell
    curve: Curve
    gpus: Cell
    made: float
    runs: Cell

    @classmethod
    def of(cls, inputs: Inputs, curve: Curve, gpus: Cell, made: float) -> FleetCells:
        """Fleet of replicas with this curve."""
        peak = inputs.rate * inputs["peak"]
        return cls(peak, curve, gpus, made, when(curve.runs, curve.capacity > 0.0, literal(False)))

    def replicas(self, headroom: Cell) -> Cell:
        """Replicas: ⌈peak/((1 − headroom)·capacity)⌉; at the peak that was played, as many as make arrivals so even."""
        least = composed("ceil", self.peak / ((literal(1.0) - headroom) * self.curve.capacity))
        even = when(self.peak >= self.made * (1.0 - _ROUNDING), self.curve.load["together"], 1.0)
        return shown(self.runs, composed("max", least, even))


def why_not(calculation: Calculation, curve: Curve) -> Cell:
    """The reason why there is no fleet, in words; else empty."""
    constants, stale = calculation.constants, calculation.inputs["stale"]
    words = when(curve.capacity > 0.0, "", composed("joined", curve.bound, literal(_FAILS)))
    words = when(constants.load["rungs"] >= 1.0, words, constants.load["unplayed"])
    return when(constants.offered, when(stale.equals(""), words, stale), constants.reason)


_FAILS = " misses its objective even without load"


def fleet_status(calculation: Calculation) -> Cell:
    """FITS where requests have room; n/a where no load was played for the inputs."""
    room, current = calculation.constants.load["places"] >= 1.0, calculation.inputs["stale"].equals("")
    return views.status_of(calculation, room, current)


def write_fleet(
    book: Book, calculation: Calculation, curve: Curve, headrooms: Sequence[float], planned: Planned
) -> ServedCells:
    """Replicas for the peak, how busy they are, what users meet; and the same for other headrooms."""
    sheet = book.sheet("Fleet")
    inputs, lines, gpus, load = calculation.inputs, Lines(book, sheet), calculation.gpus, curve.load
    lines.section("Demand")
    rate = lines.add("rate", "Requests, average hour", inputs.rate, "1/s", "three")
    fleet = FleetCells.of(inputs, curve, gpus, planned.peak_rate)
    peak = lines.add("peak_rate", "Requests, busiest hour", fleet.peak, "1/s", "three")
    lines.section("One replica")
    lines.add("fleet_status", "Memory", fleet_status(calculation), "", "status", "OOM: not one request fits")
    lines.add("fleet_reason", "Why not", why_not(calculation, curve), "", "text")
    lines.add("slots", "Sequences at once", shown(curve.runs, load["places"]), "", "whole", "room in the cache")
    knee = shown(curve.runs, load["knee"])
    knee = lines.add("knee", "Knee: largest rate", knee, "1/s", "three", "of a full engine, by its steps")
    played = shown(curve.runs, load["played"])
    lines.add("played", "Settings of the engine", played, "", "text", "those that `plan` takes")
    sure = f"{planned.confidence:.0%} confidence"
    note = f"at which P95 of TTFT and TPOT keep their objectives with {sure}; at most the last rate that was played"
    lines.add("capacity", "Capacity", shown(fleet.runs, curve.capacity), "1/s", "three", note)
    lines.add("bound", "Capacity is bound by", shown(fleet.runs, curve.bound), "", "words")
    lines.section("Fleet")
    replicas = lines.add("replicas", "Replicas", fleet.replicas(inputs["headroom"]), "", "whole")
    runs = known(replicas)
    all_gpus = lines.add("gpus", "GPUs", shown(runs, replicas * gpus), "", "whole")
    counts = ((all_gpus, "GPU"), (replicas, "replica"))
    many = [joined(count, when(count.equals(1.0), f" {each}", f" {each}s")) for count, each in counts]
    spelled = joined(many[0], " (", many[1], " of ", gpus, ")")
    lines.add("spelled", "GPUs in words", shown(runs, spelled), "", "words")
    lines.add("utilisation", "Utilisation at the peak", shown(runs, peak / replicas / knee), "of the knee", "share")
    each = lines.add("replica_rate", "Requests of a replica", shown(runs, peak / replicas), "1/s", "three")
    _at_peak(lines, inputs, curve.at("fleet at the peak", each))
    average = curve.at("fleet in the average hour", shown(runs, rate / replicas))
    if headrooms:
        _by_headroom(Lines(book, sheet, lines.row + 2), inputs, fleet, headrooms)
    return ServedCells(runs, all_gpus, rate, average["watts"])


def _at_peak(lines: Lines, inputs: Inputs, met: Mapping[str, Cell]) -> None:
    """Write the latencies at the peak."""
    lines.section("Latency at the peak")
    for name in ("ttft", "tpot"):
        lines.add(f"load_{name}_ms", f"{name.upper()} under load, mean", met[name], "ms")
        for end, words in (("low", "90 % interval, from"), ("high", "90 % interval, to"), ("p95", "P95 of requests")):
            lines.add(f"load_{name}_{end}_ms", words, met[f"{name}_{end}"], "ms")
        slow = met[f"{name}_p95"]
        verdict = when(known(slow), when(slow <= inputs[name], "MEETS", "MISSES"), "n/a")
        lines.add(f"{name}_objective", "Objective", verdict, "", "status")
    note = "that both P95 keep their objectives, of the two the smaller; n/a: no interval"
    lines.add("probability", "Probability", met["likely"], "", "share", note)
    lines.add("running", "Sequences that run at once", met["running"], "", "one")
    lines.add("queue_ms", "Wait before the first step", met["queue"], "ms")


def _by_headroom(lines: Lines, inputs: Inputs, fleet: FleetCells, headrooms: Sequence[float]) -> None:
    """Write the fleet for other headrooms."""
    book, sheet, row = lines.book, lines.sheet, lines.row
    sheet.band(row, "The same with other headrooms", 8)
    heads = ("headroom", "replicas", "GPUs", "utilisation", "requests [1/s]", "TTFT [ms]", "TPOT [ms]", "objectives")
    sheet.heads(row + 1, heads, (7,))
    first = row + 2
    for number, headroom in enumerate(headrooms, first):
        free = sheet.put(number, 0, headroom, "input_share")
        replicas = sheet.put(number, 1, fleet.replicas(free), "whole")
        runs = known(replicas)
        sheet.put(number, 2, shown(runs, replicas * fleet.gpus), "whole")
        sheet.put(number, 3, shown(runs, fleet.peak / replicas / fleet.curve.load["knee"]), "share")
        rate = sheet.put(number, 4, shown(runs, fleet.peak / replicas), "three")
        met = fleet.curve.at(f"headroom {number - first + 1}", rate)
        for column, name, style in ((5, "ttft", "one"), (6, "tpot", "two")):
            sheet.put(number, column, met[name], style)
        kept = when((met["ttft_p95"] <= inputs["ttft"]) & (met["tpot_p95"] <= inputs["tpot"]), "MEETS", "MISSES")
        sheet.put(number, 7, shown(runs, kept), "status")
    last = first + len(headrooms) - 1
    rule = {"validate": "decimal", "criteria": "between", "minimum": 0.0, "maximum": 0.95}
    sheet.page.data_validation(first, 0, last, 0, rule)
    status_colours(book, sheet, (first, 7, last, 7))
    told = ("GPUs for the peak, by headroom", "headroom", "GPUs")
    views.draw(book, "bars", views.Area(sheet, row + 1, last, (2,)), told, (last + 2, 0))


def write_tco(book: Book, inputs: Inputs, offers: WorkbookOffers, served: ServedCells) -> None:
    """Write the cost of the fleet, rented and owned."""
    sheet = book.sheet("TCO")
    lines, gpus = Lines(book, sheet), served.gpus
    lines.section("Hardware, power and prices")
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


def _running(lines: Lines, inputs: Inputs, offers: WorkbookOffers, served: ServedCells) -> tuple[Cell, Cell]:
    """Power at the meter, and rent; "n/a" where a price or a power is not known."""
    at = [gpu.name for gpu in offers.gpus].index(inputs["gpu"].value)
    rival, unknown = offers.rivals[at], "0: not known, enter yours on sheet GPUs or Inputs"
    row = Cell(f"IFERROR(MATCH(in_gpu,{lists(offers, 0)},0),1)", at + 1.0)
    price = lines.add("price", "Rent", price_of(offers, inputs, row, rival), "USD/GPU/h", "two", unknown)
    watts = when(inputs["watts"].equals(""), served.watts, inputs["watts"])
    note = "mean of the average hour, as it was played; 0: not known, enter yours on Inputs"
    watts = lines.add("watts", "Power of a GPU with its host", watts, "W", "whole", note)
    drawn = when(known(watts), watts > 0.0, literal(False))
    power = when(served.runs, shown(drawn, served.gpus * watts * inputs["pue"] / 1000.0), "n/a")
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
    lines.add("joule_token", "Energy of an output token at the meter", joules, "J", "one", note)


def _by_year(book: Book, sheet: Sheet, row: int, inputs: Inputs, costs: Sequence[Cell]) -> None:
    """Write the spending after each year."""
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
    views.draw(book, "lines", views.Area(sheet, row + 1, first + _YEARS - 1, (1, 2)), told, (first + _YEARS + 1, 0))


_HEADS, _TEXTS = TABLES["compare"]["heads"], TABLES["compare"]["texts"]
_HOUR = 7  # the column of the cost
_RANKED = 16  # a column that nobody sees: the cost of those measured


def compare_inputs(book: Book, inputs: Inputs, offers: WorkbookOffers) -> dict[str, list[Cell]]:
    """The deployment of each accelerator: that of Inputs, on a split of its own that may be changed here."""
    sheet = book.sheet("Compare")
    sheet.page.set_column(_RANKED, _RANKED, None, None, {"hidden": True})
    chosen: dict[str, list[Cell]] = {}
    for row, rival in enumerate(offers.rivals, HEAD + 1):
        gpu, tp = sheet.put(row, 0, rival.gpu.name), sheet.put(row, 1, float(rival.tp), "input_whole")
        sheet.page.data_validation(row, 1, row, 1, {"validate": "list", "source": "=list_tp"})
        own = {"gpu": gpu, "tp": tp}
        chosen[rival.gpu.name] = [own.get(name, cell) for name, cell in zip(offers.lists, inputs.chosen, strict=True)]
    return chosen


def write_comparison(
    book: Book,
    offers: WorkbookOffers,
    calculations: Mapping[str, Calculation],
    curves: Mapping[str, Curve],
    planned: Planned,
) -> views.Area:
    """Replicas, cost and evidence of each accelerator, at the peak of sheet Fleet; the answer is the costs."""
    inputs = next(iter(calculations.values())).inputs
    sheet = book.sheet("Compare")
    sheet.heads(HEAD, _HEADS, _TEXTS)
    last, costs = HEAD + len(offers.rivals), list[tuple[Cell, Cell]]()
    for row, rival in enumerate(offers.rivals, HEAD + 1):
        calculation, curve = calculations[rival.gpu.name], curves[rival.gpu.name]
        price = price_of(offers, inputs, literal(float(row - HEAD)), rival)
        fleet = FleetCells.of(inputs, curve, calculation.gpus, planned.peak_rate)
        costs.append(_compared(sheet, row, calculation, fleet, price))
    _rank(sheet, costs)
    status_colours(book, sheet, (HEAD + 1, 2, last, 2))
    told = (
        f"Only what was measured is ranked. Fleets are sized for {planned.confidence:.0%} confidence, or for expected "
        "times where the interval that decides is wider than 3 times. Fitted elsewhere: kernels of another "
        "accelerator, engine or format are used, so that the fleet may have to be larger."
    )
    sheet.put(last + 2, 0, told, "note")
    titles, costs_of = ("Cost of the fleet for the peak", "GPU", "USD/h"), views.Area(sheet, HEAD, last, (_HOUR,))
    views.draw(book, "bars", costs_of, titles, (last + 4, 0))
    return costs_of


def _compared(sheet: Sheet, row: int, calculation: Calculation, fleet: FleetCells, price: Cell) -> tuple[Cell, Cell]:
    """One row; the answer is its cost and its evidence."""
    inputs, constants, rate = calculation.inputs, calculation.constants, calculation.inputs.rate
    curve, name = fleet.curve, calculation.of
    sheet.put(row, 2, fleet_status(calculation), "status")
    replicas = sheet.put(row, 3, fleet.replicas(inputs["headroom"]), "whole")
    runs = known(replicas)
    gpus = sheet.put(row, 4, shown(runs, replicas * calculation.gpus), "whole")
    sheet.put(row, 5, shown(fleet.runs, curve.bound), "words")
    price = sheet.put(row, 6, shown(price > 0.0, price), "two")
    hour = sheet.put(row, _HOUR, when(runs, shown(known(price), gpus * price), "n/a"), "two")
    tokens = rate * 3600.0 * (inputs["isl"] + inputs["osl"]) / 1e6
    cost = sheet.put(row, 8, shown(known(hour) & (rate > 0.0), hour / tokens), "three")
    peak = curve.at(f"{name} at the peak", shown(runs, fleet.peak / replicas))
    sheet.put(row, 10, peak["ttft_p95"], "two")
    sheet.put(row, 11, peak["tpot_p95"], "two")
    sheet.put(row, 12, peak["likely"], "share")
    sheet.put(row, 13, curve.at(f"{name} in the average hour", shown(runs, rate / replicas))["watts"], "whole")
    evidence = sheet.put(row, 14, constants.evidence)
    sheet.put(row, 15, why_not(calculation, curve), "note")
    return cost, evidence


def _rank(sheet: Sheet, costs: Sequence[tuple[Cell, Cell]]) -> None:
    """The least dear of those whose kernels were measured."""
    own = [
        sheet.put(row, _RANKED, when(told.equals("measured") & known(cost), cost, ""), "faint")
        for row, (cost, told) in enumerate(costs, HEAD + 1)
    ]
    numbers = [cell.value for cell in own if not isinstance(cell.value, str)]
    area = sheet.area((HEAD + 1, _RANKED), (HEAD + len(costs), _RANKED))
    least = function(f"MIN({area})", min(numbers, default=0.0))
    for row, (cell, (cost, _)) in enumerate(zip(own, costs, strict=True), HEAD + 1):
        rank = when(known(cell), when(cell <= least, "least", ""), when(known(cost), "not ranked", ""))
        sheet.put(row, 9, rank, "words")


_LINE, _WIDTH = 15, 115  # points of a line of text, and letters that fit into it


def write_notes(book: Book, offers: WorkbookOffers, asked: str, engine: str) -> None:
    """Version, inputs, calibrations with their hashes, assumptions, sources, what is not offered and why."""
    sheet, row = book.sheet("Notes"), 2
    for title, rows in _sections(offers, asked, engine):
        sheet.band(row, title, 2)
        row += 1
        for label, text in rows:
            sheet.put(row, 0, label, "wrap")
            sheet.put(row, 1, text, "wrap")
            sheet.page.set_row(row, _LINE * max(1, -(-len(text) // _WIDTH)))
            row += 1
        row += 1


def _sections(offers: WorkbookOffers, asked: str, engine: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    yield "Made by", [("rooflinekit", __version__), ("engine", engine), ("inputs when made", asked)]
    yield "Calibrations", list(offers.calibrations.items())
    yield "Assumptions", [("", text) for text in TEXTS["assumptions"]]
    if offers.notes:
        yield "Notes", [("", text) for text in offers.notes]
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


_CHOSEN = "as on Inputs"


@dataclass(frozen=True)
class BuiltWorkbook:
    """Written workbook: combinations that can be run, and those that cannot with the reason."""

    offered: int
    refused: tuple[tuple[str, str], ...]
    bytes: int


def write_workbook(
    path: Path, choices: Choices, planned: Planned, force: bool = True, workers: int = 1
) -> BuiltWorkbook:
    """Write a workbook with live formulas.

    Args:
        path: of the .xlsx file.
        choices: what its drop-downs offer.
        planned: what its yellow cells start with.
        force: write over a file that somebody else has put there.
        workers: processes that play loads, where there are many.

    Raises:
        InputError: a name is unknown, nothing of what is offered can be run, or a file is there that is kept.
    """
    offers = make_offers(choices, planned)
    with whole(path, force) as partial, open_workbook(partial, in_memory=True) as file:
        file.set_properties({"title": "Capacity of an LLM deployment", "author": f"rooflinekit {__version__}"})
        _fill(Book.of(file), offers, choices, planned, workers)
    refused = tuple((entry.key, entry.reason) for entry in offers.entries if entry.traced is None)
    return BuiltWorkbook(len(offers.entries) - len(refused), refused, path.stat().st_size)


def _fill(book: Book, offers: WorkbookOffers, choices: Choices, planned: Planned, workers: int) -> None:
    write_models(book, offers)
    inputs = write_inputs(book, offers, planned)
    offers = offers.played(planned, workers)
    write_gpus(book, offers)
    write_loads(book, offers)
    rivals, block = compare_inputs(book, inputs, offers), block_of(book, offers)
    constants = write_constants(book, offers, {_CHOSEN: inputs.chosen, **rivals})
    curves = write_curves(book, inputs, offers, constants)
    calculation = Calculation(book, offers, constants.pop(_CHOSEN), inputs, block)
    main = calculation.point("Inputs", inputs["batch"], inputs["isl"], inputs["osl"])
    views.write_results(book, calculation, main)
    views.write_kernels(book, calculation, main)
    osl = inputs["osl"]
    for name, values in (("Batch sweep", choices.batches), ("Context sweep", choices.contexts)):
        points: list[tuple[Cell, Cell, PointResults]] = []
        for cell in views.sweep_inputs(book, name, values):
            batch, isl = (cell, inputs["isl"]) if name == "Batch sweep" else (inputs["batch"], cell)
            points.append((batch, osl, calculation.point(f"{name.lower()} {len(points) + 1}", batch, isl, osl)))
        if points:
            views.write_sweep(book, calculation, name, points)
    write_tco(book, inputs, offers, write_fleet(book, calculation, curves[_CHOSEN], choices.headrooms, planned))
    compared = {name: Calculation(book, offers, found, inputs, block, name) for name, found in constants.items()}
    write_summary(book, write_comparison(book, offers, compared, curves, planned), planned.confidence)
    write_labels(book, offers, block)
    write_tables(book, calculation.constants.tables)
    asked = {"choices": asdict(choices), "planned": asdict(planned)}
    write_notes(book, offers, json.dumps(asked, sort_keys=True, default=str), choices.engine)
    book.sheets[SUMMARY].page.activate()

"""The sheets of loads: what was played of every deployment, and the curves of the compared ones that formulas read."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from rooflinekit.load.curve import SHARES
from rooflinekit.model.graph.cells import Cell, composed, function, literal, when
from rooflinekit.model.types.time import SIGMAS
from rooflinekit.report.workbook.data import Constants
from rooflinekit.report.workbook.inputs import Inputs
from rooflinekit.report.workbook.loads import Rung
from rooflinekit.report.workbook.offers import WorkbookOffers
from rooflinekit.report.workbook.sheet import HEAD, TABLES, Book, Sheet, known, shown
from rooflinekit.report.workbook.views import Area, draw

_HEADS, _STYLES = zip(*TABLES["rung"].values(), strict=True)
_RUNGS = len(SHARES) + 1  # with the one at no load
_HOLDS = ("TTFT holds to [1/s]", "TPOT holds to [1/s]", "objectives hold to [1/s]", "bound by")
_NARROW = 1e-9  # of an end that is the mean: then the mean is sure


def write_loads(book: Book, offers: WorkbookOffers) -> None:
    """All rungs of all deployments."""
    sheet = book.sheet("Loads")
    sheet.heads(HEAD, ("deployment", *_HEADS), (0,))
    row = HEAD + 1
    for entry in offers.entries:
        for rung in offers.ladder(entry).rungs:
            sheet.put(row, 0, entry.key)
            for column, (value, style) in enumerate(zip(rung, _STYLES, strict=True), 1):
                sheet.put(row, column, value, style)
            row += 1


@dataclass(frozen=True)
class Curve:
    """The rungs of one deployment on sheet Curves; runs: whether any was played for what is chosen.

    capacity: the largest rate at which the objectives hold [1/s], 0 where none does; bound: what ends it.
    """

    book: Book
    inputs: Inputs
    sheet: Sheet
    top: int
    cells: Mapping[str, Sequence[Cell]]
    runs: Cell
    load: Mapping[str, Cell]
    capacity: Cell
    bound: Cell

    def at(self, label: str, rate: Cell) -> dict[str, Cell]:
        """Latencies at a rate of one replica, by the names of `Rung`; n/a where nothing was played.

        likely: the probability that both objectives hold.
        """
        sheet = self.book.sheet("Between")
        row = HEAD + 1 + len(sheet.rows)
        sheet.rows.append(label)
        sheet.put(row, 0, label)
        runs, (rates, values) = self.runs & known(rate), self._column("rate")
        rate = sheet.put(row, 1, shown(runs, rate), "three")
        at, most = float(rate.value) if runs.value else 0.0, composed("max", self.load["rungs"] - 1.0, literal(1.0))
        place = function(f"MATCH({{0}},{rates},1)", float(max(bisect_right(values, at), 1)), rate)
        below = sheet.put(row, 2, when(runs, composed("min", place, most), 1.0), "whole")
        low, high = _around((rates, values), below)
        way = composed("max", composed("min", (rate - low) / (high - low), literal(1.0)), literal(0.0))
        share = sheet.put(row, 3, when(runs, way, 0.0), "three")
        found = {"rate": rate}
        for column, (name, style) in enumerate(list(zip(Rung._fields, _STYLES, strict=True))[1:], 4):
            near, far = _around(self._column(name), below)
            found[name] = sheet.put(row, column, shown(runs, near + share * (far - near)), style)
        chances = [likely(found, name, self.inputs[name]) for name in ("ttft", "tpot")]
        wide = (found["ttft_high"] > found["ttft_low"]) & (found["tpot_high"] > found["tpot_low"])
        sure = when(runs, shown(wide, composed("min", *chances)), "n/a")
        return found | {"likely": sheet.put(row, 3 + len(_HEADS), sure, "share")}

    def reach(self) -> tuple[Cell, Cell]:
        """The largest rate at which both P95 hold at the confidence, and which of them ends it, as `plan` has them.

        Each holds from no load up to the first rung at which it fails; slower steps take as many times fewer requests.
        """
        first, rates = len(_HEADS), self.cells["rate"]
        reached, ends = list[Cell](), list[Cell]()
        for place, name in enumerate(("ttft", "tpot"), first):
            values, limit = self.cells[f"{name}_sure"], self.inputs[name]
            to = self.sheet.put(self.top, place, shown(self.runs, when(values[0] <= limit, 0.0, -1.0)), "three")
            for number in range(_RUNGS - 1):
                (here, beyond), (low, high) = rates[number : number + 2], values[number : number + 2]
                share = (limit - low) / (high - low)
                further = when(high > limit, here + share * (beyond - here), beyond)
                holds = when(known(to), to >= here, literal(False))
                to = self.sheet.put(self.top + number + 1, place, when(holds, further, to), "three")
            reached.append(to)
            area, known_rates = self._column("rate")
            at = float(to.value) if self.runs.value else 0.0
            below = function(f"MATCH(MAX({{0}},0),{area},1)", float(max(bisect_right(known_rates, at), 1)), to)
            paces, known_paces = self._column(f"{name}_pace")
            pace = function(f"INDEX({paces},{{0}})", known_paces[int(below.value) - 1], below)
            ends.append(shown(self.runs, to / composed("max", pace, literal(_NARROW))))
        last = self.top + _RUNGS - 1
        least, knee = composed("min", *ends), composed("min", *reached) >= rates[-1]
        why = when(knee, "knee", when(ends[0] <= ends[1], "TTFT", "TPOT"))
        bound = self.sheet.put(last, first + 3, shown(self.runs, why), "words")
        capacity = shown(self.runs, composed("max", least, literal(0.0)))
        return self.sheet.put(last, first + 2, capacity, "three"), bound

    def _column(self, name: str) -> tuple[str, list[float]]:
        """A range, and its values."""
        at = Rung._fields.index(name)
        values = [0.0 if isinstance(cell.value, str) else float(cell.value) for cell in self.cells[name]]
        return self.sheet.area((self.top, at), (self.top + _RUNGS - 1, at)), values


def likely(found: Mapping[str, Cell], name: str, limit: Cell) -> Cell:
    """Probability that a P95 holds: normal in the logarithm, on either side, to the end of the mean's interval."""
    mean, low, high, slow = (found[f"{name}{end}"] for end in ("", "_low", "_high", "_p95"))
    width = composed("log", when(limit >= slow, high / mean, mean / low))
    sigmas = composed("log", limit / slow) * SIGMAS / composed("max", width, literal(_NARROW))
    value = sigmas.value if isinstance(sigmas.value, float) else math.nan
    return function("NORMSDIST({0})", NormalDist().cdf(value), sigmas)


def _around(column: tuple[str, Sequence[float]], below: Cell) -> tuple[Cell, Cell]:
    """The entries of a range at a place, and at the next."""
    (area, values), place = column, int(below.value)
    here = function(f"INDEX({area},{{0}})", values[place - 1], below)
    return here, function(f"INDEX({area},{{0}}+1)", values[place], below)


def write_curves(
    book: Book, inputs: Inputs, offers: WorkbookOffers, chosen: Mapping[str, Constants]
) -> dict[str, Curve]:
    """A curve each of the chosen deployment and of those that are compared with it."""
    sheet = book.sheet("Curves")
    heads = ("of", _HEADS[0], "rung below", "share of the way", *_HEADS[1:], "probability of the objectives")
    book.sheet("Between").heads(HEAD, heads, (0,))
    last = max(sum(len(found.rungs) for found in offers.ladders.values()), 1)
    found = {
        name: _curve(book, inputs, constants, name, HEAD + number * (_RUNGS + 4), last)
        for number, (name, constants) in enumerate(chosen.items())
    }
    area = Area(sheet, HEAD + 1, HEAD + 1 + _RUNGS, (1, 2, 3))
    below = HEAD + len(found) * (_RUNGS + 4)
    draw(book, "curve", area, ("Mean time to first token, of the chosen", _HEADS[0], "ms"), (below, 0))
    area = Area(sheet, HEAD + 1, HEAD + 1 + _RUNGS, (7, 8, 9))
    draw(book, "curve", area, ("Mean time per output token, of the chosen", _HEADS[0], "ms"), (below, 7))
    return found


def _curve(  # noqa: PLR0913, PLR0917 - of what, and where
    book: Book, inputs: Inputs, constants: Constants, name: str, row: int, last: int
) -> Curve:
    """One curve on sheet Curves, from a row on; last: rows of sheet Loads."""
    sheet, top, load, rungs = book.sheet("Curves"), row + 2, constants.load, constants.ladder.rungs
    sheet.band(row, name, len(_HEADS) + len(_HOLDS))
    sheet.heads(row + 1, (*_HEADS, *_HOLDS), ())
    sheet.page.set_row(row + 1, 45)
    played = constants.offered & (load["rungs"] >= 1.0)
    cells: dict[str, list[Cell]] = {field: [] for field in Rung._fields}
    for number in range(_RUNGS):
        place = load["first"] + composed("min", literal(float(number)), load["rungs"] - 1.0)
        for column, (field, style) in enumerate(zip(Rung._fields, _STYLES, strict=True)):
            area = book.sheet("Loads").area((HEAD + 1, column + 1), (HEAD + last, column + 1))
            value = getattr(rungs[min(number, len(rungs) - 1)], field) if rungs else 0.0
            held = shown(played, function(f"INDEX({area},{{0}})", value, place))
            cells[field].append(sheet.put(top + number, column, held, style))
    curve = Curve(book, inputs, sheet, top, cells, played, load, literal(0.0), literal(""))
    capacity, bound = curve.reach()
    return replace(curve, capacity=capacity, bound=bound, runs=played & inputs["stale"].equals(""))

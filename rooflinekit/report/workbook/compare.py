"""Sheet Compare: a row each accelerator, with what serves the peak and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from rooflinekit.model.graph.cells import Cell, composed, function, literal, when
from rooflinekit.report.workbook.calculation import Calculation
from rooflinekit.report.workbook.charts import Area, bar_chart
from rooflinekit.report.workbook.data import price_of
from rooflinekit.report.workbook.fleet import Replica, known
from rooflinekit.report.workbook.inputs import Inputs
from rooflinekit.report.workbook.offers import Offers, Planned
from rooflinekit.report.workbook.sheet import Book, Sheet, shown, status_colours

_HEAD = 3
_HEADS = ("GPU", "tensor parallel", "memory", "replicas at the headroom", "GPUs at the headroom",
          "price [USD/GPU/h]", "USD/h", "USD a million tokens", "least cost", "P95 TTFT [ms]", "P95 TPOT [ms]",
          "probability", "evidence", "why not")  # fmt: skip
_TEXTS = (0, 2, 8, 12, 13)
_RANKED = 14  # a column that nobody sees: the cost of those measured and sure enough
_SURE = 0.9  # the confidence that a plan asks for by default


def compare_inputs(book: Book, inputs: Inputs, offers: Offers) -> dict[str, list[Cell]]:
    """The deployment of each accelerator: that of Inputs, on a split of its own that may be changed here."""
    note = (
        "Model, formats, demand and headroom are those of Inputs. The headroom sizes the fleets, and not a confidence "
        "as in `plan`. Yellow splits may be changed, prices stand on sheet GPUs. P95 holds for the inputs that the "
        "workbook was made with. So does the probability that mean TTFT and TPOT keep their objectives."
    )
    sheet = book.sheet("Compare", "Accelerators for the peak", note)
    sheet.widths(20, 11, 10, 11, 11, 13, 13, 13, 10, 12, 12, 12, 18, 60)
    sheet.page.set_column(_RANKED, _RANKED, None, None, {"hidden": True})
    chosen: dict[str, list[Cell]] = {}
    for row, rival in enumerate(offers.rivals, _HEAD + 1):
        gpu, tp = sheet.put(row, 0, rival.gpu.name), sheet.put(row, 1, float(rival.tp), "input_whole")
        sheet.page.data_validation(row, 1, row, 1, {"validate": "list", "source": "=list_tp"})
        own = {"gpu": gpu, "tp": tp}
        chosen[rival.gpu.name] = [own.get(name, cell) for name, cell in zip(offers.lists, inputs.chosen, strict=True)]
    return chosen


def write_comparison(
    book: Book, inputs: Inputs, offers: Offers, calculations: Mapping[str, Calculation], planned: Planned
) -> None:
    """Replicas, cost and evidence of each accelerator, at the peak of sheet Fleet."""
    sheet = book.sheet("Compare")
    sheet.heads(_HEAD, _HEADS, _TEXTS)
    rate = when(inputs["rate"].equals(""), inputs["users"] * inputs["requests"] / 3600.0, inputs["rate"])
    tokens = rate * 3600.0 * (inputs["isl"] + inputs["osl"]) / 1e6
    unchanged, last = _unchanged(inputs, offers, planned), _HEAD + len(offers.rivals)
    promised = inputs["ttft"].equals(planned.ttft_ms) & inputs["tpot"].equals(planned.tpot_ms)
    costs: list[tuple[Cell, Cell, Cell]] = []
    for row, rival in enumerate(offers.rivals, _HEAD + 1):
        calculation = calculations[rival.gpu.name]
        fits, offered = calculation.room >= 1.0, calculation.constants.offered
        runs = offered & fits
        replica = Replica(rate * inputs["peak"], calculation.knee, runs, calculation.gpus)
        status = when(offered, when(fits, "FITS", "OOM"), "NOT OFFERED")
        sheet.put(row, 2, status, "status")
        replicas = sheet.put(row, 3, replica.number(inputs["headroom"]), "whole")
        gpus = sheet.put(row, 4, shown(runs, replicas * calculation.gpus), "whole")
        place = literal(float(row - _HEAD))
        price = price_of(offers, inputs, place, rival)
        sheet.put(row, 5, shown(price > 0.0, price), "two")
        hour = sheet.put(row, 6, shown(runs & (price > 0.0), gpus * price), "two")
        cost = sheet.put(row, 7, shown(known(hour) & (rate > 0.0), hour / tokens), "three")
        same = unchanged & sheet.at(row, 1, float(rival.tp)).equals(float(rival.tp))
        looks = (("two", same), ("two", same), ("share", same & promised))
        *_, chance = (
            sheet.put(row, column, *(("n/a", "words") if value is None else (shown(valid, value), style)))
            for column, (value, (style, valid)) in enumerate(zip(rival.at_peak, looks, strict=True), 9)
        )
        costs.append((cost, sheet.put(row, 12, calculation.constants.evidence), chance))
        sheet.put(row, 13, calculation.constants.reason, "note")
    _rank(sheet, costs)
    status_colours(book, sheet, (_HEAD + 1, 2, last, 2))
    told = (
        f"Only what was measured is ranked, and keeps its objectives with a probability of {_SURE:.0%} at least; more "
        "--headroom makes a fleet surer. Where no probability is shown, cost alone ranks. Fitted elsewhere: kernels of "
        "another accelerator, engine or format stand in, so that the fleet may have to be larger."
    )
    sheet.put(last + 2, 0, told, "note")
    sheet.page.set_row(_HEAD, 32)
    sheet.page.freeze_panes(_HEAD + 1, 1)
    bar_chart(book, Area(sheet, _HEAD, last, (6,)), ("Cost of the fleet for the peak", "GPU", "USD/h"), (last + 4, 0))


def _rank(sheet: Sheet, costs: Sequence[tuple[Cell, Cell, Cell]]) -> None:
    """The least dear of those whose kernels were measured, and whose objectives hold as surely as a plan asks."""
    own = [
        sheet.put(
            row,
            _RANKED,
            when(told.equals("measured") & known(cost), when(known(chance), when(chance >= _SURE, cost, ""), cost), ""),
            "faint",
        )
        for row, (cost, told, chance) in enumerate(costs, _HEAD + 1)
    ]
    numbers = [cell.value for cell in own if not isinstance(cell.value, str)]
    area = sheet.area((_HEAD + 1, _RANKED), (_HEAD + len(costs), _RANKED))
    least = function(f"MIN({area})", min(numbers, default=0.0))
    for row, (cell, (cost, _, _)) in enumerate(zip(own, costs, strict=True), _HEAD + 1):
        rank = when(known(cell), when(cell <= least, "least", ""), when(known(cost), "not ranked", ""))
        sheet.put(row, 8, rank, "words")


def _unchanged(inputs: Inputs, offers: Offers, planned: Planned) -> Cell:
    """Whether the inputs that P95 depends on are those that the workbook was made with."""
    names = ("isl", "osl", "cached", "burstiness", "isl_cv", "osl_cv", "peak", "headroom")
    made: dict[str, float | str] = {name: float(getattr(planned, name)) for name in names}
    made["most"] = ""
    own: dict[str, float | str] = {"users": float(planned.users), "requests": planned.requests_per_hour, "rate": ""}
    made |= own if planned.rate is None else {"rate": planned.rate}
    others = zip(offers.lists, offers.start, inputs.chosen, strict=True)
    same = [cell.equals(value if isinstance(value, str) else float(value))
            for name, value, cell in others if name not in ("gpu", "tp")]  # fmt: skip
    same += [inputs[name].equals(value) for name, value in made.items()]
    return reduce(lambda both, one: composed("&", both, one), same)

"""A plan of classes: the fleets, each class with its objectives, how else they could be put together, and hosts."""

from __future__ import annotations

from rooflinekit.decision.planning.classes import ClassFleet, ClassPlan
from rooflinekit.report.document import Document, Items, Section, Table, Words, amount, ms, notes, three

_HOURS = 24  # rows of a table of hours at most


def document(plan: ClassPlan) -> Document:
    """The whole answer."""
    told = "within: share of the simulated requests within the limit; holds: how likely the objective is to hold"
    asked = f"({plan.confidence * 100:g} % asked)"
    return [
        Section(plan.question, [Words(plan.answer)]),
        Section("", [_classes(plan), Words(f"{told} {asked}")]),
        Section("", [_fleets(plan)]),
        Section("", [_groupings(plan)]),
        *(Section("", [_hours(number, fleet)]) for number, fleet in enumerate(plan.fleets, 1) if fleet.hours),
        Section("hosts", [Items(*(each.stands for each in plan.hosts))]),
        Section("", [notes(plan.warnings)]),
    ]


def _classes(plan: ClassPlan) -> Table:
    head = ["class", "fleet", "req/s", "first", "objective", "formula", "simulated", "within", "holds"]
    rows = []
    for each in plan.classes:
        own = [each.name, "-" if each.fleet is None else str(each.fleet), three(each.rate), str(each.priority)]
        if each.deadline_h is not None:
            done = "-" if each.done_h is None else f"{each.done_h:.3g} h"
            rows.append([*own, f"{each.requests:,.0f} in {each.deadline_h:g} h", "-", done, "-", "-"])
        for place, held in enumerate(each.objectives):
            cells = [ms(held.predicted_ms), ms(held.simulated_ms)]
            sure = "-" if held.probability is None else f"{min(held.probability, 0.99):.0%}"
            start = own if not place else ["", "", "", ""]
            rows.append([*start, held.objective.removeprefix(f"{each.name} "), *cells, f"{held.within:.1%}", sure])
        if each.unmet:
            rows.append([*own, "cannot be met", "-", "-", "-", "-"])
    return Table(head, rows, left=(0, 4), gap=1, drop=(3,))


def _fleets(plan: ClassPlan) -> Table:
    head = ["fleet", "classes", "gpu", "replicas", "GPUs", "$/h", "load", "binds"]
    rows = []
    for number, fleet in enumerate(plan.fleets, 1):
        (part,), best = fleet.candidate.fleets, fleet.candidate
        rows.append([str(number), ", ".join(fleet.classes), best.gpu, best.name, f"{fleet.gpus:,}",
                     amount(best.cost.usd_per_hour), f"{1.0 - part.headroom:.0%}",
                     ", ".join(part.binds)])  # fmt: skip
    return Table(head, rows, left=(1, 2, 3, 7), gap=1, drop=(7,))


def _groupings(plan: ClassPlan) -> Table:
    rows = [[each.fleets, f"{each.gpus:,}", amount(each.usd_per_hour), "yes" if each.simulated else "no"]
            for each in plan.groupings]  # fmt: skip
    return Table(["fleets", "GPUs", "$/h", "simulated"], rows if len(rows) > 1 else [])


def _hours(number: int, fleet: ClassFleet) -> Table:
    names = list(dict.fromkeys(name for each in fleet.hours for name in each.jobs))
    head = [f"fleet {number}, hour", "req/s", *(f"{name} req/s" for name in names), "replicas"]
    rows = [[f"{each.hour:g}", three(each.rate), *(three(each.jobs.get(name, 0.0)) for name in names),
             f"{each.replicas:,}"] for each in fleet.hours[:_HOURS]]  # fmt: skip
    return Table(head, rows)

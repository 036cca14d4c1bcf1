"""A plan over time: replicas by the hour and by the month, what they cost, how they are paid, and when to buy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from rooflinekit.decision.economics.commitments import Paid, Spot, Table, Tco, pay, rent_or_buy
from rooflinekit.decision.economics.price import MONTH_HOURS
from rooflinekit.decision.planning.autoscale import (
    ENGINE_NOTE,
    PROVISION_NOTE,
    Autoscaling,
    Bounds,
    Scaled,
    autoscaled,
    read_cold_start,
)
from rooflinekit.decision.planning.capacity import Capacity
from rooflinekit.decision.planning.cost import fleet_watts
from rooflinekit.decision.planning.profile import Course
from rooflinekit.decision.planning.rank import Ranked
from rooflinekit.decision.planning.search import PlanQuestion
from rooflinekit.model.power import plug_power
from rooflinekit.model.types.answer import Tabled
from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.units import percent

_COMPARED = 4  # candidates of the plan that are looked at over time
_NOTICED = 0.005  # share that is not rounded to nothing
_PURCHASES = 5  # that the sentence names
_ASSUMED = {"provision": PROVISION_NOTE, "engine_start": ENGINE_NOTE}
_COLD_STARTS = (2, 5, 8)  # minutes
_RECOVERY_H = 5.0 / 60.0
RECOVERY_NOTE = "a spot machine that is taken away is replaced within 5 minutes (assumption)"


@dataclass(frozen=True)
class Interval:
    """One interval of a month: when it begins [h], requests a second, and the fleet that carries them."""

    month: int
    hour: float
    rate: float
    replicas: int
    gpus: int
    usd_per_hour: float | None


@dataclass(frozen=True)
class Month:
    """One month: its busiest interval, hours of accelerators by the hour and of a fleet for the peak, and dollars."""

    month: int
    peak_rate: float
    replicas: int
    gpus: int
    gpu_hours: float
    peak_gpu_hours: float
    usd: float | None
    peak_usd: float | None


@dataclass(frozen=True)
class OverTime(Tabled):
    """The deployment that costs least by the hour.

    profile: its name; span_h: hours until it repeats; growth: a month; rank: of its candidate, from 1; gpu_hours, usd:
    by the hour on demand, in all months; peak_: of a fleet for the peak of each month; paid: the cheapest split by
    term; buy: month, accelerators more, and in all;
    autoscaling: policies that were played, None where that was not asked for; interrupted: while it was simulated.
    """

    profile: str
    span_h: float
    growth: float
    deployment: str
    rank: int
    answer: str
    intervals: tuple[Interval, ...]
    months: tuple[Month, ...]
    gpu_hours: float
    peak_gpu_hours: float
    usd: float | None
    peak_usd: float | None
    paid: tuple[Paid, ...]
    paid_usd: float | None
    buy: tuple[tuple[int, int, int], ...]
    autoscaling: Autoscaling | None
    tco: Tco | None
    interrupted: bool
    warnings: tuple[str, ...]

    @property
    def saved_usd(self) -> float:
        """Savings of terms against the price on demand; 0 for cents."""
        saved = (self.usd or 0.0) - (self.paid_usd or 0.0)
        return saved if self.paid and saved > 0.005 else 0.0

    def to_rows(self) -> list[dict[str, Any]]:
        """One flat row for each interval of each month."""
        return [asdict(each) for each in self.intervals]


def over_time(question: PlanQuestion, course: Course, order: Sequence[Ranked], names: Sequence[str]) -> OverTime:
    """The cheapest by the hour of the plan's first candidates that are known as well as the best.

    names: of the deployments of the candidates, in their order.
    """
    best = order[0]
    rivals = [(place, entry) for place, entry in enumerate(order, 1)
              if entry.known == best.known and len(entry.option.names) == 1
              and (entry.replayed is None) == (best.replayed is None)]  # fmt: skip
    capacities = [(Capacity(question, entry.option), place) for place, entry in rivals[:_COMPARED]]
    capacity, place = min(capacities, key=lambda each: (_hourly(each[0], course), each[1]))
    return _told(capacity, course, place, names[place - 1])


def _hourly(capacity: Capacity, course: Course) -> tuple[float, float]:
    """Dollars (without a price infinitely many) and hours of accelerators of all months, by the hour."""
    whole = float((gpu_table(capacity, course) * course.month_hours).sum())
    price = capacity.question.tariff.price(capacity.option.names[0])
    return (math.inf if price is None else round(whole * price, 6)), whole


def gpu_table(capacity: Capacity, course: Course) -> Table:
    """Accelerators in each interval of each month, (months, intervals)."""
    rates = course.profile.rates
    return np.array([[capacity.gpus(rate * factor) for rate in rates] for factor in course.factors], float)


def _told(capacity: Capacity, course: Course, rank: int, name: str) -> OverTime:
    profile, gpus = course.profile, gpu_table(capacity, course)
    price = capacity.question.tariff.price(capacity.option.names[0])
    intervals: list[Interval] = []
    months: list[Month] = []
    for month, factor in enumerate(course.factors, 1):
        rows = [
            Interval(month, hour, rate * factor, fleet.replicas, fleet.gpus, price and fleet.gpus * price)
            for hour, rate in zip(profile.starts, profile.rates, strict=True)
            for fleet in (capacity.fleet(rate * factor),)
        ]
        intervals += rows
        most, whole = max(rows, key=lambda row: row.gpus), round(float(gpus[month - 1] @ course.month_hours), 6)
        peak = most.gpus * MONTH_HOURS
        months.append(Month(month, profile.peak * factor, most.replicas, most.gpus, whole, peak,
                            price and whole * price, price and peak * price))  # fmt: skip
    paid, scaling = _paid(capacity, course, gpus), _autoscaling(capacity, course)
    owned = [0, *accumulate((row.gpus for row in months), max)]
    hours, peak_hours = (sum(getattr(row, key) for row in months) for key in ("gpu_hours", "peak_gpu_hours"))
    made = OverTime(
        profile=profile.name,
        span_h=profile.span,
        growth=course.growth,
        deployment=name,
        rank=rank,
        answer="",
        intervals=tuple(intervals),
        months=tuple(months),
        gpu_hours=hours,
        peak_gpu_hours=peak_hours,
        usd=price and hours * price,
        peak_usd=price and peak_hours * price,
        paid=paid,
        paid_usd=sum(each.usd for each in paid) if paid else None,
        buy=tuple((month, now - then, now) for month, (then, now) in enumerate(pairwise(owned), 1) if now > then),
        autoscaling=scaling,
        tco=_tco(capacity, course, months, paid),
        interrupted=scaling is not None and scaling.interrupted,
        warnings=tuple(_warnings(capacity, course, months, paid)),
    )
    return replace(made, answer=_words(made))


def _autoscaling(capacity: Capacity, course: Course) -> Autoscaling | None:
    if course.scaling is None:
        return None
    cold = read_cold_start(capacity.option.parts[0].replica, capacity.question.tariff, course.scaling)
    minutes = course.scaling.get("cold_start") or _COLD_STARTS
    several = [minutes] if isinstance(minutes, int) else minutes
    capacity.question.progress("policies", 0, 1)
    given = {"least": "min_replicas", "most": "max_replicas", "cooldown_s": "cooldown"}
    bounds = Bounds(**{key: course.scaling[name] for key, name in given.items() if name in course.scaling})
    starts = [60.0 * whole_number(each, "cold_start") for each in several]
    return autoscaled(capacity, course.profile, cold, starts, bounds)


def _tco(capacity: Capacity, course: Course, months: Sequence[Month], paid: Sequence[Paid]) -> Tco | None:
    """Renting as it is paid against a fleet that is bought for the peak of each month.

    Raises InputError without a price to rent at or the power of a board.
    """
    if course.owning is None:
        return None
    replica = capacity.option.parts[0].replica
    law, mean = replica.resolved.plan.system.accelerator.power, course.profile.mean
    demand = replace(capacity.demand(course.profile.peak), rate=mean, peak=course.profile.peak / mean)
    fleet = capacity.fleet(course.profile.peak)
    watts = fleet_watts(fleet.parts, demand, 1.0)
    if not paid or law is None or watts is None:
        raise InputError(f"tco needs a price to rent {replica.gpu} at, and its power; give --price {replica.gpu}=USD")
    whole = sum(row.usd or 0.0 for row in months)
    share = sum(each.usd for each in paid) / whole
    rents = [(row.usd or 0.0) * share for row in months]
    return rent_or_buy(course.owning, [row.gpus for row in months], rents, watts / fleet.gpus,
                       float(plug_power(law.limit, law.host)))  # fmt: skip


def _paid(capacity: Capacity, course: Course, gpus: Table) -> tuple[Paid, ...]:
    """The cheapest split by term; nothing without a price."""
    question, gpu, size = capacity.question, capacity.option.names[0], capacity.option.parts[0].replica.gpus
    on_demand, terms = question.tariff.prices.get(gpu), question.tariff.terms.get(gpu, ())
    if on_demand is None:
        return ()
    spots = [
        Spot(float(each.usd_per_gpu_hour), each.interruptions, _RECOVERY_H, size, question.confidence)
        for each in terms if each.interruptions is not None
    ]  # fmt: skip
    committed = [each for each in terms if each.months]
    cheapest = min(spots, key=lambda spot: spot.price / spot.up, default=None)
    return pay(gpus, course.month_hours, on_demand, committed, cheapest)


def _warnings(capacity: Capacity, course: Course, months: Sequence[Month], paid: Sequence[Paid]) -> Iterator[str]:
    limit = capacity.question.reserve.limit(capacity.option.names[0])
    if over := next((row for row in months if row.gpus > limit), None):
        yield f"month {over.month} takes {over.gpus:,} GPUs, more than the {limit:,.0f} that there are"
    if uneven := course.profile.uneven:
        yield uneven
    yield "the load of an interval is its mean: what is busier within it needs --headroom, or shorter intervals"
    if any(each.term == "spot" for each in paid):
        yield RECOVERY_NOTE
    if course.scaling is not None:
        yield from (note for key, note in _ASSUMED.items() if key not in course.scaling)


def _words(made: OverTime) -> str:
    """The answer in three sentences: the hours, the months, and how they are paid."""
    first = [row for row in made.intervals if row.month == 1]
    least, most = (end(row.gpus for row in first) for end in (min, max))
    dollars = "" if made.usd is None else f" and ${made.usd:,.0f}"
    instead = "" if made.peak_usd is None else f" and ${made.peak_usd:,.0f}"
    count = len(made.months)
    saved = round(1.0 - made.gpu_hours / made.peak_gpu_hours, 6)
    span = f"{least:,} to {most:,} GPUs" if least < most else f"{most:,} GPU{'s' if most > 1 else ''}"
    against = (
        f", {percent(saved)} below the {made.peak_gpu_hours:,.0f}{instead} of a fleet for the peak" if saved else ""
    )
    parts = [
        f"By the hour {made.deployment} takes {span}{' at first' if count > 1 else ''}: {made.gpu_hours:,.0f} GPU-hours"
        f"{dollars} {'in ' + str(count) + ' months' if count > 1 else 'a month'}{against}."
    ]
    if len(made.buy) > 1:
        told = ", ".join(f"{count:,} by month {month}" for month, count, _ in made.buy[1:_PURCHASES])
        more = f" and {len(made.buy) - _PURCHASES} times more" if len(made.buy) > _PURCHASES else ""
        parts.append(f"The fleet of {made.buy[0][2]:,} must grow: buy {told}{more} "
                     f"({made.buy[-1][2]:,} GPUs in the end).")  # fmt: skip
    if made.paid_usd is not None and made.usd and made.saved_usd > 0.0:
        whole = sum(each.gpu_hours for each in made.paid)  # with spares of spot
        split = ", ".join(f"{percent(each.gpu_hours / whole)} {each.term}" for each in made.paid
                          if each.gpu_hours >= _NOTICED * whole)  # fmt: skip
        parts.append(f"Paid as {split} it is ${made.paid_usd:,.0f}, {percent(1.0 - made.paid_usd / made.usd)} less.")
    if made.tco is not None:
        when = made.tco.break_even_month
        better = f"Buying is cheaper from month {when} on" if when else "Renting stays cheaper than buying"
        if not when and made.tco.own_usd < made.tco.rent_usd:
            better = "Buying is cheaper once it is sold in the end"
        parts.append(f"{better}: ${made.tco.own_usd:,.0f} to own against ${made.tco.rent_usd:,.0f} to rent over "
                     f"{made.tco.inputs.years:g} years at their present value.")  # fmt: skip
    if made.autoscaling is not None:
        parts.append(_scaled_words(made, made.autoscaling))
    return " ".join(parts)


def _scaled_words(made: OverTime, scaling: Autoscaling) -> str:
    """The policy that is recommended, and what it costs with each cold start."""
    cold, best = scaling.cold_start, scaling.best
    parts = (
        f"{cold.provision_s:.0f} s machine, {cold.load_s:.0f} s weights from {cold.path}, {cold.engine_s:.0f} s engine"
    )
    start = f"a cold start of {cold.seconds:.0f} s ({parts})"
    if best is None:
        return f"No policy meets the objectives with {start}; more --headroom leaves room for it."
    costs = []
    for seconds in sorted({each.cold_start_s for each in scaling.policies} - {cold.seconds}):
        good = [each for each in scaling.policies if each.meets and each.cold_start_s == seconds]
        least = min(good, key=lambda each: each.gpu_hours_per_month, default=None)
        costs.append(f"{least.policy} at {percent(least.target)} {_price(least)} with {seconds:.0f} s" if least
                     else f"nothing does with {seconds:.0f} s")  # fmt: skip
    below = 1.0 - best.gpu_hours_per_month / made.months[0].peak_gpu_hours
    against = f"{percent(abs(below))} {'below' if below > 0.0 else 'above'}" if abs(below) >= _NOTICED else "as much as"
    return (
        f"Autoscaled by {best.policy} at {percent(best.target)} of a replica's capacity it costs {_price(best)} a "
        f"month with {start}. That is {against} the fleet for the peak. "
        f"Its objectives hold over the {scaling.played_h:.3g} h played, at each look by the load of a replica"
        f"{_drawn_words(best)} "
        f"Other cold starts: {', '.join(costs)}."
    )


def _drawn_words(best: Scaled) -> str:
    """Sentence on the play of single requests."""
    if not best.simulated:
        return "; no single requests are drawn."
    busiest = "" if best.busiest is None else f", and {percent(best.busiest, 1)} around the busiest look"
    return (f". {best.requests:,} single requests, drawn from calm to busy looks, say that "
            f"{percent(min(best.simulated.values()), 1)} of all are within them{busiest}.")  # fmt: skip


def _price(scaled: Scaled) -> str:
    usd = scaled.usd_per_month
    return f"{scaled.gpu_hours_per_month:,.0f} GPU-hours" if usd is None else f"${usd:,.0f}"

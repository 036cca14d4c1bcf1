"""Payment for the hours of a fleet: commitments for what is used most of the time, spot and on demand; or a purchase.

One accelerator more pays as a commitment of price r where it is used at least a share r/p of the hours, p being the
price on demand: it costs r always, or p as long as it is used. That is the critical ratio of the newsvendor: level k of
the fleet is committed while P(n >= k) >= r/p (Arrow, Harris and Marschak 1951, Econometrica 19(3)). Commitments of
several months and terms, while the load grows, are a shortest path from month to month for each level.

A purchase is cheaper than renting from the month of break-even on:

    capital = (P − R·(1 + i)^−n)·i/(1 − (1 + i)^−n)     a month: annuity of price P and residual value R over n months
    running = W·PUE·730 h·USD/kWh + kW·rack + staff/12  a month and accelerator; cooling is in the PUE
    month of break-even: the first m from which on Σ rent/(1 + i)^k ≥ Σ purchases + Σ running/(1 + i)^k, k to m

i is the interest a month, (1 + a year's)^(1/12) − 1; a sale before the n months is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rooflinekit.decision.economics.price import MONTH_HOURS, HourlyPrice, Purchase

Table = NDArray[np.float64]


@dataclass(frozen=True)
class Paid:
    """Payment under one term: accelerators at most, their hours, and dollars in all."""

    term: str
    usd_per_gpu_hour: float
    gpus: float
    gpu_hours: float
    usd: float


class Spot(NamedTuple):
    """Machines that may be taken away: how often a month, hours until another one serves, accelerators of a replica."""

    price: float
    interruptions: float
    recovery_h: float
    size: int
    confidence: float

    @property
    def up(self) -> float:
        """Share of its time that a machine is there: 1/(1 + f·t)."""
        return 1.0 / (1.0 + self.interruptions / MONTH_HOURS * self.recovery_h)

    def spares(self, replicas: int) -> int:
        """Replicas beside so many, so that with the confidence no fewer are there; each is away by itself.

        >>> Spot(1.0, 730.0, 0.25, 1, 0.99).spares(10)  # a fifth of the time away
        8
        """
        extra = 0
        while (
            self.interruptions
            and sum(self._away(replicas + extra, down) for down in range(extra + 1)) < self.confidence
        ):
            extra += 1
        return extra

    def _away(self, replicas: int, down: int) -> float:
        """Probability that so many of them are away: binomial."""
        ways = math.lgamma(replicas + 1) - math.lgamma(down + 1) - math.lgamma(replicas - down + 1)
        return math.exp(ways + down * math.log1p(-self.up) + (replicas - down) * math.log(self.up))


def held_levels(use: Table, hours: float, on_demand: float, terms: Sequence[HourlyPrice]) -> NDArray[np.int64]:
    """The term that each level of the fleet has in each month, -1 for none, at the least cost.

    use: hours in which a level is used, (months, levels); hours: of a month. A commitment that lasts beyond the last
    month is charged up to it: the load goes on.

    >>> year = HourlyPrice(2.0, "", months=12.0)
    >>> held_levels(np.array([[730.0, 400.0]]), 730.0, 3.0, [year])  # 400/730 is below 2/3
    array([[ 0, -1]])
    """
    months, levels = use.shape
    best, choice = np.zeros((months + 1, levels)), np.full((months, levels), -1)
    for month in reversed(range(months)):
        best[month] = use[month] * on_demand + best[month + 1]
        for number, term in enumerate(terms):
            end = min(month + round(term.months), months)
            cost = (end - month) * hours * float(term.usd_per_gpu_hour) + best[end]
            better = cost < best[month] - 1e-9
            best[month], choice[month][better] = np.minimum(best[month], cost), number
    held, until = np.full((months, levels), -1), np.zeros(levels, int)
    for month in range(months):
        free = until <= month
        held[month] = np.where(free, choice[month], held[month - 1] if month else -1)
        for number, term in enumerate(terms):
            until[free & (choice[month] == number)] = month + round(term.months)
    return held


def pay(
    gpus: Table, weights: Sequence[float], on_demand: HourlyPrice, terms: Sequence[HourlyPrice], spot: Spot | None
) -> tuple[Paid, ...]:
    """The cheapest split of a fleet's hours.

    Args:
        gpus: accelerators in each interval of each month, (months, intervals).
        weights: hours that each interval takes in a month.
        on_demand: the price without a commitment.
        terms: prices with one.
        spot: machines that may be taken away, for what the commitments leave; None for none.

    Returns:
        What is paid under each term that is used.
    """
    hours, price = np.asarray(weights), float(on_demand.usd_per_gpu_hour)
    least = min(price, spot.price / spot.up) if spot else price
    tops = np.unique(gpus[gpus > 0])
    widths = np.diff(tops, prepend=0.0)
    used = gpus[:, :, None] >= tops
    use = np.einsum("mil,i->ml", used, hours)

    def split(marginal: float) -> tuple[Paid, ...]:
        """With commitments against this price of an hour without one."""
        held = held_levels(use, float(hours.sum()), marginal, terms)
        left = (used * (held < 0)[:, None, :] * widths).sum(axis=2)
        counts = [((held == number) * widths).sum(axis=1)[:, None] for number in range(len(terms))]
        paid = [
            _row(term.term or f"{term.months:g} months", float(term.usd_per_gpu_hour), count, hours.sum())
            for term, count in zip(terms, counts, strict=True)
        ]
        if spot is not None:
            levels, places = np.unique(left, return_inverse=True)
            shared = np.array([_shared(level, spot, price) for level in levels])
            taken, left = (shared[places.reshape(left.shape), kind] for kind in (0, 1))
            paid.append(_row("spot", spot.price, taken, hours))
        paid.append(_row(on_demand.term or "on demand", price, left, hours))
        return tuple(each for each in paid if each.gpu_hours > 0.0)

    return min(map(split, {price, least}), key=lambda paid: sum(each.usd for each in paid))


def _row(term: str, price: float, gpus: Table, hours: Table | float) -> Paid:
    whole = float((gpus * hours).sum())
    return Paid(term, price, float(gpus.max()), whole, whole * price)


def _shared(gpus: float, spot: Spot, on_demand: float) -> tuple[float, float]:
    """Accelerators on spot, spares included, and on demand, that carry what the commitments leave at the least cost."""
    best = (gpus * on_demand, 0.0, gpus)
    for replicas in range(1, int(gpus) // spot.size + 1):
        taken, plain = float(spot.size * (replicas + spot.spares(replicas))), gpus - spot.size * replicas
        best = min(best, (taken * spot.price + plain * on_demand, taken, plain))
    return best[1], best[2]


@dataclass(frozen=True)
class Tco:
    """Renting against owning: dollars a month of one accelerator, and of the fleet over the years of use, discounted.

    break_even_month: None where renting stays cheaper for all the years.
    """

    inputs: Purchase
    capital_usd: float
    running_usd: float
    rent_usd: float
    own_usd: float
    break_even_month: int | None


def rent_or_buy(owning: Purchase, gpus: Sequence[int], rents: Sequence[float], watts: float, rated: float) -> Tco:
    """Compare a fleet that is bought as it grows with rents, month by month; the last month goes on.

    Args:
        owning: the inputs.
        gpus: accelerators that are needed in each month.
        rents: USD of each month.
        watts: mean power of a board with its share of the host.
        rated: the same with the board at its limit.

    Returns:
        Sums over the years of use, at the interest; of what is bought later its annuities until then.

    >>> owning = Purchase(12_000.0, 2.0)
    >>> rent_or_buy(owning, [2], [2_000.0], 0.0, 0.0).break_even_month  # 24,000 USD at 2,000 a month
    12
    """
    i, running = owning.month_interest, owning.running(watts, rated)
    rent = own = bought = cash = 0.0
    owned, month_of = 0, None
    for month in range(1, owning.months + 1):
        place = min(month, len(gpus)) - 1
        now, worth = max(gpus[place], owned), (1.0 + i) ** -month
        bought += (now - owned) * owning.purchase * worth * (1.0 + i)
        owned = now
        rent += rents[place] * worth
        own += owned * (owning.capital + running) * worth
        cash += owned * running * worth
        month_of = (month_of or month) if rent >= bought + cash else None
    return Tco(owning, owning.capital, running, rent, own, month_of)

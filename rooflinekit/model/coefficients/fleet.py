"""How many replicas serve a peak, how busy they are, and what they cost: the arithmetic of the capacity workbook.

A replica that always runs b sequences needs OSL·t_d(b) + b·s for b answers, t_d a decode step and s one prompt by
itself, so that it serves at most b/(OSL·t_d + b·s) requests a second (docs/serving.md with the prompts apart).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooflinekit.model.coefficients.plan import PlanCoefficients

__all__ = ["Cost", "Fleet", "Service", "Tariff", "cost", "fleet", "service"]

_HOURS = 8760.0  # of a year


@dataclass(frozen=True)
class Service:
    """One replica at a batch: decode step and single prompt [s], front end [s], knee [requests/s]."""

    step: float
    prompt: float
    request: float
    knee: float


@dataclass(frozen=True)
class Fleet:
    """Replicas for a peak, and what requests meet there on average [s]."""

    replicas: int
    gpus: int
    utilisation: float  #: of the knee, at the peak
    ttft: float
    tpot: float


@dataclass(frozen=True)
class Tariff:
    """What accelerators cost. `price`: USD an hour each if rented, else None for owned ones.

    capex [USD each, with the server's share], years of use, power [W each], USD a kWh, PUE: energy of the site over
    that of the machines.
    """

    price: float | None = None
    capex: float = 0.0
    years: float = 1.0
    watts: float = 0.0
    kwh_price: float = 0.0
    pue: float = 1.0


@dataclass(frozen=True)
class Cost:
    """USD an hour, a year, a million output tokens and a million tokens of both kinds; kW at the site's meter."""

    per_hour: float
    per_year: float
    per_million_output: float
    per_million: float
    kilowatts: float


def service(exported: PlanCoefficients, batch: float, isl: float, osl: float) -> Service:
    """A replica that keeps `batch` sequences running.

    knee = b/(OSL·t_d(b) + b·s).
    """
    step, prompt = exported.tpot(batch, isl, osl).time, exported.ttft(1.0, isl).time
    return Service(step, prompt, exported.host.request, batch / (osl * step + batch * prompt))


def fleet(replica: Service, rate: float, headroom: float, gpus: int) -> Fleet:
    """Replicas for `rate` requests a second, of which each is to stay `headroom` below its knee.

    replicas = ⌈rate/((1 − headroom)·knee)⌉; with λ = rate/replicas and ρ = λ·s, the share of the time that goes to
    prompts, TPOT = t_d/(1 − ρ) and TTFT = front end + TPOT/2 + ρ/(1 − ρ)·s/2 + s (Poisson arrivals, equal prompts).

    >>> fleet(Service(0.02, 0.1, 0.03, 8.0), rate=50.0, headroom=0.2, gpus=4).replicas  # 50/6.4
    8
    """
    replicas = max(math.ceil(rate / ((1.0 - headroom) * replica.knee)), 1)
    share = rate / replicas
    busy = share * replica.prompt
    tpot = replica.step / (1.0 - busy)
    wait = busy / (1.0 - busy) * replica.prompt / 2.0
    ttft = replica.request + tpot / 2.0 + wait + replica.prompt
    return Fleet(replicas, replicas * gpus, share / replica.knee, ttft, tpot)


def cost(tariff: Tariff, gpus: int, rate: float, tokens: tuple[float, float]) -> Cost:
    """What `gpus` cost, and what that is a million tokens of a mean `rate` of requests of `tokens` in and out.

    owned: capex/(years·8760) + W·PUE·USD/kWh an hour and accelerator.

    >>> round(cost(Tariff(2.95), 8, 10.0, (2000.0, 300.0)).per_million_output, 3)  # 23.6 USD/h over 10.8 M tokens
    2.185
    """
    kilowatts = gpus * tariff.watts * tariff.pue / 1000.0
    owned = gpus * tariff.capex / (tariff.years * _HOURS) + kilowatts * tariff.kwh_price
    hour = owned if tariff.price is None else gpus * tariff.price
    millions = rate * 3600.0 / 1e6
    isl, osl = tokens
    return Cost(hour, hour * _HOURS, hour / (millions * osl), hour / (millions * (isl + osl)), kilowatts)

"""What cannot be improved in one respect without losing in another: speed against use, cost against latency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from rooflinekit.decision.economics.price import usd_per_million
from rooflinekit.decision.planning.cost import Tariff
from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.replica import Replica, feel
from rooflinekit.decision.sweeping.pareto import on_front
from rooflinekit.model.types.numeric import Numeric

__all__ = ["Point", "front", "points"]

T = TypeVar("T")
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the knee at which a replica is looked at


@dataclass(frozen=True)
class Point:
    """One replica at one load.

    on: the fronts it stands on, `speed` (tok/s/user against tok/s/GPU) or `cost` (USD a million tokens, in and out,
    against the mean time of a request).
    """

    scenario: dict[str, Any]
    gpus: int
    load: float
    tok_s_per_user: float
    tok_s_per_gpu: float
    ttft_ms: float
    e2el_ms: float
    usd_per_million_tokens: float | None
    on: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {key: getattr(self, key) for key in self.__dataclass_fields__} | {"on": list(self.on)}


def points(replicas: Sequence[Replica], demand: Demand, tariff: Tariff) -> list[Point]:
    """Every replica at eleven loads, those that stand on a front."""
    seen = [point for replica in replicas for point in _loads(replica, demand, tariff)]
    speed = front(seen, lambda point: (-point.tok_s_per_user, -point.tok_s_per_gpu))
    priced = [point for point in seen if point.usd_per_million_tokens is not None]
    cost = front(priced, lambda point: (point.e2el_ms, point.usd_per_million_tokens or 0.0))
    named = [(point, tuple(n for n, on in (("speed", speed), ("cost", cost)) if point in on)) for point in seen]
    return sorted((replace(point, on=on) for point, on in named if on), key=lambda point: -point.tok_s_per_user)


def _loads(replica: Replica, demand: Demand, tariff: Tariff) -> list[Point]:
    top = replica.room if demand.closed else float(replica.answer(demand, 1e-9).loaded.knee)
    found = []
    for share in _SHARES:
        load = max(round(share * top), 1.0) if demand.closed else share * top
        answer = replica.answer(demand, load)
        felt, rate = feel(answer), float(answer.loaded.rate)
        tokens: Numeric = rate * demand.traffic.osl
        price = tariff.price(replica.gpu)
        whole = rate * (demand.traffic.isl + demand.traffic.osl)
        found.append(
            Point(
                replica.scenario, replica.gpus, load, 1.0 / felt.means["tpot"], float(tokens) / replica.gpus,
                felt.means["ttft"] * 1e3, felt.means["e2el"] * 1e3,
                None if price is None else float(usd_per_million(price * replica.gpus, whole)),
            )
        )  # fmt: skip
    return found


def front(items: Sequence[T], costs: Callable[[T], tuple[float, float]]) -> list[T]:
    """Items that no other beats (`sweeping.pareto.on_front`), the first cost rising; of equal ones the first.

    >>> front([(1, 5), (2, 2), (3, 3), (4, 1)], lambda item: item)
    [(1, 5), (2, 2), (4, 1)]
    """
    distinct: dict[tuple[float, float], T] = {}
    for item in items:
        distinct.setdefault(costs(item), item)
    if not distinct:
        return []
    best = on_front(np.array(list(distinct)))
    return [distinct[each] for each, stands in sorted(zip(distinct, best, strict=True)) if stands]

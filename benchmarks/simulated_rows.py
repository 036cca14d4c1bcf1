"""Closed-loop rows of serving tables, simulated request by request (docs/simulator.md) under the costs that ship.

Each operating point is played once: the client's users, its requests for each of them, lengths drawn as it draws
them. Settings that hold requests back (validate/clients.yaml) are not played.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from rooflinekit.estimation.estimator import Resolved
from rooflinekit.evidence.accuracy_serving import ServedGroup
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.simulation.arrivals import Arrival
from rooflinekit.simulation.outcome import Outcome
from rooflinekit.simulation.simulate import Load, serve
from rooflinekit.specs.clients import Client


@dataclass(frozen=True)
class Point:
    """Nominal lengths [tokens] and users of one run."""

    isl: float
    osl: float
    users: int


def simulated(groups: list[ServedGroup], workers: int = 2) -> list[np.ndarray]:
    """A value for every row of each group; NaN where the load is no closed loop, or nothing fits."""
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(_group, groups, chunksize=1))


def _group(group: ServedGroup) -> np.ndarray:
    out = np.full(len(group.table), np.nan)
    loads, metrics = group.table["load"].to_numpy(), group.table["metric"].to_numpy()
    columns = zip(group.column("isl"), group.column("osl"), group.column("concurrency"), strict=True)
    played: dict[Point, Outcome | None] = {}
    for row, (isl, osl, users) in enumerate(columns):
        if loads[row] != "concurrency" or not (osl > 1 and users >= 1):
            continue
        point = Point(isl, osl, int(users))
        if point not in played:
            played[point] = _play(group.resolved, group.client, point)
        if (outcome := played[point]) is not None:
            out[row] = _value(outcome, str(metrics[row]), group.resolved)
    return out


def _play(resolved: Resolved, client: Client, point: Point) -> Outcome | None:
    rng, count = np.random.default_rng(0), int(client.requests * point.users)
    draw = partial(_lengths, rng, client, count)
    isl, osl = draw(point.isl), draw(point.osl)
    arrivals: Iterator[Arrival] = (Arrival(0.0, int(i), int(o)) for i, o in zip(isl, osl, strict=True))
    longest = int(isl.max() + osl.max())
    try:
        return serve(resolved, Load(arrivals, float(isl.mean() + osl.mean()), longest, users=point.users))
    except RooflinekitError:
        return None


def _lengths(rng: np.random.Generator, client: Client, count: int, nominal: float) -> np.ndarray:
    half = client.cv * 3.0**0.5
    spread = rng.uniform(1.0 - half, 1.0 + half, count)
    return np.maximum(np.round(client.mean_length * nominal * spread), 2)


def _value(outcome: Outcome, metric: str, resolved: Resolved) -> float:
    values = {
        "ttft_ms": outcome.ttft_ms.mean or np.nan,
        "tpot_ms": outcome.tpot_ms.mean or np.nan,
        "e2e_ms": outcome.e2e_ms.mean or np.nan,
        "output_tok_s_total": outcome.output_tok_s,
        "output_tok_s_per_gpu": outcome.output_tok_s / resolved.plan.deployment.gpus,
        "output_tok_s_per_user": 1e3 / (outcome.tpot_ms.mean or np.nan),
    }
    return float(values.get(metric, np.nan))

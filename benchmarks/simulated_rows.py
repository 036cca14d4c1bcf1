"""Closed-loop rows of serving tables, simulated request by request (docs/under-load.md) under the costs that ship.

Each operating point is played once: the client's users, its requests for each of them, lengths drawn as it draws
them, and its prompts again where the server keeps them. Settings that hold requests back (validate/clients.yaml) and
runs with drafts are not played.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from rooflinekit.estimation.estimator import Resolved
from rooflinekit.evidence.accuracy_serving import ServedGroup
from rooflinekit.load.arrivals import Arrival
from rooflinekit.model.speculation import SpeculativePredictor
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.simulation.outcome import Outcome
from rooflinekit.simulation.simulate import Load, Setup, serve
from rooflinekit.specs.clients import Client

_BLOCK = 16  # tokens of a block of the cache


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
    if isinstance(group.resolved.predictor, SpeculativePredictor):
        return out
    loads, metrics = group.table["load"].to_numpy(), group.table["metric"].to_numpy()
    columns = zip(group.column("isl"), group.column("osl"), group.column("concurrency"), strict=True)
    played: dict[Point, Outcome | None] = {}
    for row, (isl, osl, users) in enumerate(columns):
        if loads[row] != "concurrency" or not (osl > 1 and users >= 1):
            continue
        point = Point(isl, osl, int(users))
        if point not in played:
            played[point] = _play(group, point)
        if (outcome := played[point]) is not None:
            out[row] = _value(outcome, str(metrics[row]), group.resolved)
    return out


def _play(group: ServedGroup, point: Point) -> Outcome | None:
    client = group.client
    kept = client.prompts if group.server.prefix_cache else 0
    warmup = client.warmup * point.users if kept else 0
    rng, count = np.random.default_rng(0), int(client.requests * point.users) + warmup
    draw = partial(_lengths, rng, client)
    isl, osl = draw(kept or count, point.isl), draw(count, point.osl)
    sent = enumerate(zip(np.resize(isl, count), osl, strict=True))
    arrivals = (Arrival(0.0, int(i), int(o), _blocks(at % kept, int(i)) if kept else ()) for at, (i, o) in sent)
    load = Load(arrivals, float(isl.mean() + osl.mean()), int(isl.max() + osl.max()), point.users, warmup)
    try:
        return serve(group.resolved, load, Setup(prefix_cache=kept > 0, hash_tokens=_BLOCK if kept else None))
    except RooflinekitError:
        return None


def _blocks(prompt: int, isl: int) -> tuple[int, ...]:
    """The content of a prompt's blocks, of which no two prompts share one; the last is always computed."""
    return tuple(prompt << 20 | block for block in range((isl - 1) // _BLOCK))


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

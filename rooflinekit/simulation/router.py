"""Which replica gets a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from random import Random

from rooflinekit.model.types.errors import UnknownNameError
from rooflinekit.simulation.replica import Replica
from rooflinekit.simulation.request import Job

__all__ = ["IMBALANCE", "ROUTERS", "Route", "router_named"]

Route = Callable[[Job], "Replica | None"]
"""Chooses a replica; None leaves the request in a queue in front of all."""

IMBALANCE = 16
"""Requests by which a replica may exceed the least loaded one and still be chosen for its prefix (assumption)."""


def _round_robin(replicas: Sequence[Replica]) -> Route:
    turn = cycle(replicas)
    return lambda job: next(turn)


def _random(replicas: Sequence[Replica]) -> Route:
    draw = Random(0)
    return lambda job: draw.choice(replicas)


def _least_loaded(replicas: Sequence[Replica]) -> Route:
    return lambda job: min(replicas, key=lambda replica: replica.load)


def _prefix_affinity(replicas: Sequence[Replica]) -> Route:
    def route(job: Job) -> Replica:
        most = min(replica.load for replica in replicas) + IMBALANCE
        near = [replica for replica in replicas if replica.load <= most]
        return max(near, key=lambda replica: (replica.pool.match(job), -replica.load))

    return route


def _shared(replicas: Sequence[Replica]) -> Route:
    def route(job: Job) -> Replica | None:
        free = [replica for replica in replicas if replica.load < replica.limits.max_num_seqs]
        return min(free, key=lambda replica: replica.load) if free else None

    return route


ROUTERS: dict[str, Callable[[Sequence[Replica]], Route]] = {
    "round-robin": _round_robin,
    "random": _random,
    "least-loaded": _least_loaded,
    "prefix-affinity": _prefix_affinity,
    "shared": _shared,
}
"""round-robin: in turn. random: drawn from a fixed seed, as by a balancer without memory. least-loaded: the fewest
requests. prefix-affinity: the longest cached prefix among replicas
that are not much busier than the least loaded. shared: one queue in front of all, from which a replica takes a request
when it has a place."""


def router_named(name: str, replicas: Sequence[Replica]) -> Route:
    """Look a router up.

    Raises UnknownNameError.
    """
    if name not in ROUTERS:
        raise UnknownNameError("router", name, ROUTERS)
    return ROUTERS[name](replicas)

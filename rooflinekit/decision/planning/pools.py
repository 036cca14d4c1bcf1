"""Prompts and answers on replicas of their own: a prefill pool, a decode pool, and the link between them.

    prefill   TTFT = request + wait + s₁         s₁: one prompt by itself; wait: Kingman's formula with ρ = λ·s₁
    link      t_x = S·κ/(w·g)                    κ: cache bytes of a token; w: NIC of each of the g accelerators
    decode    TPOT = t_d(C) + (t_x + t_d/2 + wait for a slot)/(N − 1),  C = 1 + λ·(N − 1)·t_d(C)

The first token comes from the prefill replica, so the transfer delays the second one and counts in the TPOT, as in the
simulator. No prompt disturbs a decode step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from rooflinekit.decision.planning.demand import Demand
from rooflinekit.decision.planning.objective import Felt, Objective
from rooflinekit.decision.planning.replica import Ability, Replica, feel, first_violation
from rooflinekit.model.traffic.closed_form import Loaded
from rooflinekit.model.traffic.mixing import InFlight, Shared, lone_prompt
from rooflinekit.model.traffic.percentiles import Spread, spread
from rooflinekit.model.traffic.question import LoadAnswer, answer_load
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.time import NOTHING, Time

__all__ = ["DecodePool", "PrefillPool", "joined", "link_seconds", "pool_ability"]

_FULL = 1.0 - 1e-4  # of the knee


@dataclass(frozen=True)
class PrefillPool:
    """Replicas that compute prompts and give out the first token.

    prompt: time of one by itself; together: of one on each of the `lanes` attention replicas, which start together [s].
    """

    replica: Replica
    prompt: Time
    together: float
    lanes: int = 1

    @classmethod
    def of(cls, replica: Replica, demand: Demand) -> PrefillPool:
        """Time the mean prompt."""
        plan, load = replica.predictor.plan, InFlight(1.0, demand.isl.mean, demand.osl.mean)
        lanes = plan.deployment.dp
        alone, full = (plan.time(lone_prompt(load, filled)).total for filled in (1.0 / lanes, 1.0))
        return cls(replica, alone, float(full.expected), lanes)

    def knee(self, demand: Demand) -> float:
        """Prompts a second at most: one after the other on each attention replica."""
        return self.lanes / self.together

    def feel(self, demand: Demand, rate: float) -> Felt:
        """Latencies up to the first token, at this rate on each replica; TPOT is 0."""
        alone, traffic = self.prompt, demand.traffic
        request = self.replica.predictor.plan.costs.request
        busy = rate / self.knee(demand)
        if busy >= 1.0:
            return Felt({}, Spread(_never, _never, _never), stable=False)
        variation = float(traffic.arrival_cv**2 + traffic.isl_cv**2) / 2.0
        wait = busy / (1.0 - busy) * variation / self.knee(demand)
        wait += (1.0 - 1.0 / self.lanes) * min(rate * self.together, 1.0) * self.together / 2.0  # the pass under way
        own = float(alone.expected) + busy * (self.together - float(alone.expected))
        ttft = own + request + wait
        shared = Shared(NOTHING, alone, alone, request, mixes=False)
        first = replace(alone, expected=ttft)
        loaded = Loaded(first, NOTHING, ttft, 1.0, rate, self.knee(demand), wait, busy, 1.0, 0.0, shared)
        return Felt({"ttft": ttft, "tpot": 0.0, "e2el": ttft}, spread(loaded, traffic, closed=False))


def _never(share: float) -> float:
    return math.inf


@dataclass(frozen=True)
class DecodePool:
    """Replicas that go on from the first token; `transfer` is what its keys and values take to come [s]."""

    replica: Replica
    transfer: float

    def times(self, running: Numeric) -> Shared:
        """Shared times without prompts."""
        shared = self.replica.times(running)
        return Shared(shared.step, NOTHING, NOTHING, 0.0, shared.mixes)

    def answer(self, demand: Demand, rate: float) -> LoadAnswer:
        """The closed form without prompts."""
        return answer_load(self.replica.predictor, demand.question(rate), self.times)

    def knee(self, demand: Demand) -> float:
        """Requests a second of a full batch."""
        return float(self.answer(demand, 1e-9).loaded.knee)

    def feel(self, demand: Demand, rate: float) -> Felt:
        """Latencies after the first token, at this rate on each replica; TTFT is 0."""
        felt = feel(self.answer(demand, rate))
        if not felt.stable:
            return felt
        steps = max(demand.osl.mean - 1.0, 1.0)
        late = felt.means["ttft"] + self.transfer
        tpot = felt.means["tpot"] + late / steps
        inner = felt.times

        def later(share: float) -> Numeric:
            return inner.tpot(share) + (inner.ttft(share) + self.transfer) / steps

        after = felt.means["e2el"] + self.transfer
        times = Spread(lambda share: 0.0, later, lambda share: inner.e2e(share) + self.transfer)
        return Felt({"ttft": 0.0, "tpot": tpot, "e2el": after}, times)


def link_seconds(prefill: Replica, demand: Demand) -> float:
    """Time that the cache of a mean prompt takes from a prefill to a decode replica [s]; infinite without a link.

    A NIC for each accelerator of the prefill replica, or its PCIe link where no NIC is known.
    """
    accelerator = prefill.resolved.plan.system.accelerator
    bandwidth = float(accelerator.nic_bandwidth or accelerator.pcie_bandwidth) * prefill.gpus
    each = prefill.predictor.memory.kv_bytes_per_token
    return demand.isl.mean * each / bandwidth if bandwidth else math.inf


def pool_ability(pool: PrefillPool | DecodePool, demand: Demand, slo: tuple[Objective, ...]) -> Ability:
    """The largest rate of one replica of a pool within the objectives that it has a part in."""
    own = "ttft" if isinstance(pool, PrefillPool) else "tpot"
    mine = tuple(each for each in slo if each.metric in (own, "e2el"))
    knee = pool.knee(demand)
    seen = demand.thinned(demand.peak_load // knee)
    feels: Callable[[float], Felt] = lambda rate: pool.feel(seen, rate)  # noqa: E731
    return first_violation(feels, knee * _FULL, mine, "knee")


def joined(first: Felt, after: Felt) -> Felt:
    """Both parts of a request together; deviations of the end-to-end time add as squares."""
    if not (first.stable and after.stable):
        return Felt({}, Spread(_never, _never, _never), stable=False)
    mean = first.means["ttft"] + after.means["e2el"]

    def whole(share: float) -> float:
        parts = (first.times.ttft(share) - first.means["ttft"], after.times.e2e(share) - after.means["e2el"])
        square = sum(math.copysign(part * part, part) for part in parts)
        return mean + math.copysign(math.sqrt(abs(square)), square)

    means = {"ttft": first.means["ttft"], "tpot": after.means["tpot"], "e2el": mean}
    return Felt(means, Spread(first.times.ttft, after.times.tpot, whole))

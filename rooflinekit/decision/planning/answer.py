"""What a plan says: plain numbers with units in their names, ready for JSON, a terminal and `rooflinekit launch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflinekit.decision.planning.cost import Cost
from rooflinekit.decision.planning.pareto import Point
from rooflinekit.decision.planning.search import Refusal
from rooflinekit.model.types.answer import Answer

__all__ = ["Candidate", "Fleet", "PlanAnswer"]


@dataclass(frozen=True)
class Fleet:
    """Replicas of one deployment. Loads are requests/s or users of one replica.

    scenario: keywords of `rk.estimate`; replicas: all of them, `spare` of which may fail; load: at the peak with the
    spares down; capacity: within the objectives; knee: at any latency (None in a closed loop); utilisation: load over
    knee; cold_start_s: weights at the stated rate.
    """

    role: str
    scenario: dict[str, Any]
    gpus_per_replica: int
    replicas: int
    spare: int
    share: float
    load: float
    capacity: float
    knee: float | None
    utilisation: float | None
    headroom: float
    binds: tuple[str, ...]
    cold_start_s: float

    @property
    def gpus(self) -> int:
        """Accelerators."""
        return self.replicas * self.gpus_per_replica

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {key: getattr(self, key) for key in self.__dataclass_fields__} | {
            "binds": list(self.binds), "gpus": self.gpus
        }  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """One way to serve the traffic.

    predicted, simulated: mean and percentiles of ttft_ms, tpot_ms and e2el_ms at the peak with the spares down;
    formula_gpus: what the formula alone asked for, before the simulation; lost: why it is not the best.
    """

    kind: str
    fleets: tuple[Fleet, ...]
    cost: Cost
    predicted: dict[str, dict[str, float | None]]
    interval: dict[str, list[float]] | None
    simulated: dict[str, dict[str, float | None]] | None
    simulated_requests: int
    confirmed: bool | None
    formula_gpus: int
    lost: str | None = None

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return sum(fleet.gpus for fleet in self.fleets)

    @property
    def replicas(self) -> int:
        """Replicas in all."""
        return sum(fleet.replicas for fleet in self.fleets)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: `scenario` and `replicas`, or `prefill` and `decode`, or `fleet`."""
        cost = self.cost
        row: dict[str, Any] = {"kind": self.kind, "gpus": self.gpus, "replicas": self.replicas}
        if self.kind == "aggregated":
            row |= self.fleets[0].to_dict()
        elif self.kind == "disaggregated":
            row |= {fleet.role: fleet.to_dict() for fleet in self.fleets}
        else:
            row |= {"fleet": [fleet.to_dict() for fleet in self.fleets]}
        million = {
            "cached_input": cost.cached_input_usd, "input": cost.input_usd, "output": cost.output_usd,
            "all": cost.million_tokens_usd,
        }  # fmt: skip
        return row | {
            "usd_per_hour": cost.usd_per_hour, "usd_per_million_tokens": million, "watts": cost.watts,
            "joules_per_output_token": cost.joules_per_output_token, "output_tok_s": cost.output_tok_s,
            "predicted": self.predicted, "interval": self.interval, "simulated": self.simulated,
            "simulated_requests": self.simulated_requests, "confirmed": self.confirmed,
            "formula_gpus": self.formula_gpus, "lost": self.lost,
        }  # fmt: skip


@dataclass(frozen=True)
class PlanAnswer(Answer):
    """A plan: the answer in words, the best candidate, all others by cost, the fronts, and what was refused."""

    version: str
    model: str
    traffic: dict[str, Any]
    question: str
    slo: tuple[str, ...]
    answer: str
    candidates: tuple[Candidate, ...]
    pareto: tuple[Point, ...]
    refused: tuple[Refusal, ...]
    tried: int
    prices: dict[str, dict[str, Any] | None]
    warnings: tuple[str, ...]

    @property
    def best(self) -> Candidate:
        """The cheapest that was not refuted."""
        return self.candidates[0]

    def to_dict(self) -> dict[str, Any]:
        """Nested plain data for JSON."""
        return {
            "version": self.version, "model": self.model, "traffic": self.traffic, "slo": list(self.slo),
            "answer": self.answer, "best": self.best.to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "pareto": [point.to_dict() for point in self.pareto],
            "refused": [refusal.to_dict() for refusal in self.refused],
            "tried": self.tried, "prices": self.prices, "warnings": list(self.warnings),
        }  # fmt: skip

"""Loads of the offered deployments, sized by the rule of `plan`: rungs of the load curve that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from rooflinekit.decision.planning.cost import Tariff
from rooflinekit.decision.planning.demand import Demand, beside
from rooflinekit.decision.planning.fleet import Bearer, Reserve, lay_out
from rooflinekit.decision.planning.objective import Objective
from rooflinekit.decision.planning.search import Found, PlanQuestion, Space, longest_admitted, settled
from rooflinekit.estimation.estimator import refuse_groups
from rooflinekit.estimation.options import Keywords
from rooflinekit.load.answer import STEADY, LoadPlay
from rooflinekit.load.compiled import prepare
from rooflinekit.load.curve import SHARES
from rooflinekit.model.power import plug_power
from rooflinekit.model.types.errors import DoesNotFitError, RooflinekitError
from rooflinekit.simulation.execute import execute

_SPANNED = (0, 6, 14)  # rungs whose intervals are played; those of the others are between, as ratios to their means
_EACH = 6  # deployments that a process has to play so that it is worth its start
_PLAYS = len(SHARES) + 15  # of one deployment, about: the rungs, settings that are tried, intervals
P95 = 0.95
"""Percentile of the objectives, as `plan` has them unless told."""

_SETTINGS = ("token_budget", "max_num_seqs")


class Rung(NamedTuple):
    """Latencies at a rate of one replica [1/s]; times [ms], and mean power of a board at the plug [W].

    sure: P95 at the confidence that the fleet is sized for, where steps take `pace` times as long as expected.
    running: sequences at once; queue: wait before the first step; watts: 0 where nobody knows it.
    """

    rate: float
    ttft: float
    ttft_low: float
    ttft_high: float
    ttft_p95: float
    ttft_sure: float
    ttft_pace: float
    tpot: float
    tpot_low: float
    tpot_high: float
    tpot_p95: float
    tpot_sure: float
    tpot_pace: float
    running: float
    queue: float
    watts: float


@dataclass(frozen=True)
class Ladder:
    """The rungs that can be sustained, after one at no load; the knee [1/s], places, and why there are no rungs.

    working: replicas for the peak as it was made, by the rule of `plan`; together: replicas behind whose router
    arrivals are as even as those that were played; scenario: as it was played, by the keywords of `estimate`.
    """

    knee: float = 0.0
    places: int = 0
    rungs: tuple[Rung, ...] = ()
    reason: str = ""
    working: int = 0
    together: int = 1
    scenario: Keywords = field(default_factory=dict)

    @property
    def settings(self) -> str:
        """Settings of the engine that `plan` chose, in words."""
        chosen = [f"{key} {self.scenario[key]}" for key in _SETTINGS if key in self.scenario]
        return ", ".join([*(chosen or ["the engine's own settings"]), f"one of {self.together} replicas or more"])


class LoadPiece(NamedTuple):
    """A deployment by names, the traffic with its objectives, and requests that its process has to play in all."""

    model: str
    gpu: str
    scenario: Keywords
    demand: Demand
    slo: tuple[Objective, ...]
    headroom: float
    confidence: float
    requests: int = 0

    @property
    def question(self) -> PlanQuestion:
        """Question to `plan` for this deployment alone."""
        budgets, limits = ((self.scenario[key],) if key in self.scenario else () for key in _SETTINGS)
        space = Space((self.gpu,), token_budgets=budgets, max_num_seqs=limits)
        reserve, calibration = Reserve(self.headroom), self.scenario.get("calibration")
        asked = (self.model, self.demand, self.slo, space, reserve, Tariff({}))
        return PlanQuestion(*asked, calibration, self.confidence)


def play_ladders(pieces: Sequence[LoadPiece], workers: int = 1) -> Iterator[Ladder]:
    """Play deployments, in processes where there are many."""
    workers = max(min(workers, len(pieces) // _EACH), 1)
    requests = len(pieces) * STEADY * _PLAYS // workers
    return execute(play_ladder, (each._replace(requests=requests) for each in pieces), workers)


def play_ladder(piece: LoadPiece) -> Ladder:
    """Size one deployment, and play its curve up to the first rung at which requests pile up."""
    prepare(piece.requests)
    question, found = piece.question, Found()
    scenario = {key: value for key, value in piece.scenario.items() if key != "calibration"}
    try:
        replica = lay_out(piece.model, piece.gpu, scenario, piece.demand, question.calibration)
        plan = replica.resolved.plan
        refuse_groups(plan.deployment, "a static batch, not under load", "ffn_gpus")
        admitted = {"max_model_len": longest_admitted(plan.model, piece.demand, found)} | scenario
        replica = lay_out(piece.model, piece.gpu, admitted, piece.demand, question.calibration)
        part = settled(question, replica, found)
        if part is None:
            return Ladder(reason="no setting of the engine has room")
        alone = part.bearer.knee(piece.demand) * (1.0 - piece.headroom)
        seen = piece.demand.seen(together := beside(part.working or piece.demand.peak_load / alone))
        curve = part.bearer.curve(seen)
        plays = list(takewhile(lambda each: each.stable, map(curve.play, curve.loads)))
    except DoesNotFitError as error:
        return Ladder(reason=str(error))
    except RooflinekitError as error:
        return Ladder(places=1, reason=str(error))
    if not plays:
        return Ladder(curve.full, 1, reason="requests pile up at the lowest rate that was played")
    sure = [_sure(part.bearer, seen, load, part.deviations) for load, _ in zip(curve.loads, plays, strict=False)]
    rungs = [_rung(*each) for each in zip(plays, _spans(plays), sure, strict=True)]
    law = plan.system.accelerator.power
    idle = 0.0 if law is None else float(plug_power(law.idle, law.host))
    none = rungs[0]._replace(rate=0.0, running=0.0, watts=idle)
    return Ladder(plays[0].knee, plays[0].places, (none, *rungs), "", part.working, together, part.replica.scenario)


def _sure(bearer: Bearer, seen: Demand, load: float, deviations: float) -> list[tuple[float, float]]:
    """P95 of TTFT and TPOT at a place of the interval [ms], and the pace of steps there."""
    felt, found = bearer.feel(seen, load), []
    for metric in ("ttft", "tpot"):
        steps, further = felt.factors(metric, deviations)
        found.append((1e3 * steps * further * felt.value(metric, P95), steps))
    return found


def _rung(found: LoadPlay, spans: Sequence[float], sure: Sequence[tuple[float, float]]) -> Rung:
    parts, power = found.played.first_parts, found.power
    watts = 0.0 if power is None else float(power.plug)
    ttft, tpot = 1e3 * found.samples["ttft"].mean, 1e3 * found.tpot
    low, high, token_low, token_high = spans
    return Rung(
        found.rate, ttft, low * ttft, high * ttft, 1e3 * found.quantile("ttft", P95), *sure[0],
        tpot, token_low * tpot, token_high * tpot, 1e3 * found.quantile("tpot", P95), *sure[1],
        found.played.running, 1e3 * (parts.behind + parts.place), watts,
    )  # fmt: skip


def _spans(plays: Sequence[LoadPlay]) -> list[list[float]]:
    """Ends of the 90 % intervals of TTFT and TPOT over their means: played at some rungs, straight between them."""
    some = [plays[at] for at in sorted({min(at, len(plays) - 1) for at in _SPANNED})]
    times = (found.times()[:2] for found in some)
    ends = [[float(end / time.expected) for time in both for end in (time.low, time.high)] for both in times]
    rates, known = [found.rate for found in plays], [found.rate for found in some]
    between = [np.interp(rates, known, each) for each in zip(*ends, strict=True)]
    spans: list[list[float]] = np.transpose(between).tolist()
    return spans

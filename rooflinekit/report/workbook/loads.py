"""Loads of the offered deployments, played at rungs: shares of the rate of a full engine, all with the same draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np

from rooflinekit.estimation.estimator import ask, refuse_groups
from rooflinekit.estimation.loaded import load_energy
from rooflinekit.load.answer import AskedLoad, LoadPlay
from rooflinekit.load.compiled import prepare
from rooflinekit.load.curve import LoadCurve
from rooflinekit.model.power import plug_power
from rooflinekit.model.serving.energy import load_power
from rooflinekit.model.types.errors import DoesNotFitError, RooflinekitError
from rooflinekit.simulation.execute import execute

SHARES = (0.1, 0.3, 0.5, 0.65, 0.77, 0.86, 0.92, 0.97)
"""Of the rate of a full engine: the rungs. Dense where waits bend upwards."""

_SPANNED = (0, 3, 7)  # rungs whose intervals are played; those of the others are between, as ratios to their means
_EACH = 6  # deployments that a process has to play so that it is worth its start
_P95 = 0.95


class Rung(NamedTuple):
    """What users meet at a rate of one replica [1/s]; times [ms], and mean power of a board at the plug [W].

    running: sequences at once; queue: wait before the first step; watts: 0 where nobody knows it.
    """

    rate: float
    ttft: float
    ttft_low: float
    ttft_high: float
    ttft_p95: float
    tpot: float
    tpot_low: float
    tpot_high: float
    tpot_p95: float
    running: float
    queue: float
    watts: float


@dataclass(frozen=True)
class Ladder:
    """The rungs that can be sustained, after one at no load; the knee [1/s], places, and why there are no rungs."""

    knee: float = 0.0
    places: int = 0
    rungs: tuple[Rung, ...] = ()
    reason: str = ""

    def capacity(self, ttft: float, tpot: float) -> float:
        """The largest rate at which both means [ms] hold, on straight lines between rungs; 0 where none does."""
        if not self.rungs or self.rungs[0].ttft > ttft or self.rungs[0].tpot > tpot:
            return 0.0
        for below, above in pairwise(self.rungs):
            left = [
                (most - low) / (high - low)
                for most, low, high in ((ttft, below.ttft, above.ttft), (tpot, below.tpot, above.tpot))
                if high > most
            ]
            if left:
                return below.rate + min(left) * (above.rate - below.rate)
        return self.rungs[-1].rate


class Piece(NamedTuple):
    """A deployment by names, its load, and how many requests the process that plays it has to play in all."""

    model: str
    gpu: str
    scenario: Mapping[str, Any]
    load: AskedLoad
    requests: int = 0


def play_ladders(pieces: Sequence[Piece], workers: int = 1) -> Iterator[Ladder]:
    """Play deployments, in processes where there are many."""
    workers = max(min(workers, len(pieces) // _EACH), 1)
    requests = sum(each.load.count for each in pieces) * len(SHARES) // workers
    return execute(play_ladder, (each._replace(requests=requests) for each in pieces), workers)


def play_ladder(piece: Piece) -> Ladder:
    """Play one deployment up to the first rung at which requests pile up."""
    prepare(piece.requests)
    predictor = ask(piece.model, piece.gpu, piece.scenario).resolved.predictor
    curve = LoadCurve(predictor, piece.load)
    try:
        refuse_groups(predictor.plan.deployment, "a static batch, not under load", "ffn_gpus")
        rates = (share * curve.full for share in SHARES)
        plays = list(takewhile(lambda found: found.stable, map(curve.play, rates)))
    except DoesNotFitError as error:
        return Ladder(reason=str(error))
    except RooflinekitError as error:
        return Ladder(places=1, reason=str(error))
    if not plays:
        return Ladder(curve.full, 1, reason="requests pile up at the lowest rate that was played")
    rungs = [_rung(found, spans) for found, spans in zip(plays, _spans(plays), strict=True)]
    law = predictor.plan.system.accelerator.power
    idle = 0.0 if law is None else float(plug_power(law.idle, law.host))
    none = rungs[0]._replace(rate=0.0, running=0.0, watts=idle)
    return Ladder(plays[0].knee, plays[0].places, (none, *rungs))


def _rung(found: LoadPlay, spans: Sequence[float]) -> Rung:
    parts, tokens = found.played.first_parts, load_energy(found)
    watts = 0.0 if tokens is None else float(load_power(tokens, found.asked.osl.mean, found.output_rate).plug)
    ttft, tpot = 1e3 * found.samples["ttft"].mean, 1e3 * found.tpot
    low, high, token_low, token_high = spans
    return Rung(
        found.rate, ttft, low * ttft, high * ttft, 1e3 * found.quantile("ttft", _P95),
        tpot, token_low * tpot, token_high * tpot, 1e3 * found.quantile("tpot", _P95),
        found.played.running, 1e3 * (parts.behind + parts.place), watts,
    )  # fmt: skip


def _spans(plays: Sequence[LoadPlay]) -> list[list[float]]:
    """Ends of the 90 % intervals of TTFT and TPOT over their means: played at some rungs, straight between them."""
    some = [plays[at] for at in sorted({min(at, len(plays) - 1) for at in _SPANNED})]
    ends = zip(*map(_span, some), strict=True)
    rates, known = [found.rate for found in plays], [found.rate for found in some]
    spans: list[list[float]] = np.transpose([np.interp(rates, known, each) for each in ends]).tolist()
    return spans


def _span(found: LoadPlay) -> list[float]:
    times = found.times()[:2]
    return [float(end / time.expected) for time in times for end in (time.low, time.high)]

"""What `compare` asks of a prediction under load, and the closed form's answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Loaded, Traffic, closed_loop, open_loop
from rooflinekit.model.traffic.mixing import slots
from rooflinekit.model.types.errors import DoesNotFitError

__all__ = ["Interference", "LoadPoint", "LoadPrediction", "LoadPredictor"]


@dataclass(frozen=True)
class LoadPoint:
    """Traffic at one operating point.

    isl, osl: mean tokens a request; users: requests in flight (closed loop), or None for an open loop at `rate`
    requests a second; requests: how many there are in all (None: a steady state); most: most sequences that run at
    once, where that is known; osl_cv: standard deviation of the output lengths over their mean.
    """

    isl: float
    osl: float
    users: int | None = None
    rate: float | None = None
    requests: int | None = None
    most: int | None = None
    osl_cv: float = 0.0


@dataclass(frozen=True)
class LoadPrediction:
    """What users feel, as means.

    parts [ms]: `step` and `interference` add up to TPOT; `prefill` and `queue` to TTFT. running: sequences in the
    batch. note: what the reader should know, else empty.
    """

    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    output_tok_s: float
    parts: Mapping[str, float]
    running: float
    note: str = ""


class LoadPredictor(Protocol):
    """Whatever predicts latency under load."""

    def predict(self, point: LoadPoint) -> LoadPrediction:
        """Answer one operating point."""


@dataclass(frozen=True)
class Interference:
    """The closed form of `rooflinekit.model.traffic`, told apart into what a comparison needs."""

    predictor: Predictor

    def predict(self, point: LoadPoint) -> LoadPrediction:
        """Answer one operating point.

        Raises DoesNotFitError if not one such request fits.
        """
        most = math.inf if point.most is None else float(point.most)
        share = math.inf if point.requests is None or not point.users else point.requests / point.users
        traffic = Traffic(point.isl, point.osl, osl_cv=point.osl_cv, requests=max(share, 1.0), most=most)
        room = float(slots(self.predictor, traffic.isl, traffic.osl, most))
        if room < 1.0:
            name = self.predictor.plan.model.name
            raise DoesNotFitError(f"{name}: not one request of {point.isl + point.osl:.0f} tokens fits in memory")
        if point.rate is None:
            return self._answer(closed_loop(self.predictor, float(point.users or 1), traffic), point, room)
        return self._answer(open_loop(self.predictor, point.rate, traffic), point, room)

    def _answer(self, loaded: Loaded, point: LoadPoint, room: float) -> LoadPrediction:
        times = loaded.shared
        step, own = float(times.step.expected), float(times.first.expected) + times.request
        tpot, ttft = float(loaded.tpot.expected), float(loaded.ttft.expected)
        parts = {"step": step, "interference": tpot - step, "prefill": own, "queue": ttft - own}
        rate = min(float(loaded.rate), float(loaded.knee))
        running = float(loaded.running) if point.rate is None or not loaded.stable else rate * float(loaded.e2e)
        return LoadPrediction(
            1e3 * ttft, 1e3 * tpot, 1e3 * float(loaded.e2e), rate * point.osl,
            {name: 1e3 * value for name, value in parts.items()}, running, _note(loaded, point, room),
        )  # fmt: skip


def _note(loaded: Loaded, point: LoadPoint, room: float) -> str:
    if not loaded.stable:
        return f"unstable: {point.rate:g} requests/s exceed the {float(loaded.knee):.3g} that can be sustained"
    if point.users is not None and point.users > room:
        return f"{room:.0f} of {point.users} requests fit in memory at a time; the others wait"
    return ""

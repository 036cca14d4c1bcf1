"""Latency under load in one formula: conservation of the accelerator's time between prefill and decode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from rooflinekit.operating_point import Predictor
from rooflinekit.types.errors import DoesNotFitError
from rooflinekit.types.workload import Workload

__all__ = ["Interference", "LoadPoint", "LoadPrediction", "LoadPredictor"]


@dataclass(frozen=True)
class LoadPoint:
    """Traffic at one operating point.

    isl, osl: mean tokens a request; users: requests in flight (closed loop), or None for an open loop at `rate`
    requests a second; requests: how many there are in all (None: a steady state); most: most sequences that run at
    once, where that is known.
    """

    isl: float
    osl: float
    users: int | None = None
    rate: float | None = None
    requests: int | None = None
    most: int | None = None


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
    """Decode steps that share the accelerator with the prefills of the other users.

    TPOT = t_decode(C, T̄) + (C − 1) · t_prefill / OSL: while a request makes its OSL tokens, each of the C − 1 others
    prefills once (conservation of time; chunked prefill spreads it). TTFT = queue + prefill. The queue of a closed loop
    of C users and n prompts: the first C come together and wait (C − 1)/2 prefills on average; each later one meets a
    step that is half done.
    """

    predictor: Predictor

    def predict(self, point: LoadPoint) -> LoadPrediction:
        """Answer one operating point; an open loop by the concurrency that Little's law gives it.

        Raises DoesNotFitError if not one such request fits.
        """
        fit = self._fit(point)
        if point.rate is None:
            return self._closed(point, min(point.users or 1, fit), point.users or 1)
        return self._open(point, point.rate, fit)

    def _fit(self, point: LoadPoint) -> int:
        """Sequences that the memory holds at their mean length over time."""
        room = float(self.predictor.memory.max_batch(point.isl + point.osl, point.isl))
        fit = int(min(room, point.most or room, 10**6))
        if fit < 1:
            model = self.predictor.plan.model.name
            raise DoesNotFitError(f"{model}: not one request of {point.isl + point.osl:.0f} tokens fits in memory")
        return fit

    def _closed(self, point: LoadPoint, running: int, users: int) -> LoadPrediction:
        times = self._times(point, running)
        prefill, token = times["prefill"], times["step"] + times["interference"]
        first = min(users / (point.requests or 1e9), 1.0)  # share of the requests that come together
        queue = first * (running - 1) / 2 * prefill + (1.0 - first) * (token / 2 if running > 1 else 0.0)
        served = prefill + queue + (point.osl - 1.0) * token
        turns = (users / running - 1.0) * (
            1.0 - first / 2
        )  # a burst ends: its last turn waits for all, its first for none
        queue += turns * served
        note = f"{running} of {users} requests fit in memory at a time; the others wait" if running < users else ""
        ttft = prefill + queue
        return LoadPrediction(
            ttft_ms=1e3 * ttft,
            tpot_ms=1e3 * token,
            e2e_ms=1e3 * (ttft + (point.osl - 1.0) * token),
            output_tok_s=running * point.osl / served,
            parts={name: 1e3 * value for name, value in {**times, "queue": queue}.items()},
            running=running,
            note=note,
        )

    def _open(self, point: LoadPoint, rate: float, fit: int) -> LoadPrediction:
        """Bisect for the smallest batch that keeps up with the rate."""
        wanted = rate * point.osl
        full = self._steady(point, fit)
        if full.output_tok_s < wanted:
            most = full.output_tok_s / point.osl
            return replace(full, note=f"unstable: {rate:g} requests/s exceed the {most:.3g} that can be sustained")
        low, high = 1, fit
        while low < high:
            middle = (low + high) // 2
            enough = self._steady(point, middle).output_tok_s >= wanted
            low, high = (low, middle) if enough else (middle + 1, high)
        found = self._steady(point, low)
        return replace(found, output_tok_s=wanted, running=rate * found.e2e_ms / 1e3)

    def _steady(self, point: LoadPoint, running: int) -> LoadPrediction:
        return self._closed(LoadPoint(point.isl, point.osl), running, running)

    def _times(self, point: LoadPoint, running: int) -> dict[str, float]:
        """Seconds of each part without the queue."""
        one = self.predictor.evaluate(Workload(1.0, point.isl, point.osl)).ttft.time
        step = self.predictor.evaluate(Workload(float(running), point.isl, point.osl)).tpot.time
        shared = (running - 1) * float(one) / point.osl
        return {"step": float(step), "interference": shared, "prefill": float(one)}

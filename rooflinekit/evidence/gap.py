"""What the gap between a measured and a predicted latency is made of."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rooflinekit.evidence.measured import Measurement
from rooflinekit.simulation.interference import LoadPoint, LoadPrediction

__all__ = ["CAUSES", "Gap", "attribute"]

CAUSES = ("step", "interference", "queue", "protocol")
_BUDGET = 2048  # tokens a step, the smallest default of the engines: the most chunks that a prompt is cut into
_COMMON = 0.5  # where more gaps than this hold a prefill, the median gap does too
_SAME = 1.05  # a median gap this much above the mean time a token is no single token


@dataclass(frozen=True)
class Gap:
    """Measured minus predicted end-to-end latency by cause [ms]; the four causes add up to `e2e_ms`.

    step: time of decode steps and of one's own prefill; interference: decode steps that share with the prefills of
    others; queue: waiting before the first token; protocol: what the client's definitions and its averaging leave.
    in_flight: requests that were under way on average (Little's law), None if it cannot be said.
    """

    e2e_ms: float
    step_ms: float
    interference_ms: float
    queue_ms: float
    protocol_ms: float
    in_flight: float | None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without the notes."""
        return {name: value for name, value in asdict(self).items() if name != "notes"}


def attribute(run: Measurement, expected: LoadPrediction, load: LoadPoint) -> Gap | None:
    """Divide the gap of E2EL = TTFT + (osl − 1) · TPOT.

    The median gap between tokens is a step without a prefill as long as few steps hold one, and the smallest TTFT is a
    prefill that met no queue; where the file has them, they tell step time from interference and from the queue.
    None without a mean TTFT and TPOT.
    """
    if not run.ttft.mean or not run.tpot.mean:
        return None
    more, parts, notes = load.osl - 1.0, expected.parts, []
    step = run.tpot.mean - expected.tpot_ms
    if _median_is_a_step(run, expected, load):
        step = (run.itl.p50 or 0.0) - parts["step"]
    elif expected.running > 1:
        notes.append("step time holds interference: the median gap between tokens does not tell them apart")
    waited = run.ttft.mean - expected.ttft_ms
    prefill = run.ttft.low - parts["prefill"] if run.ttft.low else 0.0 if expected.running > 1 else waited
    if not run.ttft.low and expected.running > 1:
        notes.append("queue holds the error of the prefill: the file has no smallest TTFT")
    whole = run.ttft.mean + more * run.tpot.mean
    measured = run.e2e.mean or whole
    return Gap(
        e2e_ms=measured - expected.e2e_ms,
        step_ms=more * step + prefill,
        interference_ms=more * (run.tpot.mean - expected.tpot_ms - step),
        queue_ms=waited - prefill,
        protocol_ms=measured - whole,
        in_flight=run.request_s * measured / 1e3 if run.request_s else None,
        notes=tuple(notes),
    )


def _median_is_a_step(run: Measurement, expected: LoadPrediction, load: LoadPoint) -> bool:
    chunks = math.ceil(load.isl / _BUDGET)
    gap, token = run.itl.p50 or 0.0, run.tpot.mean or 0.0
    return 0.0 < gap <= _SAME * token and expected.running * chunks / load.osl < _COMMON

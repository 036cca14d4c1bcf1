"""What users feel under load, term by term: the closed form of docs/serving.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from rooflinekit.explanation.derivation.load import LoadCase
from rooflinekit.explanation.derivation.node import Node, branch, given
from rooflinekit.explanation.derivation.scene import Scene
from rooflinekit.explanation.derivation.waits import behind, busy, held, queue
from rooflinekit.model.traffic.mixing import shared_times
from rooflinekit.model.types.errors import WorkloadError

__all__ = ["LOAD_METRICS"]


def tpot(case: LoadCase) -> Node:
    """Mean time of an output token after the first [s]."""
    users, times, value = float(case.loaded.running), case.loaded.shared, float(case.loaded.tpot.expected)
    parts = [case.step(users, times), case.share(users, times), case.running, *case.lengths]
    if case.closed or not case.stable:
        return branch(
            "TPOT",
            "mean time of an output token; while N are made, each other user prefills once",
            value,
            "s",
            ("step + (C - 1)/N*s", parts),
        )
    title = "mean time of an output token; a share rho of the time goes to prompts"
    return branch("TPOT", title, value, "s", ("(step + Q*s)/(1 - rho)", [*parts, busy(case), behind(case)]))


def ttft(case: LoadCase) -> Node:
    """Front end, the step under way, prompts ahead, the own prompt [s]."""
    _steady(case, "TTFT")
    request = Scene.facts(case.predictor.plan).engine(
        "request", "front end of a request", case.loaded.shared.request, "request"
    )
    parts = [request, _tpot_alone(case), queue(case), case.first(), case.running]
    half = "(1 - 1/C)/2*TPOT" if case.closed else "TPOT/2"
    formula = f"request + {half} + queue + first"
    return branch("TTFT", "time to the first token under load", float(case.loaded.ttft.expected), "s", (formula, parts))


def _tpot_alone(case: LoadCase) -> Node:
    return given("TPOT", "mean time of an output token", float(case.loaded.tpot.expected), "s", "explain MODEL tpot")


def e2e(case: LoadCase) -> Node:
    """From arrival to the last token [s]."""
    parts = [ttft(case), case.lengths[1], tpot(case)]
    return branch("E2E", "a request from end to end", float(case.loaded.e2e), "s", ("TTFT + (N - 1)*TPOT", parts))


def knee(case: LoadCase) -> Node:
    """The rate that cannot be exceeded [1/s]; in a closed loop the rate it has."""
    value = float(case.loaded.knee)
    if case.closed:
        e2e = given("E2E", "a request from end to end", float(case.loaded.e2e), "s", "explain MODEL e2e")
        return branch("rate", "rate of the closed loop", value, "1/s", ("C/held", [case.running, held(case), e2e]))
    times, C = shared_times(case.predictor, case.in_flight(case.room)), case.slots()
    parts = [replace(C, symbol="C"), case.lengths[1], case.step(case.room, times), case.share(case.room, times)]
    return branch("knee", "largest rate that can be sustained: a full batch", value, "1/s", ("C/(N*step + C*s)", parts))


def rate(case: LoadCase) -> Node:
    """Requests a second that are served."""
    if case.closed:
        return knee(case)
    arriving = case.asked("rate", "requests a second that arrive", float(case.question.rate or 0.0), "1/s")
    most = knee(case)
    title = "requests a second that are served"
    return branch("served", title, min(arriving.value, most.value), "1/s", ("min(rate, knee)", [arriving, most]))


def output(case: LoadCase) -> Node:
    """Output tokens a second of the deployment."""
    served = replace(rate(case), symbol="served")
    value = served.value * float(case.traffic.osl)
    return branch("output", "output tokens a second", value, "token/s", ("served*N", [served, case.lengths[1]]))


def _steady(case: LoadCase, what: str) -> None:
    if not case.stable:
        raise WorkloadError(
            f"{what} has no limit at {case.question.rate:g} requests/s: the knee is {float(case.loaded.knee):.4g}; "
            "explain knee_rate or tpot, or ask for a lower --rate"
        )
    if math.isinf(float(case.loaded.queue)):
        raise WorkloadError(f"{what} has no limit")


def _queue(case: LoadCase) -> Node:
    _steady(case, "a wait")
    return queue(case)


LOAD_METRICS: dict[str, tuple[str, float, Callable[[LoadCase], Node]]] = {
    "ttft": ("ms", 1e3, ttft),
    "tpot": ("ms", 1e3, tpot),
    "e2e": ("ms", 1e3, e2e),
    "output_tok_s": ("token/s", 1.0, output),
    "queue": ("ms", 1e3, _queue),
    "knee_rate": ("1/s", 1.0, knee),
    "rate": ("1/s", 1.0, rate),
}
"""Metrics whose derivation differs under load: unit shown, its scale, and the tree."""

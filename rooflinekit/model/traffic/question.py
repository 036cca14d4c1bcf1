"""One deployment under load: what is asked, and what the closed form answers."""

from __future__ import annotations

import math
from dataclasses import replace

from rooflinekit.model.capacity import Memory
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Loaded, OpenLoop, Times, Traffic, closed_loop, no_room, open_loop
from rooflinekit.model.traffic.mixing import slots
from rooflinekit.model.traffic.percentiles import QUANTILES, Spread, goodput, spread
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import Numeric, fails, floor_div, maximum


@dataclass(frozen=True)
class LoadQuestion:
    """Users in a closed loop, or a rate of arrivals [1/s]; the traffic; objectives [s]."""

    users: Numeric | None
    rate: Numeric | None
    traffic: Traffic
    ttft: Numeric | None
    tpot: Numeric | None

    @property
    def arrivals(self) -> str:
        """In words, up to the lengths."""
        isl_cv, osl_cv = self.traffic.isl_cv, self.traffic.osl_cv
        means = f", mean lengths (cv {isl_cv:.3g} in, {osl_cv:.3g} out)" if isl_cv or osl_cv else ""
        if self.rate is None:
            each, many = self.traffic.requests, "user" if self.users == 1.0 else "users"
            sends = "" if math.isinf(float(each)) else f", {each:g} request{'' if each == 1.0 else 's'} each"
            return f"closed loop of {self.users:.0f} {many}{sends}{means}"
        return open_arrivals(self.rate, self.traffic.arrival_cv) + means

    def held(self, sequences: Numeric) -> tuple[Numeric, Numeric, Numeric]:
        """Sequences that run, their mean tokens and those of a prompt, as memory holds them."""
        return sequences, self.traffic.isl + self.traffic.of(sequences).under_way / 2.0, self.traffic.isl


def open_arrivals(rate: Numeric, cv: Numeric) -> str:
    """Requests of an open loop in words, by the variation of the gaps between them.

    >>> open_arrivals(4.0, 1.0), open_arrivals(4.0, 0.0)
    ('4 requests/s, Poisson', '4 requests/s, evenly spaced')
    """
    process = "Poisson" if cv == 1.0 else "evenly spaced" if cv == 0.0 else f"gamma, cv {cv:g}"
    return f"{rate:g} requests/s, {process}"


@dataclass(frozen=True)
class LoadAnswer:
    """Means and percentiles of one question, or of arrays of them."""

    loaded: Loaded
    times: Spread
    question: LoadQuestion

    @property
    def sequences(self) -> Numeric:
        """Sequences that run, as a whole number of at least 1."""
        return maximum(floor_div(self.loaded.running + 0.5, 1.0), 1.0)

    def memory(self, predictor: Predictor) -> Memory:
        """What the sequences that run hold, at their mean length; those that have room as `slots` has them."""
        found, traffic = predictor.memory.evaluate(*self.question.held(self.sequences)), self.question.traffic
        if not predictor.plan.engine.memory.reserves:
            return found
        return replace(
            found, max_batch=predictor.memory.max_batch(traffic.isl + traffic.of(1.0).under_way, traffic.isl)
        )

    def values(self, predictor: Predictor) -> dict[str, Numeric | None]:
        """Plain numbers by name: times in ms, rates in requests a second; infinite waits where there is no limit."""
        loaded, traffic, goals = self.loaded, self.question.traffic, (self.question.ttft, self.question.tpot)
        functions = {"ttft": self.times.ttft, "tpot": self.times.tpot, "e2e": self.times.e2e}
        values: dict[str, Numeric | None] = {
            "running": loaded.running,
            "slots": slots(predictor, traffic.isl, traffic.osl, osl_cv=traffic.osl_cv),
            "request_rate": loaded.rate,
            "knee_rate": loaded.knee,
            "prompt_share": loaded.busy,
            "queue_ms": 1e3 * loaded.queue,
        }
        for name, quantile in functions.items():
            values |= {f"{name}_p{100 * q:.0f}_ms": 1e3 * quantile(q) for q in QUANTILES}
        good = None if goals[0] is None and goals[1] is None else goodput(self.times, loaded.rate, *goals)
        return values | {"goodput": good}


def answer_load(
    predictor: Predictor, question: LoadQuestion, known: Times | None = None, loop: OpenLoop | None = None
) -> LoadAnswer:
    """Evaluate the closed form; `known` are shared times that are tabulated, `loop` what all rates have in common.

    Raises DoesNotFitError if not one such request fits; ValueError as `open_loop` does.
    """
    traffic, closed = question.traffic, question.rate is None
    if loop is not None and question.rate is not None:
        return LoadAnswer(loaded := loop.at(question.rate), spread(loaded, traffic, closed), question)
    if fails(slots(predictor, traffic.isl, traffic.osl, osl_cv=traffic.osl_cv) >= 1.0):
        raise no_room(predictor, traffic)
    if question.users is not None:
        loaded = closed_loop(predictor, question.users, traffic, known)
    else:
        loaded = open_loop(predictor, 0.0 if question.rate is None else question.rate, traffic, known)
    return LoadAnswer(loaded, spread(loaded, traffic, closed), question)

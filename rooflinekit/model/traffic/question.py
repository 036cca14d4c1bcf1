"""One deployment under load: what is asked, and what the closed form answers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from rooflinekit.model.capacity import Memory
from rooflinekit.model.operating_point import Predictor
from rooflinekit.model.traffic.closed_form import Loaded, OpenLoop, Times, Traffic, closed_loop, no_room, open_loop
from rooflinekit.model.traffic.mixing import slots
from rooflinekit.model.traffic.percentiles import QUANTILES, Spread, goodput, spread
from rooflinekit.model.types.errors import InputError, WorkloadError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.numeric import Numeric, fails, floor_div, maximum, minimum


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


def read_load(given: dict[str, Any], isl: float, osl: float) -> LoadQuestion | None:
    """Read what a user says of traffic; None if no load is asked for.

    Raises InputError for a concurrency together with a rate, or an option that needs one of them; WorkloadError for
    fewer requests than users.

    >>> read_load({"concurrency": 64, "requests": 640}, 1024.0, 256.0).arrivals
    'closed loop of 64 users, 10 requests each'
    >>> read_load({"rate": 2, "isl_cv": 1.0}, 1024.0, 256.0).arrivals
    '2 requests/s, Poisson, mean lengths (cv 1 in, 0 out)'
    """
    asked = {key: value for key, value in given.items() if value is not None}
    if "concurrency" in asked and "rate" in asked:
        raise InputError("concurrency and rate exclude each other: a closed loop of users, or arrivals at a rate")
    if "concurrency" not in asked and "rate" not in asked:
        for key in asked:
            raise InputError(f"{key} describes traffic; add concurrency (a closed loop) or rate (requests/s)")
        return None
    users = float(asked["concurrency"]) if "concurrency" in asked else None
    requests = asked.get("requests")
    if requests is not None and users is not None and requests < users:
        raise WorkloadError(f"requests must be at least concurrency ({users:.0f}), one for each user, not {requests}")
    if users is not None and "burstiness" in asked:
        raise InputError("burstiness belongs to a rate; users of a closed loop send when their answers have come")
    traffic = Traffic(
        isl, osl,
        isl_cv=asked.get("isl_cv", 0.0), osl_cv=asked.get("osl_cv", 0.0), arrival_cv=asked.get("burstiness", 1.0),
        requests=math.inf if requests is None or users is None else requests / users,
        isl_law=asked.get("isl_law"), osl_law=asked.get("osl_law"),
    )  # fmt: skip
    goals = [asked[key] / 1e3 if key in asked else None for key in ("ttft", "tpot")]
    return LoadQuestion(users, asked.get("rate"), traffic, *goals)


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


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What users feel under load; times in ms, rates in requests a second.

    knee_rate: the largest rate that can be sustained; prompt_share: of the time, spent on prompts; goodput: requests a
    second that meet the objectives (None without one). Above the knee `stable` is False, and waits are None: no limit.
    encoders_busy, encoders_wait_ms: share of the time in which accelerators encode images, and the mean wait for one,
    which is no part of `queue_ms`; None where there are none of their own. Where the load was played: standard errors
    of means and percentiles, what both times are made of, requests that count and
    those before them that do not, and from the first to the last of them.
    """

    arrivals: str
    stable: bool
    running: float
    slots: int
    rate: float
    knee_rate: float
    prompt_share: float
    queue_ms: float | None
    percentiles: dict[str, dict[str, float | None]]
    slo: dict[str, float | None]
    goodput: float | None
    encoders_busy: float | None = None
    encoders_wait_ms: float | None = None
    errors: dict[str, dict[str, float]] | None = None
    ttft_parts_ms: dict[str, float] | None = None
    tpot_parts_ms: dict[str, float] | None = None
    requests: int | None = None
    warmup: int | None = None
    makespan_s: float | None = None

    @classmethod
    def of(cls, predictor: Predictor, answer: LoadAnswer) -> LoadResult:
        """Read the scalars."""
        loaded, question = answer.loaded, answer.question
        stable = bool(loaded.stable)
        values = {name: None if value is None else float(value) for name, value in answer.values(predictor).items()}
        endless = () if stable else ("ttft_ms", "e2e_ms")
        percentiles = {
            f"{time}_ms": {f"p{100 * q:.0f}": values[f"{time}_p{100 * q:.0f}_ms"] for q in QUANTILES}
            for time in ("ttft", "tpot", "e2e")
        }
        for key in endless:
            percentiles[key] = dict.fromkeys(percentiles[key])
        named = zip(("ttft_ms", "tpot_ms"), (question.ttft, question.tpot), strict=True)
        slo = {key: None if goal is None else 1e3 * float(goal) for key, goal in named}
        good = values["goodput"] if stable or values["goodput"] is None else 0.0
        encoded = loaded.shared.encoded
        busy = None if encoded is None else float(minimum(minimum(loaded.rate, loaded.knee) * encoded.apart, 1.0))
        wait = None if encoded is None or not stable else 1e3 * float(encoded.wait)
        return cls(
            question.arrivals, stable, float(loaded.running), int(values["slots"] or 0.0), float(loaded.rate),
            float(loaded.knee), float(loaded.busy), values["queue_ms"] if stable else None, percentiles, slo, good,
            busy, wait,
        )  # fmt: skip

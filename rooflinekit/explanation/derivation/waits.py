"""Waiting under load: for prompts ahead and for a slot (docs/serving.md)."""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.explanation.derivation.load import FORM, LoadCase
from rooflinekit.explanation.derivation.node import Node, branch, given, reckoned
from rooflinekit.model.types.numeric import Numeric

__all__ = ["behind", "busy", "held", "queue"]

_FULL = 0.98  # as in rooflinekit.model.traffic.closed_form: the share of the time from which Kingman's formula is held


def queue(case: LoadCase) -> Node:
    """Waiting for prompts ahead and for a slot [s]."""
    parts = [*(_closed_waits(case) if case.closed else [_prompts(case)]), _slot(case)]
    formula = " + ".join(part.symbol for part in parts)
    return branch("queue", "waiting for prompts ahead and for a slot", float(case.loaded.queue), "s", (formula, parts))


def busy(case: LoadCase) -> Node:
    """Share of the time that goes to prompts."""
    value = float(case.loaded.busy)
    if case.closed or not case.stable:
        return given("rho", "share of the time that goes to the prompts of others", value, "", FORM)
    rate = case.asked("rate", "requests a second", float(case.question.rate or 0.0), "1/s")
    held = given("full", "beyond this the queue formula loses its meaning", _FULL, "", "an assumption")
    return branch(
        "rho",
        "share of the time that goes to prompts",
        value,
        "",
        ("min(rate*s, full)", [rate, held, *case.shared()]),
    )


def _variation(case: LoadCase, lengths: Numeric) -> Node:
    other, gaps = float(lengths), 1.0 if case.closed else float(case.traffic.arrival_cv)
    cv = [
        case.asked("ca", "variation of the gaps between arrivals", gaps),
        case.asked("cs", "variation of the lengths", other),
    ]
    value = (cv[0].value ** 2 + other**2) / 2.0
    return branch("v", "mean squared variation", value, "", ("(ca**2 + cs**2)/2", cv))


def behind(case: LoadCase) -> Node:
    """Prompts that are computed beside a request's decode steps."""
    rho, v = busy(case), _variation(case, case.traffic.isl_cv)
    formula = "(rho + rho**2*v/(1 - rho))/max(N - 1, 1)"
    title = "prompts behind a request when its decode begins, for each step (M/G/1)"
    return reckoned("Q", title, "", (formula, [rho, v, *case.lengths]))


def _prompts(case: LoadCase) -> Node:
    formula = "rho/(1 - rho)*v*s"
    return reckoned(
        "prompts",
        "behind prompts that came before (Kingman)",
        "s",
        (formula, [busy(case), _variation(case, case.traffic.isl_cv), *case.shared()]),
    )


def _closed_waits(case: LoadCase) -> list[Node]:
    together = given(
        "together", "share of the requests whose prompts come all at once", float(case.loaded.together), "", FORM
    )
    C, N, s = case.running, case.lengths[1], case.shared()[1]
    burst = reckoned("burst", "prompts of all users at once", "s", ("together*(C - 1)/2*s", [together, C, s]))
    parts = [busy(case), _variation(case, case.traffic.isl_cv), s, C, N]
    ahead = reckoned(
        "ahead", "other prompts, at most all of them in a turn", "s", ("min(rho/(1 - rho)*v*s, (C - 1)/N*s)", parts)
    )
    return [burst, ahead]


def _slot(case: LoadCase) -> Node:
    turn = held(case)
    if case.closed:
        late = given(
            "late",
            "share of the turns that wait: 1 − 1/(2·requests)",
            1.0 - 0.5 / float(case.traffic.requests),
            "",
            FORM,
        )
        users = case.asked("users", "users", float(case.question.users or 0.0))
        return reckoned(
            "slot",
            "for a slot: a turn of those that run",
            "s",
            ("max(users/C - 1, 0)*held*late", [users, case.running, turn, late]),
        )
    full = given(
        "load",
        "rate over the knee, at most 0.98",
        min(float(case.loaded.rate / case.loaded.knee), _FULL),
        "",
        "explain MODEL knee_rate",
    )
    formula = "v_o*held/slots*load**(sqrt(2*(slots + 1)) - 1)/(1 - load)"
    varied = replace(_variation(case, case.traffic.osl_cv), symbol="v_o")
    return reckoned("slot", "for a slot (Sakasegawa 1977)", "s", (formula, [varied, turn, case.slots(), full]))


def held(case: LoadCase) -> Node:
    """How long a request holds its slot [s]."""
    loaded, times = case.loaded, case.loaded.shared
    decode = (float(case.traffic.osl) - 1.0) * float(loaded.tpot.expected)
    half = (1.0 - 1.0 / float(loaded.running)) if case.closed else 1.0
    waits = [node.value for node in (_closed_waits(case) if case.closed else [_prompts(case)])]
    value = times.request + float(times.first.expected) + 0.5 * half * float(loaded.tpot.expected) + sum(waits) + decode
    return given(
        "held",
        "a request's time without waiting for a slot",
        value,
        "s",
        "request + first + TPOT/2 + waits + (N − 1)·TPOT",
    )
